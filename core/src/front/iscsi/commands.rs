//! SCSI commands: in with their output, to the device, and back with input and status.

use super::collect::{Collect, Rules, Segment};
use super::connection::{Link, Reader, Window, data_bytes};
use super::framing::Pdu;
use super::session::{Context, Session};
use super::tasks::{Cut, Stage, Task};
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

/// Longest CDB (SPC-5 §4.2.3), less what the header holds.
const MAX_MORE_CDB_BYTES: usize = 260 - 16;

/// What the additional header segments say.
struct Extras {
    more_cdb: Bytes,
    bidirectional: bool,
}

/// Reads additional header segments; `None` if they break their format.
fn extras(ahs: &Bytes) -> Option<Extras> {
    let mut extras = Extras { more_cdb: Bytes::new(), bidirectional: false };
    let mut at = 0;
    while at < ahs.len() {
        let length = usize::from(*ahs.get(at)?) << 8 | usize::from(*ahs.get(at + 1)?);
        let kind = *ahs.get(at + 2)?;
        let end = at + 3 + length;
        if end > ahs.len() {
            return None;
        }
        match kind & 0x3f {
            // §11.2.2.3: one reserved byte, then what the header had no room for.
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

/// A refusal of the transport's own, in fixed format (SPC-5 §4.4.3).
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

/// How what was moved differs from what was expected (§11.4.5).
fn residual(task: &Task, response: &ScsiResponse) -> Residual {
    let expected = u64::from(task.expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    let found = data_bytes(&response.data);
    // What goes the way that the initiator did not announce has no room at all.
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
    fn rules(&self, cx: &Context<'_>) -> Rules {
        let parameters = &self.parameters;
        Rules {
            recover: parameters.error_recovery_level > 0,
            in_order: parameters.data_pdu_in_order,
            max_burst: parameters.max_burst.max(512),
            max_outstanding: usize::from(
                parameters.max_outstanding_r2t.min(cx.config.max_outstanding_r2t.max(1)),
            ),
        }
    }

    /// A command arrived; its turn may not have come. `None` if it was refused.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>, at: usize, pdu: &Pdu) -> Option<u16> {
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
        let link = &self.links[at];
        let parameters = &link.parameters;
        let bidirectional = extras.bidirectional || read && write;
        let mut collect = None;
        if write {
            // §4.2.5.2: neither kind of unsolicited data but where it was agreed on.
            let unsolicited = if parameters.immediate_data || !parameters.initial_r2t {
                parameters.first_burst
            } else {
                0
            };
            let immediate = pdu.data.clone();
            let unexpected = !immediate.is_empty() && !parameters.immediate_data
                || !last && parameters.initial_r2t;
            let mut data = Collect::new(expected_bytes, unsolicited, immediate, last);
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
        let task = Task {
            itt: header.itt,
            link: link.id,
            lun,
            cmd_sn: header.cmd_sn,
            immediate: header.immediate,
            read: read && !bidirectional,
            write,
            expected: expected_bytes,
            stage: Stage::Held,
            command: (!bidirectional).then_some(command),
            collect,
            charge: 0,
            data_sn: 0,
            tags: 0,
            frozen: false,
            response: None,
            data_acknowledged: 0,
            cut: Cut::default(),
        };
        let slot = self.tasks.insert(task);
        if slot.is_none() {
            self.reject(cx, at, &pdu.raw, RejectReason::TooManyImmediateCommands);
        } else if header.immediate {
            self.immediate += 1;
        }
        slot
    }

    /// A command's turn has come.
    pub(super) fn enter(&mut self, cx: &mut Context<'_>, slot: u16) {
        let Some(task) = self.tasks.get(slot) else { return };
        task.stage = Stage::Waiting;
        if !task.immediate {
            self.active += 1;
        }
        self.waiting.push_back(slot);
        self.admit(cx);
    }

    /// Gives the device what has arrived and fits in memory, in order.
    pub(super) fn admit(&mut self, cx: &mut Context<'_>) {
        if self.ended
            || self.waiting.is_empty()
            || self.functions.iter().any(|function| function.is_barrier())
        {
            return;
        }
        while let Some(slot) = self.waiting.front().copied() {
            let held = self.held_bytes();
            let Some(task) = self.tasks.get(slot) else {
                self.waiting.pop_front();
                continue;
            };
            let moves = task.read || task.write;
            let charge = if moves { u64::from(task.expected).min(MAX_TRANSFER_BYTES) } else { 0 };
            // One command always fits, or nothing would ever move again.
            if charge > 0 && held > 0 && held + charge > cx.config.session_bytes {
                if self.links.iter().any(|link| !link.unacknowledged.is_empty()) {
                    self.solicit(cx);
                }
                return;
            }
            task.charge = charge;
            task.stage = Stage::Active;
            let command = task.command.take();
            self.charge += charge;
            self.waiting.pop_front();
            let id = self.tasks.id(slot);
            match (command, cx.device.as_deref_mut()) {
                (Some(command), Some(device)) => {
                    cx.counters.command(command.cdb[0]);
                    device.handle_command(cx.now, self.nexus, id, command);
                }
                // INVALID FIELD IN COMMAND INFORMATION UNIT: no command here moves data both ways.
                _ => self.respond(cx, slot, refusal(0x05, 0x0e03)),
            }
        }
    }

    /// A Data-Out arrived, or its header did and the data was `damaged`.
    pub(super) fn data_out(&mut self, cx: &mut Context<'_>, at: usize, pdu: Pdu, damaged: bool) {
        let Request::DataOut { last, lun, ttt, data_sn, offset } = pdu.header.request else {
            return;
        };
        let rules = self.rules(cx);
        let id = self.links[at].id;
        let itt = pdu.header.itt;
        let slot = self.tasks.find(itt);
        let task = slot.and_then(|slot| Some((slot, self.tasks.get(slot)?)));
        let known = match task {
            // Solicited data names the logical unit (§11.7.4); unsolicited data leaves it 0.
            Some((slot, task)) if task.link == id && (ttt == RESERVED_TAG || lun == task.lun) => {
                task.collect.as_deref_mut().and_then(|collect| {
                    let bytes = pdu.header.data_bytes as u32;
                    let data = (!damaged).then_some(pdu.data);
                    let segment = Segment { ttt, last, data_sn, offset, bytes, data };
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
            // Data of a task that was aborted is passed over.
            None if self.ghosts.contains(&itt) => {}
            None if damaged => {}
            None => self.reject(cx, at, &pdu.raw, RejectReason::InvalidPduField),
        }
    }

    /// Takes a task as far as it goes: asks for output, hands it to the device, ends it.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>, slot: u16) {
        let rules = self.rules(cx);
        let id = self.tasks.id(slot);
        let window = self.window();
        let Some(task) = self.tasks.get(slot) else { return };
        if task.stage != Stage::Active {
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
        let owner = task.link;
        if task.frozen {
            return;
        }
        let Some(link) = self.links.iter_mut().find(|link| link.id == owner) else { return };
        loop {
            let ttt = u32::from(slot) << 16 | u32::from(task.tags);
            let Some(burst) = collect.ask(rules, ttt, task.data_sn) else { return };
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
            link.send(window, task.itt, response, Bytes::new());
        }
    }

    /// The device wants output for a task.
    pub(super) fn handle_want(&mut self, cx: &mut Context<'_>, id: TaskId, bytes: u64) {
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
        cx: &mut Context<'_>,
        id: TaskId,
        response: ScsiResponse,
    ) {
        if let Some(slot) = self.tasks.by_id(id) {
            self.respond(cx, slot, response);
        }
    }

    /// A task has ended; its status waits for output that is on its way (§7.3).
    fn respond(&mut self, cx: &mut Context<'_>, slot: u16, response: ScsiResponse) {
        let Some(task) = self.tasks.get(slot) else { return };
        if task.collect.as_deref().is_none_or(Collect::is_quiet) {
            self.finish(slot, response);
        } else {
            task.response = Some(response);
        }
        let _ = cx;
    }

    /// Sends a task's input and status.
    pub(super) fn finish(&mut self, slot: u16, response: ScsiResponse) {
        let Some(task) = self.tasks.get(slot) else { return };
        let owner = task.link;
        task.collect = None;
        if task.stage == Stage::Active {
            task.stage = Stage::Done;
            if task.immediate {
                self.immediate -= 1;
            } else {
                self.active -= 1;
            }
        }
        let Some(at) = self.links.iter().position(|link| link.id == owner) else {
            // Its connection failed; a reassignment may come.
            if let Some(task) = self.tasks.get(slot) {
                task.response = Some(response);
            }
            return;
        };
        let window = self.window();
        let link = &mut self.links[at];
        let Some(task) = self.tasks.get(slot) else { return };
        let residual = residual(task, &response);
        let bytes = input_bytes(task, &response);
        // §11.7.3: a status that needs no sense may come with the data. Where it may have to be sent
        // again it stands alone.
        let collapse = bytes > 0 && response.status == Status::Good && !link.recovers();
        let id = self.tasks.id(slot);
        let Some(task) = self.tasks.get(slot) else { return };
        task.cut = Cut { data_sn: 0, offset: 0, segment: link.segment() };
        let status = collapse.then_some(residual);
        send_data(link, window, id, task, &response.data, bytes, status);
        if !collapse {
            send_status(link, window, id, task, &response, 0);
        }
        if link.recovers() {
            task.response = Some(response);
        } else {
            self.remove_task(slot);
        }
    }
}

/// Bytes of input that the initiator takes.
pub(super) fn input_bytes(task: &Task, response: &ScsiResponse) -> u64 {
    if task.read { data_bytes(&response.data).min(task.expected.into()) } else { 0 }
}

/// A Data-In PDU's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    data_sn: u32,
    offset: u64,
    end: u64,
    /// It ends a sequence.
    last: bool,
}

impl Cut {
    /// The PDUs that carry the input up to byte `bytes`. They are the same each time, so that each
    /// can be made again.
    pub(super) fn places(self, max_burst: u32, bytes: u64) -> impl Iterator<Item = Place> {
        let Cut { mut data_sn, mut offset, segment } = self;
        let burst = u64::from(max_burst.max(512));
        std::iter::from_fn(move || {
            if offset >= bytes {
                return None;
            }
            let burst_end = (offset / burst + 1) * burst;
            let end = (offset + u64::from(segment.max(512))).min(burst_end).min(bytes);
            let place = Place { data_sn, offset, end, last: end == burst_end || end == bytes };
            data_sn = data_sn.wrapping_add(1);
            offset = end;
            Some(place)
        })
    }
}

impl Place {
    pub(super) fn data_sn(self) -> u32 {
        self.data_sn
    }

    pub(super) fn offset(self) -> u64 {
        self.offset
    }
}

/// Sends a task's input as its cut says, up to byte `bytes`.
pub(super) fn send_data(
    link: &mut Link,
    window: Window,
    id: TaskId,
    task: &mut Task,
    data: &DataIn,
    bytes: u64,
    collapse: Option<Residual>,
) {
    let mut reader = Reader::new(data, task.cut.offset);
    if task.read {
        task.data_sn = task.cut.data_sn;
    }
    for place in task.cut.places(link.parameters.max_burst, bytes) {
        task.data_sn = place.data_sn.wrapping_add(1);
        let collapse = collapse.filter(|_| place.end == bytes);
        put_data(link, window, id, task, &mut reader, place, bytes, collapse);
    }
}

/// The tag under which data of a task is acknowledged; it is never the reserved one.
pub(super) fn acknowledge_tag(id: TaskId) -> u32 {
    id as u32 & 0x7fff_ffff
}

/// Sends one Data-In PDU of an input of `bytes`.
#[expect(clippy::too_many_arguments, reason = "a task, a place and a way")]
pub(super) fn put_data(
    link: &mut Link,
    window: Window,
    id: TaskId,
    task: &Task,
    reader: &mut Reader<'_>,
    place: Place,
    bytes: u64,
    collapse: Option<Residual>,
) {
    let Place { data_sn, offset, end, last } = place;
    let stat_sn = link.outlet.stat_sn;
    if collapse.is_some() {
        link.outlet.stat_sn = stat_sn.wrapping_add(1);
    }
    // §11.7.2: once a sequence, but for the last one, which the acknowledged status stands for.
    let acknowledge = link.recovers() && last && end < bytes;
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
    let header = link.header(window, task.itt, stat_sn, response, bytes);
    link.outlet.put(header, |sink| reader.take(bytes, sink));
}

/// A task's status, as it goes out.
pub(super) fn status_of(task: &Task, response: &ScsiResponse, snack_tag: u32) -> (Response, Bytes) {
    let mut sense = BytesMut::new();
    if !response.sense.is_empty() {
        sense.reserve(2 + response.sense.len());
        // §11.4.7: the sense data after its length.
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

/// Sends a task's status under a new number.
pub(super) fn send_status(
    link: &mut Link,
    window: Window,
    id: TaskId,
    task: &Task,
    response: &ScsiResponse,
    snack_tag: u32,
) {
    let (status, sense) = status_of(task, response, snack_tag);
    link.send_of(window, task.itt, status, sense, Some(id));
}
