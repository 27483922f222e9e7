//! The bootstrap of a store: its directories, their locks, and the location.

use super::location::{self, LocationRecord, LocationRole};
use super::marker::{marker, refuse_foreign, refuse_host};
use super::options::{Options, reachable};
use super::replica::standby::Standby;
use super::{bucket, registry};
use anyhow::{Context as _, Result, bail};
use longhaul_base::files::{self, Lock, Sharing};
use longhaul_base::random;
use longhaul_link::credential::{self, Issued};
use longhaul_objects::{DeviceObjects, LocalObjects, Location, MemoryObjects, Objects};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directories and the location of a store that is starting.
pub(super) struct Bootstrap {
    pub(super) sharing: Option<Sharing>,
    /// The files and directories of a first start. If the start fails, this store removes them
    /// again. It does so with the locks, and after it has ended the sharing of the directory.
    pub(super) made: FirstStarts,
    pub(super) locks: Vec<Lock>,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) installation: String,
    /// All objects of the location.
    pub(super) base: Arc<dyn Objects>,
    pub(super) site: LocationRecord,
    /// A store has just taken it over: the former stores may not know.
    pub(super) promoted: bool,
}

/// The directories in which a first start writes, until it has succeeded. A drop before that
/// removes everything written: the directories were empty, and nobody else has the locks.
#[derive(Default)]
pub(super) struct FirstStarts {
    dirs: Vec<FirstStart>,
}

/// A directory that was empty at the time of its lock.
struct FirstStart {
    dir: PathBuf,
    /// The topmost new directory above it.
    created: Option<PathBuf>,
    /// Other stores can use it too. Check whether they do.
    shared: bool,
    /// Whether this store has its locks, and it was empty except for them.
    empty: bool,
}

impl FirstStarts {
    pub(super) fn create(&mut self, dir: &Path) -> Result<()> {
        let above = dir.ancestors().filter(|above| !above.as_os_str().is_empty());
        let created = above.take_while(|above| !above.exists()).last().map(Path::to_owned);
        files::create_dir(dir)?;
        self.dirs.push(FirstStart { dir: dir.into(), created, shared: false, empty: false });
        Ok(())
    }

    /// This store alone has the directory from now on.
    pub(super) fn locked(&mut self, dir: &Path) -> Result<()> {
        self.looked_at(dir).map(drop)
    }

    /// Other stores can use the directory from now on; none does yet if this one is alone.
    fn shared(&mut self, dir: &Path, alone: bool) -> Result<()> {
        let made = self.looked_at(dir)?;
        (made.empty, made.shared) = (made.empty && alone, true);
        Ok(())
    }

    fn looked_at(&mut self, dir: &Path) -> Result<&mut FirstStart> {
        let locks = ["lock", "shared.lock"];
        let entries = std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.with_context(|| format!("cannot list {}", dir.display()))?;
        let empty = entries.iter().all(|entry| locks.iter().any(|lock| entry.file_name() == *lock));
        // The data directory may be the one of the state.
        let whole = dir.canonicalize()?;
        let same = |made: &&mut FirstStart| made.dir.canonicalize().is_ok_and(|dir| dir == whole);
        let made = self.dirs.iter_mut().find(same).context("a directory that was not made")?;
        made.empty = empty;
        Ok(made)
    }
}

impl Drop for FirstStarts {
    fn drop(&mut self) {
        for FirstStart { dir, created, shared, empty } in self.dirs.drain(..).rev() {
            // Another store has come since, found an installation here, and has begun to use it.
            let alone = if shared { Sharing::alone(&dir) } else { None };
            if !empty || (shared && alone.is_none()) {
                continue;
            }
            tracing::debug!("{}: the store removes the files of this start", dir.display());
            if let Err(error) = files::empty_dir(&dir) {
                tracing::warn!("{}: cannot remove the files of this start: {error}", dir.display());
                continue;
            }
            let Some(created) = created else { continue };
            // Up to the first that something else is in.
            let empty = |above: &&Path| std::fs::remove_dir(above).is_ok();
            let above = dir.ancestors().take_while(|above| above.starts_with(&created));
            above.take_while(empty).for_each(drop);
        }
    }
}

impl Bootstrap {
    /// Takes the directories and locks, to serve volumes.
    ///
    /// # Errors
    /// If they are not available, or another location serves the volumes.
    pub async fn take(options: &Options<'_>) -> Result<Bootstrap> {
        let bootstrap = Bootstrap::take_or_wait(options).await?;
        if let LocationRole::Replica { of, .. } = &bootstrap.site.role {
            bail!("{} is a replica of {of}", options.data);
        }
        Ok(bootstrap)
    }

    /// Takes the directories and locks, to serve volumes or to wait.
    ///
    /// # Errors
    /// If they are not available, or another location serves the volumes.
    pub async fn take_or_wait(options: &Options<'_>) -> Result<Bootstrap> {
        let Options { data, state, .. } = *options;
        if let Location::Directory(dir) = data {
            refuse_foreign(dir)?;
        }
        refuse_host("--state", state)?;
        let mut made = FirstStarts::default();
        made.create(state)?;
        let locks = vec![Lock::acquire(state)?];
        made.locked(state)?;
        let mut dirs = vec![state.to_owned()];
        let installation;
        let mut sharing = None;
        let base: Arc<dyn Objects> = match data {
            Location::Directory(dir) => {
                let apart = !dir.exists() || dir.canonicalize()? != state.canonicalize()?;
                if apart {
                    made.create(dir)?;
                    dirs.push(dir.clone());
                }
                let taken = Sharing::acquire(dir)?;
                made.shared(dir, taken.is_alone())?;
                installation = marker(dir)?;
                let objects = match taken.is_alone() {
                    true => LocalObjects::open(dir)?,
                    false => LocalObjects::beside(dir)?,
                };
                sharing = Some(taken.share()?);
                Arc::new(objects)
            }
            Location::Device(path) => {
                let device = DeviceObjects::open(path)?;
                installation = format!("{:032x}", device.installation());
                Arc::new(device)
            }
            Location::Bucket { bucket, prefix } => {
                let (objects, found) = bucket::open(bucket, prefix).await?;
                installation = found;
                objects
            }
            Location::Memory { limit_bytes } => {
                installation = format!("{:032x}", random::identity()?);
                tracing::warn!("volumes are kept in memory: they are gone when this process ends");
                Arc::new(MemoryObjects::new(*limit_bytes))
            }
        };
        let site = location::read(&*base).await?;
        if let LocationRole::Replaced { by } = &site.role {
            bail!(
                "volumes are served from {by} since a replica there took over from {data}: start \
                 stores with --data {by}; `longhaul store replica add` there makes {data} its \
                 replica"
            );
        }
        Ok(Bootstrap { sharing, made, locks, dirs, installation, base, site, promoted: false })
    }

    /// Keeps the new files and directories.
    pub fn keep(&mut self) {
        self.made.dirs.clear();
    }

    /// Waits over a replica until somebody goes on with it. Returns what the location is then.
    ///
    /// # Errors
    /// If it cannot listen, or has another CA than hosts know.
    pub async fn wait(
        &self,
        options: &Options<'_>,
        standby: Arc<Standby>,
    ) -> Result<LocationRecord> {
        let Options { data, state, listen, advertise, new_ca, .. } = *options;
        let own = vec![advertise.map_or_else(|| reachable(listen), str::to_owned)];
        let me = registry::identity(state)?.to_string();
        let identity = credential::prepare(state, &own, &me)?;
        if let LocationRole::Replica { of, ca, .. } = &self.site.role
            && registry::fingerprint(&identity.ca) != *ca
            && !new_ca
        {
            bail!(
                "the stores of {of}, of which {data} is a replica, have another CA than {}: have \
                 one of them invite this one (`longhaul store invite --state DIR` there, `longhaul \
                 store join` here, into a new state directory)",
                state.display()
            );
        }
        standby.wait(listen, &identity, Arc::new(Issued::new(state))).await
    }
}
