//! Tests of the contract that every object store has to keep.

use super::*;
use bytes::Bytes;
use std::sync::Arc;

/// Tests an object store that has no objects below `v/`, and empties it again.
pub async fn keeps_the_contract(objects: Arc<dyn Objects>) {
    what_is_put_can_be_read_listed_and_deleted(&*objects).await;
    what_was_lost_is_restored(&*objects).await;
    of_many_that_create_a_name_one_succeeds(&objects).await;
}

async fn what_was_lost_is_restored(objects: &dyn Objects) {
    let data = Bytes::from(vec![7; 5000]);
    objects.restore("v/1/seg/lost", data.clone()).await.unwrap();
    assert_eq!(objects.put("v/1/seg/lost", vec![data.clone()]).await, Err(PutError::Exists));
    // A reader that has read the object before can read on.
    assert_eq!(objects.get("v/1/seg/lost", Some(4999..5000)).await.unwrap(), data[4999..]);
    objects.restore("v/1/seg/lost", data.clone()).await.unwrap();
    assert_eq!(objects.get("v/1/seg/lost", Some(4999..5000)).await.unwrap(), data[4999..]);
    assert_eq!(objects.get("v/1/seg/lost", None).await.unwrap(), data);
    objects.delete("v/1/seg/lost").await.unwrap();
    assert_eq!(objects.list("v/").await.unwrap(), []);
}

async fn what_is_put_can_be_read_listed_and_deleted(objects: &dyn Objects) {
    let parts = vec![Bytes::from("hello "), Bytes::new(), Bytes::from("world")];
    objects.put("v/1/seg/a", parts.clone()).await.unwrap();
    assert_eq!(objects.put("v/1/seg/a", parts).await, Err(PutError::Exists));
    assert_eq!(objects.get("v/1/seg/a", None).await.unwrap(), "hello world");
    assert_eq!(objects.get("v/1/seg/a", Some(6..9)).await.unwrap(), "wor");
    if let Some(at_hand) = objects.try_get("v/1/seg/a", Some(&(6..9))) {
        assert_eq!(at_hand.unwrap(), "wor");
    }
    assert_eq!(objects.get("v/1/seg/a", Some(6..99)).await.unwrap(), "world");
    assert_eq!(objects.get("v/1/seg/a", Some(50..99)).await.unwrap(), "");
    assert_eq!(objects.get("v/1/seg/b", None).await, Err(GetError::NotFound));
    assert_eq!(objects.get("v/1/seg/b", Some(0..9)).await, Err(GetError::NotFound));

    objects.put("v/1/map/b", vec![Bytes::from("x")]).await.unwrap();
    objects.put("v/1/map/none", Vec::new()).await.unwrap();
    assert_eq!(objects.get("v/1/map/none", None).await.unwrap(), "");
    let mut all = objects.list("v/1/").await.unwrap();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    let all: Vec<_> = all.iter().map(|meta| (meta.key.as_str(), meta.bytes)).collect();
    assert_eq!(all, [("v/1/map/b", 1), ("v/1/map/none", 0), ("v/1/seg/a", 11)]);
    assert_eq!(objects.list("v/1/seg/").await.unwrap().len(), 1);
    assert_eq!(objects.list("v/2/").await.unwrap(), []);
    let after = objects.list_after("v/1/", "v/1/map/b").await.unwrap();
    let mut after: Vec<_> = after.iter().map(|meta| meta.key.as_str()).collect();
    after.sort_unstable();
    assert_eq!(after, ["v/1/map/none", "v/1/seg/a"]);

    objects.copy("v/1/seg/a", "v/3/seg/a").await.unwrap();
    assert!(objects.copy("v/1/seg/none", "v/3/seg/none").await.is_err());
    objects.delete("v/1/seg/a").await.unwrap();
    assert_eq!(objects.get("v/3/seg/a", None).await.unwrap(), "hello world");
    objects.delete("v/3/seg/a").await.unwrap();
    objects.delete("v/1/seg/a").await.unwrap();
    objects.delete("v/1/seg/a").await.unwrap();
    for meta in objects.list("v/1/map/").await.unwrap() {
        objects.delete(&meta.key).await.unwrap();
    }
    assert_eq!(objects.get("v/1/seg/a", None).await, Err(GetError::NotFound));
    assert_eq!(objects.list("v/").await.unwrap(), []);
}

async fn of_many_that_create_a_name_one_succeeds(objects: &Arc<dyn Objects>) {
    for round in 0..20 {
        let key = format!("v/{round}/seg/1");
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..8_u8 {
            let (objects, key) = (objects.clone(), key.clone());
            tasks.spawn(async move {
                let data = vec![Bytes::from(vec![n; 5000]); 2];
                objects.put(&key, data).await.map(|()| n)
            });
        }
        let results = tasks.join_all().await;
        let winners: Vec<_> = results.iter().filter_map(|result| result.clone().ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let lost = results.iter().filter(|result| **result == Err(PutError::Exists)).count();
        assert_eq!(lost, 7, "{results:?}");
        assert_eq!(objects.get(&key, None).await.unwrap(), vec![winners[0]; 10_000]);
        objects.delete(&key).await.unwrap();
    }
}

#[tokio::test]
async fn objects_in_memory() {
    keeps_the_contract(Arc::new(MemoryObjects::new(1 << 20))).await;
}
