//! The reservations of a logical unit, as a state machine.

use super::class::{self, ConflictClass};
use super::commands::{self, ReserveOutCommand};
use super::refusal::ReservationRefusal;
use super::saved::{self, RestoreError};
use super::state::{
    NexusRights, Reservation, ReservationState, ReservationType, ReservationView, StateChange,
};
use super::{evaluate, report, transport};
use crate::front::scsi::nexus::{Nexus, NexusId, TaskId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Most PERSISTENT RESERVE OUT commands that wait for the save of another one.
pub const MAX_WAITING: usize = 32;

/// An output for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationOutput {
    /// A PERSISTENT RESERVE OUT has ended.
    Done {
        /// The task of the command.
        task: TaskId,
        /// The status: GOOD, or a refusal.
        result: Result<(), ReservationRefusal>,
    },
    /// Save this with the volume, in the place of the last save, then call
    /// [`Reservations::handle_saved`]. Only one save is under way at a time.
    Save {
        /// The name of the save.
        id: u64,
        /// Opaque bytes. If they are empty, remove the last save.
        data: Bytes,
    },
    /// Establish a unit attention condition.
    Attention {
        /// The nexus that it is for.
        nexus: NexusId,
        /// One of [`attention`](super::attention).
        code: u16,
    },
    /// PREEMPT AND ABORT: end all tasks of this nexus, and what it has prevented (PREVENT ALLOW
    /// MEDIUM REMOVAL).
    Abort {
        /// The nexus.
        nexus: NexusId,
        /// The command that asked for it, which goes on.
        except: TaskId,
    },
}

#[derive(Debug)]
struct WaitingCommand {
    task: TaskId,
    nexus: NexusId,
    command: ReserveOutCommand,
}

#[derive(Debug)]
struct PendingSave {
    id: u64,
    task: TaskId,
    change: StateChange,
}

/// The reservations of a logical unit.
#[derive(Debug)]
pub struct Reservations {
    /// Relative identifiers of all target ports.
    ports: Vec<u16>,
    state: ReservationState,
    generation: u32,
    /// The holder of an SPC-2 reservation. It never exists together with registrations.
    reserved: Option<NexusId>,
    nexuses: BTreeMap<NexusId, NexusRights>,
    saving: Option<PendingSave>,
    /// Commands that wait for the save under way.
    waiting: VecDeque<WaitingCommand>,
    outputs: VecDeque<ReservationOutput>,
    saves: u64,
    /// A save has failed. The saved bytes may be older or newer than `state`.
    stale: bool,
}

impl Reservations {
    /// The state after power on.
    ///
    /// `ports` are the relative target port identifiers of the device. `saved` are the bytes of the
    /// last save; empty if there is none.
    ///
    /// # Errors
    ///
    /// `saved` is damaged or of a later version. The caller must not ignore the reservations in it:
    /// see [`Reservations::lost`].
    pub fn restore(ports: &[u16], saved: &[u8]) -> Result<Reservations, RestoreError> {
        Ok(Reservations::with(ports, saved::decode(saved)?))
    }

    /// The state if the saved reservations are unreadable.
    ///
    /// It is an Exclusive Access reservation without a holder. No initiator reads or writes until
    /// one has registered and sent CLEAR. The state outlives power loss, too.
    #[must_use]
    pub fn lost(ports: &[u16]) -> Reservations {
        let reservation =
            Some(Reservation { kind: ReservationType::ExclusiveAccess, holder: None });
        let state = ReservationState { reservation, ..ReservationState::default() };
        let mut lost = Reservations::with(ports, state);
        lost.stale = true;
        lost
    }

    fn with(ports: &[u16], state: ReservationState) -> Reservations {
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

    /// Whether there is no reservation and no registration, and nothing is under way.
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
        let live = NexusRights { ends, registered: false, holder: false };
        self.nexuses.insert(nexus, live);
        self.refresh();
    }

    /// Handles the loss of a nexus: its SPC-2 reservation ends, its registration stays. If the
    /// nexus is only reset, call [`Reservations::handle_nexus`] next.
    pub fn handle_nexus_loss(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
        self.waiting.retain(|waiting| waiting.nexus != nexus);
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// Logical unit or target reset: any SPC-2 reservation ends.
    pub fn handle_reset(&mut self) {
        self.reserved = None;
    }

    /// A task that was handed in needs no answer.
    pub fn handle_abort(&mut self, task: TaskId) {
        self.waiting.retain(|waiting| waiting.task != task);
    }

    /// Checks a command of this class.
    ///
    /// # Errors
    ///
    /// [`ReservationRefusal::Conflict`].
    pub fn check(&self, nexus: NexusId, class: ConflictClass) -> Result<(), ReservationRefusal> {
        if let Some(holder) = self.reserved {
            let allowed = holder == nexus || class == ConflictClass::Free;
            return if allowed { Ok(()) } else { Err(ReservationRefusal::Conflict) };
        }
        let Some(reservation) = &self.state.reservation else { return Ok(()) };
        let shared = match class {
            ConflictClass::Free | ConflictClass::Ready => true,
            ConflictClass::Read => reservation.kind.reads_are_shared(),
            ConflictClass::Write => false,
        };
        let entitled = self.nexuses.get(&nexus).is_some_and(|live| {
            let kind = reservation.kind;
            live.holder || live.registered && (kind.registrants_only() || kind.all_registrants())
        });
        if shared || entitled { Ok(()) } else { Err(ReservationRefusal::Conflict) }
    }

    /// RESERVE(6) or RESERVE(10).
    ///
    /// # Errors
    ///
    /// A conflict, or a form of the command that SPC-2 makes optional (third parties).
    pub fn handle_reserve(
        &mut self,
        nexus: NexusId,
        cdb: &[u8; 16],
    ) -> Result<(), ReservationRefusal> {
        class::check_spc2(cdb)?;
        if self.is_compatible(nexus)? {
            return Ok(());
        }
        match self.reserved {
            Some(holder) if holder != nexus => Err(ReservationRefusal::Conflict),
            _ => {
                self.reserved = Some(nexus);
                Ok(())
            }
        }
    }

    /// RELEASE(6) or RELEASE(10). It has no effect on another nexus' reservation.
    ///
    /// # Errors
    ///
    /// As for [`Reservations::handle_reserve`].
    pub fn handle_release(
        &mut self,
        nexus: NexusId,
        cdb: &[u8; 16],
    ) -> Result<(), ReservationRefusal> {
        class::check_spc2(cdb)?;
        if !self.is_compatible(nexus)? && self.reserved == Some(nexus) {
            self.reserved = None;
        }
        Ok(())
    }

    /// Whether RESERVE and RELEASE of a nexus succeed without effect (SPC-5, "Exceptions to SPC-2
    /// RESERVE and RELEASE behavior", CRH).
    ///
    /// That is so for a nexus that owns the unit by a persistent reservation. If other persistent
    /// reservations or registrations exist, the commands conflict. While a change is being saved,
    /// the answer has to be right before and after it.
    fn is_compatible(&self, nexus: NexusId) -> Result<bool, ReservationRefusal> {
        let Some(live) = self.nexuses.get(&nexus) else { return Err(ReservationRefusal::Conflict) };
        let says = |state: &ReservationState| {
            let Some(reservation) = &state.reservation else {
                return if state.registrations.is_empty() {
                    Ok(false)
                } else {
                    Err(ReservationRefusal::Conflict)
                };
            };
            let shared = reservation.kind.registrants_only() || reservation.kind.all_registrants();
            let owns =
                state.holds(&live.ends) || shared && state.registrations.contains_key(&live.ends);
            if owns { Ok(true) } else { Err(ReservationRefusal::Conflict) }
        };
        let now = says(&self.state)?;
        match &self.saving {
            Some(saving) if says(&saving.change.state)? != now => Err(ReservationRefusal::Conflict),
            _ => Ok(now),
        }
    }

    /// PERSISTENT RESERVE IN: the parameter data, cut to the allocation length.
    ///
    /// # Errors
    ///
    /// The unit has an SPC-2 reservation, or the service action is unknown.
    pub fn handle_in(&self, cdb: &[u8; 16]) -> Result<Bytes, ReservationRefusal> {
        if self.reserved.is_some() {
            return Err(ReservationRefusal::Conflict);
        }
        report::report(&self.state, self.generation, cdb)
    }

    /// The length of the parameter list of a PERSISTENT RESERVE OUT: 24 to
    /// [`MAX_PARAMETER_BYTES`](super::MAX_PARAMETER_BYTES).
    ///
    /// # Errors
    ///
    /// The command is refused, whatever its parameter list.
    pub fn begin_out(&self, cdb: &[u8; 16]) -> Result<u32, ReservationRefusal> {
        if self.reserved.is_some() {
            return Err(ReservationRefusal::Conflict);
        }
        commands::check(cdb)
    }

    /// A PERSISTENT RESERVE OUT with its parameter list.
    pub fn handle_out(&mut self, task: TaskId, nexus: NexusId, cdb: &[u8; 16], list: &[u8]) {
        let command = match commands::parse(cdb, list) {
            Ok(command) => command,
            Err(refusal) => return self.done(task, Err(refusal)),
        };
        let waiting = WaitingCommand { task, nexus, command };
        if self.saving.is_none() {
            self.run(waiting);
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(waiting);
        } else {
            self.done(task, Err(ReservationRefusal::Busy));
        }
    }

    /// The result of a save. The answer to any save but the one under way is ignored.
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
                let refusal = ReservationRefusal::Check { key: 0x4, code: 0x4400, field: None };
                self.done(saving.task, Err(refusal));
            }
        }
        while self.saving.is_none() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.run(waiting);
        }
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<ReservationOutput> {
        self.outputs.pop_front()
    }

    fn done(&mut self, task: TaskId, result: Result<(), ReservationRefusal>) {
        self.outputs.push_back(ReservationOutput::Done { task, result });
    }

    fn run(&mut self, waiting: WaitingCommand) {
        let WaitingCommand { task, nexus, command } = waiting;
        let change = match self.nexuses.get(&nexus) {
            Some(_) if self.reserved.is_some() => Err(ReservationRefusal::Conflict),
            Some(live) => {
                let (state, ports, nexuses) = (&self.state, self.ports.as_slice(), &self.nexuses);
                let view = ReservationView { state, ports, nexuses };
                evaluate::evaluate(view, &live.ends, &command)
            }
            None => Err(ReservationRefusal::Conflict),
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
        self.outputs.push_back(ReservationOutput::Save { id, data });
        self.saving = Some(PendingSave { id, task, change });
    }

    fn apply(&mut self, task: TaskId, change: StateChange) {
        self.state = change.state;
        if change.counts {
            self.generation = self.generation.wrapping_add(1);
        }
        self.refresh();
        for ends in change.aborts {
            for (&nexus, _) in self.nexuses.iter().filter(|(_, live)| live.ends == ends) {
                self.outputs.push_back(ReservationOutput::Abort { nexus, except: task });
            }
        }
        for (ends, code) in change.attentions {
            for (&nexus, _) in self.nexuses.iter().filter(|(_, live)| live.ends == ends) {
                self.outputs.push_back(ReservationOutput::Attention { nexus, code });
            }
        }
        self.done(task, Ok(()));
    }

    /// Derives the fields that checks use from the state.
    fn refresh(&mut self) {
        for live in self.nexuses.values_mut() {
            live.registered = self.state.registrations.contains_key(&live.ends);
            live.holder = self.state.holds(&live.ends);
        }
    }
}
