//! The log keeps, chains and verifies lines. Refusals take no room from them.

use super::chain::{Kind, Line, parse, put_aside};
use super::refusals::{OF_ALL, OF_SOURCE};
use super::*;
use std::fs;
use std::io::Write as _;
use std::time::Duration;

fn event(action: &str) -> Event {
    Event {
        tenant: Some("acme".into()),
        name: Some("host-1".into()),
        credential: Some("4a".into()),
        peer: "127.0.0.1:1".into(),
        action: action.into(),
        object: "x".repeat(1000),
        outcome: "ok".into(),
    }
}

fn written(state: &Path, actions: &[&str]) {
    let audit = Audit::open(state).unwrap();
    actions.iter().for_each(|action| audit.write(event(action)));
}

fn all(state: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    read(state, None, |line| {
        lines.push(line.clone());
        Ok(())
    })
    .unwrap();
    lines
}

fn actions(state: &Path) -> Vec<String> {
    all(state).into_iter().map(|line| line.action).collect()
}

fn problems(state: &Path, anchor: Option<&str>) -> Vec<(String, u64, String)> {
    let found = verify(state, anchor).unwrap().problems;
    found.into_iter().map(|problem| (problem.file, problem.line, problem.what)).collect()
}

#[test]
fn lines_are_kept_in_order_and_files_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    assert!(read(dir.path(), None, |_| Ok(())).is_err());
    written(dir.path(), &["1"]);
    // The line of a crash.
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time\":\"20").unwrap();
    assert_eq!(actions(dir.path()), ["1"]);
    assert!(problems(dir.path(), None).is_empty());
    written(dir.path(), &["2"]);
    put_aside(&path, Kind::Main).unwrap();
    written(dir.path(), &["3", "4"]);
    assert_eq!(actions(dir.path()), ["1", "2", "3", "4"]);
    let numbers: Vec<u64> = all(dir.path()).iter().map(|line| line.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(problems(dir.path(), None), []);
    let later = Some(OffsetDateTime::now_utc() + time::Duration::hours(1));
    read(dir.path(), later, |line| panic!("{line:?}")).unwrap();
    // The check does not miss rotated lines, and the chain goes on.
    for n in 0..Kind::Main.files_kept() + 2 {
        put_aside(&path, Kind::Main).unwrap();
        written(dir.path(), &[&format!("later {n}")]);
    }
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, Kind::Main.files_kept() + 2, "with that of refusals");
    assert_eq!(problems(dir.path(), None), []);
    assert_eq!(verify(dir.path(), None).unwrap().first, 6);
}

#[test]
fn a_file_that_is_full_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    written(dir.path(), &["1"]);
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&vec![b'\n'; Kind::Main.file_bytes() as usize]).unwrap();
    written(dir.path(), &["2"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert!(dir.path().join("audit.1.jsonl").exists());
}

#[test]
fn moments_have_one_length() {
    for (nanosecond, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (120_000_000, "1970-01-01T00:00:00.120Z"),
        (7_654_321, "1970-01-01T00:00:00.007Z"),
    ] {
        let time = OffsetDateTime::UNIX_EPOCH.replace_nanosecond(nanosecond).unwrap();
        assert_eq!(moment(time), text);
    }
}

#[test]
fn each_kind_of_edit_is_found_and_its_place_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    written(dir.path(), &["1", "2", "3"]);
    put_aside(&path, Kind::Main).unwrap();
    written(dir.path(), &["4", "5"]);
    let (aside, newest) = (dir.path().join("audit.1.jsonl"), path.clone());
    let originals = [&aside, &newest].map(|path| fs::read_to_string(path).unwrap());
    let head = verify(dir.path(), None).unwrap().head.unwrap();
    assert_eq!(problems(dir.path(), Some(&head)), []);
    let edited = |path: &Path, edit: &dyn Fn(&mut Vec<String>)| {
        let text = fs::read_to_string(path).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        edit(&mut lines);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(path, text).unwrap();
        let found = problems(dir.path(), None);
        let with_anchor = problems(dir.path(), Some(&head));
        fs::write(&aside, &originals[0]).unwrap();
        fs::write(&newest, &originals[1]).unwrap();
        (found, with_anchor)
    };
    let place = |found: &[(String, u64, String)], file: &str, line: u64, what: &str| {
        assert!(
            found.iter().any(|(f, l, w)| f == file && *l == line && w.contains(what)),
            "{file}:{line} {what}: {found:?}"
        );
    };
    // Another outcome, in the middle and at the end of a rotated file.
    for (at, line) in [(1, 2), (2, 3)] {
        let (found, _) = edited(&aside, &|lines| lines[at] = lines[at].replace("\"ok\"", "\"no\""));
        place(&found, "audit.1.jsonl", line, "edited");
    }
    // No line any more.
    let (found, _) = edited(&aside, &|lines| lines[1] = "x".into());
    place(&found, "audit.1.jsonl", 2, "edited");
    // Removed: in the middle, over the end of a file, at the start.
    let (found, _) = edited(&aside, &|lines| drop(lines.remove(1)));
    place(&found, "audit.1.jsonl", 2, "lines 2 to 2 are missing");
    let (found, _) = edited(&aside, &|lines| drop(lines.pop()));
    place(&found, "audit.jsonl", 1, "lines 3 to 3 are missing");
    let (found, _) = edited(&aside, &|lines| drop(lines.remove(0)));
    place(&found, "audit.1.jsonl", 1, "missing");
    // Turned around, and written twice.
    let (found, _) = edited(&newest, &|lines| lines.swap(0, 1));
    place(&found, "audit.jsonl", 1, "missing");
    place(&found, "audit.jsonl", 2, "comes after");
    let (found, _) = edited(&newest, &|lines| lines.push(lines[1].clone()));
    place(&found, "audit.jsonl", 3, "comes after");
    // Lines renumbered after a removal: the hashes do not fit.
    let (found, _) = edited(&newest, &|lines| {
        lines[1] = lines[1].replace("\"number\":5", "\"number\":4");
        lines.remove(0);
    });
    place(&found, "audit.1.jsonl", 3, "edited");
    // Somebody can cut off or edit the end. Only a holder of the last line's hash sees it.
    for edit in
        [&(|lines: &mut Vec<String>| drop(lines.pop())) as &dyn Fn(&mut Vec<String>), &|lines| {
            lines[1] = lines[1].replace("\"ok\"", "\"no\"")
        }]
    {
        let (found, with_anchor) = edited(&newest, edit);
        assert_eq!(found, []);
        place(&with_anchor, "audit.jsonl", 0, "no line has the given hash");
    }
    // A whole file.
    fs::remove_file(&aside).unwrap();
    place(&problems(dir.path(), None), "audit.jsonl", 1, "missing");
    fs::write(&aside, &originals[0]).unwrap();
    // The log goes on. Its former end is still there.
    written(dir.path(), &["6"]);
    assert_eq!(problems(dir.path(), Some(&head)), []);
}

#[test]
fn refusals_take_no_room_from_other_lines() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(dir.path()).unwrap();
    audit.write(event("volume.delete"));
    let begun = Instant::now();
    // An hour of it, from one address, and from ever new ones.
    for n in 0..100_000_u32 {
        let source = if n % 2 == 0 { [192, 0, 2, 1] } else { (n | 0x0a00_0000).to_be_bytes() };
        let at = begun + Duration::from_millis(u64::from(n) * 36);
        audit.refused_at(
            at,
            SocketAddr::from((source, 9)),
            "the client's credential was withdrawn",
        );
    }
    audit.write(event("volume.create"));
    drop(audit);
    let lines = all(dir.path());
    let kept: Vec<_> = lines.iter().filter(|line| line.credential.is_some()).collect();
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[1].lost, 0);
    let size = |name: &str| fs::metadata(dir.path().join(name)).map_or(0, |file| file.len());
    assert!(size("audit.jsonl") < 4096 && !dir.path().join("audit.1.jsonl").exists());
    let refused = Kind::Refused.files_kept() as u64 + 1;
    let names = (1..refused).map(|number| format!("audit.refused.{number}.jsonl"));
    let bytes = size("audit.refused.jsonl") + names.map(|name| size(&name)).sum::<u64>();
    assert!(bytes <= refused * (Kind::Refused.file_bytes() + (1 << 20)), "{bytes}");
    assert_eq!(problems(dir.path(), None), []);
    let of_one = |line: &&Line| line.peer.starts_with("192.0.2.1");
    let counted = lines.iter().filter(of_one).any(|line| line.outcome.contains("left out"));
    assert!(counted, "what is left out is counted");
}

#[test]
fn so_many_refusals_are_written_a_minute() {
    let mut refusals = Refusals::new(Instant::now());
    let begun = Instant::now();
    let of = |n: u32| std::net::IpAddr::from(n.to_be_bytes());
    let written = (0..100).filter(|_| refusals.note(begun, of(1)).1).count() as u64;
    assert_eq!(written, OF_SOURCE);
    let more = (2..10_000).filter(|n| refusals.note(begun, of(*n)).1).count() as u64;
    assert_eq!(written + more, OF_ALL);
    // One network of IPv6 is one source.
    let six = |n: u16| std::net::IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
    let (summary, first) = refusals.note(begun + Duration::from_secs(60), six(1));
    assert!(first);
    assert_eq!(summary[0], ("0.0.0.1".to_owned(), 100 - OF_SOURCE));
    let sum: u64 = summary.iter().map(|(_, count)| count).sum();
    assert_eq!(sum, 100 + 9_998 - OF_ALL);
    let later = begun + Duration::from_secs(61);
    let written = (2..100).filter(|n| refusals.note(later, six(*n)).1).count() as u64;
    assert_eq!(written, OF_SOURCE - 1);
    assert!(refusals.end(later).is_empty());
}

#[test]
fn what_clients_say_is_bounded_and_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(dir.path()).unwrap();
    let hostile = format!("\u{1b}]0;title\u{7}\n{{\"number\":9}}{}", "\u{9b}".repeat(9000));
    audit.write(Event { object: hostile.clone(), outcome: hostile.clone(), ..event(&hostile) });
    drop(audit);
    let bytes = fs::read(dir.path().join("audit.jsonl")).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
    let text = String::from_utf8(bytes).unwrap();
    assert!(!text.trim_end().chars().any(char::is_control), "{text}");
    let line = &all(dir.path())[0];
    for text in [&line.object, &line.outcome, &line.action] {
        assert!(text.len() <= 256 && text.starts_with("\\u{1b}]0;title"), "{text}");
    }
}

#[test]
fn a_line_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &["1"]);
    let text = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    let line = text.trim_end();
    assert_eq!(parse(line.as_bytes()).unwrap().number, 1);
    for bad in [
        String::new(),
        line[1..].to_owned(),
        line.replace("\"number\":1", "\"number\":0"),
        line.replace("\"previous\":\"0", "\"previous\":\"Z"),
        line.replace("\"lost\"", "\"odd\"").replace("{\"number\"", "{\"odd\":1,\"number\""),
        format!("{line}{}", " ".repeat(70_000)),
    ] {
        assert!(parse(bad.as_bytes()).is_err(), "{bad:.80}");
    }
}
