//! Small objects with the line that binds them to their names ([`sealed`]): put behind them here,
//! verified and taken off here. Nobody above sees it, everybody below carries it along.

use super::{CacheReport, Copies, GetError, ObjectMeta, Objects, PutError, StorageError, Usage};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::sealed;
use std::ops::Range;
use std::sync::Arc;

/// Objects whose small ones are sealed where they lie.
pub struct Sealed {
    below: Arc<dyn Objects>,
}

impl Sealed {
    /// Those of `below`.
    pub fn new(below: Arc<dyn Objects>) -> Sealed {
        Sealed { below }
    }

    /// A sealed object, or a part of its content.
    async fn open(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let object = self.below.get(key, None).await?;
        let content = sealed::open(key, &object).map_err(|error| {
            let error = format!("object {key} is damaged: {error}");
            tracing::warn!("{error}");
            GetError::Damaged(error)
        })?;
        Ok(match range {
            None => content,
            Some(range) => {
                let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
                let (start, end) = (place(range.start), place(range.end));
                content.slice(start.min(end)..end)
            }
        })
    }
}

#[async_trait]
impl Objects for Sealed {
    async fn put(&self, key: &str, mut data: Vec<Bytes>) -> Result<(), PutError> {
        if sealed::is_sealed(key) {
            data.push(sealed::seal(key, &data));
        }
        self.below.put(key, data).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        match sealed::is_sealed(key) {
            true => self.open(key, range).await,
            false => self.below.get(key, range).await,
        }
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        if sealed::is_sealed(key) { None } else { self.below.try_get(key, range) }
    }

    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        match sealed::is_sealed(key) {
            true => self.open(key, Some(range)).await,
            false => self.below.read(key, range, copies).await,
        }
    }

    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        if sealed::is_sealed(key) { None } else { self.below.try_read(key, range, copies) }
    }

    async fn finish(&self) {
        self.below.finish().await;
    }

    fn cache(&self) -> Option<CacheReport> {
        self.below.cache()
    }

    fn usage(&self) -> Option<Usage> {
        self.below.usage()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.below.list(prefix).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.below.list_after(prefix, after).await
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.below.delete(key).await
    }

    async fn delete_later(&self, key: &str) -> Result<(), StorageError> {
        self.below.delete_later(key).await
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        if !sealed::is_sealed(key) {
            return self.below.restore(key, data).await;
        }
        let line = sealed::seal(key, std::slice::from_ref(&data));
        self.below.restore(key, [data, line].concat().into()).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        if !sealed::is_sealed(from) && !sealed::is_sealed(to) {
            return self.below.copy(from, to).await;
        }
        match self.get(from, None).await {
            Ok(data) => self.put(to, vec![data]).await,
            Err(error) => Err(PutError::Failed(error.into())),
        }
    }

    fn left(&self, volume: VolumeId) {
        self.below.left(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryObjects;
    use super::*;

    #[tokio::test]
    async fn what_lies_under_another_name_or_is_cut_is_damaged() {
        let below: Arc<dyn Objects> = Arc::new(MemoryObjects::new(1 << 20));
        let objects = Sealed::new(below.clone());
        let put = async |objects: &dyn Objects, key: &str, data: Bytes| {
            objects.put(key, vec![data]).await.unwrap();
        };
        put(&objects, "volumes/a", Bytes::from_static(b"one")).await;
        put(&objects, "volumes/b", Bytes::new()).await;
        assert_eq!(objects.get("volumes/a", None).await.unwrap(), "one");
        assert_eq!(objects.get("volumes/a", Some(1..9)).await.unwrap(), "ne");
        assert_eq!(objects.get("volumes/a", Some(7..9)).await.unwrap(), "");
        assert_eq!(objects.get("volumes/b", None).await.unwrap(), "");
        let raw = below.get("volumes/a", None).await.unwrap();
        put(&*below, "volumes/c", raw.clone()).await;
        put(&*below, "volumes/d", raw.slice(..raw.len() - 1)).await;
        put(&*below, "volumes/e", Bytes::new()).await;
        for key in ["volumes/c", "volumes/d", "volumes/e"] {
            let read = objects.get(key, None).await;
            assert!(matches!(&read, Err(GetError::Damaged(why)) if why.contains(key)), "{read:?}");
        }
        assert_eq!(objects.get("volumes/f", None).await, Err(GetError::NotFound));
        objects.copy("volumes/a", "volumes/g").await.unwrap();
        assert_eq!(objects.get("volumes/g", None).await.unwrap(), "one");
        let again = objects.put("volumes/a", vec![Bytes::from_static(b"two")]).await;
        assert_eq!(again, Err(PutError::Exists));
        objects.delete("volumes/a").await.unwrap();
        assert_eq!(objects.get("volumes/a", None).await, Err(GetError::NotFound));
    }
}
