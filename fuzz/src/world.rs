//! A journal and a log of segments that the production code has written, small and always the same.

use bytes::{Bytes, BytesMut};
use longhaul_core::block::{
    Range, Request, STAGED_BIT, Staged, StagedData, StagedPiece, Time, VolumeId,
};
use longhaul_core::host::journal::{Geometry, Recovered, create_plan};
use longhaul_core::host::{Config, DiskOperation, DiskResult, Mode, Volume};
use longhaul_core::record::{self, Kind};
use longhaul_core::store::catalog::VolumeSpec;
use longhaul_core::store::{self, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError};
use longhaul_core::wire::link::{
    Announced, Attached, Frame, HostId, Lane, StagedRun, ToHost, ToStore,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The volume of everything here.
pub const VOLUME: VolumeId = VolumeId(1);
/// Its size.
pub const SECTORS: u64 = 1024;
/// The host of everything here.
pub const HOST: HostId = HostId(2);
/// Shape of the journal.
pub const GEOMETRY: Geometry = Geometry { file_bytes: 64 << 10, files: 4 };

/// A time later than `now`.
pub fn later(now: Time, millis: u64) -> Time {
    now.after(Duration::from_millis(millis))
}

/// The store's answer to the host's attach.
pub fn attached(epoch: u64, committed: u64) -> Attached {
    Attached { volume: VOLUME, sectors: SECTORS, block_bytes: 512, epoch, committed }
}

/// The files of a journal just created.
pub fn new_journal() -> Vec<Vec<u8>> {
    let plan = create_plan(GEOMETRY, 77, VOLUME).unwrap();
    let file = |page: &Bytes| {
        let mut file = page.to_vec();
        file.resize(GEOMETRY.file_bytes as usize, 0);
        file
    };
    plan.iter().map(|(_, page)| file(page)).collect()
}

/// Carries out an operation on journal files as a disk would.
pub fn disk(files: &mut [Vec<u8>], operation: DiskOperation) -> DiskResult {
    match operation {
        DiskOperation::Write { id, file, offset, data, .. } => {
            let offset = offset as usize;
            files[file as usize][offset..offset + data.len()].copy_from_slice(&data);
            DiskResult::Done { id }
        }
        DiskOperation::Sync { id, .. } => DiskResult::Done { id },
        DiskOperation::Read { id, file, offset, bytes } => {
            let offset = offset as usize;
            match files[file as usize].get(offset..offset + bytes) {
                Some(data) => DiskResult::Data { id, data: Bytes::copy_from_slice(data) },
                None => DiskResult::Failed { id, error: "beyond the end".into() },
            }
        }
    }
}

/// A host engine with a new journal.
pub fn host() -> Volume {
    let recovered = Recovered::empty(GEOMETRY, 77, VOLUME);
    let config = Config::new(Mode::Journal(GEOMETRY));
    Volume::new(Time(1), config, HOST, attached(1, 0), Some(recovered))
}

/// The write number `n` of the worlds here.
pub fn request(n: u64) -> Request {
    let range = Range::new(n * 37 % (SECTORS - 32), 1 + n * 7 % 24);
    match n % 9 {
        6 => {
            // A part of a staged record, without its beginning and end.
            let record = Range::between(range.lba.saturating_sub(2), range.end() + 3);
            let data = StagedData { object: STAGED_BIT | n, offset: 64, record };
            let pieces = vec![StagedPiece { range, content: Staged::Data(data) }];
            Request::WriteStaged { pieces, fua: false }
        }
        7 => Request::Discard { range, fua: false },
        8 => Request::Zero { range, allocate: true, fua: n % 2 == 0 },
        _ => {
            let data = Bytes::from(vec![n as u8; range.bytes() as usize]);
            Request::Write { range, data, fua: n.is_multiple_of(5) }
        }
    }
}

/// A journal that has gone around its ring, with some of its content committed, and the last
/// number in it.
pub fn journal() -> (Vec<Vec<u8>>, u64) {
    let mut files = new_journal();
    let mut host = host();
    let mut now = Time(1);
    for n in 1..=60 {
        now = later(now, 30);
        host.handle_request(now, n, request(n));
        if n.is_multiple_of(4) {
            host.handle_request(now, 1000 + n, Request::Flush);
        }
        loop {
            let mut idle = true;
            while let Some(operation) = host.poll_disk() {
                idle = false;
                let result = disk(&mut files, operation);
                host.handle_disk(now, result);
            }
            while host.poll_message().is_some() {}
            while host.poll_reply().is_some() || host.poll_event().is_some() {}
            if idle {
                break;
            }
        }
        if n.is_multiple_of(10) && n < 60 {
            let message = ToHost::Committed { volume: VOLUME, epoch: 1, seq: n - 8 };
            host.handle_message(now, message.into());
        }
        host.handle_timeout(now);
    }
    let last = host.status(now).last;
    (files, last)
}

/// Records `first..=last` of an epoch as a batch.
pub fn batch(epoch: u64, first: u64, last: u64) -> Frame<ToStore> {
    let mut payload = BytesMut::new();
    for seq in first..=last {
        match request(seq) {
            Request::Write { range, data, .. } => {
                record::encode_data(VOLUME, epoch, seq, range, &data, &mut payload);
            }
            Request::Discard { range, .. } => {
                record::encode_marker(VOLUME, Kind::Discard, epoch, seq, range, &mut payload);
            }
            Request::Zero { range, .. } => {
                record::encode_marker(VOLUME, Kind::Zero, epoch, seq, range, &mut payload);
            }
            Request::WriteStaged { pieces, .. } => {
                for StagedPiece { range, content } in pieces {
                    let Staged::Data(data) = content else { continue };
                    record::encode_staged(VOLUME, epoch, seq, range, data, &mut payload);
                }
            }
            _ => {}
        }
    }
    let message = ToStore::Batch { volume: VOLUME, epoch, first, last };
    Frame { message, payload: payload.freeze() }
}

/// A request to stage some sectors for elsewhere in the volume.
pub fn stage(request: u64, epoch: u64) -> Frame<ToStore> {
    let (range, object) = (Range::new(30, 16), STAGED_BIT | request);
    let (volume, into) = (VOLUME, VOLUME);
    ToStore::Stage { request, volume, epoch, range, into, lba: 99, object }.into()
}

/// A possible message of a store to it.
pub fn staged(request: u64) -> Frame<ToHost> {
    let runs = vec![StagedRun::Hole(6), StagedRun::Data { sectors: 10, offset: 0 }];
    ToHost::Staged { request, volume: VOLUME, result: Ok(runs) }.into()
}

/// The description of the volume.
pub fn spec() -> VolumeSpec {
    VolumeSpec {
        id: VOLUME,
        name: "v".into(),
        created_sectors: SECTORS,
        block_bytes: 512,
        created: 1,
        parents: Vec::new(),
    }
}

/// A store engine just opened, that flushes its map every few segments.
pub fn store() -> store::Volume {
    let config = store::Config { flush_every_segments: 3, ..store::Config::default() };
    store::Volume::open(Time(1), spec(), 9, config)
}

/// An object store in memory.
pub type Objects = BTreeMap<String, Bytes>;

/// Carries out an operation as an object store would.
pub fn object(objects: &mut Objects, operation: ObjectOperation) -> ObjectResult {
    match operation {
        ObjectOperation::Put { key, data } => {
            if objects.contains_key(&key) {
                return ObjectResult::Put(Err(PutError::Exists));
            }
            objects.insert(key, Bytes::from(data.concat()));
            ObjectResult::Put(Ok(()))
        }
        ObjectOperation::Get { key, range, .. } => {
            let Some(data) = objects.get(&key) else {
                return ObjectResult::Get(Err(GetError::NotFound));
            };
            let length = data.len() as u64;
            let range = range.unwrap_or(0..length);
            let (start, end) = (range.start.min(length), range.end.min(length));
            ObjectResult::Get(Ok(data.slice(start as usize..end.max(start) as usize)))
        }
        ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => {
            let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
            let meta = |(key, data): (&String, &Bytes)| ObjectMeta {
                key: key.clone(),
                bytes: data.len() as u64,
            };
            ObjectResult::List(Ok(found.map(meta).collect()))
        }
        ObjectOperation::Delete { key } => {
            objects.remove(&key);
            ObjectResult::Delete(Ok(()))
        }
    }
}

/// Runs what the store engine asks of the object store until it asks for nothing more.
pub fn settle(now: Time, store: &mut store::Volume, objects: &mut Objects) {
    while let Some((id, operation)) = store.poll_object() {
        let result = object(objects, operation);
        store.handle_object(now, id, result);
    }
}

/// A store that an attached host has sent some batches, and its objects.
fn used_store() -> Objects {
    let mut objects = Objects::new();
    let mut store = store();
    let mut now = Time(1);
    settle(now, &mut store, &mut objects);
    let session = store::SessionId(1);
    let attach = ToStore::Attach {
        request: 1,
        name: "v".into(),
        host: HOST,
        journal: None,
        take_over: false,
    };
    store.handle_message(now, session, Lane::Control, attach.into());
    settle(now, &mut store, &mut objects);
    for part in 0..5 {
        now = later(now, 50);
        let announced = Announced { range: Range::new(part * 40, 16), seq: 5 * part + 9 };
        let entries = vec![announced];
        let announce = ToStore::Announce { volume: VOLUME, epoch: 1, replace: false, entries };
        store.handle_message(now, session, Lane::Control, announce.into());
        let frame = batch(1, 5 * part + 1, 5 * part + 5);
        store.handle_message(now, session, Lane::Drain, frame);
        settle(now, &mut store, &mut objects);
        while store.poll_message().is_some() || store.poll_event().is_some() {}
    }
    objects
}

/// The segments of a small log.
pub fn log() -> Vec<Vec<u8>> {
    let objects = used_store();
    let segments = objects.iter().filter(|(key, _)| key.contains("/seg/"));
    segments.map(|(_, object)| object.to_vec()).collect()
}
