//! A part of a location: the objects of volumes below one name, and the catalog below another.
//!
//! ```text
//! v/…, volumes/…, …                 the first tree of a location: its objects have no name before theirs
//! tree/TOKEN/v/…                    what belongs to the volumes of another one
//! catalog/TOKEN/volumes/…           and a catalog
//! site/…                            which of them counts (docs/formats.md)
//! ```
//!
//! If a lost location has to follow its replica, it gets a new tree. It keeps the old tree until
//! the new one is usable. A store that takes over a replica goes on with a copy of its catalog.

use super::{CacheReport, Copies, GetError, ObjectMeta, Objects, PutError, StorageError, Usage};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use std::ops::Range;
use std::sync::Arc;

/// Beginning of the keys of all trees but the first.
pub const TREES: &str = "tree/";
/// Beginning of the keys of all catalogs but the first.
pub const CATALOGS: &str = "catalog/";

/// A tree of a location, and a catalog.
pub struct Tree {
    base: Arc<dyn Objects>,
    /// Beginning of the keys of all objects of volumes.
    data: String,
    catalog: String,
}

impl Tree {
    /// The tree and the catalog with these tokens. An empty token means the first one.
    pub fn open(base: Arc<dyn Objects>, data: &str, catalog: &str) -> Arc<dyn Objects> {
        if data.is_empty() && catalog.is_empty() {
            return base;
        }
        let below = |trees: &str, token: &str| match token {
            "" => String::new(),
            token => format!("{trees}{token}/"),
        };
        let (data, catalog) = (below(TREES, data), below(CATALOGS, catalog));
        Arc::new(Tree { base, data, catalog })
    }

    fn prefix(&self, key: &str) -> &str {
        if key.starts_with("v/") { &self.data } else { &self.catalog }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix(key))
    }

    fn taken_off(&self, key: &str, list: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
        let prefix = self.prefix(key);
        let own = |meta: ObjectMeta| {
            let key = meta.key.strip_prefix(prefix)?.to_owned();
            Some(ObjectMeta { key, ..meta })
        };
        list.into_iter().filter_map(own).collect()
    }
}

#[async_trait]
impl Objects for Tree {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        self.base.put(&self.key(key), data).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.base.get(&self.key(key), range).await
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        self.base.try_get(&self.key(key), range)
    }

    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        self.base.read(&self.key(key), range, copies).await
    }

    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        self.base.try_read(&self.key(key), range, copies)
    }

    async fn finish(&self) {
        self.base.finish().await;
    }

    fn cache(&self) -> Option<CacheReport> {
        self.base.cache()
    }

    fn usage(&self) -> Option<Usage> {
        self.base.usage()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let list = self.base.list(&self.key(prefix)).await?;
        Ok(self.taken_off(prefix, list))
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let after = format!("{}{after}", self.prefix(prefix));
        let list = self.base.list_after(&self.key(prefix), &after).await?;
        Ok(self.taken_off(prefix, list))
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        self.base.restore(&self.key(key), data).await
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.base.delete(&self.key(key)).await
    }

    async fn delete_later(&self, key: &str) -> Result<(), StorageError> {
        self.base.delete_later(&self.key(key)).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        self.base.copy(&self.key(from), &self.key(to)).await
    }

    fn left(&self, volume: VolumeId) {
        self.base.left(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryObjects;
    use super::super::tests;
    use super::*;

    #[tokio::test]
    async fn a_tree_is_a_location_of_its_own() {
        let base: Arc<dyn Objects> = Arc::new(MemoryObjects::new(1 << 20));
        let put = async |objects: &dyn Objects, key: &str, text: &'static str| {
            objects.put(key, vec![Bytes::from_static(text.as_bytes())]).await
        };
        put(&*base, "v/1/seg/1", "first").await.unwrap();
        put(&*base, "volumes/a", "first").await.unwrap();
        assert_eq!(Arc::as_ptr(&Tree::open(base.clone(), "", "")), Arc::as_ptr(&base));

        let tree = Tree::open(base.clone(), "t", "c");
        assert_eq!(tree.get("volumes/a", None).await, Err(GetError::NotFound));
        put(&*tree, "v/1/seg/1", "second").await.unwrap();
        put(&*tree, "v/1/seg/2", "third").await.unwrap();
        put(&*tree, "volumes/a", "second").await.unwrap();
        assert_eq!(tree.get("v/1/seg/1", None).await.unwrap(), "second");
        assert_eq!(base.get("v/1/seg/1", None).await.unwrap(), "first");
        assert_eq!(base.get("catalog/c/volumes/a", None).await.unwrap(), "second");
        let after = tree.list_after("v/1/seg/", "v/1/seg/1").await.unwrap();
        assert_eq!(after, [ObjectMeta { key: "v/1/seg/2".into(), bytes: 5 }]);
        tree.copy("v/1/seg/2", "v/1/seg/3").await.unwrap();
        assert_eq!(tree.list("v/").await.unwrap().len(), 3);
        // The same data with another catalog.
        let other = Tree::open(base.clone(), "t", "d");
        assert_eq!(other.list("volumes/").await.unwrap(), []);
        assert_eq!(other.list("v/").await.unwrap().len(), 3);

        let fresh: Arc<dyn Objects> = Arc::new(MemoryObjects::new(1 << 30));
        tests::keeps_the_contract(Tree::open(fresh, "x", "x")).await;
    }
}
