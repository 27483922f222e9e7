//! The store of the scripted world: an array that commits whole batches, and refuses damaged ones.

use super::world::{HOST, SECTORS, VOLUME};
use crate::block::{BlockState, Range, Seq, StatusRun};
use crate::pack::{Packer, Packing};
use crate::record::{self, Kind, packed};
use crate::wire::link::{
    self, AttachError, Attached, Changes, Frame, HostId, ReadError, ReadPart, StageError,
    StagedRun, ToHost, ToStore,
};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::BTreeMap;

/// The answers of an untrustworthy store to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    None,
    /// The volume at the time of [`Store::remember`].
    Old,
    Zeroes,
}

/// For each sector, the packed record that it belongs to.
pub type Records = Vec<Option<Bytes>>;

pub struct Store {
    pub image: Vec<u8>,
    pub records: Records,
    memory: (Vec<u8>, Records),
    pub lie: Lie,
    pub committed: Seq,
    pub epoch: u64,
    pub batches: Vec<(Seq, Seq)>,
    pub announced: Vec<(Range, Seq)>,
    pub bytes: u64,
    /// Staged objects: first sector and content.
    pub staged: BTreeMap<u64, (u64, Bytes)>,
    /// The next request to stage gets the answer that the object exists.
    pub staged_exists: bool,
    /// The store has refused a batch. It refuses all that follow, until a resume.
    pub refusing: bool,
    /// The size that it reports at attach and resume.
    pub sectors: u64,
    /// Opens the host's data, so that the image can be plain.
    pub packer: Packer,
}

impl Store {
    pub fn new() -> Store {
        Store::unpacking(Packing::default())
    }

    pub fn unpacking(packing: Packing) -> Store {
        Store {
            image: vec![0; (SECTORS * 512) as usize],
            records: vec![None; SECTORS as usize],
            memory: (vec![0; (SECTORS * 512) as usize], vec![None; SECTORS as usize]),
            lie: Lie::None,
            committed: 0,
            epoch: 0,
            batches: Vec::new(),
            announced: Vec::new(),
            bytes: 0,
            staged: BTreeMap::new(),
            staged_exists: false,
            refusing: false,
            sectors: SECTORS,
            packer: Packer::new(VOLUME, packing),
        }
    }

    /// Keeps the present content for [`Lie::Old`].
    pub fn remember(&mut self) {
        self.memory = self.copy();
    }

    pub fn take_memory(&mut self, other: &Store) {
        self.memory = other.memory.clone();
    }

    pub fn copy(&self) -> (Vec<u8>, Records) {
        (self.image.clone(), self.records.clone())
    }

    pub fn paste(&mut self, image: Vec<u8>, records: Records) {
        (self.image, self.records) = (image, records);
    }

    /// Content of a sector as the store gives it out, and its record.
    fn given(&self, lba: u64) -> (&[u8], Option<&Bytes>) {
        let (image, records) = match self.lie {
            Lie::None => (&self.image, &self.records),
            Lie::Old => (&self.memory.0, &self.memory.1),
            Lie::Zeroes => return (&[0; 512], None),
        };
        let at = lba as usize;
        (&image[at * 512..at * 512 + 512], records[at].as_ref())
    }

    pub fn attach(&mut self) -> Attached {
        self.epoch += 1;
        self.refusing = false;
        self.announced.clear();
        self.attached()
    }

    pub fn attached(&self) -> Attached {
        Attached {
            volume: VOLUME,
            sectors: self.sectors,
            block_bytes: 512,
            epoch: self.epoch,
            committed: self.committed,
        }
    }

    pub fn handle(&mut self, frame: Frame<ToStore>) -> Option<Frame<ToHost>> {
        match frame.message {
            ToStore::Resume { request, epoch, host, .. } => {
                let result = if epoch == self.epoch && host == HOST {
                    self.refusing = false;
                    Ok(self.attached())
                } else {
                    Err(AttachError::Fenced { epoch: self.epoch, host: HostId(9) })
                };
                Some(ToHost::Attached { request, result }.into())
            }
            ToStore::Batch { volume, epoch, first, last } => {
                if epoch != self.epoch {
                    return Some(ToHost::Fenced { volume, epoch: self.epoch }.into());
                }
                assert!(frame.payload.len() <= link::MAX_BATCH_BYTES);
                self.refusing |= !sound(&frame.payload);
                if self.refusing {
                    let reason = "a record of the batch is damaged".to_owned();
                    return Some(ToHost::BatchRefused { volume, epoch, reason }.into());
                }
                assert_eq!(first, self.committed + 1, "batches follow each other");
                self.apply(first, last, frame.payload);
                self.batches.push((first, last));
                self.committed = last;
                self.announced.retain(|(_, seq)| *seq > last);
                Some(ToHost::Committed { volume, epoch, seq: last }.into())
            }
            ToStore::Announce { replace, entries, .. } => {
                if replace {
                    self.announced.clear();
                }
                let entries = entries.into_iter().filter(|e| e.seq > self.committed);
                self.announced.extend(entries.map(|e| (e.range, e.seq)));
                None
            }
            ToStore::EarlyRead { request, volume, epoch, committed, range } => {
                assert!(committed <= self.committed, "the host knows of no more than there is");
                self.handle(ToStore::Read { request, volume, epoch, range }.into())
            }
            ToStore::Read { request, volume, epoch, range } => {
                assert!(!range.is_empty() && range.sectors <= link::MAX_READ_SECTORS);
                if epoch != self.epoch {
                    let result = Err(link::ReadError::Fenced(self.epoch));
                    return Some(ToHost::Data { request, volume, result }.into());
                }
                Some(self.answer(request, range))
            }
            ToStore::Stage { request, volume, epoch, range, into, lba, object } => {
                assert_eq!(into, VOLUME);
                let result = if epoch != self.epoch {
                    Err(StageError::Read(ReadError::Fenced(self.epoch)))
                } else if std::mem::take(&mut self.staged_exists)
                    || self.staged.contains_key(&object)
                {
                    Err(StageError::Exists)
                } else {
                    let bytes = (range.lba * 512) as usize..(range.end() * 512) as usize;
                    let content = Bytes::copy_from_slice(&self.image[bytes]);
                    self.staged.insert(object, (lba, content));
                    Ok(vec![StagedRun::Data { sectors: range.sectors, offset: 0 }])
                };
                Some(ToHost::Staged { request, volume, result }.into())
            }
            ToStore::Status { request, volume, range, .. } => {
                let runs = (range.lba..range.end()).map(|lba| StatusRun {
                    sectors: 1,
                    state: if self.given(lba).0.iter().all(|b| *b == 0) {
                        BlockState::Hole
                    } else {
                        BlockState::Data
                    },
                });
                Some(ToHost::Status { request, volume, result: Ok(runs.collect()) }.into())
            }
            // The answer may be a lie.
            ToStore::Changed { request, volume, .. } => {
                let result = Ok(Changes::Ranges(Vec::new()));
                Some(ToHost::Changed { request, volume, result }.into())
            }
            ToStore::Detach { request, .. } => {
                assert!(self.announced.is_empty());
                Some(ToHost::Detached { request }.into())
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn sector(&self, lba: u64) -> &[u8] {
        &self.image[(lba * 512) as usize..(lba * 512 + 512) as usize]
    }

    fn answer(&mut self, request: u64, range: Range) -> Frame<ToHost> {
        let mut parts = Vec::new();
        for lba in range.lba..range.end() {
            let (content, record) = self.given(lba);
            if content.iter().all(|b| *b == 0) {
                parts.push(ReadPart::Hole(1));
                continue;
            }
            let wanted = Range::new(lba, 1);
            if let Some(record) = record {
                let header = record::parse_prefix(VOLUME, record).unwrap();
                let record =
                    packed::extract((VOLUME, VOLUME), header.seq, header.range, wanted, record)
                        .unwrap();
                parts.push(ReadPart::Packed { wanted, record });
                continue;
            }
            let cover = wanted.block_cover();
            let data = &self.image[(cover.lba * 512) as usize..(cover.end() * 512) as usize];
            let mut out = BytesMut::new();
            if self.packer.is_active() {
                // The number is not one of this store's: nonces may repeat in a test.
                self.packer.pack(1, 1, cover, data, &mut out);
                parts.push(ReadPart::Packed { wanted, record: out.freeze() });
                continue;
            }
            record::encode_data(VOLUME, 1, 1, cover, data, &mut out);
            let fragment = record::parse(VOLUME, &out.freeze()).unwrap().data;
            parts.push(ReadPart::Data { wanted, fragment });
        }
        link::encode_data(request, VOLUME, &parts)
    }

    fn apply(&mut self, first: Seq, last: Seq, payload: Bytes) {
        self.bytes += payload.len() as u64;
        let mut rest = payload;
        let mut before = first;
        while !rest.is_empty() {
            let record = record::parse(VOLUME, &rest).expect("batches hold verified records");
            let raw = rest.clone();
            rest.advance(record.header.record_bytes());
            assert!(record.header.seq >= before && record.header.seq <= last);
            before = record.header.seq;
            let range = record.header.range;
            let of = (record.header.kind == Kind::Packed)
                .then(|| raw.slice(..record.header.record_bytes()));
            self.records[range.lba as usize..range.end() as usize].fill(of);
            let place = &mut self.image[(range.lba * 512) as usize..(range.end() * 512) as usize];
            match record.header.kind {
                Kind::Data => place.copy_from_slice(&record.data.payload),
                Kind::Discard | Kind::Zero => place.fill(0),
                Kind::Packed => place.copy_from_slice(&self.packer.unpack(&raw, range).unwrap()),
                Kind::Staged => {
                    let (lba, content) = &self.staged[&record.header.staged.unwrap().object];
                    let skip = ((range.lba - lba) * 512) as usize;
                    place.copy_from_slice(&content[skip..skip + range.bytes() as usize]);
                }
            }
        }
    }
}

/// Whether all records of a batch are intact.
fn sound(mut batch: &[u8]) -> bool {
    while !batch.is_empty() {
        let Ok(header) = record::verify(VOLUME, batch) else { return false };
        batch = &batch[header.record_bytes()..];
    }
    true
}
