//! Random commands against a model of SPC-5's tables in a different form: arrays over four nexuses.
//! After each command the test checks its status, the unit attentions, the ended tasks and the
//! rights of every nexus. It also checks PERSISTENT RESERVE IN, and that a power cycle keeps
//! exactly the right state.

use super::*;
use proptest::prelude::*;

/// Initiator and target port of each nexus.
const ENDS: [(u8, u16); 4] = [(1, 1), (1, 2), (2, 1), (2, 2)];

type Keys = [u64; 4];

#[derive(Clone, Debug, PartialEq)]
struct Model {
    /// 0: not registered.
    keys: Keys,
    /// Type 0: none. The second field is the nexus that made it; types 7 and 8 ignore it.
    kind: u8,
    holder: usize,
    generation: u32,
    aptpl: bool,
    reserved: Option<usize>,
}

#[derive(Debug, PartialEq)]
enum Status {
    Good,
    Conflict,
    Code(u16),
}

#[derive(Debug, PartialEq)]
struct Outcome {
    status: Status,
    attentions: Vec<(usize, u16)>,
    aborts: Vec<usize>,
}

impl Outcome {
    fn only(status: Status) -> Outcome {
        Outcome { status, attentions: vec![], aborts: vec![] }
    }
}

#[derive(Clone, Debug)]
struct Out {
    action: u8,
    kind: u8,
    key: u64,
    action_key: u64,
    flag: bool,
    aptpl: bool,
    to: usize,
}

impl Model {
    fn new() -> Model {
        let (keys, kind, holder) = ([0; 4], 0, 0);
        Model { keys, kind, holder, generation: 0, aptpl: false, reserved: None }
    }

    fn holds(&self, n: usize) -> bool {
        match self.kind {
            0 => false,
            7 | 8 => self.keys[n] != 0,
            _ => self.holder == n,
        }
    }

    /// Those of `who` that are registered now.
    fn told(&self, who: impl Fn(usize) -> bool, code: u16) -> Vec<(usize, u16)> {
        (0..4).filter(|&n| self.keys[n] != 0 && who(n)).map(|n| (n, code)).collect()
    }

    fn command(&mut self, from: usize, out: &Out) -> Outcome {
        if self.reserved.is_some() {
            return Outcome::only(Status::Conflict);
        }
        let before = self.clone();
        let outcome = self.carry_out(from, out);
        if outcome.status == Status::Good {
            let does_nothing =
                matches!(out.action, 0 | 6) && before.keys == self.keys && out.action_key == 0;
            if !matches!(out.action, 1 | 2) && !does_nothing {
                self.generation += 1;
            }
            if matches!(out.action, 0 | 6 | 7) && !does_nothing {
                self.aptpl = out.aptpl;
            }
        } else {
            *self = before;
        }
        outcome
    }

    fn carry_out(&mut self, from: usize, out: &Out) -> Outcome {
        let mine = self.keys[from];
        let refuse = |code| Outcome::only(Status::Code(code));
        let valid = matches!(out.kind, 1 | 3 | 5..=8);
        if out.action == 1 && !valid {
            return refuse(0x2400);
        }
        // "Register behaviors": a key of 0 stands for no registration.
        if out.action != 6 && mine != out.key || !matches!(out.action, 0 | 6) && mine == 0 {
            return Outcome::only(Status::Conflict);
        }
        let mut outcome = Outcome::only(Status::Good);
        match out.action {
            0 | 6 => {
                // ALL_TG_PT: the same initiator through the other port.
                let also = out.flag.then_some(from ^ 1);
                for n in [Some(from), also].into_iter().flatten() {
                    let its = self.keys[n];
                    let absent = out.action_key == 0 && its == 0;
                    if out.action == 0 && its != out.key && !absent {
                        return Outcome::only(Status::Conflict);
                    }
                    self.keys[n] = out.action_key;
                }
                match self.kind {
                    7 | 8 if self.keys == [0; 4] => self.kind = 0,
                    1 | 3 if self.keys[self.holder] == 0 => self.kind = 0,
                    5 | 6 if self.keys[self.holder] == 0 => {
                        self.kind = 0;
                        outcome.attentions = self.told(|n| n != from, 0x2a04);
                    }
                    _ => {}
                }
            }
            1 if self.kind == 0 => (self.kind, self.holder) = (out.kind, from),
            1 if self.holds(from) && self.kind == out.kind => {}
            1 => return Outcome::only(Status::Conflict),
            2 if !self.holds(from) => {}
            2 if self.kind != out.kind => return refuse(0x2604),
            2 => {
                if self.kind >= 5 {
                    outcome.attentions = self.told(|n| n != from, 0x2a04);
                }
                self.kind = 0;
            }
            3 => {
                outcome.attentions = self.told(|n| n != from, 0x2a03);
                (self.keys, self.kind) = ([0; 4], 0);
            }
            4 | 5 => {
                let victim = out.action_key;
                let all = matches!(self.kind, 7 | 8);
                let whole = all && victim == 0
                    || self.kind != 0 && !all && self.keys[self.holder] == victim;
                if !whole && victim == 0 {
                    return refuse(0x2600);
                }
                if !whole && !self.keys.contains(&victim) {
                    return Outcome::only(Status::Conflict);
                }
                if whole && !valid {
                    return refuse(0x2400);
                }
                let keys = self.keys;
                let goes = |n: usize| {
                    keys[n] != 0
                        && (keys[n] == victim || whole && victim == 0)
                        && !(whole && n == from)
                };
                outcome.attentions = self.told(|n| goes(n) && n != from, 0x2a05);
                if out.action == 5 {
                    outcome.aborts = (0..4).filter(|&n| goes(n)).collect();
                }
                (0..4).filter(|&n| goes(n)).for_each(|n| self.keys[n] = 0);
                if whole {
                    if self.kind != out.kind {
                        outcome.attentions.extend(self.told(|n| n != from, 0x2a04));
                    }
                    (self.kind, self.holder) = (out.kind, from);
                } else if self.keys == [0; 4] {
                    self.kind = 0;
                }
            }
            _ => {
                if self.kind == 0 {
                    return refuse(0x2400);
                }
                if self.holder != from || self.kind >= 7 {
                    return Outcome::only(Status::Conflict);
                }
                if out.action_key == 0 || out.to == from {
                    return refuse(0x2600);
                }
                self.keys[out.to] = out.action_key;
                self.holder = out.to;
                if out.flag {
                    self.keys[from] = 0;
                }
            }
        }
        outcome
    }

    /// Whether the nexus may read, and write.
    fn allowed(&self, n: usize) -> (bool, bool) {
        if let Some(reserved) = self.reserved {
            return (reserved == n, reserved == n);
        }
        let registered = self.keys[n] != 0;
        match self.kind {
            0 => (true, true),
            1 => (true, self.holder == n),
            3 => (self.holder == n, self.holder == n),
            5 | 7 => (true, registered),
            _ => (registered, registered),
        }
    }

    /// RESERVE if `take`, else RELEASE.
    fn spc2(&mut self, from: usize, take: bool) -> Status {
        if self.keys != [0; 4] {
            let good = self.holds(from) || self.kind >= 5 && self.keys[from] != 0;
            return if good { Status::Good } else { Status::Conflict };
        }
        match (take, self.reserved) {
            (true, Some(other)) if other != from => return Status::Conflict,
            (true, _) => self.reserved = Some(from),
            (false, Some(other)) if other != from => {}
            (false, _) => self.reserved = None,
        }
        Status::Good
    }

    fn power_cycle(&mut self) {
        if self.aptpl && self.keys != [0; 4] {
            (self.generation, self.reserved) = (0, None);
        } else {
            *self = Model::new();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Out(usize, Out),
    Spc2(usize, bool),
    /// The nexus is lost and comes back.
    Break(usize),
    Reset,
    PowerCycle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![8 => prop::sample::select(vec![1u8, 3, 5, 6, 7, 8]), 1 => 0u8..16];
    let out = (0u8..8, kind, 0u64..4, 0u64..4, any::<bool>(), any::<bool>(), 0usize..4).prop_map(
        |(action, kind, key, action_key, flag, aptpl, to)| Out {
            action,
            kind: kind & 0xf,
            key,
            action_key,
            flag,
            aptpl,
            to,
        },
    );
    let step = prop_oneof![
        20 => (0usize..4, out).prop_map(|(n, out)| Step::Out(n, out)),
        2 => (0usize..4, any::<bool>()).prop_map(|(n, take)| Step::Spc2(n, take)),
        1 => (0usize..4).prop_map(Step::Break),
        1 => Just(Step::Reset),
        1 => Just(Step::PowerCycle),
    ];
    prop::collection::vec(step, 1..60)
}

fn status(result: Result<(), ReservationRefusal>) -> Status {
    match result {
        Ok(()) => Status::Good,
        Err(ReservationRefusal::Conflict) => Status::Conflict,
        Err(ReservationRefusal::Check { code, .. }) => Status::Code(code),
        Err(ReservationRefusal::Busy) => panic!("nothing waits here"),
    }
}

fn nexuses(it: &mut Reservations) {
    for (n, (initiator, relative)) in ENDS.into_iter().enumerate() {
        it.handle_nexus(n as NexusId, &ends(initiator, relative));
    }
}

fn unit(it: Reservations) -> Unit {
    let mut unit = Unit::over(it);
    unit.it.handle_nexus_loss(4);
    nexuses(&mut unit.it);
    unit
}

fn compare(unit: &Unit, model: &Model) {
    for n in 0..4 {
        let nexus = n as NexusId;
        let found = (
            unit.it.check(nexus, ConflictClass::Read).is_ok(),
            unit.it.check(nexus, ConflictClass::Write).is_ok(),
        );
        assert_eq!(found, model.allowed(n), "nexus {n}");
        let ready = model.reserved.is_none_or(|holder| holder == n);
        assert_eq!(unit.it.check(nexus, ConflictClass::Ready).is_ok(), ready);
        assert_eq!(unit.it.check(nexus, ConflictClass::Free), GOOD);
    }
    if model.reserved.is_some() {
        assert!(unit.it.handle_in(&in_cdb(0, 100)).is_err());
        return;
    }
    let keys: Vec<u64> = model.keys.iter().copied().filter(|&key| key != 0).collect();
    assert_eq!(unit.keys(), keys);
    assert_eq!(unit.generation(), model.generation);
    let reservation = match model.kind {
        0 => None,
        7 | 8 => Some((0, model.kind)),
        _ => Some((model.keys[model.holder], model.kind)),
    };
    assert_eq!(unit.reservation(), reservation);
    let status = unit.it.handle_in(&in_cdb(3, u16::MAX)).unwrap();
    let mut rest = &status[8..];
    for n in (0..4).filter(|&n| model.keys[n] != 0) {
        assert_eq!(rest[..8], model.keys[n].to_be_bytes());
        assert_eq!(rest[12] == 1, model.holds(n));
        assert_eq!(rest[13], if model.holds(n) { model.kind } else { 0 });
        assert_eq!(rest[18..20], ENDS[n].1.to_be_bytes());
        let length = rest[23] as usize;
        let (id, left) = transport::parse(&rest[24..24 + length], 0).unwrap();
        assert_eq!((id.port(), left.len()), (port(ENDS[n].0), 0));
        rest = &rest[24 + length..];
    }
    assert!(rest.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_tables_are_kept(steps in steps(), right in any::<u64>()) {
        let mut unit = unit(Reservations::restore(&[1, 2], &[]).unwrap());
        let mut model = Model::new();
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Step::Out(from, mut out) => {
                    // Keys are mostly right, or hardly any command would succeed.
                    if right >> (index % 64) & 3 != 0 {
                        out.key = model.keys[from];
                    }
                    let list = if out.action == MOVE {
                        let (initiator, relative) = ENDS[out.to];
                        let flags = u8::from(out.flag) << 1 | u8::from(out.aptpl);
                        moving(out.key, out.action_key, flags, relative, &port(initiator))
                    } else {
                        let flags = u8::from(out.flag) << 2 | u8::from(out.aptpl);
                        list(out.key, out.action_key, flags)
                    };
                    unit.attentions.clear();
                    unit.aborted.clear();
                    let found = status(unit.send(from as NexusId, out.action, out.kind, &list));
                    let number = |&(n, code): &(NexusId, u16)| (n as usize, code);
                    let mut found = Outcome {
                        status: found,
                        attentions: unit.attentions.iter().map(number).collect(),
                        aborts: unit.aborted.iter().map(|&n| n as usize).collect(),
                    };
                    let mut expected = model.command(from, &out);
                    for outcome in [&mut found, &mut expected] {
                        outcome.attentions.sort_unstable();
                    }
                    assert_eq!(found, expected, "{from}: {out:?}");
                }
                Step::Spc2(from, take) => {
                    let mut cdb = [0; 16];
                    cdb[0] = if take { 0x16 } else { 0x17 };
                    let found = if take {
                        unit.it.handle_reserve(from as NexusId, &cdb)
                    } else {
                        unit.it.handle_release(from as NexusId, &cdb)
                    };
                    assert_eq!(status(found), model.spc2(from, take));
                }
                Step::Break(n) => {
                    unit.it.handle_nexus_loss(n as NexusId);
                    nexuses(&mut unit.it);
                    model.reserved.take_if(|holder| *holder == n);
                }
                Step::Reset => {
                    unit.it.handle_reset();
                    model.reserved = None;
                }
                Step::PowerCycle => {
                    let it = Reservations::restore(&[1, 2], &unit.storage).unwrap();
                    let storage = unit.storage.clone();
                    unit = Unit { storage, ..self::unit(it) };
                    model.power_cycle();
                }
            }
            compare(&unit, &model);
        }
    }

    #[test]
    fn any_bytes_are_answered(
        cdb in any::<[u8; 16]>(),
        list in prop::collection::vec(any::<u8>(), 0..200),
        action in 0u8..9,
    ) {
        let mut unit = Unit::new();
        unit.register(1, 1);
        for (from, key) in [(1, 1), (2, 0)] {
            let mut cdb = cdb;
            let mut list = list.clone();
            (cdb[0], cdb[1]) = (0x5f, action);
            cdb[5..9].copy_from_slice(&(list.len() as u32).to_be_bytes());
            list.iter_mut().take(8).for_each(|byte| *byte = 0);
            list.get_mut(7).into_iter().for_each(|byte| *byte = key);
            unit.it.handle_out(7, from, &cdb, &list);
            let mut done = 0;
            while let Some(output) = unit.it.poll_output() {
                match output {
                    ReservationOutput::Done { task, .. } => {
                        assert_eq!(task, 7);
                        done += 1;
                    }
                    ReservationOutput::Save { id, .. } => unit.it.handle_saved(id, Ok(())),
                    ReservationOutput::Attention { .. } | ReservationOutput::Abort { .. } => {}
                }
            }
            assert_eq!(done, 1);
            let _ = unit.it.handle_in(&cdb);
            let _ = ConflictClass::of(&cdb);
            let _ = saved::decode(&list);
        }
    }
}
