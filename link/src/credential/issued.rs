//! The certificates that the stores of an installation accept, with the permissions of each.
//!
//! Each store has the list in `issued.json`, and the stores exchange their lists in the location. A
//! merged list accepts each certificate of either list, unless one of them has withdrawn it. So no
//! store undoes a concurrent change of another one, and a withdrawn entry never comes back. A store
//! withdraws a credential of a host or an operator by its key. That also withdraws a certificate
//! that another store has signed for that key meanwhile.

use super::authority::CLIENT_LIFE;
use super::directory::{directory, read_if_there};
use super::grant::{Grant, Kind, Reach};
use super::seen::{OF_STORE, tenant_of};
use anyhow::{Context as _, Result, bail};
use longhaul_base::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

const VERSION: u32 = 1;
/// How long after its end a certificate stays in the list: clocks of machines differ.
const KEPT: Duration = Duration::days(1);

/// The certificates that all stores accept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// How often it has changed in the location.
    pub generation: u64,
    /// By serial number, as [`super::inspect`] gives it.
    pub accepted: BTreeMap<String, Grant>,
    /// Withdrawn serial numbers, until their certificates expire.
    pub withdrawn: BTreeMap<String, String>,
    /// Keys of withdrawn credentials, in the form of grants. They stay until every certificate has
    /// expired that a store may sign for them before it knows.
    pub withdrawn_keys: BTreeMap<String, String>,
}

impl Accepted {
    /// Whether it says the same, however often it has changed.
    pub fn says(&self, other: &Accepted) -> bool {
        (&self.accepted, &self.withdrawn, &self.withdrawn_keys)
            == (&other.accepted, &other.withdrawn, &other.withdrawn_keys)
    }

    /// The merged list of both.
    #[must_use]
    pub fn merged(&self, other: &Accepted) -> Accepted {
        let mut all = self.clone();
        all.generation = self.generation.max(other.generation);
        let theirs = |(serial, grant): (&String, &Grant)| (serial.clone(), grant.clone());
        all.accepted.extend(other.accepted.iter().map(theirs));
        all.withdrawn.extend(other.withdrawn.clone());
        all.withdraw_keys(other.withdrawn_keys.clone());
        all.settle(OffsetDateTime::now_utc());
        all
    }

    /// Withdraws the wanted certificates; of hosts and operators all certificates of the same key.
    /// Returns the number of those.
    pub fn withdraw(&mut self, wanted: impl Fn(&str, &Grant) -> bool) -> usize {
        let now = OffsetDateTime::now_utc();
        self.settle(now);
        let before = self.accepted.len();
        let gone = self.accepted.extract_if(.., |serial, grant| wanted(serial, grant));
        let gone: Vec<_> = gone.collect();
        // Another store may sign for the key until it hears of this.
        let latest = stamp_of(now + CLIENT_LIFE + KEPT).unwrap_or_default();
        let clients = gone.iter().filter(|(_, grant)| is_client(grant));
        let keys = clients.map(|(_, grant)| (grant.key.clone(), latest.clone()));
        self.withdraw_keys(keys.collect());
        self.withdrawn.extend(gone.into_iter().map(|(serial, grant)| (serial, grant.not_after)));
        self.settle(now);
        before - self.accepted.len()
    }

    /// Both stores may have withdrawn a key: the later end counts.
    fn withdraw_keys(&mut self, keys: BTreeMap<String, String>) {
        for (key, until) in keys {
            let known = self.withdrawn_keys.entry(key).or_default();
            if *known < until {
                *known = until;
            }
        }
    }

    /// Forgets expired entries.
    fn settle(&mut self, now: OffsetDateTime) {
        // All are of the same form, so that their order is that of time.
        let past = (now - KEPT).format(&Rfc3339).unwrap_or_default();
        self.withdrawn_keys.retain(|_, until| *until > past);
        let keys = &self.withdrawn_keys;
        let renewed = |grant: &Grant| is_client(grant) && keys.contains_key(&grant.key);
        let gone = self.accepted.extract_if(.., |_, grant| renewed(grant));
        self.withdrawn.extend(gone.map(|(serial, grant)| (serial, grant.not_after)));
        self.withdrawn.retain(|_, until| *until > past);
        self.accepted
            .retain(|serial, grant| !self.withdrawn.contains_key(serial) && grant.not_after > past);
    }
}

/// Whether it belongs to a host or an operator: these may renew it, for the same key.
fn is_client(grant: &Grant) -> bool {
    matches!(grant.kind, Kind::Operator | Kind::Host)
}

/// What `issued.json` says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuedFile {
    version: u32,
    /// Addresses to write into the next credential.
    pub stores: Vec<String>,
    /// The accepted certificates.
    pub list: Accepted,
}

impl IssuedFile {
    /// With an empty list.
    pub fn new(stores: &[String]) -> IssuedFile {
        IssuedFile { version: VERSION, stores: stores.to_vec(), list: Accepted::default() }
    }

    /// Reads it, if it exists.
    ///
    /// # Errors
    /// As for [`IssuedFile::parse`], or if this process cannot read it.
    pub fn read(dir: &Path) -> Result<Option<IssuedFile>> {
        let path = dir.join("issued.json");
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        IssuedFile::parse(&text, &path).map(Some)
    }

    /// Parses the content of the file at `path`.
    ///
    /// # Errors
    /// If it is damaged, or of a newer version.
    pub fn parse(text: &str, path: &Path) -> Result<IssuedFile> {
        let file: IssuedFile = serde_json::from_str(text).with_context(|| {
            format!(
                "{} is damaged: remove it and start the store, which then writes a new credential",
                path.display()
            )
        })?;
        if file.version != VERSION {
            bail!("{} was written by a newer longhaul: use that one", path.display());
        }
        Ok(file)
    }

    /// Writes it, without expired entries.
    ///
    /// # Errors
    /// If this process cannot write it.
    pub fn write(&mut self, dir: &Path) -> Result<()> {
        self.list.settle(OffsetDateTime::now_utc());
        files::replace(&dir.join("issued.json"), &serde_json::to_vec_pretty(self)?, 0o600)
    }
}

/// The time in the form of the list.
pub(super) fn stamp_of(time: OffsetDateTime) -> Result<String> {
    Ok(time.replace_nanosecond(0)?.format(&Rfc3339)?)
}

/// The certificates that a running store accepts: `issued.json`, read again whenever it changed.
#[derive(Debug)]
pub struct Issued {
    dir: PathBuf,
    seen: Mutex<(Option<Stamp>, Arc<Accepted>)>,
    /// A peer has shown a certificate of this CA that the list does not have.
    strange: AtomicBool,
}

fn granted<'a>(list: &'a Accepted, serial: &str) -> Option<&'a Grant> {
    let grant = list.accepted.get(serial)?;
    // Only what the CA has signed as a store's is one.
    (serial.starts_with(OF_STORE) == (grant.kind == Kind::Store)).then_some(grant)
}

/// Replacing a file gives it another inode, even within the clock's granularity.
pub type Stamp = (SystemTime, u64);

impl Issued {
    /// Of the store with this state directory, after [`super::prepare`].
    pub fn new(state: &Path) -> Issued {
        Issued { dir: directory(state), seen: Mutex::default(), strange: AtomicBool::new(false) }
    }

    /// Whether the list accepts a certificate with this serial number now. If this process cannot
    /// read the file, it accepts no new one.
    pub fn accepts(&self, serial: &str) -> bool {
        let now = self.current();
        let accepted = granted(&now, serial).is_some();
        if !accepted && !now.withdrawn.contains_key(serial) {
            self.strange.store(true, Ordering::Relaxed);
        }
        accepted
    }

    /// The permissions of a certificate with this serial number, if the list accepts it now.
    pub fn grant(&self, serial: &str) -> Option<Grant> {
        granted(&self.current(), serial).cloned()
    }

    /// The volumes that a certificate knows of: none without acceptance.
    pub fn reach(&self, serial: &str) -> Reach {
        self.grant(serial).map_or_else(Reach::nothing, |grant| grant.reach(tenant_of(serial)))
    }

    fn current(&self) -> Arc<Accepted> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.stamp();
        if stamp.is_none() || seen.0 != stamp {
            *seen = match IssuedFile::read(&self.dir) {
                Ok(Some(file)) => (stamp, Arc::new(file.list)),
                Ok(None) => {
                    tracing::error!(
                        "{} is gone: no client is accepted until the store is restarted",
                        self.dir.join("issued.json").display()
                    );
                    (None, Arc::default())
                }
                Err(error) => {
                    tracing::error!("no client is accepted: {error:#}");
                    (None, Arc::default())
                }
            };
        }
        seen.1.clone()
    }

    /// Whether a peer has shown a certificate since the last call that the list does not have.
    /// Another store may have issued it.
    pub fn was_strange(&self) -> bool {
        self.strange.swap(false, Ordering::Relaxed)
    }

    /// A value that changes whenever the list does.
    pub fn stamp(&self) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(self.dir.join("issued.json")).ok()?;
        Some((metadata.modified().ok()?, metadata.ino()))
    }
}
