//! Encrypted volumes and data that is not.

use super::world::{VOLUME, World};
use crate::block::{BlockError, Range};
use crate::host::{Config, Event};
use crate::pack::{Compression, DATA_KEY_BYTES, DataKey, Keys, Packer, Packing};
use crate::record;
use crate::wire::link::{Frame, Lane, Piece, ToHost, ToStore};
use bytes::BytesMut;
use std::collections::BTreeMap;

fn config(compression: Compression, encrypted: bool) -> Config {
    let keys = BTreeMap::from([(1, DataKey::new([3; DATA_KEY_BYTES]))]);
    let keys = Keys::new([9; 12], keys).filter(|_| encrypted);
    Config { packing: Packing { compression, keys }, ..World::small() }
}

/// Answers the read that is under way with this payload, as often as it is asked.
fn answer(world: &mut World, piece: &Piece, payload: &BytesMut) {
    for _ in 0..2 {
        world.poll();
        let frame = world.lanes.get_mut(&Lane::Read).and_then(|lane| lane.pop_front());
        let Some(ToStore::Read { request, .. }) = frame.map(|frame| frame.message) else {
            panic!("it is asked twice");
        };
        let message = ToHost::Data { request, volume: VOLUME, result: Ok(vec![*piece]) };
        world.to_host.push_back(Frame { message, payload: payload.clone().freeze() });
        world.answer();
    }
    world.poll();
}

#[test]
fn plain_data_of_the_store_is_an_error_of_an_encrypted_volume() {
    let range = Range::new(0, 8);
    let mut data = BytesMut::new();
    record::encode_data(VOLUME, 1, 1, range, &[7; 4096], &mut data);
    // A fragment is a record without its header.
    let data = (Piece::Data { sectors: 8, cover: range }, data.split_off(48));
    let mut answers = vec![data];
    for compression in [Compression::None, Compression::Lz4] {
        let mut packed = BytesMut::new();
        let mut packer = Packer::new(VOLUME, Packing { compression, keys: None });
        packer.pack(1, 1, range, &[7; 4096], &mut packed);
        let piece = Piece::Packed { sectors: 8, bytes: packed.len() as u32 };
        answers.push((piece, packed));
    }
    for (piece, payload) in answers {
        let mut world = World::new(21, config(Compression::None, true));
        world.settle();
        let read = world.read(0, 8);
        answer(&mut world, &piece, &payload);
        assert_eq!(world.errors, [(read, BlockError::Medium(range))], "{piece:?}");
        assert!(world.events.contains(&Event::StorePlain { range }));
    }
}

#[test]
fn recovery_says_whether_a_journal_holds_plain_data() {
    for (compression, encrypted) in
        [(Compression::None, false), (Compression::Lz4, false), (Compression::Lz4, true)]
    {
        let mut world = World::new(1, config(compression, encrypted));
        world.settle();
        world.link_down();
        for lba in [16, 8] {
            world.write(lba, 8, false);
            world.poll();
            while world.finish_mutation() {
                world.poll();
            }
        }
        let plain = world.disk.recover().unwrap().plain();
        assert_eq!(plain, (!encrypted).then_some(Range::new(16, 8)), "{compression:?}");
    }
}
