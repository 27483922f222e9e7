//! A disk as SCSI hosts see it: one logical unit with its I_T nexuses, commands in, block requests out.
//!
//! Promises: whatever the command bytes, the device never panics, holds no more memory than its limits
//! allow, and hands out only block requests that lie within the volume; every command ends with exactly
//! one response unless it is aborted; conditions meant for a nexus (unit attentions) reach it once.
//! It knows SPC-5 and SBC-4, and nothing of the transport: no tags, no sequence numbers, no buffers'
//! negotiated lengths.
//!
//! # Driving a device
//!
//! After any `handle_*`, take everything from [`Device::poll_output`] and act on it.
//!
//! # How it works
//!
//! A command is checked when it arrives: unit attentions, reservations, its own bytes. What passes
//! becomes a task: it collects its output if it has any, waits until the task set lets it start
//! ([`tasks`]), and is then carried out at once or by requests to the volume ([`io`]). One table
//! says which commands there are ([`cdb`]).

mod cdb;
mod class;
mod control;
pub mod copy;
mod data;
mod inquiry;
mod io;
mod management;
mod mode;
mod persistent;
pub mod reservations;
mod sense;
mod supported;
mod tasks;

#[cfg(test)]
mod tests;

use crate::block::{
    BlockError, ReadPiece, Reply, Request, SECTOR_BYTES, StagedPiece, Time, VolumeId,
};
use bytes::Bytes;
use cdb::Cdb;
pub use class::Class;
use io::Io;
pub use sense::Side;
use sense::{Refusal, Sense, code, key};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tasks::Tasks;

/// Most tasks of a logical unit, all nexuses together; beyond, commands end with TASK SET FULL.
pub const MAX_TASKS: usize = 4096;

/// Longest transfer of one command, in bytes (VPD page B0h, MAXIMUM TRANSFER LENGTH): the volume's.
pub const MAX_TRANSFER_BYTES: u64 = crate::block::MAX_TRANSFER_BYTES;

/// Longest write that is done as a whole or not at all, in bytes: what fits one record wherever it
/// begins.
pub const MAX_ATOMIC_BYTES: u64 = crate::record::MAX_WHOLE_SECTORS * SECTOR_BYTES;

/// Most nexuses that are remembered after they are gone, to tell them that they were lost.
const MAX_LOST: usize = 256;

/// Names an I_T nexus for as long as it exists; chosen by the transport, never used again.
pub type NexusId = u64;

/// Names a task for as long as it exists; chosen by the transport, never used again.
pub type TaskId = u64;

/// What tokens are made from; must be unpredictable and for this device only.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(pub [u8; 32]);

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

/// What the device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The volume: its identity makes the device identification descriptors.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// SCSI device name of the target, an iSCSI name.
    pub target_name: String,
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Whether every write is refused with WRITE PROTECTED.
    pub read_only: bool,
    /// What persistent reservations were saved ("activate persist through power loss"), as it came
    /// out of [`Output::SaveReservations`]; empty if nothing was.
    pub reservations: Bytes,
    /// Makes tokens that nobody can guess.
    pub token_secret: TokenSecret,
}

/// The two ends of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nexus {
    /// Initiator port name: iSCSI name, `,i,0x`, and the ISID in hexadecimal (SPC-5 §7.6.4.6).
    pub initiator_port: String,
    /// Relative target port identifier.
    pub relative_port: u16,
}

/// Task attributes (SAM-5 §8.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Any order among simple tasks.
    Simple,
    /// After all older tasks, before all newer ones.
    Ordered,
    /// Before everything that has not started.
    HeadOfQueue,
    /// Auto contingent allegiance: never valid here.
    Aca,
}

/// A command as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Logical unit number, eight bytes as on the wire.
    pub lun: u64,
    /// The first 16 bytes, zero-padded.
    pub cdb: [u8; 16],
    /// What follows byte 16 of a longer command, at most 244 bytes; empty for most.
    pub more_cdb: Bytes,
    /// Order among tasks.
    pub attribute: Attribute,
    /// Bytes the initiator is ready to send; a device asks for no more.
    pub out_bytes: u64,
    /// Bytes the initiator is ready to take. The device answers in full, the transport cuts.
    pub in_bytes: u64,
}

/// What a command gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataIn {
    /// Nothing.
    None,
    /// Parameter data.
    Parameter(Bytes),
    /// What a read found.
    Pieces(Vec<ReadPiece>),
}

/// Status codes (SAM-5 §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// See the sense data.
    CheckCondition = 0x02,
    /// COMPARE or PRE-FETCH found what was asked for.
    ConditionMet = 0x04,
    /// Try again later.
    Busy = 0x08,
    /// Another nexus holds a reservation.
    ReservationConflict = 0x18,
    /// Too many tasks.
    TaskSetFull = 0x28,
    /// Aborted by another nexus, with the TAS bit set.
    TaskAborted = 0x40,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status.
    pub status: Status,
    /// Sense data as it goes on the wire; empty without.
    pub sense: Bytes,
    /// What goes to the initiator.
    pub data: DataIn,
    /// Bytes of output that the command's own length fields ask for, whatever the initiator was
    /// ready to send; the transport's residual count comes from it.
    pub out_wanted: u64,
}

/// Task management functions of SAM-5 §7, by what they do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// Ends one task of this nexus.
    AbortTask(TaskId),
    /// Ends all tasks of this nexus.
    AbortTaskSet,
    /// Ends all tasks of all nexuses.
    ClearTaskSet,
    /// Ends everything, forgets SPC-2 reservations and saved-nowhere mode parameters.
    LogicalUnitReset,
    /// The same; the transport also resets the other logical units, of which there are none.
    TargetReset,
    /// Ends all tasks of this nexus and what a lost nexus loses.
    NexusReset,
    /// Whether the task exists.
    QueryTask(TaskId),
    /// Whether this nexus has tasks.
    QueryTaskSet,
    /// Whether a unit attention waits for this nexus.
    QueryAsyncEvent,
}

/// Outcomes of task management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementResponse {
    /// Done; for a query, "no".
    Complete,
    /// For a query, "yes".
    Succeeded,
    /// There is no such logical unit.
    NoLun,
}

/// What the transport or the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Collect exactly this many bytes of output (at most [`Command::out_bytes`]) and hand them in
    /// with [`Device::handle_data`].
    WantData {
        /// Of which task.
        task: TaskId,
        /// How many, more than zero.
        bytes: u64,
    },
    /// A command has ended.
    Response {
        /// Which.
        task: TaskId,
        /// How.
        response: Response,
    },
    /// A task was ended by task management (whoever asked for it, also its own nexus) or by PREEMPT
    /// AND ABORT and gets no response. The transport drops what it has for it.
    Aborted {
        /// Which.
        task: TaskId,
    },
    /// A task management function is done.
    ManagementDone {
        /// As it was handed in.
        id: u64,
        /// How.
        response: ManagementResponse,
    },
    /// Something for the volume; answer with [`Device::handle_reply`]. In a [`Request::Stage`] the
    /// number of the object is 0: the shell draws another one.
    Request {
        /// For the answer.
        id: u64,
        /// What.
        request: Request,
    },
    /// Keep these persistent reservations with the volume, instead of what was saved before; answer
    /// with [`Device::handle_saved`].
    SaveReservations {
        /// For the answer.
        id: u64,
        /// Opaque; empty to forget.
        data: Bytes,
    },
    /// Copy this for the nexus of the task; answer with [`Device::handle_copied`].
    Copy {
        /// For the answer.
        id: u64,
        /// The command that asked for it; it may end before the copy does.
        task: TaskId,
        /// What to copy.
        plan: copy::Plan,
    },
    /// The copy is to end early: it is answered once nothing of it will be written any more.
    EndCopy {
        /// Which.
        id: u64,
    },
    /// A part of a copy has ended.
    Part {
        /// As it was handed in.
        task: TaskId,
        /// How.
        result: Result<copy::PartReply, copy::PartFailure>,
    },
}

/// What a handler knows of the command it carries out.
#[derive(Clone, Copy, Debug)]
struct Context {
    nexus: NexusId,
    task: TaskId,
    cdb: Cdb,
    /// Bytes the initiator is ready to send.
    out_bytes: u64,
}

/// What a handler has made of a command.
#[derive(Debug)]
enum Outcome {
    /// GOOD.
    Good(DataIn),
    /// Anything else.
    Refused(Refusal),
    /// It goes on with requests to the volume.
    Medium(Box<Io>),
    /// The reservations answer when they have been saved.
    Reservations,
    /// The transport copies something.
    Copy(Box<copy::Asked>),
    /// A part of a copy has made this ready.
    Staged(Vec<StagedPiece>),
}

impl Outcome {
    const DONE: Outcome = Outcome::Good(DataIn::None);

    /// Parameter data, cut to the allocation length.
    fn data(mut bytes: Vec<u8>, allocation: usize) -> Outcome {
        bytes.truncate(allocation);
        Outcome::Good(DataIn::Parameter(bytes.into()))
    }
}

impl From<Sense> for Outcome {
    fn from(sense: Sense) -> Outcome {
        Outcome::Refused(Refusal::Check(sense))
    }
}

/// How a command that moves data will be carried out.
#[derive(Debug)]
struct Plan {
    /// Bytes of output that the command's own fields ask for.
    wanted: u64,
    /// Bytes of output to collect, of those.
    collect: u64,
    io: Io,
}

/// A nexus that is up.
#[derive(Debug)]
struct Live {
    ends: Nexus,
    /// Unit attention conditions in the order they are reported in, each once.
    attentions: Vec<u16>,
}

/// A logical unit.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    nexuses: BTreeMap<NexusId, Live>,
    /// Nexuses that were up and are not, at most [`MAX_LOST`].
    lost: BTreeSet<Nexus>,
    mode: mode::Parameters,
    reservations: persistent::Reservations,
    tasks: Tasks,
    waiting: Vec<management::Waiting>,
    results: copy::Results,
    tokens: copy::Tokens,
    /// When an answer last came.
    now: Time,
    outputs: VecDeque<Output>,
}

impl Device {
    /// A device without nexuses.
    #[must_use]
    pub fn new(config: DeviceConfig) -> Device {
        Device {
            reservations: persistent::restore(&config.reservations),
            config,
            nexuses: BTreeMap::new(),
            lost: BTreeSet::new(),
            mode: mode::Parameters::default(),
            tasks: Tasks::default(),
            waiting: Vec::new(),
            results: copy::Results::default(),
            tokens: copy::Tokens::default(),
            now: Time::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Whether dropping this device and making it anew would go unnoticed by a nexus that comes up
    /// later: no nexus, no task, no reservation, no token, no mode parameter changed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.nexuses.is_empty()
            && self.tasks.is_empty()
            && self.reservations.is_empty()
            && self.tokens.is_empty()
            && self.mode == mode::Parameters::default()
    }

    /// A nexus has come up. The same two ends may not be up twice (RFC 7143 §6.3.5: the older
    /// session is closed first).
    pub fn handle_nexus(&mut self, _now: Time, nexus: NexusId, ends: Nexus) {
        let again = self.lost.remove(&ends);
        let attention = if again { code::NEXUS_LOSS_OCCURRED } else { code::RESET_OCCURRED };
        self.reservations.handle_nexus(nexus, &ends);
        self.nexuses.insert(nexus, Live { ends, attentions: vec![attention] });
    }

    /// A nexus is gone (SAM-5 §6.3.4): its tasks end without responses.
    pub fn handle_nexus_loss(&mut self, _now: Time, nexus: NexusId) {
        let Some(live) = self.nexuses.remove(&nexus) else { return };
        if self.lost.len() >= MAX_LOST {
            self.lost.pop_first();
        }
        self.lost.insert(live.ends);
        for task in self.tasks.of(|task| task.nexus() == nexus) {
            self.drop_task(task);
        }
        self.stop_background(|other| other == nexus);
        self.results.forget_nexus(nexus);
        self.reservations.handle_nexus_loss(nexus);
        self.settle();
    }

    /// A command of a nexus.
    pub fn handle_command(&mut self, _now: Time, nexus: NexusId, task: TaskId, command: Command) {
        if self.tasks.contains(task) {
            return;
        }
        if let Err(outcome) = self.admit(nexus, task, &command) {
            let (wanted, outcome) = *outcome;
            self.respond(task, wanted, outcome);
        }
        self.settle();
    }

    /// The output that a task wanted: pieces in order, together exactly as long. For a task that has
    /// ended, nothing happens.
    pub fn handle_data(&mut self, _now: Time, task: TaskId, data: Vec<Bytes>) {
        if self.tasks.collected(task, data) {
            self.settle();
        }
    }

    /// A task's output will not come: it ends with this sense key and code.
    pub fn handle_data_failure(&mut self, _now: Time, task: TaskId, key: u8, code: u16) {
        if self.tasks.is_collecting(task) {
            self.finish(task, Outcome::from(Sense::new(key, code)));
            self.settle();
        }
    }

    /// A task management function; answered with [`Output::ManagementDone`] once no task that it
    /// ended can change the medium any more.
    pub fn handle_management(
        &mut self,
        _now: Time,
        nexus: NexusId,
        id: u64,
        lun: u64,
        function: Management,
    ) {
        self.manage(nexus, id, lun, function);
        self.settle();
    }

    /// The outcome of a request.
    pub fn handle_reply(&mut self, now: Time, id: u64, result: Result<Reply, BlockError>) {
        self.now = now;
        if let Some(task) = self.tasks.replied(id, result, self.block_sectors()) {
            self.advance(task);
        }
        self.settle();
    }

    /// Reservations were saved, or why not.
    pub fn handle_saved(&mut self, _now: Time, id: u64, result: Result<(), String>) {
        self.reservations.handle_saved(id, result);
        self.settle();
    }

    /// The volume has another size, in sectors.
    pub fn handle_resized(&mut self, _now: Time, sectors: u64) {
        let before = self.blocks();
        self.config.sectors = sectors;
        if self.blocks() != before {
            self.attention(code::CAPACITY_CHANGED, |_| true);
        }
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Sectors in a logical block.
    fn block_sectors(&self) -> u64 {
        (u64::from(self.config.block_bytes) / SECTOR_BYTES).max(1)
    }

    /// Logical blocks of the volume; what is left of the last one is not to be had.
    fn blocks(&self) -> u64 {
        self.config.sectors / self.block_sectors()
    }

    fn is_write_protected(&self) -> Option<Sense> {
        if self.config.read_only {
            return Some(Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED));
        }
        let software = Sense::new(key::DATA_PROTECT, code::SOFTWARE_WRITE_PROTECTED);
        self.mode.write_protect.then_some(software)
    }

    /// Whether writes have to be durable before they end.
    fn writes_through(&self) -> bool {
        !self.mode.write_cache
    }

    /// Establishes a unit attention condition for some nexuses. A condition that is pending is not
    /// established again, so the list is no longer than there are codes.
    fn attention(&mut self, code: u16, whom: impl Fn(NexusId) -> bool) {
        for (_, live) in self.nexuses.iter_mut().filter(|(nexus, _)| whom(**nexus)) {
            // A reset tells all that the older conditions would have told (SAM-5 §5.14.3).
            if code == code::DEVICE_RESET_OCCURRED {
                live.attentions.clear();
            }
            if !live.attentions.contains(&code) {
                live.attentions.push(code);
            }
        }
    }

    /// Takes the unit attention condition that is to be reported next.
    fn take_attention(&mut self, nexus: NexusId) -> Option<u16> {
        let attentions = &mut self.nexuses.get_mut(&nexus)?.attentions;
        (!attentions.is_empty()).then(|| attentions.remove(0))
    }

    /// Checks a command and makes it a task.
    ///
    /// # Errors
    ///
    /// It ends at once, with this outcome and so many bytes of output asked for.
    fn admit(
        &mut self,
        nexus: NexusId,
        task: TaskId,
        command: &Command,
    ) -> Result<(), Box<(u64, Outcome)>> {
        let refuse = |outcome: Outcome| Err(Box::new((0, outcome)));
        let cdb = Cdb(command.cdb);
        let context = Context { nexus, task, cdb, out_bytes: command.out_bytes };
        if !inquiry::is_here(command.lun) {
            return refuse(inquiry::elsewhere(&context));
        }
        if !self.nexuses.contains_key(&nexus) || self.tasks.len() >= MAX_TASKS {
            return refuse(Outcome::Refused(Refusal::Status(Status::TaskSetFull)));
        }
        if command.attribute == Attribute::Aca {
            // SAM-5 §8.9.5: there is never an auto contingent allegiance here.
            return refuse(Sense::illegal(code::INVALID_MESSAGE).into());
        }
        // INQUIRY, REPORT LUNS and REQUEST SENSE go past unit attentions (SAM-5 §5.14.4).
        if !matches!(cdb.byte(0), 0x03 | 0x12 | 0xa0)
            && let Some(code) = self.take_attention(nexus)
        {
            return refuse(Sense::attention(code).into());
        }
        if let Err(refusal) = persistent::check(&self.reservations, nexus, &command.cdb) {
            return refuse(Outcome::Refused(refusal));
        }
        let entry = match cdb::find(command) {
            Ok(entry) => entry,
            Err(sense) => return refuse(sense.into()),
        };
        let attribute = command.attribute;
        match entry.run {
            cdb::Run::Control(run) => self.add(context, attribute, tasks::Work::Control(run), 0, 0),
            cdb::Run::List(length, run) => {
                let wanted = match length(self, &context) {
                    Ok(wanted) => wanted,
                    Err(outcome) => return refuse(outcome),
                };
                // What an UNMAP changes is known only when its list is there.
                let all = (cdb.byte(0) == 0x42).then_some(self.config.sectors);
                let work = tasks::Work::List { run, all };
                self.add(context, attribute, work, wanted, wanted.min(command.out_bytes));
            }
            cdb::Run::Medium(plan) => match plan(self, &context) {
                Ok(Plan { wanted, collect, io }) => {
                    let work = tasks::Work::Medium(Box::new(io));
                    self.add(context, attribute, work, wanted, collect);
                }
                Err(sense) => return refuse(sense.into()),
            },
        }
        Ok(())
    }

    fn add(
        &mut self,
        context: Context,
        attribute: Attribute,
        work: tasks::Work,
        wanted: u64,
        collect: u64,
    ) {
        self.tasks.add(context, attribute, work, wanted, collect);
        if collect > 0 {
            let task = context.task;
            self.outputs.push_back(Output::WantData { task, bytes: collect });
        }
    }

    fn respond(&mut self, task: TaskId, out_wanted: u64, outcome: Outcome) {
        let (status, sense, data) = match outcome {
            Outcome::Good(data) => (Status::Good, Bytes::new(), data),
            Outcome::Refused(Refusal::Status(status)) => (status, Bytes::new(), DataIn::None),
            Outcome::Refused(Refusal::Check(sense)) => {
                let sense = sense.bytes(self.mode.descriptor_sense);
                (Status::CheckCondition, sense, DataIn::None)
            }
            // None of them is an end.
            Outcome::Medium(_) | Outcome::Reservations | Outcome::Copy(_) | Outcome::Staged(_) => {
                return;
            }
        };
        let response = Response { status, sense, data, out_wanted };
        self.outputs.push_back(Output::Response { task, response });
    }
}
