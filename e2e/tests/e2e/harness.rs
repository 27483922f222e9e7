//! The harness itself, against a server that is not longhaul: nbdkit.

use longhaul_e2e::can_use_devices;
use longhaul_e2e::client::Client;
use longhaul_e2e::device::Device;
use longhaul_e2e::process::{Server, command, run};
use longhaul_e2e::site::temp_dir;
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use std::time::Duration;

fn nbdkit(dir: &std::path::Path, plugin: &[&str]) -> (Server, String) {
    let socket = dir.join("nbdkit");
    let mut nbdkit = command("nbdkit");
    nbdkit.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(plugin);
    let mut server = Server::start("nbdkit", nbdkit, &dir.join("nbdkit.log"));
    server.wait_until("nbdkit listens", Duration::from_secs(30), || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    (server, format!("unix:{}", socket.display()))
}

#[test]
fn a_disk_that_keeps_everything_passes() {
    let dir = temp_dir();
    let (_server, address) = nbdkit(dir.path(), &["memory", "8M"]);
    let mut client = Client::nbd(&address, "").unwrap();
    let mut history = History::new(2048);
    let mut workload = Workload::new(&mut history, &mut client, 1, Shape::default());
    workload.run(|history| history.len() >= 2000).unwrap();
    client.flush().unwrap();
    let image = read_all(&mut client, history.bytes()).unwrap();
    assert_eq!(history.prefix_of(&image, history.len()), Ok(history.len()));
    assert!(history.flushed() > 0);
    client.disconnect();
}

#[test]
fn a_disk_that_forgets_is_caught() {
    let dir = temp_dir();
    // A copy-on-write layer per connection: what one client flushed the next does not see.
    let (_server, address) =
        nbdkit(dir.path(), &["tmpdisk", "8M", "command=truncate -s 8M \"$disk\""]);
    let mut history = History::new(2048);
    let mut client = Client::nbd(&address, "").unwrap();
    let mut workload = Workload::new(&mut history, &mut client, 1, Shape::default());
    workload.run(|history| history.flushed() >= 200).unwrap();
    let mut client = Client::nbd(&address, "").unwrap();
    let image = read_all(&mut client, history.bytes()).unwrap();
    assert!(history.prefix_of(&image, history.flushed()).unwrap_err().contains("must be there"));
}

#[test]
fn a_device_goes_up_and_down() {
    if !can_use_devices("a_device_goes_up_and_down") {
        return;
    }
    let dir = temp_dir();
    let (_server, address) = nbdkit(dir.path(), &["memory", "64M"]);
    let uri = format!("nbd+unix:///?socket={}", address.strip_prefix("unix:").unwrap());
    let device = Device::connect(&uri, dir.path());
    run("mkfs.ext4", ["-q", device.path()]).ok();
    let mount = device.mount(&dir.path().join("mounted"), "defaults");
    std::fs::write(mount.path().join("file"), "content").unwrap();
    mount.unmount();
    device.disconnect();
    let device = Device::connect(&uri, dir.path());
    run("e2fsck", ["-f", "-n", device.path()]).ok();
    let mount = device.mount(&dir.path().join("mounted"), "ro");
    assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), b"content");
}
