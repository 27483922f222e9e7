//! Who may talk to a store: its CA, its server certificate, and the admin credential it hands out.
//!
//! `STATE/credentials/` of a store holds
//!
//! | file | content |
//! |---|---|
//! | `ca.pem` | certificate and key of the CA, made once: hosts pin the certificate |
//! | `server.pem` | certificate and key of the store, renewed at start when it has served half its time |
//! | `peer.pem` | the same, to be shown to other stores of the installation |
//! | `issued.json` | serial numbers of the client certificates that are accepted, those of tenants with their names |
//! | `admin.toml` | the credential to give to hosts and administrators |
//!
//! Each file is replaced as a whole, and a certificate lies in one file with its key, so that a crash
//! cannot leave halves. The order of writes makes `issued.json` the point at which a credential
//! becomes valid; a first start that was interrupted before it starts over.
//!
//! The server is known by its CA and the fixed name [`SERVER_NAME`], not by its address: a store may
//! move, and a host may reach it through a relay. A client certificate of that name is another store's:
//! whoever can make one has the CA's key, so there is no list of them.
//!
//! A client certificate is a tenant's if its subject has an organization, which is the tenant's name. Its serial number is
//! accepted together with that name and in no other form, so that a store which knows nothing of tenants lets no one of theirs in.
//!
//! All stores over one data location have the same CA: the second gets it by an *invitation*, a text that
//! an operator carries from one state directory to the other. It never lies where the objects are.

use crate::files;
use anyhow::{Context as _, Result, anyhow, bail};
use longhaul_core::store::tenant::check_tenant;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;

/// The name in every store's certificate.
pub const SERVER_NAME: &str = "longhaul-store";
/// Beginning of the serial number, as [`inspect`] gives it, of a certificate of a store.
pub const OF_STORE: &str = "store:";
/// Beginning of that of a tenant's certificate; the tenant's name and a colon follow.
pub const OF_TENANT: &str = "tenant:";

/// The tenant whose certificate has this serial number, as [`inspect`] gives it, if it is a tenant's.
pub fn tenant_of(serial: &str) -> Option<&str> {
    serial.strip_prefix(OF_TENANT)?.rsplit_once(':').map(|(tenant, _)| tenant)
}

/// The serial number alone.
pub fn bare(serial: &str) -> &str {
    serial.rsplit_once(':').map_or(serial, |(_, bare)| bare)
}

const CA_DAYS: i64 = 20 * 365;
const SERVER_DAYS: i64 = 10 * 365;
const CLIENT_DAYS: i64 = 5 * 365;
/// From here on a credential's approaching end is worth a warning.
const WARN_DAYS: i64 = 60;
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a host or an administrator needs to talk to a store.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Addresses of the store, HOST:PORT.
    pub stores: Vec<String>,
    /// The only CA that is trusted.
    pub ca: CertificateDer<'static>,
    /// Our certificate.
    pub certificate: CertificateDer<'static>,
    /// Its serial number, as [`inspect`] gives it.
    pub serial: String,
    /// When it ends.
    pub not_after: OffsetDateTime,
    key: std::sync::Arc<PrivatePkcs8KeyDer<'static>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialFile {
    version: u32,
    stores: Vec<String>,
    not_after: String,
    ca: String,
    certificate: String,
    key: String,
}

impl Credential {
    /// Reads a credential file.
    ///
    /// # Errors
    /// If it cannot be read, is not a credential, or has expired; each with what to do about it.
    pub fn load(path: &Path) -> Result<Credential> {
        let credential = Self::read(path)?;
        let now = OffsetDateTime::now_utc();
        let (shown, until) = (path.display(), date(credential.not_after));
        if let Some(tenant) = tenant_of(&credential.serial).filter(|_| credential.not_after <= now)
        {
            bail!(
                "the credential {shown} expired on {until}: get a new one, which `longhaul credential issue --tenant {tenant}` \
                 makes where the store runs"
            );
        }
        if credential.not_after <= now {
            bail!(
                "the credential {shown} expired on {until}: run `longhaul credential rotate --state STATE` where the \
                 store runs and copy its new admin.toml here"
            );
        }
        if credential.not_after - now < Duration::days(WARN_DAYS) {
            tracing::warn!("the credential {shown} expires on {until}: rotate it before then");
        }
        Ok(credential)
    }

    /// Reads a credential file that may have expired.
    ///
    /// # Errors
    /// As for [`Credential::load`].
    pub fn read(path: &Path) -> Result<Credential> {
        let shown = path.display();
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => anyhow!(
                "there is no credential file {shown}: a store writes STATE/credentials/admin.toml at its first start; \
                 copy that file here"
            ),
            _ => anyhow!("cannot read the credential file {shown}: {error}"),
        })?;
        if !metadata.is_file() {
            bail!("{shown} is not a file: give the admin.toml that the store wrote");
        }
        if metadata.len() > MAX_FILE_BYTES {
            bail!("{shown} is too large to be a credential file");
        }
        warn_if_others_can_read(path, &metadata);
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the credential file {shown}"))?;
        Self::parse(&text).with_context(|| {
            format!("{shown} is not a credential file: give the admin.toml that the store wrote")
        })
    }

    /// Takes the content of a credential file apart.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parse(text: &str) -> Result<Credential> {
        let file: CredentialFile = toml::from_str(text).context("not valid TOML of this kind")?;
        if file.version != 1 {
            bail!("its version {} is not known here: use a newer longhaul", file.version);
        }
        let certificate = certificate(&file.certificate).context("`certificate`")?;
        let seen = inspect(&certificate)?;
        Ok(Credential {
            stores: file.stores,
            ca: self::certificate(&file.ca).context("`ca`")?,
            serial: seen.serial,
            not_after: seen.not_after,
            certificate,
            key: PrivatePkcs8KeyDer::from_pem_slice(file.key.as_bytes())
                .map_err(|error| anyhow!("`key` is not a PKCS#8 key in PEM: {error}"))?
                .into(),
        })
    }

    /// Our private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
}

/// Writes what a credential file holds into files of a directory, for other programs: `ca.pem`,
/// `certificate.pem` and `key.pem`.
///
/// # Errors
/// If it is none, or the directory cannot be written.
pub fn unpack(path: &Path, dir: &Path) -> Result<()> {
    let credential = Credential::load(path)?;
    files::create_dir(dir)?;
    let key = pem("PRIVATE KEY", credential.key.secret_pkcs8_der());
    for (name, text) in [
        ("ca.pem", pem("CERTIFICATE", &credential.ca)),
        ("certificate.pem", pem("CERTIFICATE", &credential.certificate)),
        ("key.pem", key),
    ] {
        files::replace(&dir.join(name), text.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// What a store shows of itself, and what it accepts.
#[derive(Debug)]
pub struct ServerIdentity {
    /// The CA of this installation.
    pub ca: CertificateDer<'static>,
    /// The store's certificate.
    pub certificate: CertificateDer<'static>,
    /// Its key.
    pub key: PrivatePkcs8KeyDer<'static>,
    /// What it shows to other stores; without their addresses.
    pub peer: Credential,
}

/// Makes what a store needs and does not have yet, and writes `stores` into what it hands out.
///
/// # Errors
/// If a file cannot be read or written.
pub fn prepare(state: &Path, stores: &[String]) -> Result<ServerIdentity> {
    let dir = directory(state);
    files::create_dir(&dir)?;
    let now = OffsetDateTime::now_utc();
    let ca = match Pair::read(&dir.join("ca.pem"))? {
        Some(ca) => ca,
        None => {
            let ca = new_ca(now)?;
            ca.write(&dir.join("ca.pem"))?;
            tracing::info!("made the CA of this installation in {}", dir.display());
            // What another CA signed is of no use any more.
            remove(&dir.join("issued.json"))?;
            remove(&dir.join("server.pem"))?;
            remove(&dir.join("peer.pem"))?;
            ca
        }
    };
    let fresh = |pair: &Pair| -> Result<bool> {
        let seen = inspect(&pair.certificate)?;
        Ok(seen.not_after - now > Duration::days(SERVER_DAYS / 2) && seen.not_before <= now)
    };
    let own = |name: &str, of: Leaf<'_>| -> Result<Pair> {
        let old = match Pair::read(&dir.join(name))? {
            Some(pair) if fresh(&pair)? => return Ok(pair),
            old => old,
        };
        let new = new_leaf(&ca, now, SERVER_DAYS, of)?;
        new.write(&dir.join(name))?;
        if old.is_some() {
            tracing::info!("renewed {} in {}", name, dir.display());
        }
        Ok(new)
    };
    let server = own("server.pem", Leaf::Server)?;
    let peer = own("peer.pem", Leaf::Peer)?;
    match IssuedFile::read(&dir)? {
        None => {
            let client = new_leaf(&ca, now, CLIENT_DAYS, Leaf::Client(None))?;
            write_credential(&dir.join("admin.toml"), stores, &ca, &client)?;
            let accepted = entry(&client)?;
            IssuedFile { version: 1, stores: stores.to_vec(), accepted, generation: 0 }
                .write(&dir)?;
            tracing::info!("wrote the credential {}", dir.join("admin.toml").display());
        }
        Some(mut issued) if issued.stores != stores => {
            let path = dir.join("admin.toml");
            if let Ok(text) = std::fs::read_to_string(&path)
                && let Ok(mut file) = toml::from_str::<CredentialFile>(&text)
            {
                file.stores = stores.to_vec();
                files::replace(&path, &credential_text(&file)?, 0o600)?;
            }
            issued.stores = stores.to_vec();
            issued.write(&dir)?;
        }
        Some(_) => {}
    }
    let seen = inspect(&peer.certificate)?;
    let peer = Credential {
        stores: Vec::new(),
        ca: ca.certificate.clone(),
        certificate: peer.certificate,
        serial: seen.serial,
        not_after: seen.not_after,
        key: peer.key.into(),
    };
    Ok(ServerIdentity {
        ca: ca.certificate,
        certificate: server.certificate,
        key: server.key,
        peer,
    })
}

/// What one store of an installation gives to the next, for [`join`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Invitation {
    version: u32,
    /// Certificate of the CA, and its key, in PEM.
    ca: String,
    ca_key: String,
    /// As in `issued.json`.
    generation: u64,
    accepted: BTreeMap<String, String>,
}

/// What another store needs to become one of this installation: the CA with its key.
///
/// # Errors
/// If `state` is not that of a store.
pub fn invite(state: &Path) -> Result<String> {
    let (ca, issued) = installation(state)?;
    let invitation = Invitation {
        version: 1,
        ca: pem("CERTIFICATE", &ca.certificate),
        ca_key: pem("PRIVATE KEY", ca.key.secret_pkcs8_der()),
        generation: issued.generation,
        accepted: issued.accepted,
    };
    let text = toml::to_string_pretty(&invitation)?;
    Ok(format!(
        "# Whoever has this can make credentials for everything: give it to `longhaul store join`, and delete it.\n{text}"
    ))
}

/// What an invitation says.
pub struct Invited {
    ca: Pair,
    accepted: Accepted,
}

impl Invited {
    /// Takes the text of an invitation apart.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Invited> {
        let invitation: Invitation = toml::from_str(text)
            .context("this is no invitation: give what `longhaul store invite` printed")?;
        if invitation.version != 1 {
            bail!("the invitation was written by a newer longhaul: use that one");
        }
        let ca = Pair {
            certificate: certificate(&invitation.ca).context("`ca`")?,
            key: PrivatePkcs8KeyDer::from_pem_slice(invitation.ca_key.as_bytes())
                .map_err(|error| anyhow!("`ca_key` is not a PKCS#8 key in PEM: {error}"))?,
        };
        // That they belong together shows when something is signed with it.
        new_leaf(&ca, OffsetDateTime::now_utc(), 1, Leaf::Peer).context("`ca` and `ca_key`")?;
        let Invitation { generation, accepted: serials, .. } = invitation;
        Ok(Invited { ca, accepted: Accepted { generation, serials } })
    }
}

/// Makes the state directory of a store that is to be one of the installation of an invitation.
///
/// # Errors
/// If the text is no invitation, `state` is that of another installation, or it cannot be written.
pub fn join(state: &Path, text: &str) -> Result<()> {
    let Invited { ca, accepted } = Invited::parse(text)?;
    let dir = directory(state);
    files::create_dir(&dir)?;
    if let Some(other) = Pair::read(&dir.join("ca.pem"))?
        && other.certificate != ca.certificate
    {
        bail!(
            "{} is the state of a store of another installation: give another directory with --state",
            state.display()
        );
    }
    // First, since a start with the CA alone would hand out credentials of its own.
    let Accepted { generation, serials: accepted } = accepted;
    if IssuedFile::read(&dir)?.is_none_or(|issued| issued.generation < generation) {
        IssuedFile { version: 1, stores: Vec::new(), accepted, generation }.write(&dir)?;
    }
    ca.write(&dir.join("ca.pem"))
}

/// The client certificates that are accepted by all stores: how often that changed, and serial numbers
/// with the end of their validity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Of two the higher one counts.
    pub generation: u64,
    /// Serial number to the end of its validity.
    pub serials: BTreeMap<String, String>,
}

/// What a store accepts.
///
/// # Errors
/// If `state` is not that of a store that has been started.
pub fn accepted(state: &Path) -> Result<Accepted> {
    let (_, issued) = installation(state)?;
    Ok(Accepted { generation: issued.generation, serials: issued.accepted })
}

/// Makes a store accept what another one of its installation does.
///
/// # Errors
/// If it cannot be written.
pub fn accept(state: &Path, accepted: Accepted) -> Result<()> {
    let (_, mut issued) = installation(state)?;
    (issued.generation, issued.accepted) = (accepted.generation, accepted.serials);
    issued.write(&directory(state))
}

fn installation(state: &Path) -> Result<(Pair, IssuedFile)> {
    let dir = directory(state);
    let (Some(ca), Some(issued)) = (Pair::read(&dir.join("ca.pem"))?, IssuedFile::read(&dir)?)
    else {
        bail!(
            "{} holds no credentials of a store: give the state directory of a store that has been started once",
            state.display()
        );
    };
    Ok((ca, issued))
}

/// Writes a new admin credential and withdraws all earlier ones; those of tenants stay. Returns its path.
///
/// # Errors
/// If `state` is not that of a store, or a file cannot be written.
pub fn rotate(state: &Path) -> Result<PathBuf> {
    let dir = directory(state);
    let (ca, issued) = installation(state)?;
    let client = new_leaf(&ca, OffsetDateTime::now_utc(), CLIENT_DAYS, Leaf::Client(None))?;
    let of_tenants = issued.accepted.iter().filter(|(serial, _)| tenant_of(serial).is_some());
    let mut new: BTreeMap<_, _> = of_tenants.map(|(s, until)| (s.clone(), until.clone())).collect();
    new.extend(entry(&client)?);
    // Both are accepted until the new one is in place, so that a crash leaves one that works.
    let mut both = issued.accepted.clone();
    both.extend(new.clone());
    let generation = issued.generation + 1;
    let stores = issued.stores;
    IssuedFile { version: 1, stores: stores.clone(), accepted: both, generation }.write(&dir)?;
    let path = dir.join("admin.toml");
    write_credential(&path, &stores, &ca, &client)?;
    let generation = generation + 1;
    IssuedFile { version: 1, stores, accepted: new, generation }.write(&dir)?;
    Ok(path)
}

/// Writes a credential that is good for the volumes of a tenant to a new file.
///
/// # Errors
/// If `state` is not that of a store, the name is none, the file exists, or cannot be written.
pub fn issue(state: &Path, tenant: &str, file: &Path) -> Result<()> {
    check_tenant(tenant)?;
    let dir = directory(state);
    let (ca, mut issued) = installation(state)?;
    if file.symlink_metadata().is_ok() {
        bail!("{} exists: give the name of a new file", file.display());
    }
    let client = new_leaf(&ca, OffsetDateTime::now_utc(), CLIENT_DAYS, Leaf::Client(Some(tenant)))?;
    write_credential(file, &issued.stores, &ca, &client)?;
    issued.accepted.extend(entry(&client)?);
    issued.generation += 1;
    issued.write(&dir)
}

/// Withdraws the credential of a tenant with that serial number, or all of a tenant. Returns how many those were.
///
/// # Errors
/// If `state` is not that of a store, or cannot be written.
pub fn revoke(state: &Path, serial: Option<&str>, tenant: Option<&str>) -> Result<usize> {
    let dir = directory(state);
    let (_, mut issued) = installation(state)?;
    let before = issued.accepted.len();
    issued.accepted.retain(|accepted, _| {
        let of = tenant_of(accepted);
        let named = serial.is_none_or(|serial| bare(accepted) == bare(serial));
        of.is_none() || !named || tenant.is_some_and(|tenant| of != Some(tenant))
    });
    let revoked = before - issued.accepted.len();
    if revoked > 0 {
        issued.generation += 1;
        issued.write(&dir)?;
    }
    Ok(revoked)
}

/// The serial numbers that a running store accepts: `issued.json`, read again whenever it changed.
#[derive(Debug)]
pub struct Issued {
    dir: PathBuf,
    seen: Mutex<(Option<Stamp>, Vec<String>)>,
}

/// Replacing a file gives it another inode, even within the clock's granularity.
pub type Stamp = (SystemTime, u64);

impl Issued {
    /// Of the store with this state directory, after [`prepare`].
    pub fn new(state: &Path) -> Issued {
        Issued { dir: directory(state), seen: Mutex::new((None, Vec::new())) }
    }

    /// Whether a certificate with this serial number is accepted now. If the file cannot be read
    /// nobody new is.
    pub fn accepts(&self, serial: &str) -> bool {
        if serial.starts_with(OF_STORE) {
            return true;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.stamp();
        if stamp.is_none() || seen.0 != stamp {
            match IssuedFile::read(&self.dir) {
                Ok(Some(file)) => *seen = (stamp, file.accepted.into_keys().collect()),
                Ok(None) => {
                    tracing::error!(
                        "{} is gone: no client is accepted until the store is restarted",
                        self.dir.join("issued.json").display()
                    );
                    *seen = (None, Vec::new());
                }
                Err(error) => {
                    tracing::error!("no client is accepted: {error:#}");
                    *seen = (None, Vec::new());
                }
            }
        }
        seen.1.iter().any(|accepted| accepted == serial)
    }

    /// Changes whenever what is accepted does.
    pub fn stamp(&self) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(self.dir.join("issued.json")).ok()?;
        Some((metadata.modified().ok()?, metadata.ino()))
    }
}

#[derive(Serialize, Deserialize)]
struct IssuedFile {
    version: u32,
    /// Addresses to write into the next credential.
    stores: Vec<String>,
    /// Serial number to the end of its validity.
    accepted: BTreeMap<String, String>,
    /// How often that changed.
    #[serde(default)]
    generation: u64,
}

impl IssuedFile {
    fn read(dir: &Path) -> Result<Option<IssuedFile>> {
        let path = dir.join("issued.json");
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let file: IssuedFile = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged: remove it and start the store, which then writes a new credential",
                path.display()
            )
        })?;
        if file.version != 1 {
            bail!("{} was written by a newer longhaul: use that one", path.display());
        }
        Ok(Some(file))
    }

    fn write(&self, dir: &Path) -> Result<()> {
        files::replace(&dir.join("issued.json"), &serde_json::to_vec_pretty(self)?, 0o600)
    }
}

fn entry(pair: &Pair) -> Result<BTreeMap<String, String>> {
    let seen = inspect(&pair.certificate)?;
    Ok(BTreeMap::from([(seen.serial, seen.not_after.format(&Rfc3339)?)]))
}

fn write_credential(path: &Path, stores: &[String], ca: &Pair, client: &Pair) -> Result<()> {
    let file = CredentialFile {
        version: 1,
        stores: stores.to_vec(),
        not_after: inspect(&client.certificate)?.not_after.format(&Rfc3339)?,
        ca: pem("CERTIFICATE", &ca.certificate),
        certificate: pem("CERTIFICATE", &client.certificate),
        key: pem("PRIVATE KEY", client.key.secret_pkcs8_der()),
    };
    files::replace(path, &credential_text(&file)?, 0o600)
}

fn credential_text(file: &CredentialFile) -> Result<Vec<u8>> {
    let text = toml::to_string_pretty(file)?;
    let seen = inspect(&certificate(&file.certificate)?)?;
    let what = match tenant_of(&seen.serial) {
        Some(tenant) => format!("everything with the volumes of tenant {tenant}"),
        None => "everything at the store".to_owned(),
    };
    Ok(format!("# Whoever has this file may do {what}: keep it secret.\n{text}").into_bytes())
}

/// A certificate with its key, in one PEM file.
struct Pair {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Pair {
    fn read(path: &Path) -> Result<Option<Pair>> {
        let Some(text) = read_if_there(path)? else { return Ok(None) };
        let context = || {
            format!(
                "{} is damaged: restore it from a backup, or remove all of its directory to start over with \
                 new credentials",
                path.display()
            )
        };
        Ok(Some(Pair {
            certificate: certificate(&text).with_context(context)?,
            key: PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).with_context(context)?,
        }))
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = pem("CERTIFICATE", &self.certificate)
            + &pem("PRIVATE KEY", self.key.secret_pkcs8_der());
        files::replace(path, text.as_bytes(), 0o600)
    }
}

fn new_ca(now: OffsetDateTime) -> Result<Pair> {
    // Named at random: a client can then tell another installation's CA from a forged certificate.
    let name = format!("longhaul {:032x}", crate::random::identity()?);
    let key = KeyPair::generate()?;
    let mut params = params(&name, now, CA_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.der().clone(), key: key.serialize_der().into() })
}

/// Whose a certificate is.
#[derive(Clone, Copy)]
enum Leaf<'a> {
    /// A store's, to hosts.
    Server,
    /// A store's, to other stores.
    Peer,
    /// A host's or an administrator's: the installation's, or a tenant's.
    Client(Option<&'a str>),
}

fn new_leaf(ca: &Pair, now: OffsetDateTime, days: i64, of: Leaf<'_>) -> Result<Pair> {
    let signer = KeyPair::from_pkcs8_der_and_sign_algo(&ca.key, &rcgen::PKCS_ECDSA_P256_SHA256)?;
    let issuer = Issuer::from_ca_cert_der(&ca.certificate, signer)?;
    let key = KeyPair::generate()?;
    let (name, usage) = match of {
        Leaf::Server => (SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth),
        Leaf::Peer => (SERVER_NAME, ExtendedKeyUsagePurpose::ClientAuth),
        Leaf::Client(None) => ("admin", ExtendedKeyUsagePurpose::ClientAuth),
        Leaf::Client(Some(_)) => ("tenant", ExtendedKeyUsagePurpose::ClientAuth),
    };
    let mut params = params(name, now, days)?;
    if let Leaf::Client(Some(tenant)) = of {
        params.distinguished_name.push(DnType::OrganizationName, tenant);
    }
    if !matches!(of, Leaf::Client(_)) {
        params.subject_alt_names = vec![rcgen::SanType::DnsName(SERVER_NAME.try_into()?)];
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.der().clone(), key: key.serialize_der().into() })
}

fn params(name: &str, now: OffsetDateTime, days: i64) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    // Clocks of two machines differ.
    params.not_before = now - Duration::days(1);
    params.not_after = now + Duration::days(days);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // Positive and without leading zero bytes, as RFC 5280 §4.1.2.2 wants it.
    let mut serial = crate::random::identity()?.to_be_bytes();
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

/// What a certificate says.
#[derive(Debug)]
pub struct Seen {
    /// Serial number in hexadecimal, after [`OF_STORE`] if it is a store's, or [`OF_TENANT`] and the tenant's name.
    pub serial: String,
    /// Start of its validity.
    pub not_before: OffsetDateTime,
    /// End of its validity.
    pub not_after: OffsetDateTime,
}

impl Seen {
    /// Whether it is valid now.
    pub fn is_valid(&self) -> bool {
        (self.not_before..=self.not_after).contains(&OffsetDateTime::now_utc())
    }
}

/// Reads serial number and validity of a certificate.
///
/// # Errors
/// If it is none.
pub fn inspect(certificate: &CertificateDer<'_>) -> Result<Seen> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| anyhow!("not an X.509 certificate: {error}"))?;
    let serial: String = parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    let names = parsed.subject_alternative_name().ok().flatten();
    let is_ours = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(SERVER_NAME));
    let of_store = names.is_some_and(|names| names.value.general_names.iter().any(is_ours));
    let mut tenants = parsed.subject().iter_organization();
    let serial = match (of_store, tenants.next()) {
        (true, _) => format!("{OF_STORE}{serial}"),
        (false, Some(tenant)) => {
            let tenant = tenant.as_str().map_err(|_| anyhow!("its organization is not text"))?;
            format!("{OF_TENANT}{tenant}:{serial}")
        }
        (false, None) => serial,
    };
    Ok(Seen {
        serial,
        not_before: parsed.validity().not_before.to_datetime(),
        not_after: parsed.validity().not_after.to_datetime(),
    })
}

/// As people read it: `2026-11-20`.
pub fn date(time: OffsetDateTime) -> String {
    time.date().to_string()
}

fn directory(state: &Path) -> PathBuf {
    state.join("credentials")
}

fn certificate(text: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|error| anyhow!("not a certificate in PEM: {error}"))
}

fn pem(tag: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), config)
}

fn read_if_there(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn warn_if_others_can_read(path: &Path, metadata: &std::fs::Metadata) {
    use std::os::unix::fs::PermissionsExt as _;
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            "other users can read the credential {path}, which gives full access to the store: chmod 600 {path}",
            path = path.display()
        );
    }
}

// Also found from where the fuzz targets include this file.
#[cfg(test)]
#[path = "credential/tests.rs"]
pub mod tests;
