//! The content of certificates, and their form in files.

use anyhow::{Result, anyhow};
use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;

/// The name in every store's certificate.
pub const SERVER_NAME: &str = "longhaul-store";
/// Beginning of the serial number, as [`inspect`] gives it, of a certificate of a store.
pub const OF_STORE: &str = "store:";
/// Beginning of that of a tenant's certificate; the tenant's name and a colon follow.
pub const OF_TENANT: &str = "tenant:";

/// The tenant whose certificate has this serial number, as [`inspect`] gives it, if it is a
/// tenant's.
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
pub(super) fn key_name(info: &[u8]) -> String {
    digest(&SHA256, info).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The content of a certificate.
#[derive(Debug)]
pub struct Seen {
    /// Serial number in hexadecimal, after [`OF_STORE`] if it is a store's, or [`OF_TENANT`] and
    /// the tenant's name.
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

pub(super) fn certificate(text: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|error| anyhow!("not a certificate in PEM: {error}"))
}

pub(super) fn certificate_of(der: &[u8]) -> Result<CertificateDer<'static>> {
    let certificate = CertificateDer::from(der.to_vec());
    inspect(&certificate)?;
    Ok(certificate)
}

pub(super) fn pem(tag: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), config)
}
