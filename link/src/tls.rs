//! TLS 1.3 of the link, for any transport: each side verifies the identity of the other.
//!
//! The client checks that the CA of its credential signed the store's certificate. The store checks
//! the same of the client's certificate, and that it is not withdrawn. This code does not check a
//! resumed session. A transport whose store keeps sessions has to check the certificate of each, as
//! [`super::quic`] does.

use super::sessions::{Remembered, TICKETS};
use crate::credential::{self, Credential, Issued, Own, ServerIdentity};
use anyhow::{Context as _, Result};
use rustls::client::{Resumption, TicketRequest};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, StoresServerSessions, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::{Arc, Mutex, PoisonError};

fn names(protocols: &[&[u8]]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.to_vec()).collect()
}

/// The host's side, for these application protocols.
///
/// # Errors
/// If key and certificate do not make a credential.
pub(super) fn client(credential: &Credential, protocols: &[&[u8]]) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(credential.ca.clone()).context("the credential's CA is not usable")?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![credential.certificate.clone()], credential.key())
        .context("key and certificate of the credential do not belong together")?;
    tls.alpn_protocols = names(protocols);
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

/// As [`client`], for a host that remembers its sessions and sends data with them.
pub(super) fn remembering(
    client: &rustls::ClientConfig,
    with: Arc<Remembered>,
) -> rustls::ClientConfig {
    let mut tls = client.clone();
    tls.resumption = Resumption::store(with);
    tls.enable_early_data = true;
    let (new_session_count, resumption_count) = (TICKETS, TICKETS);
    tls.send_ticket_request = Some(TicketRequest { new_session_count, resumption_count });
    tls
}

/// As [`server`], for a store that gives sessions to who asks for them, takes each once, and data
/// with it.
pub(super) fn keeping(
    server: &rustls::ServerConfig,
    sessions: Arc<dyn StoresServerSessions>,
) -> rustls::ServerConfig {
    let mut tls = server.clone();
    tls.session_storage = sessions;
    tls.max_tls13_tickets = usize::from(TICKETS);
    // QUIC knows all or nothing, RFC 9001 §4.6.1.
    tls.max_early_data_size = u32::MAX;
    tls
}

/// The store's side, for these application protocols.
///
/// # Errors
/// If CA or certificate are not usable.
pub(super) fn server(
    identity: &ServerIdentity,
    issued: Arc<Issued>,
    protocols: &[&[u8]],
) -> Result<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.ca.clone()).context("the store's CA is not usable")?;
    let inner = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .context("the store's CA is not usable")?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(Verifier { inner, issued }))
        .with_cert_resolver(Arc::new(Shown::new(identity.own.clone())?));
    tls.alpn_protocols = names(protocols);
    tls.send_tls13_tickets = 0;
    tls.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(tls)
}

/// Shows the store's certificate, as it is at the time.
#[derive(Debug)]
struct Shown {
    own: Arc<Own>,
    /// The last shown certificate, ready to sign.
    ready: Mutex<(CertificateDer<'static>, Arc<CertifiedKey>)>,
}

impl Shown {
    fn new(own: Arc<Own>) -> Result<Shown> {
        let now = own.now();
        let ready = Mutex::new((now.certificate.clone(), ready(&now)?));
        Ok(Shown { own, ready })
    }
}

fn ready(credential: &Credential) -> Result<Arc<CertifiedKey>> {
    let provider = rustls::crypto::ring::default_provider();
    let chain = vec![credential.certificate.clone()];
    let key = CertifiedKey::from_der(chain, credential.key(), &provider);
    Ok(Arc::new(key.context("the store's certificate is not usable")?))
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = self.own.now();
        let mut shown = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.0 != now.certificate {
            match ready(&now) {
                Ok(key) => *shown = (now.certificate.clone(), key),
                Err(error) => tracing::error!("{error:#}"),
            }
        }
        Some(shown.1.clone())
    }
}

/// Accepts certificates of the installation's CA that are not withdrawn.
#[derive(Debug)]
struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
    issued: Arc<Issued>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let seen = credential::inspect(end_entity).map_err(|_| {
            rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding)
        })?;
        if self.issued.accepts(&seen.serial) {
            Ok(verified)
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
