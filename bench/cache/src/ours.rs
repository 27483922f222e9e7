//! The read cache of longhaul, driven as a host does.

use crate::{Contender, LINE};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_base::disk::OrderedDisk;
use longhaul_core::block::{Range, ReadPiece, Time, VolumeId};
use longhaul_core::cache::{Cache, Found, Geometry, LINE_SECTORS, Load, Outcome, Reader, Source};
use longhaul_core::host::{DiskOperation, DiskResult};
use longhaul_core::wire::link::{Changes, HostId, Moment};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

pub struct Ours {
    cache: Cache,
    disk: OrderedDisk,
    origin: Instant,
    under_way: usize,
    read: Option<Bytes>,
}

impl Ours {
    pub fn open(path: &Path, fresh: bool) -> Result<Ours> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(fresh);
        let file = options.open(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, crate::BYTES)?;
        let geometry = Geometry::for_size(crate::BYTES).context("no geometry")?;
        let mut load = Load::new(geometry, Some(VolumeId(1)));
        while let Some(operation) = load.poll_disk() {
            let DiskOperation::Read { id, offset, bytes, .. } = operation else { continue };
            let mut data = vec![0; bytes];
            file.read_exact_at(&mut data, offset)?;
            load.handle_disk(DiskResult::Data { id, data: data.into() });
        }
        let mut cache = load.finish(VolumeId(1), 1);
        cache.set_interval(Duration::from_secs(10));
        // The store's answer about changes: none here, to see what the file alone knows.
        cache.handle_changes(Time(0), &Changes::Ranges(Vec::new()));
        let disk = OrderedDisk::new(vec![file], path.display().to_string());
        Ok(Ours { cache, disk, origin: Instant::now(), under_way: 0, read: None })
    }

    fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    fn done(&mut self, result: DiskResult) {
        match self.cache.handle_disk(self.now(), result) {
            Outcome::None => {}
            Outcome::Read(_, _, data) => self.read = data.ok(),
            Outcome::Failed(error, _) => panic!("{error}"),
        }
    }

    fn drive(&mut self) {
        let moment = Moment { epoch: 1, host: HostId(1), seq: 1 };
        loop {
            self.cache.settle(self.now(), moment, false);
            let Some(operation) = self.cache.poll_disk() else { break };
            match self.disk.start_operation(operation) {
                Some(result) => self.done(result),
                None => self.under_way += 1,
            }
        }
        self.disk.submit();
    }

    async fn wait(&mut self) {
        self.disk.watch().await;
        for result in self.disk.take_results() {
            self.under_way -= 1;
            self.done(result);
        }
        self.drive();
    }
}

fn range(line: u64) -> Range {
    Range::new(line * LINE_SECTORS, LINE_SECTORS)
}

impl Contender for Ours {
    async fn get(&mut self, line: u64) -> Option<Bytes> {
        match self.cache.cover(range(line))[..] {
            [(whole, Found::At(at))] if whole == range(line) => {
                self.cache.read(Reader { read: 0, slot: 0 }, whole, at);
                self.read = None;
                self.drive();
                while self.read.is_none() && self.under_way > 0 {
                    self.wait().await;
                }
                self.read.take()
            }
            _ => {
                self.cache.missed(LINE as u64);
                None
            }
        }
    }

    fn put(&mut self, line: u64, data: Bytes) {
        let now = self.now();
        self.cache.offer(now, Source::Read, range(line), &[ReadPiece::Data(data)]);
        self.drive();
        for result in self.disk.take_results() {
            self.under_way -= 1;
            self.done(result);
        }
    }

    fn remove(&mut self, line: u64) {
        let now = self.now();
        self.cache.forget(now, range(line));
    }

    async fn settle(&mut self) {
        self.drive();
        while self.under_way > 0 {
            self.wait().await;
        }
    }

    fn written(&self) -> u64 {
        self.cache.status().counters.written_bytes
    }

    async fn close(mut self) {
        self.settle().await;
    }
}
