//! The interface of all object stores.

use super::s3::Usage;
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::cache::ObjectCacheStatus;
use longhaul_core::store::{
    Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
};
use std::ops::Range;

/// An object store.
#[async_trait]
pub trait Objects: Send + Sync {
    /// Creates an object from the concatenation of `data`.
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError>;

    /// Reads an object, or the existing part of a range of it.
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError>;

    /// Like [`Objects::get`], if the answer needs no disk and no network.
    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        let _ = (key, range);
        None
    }

    /// Reads a range of an object, or of a copy of it.
    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        let _ = copies;
        self.get(key, Some(range)).await
    }

    /// Like [`Objects::read`], if the answer needs no disk and no network.
    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        let _ = copies;
        self.try_get(key, Some(range))
    }

    /// Completes everything that the object store keeps beside the objects, before an orderly end.
    async fn finish(&self) {}

    /// The state of the cache in front of it, if there is one.
    fn cache(&self) -> Option<CacheReport> {
        None
    }

    /// The requests to a bucket since the start, if a bucket holds the objects.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// All objects whose names begin with `prefix`, in any order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError>;

    /// The objects of such a list whose names come after `after`.
    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let mut list = self.list(prefix).await?;
        list.retain(|meta| meta.key.as_str() > after);
        Ok(list)
    }

    /// Deletes an object, durably. One that does not exist counts as deleted.
    async fn delete(&self, key: &str) -> Result<(), StorageError>;

    /// Deletes an object of a volume that nobody needs any more, now or as soon as allowed.
    async fn delete_later(&self, key: &str) -> Result<(), StorageError> {
        self.delete(key).await
    }

    /// Gives a damaged or missing object the content of its creation; durable when it succeeds. A
    /// read at the same time gets the old content or the new one.
    ///
    /// # Errors
    /// Why the object may be unchanged.
    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        match self.put(key, vec![data]).await {
            Ok(()) => Ok(()),
            Err(PutError::Exists) => {
                let why = format!("{key} is there, and cannot be replaced");
                Err(StorageError::unavailable(why))
            }
            Err(PutError::Failed(error)) => Err(error),
        }
    }

    /// Gives an object a second name, which must be free. If possible the content does not leave
    /// the object store.
    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        match self.get(from, None).await {
            Ok(data) => self.put(to, vec![data]).await,
            Err(error) => Err(PutError::Failed(error.into())),
        }
    }

    /// Notes that another store may change this volume from now on.
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

/// The state of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheReport {
    /// Totals since the start.
    pub status: ObjectCacheStatus,
}
