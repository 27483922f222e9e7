//! Credential files and invitations: whatever the text, an error or what it says, no panic.
#![no_main]
#![allow(dead_code, unused_imports)]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::seeds;

// The node crate is a binary: its files are taken as they are.
#[path = "../../node/src/credential.rs"]
mod credential;
#[path = "../../node/src/files.rs"]
mod files;

/// Nothing here is random: a run can be repeated.
mod random {
    pub fn identity() -> anyhow::Result<u128> {
        Ok(7)
    }
}

// Of a CA that never was used for anything.
const CERTIFICATE: &str = include_str!("../certificate.pem");
const KEY: &str = include_str!("../key.pem");

fn make_seeds() -> Vec<Vec<u8>> {
    let file = |certificate: &str, key: &str| {
        format!(
            "version = 1\nstores = [\"store:7777\"]\nnot_after = \"2031-01-01T00:00:00Z\"\n\
             ca = '''{certificate}'''\ncertificate = '''{certificate}'''\nkey = '''{key}'''\n"
        )
    };
    let invitation = format!(
        "version = 1\nca = '''{CERTIFICATE}'''\nca_key = '''{KEY}'''\ngeneration = 2\n\
         [accepted]\n\"01ab\" = \"2031-01-01T00:00:00Z\"\n"
    );
    vec![
        file(CERTIFICATE, KEY).into_bytes(),
        file(&CERTIFICATE[..200], KEY).into_bytes(),
        b"version = 99\nstores = []\n".to_vec(),
        CERTIFICATE.as_bytes().to_vec(),
        invitation.into_bytes(),
    ]
}

fuzz_target!(init: seeds("credential", make_seeds), |data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match credential::Credential::parse(text) {
        Ok(credential) => drop(credential.key()),
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
    if let Err(error) = credential::Invited::parse(text) {
        assert!(!format!("{error:#}").is_empty());
    }
    // A certificate in DER, as it comes over the link.
    let _ = credential::inspect(&rustls_pki_types::CertificateDer::from(data));
});
