//! The rights of NBD clients to volumes. They come from the `[nbd]` table of the config file, and
//! from `longhaul nbd`, whose changes the state directory keeps.
//!
//! ```text
//! nbd.json     grants given by command (0600)
//! ```
//!
//! Any client that reaches the address may use a volume without a list. Over a unix socket only the
//! host's own user and root can. If a volume has a list, only the clients on it may use it,
//! wherever they connect. A list without clients lets nobody in. It remains after its last client
//! is withdrawn: only [`ClientChange::Open`] ends it.
//!
//! Promises: a change replaces its file in the state directory whole or not at all, before it has
//! any effect.

use crate::iscsi::config_table;
use anyhow::{Context as _, Result, ensure};
use longhaul_base::files;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use x509_parser::extensions::GeneralName;

const VERSION: u32 = 1;

/// Longest name of a certificate in a grant, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Volumes with grants, and grants of a volume.
const MAX_ENTRIES: usize = 10_000;

/// A client that may use a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Grant {
    /// Each client with a certificate of this common name or alternative name.
    Certificate(String),
    /// This user, over a unix socket.
    User(u32),
}

/// The text names no client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no client: give uid:NUMBER, as in `uid:1000`, or cert:NAME")]
pub struct NotAClient(String);

impl FromStr for Grant {
    type Err = NotAClient;

    fn from_str(text: &str) -> Result<Grant, NotAClient> {
        let client = text
            .strip_prefix("uid:")
            .map(|uid| uid.parse().ok().map(Grant::User))
            .or_else(|| text.strip_prefix("cert:").map(certificate));
        client.flatten().ok_or_else(|| NotAClient(text.to_owned()))
    }
}

fn certificate(name: &str) -> Option<Grant> {
    let good =
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
    good.then(|| Grant::Certificate(name.to_owned()))
}

impl TryFrom<String> for Grant {
    type Error = NotAClient;

    fn try_from(text: String) -> Result<Grant, NotAClient> {
        text.parse()
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> String {
        grant.to_string()
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grant::Certificate(name) => write!(f, "cert:{name}"),
            Grant::User(uid) => write!(f, "uid:{uid}"),
        }
    }
}

/// The identity that a client has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its user, if it connected over a unix socket.
    pub user: Option<u32>,
    /// The names in the certificate that it showed.
    pub names: Vec<String>,
}

impl Identity {
    /// Takes the names of a verified certificate.
    pub fn set_certificate(&mut self, certificate: &[u8]) {
        self.names.clear();
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return };
        let common = parsed.subject().iter_common_name();
        self.names.extend(common.filter_map(|name| name.as_str().ok()).map(str::to_owned));
        if let Ok(Some(names)) = parsed.subject_alternative_name() {
            self.names.extend(names.value.general_names.iter().filter_map(|name| match name {
                GeneralName::DNSName(name)
                | GeneralName::RFC822Name(name)
                | GeneralName::URI(name) => Some((*name).to_owned()),
                _ => None,
            }));
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.user, self.names.first()) {
            (_, Some(name)) => write!(f, "cert:{name}"),
            (Some(uid), None) => write!(f, "uid:{uid}"),
            (None, None) => f.write_str("a client that shows neither certificate nor user"),
        }
    }
}

/// The rights of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access(BTreeMap<String, BTreeSet<Grant>>);

impl Access {
    /// Whether a client may use a volume, or one of its snapshots. `owner` is the host's user.
    pub fn may_use(&self, volume: &str, client: &Identity, owner: u32) -> bool {
        let volume = volume.split_once('@').map_or(volume, |(volume, _)| volume);
        match self.0.get(volume) {
            None => client.user.is_none_or(|uid| uid == owner || uid == 0),
            Some(grants) => grants.iter().any(|grant| match grant {
                Grant::User(uid) => client.user == Some(*uid),
                Grant::Certificate(name) => client.names.contains(name),
            }),
        }
    }

    /// Whether other users than the host's have to be able to open a unix socket.
    pub fn has_users(&self) -> bool {
        self.0.values().flatten().any(|grant| matches!(grant, Grant::User(_)))
    }
}

/// The `[nbd]` table of the config file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct NbdTable {
    volumes: BTreeMap<String, BTreeSet<Grant>>,
}

/// Reads the `[nbd]` table of a config file; nothing without one.
///
/// # Errors
/// If something in it is not usable.
pub fn load(config: Option<&Path>) -> Result<Access> {
    let Some((path, table)) = config_table(config, "nbd")? else { return Ok(Access::default()) };
    let table: NbdTable =
        table.try_into().with_context(|| format!("{}, table [nbd]", path.display()))?;
    Ok(Access(table.volumes))
}

/// `nbd.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedClients {
    version: u32,
    volumes: BTreeMap<String, BTreeSet<Grant>>,
}

/// A change by command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum ClientChange {
    /// A grant.
    Allow {
        /// Which volume.
        volume: String,
        /// To whom.
        client: Grant,
    },
    /// That is withdrawn.
    Deny {
        /// Which volume.
        volume: String,
        /// From whom.
        client: Grant,
    },
    /// A volume has no list any more.
    Open {
        /// Which volume.
        volume: String,
    },
}

impl ClientChange {
    /// For the log.
    pub fn describe(&self) -> String {
        match self {
            ClientChange::Allow { volume, client } => format!("{client} may use volume {volume}"),
            ClientChange::Deny { volume, client } => {
                format!("{client} may not use volume {volume} any more")
            }
            ClientChange::Open { volume } => {
                format!(
                    "volume {volume} has no list: any client that reaches an address may use it"
                )
            }
        }
    }
}

/// A grant in [`ClientRightsReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientGrantReport {
    /// Which volume.
    pub volume: String,
    /// The client; `None` if the volume has a list that lets nobody in.
    pub client: Option<Grant>,
    /// From the config file.
    pub from_config: bool,
}

/// The rights of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRightsReport {
    /// Grants by volume.
    pub grants: Vec<ClientGrantReport>,
}

/// The rights, and the file that keeps them.
pub struct ClientRights {
    path: PathBuf,
    fixed: Access,
    kept: SavedClients,
}

impl ClientRights {
    /// Reads the grants in a state directory.
    ///
    /// # Errors
    /// If the file is unreadable.
    pub fn open(state: &Path, fixed: Access) -> Result<ClientRights> {
        let path = state.join("nbd.json");
        let kept = match files::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                SavedClients { version: VERSION, volumes: BTreeMap::new() }
            }
            read => {
                let text = read.with_context(|| format!("cannot read {}", path.display()))?;
                let kept: SavedClients = serde_json::from_slice(&text).with_context(|| {
                    format!(
                        "{} is damaged: restore it, or remove it and grant again",
                        path.display()
                    )
                })?;
                ensure!(
                    kept.version == VERSION,
                    "{} was written by another version of longhaul ({}, not {VERSION})",
                    path.display(),
                    kept.version
                );
                kept
            }
        };
        Ok(ClientRights { path, fixed, kept })
    }

    /// The rights, in the form for the server.
    pub fn access(&self) -> Access {
        let mut access = self.fixed.clone();
        for (volume, grants) in &self.kept.volumes {
            access.0.entry(volume.clone()).or_default().extend(grants.iter().cloned());
        }
        access
    }

    /// Replaces the rights of the config file.
    pub fn set_fixed(&mut self, fixed: Access) {
        self.fixed = fixed;
    }

    /// Makes a change, durably. Returns the new rights for the server.
    ///
    /// # Errors
    /// If the change has no effect, a command must not make it, or its save fails. Then nothing
    /// changes.
    pub async fn change(&mut self, change: ClientChange) -> Result<Access> {
        let kept = self.changed(change)?;
        let (path, text) = (self.path.clone(), serde_json::to_vec_pretty(&kept)?);
        tokio::task::spawn_blocking(move || files::replace(&path, &text, 0o600)).await??;
        self.kept = kept;
        Ok(self.access())
    }

    fn changed(&self, change: ClientChange) -> Result<SavedClients> {
        let mut kept = self.kept.clone();
        match change {
            ClientChange::Allow { volume, client } => {
                let grants = kept.volumes.entry(volume).or_default();
                grants.insert(client);
                ensure!(grants.len() <= MAX_ENTRIES, "the volume has {MAX_ENTRIES} grants");
                ensure!(kept.volumes.len() <= MAX_ENTRIES, "{MAX_ENTRIES} volumes have grants");
            }
            ClientChange::Deny { volume, client } => {
                let fixed = self.fixed.0.get(&volume);
                ensure!(
                    !fixed.is_some_and(|grants| grants.contains(&client)),
                    "the config file grants volume {volume} to {client}: change it there and \
                     reload the host (SIGHUP)"
                );
                let grants = kept.volumes.get_mut(&volume);
                ensure!(
                    grants.is_some_and(|grants| grants.remove(&client)),
                    "volume {volume} is not granted to {client}: `longhaul nbd list` shows all \
                     grants"
                );
            }
            ClientChange::Open { volume } => {
                ensure!(
                    !self.fixed.0.contains_key(&volume),
                    "the config file has a list of volume {volume}: change it there and reload the \
                     host (SIGHUP)"
                );
                ensure!(
                    kept.volumes.remove(&volume).is_some(),
                    "volume {volume} has no list: `longhaul nbd list` shows all of them"
                );
            }
        }
        Ok(kept)
    }

    /// For people.
    pub fn report(&self) -> ClientRightsReport {
        let mut grants = Vec::new();
        for (volume, clients) in &self.fixed.0 {
            let nobody = clients.is_empty() && !self.kept.volumes.contains_key(volume);
            let some = clients.iter().cloned().map(Some).chain(nobody.then_some(None));
            grants.extend(some.map(|client| ClientGrantReport {
                volume: volume.clone(),
                client,
                from_config: true,
            }));
        }
        for (volume, clients) in &self.kept.volumes {
            let nobody =
                clients.is_empty() && self.fixed.0.get(volume).is_none_or(BTreeSet::is_empty);
            let some = clients.iter().cloned().map(Some).chain(nobody.then_some(None));
            grants.extend(some.map(|client| ClientGrantReport {
                volume: volume.clone(),
                client,
                from_config: false,
            }));
        }
        grants.sort_by(|a, b| a.volume.cmp(&b.volume));
        ClientRightsReport { grants }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 7;

    fn user(uid: u32) -> Identity {
        Identity { user: Some(uid), names: Vec::new() }
    }

    #[test]
    fn clients_are_named_in_words() {
        for text in ["uid:0", "uid:4294967295", "cert:client 1", "cert:a@b"] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
        for bad in ["", "1000", "uid:", "uid:x", "uid:-1", "uid:4294967296", "cert:", "cert:a\n"] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_counts_everywhere_and_for_snapshots() {
        let grants = ["uid:1000", "cert:c"].map(|text| text.parse().unwrap());
        let listed = ("db".to_owned(), BTreeSet::from(grants));
        let access = Access([listed, ("shut".to_owned(), BTreeSet::new())].into());
        let tcp = Identity::default();
        let shown = Identity { user: None, names: vec!["x".into(), "c".into()] };
        for (volume, client, may) in [
            ("db", &user(1000), true),
            ("db@monday", &user(1000), true),
            ("db", &user(OWNER), false),
            ("db", &user(0), false),
            ("db", &tcp, false),
            ("db", &shown, true),
            ("shut", &shown, false),
            ("free", &user(1000), false),
            ("free", &user(OWNER), true),
            ("free", &user(0), true),
            ("free", &tcp, true),
            ("free", &shown, true),
        ] {
            assert_eq!(access.may_use(volume, client, OWNER), may, "{volume} {client}");
        }
        assert!(access.has_users() && !Access::default().has_users());
    }

    #[test]
    fn names_are_those_of_the_certificate() {
        let mut params = rcgen::CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "client one");
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let mut identity = Identity::default();
        identity.set_certificate(certificate.der());
        assert_eq!(identity.names, ["client one", "client.example"]);
        identity.set_certificate(b"none");
        assert_eq!(identity.names, [""; 0]);
    }

    #[tokio::test]
    async fn grants_are_kept_and_withdrawn() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("longhaul.toml");
        std::fs::write(&config, "[nbd.volumes]\ndb = [\"uid:1\"]\nshut = []\n").unwrap();
        let fixed = load(Some(&config)).unwrap();
        let mut rights = ClientRights::open(dir.path(), fixed.clone()).unwrap();
        let (volume, client): (String, Grant) = ("db".into(), "cert:c".parse().unwrap());
        let allow = ClientChange::Allow { volume: volume.clone(), client: client.clone() };
        let access = rights.change(allow).await.unwrap();
        assert_eq!(access.0["db"].len(), 2);
        let mut rights = ClientRights::open(dir.path(), fixed).unwrap();
        assert_eq!(rights.access(), access);
        assert_eq!(rights.report().grants.len(), 3);
        let deny = |client: &str| ClientChange::Deny {
            volume: volume.clone(),
            client: client.parse().unwrap(),
        };
        let error = rights.change(deny("uid:1")).await.unwrap_err().to_string();
        assert!(error.contains("config file"), "{error}");
        rights.change(deny("cert:c")).await.unwrap();
        let error = rights.change(deny("cert:c")).await.unwrap_err().to_string();
        assert!(error.contains("not granted"), "{error}");
        // An operator who withdraws the last grant does not want everybody in.
        let (volume, client): (String, Grant) = ("solo".into(), "cert:c".parse().unwrap());
        let allow = ClientChange::Allow { volume: volume.clone(), client: client.clone() };
        rights.change(allow).await.unwrap();
        let deny = ClientChange::Deny { volume: volume.clone(), client };
        let access = rights.change(deny).await.unwrap();
        for client in [Identity::default(), user(OWNER), user(0)] {
            assert!(!access.may_use("solo", &client, OWNER), "{client}");
        }
        let mut rights = ClientRights::open(dir.path(), rights.fixed).unwrap();
        assert_eq!(rights.access(), access, "as after a restart");
        let nobody = |grant: &&ClientGrantReport| grant.volume == "solo" && grant.client.is_none();
        assert_eq!(rights.report().grants.iter().filter(nobody).count(), 1);
        let access = rights.change(ClientChange::Open { volume: volume.clone() }).await.unwrap();
        assert!(access.may_use("solo", &Identity::default(), OWNER));
        let error = rights.change(ClientChange::Open { volume }).await.unwrap_err().to_string();
        assert!(error.contains("no list"), "{error}");
        let db = ClientChange::Open { volume: "db".into() };
        let error = rights.change(db).await.unwrap_err().to_string();
        assert!(error.contains("config file"), "{error}");
        std::fs::write(&config, "[nbd.volumes]\ndb = [\"bob\"]\n").unwrap();
        assert!(format!("{:#}", load(Some(&config)).unwrap_err()).contains("[nbd]"));
        std::fs::write(dir.path().join("nbd.json"), "{").unwrap();
        assert!(ClientRights::open(dir.path(), Access::default()).is_err());
    }
}
