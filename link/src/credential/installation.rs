//! The files of a store about its installation: the CA, its own certificate, and the credentials
//! that it issues.

use super::authority::{CLIENT_LIFE, Leaf, Pair, STORE_LIFE, new_ca, new_leaf, sign};
use super::directory::{directory, remove};
use super::file::{self, Credential};
use super::grant::{ALL, Grant, Kind, Role, check_credential_name, check_patterns};
use super::issued::{Accepted, IssuedFile, stamp_of};
use super::join::parse_request;
use super::seen::{OF_STORE, bare, inspect, key_id, key_name, tenant_of};
use anyhow::{Context as _, Result, bail};
use longhaul_base::files;
use longhaul_core::store::tenant::check_tenant;
use rcgen::PublicKeyData as _;
use rustls_pki_types::CertificateDer;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use time::{Duration, OffsetDateTime};

/// How long a store waits before it shows a new certificate: the others hear of it within seconds.
const SPREAD: Duration = Duration::seconds(20);
/// Most certificates of one key at a time.
const RENEWALS: usize = 4;
/// Name of the credential that a store writes at the first start of an installation.
pub const ADMIN: &str = "admin";

/// The identity that a store shows, and the list that it accepts.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// The CA of this installation.
    pub ca: CertificateDer<'static>,
    /// The identity that it shows to hosts and to other stores.
    pub own: Arc<Own>,
}

/// A store's certificate, which is another one after a renewal.
#[derive(Debug)]
pub struct Own {
    state: PathBuf,
    store: String,
    now: Mutex<Arc<Credential>>,
}

impl Own {
    /// As it is now; without addresses.
    pub fn now(&self) -> Arc<Credential> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Takes the certificate in the state directory. If that has served half its time, or is
    /// withdrawn, makes a new one. Returns whether the certificate has changed.
    ///
    /// # Errors
    /// If this process cannot read or write it.
    pub fn tend(&self) -> Result<bool> {
        let dir = directory(&self.state);
        let _alone = alone(&dir)?;
        let (ca, mut issued) = installation(&self.state)?;
        let pair = own(&ca, &mut issued, &dir, &self.store)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if pair.certificate == now.certificate {
            return Ok(false);
        }
        // Other stores must know a new certificate before this one shows it, unless they refuse the
        // old one.
        let made = inspect(&pair.certificate)?.not_before + super::authority::CLOCKS;
        let fresh = OffsetDateTime::now_utc() - made < SPREAD;
        if fresh && issued.list.accepted.contains_key(&now.serial) {
            return Ok(false);
        }
        *now = Arc::new(Credential::of(&ca.certificate, pair)?);
        Ok(true)
    }
}

/// Keeps other processes from changing credentials, until dropped.
fn alone(dir: &Path) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = dir.join("lock");
    let shown = || format!("cannot lock {}", path.display());
    let mut options = std::fs::OpenOptions::new();
    // For the other end of a pipe nobody waits.
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(shown)?;
    file.lock().with_context(shown)?;
    Ok(file)
}

/// Returns the certificate of a store. If the present one is not accepted or not fresh, makes a new
/// one and accepts it.
fn own(ca: &Pair, issued: &mut IssuedFile, dir: &Path, store: &str) -> Result<Pair> {
    let (path, now) = (dir.join("store.pem"), OffsetDateTime::now_utc());
    let mut why = None;
    if let Some(pair) = Pair::read(&path)? {
        let seen = inspect(&pair.certificate)?;
        let known = issued.list.accepted.contains_key(&seen.serial);
        if known && seen.not_after - now > STORE_LIFE / 2 && seen.not_before <= now {
            return Ok(pair);
        }
        why =
            Some(if known { "it has served half its time" } else { "it is not accepted any more" });
    }
    let pair = new_leaf(ca, now, STORE_LIFE, Leaf::Store)?;
    let grant = store_grant(&pair.certificate, store)?;
    issued.list.accepted.insert(inspect(&pair.certificate)?.serial, grant);
    issued.write(dir)?;
    pair.write(&path)?;
    if let Some(why) = why {
        tracing::info!("the certificate of this store is a new one: {why}");
    }
    Ok(pair)
}

pub(super) fn store_grant(certificate: &CertificateDer<'_>, store: &str) -> Result<Grant> {
    let volumes = vec![ALL.to_owned()];
    let name = if store.is_empty() { "store".to_owned() } else { format!("store-{store}") };
    let grant = grant(certificate, &name, Kind::Store, Role::Admin, volumes)?;
    Ok(Grant { store: Some(store.to_owned()), ..grant })
}

pub(super) fn grant(
    certificate: &CertificateDer<'_>,
    name: &str,
    kind: Kind,
    role: Role,
    volumes: Vec<String>,
) -> Result<Grant> {
    Ok(Grant {
        name: name.to_owned(),
        kind,
        role,
        volumes,
        key: key_id(certificate)?,
        store: None,
        issued: stamp_of(OffsetDateTime::now_utc())?,
        not_after: stamp_of(inspect(certificate)?.not_after)?,
    })
}

/// Makes the missing files of a store, and writes `stores` into the credentials that it issues.
/// `store` is its identity.
///
/// # Errors
/// If this process cannot read or write a file.
pub fn prepare(state: &Path, stores: &[String], store: &str) -> Result<ServerIdentity> {
    let dir = directory(state);
    files::create_dir(&dir)?;
    let _alone = alone(&dir)?;
    let now = OffsetDateTime::now_utc();
    let ca = match Pair::read(&dir.join("ca.pem"))? {
        Some(ca) => ca,
        None => {
            let ca = new_ca(now)?;
            ca.write(&dir.join("ca.pem"))?;
            tracing::info!("made the CA of this installation in {}", dir.display());
            // The signatures of another CA have no use any more.
            remove(&dir.join("issued.json"))?;
            remove(&dir.join("store.pem"))?;
            ca
        }
    };
    let mut issued = match IssuedFile::read(&dir)? {
        None => {
            let path = dir.join("admin.toml");
            let (serial, grant) = write_admin(&path, stores, &ca)?;
            let mut issued = IssuedFile::new(stores);
            issued.list.accepted.insert(serial, grant);
            issued.write(&dir)?;
            tracing::info!("wrote the credential {}", path.display());
            issued
        }
        Some(mut issued) if issued.stores != stores => {
            let path = dir.join("admin.toml");
            if path.exists()
                && let Err(error) = file::set_stores(&path, stores)
            {
                tracing::warn!("{} keeps its addresses: {error:#}", path.display());
            }
            issued.stores = stores.to_vec();
            issued.write(&dir)?;
            issued
        }
        Some(issued) => issued,
    };
    let pair = own(&ca, &mut issued, &dir, store)?;
    let credential = Credential::of(&ca.certificate, pair)?;
    let own = Own {
        state: state.to_owned(),
        store: store.to_owned(),
        now: Mutex::new(Arc::new(credential)),
    };
    Ok(ServerIdentity { ca: ca.certificate, own: Arc::new(own) })
}

fn write_admin(path: &Path, stores: &[String], ca: &Pair) -> Result<(String, Grant)> {
    let of = Leaf::Client { name: ADMIN, tenant: None };
    let client = new_leaf(ca, OffsetDateTime::now_utc(), CLIENT_LIFE, of)?;
    file::write(path, stores, &ca.certificate, &client, "do everything at the store")?;
    let all = vec![ALL.to_owned()];
    let grant = grant(&client.certificate, ADMIN, Kind::Operator, Role::Admin, all)?;
    Ok((inspect(&client.certificate)?.serial, grant))
}

/// The list that a store accepts.
///
/// # Errors
/// If `state` is not the directory of a store that has run.
pub fn accepted(state: &Path) -> Result<Accepted> {
    Ok(installation(state)?.1.list)
}

/// Makes a store accept the certificates that another store of its installation accepts, and refuse
/// those that the other refuses.
///
/// # Errors
/// If this process cannot write the list.
pub fn accept(state: &Path, theirs: &Accepted) -> Result<()> {
    change(state, |issued| {
        let merged = issued.list.merged(theirs);
        let changes = merged != issued.list;
        issued.list = merged;
        Ok((changes, ()))
    })
}

/// Changes the list of a store while no other process does. Writes the list if `work` says so.
pub(super) fn change<T>(
    state: &Path,
    work: impl FnOnce(&mut IssuedFile) -> Result<(bool, T)>,
) -> Result<T> {
    let dir = directory(state);
    let (_, _) = installation(state)?;
    let _alone = alone(&dir)?;
    let (_, mut issued) = installation(state)?;
    let (changes, result) = work(&mut issued)?;
    if changes {
        issued.write(&dir)?;
    }
    Ok(result)
}

pub(super) fn installation(state: &Path) -> Result<(Pair, IssuedFile)> {
    let dir = directory(state);
    let (Some(ca), Some(issued)) = (Pair::read(&dir.join("ca.pem"))?, IssuedFile::read(&dir)?)
    else {
        bail!(
            "{} holds no credentials of a store: give the state directory of a store that has been \
             started once",
            state.display()
        );
    };
    Ok((ca, issued))
}

/// The identity of the store of a state directory, as the list has it.
pub(super) fn own_name(state: &Path, issued: &IssuedFile) -> Result<String> {
    let own = Pair::read(&directory(state).join("store.pem"))?;
    let own = own.context("this store has no certificate yet: start it first")?;
    let grant = issued.list.accepted.get(&inspect(&own.certificate)?.serial);
    let store = grant.and_then(|grant| grant.store.clone());
    store.context("the certificate of this store is not accepted: start it first")
}

fn is_admin(serial: &str, grant: &Grant) -> bool {
    tenant_of(serial).is_none() && grant.kind == Kind::Operator && grant.name == ADMIN
}

/// Writes a new admin credential and a new certificate of the store, and withdraws the earlier
/// ones. Named credentials stay. Returns the path of the credential.
///
/// # Errors
/// If `state` is not the directory of a store, or this process cannot write a file.
pub fn rotate(state: &Path) -> Result<PathBuf> {
    let dir = directory(state);
    installation(state)?;
    let _alone = alone(&dir)?;
    let (ca, mut issued) = installation(state)?;
    let before = Pair::read(&dir.join("store.pem"))?;
    let before = before.map(|pair| inspect(&pair.certificate)).transpose()?.map(|seen| seen.serial);
    let store = before.as_ref().and_then(|serial| issued.list.accepted.get(serial)?.store.clone());
    // The list accepts both until the new ones are in place. So after a crash some credentials
    // still work.
    let path = dir.join("admin.toml");
    let next = dir.join("admin.toml.next");
    let (new, grant) = write_admin(&next, &issued.stores, &ca)?;
    let now = OffsetDateTime::now_utc();
    let pair = new_leaf(&ca, now, STORE_LIFE, Leaf::Store)?;
    let own = inspect(&pair.certificate)?.serial;
    let own_grant = store_grant(&pair.certificate, store.as_deref().unwrap_or_default())?;
    issued.list.accepted.insert(new.clone(), grant);
    issued.list.accepted.insert(own, own_grant);
    issued.write(&dir)?;
    std::fs::rename(&next, &path)
        .with_context(|| format!("cannot put {} in place", path.display()))?;
    pair.write(&dir.join("store.pem"))?;
    issued.list.withdraw(|serial, grant| {
        serial != new && is_admin(serial, grant) || Some(serial) == before.as_deref()
    });
    issued.write(&dir)?;
    Ok(path)
}

/// The permissions of a new credential.
pub struct Wanted<'a> {
    /// Its name for people; no two have the same.
    pub name: &'a str,
    /// The tenant of the volumes, if they are not the installation's.
    pub tenant: Option<&'a str>,
    /// The permission for them.
    pub role: Role,
    /// Patterns of their names.
    pub volumes: Vec<String>,
}

/// Writes a credential to a new file.
///
/// # Errors
/// If `state` is not the directory of a store, a name or pattern is invalid, or a credential has
/// the name. Also if the file exists, or this process cannot write it.
pub fn issue(state: &Path, wanted: &Wanted<'_>, file: &Path) -> Result<()> {
    let Wanted { name, tenant, role, volumes } = wanted;
    check_credential_name(name)?;
    tenant.map_or(Ok(()), check_tenant)?;
    check_patterns(volumes, *tenant)?;
    let (ca, _) = installation(state)?;
    change(state, |issued| {
        if file.symlink_metadata().is_ok() {
            bail!("{} exists: give the name of a new file", file.display());
        }
        if issued.list.accepted.values().any(|grant| grant.name == *name) {
            bail!(
                "credential {name} exists already: give this one another name, or revoke that one \
                 first"
            );
        }
        let of = Leaf::Client { name, tenant: *tenant };
        let client = new_leaf(&ca, OffsetDateTime::now_utc(), CLIENT_LIFE, of)?;
        let whose = tenant.map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
        let what = format!("{role} the volumes {}{whose}", volumes.join(" "));
        file::write(file, &issued.stores, &ca.certificate, &client, &what)?;
        let kind = if *role == Role::Write { Kind::Host } else { Kind::Operator };
        let grant = grant(&client.certificate, name, kind, *role, volumes.clone())?;
        issued.list.accepted.insert(inspect(&client.certificate)?.serial, grant);
        Ok((true, ()))
    })
}

/// Signs another certificate, with a new term, for the key of the credential with that serial
/// number. `key` is that key, as grants have it. `request` proves that the requester has the key.
/// The function takes locks and syncs. The list accepts the earlier certificate until it expires or
/// someone withdraws it.
///
/// # Errors
/// If the request is not of that key, the key has too many certificates already, or this process
/// cannot write a file.
pub fn renew(state: &Path, serial: &str, key: &str, request: &[u8]) -> Result<Vec<u8>> {
    let request = parse_request(request)?;
    // This check comes before any read of a file.
    if key_name(&request.public_key.subject_public_key_info()) != key {
        bail!("the request is of another key than the credential");
    }
    let (ca, _) = installation(state)?;
    change(state, |issued| {
        let Some(old) = issued.list.accepted.get(serial).cloned() else {
            bail!("the credential was withdrawn");
        };
        let its = |other: &&Grant| other.key == old.key;
        if issued.list.accepted.values().filter(its).count() >= RENEWALS {
            bail!(
                "credential {} was renewed {} times, and no certificate of it has ended: use the \
                 newest",
                old.name,
                RENEWALS - 1
            );
        }
        let of = Leaf::Client { name: &old.name, tenant: tenant_of(serial) };
        let now = OffsetDateTime::now_utc();
        let certificate = sign(&ca, now, CLIENT_LIFE, of, &request.public_key)?;
        if key_id(&certificate)? != old.key {
            bail!("the request is of another key than the credential");
        }
        let Grant { name, kind, role, volumes, .. } = old;
        let grant = grant(&certificate, &name, kind, role, volumes)?;
        issued.list.accepted.insert(inspect(&certificate)?.serial, grant);
        Ok((true, certificate.to_vec()))
    })
}

/// Withdraws the credential with that serial number or name, with all certificates of its key; or
/// all credentials of a tenant. Returns the number of those certificates.
///
/// # Errors
/// If `state` is not the directory of a store, no full administrator would be left, or this process
/// cannot write the list.
pub fn revoke(state: &Path, which: Option<&str>, tenant: Option<&str>) -> Result<usize> {
    change(state, |issued| {
        let revoked = issued.list.withdraw(|serial, grant| match (which, tenant) {
            (Some(which), _) => bare(serial) == bare(which) || grant.name == which,
            (None, Some(tenant)) => tenant_of(serial) == Some(tenant),
            (None, None) => false,
        });
        let everything = |(serial, grant): (&String, &Grant)| {
            let client = matches!(grant.kind, Kind::Operator | Kind::Host);
            let reach = grant.reach(tenant_of(serial));
            client && grant.role == Role::Admin && reach.is_everything()
        };
        if revoked > 0 && !issued.list.accepted.iter().any(everything) {
            bail!(
                "that is the last credential with all permissions: `longhaul credential rotate` \
                 replaces it, or issue another one first"
            );
        }
        Ok((revoked > 0, revoked))
    })
}

/// Withdraws the certificates of a store. Returns the number of those.
///
/// # Errors
/// If `state` is not the directory of a store, or this process cannot write the list.
pub fn revoke_store(state: &Path, store: &str) -> Result<usize> {
    change(state, |issued| {
        let revoked = issued.list.withdraw(|serial, grant| {
            let its = serial.starts_with(OF_STORE) || grant.kind == Kind::Join;
            its && grant.store.as_deref() == Some(store)
        });
        Ok((revoked > 0, revoked))
    })
}
