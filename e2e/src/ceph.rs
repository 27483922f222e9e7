//! Ceph with its gateway for the S3 API, as processes of one machine. It has one monitor, one
//! manager, three OSDs that each keep everything, and two gateways. One OSD and one gateway may be
//! dead at any time.

use crate::bucket::{ACCESS_KEY, BUCKET, SECRET_KEY};
use crate::process::{LIMIT, Output, Server, command, run_within};
use crate::site::{START, free_port, http_get};
use std::path::{Path, PathBuf};
use std::process::Command;

/// OSDs of a cluster. Each object is on all of them, and writes need two.
pub const OSDS: usize = 3;
/// Gateways of a cluster.
pub const GATEWAYS: usize = 2;

/// A running cluster; ends when dropped.
pub struct Cluster {
    dir: PathBuf,
    ports: [u16; GATEWAYS],
    monitor: Option<Server>,
    manager: Option<Server>,
    osds: [Option<Server>; OSDS],
    gateways: [Option<Server>; GATEWAYS],
}

impl Cluster {
    /// Starts one with its files in `dir`, and makes the bucket and its user.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path) -> Cluster {
        std::fs::create_dir_all(dir).unwrap();
        let mut cluster = Cluster {
            dir: dir.into(),
            ports: std::array::from_fn(|_| free_port()),
            monitor: None,
            manager: None,
            osds: [const { None }; OSDS],
            gateways: [const { None }; GATEWAYS],
        };
        cluster.make_monitor();
        cluster.start_monitor();
        for osd in 0..OSDS {
            cluster.make_osd(osd);
            cluster.spawn_osd(osd);
        }
        cluster.wait_clean();
        for gateway in 0..GATEWAYS {
            // The first one makes the pools.
            cluster.restart_gateway(gateway);
        }
        let mut user = cluster.tool("radosgw-admin");
        user.args(["user", "create", "--uid", "e2e", "--display-name", "e2e"]);
        user.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]);
        run_within(user, LIMIT).ok();
        let mut create = command("curl");
        create.args(["--silent", "--show-error", "--fail-with-body", "-X", "PUT"]);
        create.args(["--aws-sigv4", "aws:amz:us-east-1:s3"]);
        create.args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
        create.args(["--user", &format!("{ACCESS_KEY}:{SECRET_KEY}")]);
        create.arg(format!("http://{}/{BUCKET}", cluster.addresses()[0]));
        run_within(create, LIMIT).ok();
        cluster.wait_clean();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A program of the cluster's, with its configuration.
    fn tool(&self, program: &str) -> Command {
        let mut tool = command(program);
        tool.arg("-c").arg(self.path("ceph.conf")).current_dir(&self.dir);
        tool
    }

    #[track_caller]
    fn ask(&self, args: &[&str]) -> Output {
        let mut ceph = self.tool("ceph");
        ceph.args(["--connect-timeout", "10", "--format", "json"]).args(args);
        run_within(ceph, LIMIT)
    }

    #[track_caller]
    fn make_monitor(&self) {
        let (dir, port, fsid) = (self.dir.display(), free_port(), identity());
        let text = format!(
            "[global]\nfsid = {fsid}\nmon host = v2:127.0.0.1:{port}/0\nkeyring = {dir}/keyring\n{COMMON}\
             crash dir = {dir}/crash\nrun dir = {dir}\n\
             [mon]\nmon data = {dir}/mon.$id\n[mgr]\nmgr data = {dir}/mgr.$id\n[osd]\nosd data = {dir}/osd.$id\n\
             [client]\nrgw data = {dir}/rgw.$id\nrgw thread pool size = 64\n"
        );
        std::fs::write(self.path("ceph.conf"), text).unwrap();
        let mut keys = command("ceph-authtool");
        keys.args(["--create-keyring", "keyring", "--gen-key", "-n", "mon.", "--cap", "mon"]);
        keys.arg("allow *").current_dir(&self.dir);
        run_within(keys, LIMIT).ok();
        let osds = (0..OSDS).map(|osd| format!("osd.{osd}"));
        let gateways = (0..GATEWAYS).map(|gateway| format!("client.rgw.{gateway}"));
        let others = ["client.admin".to_owned(), "mgr.x".to_owned()];
        for name in others.into_iter().chain(osds).chain(gateways) {
            let mut key = command("ceph-authtool");
            key.args(["keyring", "--gen-key", "-n", &name]).current_dir(&self.dir);
            for daemon in ["mon", "osd", "mgr"] {
                key.args(["--cap", daemon, "allow *"]);
            }
            run_within(key, LIMIT).ok();
        }
        let mut map = command("monmaptool");
        map.args(["--create", "--fsid", &fsid, "--addv", "a"]);
        map.args([&format!("[v2:127.0.0.1:{port}]"), "monmap"]).current_dir(&self.dir);
        run_within(map, LIMIT).ok();
        for data in ["mon.a", "mgr.x"] {
            std::fs::create_dir_all(self.path(data)).unwrap();
        }
        let mut make = self.tool("ceph-mon");
        make.args(["--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring"]);
        run_within(make, LIMIT).ok();
    }

    #[track_caller]
    fn start_monitor(&mut self) {
        self.monitor = Some(self.daemon("mon.a", "ceph-mon", &["-i", "a"]));
        crate::wait_for("the monitor", START, || self.ask(&["status"]).status.success());
        self.manager = Some(self.daemon("mgr.x", "ceph-mgr", &["-i", "x"]));
    }

    fn daemon(&self, name: &str, program: &str, args: &[&str]) -> Server {
        let mut daemon = self.tool(program);
        daemon.arg("-f").args(args);
        Server::start(program, daemon, &self.path(&format!("{name}.log")))
    }

    #[track_caller]
    fn make_osd(&self, osd: usize) {
        let (uuid, number) = (identity(), osd.to_string());
        self.ask(&["osd", "new", &uuid, &number]).ok();
        std::fs::create_dir_all(self.path(&format!("osd.{osd}"))).unwrap();
        let mut make = self.tool("ceph-osd");
        make.args(["--mkfs", "-i", &number, "--osd-uuid", &uuid]);
        run_within(make, LIMIT).ok();
    }

    fn spawn_osd(&mut self, osd: usize) {
        let args = ["-i", &osd.to_string()];
        self.osds[osd] = Some(self.daemon(&format!("osd.{osd}"), "ceph-osd", &args));
    }

    /// Where its gateways listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// SIGKILL for an OSD.
    pub fn kill_osd(&mut self, osd: usize) {
        if let Some(mut server) = self.osds[osd].take() {
            server.kill();
        }
    }

    /// SIGKILL for a gateway.
    pub fn kill_gateway(&mut self, gateway: usize) {
        if let Some(mut server) = self.gateways[gateway].take() {
            server.kill();
        }
    }

    /// SIGKILL for everything.
    pub fn kill_all(&mut self) {
        (0..GATEWAYS).for_each(|gateway| self.kill_gateway(gateway));
        (0..OSDS).for_each(|osd| self.kill_osd(osd));
        for daemon in [&mut self.manager, &mut self.monitor] {
            if let Some(mut server) = daemon.take() {
                server.kill();
            }
        }
    }

    /// Starts everything again after [`Cluster::kill_all`], on the same files and ports.
    #[track_caller]
    pub fn restart_all(&mut self) {
        self.start_monitor();
        // The monitor believes them to be as they were, and they wait for each other where they
        // were then.
        let osds: Vec<_> = (0..OSDS).map(|osd| osd.to_string()).collect();
        let osds = osds.iter().map(String::as_str);
        self.ask(&["osd", "down"].into_iter().chain(osds).collect::<Vec<_>>()).ok();
        (0..OSDS).for_each(|osd| self.spawn_osd(osd));
        self.wait_clean();
        (0..GATEWAYS).for_each(|gateway| self.restart_gateway(gateway));
    }

    /// Starts an OSD again. It has later writes only when [`Cluster::wait_clean`] returns.
    #[track_caller]
    pub fn restart_osd(&mut self, osd: usize) {
        self.spawn_osd(osd);
    }

    /// Starts a gateway again, on the same port.
    #[track_caller]
    pub fn restart_gateway(&mut self, gateway: usize) {
        let name = format!("rgw.{gateway}");
        std::fs::create_dir_all(self.path(&format!("rgw.{name}"))).unwrap();
        let frontend = format!("beast endpoint=127.0.0.1:{}", self.ports[gateway]);
        let keyring = self.path("keyring");
        let keyring = keyring.to_str().expect("temporary paths are text");
        let id = format!("client.{name}");
        let args = ["-n", &id, "--keyring", keyring, "--rgw-frontends", &frontend];
        let mut server = self.daemon(&name, "radosgw", &args);
        let address = self.addresses()[gateway].clone();
        server.wait_until("the gateway answers", LIMIT, || {
            http_get(&address, "/").is_some_and(|(code, _)| code == 200)
        });
        self.gateways[gateway] = Some(server);
    }

    /// Waits until all OSDs are there and have everything.
    #[track_caller]
    pub fn wait_clean(&mut self) {
        crate::wait_for("all OSDs to have everything", LIMIT, || {
            let status = self.ask(&["status"]);
            if !status.status.success() {
                return false;
            }
            let status = status.json();
            let pgs = &status["pgmap"];
            let clean = pgs["pgs_by_state"].as_array().is_some_and(|states| {
                !states.is_empty()
                    && states.iter().all(|state| state["state_name"] == "active+clean")
            });
            let up = &status["osdmap"]["num_up_osds"];
            clean && up.as_u64() == Some(OSDS as u64)
        });
        for osd in self.osds.iter_mut().flatten() {
            assert!(osd.ended().is_none(), "an OSD has ended by itself: {}", osd.log());
        }
    }
}

/// An identity as Ceph writes them.
fn identity() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    id.trim().to_owned()
}

/// For one machine, small, and quick to notice that an OSD is dead. Data goes the usual way.
const COMMON: &str = "\
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
admin socket =
log file =
log to stderr = true
err to stderr = true
debug rocksdb = 0
mon cluster log to stderr = false
auth allow insecure global id reclaim = false
osd objectstore = bluestore
bluestore block size = 8589934592
osd memory target = 939524096
osd memory cache min = 67108864
osd crush chooseleaf type = 0
osd pool default size = 3
osd pool default min size = 2
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd heartbeat interval = 1
osd heartbeat grace = 6
mon osd min down reporters = 1
mon osd down out interval = 3600
osd class update on start = false
mon data avail crit = 1
mon data avail warn = 2
";
