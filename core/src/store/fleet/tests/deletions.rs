//! Deletions, restorations and removals of volumes.

use super::*;

#[test]
fn a_restoration_that_is_refused_after_the_data_is_gone_leaves_nothing() {
    let mut place = Place::default();
    let (tenant, limits) = ("acme".to_owned(), TenantLimits::default());
    place.run(OperateTenants(TenantOperation::Create { tenant, limits })).unwrap();
    let spec = VolumeSpec { name: "acme/a".into(), ..entry().spec };
    let entry = CatalogEntry { spec: spec.clone(), sectors: 80 };
    let claim = |id| Claim { spec: spec.clone(), ..claim(id) };
    let delete =
        |lease| DeleteVolume { entry: entry.clone(), lease, clones: Some(BTreeSet::new()) };
    let restore = || RestoreVolume { name: "acme/a".into(), ..restore() };
    place.run(CreateVolume(entry.clone())).unwrap();
    place.run(claim(1));
    place.run(delete(Some(1))).unwrap();
    let mut late = Runner::new(restore(), NOW);
    while !place.0.contains_key(&catalog::name_key("acme/a")) {
        assert_eq!(place.step(&mut late), None);
    }
    // In between other stores delete the tenant and the volume.
    place.0.insert(tenant::key("acme", 2), tenant::encode(None).into());
    place.run(delete(None)).unwrap();
    assert!(matches!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Removed(_))));
    // This claim takes a lease, and has not looked for the name yet.
    let mut early = Runner::new(claim(2), NOW);
    while !place.0.contains_key(&lease::key(VolumeId(7), 1)) {
        assert_eq!(place.step(&mut early), None);
    }
    let refused = place.finish(&mut late).unwrap_err().to_string();
    assert!(refused.contains("no tenant acme"), "{refused}");
    assert_eq!(place.run(restore()), Err(VolumeError::NotFound));
    assert_eq!(place.finish(&mut early), ClaimOutcome::Gone);
    assert!(place.0.keys().all(|key| key.starts_with("tenants/")), "{:?}", place.0);
}

#[test]
fn a_volume_is_closed_whenever_it_has_no_name() {
    // A store that knows the volume from before its deletion claims it after each step of a
    // restoration that stops there. The name is free, or another volume has it.
    for taken in [false, true] {
        for steps in 0.. {
            let mut place = deleted();
            let other = VolumeSpec { id: VolumeId(9), ..entry().spec };
            if taken {
                place.run(CreateVolume(CatalogEntry { spec: other, sectors: 80 })).unwrap();
            }
            let mut late = Runner::new(restore(), NOW);
            let ended = (0..steps).find_map(|_| place.step(&mut late));
            let text = place.0.get(&catalog::name_key("a"));
            let named = text.is_some_and(|text| {
                catalog::decode_spec(&catalog::name_key("a"), text).unwrap().id == VolumeId(7)
            });
            assert!(!(taken && named));
            let claimed = place.run(claim(2));
            if !named {
                assert_eq!(claimed, ClaimOutcome::Gone, "{taken} {steps}");
            }
            if let Some(ended) = ended {
                assert_eq!((ended.is_ok(), claimed != ClaimOutcome::Gone), (!taken, !taken));
                break;
            }
        }
    }
}

#[test]
fn a_volume_with_an_older_name_is_not_purged() {
    // A restoration by another name fails, so that the newest record has that name.
    let mut place = deleted();
    let other = VolumeSpec { id: VolumeId(9), name: "b".into(), ..entry().spec };
    place.run(CreateVolume(CatalogEntry { spec: other, sectors: 80 })).unwrap();
    let taken = place.run(RestoreVolume { name: "b".into(), ..restore() });
    assert_eq!(taken, Err(VolumeError::Exists));
    // A late put of an earlier restoration brings the older name back.
    let key = catalog::name_key("a");
    place.0.insert(key.clone(), catalog::encode_spec(&entry().spec).into());
    assert_eq!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Nothing));
    assert!(place.0.contains_key(&catalog::segment_key(VolumeId(7), 1)));
    // Without that name, the volume goes.
    place.0.remove(&key);
    assert!(matches!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Removed(_))));
}

#[test]
fn a_volume_that_is_deleted_while_a_store_reopens_it_is_closed() {
    // After each step of the restoration, a store that found the volume closed deletes it. The last
    // such step is the put of the lease.
    let mut opened = false;
    for steps in 0.. {
        let mut place = deleted();
        let mut late = Runner::new(restore(), NOW);
        assert!((0..steps).all(|_| place.step(&mut late).is_none()));
        opened = place.0.contains_key(&lease::key(VolumeId(7), 3));
        let delete = DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
        let deleted = place.run(delete);
        let _ = place.finish(&mut late);
        let named = place.0.contains_key(&catalog::name_key("a"));
        let claimed = place.run(claim(2));
        assert_eq!(claimed != ClaimOutcome::Gone, named, "{steps}: {deleted:?} {:?}", place.0);
        if opened {
            break;
        }
    }
    assert!(opened);
}

#[test]
fn a_store_that_reopens_a_volume_that_is_being_removed_leaves_nothing() {
    // A store deletes the volume after each step of the restoration. It purges the volume at once,
    // or after a few steps more. The restoration goes on after each step of the purge.
    let delete = || DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
    let begin = |steps: u32| {
        let mut place = deleted();
        let mut late = Runner::new(restore(), NOW);
        (0..steps).all(|_| place.step(&mut late).is_none()).then_some((place, late))
    };
    for (steps, more) in (0..20).flat_map(|steps| (0..5).map(move |more| (steps, more))) {
        if begin(steps).is_none() {
            break;
        }
        for removed in 0.. {
            let (mut place, mut late) = begin(steps).unwrap();
            let _ = place.run(delete());
            if (0..more).any(|_| place.step(&mut late).is_some()) {
                break;
            }
            let mut purge = Runner::new(PurgeVolume(VolumeId(7)), NOW);
            let purged = (0..removed).find_map(|_| place.step(&mut purge));
            let done = purged.is_some();
            let restored = place.finish(&mut late);
            let purged = purged.unwrap_or_else(|| place.finish(&mut purge));
            let gone = !place.0.contains_key(&catalog::segment_key(VolumeId(7), 1));
            if gone && matches!(purged, Ok(Tended::Removed(_))) {
                assert!(place.0.is_empty(), "{steps} {more} {removed} {restored:?}: {:?}", place.0);
            }
            if done {
                break;
            }
        }
    }
}

#[test]
fn a_restoration_that_stops_after_the_name_is_completed() {
    let mut place = deleted();
    let mut late = Runner::new(restore(), NOW);
    while !place.0.contains_key(&catalog::name_key("a")) {
        assert_eq!(place.step(&mut late), None);
    }
    drop(late);
    assert_eq!(place.run(claim(2)), ClaimOutcome::Gone);
    // The operator asks again, or a store comes by after a while.
    let mut again = Place(place.0.clone());
    again.run(restore()).unwrap();
    assert!(matches!(again.run(claim(2)), ClaimOutcome::Mine { .. }));
    let now = NOW + trash::HANDS_OFF + 1;
    let tend = TendVolume { me: Some(holder(3)), volume: VolumeId(7), grace: GRACE, now };
    assert_eq!(place.run(tend), Ok(Tended::Nothing));
    assert!(matches!(place.run(claim(2)), ClaimOutcome::Mine { .. }));
}

#[test]
fn a_restoration_whose_name_is_taken_after_the_data_is_gone_leaves_nothing() {
    // After each step of the restoration, others restore, delete and purge the volume. Then another
    // volume gets its name.
    for steps in 0.. {
        let mut place = deleted();
        let mut late = Runner::new(restore(), NOW);
        if (0..steps).any(|_| place.step(&mut late).is_some()) {
            break;
        }
        place.run(RestoreVolume { me: Some(holder(2)), ..restore() }).unwrap();
        let delete = DeleteVolume { entry: entry(), lease: Some(3), clones: Some(BTreeSet::new()) };
        place.run(delete).unwrap();
        assert!(matches!(place.run(PurgeVolume(VolumeId(7))), Ok(Tended::Removed(_))), "{steps}");
        let spec = VolumeSpec { id: VolumeId(9), ..entry().spec };
        place.run(CreateVolume(CatalogEntry { spec, sectors: 80 })).unwrap();
        let restored = place.finish(&mut late);
        let keys: Vec<&String> = place.0.keys().collect();
        assert_eq!(keys, [&catalog::name_key("a")], "{steps}: {restored:?}");
    }
}

#[test]
fn of_a_removal_and_a_restoration_one_wins() {
    // The purge comes after each step of the restoration, and the restoration after each step of
    // the purge.
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
        let delete = DeleteVolume { entry: entry(), lease: Some(1), clones: Some(BTreeSet::new()) };
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

#[test]
fn of_two_restorations_by_one_name_none_takes_it_from_the_other() {
    for steps in 0.. {
        let mut place = deleted();
        let mut late = Runner::new(restore(), NOW);
        if (0..steps).any(|_| place.step(&mut late).is_some()) {
            break;
        }
        let again = RestoreVolume { me: Some(holder(2)), ..restore() };
        place.run(again).unwrap();
        let _ = place.finish(&mut late);
        assert!(place.0.contains_key(&catalog::name_key("a")), "{steps}");
        assert!(matches!(place.run(claim(3)), ClaimOutcome::Mine { .. }), "{steps}");
    }
}

#[test]
fn a_restoration_that_died_gives_no_second_name() {
    for steps in 0.. {
        let mut place = deleted();
        let mut cut = Runner::new(restore(), NOW);
        let done = (0..steps).any(|_| place.step(&mut cut).is_some());
        // Its last effect may still happen.
        let last = cut.poll_effect();
        let other = RestoreVolume { name: "b".into(), ..restore() };
        let restored = place.run(other);
        if let Some(effect) = last {
            place.carry_out(effect);
        }
        let names = ["a", "b"].map(|name| place.0.contains_key(&catalog::name_key(name)));
        assert_ne!(names, [true, true], "{steps}: {restored:?}");
        if done {
            break;
        }
    }
}

#[test]
fn a_restoration_that_a_slow_deletion_went_over_gives_no_second_name() {
    let (mut over, delete) =
        (0, |lease| DeleteVolume { entry: entry(), lease, clones: Some(BTreeSet::new()) });
    for (before, steps) in (0..20).flat_map(|before| (0..20).map(move |steps| (before, steps))) {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
        place.run(claim(1));
        let mut slow = Runner::new(delete(Some(1)), NOW);
        if (0..before).any(|_| place.step(&mut slow).is_some()) {
            continue;
        }
        let mut cut = Runner::new(restore(), NOW);
        if (0..steps).any(|_| place.step(&mut cut).is_some()) {
            continue;
        }
        // Its last effect comes late.
        let last = cut.poll_effect();
        let _ = place.finish(&mut slow);
        let restored = place.run(RestoreVolume { name: "b".into(), ..restore() });
        if let Some(effect) = last {
            place.carry_out(effect);
        }
        let names = ["a", "b"].map(|name| place.0.contains_key(&catalog::name_key(name)));
        assert_ne!(names, [true, true], "{before} {steps}: {restored:?}");
        over += u32::from(restored.is_err() && names == [true, false]);
    }
    assert!(over > 0);
}

#[test]
fn a_deletion_by_an_old_name_does_not_touch_what_was_restored_by_another() {
    // After each step of the deletion, others delete the volume and restore it by another name.
    for steps in 0.. {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
        place.run(claim(1));
        let delete = DeleteVolume { entry: entry(), lease: None, clones: None };
        let mut late = Runner::new(delete, NOW);
        if (0..steps).any(|_| place.step(&mut late).is_some()) {
            break;
        }
        let delete = DeleteVolume { entry: entry(), lease: Some(1), clones: Some(BTreeSet::new()) };
        place.run(delete).unwrap();
        place.run(RestoreVolume { name: "b".into(), ..restore() }).unwrap();
        let _ = place.finish(&mut late);
        assert_eq!(place.run(restore()), Err(VolumeError::NotFound), "{steps}");
        let now = NOW + GRACE + trash::HANDS_OFF;
        let tend = TendVolume { me: Some(holder(2)), volume: VolumeId(7), grace: GRACE, now };
        assert_eq!(place.run(tend), Ok(Tended::Nothing), "{steps}");
        assert!(place.0.contains_key(&catalog::segment_key(VolumeId(7), 1)), "{steps}");
        let names = ["a", "b"].map(|name| place.0.contains_key(&catalog::name_key(name)));
        assert_eq!(names, [false, true], "{steps}");
    }
}

#[test]
fn a_volume_with_another_name_is_not_said_to_be_deleted() {
    let mut place = deleted();
    let entry_b = place.run(RestoreVolume { name: "b".into(), ..restore() }).unwrap();
    // A deletion by the new name dies after its record.
    let clones = Some(BTreeSet::new());
    let delete = DeleteVolume { entry: entry_b, lease: Some(3), clones: clones.clone() };
    let mut cut = Runner::new(delete, NOW);
    while !place.0.contains_key(&trash::key(VolumeId(7), 3)) {
        assert_eq!(place.step(&mut cut), None);
    }
    let old = DeleteVolume { entry: entry(), lease: None, clones };
    assert_eq!(place.run(old.clone()), Err(VolumeError::NotFound));
    assert!(place.0.contains_key(&catalog::name_key("b")));
    place.finish(&mut cut).unwrap();
    assert_eq!(place.run(old), Ok(()));
}

#[test]
fn a_name_that_a_restoration_left_goes_alone() {
    let mut place = deleted();
    place.run(RestoreVolume { name: "b".into(), ..restore() }).unwrap();
    // The put of an earlier restoration takes effect now.
    let left = catalog::encode_spec(&entry().spec);
    place.0.insert(catalog::name_key("a"), Bytes::from(left));
    let delete = DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
    assert_eq!(place.run(delete), Err(VolumeError::NotFound));
    let names = ["a", "b"].map(|name| place.0.contains_key(&catalog::name_key(name)));
    assert_eq!(names, [false, true]);
    let list = ListDeleted { after: VolumeId(0), grace: GRACE, wanted: &|_| true };
    assert!(place.run(list).unwrap().0.is_empty());
}

#[test]
fn records_go_from_the_first_on() {
    let mut place = deleted();
    place.run(restore()).unwrap();
    let delete = DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
    place.run(delete).unwrap();
    // This purge has read record 3 as the newest one, and is late with its own record.
    let mut late = Runner::new(PurgeVolume(VolumeId(7)), NOW);
    for _ in 0..4 {
        assert_eq!(place.step(&mut late), None);
    }
    for first in [true, false] {
        let mut runner = Runner::new(restore(), NOW);
        let mut deletions = 0;
        while let Some(effect) = runner.poll_effect() {
            let delete = matches!(effect, Effect::Object(ObjectOperation::Delete { .. }));
            deletions += usize::from(delete);
            let result = if delete && first && deletions == 1 {
                EffectResult::Object(ObjectResult::Delete(Err(StorageError::unavailable("away"))))
            } else {
                place.carry_out(effect)
            };
            runner.handle_result(NOW, result);
        }
        runner.poll_outcome().unwrap().unwrap();
        if first {
            let delete =
                DeleteVolume { entry: entry(), lease: None, clones: Some(BTreeSet::new()) };
            place.run(delete).unwrap();
        }
    }
    assert_eq!(place.finish(&mut late), Ok(Tended::Nothing));
    assert!(place.0.contains_key(&catalog::segment_key(VolumeId(7), 1)));
}

#[test]
fn a_deletion_whose_record_comes_after_the_data_is_gone_restores_nothing() {
    let mut place = deleted();
    let key = trash::key(VolumeId(7), 1);
    let record = place.0[&key].clone();
    place.run(PurgeVolume(VolumeId(7))).unwrap();
    place.0.insert(key, record);
    assert_eq!(place.run(restore()), Err(VolumeError::NotFound));
    assert!(!place.0.contains_key(&catalog::name_key("a")));
    // Without leases, a deleted volume may have no objects, and a store restores it.
    place.run(RestoreVolume { me: None, ..restore() }).unwrap();
}

/// Writes the record `number` of tenant `t`, with a limit of `volumes` volumes.
fn limit(place: &mut Place, number: u64, volumes: u64) {
    let limits = TenantLimits { max_volumes: Some(volumes), ..TenantLimits::default() };
    place.0.insert(tenant::key("t", number), tenant::encode(Some(&limits)).into());
}

#[test]
fn a_restoration_that_somebody_has_heard_of_is_not_taken_back() {
    let spec = VolumeSpec { name: "t/a".into(), ..entry().spec };
    let entry = CatalogEntry { spec: spec.clone(), sectors: 80 };
    let restore = |id| RestoreVolume { me: Some(holder(id)), name: "t/a".into(), ..restore() };
    for (steps, less) in (0..).flat_map(|steps| [(steps, false), (steps, true)]) {
        let mut place = Place::default();
        limit(&mut place, 1, 1);
        place.run(CreateVolume(entry.clone())).unwrap();
        place.0.insert(catalog::segment_key(VolumeId(7), 1), Bytes::from("data"));
        place.run(Claim { spec: spec.clone(), ..claim(1) });
        let clones = Some(BTreeSet::new());
        place.run(DeleteVolume { entry: entry.clone(), lease: Some(1), clones }).unwrap();
        let mut first = Runner::new(restore(1), NOW);
        if (0..steps).any(|_| place.step(&mut first).is_some()) {
            break;
        }
        // The limit shrinks before the second restoration, or after it.
        if less {
            limit(&mut place, 2, 0);
        }
        let second = place.run(restore(2));
        limit(&mut place, 2, 0);
        let first = place.finish(&mut first);
        let named = place.0.contains_key(&catalog::name_key("t/a"));
        assert_eq!(named, first.is_ok() || second.is_ok(), "{steps} {less}: {first:?} {second:?}");
    }
}

#[test]
fn a_list_goes_on_if_a_volume_goes_meanwhile() {
    let size = || (catalog::size_key(VolumeId(7), 3), Bytes::from(catalog::encode_size(4096)));
    for steps in 0.. {
        let mut place = Place::default();
        place.run(CreateVolume(entry())).unwrap();
        place.0.extend([size()]);
        let mut list = Runner::new(ReadCatalog::default(), NOW);
        let listed = (0..steps).find_map(|_| place.step(&mut list));
        let done = listed.is_some();
        place.0.clear();
        let listed = listed.unwrap_or_else(|| place.finish(&mut list)).unwrap();
        assert_eq!(done, listed.entries.get("a").is_some_and(|a| a.sectors == 4096), "{steps}");
        if done {
            break;
        }
    }
}
