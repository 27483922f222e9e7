//! The CA of an installation, and what it signs.

use super::directory::read_if_there;
use super::seen::{SERVER_NAME, certificate, pem};
use anyhow::{Context as _, Result};
use longhaul_base::files;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::path::Path;
use time::{Duration, OffsetDateTime};

const CA_DAYS: i64 = 20 * 365;
/// The validity of a store's certificate; the store renews it when half of that is over.
pub(super) const STORE_LIFE: Duration = Duration::days(90);
/// How long that of a host or an operator is.
pub(super) const CLIENT_LIFE: Duration = Duration::days(5 * 365);
/// Clocks of two machines differ. So the validity of a certificate begins so long before its
/// creation.
pub(super) const CLOCKS: Duration = Duration::days(1);

/// A certificate with its key, in one PEM file.
pub(super) struct Pair {
    pub certificate: CertificateDer<'static>,
    pub key: PrivatePkcs8KeyDer<'static>,
}

impl Pair {
    pub fn read(path: &Path) -> Result<Option<Pair>> {
        let Some(text) = read_if_there(path)? else { return Ok(None) };
        let context = || {
            format!(
                "{} is damaged: restore it from a backup, or remove all of its directory to start \
                 over with new credentials",
                path.display()
            )
        };
        Ok(Some(Pair {
            certificate: certificate(&text).with_context(context)?,
            key: PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).with_context(context)?,
        }))
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = pem("CERTIFICATE", &self.certificate)
            + &pem("PRIVATE KEY", self.key.secret_pkcs8_der());
        files::replace(path, text.as_bytes(), 0o600)
    }
}

pub(super) fn new_ca(now: OffsetDateTime) -> Result<Pair> {
    // Named at random: a client can then tell another installation's CA from a forged certificate.
    let name = format!("longhaul {:032x}", longhaul_base::random::identity()?);
    let key = KeyPair::generate()?;
    let mut params = params(&name, now, Duration::days(CA_DAYS))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.der().clone(), key: key.serialize_der().into() })
}

/// The owner of a certificate.
#[derive(Clone, Copy)]
pub(super) enum Leaf<'a> {
    /// A store's, to hosts and to other stores.
    Store,
    /// A host's or an operator's: the installation's, or a tenant's.
    Client { name: &'a str, tenant: Option<&'a str> },
}

pub(super) fn new_leaf(
    ca: &Pair,
    now: OffsetDateTime,
    life: Duration,
    of: Leaf<'_>,
) -> Result<Pair> {
    let key = KeyPair::generate()?;
    let certificate = leaf(now, life, of)?.signed_by(&key, &issuer(ca)?)?;
    Ok(Pair { certificate: certificate.der().clone(), key: key.serialize_der().into() })
}

/// Signs a certificate for a key that somebody else has.
pub(super) fn sign(
    ca: &Pair,
    now: OffsetDateTime,
    life: Duration,
    of: Leaf<'_>,
    key: &impl rcgen::PublicKeyData,
) -> Result<CertificateDer<'static>> {
    Ok(leaf(now, life, of)?.signed_by(key, &issuer(ca)?)?.der().clone())
}

fn issuer(ca: &Pair) -> Result<Issuer<'static, KeyPair>> {
    let signer = KeyPair::from_pkcs8_der_and_sign_algo(&ca.key, &rcgen::PKCS_ECDSA_P256_SHA256)?;
    Ok(Issuer::from_ca_cert_der(&ca.certificate, signer)?)
}

fn leaf(now: OffsetDateTime, life: Duration, of: Leaf<'_>) -> Result<CertificateParams> {
    let (name, usages) = match of {
        // To hosts it is a server, to other stores a client.
        Leaf::Store => (
            SERVER_NAME,
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        ),
        Leaf::Client { name, .. } => (name, vec![ExtendedKeyUsagePurpose::ClientAuth]),
    };
    let mut params = params(name, now, life)?;
    match of {
        Leaf::Store => {
            params.subject_alt_names = vec![rcgen::SanType::DnsName(SERVER_NAME.try_into()?)];
        }
        Leaf::Client { tenant: Some(tenant), .. } => {
            params.distinguished_name.push(DnType::OrganizationName, tenant);
        }
        Leaf::Client { tenant: None, .. } => {}
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    Ok(params)
}

fn params(name: &str, now: OffsetDateTime, life: Duration) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.not_before = now - CLOCKS;
    params.not_after = now + life;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // Positive and without leading zero bytes, as RFC 5280 §4.1.2.2 wants it.
    let mut serial = longhaul_base::random::identity()?.to_be_bytes();
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}
