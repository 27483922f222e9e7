//! A new tree of a location that has an older one. Does not send objects that the location has
//! already.
//!
//! An object counts as the same if its length, its first and its last bytes are the same. That is
//! enough: the header or the trailer of every object holds a checksum, or a token that is unique.

use super::{GetError, ObjectMeta, Objects, PutError, StorageError};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes to compare at either end.
const COMPARED_BYTES: u64 = 4096;

/// The objects of a new tree.
pub struct Reusing {
    /// All objects of the location.
    base: Arc<dyn Objects>,
    tree: Arc<dyn Objects>,
    /// The prefixes of the keys of the two trees.
    old: String,
    new: String,
    reused: AtomicU64,
}

impl Reusing {
    /// `tree` holds the objects below `new`.
    pub fn new(
        base: Arc<dyn Objects>,
        tree: Arc<dyn Objects>,
        old: String,
        new: String,
    ) -> Reusing {
        Reusing { base, tree, old, new, reused: AtomicU64::new(0) }
    }

    /// Bytes that did not have to be sent.
    pub fn reused_bytes(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    async fn has(&self, key: &str, data: &[Bytes]) -> bool {
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        let first = 0..bytes.min(COMPARED_BYTES);
        // One byte more than there are, to notice a longer object.
        let last = bytes.saturating_sub(COMPARED_BYTES)..bytes + 1;
        for range in [first, last] {
            let expected = slice(data, range.start..range.end.min(bytes));
            match self.base.get(key, Some(range)).await {
                Ok(there) if there == expected => {}
                _ => return false,
            }
        }
        true
    }
}

/// A part of the concatenation.
fn slice(data: &[Bytes], range: Range<u64>) -> Bytes {
    let mut at = 0;
    let mut out = Vec::new();
    for part in data {
        let end = at + part.len() as u64;
        let (from, to) = (range.start.clamp(at, end) - at, range.end.clamp(at, end) - at);
        out.extend_from_slice(&part[from as usize..to as usize]);
        at = end;
    }
    out.into()
}

#[async_trait]
impl Objects for Reusing {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        // Sending a small object takes less time than looking for it.
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        let old = format!("{}{key}", self.old);
        if key.starts_with("v/") && bytes > 2 * COMPARED_BYTES && self.has(&old, &data).await {
            // If the location copies objects, a copy would overwrite this one silently. It would be
            // the same.
            match self.tree.get(key, Some(0..1)).await {
                Ok(_) => return Err(PutError::Exists),
                Err(GetError::NotFound) => {}
                Err(error) => return Err(PutError::Failed(error.into())),
            }
            self.base.copy(&old, &format!("{}{key}", self.new)).await?;
            self.reused.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        self.tree.put(key, data).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.tree.get(key, range).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.tree.list(prefix).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.tree.list_after(prefix, after).await
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.tree.delete(key).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryObjects, Tree};
    use super::*;

    #[tokio::test]
    async fn what_is_there_is_not_sent_again() {
        let base: Arc<dyn Objects> = Arc::new(MemoryObjects::new(8 << 20));
        let object = |tail: u8| {
            let mut data = vec![7; 20_000];
            data[19_999] = tail;
            vec![Bytes::from(data[..5000].to_vec()), Bytes::from(data[5000..].to_vec())]
        };
        base.put("v/1/seg/1", object(1)).await.unwrap();
        base.put("v/1/seg/2", object(2)).await.unwrap();
        let tree = Tree::open(base.clone(), "t", "t");
        let reusing = Reusing::new(base.clone(), tree.clone(), String::new(), "tree/t/".into());
        let mut longer = object(2);
        longer.push(Bytes::from_static(b"x"));
        for (key, data, reused) in [
            ("v/1/seg/1", object(1), 20_000),
            ("v/1/seg/2", object(3), 20_000),
            ("v/1/seg/3", object(3), 20_000),
            ("v/1/seg/4", longer, 20_000),
        ] {
            reusing.put(key, data.clone()).await.unwrap();
            assert_eq!(reusing.reused_bytes(), reused, "{key}");
            assert_eq!(tree.get(key, None).await.unwrap(), data.concat(), "{key}");
            assert_eq!(reusing.put(key, data).await, Err(PutError::Exists), "{key}");
        }
        // The old object is unchanged.
        assert_eq!(base.get("v/1/seg/2", None).await.unwrap(), object(2).concat());
    }
}
