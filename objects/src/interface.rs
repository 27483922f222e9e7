//! What an object store has to do, whatever is behind it.

use super::s3::Usage;
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::cache::ObjectCacheStatus;
use longhaul_core::store::{Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError};
use std::ops::Range;

/// An object store.
#[async_trait]
pub trait Objects: Send + Sync {
    /// Creates an object from the concatenation of `data`.
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError>;

    /// Reads an object, or what there is of a range of it.
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError>;

    /// As [`Objects::get`], if the answer is at hand without waiting for a disk or a network.
    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        let _ = (key, range);
        None
    }

    /// A range of an object, or a copy of it.
    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        let _ = copies;
        self.get(key, Some(range)).await
    }

    /// As [`Objects::read`], if the answer is at hand without waiting for a disk or a network.
    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        let _ = copies;
        self.try_get(key, Some(range))
    }

    /// Brings what is kept beside the objects up to date, before an orderly end.
    async fn finish(&self) {}

    /// How the cache in front of it is doing, if there is one.
    fn cache(&self) -> Option<CacheReport> {
        None
    }

    /// What was asked of a bucket since the start, if they are in one.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// All objects whose names begin with `prefix`, in any order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, String>;

    /// Of these, those whose names come after `after`.
    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, String> {
        let mut list = self.list(prefix).await?;
        list.retain(|meta| meta.key.as_str() > after);
        Ok(list)
    }

    /// Deletes an object, durably. One that does not exist counts as deleted.
    async fn delete(&self, key: &str) -> Result<(), String>;

    /// Deletes an object of a volume that nobody needs any more, now or when that may be done.
    async fn delete_later(&self, key: &str) -> Result<(), String> {
        self.delete(key).await
    }

    /// Gives an object that is damaged or missing the content that it was created with; durable when it succeeds. Who reads it
    /// meanwhile gets what was there or what is.
    ///
    /// # Errors
    /// Why it may still be as it was.
    async fn restore(&self, key: &str, data: Bytes) -> Result<(), String> {
        match self.put(key, vec![data]).await {
            Ok(()) => Ok(()),
            Err(PutError::Exists) => Err(format!("{key} is there, and cannot be replaced")),
            Err(PutError::Failed(error)) => Err(error),
        }
    }

    /// Gives an object a second name, which is nobody's yet, without its content leaving the place if that can be.
    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        match self.get(from, None).await {
            Ok(data) => self.put(to, vec![data]).await,
            Err(error) => Err(PutError::Failed(error.to_string())),
        }
    }

    /// Others may change this volume from now on.
    fn left(&self, volume: VolumeId) {
        let _ = volume;
    }
}

/// Carries out an operation of the engine.
pub async fn execute(objects: &dyn Objects, operation: ObjectOperation) -> ObjectResult {
    match operation {
        ObjectOperation::Put { key, data } => ObjectResult::Put(objects.put(&key, data).await),
        ObjectOperation::Get { key, range: Some(range), copies } => {
            ObjectResult::Get(objects.read(&key, range, copies).await)
        }
        ObjectOperation::Get { key, range: None, .. } => {
            ObjectResult::Get(objects.get(&key, None).await)
        }
        ObjectOperation::List { prefix } => ObjectResult::List(objects.list(&prefix).await),
        ObjectOperation::ListAfter { prefix, after } => {
            ObjectResult::List(objects.list_after(&prefix, &after).await)
        }
        ObjectOperation::Delete { key } => ObjectResult::Delete(objects.delete_later(&key).await),
    }
}

/// How a cache is doing.
#[derive(Clone, Copy, Debug)]
pub struct CacheReport {
    /// Since the start.
    pub status: ObjectCacheStatus,
}
