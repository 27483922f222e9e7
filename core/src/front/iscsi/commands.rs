//! SCSI commands: they arrive with their output, go to the device, and end with input and status.

use super::collect::{DataOut, DataOutCollector, DataOutRules};
use super::connection::{CommandWindow, Connection, DataInReader, data_bytes};
use super::framing::Pdu;
use super::session::{Session, SessionContext};
use super::tasks::{DataInLayout, SessionTask, TaskStage};
use crate::block::MAX_TRANSFER_BYTES;
use crate::front::scsi::{Attribute, Command, Status, TaskId};
use crate::front::scsi::{CommandResponse as ScsiResponse, DataIn};
use crate::wire::iscsi::{RESERVED_TAG, RejectReason, Request, Residual, Response};
use bytes::{BufMut, Bytes, BytesMut};

/// Additional header segments (§11.2.2.1).
mod ahs {
    pub(super) const EXTENDED_CDB: u8 = 1;
    pub(super) const BIDIRECTIONAL: u8 = 2;
}

/// Longest CDB (SPC-5 §4.2.3), less the bytes in the header.
const MAX_MORE_CDB_BYTES: usize = 260 - 16;

/// The content of the additional header segments.
struct AdditionalHeaders {
    more_cdb: Bytes,
    bidirectional: bool,
}

/// Parses additional header segments; `None` if they are malformed.
fn extras(ahs: &Bytes) -> Option<AdditionalHeaders> {
    let mut extras = AdditionalHeaders { more_cdb: Bytes::new(), bidirectional: false };
    let mut at = 0;
    while at < ahs.len() {
        let length = usize::from(*ahs.get(at)?) << 8 | usize::from(*ahs.get(at + 1)?);
        let kind = *ahs.get(at + 2)?;
        let end = at + 3 + length;
        if end > ahs.len() {
            return None;
        }
        match kind & 0x3f {
            // §11.2.2.3: one reserved byte, then the bytes after the 16th.
            ahs::EXTENDED_CDB => {
                if length < 2 || length - 1 > MAX_MORE_CDB_BYTES || !extras.more_cdb.is_empty() {
                    return None;
                }
                extras.more_cdb = ahs.slice(at + 4..end);
            }
            ahs::BIDIRECTIONAL => extras.bidirectional = true,
            _ => return None,
        }
        at = end.next_multiple_of(4);
    }
    Some(extras)
}

/// A CHECK CONDITION of the transport itself, with sense data in fixed format (SPC-5 §4.4.3).
pub(super) fn refusal(key: u8, code: u16) -> ScsiResponse {
    let mut sense = [0; 18];
    sense[0] = 0x70;
    sense[2] = key;
    sense[7] = 10;
    sense[12..14].copy_from_slice(&code.to_be_bytes());
    ScsiResponse {
        status: Status::CheckCondition,
        sense: Bytes::copy_from_slice(&sense),
        data: DataIn::None,
        out_wanted: 0,
    }
}

/// The difference between the bytes moved and the bytes expected (§11.4.5).
fn residual(task: &SessionTask, response: &ScsiResponse) -> Residual {
    let expected = u64::from(task.expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    let found = data_bytes(&response.data);
    // Bytes in the direction that the initiator did not announce are all overflow.
    let (moved, against) = match (task.read, task.write) {
        (true, _) => (found, response.out_wanted),
        (false, true) => (response.out_wanted, found),
        (false, false) => (0, found + response.out_wanted),
    };
    if against > 0 {
        Residual::Overflow(count(against))
    } else if moved > expected {
        Residual::Overflow(count(moved - expected))
    } else if moved < expected {
        Residual::Underflow(count(expected - moved))
    } else {
        Residual::None
    }
}

impl Session {
    fn rules(&self, cx: &SessionContext<'_>) -> DataOutRules {
        let parameters = &self.parameters;
        DataOutRules {
            recover: parameters.error_recovery_level > 0,
            in_order: parameters.data_pdu_in_order,
            max_burst: parameters.max_burst.max(512),
            max_outstanding: usize::from(
                parameters.max_outstanding_r2t.min(cx.config.max_outstanding_r2t.max(1)),
            ),
        }
    }

    /// Takes a command before its turn. `None` if it refuses the command.
    pub(super) fn receive(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        pdu: &Pdu,
    ) -> Option<u16> {
        let header = &pdu.header;
        let Request::ScsiCommand { last, read, write, attribute, lun, expected_bytes, cdb } =
            header.request
        else {
            return None;
        };
        let Some(extras) = extras(&pdu.ahs) else {
            self.reject(cx, at, &pdu.raw, RejectReason::InvalidPduField);
            return None;
        };
        if !write && (!pdu.data.is_empty() || !last) {
            self.reject(cx, at, &pdu.raw, RejectReason::InvalidPduField);
            return None;
        }
        let connection = &self.connections[at];
        let parameters = &connection.parameters;
        let bidirectional = extras.bidirectional || read && write;
        let mut collect = None;
        if write {
            // §4.2.5.2: unsolicited data of either kind has to be negotiated.
            let unsolicited = if parameters.immediate_data || !parameters.initial_r2t {
                parameters.first_burst
            } else {
                0
            };
            let immediate = pdu.data.clone();
            let unexpected = !immediate.is_empty() && !parameters.immediate_data
                || !last && parameters.initial_r2t;
            let mut data = DataOutCollector::new(expected_bytes, unsolicited, immediate, last);
            if unexpected {
                data.fail(super::collect::condition::UNEXPECTED_UNSOLICITED_DATA);
            }
            collect = Some(Box::new(data));
        }
        let command = Command {
            lun,
            cdb,
            more_cdb: extras.more_cdb,
            attribute: match attribute {
                2 => Attribute::Ordered,
                3 => Attribute::HeadOfQueue,
                4 => Attribute::Aca,
                _ => Attribute::Simple,
            },
            out_bytes: if write { expected_bytes.into() } else { 0 },
            in_bytes: if read { expected_bytes.into() } else { 0 },
        };
        let task = SessionTask {
            itt: header.itt,
            connection: connection.id,
            lun,
            cmd_sn: header.cmd_sn,
            immediate: header.immediate,
            read: read && !bidirectional,
            write,
            expected: expected_bytes,
            stage: TaskStage::Held,
            command: (!bidirectional).then_some(command),
            collect,
            charge: 0,
            data_sn: 0,
            tags: 0,
            frozen: false,
            response: None,
            data_acknowledged: 0,
            layout: DataInLayout::default(),
        };
        let slot = self.tasks.insert(task);
        if slot.is_none() {
            self.reject(cx, at, &pdu.raw, RejectReason::TooManyImmediateCommands);
        } else if header.immediate {
            self.order.begin_immediate();
        }
        slot
    }

    /// Handles a command whose turn has come.
    pub(super) fn enter(&mut self, cx: &mut SessionContext<'_>, slot: u16) {
        let Some(task) = self.tasks.wait(slot) else { return };
        if !task.immediate {
            self.order.begin_numbered();
        }
        self.admit(cx);
    }

    /// Hands commands to the device, in order, as far as memory allows.
    pub(super) fn admit(&mut self, cx: &mut SessionContext<'_>) {
        if self.ended || !self.tasks.has_waiting() || self.functions.barrier().is_some() {
            return;
        }
        while let Some(slot) = self.tasks.next_waiting() {
            let held = self.held_bytes();
            let Some(task) = self.tasks.get(slot) else { return };
            let moves = task.read || task.write;
            let charge = if moves { u64::from(task.expected).min(MAX_TRANSFER_BYTES) } else { 0 };
            // Always admit one command, or the session would block for ever.
            if charge > 0 && held > 0 && held + charge > cx.config.session_bytes {
                if self.connections.iter().any(|connection| !connection.unacknowledged.is_empty()) {
                    self.solicit(cx);
                }
                return;
            }
            let command = self.tasks.admit_next(charge);
            let id = self.tasks.id(slot);
            match (command, cx.device.as_deref_mut()) {
                (Some(command), Some(device)) => {
                    cx.counters.command(command.cdb[0]);
                    device.handle_command(cx.now, self.nexus, id, command);
                }
                // INVALID FIELD IN COMMAND INFORMATION UNIT: the target has no bidirectional
                // commands.
                _ => self.respond(cx, slot, refusal(0x05, 0x0e03)),
            }
        }
    }

    /// Handles a Data-Out. `damaged`: only its header arrived intact.
    pub(super) fn data_out(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        pdu: Pdu,
        damaged: bool,
    ) {
        let Request::DataOut { last, lun, ttt, data_sn, offset } = pdu.header.request else {
            return;
        };
        let rules = self.rules(cx);
        let id = self.connections[at].id;
        let itt = pdu.header.itt;
        let slot = self.tasks.find(itt);
        let task = slot.and_then(|slot| Some((slot, self.tasks.get(slot)?)));
        let known = match task {
            // Solicited data has the logical unit number (§11.7.4); unsolicited data has 0.
            Some((slot, task))
                if task.connection == id && (ttt == RESERVED_TAG || lun == task.lun) =>
            {
                task.collect.as_deref_mut().and_then(|collect| {
                    let bytes = pdu.header.data_bytes as u32;
                    let data = (!damaged).then_some(pdu.data);
                    let segment = DataOut { ttt, last, data_sn, offset, bytes, data };
                    collect.handle(rules, segment).then_some(slot)
                })
            }
            _ => None,
        };
        match known {
            Some(slot) => {
                self.advance(cx, slot);
                if !self.functions.is_empty() {
                    self.advance_functions(cx);
                }
            }
            // Drop data of an aborted task.
            None if self.tasks.is_late_tag(itt) => {}
            None if damaged => {}
            None => self.reject(cx, at, &pdu.raw, RejectReason::InvalidPduField),
        }
    }

    /// Moves a task on: solicits output, hands it to the device, or ends the task.
    pub(super) fn advance(&mut self, cx: &mut SessionContext<'_>, slot: u16) {
        let rules = self.rules(cx);
        let id = self.tasks.id(slot);
        let window = self.window();
        let Some(task) = self.tasks.get(slot) else { return };
        if task.stage != TaskStage::Active {
            return;
        }
        let Some(collect) = task.collect.as_deref_mut() else { return };
        if task.response.is_some() {
            if collect.is_quiet()
                && let Some(response) = task.response.take()
            {
                self.finish(slot, response);
            }
            return;
        }
        match (collect.finish(), cx.device.as_deref_mut()) {
            (Some(Ok(data)), Some(device)) => return device.handle_data(cx.now, id, data),
            (Some(Err(code)), Some(device)) => {
                const ABORTED_COMMAND: u8 = 0x0b;
                return device.handle_data_failure(cx.now, id, ABORTED_COMMAND, code);
            }
            _ => {}
        }
        let owner = task.connection;
        if task.frozen {
            return;
        }
        let Some(connection) =
            self.connections.iter_mut().find(|connection| connection.id == owner)
        else {
            return;
        };
        loop {
            let ttt = u32::from(slot) << 16 | u32::from(task.tags);
            let Some(burst) = collect.solicit(rules, ttt, task.data_sn) else { return };
            task.tags = task.tags.wrapping_add(1);
            task.data_sn = task.data_sn.wrapping_add(1);
            let bytes = burst.end - burst.offset;
            let response = Response::R2t {
                lun: task.lun,
                ttt,
                r2t_sn: burst.r2t_sn,
                offset: burst.offset,
                bytes,
            };
            connection.send(window, task.itt, response, Bytes::new());
        }
    }

    /// The device wants output for a task.
    pub(super) fn handle_want(&mut self, cx: &mut SessionContext<'_>, id: TaskId, bytes: u64) {
        let Some(slot) = self.tasks.by_id(id) else { return };
        let Some(task) = self.tasks.get(slot) else { return };
        if let Some(collect) = task.collect.as_deref_mut() {
            collect.want(bytes);
            self.advance(cx, slot);
        }
    }

    /// The device has ended a task.
    pub(super) fn handle_response(
        &mut self,
        cx: &mut SessionContext<'_>,
        id: TaskId,
        response: ScsiResponse,
    ) {
        if let Some(slot) = self.tasks.by_id(id) {
            self.respond(cx, slot, response);
        }
    }

    /// Ends a task. The status waits for output that is on its way (§7.3).
    fn respond(&mut self, cx: &mut SessionContext<'_>, slot: u16, response: ScsiResponse) {
        let Some(task) = self.tasks.get(slot) else { return };
        if task.collect.as_deref().is_none_or(DataOutCollector::is_quiet) {
            self.finish(slot, response);
        } else {
            task.response = Some(response);
        }
        let _ = cx;
    }

    /// Sends the input and the status of a task.
    pub(super) fn finish(&mut self, slot: u16, response: ScsiResponse) {
        let Some(task) = self.tasks.get(slot) else { return };
        let owner = task.connection;
        task.collect = None;
        if task.stage == TaskStage::Active {
            task.stage = TaskStage::Done;
            self.order.end(task.immediate);
        }
        let Some(at) = self.connections.iter().position(|connection| connection.id == owner) else {
            // The connection has failed. The task may be reassigned.
            if let Some(task) = self.tasks.get(slot) {
                task.response = Some(response);
            }
            return;
        };
        let window = self.window();
        let connection = &mut self.connections[at];
        let Some(task) = self.tasks.get(slot) else { return };
        let residual = residual(task, &response);
        let bytes = input_bytes(task, &response);
        // §11.7.3: a GOOD status may come with the data. If the status may have to be sent again,
        // it goes alone.
        let collapse = bytes > 0 && response.status == Status::Good && !connection.recovers();
        let id = self.tasks.id(slot);
        let Some(task) = self.tasks.get(slot) else { return };
        task.layout = DataInLayout { data_sn: 0, offset: 0, segment: connection.segment() };
        let status = collapse.then_some(residual);
        send_data(connection, window, id, task, &response.data, bytes, status);
        if !collapse {
            send_status(connection, window, id, task, &response, 0);
        }
        if connection.recovers() {
            task.response = Some(response);
        } else {
            self.remove_task(slot);
        }
    }
}

/// Bytes of input that the initiator takes.
pub(super) fn input_bytes(task: &SessionTask, response: &ScsiResponse) -> u64 {
    if task.read { data_bytes(&response.data).min(task.expected.into()) } else { 0 }
}

/// The range of a Data-In PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataInRange {
    data_sn: u32,
    offset: u64,
    end: u64,
    /// The PDU ends a sequence.
    last: bool,
}

impl DataInLayout {
    /// The PDUs that carry the input up to byte `bytes`. They are the same each time, so each can
    /// be sent again.
    pub(super) fn ranges(self, max_burst: u32, bytes: u64) -> impl Iterator<Item = DataInRange> {
        let DataInLayout { mut data_sn, mut offset, segment } = self;
        let burst = u64::from(max_burst.max(512));
        std::iter::from_fn(move || {
            if offset >= bytes {
                return None;
            }
            let burst_end = (offset / burst + 1) * burst;
            let end = (offset + u64::from(segment.max(512))).min(burst_end).min(bytes);
            let range =
                DataInRange { data_sn, offset, end, last: end == burst_end || end == bytes };
            data_sn = data_sn.wrapping_add(1);
            offset = end;
            Some(range)
        })
    }
}

impl DataInRange {
    pub(super) fn data_sn(self) -> u32 {
        self.data_sn
    }

    pub(super) fn offset(self) -> u64 {
        self.offset
    }
}

/// Sends the input of a task in its layout, up to byte `bytes`.
pub(super) fn send_data(
    connection: &mut Connection,
    window: CommandWindow,
    id: TaskId,
    task: &mut SessionTask,
    data: &DataIn,
    bytes: u64,
    collapse: Option<Residual>,
) {
    let mut reader = DataInReader::new(data, task.layout.offset);
    if task.read {
        task.data_sn = task.layout.data_sn;
    }
    for range in task.layout.ranges(connection.parameters.max_burst, bytes) {
        task.data_sn = range.data_sn.wrapping_add(1);
        let collapse = collapse.filter(|_| range.end == bytes);
        put_data(connection, window, id, task, &mut reader, range, bytes, collapse);
    }
}

/// The tag for the acknowledgment of a task's data. It is never the reserved tag.
pub(super) fn acknowledge_tag(id: TaskId) -> u32 {
    id as u32 & 0x7fff_ffff
}

/// Sends one Data-In PDU of an input of `bytes`.
#[expect(clippy::too_many_arguments, reason = "a task, a range and a connection")]
pub(super) fn put_data(
    connection: &mut Connection,
    window: CommandWindow,
    id: TaskId,
    task: &SessionTask,
    reader: &mut DataInReader<'_>,
    range: DataInRange,
    bytes: u64,
    collapse: Option<Residual>,
) {
    let DataInRange { data_sn, offset, end, last } = range;
    let stat_sn = connection.outlet.stat_sn;
    if collapse.is_some() {
        connection.outlet.stat_sn = stat_sn.wrapping_add(1);
    }
    // §11.7.2: the initiator acknowledges each sequence but the last. The acknowledged status
    // stands for that.
    let acknowledge = connection.recovers() && last && end < bytes;
    let (lun, ttt) = if acknowledge { (task.lun, acknowledge_tag(id)) } else { (0, RESERVED_TAG) };
    let response = Response::DataIn {
        last,
        acknowledge,
        status: collapse.map(|_| Status::Good as u8),
        lun,
        ttt,
        data_sn,
        offset: offset as u32,
        residual: collapse.unwrap_or_default(),
    };
    let bytes = (end - offset) as usize;
    let header = connection.header(window, task.itt, stat_sn, response, bytes);
    connection.outlet.put(header, |sink| reader.take(bytes, sink));
}

/// The PDU and the data segment of a task's status.
pub(super) fn status_of(
    task: &SessionTask,
    response: &ScsiResponse,
    snack_tag: u32,
) -> (Response, Bytes) {
    let mut sense = BytesMut::new();
    if !response.sense.is_empty() {
        sense.reserve(2 + response.sense.len());
        // §11.4.7: the length of the sense data comes first.
        sense.put_u16(response.sense.len() as u16);
        sense.put_slice(&response.sense);
    }
    let status = Response::Scsi {
        response: 0,
        status: response.status as u8,
        snack_tag,
        exp_data_sn: task.data_sn,
        residual: residual(task, response),
    };
    (status, sense.freeze())
}

/// Sends the status of a task with a new StatSN.
pub(super) fn send_status(
    connection: &mut Connection,
    window: CommandWindow,
    id: TaskId,
    task: &SessionTask,
    response: &ScsiResponse,
    snack_tag: u32,
) {
    let (status, sense) = status_of(task, response, snack_tag);
    connection.send_of(window, task.itt, status, sense, Some(id));
}
