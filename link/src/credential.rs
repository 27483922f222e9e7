//! Who may talk to a store: its CA, its certificate, and the credentials it hands out.
//!
//! `STATE/credentials/` of a store holds
//!
//! | file | content |
//! |---|---|
//! | `ca.pem` | certificate and key of the CA, made once: hosts pin the certificate |
//! | `store.pem` | certificate and key of the store, shown to hosts and to other stores, renewed when it has served half its time |
//! | `issued.json` | the certificates that are accepted, with what each is good for, and those that were withdrawn |
//! | `admin.toml` | the first credential, good for everything |
//!
//! Each file is replaced as a whole, and a certificate lies in one file with its key, so that a crash
//! cannot leave halves. The order of writes makes `issued.json` the point at which a credential
//! becomes valid; a first start that was interrupted before it starts over.
//!
//! The server is known by its CA and the fixed name [`SERVER_NAME`], not by its address: a store may
//! move, and a host may reach it through a relay. A client certificate of that name is another store's.
//! Every client certificate is in the list of those accepted, stores' like all others.
//!
//! A client certificate is a tenant's if its subject has an organization, which is the tenant's name. Its serial number is
//! accepted together with that name and in no other form.
//!
//! - `file`: credential files; `authority`: what the CA signs; `grant`: roles and patterns; `issued`: the list;
//!   `installation`: what a store keeps, and how that changes; `join`: how another store comes to have it.

// Also found from where the fuzz targets include this file.
#[path = "credential/authority.rs"]
mod authority;
#[path = "credential/file.rs"]
mod file;
#[path = "credential/grant.rs"]
mod grant;
#[path = "credential/installation.rs"]
mod installation;
#[path = "credential/issued.rs"]
pub mod issued;
#[path = "credential/join.rs"]
pub mod join;

pub use file::{Credential, set_certificate, set_stores, unpack};
pub use grant::{ALL, Grant, Kind, Reach, Role};
pub use installation::{
    Own, ServerIdentity, Wanted, accept, accepted, issue, prepare, renew, revoke, revoke_store,
    rotate,
};
pub use issued::{Accepted, Issued, Stamp};
pub use join::{Joining, Signed, answer, invite};

use anyhow::{Context as _, Result, anyhow};
use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
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

/// Names the public key of a certificate: SHA-256 of its subject's public key info, in hexadecimal.
///
/// # Errors
/// If it is none.
pub fn key_id(certificate: &CertificateDer<'_>) -> Result<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| anyhow!("not an X.509 certificate: {error}"))?;
    Ok(key_name(parsed.public_key().raw))
}

/// The same of a subject's public key info, in DER.
fn key_name(info: &[u8]) -> String {
    digest(&SHA256, info).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
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

fn certificate_of(der: &[u8]) -> Result<CertificateDer<'static>> {
    let certificate = CertificateDer::from(der.to_vec());
    inspect(&certificate)?;
    Ok(certificate)
}

fn pem(tag: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), config)
}

fn read_if_there(path: &Path) -> Result<Option<String>> {
    match longhaul_base::files::read_to_string(path) {
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

// Also found from where the fuzz targets include this file.
#[cfg(test)]
#[path = "credential/tests.rs"]
pub mod tests;
