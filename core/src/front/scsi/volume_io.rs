//! The I/O of one command: rounds of requests to the volume.
//!
//! Every request lies within the volume as it is when the request is made. Its payload has the
//! length of its range. An operation that has to be atomic is one request.

use super::copy::plan::PopulateToken;
use super::requests::{RequestSink, joined};
use super::response::DataIn;
use super::sense::{Sense, code, key};
use crate::block::{
    BLOCK_SECTORS, BlockState, Range, ReadPiece, Reply, Request, SECTOR_BYTES, StagedPiece,
    StatusRun, VolumeId,
};
use crate::record::MAX_RECORD_SECTORS;
use bytes::{Bytes, BytesMut};

/// Bytes per request when a command reads to compare, or writes a pattern.
const CHUNK_BYTES: u64 = 1 << 20;

/// Most bytes of a prefetch; a longer one is cut. Guessed.
const PREFETCH_BYTES: u64 = 8 << 20;

/// Writes of a pattern that are under way at a time. They share their payload.
const PATTERN_WRITES: usize = 4;

/// The data that a verification compares the medium with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerifyAgainst {
    /// None: the medium only has to be readable.
    Nothing,
    /// Output of the same length.
    Output,
    /// One block of output, repeated.
    Block,
}

/// The kind of I/O.
#[derive(Debug)]
pub(super) enum IoKind {
    /// No I/O.
    Nothing,
    /// No I/O; the command fails.
    Refuse(Sense),
    Read,
    Write,
    WriteAndVerify(VerifyAgainst),
    Verify(VerifyAgainst),
    CompareAndWrite,
    OrWrite,
    /// Write the same block everywhere. Without output the block is zeroes.
    WriteSame {
        unmap: bool,
    },
    Discard(Vec<Range>),
    /// The command ends before the flush does.
    Flush {
        immediate: bool,
    },
    Prefetch,
    /// At most this many bytes of the answer.
    Status {
        allocation: usize,
    },
    /// Watch these ranges, for a token.
    Watch {
        ranges: Vec<Range>,
        populate: Box<PopulateToken>,
    },
    /// Part of a copy: stage the range, for a write there.
    Stage {
        into: VolumeId,
        lba: u64,
        watch: Option<u64>,
    },
    /// Part of a copy: write staged pieces.
    WriteStaged(Vec<StagedPiece>),
    /// Part of a copy: make the range unmapped zeroes.
    Zero,
}

/// The next step of the I/O.
#[derive(Debug)]
pub(super) enum IoStep {
    /// Wait for the replies to the requests.
    Wait,
    /// The command ends, even if requests are under way.
    Done(DataIn),
    Failed(Sense),
    /// The part of a copy ends with these pieces.
    Staged(Vec<StagedPiece>),
    /// The ranges are watched by this watch, for this token.
    Watching(u64, Box<PopulateToken>),
}

/// The I/O of a command, and its progress.
#[derive(Debug)]
pub(super) struct VolumeIo {
    kind: IoKind,
    /// The range in sectors. The ranges in `kind` lie within the volume, too.
    range: Range,
    block_sectors: u64,
    /// Writes are durable when the command ends. A read comes after a flush of earlier writes.
    durable: bool,
    data: Vec<Bytes>,
    /// Rounds that are done.
    round: u32,
    /// First sector of this round and of the next one, for a command that proceeds in chunks.
    at: u64,
    until: u64,
    /// The results of the last round.
    pieces: Vec<ReadPiece>,
    runs: Vec<StatusRun>,
    staged: Vec<StagedPiece>,
    watch: Option<u64>,
}

fn internal_failure() -> IoStep {
    IoStep::Failed(Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE))
}

impl VolumeIo {
    pub fn new(kind: IoKind, range: Range, block_sectors: u64, durable: bool) -> VolumeIo {
        VolumeIo {
            kind,
            range,
            block_sectors,
            durable,
            data: Vec::new(),
            round: 0,
            at: range.lba,
            until: range.lba,
            pieces: Vec::new(),
            runs: Vec::new(),
            staged: Vec::new(),
            watch: None,
        }
    }

    /// Makes the command fail when it starts.
    pub fn refuse(&mut self, sense: Sense) {
        self.kind = IoKind::Refuse(sense);
    }

    /// The range that the command writes, and whether it needs exclusive access to it.
    pub fn claim(&self) -> Option<(Range, bool)> {
        let exclusive = match &self.kind {
            IoKind::Write | IoKind::WriteSame { .. } | IoKind::WriteStaged(_) | IoKind::Zero => {
                false
            }
            IoKind::WriteAndVerify(_) | IoKind::CompareAndWrite | IoKind::OrWrite => true,
            _ => return None,
        };
        (!self.range.is_empty()).then_some((self.range, exclusive))
    }

    /// Bytes that the command holds beyond the data that it transfers.
    pub fn internal_bytes(&self) -> u64 {
        let bytes = self.range.bytes();
        match &self.kind {
            IoKind::Verify(_) | IoKind::WriteAndVerify(_) | IoKind::WriteSame { .. } => {
                bytes.min(CHUNK_BYTES)
            }
            IoKind::CompareAndWrite => bytes,
            IoKind::OrWrite => bytes.saturating_mul(2),
            _ => 0,
        }
    }

    /// Takes the output, all of it.
    pub fn set_data(&mut self, data: Vec<Bytes>) {
        self.data = data;
    }

    /// Takes a reply of the round under way.
    pub fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Done => {}
            Reply::Watching(watch) => self.watch = Some(watch),
            Reply::Staged(pieces) => self.staged = pieces,
            Reply::Data(pieces) => self.pieces = pieces,
            Reply::Status(runs) => self.runs = runs,
        }
    }

    /// Goes on after all requests of the last round succeeded.
    pub fn advance(&mut self, requests: &mut RequestSink<'_>) -> IoStep {
        let round = self.round;
        self.round = self.round.saturating_add(1);
        // The volume may have shrunk since the command arrived.
        if !self.range.fits(requests.sectors()) {
            let end = requests.sectors() / self.block_sectors;
            return IoStep::Failed(Sense::out_of_range(
                end.max(self.range.lba / self.block_sectors),
            ));
        }
        match &self.kind {
            IoKind::Nothing => IoStep::Done(DataIn::None),
            IoKind::Refuse(sense) => IoStep::Failed(*sense),
            IoKind::Read => self.read(requests),
            IoKind::Write => match round {
                0 if !self.range.is_empty() => self.write(requests),
                _ => IoStep::Done(DataIn::None),
            },
            IoKind::WriteAndVerify(against) => match round {
                0 if !self.range.is_empty() => {
                    self.durable = true;
                    self.write(requests)
                }
                _ => self.verify(requests, *against),
            },
            IoKind::Verify(against) => match round {
                0 if !self.range.is_empty() => {
                    // VERIFY is about the medium, so flush the cache first (SBC-4 §5.36).
                    requests.push(Request::Flush);
                    IoStep::Wait
                }
                _ => self.verify(requests, *against),
            },
            IoKind::CompareAndWrite | IoKind::OrWrite if self.range.is_empty() => {
                IoStep::Done(DataIn::None)
            }
            IoKind::CompareAndWrite => self.compare_and_write(requests, round),
            IoKind::OrWrite => self.orwrite(requests, round),
            IoKind::WriteSame { unmap } => self.write_same(requests, *unmap),
            IoKind::Discard(ranges) => {
                if round > 0 || ranges.is_empty() {
                    return IoStep::Done(DataIn::None);
                }
                let sectors = requests.sectors();
                if let Some(beyond) = ranges.iter().find(|range| !range.fits(sectors)) {
                    let first = beyond.lba.max(sectors) / self.block_sectors;
                    return IoStep::Failed(Sense::out_of_range(first));
                }
                for &range in ranges {
                    requests.push(Request::Discard { range, fua: self.durable });
                }
                IoStep::Wait
            }
            IoKind::Flush { immediate } => match round {
                0 => {
                    requests.push(Request::Flush);
                    if *immediate { IoStep::Done(DataIn::None) } else { IoStep::Wait }
                }
                _ => IoStep::Done(DataIn::None),
            },
            IoKind::Prefetch => match round {
                0 if !self.range.is_empty() => {
                    let most = PREFETCH_BYTES / SECTOR_BYTES;
                    let sectors = self.range.sectors.min(most);
                    requests.push(Request::Prefetch(Range::new(self.range.lba, sectors)));
                    IoStep::Wait
                }
                _ => IoStep::Done(DataIn::None),
            },
            IoKind::Status { allocation } => match round {
                0 => {
                    requests.push(Request::Status(self.range));
                    IoStep::Wait
                }
                _ => IoStep::Done(DataIn::Parameter(self.status(*allocation))),
            },
            IoKind::Watch { ranges, populate } => match (round, self.watch) {
                (0, _) => {
                    requests.push(Request::Watch(ranges.clone()));
                    IoStep::Wait
                }
                (_, Some(watch)) => IoStep::Watching(watch, populate.clone()),
                (_, None) => internal_failure(),
            },
            IoKind::Stage { into, lba, watch } => match round {
                0 => {
                    let (range, into, lba, watch) = (self.range, *into, *lba, *watch);
                    // The shell draws the number.
                    let object = 0;
                    requests.push(Request::Stage { range, into, lba, object, watch });
                    IoStep::Wait
                }
                _ => self.ready(*lba),
            },
            IoKind::WriteStaged(pieces) => match round {
                0 if !pieces.is_empty() => {
                    let (pieces, fua) = (pieces.clone(), self.durable);
                    requests.push(Request::WriteStaged { pieces, fua });
                    IoStep::Wait
                }
                _ => IoStep::Done(DataIn::None),
            },
            IoKind::Zero => match round {
                0 if !self.range.is_empty() => {
                    let (range, fua) = (self.range, self.durable);
                    requests.push(Request::Zero { range, allocate: false, fua });
                    IoStep::Wait
                }
                _ => IoStep::Done(DataIn::None),
            },
        }
    }

    /// The staged pieces, if they cover exactly the range at `lba`, in order.
    fn ready(&mut self, lba: u64) -> IoStep {
        let mut at = lba;
        for piece in &self.staged {
            if piece.range.lba != at || piece.range.is_empty() {
                return internal_failure();
            }
            at = piece.range.end();
        }
        if at - lba != self.range.sectors {
            return internal_failure();
        }
        IoStep::Staged(std::mem::take(&mut self.staged))
    }

    /// FUA on a read: the data that is returned is durable (SBC-4 §5.16, table of FUA).
    fn read(&mut self, requests: &mut RequestSink<'_>) -> IoStep {
        if self.range.is_empty() {
            return IoStep::Done(DataIn::Pieces(Vec::new()));
        }
        if self.durable {
            self.durable = false;
            requests.push(Request::Flush);
            return IoStep::Wait;
        }
        if self.until == self.range.lba {
            return self.read_chunk(requests, self.range.sectors);
        }
        if !self.found(self.range.sectors) {
            return internal_failure();
        }
        IoStep::Done(DataIn::Pieces(std::mem::take(&mut self.pieces)))
    }

    /// Reads the next sectors, at most this many.
    fn read_chunk(&mut self, requests: &mut RequestSink<'_>, most: u64) -> IoStep {
        let sectors = most.min(self.range.end() - self.at);
        self.until = self.at + sectors;
        self.pieces = Vec::new();
        requests.push(Request::Read(Range::new(self.at, sectors)));
        IoStep::Wait
    }

    /// Whether the pieces that were read have this many sectors.
    fn found(&self, sectors: u64) -> bool {
        let bytes = self.pieces.iter().fold(0u64, |sum, piece| {
            sum.saturating_add(match piece {
                ReadPiece::Data(data) => data.len() as u64,
                ReadPiece::Zeroes(sectors) => sectors.saturating_mul(SECTOR_BYTES),
            })
        });
        bytes == sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Writes the output.
    ///
    /// Output that fits one record is one request, so that a crash leaves no part of it. If each
    /// piece of longer output is whole blocks, each piece is a request. Otherwise the device joins
    /// the pieces.
    fn write(&mut self, requests: &mut RequestSink<'_>) -> IoStep {
        let block = self.block_sectors * SECTOR_BYTES;
        let bytes = self.data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if bytes != self.range.bytes() {
            return internal_failure();
        }
        // Output that begins with a checksum block may be a little longer than the limit for all.
        let fits = self.range.lba % BLOCK_SECTORS + self.range.sectors <= MAX_RECORD_SECTORS;
        let uncut = self.data.len() == 1
            || !fits && self.data.iter().all(|piece| (piece.len() as u64).is_multiple_of(block));
        // A verification needs the output again.
        let data = match self.kind {
            IoKind::WriteAndVerify(VerifyAgainst::Output) => self.data.clone(),
            _ => std::mem::take(&mut self.data),
        };
        let pieces = if uncut { data } else { vec![joined(data)] };
        let mut lba = self.range.lba;
        for data in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let range = Range::new(lba, data.len() as u64 / SECTOR_BYTES);
            lba = range.end();
            requests.push(Request::Write { range, data, fua: self.durable });
        }
        IoStep::Wait
    }

    /// Compares the medium chunk by chunk.
    fn verify(&mut self, requests: &mut RequestSink<'_>, against: VerifyAgainst) -> IoStep {
        if self.until > self.at {
            if !self.found(self.until - self.at) {
                return internal_failure();
            }
            if self.at == self.range.lba && against != VerifyAgainst::Nothing {
                self.data = vec![joined(std::mem::take(&mut self.data))];
            }
            let start = (self.at - self.range.lba) * SECTOR_BYTES;
            let differs = match (against, self.data.first()) {
                (VerifyAgainst::Nothing, _) => None,
                (_, None) => return internal_failure(),
                (VerifyAgainst::Output, Some(data)) => {
                    mismatch(&self.pieces, data.get(start as usize..).unwrap_or_default(), false)
                }
                (VerifyAgainst::Block, Some(block)) => mismatch(&self.pieces, block, true),
            };
            if let Some(offset) = differs {
                // INFORMATION is the block that differs, as for other errors of the medium (SBC-4
                // §4.18.1).
                let sector = self.at + offset / SECTOR_BYTES;
                return IoStep::Failed(Sense::miscompare(sector / self.block_sectors));
            }
            self.at = self.until;
        }
        if self.at == self.range.end() {
            return IoStep::Done(DataIn::None);
        }
        self.read_chunk(requests, CHUNK_BYTES / SECTOR_BYTES)
    }

    fn compare_and_write(&mut self, requests: &mut RequestSink<'_>, round: u32) -> IoStep {
        match round {
            0 => {
                let both = joined(std::mem::take(&mut self.data));
                if both.len() as u64 != self.range.bytes() * 2 {
                    return internal_failure();
                }
                self.data = vec![both];
                self.read_chunk(requests, self.range.sectors)
            }
            1 => {
                let (Some(both), true) = (self.data.pop(), self.found(self.range.sectors)) else {
                    return internal_failure();
                };
                let half = both.len() / 2;
                if let Some(offset) = mismatch(&self.pieces, &both[..half], false) {
                    // INFORMATION is the offset in the output (SBC-4 §5.3).
                    return IoStep::Failed(Sense::miscompare(offset));
                }
                let (range, data, fua) = (self.range, both.slice(half..), self.durable);
                requests.push(Request::Write { range, data, fua });
                IoStep::Wait
            }
            _ => IoStep::Done(DataIn::None),
        }
    }

    fn orwrite(&mut self, requests: &mut RequestSink<'_>, round: u32) -> IoStep {
        match round {
            0 => self.read_chunk(requests, self.range.sectors),
            1 => {
                let mut data = BytesMut::with_capacity(self.range.bytes() as usize);
                for piece in std::mem::take(&mut self.data) {
                    data.extend_from_slice(&piece);
                }
                if data.len() as u64 != self.range.bytes() || !self.found(self.range.sectors) {
                    return internal_failure();
                }
                let mut at = 0;
                for piece in std::mem::take(&mut self.pieces) {
                    match piece {
                        ReadPiece::Data(found) => {
                            let part = data[at..].iter_mut();
                            part.zip(&found).for_each(|(byte, found)| *byte |= found);
                            at += found.len();
                        }
                        ReadPiece::Zeroes(sectors) => at += (sectors * SECTOR_BYTES) as usize,
                    }
                }
                let (range, data, fua) = (self.range, data.freeze(), self.durable);
                requests.push(Request::Write { range, data, fua });
                IoStep::Wait
            }
            _ => IoStep::Done(DataIn::None),
        }
    }

    fn write_same(&mut self, requests: &mut RequestSink<'_>, unmap: bool) -> IoStep {
        if self.at == self.range.end() {
            return IoStep::Done(DataIn::None);
        }
        if self.at == self.range.lba {
            let block = joined(std::mem::take(&mut self.data));
            if block.iter().all(|byte| *byte == 0) {
                self.at = self.range.end();
                let (range, fua) = (self.range, self.durable);
                // Blocks that were written are mapped, whatever their content (SBC-4 §4.7.4.4).
                requests.push(match unmap {
                    true => Request::Discard { range, fua },
                    false => Request::Zero { range, allocate: true, fua },
                });
                return IoStep::Wait;
            }
            if block.len() as u64 != self.block_sectors * SECTOR_BYTES {
                return internal_failure();
            }
            let times = (CHUNK_BYTES.min(self.range.bytes()) as usize / block.len()).max(1);
            self.data = vec![block.repeat(times).into()];
        }
        let Some(pattern) = self.data.first() else { return internal_failure() };
        for _ in 0..PATTERN_WRITES {
            let left = self.range.end() - self.at;
            let sectors = left.min(pattern.len() as u64 / SECTOR_BYTES);
            if sectors == 0 {
                break;
            }
            let range = Range::new(self.at, sectors);
            let data = pattern.slice(..(sectors * SECTOR_BYTES) as usize);
            requests.push(Request::Write { range, data, fua: self.durable });
            self.at += sectors;
        }
        IoStep::Wait
    }

    /// The parameter data of GET LBA STATUS (SBC-4 §5.6.2).
    fn status(&self, allocation: usize) -> Bytes {
        let most = (allocation.saturating_sub(8) / 16).clamp(1, 512);
        let first = self.range.lba / self.block_sectors;
        let blocks = self.range.sectors / self.block_sectors;
        let mut bytes = vec![0; 8];
        for (start, length, mapped) in extents(&self.runs, self.block_sectors, blocks, most) {
            bytes.extend((first + start).to_be_bytes());
            bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend([if mapped { 0 } else { 1 }, 0, 0, 0]);
        }
        // At most 8 KiB.
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes.truncate(allocation);
        bytes.into()
    }
}

/// Runs of blocks by state: first block, count, mapped or not. Returns one run at least, and `most`
/// at most. If any sector of a block is mapped, the block is mapped.
fn extents(
    runs: &[StatusRun],
    block_sectors: u64,
    blocks: u64,
    most: usize,
) -> Vec<(u64, u64, bool)> {
    let mut extents: Vec<(u64, u64, bool)> = Vec::new();
    let mut add = |from: u64, to: u64, mapped: bool| {
        let full = extents.len() == most;
        match extents.last_mut() {
            _ if from >= to => true,
            Some(last) if last.2 == mapped => {
                last.1 += to - from;
                true
            }
            _ if full => false,
            _ => {
                extents.push((from, to - from, mapped));
                true
            }
        }
    };
    let (mut sector, mut block) = (0u64, 0u64);
    // The state of the block that the last run ended in.
    let mut started = false;
    for run in runs {
        let mapped = run.state != BlockState::Hole;
        let end = sector.saturating_add(run.sectors).min(blocks.saturating_mul(block_sectors));
        let mut at = sector;
        if !at.is_multiple_of(block_sectors) {
            let boundary = at.next_multiple_of(block_sectors);
            started |= mapped;
            if end < boundary {
                sector = end;
                continue;
            }
            if !add(block, block + 1, started) {
                break;
            }
            block += 1;
            at = boundary;
        }
        let whole = end / block_sectors;
        if whole > block && at < end && !add(block, whole, mapped) {
            break;
        }
        block = block.max(whole);
        started = mapped;
        sector = end;
    }
    if extents.is_empty() && blocks > 0 {
        // The engine reported less than a block. Claim nothing that could lose data.
        extents.push((0, 1, true));
    }
    extents
}

/// The offset of the first byte that differs from `data`, or from `data` repeated if `again`.
fn mismatch(pieces: &[ReadPiece], data: &[u8], again: bool) -> Option<u64> {
    let mut at = 0u64;
    for piece in pieces {
        let (found, bytes) = match piece {
            ReadPiece::Data(found) => (Some(found), found.len() as u64),
            ReadPiece::Zeroes(sectors) => (None, sectors.saturating_mul(SECTOR_BYTES)),
        };
        let mut done = 0u64;
        while done < bytes {
            let start = at + done;
            let start = if again { start.checked_rem(data.len() as u64)? } else { start };
            let expected = data.get(start as usize..).unwrap_or_default();
            let length = (expected.len() as u64).min(bytes - done) as usize;
            if length == 0 {
                // The pieces are longer than the data.
                return Some(at + done);
            }
            let expected = &expected[..length];
            let differs = match found {
                Some(found) => {
                    let found = &found[done as usize..done as usize + length];
                    if found == expected {
                        None
                    } else {
                        found.iter().zip(expected).position(|(found, wanted)| found != wanted)
                    }
                }
                None => expected.iter().position(|byte| *byte != 0),
            };
            if let Some(offset) = differs {
                return Some(at + done + offset as u64);
            }
            done += length as u64;
        }
        at += bytes;
    }
    None
}
