//! A volume as a block device. nbdfuse, or QEMU for iSCSI, shows it as a file, and a loop device
//! makes it a disk. The tests mount a file system on it. Its drop takes all of it down, in the
//! order that loses nothing.

use crate::process::{LIMIT, Server, command, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A volume as `/dev/loopN`.
pub struct Device {
    /// The program that shows it as a file.
    fuse: Server,
    mountpoint: PathBuf,
    device: Option<String>,
}

impl Device {
    /// Connects `uri`; `dir` is an empty directory to work in.
    #[track_caller]
    #[must_use]
    pub fn connect(uri: &str, dir: &Path) -> Device {
        let directory = dir.join("fuse");
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("disk");
        let (name, command, mountpoint) = if uri.starts_with("iscsi:") {
            // QEMU mounts over a file.
            std::fs::write(&file, "").unwrap();
            ("qemu-storage-daemon", storage_daemon(uri, &file), file.clone())
        } else {
            let mut nbdfuse = command("nbdfuse");
            nbdfuse.arg(&file).arg(uri);
            ("nbdfuse", nbdfuse, directory)
        };
        let fuse = Server::start(name, command, &dir.join(format!("{name}.log")));
        let mut this = Device { fuse, mountpoint, device: None };
        this.fuse.wait_until("the volume as a file", Duration::from_secs(30), || {
            file.metadata().is_ok_and(|file| file.len() > 0)
        });
        let losetup = run("losetup", ["--find".as_ref(), "--show".as_ref(), file.as_os_str()]).ok();
        this.device = Some(losetup.stdout.trim().to_owned());
        this
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &str {
        self.device.as_deref().expect("connected")
    }

    /// Mounts the file system on it.
    #[track_caller]
    #[must_use]
    pub fn mount(&self, at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        let at_text = at.to_str().expect("temporary paths are text");
        run("mount", ["-o", options, self.path(), at_text]).ok();
        Mount { at: Some(at.to_owned()) }
    }

    /// Makes everything that waits for the volume fail: its host is lost for good. Call it before
    /// the unmount of a file system on it.
    pub fn lose(&mut self) {
        self.fuse.kill();
    }

    /// Takes it down; panics if something still needs a write or is in use.
    #[track_caller]
    pub fn disconnect(mut self) {
        run("losetup", ["--detach", self.path()]).ok();
        self.device = None;
        // Detaching is lazy while the kernel still holds the device for a moment.
        crate::wait_for("the file to be let go", LIMIT, || {
            run("fusermount3", ["-u".as_ref(), self.mountpoint.as_os_str()]).status.success()
        });
        // nbdfuse ends by itself; QEMU has unmounted the file over which it was mounted.
        if self.mountpoint.is_file() {
            self.fuse.signal(rustix::process::Signal::TERM);
        }
        let status = self.fuse.wait(LIMIT);
        assert!(status.success(), "{status}\n{}", self.fuse.log());
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            let _ = command("losetup").args(["--detach", &device]).status();
        }
        // After a loss of the server the mount stays although who made it has ended.
        let mut unmount = command("fusermount3");
        unmount.arg("-uz").arg(&self.mountpoint);
        let _ = unmount.stderr(std::process::Stdio::null()).status();
    }
}

/// A unit as an option of QEMU's, with QEMU's own initiator.
pub(crate) fn blockdev(uri: &str) -> String {
    let parts: Vec<&str> = uri.trim_start_matches("iscsi://").split('/').collect();
    let [portal, target, lun] = parts[..] else { panic!("no iSCSI URL: {uri}") };
    format!(
        "driver=iscsi,transport=tcp,portal={portal},target={target},lun={lun},\
         initiator-name=iqn.2026-11.test.longhaul:qemu,discard=unmap"
    )
}

/// QEMU's iSCSI driver, with the volume as a file.
fn storage_daemon(uri: &str, file: &Path) -> Command {
    let mut daemon = command("qemu-storage-daemon");
    daemon.arg("--blockdev").arg(format!("{},node-name=disk", blockdev(uri)));
    let file = file.to_str().expect("temporary paths are text");
    daemon.arg("--export").arg(format!(
        "type=fuse,id=file,node-name=disk,mountpoint={file},writable=on,growable=off"
    ));
    daemon
}

/// A mounted file system.
pub struct Mount {
    at: Option<PathBuf>,
}

impl Mount {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.at.as_deref().expect("mounted")
    }

    /// Unmounts it, everything written.
    #[track_caller]
    pub fn unmount(mut self) {
        let at = self.at.take().expect("mounted");
        run("umount", [at]).ok();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            let _ = command("umount").arg("-l").arg(at).status();
        }
    }
}

/// A small file system of its own, for a directory that can run full.
#[track_caller]
#[must_use]
pub fn small_disk(at: &Path, mib: u64) -> Mount {
    std::fs::create_dir_all(at).unwrap();
    let size = format!("size={mib}m,mode=700");
    let at_text = at.to_str().expect("temporary paths are text");
    run("mount", ["-t", "tmpfs", "-o", &size, "longhaul-e2e", at_text]).ok();
    Mount { at: Some(at.to_owned()) }
}
