//! Credential files: what a host or an operator needs to talk to a store.

use super::authority::Pair;
use super::seen::{certificate, certificate_of, date, inspect, pem, tenant_of};
use anyhow::{Context as _, Result, anyhow, bail};
use longhaul_base::files;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// From here on a credential's approaching end is worth a warning.
const WARN_DAYS: i64 = 30;
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The facts that a host or an administrator needs for a link to a store.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Addresses of the store, HOST:PORT.
    pub stores: Vec<String>,
    /// The only trusted CA.
    pub ca: CertificateDer<'static>,
    /// Our certificate.
    pub certificate: CertificateDer<'static>,
    /// Its serial number, as [`inspect`] gives it.
    pub serial: String,
    /// When it ends.
    pub not_after: OffsetDateTime,
    /// The file of the credential, if it comes from one.
    pub path: Option<PathBuf>,
    key: Arc<PrivatePkcs8KeyDer<'static>>,
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
    /// If the file is unreadable, not a credential, or expired; each error says what to do.
    pub fn load(path: &Path) -> Result<Credential> {
        let credential = Self::read(path)?;
        let now = OffsetDateTime::now_utc();
        let (shown, until) = (path.display(), date(credential.not_after));
        if let Some(tenant) = tenant_of(&credential.serial).filter(|_| credential.not_after <= now)
        {
            bail!(
                "the credential {shown} expired on {until}: get a new one, which `longhaul \
                 credential issue --tenant {tenant}` makes where the store runs"
            );
        }
        if credential.not_after <= now {
            bail!(
                "the credential {shown} expired on {until}: run `longhaul credential rotate \
                 --state STATE` where the store runs and copy its new admin.toml here"
            );
        }
        if credential.not_after - now < Duration::days(WARN_DAYS) {
            tracing::warn!(
                "the credential {shown} expires on {until}: renew it with `longhaul credential \
                 renew`"
            );
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
                "the credential file {shown} does not exist: a store writes \
                 STATE/credentials/admin.toml at its first start; copy that file here"
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
        let mut credential = Self::parse(&text).with_context(|| {
            format!("{shown} is not a credential file: give the admin.toml that the store wrote")
        })?;
        credential.path = Some(path.to_owned());
        Ok(credential)
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
            path: None,
            key: PrivatePkcs8KeyDer::from_pem_slice(file.key.as_bytes())
                .map_err(|error| anyhow!("`key` is not a PKCS#8 key in PEM: {error}"))?
                .into(),
        })
    }

    /// Makes a credential of a certificate with its key, without addresses.
    ///
    /// # Errors
    /// If the certificate is invalid.
    pub(super) fn of(ca: &CertificateDer<'static>, pair: Pair) -> Result<Credential> {
        let seen = inspect(&pair.certificate)?;
        Ok(Credential {
            stores: Vec::new(),
            ca: ca.clone(),
            serial: seen.serial,
            not_after: seen.not_after,
            certificate: pair.certificate,
            path: None,
            key: pair.key.into(),
        })
    }

    /// Asks for a certificate of our key (PKCS #10, DER).
    ///
    /// # Errors
    /// If the key is none to sign with.
    pub fn request(&self) -> Result<Vec<u8>> {
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&self.key, &PKCS_ECDSA_P256_SHA256)?;
        Ok(CertificateParams::default().serialize_request(&key)?.der().to_vec())
    }

    /// Our private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
}

/// Writes the content of a credential file into files of a directory, for other programs: `ca.pem`,
/// `certificate.pem` and `key.pem`.
///
/// # Errors
/// If it is no credential, or this process cannot write the directory.
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

/// Writes the file of a credential; `what` says what its holder may do.
pub(super) fn write(
    path: &Path,
    stores: &[String],
    ca: &CertificateDer<'_>,
    client: &Pair,
    what: &str,
) -> Result<()> {
    files::replace(path, text(stores, ca, client, what)?.as_bytes(), 0o600)
}

/// The content of such a file.
pub(super) fn text(
    stores: &[String],
    ca: &CertificateDer<'_>,
    client: &Pair,
    what: &str,
) -> Result<String> {
    let file = CredentialFile {
        version: 1,
        stores: stores.to_vec(),
        not_after: inspect(&client.certificate)?.not_after.format(&Rfc3339)?,
        ca: pem("CERTIFICATE", ca),
        certificate: pem("CERTIFICATE", &client.certificate),
        key: pem("PRIVATE KEY", client.key.secret_pkcs8_der()),
    };
    let head = format!("# Whoever has this file may {what}: keep it secret.\n");
    Ok(head + &toml::to_string_pretty(&file)?)
}

/// Writes other addresses into a credential file. The rest of its content stays, like its mode and
/// the links to it.
///
/// # Errors
/// If it is no credential, or this process cannot write it.
pub fn set_stores(path: &Path, stores: &[String]) -> Result<()> {
    change(path, |file| {
        file.stores = stores.to_vec();
        Ok(())
    })
}

/// Writes another certificate of the same key, in DER, into a credential file.
///
/// # Errors
/// As for [`set_stores`], or if it is no certificate.
pub fn set_certificate(path: &Path, certificate: &[u8]) -> Result<()> {
    let certificate = certificate_of(certificate)?;
    change(path, |file| {
        file.not_after = inspect(&certificate)?.not_after.format(&Rfc3339)?;
        file.certificate = pem("CERTIFICATE", &certificate);
        Ok(())
    })
}

fn change(path: &Path, work: impl FnOnce(&mut CredentialFile) -> Result<()>) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let text =
        files::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut file: CredentialFile = toml::from_str(&text)
        .with_context(|| format!("{} is not a credential file", path.display()))?;
    work(&mut file)?;
    let head = text.split_inclusive('\n').take_while(|line| line.starts_with('#'));
    let text = head.collect::<String>() + &toml::to_string_pretty(&file)?;
    let mode = std::fs::metadata(&path).map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    files::replace(&path, text.as_bytes(), mode)
}

fn warn_if_others_can_read(path: &Path, metadata: &std::fs::Metadata) {
    use std::os::unix::fs::PermissionsExt as _;
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            "other users can read the credential {path}, which gives full access to the store: \
             chmod 600 {path}",
            path = path.display()
        );
    }
}
