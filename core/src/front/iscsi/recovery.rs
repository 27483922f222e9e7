//! Error recovery levels above 0 (RFC 7143 §7).
//!
//! The target keeps statuses and data until the initiator acknowledges them. It sends them again
//! for a SNACK, and moves tasks between connections.

use super::commands::{acknowledge_tag, input_bytes, put_data, send_data, send_status, status_of};
use super::connection::{DataInReader, before};
use super::counters::Abort;
use super::framing::Pdu;
use super::session::{Session, SessionContext};
use super::tasks::{DataInLayout, TaskStage};
use crate::front::scsi::ManagementFunction;
use crate::wire::iscsi::{FunctionResponse, RESERVED_TAG, RejectReason, Request, Response};
use bytes::Bytes;

/// Name of management functions whose result nobody needs.
const NOBODY: u64 = u64::MAX;

/// Kinds of SNACK (§11.16.1).
mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const STATUS: u8 = 1;
    pub(super) const DATA_ACKNOWLEDGEMENT: u8 = 2;
    pub(super) const R_DATA: u8 = 3;
}

impl Session {
    /// The initiator has acknowledged all statuses before `expected` of connection number `at`.
    pub(super) fn acknowledge(&mut self, cx: &mut SessionContext<'_>, at: usize, expected: u32) {
        let connection = &mut self.connections[at];
        // Ignore an acknowledgment of numbers that the target never sent.
        if !before(connection.acknowledged, expected) || before(connection.outlet.stat_sn, expected)
        {
            return;
        }
        connection.acknowledged = expected;
        if !connection.recovers() {
            return;
        }
        while let Some(sent) = self.connections[at].forget(expected) {
            if let Some(slot) = sent.task.and_then(|id| self.tasks.by_id(id)) {
                self.remove_task(slot);
            }
        }
        self.admit(cx);
    }

    /// Pings all connections with statuses that are not acknowledged.
    pub(super) fn solicit(&mut self, cx: &mut SessionContext<'_>) {
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            if connection.closing.is_none()
                && before(connection.acknowledged, connection.outlet.stat_sn)
            {
                self.ping(cx, at);
            }
        }
    }

    /// Ends one task without a response.
    pub(super) fn end_task(&mut self, cx: &mut SessionContext<'_>, slot: u16) {
        let id = self.tasks.id(slot);
        let Some(task) = self.abort(cx, slot, Abort::Loss) else { return };
        if task.stage == TaskStage::Active
            && let Some(device) = cx.device.as_deref_mut()
        {
            device.handle_management(
                cx.now,
                self.nexus,
                NOBODY,
                task.lun,
                ManagementFunction::AbortTask(id),
            );
        }
    }

    /// Handles a SNACK (§11.16).
    pub(super) fn snack(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: &Pdu) {
        let Request::Snack { kind, tag, begin, run, .. } = pdu.header.request else { return };
        let refused = if !self.connections[at].recovers() {
            Err(RejectReason::ProtocolError)
        } else {
            match kind {
                kind::STATUS => self.send_statuses(at, begin, run),
                kind::DATA_ACKNOWLEDGEMENT => self.acknowledge_data(at, tag, begin),
                kind::DATA => self.send_again(at, pdu.header.itt, begin, run),
                kind::R_DATA => self.send_anew(at, pdu.header.itt, tag),
                _ => Err(RejectReason::InvalidPduField),
            }
        };
        if let Err(reason) = refused {
            let data_sn = if reason == RejectReason::InvalidDataAck { begin } else { 0 };
            self.reject_data(cx, at, &pdu.raw, reason, data_sn);
        }
    }

    /// Sends statuses again: `run` of them, or all if it is 0, from `begin` on.
    fn send_statuses(&mut self, at: usize, begin: u32, run: u32) -> Result<(), RejectReason> {
        let window = self.window();
        let connection = &mut self.connections[at];
        // §11.17.1: the target does not keep acknowledged statuses.
        if before(begin, connection.acknowledged) {
            return Err(RejectReason::ProtocolError);
        }
        let next = connection.outlet.stat_sn;
        let end = if run == 0 { next } else { begin.wrapping_add(run) };
        if before(next, begin) || before(next, end) || before(end, begin) {
            return Err(RejectReason::InvalidPduField);
        }
        let sent: Vec<_> = connection
            .unacknowledged
            .iter()
            .filter(|sent| !before(sent.stat_sn, begin) && before(sent.stat_sn, end))
            .cloned()
            .collect();
        for sent in sent {
            connection.put(window, sent.itt, sent.stat_sn, sent.response, sent.data);
        }
        Ok(())
    }

    /// The initiator has acknowledged the Data-In PDUs before `begin`.
    fn acknowledge_data(&mut self, at: usize, tag: u32, begin: u32) -> Result<(), RejectReason> {
        let owner = self.connections[at].id;
        let slot = tag as u16;
        if acknowledge_tag(self.tasks.id(slot)) != tag {
            return Err(RejectReason::InvalidDataAck);
        }
        match self.tasks.get(slot) {
            Some(task)
                if task.connection == owner
                    && !before(begin, task.data_acknowledged)
                    && !before(task.data_sn, begin) =>
            {
                task.data_acknowledged = begin;
                Ok(())
            }
            _ => Err(RejectReason::InvalidDataAck),
        }
    }

    /// The slot of a task of connection number `at`.
    fn own(&mut self, at: usize, itt: u32) -> Result<u16, RejectReason> {
        let owner = self.connections[at].id;
        let slot = self.tasks.find(itt).ok_or(RejectReason::InvalidPduField)?;
        match self.tasks.get(slot) {
            Some(task) if task.connection == owner => Ok(slot),
            _ => Err(RejectReason::InvalidPduField),
        }
    }

    /// Sends Data-In or R2T PDUs again: `run` of them, or all if it is 0, from number `begin` on.
    fn send_again(
        &mut self,
        at: usize,
        itt: u32,
        begin: u32,
        run: u32,
    ) -> Result<(), RejectReason> {
        let slot = self.own(at, itt)?;
        let id = self.tasks.id(slot);
        let window = self.window();
        let Some(task) = self.tasks.get(slot) else { return Err(RejectReason::InvalidPduField) };
        let end = if run == 0 { task.data_sn } else { begin.wrapping_add(run) };
        if before(begin, task.data_acknowledged) {
            return Err(RejectReason::SnackReject);
        }
        if !before(begin, task.data_sn) || before(task.data_sn, end) || before(end, begin) {
            return Err(RejectReason::InvalidPduField);
        }
        let asked = |sn: u32| !before(sn, begin) && before(sn, end);
        let connection = &mut self.connections[at];
        if let Some(collect) = task.collect.as_deref() {
            for burst in collect.bursts().iter().filter(|burst| asked(burst.r2t_sn)) {
                let response = Response::R2t {
                    lun: task.lun,
                    ttt: burst.ttt,
                    r2t_sn: burst.r2t_sn,
                    offset: burst.offset,
                    bytes: burst.end - burst.offset,
                };
                connection.send(window, itt, response, Bytes::new());
            }
        } else if let Some(response) = task.response.take() {
            let bytes = input_bytes(task, &response);
            for range in task.layout.ranges(connection.parameters.max_burst, bytes) {
                if asked(range.data_sn()) {
                    let mut reader = DataInReader::new(&response.data, range.offset());
                    put_data(connection, window, id, task, &mut reader, range, bytes, None);
                }
            }
            task.response = Some(response);
        }
        Ok(())
    }

    /// Sends all unacknowledged data again, in segments of the present length, and the status with
    /// the SNACK's tag.
    fn send_anew(&mut self, at: usize, itt: u32, tag: u32) -> Result<(), RejectReason> {
        if tag == 0 || tag == RESERVED_TAG {
            return Err(RejectReason::InvalidPduField);
        }
        let slot = self.own(at, itt)?;
        let id = self.tasks.id(slot);
        let window = self.window();
        let Some(task) = self.tasks.get(slot) else { return Err(RejectReason::InvalidPduField) };
        let Some(response) = task.response.take().filter(|_| task.stage == TaskStage::Done) else {
            // No data was sent, so none can be lost.
            return Err(RejectReason::SnackReject);
        };
        let connection = &mut self.connections[at];
        let bytes = input_bytes(task, &response);
        let from = task.data_acknowledged;
        task.layout = relayout(
            task.layout,
            connection.parameters.max_burst,
            bytes,
            from,
            connection.segment(),
        );
        send_data(connection, window, id, task, &response.data, bytes, None);
        let (status, sense) = status_of(task, &response, tag);
        // All responses to a command have the same StatSN. The last one counts.
        if let Some(sent) = connection.unacknowledged.iter_mut().find(|sent| sent.task == Some(id))
        {
            sent.response = status;
            let stat_sn = sent.stat_sn;
            connection.put(window, itt, stat_sn, status, sense);
        }
        task.response = Some(response);
        Ok(())
    }

    /// Reassigns a task to connection number `at` (§7.2.2, §11.5.1).
    pub(super) fn reassign(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: &Pdu) {
        let Request::TaskManagement { lun, referenced, exp_data_sn, .. } = pdu.header.request
        else {
            return;
        };
        let new = self.connections[at].id;
        let slot = self.tasks.find(referenced);
        let owner = slot
            .and_then(|slot| self.tasks.get(slot))
            .filter(|task| task.lun == lun)
            .map(|task| task.connection);
        let response = match owner {
            _ if self.parameters.error_recovery_level < 2 => FunctionResponse::ReassignNotSupported,
            None => FunctionResponse::NoTask,
            Some(owner) if self.failed.iter().all(|failed| failed.id != owner) => {
                FunctionResponse::StillAllegiant
            }
            Some(_) => FunctionResponse::Complete,
        };
        self.respond_function(new, pdu.header.itt, response);
        if response == FunctionResponse::Complete
            && let Some(slot) = slot
        {
            self.resume(cx, at, slot, exp_data_sn);
        }
    }

    /// Goes on with a task on connection number `at`. The initiator expects Data-In or R2T number
    /// `expected` next.
    fn resume(&mut self, cx: &mut SessionContext<'_>, at: usize, slot: u16, expected: u32) {
        let window = self.window();
        let id = self.tasks.id(slot);
        let connection = &mut self.connections[at];
        let Some(task) = self.tasks.get(slot) else { return };
        task.connection = connection.id;
        let expected = if before(task.data_sn, expected) { task.data_sn } else { expected };
        if task.stage != TaskStage::Done {
            if let Some(collect) = task.collect.as_deref_mut() {
                collect.restart();
                task.data_sn = expected;
                self.advance(cx, slot);
            }
            return;
        }
        let Some(response) = task.response.take() else { return };
        let bytes = input_bytes(task, &response);
        let burst = connection.parameters.max_burst;
        let layout = DataInLayout { segment: task.layout.segment.max(1), ..task.layout };
        task.layout = relayout(layout, burst, bytes, expected, connection.segment());
        send_data(connection, window, id, task, &response.data, bytes, None);
        send_status(connection, window, id, task, &response, 0);
        task.response = Some(response);
    }
}

/// The layout that continues `layout` at PDU number `from`, with segments of `segment` bytes.
fn relayout(
    layout: DataInLayout,
    max_burst: u32,
    bytes: u64,
    from: u32,
    segment: u32,
) -> DataInLayout {
    let range = layout.ranges(max_burst, bytes).find(|range| range.data_sn() == from);
    match range {
        Some(range) => DataInLayout { data_sn: from, offset: range.offset(), segment },
        // The initiator has all PDUs, or none was sent.
        None if from == layout.data_sn => DataInLayout { segment, ..layout },
        None => DataInLayout { data_sn: from, offset: bytes, segment },
    }
}
