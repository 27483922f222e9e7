//! Counters of a target.

use crate::front::scsi::CommandClass;
use crate::wire::iscsi::RejectReason;
use std::collections::BTreeMap;

/// Totals of a target. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands that the target handed to a device, by class in the order of [`CommandClass::ALL`].
    pub commands: [u64; CommandClass::ALL.len()],
    /// Headers whose digest did not match; each ended a connection (RFC 7143 §7.8).
    pub header_digest_errors: u64,
    /// Data segments whose digest did not match.
    pub data_digest_errors: u64,
    /// Reject PDUs by reason (§11.17.1).
    pub rejects: BTreeMap<RejectReason, u64>,
    /// Logins that reached the full feature phase.
    pub logins: u64,
    /// Refused logins (§11.13.5, status classes 2 and 3), and logins whose connection the target
    /// closed because no response was safe.
    pub logins_refused: u64,
    /// Logins that were redirected to another portal (status class 1).
    pub logins_redirected: u64,
    /// Commands that ended without a status by a task management function or by PREEMPT AND ABORT.
    pub aborted_by_function: u64,
    /// Commands that ended without a status because their connection or session ended.
    pub aborted_by_loss: u64,
}

/// Why a command ends without a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abort {
    Function,
    Loss,
}

impl Counters {
    /// Adds those of another target.
    pub fn add(&mut self, other: &Counters) {
        for (count, more) in self.commands.iter_mut().zip(other.commands) {
            *count += more;
        }
        for (reason, more) in &other.rejects {
            *self.rejects.entry(*reason).or_default() += more;
        }
        self.header_digest_errors += other.header_digest_errors;
        self.data_digest_errors += other.data_digest_errors;
        self.logins += other.logins;
        self.logins_refused += other.logins_refused;
        self.logins_redirected += other.logins_redirected;
        self.aborted_by_function += other.aborted_by_function;
        self.aborted_by_loss += other.aborted_by_loss;
    }

    pub(super) fn command(&mut self, opcode: u8) {
        self.commands[CommandClass::of(opcode) as usize] += 1;
    }

    pub(super) fn reject(&mut self, reason: RejectReason) {
        *self.rejects.entry(reason).or_default() += 1;
    }

    pub(super) fn abort(&mut self, why: Abort) {
        match why {
            Abort::Function => self.aborted_by_function += 1,
            Abort::Loss => self.aborted_by_loss += 1,
        }
    }
}
