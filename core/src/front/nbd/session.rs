//! One connection of a client, from the greeting to its end.

use super::config::{Config, Inflight};
use super::event::{CloseReason, Event};
use super::export::{ExportEntry, ExportInfo, LookupError};
use super::handshake::{self, HANDSHAKE_OUTPUT_BYTES, Handshake};
use super::phase::{PhaseStep, SessionIo};
use super::transmission::Transmission;
use crate::block::{BlockError, Reply};
use crate::front::output::OutputQueue;
use crate::wire::nbd as wire;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

#[derive(Debug)]
enum SessionPhase {
    Handshake(Handshake),
    Transmission(Box<Transmission>),
    Closed,
}

/// One connection of a client; the module documentation says how to drive it.
#[derive(Debug)]
pub struct Session {
    phase: SessionPhase,
    io: SessionIo,
}

impl Session {
    /// A session whose first output is the greeting.
    #[must_use]
    pub fn new(config: Config) -> Session {
        let mut output = OutputQueue::default();
        output.head(wire::put_greeting);
        let io = SessionIo { config, events: VecDeque::new(), output, shutting_down: false };
        Session { phase: SessionPhase::Handshake(Handshake::new()), io }
    }

    /// Takes as much as possible from the front of `input`. Payloads are split off, not copied, so
    /// they keep the memory of `input` alive. A closed session empties `input`.
    pub fn handle_input(&mut self, input: &mut BytesMut) {
        if let SessionPhase::Handshake(handshake) = &self.phase
            && handshake.refuses_input()
            && !input.is_empty()
        {
            self.close(handshake::PLAIN_BYTES_BEFORE_TLS);
        }
        while self.wants_input() {
            let step = match &mut self.phase {
                SessionPhase::Handshake(handshake) => handshake.step(&mut self.io, input),
                SessionPhase::Transmission(transmission) => transmission.step(&mut self.io, input),
                SessionPhase::Closed => break,
            };
            match step {
                PhaseStep::Starved => break,
                step => self.apply(step),
            }
        }
        if matches!(self.phase, SessionPhase::Closed) {
            input.clear();
        }
    }

    /// The client will send nothing more. The session gives up outstanding requests, because nobody
    /// reads the replies.
    pub fn handle_eof(&mut self) {
        let farewell = match &self.phase {
            SessionPhase::Transmission(transmission) => transmission.is_leaving(),
            SessionPhase::Handshake(_) | SessionPhase::Closed => false,
        };
        self.close(if farewell { CloseReason::Disconnected } else { CloseReason::Eof });
    }

    /// The server is shutting down. The session refuses later options and requests with that
    /// reason, and answers those in flight. Close once [`Session::inflight`] is empty and the
    /// output is written.
    pub fn handle_shutdown(&mut self) {
        self.io.shutting_down = true;
    }

    /// The answer to [`Event::ListExports`]; ignored if the session does not wait for one.
    pub fn handle_exports(&mut self, exports: Result<Vec<ExportEntry>, LookupError>) {
        if let SessionPhase::Handshake(handshake) = &mut self.phase {
            handshake.handle_exports(&mut self.io, exports);
        }
    }

    /// The answer to [`Event::LookupExport`]; ignored if the session does not wait for one.
    pub fn handle_export(&mut self, export: Result<ExportInfo, LookupError>) {
        if let SessionPhase::Handshake(handshake) = &mut self.phase {
            let step = handshake.handle_export(&mut self.io, export);
            self.apply(step);
        }
    }

    /// The TLS handshake after [`Event::StartTls`] succeeded; ignored if the session does not wait
    /// for it. If the TLS handshake fails, drop the session and the connection instead.
    pub fn handle_tls_established(&mut self) {
        if let SessionPhase::Handshake(handshake) = &mut self.phase {
            handshake.handle_tls_established();
        }
    }

    /// The outcome of [`Event::Request`] number `slot`.
    ///
    /// It returns false and does nothing if no such request is outstanding, as after the session
    /// closed. If the reply does not fit its request, the client gets `NBD_EIO`.
    pub fn handle_reply(&mut self, slot: u64, reply: Result<Reply, BlockError>) -> bool {
        let SessionPhase::Transmission(transmission) = &mut self.phase else { return false };
        let known = transmission.handle_reply(&mut self.io, slot, reply);
        if transmission.has_left() {
            self.close(CloseReason::Disconnected);
        }
        known
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.io.events.pop_front()
    }

    /// Takes the next bytes to write. Headers and small replies come gathered in one piece. Larger
    /// payloads are the buffers of the engine's replies.
    pub fn poll_output(&mut self) -> Option<Bytes> {
        self.io.output.poll()
    }

    /// Bytes that [`Session::poll_output`] has yet to give.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        self.io.output.bytes()
    }

    /// How many bytes the input buffer must hold in total before [`Session::handle_input`] can do
    /// anything, at most [`MAX_TRANSFER_BYTES`](crate::block::MAX_TRANSFER_BYTES). It is 0 if the
    /// session takes no input.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match &self.phase {
            _ if !self.wants_input() => 0,
            SessionPhase::Handshake(handshake) => handshake.wanted(),
            SessionPhase::Transmission(transmission) => transmission.wanted(),
            SessionPhase::Closed => 0,
        }
    }

    /// Whether the session would process more input now. It does not while it waits for an answer
    /// of the shell, at its limits, and after its end.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        match &self.phase {
            SessionPhase::Handshake(handshake) => {
                handshake.wants_input() && self.io.output.bytes() < HANDSHAKE_OUTPUT_BYTES
            }
            SessionPhase::Transmission(transmission) => transmission.wants_input(&self.io),
            SessionPhase::Closed => false,
        }
    }

    /// The outstanding requests; none once the session closed.
    #[must_use]
    pub fn inflight(&self) -> Inflight {
        match &self.phase {
            SessionPhase::Transmission(transmission) => transmission.inflight(),
            SessionPhase::Handshake(_) | SessionPhase::Closed => Inflight::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn limits(&self) -> super::Limits {
        self.io.config.limits
    }

    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, SessionPhase::Closed)
    }

    fn apply(&mut self, step: PhaseStep) {
        match step {
            PhaseStep::Again | PhaseStep::Starved => {}
            PhaseStep::Enter(setup) => {
                let transmission = Box::new(Transmission::new(*setup));
                self.phase = SessionPhase::Transmission(transmission);
            }
            PhaseStep::Close(reason) => self.close(reason),
        }
    }

    fn close(&mut self, reason: CloseReason) {
        if !matches!(self.phase, SessionPhase::Closed) {
            self.phase = SessionPhase::Closed;
            self.io.events.push_back(Event::Close(reason));
        }
    }
}
