//! Third-party copies: EXTENDED COPY and tokens, between volumes and within one, and who may have
//! what.

use longhaul_e2e::initiator::copy::{Segment, Unit, zeroes};
use longhaul_e2e::initiator::session::{NONE, READ, WRITE};
use longhaul_e2e::initiator::{Login, Outcome, Session, pdu};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, free_address, metric};
use longhaul_e2e::wait_for;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const INITIATOR: &str = "iqn.2001-04.com.example:copier";
const OTHER: &str = "iqn.2001-04.com.example:other";

const ILLEGAL_REQUEST: u8 = 0x5;
const COPY_ABORTED: u8 = 0xa;
const NOT_REACHABLE: (u8, u16) = (COPY_ABORTED, 0x0d02);
const TOKEN_UNKNOWN: (u8, u16) = (ILLEGAL_REQUEST, 0x2304);
const TOKEN_REVOKED: (u8, u16) = (ILLEGAL_REQUEST, 0x2306);
const CONFLICT: u8 = 0x18;

/// A store and a host with volumes `a`, `b` (64 MiB, blocks of 512 bytes) and `c` (of 4096).
struct Rig {
    host: Host,
    portal: String,
    site: Site,
}

impl Rig {
    #[track_caller]
    fn new() -> Rig {
        let site = Site::new();
        for (volume, block) in [("a", "512"), ("b", "512"), ("c", "4096")] {
            site.volume(["create", volume, "--size", "64MiB", "--block-size", block]).ok();
        }
        let portal = free_address();
        let named = ["--volume", "a", "--volume", "b", "--volume", "c"];
        let mut host = site.host("host").with(["--iscsi", &portal]).with(named);
        host.start();
        let rig = Rig { host, portal, site };
        rig.ready();
        rig
    }

    #[track_caller]
    fn ready(&self) {
        wait_for("the portal", LIMIT, || TcpStream::connect(&self.portal).is_ok());
        wait_for("the volumes", LIMIT, || {
            ["a", "b", "c"].iter().all(|it| Session::open(&self.login(it, INITIATOR)).is_ok())
        });
    }

    fn login(&self, volume: &str, initiator: &str) -> Login {
        Login::to(&self.portal, &format!("iqn.2026-11.io.longhaul:{volume}"), initiator)
            .keys([("ImmediateData", "Yes"), ("MaxRecvDataSegmentLength", "262144")])
    }

    #[track_caller]
    fn session(&self, volume: &str, initiator: &str) -> Session {
        let mut session = Session::open(&self.login(volume, initiator)).unwrap();
        session.settle(0);
        session
    }

    #[track_caller]
    fn iscsi<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        let mut iscsi = command(longhaul());
        iscsi.args(["iscsi", "--admin", &self.host.admin]).args(args);
        run_within(iscsi, LIMIT)
    }

    /// The volume as the store has it, in the end.
    #[track_caller]
    fn stored(&self, volume: &str) -> Vec<u8> {
        self.host.wait_drained(volume, LIMIT);
        self.site.export(volume)
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

/// Writes in pieces that a command may have.
#[track_caller]
fn fill(session: &mut Session, lba: u64, data: &[u8], block: u32) {
    for (index, piece) in data.chunks(1 << 20).enumerate() {
        session.write16(lba + ((index << 20) as u64) / u64::from(block), piece, block);
    }
}

#[track_caller]
fn contents(session: &mut Session, lba: u64, bytes: usize, block: u32) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < bytes {
        let now = (bytes - data.len()).min(1 << 20) as u32;
        data.extend(session.read16(lba + data.len() as u64 / u64::from(block), now / block, block));
    }
    data
}

#[test]
fn between_volumes_and_within_one() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    let units = [a.unit(), b.unit()];
    assert_ne!(units[0], units[1]);
    // 20 MiB and three blocks from block 5 on: several chunks, none of whose ends is a multiple of
    // 4 KiB at either side.
    let blocks = 40_963u16;
    let data = noise(1, usize::from(blocks) * 512);
    fill(&mut a, 5, &data, 512);
    fill(&mut b, 0, &vec![0x77; 1 << 20], 512);
    a.extended_copy(&units, &[Segment(0, 1, blocks, 5, 9)]).good();
    // It reads the data at once, before and after the store has it.
    assert!(contents(&mut b, 9, data.len(), 512) == data);
    assert_eq!(b.read16(0, 9, 512), [0x77; 9 * 512]);
    // The destination may get the command as well.
    b.extended_copy(&units, &[Segment(0, 1, 7, 5, 50_001), Segment(0, 1, 0, 0, 0)]).good();
    assert!(contents(&mut b, 50_001, 7 * 512, 512) == data[..7 * 512]);
    // The next segment reads the data of the one before.
    b.extended_copy(&units, &[Segment(0, 1, 8, 13, 60_000), Segment(1, 1, 8, 60_000, 60_100)])
        .good();
    assert!(contents(&mut b, 60_100, 8 * 512, 512) == data[8 * 512..16 * 512]);
    // Within the volume, over itself, both ways.
    let whole = contents(&mut a, 0, 24 << 20, 512);
    let mut expected = whole.clone();
    for (from, to) in [(5u64, 1005u64), (1005, 12), (20_000, 20_001)] {
        let count = 20_000u16;
        a.extended_copy(&units[..1], &[Segment(0, 0, count, from, to)]).good();
        let bytes = |lba: u64| lba as usize * 512;
        expected.copy_within(bytes(from)..bytes(from + u64::from(count)), bytes(to));
    }
    assert!(contents(&mut a, 0, 24 << 20, 512) == expected);
    assert!(rig.stored("a")[..24 << 20] == expected);
    let b = rig.stored("b");
    assert!(b[9 * 512..][..data.len()] == data && b[..9 * 512] == [0x77; 9 * 512]);
}

#[test]
fn other_blocks_and_holes() {
    let rig = Rig::new();
    let (mut a, mut c) = (rig.session("a", INITIATOR), rig.session("c", INITIATOR));
    let units = [a.unit(), c.unit()];
    assert_eq!((units[0].block, units[1].block), (512, 4096));
    let data = noise(2, 16 * 4096);
    c.write16(3, &data, 4096);
    // 8 MiB with data in the middle only, over data.
    fill(&mut a, 0, &vec![0x11; 12 << 20], 512);
    c.extended_copy(&units, &[Segment(1, 0, 2048, 0, 8)]).good();
    let found = contents(&mut a, 0, 12 << 20, 512);
    let mut expected = vec![0x11; 12 << 20];
    expected[4096..4096 + (8 << 20)].fill(0);
    expected[4 * 4096..][..data.len()].copy_from_slice(&data);
    assert!(found == expected);
    // A hole stays one.
    let runs = [(8, 24, false), (32, 128, true), (160, 16384 - 152, false)];
    assert_eq!(a.mapped(8)[..3], runs);
    rig.host.wait_drained("a", LIMIT);
    assert_eq!(a.mapped(8)[..3], runs);
    // Not a whole number of the larger blocks.
    let inexact = a.extended_copy(&units, &[Segment(0, 1, 15, 0, 0)]);
    assert_eq!(inexact.sense(), (COPY_ABORTED, 0x260a));
    a.extended_copy(&units, &[Segment(0, 1, 16, 1, 100)]).good();
    assert!(c.read16(100, 2, 4096) == expected[512..512 + 8192]);
    // Blocks of another length than the unit has.
    let wrong = [units[0], Unit { block: 512, ..units[1] }];
    let refused = a.extended_copy(&wrong, &[Segment(0, 1, 16, 0, 0)]);
    assert_eq!(refused.sense(), (ILLEGAL_REQUEST, 0x2600));
    // Beyond either end, and no copy of the part before.
    for beyond in [Segment(0, 1, 8, (64 << 11) - 7, 0), Segment(0, 1, 8, 0, 16384)] {
        let refused = a.extended_copy(&units, &[Segment(0, 1, 8, 16, 200), beyond]);
        assert_eq!(refused.sense(), (COPY_ABORTED, 0));
        assert_eq!(refused.sense[10..12], [0, 1], "the second segment");
    }
    assert_eq!(c.read16(200, 1, 4096), [0; 4096]);
}

#[test]
fn the_data_does_not_pass_through_the_host() {
    let mut rig = Rig::new();
    let data = noise(3, 32 << 20);
    fill(&mut rig.session("a", INITIATOR), 0, &data, 512);
    rig.host.wait_drained("a", LIMIT);
    // Nothing is in a cache any more.
    assert!(rig.host.stop().success());
    rig.host.start();
    rig.ready();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    let units = [a.unit(), b.unit()];
    let link = || {
        let value = |way| metric(&rig.host.admin, &format!("longhaul_host_link_{way}_bytes_total"));
        value("sent") + value("received")
    };
    let before = link();
    a.extended_copy(&units, &[Segment(0, 1, 65_535, 0, 0), Segment(0, 1, 1, 65_535, 65_535)])
        .good();
    rig.host.wait_drained("b", LIMIT);
    let moved = link() - before;
    assert!(moved < 2e6, "{moved} bytes went over the link for 32 MiB");
    let journal = rig.host.volume_status("b")["journal_bytes"].as_u64().unwrap();
    assert!(journal < 1 << 20, "{journal} bytes in the journal");
    assert!(contents(&mut b, 0, data.len(), 512) == data);
}

/// CVE-2020-28374: a volume named by its designator that the initiator may not use.
#[test]
fn volumes_of_others_are_out_of_reach() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    let units = [a.unit(), b.unit()];
    let data = noise(4, 4096);
    fill(&mut a, 0, &data, 512);
    fill(&mut b, 0, &noise(5, 4096), 512);
    let secret = b.read16(0, 8, 512);
    let token = b.token(60, &[(0, 8)]);
    rig.iscsi(["allow", "a", INITIATOR]).ok();
    rig.iscsi(["allow", "b", OTHER]).ok();
    // The session of before is on its way out, and another one that may use it is there.
    let mut others = rig.session("b", OTHER);
    let copies = |session: &mut Session| -> Vec<Outcome> {
        vec![
            session.extended_copy(&units, &[Segment(1, 0, 8, 0, 0)]),
            session.extended_copy(&units, &[Segment(0, 1, 8, 0, 0)]),
            session.extended_copy(&units[1..], &[Segment(0, 0, 8, 0, 8)]),
        ]
    };
    for outcome in copies(&mut a) {
        assert_eq!(outcome.sense(), NOT_REACHABLE);
    }
    let stolen = a.write_using_token(1, false, &token, 0, &[(0, 8)]);
    assert_eq!(stolen.sense(), TOKEN_UNKNOWN);
    // As if there were no such volume.
    let nothing = Unit { naa: [0x3f; 8], block: 512 };
    let refused = a.extended_copy(&[units[0], nothing], &[Segment(1, 0, 8, 0, 0)]);
    assert_eq!(refused.sense(), NOT_REACHABLE);
    assert_eq!(refused.sense, copies(&mut a)[0].sense, "no difference is to be seen");
    // Allowed, but not logged in.
    drop(b);
    rig.iscsi(["allow", "b", INITIATOR]).ok();
    wait_for("the session to be over", LIMIT, || {
        rig.host.volume_status("b")["iscsi_sessions"] == 1
    });
    assert_eq!(copies(&mut a)[0].sense(), NOT_REACHABLE);
    let mut b = rig.session("b", INITIATOR);
    a.extended_copy(&units, &[Segment(0, 1, 8, 0, 8)]).good();
    assert_eq!(b.read16(8, 8, 512), data);
    // And withdrawn again, though the session is still there.
    rig.iscsi(["deny", "b", INITIATOR]).ok();
    assert_eq!(copies(&mut a)[0].sense(), NOT_REACHABLE);
    assert_eq!(others.read16(0, 8, 512), secret, "nothing was written");
    assert_eq!(a.read16(0, 8, 512), data);
}

fn reserve(session: &mut Session, kind: u8) {
    let mut list = [0; 24];
    list[15] = 9;
    for (action, scope) in [(6, 0), (1, kind)] {
        let cdb = [0x5f, action, scope, 0, 0, 0, 0, 0, 24, 0];
        let command = session.command(WRITE, 24, &cdb);
        session.run(0, &command, &list).good();
        list[..8].copy_from_slice(&9u64.to_be_bytes());
    }
}

#[test]
fn reservations_of_both_units_count() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    let units = [a.unit(), b.unit()];
    let token = a.token(60, &[(0, 8)]);
    // Write Exclusive: reads of b pass.
    let mut other = rig.session("b", OTHER);
    reserve(&mut other, 1);
    let refused = a.extended_copy(&units, &[Segment(0, 1, 8, 0, 0)]);
    assert_eq!(refused.sense(), (COPY_ABORTED, 0x0d01));
    assert_eq!((refused.sense[9], refused.sense[18]), (18, CONFLICT), "what the destination said");
    a.extended_copy(&units, &[Segment(1, 0, 8, 0, 0)]).good();
    let token_of_a = a.token(60, &[(0, 8)]);
    for outcome in [
        b.extended_copy(&units, &[Segment(1, 0, 8, 0, 0)]),
        b.write_using_token(1, false, &token_of_a, 0, &[(0, 8)]),
    ] {
        assert_eq!(outcome.status, CONFLICT);
    }
    b.populate_token(2, 0, &[(0, 8)]).good();
    drop(other);
    // Exclusive Access on a: reads there do not pass.
    let mut other = rig.session("a", OTHER);
    reserve(&mut other, 3);
    let mut c = rig.session("c", INITIATOR);
    let refused = c.write_using_token(1, false, &token_of_a, 0, &[(0, 1)]);
    assert_eq!(refused.sense(), (COPY_ABORTED, 0x0d01));
    assert_eq!((refused.sense[8], refused.sense[18]), (18, CONFLICT), "what the source said");
    let _ = token;
    // Its owner may.
    let mut theirs = rig.session("c", OTHER);
    theirs.write_using_token(1, false, &token_of_a, 0, &[(0, 1)]).good();
}

#[test]
fn tokens_and_their_ends() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    let data = noise(6, 10 << 20);
    fill(&mut a, 0, &data, 512);
    let token = a.token(0, &[(1, 9000), (12_000, 100)]);
    assert_eq!(a.token_information(77).blocks, 9100);
    let at = |lba: usize, blocks: usize| &data[lba * 512..(lba + blocks) * 512];
    let stood_for = [at(1, 9000), at(12_000, 100)].concat();
    b.write_using_token(1, false, &token, 0, &[(7, 4000), (20_000, 5100)]).good();
    let done = b.token_information(1);
    assert_eq!((done.action, done.status, done.blocks), (0x11, 1, 9100));
    assert!(contents(&mut b, 7, 4000 * 512, 512) == stood_for[..4000 * 512]);
    assert!(contents(&mut b, 20_000, 5100 * 512, 512) == stood_for[4000 * 512..]);
    // A part of it, and more than there is.
    b.write_using_token(1, false, &token, 8999, &[(0, 3)]).good();
    assert!(b.read16(0, 3, 512) == stood_for[8999 * 512..9002 * 512]);
    for (offset, blocks) in [(9100, 1), (9099, 2)] {
        let refused = b.write_using_token(1, false, &token, offset, &[(0, blocks)]);
        assert_eq!(refused.sense(), (ILLEGAL_REQUEST, 0x2600));
    }
    // In the background.
    b.write_using_token(2, true, &token, 0, &[(40_000, 9100)]).good();
    wait_for("the copy", LIMIT, || {
        let information = b.token_information(2);
        assert!(matches!(information.status, 0x01 | 0x12), "{information:?}");
        information.status == 1
    });
    assert!(contents(&mut b, 40_000, 9100 * 512, 512) == stood_for);
    // Nobody can make one.
    for byte in [15, 20, 60, 128, 511] {
        let mut forged = token;
        forged[byte] ^= 1;
        let sense = b.write_using_token(1, false, &forged, 0, &[(0, 1)]).sense();
        assert!(matches!(sense, (ILLEGAL_REQUEST, 0x2304 | 0x2305)), "{byte}: {sense:x?}");
    }
    // Zeroes, which take no space.
    b.write_using_token(3, false, &zeroes(), 0, &[(40_000, 9100)]).good();
    assert!(contents(&mut b, 40_000, 9100 * 512, 512).iter().all(|byte| *byte == 0));
    assert!(!b.mapped(40_000)[0].2);
    // Any command writes its data, or frees it.
    let write = |a: &mut Session, b: &mut Session, change: &dyn Fn(&mut Session)| {
        let token = a.token(0, &[(100, 8)]);
        a.write16(108, &[1; 512], 512);
        b.write_using_token(1, false, &token, 0, &[(0, 8)]).good();
        change(a);
        let refused = b.write_using_token(1, false, &token, 0, &[(0, 8)]);
        assert_eq!(refused.sense(), TOKEN_REVOKED);
    };
    write(&mut a, &mut b, &|a| a.write16(107, &[2; 512], 512));
    write(&mut a, &mut b, &|a| {
        a.write_using_token(4, false, &zeroes(), 0, &[(100, 1)]).good();
    });
    write(&mut a, &mut b, &|a| {
        let unit = a.unit();
        a.extended_copy(&[unit], &[Segment(0, 0, 1, 0, 107)]).good();
    });
    // Not used for too long.
    let short = a.token(1, &[(0, 8)]);
    b.write_using_token(1, false, &short, 0, &[(0, 8)]).good();
    std::thread::sleep(Duration::from_millis(1500));
    let refused = b.write_using_token(1, false, &short, 0, &[(0, 8)]);
    assert_eq!(refused.sense(), (ILLEGAL_REQUEST, 0x2307));
    // Of another run of the host.
    let old = a.token(600, &[(0, 8)]);
    assert!(rig.host.stop().success());
    rig.host.start();
    rig.ready();
    let (_a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    assert_eq!(b.write_using_token(1, false, &old, 0, &[(0, 8)]).sense(), TOKEN_UNKNOWN);
}

#[test]
fn a_host_killed_in_mid_copy() {
    let mut rig = Rig::new();
    let bytes = 60usize << 20;
    let (old, new) = (noise(7, bytes), noise(8, bytes));
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    fill(&mut a, 0, &new, 512);
    fill(&mut b, 0, &old, 512);
    let units = [a.unit(), b.unit()];
    let blocks = (bytes / 512) as u64;
    let segments: Vec<Segment> = (0..blocks)
        .step_by(32_768)
        .map(|lba| Segment(0, 1, (blocks - lba).min(32_768) as u16, lba, lba))
        .collect();
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    let list = longhaul_e2e::initiator::copy::list(&units, &segments);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    let copy = a.command(WRITE, list.len() as u32, &cdb).with_data(&list);
    a[0].send(&copy);
    let copied = || rig.host.volume_status("b")["counters"]["copies"].as_u64().unwrap();
    wait_for("some of it", LIMIT, || copied() > 2);
    let at_least = copied();
    rig.host.kill();
    rig.host.start();
    rig.ready();
    let mut b = rig.session("b", INITIATOR);
    let found = contents(&mut b, 0, bytes, 512);
    let mut counts = [0; 2];
    for (at, sector) in found.chunks_exact(512).enumerate() {
        let at = at * 512..(at + 1) * 512;
        let which = usize::from(sector == &new[at.clone()]);
        assert!(which == 1 || sector == &old[at.clone()], "neither old nor new at {at:?}");
        counts[which] += 1;
    }
    println!("{counts:?} sectors are old and new, after {at_least} writes of the copy");
    assert!(counts[1] > 0);
    // A repetition works, and the store has the host's content.
    let mut a = rig.session("a", INITIATOR);
    a.extended_copy(&units, &segments).good();
    assert!(rig.stored("b")[..bytes] == new);
    assert!(rig.host.stop().success());
    rig.site.store.stop();
    let store = rig.site.store.dir().to_str().unwrap().to_owned();
    let mut check = command(longhaul());
    check.args(["check", &store]);
    run_within(check, LIMIT).ok();
}

#[test]
fn task_management_ends_a_copy() {
    let rig = Rig::new();
    let bytes = 60usize << 20;
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    fill(&mut a, 0, &noise(9, bytes), 512);
    let units = [a.unit(), b.unit()];
    let blocks = (bytes / 512) as u64;
    let segments: Vec<Segment> = (0..blocks)
        .step_by(32_768)
        .map(|lba| Segment(0, 1, (blocks - lba).min(32_768) as u16, lba, lba))
        .collect();
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    let list = longhaul_e2e::initiator::copy::list(&units, &segments);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    let copy = a.command(WRITE, list.len() as u32, &cdb).with_data(&list);
    a[0].send(&copy);
    let copied = || rig.host.volume_status("b")["counters"]["copies"].as_u64().unwrap();
    wait_for("some of it", LIMIT, || copied() > 1);
    let abort = a.tag();
    let abort = a.numbered(pdu::manage(1, abort, copy.itt()).immediate());
    a[0].send(&abort);
    let answer = a[0].expect(pdu::op::FUNCTION_RESPONSE);
    assert_eq!(answer.header[2], 0, "{answer:?}");
    // It writes nothing any more.
    let after = copied();
    let before = contents(&mut b, 0, bytes, 512);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(copied(), after);
    assert!(contents(&mut b, 0, bytes, 512) == before);
    a.settle(0);
    let command = a.command(READ, 1024, &[0x12, 0, 0, 4, 0, 0]);
    a.run(0, &command, &[]).good();
    let command = a.command(NONE, 0, &[0; 6]);
    a.run(0, &command, &[]).good();
}

/// Prints how long a copy of 1 GiB takes, by the store and through the host.
#[test]
#[ignore = "a measurement, not a test"]
fn time_of_a_gibibyte() {
    let site = Site::new();
    for volume in ["a", "b", "c"] {
        site.volume(["create", volume, "--size", "1GiB", "--block-size", "512"]).ok();
    }
    let portal = free_address();
    let named = ["--volume", "a", "--volume", "b", "--volume", "c"];
    let mut host = site.host("host").with(["--iscsi", &portal]).with(named);
    host.start();
    let rig = Rig { host, portal, site };
    rig.ready();
    let (mut a, mut b) = (rig.session("a", INITIATOR), rig.session("b", INITIATOR));
    for mib in 0..1024 {
        fill(&mut a, mib << 11, &noise(mib, 1 << 20), 512);
    }
    rig.host.wait_drained("a", 10 * LIMIT);
    let units = [a.unit(), b.unit()];
    let blocks = 1u64 << 21;
    let segments: Vec<Segment> =
        (0..blocks).step_by(32_768).map(|lba| Segment(0, 1, 32_768, lba, lba)).collect();
    let start = Instant::now();
    a.extended_copy(&units, &segments).good();
    let answered = start.elapsed();
    rig.host.wait_drained("b", 10 * LIMIT);
    println!("EXTENDED COPY: {answered:?}, at the store after {:?}", start.elapsed());
    let url = |volume: &str| longhaul_e2e::iscsi::url(&rig.portal, None, volume);
    let start = Instant::now();
    let mut convert = command("qemu-img");
    convert.args(["convert", "-n", "-f", "raw", "-O", "raw", &url("a"), &url("c")]);
    run_within(convert, 20 * LIMIT).ok();
    let answered = start.elapsed();
    rig.host.wait_drained("c", 10 * LIMIT);
    println!("qemu-img convert: {answered:?}, at the store after {:?}", start.elapsed());
}
