//! A store and a host on this machine, for a benchmark to use.

use crate::BenchArgs;
use crate::fio::{self, Job};
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

/// The description of a store with a host.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    /// How the names of their directories, sockets and logs begin: two of them run side by side.
    pub name: &'a str,
    /// The volumes, which the host attaches.
    pub volumes: &'a [&'a str],
    /// The size of each.
    pub size: &'a str,
    /// More flags of the host, and of the store.
    pub host: &'a [&'a str],
    pub store: &'a [&'a str],
    /// Where the store's data are, if not beside the host's.
    pub data: Option<&'a Path>,
}

impl<'a> Shape<'a> {
    /// One volume `bench` of this size, with everything on one disk.
    pub const fn new(size: &'a str) -> Shape<'a> {
        Shape { name: "", volumes: &["bench"], size, host: &[], store: &[], data: None }
    }

    /// The store's data in a directory elsewhere, so that one disk does not write everything twice.
    pub const fn with_data(self, data: &'a Path) -> Shape<'a> {
        Shape { data: Some(data), ..self }
    }
}

/// A store and a host.
pub struct Node {
    /// The store.
    pub store: Server,
    /// The host.
    pub host: Server,
    /// The admin port of the host.
    pub admin: u16,
    /// Its socket in the directory.
    pub socket: String,
    credential: String,
    longhaul: PathBuf,
    dir: PathBuf,
    data: PathBuf,
}

impl Node {
    /// Starts both with empty volumes, and with their journals prepared.
    pub fn start(site: &Site, shape: &Shape<'_>) -> Result<Node> {
        let (node, _) = Node::start_unused(site, shape)?;
        // The host prepares a new journal once it is in use.
        let targets: Vec<_> =
            shape.volumes.iter().map(|volume| fio::nbd(site, &node.socket, volume)).collect();
        let few = Job { size: 1 << 20, most: Some(1 << 20), ..Job::new("write", "64k", 1, 60) };
        fio::run(site, &targets, &few)?;
        wait_prepared(&node.host)?;
        Ok(node)
    }

    /// Starts both with volumes that nobody has used. Also says how long the host took to attach
    /// them, in seconds.
    pub fn start_unused(site: &Site, shape: &Shape<'_>) -> Result<(Node, f64)> {
        let at = |what: &str| format!("{}{what}", shape.name);
        let data =
            shape.data.map_or_else(|| site.path(&at("store")), |data| data.join(at("store")));
        for dir in [&data, &site.path(&at("host"))] {
            let _ = std::fs::remove_dir_all(dir);
        }
        let listen = format!("127.0.0.1:{}", free_port(true)?);
        let place = data.display().to_string();
        let args = ["store", "--data", &place, "--listen", &listen, "--admin", "none"];
        let log = site.path(&at("store.log"));
        let args = [&args[..], shape.store].concat();
        let mut store = Server::start("store", &site.longhaul, &args, &log)?;
        let credential = data.join("credentials/admin.toml");
        store.wait_until("credential", || credential.exists())?;
        let credential = credential.display().to_string();
        for volume in shape.volumes {
            let create =
                ["volume", "create", volume, "--size", shape.size, "--credential", &credential];
            let start = Instant::now();
            loop {
                match output(&site.longhaul, &create) {
                    Ok(_) => break,
                    Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        }
        let start = Instant::now();
        let (host, admin) = Self::start_host(site, shape, &credential)?;
        let attached = start.elapsed().as_secs_f64();
        let node = Node {
            store,
            host,
            admin,
            socket: at("ours.sock"),
            credential,
            longhaul: site.longhaul.clone(),
            dir: site.dir.clone(),
            data,
        };
        Ok((node, attached))
    }

    /// Runs an operator's command.
    pub fn command(&self, args: &[&str]) -> Result<String> {
        output(&self.longhaul, &[args, &["--credential", &self.credential]].concat())
    }

    fn start_host(site: &Site, shape: &Shape<'_>, credential: &str) -> Result<(Server, u16)> {
        let admin = free_port(false)?;
        let address = format!("127.0.0.1:{admin}");
        let state = site.path(&format!("{}host", shape.name)).display().to_string();
        let socket = format!("{}ours.sock", shape.name);
        let nbd = format!("unix:{}", site.path(&socket).display());
        let mut args = vec!["host", "--credential", credential, "--state", &state];
        args.extend(["--nbd", &nbd, "--admin", &address]);
        for volume in shape.volumes {
            args.extend(["--volume", volume]);
        }
        args.extend_from_slice(shape.host);
        let mut host = site.serve(&site.longhaul, &socket, &args)?;
        host.wait_until("attached volumes", || {
            status(&site.longhaul, admin).is_ok_and(|json| {
                let volumes = json["volumes"].as_array().map_or(&[][..], Vec::as_slice);
                volumes.len() == shape.volumes.len()
                    && volumes.iter().all(|volume| volume["state"] == "attached")
            })
        })?;
        Ok((host, admin))
    }

    /// Ends the host in order and starts another that has nothing in journal or cache.
    pub fn with_fresh_host(self, site: &Site) -> Result<Node> {
        self.host.stop()?;
        let _ = std::fs::remove_dir_all(site.path("host"));
        let (host, admin) = Self::start_host(site, &Shape::new(""), &self.credential)?;
        Ok(Node { host, admin, ..self })
    }

    /// Kills the host, starts it again, and says how long it took to serve the volume, in seconds.
    pub fn crash_and_recover(self, site: &Site) -> Result<f64> {
        self.host.kill()?;
        let start = Instant::now();
        let (host, _) = Self::start_host(site, &Shape::new(""), &self.credential)?;
        let seconds = start.elapsed().as_secs_f64();
        host.kill()?;
        self.store.stop()?;
        Ok(seconds)
    }

    fn volume(&self) -> Result<Value> {
        Ok(status(&self.longhaul, self.admin)?["volumes"][0].clone())
    }

    /// The last record that the store has committed.
    pub fn committed(&self) -> Result<u64> {
        self.volume()?["committed_seq"].as_u64().context("status has no `committed_seq`")
    }

    /// Bytes the journal holds.
    pub fn journal_bytes(&self) -> Result<u64> {
        self.volume()?["journal_bytes"].as_u64().context("status has no `journal_bytes`")
    }

    /// Bytes that the store does not have yet, of all volumes.
    fn lag_bytes(&self) -> Result<u64> {
        let status = status(&self.longhaul, self.admin)?;
        let volumes = status["volumes"].as_array().context("status has no `volumes`")?;
        let lag = |volume: &Value| volume["lag_bytes"].as_u64().context("no `lag_bytes`");
        volumes.iter().map(lag).sum()
    }

    /// Waits until the store has everything.
    pub fn wait_drained(&self) -> Result<()> {
        let start = Instant::now();
        while self.lag_bytes()? > 0 {
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

    /// Ends both in order, and removes the store's data.
    pub fn stop(self) -> Result<()> {
        self.host.stop()?;
        self.store.stop()?;
        let _ = std::fs::remove_dir_all(self.data);
        Ok(())
    }
}

/// The host's thread that writes zeroes into a new journal. It ends when it is done.
const ZEROING: &str = "journal-zero";

/// Waits until a host has prepared its new journals: it serves writes meanwhile, slowly.
fn wait_prepared(host: &Server) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let start = Instant::now();
    while host.thread_names()?.iter().any(|name| name == ZEROING) {
        if start.elapsed() > PATIENCE {
            bail!("the host still prepares its journals after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn status(longhaul: &Path, admin: u16) -> Result<Value> {
    let admin = format!("127.0.0.1:{admin}");
    Ok(serde_json::from_str(&output(longhaul, &["status", "--json", "--admin", &admin])?)?)
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
