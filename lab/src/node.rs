//! A store and a host on this machine, for a benchmark to use.

use crate::BenchArgs;
use crate::process::{Server, output};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The subject of the measurement, and its place.
pub struct Site {
    /// The binary.
    pub longhaul: PathBuf,
    /// Directory on the disk that is measured on.
    pub dir: PathBuf,
}

impl Site {
    /// As the command line says.
    pub fn new(args: &BenchArgs) -> Result<Site> {
        let longhaul = match &args.longhaul {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("longhaul"),
        };
        if !longhaul.exists() {
            bail!(
                "{} is not there: build it with `cargo build --release -p longhaul`",
                longhaul.display()
            );
        }
        std::fs::create_dir_all(&args.dir)?;
        Ok(Site { longhaul: longhaul.canonicalize()?, dir: args.dir.canonicalize()? })
    }

    /// A file or directory of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts a server that listens on a unix socket in the directory.
    pub fn serve(&self, program: &Path, socket: &str, args: &[&str]) -> Result<Server> {
        let path = self.path(socket);
        let _ = std::fs::remove_file(&path);
        let mut server =
            Server::start(socket, program, args, &self.path(&format!("{socket}.log")))?;
        server.wait_until("socket", || std::os::unix::net::UnixStream::connect(&path).is_ok())?;
        Ok(server)
    }
}

/// A store and a host with one volume `bench`.
pub struct Node {
    /// The store.
    pub store: Server,
    /// The host.
    pub host: Server,
    admin: String,
    longhaul: PathBuf,
    dir: PathBuf,
}

impl Node {
    /// Starts both with an empty volume of this size.
    pub fn start(site: &Site, size: &str, host_args: &[&str]) -> Result<Node> {
        for dir in ["store", "host"] {
            let _ = std::fs::remove_dir_all(site.path(dir));
        }
        let listen = format!("127.0.0.1:{}", free_port(true)?);
        let data = site.path("store").display().to_string();
        let mut store = Server::start(
            "store",
            &site.longhaul,
            &["store", "--data", &data, "--listen", &listen, "--admin", "none"],
            &site.path("store.log"),
        )?;
        let credential = site.path("store/credentials/admin.toml");
        store.wait_until("credential", || credential.exists())?;
        let credential = credential.display().to_string();
        let create = ["volume", "create", "bench", "--size", size, "--credential", &credential];
        let start = Instant::now();
        loop {
            match output(&site.longhaul, &create) {
                Ok(_) => break,
                Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        let (host, admin) = Self::start_host(site, "host", &credential, host_args)?;
        Ok(Node { store, host, admin, longhaul: site.longhaul.clone(), dir: site.dir.clone() })
    }

    fn start_host(
        site: &Site,
        state: &str,
        credential: &str,
        more: &[&str],
    ) -> Result<(Server, String)> {
        let admin = format!("127.0.0.1:{}", free_port(false)?);
        let state = site.path(state).display().to_string();
        let nbd = format!("unix:{}", site.path("ours.sock").display());
        let mut args = vec![
            "host",
            "--credential",
            credential,
            "--state",
            &state,
            "--nbd",
            &nbd,
            "--admin",
            &admin,
            "--volume",
            "bench",
        ];
        args.extend_from_slice(more);
        let mut host = site.serve(&site.longhaul, "ours.sock", &args)?;
        host.wait_until("attached volume", || {
            status(&site.longhaul, &admin)
                .is_ok_and(|json| json["volumes"][0]["state"] == "attached")
        })?;
        Ok((host, admin))
    }

    /// Ends the host in order and starts another that has nothing in journal or cache.
    pub fn with_fresh_host(self, site: &Site) -> Result<Node> {
        self.host.stop()?;
        let _ = std::fs::remove_dir_all(site.path("host"));
        let credential = site.path("store/credentials/admin.toml").display().to_string();
        let (host, admin) = Self::start_host(site, "host", &credential, &[])?;
        Ok(Node { host, admin, ..self })
    }

    /// Kills the host, starts it again, and says how long it took to serve the volume, in seconds.
    pub fn crash_and_recover(self, site: &Site) -> Result<f64> {
        self.host.kill()?;
        let credential = site.path("store/credentials/admin.toml").display().to_string();
        let start = Instant::now();
        let (host, _) = Self::start_host(site, "host", &credential, &[])?;
        let seconds = start.elapsed().as_secs_f64();
        host.kill()?;
        self.store.stop()?;
        Ok(seconds)
    }

    fn volume(&self) -> Result<Value> {
        Ok(status(&self.longhaul, &self.admin)?["volumes"][0].clone())
    }

    /// The last record that the store has committed.
    pub fn committed(&self) -> Result<u64> {
        self.volume()?["committed_seq"].as_u64().context("status has no `committed_seq`")
    }

    /// Bytes the journal holds.
    pub fn journal_bytes(&self) -> Result<u64> {
        self.volume()?["journal_bytes"].as_u64().context("status has no `journal_bytes`")
    }

    /// Waits until the store has everything.
    pub fn wait_drained(&self) -> Result<()> {
        let start = Instant::now();
        while self.volume()?["lag_bytes"].as_u64().context("status has no `lag_bytes`")? > 0 {
            if start.elapsed() > Duration::from_secs(120) {
                bail!("not drained after 120 s; see the logs in {}", self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Stops the store in its tracks.
    pub fn pause_store(&mut self) -> Result<()> {
        output(Path::new("kill"), &["-STOP", &self.store.pid().to_string()]).map(drop)
    }

    /// Lets it go on.
    pub fn resume_store(&mut self) -> Result<()> {
        output(Path::new("kill"), &["-CONT", &self.store.pid().to_string()]).map(drop)
    }

    /// Ends both in order.
    pub fn stop(self) -> Result<()> {
        self.host.stop()?;
        self.store.stop()
    }
}

fn status(longhaul: &Path, admin: &str) -> Result<Value> {
    Ok(serde_json::from_str(&output(longhaul, &["status", "--json", "--admin", admin])?)?)
}

/// A port that nobody listens on.
pub fn free_port(udp: bool) -> Result<u16> {
    let address = if udp {
        std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?
    } else {
        std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?
    };
    Ok(address.port())
}
