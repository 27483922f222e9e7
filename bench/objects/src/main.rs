//! Measures the objects of a store on a file system, and the local object store of `object_store`,
//! in turn on the same disk. The output has the numbers of `docs/decisions/objects.md`:
//!
//!     make bench-objects [DIR=where the files go]

use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_objects::{LocalObjects, Objects as _};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use std::time::Instant;

/// Bytes of an object.
const OBJECT: u64 = 4 << 20;
/// Bytes of a read.
const READ: u64 = 8192;
/// Objects of a round.
const PUTS: u64 = 60;
/// Reads of a round.
const GETS: u64 = 20_000;
const ROUNDS: u64 = 2;

/// The times of one kind of operation, in milliseconds.
struct Times {
    what: &'static str,
    taken: Vec<f64>,
}

impl Times {
    fn new(what: &'static str) -> Self {
        Times { what, taken: Vec::new() }
    }

    fn since(&mut self, begun: Instant) {
        self.taken.push(begun.elapsed().as_secs_f64() * 1e3);
    }

    fn report(mut self) {
        self.taken.sort_by(f64::total_cmp);
        let mean = self.taken.iter().sum::<f64>() / self.taken.len() as f64;
        let (median, p99) =
            (self.taken[self.taken.len() / 2], self.taken[self.taken.len() * 99 / 100]);
        println!("{}: mean {mean:.3} ms, median {median:.3} ms, p99 {p99:.3} ms", self.what);
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let base = std::env::args().nth(1).unwrap_or_else(|| "/var/tmp".to_owned());
    let dir = tempfile::tempdir_in(base).context("cannot make a directory; name one as DIR=")?;
    let ours = LocalObjects::open(dir.path())?;
    let beside = dir.path().join("theirs");
    std::fs::create_dir(&beside)?;
    let theirs = LocalFileSystem::new_with_prefix(beside)?.with_fsync(true);
    for round in 0..ROUNDS {
        puts(round, &ours, &theirs).await?;
        gets(round, &ours, &theirs).await?;
    }
    Ok(())
}

async fn puts(round: u64, ours: &LocalObjects, theirs: &LocalFileSystem) -> Result<()> {
    let data = Bytes::from(vec![5; OBJECT as usize]);
    let create = || PutOptions { mode: PutMode::Create, ..Default::default() };
    let (mut a, mut b) = (Times::new("put 4 MiB, ours"), Times::new("put 4 MiB, object_store"));
    for n in 0..PUTS {
        let key = format!("v/{round}/seg/{n}");
        let begun = Instant::now();
        ours.put(&key, vec![data.clone()]).await?;
        a.since(begun);
        let begun = Instant::now();
        let payload = PutPayload::from(data.clone());
        theirs.put_opts(&key.as_str().into(), payload, create()).await?;
        b.since(begun);
    }
    a.report();
    b.report();
    Ok(())
}

async fn gets(round: u64, ours: &LocalObjects, theirs: &LocalFileSystem) -> Result<()> {
    let mut a = Times::new("get 8 KiB, ours, thread");
    let mut b = Times::new("get 8 KiB, ours, inline");
    let mut c = Times::new("get 8 KiB, object_store");
    for n in 0..GETS {
        let key = format!("v/{round}/seg/{}", n % PUTS);
        let at = n * READ % OBJECT;
        let begun = Instant::now();
        ours.get(&key, Some(at..at + READ)).await?;
        a.since(begun);
        let begun = Instant::now();
        ours.try_get(&key, Some(&(at..at + READ))).context("the pages are not in memory")??;
        b.since(begun);
        let begun = Instant::now();
        theirs.get_range(&key.as_str().into(), at..at + READ).await?;
        c.since(begun);
    }
    a.report();
    b.report();
    c.report();
    Ok(())
}
