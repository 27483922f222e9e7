//! Real file systems on a volume, and images that go in and out.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::device::Device;
use longhaul_e2e::process::{LIMIT, Output, run};
use longhaul_e2e::site::Site;
use longhaul_e2e::{can_use_devices, wait_for};
use std::path::Path;

/// A directory tree that is on every machine that can build this: the headers of the kernel, some
/// 800 files of 5 MB.
const TREE: &str = "/usr/include/linux";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn same_tree(at: &Path) {
    run("diff", ["-r", "--no-dereference", TREE, text(&at.join("linux"))]).ok();
}

/// Makes a file system, unpacks a tree, checks, and compares it where another host attaches.
fn survives_moving(protocol: Protocol, make: &[&str], check: impl Fn(&str) -> Output) {
    let site = Site::with_volume("disk", 512).over(protocol);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path(""));
    run(make[0], make[1..].iter().copied().chain([device.path()])).ok();
    let mount = device.mount(&site.path("mounted"), "discard");
    let archive = site.path("tree.tar");
    run("tar", ["-C", "/usr/include", "-cf", text(&archive), "linux"]).ok();
    run("tar", ["-C", text(mount.path()), "-xf", text(&archive)]).ok();
    run("sync", ["--file-system", text(mount.path())]).ok();
    // Data that clients overwrite and delete, so that the second host sees more than a first write.
    run("cp", ["--archive", TREE, text(&mount.path().join("again"))]).ok();
    run("rm", ["-r", text(&mount.path().join("again"))]).ok();
    same_tree(mount.path());
    mount.unmount();
    check(device.path()).ok();
    device.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());

    let mut other = site.host("other");
    other.start();
    other.client("disk").disconnect();
    let dir = site.path("elsewhere");
    let device = Device::connect(&other.uri("disk"), &dir);
    check(device.path()).ok();
    let mount = device.mount(&dir.join("mounted"), "ro");
    same_tree(mount.path());
    mount.unmount();
    device.disconnect();
}

fn ext4_moves(protocol: Protocol) {
    survives_moving(protocol, &["mkfs.ext4", "-q"], |device| run("e2fsck", ["-f", "-n", device]));
}

#[test]
fn ext4_survives_moving() {
    if can_use_devices("ext4_survives_moving") {
        ext4_moves(Protocol::Nbd);
    }
}

#[test]
fn ext4_survives_moving_over_iscsi() {
    if can_use_devices("ext4_survives_moving_over_iscsi") {
        ext4_moves(Protocol::Iscsi);
    }
}

fn xfs_moves(protocol: Protocol) {
    survives_moving(protocol, &["mkfs.xfs", "-q"], |device| run("xfs_repair", ["-n", device]));
}

#[test]
fn xfs_survives_moving() {
    if can_use_devices("xfs_survives_moving") {
        xfs_moves(Protocol::Nbd);
    }
}

#[test]
fn xfs_survives_moving_over_iscsi() {
    if can_use_devices("xfs_survives_moving_over_iscsi") {
        xfs_moves(Protocol::Iscsi);
    }
}

/// A file system whose host, and store if wished, dies under writes. All synced data is there. The
/// file system's own check finds nothing to repair after the replay of its log.
fn host_is_killed(protocol: Protocol, flags: &[&str], store_too: bool) {
    let mut site = Site::with_volume("disk", 256).over(protocol);
    let mut host = site.host("host").with(flags.iter().copied());
    host.start();
    host.client("disk").disconnect();
    let mut device = Device::connect(&host.uri("disk"), &site.path(""));
    run("mkfs.ext4", ["-q", device.path()]).ok();
    // Without readers that would wait for a device that is gone.
    let mount = device.mount(&site.path("mounted"), "errors=remount-ro");
    let tree = site.path("mounted/linux");
    run("cp", ["--archive", TREE, text(mount.path())]).ok();
    run("sync", ["--file-system", text(mount.path())]).ok();
    let busy = std::thread::spawn(move || {
        for n in 0..10_000 {
            if std::fs::write(tree.with_file_name(format!("late-{n}")), vec![1; 10_000]).is_err() {
                break;
            }
        }
    });
    wait_for("the writer to be at work", LIMIT, || site.path("mounted/late-50").exists());
    host.kill();
    if store_too {
        site.store.kill();
    }
    device.lose();
    drop(mount);
    drop(device);
    busy.join().unwrap();
    if store_too {
        site.store.restart();
    }

    let mut host = site.host("host").with(flags.iter().copied());
    host.start();
    host.client("disk").disconnect();
    let dir = site.path("again");
    let device = Device::connect(&host.uri("disk"), &dir);
    let mount = device.mount(&dir.join("mounted"), "defaults");
    same_tree(mount.path());
    mount.unmount();
    run("e2fsck", ["-f", "-n", device.path()]).ok();
    device.disconnect();
}

#[test]
fn ext4_survives_a_killed_host() {
    if can_use_devices("ext4_survives_a_killed_host") {
        host_is_killed(Protocol::Nbd, &[], false);
    }
}

#[test]
fn ext4_survives_a_killed_host_over_iscsi() {
    if can_use_devices("ext4_survives_a_killed_host_over_iscsi") {
        host_is_killed(Protocol::Iscsi, &[], false);
    }
}

#[test]
fn ext4_survives_a_killed_host_and_store_over_tcp() {
    if can_use_devices("ext4_survives_a_killed_host_and_store_over_tcp") {
        host_is_killed(Protocol::Nbd, &["--transport", "tcp"], true);
    }
}

/// QEMU's initiator goes on by itself where it was when the host is there again.
#[test]
fn ext4_does_not_notice_restarts_of_the_host() {
    if !can_use_devices("ext4_does_not_notice_restarts_of_the_host") {
        return;
    }
    let site = Site::with_volume("disk", 256).over(Protocol::Iscsi);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path(""));
    run("mkfs.ext4", ["-q", device.path()]).ok();
    let mount = device.mount(&site.path("mounted"), "errors=remount-ro");
    let at = mount.path().to_owned();
    let busy = std::thread::spawn(move || {
        for n in 0..6 {
            let copy = at.join(format!("copy-{n}"));
            run("cp", ["--archive", TREE, text(&copy)]).ok();
            run("sync", ["--file-system", text(&copy)]).ok();
            run("diff", ["-r", "--no-dereference", TREE, text(&copy)]).ok();
        }
    });
    for n in 0..3 {
        wait_for("the writer to be at work", LIMIT, || {
            site.path(&format!("mounted/copy-{n}")).exists()
        });
        assert!(host.stop().success());
        host.start();
    }
    busy.join().unwrap();
    mount.unmount();
    run("e2fsck", ["-f", "-n", device.path()]).ok();
    device.disconnect();
}

/// A raw and a qcow2 image with a file system go in, the test mounts the file system, and they come
/// out.
#[test]
fn images_go_in_and_out() {
    let site = Site::with_volume("disk", 96);
    site.create("second", 96);
    let (image, qcow2, out) = (site.path("image"), site.path("image.qcow2"), site.path("out"));
    // Filled without mounting it.
    run("mkfs.ext4", ["-q", "-d", TREE, text(&image), "96M"]).ok();
    run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", text(&image), text(&qcow2)]).ok();
    site.volume(["import", "disk", text(&image)]).ok();
    site.volume(["export", "disk", text(&out)]).ok();
    run("cmp", [&image, &out]).ok();
    run("e2fsck", ["-f", "-n", text(&out)]).ok();
    let used = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&out).unwrap()) * 512;
    assert!(used < 90 << 20, "the export is not sparse: {used} bytes are used");

    let mut host = site.host("host");
    host.start();
    for name in ["disk", "second"] {
        host.client(name).disconnect();
    }
    let (disk, second) = (host.uri("disk"), host.uri("second"));
    run("qemu-img", ["convert", "-n", "-f", "qcow2", "-O", "raw", text(&qcow2), &second]).ok();
    for (name, uri) in [("disk", &disk), ("second", &second)] {
        run("qemu-img", ["compare", "-f", "raw", "-F", "raw", text(&image), uri]).ok();
        if can_use_devices("images_go_in_and_out") {
            shows_tree(uri, &site.path(&format!("{name}-mounted")));
        }
    }
    let back = site.path("back.qcow2");
    run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &second, text(&back)]).ok();
    run("qemu-img", ["check", text(&back)]).ok();
    run("qemu-img", ["compare", text(&back), text(&qcow2)]).ok();

    let busy = site.volume(["import", "disk", text(&image)]);
    busy.fails(1, &["attached"]);
    site.create("small", 8);
    site.volume(["import", "small", text(&image)]).fails(1, &["create one with --size"]);
    site.volume(["import", "disk", "/no/such/file"]).fails(1, &["/no/such/file"]);
    site.volume(["export", "no-such-volume", text(&out), "--force"]).fails(1, &["no such volume"]);
    host.wait_drained("second", LIMIT);
    assert!(host.stop().success());
    std::fs::remove_file(&out).unwrap();
    site.volume(["export", "second", text(&out)]).ok();
    run("cmp", [&image, &out]).ok();
}

/// Mounts the file system of an image and compares it with the source of the image.
fn shows_tree(uri: &str, dir: &Path) {
    let device = Device::connect(uri, dir);
    let mount = device.mount(&dir.join("at"), "ro,noload");
    run("diff", ["-r", "--no-dereference", "--exclude=lost+found", TREE, text(mount.path())]).ok();
    mount.unmount();
    device.disconnect();
}
