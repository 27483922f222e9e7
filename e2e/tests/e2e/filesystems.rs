//! Real file systems on a volume, and images that go in and out.

use longhaul_e2e::can_use_devices;
use longhaul_e2e::device::Device;
use longhaul_e2e::process::{LIMIT, Output, run};
use longhaul_e2e::site::Site;
use std::path::Path;

/// A directory tree that is on every machine that can build this: the headers of the C library.
const TREE: &str = "/usr/include";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn same_tree(at: &Path) {
    run("diff", ["-r", "--no-dereference", TREE, text(&at.join("include"))]).ok();
}

/// Makes a file system, unpacks a tree, checks, and compares it where another host attaches.
fn survives_moving(mib: u64, make: &[&str], check: impl Fn(&str) -> Output) {
    let site = Site::with_volume("disk", mib);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path(""));
    run(make[0], make[1..].iter().copied().chain([device.path()])).ok();
    let mount = device.mount(&site.path("mounted"), "discard");
    run("cp", ["--archive", TREE, text(mount.path())]).ok();
    run("sync", ["--file-system", text(mount.path())]).ok();
    // Something that is written over and deleted, so that the second host sees more than a first write.
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

#[test]
fn ext4_survives_moving() {
    if can_use_devices("ext4_survives_moving") {
        survives_moving(512, &["mkfs.ext4", "-q"], |device| run("e2fsck", ["-f", "-n", device]));
    }
}

#[test]
fn xfs_survives_moving() {
    if can_use_devices("xfs_survives_moving") {
        survives_moving(512, &["mkfs.xfs", "-q"], |device| run("xfs_repair", ["-n", device]));
    }
}

/// A file system whose host is killed while it is written to: what was synced is there, and the
/// file system's own check finds nothing to repair after it has replayed its log.
#[test]
fn ext4_survives_a_killed_host() {
    if !can_use_devices("ext4_survives_a_killed_host") {
        return;
    }
    let site = Site::with_volume("disk", 256);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path(""));
    run("mkfs.ext4", ["-q", device.path()]).ok();
    // Without readers that would wait for a device that is gone.
    let mount = device.mount(&site.path("mounted"), "errors=remount-ro");
    let tree = site.path("mounted/include");
    run("cp", ["--archive", TREE, text(mount.path())]).ok();
    run("sync", ["--file-system", text(mount.path())]).ok();
    let busy = std::thread::spawn(move || {
        for n in 0..10_000 {
            if std::fs::write(tree.with_file_name(format!("late-{n}")), vec![1; 10_000]).is_err() {
                break;
            }
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    host.kill();
    drop(mount);
    drop(device);
    busy.join().unwrap();

    let mut host = site.host("host");
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
fn images_go_in_and_out() {
    let site = Site::with_volume("disk", 96);
    let (image, qcow2, out) = (site.path("image"), site.path("image.qcow2"), site.path("out"));
    // Filled without mounting it, with a part that leaves room.
    run("mkfs.ext4", ["-q", "-d", "/usr/include/linux", text(&image), "96M"]).ok();
    site.volume(["import", "disk", text(&image)]).ok();
    site.volume(["export", "disk", text(&out)]).ok();
    run("cmp", [&image, &out]).ok();
    run("e2fsck", ["-f", "-n", text(&out)]).ok();
    let used = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&out).unwrap()) * 512;
    assert!(used < 90 << 20, "the export is not sparse: {used} bytes are used");

    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let uri = host.uri("disk");
    run("qemu-img", ["compare", "-f", "raw", "-F", "raw", text(&image), &uri]).ok();
    run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &uri, text(&qcow2)]).ok();
    run("qemu-img", ["check", text(&qcow2)]).ok();
    run("qemu-img", ["compare", text(&qcow2), text(&image)]).ok();

    let busy = site.volume(["import", "disk", text(&image)]);
    busy.fails(1, &["attached"]);
    site.create("small", 8);
    site.volume(["import", "small", text(&image)]).fails(1, &["small"]);
    site.volume(["import", "disk", "/no/such/file"]).fails(1, &["/no/such/file"]);
    site.volume(["export", "no-such-volume", text(&out)]).fails(1, &["volume"]);
}
