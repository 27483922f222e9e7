//! A host without disk and store: the journal is in memory and the store commits at once.
//!
//! It measures what session machine, engine and shell cost by themselves (`docs/performance.md`),
//! and stands in for both ends in tests. Data lives only as long as the journal's lap.

use super::bitmaps::Bitmaps;
use super::iscsi::{
    self, IscsiPlaces, IscsiServer, OpenedVolume, Portal, ReservationError, Volumes,
};
use super::nbd::{Address, Exports, Listener, NbdPlaces, NbdServer};
use super::volume::{Backing, Clock, Uplink, Volume};
use anyhow::Result;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_core::block::VolumeId;
use longhaul_core::front::iscsi::{Access, OpenError};
use longhaul_core::front::nbd::{ExportEntry, ExportInfo, LookupError, LookupErrorKind};
use longhaul_core::host as engine;
use longhaul_core::wire::link::{Attached, Frame, HostId, Lane, Piece, ToHost, ToStore};
use std::rc::Rc;

/// A store that has room for everything and remembers nothing.
pub struct NullStore;

impl Uplink for NullStore {
    fn send(&self, _: Lane, frame: Frame<ToStore>) -> Option<Frame<ToHost>> {
        let answer = match frame.message {
            ToStore::Batch { volume, epoch, last, .. } => {
                ToHost::Committed { volume, epoch, seq: last }
            }
            ToStore::Read { request, volume, range, .. } => {
                let result = Ok(vec![Piece::Hole(range.sectors)]);
                ToHost::Data { request, volume, result }
            }
            ToStore::Detach { request, .. } => ToHost::Detached { request },
            _ => return None,
        };
        Some(answer.into())
    }

    fn submit(&self) {}

    fn set_drain_urgent(&self, _: VolumeId, _: bool) {}
}

/// A volume on nothing.
pub fn volume(
    name: &str,
    sectors: u64,
    clock: Clock,
    geometry: engine::journal::Geometry,
) -> Rc<Volume> {
    volume_with(name, sectors, clock, geometry, Rc::new(NullStore))
}

/// A volume with a journal in memory.
pub fn volume_with(
    name: &str,
    sectors: u64,
    clock: Clock,
    geometry: engine::journal::Geometry,
    store: Rc<dyn Uplink>,
) -> Rc<Volume> {
    let attached =
        Attached { volume: VolumeId(1), sectors, block_bytes: 512, epoch: 1, committed: 0 };
    let config = engine::Config::new(engine::Mode::Journal(geometry));
    let journal = engine::journal::Recovered::empty(geometry, 1, VolumeId(1));
    let engine =
        engine::Volume::new(clock.now(), config, HostId(1), attached.clone(), Some(journal));
    let file = usize::try_from(geometry.file_bytes).unwrap_or(usize::MAX);
    let files = (0..geometry.files).map(|_| vec![0; file]).collect();
    let backing = Backing::Memory(files);
    let volume = Volume::new(name.into(), attached, clock, engine, backing, store, |_, event| {
        tracing::warn!("{event:?}");
    });
    tokio::task::spawn_local(volume.clone().run());
    volume
}

/// Exports one volume.
pub struct One(pub Rc<Volume>);

impl Exports for One {
    fn open(
        self: Rc<Self>,
        name: String,
        _: bool,
    ) -> LocalBoxFuture<'static, Result<(ExportInfo, Rc<Volume>), LookupError>> {
        Box::pin(async move {
            if !name.is_empty() && name != self.0.name() {
                let message = format!("the only export is `{}`", self.0.name());
                return Err(LookupError { kind: LookupErrorKind::Unknown, message });
            }
            Ok((super::nbd::export_info(&self.0), self.0.clone()))
        })
    }

    fn bitmaps(self: Rc<Self>, _: String) -> LocalBoxFuture<'static, Option<Bitmaps>> {
        Box::pin(async { None })
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Vec<ExportEntry>, LookupError>> {
        let name = self.0.name().to_owned();
        Box::pin(async move { Ok(vec![ExportEntry { name, description: String::new() }]) })
    }
}

impl Volumes for One {
    fn open(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<OpenedVolume, OpenError>> {
        Box::pin(async move {
            if name == self.0.name() {
                Ok((self.0.clone(), Bytes::new()))
            } else {
                Err(OpenError::NotFound(name))
            }
        })
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>> {
        let name = self.0.name().to_owned();
        Box::pin(async move { vec![name] })
    }

    fn save(
        self: Rc<Self>,
        _: Rc<Volume>,
        _: Bytes,
    ) -> LocalBoxFuture<'static, Result<(), ReservationError>> {
        Box::pin(async { Err(ReservationError::Unavailable("nothing is kept here".into())) })
    }
}

/// Serves a volume `null` of `bytes` until Ctrl-C.
///
/// # Errors
/// If an address cannot be listened on.
pub fn bench(nbd: &str, iscsi: Option<&str>, bytes: u64) -> Result<()> {
    let address: Address = nbd.parse()?;
    super::runtime::front_runtime()?.block_on(tokio::task::LocalSet::new().run_until(async move {
        let geometry = engine::journal::Geometry { file_bytes: 16 << 20, files: 16 };
        let clock = Clock::start();
        let one = Rc::new(One(volume("null", bytes / 512, clock, geometry)));
        if let Some(text) = iscsi {
            let portal = Portal::bind(text)?;
            eprintln!("serving `null` on {}", portal.address());
            let config = iscsi::config(vec![portal.address().to_string()], false);
            let target = IscsiServer::new(
                one.clone(),
                clock,
                config,
                (Access::default(), IscsiPlaces::default()),
            );
            tokio::task::spawn_local(target.clone().run());
            tokio::task::spawn_local(portal.run(target));
        }
        let server = NbdServer::new(one, None, NbdPlaces::default());
        let listener = Listener::bind(&address, false, false)?;
        eprintln!("serving `null` on {}", listener.address());
        tokio::select! {
            () = listener.run(server) => {}
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        Ok(())
    }))
}
