//! Credential files, tokens, lists of accepted certificates and requests for certificates. No bytes
//! cause a panic. A merge of two lists accepts nothing that either has withdrawn.
#![no_main]
#![allow(dead_code, unused_imports)]

// The crate that has what is here in place of it.
extern crate self as longhaul_base;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::seeds;

// The target includes these files as they are, so that it need not build what their crate depends
// on.
#[path = "../../link/src/credential.rs"]
mod credential;
#[path = "../../base/src/files.rs"]
mod files;

/// Fixed values in place of random ones, so that runs are repeatable.
mod random {
    pub fn identity() -> anyhow::Result<u128> {
        Ok(7)
    }
}

// The certificate of a CA without any other use.
const CERTIFICATE: &str = include_str!("../certificate.pem");
const KEY: &str = include_str!("../key.pem");
// A request for a certificate with that key: signatures are random.
const REQUEST: &[u8] = include_bytes!("../request.der");

fn make_seeds() -> Vec<Vec<u8>> {
    let file = |certificate: &str, key: &str| {
        format!(
            "version = 1\nstores = [\"store:7777\"]\nnot_after = \"2031-01-01T00:00:00Z\"\n\
             ca = '''{certificate}'''\ncertificate = '''{certificate}'''\nkey = '''{key}'''\n"
        )
    };
    let grant = |name: &str, kind: &str| {
        format!(
            "{{\"name\":\"{name}\",\"kind\":\"{kind}\",\"role\":\"write\",\"volumes\":[\"db*\",\"acme/*\"],\"key\":\"00\",\"store\":\"1\",\"issued\":\"2026-01-01T00:00:00Z\",\"not_after\":\"2099-01-01T00:00:00Z\"}}"
        )
    };
    let list = format!(
        "{{\"version\":1,\"stores\":[\"store:7777\"],\"list\":{{\"generation\":2,\"accepted\":{{\"01ab\":{},\"store:02\":{}}},\
         \"withdrawn\":{{\"tenant:acme:03\":\"2099-01-01T00:00:00Z\"}},\"withdrawn_keys\":{{}}}}}}",
        grant("host", "host"),
        grant("store-1", "store")
    );
    vec![
        file(CERTIFICATE, KEY).into_bytes(),
        file(&CERTIFICATE[..200], KEY).into_bytes(),
        b"version = 99\nstores = []\n".to_vec(),
        CERTIFICATE.as_bytes().to_vec(),
        list.into_bytes(),
        REQUEST.to_vec(),
        b"a*b\na-b".to_vec(),
    ]
}

fuzz_target!(init: seeds("credential", make_seeds), |data: &[u8]| {
    // As they come over the link: a certificate, and a request for one, in DER.
    let _ = credential::inspect(&rustls_pki_types::CertificateDer::from(data));
    let _ = credential::join::parse_request(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    match credential::Credential::parse(text) {
        Ok(credential) => drop(credential.key()),
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
    let path = std::path::Path::new("issued.json");
    if let Ok(file) = credential::issued::IssuedFile::parse(text, path) {
        let mut less = file.list.clone();
        let half = less.accepted.len() / 2;
        let gone: Vec<String> = less.accepted.keys().take(half).cloned().collect();
        less.withdraw(|serial, _| gone.iter().any(|other| other == serial));
        for (one, other) in [(&file.list, &less), (&less, &file.list)] {
            let merged = one.merged(other);
            assert!(!merged.accepted.keys().any(|serial| merged.withdrawn.contains_key(serial)));
            assert!(merged.merged(one).says(&merged) && merged.merged(other).says(&merged));
            for (serial, grant) in &merged.accepted {
                let reach = grant.reach(credential::tenant_of(serial));
                assert!(!reach.is_everything() || reach.has("any") && reach.has("acme/any"));
            }
        }
    }
    if let Some((pattern, name)) = text.split_once('\n') {
        let grant = credential::Grant {
            name: String::new(),
            kind: credential::Kind::Host,
            role: credential::Role::Read,
            volumes: vec![pattern.to_owned()],
            key: String::new(),
            store: None,
            issued: String::new(),
            not_after: String::new(),
        };
        let reach = grant.reach(Some("acme"));
        assert!(!reach.has(name) || name.starts_with("acme/"));
        let _ = reach.covers(name);
    }
});
