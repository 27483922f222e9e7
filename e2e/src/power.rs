//! A disk with a power switch. A cut loses all that its file system and the disk itself had in
//! memory, as when a machine loses its power. `kill -9` alone leaves both.
//!
//! nbdkit keeps writes in a cache until a flush, and a kill makes it forget them: that is the disk.
//! A loop device over nbdfuse carries a file system or raw data, whose pages have nowhere to go
//! then.

use crate::device::{Device, Mount};
use crate::process::{Server, command, run};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The disk of a machine.
pub struct Disk {
    dir: PathBuf,
    /// Without a file system.
    raw: bool,
    starts: u32,
    up: Option<Up>,
}

struct Up {
    mount: Option<Mount>,
    device: Device,
    nbdkit: Server,
}

impl Disk {
    /// A new one of `mib` MiB with an ext4 file system, without power; `dir` is a directory to work
    /// in.
    #[track_caller]
    #[must_use]
    pub fn new(dir: &Path, mib: u64) -> Disk {
        let disk = Disk { raw: false, ..Disk::raw(dir, mib) };
        run("mkfs.ext4", ["-q".as_ref(), disk.image().as_os_str()]).ok();
        disk
    }

    /// A new one that is blank.
    #[must_use]
    pub fn raw(dir: &Path, mib: u64) -> Disk {
        std::fs::create_dir_all(dir).unwrap();
        let disk = Disk { dir: dir.to_owned(), raw: true, starts: 0, up: None };
        std::fs::File::create(disk.image()).unwrap().set_len(mib << 20).unwrap();
        disk
    }

    fn image(&self) -> PathBuf {
        self.dir.join("image")
    }

    /// The mount point of its file system while it has power.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join("mounted")
    }

    /// A link to its block device while it has power.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        self.dir.join("device")
    }

    /// Gives it power, and mounts its file system.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.up.is_none(), "it has power");
        self.starts += 1;
        // A killed process may leave its socket and its mount.
        let dir = self.dir.join(format!("start-{}", self.starts));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("nbdkit");
        let mut nbdkit = command("nbdkit");
        nbdkit.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        nbdkit.args(["--filter=cache", "file"]).arg(self.image()).arg("cache=writeback");
        let mut nbdkit = Server::start("nbdkit", nbdkit, &dir.join("nbdkit.log"));
        nbdkit.wait_until("nbdkit listens", Duration::from_secs(30), || {
            UnixStream::connect(&socket).is_ok()
        });
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let device = Device::connect(&uri, &dir);
        let link = self.device();
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(device.path(), &link).unwrap();
        let mount = (!self.raw).then(|| device.mount(&self.path(), "errors=remount-ro"));
        self.up = Some(Up { mount, device, nbdkit });
    }

    /// Cuts its power. Users of its file system have to be gone, or hear of errors.
    #[track_caller]
    pub fn cut(&mut self) {
        let Up { mount, mut device, mut nbdkit } = self.up.take().expect("it has power");
        nbdkit.kill();
        device.lose();
        drop(mount);
        drop(device);
    }
}
