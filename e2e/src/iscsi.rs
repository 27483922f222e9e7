//! iSCSI: portals, URLs of libiscsi, and its conformance suite.

use crate::process::{Output, Server, command, run_within};
use crate::site::free_address;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How names of targets begin.
pub const TARGET_PREFIX: &str = "iqn.2026-11.io.longhaul:";

/// How long a family of the suite may take: it has tests that wait for timeouts.
pub const SUITE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// A volume's unit as libiscsi and QEMU name it; `user` is `NAME%SECRET`.
#[must_use]
pub fn url(portal: &str, user: Option<&str>, volume: &str) -> String {
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    format!("iscsi://{user}{portal}/{TARGET_PREFIX}{volume}/0")
}

/// Runs one of libiscsi's programs.
#[track_caller]
pub fn libiscsi<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut command = command(program);
    command.args(args);
    run_within(command, Duration::from_secs(60))
}

/// How a test of the suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All that it looked at was as it expects.
    Passed,
    /// It passed because it left something out that the target does not have.
    Skipped,
    /// Something was not as it expects.
    Failed,
}

/// The families of the suite. As a whole, its second round hangs in a test that hooks libiscsi
/// twice (`InvalidDataOutSize` or `BlockEraseReserved`, with tgt as well).
pub const FAMILIES: [&str; 4] = ["ALL", "SCSI", "LINUX", "iSCSI"];

/// Runs of the suite: tests by `FAMILY.SUITE.TEST` with what they said.
#[derive(Debug, Default)]
pub struct Results {
    /// By name, in the order of names.
    pub tests: BTreeMap<String, (Verdict, String)>,
}

impl Results {
    /// How many ended so.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.tests.values().filter(|(found, _)| *found == verdict).count()
    }

    /// Adds what the suite printed of a family.
    pub fn read(&mut self, family: &str, text: &str) {
        let mut suite = "?";
        let mut test: Option<(String, Verdict, String)> = None;
        for line in text.lines().take_while(|line| !line.starts_with("Run Summary")) {
            if let Some(name) = line.strip_prefix("Suite: ") {
                suite = name.trim();
                continue;
            }
            let mut rest = line;
            if let Some(begun) = line.trim_start().strip_prefix("Test: ")
                && let Some((name, said)) = begun.split_once(" ...")
            {
                self.add(test.take());
                // One that says no more than its name has hung or crashed.
                let name = format!("{family}.{suite}.{name}");
                test = Some((name, Verdict::Failed, String::new()));
                rest = said;
            }
            let Some((_, verdict, said)) = &mut test else { continue };
            let rest = rest.trim();
            if rest.starts_with("passed") {
                let skipped = said.contains("[SKIPPED]");
                *verdict = if skipped { Verdict::Skipped } else { Verdict::Passed };
            } else if rest != "FAILED" && !rest.is_empty() {
                said.push_str(rest);
                said.push('\n');
            }
        }
        self.add(test);
    }

    fn add(&mut self, test: Option<(String, Verdict, String)>) {
        if let Some((name, verdict, said)) = test {
            self.tests.insert(name, (verdict, said));
        }
    }
}

/// Runs all families of the suite over these units: the second is another path to the first.
#[track_caller]
#[must_use]
pub fn run_suite(urls: &[&str]) -> Results {
    let mut results = Results::default();
    for family in FAMILIES {
        let mut suite = command("iscsi-test-cu");
        suite.args(["--dataloss", "--allow-sanitize", "--test", family]).args(urls);
        let output = run_within(suite, SUITE_LIMIT);
        assert!(
            output.stdout.contains("Run Summary"),
            "the suite did not come to its end: {output}"
        );
        results.read(family, &output.stdout);
    }
    results
}

/// The table after the line with `heading` in a page. It has the first cell of each row, without
/// the quotes of code, with the other cells.
#[must_use]
pub fn table(page: &Path, heading: &str) -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(page).unwrap();
    let after = text.split_once(heading).unwrap_or_else(|| panic!("no `{heading}` in {page:?}")).1;
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let rows = rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let first = cells.next().unwrap_or_default().trim_matches('`').to_owned();
        (first, cells.collect())
    });
    rows.collect()
}

/// tgt with a unit on a file, to compare with.
pub struct Tgt {
    /// Where it listens.
    pub portals: [String; 2],
    _server: Server,
}

impl Tgt {
    /// Starts one with a unit of `mib` MiB in `dir`.
    ///
    /// # Panics
    /// If tgt is not there, or does not start.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path, mib: u64) -> Tgt {
        let portals = [free_address(), free_address()];
        let disk = dir.join("tgt.disk");
        std::fs::File::create(&disk).unwrap().set_len(mib << 20).unwrap();
        // Its own control socket and number, so that it leaves another tgt alone.
        let control = fastrand::u16(1000..30_000).to_string();
        let with = |program: &str, args: &[&str]| {
            let mut command = command(program);
            command.env("TGT_IPC_SOCKET", dir.join("tgt")).args(["-C", &control]).args(args);
            command
        };
        let listen = portals.each_ref().map(|address| format!("portal={address}")).join(",");
        let flags = ["-f", "--iscsi", &listen];
        let mut server = Server::start("tgtd", with("tgtd", &flags), &dir.join("tgt.log"));
        server.wait_until("tgtd listens", Duration::from_secs(30), || {
            portals.iter().all(|portal| std::net::TcpStream::connect(portal).is_ok())
        });
        let disk = disk.to_str().expect("temporary paths are text");
        let target = ["--mode", "target", "--tid", "1"];
        let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        for (which, what) in [
            (&target[..], &["--op", "new", "--targetname", Tgt::NAME][..]),
            (&unit[..], &["--op", "new", "--backing-store", disk][..]),
            (&unit[..], &["--op", "update", "--params", "thin_provisioning=1"][..]),
            (&target[..], &["--op", "bind", "--initiator-address", "ALL"][..]),
        ] {
            let args = [&["--lld", "iscsi"][..], which, what].concat();
            run_within(with("tgtadm", &args), Duration::from_secs(30)).ok();
        }
        Tgt { portals, _server: server }
    }

    const NAME: &str = "iqn.2026-11.com.example:tgt";

    /// Its unit, over one of the portals.
    #[must_use]
    pub fn url(&self, portal: usize) -> String {
        format!("iscsi://{}/{}/1", self.portals[portal], Tgt::NAME)
    }
}
