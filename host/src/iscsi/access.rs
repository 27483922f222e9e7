//! The rights of initiators to volumes. They come from the `[iscsi]` table of the config file, and
//! from `longhaul iscsi`, whose changes the state directory keeps.
//!
//! ```text
//! iscsi.json     users with their secrets, grants and redirections given by command (0600)
//! admin.token    what a command shows to be allowed to change them (0600), new at each start
//! ```
//!
//! Promises: a change replaces its file in the state directory whole or not at all, before it takes
//! effect. No report shows a secret. The host refuses a file with secrets that others may read.

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_base::files;
use longhaul_core::front::iscsi::name::normalize;
use longhaul_core::front::iscsi::{Access, Grant, Secret};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// Lengths of a CHAP secret, in bytes: at least 96 bits (RFC 7143 §12.1.3). No known initiator
/// takes more than 255.
pub const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=255;

/// Longest name of a CHAP user, in bytes.
const MAX_USER_BYTES: usize = 255;

/// Users, volumes, and grants of a volume that commands may add.
const MAX_ENTRIES: usize = 10_000;

/// The `[iscsi]` table of the config file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct IscsiTable {
    /// The portals that SendTargets tells, instead of the addresses listened on.
    portals: Vec<String>,
    /// The target may use MD5 and SHA-1.
    weak_chap: bool,
    users: BTreeMap<String, TableSecret>,
    target_user: Option<TableTargetUser>,
    volumes: BTreeMap<String, Vec<TableGrant>>,
    moved: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TableSecret {
    secret: Option<String>,
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TableTargetUser {
    name: String,
    secret: Option<String>,
    secret_file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TableGrant {
    Initiator(String),
    #[serde(rename_all = "kebab-case")]
    WithUser {
        initiator: String,
        chap_user: String,
    },
}

/// The `[iscsi]` table of the config file. It changes when the host reads the file again.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredAccess {
    /// The portals that SendTargets tells, instead of the addresses listened on.
    pub portals: Vec<String>,
    /// The target may use MD5 and SHA-1 for CHAP.
    pub weak_chap: bool,
    access: Access,
}

impl ConfiguredAccess {
    /// Whether the other one differs in a setting that needs a restart of the target.
    #[must_use]
    pub fn needs_restart(&self, other: &ConfiguredAccess) -> bool {
        self.portals != other.portals || self.weak_chap != other.weak_chap
    }

    /// Reads the `[iscsi]` table of a config file; all defaults without one.
    ///
    /// # Errors
    /// If a value is not usable, or other users may read a file with secrets.
    pub fn load(config: Option<&Path>) -> Result<ConfiguredAccess> {
        let Some((path, table)) = config_table(config, "iscsi")? else {
            return Ok(ConfiguredAccess::default());
        };
        let read = || -> Result<ConfiguredAccess> {
            let table: IscsiTable = table.try_into()?;
            table.check(path)
        };
        read().with_context(|| format!("{}, table [iscsi]", path.display()))
    }
}

/// A table of the config file, with the file, if there are both.
///
/// # Errors
/// If the file is unreadable, or is no TOML.
pub fn config_table<'a>(
    config: Option<&'a Path>,
    name: &str,
) -> Result<Option<(&'a Path, toml::Value)>> {
    let Some(path) = config else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the config file {}", path.display()))?;
    let mut file: toml::Table = toml::from_str(&text)
        .with_context(|| format!("the config file {} is not valid TOML", path.display()))?;
    Ok(file.remove(name).map(|table| (path, table)))
}

impl IscsiTable {
    fn check(self, path: &Path) -> Result<ConfiguredAccess> {
        for portal in &self.portals {
            check_portal(portal)?;
        }
        let mut access = Access::default();
        for (name, secret) in self.users {
            check_user(&name)?;
            let secret = secret_of(secret.secret, secret.secret_file.as_deref(), path);
            access.users.insert(name.clone(), secret.with_context(|| format!("user {name}"))?);
        }
        if let Some(user) = self.target_user {
            check_user(&user.name)?;
            let secret = secret_of(user.secret, user.secret_file.as_deref(), path);
            access.target_user = Some((user.name, secret.context("target-user")?));
        }
        for (volume, grants) in self.volumes {
            let grants = grants.into_iter().map(|grant| {
                let (initiator, user) = match grant {
                    TableGrant::Initiator(initiator) => (initiator, None),
                    TableGrant::WithUser { initiator, chap_user } => (initiator, Some(chap_user)),
                };
                if let Some(user) = &user
                    && !access.users.contains_key(user)
                {
                    bail!("volume {volume} is granted to user {user}, who is not in [iscsi.users]");
                }
                Ok(Grant { initiator: check_initiator(&initiator)?, user })
            });
            let grants = grants.collect::<Result<_>>()?;
            access.volumes.insert(volume, grants);
        }
        for (volume, portal) in self.moved {
            check_portal(&portal)?;
            access.moved.insert(volume, portal);
        }
        check_difference(&access)?;
        Ok(ConfiguredAccess { portals: self.portals, weak_chap: self.weak_chap, access })
    }
}

fn secret_of(inline: Option<String>, file: Option<&Path>, config: &Path) -> Result<Secret> {
    match (inline, file) {
        (Some(text), None) => {
            check_mode(config)?;
            check_secret(text.into_bytes())
        }
        (None, Some(file)) => read_secret(file),
        _ => bail!("give either `secret` or `secret-file`"),
    }
}

/// Reads a secret from a file of its own. Ignores a line end after it.
///
/// # Errors
/// If the file is unreadable, other users may read it, or the secret is too short or too long.
pub fn read_secret(path: &Path) -> Result<Secret> {
    check_mode(path)?;
    let read = std::fs::read(path);
    let secret = read.with_context(|| format!("cannot read the secret in {}", path.display()))?;
    check_secret(secret).with_context(|| format!("the secret in {}", path.display()))
}

/// Takes a line's end off a secret and looks at its length.
///
/// # Errors
/// If it is too short or too long.
pub fn check_secret(mut secret: Vec<u8>) -> Result<Secret> {
    while let Some(b'\n' | b'\r') = secret.last() {
        secret.pop();
    }
    ensure!(
        SECRET_BYTES.contains(&secret.len()),
        "a CHAP secret has {} to {} bytes, this one {}: choose another one, as in `openssl rand \
         -hex 16`",
        SECRET_BYTES.start(),
        SECRET_BYTES.end(),
        secret.len()
    );
    Ok(Secret(secret))
}

fn check_mode(path: &Path) -> Result<()> {
    let meta =
        std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mode = meta.permissions().mode() & 0o777;
    ensure!(
        mode & 0o077 == 0,
        "{} holds a secret and others may open it (mode {mode:o}): chmod 600 {}",
        path.display(),
        path.display()
    );
    Ok(())
}

fn check_user(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() <= MAX_USER_BYTES
        && !name.chars().any(|c| c.is_control() || c.is_whitespace());
    ensure!(good, "`{name}` is no CHAP user: 1 to {MAX_USER_BYTES} bytes without spaces");
    Ok(())
}

fn check_initiator(name: &str) -> Result<String> {
    normalize(name).map_err(|error| {
        anyhow::anyhow!(
            "`{name}` is no iSCSI name ({error}): the initiator's is in its \
             /etc/iscsi/initiatorname.iscsi, as in `iqn.1993-08.org.debian:01:abc`"
        )
    })
}

fn check_portal(portal: &str) -> Result<()> {
    let host_port = portal.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && !host.contains([',', ' '])
    });
    ensure!(
        portal.parse::<SocketAddr>().is_ok() || host_port,
        "`{portal}` is no portal: give ADDR:PORT, as in `192.0.2.1:3260`"
    );
    Ok(())
}

/// RFC 7143 §12.1.3: the secrets of the two directions must not be the same.
fn check_difference(access: &Access) -> Result<()> {
    if let Some((_, secret)) = &access.target_user {
        let same = access.users.iter().find(|(_, other)| *other == secret);
        if let Some((user, _)) = same {
            bail!(
                "the target's secret is that of user {user}: with it, the target could be made to \
                 answer its own challenges; choose another one"
            );
        }
    }
    Ok(())
}

/// `iscsi.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SavedAccess {
    version: u32,
    /// Secrets in hexadecimal, by user.
    users: BTreeMap<String, String>,
    target_user: Option<(String, String)>,
    /// Grants by volume.
    volumes: BTreeMap<String, Vec<SavedGrant>>,
    moved: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedGrant {
    initiator: String,
    user: Option<String>,
}

/// A change by command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum InitiatorChange {
    /// A grant.
    Allow {
        /// Which volume.
        volume: String,
        /// iSCSI name.
        initiator: String,
        /// CHAP user that the initiator has to authenticate as.
        user: Option<String>,
    },
    /// Withdraws all grants of an initiator for a volume.
    Deny {
        /// Which volume.
        volume: String,
        /// iSCSI name.
        initiator: String,
    },
    /// A volume has no list any more.
    Open {
        /// Which volume.
        volume: String,
    },
    /// A user gets a secret.
    SetUser {
        /// Who.
        name: String,
        /// The secret, in hexadecimal.
        secret: String,
        /// It is what the target authenticates itself with.
        target: bool,
    },
    /// A user goes.
    RemoveUser {
        /// Who.
        name: String,
        /// It is what the target authenticates itself with.
        target: bool,
    },
    /// Redirects initiators of a volume, or does so no longer.
    Move {
        /// Which volume.
        volume: String,
        /// ADDR:PORT of the portal to go to.
        to: Option<String>,
    },
}

impl InitiatorChange {
    /// For the log, without secrets.
    pub fn describe(&self) -> String {
        match self {
            InitiatorChange::Allow { volume, initiator, user: None } => {
                format!("{initiator} may use volume {volume}")
            }
            InitiatorChange::Allow { volume, initiator, user: Some(user) } => {
                format!("{initiator} may use volume {volume} as user {user}")
            }
            InitiatorChange::Deny { volume, initiator } => {
                format!("{initiator} may not use volume {volume} any more")
            }
            InitiatorChange::Open { volume } => {
                format!("volume {volume} has no list: everybody may use it over loopback")
            }
            InitiatorChange::SetUser { name, .. } => format!("user {name} has a secret"),
            InitiatorChange::RemoveUser { name, .. } => format!("user {name} is removed"),
            InitiatorChange::Move { volume, to: Some(to) } => {
                format!("initiators of volume {volume} are sent to {to}")
            }
            InitiatorChange::Move { volume, to: None } => {
                format!("volume {volume} is served here again")
            }
        }
    }
}

/// A user in [`InitiatorRightsReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// CHAP name.
    pub name: String,
    /// The target's own.
    pub target: bool,
    /// From the config file.
    pub from_config: bool,
}

/// A grant in [`InitiatorRightsReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorGrantReport {
    /// Which volume.
    pub volume: String,
    /// iSCSI name of the initiator; `None` if the volume has a list that lets nobody in.
    pub initiator: Option<String>,
    /// CHAP user that it has to authenticate as.
    pub chap_user: Option<String>,
    /// From the config file.
    pub from_config: bool,
}

/// A redirection in [`InitiatorRightsReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Which volume.
    pub volume: String,
    /// ADDR:PORT of the portal to go to.
    pub to: String,
    /// From the config file.
    pub from_config: bool,
}

/// The rights, without secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorRightsReport {
    /// The host's state directory, in which commands find their token.
    pub state: PathBuf,
    /// Where the target listens.
    pub portals: Vec<String>,
    /// Grants by volume.
    pub grants: Vec<InitiatorGrantReport>,
    /// CHAP users.
    pub users: Vec<User>,
    /// Volumes whose initiators are redirected.
    pub moved: Vec<MoveReport>,
}

/// The rights, and the file that keeps them.
pub struct InitiatorRights {
    path: PathBuf,
    fixed: ConfiguredAccess,
    kept: SavedAccess,
}

impl InitiatorRights {
    /// Reads the rights in a state directory.
    ///
    /// # Errors
    /// If the file is unreadable, or other users may read it.
    pub fn open(state: &Path, fixed: ConfiguredAccess) -> Result<InitiatorRights> {
        let path = state.join("iscsi.json");
        let kept = if path.exists() {
            check_mode(&path)?;
            let text =
                files::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let kept: SavedAccess = serde_json::from_slice(&text).with_context(|| {
                format!("{} is damaged: restore it, or remove it and grant again", path.display())
            })?;
            ensure!(
                kept.version == VERSION,
                "{} was written by another version of longhaul ({}, not {VERSION})",
                path.display(),
                kept.version
            );
            kept
        } else {
            SavedAccess { version: VERSION, ..SavedAccess::default() }
        };
        let rights = InitiatorRights { path, fixed, kept };
        rights.access()?;
        Ok(rights)
    }

    /// The rights, in the form for the target.
    ///
    /// # Errors
    /// If the config file and the commands contradict each other.
    pub fn access(&self) -> Result<Access> {
        self.join(&self.kept)
    }

    fn join(&self, kept: &SavedAccess) -> Result<Access> {
        let mut access = self.fixed.access.clone();
        let secret = |text: &String| from_hex(text).and_then(check_secret);
        for (name, text) in &kept.users {
            access.users.insert(name.clone(), secret(text)?);
        }
        if let Some((name, text)) = &kept.target_user {
            access.target_user = Some((name.clone(), secret(text)?));
        }
        for (volume, grants) in &kept.volumes {
            let all = access.volumes.entry(volume.clone()).or_default();
            all.extend(grants.iter().map(|grant| {
                let SavedGrant { initiator, user } = grant.clone();
                Grant { initiator, user }
            }));
        }
        access.moved.extend(kept.moved.clone());
        check_difference(&access)?;
        Ok(access)
    }

    /// Replaces the rights of the config file.
    ///
    /// # Errors
    /// If they contradict those of the commands. Then nothing changes.
    pub fn set_fixed(&mut self, fixed: ConfiguredAccess) -> Result<Access> {
        let before = std::mem::replace(&mut self.fixed, fixed);
        let access = self.access();
        if access.is_err() {
            self.fixed = before;
        }
        access
    }

    /// Makes a change, durably. Returns the new rights for the target.
    ///
    /// # Errors
    /// If the change has no effect, a command must not make it, or its save fails. Then nothing
    /// changes.
    pub async fn change(&mut self, change: InitiatorChange) -> Result<Access> {
        let kept = self.changed(change)?;
        let access = self.join(&kept)?;
        let (path, text) = (self.path.clone(), serde_json::to_vec_pretty(&kept)?);
        let write = move || files::replace(&path, &text, 0o600);
        tokio::task::spawn_blocking(write).await??;
        self.kept = kept;
        Ok(access)
    }

    fn changed(&self, change: InitiatorChange) -> Result<SavedAccess> {
        let mut kept = self.kept.clone();
        match change {
            InitiatorChange::Allow { volume, initiator, user } => {
                self.allow(&mut kept, volume, &initiator, user)?;
            }
            InitiatorChange::Deny { volume, initiator } => {
                self.deny(&mut kept, &volume, &initiator)?
            }
            InitiatorChange::Open { volume } => {
                ensure!(
                    !self.fixed.access.volumes.contains_key(&volume),
                    "the config file has a list of volume {volume}: change it there and reload the \
                     host (SIGHUP)"
                );
                ensure!(
                    kept.volumes.remove(&volume).is_some(),
                    "volume {volume} has no list: `longhaul iscsi list` shows all of them"
                );
            }
            InitiatorChange::SetUser { name, secret, target } => {
                check_user(&name)?;
                check_secret(from_hex(&secret)?)?;
                if target {
                    ensure!(
                        self.fixed.access.target_user.is_none(),
                        "the target's user is in the config file: change it there and reload the \
                         host (SIGHUP)"
                    );
                    kept.target_user = Some((name, secret));
                } else {
                    ensure!(
                        !self.fixed.access.users.contains_key(&name),
                        "user {name} is in the config file: change it there and reload the host \
                         (SIGHUP)"
                    );
                    kept.users.insert(name, secret);
                    ensure!(
                        kept.users.len() <= MAX_ENTRIES,
                        "the list already has {MAX_ENTRIES} users"
                    );
                }
            }
            InitiatorChange::RemoveUser { name, target } => {
                self.remove_user(&mut kept, &name, target)?
            }
            InitiatorChange::Move { volume, to } => {
                if let Some(to) = to {
                    check_portal(&to)?;
                    kept.moved.insert(volume, to);
                    ensure!(kept.moved.len() <= MAX_ENTRIES, "{MAX_ENTRIES} volumes are moved");
                } else if kept.moved.remove(&volume).is_none() {
                    ensure!(
                        !self.fixed.access.moved.contains_key(&volume),
                        "the config file moves volume {volume}: change it there and reload the \
                         host (SIGHUP)"
                    );
                    bail!(
                        "volume {volume} is not moved: `longhaul iscsi list` shows those that are"
                    );
                }
            }
        }
        Ok(kept)
    }

    fn allow(
        &self,
        kept: &mut SavedAccess,
        volume: String,
        initiator: &str,
        user: Option<String>,
    ) -> Result<()> {
        if let Some(user) = &user {
            let known = kept.users.contains_key(user) || self.fixed.access.users.contains_key(user);
            ensure!(known, "no user {user}: first `longhaul iscsi user set {user}`");
        }
        let grant = SavedGrant { initiator: check_initiator(initiator)?, user };
        // A second grant may turn CHAP on or off for an initiator.
        let grants = kept.volumes.entry(volume).or_default();
        grants.retain(|other| other.initiator != grant.initiator);
        grants.push(grant);
        ensure!(grants.len() <= MAX_ENTRIES, "the volume has {MAX_ENTRIES} grants");
        ensure!(kept.volumes.len() <= MAX_ENTRIES, "{MAX_ENTRIES} volumes have grants");
        Ok(())
    }

    fn deny(&self, kept: &mut SavedAccess, volume: &str, initiator: &str) -> Result<()> {
        let initiator = check_initiator(initiator)?;
        let fixed = self.fixed.access.volumes.get(volume);
        ensure!(
            !fixed.is_some_and(|grants| grants.iter().any(|grant| grant.initiator == initiator)),
            "the config file grants volume {volume} to {initiator}: change it there and reload the \
             host (SIGHUP)"
        );
        let grants = kept.volumes.get_mut(volume);
        let found = grants.is_some_and(|grants| {
            let before = grants.len();
            grants.retain(|grant| grant.initiator != initiator);
            grants.len() < before
        });
        ensure!(
            found,
            "volume {volume} is not granted to {initiator}: `longhaul iscsi list` shows all grants"
        );
        Ok(())
    }

    fn remove_user(&self, kept: &mut SavedAccess, name: &str, target: bool) -> Result<()> {
        let in_config = if target {
            self.fixed.access.target_user.as_ref().is_some_and(|(own, _)| own == name)
        } else {
            self.fixed.access.users.contains_key(name)
        };
        ensure!(
            !in_config,
            "user {name} is in the config file: remove it there and reload the host (SIGHUP)"
        );
        if target {
            let own = kept.target_user.as_ref().is_some_and(|(own, _)| own == name);
            ensure!(own, "{name} is not the target's user: `longhaul iscsi list` shows it");
            kept.target_user = None;
            return Ok(());
        }
        let mut users = kept.volumes.iter().flat_map(|(volume, grants)| {
            grants.iter().map(move |grant| (volume, grant.user.as_deref()))
        });
        if let Some((volume, _)) = users.find(|(_, user)| *user == Some(name)) {
            bail!(
                "volume {volume} is granted to an initiator that authenticates as {name}: deny it \
                 first, or allow it with another user"
            );
        }
        drop(users);
        let removed = kept.users.remove(name).is_some();
        ensure!(removed, "no user {name}: `longhaul iscsi list` shows all");
        Ok(())
    }

    /// Whether any initiator from elsewhere may use anything.
    pub fn is_empty(&self) -> bool {
        let fixed = self.fixed.access.volumes.values().all(Vec::is_empty);
        fixed && self.kept.volumes.is_empty()
    }

    /// For people, without secrets.
    pub fn report(&self, portals: Vec<String>) -> InitiatorRightsReport {
        let state = self.path.parent().unwrap_or(Path::new("."));
        let state = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        let mut report =
            InitiatorRightsReport { state, portals, ..InitiatorRightsReport::default() };
        for (volume, grants) in &self.fixed.access.volumes {
            let nobody = grants.is_empty() && !self.kept.volumes.contains_key(volume);
            let some = grants.iter().map(Some).chain(nobody.then_some(None));
            report.grants.extend(some.map(|grant| InitiatorGrantReport {
                volume: volume.clone(),
                initiator: grant.map(|grant| grant.initiator.clone()),
                chap_user: grant.and_then(|grant| grant.user.clone()),
                from_config: true,
            }));
        }
        for (volume, grants) in &self.kept.volumes {
            let fixed = self.fixed.access.volumes.get(volume);
            let nobody = grants.is_empty() && fixed.is_none_or(Vec::is_empty);
            let some = grants.iter().map(Some).chain(nobody.then_some(None));
            report.grants.extend(some.map(|grant| InitiatorGrantReport {
                volume: volume.clone(),
                initiator: grant.map(|grant| grant.initiator.clone()),
                chap_user: grant.and_then(|grant| grant.user.clone()),
                from_config: false,
            }));
        }
        report.grants.sort_by(|a, b| a.volume.cmp(&b.volume));
        let user =
            |name: &String, target, from_config| User { name: name.clone(), target, from_config };
        let fixed = &self.fixed.access;
        report.users.extend(fixed.users.keys().map(|name| user(name, false, true)));
        report.users.extend(self.kept.users.keys().map(|name| user(name, false, false)));
        report.users.extend(fixed.target_user.iter().map(|(name, _)| user(name, true, true)));
        report.users.extend(self.kept.target_user.iter().map(|(name, _)| user(name, true, false)));
        let moved = |moved: &BTreeMap<String, String>, from_config| {
            let report = moved.iter().map(move |(volume, to)| MoveReport {
                volume: volume.clone(),
                to: to.clone(),
                from_config,
            });
            report.collect::<Vec<_>>()
        };
        report.moved.extend(moved(&fixed.moved, true));
        report.moved.extend(moved(&self.kept.moved, false));
        report
    }
}

/// The path of the token that a command needs to change anything.
pub fn token_path(state: &Path) -> PathBuf {
    state.join("admin.token")
}

/// Draws the token that commands have to show. Writes it where only the owner of the state
/// directory can read it. If the write fails, no command can change anything until the next start:
/// a full disk must not keep a host down.
///
/// # Errors
/// If there are no random numbers.
pub fn new_token(state: &Path) -> Result<String> {
    let token = format!("{:032x}", longhaul_base::random::identity()?);
    if let Err(error) = files::replace(&token_path(state), token.as_bytes(), 0o600) {
        tracing::warn!("{error:#}; `longhaul iscsi` can change nothing until the next start");
    }
    Ok(token)
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let bytes = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2);
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
    });
    bytes.collect::<Option<_>>().context("a secret is not in hexadecimal")
}
