//! Recovers the content of a journal after the host went away, in order or not.
//!
//! It makes two passes. The first reads all files in any order and keeps only extremes: the newest
//! tail, and the highest address known to be synced. The second follows the chain of frames from
//! the tail and verifies everything. Writes without a sync may be missing at the end of the chain;
//! that is normal. If any frame says that something beyond the end was synced, stable storage has
//! lost data. Then recovery fails.
//!
//! It writes nothing, so `longhaul check` runs the same machine. Before a host goes on with a
//! recovered journal, the shell syncs its files and drops them from the page cache. The reason:
//! recovery has to read the content of the disk. A page that a failed sync left behind counts as
//! clean. A new process would read it back, and nobody would write it again. A host that relies on
//! such a page would promise data that the next power cut takes away.

use super::format::{
    FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameRef, Geometry, JournalError, MAX_FRAME_BYTES,
    PAGE_BYTES,
};
use super::frames::Frame;
use super::stability::next;
use crate::block::{Epoch, Range, Seq, Time, VolumeId};
use crate::host::dirty::{DirtyMap, RecordPlace};
use crate::host::io::{DiskOperation, DiskResult};
use crate::host::versions::{Fed, JournalEnd, seals};
use crate::record::{self, Kind};
use crate::wire::link::{Attached, JournalState};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};

/// The content of a journal.
#[derive(Debug)]
pub struct Recovered {
    /// Its shape.
    pub geometry: Geometry,
    /// Its identity.
    pub journal: u128,
    /// The volume it belongs to.
    pub volume: VolumeId,
    pub(crate) incarnation: u32,
    pub(crate) epoch: Epoch,
    pub(crate) last: Seq,
    pub(crate) tail: FrameRef,
    /// Whether the journal ever had a frame.
    pub(crate) used: bool,
    pub(crate) end: u64,
    pub(crate) number: u64,
    pub(crate) prev_crc: u32,
    pub(crate) chain: VecDeque<Frame>,
    pub(crate) map: DirtyMap,
    /// The identities of the records for a version table, if the caller asked for them.
    pub(crate) versions: Option<Vec<Fed>>,
    /// The first record with unencrypted data.
    plain: Option<Range>,
}

impl Recovered {
    /// The range of the first write with unencrypted data. The journal of an encrypted volume has
    /// none.
    #[must_use]
    pub fn plain(&self) -> Option<Range> {
        self.plain
    }

    /// Whether the journal has the newest content of its ranges. So it is if the store has no more
    /// than the journal, and no other host had the volume since. Otherwise a rollback may lie
    /// between, to a state that the journal does not know. Then the store has all writes of the
    /// journal.
    pub(crate) fn is_current(&self, attached: &Attached) -> bool {
        let next = self.epoch.checked_add(1) == Some(attached.epoch);
        self.last > attached.committed || (self.last == attached.committed && next)
    }

    /// A journal just created.
    #[must_use]
    pub fn empty(geometry: Geometry, journal: u128, volume: VolumeId) -> Recovered {
        Recovered {
            geometry,
            journal,
            volume,
            incarnation: 0,
            epoch: 0,
            last: 0,
            tail: FrameRef::default(),
            used: false,
            end: 0,
            number: 0,
            prev_crc: 0,
            chain: VecDeque::new(),
            map: DirtyMap::default(),
            versions: None,
            plain: None,
        }
    }

    /// The numbers between which its records lie.
    #[must_use]
    pub fn ends(&self) -> JournalEnd {
        JournalEnd { before: self.tail.before, last: self.last }
    }

    /// The state of the journal for an attach; `None` if it never had a frame.
    #[must_use]
    pub fn state(&self) -> Option<JournalState> {
        (self.epoch > 0).then_some(JournalState {
            volume: self.volume,
            epoch: self.epoch,
            last: self.last,
        })
    }

    pub(crate) fn frames(&self, now: Time) -> VecDeque<Frame> {
        self.chain.iter().map(|frame| Frame { born: now, ..*frame }).collect()
    }

    /// The end of the file of the last frame, where the frame itself may end. Without a frame, the
    /// end is the place of the tail frame, so the journal has entered that file.
    pub(crate) fn file_end(&self) -> u64 {
        let inside = if self.chain.is_empty() { self.end } else { self.end - 1 };
        self.geometry.file_end(inside)
    }
}

/// The findings of `longhaul check` about a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Valid frame headers seen in all files, old generations included.
    pub headers: u64,
    /// Files up to the last one with a valid frame header, of any generation.
    pub files_reached: u32,
    /// Frames from the tail to the end.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of these records.
    pub live_bytes: u64,
    /// The journal address at which recovery starts.
    pub tail: u64,
    /// The journal address at which the chain ends.
    pub end: u64,
    /// File and offset of the end.
    pub end_at: (u32, u64),
    /// First and last number in the journal; `first > last` if none.
    pub seqs: (Seq, Seq),
    /// Newest epoch of its frames.
    pub epoch: Epoch,
    /// Why the chain ends there. Never a reason to worry by itself.
    pub stopped_by: String,
}

/// Bytes in one read of either pass.
const READ_BYTES: u64 = 2 << 20;
/// Reads under way in the first pass.
const SCAN_READS: usize = 4;

#[derive(Debug)]
enum Pass {
    Headers { left: u32 },
    Scan { next_addr: u64 },
    FrameWalk(FrameWalk),
    Finished,
}

#[derive(Debug)]
struct FrameWalk {
    /// Address of the first byte in `buffer`, and of the next frame.
    addr: u64,
    buffer: BytesMut,
    /// Bytes that the buffer has to hold before the next step.
    need: u64,
    /// The chain broke here, for this reason. The machine looks at the start of the next file.
    skipped: Option<(u64, String)>,
    expected: FrameRef,
    incarnation: u32,
}

/// A machine that asks for reads ([`Recovery::poll_disk`]) until it has an outcome
/// ([`Recovery::poll_outcome`]).
#[derive(Debug)]
pub struct Recovery {
    wanted: Option<VolumeId>,
    lengths: Vec<u64>,
    header: Option<FileHeader>,
    headers: BTreeMap<u32, FileHeader>,
    pass: Pass,
    ids: u64,
    queue: VecDeque<DiskOperation>,
    reads: BTreeMap<u64, FileRead>,
    report: Report,
    found: Option<Recovered>,
    newest_incarnation: u32,
    /// Whether to note the identities of records for a version table.
    keyed: bool,
    tail: FrameRef,
    /// The epoch of a frame that names the tail.
    tail_epoch: Epoch,
    /// The highest address that a frame reports as synced, and that frame.
    synced: (u64, u64),
    outcome: Option<Result<Recovered, JournalError>>,
}

#[derive(Clone, Copy, Debug)]
struct FileRead {
    file: u32,
    offset: u64,
    bytes: usize,
    addr: u64,
}

impl Recovery {
    /// `lengths` are those of the files, in order of their number. With `volume`, recovery refuses
    /// a journal of another volume.
    #[must_use]
    pub fn new(volume: Option<VolumeId>, lengths: Vec<u64>) -> Recovery {
        let mut recovery = Recovery {
            wanted: volume,
            pass: Pass::Headers { left: lengths.len() as u32 },
            header: None,
            headers: BTreeMap::new(),
            ids: 0,
            queue: VecDeque::new(),
            reads: BTreeMap::new(),
            report: Report::default(),
            found: None,
            newest_incarnation: 0,
            keyed: false,
            tail: FrameRef::default(),
            tail_epoch: 0,
            synced: (0, 0),
            outcome: None,
            lengths,
        };
        for (file, length) in (0..).zip(recovery.lengths.clone()) {
            if length < PAGE_BYTES {
                recovery.fail(JournalError::FileHeader { file, problem: "too short" });
                return recovery;
            }
            recovery.ask(file, 0, PAGE_BYTES, 0);
        }
        if recovery.lengths.is_empty() {
            recovery.fail(JournalError::FileCount { expected: 2, found: 0 });
        }
        recovery
    }

    /// Notes the identities of records, for a volume with a [version
    /// table](crate::host::versions::Versions).
    #[must_use]
    pub fn with_versions(mut self) -> Recovery {
        self.keyed = true;
        self
    }

    /// The next read. Results may come in any order.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.queue.pop_front()
    }

    /// Takes the outcome of a read.
    pub fn handle_disk(&mut self, result: DiskResult) {
        let (id, result) = match result {
            DiskResult::Data { id, data } => (id, Ok(data)),
            DiskResult::Failed { id, error } => (id, Err(error)),
            DiskResult::Done { id } => (id, Err("a read was answered like a write".into())),
        };
        let Some(asked) = self.reads.remove(&id) else { return };
        if self.outcome.is_some() || matches!(self.pass, Pass::Finished) {
            return;
        }
        let data = match result {
            Ok(data) if data.len() == asked.bytes => data,
            Ok(data) => {
                let error = format!("only {} of {} bytes", data.len(), asked.bytes);
                return self.fail(JournalError::Read {
                    file: asked.file,
                    offset: asked.offset,
                    error,
                });
            }
            Err(error) => {
                return self.fail(JournalError::Read {
                    file: asked.file,
                    offset: asked.offset,
                    error,
                });
            }
        };
        let step = match &mut self.pass {
            Pass::Headers { .. } => self.take_file_header(asked, &data),
            Pass::Scan { .. } => self.scan(asked, &data),
            Pass::FrameWalk(_) => self.walk(data),
            Pass::Finished => Ok(()),
        };
        if let Err(error) = step {
            self.fail(error);
        }
    }

    /// The content of the journal, or why it is unusable; once.
    pub fn poll_outcome(&mut self) -> Option<Result<Recovered, JournalError>> {
        self.outcome.take()
    }

    /// The findings so far. They are complete once there is an outcome.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    fn fail(&mut self, error: JournalError) {
        self.pass = Pass::Finished;
        self.queue.clear();
        self.outcome = Some(Err(error));
    }

    fn ask(&mut self, file: u32, offset: u64, bytes: u64, addr: u64) {
        let id = next(&mut self.ids);
        let bytes = bytes as usize;
        self.reads.insert(id, FileRead { file, offset, bytes, addr });
        self.queue.push_back(DiskOperation::Read { id, file, offset, bytes });
    }

    fn take_file_header(&mut self, asked: FileRead, page: &Bytes) -> Result<(), JournalError> {
        let header = FileHeader::parse(asked.file, page)?;
        self.headers.insert(asked.file, header);
        let Pass::Headers { left } = &mut self.pass else { return Ok(()) };
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        let headers = std::mem::take(&mut self.headers);
        let Some(first) = headers.get(&0).copied() else { return Ok(()) };
        if let Some(expected) = self.wanted
            && expected != first.volume
        {
            return Err(JournalError::WrongVolume { expected, found: first.volume });
        }
        for (file, header) in &headers {
            if header.journal != first.journal {
                return Err(JournalError::Mixed {
                    file: *file,
                    expected: first.journal,
                    found: header.journal,
                });
            }
            if (header.volume, header.geometry) != (first.volume, first.geometry) {
                let problem = "it contradicts file 0 of the same journal";
                return Err(JournalError::FileHeader { file: *file, problem });
            }
        }
        let geometry = first.geometry;
        if headers.len() != geometry.files as usize {
            return Err(JournalError::FileCount {
                expected: geometry.files,
                found: headers.len() as u32,
            });
        }
        for (file, found) in (0..).zip(self.lengths.iter().copied()) {
            let expected = geometry.file_bytes;
            if found < expected {
                return Err(JournalError::Truncated { file, expected, found });
            }
        }
        self.header = Some(first);
        self.pass = Pass::Scan { next_addr: 0 };
        for _ in 0..SCAN_READS {
            self.scan_more();
        }
        Ok(())
    }

    /// In the first pass addresses are those of the first lap: places, not generations.
    fn scan_more(&mut self) {
        let (Pass::Scan { next_addr }, Some(header)) = (&mut self.pass, &self.header) else {
            return;
        };
        let geometry = header.geometry;
        let addr = *next_addr;
        if addr >= geometry.ring() {
            return;
        }
        let end = geometry.file_end(addr).min(addr + READ_BYTES);
        *next_addr = end;
        self.ask(geometry.file(addr), geometry.offset(addr), end - addr, addr);
    }

    fn scan(&mut self, asked: FileRead, data: &Bytes) -> Result<(), JournalError> {
        let Some(file) = self.header else { return Ok(()) };
        let ring = file.geometry.ring();
        for (addr, page) in
            (asked.addr..).step_by(PAGE_BYTES as usize).zip(data.chunks(PAGE_BYTES as usize))
        {
            let frame = match FrameHeader::parse(page) {
                Ok(Some((frame, _))) => frame,
                Err(other) if other.journal == file.journal => {
                    return Err(JournalError::Version {
                        file: asked.file,
                        offset: file.geometry.offset(addr),
                        version: other.version,
                    });
                }
                Ok(None) | Err(_) => continue,
            };
            if frame.journal != file.journal || frame.addr % ring != addr {
                continue;
            }
            self.report.headers += 1;
            self.report.files_reached = self.report.files_reached.max(asked.file + 1);
            self.newest_incarnation = self.newest_incarnation.max(frame.incarnation);
            // Two frames may name one tail and differ in the writes before it. The host had lost
            // frames that the store has, and has gone on there. Only the later one knows of that.
            let place = |tail: &FrameRef| (tail.addr, tail.before);
            if place(&frame.tail) > place(&self.tail) || self.report.headers == 1 {
                self.tail = frame.tail;
                self.tail_epoch = frame.epoch;
            }
            if frame.synced_addr > self.synced.0 {
                self.synced = (frame.synced_addr, frame.addr);
            }
        }
        self.scan_more();
        if self.reads.is_empty() {
            self.begin_walk(&file);
        }
        Ok(())
    }

    fn begin_walk(&mut self, file: &FileHeader) {
        let mut found = Recovered::empty(file.geometry, file.journal, file.volume);
        found.incarnation = self.newest_incarnation;
        found.tail = self.tail;
        // Even without the tail frame itself, recovery knows two facts. All writes before it are
        // committed. The epoch was on record before the acknowledgment of its first write.
        found.last = self.tail.before;
        found.epoch = self.tail_epoch;
        found.used = self.report.headers > 0;
        found.versions = self.keyed.then(Vec::new);
        found.end = self.tail.addr;
        found.number = self.tail.number;
        found.prev_crc = self.tail.prev_crc;
        self.report.tail = self.tail.addr;
        self.report.seqs = (1, 0);
        self.found = Some(found);
        self.pass = Pass::FrameWalk(FrameWalk {
            addr: self.tail.addr,
            buffer: BytesMut::new(),
            need: PAGE_BYTES,
            skipped: None,
            expected: self.tail,
            incarnation: 0,
        });
        if self.report.headers == 0 {
            self.end_walk(self.tail.addr, "no frame was ever written".into());
        } else {
            self.read_on(file.geometry);
        }
    }

    /// Asks for the bytes of the next step; never across the end of a file.
    fn read_on(&mut self, geometry: Geometry) {
        let Pass::FrameWalk(walk) = &self.pass else { return };
        let have = walk.buffer.len() as u64;
        let addr = walk.addr + have;
        // If the walk needs more, the buffer does not end at a file's end: frames do not cross it.
        let end = geometry.file_end(walk.addr).min(addr + READ_BYTES.max(walk.need - have));
        self.ask(geometry.file(addr), geometry.offset(addr), end - addr, addr);
    }

    fn walk(&mut self, data: Bytes) -> Result<(), JournalError> {
        let Some(geometry) = self.header.map(|header| header.geometry) else { return Ok(()) };
        if let Pass::FrameWalk(walk) = &mut self.pass {
            walk.buffer.extend_from_slice(&data);
        }
        loop {
            let Pass::FrameWalk(walk) = &mut self.pass else { return Ok(()) };
            if (walk.buffer.len() as u64) < walk.need {
                let left = geometry.file_end(walk.addr) - walk.addr;
                if walk.need <= left {
                    self.read_on(geometry);
                    return Ok(());
                }
            }
            match self.step(geometry) {
                NextFrame::Frame => {}
                NextFrame::More => continue,
                NextFrame::Broken(why) => {
                    let Pass::FrameWalk(walk) = &mut self.pass else { return Ok(()) };
                    // A frame that did not fit into the rest of the file is in the next one.
                    let at_start = walk.addr.is_multiple_of(geometry.area());
                    match walk.skipped.take() {
                        None if !at_start => {
                            walk.skipped = Some((walk.addr, why));
                            walk.addr = geometry.file_end(walk.addr);
                            walk.need = PAGE_BYTES;
                            walk.buffer.clear();
                            self.read_on(geometry);
                            return Ok(());
                        }
                        None => {
                            let addr = walk.addr;
                            return self.finish_walk(geometry, addr, why);
                        }
                        Some((addr, why)) => return self.finish_walk(geometry, addr, why),
                    }
                }
            }
        }
    }

    /// Looks at the frame at the start of the buffer.
    fn step(&mut self, geometry: Geometry) -> NextFrame {
        let (Pass::FrameWalk(walk), Some(found), Some(file)) =
            (&mut self.pass, &mut self.found, &self.header)
        else {
            return NextFrame::Broken("no walk under way".into());
        };
        let Ok(Some((header, crc))) = FrameHeader::parse(&walk.buffer) else {
            return NextFrame::Broken("no frame starts here".into());
        };
        if header.journal != file.journal
            || header.addr != walk.addr
            || header.number != walk.expected.number
            || header.prev_crc != walk.expected.prev_crc
            || header.incarnation < walk.incarnation
        {
            return NextFrame::Broken("the frame here does not belong to the chain".into());
        }
        if header.first_seq != walk.expected.before.saturating_add(1) {
            return NextFrame::Broken("write numbers do not follow each other".into());
        }
        let bytes = header.frame_bytes();
        if bytes > geometry.file_end(walk.addr) - walk.addr {
            return NextFrame::Broken("the frame does not fit into its file".into());
        }
        if (walk.buffer.len() as u64) < bytes {
            walk.need = bytes;
            return NextFrame::More;
        }
        debug_assert!(bytes <= MAX_FRAME_BYTES);
        let whole = walk.buffer.split_to(bytes as usize).freeze();
        let records = match parse_records(found.volume, &header, &whole) {
            Ok(records) => records,
            Err(why) => {
                // The start of the next file is unread, and cannot help.
                return NextFrame::Broken(why);
            }
        };
        for (offset, record) in &records {
            let place = RecordPlace::new(header.addr + offset, record);
            found.map.insert(record.range, place, 0);
            if let Some(versions) = &mut found.versions {
                let seq = record.seq;
                let bytes = &whole[*offset as usize..];
                let each = |range, seal| versions.push(Fed { seq, range, seal });
                seals(found.volume, record, bytes, each);
            }
        }
        if header.first_seq <= header.last_seq {
            if self.report.seqs.0 > self.report.seqs.1 {
                self.report.seqs.0 = header.first_seq;
            }
            self.report.seqs.1 = header.last_seq;
        }
        self.report.frames += 1;
        self.report.records += records.len() as u64;
        self.report.live_bytes += u64::from(header.body_bytes);
        self.report.epoch = self.report.epoch.max(header.epoch);
        found.chain.push_back(Frame {
            at: walk.expected_at(),
            bytes,
            body_bytes: header.body_bytes.into(),
            first: header.first_seq,
            last: header.last_seq,
            born: Time(0),
        });
        found.plain = found.plain.or_else(|| plain(found.volume, &whole, &records));
        found.epoch = found.epoch.max(header.epoch);
        found.last = header.last_seq;
        found.end = header.addr + bytes;
        found.number = header.number + 1;
        found.prev_crc = crc;
        walk.addr += bytes;
        walk.expected = FrameRef {
            addr: walk.addr,
            number: header.number + 1,
            prev_crc: crc,
            before: header.last_seq,
        };
        walk.incarnation = header.incarnation;
        walk.skipped = None;
        walk.need = PAGE_BYTES;
        NextFrame::Frame
    }

    fn finish_walk(
        &mut self,
        geometry: Geometry,
        addr: u64,
        why: String,
    ) -> Result<(), JournalError> {
        let (synced, witness) = self.synced;
        self.end_walk(addr, why.clone());
        if synced > addr {
            self.found = None;
            self.outcome = None;
            return Err(JournalError::Damaged {
                file: geometry.file(addr),
                offset: geometry.offset(addr),
                problem: format!(
                    "{why} (the frame in file {} at offset {} says that all before it was synced)",
                    geometry.file(witness),
                    geometry.offset(witness)
                ),
            });
        }
        Ok(())
    }

    fn end_walk(&mut self, addr: u64, why: String) {
        self.pass = Pass::Finished;
        if let Some(found) = self.found.take() {
            self.report.end = addr;
            self.report.end_at = (found.geometry.file(addr), found.geometry.offset(addr));
            self.report.stopped_by = why;
            self.outcome = Some(Ok(found));
        }
    }
}

impl FrameWalk {
    fn expected_at(&self) -> FrameRef {
        FrameRef { addr: self.addr, ..self.expected }
    }
}

enum NextFrame {
    /// It took a frame.
    Frame,
    /// It needs more bytes.
    More,
    /// The chain ends here.
    Broken(String),
}

/// The first of these records of a frame that has unencrypted data.
fn plain(volume: VolumeId, frame: &[u8], records: &[(u64, record::Header)]) -> Option<Range> {
    let is_plain = |(offset, header): &&(u64, record::Header)| match header.kind {
        Kind::Discard | Kind::Zero => false,
        Kind::Packed => {
            let opened = record::packed::open(volume, &frame[*offset as usize..]);
            opened.is_ok_and(|(_, lock, _)| lock.key == 0)
        }
        Kind::Data | Kind::Staged => true,
    };
    records.iter().find(is_plain).map(|(_, header)| header.range)
}

/// Verifies all records of a frame. Returns each one's offset from the frame's start.
fn parse_records(
    volume: VolumeId,
    header: &FrameHeader,
    frame: &Bytes,
) -> Result<Vec<(u64, record::Header)>, String> {
    let mut rest = frame.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.body_bytes as usize);
    let mut records = Vec::new();
    let mut seq = header.first_seq;
    let mut offset = FRAME_HEADER_BYTES as u64;
    while !rest.is_empty() {
        let record = record::parse(volume, &rest).map_err(|error| error.to_string())?;
        if record.header.seq != seq || record.header.epoch != header.epoch {
            return Err("a record of another frame".into());
        }
        seq += 1;
        let bytes = record.header.record_bytes();
        rest.advance(bytes);
        records.push((offset, record.header));
        offset += bytes as u64;
    }
    if seq != header.last_seq.saturating_add(1) {
        return Err("records are missing at the end of the frame".into());
    }
    Ok(records)
}
