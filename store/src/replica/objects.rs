//! The objects of a replica, which may be out of reach when a store needs them.

use super::super::bucket;
use super::super::marker::{Marker, installation, refuse_foreign};
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_base::files::{self, Sharing};
use longhaul_objects::{
    GetError, LocalObjects, Location, ObjectMeta, Objects, PutError, StorageError,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A location of that installation, which opens when first needed.
pub struct ReplicaObjects {
    location: Location,
    installation: String,
    opened: OnceCell<Opened>,
}

struct Opened {
    objects: Arc<dyn Objects>,
    /// Of a directory: others may use it, and nobody for himself.
    _sharing: Option<Sharing>,
    /// Whether others do.
    used: bool,
}

impl ReplicaObjects {
    /// The location that a text says, as `--data` does.
    ///
    /// # Errors
    /// If it is none, or none that outlives a machine.
    pub fn new(text: &str, installation: &str) -> Result<ReplicaObjects> {
        let location = Location::parse(Path::new(text))?;
        match &location {
            Location::Directory(dir) if dir.is_absolute() => {}
            Location::Bucket { .. } => {}
            Location::Directory(_) => bail!("{text}: give the whole path of the directory"),
            Location::Device(_) | Location::Memory { .. } => {
                bail!("{text}: a replica is a directory or s3://BUCKET/PREFIX")
            }
        }
        let installation = installation.to_owned();
        Ok(ReplicaObjects { location, installation, opened: OnceCell::new() })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Makes an empty location one of the installation, and leaves an existing one as it is.
    /// Returns whether another process uses it, as far as that is visible.
    ///
    /// # Errors
    /// If it is something else, or a write fails.
    pub async fn make(&self) -> Result<bool> {
        match &self.location {
            Location::Directory(dir) => {
                refuse_foreign(dir)?;
                if installation(dir)?.is_none() {
                    files::create_dir(dir)?;
                    let marker = Marker::of(&self.installation);
                    let path = dir.join(longhaul_base::dirs::STORE_FILE);
                    files::replace(&path, &serde_json::to_vec_pretty(&marker)?, 0o600)?;
                }
            }
            Location::Bucket { bucket, prefix } => {
                bucket::make(bucket, prefix, &self.installation).await?;
            }
            Location::Device(_) | Location::Memory { .. } => {}
        }
        Ok(self.open().await?.used)
    }

    async fn open(&self) -> Result<&Opened> {
        self.opened
            .get_or_try_init(|| async {
                match &self.location {
                    Location::Directory(dir) => {
                        self.check(dir)?;
                        let whole = dir.clone();
                        let open = move || {
                            let taken = Sharing::acquire(&whole)?;
                            let used = !taken.is_alone();
                            let objects: Arc<dyn Objects> = Arc::new(LocalObjects::beside(&whole)?);
                            Ok(Opened { objects, _sharing: Some(taken.share()?), used })
                        };
                        tokio::task::spawn_blocking(open).await?
                    }
                    Location::Bucket { bucket, prefix } => {
                        let (objects, found) = bucket::open_replica(bucket, prefix).await?;
                        self.is_ours(&found)?;
                        Ok(Opened { objects, _sharing: None, used: false })
                    }
                    Location::Device(_) | Location::Memory { .. } => {
                        bail!("{}: not a place for a replica", self.location)
                    }
                }
            })
            .await
    }

    fn is_ours(&self, found: &str) -> Result<()> {
        if found != self.installation {
            bail!(
                "{} belongs to installation {found}, and this is {}: give another location",
                self.location,
                self.installation
            );
        }
        Ok(())
    }

    /// A directory may be a mount point without a mount.
    fn check(&self, dir: &Path) -> Result<()> {
        let found = installation(dir)?;
        let found =
            found.with_context(|| format!("{} is not there: is it mounted?", dir.display()))?;
        self.is_ours(&found)
    }

    async fn objects(&self) -> Result<&Arc<dyn Objects>, StorageError> {
        let opened = self.open().await.map_err(|error| {
            StorageError::new(longhaul_objects::kind_of(&error), format!("{error:#}"))
        })?;
        if let Location::Directory(dir) = &self.location
            && !dir.join(longhaul_base::dirs::STORE_FILE).exists()
        {
            let why = format!("{} is not there any more: is it mounted?", dir.display());
            return Err(StorageError::unavailable(why));
        }
        Ok(&opened.objects)
    }
}

#[async_trait]
impl Objects for ReplicaObjects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        self.objects().await.map_err(PutError::Failed)?.put(key, data).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.objects().await.map_err(GetError::Failed)?.get(key, range).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.objects().await?.list(prefix).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.objects().await?.list_after(prefix, after).await
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.objects().await?.delete(key).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        self.objects().await.map_err(PutError::Failed)?.copy(from, to).await
    }
}
