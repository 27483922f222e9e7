//! Replies of the transmission phase, as bytes (NBD `proto.md`, "Simple reply message", "Structured
//! reply types").

use super::contexts::BASE_ALLOCATION_ID;
use crate::block::{BlockError, BlockState, Range, ReadPiece, Reply, SECTOR_BYTES, StatusRun};
use crate::front::output::OutputQueue;
use crate::wire::nbd::{self as wire, Chunks, Errno, Headers, state};

/// Most descriptors in one status reply. The protocol advises against more than 2^20. A client asks
/// again from the end of the reply.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// The most descriptors that the reply to a status query can have.
pub(super) fn descriptor_limit(range: Range) -> usize {
    usize::try_from(range.sectors).unwrap_or(usize::MAX).min(MAX_DESCRIPTORS)
}

/// The NBD error for an error of the engine. No other place decides it.
///
/// `Fenced` and `Stopped` become `EIO`, although this host has lost the volume for good. The
/// protocol has no closer value, and `ESHUTDOWN` would promise that reconnecting helps.
fn errno(error: BlockError) -> Errno {
    match error {
        BlockError::Medium(_) | BlockError::Fenced | BlockError::Stopped => Errno::Io,
        // No command of the protocol can lead to these.
        BlockError::Changed | BlockError::Unsupported => Errno::Io,
        BlockError::ShuttingDown => Errno::Shutdown,
        BlockError::NoSpace => Errno::NoSpc,
    }
}

/// The content of a successful reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyShape {
    /// No data.
    Nothing,
    /// Data; in at most one content chunk if `whole` (`NBD_CMD_FLAG_DF`).
    Data { whole: bool },
    /// Status descriptors of a context: at most `most`, multiples of `min_block` bytes.
    Status { most: usize, min_block: u32, context: u32 },
}

/// The parts of a request that its reply needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReply {
    /// Kind of reply chunks; simple replies without.
    pub(super) chunks: Option<Headers>,
    /// The client's name for the request (NBD: cookie).
    pub(super) cookie: u64,
    /// First byte of the request.
    pub(super) offset: u64,
    /// Bytes of the request.
    pub(super) length: u64,
    /// The request is a read. Its reply is never simple once chunks are negotiated.
    pub(super) read: bool,
    /// The content of a successful reply.
    pub(super) shape: ReplyShape,
}

impl PendingReply {
    fn chunks(&self, headers: Headers) -> Chunks {
        Chunks { headers, cookie: self.cookie, offset: self.offset }
    }

    /// Answers with the reply of the engine.
    pub(super) fn reply(self, output: &mut OutputQueue, reply: Result<Reply, BlockError>) {
        let fits = match (self.shape, reply) {
            (_, Err(error)) => {
                let at = match error {
                    BlockError::Medium(range) if self.read => self.first_hit(range),
                    _ => None,
                };
                self.fail(output, errno(error), &error.to_string(), at);
                return;
            }
            (ReplyShape::Nothing, Ok(Reply::Done)) => {
                self.succeed(output);
                true
            }
            (ReplyShape::Data { whole }, Ok(Reply::Data(pieces))) => {
                self.data(output, whole, pieces)
            }
            (ReplyShape::Status { .. }, Ok(Reply::Status(runs))) => {
                self.status(output, true, &runs)
            }
            _ => false,
        };
        if !fits {
            self.misfit(output);
        }
    }

    /// Answers a request whose reply from the engine does not fit it, so that the stream stays in
    /// step.
    pub(super) fn misfit(self, output: &mut OutputQueue) {
        let text = "the volume gave an answer that does not fit the request; report this bug";
        self.fail(output, Errno::Io, text, None);
    }

    /// Answers with success and no data.
    pub(super) fn succeed(self, output: &mut OutputQueue) {
        output.head(|out| match self.chunks {
            Some(headers) if self.read || headers == Headers::Extended => {
                self.chunks(headers).put_none(out);
            }
            _ => wire::put_simple(out, self.cookie, None),
        });
    }

    /// Answers with an error. `at` is the byte of the export where the error is.
    pub(super) fn fail(self, output: &mut OutputQueue, error: Errno, text: &str, at: Option<u64>) {
        output.head(|out| match self.chunks {
            Some(headers) => self.chunks(headers).put_error(out, error, text, at),
            None => wire::put_simple(out, self.cookie, Some(error)),
        });
    }

    /// The first byte of the request that lies in `range`.
    fn first_hit(self, range: Range) -> Option<u64> {
        let own = Range::new(self.offset / SECTOR_BYTES, self.length / SECTOR_BYTES);
        Some(own.intersect(range)?.lba * SECTOR_BYTES)
    }

    /// Answers a read. If the pieces do not have the length of the request, it sends nothing and
    /// returns false.
    fn data(self, output: &mut OutputQueue, whole: bool, mut pieces: Vec<ReadPiece>) -> bool {
        pieces.retain(|piece| bytes_of(piece) > 0);
        let total = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(bytes_of(piece)));
        if total != Some(self.length) {
            return false;
        }
        let Some(headers) = self.chunks else {
            output.head(|out| wire::put_simple(out, self.cookie, None));
            send(output, &pieces);
            return true;
        };
        let chunks = self.chunks(headers);
        // Chunks are as long as possible: one for each run of pieces of the same kind.
        let runs = || pieces.chunk_by(|a, b| is_hole(a) == is_hole(b));
        if whole && runs().nth(1).is_some() {
            output.head(|out| chunks.put_data(out, true, self.offset, self.length as u32));
            send(output, &pieces);
            return true;
        }
        let (mut at, end) = (self.offset, self.offset + self.length);
        for run in runs() {
            let length: u64 = run.iter().map(bytes_of).sum();
            let done = at + length == end;
            if run.first().is_some_and(is_hole) {
                output.head(|out| chunks.put_hole(out, done, at, length as u32));
            } else {
                output.head(|out| chunks.put_data(out, done, at, length as u32));
                send(output, run);
            }
            at += length;
        }
        true
    }

    /// Answers a status query, or one of its contexts if not `done`. If the state of the first
    /// sector is unknown, it sends nothing and returns false.
    pub(super) fn status(self, output: &mut OutputQueue, done: bool, runs: &[StatusRun]) -> bool {
        let ReplyShape::Status { most, min_block, context } = self.shape else { return false };
        let Some(headers) = self.chunks else { return false };
        let flags = if context == BASE_ALLOCATION_ID { flags } else { dirt };
        let described = describe(runs, self.length, min_block.into(), most, flags);
        if described.is_empty() {
            return false;
        }
        let chunks = self.chunks(headers);
        output.head(|out| chunks.put_status(out, done, context, &described));
        true
    }
}

fn is_hole(piece: &ReadPiece) -> bool {
    matches!(piece, ReadPiece::Zeroes(_))
}

fn bytes_of(piece: &ReadPiece) -> u64 {
    match piece {
        ReadPiece::Data(data) => data.len() as u64,
        ReadPiece::Zeroes(sectors) => sectors.saturating_mul(SECTOR_BYTES),
    }
}

fn send(output: &mut OutputQueue, pieces: &[ReadPiece]) {
    for piece in pieces {
        match piece {
            ReadPiece::Data(data) => output.payload(data.clone()),
            ReadPiece::Zeroes(sectors) => output.zeroes(sectors * SECTOR_BYTES),
        }
    }
}

/// The flags of `base:allocation`. Each flag is a promise, and a missing flag promises nothing. So
/// a block with two states gets the flags that both states have.
fn flags(state: BlockState) -> u32 {
    match state {
        BlockState::Data => 0,
        BlockState::Zero => state::ZERO,
        BlockState::Hole => state::HOLE | state::ZERO,
    }
}

/// The flags of a dirty bitmap. If a part of a block is dirty, the block is dirty.
fn dirt(state: BlockState) -> u32 {
    match state {
        BlockState::Data => state::DIRTY,
        BlockState::Zero | BlockState::Hole => 0,
    }
}

/// The flags of a block that has two states.
fn shared(flags: fn(BlockState) -> u32, one: u32, other: u32) -> u32 {
    // For `base:allocation` the flags that hold for all of the block; for a bitmap those that hold
    // for any part.
    if flags(BlockState::Data) == 0 { one & other } else { one | other }
}

/// Descriptors under construction: (bytes, flags), at most `most`. Neighbors have different flags.
struct Descriptors {
    list: Vec<(u64, u32)>,
    most: usize,
}

impl Descriptors {
    /// Appends `bytes` with these flags; false if they need one descriptor too many.
    fn add(&mut self, bytes: u64, flags: u32) -> bool {
        let full = self.list.len() >= self.most;
        match self.list.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.1 == flags => last.0 += bytes,
            _ if full => return false,
            _ => self.list.push((bytes, flags)),
        }
        true
    }
}

/// Turns runs into descriptors that together are no longer than `length`.
///
/// Each is a multiple of `min_block`. The exception is a single descriptor for runs that end within
/// the first block. A block with several states gets the flags that hold for all of it.
fn describe(
    runs: &[StatusRun],
    length: u64,
    min_block: u64,
    most: usize,
    flags: fn(BlockState) -> u32,
) -> Vec<(u64, u32)> {
    let mut described = Descriptors { list: Vec::new(), most };
    let mut left = length;
    // The start of a block whose rest is in later runs.
    let mut part: Option<(u64, u32)> = None;
    for run in runs {
        let mut bytes = run.sectors.saturating_mul(SECTOR_BYTES).min(left);
        let own = flags(run.state);
        left -= bytes;
        if let Some((filled, before)) = part.take() {
            let taken = bytes.min(min_block - filled);
            bytes -= taken;
            let both = if taken > 0 { shared(flags, before, own) } else { before };
            if filled + taken < min_block {
                part = Some((filled + taken, both));
                continue;
            }
            if !described.add(min_block, both) {
                break;
            }
        }
        let whole = bytes - bytes % min_block;
        if !described.add(whole, own) {
            break;
        }
        if bytes > whole {
            part = Some((bytes - whole, own));
        }
    }
    if let (true, Some(part)) = (described.list.is_empty(), part) {
        described.list.push(part);
    }
    described.list
}
