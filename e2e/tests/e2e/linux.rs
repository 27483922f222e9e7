//! The initiator of the Linux kernel, in an emulated machine: what most hosts will do to a volume.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::guest::{GATEWAY, Guest, unpack_root};
use longhaul_e2e::initiator::session::{WRITE, cdb10};
use longhaul_e2e::initiator::{Login, Session};
use longhaul_e2e::iscsi::TARGET_PREFIX;
use longhaul_e2e::line::Line;
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, repository, run, run_within};
use longhaul_e2e::site::{Host, Relay, Site, free_port};
use longhaul_e2e::wait_for;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

const INITIATOR: &str = "iqn.2026-11.test.longhaul:guest";
const SECRET: &str = "known-to-the-guest";
const TARGET_SECRET: &str = "known-to-the-target";

/// The settings of the guest's initiator that are not its defaults.
struct Settings {
    /// Mutual CHAP.
    chap: bool,
    /// Seconds after which commands of a lost session fail.
    patience: u32,
}

impl Settings {
    /// Makes the guest an initiator, logged in nowhere.
    fn apply(&self, guest: &mut Guest) {
        let mut lines = vec![
            "iscsid.startup = /sbin/iscsid".to_owned(),
            "node.startup = manual".into(),
            format!("node.session.timeo.replacement_timeout = {}", self.patience),
            "node.conn[0].timeo.noop_out_interval = 1".into(),
            "node.conn[0].timeo.noop_out_timeout = 2".into(),
            "node.session.cmds_max = 128".into(),
            "node.session.queue_depth = 32".into(),
            "node.conn[0].iscsi.HeaderDigest = CRC32C".into(),
            "node.conn[0].iscsi.DataDigest = CRC32C".into(),
        ];
        for kind in ["discovery.sendtargets", "node.session"].iter().filter(|_| self.chap) {
            lines.push(format!("{kind}.auth.authmethod = CHAP"));
            lines.push(format!("{kind}.auth.chap_algs = SHA3-256,SHA256"));
            for (key, value) in [
                ("username", "guest"),
                ("password", SECRET),
                ("username_in", "longhaul"),
                ("password_in", TARGET_SECRET),
            ] {
                lines.push(format!("{kind}.auth.{key} = {value}"));
            }
        }
        let lines = lines.join("\n");
        let script = format!(
            "echo InitiatorName={INITIATOR} >/etc/iscsi/initiatorname.iscsi
            cat >/etc/iscsi/iscsid.conf <<'END'\n{lines}\nEND
            iscsid && until iscsiadm -m session; [ $? = 21 ]; do sleep 0.2; done"
        );
        guest.run(&script).ok();
    }
}

/// The path of the device that a session through a portal has.
fn device(port: u16, volume: &str) -> String {
    format!("/dev/disk/by-path/ip-{GATEWAY}:{port}-iscsi-{TARGET_PREFIX}{volume}-lun-0")
}

/// Logs in to a volume through a portal, and waits for its device.
#[track_caller]
fn login(guest: &mut Guest, port: u16, volume: &str) -> String {
    let device = device(port, volume);
    let node = format!("iscsiadm -m node -T {TARGET_PREFIX}{volume} -p {GATEWAY}:{port}");
    let script = format!(
        "{node} >/dev/null 2>&1 || {node} --op new >/dev/null
        {node} --login || exit 1
        for i in $(seq 100); do test -b {device} && exit 0; sleep 0.2; done; dmesg | tail; exit 1"
    );
    guest.run(&script).ok();
    device
}

/// A host of all volumes with portals, one of which the guest reaches over each line, or directly.
fn host_with_portals(site: &Site, name: &str, ports: &[u16], lines: &[u16], table: &str) -> Host {
    let portals: Vec<String> = lines.iter().map(|port| format!("\"{GATEWAY}:{port}\"")).collect();
    let config = site.path(&format!("{name}.toml"));
    let table = format!("[iscsi]\nportals = [{}]\n{table}", portals.join(", "));
    std::fs::write(&config, table).unwrap();
    std::fs::set_permissions(&config, Permissions::from_mode(0o600)).unwrap();
    let mut host = site.host(name);
    host.flags.extend(["--config".into(), config.to_str().unwrap().into()]);
    for port in ports {
        host.flags.extend(["--iscsi".into(), format!("127.0.0.1:{port}")]);
    }
    let volumes = site.volume(["list", "--json"]).ok().json();
    for volume in volumes["volumes"].as_array().or(volumes.as_array()).expect("a list") {
        host.flags.extend(["--volume".into(), volume["name"].as_str().unwrap().into()]);
    }
    host
}

/// Nothing that the kernel says of a disk or file system that has failed.
#[track_caller]
fn no_errors(guest: &mut Guest) {
    let bad = "I/O error|EXT4-fs \
               (error|warning)|XFS.*(error|[Cc]orrupt|[Ss]hutdown)|Remounting|blocked for";
    let said = guest.run(&format!("dmesg | grep -E '{bad}'"));
    assert_eq!(said.stdout, "", "{}", guest.console());
}

/// Random writes of a file that the guest reads back and compares.
fn fio(file: &str, mib: u32, more: &str) -> String {
    format!(
        "fio --name=verify --filename={file} --size={mib}M --rw=randwrite --bsrange=4k-64k \
         --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 \
         --output-format=terse {more}"
    )
}

/// The same again and again, until [`end_load`]. It needs a rate: without one, the emulated machine
/// takes a core that other tests need.
fn start_load(guest: &mut Guest, file: &str, more: &str) {
    let once = fio(file, 8, more);
    guest.start("load", &format!("until test -e /run/enough; do {once} || exit 1; done"));
}

/// Panics unless every read was right.
#[track_caller]
fn end_load(guest: &mut Guest) {
    guest.run("touch /run/enough").ok();
    guest.wait("load", LIMIT).ok();
}

fn iscsi(host: &Host, args: &[&str]) -> Output {
    let mut iscsi = command(longhaul());
    iscsi.args(["iscsi", "--admin", &host.admin]).args(args);
    run_within(iscsi, LIMIT)
}

/// Discovery and login with CHAP in both directions, and both file systems from mkfs to fsck.
#[test]
fn linux_makes_and_uses_file_systems() {
    let site = Site::with_volume("ext4", 256);
    // The smallest that mkfs.xfs makes.
    site.create("xfs", 320);
    site.create("hidden", 16);
    let port = free_port();
    let grant = format!("[{{ initiator = \"{INITIATOR}\", chap-user = \"guest\" }}]");
    let table = format!(
        "target-user = {{ name = \"longhaul\", secret = \"{TARGET_SECRET}\" }}\n\
         [iscsi.users]\nguest = {{ secret = \"{SECRET}\" }}\nother = {{ secret = \"other-{SECRET}\" }}\n\
         [iscsi.volumes]\next4 = {grant}\nxfs = {grant}\nhidden = []\n"
    );
    let mut host = host_with_portals(&site, "host", &[port], &[port], &table);
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: true, patience: 60 }.apply(&mut guest);

    let discovery = format!("iscsiadm -m discovery -t sendtargets -p {GATEWAY}:{port}");
    let found = guest.run(&discovery).ok().stdout;
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    let expected =
        ["ext4", "xfs"].map(|volume| format!("{GATEWAY}:{port},1 {TARGET_PREFIX}{volume}"));
    assert_eq!(found, expected);
    // Another user's secret does not help, and neither does none.
    let node = format!("iscsiadm -m node -T {TARGET_PREFIX}ext4 -p {GATEWAY}:{port}");
    for (key, value) in [("password", "not-his-own-secret"), ("authmethod", "None")] {
        let refused = guest.run(&format!(
            "{node} -o update -n node.session.auth.{key} -v {value} && {node} --login"
        ));
        assert_eq!(refused.status.code(), Some(24), "not an authorization failure: {refused}");
    }
    for (key, value) in [("password", SECRET), ("authmethod", "CHAP")] {
        guest.run(&format!("{node} -o update -n node.session.auth.{key} -v {value}")).ok();
    }

    let ext4 = login(&mut guest, port, "ext4");
    let digests = guest.run("iscsiadm -m session -P 2").ok().stdout;
    assert!(digests.contains("HeaderDigest: CRC32C"), "{digests}");
    guest.run(&format!("mke2fs -q -t ext4 {ext4} && mount {ext4} /mnt")).ok();
    let verify = fio("/mnt/verify", 16, "--fsync=100");
    guest.run(&verify).ok();
    guest
        .run(
            "rm /mnt/verify; sync; fstrim /mnt; dd if=/dev/urandom of=/mnt/junk bs=1M count=24; \
               sync",
        )
        .ok();
    host.wait_drained("ext4", LIMIT);
    let trimmed = guest.run("rm /mnt/junk && sync && fstrim -v /mnt && sync").ok().stdout;
    host.wait_drained("ext4", LIMIT);
    // "/mnt: 24.1 MiB (25268224 bytes) trimmed"
    let bytes = trimmed.split_once('(').and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(bytes.is_some_and(|bytes: u64| bytes > 20 << 20), "{trimmed}");
    guest.run(&format!("umount /mnt && e2fsck -f -n {ext4}")).ok();

    let xfs = login(&mut guest, port, "xfs");
    guest.run(&format!("mkfs.xfs -q {xfs} && mount {xfs} /mnt")).ok();
    guest.run(&verify).ok();
    guest.run(&format!("fstrim /mnt && umount /mnt && xfs_repair -n {xfs}")).ok();
    no_errors(&mut guest);
    guest.run("iscsiadm -m node -u && ! iscsiadm -m session").ok();
    let sessions = iscsi(&host, &["sessions", "--json"]).ok().json();
    assert_eq!(sessions, serde_json::json!([]));

    // The volume is whole for others as well.
    assert!(host.stop().success());
    let image = site.path("image");
    std::fs::write(&image, site.export("ext4")).unwrap();
    run("e2fsck", ["-f", "-n", image.to_str().unwrap()]).ok();
}

/// `sg_xcopy` copies between two volumes and within one, and the destination reads like the source.
#[test]
fn linux_copies() {
    let site = Site::with_volume("one", 32);
    site.create("two", 32);
    let port = free_port();
    let mut host = host_with_portals(&site, "host", &[port], &[port], "");
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 60 }.apply(&mut guest);
    let one = login(&mut guest, port, "one");
    let two = login(&mut guest, port, "two");
    let mut good = |script: &str| guest.run(script).ok().stdout;
    good(&format!("dd if=/dev/urandom of={one} bs=1M count=8 oflag=direct"));
    // Blocks that are not those of the file systems' pages, from one to the other and within one.
    good(&format!("sg_xcopy if={one} of={two} bs=512 count=16000 skip=3 seek=5 bpt=16000 -v"));
    good(&format!(
        "sg_xcopy if={two} of={two} bs=512 count=15000 skip=5 seek=20001 bpt=4096 --on_dst"
    ));
    let sum = |device: &str, skip: u32| {
        let read = format!("dd if={device} bs=512 skip={skip} count=15000 iflag=nocache,fullblock");
        format!("blockdev --flushbufs {device}; {read} 2>/dev/null | sha256sum")
    };
    let first = good(&sum(&one, 3));
    assert_eq!(good(&sum(&two, 5)), first);
    assert_eq!(good(&sum(&two, 20_001)), first);
    let parameters = good(&format!("sg_copy_results --params {two}"));
    assert!(parameters.contains("block device to block device"), "{parameters}");
    let page = good(&format!("sg_vpd --page=tpc {two}")).to_lowercase();
    for part in ["rod token", "extended copy"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(host.volume_status("two")["counters"]["copies"].as_u64() > Some(0));
    no_errors(&mut guest);
}

/// Two initiators share a volume; one of them fences the other, which stays so when the host
/// restarts.
#[test]
fn linux_reservations_fence() {
    let site = Site::with_volume("disk", 32);
    let ports = [free_port(), free_port()];
    let mut host = host_with_portals(&site, "host", &ports, &ports, "");
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 60 }.apply(&mut guest);
    let first = login(&mut guest, ports[0], "disk");
    let second = device(ports[1], "disk");
    let node = format!("-T {TARGET_PREFIX}disk -p {GATEWAY}:{}", ports[1]);
    guest
        .run(&format!(
            "iscsiadm -m iface -I second -o new
            iscsiadm -m iface -I second -o update -n iface.initiatorname -v {INITIATOR}-2
            iscsiadm -m node {node} -I second -o new && iscsiadm -m node {node} -I second --login
            for i in $(seq 100); do test -b {second} && exit 0; sleep 0.2; done; exit 1"
        ))
        .ok();
    let write = |device: &str| format!("dd if=/dev/zero of={device} bs=4096 count=1 oflag=direct");
    let read = |device: &str| format!("dd if={device} of=/dev/null bs=4096 count=1 iflag=direct");
    let mut good = |script: &str| guest.run(script).ok().stdout;
    // Write Exclusive, Registrants Only, kept through a loss of power.
    good(&format!("sg_persist -o -G -S 0xa1 -Z {first} && sg_persist -o -R -K 0xa1 -T 5 {first}"));
    good(&write(&first));
    good(&read(&second));
    let conflict = guest.run(&write(&second));
    assert!(!conflict.status.success(), "{conflict}");
    let mut good = |script: &str| guest.run(script).ok().stdout;
    good(&format!("sg_persist -o -G -S 0xb2 -Z {second}"));
    good(&write(&second));
    good(&format!("sg_persist -o -P -K 0xb2 -S 0xa1 -T 5 {second} && sg_turs {second}"));
    let keys = good(&format!("sg_persist -i -k {second}"));
    assert!(keys.contains("0xb2") && !keys.contains("0xa1"), "{keys}");
    let full = good(&format!("sg_persist -i -s {second}"));
    assert!(full.contains("Reservation holder") && full.contains(&format!("{INITIATOR}-2,i,")));
    let fenced = guest.run(&write(&first));
    assert!(!fenced.status.success(), "{fenced}");

    host.kill();
    host.start();
    wait_for("the sessions to be back", LIMIT, || {
        guest.run(&format!("sg_turs -n 3 {first} && sg_turs -n 3 {second}")).status.success()
    });
    let keys = guest.run(&format!("sg_persist -i -k {first}")).ok().stdout;
    assert!(keys.contains("0xb2") && !keys.contains("0xa1"), "{keys}");
    let fenced = guest.run(&write(&first));
    assert!(!fenced.status.success(), "after a restart: {fenced}");
    guest.run(&write(&second)).ok();
    guest.run(&format!("sg_persist -o -C -K 0xb2 {second}")).ok();
    guest.run(&format!("sg_turs -n 3 {first}; {}", write(&first))).ok();
    let said = guest.run("dmesg | grep -c 'reservation conflict error'").stdout;
    assert_ne!(said.trim(), "0", "the kernel has another reason");
}

/// PERSISTENT RESERVE OUT with two keys (SPC-5 §6.16): gives the status.
fn reserve_out(session: &mut Session, action: u8, kind: u8, key: u64, action_key: u64) -> u8 {
    let mut cdb = cdb10(0x5f, 0, 24);
    (cdb[1], cdb[2]) = (action, kind);
    let mut command = session.command(WRITE, 24, &cdb);
    command.data = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    session.run(0, &command, &[]).status
}

/// Another machine takes a volume over from one that has a file system mounted on it and writes.
/// From then on every write of the first one fails, and it notices.
#[test]
fn linux_is_fenced_off_by_another_machine() {
    const REGISTER: u8 = 0;
    const PREEMPT: u8 = 4;
    const REGISTRANTS_ONLY: u8 = 5;
    const CONFLICT: u8 = 0x18;
    let site = Site::new();
    // Written by the other machine in blocks of 512 bytes.
    site.volume(["create", "disk", "--size", "64MiB", "--block-size", "512"]).ok();
    let port = free_port();
    let mut host = host_with_portals(&site, "host", &[port], &[port], "");
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 60 }.apply(&mut guest);
    let device = login(&mut guest, port, "disk");
    guest
        .run(&format!(
            "mke2fs -q -t ext4 {device} && mount -o errors=remount-ro {device} /mnt &&
            sg_persist -o -G -S 0xa1 {device} && sg_persist -o -R -K 0xa1 -T 5 {device}"
        ))
        .ok();
    guest.start("writer", "while echo line >>/mnt/log && sync -d /mnt/log; do :; done; exit 3");

    let address = format!("127.0.0.1:{port}");
    let name = "iqn.2026-11.test.longhaul:other-machine";
    let login = Login::to(&address, &format!("{TARGET_PREFIX}disk"), name);
    let mut other = Session::open(&login).unwrap();
    other.settle(0);
    // In the last MiB, which a file system of this size does not use so soon.
    let (mark, at) = (vec![0x5a; 4096], (63 << 20) / 512);
    assert_eq!(other.write_blocks(0, at, &mark).status, CONFLICT, "it is not registered");
    assert_eq!(reserve_out(&mut other, REGISTER, 0, 0, 0xb2), 0);
    other.write_blocks(0, at, &mark).good();
    assert!(guest.is_running("writer"), "{}", guest.wait("writer", LIMIT));
    assert_eq!(reserve_out(&mut other, PREEMPT, REGISTRANTS_ONLY, 0xb2, 0xa1), 0);

    let said = guest.wait("writer", LIMIT);
    assert_eq!(said.status.code(), Some(3), "the writer goes on: {said}");
    let before = other.read_blocks(0, 0, 2048);
    let direct =
        format!("dd if=/dev/zero of={device} bs=4096 count=1 seek=16128 oflag=direct conv=notrunc");
    let refused = guest.run(&direct);
    assert!(!refused.status.success(), "a write after it was fenced off: {refused}");
    wait_for("the file system to notice", LIMIT, || {
        !guest.run("touch /mnt/more && sync").status.success()
    });
    let log = guest.run("dmesg | grep -E 'reservation conflict|Remounting'").stdout;
    for part in ["reservation conflict", "Remounting filesystem read-only"] {
        assert!(log.contains(part), "the kernel has not said `{part}`: {log}");
    }
    assert_eq!(other.read_blocks(0, at, 8), mark, "the fenced machine has overwritten it");
    assert!(other.read_blocks(0, 0, 2048) == before, "the fenced machine has written");
    let keys = guest.run(&format!("sg_turs -n 3 {device}; sg_persist -i -k {device}")).ok().stdout;
    assert!(keys.contains("0xb2") && !keys.contains("0xa1"), "{keys}");
    other.close(0);
}

/// The size of a mounted volume grows. A unit attention tells the kernel, which takes the new size
/// on request. With the rule of udev in docs/operations/tasks/resize.md it does so by itself.
#[test]
fn linux_sees_a_volume_grow() {
    let site = Site::with_volume("disk", 32);
    let port = free_port();
    let mut host = host_with_portals(&site, "host", &[port], &[port], "");
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 60 }.apply(&mut guest);
    let device = login(&mut guest, port, "disk");
    guest
        .run(&format!(
            "mke2fs -q -t ext4 {device} && mount -o errors=remount-ro {device} /mnt &&
            dd if=/dev/urandom of=/mnt/old bs=1M count=4 && cd /mnt && sha256sum old >/run/sums"
        ))
        .ok();
    let size = |guest: &mut Guest| -> u64 {
        let said = guest.run(&format!("blockdev --getsize64 {device}")).ok().stdout;
        said.trim().parse().unwrap()
    };
    let grow = |mib: u64| {
        site.volume(["resize", "disk", &format!("{mib}MiB")]).ok();
        wait_for("the host knows the new size", LIMIT, || {
            host.volume_status("disk")["size_bytes"] == mib << 20
        });
    };
    // The unit attention comes with the next command.
    let touch = "echo more >>/mnt/log; sync; udevadm settle";
    grow(48);
    guest.run(touch).ok();
    let told = guest.run("dmesg | grep -i 'capacity data has changed'");
    assert!(told.status.success(), "the kernel was not told\n{}", guest.console());
    assert_eq!(
        size(&mut guest),
        32 << 20,
        "taken without being asked: say so in the documentation"
    );
    guest.run("iscsiadm -m session -R").ok();
    assert_eq!(size(&mut guest), 48 << 20);
    guest.run(&format!("resize2fs {device}")).ok();

    let page = repository().join("docs/operations/tasks/resize.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rule = page.lines().map(str::trim).find(|line| line.contains("CAPACITY_DATA_HAS_CHANGED"));
    let rule = rule.expect("the page has the rule");
    guest
        .run(&format!(
            "mkdir -p /etc/udev/rules.d && cat >/etc/udev/rules.d/60-resize.rules <<'END'\n{rule}\nEND
            udevadm control --reload"
        ))
        .ok();
    grow(72);
    guest.run(touch).ok();
    wait_for("the kernel to take the new size", LIMIT, || size(&mut guest) == 72 << 20);
    // More than there was room for in the beginning.
    guest
        .run(&format!(
            "resize2fs {device} && dd if=/dev/urandom of=/mnt/new bs=1M count=40 && sync &&
            cd /mnt && sha256sum new >>/run/sums && cd / && umount /mnt && e2fsck -f -n {device} &&
            mount {device} /mnt && cd /mnt && sha256sum -c /run/sums && cd / && umount /mnt"
        ))
        .ok();
    no_errors(&mut guest);
}

/// A machine whose root file system is a volume: QEMU's initiator reads and writes it, the kernel's
/// does not. The test kills the host and starts it under it.
#[test]
fn linux_boots_from_a_volume() {
    const MIB: u64 = 256;
    let site = Site::with_volume("root", MIB).over(Protocol::Iscsi);
    let (tree, image, back) = (site.path("tree"), site.path("image"), site.path("back"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    unpack_root(&tree);
    std::fs::write(tree.join("etc/marker"), "on the volume\n").unwrap();
    run("mke2fs", ["-q", "-t", "ext4", "-d", &text(&tree), &text(&image), &format!("{MIB}M")]).ok();
    site.volume(["import", "root", &text(&image)]).ok();
    let mut host = site.host("host");
    host.start();
    host.client("root").disconnect();
    let mut guest = Guest::boot_from(&site.path(""), &host.uri("root"));
    let seen =
        guest.run("grep ' / ' /proc/mounts && cat /etc/marker && rm /etc/marker").ok().stdout;
    assert!(seen.contains("/dev/vda / ext4 rw") && seen.contains("on the volume"), "{seen}");
    guest.run("dd if=/dev/urandom of=/var/before bs=64k count=64 && sync").ok();
    guest.start(
        "busy",
        "until test -e /run/enough; do head -c 100000 /dev/urandom >>/var/busy && sync || exit 1; \
         done",
    );
    host.kill();
    host.start();
    let sums = guest
        .run(
            "touch /run/enough; while test ! -s /run/busy.status; do sleep 0.1; done
            cat /run/busy.status; sync; echo 3 >/proc/sys/vm/drop_caches; cd /var
            test $(cat /run/busy.status) = 0 && sha256sum before busy",
        )
        .ok()
        .stdout;
    no_errors(&mut guest);
    guest.power_off();
    host.wait_drained("root", LIMIT);
    assert!(host.stop().success());

    std::fs::write(&image, site.export("root")).unwrap();
    run("e2fsck", ["-f", "-n", &text(&image)]).ok();
    std::fs::create_dir(&back).unwrap();
    for part in ["/usr", "/var", "/etc"] {
        run("debugfs", ["-R", &format!("rdump {part} {}", text(&back)), &text(&image)]).ok();
    }
    // The image's own content: busybox has put links of its own among the programs.
    for part in ["usr/lib", "usr/sbin/iscsid", "usr/bin/busybox"] {
        let (tree, back) = (text(&tree.join(part)), text(&back.join(part)));
        run("diff", ["-r", "--no-dereference", &tree, &back]).ok();
    }
    assert!(!back.join("etc/marker").exists(), "it was deleted");
    for file in ["before", "busy"] {
        let sum = run("sha256sum", [back.join("var").join(file)]).ok().stdout;
        let sum = sum.split(' ').next().unwrap();
        assert!(sums.contains(sum), "/var/{file} has another sum than {sum}:\n{sums}");
    }
}

/// Two paths to one volume: the test cuts each once while the other goes on.
#[test]
fn linux_fails_over() {
    let site = Site::with_volume("disk", 64);
    let ports = [free_port(), free_port()];
    let lines = ports.map(|port| Line::start(&format!("127.0.0.1:{port}")));
    let ends = [lines[0].port(), lines[1].port()];
    let mut host = host_with_portals(&site, "host", &ports, &ends, "");
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 2 }.apply(&mut guest);
    for end in ends {
        login(&mut guest, end, "disk");
    }
    let config = "defaults {\n polling_interval 1\n max_polling_interval 1\n find_multipaths no\n \
         no_path_retry queue\n path_grouping_policy multibus\n}";
    guest.run(&format!("echo '{config}' >/etc/multipath.conf && multipathd")).ok();
    let active = |guest: &mut Guest| {
        let said = guest.run("multipath -ll").stdout;
        said.matches("active ready").count()
    };
    wait_for("both paths", LIMIT, || active(&mut guest) == 2);
    guest.run("udevadm settle").ok();
    let device = guest.run("ls /dev/mapper/* | grep -v control").ok().stdout.trim().to_owned();
    start_load(&mut guest, &device, "--rate=2m,2m");
    for line in &lines {
        line.cut();
        wait_for("the path to fail", LIMIT, || active(&mut guest) == 1);
        guest.run("sleep 2").ok();
        assert!(guest.is_running("load"), "{}", guest.wait("load", LIMIT));
        line.restore();
        wait_for("the path to be back", LIMIT, || active(&mut guest) == 2);
    }
    end_load(&mut guest);
    assert!(lines.iter().all(|line| line.bytes() > 1 << 20), "not both paths were used");
    let said = guest.run("multipath -ll; dmesg | grep alua").ok().stdout;
    assert!(said.contains("1 alua") && said.contains("port group 01 state A"), "{said}");
    assert_eq!(guest.run("dmesg | grep 'dm-.*I/O error'").stdout, "");
}

/// A file system under load lives through restarts of the host gateway and a cut to the store.
#[test]
fn linux_does_not_notice_outages() {
    let mut site = Site::with_volume("disk", 128);
    let relay = Relay::start(&site, []);
    let port = free_port();
    let mut host = host_with_portals(&site, "host", &[port], &[port], "");
    host.flags.extend(["--store".into(), relay.address.clone()]);
    host.start();
    let mut guest = Guest::boot(&site.path(""));
    Settings { chap: false, patience: 120 }.apply(&mut guest);
    let device = login(&mut guest, port, "disk");
    guest
        .run(&format!("mke2fs -q -t ext4 {device} && mount -o errors=remount-ro {device} /mnt"))
        .ok();
    start_load(&mut guest, "/mnt/verify", "--fsync=50 --rate=1m,1m");
    guest.run("sleep 2").ok();
    for logins in [2, 3] {
        assert!(host.stop().success());
        std::thread::sleep(Duration::from_secs(1));
        host.start();
        // A host that stops cuts off who is still logging in, without asking.
        wait_for("the initiator to be back", LIMIT, || {
            host.server().log().matches("iSCSI initiator logged in").count() == logins
        });
        guest.run("sleep 2").ok();
    }
    let log = host.server().log();
    assert!(!log.contains("closed: the target is shutting down"), "it was asked to leave:\n{log}");
    relay.cut();
    guest.run("sleep 4").ok();
    assert!(host.lag_bytes("disk") > 0, "nothing is written while the line is cut");
    relay.restore();
    site.store.kill();
    site.store.restart();
    guest.run("sleep 4").ok();
    end_load(&mut guest);
    let before = guest.run("cd /mnt && sha256sum verify").ok().stdout;
    guest.run(&format!("umount /mnt && e2fsck -f -n {device}")).ok();
    guest.run(&format!("mount {device} /mnt")).ok();
    let after = guest.run("cd /mnt && sha256sum verify && cd / && umount /mnt").ok().stdout;
    assert_eq!(before, after);
    no_errors(&mut guest);
}
