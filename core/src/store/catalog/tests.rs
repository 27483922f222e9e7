//! Names, descriptions, sizes and keys, whole and damaged.

use super::*;
use crate::wire::link::MAX_NAME_BYTES;

#[test]
fn places_of_snapshots_round_trip() {
    let bytes = encode_place(VolumeId(0xfeed), 17);
    assert_eq!(decode_place("snapshots/1", &bytes), Ok((VolumeId(0xfeed), 17)));
    let text = String::from_utf8(bytes).unwrap();
    for (from, to) in [("\"version\":1", "\"version\":2"), ("feed", "+eed"), ("17", "x")] {
        let error = decode_place("snapshots/1", text.replace(from, to).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("snapshots/1"), "{error}");
    }
}

fn spec() -> VolumeSpec {
    VolumeSpec {
        id: VolumeId(0xfeed),
        name: "db-1.main".into(),
        created_sectors: 80,
        block_bytes: 4096,
        created: 1_700_000_000,
        parents: Vec::new(),
    }
}

#[test]
fn clones_say_where_they_come_from() {
    let parent = |volume, segment| Parent {
        volume: VolumeId(volume),
        segment,
        snapshot: VolumeId(volume + 1),
    };
    let clone = VolumeSpec { parents: vec![parent(7, 20), parent(5, 9)], ..spec() };
    let bytes = encode_spec(&clone);
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.starts_with("{\"version\":1,"), "{text}");
    assert_eq!(decode_spec("volumes/db-1.main", &bytes), Ok(clone.clone()));
    let owners = [1, 9, 10, 20, 21].map(|segment| clone.owner_of(segment).0);
    assert_eq!((owners, clone.begins_after()), ([5, 5, 7, 7, 0xfeed], 20));
    for parents in [vec![parent(7, 9), parent(5, 9)], vec![parent(7, 9); MAX_PARENTS + 1]] {
        let bytes = encode_spec(&VolumeSpec { parents, ..spec() });
        assert!(decode_spec("volumes/db-1.main", &bytes).is_err());
    }
    let whole = (0..MAX_PARENTS as u64).map(|n| parent(n.into(), u64::MAX - n)).collect();
    let longest = VolumeSpec { name: "x".repeat(MAX_NAME_BYTES), parents: whole, ..spec() };
    let bytes = encode_spec(&longest);
    assert_eq!(decode_spec(&name_key(&longest.name), &bytes), Ok(longest));
}

#[test]
fn spec_round_trips_and_keeps_its_form() {
    let bytes = encode_spec(&spec());
    assert_eq!(
        std::str::from_utf8(&bytes).unwrap(),
        "{\"version\":1,\"name\":\"db-1.main\",\"id\":\"0000000000000000000000000000feed\",\"sectors\":80,\
         \"block_bytes\":4096,\"created\":1700000000}\n"
    );
    assert_eq!(decode_spec("volumes/db-1.main", &bytes), Ok(spec()));
}

#[test]
fn volumes_of_tenants_are_told_from_others() {
    let spec = VolumeSpec { name: "acme/db".into(), ..spec() };
    let bytes = encode_spec(&spec);
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.starts_with("{\"version\":1,\"name\":\"acme/db\""), "{text}");
    assert_eq!(name_key("acme/db"), "volumes/_acme/db");
    assert_eq!(decode_spec("volumes/_acme/db", &bytes), Ok(spec));
    for key in ["volumes/db", "volumes/acme/db", "volumes/_other/db"] {
        assert!(decode_spec(key, &bytes).is_err());
    }
}

#[test]
fn values_of_attributes_are_in_order() {
    let volume = VolumeId(0xfeed);
    let prefix = attribute_prefix(volume, "reservations");
    let mut keys = Vec::new();
    for (epoch, number) in [(1, 1), (1, 2), (1, 16), (2, 1), (16, 1), (u64::MAX, u64::MAX)] {
        let key = attribute_key(volume, "reservations", epoch, number);
        assert_eq!(parse_attribute_key(&prefix, &key), Some((epoch, number)));
        keys.push(key);
    }
    assert!(keys.is_sorted());
    for other in ["", "1-1", "0000000000000001", "0000000000000001-000000000000000g"] {
        assert_eq!(parse_attribute_key(&prefix, &format!("{prefix}{other}")), None);
    }
    assert!(is_attribute_name("reservations") && is_attribute_name("a-b"));
    for name in ["", "A", "a/b", "..", "a1", &"a".repeat(33)] {
        assert!(!is_attribute_name(name), "{name}");
    }
}

#[test]
fn damaged_or_misplaced_specs_are_refused() {
    let bytes = encode_spec(&spec());
    assert!(decode_spec("volumes/other", &bytes).is_err());
    assert!(decode_spec("volumes/db-1.main", &bytes[..20]).is_err());
    let text = String::from_utf8(bytes).unwrap();
    for (from, to) in [("\"version\":1", "\"version\":2"), ("\":80", "\":81"), ("feed", "+eed")] {
        let changed = text.replace(from, to);
        assert!(decode_spec("volumes/db-1.main", changed.as_bytes()).is_err(), "{to}");
    }
    assert!(decode_spec("volumes/db-1.main", &[b' '; MAX_SPEC_BYTES + 1]).is_err());
}

#[test]
fn sizes_round_trip_and_keep_their_form() {
    let bytes = encode_size(160);
    assert_eq!(std::str::from_utf8(&bytes).unwrap(), "{\"version\":1,\"sectors\":160}\n");
    let key = size_key(spec().id, 7);
    assert_eq!(key, "v/0000000000000000000000000000feed/size/0000000000000007");
    assert_eq!(parse_number(&size_prefix(spec().id), &key), Some(7));
    assert_eq!(decode_size(&spec(), &key, &bytes), Ok(160));
    for bad in [&bytes[..9], &encode_size(0), &encode_size(161), &[b' '; MAX_SPEC_BYTES + 1]] {
        let error = decode_size(&spec(), &key, bad).unwrap_err().to_string();
        assert!(error.contains("size/0000000000000007"), "{error}");
    }
}

#[test]
fn volumes_grow_unless_forced() {
    assert_eq!(check_resize(80, 88, 4096), Ok(()));
    assert_eq!(check_resize(80, 80, 4096), Ok(()));
    assert!(matches!(check_resize(80, 81, 4096), Err(CatalogError::Size { .. })));
    assert!(check_resize(80, MAX_VOLUME_SECTORS + 8, 4096).is_err());
    let error = check_resize(80, 72, 4096).unwrap_err().to_string();
    assert!(error.contains("40960") && error.contains("36864"), "{error}");
}

#[test]
fn names() {
    for good in ["a", "0", "A.b_c-d", &"x".repeat(255)] {
        assert_eq!(check_name(good), Ok(()), "{good}");
    }
    for bad in ["", ".", "..", "-a", "_a", "a/b", "a b", "ä", "a\0", &"x".repeat(256)] {
        let error = check_name(bad).unwrap_err().to_string();
        assert!(error.contains("255"), "{error}");
    }
}

#[test]
fn sizes() {
    assert_eq!(check_size(8, 4096), Ok(()));
    assert_eq!(check_size(MAX_VOLUME_SECTORS, 512), Ok(()));
    for (sectors, block) in [(0, 512), (9, 4096), (MAX_VOLUME_SECTORS + 8, 512), (8, 1024), (8, 0)]
    {
        assert!(check_size(sectors, block).is_err(), "{sectors} {block}");
    }
}

#[test]
fn keys_and_numbers() {
    let id = VolumeId(1);
    let key = segment_key(id, 0xab);
    assert_eq!(key, "v/00000000000000000000000000000001/seg/00000000000000ab");
    assert_eq!(parse_number(&segment_prefix(id), &key), Some(0xab));
    assert_eq!(parse_number(&size_prefix(id), &key), None);
    let name = RootName { generation: 3, segment: 0x40, number: 2 };
    let (prefix, key) = (root_prefix(id), root_key(id, name));
    assert!(key.ends_with("/root/0000000000000003-0000000000000040-0000000000000002"), "{key}");
    assert_eq!(parse_root_key(&prefix, &key), Some(name));
    assert_eq!(parse_root_key(&prefix, &format!("{key}-0000000000000002")), None);
    assert_eq!(parse_root_key(&prefix, &key[..key.len() - 17]), None);
    let fragment = FragmentId { volume: id, generation: 3, number: 17 };
    let key = fragment_key(fragment);
    assert!(key.ends_with("/frag/0000000000000003-0000000000000011"), "{key}");
    assert_eq!(parse_fragment_key(id, &key), Some(fragment));
    assert_eq!(parse_fragment_key(VolumeId(2), &key), None);
    let prefix = segment_prefix(id);
    for foreign in ["0", "00000000000000AB", "+00000000000000a", "00000000000000ab.tmp"] {
        assert_eq!(parse_number(&prefix, &format!("{prefix}{foreign}")), None);
    }
}
