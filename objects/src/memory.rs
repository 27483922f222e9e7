//! Objects in the memory of the process, to measure the rest of a store without its disk.
//!
//! Nothing survives the process. The memory has a limit: a put beyond it fails as on a full disk.

use super::failure;
use super::{GetError, ObjectMeta, Objects, PutError, StorageError};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_base::units::show_bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of an object besides its bytes: its name, and its place in the map. An estimate.
const OBJECT_BYTES: u64 = 256;

/// Objects in memory.
pub struct MemoryObjects {
    inner: Arc<Inner>,
}

struct Inner {
    limit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// Bytes of the objects, including those of unfinished puts.
    used_bytes: u64,
}

impl MemoryObjects {
    /// No objects, and room for `limit_bytes` of them.
    pub fn new(limit_bytes: u64) -> MemoryObjects {
        MemoryObjects { inner: Arc::new(Inner { limit_bytes, state: Mutex::default() }) }
    }
}

fn cost(bytes: usize) -> u64 {
    bytes as u64 + OBJECT_BYTES
}

impl Inner {
    /// Each change with the lock held is whole: the state stays usable after a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: String, data: &[Bytes]) -> Result<(), PutError> {
        let cost = cost(data.iter().map(Bytes::len).sum());
        {
            let mut state = self.lock();
            if state.objects.contains_key(&key) {
                return Err(PutError::Exists);
            }
            let used = state.used_bytes.saturating_add(cost);
            if used > self.limit_bytes {
                return Err(PutError::Failed(failure::no_space(format_args!(
                    "no space left for {key}: {} of the {} of memory for objects are in use; \
                     delete volumes; until then the store commits nothing, and reads go on",
                    show_bytes(state.used_bytes),
                    show_bytes(self.limit_bytes)
                ))));
            }
            state.used_bytes = used;
        }
        // A copy: the parts may belong to larger buffers, or to buffers that their receiver uses
        // again.
        let data = Bytes::from(data.concat());
        let mut state = self.lock();
        if state.objects.contains_key(&key) {
            state.used_bytes -= cost;
            return Err(PutError::Exists);
        }
        state.objects.insert(key, data);
        Ok(())
    }

    fn get(&self, key: &str, range: Option<&Range<u64>>) -> Result<Bytes, GetError> {
        let data = self.lock().objects.get(key).cloned().ok_or(GetError::NotFound)?;
        let Some(range) = range else { return Ok(data) };
        let end = (range.end.min(data.len() as u64)) as usize;
        let start = (range.start.min(end as u64)) as usize;
        Ok(data.slice(start..end))
    }
}

#[async_trait]
impl Objects for MemoryObjects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let (inner, key) = (self.inner.clone(), key.to_owned());
        // A copy of a segment takes a millisecond, for which others would wait.
        let put = tokio::task::spawn_blocking(move || inner.put(key, &data)).await;
        put.map_err(|error| PutError::Failed(failure::of_thread(error)))?
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.inner.get(key, range.as_ref())
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        Some(self.inner.get(key, range))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let state = self.inner.lock();
        let from = state.objects.range(prefix.to_owned()..);
        let found = from.take_while(|(key, _)| key.starts_with(prefix));
        Ok(found
            .map(|(key, data)| ObjectMeta { key: key.clone(), bytes: data.len() as u64 })
            .collect())
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let mut state = self.inner.lock();
        let before = state.objects.insert(key.to_owned(), data.clone());
        state.used_bytes += cost(data.len());
        state.used_bytes -= before.map_or(0, |before| cost(before.len()));
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let mut state = self.inner.lock();
        if let Some(data) = state.objects.remove(key) {
            state.used_bytes -= cost(data.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::StorageErrorKind;
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_refused_and_deletion_makes_room() {
        let objects = MemoryObjects::new(3 * cost(1000));
        let data = |byte: u8| vec![Bytes::from(vec![byte; 600]), Bytes::from(vec![byte; 400])];
        for key in ["v/1/seg/1", "v/1/seg/2", "v/2/seg/1"] {
            objects.put(key, data(1)).await.unwrap();
        }
        let Err(PutError::Failed(error)) = objects.put("v/2/seg/2", data(2)).await else {
            panic!("there was no room");
        };
        assert_eq!(error.kind(), StorageErrorKind::Full);
        assert!(error.message().contains("no space left for v/2/seg/2"), "{error}");
        // The error for an existing object does not mean that there is no room.
        assert_eq!(objects.put("v/1/seg/1", data(2)).await, Err(PutError::Exists));
        assert_eq!(objects.get("v/1/seg/1", None).await.unwrap(), vec![1; 1000]);
        objects.delete("v/1/seg/1").await.unwrap();
        objects.delete("v/1/seg/1").await.unwrap();
        objects.put("v/2/seg/2", data(2)).await.unwrap();
        assert_eq!(objects.inner.lock().used_bytes, 3 * cost(1000));
    }
}
