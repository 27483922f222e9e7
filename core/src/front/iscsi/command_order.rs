//! The order of numbered commands in a session, and the window that the initiator may use (RFC 7143
//! §4.2.2).
//!
//! Promises: each number is taken once; requests that come before their turn wait for it; the last
//! number of the window never falls.

use super::connection::{CommandWindow, before};
use super::framing::Pdu;
use super::identity::ConnectionId;
use std::collections::BTreeMap;

/// A numbered request that came before its turn.
#[derive(Debug)]
pub(super) enum EarlyRequest {
    /// A command; its task waits in this slot.
    Command(u16),
    /// Any other request, with the connection it came on.
    Other(ConnectionId, Box<Pdu>),
    /// A received request that needs nothing more.
    Nothing,
}

/// The numbers of a session's commands.
#[derive(Debug)]
pub(super) struct CommandOrder {
    /// ExpCmdSN: number of the next command in order.
    expected: u32,
    /// Commands that the window holds.
    size: u32,
    /// Numbered commands that have not ended.
    active: u32,
    /// Immediate commands that have not ended.
    immediate: usize,
    early: BTreeMap<u32, EarlyRequest>,
}

impl CommandOrder {
    /// The next command has number `expected`; at most `size` may be outstanding.
    pub(super) fn new(expected: u32, size: u32) -> CommandOrder {
        CommandOrder { expected, size, active: 0, immediate: 0, early: BTreeMap::new() }
    }

    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    /// Immediate commands that have not ended.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// The numbers to tell the initiator with the next PDU.
    pub(super) fn window(&self) -> CommandWindow {
        // A command takes its place in the window when its turn comes, and gives it back when it
        // ends. So the last number never falls.
        let free = self.size.saturating_sub(self.active);
        let max = self.expected.wrapping_sub(1).wrapping_add(free);
        CommandWindow { expected: self.expected, max }
    }

    /// Whether the window holds no more commands.
    pub(super) fn is_full(&self) -> bool {
        self.active >= self.size
    }

    /// Whether a number is outside the window, or a request with it has come before.
    pub(super) fn is_beyond(&self, cmd_sn: u32) -> bool {
        before(cmd_sn, self.expected)
            || before(self.window().max, cmd_sn)
            || self.early.contains_key(&cmd_sn)
    }

    /// Whether it is the turn of this number; then it is taken.
    pub(super) fn take_turn(&mut self, cmd_sn: u32) -> bool {
        let turn = cmd_sn == self.expected;
        if turn {
            self.expected = self.expected.wrapping_add(1);
        }
        turn
    }

    /// Keeps a request until its turn.
    pub(super) fn keep(&mut self, cmd_sn: u32, request: EarlyRequest) {
        self.early.insert(cmd_sn, request);
    }

    /// Counts a number as received, unless a request with it waits.
    pub(super) fn count_as_received(&mut self, cmd_sn: u32) {
        self.early.entry(cmd_sn).or_insert(EarlyRequest::Nothing);
    }

    /// The request whose turn has come, if it is there.
    pub(super) fn next(&mut self) -> Option<EarlyRequest> {
        let request = self.early.remove(&self.expected)?;
        self.expected = self.expected.wrapping_add(1);
        Some(request)
    }

    /// Takes the next number, whether or not a request with it is there.
    pub(super) fn skip(&mut self) -> Option<EarlyRequest> {
        let request = self.early.remove(&self.expected);
        self.expected = self.expected.wrapping_add(1);
        request
    }

    /// A request that waits needs nothing more.
    pub(super) fn cancel(&mut self, cmd_sn: u32) {
        if let Some(request) = self.early.get_mut(&cmd_sn) {
            *request = EarlyRequest::Nothing;
        }
    }

    /// Requests of a connection that is gone need nothing more; commands keep their tasks.
    pub(super) fn cancel_of(&mut self, connection: ConnectionId) {
        for request in self.early.values_mut() {
            if matches!(request, EarlyRequest::Other(id, _) if *id == connection) {
                *request = EarlyRequest::Nothing;
            }
        }
    }

    /// Counts an immediate command that has arrived.
    pub(super) fn begin_immediate(&mut self) {
        self.immediate += 1;
    }

    /// The turn of a numbered command has come.
    pub(super) fn begin_numbered(&mut self) {
        self.active += 1;
    }

    /// A command that had begun has ended.
    pub(super) fn end(&mut self, immediate: bool) {
        if immediate {
            self.immediate -= 1;
        } else {
            self.active -= 1;
        }
    }
}
