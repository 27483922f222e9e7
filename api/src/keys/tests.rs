//! Tests of opening a list of keys, of a store that changes one, and of the bytes of its pieces.

use super::given::{key_file, passphrase};
use super::slots::{SlotKind, hex};
use super::*;
use longhaul_core::block::VolumeId;
use longhaul_core::pack::DATA_KEY_BYTES;
use std::os::unix::fs::PermissionsExt as _;

fn file(dir: &Path, name: &str) -> Opener {
    let path = dir.join(name);
    create(&path).unwrap();
    assert!(create(&path).is_err(), "it exists");
    key_file(&path).unwrap()
}

fn text(text: &str) -> Opener {
    Opener::text("a test", Zeroizing::new(text.as_bytes().to_vec()))
}

fn owner(name: &str, id: u128) -> Owner {
    Owner { name: name.into(), volume: VolumeId(id) }
}

fn unlocked(parents: &[u128]) -> Unlocked {
    let key = |number: u32| (number, DataKey::new([number as u8; DATA_KEY_BYTES]));
    let parents = parents.iter().map(|id| VolumeId(*id)).collect();
    Unlocked {
        keys: [key(1), key(2)].into(),
        parents,
        secret: Secret::draw().unwrap(),
        retires: false,
    }
}

fn list(owner: &Owner, unlocked: &Unlocked, openers: &[&Opener]) -> KeyList {
    let slots = (1..).zip(openers);
    let slots = slots.map(|(number, opener)| Slot::wrap(number, &unlocked.secret, opener).unwrap());
    KeyList::seal(owner, unlocked, slots.collect()).unwrap()
}

fn why<T: std::fmt::Debug>(result: Result<T>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn keys_open_with_any_of_their_slots_and_with_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (file(dir.path(), "mine"), file(dir.path(), "other"));
    let (recovery, written) = Opener::draw_recovery().unwrap();
    let secret = text("correct horse battery");
    let (owner, unlocked) = (owner("db", 7), unlocked(&[]));
    let data = list(&owner, &unlocked, &[&mine, &secret, &recovery]).encode().unwrap();
    assert!(!data.windows(8).any(|window| window == [1; 8]));
    let open = |openers: &[Opener]| super::open(&owner, &data, openers, None);
    let typed = text(&written.to_lowercase().replace('-', " "));
    for opener in [&mine, &secret, &recovery, &typed] {
        let openers = [other.clone(), opener.clone()];
        let (keys, opened) = open(&openers).unwrap().unwrap();
        assert_eq!((keys.newest(), &opened), (2, &unlocked.secret));
    }
    let list = KeyList::parse(&data).unwrap();
    assert_eq!(list.unlock(&owner, &[], Some(&unlocked.secret)).unwrap().keys, unlocked.keys);
    let kinds: Vec<&str> = list.slots.iter().map(|slot| slot.kind.name()).collect();
    assert_eq!(kinds, ["key-file", "passphrase", "recovery-key"]);
    let fingerprint = mine.fingerprint().unwrap();
    let mut mistyped = written.to_string();
    let last = if mistyped.pop() == Some('7') { '8' } else { '7' };
    mistyped.push(last);
    for openers in [
        &[][..],
        std::slice::from_ref(&other),
        &[text("correct horse batterz")],
        &[text(&mistyped)],
    ] {
        let why = why(open(openers));
        for part in ["--key-file", "--passphrase-file", &fingerprint] {
            assert!(why.contains(part), "{why}");
        }
    }
    assert!(why(open(&[])).contains("none was given"));
    assert!(why(open(&[other])).contains("other is"));
    assert!(super::open(&owner, &[], &[], None).unwrap().is_none());
}

#[test]
fn a_store_can_change_nothing_in_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let mine = file(dir.path(), "mine");
    let owner = owner("acme/db", 7);
    let unlocked = unlocked(&[9, 5]);
    let data = list(&owner, &unlocked, &[&mine, &text("a passphrase")]).encode().unwrap();
    let open = |owner: &Owner, data: &[u8]| {
        super::open(owner, data, std::slice::from_ref(&mine), None).map(|opened| opened.is_some())
    };
    assert!(open(&owner, &data).unwrap());
    let (keys, _) = super::open(&owner, &data, std::slice::from_ref(&mine), None).unwrap().unwrap();
    assert_eq!(keys.parents(), [VolumeId(9), VolumeId(5)]);
    // Another volume's, or the same under another name.
    assert!(
        why(open(&super::Owner { volume: VolumeId(8), ..owner.clone() }, &data)).contains("mixes")
    );
    let renamed = why(open(&super::Owner { name: "db".into(), ..owner.clone() }, &data));
    assert!(
        renamed.contains("keys of volume acme/db") && renamed.contains("key rebind"),
        "{renamed}"
    );
    // Any change of any value of it.
    let value: serde_json::Value = serde_json::from_slice(&data).unwrap();
    let mut changes: Vec<serde_json::Value> = Vec::new();
    for field in ["name", "volume", "mac"] {
        let mut changed = value.clone();
        let text = changed[field].as_str().unwrap().replace(['d', '0'], "1");
        changed[field] = (text + "1").into();
        changes.push(changed);
    }
    for (list, at) in [("parents", 0), ("parents", 1), ("slots", 1), ("keys", 0), ("keys", 1)] {
        let mut changed = value.clone();
        changed[list].as_array_mut().unwrap().remove(at);
        changes.push(changed);
        let mut changed = value.clone();
        changed[list].as_array_mut().unwrap().swap(0, 1);
        changes.push(changed);
    }
    for (field, number) in [("number", 3), ("argon2id", 2)] {
        let mut changed = value.clone();
        match field {
            "number" => changed["slots"][1]["number"] = number.into(),
            _ => changed["slots"][1][field]["passes"] = number.into(),
        }
        changes.push(changed);
    }
    for changed in changes {
        let data = serde_json::to_vec(&changed).unwrap();
        assert_ne!(data, serde_json::to_vec(&value).unwrap());
        assert!(open(&owner, &data).is_err(), "{changed}");
    }
}

#[test]
fn what_a_store_asks_of_a_passphrase_is_bounded() {
    let owner = owner("db", 7);
    let data = list(&owner, &unlocked(&[]), &[&text("a passphrase")]).encode().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&data).unwrap();
    let costs = [
        (2 << 20, 1, 1),
        (u32::MAX, 1, 1),
        (1 << 20, 5, 1),
        (1 << 10, 65, 1),
        (64 << 10, 0, 4),
        (64 << 10, 3, 17),
        (64 << 10, 3, 0),
        (16, 3, 4),
    ];
    for (memory_kib, passes, lanes) in costs {
        let mut changed = value.clone();
        changed["slots"][0]["argon2id"] =
            serde_json::json!({ "memory_kib": memory_kib, "passes": passes, "lanes": lanes });
        let data = serde_json::to_vec(&changed).unwrap();
        let why = why(KeyList::parse(&data));
        assert!(why.contains("more than any longhaul asks for"), "{why}");
    }
    // Nor does it give more of anything than there can be.
    for (field, count) in [("slots", 9), ("keys", 1001), ("parents", 1001)] {
        let mut changed = value.clone();
        changed["parents"] = serde_json::json!(["00000000000000000000000000000001"]);
        let one = changed[field][0].clone();
        let many = (1..=count).map(|number| {
            let mut one = one.clone();
            if field != "parents" {
                one["number"] = number.into();
            }
            one
        });
        changed[field] = many.collect();
        let data = serde_json::to_vec(&changed).unwrap();
        assert!(KeyList::parse(&data).is_err(), "{count} {field}");
    }
    for data in [&b"{"[..], b"[]", b"{\"version\":1}", b"{\"version\":2}", &[b'['; 200 << 10]] {
        assert!(KeyList::parse(data).is_err());
    }
}

/// RFC 9106 §5.3 uses associated data, which this code does not. These bytes come from the
/// reference implementation without it, with the bytes of the pieces around it.
#[test]
fn golden_recovery_key() {
    let all: Vec<Opener> = ["", "0000-0000-0000-0000-0000-0000-0000-0000-0000"].map(text).into();
    let secret = Secret::draw().unwrap();
    // Too short, and not a recovery key: its checksum is not zero.
    assert!(Slot::wrap(1, &secret, &all[0]).is_err());
    assert_eq!(Slot::wrap(1, &secret, &all[1]).unwrap().kind, SlotKind::Passphrase);
    let (_, written) = Opener::draw_recovery().unwrap();
    assert_eq!(written.len(), 36 + 8, "{}", written.len());
    let confused = written.replace('0', "o").replace('1', "l");
    assert_eq!(Slot::wrap(1, &secret, &text(&confused)).unwrap().kind, SlotKind::RecoveryKey);
    assert_eq!(hex(&[0, 0xaf]), "00af");
}

#[test]
fn each_mistake_with_a_file_has_its_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let message = || why(key_file(&path));
    assert!(message().contains("cannot read"));
    create(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(message().contains("chmod 600"));
    for text in ["", "00", "zz", "é"] {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(message().contains("64 hexadecimal digits"), "{}", message());
    }
    let secret = Secret::draw().unwrap();
    for (text, good) in [("1234567\n", false), ("12345678\r\nand more", true), ("\n", false)] {
        std::fs::write(&path, text).unwrap();
        let opener = passphrase(&path, true).unwrap();
        assert_eq!(Slot::wrap(1, &secret, &opener).is_ok(), good, "{text:?}");
    }
    let long = Slot::wrap(1, &secret, &text(&"x".repeat(1025)));
    assert!(why(long).contains("8 to 1024 bytes"));
}
