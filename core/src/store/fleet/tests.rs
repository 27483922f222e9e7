//! Runs procedures over objects in memory: one alone, two at once, and one that stops halfway.

mod clones;
mod deletions;
mod leases;

use super::claim::{Claim, ClaimOutcome, Close, LeaseHolder, LeasePurpose, LeaseSource};
use super::clones::CloneVolume;
use super::deleted::ListDeleted;
use super::deletion::{DeleteVolume, PurgeVolume, RestoreVolume, TendVolume, Tended};
use super::listing::{CatalogEntry, ReadCatalog};
use super::tenants::{CreateVolume, OperateTenants};
use super::*;
use crate::block::VolumeId;
use crate::store::object::{
    GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
};
use crate::store::{VolumeSpec, catalog, lease, tenant, trash};
use crate::wire::link::{
    Parent, SnapshotOperation, SnapshotReply, StoreId, StoreOperation, StoreReply, TenantLimits,
    TenantOperation,
};
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

    /// Executes an effect. No other store and no engine answers.
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

/// A location after store 1 has deleted a volume with data.
fn deleted() -> Place {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
    let taken = Some(LeaseSource::Nobody);
    assert_eq!(place.run(claim(1)), ClaimOutcome::Mine { number: 1, taken });
    let delete = DeleteVolume { entry: entry(), lease: Some(1), clones: Some(BTreeSet::new()) };
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

const CLONE: VolumeId = VolumeId(8);

#[test]
fn a_size_that_goes_away_fails_no_list() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    let key = |number| catalog::size_key(VolumeId(7), number);
    for number in [1, 2] {
        let size = catalog::encode_size(80 + 8 * number);
        place.0.insert(key(number), Bytes::from(size));
    }
    for gone in [None, Some(2)] {
        let mut runner = Runner::new(ReadCatalog::default(), NOW);
        let outcome = loop {
            let Some(effect) = runner.poll_effect() else { break runner.poll_outcome() };
            let gets =
                |operation: &ObjectOperation| gone.is_some_and(|n| operation.key() == key(n));
            if let Effect::Objects { operations, .. } = &effect
                && operations.iter().any(gets)
            {
                place.0.remove(&key(2));
            }
            let result = place.carry_out(effect);
            runner.handle_result(NOW, result);
        };
        let catalog = outcome.unwrap().unwrap();
        let sectors = if gone.is_some() { 88 } else { 96 };
        assert_eq!(catalog.entries["a"].sectors, sectors);
    }
}
