//! Procedures over objects in memory, two of them at once, and cut short.

use super::claim::{Claim, ClaimOutcome, Close, LeaseHolder, LeasePurpose, LeaseSource};
use super::deleted::ListDeleted;
use super::deletion::{DeleteVolume, PurgeVolume, RestoreVolume, TendVolume, Tended};
use super::listing::CatalogEntry;
use super::tenants::CreateVolume;
use super::*;
use crate::block::VolumeId;
use crate::store::object::{GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError};
use crate::store::{VolumeSpec, catalog, lease, trash};
use crate::wire::link::{StoreId, StoreOperation, StoreReply};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
struct Place(BTreeMap<String, Bytes>);

impl Place {
    fn execute(&mut self, operation: ObjectOperation) -> ObjectResult {
        match operation {
            ObjectOperation::Put { key, data } => {
                if self.0.contains_key(&key) {
                    return ObjectResult::Put(Err(PutError::Exists));
                }
                self.0.insert(key, data.concat().into());
                ObjectResult::Put(Ok(()))
            }
            ObjectOperation::Get { key, .. } => {
                ObjectResult::Get(self.0.get(&key).cloned().ok_or(GetError::NotFound))
            }
            ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => {
                let meta = |(key, data): (&String, &Bytes)| ObjectMeta {
                    key: key.clone(),
                    bytes: data.len() as u64,
                };
                let list = self.0.iter().filter(|(key, _)| key.starts_with(&prefix)).map(meta);
                ObjectResult::List(Ok(list.collect()))
            }
            ObjectOperation::Delete { key } => {
                self.0.remove(&key);
                ObjectResult::Delete(Ok(()))
            }
        }
    }

    /// Carries out an effect; no other store answers.
    fn carry_out(&mut self, effect: Effect) -> EffectResult {
        match effect {
            Effect::Object(operation) => EffectResult::Object(self.execute(operation)),
            Effect::Objects { operations, .. } => {
                let results = operations.into_iter().map(|operation| self.execute(operation));
                EffectResult::Objects(results.collect())
            }
            Effect::Peer { .. } => EffectResult::Peer(None),
            Effect::Engine { .. } => EffectResult::Engine(Err(VolumeError::NotFound)),
            Effect::Pause(_) => EffectResult::Paused,
        }
    }

    fn step<P: Procedure>(&mut self, runner: &mut Runner<P>) -> Option<P::Outcome> {
        let effect = runner.poll_effect();
        if let Some(effect) = effect {
            let result = self.carry_out(effect);
            runner.handle_result(NOW, result);
        }
        runner.poll_outcome()
    }

    fn finish<P: Procedure>(&mut self, runner: &mut Runner<P>) -> P::Outcome {
        for _ in 0..1000 {
            if let Some(outcome) = self.step(runner) {
                return outcome;
            }
        }
        panic!("it has no end");
    }

    fn run<P: Procedure>(&mut self, procedure: P) -> P::Outcome {
        let mut runner = Runner::new(procedure, NOW);
        match runner.poll_outcome() {
            Some(outcome) => outcome,
            None => self.finish(&mut runner),
        }
    }
}

const NOW: u64 = 1_700_000_000;
const GRACE: u64 = 1000;

fn holder(id: u128) -> LeaseHolder {
    LeaseHolder { id: StoreId(id), incarnation: 1, addresses: vec!["a".into()] }
}

fn entry() -> CatalogEntry {
    let spec = VolumeSpec {
        id: VolumeId(7),
        name: "a".into(),
        created_sectors: 80,
        block_bytes: 512,
        created: NOW,
        parents: Vec::new(),
    };
    CatalogEntry { spec, sectors: 80 }
}

/// A volume with data that store 1 has, and that is deleted.
fn deleted() -> Place {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
    let taken = Some(LeaseSource::Nobody);
    assert_eq!(place.run(claim(1)), ClaimOutcome::Mine { number: 1, taken });
    let delete = DeleteVolume { entry: entry(), lease: Some(1), clones: BTreeSet::new() };
    place.run(delete).unwrap();
    place
}

fn claim(id: u128) -> Claim {
    Claim { me: holder(id), spec: entry().spec, purpose: LeasePurpose::Ask }
}

fn restore<'a>() -> RestoreVolume<'a> {
    RestoreVolume { me: Some(holder(1)), volume: VolumeId(7), name: "a".into(), of: None }
}

/// Asks twice and then gives up the first round; the second succeeds.
struct Twice;

impl Procedure for Twice {
    type Outcome = (u32, bool);

    fn decide(&self, facts: &mut Facts<'_>) -> Known<(u32, bool)> {
        let first = facts.get("a")?;
        facts.note(Note::Debug("first".into()));
        let again = facts.get("b")?;
        facts.note(Note::Debug("second".into()));
        match facts.round() {
            0 => facts.begin_again(Duration::from_millis(5)),
            round => Ok((round, first == again)),
        }
    }
}

#[test]
fn a_procedure_is_run_from_result_to_result() {
    let (mut place, mut runner) = (Place::default(), Runner::new(Twice, NOW));
    let mut effects = Vec::new();
    let outcome = loop {
        let Some(effect) = runner.poll_effect() else { break runner.poll_outcome() };
        assert!(runner.poll_effect().is_none(), "once");
        effects.push(effect.clone());
        let result = place.carry_out(effect);
        runner.handle_result(NOW, result);
    };
    assert_eq!(outcome, Some((1, true)));
    assert_eq!(effects.len(), 5);
    assert_eq!(effects[2], Effect::Pause(Duration::from_millis(5)));
    let notes: Vec<_> = std::iter::from_fn(|| runner.poll_note()).collect();
    assert_eq!(notes.len(), 4, "each once a round: {notes:?}");
}

#[test]
fn the_holder_is_asked_before_a_lease_is_taken() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    place.run(claim(1));
    for (answer, outcome) in [
        (Some(Ok(StoreReply::Done)), ClaimOutcome::Elsewhere(StoreId(1), vec!["a".into()])),
        (None, ClaimOutcome::Mine { number: 2, taken: Some(LeaseSource::Silent) }),
    ] {
        let mut runner = Runner::new(claim(2), NOW);
        let mut asked = 0;
        let got = loop {
            let Some(effect) = runner.poll_effect() else { break runner.poll_outcome() };
            let result = match effect {
                Effect::Peer { store: StoreId(1), operation: StoreOperation::Report, .. } => {
                    asked += 1;
                    EffectResult::Peer(answer.clone())
                }
                other => place.carry_out(other),
            };
            runner.handle_result(NOW, result);
        };
        assert_eq!((got, asked), (Some(outcome), 1));
    }
}

#[test]
fn a_store_that_was_overtaken_does_not_close_a_volume() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    place.run(claim(1));
    place.run(claim(2));
    let close = |number| Close { volume: VolumeId(7), number };
    assert!(place.run(close(1)).unwrap_err().to_string().contains("another store"));
    place.run(close(2)).unwrap();
    place.run(close(2)).unwrap();
    assert_eq!(place.run(claim(1)), ClaimOutcome::Gone);
}

#[test]
fn a_claim_that_comes_after_the_data_is_gone_leaves_nothing() {
    let mut place = deleted();
    // It has read the leases before they went.
    let mut early = Runner::new(claim(2), NOW);
    place.0.remove(&lease::key(VolumeId(7), 2));
    for _ in 0..3 {
        assert_eq!(place.step(&mut early), None);
    }
    assert!(matches!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Removed(_))));
    assert_eq!(place.finish(&mut early), ClaimOutcome::Gone);
    assert!(place.0.is_empty(), "{:?}", place.0);
}

#[test]
fn of_a_removal_and_a_restoration_one_wins() {
    // Each restoration has got so far when everything is removed; each removal when the volume is
    // restored.
    for steps in 0.. {
        let mut place = deleted();
        let mut late = Runner::new(restore(), NOW);
        if (0..steps).any(|_| place.step(&mut late).is_some()) {
            break;
        }
        let purged = place.run(PurgeVolume(VolumeId(7)));
        let restored = place.finish(&mut late);
        assert_eq!(restored.is_err(), matches!(purged, Ok(Tended::Removed(_))), "{steps}");
        if restored.is_err() {
            assert!(place.0.is_empty(), "{steps}: {:?}", place.0);
        } else {
            assert!(place.0.contains_key(&catalog::segment_key(VolumeId(7), 1)));
        }
    }
    for steps in 0.. {
        let mut place = deleted();
        let mut late = Runner::new(PurgeVolume(VolumeId(7)), NOW);
        if (0..steps).any(|_| place.step(&mut late).is_some()) {
            break;
        }
        let restored = place.run(restore());
        let purged = place.finish(&mut late);
        assert_eq!(restored.is_ok(), purged == Ok(Tended::Nothing), "{steps}: {restored:?}");
    }
}

#[test]
fn a_deletion_that_is_cut_short_is_settled_by_whoever_comes() {
    for steps in 0.. {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.run(claim(1));
        let delete = DeleteVolume { entry: entry(), lease: Some(1), clones: BTreeSet::new() };
        let mut cut = Runner::new(delete, NOW);
        let done = (0..steps).any(|_| place.step(&mut cut).is_some());
        drop(cut);
        let now = NOW + trash::HANDS_OFF + 1;
        let tend = TendVolume { me: Some(holder(2)), volume: VolumeId(7), grace: GRACE, now };
        let tended = place.run(tend).unwrap();
        let named = place.0.contains_key(&catalog::name_key("a"));
        let list = ListDeleted { after: VolumeId(0), grace: GRACE, wanted: &|_| true };
        let (listed, _) = place.run(list).unwrap();
        assert_eq!(listed.len(), usize::from(!named), "{steps} {tended:?}");
        if named {
            assert!(matches!(place.run(claim(3)), ClaimOutcome::Mine { .. }), "{steps}");
        }
        if done {
            assert!(!named);
            break;
        }
    }
}
