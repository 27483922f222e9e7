//! The costs of a store as its sessions, the history of a volume, or the stores beside it grow.

use super::{Bench, Data, MIB};
use crate::costs::{Use, head};
use crate::node::free_port;
use crate::process::{Server, output};
use crate::report::Table;
use crate::run::admin;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Sessions, each with a volume. A store takes 512 from one address.
const SESSIONS: [usize; 4] = [1, 10, 100, 500];
/// Segments of a volume.
const SEGMENTS: [u64; 4] = [10, 100, 1000, 10_000];
/// Stores over one directory.
const STORES: [usize; 4] = [1, 2, 4, 8];

/// How long a store is left alone, before a look and during one.
const SETTLED: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(20);

impl Bench<'_> {
    /// The costs of a store as something grows.
    pub(super) fn growth(&self) -> Result<()> {
        self.growth_of_sessions()?;
        self.growth_of_history()?;
        self.growth_of_fleet()
    }

    /// Percent of a core and wake-ups a second of a store that has nothing to do, and its memory.
    fn idle(&self, server: &Server) -> Result<[String; 2]> {
        std::thread::sleep(SETTLED);
        let before = Use::of(server)?;
        std::thread::sleep(IDLE);
        let (share, wakeups) = Use::of(server)?.since(&before);
        let memory = server.memory_bytes()? as f64 / MIB;
        Ok([format!("{share:.2} %, {wakeups:.0}/s"), format!("{memory:.1}")])
    }

    fn growth_of_sessions(&self) -> Result<()> {
        let mut rows = Vec::new();
        for count in SESSIONS {
            let store = self.store(Data::Directory)?;
            let before = store.server.cpu_seconds()?;
            let count = count.to_string();
            let log = self.path("link.log");
            let args =
                ["bench-link", "--credential", &store.credential, "hold", "--sessions", &count];
            let mut link = Server::start("bench-link", &self.site.longhaul, &args, &log)?;
            let printed = || std::fs::read_to_string(&log).unwrap_or_default();
            link.wait_until("sessions", || printed().contains("\"seconds\""))?;
            let text = printed();
            let held: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
                .with_context(|| format!("bench-link printed {text}"))?;
            let seconds = held["seconds"].as_f64().context("no figure")?;
            let used = store.server.cpu_seconds()? - before;
            let mut cells = vec![count, format!("{seconds:.2}"), format!("{used:.2}")];
            cells.extend(self.idle(&store.server)?);
            rows.push(cells);
            link.stop()?;
            store.server.stop()?;
        }
        self.report.table(Table {
            title: "Sessions of a store, each with a volume attached".into(),
            head: head(&["sessions", "s to attach", "store CPU s for it", "store idle", "MiB"]),
            rows,
        });
        Ok(())
    }

    fn growth_of_history(&self) -> Result<()> {
        let mut rows = Vec::new();
        for segments in SEGMENTS {
            let store = self.store(Data::Directory)?;
            let bytes = (segments * 4096).to_string();
            let args = ["write", "v", "--record", "4KiB", "--bytes", &bytes, "--one-at-a-time"];
            let before = store.server.cpu_seconds()?;
            let written = store.load(&[&args[..], &["--random"]].concat())?;
            let seconds = written["seconds"].as_f64().context("no figure")?;
            let each = (store.server.cpu_seconds()? - before) / segments as f64;
            let mut cells = vec![segments.to_string()];
            cells.push(format!("{:.2}", seconds / segments as f64 * 1e3));
            cells.push(format!("{:.2}", each * 1e3));
            cells.push(format!("{:.1}", store.server.memory_bytes()? as f64 / MIB));
            store.server.stop()?;
            let store = self.again(Data::Directory)?;
            let begun = Instant::now();
            let list = ["snapshot", "list", "v", "--credential", &store.credential];
            output(&self.site.longhaul, &list)?;
            cells.push(format!("{:.1}", begun.elapsed().as_secs_f64() * 1e3));
            cells.push(format!("{}", store.requests()?.0));
            cells.push(format!("{:.1}", store.server.memory_bytes()? as f64 / MIB));
            rows.push(cells);
            store.server.stop()?;
        }
        self.report.table(Table {
            title: "Segments of a volume, each with a 4 KiB write".into(),
            head: head(&[
                "segments",
                "ms for one",
                "store CPU ms for one",
                "MiB after them",
                "ms to open after a restart",
                "requests for that",
                "MiB",
            ]),
            rows,
        });
        Ok(())
    }

    fn growth_of_fleet(&self) -> Result<()> {
        let mut rows = Vec::new();
        for count in STORES {
            let first = self.store(Data::Directory)?;
            let text = |name: &str| self.path(name).display().to_string();
            let run = |args: &[&str]| output(&self.site.longhaul, args);
            let mut others = Vec::new();
            for number in 1..count {
                let (state, log) = (format!("store-{number}"), format!("store-{number}.log"));
                let _ = std::fs::remove_dir_all(self.path(&state));
                let invitation = run(&["store", "invite", "--state", &text("store")])?;
                std::fs::write(self.path("invitation"), invitation)?;
                run(&["store", "join", "--state", &text(&state), &text("invitation")])?;
                let (listen, admin) =
                    (format!("127.0.0.1:{}", free_port(true)?), free_port(false)?);
                let (data, state) = (text("objects"), text(&state));
                let address = format!("127.0.0.1:{admin}");
                let args = ["store", "--data", &data, "--state", &state, "--listen", &listen];
                let args = [&args[..], &["--admin", &address]].concat();
                let mut store = Server::start(&log, &self.site.longhaul, &args, &self.path(&log))?;
                store.wait_until("answer", || admin::get(admin, "/healthz").is_ok())?;
                others.push(store);
            }
            let create = ["volume", "create", "v", "--size", "1GiB"];
            run(&[&create[..], &["--credential", &first.credential]].concat())?;
            let mut cells = vec![count.to_string()];
            cells.extend(self.idle(&first.server)?);
            let begun = Instant::now();
            for _ in 0..10 {
                run(&["volume", "list", "--credential", &first.credential])?;
            }
            cells.push(format!("{:.1}", begun.elapsed().as_secs_f64() * 100.0));
            rows.push(cells);
            for store in others {
                store.stop()?;
            }
            first.server.stop()?;
            for number in 1..count {
                let _ = std::fs::remove_dir_all(self.path(&format!("store-{number}")));
            }
        }
        self.report.table(Table {
            title: "Stores over one directory".into(),
            head: head(&["stores", "one of them, idle", "MiB", "ms to list volumes"]),
            rows,
        });
        Ok(())
    }
}
