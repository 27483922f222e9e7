//! The peers: plain NBD, plain iSCSI and a caching NBD proxy over the same WAN, and a local disk.

use super::Bench;
use crate::node::free_port;
use crate::process::{Server, finish};
use crate::scenario::{Definition, Subject};
use crate::wan::Side;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The target that tgt serves.
const TARGET: &str = "iqn.2026-11.com.example:lab";

/// tgt's number of its control socket, which is in a directory of its own.
const CONTROL: &str = "1";

/// A peer's servers, and where the client finds the disk.
pub struct Peer {
    /// In the order in which they have to end.
    servers: Vec<Server>,
    /// An NBD address on the host's side.
    pub uri: String,
    /// The disk itself, where it is on this side.
    pub file: Option<PathBuf>,
}

impl Peer {
    /// Starts a peer with a disk of the scenario's size and content.
    ///
    /// # Errors
    /// If a server is not installed or does not get ready.
    pub fn start(bench: &mut Bench<'_>, definition: &Definition, subject: Subject) -> Result<Peer> {
        let disk = bench.disk(definition)?;
        let mut servers = Vec::new();
        let local = bench.path("peer.sock");
        let _ = std::fs::remove_file(&local);
        let at_socket = format!("nbd+unix:///?socket={}", local.display());
        let uri = match subject {
            Subject::Nbd | Subject::NbdCached => {
                let (server, far) = plain_nbd(bench, &disk)?;
                servers.push(server);
                if subject == Subject::Nbd {
                    far
                } else {
                    let mut command = bench.wan.command(Side::Host, Path::new("nbdkit"));
                    command.args(["-f", "-U"]).arg(&local);
                    command.args(["--filter=readahead", "--filter=cache", "nbd"]);
                    command.arg(format!("uri={far}")).env("TMPDIR", bench.dir);
                    servers.insert(0, ready(command, &local, bench)?);
                    at_socket
                }
            }
            Subject::Iscsi => {
                let (server, far) = plain_iscsi(bench, &disk)?;
                servers.push(server);
                let mut command = bench.wan.command(Side::Host, Path::new("qemu-nbd"));
                command
                    .args(["-t", "-e", "8", "-f", "raw", "--cache=none", "-k"])
                    .arg(&local)
                    .arg(far);
                servers.insert(0, ready(command, &local, bench)?);
                at_socket
            }
            Subject::Local => {
                let mut command = Command::new("nbdkit");
                command.args(["-f", "-U"]).arg(&local).arg("file").arg(&disk);
                servers.push(ready(command, &local, bench)?);
                at_socket
            }
            Subject::LocalDirect => String::new(),
            _ => bail!("{} is no block device", subject.name()),
        };
        let file = (subject == Subject::LocalDirect).then_some(disk);
        Ok(Peer { servers, uri, file })
    }

    /// Ends the servers. They have nothing to save, and tgtd waits for its initiators for ever.
    ///
    /// # Errors
    /// If it cannot end one.
    pub fn stop(self) -> Result<()> {
        self.servers.into_iter().try_for_each(Server::kill)
    }
}

/// Starts a server that listens on a unix socket.
fn ready(command: Command, socket: &Path, bench: &Bench<'_>) -> Result<Server> {
    let mut server =
        Server::spawn("the peer's local server", command, &bench.path("peer-local.log"))?;
    server.wait_until("socket", || std::os::unix::net::UnixStream::connect(socket).is_ok())?;
    Ok(server)
}

/// nbdkit at the storage side, over TCP.
fn plain_nbd(bench: &Bench<'_>, disk: &Path) -> Result<(Server, String)> {
    let (address, port) =
        (bench.wan.address(Side::Store).to_string(), free_port(false)?.to_string());
    let mut command = bench.wan.command(Side::Store, Path::new("nbdkit"));
    command.args(["-f", "-i", &address, "-p", &port, "file"]).arg(disk);
    let mut server = Server::spawn("nbdkit", command, &bench.path("peer-far.log"))?;
    let uri = format!("nbd://{address}:{port}");
    server.wait_until("NBD export", || {
        let mut command = bench.wan.command(Side::Store, Path::new("nbdinfo"));
        command.args(["--size", &uri]);
        finish(command).is_ok()
    })?;
    Ok((server, uri))
}

/// tgt at the storage side.
fn plain_iscsi(bench: &Bench<'_>, disk: &Path) -> Result<(Server, String)> {
    let portal = format!("{}:{}", bench.wan.address(Side::Store), free_port(false)?);
    let control = |program: &str, args: &[&str]| {
        let mut command = bench.wan.command(Side::Store, Path::new(program));
        // Its own control socket, so that it leaves another tgt alone.
        command.env("TGT_IPC_SOCKET", bench.path("tgt")).args(["-C", CONTROL]).args(args);
        command
    };
    let daemon = control("tgtd", &["-f", "--iscsi", &format!("portal={portal}")]);
    let server = Server::spawn("tgtd", daemon, &bench.path("peer-far.log"))?;
    let file = disk.display().to_string();
    let target = ["--lld", "iscsi", "--mode", "target", "--tid", "1", "--op"];
    let unit = ["--lld", "iscsi", "--mode", "logicalunit", "--tid", "1", "--op", "new"];
    let start = Instant::now();
    for (which, what) in [
        (&target[..], &["new", "--targetname", TARGET][..]),
        (&unit[..], &["--lun", "1", "--backing-store", &file][..]),
        (&target[..], &["bind", "--initiator-address", "ALL"][..]),
    ] {
        // The first has to wait for the daemon.
        while let Err(error) = finish(control("tgtadm", &[which, what].concat())) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok((server, format!("iscsi://{portal}/{TARGET}/1")))
}
