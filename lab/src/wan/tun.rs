//! A TUN device whose other end is this process, with super-packets. The kernel hands over, and
//! takes, many segments of one TCP or UDP flow at once. A `virtio_net_hdr` says how to cut them
//! (Linux, `Documentation/networking/tuntap.rst`, `include/uapi/linux/virtio_net.h`).

use super::namespace::Namespace;
use anyhow::{Context as _, Result, bail};
use rustix::fs::{Mode, OFlags};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::Stdio;

/// The device's name inside its namespace.
pub const NAME: &str = "wan0";
/// Largest IP packet on the wire, in bytes.
pub const MTU: usize = 1500;
/// Packets and super-packets that wait until this process reads them; more are dropped by the
/// kernel.
const BACKLOG: usize = 10_000;

/// Makes the device of a side, with its address and a route to the other side; gives this process's
/// end, which does not block.
pub fn open(namespace: &Namespace, own: Ipv4Addr, peer: Ipv4Addr) -> Result<OwnedFd> {
    let fd = namespace.run(create)?;
    let mut ip = namespace
        .command(Path::new("ip"))
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start `ip`: is iproute2 installed?")?;
    let lines = format!(
        "link set lo up\n\
         link set {NAME} mtu {MTU} txqueuelen {BACKLOG}\n\
         addr add {own} peer {peer} dev {NAME}\n\
         link set {NAME} up\n"
    );
    ip.stdin.take().context("no pipe to `ip`")?.write_all(lines.as_bytes())?;
    let out = ip.wait_with_output()?;
    if !out.status.success() {
        bail!("`ip` could not set up {NAME}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(fd)
}

fn create() -> Result<OwnedFd> {
    // The line carries IPv4; neighbor discovery would only disturb the counts.
    setting("ipv6/conf/all/disable_ipv6", "1")?;
    setting("ipv6/conf/default/disable_ipv6", "1")?;
    // A connection does not start with what an earlier run taught about the path.
    setting("ipv4/tcp_no_metrics_save", "1")?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .context("cannot open /dev/net/tun: is the kernel's TUN driver there?")?;
    attach(&fd).context("cannot make a TUN device")?;
    Ok(fd)
}

fn setting(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    match std::fs::write(&path, value) {
        // A kernel without IPv6.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("cannot write {path}")),
    }
}

#[allow(unsafe_code)]
fn attach(fd: &OwnedFd) -> std::io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(NAME.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call is over.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw const request) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
    // The kernel takes both or neither; since Linux 6.2.
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    for offloads in [tcp | libc::TUN_F_TSO6 | udp, tcp] {
        // SAFETY: the argument is a number.
        let done = unsafe {
            libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads))
        };
        if done == 0 {
            return Ok(());
        }
    }
    Err(std::io::Error::last_os_error())
}

/// Packets that the device itself has dropped so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drops {
    /// Packets this process did not read in time.
    pub unread: u64,
    /// Packets the kernel did not take from this process.
    pub refused: u64,
}

/// Reads the device's counters: proc(5), `/proc/net/dev`.
pub fn drops(namespace: &Namespace) -> Result<Drops> {
    namespace.run(|| {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("wan0:"));
        let numbers: Vec<u64> = line
            .with_context(|| format!("{NAME} is gone"))?
            .split_whitespace()
            .map(|number| number.parse().unwrap_or(0))
            .collect();
        // Receive: bytes packets errs drop fifo frame compressed multicast; transmit: the same
        // order.
        let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
        Ok(Drops { unread: at(10) + at(11), refused: at(2) + at(3) })
    })
}
