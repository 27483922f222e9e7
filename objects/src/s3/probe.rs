//! Tests whether a bucket creates an object only if no object has its name.
//!
//! Everything that keeps two stores apart rests on that, and some servers accept the condition and
//! ignore it. So a store tests it before it keeps anything in a bucket. It creates a name twice,
//! then from two requests at once.

use super::Objects;
use crate::{GetError, PutError, StorageError};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;

/// Bytes of a test object: long enough for two creations to overlap.
const PROBE_BYTES: usize = 64 << 10;
/// Most races until one has a clear end, because answers get lost.
const RACES: usize = 4;

/// Runs the test on names that begin with `prefix`, which nobody else uses. Removes its objects.
///
/// # Errors
/// If the bucket breaks the condition, or is unusable.
pub async fn probe(objects: &dyn Objects, prefix: &str, bucket: &str) -> Result<()> {
    let mut made = Vec::new();
    let result = try_all(objects, prefix, bucket, &mut made).await;
    for key in made {
        if let Err(error) = objects.delete(&key).await {
            tracing::warn!("the object {key}, made to try the bucket, stays: {error}");
        }
    }
    result
}

async fn try_all(
    objects: &dyn Objects,
    prefix: &str,
    bucket: &str,
    made: &mut Vec<String>,
) -> Result<()> {
    let refuse = |how: &str| {
        format!(
            "{bucket} cannot be used: it does not keep the condition to create an object only if \
             no object has its name (PutObject with `If-None-Match: *`): {how}; two stores, or a \
             store and its replacement, would overwrite each other's data. Use a server that keeps \
             to it, as AWS S3, MinIO, Ceph RGW and versitygw do; Garage does not, and MinIO not \
             for some seconds after its nodes were started: then start the store again"
        )
    };
    let [first, second] = [1_u8, 2].map(|n| Bytes::from(vec![n; PROBE_BYTES]));
    let read = async |key: &str| match objects.get(key, None).await {
        Ok(data) => Ok(data),
        Err(GetError::NotFound) => bail!("{bucket}: object {key} was created and is not there"),
        Err(error) => bail!(StorageError::from(error).context("cannot read the written object")),
    };

    let key = format!("{prefix}twice");
    made.push(key.clone());
    match objects.put(&key, vec![first.clone()]).await {
        // An answer got lost, and the client repeated the request.
        Ok(()) | Err(PutError::Exists) => {}
        Err(PutError::Failed(error)) => bail!(error.context("cannot write")),
    }
    match objects.put(&key, vec![second.clone()]).await {
        Err(PutError::Exists) => {}
        Ok(()) => bail!(refuse("a second creation of one name succeeded")),
        Err(PutError::Failed(error)) => bail!(error.context("cannot write")),
    }
    if read(&key).await.context("the bucket was tried")? != first {
        bail!(refuse("a second creation of one name was refused and changed the object"));
    }

    for race in 0..RACES {
        let key = format!("{prefix}race-{race}");
        made.push(key.clone());
        let results = futures_util::future::join(
            objects.put(&key, vec![first.clone()]),
            objects.put(&key, vec![second.clone()]),
        );
        let (winner, loser) = match results.await {
            (Ok(()), Ok(())) => {
                bail!(refuse("of two creations of one name at once both succeeded"))
            }
            (Ok(()), loser) => (&first, loser),
            (loser, Ok(())) => (&second, loser),
            _ => continue,
        };
        if read(&key).await.context("the bucket was tried")? != *winner {
            bail!(refuse("of two creations of one name at once the refused one stayed"));
        }
        if loser == Err(PutError::Exists) {
            return Ok(());
        }
    }
    bail!(
        "{bucket}: of two creations of one name at once none had a clear answer, {RACES} times: \
         try again"
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::{LocalObjects, ObjectMeta};
    use super::*;
    use async_trait::async_trait;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The fault of an object store.
    #[derive(Clone, Copy, PartialEq)]
    enum Wrong {
        Nothing,
        /// Overwrites existing objects.
        Overwrites,
        /// Looks first and then writes.
        Races,
        /// Refuses, and writes.
        Lies,
        /// Loses the first answer to the first two creations, whose requests come again.
        LosesAnswers,
    }

    struct Store(LocalObjects, Wrong, AtomicUsize);

    #[async_trait]
    impl Objects for Store {
        async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
            let turn = self.2.fetch_add(1, Ordering::Relaxed);
            let there = self.0.get(key, None).await.is_ok();
            match self.1 {
                Wrong::Nothing => return self.0.put(key, data).await,
                Wrong::LosesAnswers => {
                    let result = self.0.put(key, data).await;
                    return if turn == 0 || turn == 2 { Err(PutError::Exists) } else { result };
                }
                Wrong::Races if there => return Err(PutError::Exists),
                Wrong::Races => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                _ => {}
            }
            loop {
                let _ = self.0.delete(key).await;
                if self.0.put(key, data.clone()).await != Err(PutError::Exists) {
                    break;
                }
            }
            if self.1 == Wrong::Lies && there { Err(PutError::Exists) } else { Ok(()) }
        }
        async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
            self.0.get(key, range).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
            self.0.list(prefix).await
        }
        async fn delete(&self, key: &str) -> Result<(), StorageError> {
            self.0.delete(key).await
        }
    }

    #[tokio::test]
    async fn who_breaks_the_condition_is_found_and_nothing_stays() {
        for (wrong, said) in [
            (Wrong::Nothing, None),
            (Wrong::LosesAnswers, None),
            (Wrong::Overwrites, Some("a second creation of one name succeeded")),
            (Wrong::Lies, Some("changed the object")),
            (Wrong::Races, Some("at once both succeeded")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store(LocalObjects::open(dir.path()).unwrap(), wrong, AtomicUsize::new(0));
            let result = probe(&store, "probe/x-", "bucket `b`").await;
            match said {
                None => result.unwrap(),
                Some(said) => {
                    let error = format!("{:#}", result.unwrap_err());
                    assert!(error.contains(said) && error.contains("bucket `b`"), "{error}");
                }
            }
            assert_eq!(store.list("").await.unwrap(), []);
        }
    }
}
