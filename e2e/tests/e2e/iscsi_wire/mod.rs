//! The iSCSI target on the wire, against an initiator of our own that does what the standard asks
//! and what it forbids. Sections are those of RFC 7143.
//!
//! - [`logins`]: stages, keys, text over several PDUs, identities, CHAP, reinstatement.
//! - [`digests`]: CRC32C both ways, and damage at each error recovery level.
//! - [`data`]: immediate, unsolicited and solicited data, R2Ts, residuals.
//! - [`numbers`]: CmdSN, StatSN, DataSN and the window; several connections.
//! - [`recovery`]: SNACKs, connections lost and tasks moved.
//! - [`abuse`]: malformed PDUs of every kind beside a session that must not notice.
//! - [`limits`]: slow and large things, and the memory they take.
//! - [`farewell`]: messages when the host stops.
//! - [`totals`]: the counters.

mod abuse;
mod data;
mod digests;
mod farewell;
mod limits;
mod logins;
mod numbers;
mod recovery;
mod totals;

use longhaul_e2e::initiator::connection::Received;
use longhaul_e2e::initiator::{Connection, Login, Pdu, Session};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, free_address};
use longhaul_e2e::wait_for;
use std::net::TcpStream;
use std::time::Duration;

/// Within it comes what is to come at once.
const SOON: Duration = Duration::from_secs(60);

/// So long nothing comes where nothing is to come.
const QUIET: Duration = Duration::from_millis(300);

const INITIATOR: &str = "iqn.2001-04.com.example:kit";

/// A store and a host with a volume of 64 MiB and blocks of 512 bytes.
struct Rig {
    host: Host,
    portal: String,
    site: Site,
}

impl Rig {
    #[track_caller]
    fn new() -> Rig {
        Rig::with([])
    }

    /// With flags of the host.
    #[track_caller]
    fn with<'a>(flags: impl IntoIterator<Item = &'a str>) -> Rig {
        let site = Site::new();
        site.volume(["create", "disk", "--size", "64MiB", "--block-size", "512"]).ok();
        let portal = free_address();
        let named = ["--iscsi", &portal, "--volume", "disk"];
        let mut host = site.host("host").with(named).with(flags);
        host.start();
        let rig = Rig { host, portal, site };
        wait_for("the portal", LIMIT, || TcpStream::connect(&rig.portal).is_ok());
        wait_for("the volume to be served", LIMIT, || Session::open(&rig.login()).is_ok());
        rig
    }

    fn login(&self) -> Login {
        Login::to(&self.portal, &target("disk"), INITIATOR)
    }

    /// A session with these keys, without pending unit attentions.
    #[track_caller]
    fn session<'a>(&self, keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Session {
        self.session_of(&self.login().keys(keys))
    }

    #[track_caller]
    fn session_of(&self, login: &Login) -> Session {
        let mut session =
            Session::open(login).unwrap_or_else(|refused| panic!("{login:?}: {refused:?}"));
        let at = usize::from(login.cid);
        session.settle(at);
        session
    }

    /// `longhaul iscsi …`.
    #[track_caller]
    fn iscsi<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        let mut iscsi = command(longhaul());
        iscsi.args(["iscsi", "--admin", &self.host.admin]).args(args);
        run_within(iscsi, LIMIT)
    }

    /// The present memory of the host's process, in KiB.
    #[track_caller]
    fn resident_kib(&mut self) -> u64 {
        let pid = self.host.server().pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The host is there, and has not panicked.
    #[track_caller]
    fn is_sound(&mut self) {
        assert!(self.host.server().ended().is_none(), "the host has ended");
        let log = self.host.server().log();
        assert!(!log.contains("panicked"), "the host has panicked:\n{log}");
    }
}

fn target(volume: &str) -> String {
    format!("iqn.2026-11.io.longhaul:{volume}")
}

/// Blocks that say where they are and of which kind.
fn pattern(kind: u8, lba: u32, blocks: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(blocks * 512);
    for block in 0..blocks {
        let mut seed = (lba + block as u32) ^ u32::from(kind) << 24;
        for _ in 0..128 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            data.extend(seed.to_be_bytes());
        }
    }
    data
}

/// Whether the connection closes within `limit`, whatever comes before.
fn is_closed(connection: &mut Connection, limit: Duration) -> bool {
    let start = std::time::Instant::now();
    loop {
        match connection.receive_within(limit.saturating_sub(start.elapsed())) {
            Received::Pdu(_) => {}
            Received::Closed => return true,
            Received::Nothing => return false,
        }
    }
}

/// With LUN 0 spelled as another one.
fn with_lun(pdu: Pdu, lun: u8) -> Pdu {
    pdu.with8(9, lun)
}
