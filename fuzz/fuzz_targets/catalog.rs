//! Objects beside the volumes' logs: descriptions of volumes, leases, seals, and the names of
//! numbered objects. No bytes cause a panic. An accepted object encodes to something with the same
//! meaning.
//!
//! Input: the kind, then the object.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::store::catalog::{self, parse_number};
use longhaul_core::store::lease::{self, Lease};
use longhaul_core::store::sealed;
use longhaul_core::wire::link::StoreId;
use longhaul_fuzz::{Input, seeds, world};

fn make_seeds() -> Vec<Vec<u8>> {
    let with = |which: u8, object: &[u8]| [&[which], object].concat();
    let held = Lease::Held {
        store: StoreId(1),
        incarnation: 2,
        addresses: vec!["store.example:7777".into()],
    };
    vec![
        with(0, &catalog::encode_spec(&world::spec())),
        with(1, &held.encode()),
        with(1, &Lease::Deleted.encode()),
        with(2, lease::key(world::VOLUME, 7).as_bytes()),
        with(3, &sealed_object()),
    ]
}

const SEALED: &str = "tenants/acme/0000000000000001";

fn sealed_object() -> Vec<u8> {
    let content = [Bytes::from_static(b"{\"version\":1}\n")];
    [&content[0][..], &sealed::seal(SEALED, &content)].concat()
}

fuzz_target!(init: seeds("catalog", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => {
            let key = catalog::name_key(&world::spec().name);
            if let Ok(spec) = catalog::decode_spec(&key, input.0) {
                assert_eq!(catalog::decode_spec(&key, &catalog::encode_spec(&spec)), Ok(spec));
            }
        }
        1 => {
            if let Ok(lease) = Lease::decode("key", input.0) {
                assert_eq!(Lease::decode("key", &lease.encode()), Ok(lease));
            }
        }
        3 => {
            let object = Bytes::copy_from_slice(input.0);
            if let Ok(content) = sealed::open(SEALED, &object) {
                let line = sealed::seal(SEALED, std::slice::from_ref(&content));
                assert_eq!([content, line].concat(), input.0);
                assert!(sealed::open("tenants/acme/0000000000000002", &object).is_err());
            }
        }
        _ => {
            let Ok(key) = std::str::from_utf8(input.0) else { return };
            let prefix = lease::prefix(world::VOLUME);
            if let Some(number) = parse_number(&prefix, key) {
                assert_eq!(lease::key(world::VOLUME, number), key);
            }
        }
    }
});
