//! foyer's hybrid cache: a memory tier of a hundredth of the disk tier, and a write at each
//! insertion. It has the tombstone log that a cache of changing data needs.

use crate::{Contender, LINE};
use anyhow::Result;
use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder as _, FileDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, PsyncIoEngineConfig, RecoverMode,
};
use std::path::Path;

pub struct Foyer {
    cache: HybridCache<u64, Bytes>,
}

impl Foyer {
    pub async fn open(path: &Path, fresh: bool) -> Result<Foyer> {
        if fresh && path.exists() {
            std::fs::remove_file(path)?;
        }
        let device = FileDeviceBuilder::new(path).with_capacity(crate::BYTES as usize).build()?;
        let engine = BlockEngineConfig::new(device)
            // Evicted at once: 64 of them, as 16 MiB would be in a cache of 1 GiB.
            .with_block_size(1 << 20)
            .with_tombstone_log(true);
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .with_flush_on_close(false)
            .memory((crate::BYTES / 100) as usize)
            .with_shards(1)
            .with_weighter(|_: &u64, value: &Bytes| value.len())
            .storage()
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::Quiet)
            .build()
            .await?;
        Ok(Foyer { cache })
    }
}

impl Foyer {
    /// Its memory tier is as large as one likes, and does not count.
    pub fn forget_memory_tier(&mut self) {
        self.cache.memory().clear();
    }
}

impl Contender for Foyer {
    async fn get(&mut self, line: u64) -> Option<Bytes> {
        let entry = self.cache.get(&line).await.ok()??;
        (entry.value().len() == LINE).then(|| entry.value().clone())
    }

    fn put(&mut self, line: u64, data: Bytes) {
        self.cache.insert(line, data);
    }

    fn remove(&mut self, line: u64) {
        self.cache.remove(&line);
    }

    async fn settle(&mut self) {
        self.cache.storage().wait().await;
    }

    fn written(&self) -> u64 {
        self.cache.statistics().disk_write_bytes() as u64
    }

    async fn close(self) {
        let _ = self.cache.close().await;
    }
}
