//! Lists of keys from a store. No bytes cause a panic. The result is an error or a list within its
//! bounds. Only lists that the secret authenticates open.
#![no_main]
#![allow(dead_code, unused_imports)]

// The crate that has what is here in place of it.
extern crate self as longhaul_base;

use libfuzzer_sys::fuzz_target;
use longhaul_core::block::VolumeId;
use longhaul_core::pack::DataKey;
use longhaul_fuzz::seeds;

// The target includes these files as they are, so that it need not build what their crate depends
// on.
#[path = "../../api/src/keys/list.rs"]
mod list;
#[path = "../../api/src/keys/slots.rs"]
mod slots;

/// Fixed values in place of random ones, so that runs are repeatable.
mod random {
    pub fn secret() -> anyhow::Result<[u8; 32]> {
        Ok([7; 32])
    }

    pub fn bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
        Ok([9; N])
    }
}

fn owner() -> list::Owner {
    list::Owner { name: "acme/db".into(), volume: VolumeId(7) }
}

fn openers() -> [slots::Opener; 2] {
    let (recovery, _) = slots::Opener::draw_recovery().expect("nothing is random here");
    [slots::Opener::key("seed", [5; 32]), recovery]
}

fn made(parents: &[u128], count: usize) -> Vec<u8> {
    let secret = slots::Secret::draw().expect("nothing is random here");
    let slot = |(number, opener): (u32, &slots::Opener)| {
        slots::Slot::wrap(number, &secret, opener).expect("it is no passphrase")
    };
    let slots = (1..).zip(&openers()[..count]).map(slot).collect();
    let parents = parents.iter().map(|id| VolumeId(*id)).collect();
    let keys = [(1, DataKey::new([1; 32])), (2, DataKey::new([2; 32]))].into();
    let retires = count > 1;
    let unlocked = list::Unlocked { keys, parents, secret, retires };
    let list = list::KeyList::seal(&owner(), &unlocked, slots).expect("it is small");
    list.encode().expect("it is small")
}

fn make_seeds() -> Vec<Vec<u8>> {
    vec![
        made(&[], 1),
        made(&[9, 5], 2),
        b"{\"version\":1}".to_vec(),
        b"{\"version\":1,\"slots\":[{\"number\":1,\"kind\":\"passphrase\",\"argon2id\":{\"memory_kib\":\
          4294967295,\"passes\":1,\"lanes\":1},\"salt\":\"\",\"wrapped\":\"\"}]}"
            .to_vec(),
    ]
}

fuzz_target!(init: seeds("keys", make_seeds), |data: &[u8]| {
    let list = match list::KeyList::parse(data) {
        Ok(list) => list,
        Err(error) => return assert!(!format!("{error:#}").is_empty()),
    };
    assert!(list.slots.len() <= slots::MAX_SLOTS);
    let again = list.encode().expect("what was read can be written");
    assert_eq!(list::KeyList::parse(&again).ok().as_ref(), Some(&list));
    match list.unlock(&owner(), &openers(), None) {
        Ok(unlocked) => assert_eq!(list.name(), owner().name, "{:?}", unlocked.parents),
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
});
