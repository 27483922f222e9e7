//! Clones, and the volumes that they share data with.

use super::*;

fn parents() -> Vec<Parent> {
    vec![Parent { volume: VolumeId(7), segment: 1, snapshot: VolumeId(9) }]
}

/// Makes a clone `b` of the volume at a time. The engine of the parent accepts the first request,
/// and answers `confirms` to all others. Returns the outcome, and the requests to that engine.
fn clone_at(
    place: &mut Place,
    now: u64,
    confirms: &Result<SnapshotReply, VolumeError>,
) -> (Result<CatalogEntry, VolumeError>, Vec<SnapshotOperation>) {
    let (parent, snapshot) = (entry().spec, "s".to_owned());
    let clone = CloneVolume { parent, snapshot, name: "b".into(), id: CLONE };
    let (mut runner, mut asked) = (Runner::new(clone, now), Vec::new());
    let outcome = loop {
        let Some(effect) = runner.poll_effect() else { break runner.poll_outcome() };
        let result = match effect {
            Effect::Engine { operation, .. } => {
                asked.push(operation);
                let pinned = SnapshotReply::Pinned { sectors: 80, parents: parents() };
                let first = asked.len() == 1;
                EffectResult::Engine(if first { Ok(pinned) } else { confirms.clone() })
            }
            other => place.carry_out(other),
        };
        runner.handle_result(now, result);
    };
    (outcome.unwrap(), asked)
}

fn pinned() -> Result<SnapshotReply, VolumeError> {
    Ok(SnapshotReply::Pinned { sectors: 80, parents: parents() })
}

#[test]
fn a_clone_that_is_asked_for_again_stays_with_its_parent() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    let (first, _) = clone_at(&mut place, NOW, &pinned());
    let (again, asked) = clone_at(&mut place, NOW + 5, &pinned());
    assert_eq!((again.unwrap(), asked.len()), (first.unwrap(), 2));
    let forgets =
        |operation: &&SnapshotOperation| matches!(operation, SnapshotOperation::Forget { .. });
    assert_eq!(asked.iter().find(forgets), None);
    // If another volume has the name, the parent forgets the clone.
    place.0.remove(&catalog::name_key("b"));
    let other = VolumeSpec { name: "b".into(), ..entry().spec };
    place.run(CreateVolume(CatalogEntry { spec: other, sectors: 80 })).unwrap();
    let (taken, asked) = clone_at(&mut place, NOW, &pinned());
    assert_eq!(taken, Err(VolumeError::Exists));
    assert!(asked.iter().any(|operation| forgets(&operation)));
}

#[test]
fn a_repeated_request_for_a_clone_does_not_count_on_a_restoration_that_is_refused() {
    // The parent of a deleted clone is restored after each step of a restoration of the clone.
    for steps in 0.. {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        let clone = clone_at(&mut place, NOW, &pinned()).0.unwrap();
        for id in [VolumeId(7), CLONE] {
            place.0.insert(catalog::segment_key(id, 1), Bytes::from("data"));
        }
        for entry in [clone, entry()] {
            let delete = DeleteVolume { entry, lease: None, clones: Some(BTreeSet::new()) };
            place.run(delete).unwrap();
        }
        let back = RestoreVolume { volume: CLONE, name: "b".into(), ..restore() };
        let mut late = Runner::new(back, NOW);
        let refused = (0..steps).find_map(|_| place.step(&mut late));
        let done = refused.is_some();
        place.run(restore()).unwrap();
        let (again, _) = clone_at(&mut place, NOW + 5, &pinned());
        let restored = refused.unwrap_or_else(|| place.finish(&mut late));
        let named = place.0.contains_key(&catalog::name_key("b"));
        assert!(again.is_err() || named, "{steps}: {restored:?}");
        if done {
            break;
        }
    }
}

#[test]
fn a_clone_of_another_volume_is_not_taken_for_the_one_asked_for() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    clone_at(&mut place, NOW, &pinned()).0.unwrap();
    // Another volume now has the name of the parent, and the request is repeated.
    let parent = VolumeSpec { id: VolumeId(8), ..entry().spec };
    let clone = CloneVolume { parent, snapshot: "s".into(), name: "b".into(), id: CLONE };
    let (mut runner, mut forgotten) = (Runner::new(clone, NOW), false);
    while let Some(effect) = runner.poll_effect() {
        let result = match effect {
            Effect::Engine { operation, .. } => {
                forgotten |= matches!(operation, SnapshotOperation::Forget { .. });
                EffectResult::Engine(pinned())
            }
            other => place.carry_out(other),
        };
        runner.handle_result(NOW, result);
    }
    let refused = runner.poll_outcome().unwrap().unwrap_err().to_string();
    assert!(refused.contains("a clone of another volume"), "{refused}");
    assert!(forgotten);
}

#[test]
fn a_clone_is_undone_if_its_parent_went_and_an_overtaken_engine_confirms_it() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    let clone =
        CloneVolume { parent: entry().spec, snapshot: "s".into(), name: "b".into(), id: CLONE };
    let mut runner = Runner::new(clone, NOW);
    // Another store deletes the parent before the clone has its name.
    let mut deleted = false;
    let outcome = loop {
        let Some(effect) = runner.poll_effect() else { break runner.poll_outcome().unwrap() };
        let result = match effect {
            Effect::Engine { .. } => EffectResult::Engine(pinned()),
            other => place.carry_out(other),
        };
        if !std::mem::replace(&mut deleted, true) {
            let clones = Some(BTreeSet::new());
            place.run(DeleteVolume { entry: entry(), lease: None, clones }).unwrap();
        }
        runner.handle_result(NOW, result);
    };
    assert!(outcome.unwrap_err().to_string().contains("restore it first"));
    assert!(!place.0.contains_key(&catalog::name_key("b")));
}

/// Executes one effect of a clone. The engine of its parent always gives this reply.
fn clone_on(
    place: &mut Place,
    runner: &mut Runner<CloneVolume>,
    reply: &SnapshotReply,
) -> Option<Result<CatalogEntry, VolumeError>> {
    if let Some(effect) = runner.poll_effect() {
        let result = match effect {
            Effect::Engine { .. } => EffectResult::Engine(Ok(reply.clone())),
            other => place.carry_out(other),
        };
        runner.handle_result(NOW, result);
    }
    runner.poll_outcome()
}

#[test]
fn a_clone_of_a_clone_needs_what_that_shares_data_with() {
    let parent = VolumeSpec { id: CLONE, name: "b".into(), parents: parents(), ..entry().spec };
    let nearest = Parent { volume: CLONE, segment: 2, snapshot: VolumeId(9) };
    let reply = SnapshotReply::Pinned { sectors: 80, parents: vec![nearest, parents()[0]] };
    let (snapshot, id) = ("s".to_owned(), VolumeId(10));
    let middle = CatalogEntry { spec: parent.clone(), sectors: 80 };
    let clone = CloneVolume { parent, snapshot, name: "c".into(), id };
    // The parent of the parent goes after each step of the clone. Nothing keeps it, because its
    // clone `b` has no name then.
    for steps in 0.. {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.run(CreateVolume(middle.clone())).unwrap();
        place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
        let mut late = Runner::new(clone.clone(), NOW);
        if let Some(made) = (0..steps).find_map(|_| clone_on(&mut place, &mut late, &reply)) {
            made.unwrap();
            break;
        }
        let name = place.0.remove(&catalog::name_key("b")).unwrap();
        let delete = DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
        place.run(delete).unwrap();
        let purged = place.run(PurgeVolume(VolumeId(7)));
        place.0.insert(catalog::name_key("b"), name);
        let made = (0..100).find_map(|_| clone_on(&mut place, &mut late, &reply)).unwrap();
        assert!(made.is_err(), "{steps}: {purged:?}");
        assert!(!place.0.contains_key(&catalog::name_key("c")), "{steps}: {purged:?}");
    }
}

#[test]
fn a_restoration_needs_each_volume_that_a_clone_shares_data_with() {
    let mut place = deleted();
    let middle = VolumeSpec { id: CLONE, name: "b".into(), parents: parents(), ..entry().spec };
    place.run(CreateVolume(CatalogEntry { spec: middle, sectors: 80 })).unwrap();
    let nearest = Parent { volume: CLONE, segment: 2, snapshot: VolumeId(9) };
    let (id, parents) = (VolumeId(10), vec![nearest, parents()[0]]);
    let spec = VolumeSpec { id, name: "c".into(), parents, ..entry().spec };
    let last = CatalogEntry { spec, sectors: 80 };
    place.run(CreateVolume(last.clone())).unwrap();
    place.0.insert(catalog::segment_key(id, 3), Bytes::from("data"));
    let delete = DeleteVolume { entry: last, lease: None, clones: Some(BTreeSet::new()) };
    place.run(delete).unwrap();
    let again = || RestoreVolume { volume: id, name: "c".into(), ..restore() };
    let refused = place.run(again()).unwrap_err().to_string();
    assert!(refused.contains("restore that first"), "{refused}");
    assert!(!place.0.contains_key(&catalog::name_key("c")));
    place.run(restore()).unwrap();
    place.run(again()).unwrap();
}

#[test]
fn a_clone_loses_its_name_only_when_its_parent_denies_it() {
    let silent = Err(VolumeError::Store("silent".into()));
    let denied = Err(VolumeError::NotFound);
    for (there, confirms, stays) in [
        (false, &silent, true),
        (false, &denied, false),
        // Hosts may use a clone of an earlier attempt.
        (true, &silent, true),
        (true, &denied, true),
    ] {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        if there {
            clone_at(&mut place, NOW, &pinned()).0.unwrap();
        }
        let (outcome, _) = clone_at(&mut place, NOW + 5, confirms);
        assert_eq!(outcome.unwrap_err(), confirms.clone().unwrap_err());
        let named = place.0.contains_key(&catalog::name_key("b"));
        assert_eq!(named, stays, "{there} {confirms:?}");
    }
}

#[test]
fn nothing_is_purged_that_a_clone_needs() {
    let mut place = deleted();
    let spec = VolumeSpec { id: CLONE, name: "b".into(), parents: parents(), ..entry().spec };
    place.run(CreateVolume(CatalogEntry { spec, sectors: 80 })).unwrap();
    for _ in 0..2 {
        let refused = place.run(PurgeVolume(VolumeId(7))).unwrap_err().to_string();
        assert!(refused.contains("delete b first"), "{refused}");
        assert!(place.0.contains_key(&catalog::segment_key(VolumeId(7), 1)));
    }
    place.0.remove(&catalog::name_key("b"));
    assert!(matches!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Removed(_))));
}

#[test]
fn a_clone_that_was_deleted_does_not_come_back_by_itself() {
    let mut place = Place::default();
    place.run(CreateVolume(entry())).unwrap();
    let clone = clone_at(&mut place, NOW, &pinned()).0.unwrap();
    place.run(Claim { spec: clone.spec.clone(), ..claim(1) });
    place
        .run(DeleteVolume { entry: clone, lease: Some(1), clones: Some(BTreeSet::new()) })
        .unwrap();
    let (again, _) = clone_at(&mut place, NOW + 5, &pinned());
    assert!(again.unwrap_err().to_string().contains("restore it"));
    assert!(!place.0.contains_key(&catalog::name_key("b")));
    assert!(place.0.contains_key(&trash::key(CLONE, 1)));
}

#[test]
fn what_was_written_to_an_undone_clone_is_that_of_a_deleted_volume() {
    for written in [false, true] {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        let (parent, snapshot) = (entry().spec, "s".to_owned());
        let clone = CloneVolume { parent, snapshot, name: "b".into(), id: CLONE };
        let (mut runner, mut asked) = (Runner::new(clone, NOW), 0);
        while let Some(effect) = runner.poll_effect() {
            let result = match effect {
                Effect::Engine { .. } => {
                    asked += 1;
                    if asked == 2 && written {
                        place.0.insert(catalog::segment_key(CLONE, 2), Bytes::from("data"));
                    }
                    let denied = Err(VolumeError::NotFound);
                    EffectResult::Engine(if asked == 1 { pinned() } else { denied })
                }
                other => place.carry_out(other),
            };
            runner.handle_result(NOW, result);
        }
        assert_eq!(runner.poll_outcome(), Some(Err(VolumeError::NotFound)));
        let list = ListDeleted { after: VolumeId(0), grace: GRACE, wanted: &|_| true };
        assert_eq!(place.run(list).unwrap().0.len(), usize::from(written));
        assert!(!place.0.contains_key(&catalog::name_key("b")));
    }
}

#[test]
fn a_store_that_undoes_a_clone_touches_nothing_that_others_do_meanwhile() {
    for restores in [false, true] {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        let (parent, snapshot) = (entry().spec, "s".to_owned());
        let clone = CloneVolume { parent, snapshot, name: "b".into(), id: CLONE };
        let spec = VolumeSpec { id: CLONE, name: "b".into(), parents: parents(), ..entry().spec };
        let mut early = Runner::new(Claim { spec, ..claim(2) }, NOW);
        let (mut runner, mut asked) = (Runner::new(clone, NOW), 0);
        let (lease, name) = (lease::key(CLONE, 1), catalog::name_key("b"));
        while let Some(effect) = runner.poll_effect() {
            let list = ObjectOperation::List { prefix: catalog::volume_prefix(CLONE) };
            let looks = effect == Effect::Object(list);
            let result = match effect {
                Effect::Engine { .. } => {
                    asked += 1;
                    let denied = Err(VolumeError::NotFound);
                    EffectResult::Engine(if asked == 1 { pinned() } else { denied })
                }
                other => place.carry_out(other),
            };
            // Right after the store has found the clone empty, another store takes a lease. Then
            // an operator may restore the clone.
            if looks && !place.0.contains_key(&lease) {
                while !place.0.contains_key(&lease) {
                    assert_eq!(place.step(&mut early), None);
                }
                if restores {
                    let restore = RestoreVolume { volume: CLONE, name: "b".into(), ..restore() };
                    place.run(restore).unwrap();
                }
            }
            runner.handle_result(NOW, result);
        }
        assert_eq!(runner.poll_outcome(), Some(Err(VolumeError::NotFound)));
        assert!(place.0.contains_key(&lease));
        assert_eq!(place.0.contains_key(&name), restores);
        let claimed = place.finish(&mut early);
        assert_eq!(matches!(claimed, ClaimOutcome::Mine { .. }), restores, "{claimed:?}");
        let of_clone = [catalog::volume_prefix(CLONE), trash::prefix(CLONE)];
        let left = place.0.keys().any(|key| of_clone.iter().any(|of| key.starts_with(of)));
        assert_eq!(left, restores, "{:?}", place.0);
    }
}
