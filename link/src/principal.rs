//! The owner of a verified certificate.

use crate::credential::{self, OF_STORE, tenant_of};
use anyhow::{Result, anyhow};
use longhaul_base::text::bounded;
use longhaul_core::wire::link::{KeyId, Principal};
use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;

/// Reads it from a certificate. The caller has verified the certificate, or does so before it does
/// anything for the owner.
///
/// # Errors
/// If it is no certificate of this installation.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Principal> {
    let serial = credential::inspect(certificate)?.serial;
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| anyhow!("not an X.509 certificate: {error}"))?;
    let mut key = KeyId::NONE;
    key.0.copy_from_slice(digest(&SHA256, parsed.public_key().raw).as_ref());
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Ok(Principal {
        key,
        tenant: tenant_of(&serial).map(str::to_owned),
        store: serial.starts_with(OF_STORE),
        name: bounded(name.unwrap_or_default()),
        serial,
    })
}

/// The share of a store that a principal takes. All credentials of a tenant have one share; of the
/// installation's own, each credential has one.
pub fn party(principal: &Principal) -> String {
    match &principal.tenant {
        Some(tenant) => format!("tenant:{tenant}"),
        None => principal.serial.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_by_its_public_half() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("acme.toml");
        credential::prepare(dir.path(), &["127.0.0.1:1".to_owned()], "").unwrap();
        let admin =
            credential::Credential::load(&dir.path().join("credentials/admin.toml")).unwrap();
        let (tenant, role) = (Some("acme"), credential::Role::Admin);
        let wanted = credential::Wanted { name: "one", tenant, role, volumes: vec!["*".into()] };
        credential::issue(dir.path(), &wanted, &file).unwrap();
        let tenant = credential::Credential::load(&file).unwrap();
        let (first, second) = (of(&admin.certificate).unwrap(), of(&tenant.certificate).unwrap());
        assert_ne!(first.key, second.key);
        assert_eq!(of(&admin.certificate).unwrap(), first);
        // openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum says the same.
        let pair = rcgen::KeyPair::try_from(admin.key().secret_der()).unwrap();
        let spki = rcgen::PublicKeyData::subject_public_key_info(&pair);
        assert_eq!(first.key.0, digest(&SHA256, &spki).as_ref());
        assert_eq!((first.tenant.as_deref(), second.tenant.as_deref()), (None, Some("acme")));
        assert!(!first.store && !second.store && !first.name.is_empty());
    }
}
