//! The effect of one volume of a tenant on another, below the tenant's limits.

use super::read::READ_BYTES;
use super::{Bench, Data, Store};
use crate::process::{Server, output};
use crate::run::admin;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the first volume.
const SMALL: &str = "64MiB";
/// Reads of it in a round, one at a time.
const READS: &str = "3000";
/// The length of a burst before the measurement: the tenant's bucket is empty then.
const SETTLE: Duration = Duration::from_secs(3);

/// The work of the other volume meanwhile.
#[derive(Clone, Copy)]
enum Burst {
    None,
    /// Writes, 16 MiB at a time.
    Write,
    /// Reads, that many 8 KiB at a time.
    Read(&'static str),
}

/// A limit as the command takes it, and its unit.
#[derive(Clone, Copy)]
struct Limit {
    flag: &'static str,
    value: &'static str,
    /// Counter of what it limits, and how much of that there may be in a second.
    counter: &'static str,
    per_second: f64,
}

const RATE: Limit = Limit {
    flag: "--max-rate",
    value: "100Mbit/s",
    counter: "longhaul_tenant_bytes_total",
    per_second: 12.5e6,
};
const IOPS: Limit = Limit {
    flag: "--max-iops",
    value: "2000",
    counter: "longhaul_tenant_operations_total",
    per_second: 2000.0,
};

/// Of the reads of a round, in ms, and how much of its limit the tenant had meanwhile.
struct Round {
    p50: f64,
    p99: f64,
    p999: f64,
    share: Option<f64>,
}

impl Bench<'_> {
    /// Two volumes of one tenant: one is read 8 KiB at a time, the other does all it can.
    pub(super) fn limits(&self) -> Result<()> {
        for (limit, burst, name) in [
            (None, Burst::None, "no limit, alone"),
            (None, Burst::Write, "no limit, the other is written"),
            (Some(RATE), Burst::None, "100 Mbit/s, alone"),
            (Some(RATE), Burst::Write, "100 Mbit/s, the other is written"),
            (Some(RATE), Burst::Read("128"), "100 Mbit/s, the other is read, 128 at a time"),
            (Some(IOPS), Burst::None, "2000 operations a second, alone"),
            (Some(IOPS), Burst::Write, "2000 operations a second, the other is written"),
            (
                Some(IOPS),
                Burst::Read("128"),
                "2000 operations a second, the other is read, 128 at a time",
            ),
        ] {
            let (rounds, tally) = self.rounds.all(|| self.limited(limit, burst))?;
            let of = |value: fn(&Round) -> f64| rounds.iter().map(value).collect::<Vec<_>>();
            for (what, values) in [
                ("p50", of(|round| round.p50)),
                ("p99", of(|round| round.p99)),
                ("p99.9", of(|round| round.p999)),
            ] {
                let name = format!("8 KiB read, {name}: {what}");
                self.report.single(&name, &values, "ms", None, &tally)?;
            }
            let shares: Vec<f64> = rounds.iter().filter_map(|round| round.share).collect();
            if !shares.is_empty() {
                let name = format!("… both together, of the limit, {name}");
                self.report.single(&name, &shares, "", Some((0.95, true)), &tally)?;
            }
        }
        Ok(())
    }

    fn limited(&self, limit: Option<Limit>, burst: Burst) -> Result<Round> {
        let store = self.store(Data::Directory)?;
        self.tenant(&store, &["create", "acme"])?;
        store.load(&["write", "acme/small", "--bytes", SMALL])?;
        if let Burst::Read(_) = burst {
            store.load(&["write", "acme/big", "--bytes", "1GiB"])?;
        }
        if let Some(limit) = limit {
            self.tenant(&store, &["set", "acme", limit.flag, limit.value])?;
        }
        let running = self.burst(&store, burst)?;
        std::thread::sleep(SETTLE);
        let before = limit.map(|limit| of_tenant(&store, limit)).transpose()?;
        let begun = Instant::now();
        let reads = store.load(&["read", "acme/small", "--bytes", SMALL, "--count", READS])?;
        let seconds = begun.elapsed().as_secs_f64();
        let share = match (limit, before, burst) {
            (_, _, Burst::None) | (None, ..) | (_, None, _) => None,
            (Some(limit), Some(before), _) => {
                Some((of_tenant(&store, limit)? - before) / seconds / limit.per_second)
            }
        };
        if let Some(running) = running {
            running.kill()?;
        }
        store.server.stop()?;
        let ms = |name: &str| Ok::<_, anyhow::Error>(figure(&reads, name)? / 1e3);
        Ok(Round { p50: ms("p50_us")?, p99: ms("p99_us")?, p999: ms("p999_us")?, share })
    }

    fn tenant(&self, store: &Store<'_>, args: &[&str]) -> Result<()> {
        let all = [&["tenant", "--credential", &store.credential], args].concat();
        output(&self.site.longhaul, &all).map(drop)
    }

    fn burst(&self, store: &Store<'_>, burst: Burst) -> Result<Option<Server>> {
        let count = ((1_usize << 30) / READ_BYTES).to_string();
        let args = match burst {
            Burst::None => return Ok(None),
            Burst::Write => vec!["write", "acme/big", "--bytes", "16GiB"],
            Burst::Read(depth) => vec!["read", "acme/big", "--count", &count, "--depth", depth],
        };
        let args = [&["bench-link", "--credential", &store.credential], &args[..]].concat();
        let (program, log) = (Path::new(&self.site.longhaul), self.path("burst.log"));
        Server::start("bench-link", program, &args, &log).map(Some)
    }
}

fn figure(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no {name} in {value}"))
}

/// The tenant's share of its limit.
fn of_tenant(store: &Store<'_>, limit: Limit) -> Result<f64> {
    let page = admin::get(store.admin, "/metrics")?;
    let name = format!("{}{{tenant=\"acme\"}} ", limit.counter);
    let line = page.lines().find_map(|line| line.strip_prefix(&name));
    // Before the first request there is none.
    line.map_or(Ok(0.0), |value| value.parse().context("a counter is a number"))
}
