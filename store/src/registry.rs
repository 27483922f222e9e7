//! The registry of the stores over one data location: knowledge about each other without asking.
//!
//! ```text
//! stores/ID/0000000000000001       a store, where hosts reach it, and of which CA: the last one counts
//! accepted/0000000000000001        client certificates that all stores accept: the last one counts
//! ```
//!
//! A store creates each record put-if-absent and never changes it. It writes at its start, and only
//! missing records. Nothing in it is secret: certificates are worth nothing without the CA's
//! signature.

use super::drive::drive;
use anyhow::{Context as _, Result, bail};
use longhaul_base::files;
use longhaul_base::random;
use longhaul_core::store::fleet::members::{
    AcceptedError, FindAccepted, FindStores, ForgetStores, PublishAccepted, Register, accepted_key,
};
use longhaul_core::wire::link::StoreId;
use longhaul_link::credential::{self, Accepted};
use longhaul_objects::Objects;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

pub use longhaul_core::store::fleet::members::{Registered, STORES_PREFIX};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct StoredAccepted {
    version: u32,
    list: Accepted,
}

/// Tells CAs apart.
pub fn fingerprint(ca: &CertificateDer<'_>) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, ca);
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The identity in a store's state directory; drawn at its first start.
#[derive(Serialize, Deserialize)]
struct Identity {
    version: u32,
    id: String,
}

/// The identity of the store with this state directory.
///
/// # Errors
/// If a read or a write of it fails.
pub fn identity(state: &Path) -> Result<StoreId> {
    let path = state.join("store.json");
    match files::read(&path) {
        Ok(text) => {
            let identity: Identity = serde_json::from_slice(&text).with_context(|| {
                format!("{} is damaged: delete it, the store gets a new identity", path.display())
            })?;
            if identity.version != VERSION {
                bail!("{} was written by a newer longhaul: use that one", path.display());
            }
            identity.id.parse().with_context(|| format!("{} has no identity", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = StoreId(random::identity()?);
            let identity = Identity { version: VERSION, id: id.to_string() };
            files::replace(&path, &serde_json::to_vec_pretty(&identity)?, 0o600)?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// All stores of a location.
///
/// # Errors
/// If the reads fail.
pub async fn stores(objects: &dyn Objects) -> Result<BTreeMap<StoreId, Registered>> {
    drive(FindStores, objects, None).await.map_err(anyhow::Error::new)
}

/// Writes the addresses of a store, unless the registry has them already.
///
/// # Errors
/// If the write fails.
pub async fn register(
    objects: &dyn Objects,
    known: &BTreeMap<StoreId, Registered>,
    id: StoreId,
    addresses: &[String],
    ca: &str,
) -> Result<()> {
    let (addresses, ca) = (addresses.to_vec(), ca.to_owned());
    let software = longhaul_base::software();
    let register = Register { before: known.get(&id).cloned(), id, addresses, ca, software };
    drive(register, objects, None).await.map_err(anyhow::Error::new)
}

/// Forgets stores.
///
/// # Errors
/// If a deletion fails.
pub async fn forget(
    objects: &dyn Objects,
    known: &BTreeMap<StoreId, Registered>,
    gone: &[StoreId],
) -> Result<()> {
    let gone = gone.iter().filter_map(|id| Some((*id, known.get(id)?.clone())));
    drive(ForgetStores(gone.collect()), objects, None).await.map_err(anyhow::Error::new)
}

/// The certificates that all stores accept; `None` if no store has written a list.
///
/// # Errors
/// If the reads fail. [`AcceptedError`] if the revocations of another store are unknown: then no
/// store may write a new list until somebody restores the old one.
pub async fn accepted(objects: &dyn Objects) -> Result<Option<Accepted>> {
    let Some((generation, bytes)) = drive(FindAccepted, objects, None).await? else {
        return Ok(None);
    };
    let key = accepted_key(generation);
    let stored: StoredAccepted =
        serde_json::from_slice(&bytes).with_context(|| format!("{key} is damaged: delete it"))?;
    if stored.version != VERSION {
        bail!("{key} was written by a newer longhaul: use that one");
    }
    Ok(Some(Accepted { generation, ..stored.list }))
}

/// Writes the list of certificates that a store accepts, for the others.
///
/// # Errors
/// If the write fails. If another store has written another list under the same number, this is no
/// error: the existing one counts.
pub async fn publish(objects: &dyn Objects, accepted: &Accepted) -> Result<()> {
    let stored = StoredAccepted { version: VERSION, list: accepted.clone() };
    let text = serde_json::to_vec_pretty(&stored)?.into();
    let publish = PublishAccepted { number: accepted.generation, text };
    drive(publish, objects, None).await.map_err(anyhow::Error::new)
}

/// Merges the lists of this store and the others, in both directions. A certificate that either has
/// withdrawn stays withdrawn.
///
/// # Errors
/// If a read or a write fails, here or there.
pub async fn agree(objects: &dyn Objects, state: &Path) -> Result<()> {
    loop {
        let mine = credential::accepted(state)?;
        let theirs = match accepted(objects).await {
            Err(error) if matches!(error.downcast_ref(), Some(AcceptedError::Damaged(_))) => {
                tracing::error!(
                    "{error}: the certificates that other stores accept or have revoked are \
                     unknown; restore the list from a copy, or delete it if this store's list \
                     counts"
                );
                return Ok(());
            }
            theirs => theirs?,
        };
        let Some(theirs) = theirs else {
            publish(objects, &mine).await?;
            continue;
        };
        let merged = mine.merged(&theirs);
        if !merged.says(&mine) {
            tracing::info!("credentials have changed at another store");
        }
        credential::accept(state, &merged)?;
        if merged.says(&theirs) {
            return Ok(());
        }
        let generation = theirs.generation + 1;
        // Another store may be first with that number. Then a merge of both follows.
        publish(objects, &Accepted { generation, ..merged }).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::store::catalog::ACCEPTED_PREFIX;
    use longhaul_link::credential::{Grant, Kind, Role};
    use longhaul_objects::LocalObjects;

    fn addresses(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[tokio::test]
    async fn a_store_is_found_where_it_was_last() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let (a, b) = (StoreId(1), StoreId(2));
        let register = async |id, at: &str| {
            let known = stores(&objects).await.unwrap();
            register(&objects, &known, id, &addresses(at), "ca").await.unwrap();
        };
        register(a, "a:1").await;
        register(b, "b:1").await;
        register(a, "a:2").await;
        register(a, "a:2").await;
        let known = stores(&objects).await.unwrap();
        assert_eq!(known[&a].addresses, addresses("a:2"));
        assert_eq!(known[&b].addresses, addresses("b:1"));
        assert_eq!(objects.list(STORES_PREFIX).await.unwrap().len(), 2);
        forget(&objects, &known, &[a]).await.unwrap();
        assert_eq!(stores(&objects).await.unwrap().into_keys().collect::<Vec<_>>(), [b]);
    }

    fn grant(name: &str) -> Grant {
        Grant {
            name: name.to_owned(),
            kind: Kind::Host,
            role: Role::Write,
            volumes: vec!["*".to_owned()],
            key: String::new(),
            store: None,
            issued: String::new(),
            not_after: "2099-01-01T00:00:00Z".to_owned(),
        }
    }

    #[tokio::test]
    async fn of_one_number_the_first_list_stays() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        assert_eq!(accepted(&objects).await.unwrap(), None);
        let said = |generation, serial: &str| Accepted {
            generation,
            accepted: BTreeMap::from([(serial.to_owned(), grant(serial))]),
            ..Accepted::default()
        };
        for (word, heard) in [
            (said(0, "a"), said(0, "a")),
            (said(2, "b"), said(2, "b")),
            (said(2, "c"), said(2, "b")),
        ] {
            publish(&objects, &word).await.unwrap();
            assert_eq!(accepted(&objects).await.unwrap(), Some(heard));
        }
        assert_eq!(objects.list(ACCEPTED_PREFIX).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn what_one_store_withdraws_another_does_not_bring_back() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        credential::prepare(one.path(), &addresses("a:1"), "1").unwrap();
        agree(&objects, one.path()).await.unwrap();
        crate::tests::join(one.path(), two.path(), "2");
        credential::prepare(two.path(), &addresses("b:1"), "2").unwrap();
        agree(&objects, two.path()).await.unwrap();
        let issue = |at: &Path, name: &str| {
            let (role, volumes) = (Role::Write, vec!["*".to_owned()]);
            let wanted = credential::Wanted { name, tenant: None, role, volumes };
            credential::issue(at, &wanted, &at.join(name)).unwrap();
        };
        let names = |at: &Path| {
            let accepted = credential::accepted(at).unwrap().accepted.into_values();
            let mut names: Vec<String> = accepted.map(|grant| grant.name).collect();
            names.sort();
            names
        };
        issue(one.path(), "host-a");
        for at in [&one, &two] {
            agree(&objects, at.path()).await.unwrap();
        }
        // Both change at once, one of them several times.
        assert_eq!(credential::revoke(one.path(), Some("host-a"), None).unwrap(), 1);
        issue(two.path(), "host-b");
        issue(two.path(), "host-c");
        for at in [&two, &one, &two] {
            agree(&objects, at.path()).await.unwrap();
        }
        assert_eq!(names(one.path()), ["admin", "host-b", "host-c", "store-1", "store-2"]);
        assert_eq!(names(two.path()), names(one.path()));
        assert_eq!(credential::revoke_store(one.path(), "2").unwrap(), 1);
        for at in [&two, &one, &two] {
            agree(&objects, at.path()).await.unwrap();
        }
        assert_eq!(names(two.path()), ["admin", "host-b", "host-c", "store-1"]);
    }

    #[test]
    fn a_store_keeps_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let id = identity(dir.path()).unwrap();
        assert_eq!(identity(dir.path()).unwrap(), id);
        std::fs::write(dir.path().join("store.json"), "{").unwrap();
        assert!(format!("{:#}", identity(dir.path()).unwrap_err()).contains("damaged"));
    }
}
