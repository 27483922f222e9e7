//! The server of all NBD listeners: its connections, and what they may use.

use super::access::{Access, Identity};
use super::connection::{MovedNbd, NbdConnection};
use crate::bitmaps::Bitmaps;
use crate::volume::Volume;
use futures_util::future::LocalBoxFuture;
use longhaul_base::limits::{self, Places, Strangers, Who};
use longhaul_core::front::nbd::{self, ExportEntry, ExportInfo, LookupError};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Places for NBD clients, of all front threads together. All clones are the same.
#[derive(Clone)]
pub struct NbdPlaces {
    /// For those that have not chosen an export.
    pub strangers: Strangers,
    /// For those that have.
    pub places: Places<Who>,
}

impl Default for NbdPlaces {
    fn default() -> NbdPlaces {
        NbdPlaces {
            strangers: Strangers::new(limits::MAX_NBD_STRANGERS, limits::MAX_NBD_STRANGERS_OF_ONE),
            places: Places::new(limits::MAX_NBD_CLIENTS, limits::MAX_NBD_CLIENTS_OF_ONE),
        }
    }
}

/// Another front thread, which has an export.
pub trait NbdHome {
    /// Goes on with a connection there.
    fn take_nbd(self: Box<Self>, moved: MovedNbd) -> LocalBoxFuture<'static, io::Result<()>>;
}

/// The name of an export, and the thread that has it, unless that is this one.
pub type FoundExport = (String, Option<Box<dyn NbdHome>>);

/// The volumes behind the protocol.
pub trait Exports {
    /// The name of an export, where an empty one is the default export, and the front thread that
    /// has it, unless that is this one.
    fn elsewhere(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<FoundExport, LookupError>> {
        Box::pin(async { Ok((name, None)) })
    }

    /// Opens one; an empty name is the default export. Takes a bounded time.
    fn open(
        self: Rc<Self>,
        name: String,
        entering: bool,
    ) -> LocalBoxFuture<'static, Result<(ExportInfo, Rc<Volume>), LookupError>>;

    /// The earlier snapshots to compare an export with, if it is a snapshot. Takes a bounded time.
    fn bitmaps(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Option<Bitmaps>>;

    /// Lists them. Takes a bounded time.
    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Vec<ExportEntry>, LookupError>>;
}

/// The server of the NBD clients of a front thread.
pub struct NbdServer {
    pub(super) exports: Rc<dyn Exports>,
    pub(super) tls: RefCell<Option<Arc<rustls::ServerConfig>>>,
    access: RefCell<Access>,
    /// The user that the host runs as.
    owner: u32,
    pub(super) connections: RefCell<BTreeMap<u64, Rc<NbdConnection>>>,
    pub(super) next_id: Cell<u64>,
    refused: Cell<u64>,
    pub(super) stopping: Cell<bool>,
    pub(super) places: NbdPlaces,
}

impl NbdServer {
    /// A server without listeners. With a TLS configuration every client must use it.
    pub fn new(
        exports: Rc<dyn Exports>,
        tls: Option<Arc<rustls::ServerConfig>>,
        places: NbdPlaces,
    ) -> Rc<NbdServer> {
        Rc::new(NbdServer {
            exports,
            tls: RefCell::new(tls),
            access: RefCell::default(),
            owner: rustix::process::geteuid().as_raw(),
            connections: RefCell::default(),
            next_id: Cell::new(0),
            refused: Cell::new(0),
            stopping: Cell::new(false),
            places,
        })
    }

    /// Clients connected.
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Whether clients have to use TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.borrow().is_some()
    }

    /// Clients that connect from now on see this certificate, and have to show one that it accepts.
    pub fn set_tls(&self, tls: Arc<rustls::ServerConfig>) {
        self.tls.replace(Some(tls));
    }

    /// Other rights from now on; connections that lost theirs end.
    pub fn set_access(&self, access: Access) {
        self.access.replace(access);
        let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.end_unless(|volume, client| self.may_use(volume, client));
        }
    }

    pub(super) fn may_use(&self, volume: &str, client: &Identity) -> bool {
        self.access.borrow().may_use(volume, client, self.owner)
    }

    /// Clients turned away because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Counts a client that found no place.
    pub(super) fn turn_away(&self, peer: &str) {
        if self.refused.get().is_multiple_of(1000) {
            tracing::warn!(
                peer,
                "refused an NBD client: {} are connected; close some of them",
                self.places.places.taken()
            );
        }
        self.refused.set(self.refused.get() + 1);
    }

    /// Clients of a volume.
    pub fn connections_of(&self, name: &str) -> usize {
        let connections = self.connections.borrow();
        connections.values().filter(|connection| connection.serves(name)).count()
    }

    /// A volume has got a new size. NBD has no message for a connected client: it keeps its first
    /// size.
    pub fn resized(&self, volume: &Volume) {
        let connected = self.connections_of(volume.name());
        if connected > 0 {
            tracing::info!(
                volume = volume.name(),
                "{connected} connected NBD clients see its new size when they connect again"
            );
        }
    }

    /// Takes no more requests. Answers those in flight, then ends each connection.
    pub fn stop(&self) {
        self.stopping.set(true);
        let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.stop();
        }
    }

    pub(super) fn session_config(&self) -> nbd::Config {
        let tls = if self.has_tls() { nbd::Tls::Required } else { nbd::Tls::Off };
        nbd::Config { tls, limits: nbd::Limits::default() }
    }
}

/// An attached volume as an export of NBD.
pub fn export_info(volume: &Volume) -> ExportInfo {
    let attached = volume.attached();
    ExportInfo {
        name: volume.name().into(),
        description: String::new(),
        sectors: volume.sectors(),
        min_block: attached.block_bytes,
        // A block that a client writes whole keeps one checksum, and a read of it needs no
        // neighbor.
        preferred_block: 4096,
        max_payload: 32 << 20,
        read_only: volume.is_read_only(),
        bitmaps: Vec::new(),
    }
}
