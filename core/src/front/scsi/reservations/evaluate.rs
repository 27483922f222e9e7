//! What a PERSISTENT RESERVE OUT makes of the state (SPC-5, "Registering" to "Clearing").

use super::commands::{self, Action, Command};
use super::transport::TransportId;
use super::{
    Change, Kind, MAX_PORT_BYTES, MAX_REGISTRATIONS, Refusal, Reservation, Reservations, State,
    attention,
};
use crate::front::scsi::Nexus;
use std::collections::BTreeSet;

/// INSUFFICIENT REGISTRATION RESOURCES.
const INSUFFICIENT: u16 = 0x5504;
/// INVALID RELEASE OF PERSISTENT RESERVATION.
const INVALID_RELEASE: u16 = 0x2604;

/// What `command`, sent through `from`, leads to.
pub(super) fn evaluate(
    all: &Reservations,
    from: &Nexus,
    command: &Command,
) -> Result<Change, Refusal> {
    let mut change = Change {
        state: all.state.clone(),
        counts: true,
        attentions: Vec::new(),
        aborts: Vec::new(),
    };
    if let Action::Register { ignore, all_ports, aptpl, others } = &command.action {
        let aptpl = *aptpl;
        let mut register = Register { all, from, command, ignore: *ignore, all_ports: *all_ports };
        if register.run(others.as_deref(), &mut change)? {
            change.state.aptpl = aptpl;
        } else {
            change.counts = false;
        }
        check_limits(&change.state)?;
        return Ok(change);
    }
    if all.state.registrations.get(from) != Some(&command.key) {
        return Err(Refusal::Conflict);
    }
    match &command.action {
        Action::Register { .. } => {}
        Action::Reserve(kind) => {
            change.counts = false;
            reserve(&mut change.state, from, *kind)?;
        }
        Action::Release { what } => {
            change.counts = false;
            release(&mut change, from, *what)?;
        }
        Action::Clear => {
            change.state.reservation = None;
            let registered = std::mem::take(&mut change.state.registrations);
            let others = registered.into_keys().filter(|nexus| nexus != from);
            change.attentions.extend(others.map(|it| (it, attention::RESERVATIONS_PREEMPTED)));
        }
        Action::Preempt { what, abort } => {
            preempt(&mut change, from, command.action_key, *what)?;
            if !abort {
                change.aborts.clear();
            }
        }
        Action::Move { unregister, aptpl, relative_port, to } => {
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

fn check_limits(state: &State) -> Result<(), Refusal> {
    let names = || state.registrations.keys().map(|nexus| nexus.initiator_port.len());
    if state.registrations.len() > MAX_REGISTRATIONS || names().any(|len| len > MAX_PORT_BYTES) {
        return Err(Refusal::illegal(INSUFFICIENT, None));
    }
    Ok(())
}

/// The type of a reservation that everybody who is registered shares: its end is told to them.
fn is_shared(kind: Kind) -> bool {
    kind.registrants_only() || kind.all_registrants()
}

/// Tells every registered nexus but `from`.
fn tell_registered(change: &mut Change, from: &Nexus, code: u16) {
    let registered = change.state.registrations.keys();
    let told = registered.filter(|nexus| *nexus != from).map(|nexus| (nexus.clone(), code));
    change.attentions.extend(told);
}

/// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
struct Register<'a> {
    all: &'a Reservations,
    from: &'a Nexus,
    command: &'a Command,
    ignore: bool,
    all_ports: bool,
}

impl Register<'_> {
    /// Whether it did anything.
    fn run(
        &mut self,
        others: Option<&[TransportId]>,
        change: &mut Change,
    ) -> Result<bool, Refusal> {
        let registered = &self.all.state.registrations;
        let current = registered.get(self.from);
        if !self.ignore && current.copied().unwrap_or(0) != self.command.key {
            return Err(Refusal::Conflict);
        }
        if current.is_some() && others.is_some() {
            return Err(Refusal::in_list(20, Some(3)));
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

    /// The nexuses that a request of this initiator port is about: with ALL_TG_PT it counts as sent
    /// through every target port.
    fn nexuses(&self, initiator_port: &str) -> BTreeSet<Nexus> {
        let all = if self.all_ports { self.all.ports.as_slice() } else { &[] };
        let ports = all.iter().chain([&self.from.relative_port]);
        ports
            .map(|&relative_port| Nexus {
                initiator_port: initiator_port.to_owned(),
                relative_port,
            })
            .collect()
    }

    fn one(&self, nexus: Nexus, change: &mut Change) -> Result<bool, Refusal> {
        let key = self.command.action_key;
        let registrations = &mut change.state.registrations;
        let current = registrations.get(&nexus).copied();
        if key == 0 {
            // What is not registered through one of the other ports needs no unregistering there.
            let wrong = current.is_some_and(|current| current != self.command.key);
            if wrong && !self.ignore {
                return Err(Refusal::Conflict);
            }
            return Ok(registrations.remove(&nexus).is_some());
        }
        if !self.ignore && current.unwrap_or(0) != self.command.key {
            return Err(Refusal::Conflict);
        }
        registrations.insert(nexus, key);
        Ok(true)
    }

    /// SPEC_I_PT: the nexuses of those ports, none of which may be registered yet.
    fn others(&self, ids: &[TransportId]) -> Result<BTreeSet<Nexus>, Refusal> {
        let mut found = BTreeSet::new();
        for id in ids {
            let ports: BTreeSet<String> = match id.isid {
                Some(_) => [id.port()].into(),
                // The name of a device stands for all its ports that are known.
                None => {
                    let live = self.all.nexuses.values().map(|live| &live.ends.initiator_port);
                    let known = live.filter(|port| {
                        let rest = port.strip_prefix(id.name.as_str());
                        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(",i,0x"))
                    });
                    known.cloned().collect()
                }
            };
            // Registering nobody would look like success.
            if ports.is_empty() {
                return Err(Refusal::in_list(28, None));
            }
            for nexus in ports.iter().flat_map(|port| self.nexuses(port)) {
                if self.all.state.registrations.contains_key(&nexus) {
                    return Err(Refusal::in_list(28, None));
                }
                found.insert(nexus);
            }
        }
        Ok(found)
    }

    /// A reservation ends with the registration of its holder, or of the last of all registrants.
    fn release_implicitly(&self, change: &mut Change) {
        let State { registrations, reservation, .. } = &mut change.state;
        let ends = |it: &mut Reservation| match &it.holder {
            Some(holder) => !registrations.contains_key(holder),
            None => it.kind.all_registrants() && registrations.is_empty(),
        };
        if reservation.take_if(ends).is_some_and(|it| it.kind.registrants_only()) {
            tell_registered(change, self.from, attention::RESERVATIONS_RELEASED);
        }
    }
}

fn reserve(state: &mut State, from: &Nexus, kind: Kind) -> Result<(), Refusal> {
    match &state.reservation {
        Some(reservation) if state.holds(from) && reservation.kind == kind => {}
        Some(_) => return Err(Refusal::Conflict),
        None => state.reservation = Some(held_by(from, kind)),
    }
    Ok(())
}

fn held_by(nexus: &Nexus, kind: Kind) -> Reservation {
    Reservation { kind, holder: (!kind.all_registrants()).then(|| nexus.clone()) }
}

fn release(change: &mut Change, from: &Nexus, what: u8) -> Result<(), Refusal> {
    if !change.state.holds(from) {
        return Ok(());
    }
    let matches = |it: &mut Reservation| it.kind as u8 == what;
    let Some(released) = change.state.reservation.take_if(matches) else {
        return Err(Refusal::illegal(INVALID_RELEASE, None));
    };
    if is_shared(released.kind) {
        tell_registered(change, from, attention::RESERVATIONS_RELEASED);
    }
    Ok(())
}

/// `aborts` are those of PREEMPT AND ABORT.
fn preempt(change: &mut Change, from: &Nexus, key: u64, what: u8) -> Result<(), Refusal> {
    let State { registrations, reservation, .. } = &mut change.state;
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
            return Err(Refusal::in_list(8, None));
        }
        if !registrations.values().any(|&its| its == key) {
            return Err(Refusal::Conflict);
        }
        remove(change, |_, its| its == key);
        // Only the reservation of all registrants can have lost its holders here.
        let State { registrations, reservation, .. } = &mut change.state;
        reservation.take_if(|it| it.kind.all_registrants() && registrations.is_empty());
    }
    let lost = change.aborts.iter().filter(|nexus| *nexus != from).cloned();
    change.attentions.extend(lost.map(|nexus| (nexus, attention::REGISTRATIONS_PREEMPTED)));
    Ok(())
}

/// Removes registrations and lists them as `aborts`.
fn remove(change: &mut Change, goes: impl Fn(&Nexus, u64) -> bool) {
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
    all: &Reservations,
    state: &mut State,
    from: &Nexus,
    key: u64,
    to: Nexus,
) -> Result<(), Refusal> {
    let holds = state.holds(from);
    let Some(reservation) = &mut state.reservation else {
        return Err(Refusal::in_cdb(1, Some(4)));
    };
    if !holds || reservation.kind.all_registrants() {
        return Err(Refusal::Conflict);
    }
    if key == 0 {
        return Err(Refusal::in_list(8, None));
    }
    if !all.ports.contains(&to.relative_port) {
        return Err(Refusal::in_list(18, None));
    }
    if to == *from {
        return Err(Refusal::in_list(24, None));
    }
    reservation.holder = Some(to.clone());
    state.registrations.insert(to, key);
    Ok(())
}
