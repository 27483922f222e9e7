//! Small objects beside the volumes' logs, and the files of a state directory, which the check
//! reads whole.
//!
//! The decoders of store and host read them. If a file has no decoder, the check only opens it. A
//! pipe or a directory in its place would keep a store or host from starting.

use super::report::{Damage, Report, read};
use super::stored::Stored;
use anyhow::Result;
use longhaul_base::files;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::{self, ACCEPTED_PREFIX};
use longhaul_core::store::lease::Lease;
use longhaul_core::store::sealed;
use longhaul_core::store::tenant::{self, TENANTS_PREFIX};
use longhaul_host::state;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

/// Problems of the audit log to name one by one.
const MAX_AUDIT_PROBLEMS: usize = 8;

impl Report {
    fn damaged(&mut self, file: &Path, problem: String, advice: &str) {
        let (file, offset, advice) = (file.to_owned(), None, advice.to_owned());
        self.damage.push(Damage { file, offset, problem, advice });
    }
}

/// Reads all small objects beside the volumes' logs.
pub fn objects(objects: &dyn Stored, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    // Other checks read descriptions and records of deletions.
    for prefix in
        ["v/", TENANTS_PREFIX, longhaul_store::STORES_PREFIX, ACCEPTED_PREFIX, "snapshots/"]
    {
        all.append(&mut objects.list(prefix)?);
    }
    for meta in all {
        let key = meta.key;
        let size =
            catalog::parse_volume_key(&key).is_some_and(|(_, rest)| rest.starts_with("size/"));
        if size || !sealed::is_sealed(&key) {
            continue;
        }
        let read = read(objects, &key).map_err(|error| error.to_string());
        if let Err(problem) = read.and_then(|content| decode(&key, &content)) {
            report.damaged(&objects.place(&key), problem, advice(&key));
        }
    }
    Ok(())
}

/// Each volume's tenant has a record.
pub fn tenants<'a>(
    objects: &dyn Stored,
    specs: impl Iterator<Item = &'a VolumeSpec>,
    report: &mut Report,
) -> Result<()> {
    let keys = objects.list(TENANTS_PREFIX)?;
    let known: BTreeSet<&str> =
        keys.iter().filter_map(|meta| Some(tenant::parse_key(&meta.key)?.0)).collect();
    let missing: BTreeSet<&str> =
        specs.filter_map(VolumeSpec::tenant).filter(|tenant| !known.contains(tenant)).collect();
    for tenant in missing {
        let problem = "this tenant has volumes and no record".to_owned();
        let file = objects.place(&tenant::prefix(tenant));
        report.damaged(&file, problem, advice(&tenant::prefix(tenant)));
    }
    Ok(())
}

fn decode(key: &str, content: &[u8]) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    if let Some((_, rest)) = catalog::parse_volume_key(key) {
        return match rest.starts_with("lease/") {
            true => Lease::decode(key, content).map(drop).map_err(|error| words(&error)),
            // The content of owners and attributes is free. Their seals show damage.
            false => Ok(()),
        };
    }
    if key.starts_with(TENANTS_PREFIX) {
        return tenant::decode(key, content).map(drop).map_err(|error| words(&error));
    }
    if key.starts_with("snapshots/") {
        return catalog::decode_place(key, content).map(drop).map_err(|error| words(&error));
    }
    if key.starts_with(ACCEPTED_PREFIX) || key.starts_with(longhaul_store::STORES_PREFIX) {
        return serde_json::from_slice::<serde_json::Value>(content)
            .map(drop)
            .map_err(|error| words(&error));
    }
    Ok(())
}

fn advice(key: &str) -> &'static str {
    if catalog::parse_volume_key(key).is_some_and(|(_, rest)| rest.starts_with("lease/")) {
        "delete it: the next store that serves the volume takes it over"
    } else if key.starts_with(TENANTS_PREFIX) {
        "restore it from a copy: until then the tenant can neither create nor resize volumes"
    } else if key.starts_with(longhaul_store::STORES_PREFIX) {
        "delete it, and start that store again: it says anew where it is"
    } else if key.starts_with(ACCEPTED_PREFIX) {
        "restore it from a copy: until then stores do not hear of each other's credentials"
    } else {
        "restore it from a copy of the data directory"
    }
}

/// Whether a file exists. Something else in its place is damage.
fn is_there(path: &Path, report: &mut Report) -> bool {
    match files::open(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            let advice = "move it away, and restore the file from a copy";
            report.damaged(path, format!("it cannot be read: {error}"), advice);
            false
        }
    }
}

/// The files of a store's state directory, if it is one.
pub fn store_state(dir: &Path, report: &mut Report) {
    for name in ["lock", "shared.lock", "credentials/lock"] {
        is_there(&dir.join(name), report);
    }
    let identity = dir.join("store.json");
    if is_there(&identity, report)
        && let Err(error) = longhaul_store::store_identity(dir)
    {
        report.damaged(&identity, format!("{error:#}"), "delete it: the store gets a new identity");
    }
    let credentials = dir.join("credentials");
    for name in ["ca.pem", "store.pem"] {
        let path = credentials.join(name);
        if is_there(&path, report)
            && let Err(problem) = certificate(&path)
        {
            report.damaged(&path, problem, "restore it from a copy: the store does not start");
        }
    }
    let issued = credentials.join("issued.json");
    if is_there(&issued, report)
        && let Err(error) = longhaul_link::credential::accepted(dir)
    {
        let advice = "restore it from a copy: the store does not start without it, because no \
                      client could log in";
        report.damaged(&issued, format!("{error:#}"), advice);
    }
    let ca = credentials.join("ca.pem");
    for (missing, other) in [(&ca, &issued), (&issued, &ca)] {
        if !missing.exists() && other.exists() {
            let advice = "restore it from a copy: without it no client can log in any more";
            report.damaged(missing, "it is missing".to_owned(), advice);
        }
    }
    is_there(&credentials.join("admin.toml"), report);
    let scrub = dir.join("scrub.json");
    if is_there(&scrub, report)
        && let Err(error) = longhaul_store::scrub_state(&scrub)
    {
        report.damaged(&scrub, format!("{error:#}"), "delete it: the scrub begins anew");
    }
    let cache = dir.join("cache").join("objects.0000");
    is_there(&cache, report);
    let audit = dir.join("audit.jsonl");
    if is_there(&audit, report) {
        let advice =
            "see docs/operations/runbook.md: someone with write access may have changed it";
        match longhaul_store::audit_problems(dir) {
            Ok(problems) => {
                for problem in problems.into_iter().take(MAX_AUDIT_PROBLEMS) {
                    report.damaged(&audit, problem, advice);
                }
            }
            Err(error) => report.damaged(&audit, format!("{error:#}"), advice),
        }
    }
}

/// Certificate and key in one file.
fn certificate(path: &Path) -> Result<(), String> {
    let text = files::read(path).map_err(|error| error.to_string())?;
    let words = |error: rustls_pki_types::pem::Error| error.to_string();
    let certificate = CertificateDer::from_pem_slice(&text).map_err(words)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(words)?;
    longhaul_link::credential::inspect(&certificate).map(drop).map_err(|error| format!("{error:#}"))
}

/// The files of a host's state directory that are of no volume.
pub fn host_state(dir: &Path, report: &mut Report) {
    is_there(&dir.join("lock"), report);
    let stores = dir.join("stores.json");
    if is_there(&stores, report) {
        json(&stores, "delete it: the host goes by its credential", report);
    }
    for (name, advice) in [
        ("attached.json", "delete it: the host then attaches the volumes of its options"),
        ("nbd.json", "restore it, or remove it and grant again: NBD does not start with it"),
    ] {
        let path = dir.join(name);
        if is_there(&path, report) {
            json(&path, advice, report);
        }
    }
    let encrypted = dir.join("encrypted");
    if encrypted.exists() && !encrypted.is_dir() {
        let advice = "move it away, and bring the directory back from a copy: it says which \
                      volumes are encrypted";
        report.damaged(&encrypted, "it is no directory".to_owned(), advice);
    }
    let rights = dir.join("iscsi.json");
    if is_there(&rights, report)
        && let Err(error) = longhaul_host::iscsi_rights(dir)
    {
        let advice =
            "restore it, or remove it and grant again: the host does not start iSCSI with it";
        report.damaged(&rights, format!("{error:#}"), advice);
    }
}

/// The version tables of encrypted volumes.
pub fn tables(dir: &Path, report: &mut Report) -> Result<()> {
    for path in super::report::directories(&dir.join("versions"))? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let Ok(volume) = state::parse_id(name).map(VolumeId) else {
            report
                .notes
                .push(format!("{} is no valid version table: you can remove it", path.display()));
            continue;
        };
        for (file, offset, problem) in longhaul_host::versions_problems(&path, volume) {
            let advice = "restore the directory from a copy; else the host does not attach the \
                          volume, or accepts the store's data of these blocks"
                .to_owned();
            report.damage.push(Damage { file, offset, problem, advice });
        }
    }
    Ok(())
}

/// The files of a volume, without its description and its journal, which have their own checks.
pub fn host_volume(dir: &Path, report: &mut Report) {
    let zeroed = dir.join("zeroed.json");
    if is_there(&zeroed, report) {
        json(&zeroed, "delete it: the journal's files are filled with zeroes once more", report);
    }
    is_there(&dir.join("cache.0000"), report);
    is_there(&dir.join("pins"), report);
}

/// A directory of a volume without a description: damage, if there is a journal that nobody would
/// find.
pub fn without_description(dir: &Path, report: &mut Report) {
    if state::journal_path(dir, 0).exists() {
        let advice = "restore it from a copy; without it the journal beside it is not found";
        report.damaged(&dir.join("volume.json"), "it is missing".to_owned(), advice);
    } else {
        report.notes.push(format!("{} holds no volume", dir.display()));
    }
}

fn json(path: &Path, advice: &str, report: &mut Report) {
    let read = files::read(path).map_err(anyhow::Error::from);
    let read = read.and_then(|text| Ok(serde_json::from_slice::<serde_json::Value>(&text)?));
    if let Err(error) = read {
        report.damaged(path, format!("{error:#}"), advice);
    }
}
