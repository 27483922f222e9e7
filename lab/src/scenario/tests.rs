use super::*;

const GOOD: &str = r#"
title = "Reads"
rounds = 2
subjects = ["longhaul", "nbd"]
[wan.both]
delay = "1ms"
rate = "100Mbit/s"
[matrix]
"wan.both.delay" = ["0ms", "8ms"]
"workload.fio.depth" = [1, 4, 16]
[volume]
size = "64MiB"
fill = "32MiB"
[workload.fio]
rw = "randread"
[[step]]
at = "2s"
wan.both.outage = true
[[assert]]
name = "close to the round trip"
figure = "p50_ms"
max = 0.2
plus = "rtt"
when = { "workload.fio.depth" = 1 }
[[assert]]
name = "as without delay"
figure = "iops"
min = 0.9
of = { point = { "wan.both.delay" = "0ms" } }
[[assert]]
name = "line"
figure = "mb_per_s"
min = 0.9
of = "line"
[[plot]]
title = "Latency"
x = "wan.both.delay"
y = "p50_ms"
paper = ["table1/Null Device/random/read/response_ms"]
"#;

#[test]
fn a_matrix_varies_the_file_itself() {
    let scenario = Scenario::parse("reads", GOOD).unwrap();
    assert_eq!(scenario.points.len(), 6);
    let last = &scenario.points[5];
    assert_eq!(last.label(), "delay=8ms, depth=16");
    assert_eq!(last.definition.wan.to_host.delay, Duration::from_millis(8));
    // Values outside the matrix stay.
    assert_eq!(last.definition.wan.to_host.rate, Some(100_000_000));
    let Workload::Fio(fio) = &last.definition.workload else { panic!("not fio") };
    assert_eq!((fio.depth, fio.block, fio.rw), (16, Size(8192), Pattern::RandRead));
    assert_eq!(last.definition.working_set(), Some(32 << 20));
    // A step changes the WAN of its point.
    let (at, wan) = &last.steps[0];
    assert_eq!((*at, wan.to_store.delay), (Duration::from_secs(2), Duration::from_millis(8)));
    assert!(wan.to_store.outage && !last.definition.wan.to_store.outage);
}

#[test]
fn mistakes_are_told_by_file_and_key() {
    for (from, to, said) in [
        ("rounds = 2", "rounds = 0", "`rounds`"),
        ("rounds = 2", "round = 2", "unknown field `round`"),
        ("delay = \"1ms\"", "delai = \"1ms\"", "delai"),
        ("delay = \"1ms\"", "delay = \"1 parsec\"", "parsec"),
        ("\"8ms\"]", "\"8mm\"]", "`matrix`"),
        ("[1, 4, 16]", "[]", "workload.fio.depth"),
        ("[1, 4, 16]", "[0]", "depth=0"),
        ("\"workload.fio.depth\" = [1", "\"workload.fio.deep\" = [1", "deep"),
        ("rw = \"randread\"", "rw = \"shuffle\"", "shuffle"),
        ("fill = \"32MiB\"", "", "`volume.fill`"),
        ("fill = \"32MiB\"", "fill = \"65MiB\"", "`volume.fill`"),
        ("\"nbd\"]", "\"nfs\"]", "nfs"),
        ("\"nbd\"]", "\"local-direct\"]", "local-direct"),
        ("\"longhaul\", ", "", "longhaul is not among"),
        ("max = 0.2", "", "`min` or `max`"),
        ("depth\" = 1 }", "depth\" = 2 }", "not among the values"),
        ("{ \"wan.both.delay\" = \"0ms\" }", "{ delay = 1 }", "no key of `matrix`"),
        ("x = \"wan.both.delay\"", "x = \"wan.delay\"", "wan.delay"),
        ("table1/Null", "table9/Null", "table9"),
        ("at = \"2s\"", "at = \"soon\"", "soon"),
        ("wan.both.outage = true", "wan.both.outrage = true", "outrage"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let error = Scenario::parse("reads", &text).err().map(|error| format!("{error:#}"));
        let error = error.unwrap_or_else(|| panic!("{to} is accepted"));
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn a_file_that_is_not_there() {
    let error = Scenario::load(Path::new("/nowhere/x.toml")).err().unwrap();
    assert!(format!("{error:#}").contains("/nowhere/x.toml"));
}

#[test]
fn every_scenario_of_the_repository_is_sound() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut found = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            Scenario::load(&path).unwrap_or_else(|error| panic!("{error:#}"));
            found += 1;
        }
    }
    assert!(found >= 12, "{found} scenarios: one for each row of targets");
}

#[test]
fn axes() {
    for (text, number) in [("8ms", 8.0), ("1Gbit/s", 1000.0), ("64MiB", 64.0)] {
        assert_eq!(axis_number(&Value::String(text.into())), Some(number), "{text}");
    }
    assert_eq!(axis_number(&Value::Float(0.01)), Some(0.01));
    assert_eq!(axis_number(&Value::String("randread".into())), None);
}
