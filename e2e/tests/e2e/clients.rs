//! Clients that others wrote, each doing what it is used for.

use longhaul_e2e::process::{LIMIT, command, run, run_within};
use longhaul_e2e::site::{Host, Site};
use std::path::Path;

fn site(mib: u64) -> (Site, Host) {
    let site = Site::with_volume("disk", mib);
    let mut host = site.host("host");
    host.start();
    // Real clients do not try again.
    host.client("disk").disconnect();
    (site, host)
}

/// A file of data, holes and repetition, the same each time.
fn sample(path: &Path, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut data = vec![0; bytes];
    for part in data.chunks_mut(192 << 10) {
        match rng.u8(..4) {
            0 => {}
            1 => part.fill(rng.u8(..)),
            _ => rng.fill(part),
        }
    }
    std::fs::write(path, &data).unwrap();
    data
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let (_site, host) = site(32);
    let info = run("nbdinfo", ["--json", &host.uri("disk")]).ok().json();
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed", "{info}");
    assert_eq!(info["structured"], true, "{info}");
    assert_eq!(export["export-name"], "disk", "{info}");
    assert_eq!(export["export-size"], 32 << 20, "{info}");
    assert_eq!(export["block_size_minimum"], 512, "{info}");
    assert_eq!(export["is_read_only"], false, "{info}");
    for able in ["can_flush", "can_fua", "can_trim", "can_zero", "can_cache", "can_df"] {
        assert_eq!(export[able], true, "{able} in {info}");
    }
    let list = run("nbdinfo", ["--list", &host.uri("")]).ok();
    assert!(list.stdout.contains("disk"), "{list}");
    let unknown = run("nbdinfo", [host.uri("no-such-volume")]);
    assert!(!unknown.status.success(), "{unknown}");
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    let (site, mut host) = site(64);
    let (from, to) = (site.path("from"), site.path("to"));
    let data = sample(&from, 64 << 20);
    let uri = host.uri("disk");
    run("nbdcopy", ["--flush", text(&from), &uri]).ok();
    run("nbdcopy", [&uri, text(&to)]).ok();
    assert!(std::fs::read(&to).unwrap() == data, "nbdcopy brought back something else");
    let map = run("nbdinfo", ["--map", "--totals", &uri]).ok();
    assert!(map.stdout.contains("data"), "{map}");
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    assert!(site.export("disk") == data, "the store has something else");
}

#[test]
fn nbdsh_uses_every_command() {
    let (site, host) = site(32);
    let script = site.path("script.py");
    std::fs::write(
        &script,
        r#"
import nbd, sys
h.add_meta_context("base:allocation")
h.set_strict_mode(0)
h.connect_uri(sys.argv[1])
assert h.get_structured_replies_negotiated()
assert h.get_size() == 32 << 20
block = bytes(range(256)) * 16

def extents(at, length):
    found = []
    def seen(context, offset, entries, error):
        found.extend(zip(entries[::2], entries[1::2]))
        return 0
    h.block_status(length, at, seen)
    return found

assert extents(0, 32 << 20)[0][1] == 3, "an empty volume is a hole that reads as zeroes"
h.pwrite(block, 4096)
h.pwrite(block[:512], 12288 + 512, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 4096) == block
assert h.pread(1536, 12288) == bytes(512) + block[:512] + bytes(512)
kinds = dict()
at = 0
for length, flags in extents(0, 65536):
    for sector in range(at // 512, (at + length) // 512):
        kinds[sector] = flags
    at += length
assert kinds[8] == 0 and kinds[25] == 0, kinds
assert kinds[0] == 3 and kinds[24] in (0, 3), kinds
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, 4096) == bytes(4096)
assert extents(4096, 4096)[0][1] == 2, "written zeroes are allocated"
h.pwrite(block, 4096)
h.trim(4096, 4096)
assert h.pread(4096, 4096) == bytes(4096)
assert extents(4096, 4096)[0][1] == 3
h.cache(1 << 20, 0)
h.pwrite(block * 2048, 8 << 20)
assert h.pread(8 << 20, 8 << 20) == block * 2048
h.flush()

def refused(call, number):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, error
        return
    raise AssertionError("not refused")

refused(lambda: h.pread(4096, 32 << 20), 22)
refused(lambda: h.pwrite(block, (32 << 20) - 512), 28)
refused(lambda: h.pwrite(block[:100], 4096), 22)
refused(lambda: h.trim(4096, (32 << 20) - 512), 22)
assert h.pread(512, 12288 + 512) == block[:512], "the session goes on after mistakes"
h.shutdown()
print("done")
"#,
    )
    .unwrap();
    let wrapper = format!(
        "import sys; sys.argv = ['x', '{}']; exec(open('{}').read())",
        host.uri("disk"),
        text(&script)
    );
    let mut nbdsh = command("nbdsh");
    // Its module is the distribution's, and so must be the interpreter.
    nbdsh.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["-c", &wrapper]);
    let out = run_within(nbdsh, LIMIT).ok();
    assert!(out.stdout.contains("done"), "{out}");
}

#[test]
fn qemu_img_converts_compares_and_checks() {
    let (site, host) = site(64);
    let uri = host.uri("disk");
    let (raw, qcow2, back) = (site.path("raw"), site.path("qcow2"), site.path("back"));
    let data = sample(&raw, 64 << 20);
    run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&qcow2)]).ok();
    run("qemu-img", ["convert", "-n", "-f", "qcow2", "-O", "raw", text(&qcow2), &uri]).ok();
    run("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", text(&qcow2), &uri]).ok();
    run("qemu-img", ["convert", "-f", "raw", "-O", "raw", &uri, text(&back)]).ok();
    assert!(std::fs::read(&back).unwrap() == data, "qemu-img brought back something else");
    let info = run("qemu-img", ["info", "--output=json", &uri]).ok().json();
    assert_eq!(info["virtual-size"], 64 << 20);
    run(
        "qemu-img",
        ["bench", "-f", "raw", "-w", "-c", "2000", "-d", "16", "--flush-interval=100", &uri],
    )
    .ok();
    run("qemu-img", ["bench", "-f", "raw", "-c", "2000", "-d", "16", "-S", "65536", &uri]).ok();
}

#[test]
fn a_qcow2_image_lives_inside_a_volume() {
    let (_site, host) = site(64);
    let uri = host.uri("disk");
    run("qemu-img", ["create", "-f", "qcow2", &uri, "32M"]).ok();
    run(
        "qemu-io",
        [
            "-f",
            "qcow2",
            "-c",
            "write -P 0x5a 0 1M",
            "-c",
            "write -P 0xa5 20M 3M",
            "-c",
            "flush",
            &uri,
        ],
    )
    .ok();
    run("qemu-img", ["snapshot", "-c", "before", &uri]).ok();
    run("qemu-io", ["-f", "qcow2", "-c", "write -P 0x11 0 512k", "-c", "discard 20M 1M", &uri])
        .ok();
    run("qemu-img", ["check", "-f", "qcow2", &uri]).ok();
    run("qemu-img", ["snapshot", "-a", "before", &uri]).ok();
    let read = run(
        "qemu-io",
        ["-f", "qcow2", "-c", "read -P 0x5a 0 1M", "-c", "read -P 0xa5 20M 3M", &uri],
    )
    .ok();
    assert!(!read.stdout.contains("verification failed"), "{read}");
}

#[test]
fn qemu_io_patterns_discards_and_zeroes() {
    let (_site, host) = site(64);
    let out = run(
        "qemu-io",
        [
            "-f",
            "raw",
            "--cache=none",
            "-c",
            "write -P 0xcd 0 4M",
            "-c",
            "write -P 0xef 512 512",
            "-c",
            "write -f -P 0x12 3M 64k",
            "-c",
            "discard 1M 1M",
            "-c",
            "write -z 2M 512k",
            "-c",
            "write -z -u 2560k 64k",
            "-c",
            "flush",
            "-c",
            "read -P 0xcd 0 512",
            "-c",
            "read -P 0xef 512 512",
            "-c",
            "read -P 0xcd 1024 1047552",
            "-c",
            "read -P 0 1M 1M",
            "-c",
            "read -P 0 2M 576k",
            "-c",
            "read -P 0xcd 2624k 448k",
            "-c",
            "read -P 0x12 3M 64k",
            "-c",
            "read -P 0 5M 1M",
            &host.uri("disk"),
        ],
    )
    .ok();
    assert!(!out.stdout.contains("verification failed"), "{out}");
    assert_eq!(out.stdout.matches("read ").count(), 8, "{out}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    let (site, mut host) = site(96);
    let engines = run("fio", ["--enghelp"]).ok();
    assert!(engines.stdout.contains("nbd"), "fio was built without its nbd engine: {engines}");
    let uri = format!("--uri={}", host.uri("disk"));
    let job = |rest: &[&str]| {
        let mut fio = command("fio");
        fio.current_dir(site.path(""));
        fio.args(["--name=verify", "--ioengine=nbd", &uri, "--rw=randrw", "--bs=8k", "--size=64m"]);
        fio.args([
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=64",
            "--randseed=7",
        ]);
        fio.args(rest);
        run_within(fio, LIMIT).ok();
    };
    job(&["--verify_backlog=256"]);
    // Once more from the store, after a restart with an empty state directory.
    job(&["--rw=write", "--bs=64k", "--do_verify=0"]);
    assert!(host.stop().success());
    let mut other = site.host("other");
    other.start();
    other.client("disk").disconnect();
    let uri = format!("--uri={}", other.uri("disk"));
    let mut fio = command("fio");
    fio.current_dir(site.path(""));
    fio.args([
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=write",
        "--bs=64k",
        "--size=64m",
        "--iodepth=16",
    ]);
    fio.args([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
        "--randseed=7",
        "--verify_only",
    ]);
    run_within(fio, LIMIT).ok();
}
