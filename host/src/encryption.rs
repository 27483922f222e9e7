//! The policy of a host on encryption: the volumes that must be encrypted, and the keys that open
//! them.
//!
//! Promises: only the operator of this host can let a volume be plain, with `--plain`; nothing that
//! a store says can. A volume must be encrypted if the operator says so, or gives a key for it or
//! for all volumes. It must also be encrypted if this host attached it encrypted before.

use super::state::KnownEncryption;
use crate::args::KeyArgs;
use anyhow::{Result, bail};
use longhaul_api::keys::given;
use longhaul_api::keys::{Opener, Owner};
use longhaul_base::Usage;
use longhaul_core::block::VolumeId;
use longhaul_core::store::tenant::{check_volume_name, within};
use std::collections::BTreeSet;
use std::path::Path;

/// The settings of the command line about encryption.
#[derive(Clone, Debug, Default)]
pub struct EncryptionPolicy {
    /// The tenant whose credential the host has.
    tenant: Option<String>,
    /// With the volume that one is for, if not for all.
    openers: Vec<(Option<String>, Opener)>,
    all: bool,
    encrypted: BTreeSet<String>,
    plain: BTreeSet<String>,
}

impl EncryptionPolicy {
    /// Reads what the command line names.
    ///
    /// # Errors
    /// If a file is invalid, or the settings want the same volume both encrypted and plain.
    pub fn load(args: &KeyArgs) -> Result<EncryptionPolicy> {
        let mut openers = Vec::new();
        for text in &args.key_files {
            let (name, path) = of_volume(text);
            openers.push((name, given::key_file(Path::new(path))?));
        }
        for text in &args.passphrase_files {
            let (name, path) = of_volume(text);
            openers.push((name, given::passphrase(Path::new(path), false)?));
        }
        let named = openers.iter().filter_map(|(name, _)| name.clone());
        let encrypted: BTreeSet<String> = args.encrypted.iter().cloned().chain(named).collect();
        let plain: BTreeSet<String> = args.plain.iter().cloned().collect();
        if let Some(both) = plain.intersection(&encrypted).next() {
            bail!(Usage(format!(
                "--plain {both}: a key or --require-encryption-of is given for it, so it has to be \
                 encrypted"
            )));
        }
        let all = args.require_encryption;
        Ok(EncryptionPolicy { tenant: None, openers, all, encrypted, plain })
    }

    /// The same for a host whose credential is a tenant's.
    pub fn of_tenant(self, tenant: Option<&str>) -> EncryptionPolicy {
        EncryptionPolicy { tenant: tenant.map(str::to_owned), ..self }
    }

    /// A volume as its keys name it.
    pub fn owner(&self, name: &str, volume: VolumeId) -> Owner {
        Owner { name: within(self.tenant.as_deref(), name), volume }
    }

    /// The keys and passphrases that may open a volume.
    pub fn openers(&self, name: &str) -> Vec<Opener> {
        let fits = |of: &Option<String>| of.as_ref().is_none_or(|of| of == name);
        let openers = self.openers.iter().filter(|(of, _)| fits(of));
        openers.map(|(_, opener)| opener.clone()).collect()
    }

    /// The reason to refuse a volume that is not encrypted, as the store says; `None` if the host
    /// may attach it. `pin` is the host's memory of its encryption.
    pub fn refusal(&self, name: &str, pin: Option<KnownEncryption>) -> Option<String> {
        let plain = self.plain.contains(name);
        let lie = "nothing is written to it in plain text. Is this the right store?";
        let begin = "the store says that it is not encrypted, but";
        match pin {
            Some(KnownEncryption::Volume) => {
                return Some(format!("{begin} it was when it was attached here before: {lie}"));
            }
            Some(KnownEncryption::Name) if !plain => {
                return Some(format!(
                    "{begin} a volume of this name was encrypted at an earlier attach here: {lie} \
                     If it was deleted and created anew without encryption, start the host with \
                     --plain {name}"
                ));
            }
            _ => {}
        }
        let asked = if self.encrypted.contains(name) {
            "it has to be (--require-encryption-of, or a key for it)"
        } else if plain {
            return None;
        } else if self.all {
            "--require-encryption is given"
        } else if self.openers.iter().any(|(of, _)| of.is_none()) {
            "a key for all volumes is given"
        } else {
            return None;
        };
        Some(format!(
            "{begin} {asked}: {lie} If it is not meant to be encrypted, start the host with \
             --plain {name}"
        ))
    }
}

/// `NAME=FILE` or `FILE`.
fn of_volume(text: &str) -> (Option<String>, &str) {
    match text.split_once('=') {
        Some((name, path)) if check_volume_name(name).is_ok() => (Some(name.to_owned()), path),
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::keys;

    #[test]
    fn only_the_operator_lets_a_volume_be_plain() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a=b");
        keys::create(&path).unwrap();
        let key = path.display().to_string();
        let locks = |flags: &[(&str, &str)]| {
            let of = |flag: &str| {
                let values = flags.iter().filter(|(name, _)| *name == flag);
                values.map(|(_, value)| (*value).to_owned()).collect::<Vec<_>>()
            };
            EncryptionPolicy::load(&KeyArgs {
                key_files: of("key"),
                passphrase_files: Vec::new(),
                require_encryption: !of("all").is_empty(),
                encrypted: of("of"),
                plain: of("plain"),
            })
        };
        let refuses = |flags: &[(&str, &str)], name: &str, pin: Option<KnownEncryption>| {
            locks(flags).unwrap().refusal(name, pin).is_some()
        };
        assert!(!refuses(&[], "db", None));
        let named = format!("db={key}");
        for flags in [[("key", key.as_str())], [("all", "")], [("of", "db")], [("key", &named)]] {
            assert!(refuses(&flags, "db", None), "{flags:?}");
        }
        assert!(!refuses(&[("of", "db"), ("key", &named)], "other", None));
        assert_eq!(locks(&[("key", &named)]).unwrap().openers("other").len(), 0);
        assert_eq!(locks(&[("key", &named), ("key", &key)]).unwrap().openers("db").len(), 2);
        for flags in [[("key", key.as_str()), ("plain", "db")], [("all", ""), ("plain", "db")]] {
            assert!(!refuses(&flags, "db", None) && refuses(&flags, "other", None));
            assert!(!refuses(&flags, "db", Some(KnownEncryption::Name)));
            assert!(
                refuses(&flags, "db", Some(KnownEncryption::Volume)),
                "what was encrypted stays so"
            );
        }
        for pin in [KnownEncryption::Name, KnownEncryption::Volume] {
            assert!(refuses(&[], "db", Some(pin)));
        }
        for flags in [[("of", "db"), ("plain", "db")], [("key", &named), ("plain", "db")]] {
            assert!(locks(&flags).unwrap_err().is::<Usage>());
        }
    }
}
