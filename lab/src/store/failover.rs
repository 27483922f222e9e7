//! How long a client waits whose store is killed, until another one stands in for it.

use super::{Bench, Data};
use crate::node::free_port;
use crate::process::{Server, output};
use crate::run::admin;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long the client writes, and how long before the store is killed.
const SECONDS: &str = "12";
const BEFORE: Duration = Duration::from_secs(2);

impl Bench<'_> {
    /// Every write waits for a commit, and one of them for another store.
    pub(super) fn failover(&self) -> Result<()> {
        let (rounds, tally) = self.rounds.all(|| {
            self.killed().with_context(|| {
                format!("see second.log and host.log in {}", self.site.dir.display())
            })
        })?;
        let (longest, usual): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        let worst = longest.iter().copied().fold(0.0, f64::max);
        let name = "4 KiB writes that wait for the store, which is killed: the longest";
        self.report.single(name, &longest, "s", Some((5.0, false)), &tally)?;
        self.report.single("… of all rounds", &[worst], "s", Some((5.0, false)), &tally)?;
        self.report.single("… p50", &usual, "s", None, &tally)
    }

    /// The longest and the median time of a write, in seconds.
    fn killed(&self) -> Result<(f64, f64)> {
        let first = self.store(Data::Directory)?;
        let text = |name: &str| self.path(name).display().to_string();
        let run = |args: &[&str]| output(&self.site.longhaul, args);
        let invitation = run(&["store", "invite", "--state", &text("store")])?;
        std::fs::write(self.path("invitation"), invitation)?;
        run(&["store", "join", "--state", &text("second"), &text("invitation")])?;
        let (listen, admin) = (format!("127.0.0.1:{}", free_port(true)?), free_port(false)?);
        let (address, data, state) =
            (format!("127.0.0.1:{admin}"), text("objects"), text("second"));
        let args =
            ["store", "--data", &data, "--state", &state, "--listen", &listen, "--admin", &address];
        let log = self.path("second.log");
        let mut second = Server::start("second store", &self.site.longhaul, &args, &log)?;
        second.wait_until("answer", || admin::get(admin, "/healthz").is_ok())?;

        run(&["volume", "create", "v", "--size", "1GiB", "--credential", &first.credential])?;
        let (socket, state, admin) = (text("host.sock"), text("host"), free_port(false)?);
        let (nbd, address) = (format!("unix:{socket}"), format!("127.0.0.1:{admin}"));
        let mut args = vec!["host", "--credential", &first.credential, "--state", &state];
        args.extend(["--nbd", &nbd, "--admin", &address, "--volume", "v", "--write-through"]);
        let mut host = Server::start("host", &self.site.longhaul, &args, &self.path("host.log"))?;
        host.wait_until("volume, and word of both stores", || {
            let page = admin::get(admin, "/status").unwrap_or_default();
            let status: Value = serde_json::from_str(&page).unwrap_or_default();
            let stores = status["link"]["stores"].as_array().map_or(0, Vec::len);
            status["volumes"][0]["state"] == "attached" && stores == 2
        })?;

        let (uri, out) = (format!("--uri=nbd+unix:///v?socket={socket}"), text("fio.json"));
        let (runtime, out) = (format!("--runtime={SECONDS}"), format!("--output={out}"));
        let args = [
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=1",
            "--size=256m",
            "--time_based",
            &runtime,
            "--output-format=json",
            &out,
        ];
        std::thread::scope(|scope| {
            let client = scope.spawn(|| output(Path::new("fio"), &args));
            std::thread::sleep(BEFORE);
            first.server.kill()?;
            client.join().map_err(|_| anyhow::anyhow!("a thread of the benchmark panicked"))?
        })?;
        host.stop()?;
        second.stop()?;
        let page = std::fs::read_to_string(self.path("fio.json"))?;
        let begin = page.find('{').context("fio printed no JSON")?;
        let job = &serde_json::from_str::<Value>(&page[begin..])?["jobs"][0];
        ensure!(job["error"] == 0, "fio reports error {}", job["error"]);
        let times = &job["write"]["clat_ns"];
        let seconds = |value: &Value| value.as_f64().map(|ns| ns / 1e9).context("fio has no time");
        Ok((seconds(&times["max"])?, seconds(&times["percentile"]["50.000000"])?))
    }
}
