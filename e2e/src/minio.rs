//! MinIO on three nodes, any one of which may die. (After two have died at once it lets names be
//! created twice for a while.)

use crate::bucket::{ACCESS_KEY, BUCKET, SECRET_KEY};
use crate::process::{LIMIT, Server, command, repository, run_within};
use crate::site::{START, free_port, http_get};
use crate::wait_for;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nodes of a cluster.
pub const NODES: usize = 3;
/// Drives of a node. With six in all, half of each object's parts are parity: four must be there to
/// write, three to read.
const DRIVES: usize = 2;

/// The bucket for the test of conditions.
const TRIED: &str = "tried";
/// How many times in a row they have to.
const ORDERLY: usize = 3;

/// Of an answer.
#[derive(PartialEq)]
struct Status(u16);

impl Status {
    fn is_success(&self) -> bool {
        (200..300).contains(&self.0)
    }
}

/// Three servers that keep each object in parts on all of them.
pub struct Cluster {
    dir: PathBuf,
    ports: [u16; NODES],
    nodes: [Option<Server>; NODES],
}

fn binary() -> PathBuf {
    repository().join("target/tools/bin/minio")
}

impl Cluster {
    /// Starts one with its files in `dir`, and makes the bucket.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path) -> Cluster {
        let mut cluster = Cluster {
            dir: dir.into(),
            ports: std::array::from_fn(|_| free_port()),
            nodes: [const { None }; NODES],
        };
        cluster.start_all();
        for bucket in [BUCKET, TRIED] {
            wait_for("MinIO makes a bucket", START, || cluster.put(0, bucket).is_success());
        }
        cluster.wait_for_order();
        cluster
    }

    /// Waits until each node creates an object only if there is none of its name. Freshly started
    /// nodes say that they are ready too early: for some seconds they may miss the content of the
    /// others.
    #[track_caller]
    fn wait_for_order(&self) {
        let running = || (0..NODES).filter(|node| self.nodes[*node].is_some());
        let mut name = 0;
        let mut is_orderly = || {
            running().all(|first| {
                name += 1;
                let path = format!("{TRIED}/{}-{name}", fastrand::u64(..));
                self.put(first, &path).is_success()
                    && running().all(|second| self.put(second, &path) == Status(412))
            })
        };
        wait_for("MinIO creates a name only once", START, || {
            (0..ORDERLY).all(|_| {
                std::thread::sleep(Duration::from_millis(200));
                is_orderly()
            })
        });
    }

    /// Makes a bucket, or an object in one if there is none of its name.
    #[track_caller]
    fn put(&self, node: usize, path: &str) -> Status {
        let mut put = command("curl");
        put.args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            "--max-time",
            "20",
        ]);
        put.args(["-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3", "-H", "If-None-Match: *"]);
        put.args(["--user", &format!("{ACCESS_KEY}:{SECRET_KEY}")]);
        put.arg(format!("http://127.0.0.1:{}/{path}", self.ports[node]));
        // A missing answer has status 0.
        Status(run_within(put, LIMIT).stdout.trim().parse().unwrap())
    }

    /// Where its nodes listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    fn spawn(&mut self, node: usize) {
        let mut minio = command(binary());
        let address = format!("127.0.0.1:{}", self.ports[node]);
        minio.arg("server").args(["--quiet", "--address", &address]);
        for (owner, port) in self.ports.iter().enumerate() {
            for drive in 0..DRIVES {
                let drive = self.dir.join(format!("node{owner}/drive{drive}"));
                std::fs::create_dir_all(&drive).unwrap();
                minio.arg(format!("http://127.0.0.1:{port}{}", drive.display()));
            }
        }
        minio.env("MINIO_ROOT_USER", ACCESS_KEY).env("MINIO_ROOT_PASSWORD", SECRET_KEY);
        // Drives may be on the root file system, and the node does not find its own address by the
        // machine's name.
        minio.env("MINIO_CI_CD", "1").env("_MINIO_SERVER_LOCAL", &address);
        minio.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off").env("GOMEMLIMIT", "150MiB");
        let log = self.dir.join(format!("node{node}.log"));
        self.nodes[node] = Some(Server::start("minio", minio, &log));
    }

    #[track_caller]
    fn wait_ready(&mut self, node: usize) {
        let address = format!("127.0.0.1:{}", self.ports[node]);
        let server = self.nodes[node].as_mut().expect("it was started");
        server.wait_until("MinIO is ready", START, || {
            http_get(&address, "/minio/health/cluster").is_some_and(|(code, _)| code == 200)
        });
    }

    /// Where those listen that are ready.
    #[must_use]
    pub fn ready(&self) -> Vec<String> {
        let running = self.nodes.iter().zip(self.addresses());
        running.filter_map(|(node, address)| node.is_some().then_some(address)).collect()
    }

    /// SIGKILL for a node.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut server) = self.nodes[node].take() {
            server.kill();
        }
    }

    #[track_caller]
    fn start_all(&mut self) {
        // None is ready before most of them are there.
        for node in 0..NODES {
            if self.nodes[node].is_none() {
                self.spawn(node);
            }
        }
        for node in 0..NODES {
            self.wait_ready(node);
        }
    }

    /// Starts a node again, on the same drives and port.
    #[track_caller]
    pub fn restart(&mut self, node: usize) {
        self.spawn(node);
        self.wait_ready(node);
        self.wait_for_order();
    }
}
