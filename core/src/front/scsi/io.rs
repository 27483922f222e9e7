//! What a command does to the volume, one round of requests after another.
//!
//! Promises: every request lies within the volume as it is when the request is made, and carries as
//! many bytes as its range has; what a command has to do as a whole is one request.

use super::DataIn;
use super::copy::token::Populate;
use super::sense::{Sense, code, key};
use super::tasks::{Requests, joined};
use crate::block::{
    BLOCK_SECTORS, BlockState, Range, ReadPiece, Reply, Request, SECTOR_BYTES, StagedPiece,
    StatusRun, VolumeId,
};
use crate::record::MAX_RECORD_SECTORS;
use bytes::{Bytes, BytesMut};

/// Bytes that are read at a time to be looked at, or written at a time of a pattern.
const CHUNK_BYTES: u64 = 1 << 20;

/// Most bytes of a hint that blocks will be read; a longer one is cut. Guessed.
const PREFETCH_BYTES: u64 = 8 << 20;

/// Writes of a pattern that are under way at a time; they share their payload.
const PATTERN_WRITES: usize = 4;

/// What a verification compares the medium with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Against {
    /// Nothing: that it can be read is enough.
    Nothing,
    /// As many blocks.
    Output,
    /// One block, again and again.
    Block,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Kind {
    /// Nothing.
    Nothing,
    /// Nothing but fail.
    Refuse(Sense),
    Read,
    Write,
    WriteAndVerify(Against),
    Verify(Against),
    CompareAndWrite,
    OrWrite,
    /// The same block everywhere; without output it is zeroes.
    WriteSame {
        unmap: bool,
    },
    Discard(Vec<Range>),
    /// Whether the command ends before the flush does.
    Flush {
        immediate: bool,
    },
    Prefetch,
    /// The answer is cut to so many bytes.
    Status {
        allocation: usize,
    },
    /// Have these ranges watched, for a token.
    Watch {
        ranges: Vec<Range>,
        populate: Box<Populate>,
    },
    /// A part of a copy: have the range made ready to be written there.
    Stage {
        into: VolumeId,
        lba: u64,
        watch: Option<u64>,
    },
    /// A part of a copy: write what is ready.
    WriteStaged(Vec<StagedPiece>),
    /// A part of a copy: the range is to be unmapped zeroes.
    Zero,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Step {
    /// The answers to what was asked.
    Wait,
    /// The end, whatever requests are under way.
    Done(DataIn),
    Failed(Sense),
    /// The end of a part of a copy, with what is ready.
    Staged(Vec<StagedPiece>),
    /// The ranges are watched, for this token.
    Watching(u64, Box<Populate>),
}

/// What a command does, and how far it is.
#[derive(Debug)]
pub(super) struct Io {
    kind: Kind,
    /// In sectors; what `kind` names besides is within the volume as well.
    range: Range,
    block_sectors: u64,
    /// Writes are to be durable when the command ends; before a read, what was written is to be.
    durable: bool,
    data: Vec<Bytes>,
    /// Rounds done.
    round: u32,
    /// How far a command that goes step by step has come, and goes in this round.
    at: u64,
    until: u64,
    /// What the last round found.
    pieces: Vec<ReadPiece>,
    runs: Vec<StatusRun>,
    staged: Vec<StagedPiece>,
    watch: Option<u64>,
}

fn internal_failure() -> Step {
    Step::Failed(Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE))
}

impl Io {
    pub fn new(kind: Kind, range: Range, block_sectors: u64, durable: bool) -> Io {
        Io {
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

    /// It fails as soon as it starts.
    pub fn refuse(&mut self, sense: Sense) {
        self.kind = Kind::Refuse(sense);
    }

    /// Where it writes, and whether nobody else may meanwhile.
    pub fn claim(&self) -> Option<(Range, bool)> {
        let exclusive = match &self.kind {
            Kind::Write | Kind::WriteSame { .. } | Kind::WriteStaged(_) | Kind::Zero => false,
            Kind::WriteAndVerify(_) | Kind::CompareAndWrite | Kind::OrWrite => true,
            _ => return None,
        };
        (!self.range.is_empty()).then_some((self.range, exclusive))
    }

    /// Bytes that it holds beyond what it transfers.
    pub fn internal_bytes(&self) -> u64 {
        let bytes = self.range.bytes();
        match &self.kind {
            Kind::Verify(_) | Kind::WriteAndVerify(_) | Kind::WriteSame { .. } => {
                bytes.min(CHUNK_BYTES)
            }
            Kind::CompareAndWrite => bytes,
            Kind::OrWrite => bytes.saturating_mul(2),
            _ => 0,
        }
    }

    /// The output, all of it.
    pub fn set_data(&mut self, data: Vec<Bytes>) {
        self.data = data;
    }

    /// The answer to a request of the round under way.
    pub fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Done => {}
            Reply::Watching(watch) => self.watch = Some(watch),
            Reply::Staged(pieces) => self.staged = pieces,
            Reply::Data(pieces) => self.pieces = pieces,
            Reply::Status(runs) => self.runs = runs,
        }
    }

    /// Goes on, all requests of the last round being answered well.
    pub fn advance(&mut self, requests: &mut Requests<'_>) -> Step {
        let round = self.round;
        self.round = self.round.saturating_add(1);
        // The volume may have shrunk since the command came.
        if !self.range.fits(requests.sectors()) {
            let end = requests.sectors() / self.block_sectors;
            return Step::Failed(Sense::out_of_range(end.max(self.range.lba / self.block_sectors)));
        }
        match &self.kind {
            Kind::Nothing => Step::Done(DataIn::None),
            Kind::Refuse(sense) => Step::Failed(*sense),
            Kind::Read => self.read(requests),
            Kind::Write => match round {
                0 if !self.range.is_empty() => self.write(requests),
                _ => Step::Done(DataIn::None),
            },
            Kind::WriteAndVerify(against) => match round {
                0 if !self.range.is_empty() => {
                    self.durable = true;
                    self.write(requests)
                }
                _ => self.verify(requests, *against),
            },
            Kind::Verify(against) => match round {
                0 if !self.range.is_empty() => {
                    // What is verified is the medium (SBC-4 §5.36).
                    requests.push(Request::Flush);
                    Step::Wait
                }
                _ => self.verify(requests, *against),
            },
            Kind::CompareAndWrite | Kind::OrWrite if self.range.is_empty() => {
                Step::Done(DataIn::None)
            }
            Kind::CompareAndWrite => self.compare_and_write(requests, round),
            Kind::OrWrite => self.orwrite(requests, round),
            Kind::WriteSame { unmap } => self.write_same(requests, *unmap),
            Kind::Discard(ranges) => {
                if round > 0 || ranges.is_empty() {
                    return Step::Done(DataIn::None);
                }
                let sectors = requests.sectors();
                if let Some(beyond) = ranges.iter().find(|range| !range.fits(sectors)) {
                    let first = beyond.lba.max(sectors) / self.block_sectors;
                    return Step::Failed(Sense::out_of_range(first));
                }
                for &range in ranges {
                    requests.push(Request::Discard { range, fua: self.durable });
                }
                Step::Wait
            }
            Kind::Flush { immediate } => match round {
                0 => {
                    requests.push(Request::Flush);
                    if *immediate { Step::Done(DataIn::None) } else { Step::Wait }
                }
                _ => Step::Done(DataIn::None),
            },
            Kind::Prefetch => match round {
                0 if !self.range.is_empty() => {
                    let most = PREFETCH_BYTES / SECTOR_BYTES;
                    let sectors = self.range.sectors.min(most);
                    requests.push(Request::Prefetch(Range::new(self.range.lba, sectors)));
                    Step::Wait
                }
                _ => Step::Done(DataIn::None),
            },
            Kind::Status { allocation } => match round {
                0 => {
                    requests.push(Request::Status(self.range));
                    Step::Wait
                }
                _ => Step::Done(DataIn::Parameter(self.status(*allocation))),
            },
            Kind::Watch { ranges, populate } => match (round, self.watch) {
                (0, _) => {
                    requests.push(Request::Watch(ranges.clone()));
                    Step::Wait
                }
                (_, Some(watch)) => Step::Watching(watch, populate.clone()),
                (_, None) => internal_failure(),
            },
            Kind::Stage { into, lba, watch } => match round {
                0 => {
                    let (range, into, lba, watch) = (self.range, *into, *lba, *watch);
                    // The number is the shell's to draw.
                    let object = 0;
                    requests.push(Request::Stage { range, into, lba, object, watch });
                    Step::Wait
                }
                _ => self.ready(*lba),
            },
            Kind::WriteStaged(pieces) => match round {
                0 if !pieces.is_empty() => {
                    let (pieces, fua) = (pieces.clone(), self.durable);
                    requests.push(Request::WriteStaged { pieces, fua });
                    Step::Wait
                }
                _ => Step::Done(DataIn::None),
            },
            Kind::Zero => match round {
                0 if !self.range.is_empty() => {
                    let (range, fua) = (self.range, self.durable);
                    requests.push(Request::Zero { range, allocate: false, fua });
                    Step::Wait
                }
                _ => Step::Done(DataIn::None),
            },
        }
    }

    /// What was staged for `lba`, if it is all that was asked for, in order.
    fn ready(&mut self, lba: u64) -> Step {
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
        Step::Staged(std::mem::take(&mut self.staged))
    }

    /// FUA on a read: what is returned is durable (SBC-4 §5.16, table of FUA).
    fn read(&mut self, requests: &mut Requests<'_>) -> Step {
        if self.range.is_empty() {
            return Step::Done(DataIn::Pieces(Vec::new()));
        }
        if self.durable {
            self.durable = false;
            requests.push(Request::Flush);
            return Step::Wait;
        }
        if self.until == self.range.lba {
            return self.read_chunk(requests, self.range.sectors);
        }
        if !self.found(self.range.sectors) {
            return internal_failure();
        }
        Step::Done(DataIn::Pieces(std::mem::take(&mut self.pieces)))
    }

    /// Reads the next sectors, at most so many.
    fn read_chunk(&mut self, requests: &mut Requests<'_>, most: u64) -> Step {
        let sectors = most.min(self.range.end() - self.at);
        self.until = self.at + sectors;
        self.pieces = Vec::new();
        requests.push(Request::Read(Range::new(self.at, sectors)));
        Step::Wait
    }

    /// Whether what was found is so many sectors.
    fn found(&self, sectors: u64) -> bool {
        let bytes = self.pieces.iter().fold(0u64, |sum, piece| {
            sum.saturating_add(match piece {
                ReadPiece::Data(data) => data.len() as u64,
                ReadPiece::Zeroes(sectors) => sectors.saturating_mul(SECTOR_BYTES),
            })
        });
        bytes == sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Writes the output: as one request if one record holds it, so that a crash leaves no part of it.
    /// Of more than that, pieces that are whole blocks go as they came, and others are joined.
    fn write(&mut self, requests: &mut Requests<'_>) -> Step {
        let block = self.block_sectors * SECTOR_BYTES;
        let bytes = self.data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if bytes != self.range.bytes() {
            return internal_failure();
        }
        // One that begins with a checksum block may be a little longer than is promised for all.
        let fits = self.range.lba % BLOCK_SECTORS + self.range.sectors <= MAX_RECORD_SECTORS;
        let uncut = self.data.len() == 1
            || !fits && self.data.iter().all(|piece| (piece.len() as u64).is_multiple_of(block));
        // A verification needs the output once more.
        let data = match self.kind {
            Kind::WriteAndVerify(Against::Output) => self.data.clone(),
            _ => std::mem::take(&mut self.data),
        };
        let pieces = if uncut { data } else { vec![joined(data)] };
        let mut lba = self.range.lba;
        for data in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let range = Range::new(lba, data.len() as u64 / SECTOR_BYTES);
            lba = range.end();
            requests.push(Request::Write { range, data, fua: self.durable });
        }
        Step::Wait
    }

    /// Looks at the medium chunk by chunk.
    fn verify(&mut self, requests: &mut Requests<'_>, against: Against) -> Step {
        if self.until > self.at {
            if !self.found(self.until - self.at) {
                return internal_failure();
            }
            if self.at == self.range.lba && against != Against::Nothing {
                self.data = vec![joined(std::mem::take(&mut self.data))];
            }
            let start = (self.at - self.range.lba) * SECTOR_BYTES;
            let differs = match (against, self.data.first()) {
                (Against::Nothing, _) => None,
                (_, None) => return internal_failure(),
                (Against::Output, Some(data)) => {
                    mismatch(&self.pieces, data.get(start as usize..).unwrap_or_default(), false)
                }
                (Against::Block, Some(block)) => mismatch(&self.pieces, block, true),
            };
            if let Some(offset) = differs {
                // The block that differs, as for any error of the medium (SBC-4 §4.18.1).
                let sector = self.at + offset / SECTOR_BYTES;
                return Step::Failed(Sense::miscompare(sector / self.block_sectors));
            }
            self.at = self.until;
        }
        if self.at == self.range.end() {
            return Step::Done(DataIn::None);
        }
        self.read_chunk(requests, CHUNK_BYTES / SECTOR_BYTES)
    }

    fn compare_and_write(&mut self, requests: &mut Requests<'_>, round: u32) -> Step {
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
                    // Here it is the offset in the output (SBC-4 §5.3).
                    return Step::Failed(Sense::miscompare(offset));
                }
                let (range, data, fua) = (self.range, both.slice(half..), self.durable);
                requests.push(Request::Write { range, data, fua });
                Step::Wait
            }
            _ => Step::Done(DataIn::None),
        }
    }

    fn orwrite(&mut self, requests: &mut Requests<'_>, round: u32) -> Step {
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
                Step::Wait
            }
            _ => Step::Done(DataIn::None),
        }
    }

    fn write_same(&mut self, requests: &mut Requests<'_>, unmap: bool) -> Step {
        if self.at == self.range.end() {
            return Step::Done(DataIn::None);
        }
        if self.at == self.range.lba {
            let block = joined(std::mem::take(&mut self.data));
            if block.iter().all(|byte| *byte == 0) {
                self.at = self.range.end();
                let (range, fua) = (self.range, self.durable);
                // Blocks that were written are mapped, whatever was written (SBC-4 §4.7.4.4).
                requests.push(match unmap {
                    true => Request::Discard { range, fua },
                    false => Request::Zero { range, allocate: true, fua },
                });
                return Step::Wait;
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
        Step::Wait
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

/// Runs of blocks that are mapped, or not: first block, count, and which, at most `most` of them and
/// one at least. A block is mapped if any sector of it is.
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
    // Of the block that the last run ended in.
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
        // The engine told less than a block: claim nothing that would lose data.
        extents.push((0, 1, true));
    }
    extents
}

/// The first byte at which what was found differs from `data`, or from `data` again and again.
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
                // Longer than what it is compared with.
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
