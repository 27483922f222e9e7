//! Store and host, each in its namespace, with a volume that the store has and a host that has
//! nothing.

use super::Bench;
use super::admin::Admin;
use crate::node::free_port;
use crate::process::{Server, finish};
use crate::scenario::Definition;
use crate::wan::Side;
use anyhow::Result;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The store's port.
const PORT: u16 = 7777;

/// The volume that is filled at the store.
pub const VOLUME: &str = "lab";
/// Bytes of the cache's file for each that it can hold: checksums and index are below 1 %, rounding
/// takes up to 2 MiB.
const CACHE_FILE: f64 = 1.02;

/// A store and a fresh host.
pub struct Product {
    store: Server,
    host: Server,
    store_port: u16,
    host_port: u16,
    socket: PathBuf,
    processor_before: (f64, f64),
}

impl Product {
    /// Starts the store, has the volume as the scenario wants it, and attaches it with a host that
    /// has neither journal nor cache of it.
    ///
    /// # Errors
    /// If one of them does not start or does not get ready.
    pub fn start(
        bench: &mut Bench<'_>,
        definition: &Definition,
        more: &[String],
    ) -> Result<Product> {
        let (size, fill) = (definition.volume.size.0, definition.fill());
        let encrypt = definition.volume.encrypt;
        let data = bench.path("store");
        let fresh = bench.prepared != Some((size, fill, encrypt));
        if fresh {
            let _ = std::fs::remove_dir_all(&data);
        }
        let address = bench.wan.address(Side::Store);
        let listen = format!("{address}:{PORT}");
        let store_port = free_port(false)?;
        let mut command = bench.wan.command(Side::Store, bench.longhaul);
        command.arg("store").arg("--data").arg(&data);
        command.args(["--listen", &listen, "--admin", &format!("127.0.0.1:{store_port}")]);
        command.args(&definition.longhaul.store);
        let mut store = Server::spawn("store", command, &bench.path("store.log"))?;
        let admin = Admin { pid: store.pid(), port: store_port };
        store.wait_until("healthy store", || admin.healthy())?;
        let credential = data.join("credentials/admin.toml");
        let key = bench.path("volumes.key").display().to_string();
        let volume = |args: &[&str]| -> Result<String> {
            let mut command = bench.wan.command(Side::Store, bench.longhaul);
            command.arg("volume").args(args).arg("--credential").arg(&credential);
            finish(command)
        };
        if fresh {
            let size_text = size.to_string();
            let mut create = vec!["create", VOLUME, "--size", &size_text];
            if encrypt {
                let _ = std::fs::remove_file(&key);
                let mut command = bench.wan.command(Side::Host, bench.longhaul);
                command.args(["credential", "new-key", &key]);
                finish(command)?;
                create.extend(["--encrypt", "--key-file", &key]);
            }
            let start = Instant::now();
            // The store is healthy before it listens.
            while let Err(error) = volume(&create) {
                if start.elapsed() > Duration::from_secs(10) {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if fill > 0 {
                let image = bench.image(fill)?.display().to_string();
                let mut import = vec!["import", VOLUME, &image];
                if encrypt {
                    import.extend(["--key-file", &key]);
                }
                volume(&import)?;
            }
            bench.prepared = Some((size, fill, encrypt));
        }
        let state = bench.path("host");
        let _ = std::fs::remove_dir_all(&state);
        let socket = bench.path("host.sock");
        let _ = std::fs::remove_file(&socket);
        let host_port = free_port(false)?;
        let mut command = bench.wan.command(Side::Host, bench.longhaul);
        command.arg("host").arg("--credential").arg(&credential).arg("--state").arg(&state);
        command.args(["--nbd", &format!("unix:{}", socket.display()), "--volume", VOLUME]);
        command.args(["--admin", &format!("127.0.0.1:{host_port}")]);
        command.args(&definition.longhaul.host).args(more);
        if encrypt {
            command.args(["--key-file", &key]);
        }
        if let (Some(share), Some(set)) =
            (definition.longhaul.cache_share, definition.working_set())
        {
            // The size is the file's, and checksums, index and rounding take some of it. The
            // setting means its capacity.
            let bytes = (share * set as f64 * CACHE_FILE) as u64;
            command.args(["--cache-size", &bytes.to_string()]);
        }
        let mut host = Server::spawn("host", command, &bench.path("host.log"))?;
        let admin = Admin { pid: host.pid(), port: host_port };
        host.wait_until("attached volume", || {
            admin.status().is_ok_and(|status| status["volumes"][0]["state"] == "attached")
        })?;
        let processor_before = (host.cpu_seconds()?, store.cpu_seconds()?);
        Ok(Product { store, host, store_port, host_port, socket, processor_before })
    }

    /// Where a client of the host's side finds the volume.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("nbd+unix:///{VOLUME}?socket={}", self.socket.display())
    }

    /// The host's admin address.
    #[must_use]
    pub fn host_admin(&self) -> Admin {
        Admin { pid: self.host.pid(), port: self.host_port }
    }

    /// The store's admin address.
    #[must_use]
    pub fn store_admin(&self) -> Admin {
        Admin { pid: self.store.pid(), port: self.store_port }
    }

    /// Memory and processor time of both, as figures.
    ///
    /// # Errors
    /// If a process is gone.
    pub fn costs(&self) -> Result<Vec<(String, f64)>> {
        const MIB: f64 = 1048576.0;
        let (host_before, store_before) = self.processor_before;
        Ok(vec![
            ("host_memory_mib".into(), self.host.peak_bytes()? as f64 / MIB),
            ("host_anonymous_mib".into(), self.host.memory_bytes()? as f64 / MIB),
            ("store_memory_mib".into(), self.store.peak_bytes()? as f64 / MIB),
            ("host_cpu_s".into(), self.host.cpu_seconds()? - host_before),
            ("store_cpu_s".into(), self.store.cpu_seconds()? - store_before),
        ])
    }

    /// Ends both. The host may hold what the store does not have: nobody wants it any more.
    ///
    /// # Errors
    /// If the store does not end.
    pub fn stop(self) -> Result<()> {
        self.host.kill()?;
        self.store.stop()
    }
}
