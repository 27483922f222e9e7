//! `longhaul-lab wan` as a person or a script runs it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul-lab"));
    command.arg("wan").args(args).stdin(Stdio::null());
    command
}

/// Whether a WAN can be had. Without it the test fails in CI (`CI=true`), and elsewhere says that
/// it did not run.
fn can_emulate() -> bool {
    let root = rustix::process::geteuid().is_root();
    if root && std::path::Path::new("/dev/net/tun").exists() {
        return true;
    }
    let ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    assert!(!ci, "this test needs root and TUN, and in CI (CI=true) no test may be left out");
    eprintln!("SKIPPED: it needs root and TUN. Run `make test` as root to run it.");
    false
}

#[test]
fn a_command_finds_both_sides_and_its_status_is_passed_on() {
    if !can_emulate() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let script = "ip -brief address show wan0; nsenter --net=$WAN_STORE_NS ip -brief address show \
                  wan0; echo $WAN_HOST $WAN_STORE; exit 7";
    let out = lab(&["--delay", "3ms", "--rate", "100Mbit/s", "--report", report.to_str().unwrap()])
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let messages = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{messages}");
    assert!(text.contains("198.18.0.1 peer 198.18.0.2"), "{text}\n{messages}");
    assert!(text.contains("198.18.0.2 peer 198.18.0.1"), "{text}\n{messages}");
    assert!(text.ends_with("198.18.0.1 198.18.0.2\n"), "{text}");
    assert!(messages.contains("delay 3ms, 100Mbit/s, queue 73.2 KiB"), "{messages}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert!(report["valid"].is_boolean() && report["to_host"]["packets"].is_u64(), "{report}");
}

#[test]
fn a_signal_ends_all_that_runs_inside() {
    if !can_emulate() {
        return;
    }
    let script = "sleep 1000 & echo $!; nsenter --net=$WAN_STORE_NS sleep 1000 & echo $!; wait";
    let mut lab = lab(&["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
    let pids: Vec<String> = (0..2).map(|_| lines.next().unwrap().unwrap()).collect();
    let pid = rustix::process::Pid::from_child(&lab);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = lab.wait().unwrap();
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(status.signal(), Some(15), "{status}");
    let start = Instant::now();
    // The processes have ended; their parent, which is not this process, may still have to notice.
    for pid in pids {
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(start.elapsed() < Duration::from_secs(10), "{pid} is still there: {}", state());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn nonsense_on_the_command_line_is_refused() {
    for (args, word) in [
        (["--delay", "8"], "8ms"),
        (["--loss", "2"], "share"),
        (["--background", "70%"], "--rate"),
        (["--reorder", "1%"], "0.1%,2ms"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ] {
        let out = lab(&args).args(["--", "true"]).output().unwrap();
        let messages = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && messages.contains(word), "{args:?}: {messages}");
    }
}
