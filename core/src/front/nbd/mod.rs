//! The server side of one NBD connection: bytes in, block requests out, replies back as bytes.
//!
//! Promises: whatever the client sends, the session never panics, holds no more memory than its
//! [`Limits`] allow, hands out only requests that lie within the export and carry a payload of their
//! length, and either stays in step with the stream or closes. Its output depends on the bytes, not
//! on how they were cut into reads, with one exception: bytes that arrive together with a
//! `STARTTLS`, where cutting matters to security (see [`CloseReason::Violation`]).
//!
//! It knows nothing of sockets, of TLS beyond the moment of the upgrade, or of what is behind an
//! export. What the protocol leaves open and was decided here is written down in `docs/nbd.md`.
//!
//! # Driving a session
//!
//! Start by writing [`Session::poll_output`] (the greeting). Then, for ever:
//!
//! 1. while [`Session::wants_input`], read at least one byte into a `BytesMut`, with room for
//!    [`Session::wanted`] bytes in total, and pass it to [`Session::handle_input`];
//! 2. take every event with [`Session::poll_event`] and act on it;
//! 3. write everything from [`Session::poll_output`];
//! 4. after an answer to an event went in or output was taken, pass a buffer that is not empty to
//!    `handle_input` again: what stopped it before may be gone.
//!
//! Handshakes take no time limit from here: the shell closes connections that dawdle before
//! [`Event::Ready`].

mod options;

mod reply;
mod transmission;

#[cfg(test)]
mod tests;

use crate::block::{BlockError, MAX_TRANSFER_BYTES, MAX_VOLUME_SECTORS, Range, Reply, Request};
use crate::front::output::Output;
use crate::wire::nbd::{self as wire, rep};
use bytes::{Bytes, BytesMut};
use options::Handshake;
use std::collections::VecDeque;
use transmission::Transmission;

/// Options a client may send before it is taken for an attack. Clients send about ten, and two or
/// three more for each export they look at.
const MAX_OPTIONS: u32 = 1024;

/// Output of a handshake that may wait to be written before no more input is taken. It is also the
/// largest answer to `LIST`.
const HANDSHAKE_OUTPUT_BYTES: u64 = 1 << 20;

/// How a session treats TLS ("TLS support").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// NOTLS: `STARTTLS` is refused.
    Off,
    /// FORCEDTLS: nothing but `STARTTLS` and `ABORT` works before the upgrade.
    Required,
}

/// What one session may hold at a time. Memory is bounded by `max_bytes` plus two transfers of
/// [`MAX_TRANSFER_BYTES`] (one admitted just below the limit, one being received), plus less than
/// 1 KiB for each request, plus an eighth where reads find data and zeroes alternating by sector.
/// A payload also keeps alive the rest of the buffer it was split from: the shell bounds that by
/// the size of the buffers it reads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests without a reply; at least one is always allowed. A status query about several contexts counts for each
    /// of them, and may go beyond by these, of which there are at most 17.
    pub max_requests: usize,
    /// Payload of requests without a reply, of reads to be answered, and of output not yet taken.
    pub max_bytes: u64,
}

impl Default for Limits {
    /// 1024 requests and 64 MiB: a client that keeps two of the largest requests in flight, or the
    /// deepest queue that Linux configures, is never slowed. Guessed, not measured.
    fn default() -> Limits {
        Limits { max_requests: 1024, max_bytes: 2 * MAX_TRANSFER_BYTES }
    }
}

/// Settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Treatment of TLS.
    pub tls: Tls,
    /// Memory bounds.
    pub limits: Limits,
}

/// What a client learns of an export, and what its requests are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name, at most 4096 bytes.
    pub name: String,
    /// Text for a human; may be empty.
    pub description: String,
    /// Size, at most [`MAX_VOLUME_SECTORS`].
    pub sectors: u64,
    /// Smallest request and its alignment for clients that ask for it: a power of two from 512 to
    /// 65536. Clients that do not ask may always use 512. An export that is not a multiple of it
    /// is served with 512.
    pub min_block: u32,
    /// Request size that needs no read-modify-write: a power of two, raised to `min_block`.
    pub preferred_block: u32,
    /// Largest payload for clients that ask for it, from `preferred_block` to
    /// [`MAX_TRANSFER_BYTES`]; it is moved into that range.
    pub max_payload: u32,
    /// Whether writes fail.
    pub read_only: bool,
    /// What clients may ask for as `qemu:dirty-bitmap:NAME`, the likeliest first; looked at only if the lookup asks
    /// for it.
    pub bitmaps: Vec<String>,
}

/// An entry of the answer to `LIST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name to open it by; longer than 4096 bytes it is left out.
    pub name: String,
    /// Text for a human; may be empty.
    pub description: String,
}

/// Why an export is not to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LookupError {
    /// What the client is told.
    pub kind: LookupErrorKind,
    /// Text for the human at the client: what, where, what to do next.
    pub message: String,
}

/// The kinds of [`LookupError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupErrorKind {
    /// No such export.
    Unknown,
    /// None yet: it is made when a client enters it, and not for one that looks. Its contexts can be
    /// selected all the same, without what only the export knows, because clients do that first.
    OnEntry,
    /// It exists, but not for this client or not now.
    Policy,
    /// The server is shutting down.
    Shutdown,
}

impl LookupErrorKind {
    fn refusal(self) -> rep::Refusal {
        match self {
            LookupErrorKind::Unknown | LookupErrorKind::OnEntry => rep::Refusal::Unknown,
            LookupErrorKind::Policy => rep::Refusal::Policy,
            LookupErrorKind::Shutdown => rep::Refusal::Shutdown,
        }
    }
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answer with [`Session::handle_exports`]. No input is taken until then.
    ListExports,
    /// Answer with [`Session::handle_export`]. No input is taken until then.
    LookupExport {
        /// What the client wrote; empty means the default export.
        name: String,
        /// Success starts the transmission phase; otherwise the client is only asking.
        entering: bool,
        /// [`ExportInfo::bitmaps`] is wanted.
        bitmaps: bool,
    },
    /// Write all output, then do the server's part of a TLS handshake, then call
    /// [`Session::handle_tls_established`]. All later bytes, both ways, are inside TLS.
    StartTls,
    /// Transmission begins on the export of this canonical name.
    Ready {
        /// [`ExportInfo::name`] of the answer.
        name: String,
    },
    /// Answer with [`Session::handle_reply`], in any order.
    Request {
        /// Names the request in the answer.
        slot: u64,
        /// Within the export; a payload has the range's length.
        request: Request,
    },
    /// Answer with [`Session::handle_reply`] as a status query: what is dirty by a bitmap is
    /// [`BlockState::Data`], all else a hole.
    Dirty {
        /// Names the request in the answer.
        slot: u64,
        /// One of [`ExportInfo::bitmaps`].
        bitmap: String,
        /// Within the export.
        range: Range,
    },
    /// The last event: write all output, then end TLS and the connection. Answers to requests that
    /// are still outstanding are dropped.
    Close(CloseReason),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// `NBD_OPT_ABORT`.
    #[error("the client aborted the handshake")]
    Aborted,
    /// `NBD_CMD_DISC`, all requests before it answered.
    #[error("the client disconnected")]
    Disconnected,
    /// The connection ended without a farewell.
    #[error("the connection ended without a disconnect request")]
    Eof,
    /// `EXPORT_NAME`, which has no error reply, could not be honoured.
    #[error("the export {name:?} was refused to a client that cannot be told why: {message}")]
    ExportRefused {
        /// What the client asked for.
        name: String,
        /// Why.
        message: String,
    },
    /// The client broke the protocol in a way that leaves no safe reply. Among these are plain
    /// bytes behind a `STARTTLS`: taken for TLS-protected ones, they would let whoever sits in the
    /// path put options into the client's mouth (CVE-2021-3716).
    #[error("protocol violation: {0}; check the client's NBD implementation")]
    Violation(&'static str),
}

/// What is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inflight {
    /// Requests without a reply.
    pub requests: usize,
    /// Their payload, as counted against [`Limits::max_bytes`].
    pub bytes: u64,
}

/// What every phase writes to and reads from.
#[derive(Debug)]
struct Io {
    config: Config,
    events: VecDeque<Event>,
    output: Output,
    shutting_down: bool,
}

/// How a phase goes on after a step.
#[derive(Debug)]
enum Step {
    /// Something was consumed or done: step again.
    Again,
    /// More input is needed.
    Starved,
    /// The handshake is over.
    Enter(Box<Transmission>),
    /// The session is over.
    Close(CloseReason),
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Box<Transmission>),
    Closed,
}

/// One connection of a client; see the module for how to drive it.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    io: Io,
}

impl Session {
    /// A session whose first output is the greeting.
    #[must_use]
    pub fn new(config: Config) -> Session {
        let mut output = Output::default();
        output.head(wire::put_greeting);
        let io = Io { config, events: VecDeque::new(), output, shutting_down: false };
        Session { phase: Phase::Handshake(Handshake::new()), io }
    }

    /// Takes what it can from the front of `input`. Payloads are split off, not copied, so they
    /// keep the memory of `input` alive. After the session closed, `input` is emptied.
    pub fn handle_input(&mut self, input: &mut BytesMut) {
        if let Phase::Handshake(handshake) = &self.phase
            && handshake.refuses_input()
            && !input.is_empty()
        {
            self.close(options::PLAIN_BYTES_BEFORE_TLS);
        }
        while self.wants_input() {
            let step = match &mut self.phase {
                Phase::Handshake(handshake) => handshake.step(&mut self.io, input),
                Phase::Transmission(transmission) => transmission.step(&mut self.io, input),
                Phase::Closed => break,
            };
            match step {
                Step::Starved => break,
                step => self.apply(step),
            }
        }
        if matches!(self.phase, Phase::Closed) {
            input.clear();
        }
    }

    /// The client will send nothing more. Outstanding requests are given up: nobody reads replies.
    pub fn handle_eof(&mut self) {
        let farewell =
            matches!(&self.phase, Phase::Transmission(transmission) if transmission.is_leaving());
        self.close(if farewell { CloseReason::Disconnected } else { CloseReason::Eof });
    }

    /// The server is shutting down: options and requests that arrive from now on are refused with
    /// that reason, those in flight are answered. Close once [`Session::inflight`] is empty and
    /// the output written.
    pub fn handle_shutdown(&mut self) {
        self.io.shutting_down = true;
    }

    /// The answer to [`Event::ListExports`]; ignored when none is awaited.
    pub fn handle_exports(&mut self, exports: Result<Vec<ExportEntry>, LookupError>) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.handle_exports(&mut self.io, exports);
        }
    }

    /// The answer to [`Event::LookupExport`]; ignored when none is awaited.
    pub fn handle_export(&mut self, export: Result<ExportInfo, LookupError>) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            let step = handshake.handle_export(&mut self.io, export);
            self.apply(step);
        }
    }

    /// The TLS handshake after [`Event::StartTls`] succeeded; ignored when none is awaited. If it
    /// fails, the shell drops session and connection instead.
    pub fn handle_tls_established(&mut self) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.handle_tls_established();
        }
    }

    /// The outcome of [`Event::Request`] number `slot`. False if no such request is outstanding,
    /// which is so for all of them once the session closed; then nothing happens. A reply that
    /// does not fit its request is reported to the client as `NBD_EIO`.
    pub fn handle_reply(&mut self, slot: u64, reply: Result<Reply, BlockError>) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else { return false };
        let known = transmission.handle_reply(&mut self.io, slot, reply);
        if transmission.has_left() {
            self.close(CloseReason::Disconnected);
        }
        known
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.io.events.pop_front()
    }

    /// The next bytes to write. Headers and small replies come gathered in one piece; payloads are
    /// the buffers the replies brought.
    pub fn poll_output(&mut self) -> Option<Bytes> {
        self.io.output.poll()
    }

    /// Bytes that [`Session::poll_output`] has yet to give.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        self.io.output.bytes()
    }

    /// How many bytes the input buffer must hold in total before [`Session::handle_input`] can do
    /// anything; 0 when it takes none. At most [`MAX_TRANSFER_BYTES`].
    #[must_use]
    pub fn wanted(&self) -> usize {
        match &self.phase {
            _ if !self.wants_input() => 0,
            Phase::Handshake(handshake) => handshake.wanted(),
            Phase::Transmission(transmission) => transmission.wanted(),
            Phase::Closed => 0,
        }
    }

    /// Whether more input would be processed now. False while an answer of the shell is awaited,
    /// at the limits, and at the end.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        match &self.phase {
            Phase::Handshake(handshake) => {
                handshake.wants_input() && self.io.output.bytes() < HANDSHAKE_OUTPUT_BYTES
            }
            Phase::Transmission(transmission) => transmission.wants_input(&self.io),
            Phase::Closed => false,
        }
    }

    /// What is outstanding; nothing once the session closed.
    #[must_use]
    pub fn inflight(&self) -> Inflight {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.inflight(),
            Phase::Handshake(_) | Phase::Closed => Inflight::default(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Again | Step::Starved => {}
            Step::Enter(transmission) => self.phase = Phase::Transmission(transmission),
            Step::Close(reason) => self.close(reason),
        }
    }

    fn close(&mut self, reason: CloseReason) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Closed;
            self.io.events.push_back(Event::Close(reason));
        }
    }
}

/// The terms under which an export is served to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    /// Size in bytes.
    size: u64,
    /// Alignment of offsets and lengths, in bytes: a power of two, a multiple of a sector.
    min_block: u32,
    preferred_block: u32,
    /// Largest payload, at most [`MAX_TRANSFER_BYTES`].
    max_payload: u32,
    read_only: bool,
}

impl Terms {
    /// `asked`: whether the client asked for size constraints and so promised to keep them
    /// ("Size constraints"). One that did not may use any sector, which is the smallest unit the
    /// engine has, and the 32 MiB that everyone may assume.
    fn new(export: &ExportInfo, asked: bool) -> Terms {
        const SECTOR: u32 = 512;
        const MAX_TRANSFER: u32 = MAX_TRANSFER_BYTES as u32;
        const { assert!(MAX_TRANSFER as u64 == MAX_TRANSFER_BYTES) };
        let power = |value: u32, min: u32| {
            value.clamp(min, 1 << 24).checked_next_power_of_two().unwrap_or(min)
        };
        let size = export.sectors.min(MAX_VOLUME_SECTORS) * u64::from(SECTOR);
        let mut min_block = power(export.min_block, SECTOR).min(1 << 16);
        if !asked || !size.is_multiple_of(min_block.into()) {
            min_block = SECTOR;
        }
        let preferred_block = power(export.preferred_block, min_block);
        let max_payload = if asked {
            export.max_payload.clamp(preferred_block, MAX_TRANSFER)
        } else {
            MAX_TRANSFER
        };
        Terms { size, min_block, preferred_block, max_payload, read_only: export.read_only }
    }
}
