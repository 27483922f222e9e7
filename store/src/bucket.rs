//! Takes a bucket, or a part of one, as the location of a store's objects.
//!
//! ```text
//! PREFIX/longhaul-store.json     whose installation it is, and the format
//! PREFIX/objects/…               as in a data directory (docs/formats.md)
//! PREFIX/probe/…                 only while a store starts
//! ```
//!
//! A bucket has no lock. If two stores use it at once, the log of each volume decides which one
//! goes on.

use super::clock::now;
use super::marker::Marker;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_base::dirs::STORE_FILE;
use longhaul_base::random;
use longhaul_objects::{GetError, ObjectMeta, Objects, PutError, S3Objects, StorageError, probe};
use std::sync::Arc;

/// Beginning of the names of test objects. The rest says since when, in seconds since 1970.
const PROBES: &str = "probe/";
/// Seconds after which every test has ended, however the clocks of two stores differ.
const PROBE_LIMIT: u64 = 24 * 3600;
/// Most bytes of a marker.
const MAX_MARKER_BYTES: usize = 64 << 10;

/// Opens the objects below `prefix` in a bucket. If the place belongs to nobody, takes it for a new
/// installation. Returns the objects, and the installation's identity.
///
/// # Errors
/// If it is out of reach, belongs to something else, or is of another format. Also if it breaks the
/// condition that everything rests on.
pub async fn open(bucket: &str, prefix: &str) -> Result<(Arc<dyn Objects>, String)> {
    let place = S3Objects::open(bucket, prefix)?;
    let installation = made(&place, bucket, prefix, Marker::new()?).await?;
    Ok((Arc::new(place.below("objects")), installation))
}

/// Makes what is below `prefix` in a bucket that installation's, if it is nobody's, to be a replica
/// of another place. Environment variables that begin with `LONGHAUL_REPLICA_AWS_` count for it
/// instead of those that begin with `AWS_`.
///
/// # Errors
/// As for [`open`].
pub async fn make(bucket: &str, prefix: &str, installation: &str) -> Result<()> {
    let place = S3Objects::open_replica(bucket, prefix)?;
    made(&place, bucket, prefix, Marker::of(installation)).await?;
    Ok(())
}

/// Opens a place that [`make`] has prepared. Returns the objects, and the installation's identity.
///
/// # Errors
/// If it is out of reach, or belongs to nobody.
pub async fn open_replica(bucket: &str, prefix: &str) -> Result<(Arc<dyn Objects>, String)> {
    let location = format!("s3://{bucket}/{prefix}");
    let place = S3Objects::open_replica(bucket, prefix)?;
    let found = read(&place, &location).await?;
    let found =
        found.with_context(|| format!("{location} has no {STORE_FILE}: is it the right one?"))?;
    Ok((Arc::new(place.below("objects")), found))
}

async fn made(place: &S3Objects, bucket: &str, prefix: &str, marker: Marker) -> Result<String> {
    let location = format!("s3://{bucket}/{prefix}");
    let found = read(place, &location).await?;
    if found.is_none() {
        let some = place.list_some().await.map_err(anyhow::Error::new);
        refuse_foreign(&some.with_context(|| format!("cannot list {location}"))?, &location)?;
    }
    take(place, found, &location, &place.place(), marker).await
}

/// Tests the bucket, and takes it for a new installation unless it has one.
async fn take(
    place: &dyn Objects,
    found: Option<String>,
    location: &str,
    name: &str,
    marker: Marker,
) -> Result<String> {
    // At each start: the server may be another one than it was.
    let attempt = format!("{PROBES}{:010x}-{:032x}-", now(), random::identity()?);
    probe(place, &attempt, name).await?;
    tidy(place).await;
    if let Some(installation) = found {
        return Ok(installation);
    }
    let text = Bytes::from(serde_json::to_vec_pretty(&marker)?);
    match place.put(STORE_FILE, vec![text]).await {
        // It may be this one all the same, its answer lost; and if another store was first, it is
        // its.
        Ok(()) | Err(PutError::Exists) => {}
        Err(PutError::Failed(error)) => {
            bail!(error.context(format_args!("cannot write {location}/{STORE_FILE}")))
        }
    }
    let installation = read(place, location).await?;
    installation.with_context(|| format!("{location}/{STORE_FILE} was written and is not there"))
}

/// Removes leftovers of killed starts.
async fn tidy(place: &dyn Objects) {
    let limit = now().saturating_sub(PROBE_LIMIT);
    let old = |key: &str| {
        let began = key.strip_prefix(PROBES).and_then(|rest| rest.split('-').next());
        began.is_some_and(|began| u64::from_str_radix(began, 16).is_ok_and(|began| began < limit))
    };
    let found = place.list(PROBES).await.unwrap_or_default();
    for meta in found.into_iter().filter(|meta| old(&meta.key)) {
        if let Err(error) = place.delete(&meta.key).await {
            tracing::warn!("the object {}, left of an earlier start, stays: {error}", meta.key);
        }
    }
}

async fn read(place: &dyn Objects, location: &str) -> Result<Option<String>> {
    let path = format!("{location}/{STORE_FILE}");
    match place.get(STORE_FILE, Some(0..MAX_MARKER_BYTES as u64)).await {
        Ok(text) => Marker::parse(&text, &path).map(Some),
        Err(GetError::NotFound) => Ok(None),
        Err(error) => bail!(StorageError::from(error).context(format_args!("cannot read {path}"))),
    }
}

/// Refuses a place with other content, by looking at some of its objects. Comes before any write to
/// it.
fn refuse_foreign(some: &[ObjectMeta], location: &str) -> Result<()> {
    if some.iter().any(|meta| meta.key == STORE_FILE) {
        // Another store has taken it this very moment.
        return Ok(());
    }
    // The leftovers of a killed start are no data.
    if let Some(other) = some.iter().find(|meta| !meta.key.starts_with(PROBES)) {
        bail!(
            "--data {location} is neither empty nor the data of a store: it has `{}` and no \
             {STORE_FILE}; if it was a store's, restore that object, else give an empty or a new \
             prefix",
            other.key
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_objects::LocalObjects;

    #[tokio::test]
    async fn a_place_is_taken_once_and_foreign_ones_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = LocalObjects::open(dir.path()).unwrap();
        let put = async |key: &str, text: &str| {
            place.put(key, vec![Bytes::copy_from_slice(text.as_bytes())]).await.unwrap();
        };
        let take = async || {
            let found = read(&place, "s3://b/p").await?;
            if found.is_none() {
                refuse_foreign(&place.list("").await.unwrap(), "s3://b/p")?;
            }
            take(&place, found, "s3://b/p", "bucket `b`", Marker::new()?).await
        };
        let refused = async |parts: [&str; 2]| {
            let error = format!("{:#}", take().await.unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        put("notes.txt", "x").await;
        refused(["s3://b/p", "notes.txt"]).await;
        assert_eq!(place.list("").await.unwrap().len(), 1, "nothing was written");
        place.delete("notes.txt").await.unwrap();
        // Of a store whose marker is gone.
        put("objects/volumes/a", "x").await;
        refused(["objects/volumes/a", STORE_FILE]).await;
        place.delete("objects/volumes/a").await.unwrap();

        // Two killed starts; the second one may still run.
        put("probe/0067000000-1-twice", "x").await;
        let present = format!("probe/{:010x}-2-twice", now());
        put(&present, "x").await;
        let installation = take().await.unwrap();
        assert_eq!(take().await.unwrap(), installation);
        let list = place.list("").await.unwrap();
        let mut keys: Vec<_> = list.into_iter().map(|meta| meta.key).collect();
        keys.sort();
        assert_eq!(keys, [STORE_FILE.to_owned(), present]);

        place.delete(STORE_FILE).await.unwrap();
        put(STORE_FILE, "{").await;
        refused(["s3://b/p/longhaul-store.json", "damaged"]).await;
        place.delete(STORE_FILE).await.unwrap();
        put(STORE_FILE, r#"{"format": 99, "installation": "0", "created_by": "x"}"#).await;
        refused(["format 99", "newer longhaul"]).await;
    }
}
