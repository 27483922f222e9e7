//! The options of a store.

use super::scrub;
use anyhow::{Result, bail};
use longhaul_base::units::show_bytes;
use longhaul_core::store::gc::usage::Policy;
use longhaul_objects::Location;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// Least memory for the maps: some pages, and the table of a volume or two.
const MAP_MEMORY_LEAST: u64 = 1 << 20;

/// How to run a store.
#[derive(Debug)]
pub struct Options<'a> {
    /// The location of the volumes.
    pub data: &'a Location,
    /// The directory of credentials and lock; may be the same.
    pub state: &'a Path,
    /// UDP address for hosts.
    pub listen: SocketAddr,
    /// Address to write into credentials, if not the one of `listen`.
    pub advertise: Option<&'a str>,
    /// Bytes of the cache in front of the objects, 0 for none.
    pub cache_bytes: u64,
    /// Its directory, if not `cache` in the state directory.
    pub cache_dir: Option<&'a Path>,
    /// Bytes of memory for the maps of all volumes.
    pub map_memory: u64,
    /// The policy of garbage collection, if there is any.
    pub collect: Option<Policy>,
    /// How long what no root names stays for who reads by an older one.
    pub delete_delay: Duration,
    /// The stores that were there with another CA are gone for good.
    pub new_ca: bool,
    /// The settings of the scrub.
    pub scrub: scrub::Settings,
    /// For how long the data of deleted volumes stays.
    pub delete_grace: Duration,
}

impl Options<'_> {
    /// Refuses what no store can be run with.
    pub(super) fn check(&self) -> Result<()> {
        if self.map_memory < MAP_MEMORY_LEAST {
            bail!(
                "--map-memory {} is too little: give the maps at least {}",
                show_bytes(self.map_memory),
                show_bytes(MAP_MEMORY_LEAST)
            );
        }
        Ok(())
    }
}

/// The address at which others most likely reach `listen`.
pub fn reachable(listen: SocketAddr) -> String {
    if !listen.ip().is_unspecified() {
        return listen.to_string();
    }
    // Connecting a UDP socket sends nothing; the system picks the address it would send from. The
    // target is of RFC 5737.
    let outward = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect(("192.0.2.1", 9))?;
        Ok(socket.local_addr()?.ip())
    };
    let ip = outward().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    SocketAddr::new(ip, listen.port()).to_string()
}
