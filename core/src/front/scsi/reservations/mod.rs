//! Who may use the logical unit: persistent reservations (SPC-5) and, for older hosts, RESERVE
//! and RELEASE (SPC-2 §5.5.1). Clauses of SPC-5 whose numbers differ between its revisions are cited
//! by title.
//!
//! Promises: a reservation binds every nexus that is not entitled by it, from the moment the command
//! that made it is answered; registrations outlive nexuses, and power loss where an initiator asked
//! for that (APTPL), in which case nothing is answered before it is saved; whatever the parameter
//! lists say, the number of registrations and the memory of waiting commands stay within
//! [`MAX_REGISTRATIONS`], [`MAX_PARAMETER_BYTES`] and [`MAX_WAITING`]. It knows nothing of tasks but
//! their names, of sense data but what belongs in it, and of storage but that it may fail.
//!
//! # Use
//!
//! [`Reservations::restore`] what was saved with the volume (if it cannot be read:
//! [`Reservations::lost`]), then tell it of every nexus that comes and goes. For a command:
//!
//! 1. [`Class::of`] its bytes, [`Reservations::check`] before it starts: `Err` is the answer. Check
//!    INQUIRY and the like too, they pass. The reservation commands themselves are not to be checked.
//! 2. PERSISTENT RESERVE IN: [`Reservations::handle_in`]; RESERVE and RELEASE, 6 and 10:
//!    [`Reservations::handle_reserve`], [`Reservations::handle_release`]. Answered on the spot.
//! 3. PERSISTENT RESERVE OUT: [`Reservations::begin_out`] says how many bytes of parameter list to
//!    collect; with them [`Reservations::handle_out`]; the answer is an [`Output::Done`].
//!
//! After any `handle_*`, take everything from [`Reservations::poll_output`] and act on it in that
//! order: unit attentions and aborts come before the `Done` of the command that caused them.
//!
//! A task that ends before its `Done` (aborted, its nexus gone) is told with
//! [`Reservations::handle_abort`]. If it only waited, it is as if it had never come. If it is being
//! saved, it still takes effect, and its `Done` may be ignored. A logical unit reset is
//! [`Reservations::handle_reset`] after the aborts; persistent reservations survive it.

mod class;
mod commands;
mod evaluate;
mod report;
mod saved;
mod transport;

#[cfg(test)]
mod tests;

pub use class::Class;
pub use saved::RestoreError;

use super::{Nexus, NexusId, TaskId};
use bytes::Bytes;
use commands::Command;
use std::collections::{BTreeMap, VecDeque};

/// Most registrations of a logical unit: 64 hosts with 16 paths each. Guessed.
pub const MAX_REGISTRATIONS: usize = 1024;
/// Longest parameter list of PERSISTENT RESERVE OUT, in bytes: 60 initiator ports at least.
pub const MAX_PARAMETER_BYTES: u32 = 16 << 10;
/// Most PERSISTENT RESERVE OUT commands that wait while another is being saved.
pub const MAX_WAITING: usize = 32;
/// Longest name of an initiator port, in bytes: an iSCSI name (RFC 7143 §4.2.7.1), `,i,0x` and
/// twelve digits.
pub const MAX_PORT_BYTES: usize = 223 + 5 + 12;

/// Additional sense codes of the unit attentions, ASC in the high byte.
pub mod attention {
    /// RESERVATIONS PREEMPTED: another nexus cleared all registrations.
    pub const RESERVATIONS_PREEMPTED: u16 = 0x2a03;
    /// RESERVATIONS RELEASED: a reservation that this nexus shared is gone or has another type.
    pub const RESERVATIONS_RELEASED: u16 = 0x2a04;
    /// REGISTRATIONS PREEMPTED: another nexus removed this nexus' registration.
    pub const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
}

/// Types of persistent reservations (SPC-5, "Persistent reservation type").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered nexuses write.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registered nexuses read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registered nexuses write, and each of them is a holder.
    WriteExclusiveAllRegistrants = 7,
    /// Only registered nexuses read and write, and each of them is a holder.
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    /// By its code.
    fn of(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::WriteExclusive,
            3 => Kind::ExclusiveAccess,
            5 => Kind::WriteExclusiveRegistrantsOnly,
            6 => Kind::ExclusiveAccessRegistrantsOnly,
            7 => Kind::WriteExclusiveAllRegistrants,
            8 => Kind::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// Whether nexuses that are not registered may read.
    fn reads_are_shared(self) -> bool {
        matches!(
            self,
            Kind::WriteExclusive
                | Kind::WriteExclusiveRegistrantsOnly
                | Kind::WriteExclusiveAllRegistrants
        )
    }

    fn registrants_only(self) -> bool {
        matches!(self, Kind::WriteExclusiveRegistrantsOnly | Kind::ExclusiveAccessRegistrantsOnly)
    }

    fn all_registrants(self) -> bool {
        matches!(self, Kind::WriteExclusiveAllRegistrants | Kind::ExclusiveAccessAllRegistrants)
    }
}

/// Where the mistake is, for the sense key specific bytes (SPC-5, "Field pointer").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In the command's bytes, otherwise in the parameter list.
    pub in_cdb: bool,
    /// Its first byte.
    pub byte: u16,
    /// Its highest bit, if it is not whole bytes.
    pub bit: Option<u8>,
}

/// Why a command is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Status RESERVATION CONFLICT.
    Conflict,
    /// Status BUSY: too many reservation commands wait.
    Busy,
    /// Status CHECK CONDITION with this sense.
    Check {
        /// Sense key.
        key: u8,
        /// Additional sense code and qualifier.
        code: u16,
        /// What was wrong with the command, if that was it.
        field: Option<Field>,
    },
}

impl Refusal {
    fn illegal(code: u16, field: Option<Field>) -> Refusal {
        Refusal::Check { key: 0x5, code, field }
    }

    /// INVALID FIELD IN CDB.
    fn in_cdb(byte: u16, bit: Option<u8>) -> Refusal {
        Refusal::illegal(0x2400, Some(Field { in_cdb: true, byte, bit }))
    }

    /// INVALID FIELD IN PARAMETER LIST.
    fn in_list(byte: usize, bit: Option<u8>) -> Refusal {
        // A parameter list is at most MAX_PARAMETER_BYTES long.
        let byte = u16::try_from(byte).unwrap_or(u16::MAX);
        Refusal::illegal(0x2600, Some(Field { in_cdb: false, byte, bit }))
    }

    /// PARAMETER LIST LENGTH ERROR.
    fn length() -> Refusal {
        Refusal::illegal(0x1a00, None)
    }
}

/// What the device has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A PERSISTENT RESERVE OUT has ended.
    Done {
        /// Which.
        task: TaskId,
        /// GOOD, or not.
        result: Result<(), Refusal>,
    },
    /// Keep this with the volume instead of what was kept before, then
    /// [`Reservations::handle_saved`]; one at a time.
    Save {
        /// For the answer.
        id: u64,
        /// Opaque; empty to forget.
        data: Bytes,
    },
    /// Establish a unit attention.
    Attention {
        /// For whom.
        nexus: NexusId,
        /// One of [`attention`].
        code: u16,
    },
    /// PREEMPT AND ABORT: end all tasks of this nexus, and what it has prevented (PREVENT ALLOW
    /// MEDIUM REMOVAL).
    Abort {
        /// Whose.
        nexus: NexusId,
        /// The command that asks for it, which goes on.
        except: TaskId,
    },
}

/// What persists: registrations, and the reservation made with one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// Keys; never 0. Names of ports are in [`transport::canonical`] form.
    registrations: BTreeMap<Nexus, u64>,
    reservation: Option<Reservation>,
    /// Persist through power loss.
    aptpl: bool,
}

/// A persistent reservation; its scope is always the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reservation {
    kind: Kind,
    /// Always registered. `None` if every registered nexus holds it; or, for other types, if nobody
    /// does, since it stands for a reservation that was lost.
    holder: Option<Nexus>,
}

impl State {
    fn holds(&self, nexus: &Nexus) -> bool {
        match &self.reservation {
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { kind, holder: None }) => {
                kind.all_registrants() && self.registrations.contains_key(nexus)
            }
            None => false,
        }
    }

    fn is_lost(&self) -> bool {
        self.reservation
            .as_ref()
            .is_some_and(|it| it.holder.is_none() && !it.kind.all_registrants())
    }

    /// What has to outlive power loss.
    fn kept(&self) -> Option<&State> {
        (self.is_lost() || self.aptpl && !self.registrations.is_empty()).then_some(self)
    }
}

/// What a command makes of the state.
#[derive(Debug)]
struct Change {
    state: State,
    /// PRGENERATION goes up.
    counts: bool,
    attentions: Vec<(Nexus, u16)>,
    aborts: Vec<Nexus>,
}

#[derive(Debug)]
struct Live {
    ends: Nexus,
    registered: bool,
    holder: bool,
}

#[derive(Debug)]
struct Waiting {
    task: TaskId,
    nexus: NexusId,
    command: Command,
}

#[derive(Debug)]
struct Saving {
    id: u64,
    task: TaskId,
    change: Change,
}

/// The reservations of a logical unit.
#[derive(Debug)]
pub struct Reservations {
    /// Relative identifiers of all target ports.
    ports: Vec<u16>,
    state: State,
    generation: u32,
    /// SPC-2: who has reserved the unit. Never together with registrations.
    reserved: Option<NexusId>,
    nexuses: BTreeMap<NexusId, Live>,
    saving: Option<Saving>,
    /// Empty unless something is being saved.
    waiting: VecDeque<Waiting>,
    outputs: VecDeque<Output>,
    saves: u64,
    /// A save has failed: what is stored may be older or newer than `state`.
    stale: bool,
}

impl Reservations {
    /// The state after power on, of a device with these relative target port identifiers, from what
    /// was saved last; empty if nothing was.
    ///
    /// # Errors
    ///
    /// `saved` is damaged or of a later version. The reservations in it may not be ignored:
    /// see [`Reservations::lost`].
    pub fn restore(ports: &[u16], saved: &[u8]) -> Result<Reservations, RestoreError> {
        Ok(Reservations::with(ports, saved::decode(saved)?))
    }

    /// The state where saved reservations cannot be read: a reservation of type Exclusive Access that
    /// nobody holds, so no initiator reads or writes until one has registered and sent CLEAR. It is
    /// kept through power loss as well.
    #[must_use]
    pub fn lost(ports: &[u16]) -> Reservations {
        let reservation = Some(Reservation { kind: Kind::ExclusiveAccess, holder: None });
        let state = State { reservation, ..State::default() };
        let mut lost = Reservations::with(ports, state);
        lost.stale = true;
        lost
    }

    fn with(ports: &[u16], state: State) -> Reservations {
        Reservations {
            ports: ports.to_vec(),
            state,
            generation: 0,
            reserved: None,
            nexuses: BTreeMap::new(),
            saving: None,
            waiting: VecDeque::new(),
            outputs: VecDeque::new(),
            saves: 0,
            stale: false,
        }
    }

    /// Whether forgetting this would change anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.registrations.is_empty()
            && self.state.reservation.is_none()
            && self.reserved.is_none()
            && self.saving.is_none()
            && self.outputs.is_empty()
    }

    /// A nexus has come up.
    pub fn handle_nexus(&mut self, nexus: NexusId, ends: &Nexus) {
        let initiator_port = transport::canonical(&ends.initiator_port);
        let ends = Nexus { initiator_port, relative_port: ends.relative_port };
        let live = Live { ends, registered: false, holder: false };
        self.nexuses.insert(nexus, live);
        self.refresh();
    }

    /// A nexus is gone: its SPC-2 reservation ends, its registration stays. One that is only reset
    /// comes back with [`Reservations::handle_nexus`].
    pub fn handle_nexus_loss(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
        self.waiting.retain(|waiting| waiting.nexus != nexus);
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// Logical unit or target reset: an SPC-2 reservation ends, whoever holds it.
    pub fn handle_reset(&mut self) {
        self.reserved = None;
    }

    /// A task that was handed in is not to be answered.
    pub fn handle_abort(&mut self, task: TaskId) {
        self.waiting.retain(|waiting| waiting.task != task);
    }

    /// Whether a command of this class may be carried out now.
    ///
    /// # Errors
    ///
    /// [`Refusal::Conflict`].
    pub fn check(&self, nexus: NexusId, class: Class) -> Result<(), Refusal> {
        if let Some(holder) = self.reserved {
            let allowed = holder == nexus || class == Class::Free;
            return if allowed { Ok(()) } else { Err(Refusal::Conflict) };
        }
        let Some(reservation) = &self.state.reservation else { return Ok(()) };
        let shared = match class {
            Class::Free | Class::Ready => true,
            Class::Read => reservation.kind.reads_are_shared(),
            Class::Write => false,
        };
        let entitled = self.nexuses.get(&nexus).is_some_and(|live| {
            let kind = reservation.kind;
            live.holder || live.registered && (kind.registrants_only() || kind.all_registrants())
        });
        if shared || entitled { Ok(()) } else { Err(Refusal::Conflict) }
    }

    /// RESERVE(6) or RESERVE(10).
    ///
    /// # Errors
    ///
    /// A conflict, or a form of the command that SPC-2 makes optional (third parties).
    pub fn handle_reserve(&mut self, nexus: NexusId, cdb: &[u8; 16]) -> Result<(), Refusal> {
        class::check_spc2(cdb)?;
        if self.is_compatible(nexus)? {
            return Ok(());
        }
        match self.reserved {
            Some(holder) if holder != nexus => Err(Refusal::Conflict),
            _ => {
                self.reserved = Some(nexus);
                Ok(())
            }
        }
    }

    /// RELEASE(6) or RELEASE(10); does nothing to another nexus' reservation.
    ///
    /// # Errors
    ///
    /// As for [`Reservations::handle_reserve`].
    pub fn handle_release(&mut self, nexus: NexusId, cdb: &[u8; 16]) -> Result<(), Refusal> {
        class::check_spc2(cdb)?;
        if !self.is_compatible(nexus)? && self.reserved == Some(nexus) {
            self.reserved = None;
        }
        Ok(())
    }

    /// SPC-5, "Exceptions to SPC-2 RESERVE and RELEASE behavior", what CRH stands for: where persistent reservations are used, RESERVE and
    /// RELEASE of those who own the unit anyway are good and do nothing (`true`), and those of others
    /// conflict. While a change is being saved, the answer has to be right before and after it.
    fn is_compatible(&self, nexus: NexusId) -> Result<bool, Refusal> {
        let Some(live) = self.nexuses.get(&nexus) else { return Err(Refusal::Conflict) };
        let says = |state: &State| {
            let Some(reservation) = &state.reservation else {
                return if state.registrations.is_empty() {
                    Ok(false)
                } else {
                    Err(Refusal::Conflict)
                };
            };
            let shared = reservation.kind.registrants_only() || reservation.kind.all_registrants();
            let owns =
                state.holds(&live.ends) || shared && state.registrations.contains_key(&live.ends);
            if owns { Ok(true) } else { Err(Refusal::Conflict) }
        };
        let now = says(&self.state)?;
        match &self.saving {
            Some(saving) if says(&saving.change.state)? != now => Err(Refusal::Conflict),
            _ => Ok(now),
        }
    }

    /// PERSISTENT RESERVE IN: the parameter data, cut to the allocation length.
    ///
    /// # Errors
    ///
    /// The unit is reserved as in SPC-2, or the service action is unknown.
    pub fn handle_in(&self, cdb: &[u8; 16]) -> Result<Bytes, Refusal> {
        if self.reserved.is_some() {
            return Err(Refusal::Conflict);
        }
        report::report(&self.state, self.generation, cdb)
    }

    /// How many bytes of parameter list a PERSISTENT RESERVE OUT needs: 24 to
    /// [`MAX_PARAMETER_BYTES`].
    ///
    /// # Errors
    ///
    /// The command will not be carried out whatever they are.
    pub fn begin_out(&self, cdb: &[u8; 16]) -> Result<u32, Refusal> {
        if self.reserved.is_some() {
            return Err(Refusal::Conflict);
        }
        commands::check(cdb)
    }

    /// A PERSISTENT RESERVE OUT with its parameter list.
    pub fn handle_out(&mut self, task: TaskId, nexus: NexusId, cdb: &[u8; 16], list: &[u8]) {
        let command = match commands::parse(cdb, list) {
            Ok(command) => command,
            Err(refusal) => return self.done(task, Err(refusal)),
        };
        let waiting = Waiting { task, nexus, command };
        if self.saving.is_none() {
            self.run(waiting);
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(waiting);
        } else {
            self.done(task, Err(Refusal::Busy));
        }
    }

    /// What was to be saved is durable, or is not. An answer to anything but the save that is under
    /// way is ignored.
    pub fn handle_saved(&mut self, id: u64, result: Result<(), String>) {
        let Some(saving) = self.saving.take_if(|saving| saving.id == id) else { return };
        match result {
            Ok(()) => {
                self.stale = false;
                self.apply(saving.task, saving.change);
            }
            Err(_) => {
                self.stale = true;
                // HARDWARE ERROR, INTERNAL TARGET FAILURE; nothing has changed.
                let refusal = Refusal::Check { key: 0x4, code: 0x4400, field: None };
                self.done(saving.task, Err(refusal));
            }
        }
        while self.saving.is_none() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.run(waiting);
        }
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn done(&mut self, task: TaskId, result: Result<(), Refusal>) {
        self.outputs.push_back(Output::Done { task, result });
    }

    fn run(&mut self, waiting: Waiting) {
        let Waiting { task, nexus, command } = waiting;
        let change = match self.nexuses.get(&nexus) {
            Some(_) if self.reserved.is_some() => Err(Refusal::Conflict),
            Some(live) => evaluate::evaluate(self, &live.ends, &command),
            None => Err(Refusal::Conflict),
        };
        let change = match change {
            Ok(change) => change,
            Err(refusal) => return self.done(task, Err(refusal)),
        };
        let kept = change.state.kept();
        if kept == self.state.kept() && !(self.stale && change.counts) {
            return self.apply(task, change);
        }
        let data = kept.map_or_else(Bytes::new, saved::encode);
        self.saves += 1;
        let id = self.saves;
        self.outputs.push_back(Output::Save { id, data });
        self.saving = Some(Saving { id, task, change });
    }

    fn apply(&mut self, task: TaskId, change: Change) {
        self.state = change.state;
        if change.counts {
            self.generation = self.generation.wrapping_add(1);
        }
        self.refresh();
        for ends in change.aborts {
            for (&nexus, _) in self.nexuses.iter().filter(|(_, live)| live.ends == ends) {
                self.outputs.push_back(Output::Abort { nexus, except: task });
            }
        }
        for (ends, code) in change.attentions {
            for (&nexus, _) in self.nexuses.iter().filter(|(_, live)| live.ends == ends) {
                self.outputs.push_back(Output::Attention { nexus, code });
            }
        }
        self.done(task, Ok(()));
    }

    /// What the checks look at follows from the state.
    fn refresh(&mut self) {
        for live in self.nexuses.values_mut() {
            live.registered = self.state.registrations.contains_key(&live.ends);
            live.holder = self.state.holds(&live.ends);
        }
    }
}
