//! A short scenario from end to end: WAN, product, peer, results and report. It needs root, TUN
//! devices and the packages of `make lab`; without them it fails where CI runs and is left out
//! elsewhere.

use std::path::Path;
use std::process::Command;

/// Whether this machine can do it; panics where it has to.
fn possible(longhaul: &Path) -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let tun = Path::new("/dev/net/tun").exists();
    let there = root && tun && longhaul.exists();
    assert!(
        there || std::env::var_os("CI").is_none(),
        "CI has to run this: root {root}, TUN {tun}, {} {}",
        longhaul.display(),
        longhaul.exists()
    );
    there
}

#[test]
fn short_scenario() {
    let lab = Path::new(env!("CARGO_BIN_EXE_longhaul-lab"));
    let longhaul =
        std::env::var_os("LONGHAUL_BIN").map_or_else(|| lab.with_file_name("longhaul"), Into::into);
    if !possible(&longhaul) {
        eprintln!("left out: needs root, /dev/net/tun and {}", longhaul.display());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (out, disks) = (directory.path().join("results"), directory.path().join("disks"));
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/smoke.toml");
    let mut command = Command::new(lab);
    // A busy machine makes invalid runs; this test looks only at the machinery.
    command.arg("run").arg(&scenario).args(["--retries", "0"]);
    command.arg("--longhaul").arg(&longhaul).arg("--out").arg(&out).arg("--dir").arg(&disks);
    let ended = command.output().unwrap();
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
    assert!(ended.status.success(), "{said}");
    let results = std::fs::read_to_string(out.join("smoke.jsonl")).unwrap();
    let records: Vec<serde_json::Value> =
        results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 4, "two delays, two subjects: {said}");
    for record in &records {
        let delay = if record["point"]["wan.both.delay"] == "4ms" { 8.0 } else { 0.0 };
        let p50 = record["figures"]["p50_ms"].as_f64();
        assert!(
            p50.is_some_and(|p50| p50 >= delay),
            "faster than the line, or failed: {record}\n{said}"
        );
        assert!(
            record["wan"]["to_store"]["packets"].as_u64().is_some_and(|packets| packets > 0),
            "{record}"
        );
        if record["subject"] == "longhaul" {
            let stages = record["stages"].as_array().unwrap();
            assert!(stages.iter().any(|stage| stage["stage"] == "link"), "{record}");
            let outage = &record["wan"]["to_store"]["outage_drops"];
            assert!(outage.as_u64().is_some_and(|drops| drops > 0), "no outage: {record}");
        }
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("smoke.toml") && page.contains("round trip"), "{page}");
    assert!(out.join("smoke.csv").exists() && out.join("smoke-1.svg").exists(), "{said}");
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wrong.toml");
    let smoke = include_str!("../scenarios/smoke.toml");
    std::fs::write(&path, smoke.replace("delay", "dealy")).unwrap();
    let lab = env!("CARGO_BIN_EXE_longhaul-lab");
    let ended = Command::new(lab).arg("run").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("wrong.toml") && said.contains("dealy"),
        "{said}"
    );
    let smoke = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/smoke.toml");
    let ended = Command::new(lab).arg("run").arg("--check").arg(smoke).output().unwrap();
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("2 points"));
}
