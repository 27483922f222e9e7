//! The effect of a PERSISTENT RESERVE OUT on the state (SPC-5, "Registering" to "Clearing").

use super::commands::{self, ReserveOutAction, ReserveOutCommand};
use super::refusal::ReservationRefusal;
use super::state::{
    MAX_PORT_BYTES, MAX_REGISTRATIONS, Reservation, ReservationState, ReservationType,
    ReservationView, StateChange, attention,
};
use super::transport::TransportId;
use crate::front::scsi::nexus::Nexus;
use std::collections::BTreeSet;

/// INSUFFICIENT REGISTRATION RESOURCES.
const INSUFFICIENT: u16 = 0x5504;
/// INVALID RELEASE OF PERSISTENT RESERVATION.
const INVALID_RELEASE: u16 = 0x2604;

/// The change that `command` from nexus `from` makes.
pub(super) fn evaluate(
    all: ReservationView<'_>,
    from: &Nexus,
    command: &ReserveOutCommand,
) -> Result<StateChange, ReservationRefusal> {
    let mut change = StateChange {
        state: all.state.clone(),
        counts: true,
        attentions: Vec::new(),
        aborts: Vec::new(),
    };
    if let ReserveOutAction::Register { ignore, all_ports, aptpl, others } = &command.action {
        let aptpl = *aptpl;
        let mut register =
            Registering { all, from, command, ignore: *ignore, all_ports: *all_ports };
        if register.run(others.as_deref(), &mut change)? {
            change.state.aptpl = aptpl;
        } else {
            change.counts = false;
        }
        check_limits(&change.state)?;
        return Ok(change);
    }
    if all.state.registrations.get(from) != Some(&command.key) {
        return Err(ReservationRefusal::Conflict);
    }
    match &command.action {
        ReserveOutAction::Register { .. } => {}
        ReserveOutAction::Reserve(kind) => {
            change.counts = false;
            reserve(&mut change.state, from, *kind)?;
        }
        ReserveOutAction::Release { what } => {
            change.counts = false;
            release(&mut change, from, *what)?;
        }
        ReserveOutAction::Clear => {
            change.state.reservation = None;
            let registered = std::mem::take(&mut change.state.registrations);
            let others = registered.into_keys().filter(|nexus| nexus != from);
            change.attentions.extend(others.map(|it| (it, attention::RESERVATIONS_PREEMPTED)));
        }
        ReserveOutAction::Preempt { what, abort } => {
            preempt(&mut change, from, command.action_key, *what)?;
            if !abort {
                change.aborts.clear();
            }
        }
        ReserveOutAction::Move { unregister, aptpl, relative_port, to } => {
            let to = Nexus { initiator_port: to.port(), relative_port: *relative_port };
            move_to(all, &mut change.state, from, command.action_key, to)?;
            if *unregister {
                change.state.registrations.remove(from);
            }
            change.state.aptpl = *aptpl;
            check_limits(&change.state)?;
        }
    }
    Ok(change)
}

fn check_limits(state: &ReservationState) -> Result<(), ReservationRefusal> {
    let names = || state.registrations.keys().map(|nexus| nexus.initiator_port.len());
    if state.registrations.len() > MAX_REGISTRATIONS || names().any(|len| len > MAX_PORT_BYTES) {
        return Err(ReservationRefusal::illegal(INSUFFICIENT, None));
    }
    Ok(())
}

/// Whether registered nexuses share a reservation of this type. Each of them learns of its end.
fn is_shared(kind: ReservationType) -> bool {
    kind.registrants_only() || kind.all_registrants()
}

/// Establishes a unit attention for every registered nexus except `from`.
fn tell_registered(change: &mut StateChange, from: &Nexus, code: u16) {
    let registered = change.state.registrations.keys();
    let told = registered.filter(|nexus| *nexus != from).map(|nexus| (nexus.clone(), code));
    change.attentions.extend(told);
}

/// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
struct Registering<'a> {
    all: ReservationView<'a>,
    from: &'a Nexus,
    command: &'a ReserveOutCommand,
    ignore: bool,
    all_ports: bool,
}

impl Registering<'_> {
    /// Whether the command had an effect.
    fn run(
        &mut self,
        others: Option<&[TransportId]>,
        change: &mut StateChange,
    ) -> Result<bool, ReservationRefusal> {
        let registered = &self.all.state.registrations;
        let current = registered.get(self.from);
        if !self.ignore && current.copied().unwrap_or(0) != self.command.key {
            return Err(ReservationRefusal::Conflict);
        }
        if current.is_some() && others.is_some() {
            return Err(ReservationRefusal::in_list(20, Some(3)));
        }
        let mut acted = false;
        for nexus in self.nexuses(&self.from.initiator_port) {
            acted |= self.one(nexus, change)?;
        }
        if self.command.action_key != 0 {
            for nexus in self.others(others.unwrap_or_default())? {
                change.state.registrations.insert(nexus, self.command.action_key);
            }
        }
        self.release_implicitly(change);
        Ok(acted)
    }

    /// The nexuses of an initiator port that a command is about. With ALL_TG_PT these are its
    /// nexuses with every target port.
    fn nexuses(&self, initiator_port: &str) -> BTreeSet<Nexus> {
        let all = if self.all_ports { self.all.ports } else { &[] };
        let ports = all.iter().chain([&self.from.relative_port]);
        ports
            .map(|&relative_port| Nexus {
                initiator_port: initiator_port.to_owned(),
                relative_port,
            })
            .collect()
    }

    fn one(&self, nexus: Nexus, change: &mut StateChange) -> Result<bool, ReservationRefusal> {
        let key = self.command.action_key;
        let registrations = &mut change.state.registrations;
        let current = registrations.get(&nexus).copied();
        if key == 0 {
            // A nexus with another port that is not registered needs no unregistering.
            let wrong = current.is_some_and(|current| current != self.command.key);
            if wrong && !self.ignore {
                return Err(ReservationRefusal::Conflict);
            }
            return Ok(registrations.remove(&nexus).is_some());
        }
        if !self.ignore && current.unwrap_or(0) != self.command.key {
            return Err(ReservationRefusal::Conflict);
        }
        registrations.insert(nexus, key);
        Ok(true)
    }

    /// SPEC_I_PT: the nexuses of these ports. None may have a registration yet.
    fn others(&self, ids: &[TransportId]) -> Result<BTreeSet<Nexus>, ReservationRefusal> {
        let mut found = BTreeSet::new();
        for id in ids {
            let ports: BTreeSet<String> = match id.isid {
                Some(_) => [id.port()].into(),
                // The name of a device stands for all its known ports.
                None => {
                    let live = self.all.nexuses.values().map(|live| &live.ends.initiator_port);
                    let known = live.filter(|port| {
                        let rest = port.strip_prefix(id.name.as_str());
                        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(",i,0x"))
                    });
                    known.cloned().collect()
                }
            };
            // Without any registration the initiator would take the command for a success.
            if ports.is_empty() {
                return Err(ReservationRefusal::in_list(28, None));
            }
            for nexus in ports.iter().flat_map(|port| self.nexuses(port)) {
                if self.all.state.registrations.contains_key(&nexus) {
                    return Err(ReservationRefusal::in_list(28, None));
                }
                found.insert(nexus);
            }
        }
        Ok(found)
    }

    /// Releases a reservation whose holder, or last registrant, is not registered any more.
    fn release_implicitly(&self, change: &mut StateChange) {
        let ReservationState { registrations, reservation, .. } = &mut change.state;
        let ends = |it: &mut Reservation| match &it.holder {
            Some(holder) => !registrations.contains_key(holder),
            None => it.kind.all_registrants() && registrations.is_empty(),
        };
        if reservation.take_if(ends).is_some_and(|it| it.kind.registrants_only()) {
            tell_registered(change, self.from, attention::RESERVATIONS_RELEASED);
        }
    }
}

fn reserve(
    state: &mut ReservationState,
    from: &Nexus,
    kind: ReservationType,
) -> Result<(), ReservationRefusal> {
    match &state.reservation {
        Some(reservation) if state.holds(from) && reservation.kind == kind => {}
        Some(_) => return Err(ReservationRefusal::Conflict),
        None => state.reservation = Some(held_by(from, kind)),
    }
    Ok(())
}

fn held_by(nexus: &Nexus, kind: ReservationType) -> Reservation {
    Reservation { kind, holder: (!kind.all_registrants()).then(|| nexus.clone()) }
}

fn release(change: &mut StateChange, from: &Nexus, what: u8) -> Result<(), ReservationRefusal> {
    if !change.state.holds(from) {
        return Ok(());
    }
    let matches = |it: &mut Reservation| it.kind as u8 == what;
    let Some(released) = change.state.reservation.take_if(matches) else {
        return Err(ReservationRefusal::illegal(INVALID_RELEASE, None));
    };
    if is_shared(released.kind) {
        tell_registered(change, from, attention::RESERVATIONS_RELEASED);
    }
    Ok(())
}

/// Preempts. `aborts` gets the nexuses whose tasks PREEMPT AND ABORT ends.
fn preempt(
    change: &mut StateChange,
    from: &Nexus,
    key: u64,
    what: u8,
) -> Result<(), ReservationRefusal> {
    let ReservationState { registrations, reservation, .. } = &mut change.state;
    let takes_over = match reservation {
        Some(Reservation { kind, .. }) if kind.all_registrants() => key == 0,
        Some(Reservation { holder: Some(holder), .. }) => registrations.get(holder) == Some(&key),
        _ => false,
    };
    if takes_over {
        let new = held_by(from, commands::kind(what)?);
        let changed = reservation.as_ref().is_some_and(|old| old.kind != new.kind);
        *reservation = Some(new);
        let goes = |nexus: &Nexus, its: u64| nexus != from && (key == 0 || its == key);
        remove(change, goes);
        if changed {
            tell_registered(change, from, attention::RESERVATIONS_RELEASED);
        }
    } else {
        if key == 0 {
            return Err(ReservationRefusal::in_list(8, None));
        }
        if !registrations.values().any(|&its| its == key) {
            return Err(ReservationRefusal::Conflict);
        }
        remove(change, |_, its| its == key);
        // Only an all registrants reservation can have lost its last holder here.
        let ReservationState { registrations, reservation, .. } = &mut change.state;
        reservation.take_if(|it| it.kind.all_registrants() && registrations.is_empty());
    }
    let lost = change.aborts.iter().filter(|nexus| *nexus != from).cloned();
    change.attentions.extend(lost.map(|nexus| (nexus, attention::REGISTRATIONS_PREEMPTED)));
    Ok(())
}

/// Removes registrations and adds them to `aborts`.
fn remove(change: &mut StateChange, goes: impl Fn(&Nexus, u64) -> bool) {
    let aborts = &mut change.aborts;
    change.state.registrations.retain(|nexus, key| {
        let goes = goes(nexus, *key);
        if goes {
            aborts.push(nexus.clone());
        }
        !goes
    });
}

fn move_to(
    all: ReservationView<'_>,
    state: &mut ReservationState,
    from: &Nexus,
    key: u64,
    to: Nexus,
) -> Result<(), ReservationRefusal> {
    let holds = state.holds(from);
    let Some(reservation) = &mut state.reservation else {
        return Err(ReservationRefusal::in_cdb(1, Some(4)));
    };
    if !holds || reservation.kind.all_registrants() {
        return Err(ReservationRefusal::Conflict);
    }
    if key == 0 {
        return Err(ReservationRefusal::in_list(8, None));
    }
    if !all.ports.contains(&to.relative_port) {
        return Err(ReservationRefusal::in_list(18, None));
    }
    if to == *from {
        return Err(ReservationRefusal::in_list(24, None));
    }
    reservation.holder = Some(to.clone());
    state.registrations.insert(to, key);
    Ok(())
}
