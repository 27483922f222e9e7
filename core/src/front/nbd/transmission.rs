//! The transmission phase: commands in, checked once, block requests out (NBD `proto.md`,
//! "Transmission phase").
//!
//! Every check of a command is in [`Transmission::check`], and every request to the shell has
//! passed it. The session skips the payload of a refused command before it sends the refusal, so
//! the stream stays in step.

use super::config::Inflight;
use super::contexts::Contexts;
use super::event::{CloseReason, Event};
use super::export::ExportTerms;
use super::phase::{PhaseStep, SessionIo, TransmissionSetup};
use super::reply::{PendingReply, ReplyShape, descriptor_limit};
use crate::block::{BlockError, MAX_TRANSFER_BYTES, Range, Reply, Request, SECTOR_BYTES};
use crate::wire::nbd::{Command, Errno, Headers, StatusPayload, cmd, cmd_flag};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::BTreeMap;

/// The next thing in the stream.
#[derive(Debug)]
enum TransmissionState {
    /// A command.
    Header,
    /// The payload of a checked write.
    Write { command: Command, range: Range },
    /// The payload of a status query.
    StatusQuery { command: Command },
    /// The payload of a refused command, to skip.
    Skip { command: Command, left: u64, refusal: CommandError },
    /// Nothing: the client sent `NBD_CMD_DISC`. The session still answers outstanding requests.
    Left,
}

/// The error that refuses a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CommandError {
    error: Errno,
    text: &'static str,
}

const fn refusal<T>(error: Errno, text: &'static str) -> Result<T, CommandError> {
    Err(CommandError { error, text })
}

/// The action for a checked command.
#[derive(Debug)]
enum CommandAction {
    /// Send a request to the engine.
    Submit(Request),
    /// Ask for the state of a range in these contexts, one at least.
    Status { range: Range, contexts: Vec<u32> },
    /// Receive the payload first.
    Receive(Range),
    /// Receive the name of the metadata context first.
    ReceiveQuery,
    /// Do nothing, because the length is zero.
    Nothing,
}

/// A request that the shell works on.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    answer: PendingReply,
    /// Bytes counted against the limit.
    charge: u64,
    /// The status query, if this is one of its several contexts.
    query: Option<u64>,
}

/// A status query about several contexts. Each context has a chunk of the reply; the last one to
/// come ends the reply.
#[derive(Debug)]
struct ContextQuery {
    left: usize,
    /// The error of the first context that failed.
    error: Option<BlockError>,
}

/// Requests by slot. The low 32 bits of a slot number are an index. The bits above count how often
/// the index was used before, so a late second answer never hits a newer request.
#[derive(Debug, Default)]
struct Slots {
    entries: Vec<(u32, Option<Outstanding>)>,
    free: Vec<u32>,
    inflight: Inflight,
}

impl Slots {
    fn insert(&mut self, outstanding: Outstanding) -> u64 {
        self.inflight.requests += 1;
        self.inflight.bytes += outstanding.charge;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            (self.entries.len() - 1) as u32
        });
        let (used, entry) = &mut self.entries[index as usize];
        *entry = Some(outstanding);
        u64::from(*used) << 32 | u64::from(index)
    }

    fn remove(&mut self, slot: u64) -> Option<Outstanding> {
        let index = slot as u32;
        let (used, entry) = self.entries.get_mut(index as usize)?;
        if u64::from(*used) != slot >> 32 {
            return None;
        }
        let outstanding = entry.take()?;
        *used = used.wrapping_add(1);
        self.free.push(index);
        self.inflight.requests -= 1;
        self.inflight.bytes -= outstanding.charge;
        Some(outstanding)
    }
}

/// The transmission phase of a session.
#[derive(Debug)]
pub(super) struct Transmission {
    terms: ExportTerms,
    chunks: Option<Headers>,
    /// The contexts that are selected.
    contexts: Contexts,
    state: TransmissionState,
    slots: Slots,
    queries: BTreeMap<u64, ContextQuery>,
    next_query: u64,
}

impl Transmission {
    pub(super) fn new(setup: TransmissionSetup) -> Transmission {
        let TransmissionSetup { terms, chunks, contexts } = setup;
        Transmission {
            terms,
            chunks,
            contexts,
            state: TransmissionState::Header,
            slots: Slots::default(),
            queries: BTreeMap::new(),
            next_query: 0,
        }
    }

    pub(super) fn wants_input(&self, io: &SessionIo) -> bool {
        match self.state {
            TransmissionState::Header => {
                let limits = io.config.limits;
                let bytes = self.slots.inflight.bytes + io.output.bytes();
                self.slots.inflight.requests < limits.max_requests.max(1)
                    && bytes < limits.max_bytes.max(1)
            }
            TransmissionState::Write { .. }
            | TransmissionState::StatusQuery { .. }
            | TransmissionState::Skip { .. } => true,
            TransmissionState::Left => false,
        }
    }

    pub(super) fn wanted(&self) -> usize {
        match &self.state {
            TransmissionState::Header => self.header_bytes(),
            TransmissionState::Write { range, .. } => range.bytes() as usize,
            TransmissionState::StatusQuery { .. } => StatusPayload::BYTES,
            TransmissionState::Skip { .. } => 1,
            TransmissionState::Left => 0,
        }
    }

    /// Whether the client sent `NBD_CMD_DISC`.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.state, TransmissionState::Left)
    }

    /// Whether the client sent `NBD_CMD_DISC` and has every answer.
    pub(super) fn has_left(&self) -> bool {
        self.is_leaving() && self.slots.inflight.requests == 0
    }

    pub(super) fn inflight(&self) -> Inflight {
        self.slots.inflight
    }

    fn extended(&self) -> bool {
        self.chunks == Some(Headers::Extended)
    }

    fn header_bytes(&self) -> usize {
        if self.extended() { Command::EXTENDED_BYTES } else { Command::COMPACT_BYTES }
    }

    pub(super) fn step(&mut self, io: &mut SessionIo, input: &mut BytesMut) -> PhaseStep {
        match self.state {
            TransmissionState::Header => self.read_header(io, input),
            TransmissionState::Write { command, range } => {
                let length = range.bytes() as usize;
                if input.len() < length {
                    return PhaseStep::Starved;
                }
                let data = input.split_to(length).freeze();
                self.state = TransmissionState::Header;
                self.submit(io, command, write(command, range, data));
                PhaseStep::Again
            }
            TransmissionState::StatusQuery { command } => {
                if input.len() < StatusPayload::BYTES {
                    return PhaseStep::Starved;
                }
                let payload = input.split_to(StatusPayload::BYTES);
                self.state = TransmissionState::Header;
                let action = match StatusPayload::parse(&payload) {
                    Ok(StatusPayload { length, context })
                        if self.contexts.ids().any(|id| id == context) =>
                    {
                        let command = Command { length, ..command };
                        self.status(command, vec![context]).map(|action| (command, action))
                    }
                    _ => refusal(Errno::Inval, "no such metadata context is selected"),
                };
                match action {
                    Ok((command, action)) => self.act(io, command, action),
                    Err(refusal) => self.refuse(io, command, refusal),
                }
                PhaseStep::Again
            }
            TransmissionState::Skip { command, left, refusal } => {
                let skipped = left.min(input.len() as u64);
                input.advance(skipped as usize);
                let left = left - skipped;
                if left > 0 {
                    self.state = TransmissionState::Skip { command, left, refusal };
                    return PhaseStep::Starved;
                }
                self.state = TransmissionState::Header;
                self.refuse(io, command, refusal);
                PhaseStep::Again
            }
            TransmissionState::Left => PhaseStep::Starved,
        }
    }

    fn read_header(&mut self, io: &mut SessionIo, input: &mut BytesMut) -> PhaseStep {
        let bytes = self.header_bytes();
        if input.len() < bytes {
            return PhaseStep::Starved;
        }
        let parsed = if self.extended() {
            Command::parse_extended(input)
        } else {
            Command::parse_compact(input)
        };
        let Ok(command) = parsed else {
            return PhaseStep::Close(CloseReason::Violation("wrong magic number before a command"));
        };
        input.advance(bytes);
        if command.kind == cmd::DISC {
            self.state = TransmissionState::Left;
            if self.has_left() {
                return PhaseStep::Close(CloseReason::Disconnected);
            }
            return PhaseStep::Again;
        }
        let payload = match self.payload_bytes(command) {
            Ok(payload) => payload,
            Err(reason) => return PhaseStep::Close(reason),
        };
        match self.check(command, payload, io.shutting_down) {
            Ok(action) => self.act(io, command, action),
            Err(refusal) if payload > 0 => {
                self.state = TransmissionState::Skip { command, left: payload, refusal };
            }
            Err(refusal) => self.refuse(io, command, refusal),
        }
        PhaseStep::Again
    }

    /// Bytes of payload after the header, whether or not the command is valid.
    ///
    /// # Errors
    ///
    /// The number is unknown, or too large to skip.
    fn payload_bytes(&self, command: Command) -> Result<u64, CloseReason> {
        let carries = if self.extended() {
            let flagged = command.flags & cmd_flag::PAYLOAD_LEN != 0;
            if command.kind == cmd::WRITE && !flagged {
                // By the specification no payload follows. But a client that forgets the flag
                // probably sends one, and its data must not be taken for commands.
                return Err(CloseReason::Violation(
                    "a write with extended headers lacks NBD_CMD_FLAG_PAYLOAD_LEN",
                ));
            }
            flagged
        } else {
            command.kind == cmd::WRITE
        };
        // "Size constraints": up to 32 MiB is never an attack. Above, extended headers ask for a
        // hard disconnect. With compact headers there is room for twice as much, so that the
        // refusal can be a reply.
        let most = if self.extended() { MAX_TRANSFER_BYTES } else { 2 * MAX_TRANSFER_BYTES };
        match command.length {
            _ if !carries => Ok(0),
            length if length > most => {
                Err(CloseReason::Violation("a payload far above the maximum of 32 MiB"))
            }
            length => Ok(length),
        }
    }

    /// Checks a command that `payload` bytes follow.
    fn check(
        &self,
        command: Command,
        payload: u64,
        closing: bool,
    ) -> Result<CommandAction, CommandError> {
        let Command { flags, kind, length, .. } = command;
        let payload_len = if self.extended() { cmd_flag::PAYLOAD_LEN } else { 0 };
        // FUA is valid for all commands.
        let allowed = cmd_flag::FUA
            | match kind {
                cmd::READ if self.chunks.is_some() => cmd_flag::DF,
                cmd::READ | cmd::FLUSH | cmd::TRIM | cmd::CACHE => 0,
                cmd::WRITE => payload_len,
                cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
                cmd::BLOCK_STATUS => cmd_flag::REQ_ONE | payload_len,
                _ => return refusal(Errno::Inval, "unknown command"),
            };
        if flags & !allowed != 0 {
            return refusal(Errno::Inval, "a flag that this command does not take");
        }
        if closing {
            return refusal(Errno::Shutdown, "the server is shutting down");
        }
        let writes = matches!(kind, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
        if writes && self.terms.read_only {
            return refusal(Errno::Perm, "the export is read-only");
        }
        let fua = flags & cmd_flag::FUA != 0;
        match kind {
            cmd::FLUSH => {
                if command.offset != 0 || length != 0 {
                    return refusal(Errno::Inval, "a flush has neither offset nor length");
                }
                Ok(CommandAction::Submit(Request::Flush))
            }
            cmd::BLOCK_STATUS if flags & cmd_flag::PAYLOAD_LEN != 0 => {
                if self.contexts.is_empty() || payload != StatusPayload::BYTES as u64 {
                    let text = "a status payload must name one metadata context that is selected";
                    return refusal(Errno::Inval, text);
                }
                Ok(CommandAction::ReceiveQuery)
            }
            cmd::BLOCK_STATUS => self.status(command, self.contexts.ids().collect()),
            _ => {
                let range = self.range(command)?;
                if range.is_empty() {
                    return Ok(CommandAction::Nothing);
                }
                let long = length > u64::from(self.terms.max_payload);
                match kind {
                    // EOVERFLOW tells a client that knows chunks to try again with less.
                    cmd::READ if long && self.chunks.is_some() => {
                        refusal(Errno::Overflow, "longer than the maximum payload")
                    }
                    cmd::READ | cmd::WRITE if long => {
                        refusal(Errno::Inval, "longer than the maximum payload")
                    }
                    cmd::READ => Ok(CommandAction::Submit(Request::Read(range))),
                    cmd::WRITE => Ok(CommandAction::Receive(range)),
                    cmd::TRIM => Ok(CommandAction::Submit(Request::Discard { range, fua })),
                    cmd::CACHE => Ok(CommandAction::Submit(Request::Prefetch(range))),
                    _ => {
                        let allocate = flags & cmd_flag::NO_HOLE != 0;
                        Ok(CommandAction::Submit(Request::Zero { range, allocate, fua }))
                    }
                }
            }
        }
    }

    /// Checks a status query whose length is the length of the range.
    fn status(&self, command: Command, contexts: Vec<u32>) -> Result<CommandAction, CommandError> {
        if contexts.is_empty() {
            return refusal(Errno::Inval, "no metadata context is selected for this export");
        }
        let range = self.range(command)?;
        if range.is_empty() {
            return refusal(Errno::Inval, "a status query needs a length");
        }
        Ok(CommandAction::Status { range, contexts })
    }

    /// The sectors of a command, checked against the export.
    fn range(&self, command: Command) -> Result<Range, CommandError> {
        let Command { kind, offset, length, .. } = command;
        if offset > self.terms.size || length > self.terms.size - offset {
            // "Error values": writes and zeroes run out of space, all else is invalid.
            let error = match kind {
                cmd::WRITE | cmd::WRITE_ZEROES => Errno::NoSpc,
                _ => Errno::Inval,
            };
            return refusal(error, "beyond the end of the export");
        }
        if !(offset | length).is_multiple_of(self.terms.min_block.into()) {
            return refusal(Errno::Inval, "not aligned to the minimum block size");
        }
        Ok(Range::new(offset / SECTOR_BYTES, length / SECTOR_BYTES))
    }

    fn act(&mut self, io: &mut SessionIo, command: Command, action: CommandAction) {
        match action {
            CommandAction::Submit(request) => self.submit(io, command, request),
            CommandAction::Status { range, contexts } => self.query(io, command, range, &contexts),
            CommandAction::Receive(range) => {
                self.state = TransmissionState::Write { command, range }
            }
            CommandAction::ReceiveQuery => self.state = TransmissionState::StatusQuery { command },
            CommandAction::Nothing => {
                self.answer(command, ReplyShape::Nothing).succeed(&mut io.output)
            }
        }
    }

    fn submit(&mut self, io: &mut SessionIo, command: Command, request: Request) {
        let (shape, charge) = match request {
            Request::Read(_) => {
                (ReplyShape::Data { whole: command.flags & cmd_flag::DF != 0 }, command.length)
            }
            Request::Write { .. } => (ReplyShape::Nothing, command.length),
            _ => (ReplyShape::Nothing, 0),
        };
        let answer = self.answer(command, shape);
        let slot = self.slots.insert(Outstanding { answer, charge, query: None });
        io.events.push_back(Event::Request { slot, request });
    }

    fn query(&mut self, io: &mut SessionIo, command: Command, range: Range, contexts: &[u32]) {
        let one = command.flags & cmd_flag::REQ_ONE != 0;
        let most = if one { 1 } else { descriptor_limit(range) };
        let (min_block, charge) = (self.terms.min_block, 16 * most as u64);
        let query = (contexts.len() > 1).then(|| {
            self.next_query += 1;
            self.queries
                .insert(self.next_query, ContextQuery { left: contexts.len(), error: None });
            self.next_query
        });
        for &context in contexts {
            let answer = self.answer(command, ReplyShape::Status { most, min_block, context });
            let slot = self.slots.insert(Outstanding { answer, charge, query });
            io.events.push_back(match self.contexts.bitmap(context) {
                Some(bitmap) => Event::Dirty { slot, bitmap: bitmap.clone(), range },
                None => Event::Request { slot, request: Request::Status(range) },
            });
        }
    }

    fn answer(&self, command: Command, shape: ReplyShape) -> PendingReply {
        let Command { kind, cookie, offset, length, .. } = command;
        let read = kind == cmd::READ;
        PendingReply { chunks: self.chunks, cookie, offset, length, read, shape }
    }

    fn refuse(&mut self, io: &mut SessionIo, command: Command, refusal: CommandError) {
        let answer = self.answer(command, ReplyShape::Nothing);
        answer.fail(&mut io.output, refusal.error, refusal.text, None);
    }

    pub(super) fn handle_reply(
        &mut self,
        io: &mut SessionIo,
        slot: u64,
        reply: Result<Reply, BlockError>,
    ) -> bool {
        let Some(Outstanding { answer, query, .. }) = self.slots.remove(slot) else { return false };
        match query {
            None => answer.reply(&mut io.output, reply),
            Some(query) => self.part(io, query, answer, reply),
        }
        true
    }

    /// Handles the reply about one of several contexts.
    fn part(
        &mut self,
        io: &mut SessionIo,
        number: u64,
        answer: PendingReply,
        reply: Result<Reply, BlockError>,
    ) {
        let Some(query) = self.queries.get_mut(&number) else { return };
        query.left -= 1;
        let last = query.left == 0;
        let failed = query.error.or(reply.as_ref().err().copied());
        query.error = failed;
        if last {
            self.queries.remove(&number);
        }
        match (failed, reply) {
            (Some(error), _) if last => answer.reply(&mut io.output, Err(error)),
            (Some(_), _) => {}
            (None, Ok(Reply::Status(runs))) if answer.status(&mut io.output, last, &runs) => {}
            // The reply has ended. Replies for the other contexts are dropped.
            (None, _) => {
                self.queries.remove(&number);
                answer.misfit(&mut io.output);
            }
        }
    }
}

fn write(command: Command, range: Range, data: Bytes) -> Request {
    Request::Write { range, data, fua: command.flags & cmd_flag::FUA != 0 }
}
