//! What a store stands on: its directories, their locks, and the location.

use super::replica::standby::Standby;
use super::site::{self, Role, Site};
use super::{Options, bucket, marker, reachable, refuse_foreign, refuse_host, registry};
use crate::credential::{self, Issued};
use crate::files::{self, Lock, Sharing};
use crate::objects::{DeviceObjects, LocalObjects, Location, MemoryObjects, Objects};
use crate::random;
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::sync::Arc;

/// The directories and the location of a store that is starting.
pub(super) struct Ground {
    pub(super) locks: Vec<Lock>,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) installation: String,
    pub(super) sharing: Option<Sharing>,
    /// All objects of the location.
    pub(super) base: Arc<dyn Objects>,
    pub(super) site: Site,
    /// It has just been gone on with: whoever served volumes before may not know.
    pub(super) promoted: bool,
}

impl Ground {
    /// Takes them, to serve volumes.
    ///
    /// # Errors
    /// If they cannot be had, or volumes are served from elsewhere.
    #[cfg(test)]
    pub async fn take(options: &Options<'_>) -> Result<Ground> {
        let ground = Ground::take_or_wait(options).await?;
        if let Role::Replica { of, .. } = &ground.site.role {
            bail!("{} is a replica of {of}", options.data);
        }
        Ok(ground)
    }

    /// Takes them, to serve volumes or to wait.
    ///
    /// # Errors
    /// If they cannot be had, or volumes are served from elsewhere.
    pub async fn take_or_wait(options: &Options<'_>) -> Result<Ground> {
        let Options { data, state, .. } = *options;
        if let Location::Directory(dir) = data {
            refuse_foreign(dir)?;
        }
        refuse_host("--state", state)?;
        files::create_dir(state)?;
        let locks = vec![Lock::acquire(state)?];
        let mut dirs = vec![state.to_owned()];
        let installation;
        let mut sharing = None;
        let base: Arc<dyn Objects> = match data {
            Location::Directory(dir) => {
                files::create_dir(dir)?;
                if dir.canonicalize()? != state.canonicalize()? {
                    dirs.push(dir.clone());
                }
                let taken = Sharing::acquire(dir)?;
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
        let site = site::read(&*base).await?;
        if let Role::Replaced { by } = &site.role {
            bail!(
                "volumes are served from {by} since a replica there took over from {data}: start stores with --data {by}; \
                 `longhaul store replica add` there makes {data} its replica"
            );
        }
        Ok(Ground { locks, dirs, installation, sharing, base, site, promoted: false })
    }

    /// Waits over a replica until somebody goes on with it. Returns what the location is then.
    ///
    /// # Errors
    /// If it cannot listen, or has another CA than hosts know.
    pub async fn wait(&self, options: &Options<'_>, standby: Arc<Standby>) -> Result<Site> {
        let Options { data, state, listen, advertise, new_ca, .. } = *options;
        let own = vec![advertise.map_or_else(|| reachable(listen), str::to_owned)];
        let identity = credential::prepare(state, &own)?;
        if let Role::Replica { of, ca, .. } = &self.site.role
            && registry::fingerprint(&identity.ca) != *ca
            && !new_ca
        {
            bail!(
                "the stores of {of}, of which {data} is a replica, have another CA than {}: have one of them invite this \
                 one (`longhaul store invite --state DIR` there, `longhaul store join` here, into a new state directory)",
                state.display()
            );
        }
        standby.wait(listen, &identity, Arc::new(Issued::new(state))).await
    }
}
