//! Claims, and the leases that they leave.

use super::*;

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
fn a_store_that_was_overtaken_does_not_delete_a_volume() {
    let (mut holdings, id) = (holdings::Holdings::default(), VolumeId(7));
    holdings.begin_claim(id);
    let taken = Some(LeaseSource::Nobody);
    holdings.handle_claimed(id, &ClaimOutcome::Mine { number: 1, taken });
    assert_eq!(holdings.deleting_lease(id), Ok(1));
    // Another store takes the volume while the engine stops, and a request here finds that out.
    holdings.begin_claim(id);
    holdings.handle_claimed(id, &ClaimOutcome::Elsewhere(StoreId(2), Vec::new()));
    assert!(matches!(holdings.deleting_lease(id), Err(VolumeError::Store(_))));
}

#[test]
fn a_store_that_was_overtaken_does_not_delete_what_was_restored_since() {
    // The store with lease 1 is told to delete the volume, and is slow. Another one takes the
    // volume and deletes it, and an operator restores it. The slow store goes on after each step of
    // the restoration, and the restoration goes on after each step of the slow store.
    let delete = |lease| DeleteVolume { entry: entry(), lease, clones: Some(BTreeSet::new()) };
    for (before, between) in (0..30).flat_map(|before| (0..15).map(move |steps| (before, steps))) {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
        place.run(claim(1));
        place.run(claim(2));
        place.run(delete(Some(2))).unwrap();
        let (mut restoration, mut slow) =
            (Runner::new(restore(), NOW), Runner::new(delete(Some(1)), NOW));
        let mut restored = (0..before).find_map(|_| place.step(&mut restoration));
        let named = place.0.contains_key(&catalog::name_key("a"));
        let mut deleted = (0..between).find_map(|_| place.step(&mut slow));
        restored = restored.or_else(|| Some(place.finish(&mut restoration)));
        deleted = deleted.or_else(|| Some(place.finish(&mut slow)));
        restored.unwrap().unwrap();
        assert!(place.0.contains_key(&catalog::name_key("a")), "{before} {between}: {deleted:?}");
        // A volume without a name counts as deleted.
        assert!(deleted.unwrap().is_err() || !named, "{before} {between}");
        let now = NOW + trash::HANDS_OFF + 1;
        let tend = TendVolume { me: Some(holder(3)), volume: VolumeId(7), grace: GRACE, now };
        place.run(tend).unwrap();
        assert!(matches!(place.run(claim(2)), ClaimOutcome::Mine { .. }), "{before} {between}");
    }
}

#[test]
fn a_claim_that_comes_after_the_data_is_gone_leaves_nothing() {
    let mut place = deleted();
    // This claim reads the leases before their removal.
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
fn a_claim_that_finds_no_name_keeps_the_lease_of_a_deleted_volume() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    // A slow store reads the leases. Another one takes the volume, and claims it once more while
    // it deletes the volume.
    let mut slow = Runner::new(claim(2), NOW);
    assert_eq!(place.step(&mut slow), None);
    place.run(claim(1));
    let mut again = Runner::new(claim(1), NOW);
    assert!(matches!(again.poll_effect(), Some(Effect::Object(_))));
    let away = Err(StorageError::unavailable("away"));
    again.handle_result(NOW, EffectResult::Object(ObjectResult::List(away)));
    for _ in ["pause", "list", "lease"] {
        assert_eq!(place.step(&mut again), None);
    }
    let clones = Some(BTreeSet::new());
    place.run(DeleteVolume { entry: entry(), lease: Some(1), clones }).unwrap();
    assert_eq!(place.finish(&mut again), ClaimOutcome::Gone);
    // The number of the lease is not free for the slow store.
    place.run(restore()).unwrap();
    let claimed = place.finish(&mut slow);
    assert!(matches!(claimed, ClaimOutcome::Mine { number: 4, .. }), "{claimed:?}");
}

#[test]
fn a_claim_is_not_served_before_it_is_known_that_there_is_a_name() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    let name = catalog::name_key("a");
    let mut runner = Runner::new(claim(1), NOW);
    let mut failed = false;
    let outcome = loop {
        let Some(effect) = runner.poll_effect() else { break runner.poll_outcome() };
        let result = match &effect {
            Effect::Object(ObjectOperation::Get { key, .. }) if *key == name && !failed => {
                failed = true;
                place.0.remove(&name);
                EffectResult::Object(ObjectResult::Get(Err(GetError::Failed(
                    StorageError::unavailable("away"),
                ))))
            }
            _ => place.carry_out(effect),
        };
        runner.handle_result(NOW, result);
    };
    assert_eq!((outcome, failed), (Some(ClaimOutcome::Gone), true));
    assert!(place.0.is_empty(), "{:?}", place.0);
}

#[test]
fn leases_that_could_not_be_removed_go_with_later_ones() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    for process in 1..=20 {
        let me = LeaseHolder { incarnation: process, ..holder(1) };
        let mut runner = Runner::new(Claim { me, ..claim(1) }, NOW);
        while let Some(effect) = runner.poll_effect() {
            let delete = matches!(effect, Effect::Object(ObjectOperation::Delete { .. }));
            let result = if delete && process < 20 {
                EffectResult::Object(ObjectResult::Delete(Err(StorageError::unavailable("away"))))
            } else {
                place.carry_out(effect)
            };
            runner.handle_result(NOW, result);
        }
    }
    assert_eq!(leases(&place), lease::KEPT);
}

/// The number of leases of the volume.
fn leases(place: &Place) -> u64 {
    let prefix = lease::prefix(VolumeId(7));
    place.0.keys().filter(|key| key.starts_with(&prefix)).count() as u64
}

#[test]
fn a_claim_whose_put_failed_and_was_done_removes_old_leases() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    for process in 1..=20 {
        let me = LeaseHolder { incarnation: process, ..holder(1) };
        let mut runner = Runner::new(Claim { me, ..claim(1) }, NOW);
        while let Some(effect) = runner.poll_effect() {
            let put = matches!(effect, Effect::Object(ObjectOperation::Put { .. }));
            let mut result = place.carry_out(effect);
            if put {
                let failed = PutError::Failed(StorageError::unavailable("away"));
                result = EffectResult::Object(ObjectResult::Put(Err(failed)));
            }
            runner.handle_result(NOW, result);
        }
    }
    assert_eq!(leases(&place), lease::KEPT);
}

#[test]
fn a_restoration_removes_old_leases() {
    let mut place = deleted();
    let closed = place.0[&lease::key(VolumeId(7), 2)].clone();
    for number in 3..=20 {
        place.0.insert(lease::key(VolumeId(7), number), closed.clone());
    }
    place.run(restore()).unwrap();
    assert_eq!(leases(&place), lease::KEPT);
}
