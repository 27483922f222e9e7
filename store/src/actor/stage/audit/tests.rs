use super::*;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{AttachError, HostId, VolumeError, VolumeReply};
use std::path::Path;

fn recorder(dir: &Path) -> AuditRecorder {
    let recorder = AuditRecorder::new(Audit::open(dir).unwrap());
    for session in [1, 2] {
        let principal = Principal { serial: format!("{session:02}"), ..Principal::embedded() };
        recorder.opened(session, "127.0.0.1:5".parse().unwrap(), &principal, "test");
    }
    recorder
}

/// Action and outcome of the lines of a file.
fn lines(dir: &Path, file: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("action"), text("outcome"))
    };
    let all = text.lines().map(line);
    all.filter(|(action, _)| action != "session.open").collect()
}

fn attach(request: RequestId, name: &str, take_over: bool) -> ToStore {
    let (name, host, journal) = (name.to_owned(), HostId(7), None);
    ToStore::Attach { request, name, host, journal, take_over }
}

fn volume(request: RequestId, operation: VolumeOperation) -> ToStore {
    ToStore::Volume { request, operation }
}

fn delete(request: RequestId) -> ToStore {
    volume(request, VolumeOperation::Delete { name: "prod".into() })
}

fn show(request: RequestId) -> ToStore {
    volume(request, VolumeOperation::Show { name: "prod".into() })
}

fn done(request: RequestId) -> ToHost {
    ToHost::Volume { request, result: Ok(VolumeReply::Done) }
}

#[test]
fn a_number_that_is_used_again_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    recorder.asked(1, &attach(9, "prod", true)).unwrap();
    assert!(recorder.asked(1, &attach(9, "x", false)).unwrap_err().contains('9'));
    // Numbers of other sessions are others.
    recorder.asked(2, &attach(9, "x", false)).unwrap();
    let result = Err(AttachError::NotFound);
    recorder.answered(2, &ToHost::Attached { request: 9, result });
    recorder.closed(1);
    drop(recorder);
    let expected = [
        ("volume.attach", AttachError::NotFound.to_string()),
        ("volume.take-over", "the session ended before the answer".to_owned()),
    ];
    let expected = expected.map(|(action, outcome)| (action.to_owned(), outcome));
    assert_eq!(lines(dir.path(), "audit.jsonl"), expected);
    let refused = lines(dir.path(), "audit.refused.jsonl");
    assert!(refused[0].0 == "volume.attach" && refused[0].1.starts_with("refused: "));
}

#[test]
fn what_is_answered_to_something_else_is_no_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    // Before and after: requests that only show something are not in the log, and have numbers as
    // well.
    recorder.asked(1, &delete(9)).unwrap();
    recorder.asked(1, &show(9)).unwrap_err();
    recorder.asked(1, &show(8)).unwrap();
    recorder.asked(1, &delete(8)).unwrap_err();
    // Answers of another kind.
    recorder.answered(1, &ToHost::Detached { request: 9 });
    recorder.answered(1, &ToHost::Attached { request: 9, result: Err(AttachError::NotFound) });
    let result = Err(VolumeError::NotFound);
    recorder.answered(1, &ToHost::Volume { request: 9, result });
    // An answer frees the number of its request.
    recorder.asked(1, &delete(9)).unwrap();
    recorder.answered(1, &done(9));
    drop(recorder);
    let expected = [VolumeError::NotFound.to_string(), "ok".to_owned()];
    let expected = expected.map(|outcome| ("volume.delete".to_owned(), outcome));
    assert_eq!(lines(dir.path(), "audit.jsonl"), expected);
}

#[test]
fn actions_without_an_answer_of_one_keep_no_place_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let mut asked = 0;
    while recorder.asked(1, &show(asked)).is_ok() {
        asked += 1;
    }
    assert_eq!(asked, MAX_OPEN_REQUESTS_OF_ONE);
    recorder.asked(2, &delete(1)).unwrap();
    recorder.answered(2, &done(1));
    drop(recorder);
    let expected = [("volume.delete".to_owned(), "ok".to_owned())];
    assert_eq!(lines(dir.path(), "audit.jsonl"), expected);
}

#[test]
fn who_may_not_does_not_fill_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let barrier = ToStore::Barrier { volume: VolumeId(7), epoch: 1, barrier: 1, seq: 1 };
    for request in 0..20_000 {
        recorder.refused(1, &barrier, "role read");
        recorder.asked(1, &delete(request)).unwrap();
        recorder.refused(1, &delete(request), "role read");
        let result = Err(VolumeError::Forbidden("role read".into()));
        recorder.answered(1, &ToHost::Volume { request, result });
    }
    recorder.asked(2, &delete(1)).unwrap();
    recorder.answered(2, &done(1));
    drop(recorder);
    let expected = [("volume.delete".to_owned(), "ok".to_owned())];
    assert_eq!(lines(dir.path(), "audit.jsonl"), expected);
    let refused = lines(dir.path(), "audit.refused.jsonl");
    assert!((2..=40).contains(&refused.len()), "{}", refused.len());
    assert!(refused.iter().any(|(action, _)| action == "volume.delete"), "{refused:?}");
    assert!(refused.iter().any(|(action, _)| action == "request.refused"), "{refused:?}");
}
