//! Objects in a bucket, over the S3 API.
//!
//! One `PutObject` with `If-None-Match: *` creates an object, whatever its size. Not every server
//! can complete a multipart upload on that condition, nor does `object_store` offer it. S3 takes 5
//! GiB in one request. The request carries the SHA-256 of the content, so the server refuses
//! content that is damaged or cut short.
//!
//! The answer to a creation can get lost. Then `object_store` or the engine repeats the creation.
//! So [`PutError::Exists`] may mean one's own object. The caller has to find that out.
//!
//! All of this, including TLS and hashing, runs on threads of its own. Meanwhile the store's one
//! thread answers reads, and a slow line to a bucket does not delay it. `docs/decisions/s3.md` says
//! more.

mod http;
mod probe;
mod profile;
mod trouble;
mod usage;

use super::failure;
use super::{GetError, ObjectMeta, Objects, PutError, StorageError};
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Answer, CALL, COPIED_BYTES, Call, Connector, Shared, causes, limit};
use longhaul_core::block::VolumeId;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _,
    PutMode, PutOptions, PutPayload, RetryConfig,
};
use profile::{Files, Keys, Profile};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use trouble::Place;
use usage::Operation;

pub use probe::probe;
pub use usage::Usage;

/// Threads for requests. One can hash a segment while the other receives data. A guess.
const THREADS: usize = 2;
/// Most reads under way. Others wait. As many as the engine of one volume begins.
const READS_MAX: usize = 256;
/// Most other requests under way. With 5 MiB each that is 160 MiB, which the engines hold anyhow.
const OTHERS_MAX: usize = 32;
/// Connections to keep open without a request. Idle ones cost memory at both ends, new ones a
/// handshake.
const IDLE_CONNECTIONS: usize = 64;
/// How long the start of a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Most further attempts at a request, and the age after which none begins. Then the engine repeats
/// the operation, at its own pace and without end.
const RETRIES: (u32, Duration) = (2, Duration::from_secs(10));
/// Pauses between attempts. `object_store` draws each at random, up to three times the one before.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long an answer may pause after its beginning, including attempts to get the rest of it.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Largest object to read whole.
const MAX_WHOLE_BYTES: u64 = 1 << 30;

/// Objects whose names begin with a prefix, in a bucket.
#[derive(Clone)]
pub struct S3Objects {
    inner: Arc<Inner>,
    /// Empty, or with a slash at its end.
    prefix: String,
}

struct Inner {
    store: AmazonS3,
    place: Place,
    shared: Arc<Shared>,
    reads: Semaphore,
    others: Semaphore,
    /// Taken at the drop.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last owner may be on a thread that must not block, or on one of these.
            runtime.shutdown_background();
        }
    }
}

/// Objects, and the beginning of the next page.
type Page = (Vec<ObjectMeta>, Option<String>);

/// How an operation failed.
enum Failure {
    Exists,
    Missing,
    /// The object exists, and ends before the range.
    PastEnd,
    /// No answer came: the request may have had its effect.
    Lost(StorageError),
    Other(StorageError),
}

impl S3Objects {
    /// Objects below `prefix` in `bucket`. Endpoint, region and credentials come from the
    /// environment and the profile. Sends no request.
    ///
    /// # Errors
    /// If these settings are incomplete or invalid.
    pub fn open(bucket: &str, prefix: &str) -> Result<S3Objects> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        S3Objects::open_with(bucket, prefix, &std::env::vars_os().filter_map(text).collect())
    }

    /// Like [`S3Objects::open`], with variables that begin with `LONGHAUL_REPLICA_AWS_` in place of
    /// those that begin with `AWS_`.
    ///
    /// # Errors
    /// The same.
    pub fn open_replica(bucket: &str, prefix: &str) -> Result<S3Objects> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env = std::env::vars_os().filter_map(text).collect();
        S3Objects::open_at(bucket, prefix, &of_replica(env)?, true)
    }

    /// Like [`S3Objects::open`], with this environment.
    fn open_with(bucket: &str, prefix: &str, env: &BTreeMap<String, String>) -> Result<S3Objects> {
        S3Objects::open_at(bucket, prefix, env, false)
    }

    fn open_at(
        bucket: &str,
        prefix: &str,
        env: &BTreeMap<String, String>,
        replica: bool,
    ) -> Result<S3Objects> {
        // The TLS of the client needs the provider of the process, so make sure that there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shared = Arc::new(Shared::default());
        let (builder, mut place) = configure(bucket, env)?;
        place.replica = replica;
        let store = builder
            .with_http_connector(Connector { shared: shared.clone() })
            .build()
            .with_context(|| format!("cannot use {place}"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("s3")
            .enable_all()
            .build()
            .context("cannot start the threads for the bucket")?;
        let prefix = if prefix.is_empty() {
            String::new()
        } else {
            format!("{}/", prefix.trim_matches('/'))
        };
        let inner = Inner {
            store,
            place,
            shared,
            reads: Semaphore::new(READS_MAX),
            others: Semaphore::new(OTHERS_MAX),
            runtime: Some(runtime),
        };
        Ok(S3Objects { inner: Arc::new(inner), prefix })
    }

    /// The objects whose names continue with `directory` and a slash.
    pub fn below(&self, directory: &str) -> S3Objects {
        S3Objects { inner: self.inner.clone(), prefix: format!("{}{directory}/", self.prefix) }
    }

    /// The name of the place, for messages.
    pub fn place(&self) -> String {
        self.inner.place.to_string()
    }

    /// Up to a thousand of the objects. At least one, if there are any.
    ///
    /// # Errors
    /// The answer of the bucket.
    pub async fn list_some(&self) -> Result<Vec<ObjectMeta>, StorageError> {
        self.page("", "", None).await.map(|(page, _)| page)
    }

    /// A page of a list, and how to ask for the next.
    async fn page(
        &self,
        prefix: &str,
        after: &str,
        page_token: Option<String>,
    ) -> Result<Page, StorageError> {
        let whole = format!("{}{prefix}", self.prefix);
        let offset = (!after.is_empty()).then(|| format!("{}{after}", self.prefix));
        let store = self.inner.store.clone();
        let list = async move {
            let options = PaginatedListOptions { page_token, offset, ..Default::default() };
            let prefix = Some(whole.as_str()).filter(|whole| !whole.is_empty());
            store.list_paginated(prefix, options).await
        };
        let page = self.run(Operation::List, prefix, 0, list).await.map_err(Failure::into_error)?;
        let mut found = Vec::new();
        for object in page.result.objects {
            let name = object.location.as_ref();
            let key = name.strip_prefix(&self.prefix);
            let key = key.ok_or_else(|| {
                let why = format!("the list of {}{prefix} has {name}", self.prefix);
                StorageError::unavailable(why)
            })?;
            found.push(ObjectMeta { key: key.to_owned(), bytes: object.size });
        }
        Ok((found, page.page_token))
    }

    fn path(&self, key: &str) -> Result<Path, StorageError> {
        let whole = format!("{}{key}", self.prefix);
        match Path::parse(&whole) {
            Ok(path) if !key.is_empty() && path.as_ref() == whole => Ok(path),
            _ => Err(failure::not_a_name(key)),
        }
    }

    /// Runs an operation on the bucket's threads. `bytes` are the bytes to send or to receive.
    async fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        key: &str,
        bytes: u64,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, Failure> {
        let call = Arc::new(Call::new(operation, volume_of(key)));
        let inner = self.inner.clone();
        let Some(runtime) = &self.inner.runtime else {
            return Err(Failure::Other(StorageError::unavailable("the store is ending")));
        };
        let longest = limit(bytes) * (RETRIES.0 + 1) + RETRIES.1;
        let task = runtime.spawn(async move {
            let permits = if operation == Operation::Get { &inner.reads } else { &inner.others };
            // Nobody closes the semaphores.
            let _permit = permits.acquire().await;
            match tokio::time::timeout(longest, CALL.scope(call.clone(), work)).await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => Err(judge(&inner.place, &call, &error)),
                Err(_) => {
                    let text = format!("not done within {} s", longest.as_secs());
                    Err(Failure::Lost(inner.place.lost(&text)))
                }
            }
        });
        task.await.unwrap_or_else(|error| {
            let why = format!("a task of ours failed: {error}");
            Err(Failure::Other(StorageError::unavailable(why)))
        })
    }
}

#[async_trait]
impl Objects for S3Objects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let path = self.path(key).map_err(PutError::Failed)?;
        let payload = PutPayload::from_iter(data);
        let bytes = payload.content_length() as u64;
        let store = self.inner.store.clone();
        let create = async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            store.put_opts(&path, payload, options).await
        };
        match self.run(Operation::Put, key, bytes, create).await {
            Ok(_) => Ok(()),
            Err(Failure::Exists) => Err(PutError::Exists),
            // The put may have had its effect, and another attempt need not help. If a server sees
            // that the object exists, it may answer and hang up before it has read the content.
            // Then that answer gets lost, too.
            Err(Failure::Lost(error)) => match self.get(key, Some(0..1)).await {
                Ok(_) => Err(PutError::Exists),
                Err(_) => Err(PutError::Failed(error)),
            },
            Err(failure) => Err(PutError::Failed(failure.into_error())),
        }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let path = self.path(key).map_err(GetError::Failed)?;
        let store = self.inner.store.clone();
        let wanted = range.as_ref().map(|range| range.end.saturating_sub(range.start));
        // HTTP has no empty ranges. The answer still has to say whether the object exists.
        let range = range.map(|range| range.start..range.end.max(range.start.saturating_add(1)));
        let expected = wanted.unwrap_or(MAX_WHOLE_BYTES);
        let read = async move {
            let range = range.map(GetRange::Bounded);
            let result =
                store.get_opts(&path, GetOptions { range, ..GetOptions::default() }).await?;
            let length = result.range.end.saturating_sub(result.range.start);
            if length > MAX_WHOLE_BYTES {
                return Err(wrong("the object is too large to be read at once"));
            }
            let mut parts = Vec::new();
            let mut stream = result.into_stream();
            while let Some(part) = tokio::time::timeout(STALL_LIMIT, stream.next())
                .await
                .map_err(|_| wrong("the answer stands still"))?
            {
                parts.push(part?);
            }
            let data = match <[Bytes; 1]>::try_from(parts) {
                Ok([data]) => data,
                Err(parts) => parts.concat().into(),
            };
            if data.len() as u64 != length {
                return Err(wrong("the answer has another length than it says"));
            }
            Ok(data)
        };
        match self.run(Operation::Get, key, expected, read).await {
            Ok(mut data) => {
                if wanted == Some(0) {
                    data.clear();
                }
                self.inner.shared.usage().received_bytes += data.len() as u64;
                Ok(data)
            }
            Err(Failure::PastEnd) => Ok(Bytes::new()),
            Err(Failure::Missing) => Err(GetError::NotFound),
            Err(failure) => Err(GetError::Failed(failure.into_error())),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.list_after(prefix, "").await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let mut found = Vec::new();
        let mut next = None;
        loop {
            let (page, token) = self.page(prefix, after, next.clone()).await?;
            // A server that ignores the offset returns all names.
            found.extend(page.into_iter().filter(|meta| meta.key.as_str() > after));
            match token {
                None => return Ok(found),
                // Otherwise the loop would never end.
                same if same == next => {
                    let why = format!("the list of {prefix} stands still");
                    return Err(StorageError::unavailable(why));
                }
                token => next = token,
            }
        }
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let path = self.path(key)?;
        let bytes = data.len() as u64;
        let store = self.inner.store.clone();
        let put = async move { store.put(&path, data.into()).await };
        match self.run(Operation::Put, key, bytes, put).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.into_error()),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let path = self.path(key)?;
        let store = self.inner.store.clone();
        let delete = async move { store.delete(&path).await };
        match self.run(Operation::Delete, key, 0, delete).await {
            Ok(()) | Err(Failure::Missing) => Ok(()),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// The copy stays within the bucket. The new name is free, so the copy overwrites nothing.
    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        let from = self.path(from).map_err(PutError::Failed)?;
        let path = self.path(to).map_err(PutError::Failed)?;
        let store = self.inner.store.clone();
        let copy = async move { store.copy(&from, &path).await };
        let copied = self.run(Operation::Copy, to, COPIED_BYTES, copy).await;
        copied.map_err(|failure| PutError::Failed(failure.into_error()))
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.inner.shared.usage().clone())
    }
}

impl Failure {
    fn into_error(self) -> StorageError {
        StorageError::unavailable(match self {
            Failure::Lost(error) | Failure::Other(error) => return error,
            Failure::Exists => "an object of that name exists",
            Failure::Missing => "no object has that name",
            Failure::PastEnd => "the object has nothing at that place",
        })
    }
}

/// The meaning of an operation's failure. Only an explicit error code counts as an answer about the
/// object. Any other answer with such a status is an error, and the engine tries again.
fn judge(place: &Place, call: &Call, error: &object_store::Error) -> Failure {
    let Some(answer) = call.last() else {
        return Failure::Other(place.lost(&causes(error)));
    };
    if let Answer::Refused { status, code, .. } = &answer {
        match (call.operation, *status, code.as_str()) {
            (Operation::Put, 304 | 412, _) => return Failure::Exists,
            (Operation::Get | Operation::Delete, 404, "NoSuchKey") => return Failure::Missing,
            (Operation::Get, 416, _) => return Failure::PastEnd,
            _ => {}
        }
    }
    match answer {
        Answer::Lost(_) => Failure::Lost(place.explain(&answer)),
        Answer::Refused { .. } => Failure::Other(place.explain(&answer)),
    }
}

fn wrong(what: &'static str) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: what.into() }
}

/// The volume of an object, from its name.
fn volume_of(key: &str) -> Option<VolumeId> {
    let (id, _) = key.strip_prefix("v/")?.split_once('/')?;
    u128::from_str_radix(id, 16).ok().map(VolumeId)
}

/// Combines the settings of the environment and the profile.
fn configure(bucket: &str, all: &BTreeMap<String, String>) -> Result<(AmazonS3Builder, Place)> {
    let env = |name: &str| all.get(name).filter(|value| !value.is_empty()).map(OsString::from);
    let mut builder = AmazonS3Builder::new();
    for (name, value) in all.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        // A variable that is no setting of the client belongs to the profile, or to nobody.
        if let Ok(key) = name.to_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    let mut builder = builder.with_bucket_name(bucket);
    let given = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
    let by_environment = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let by_service = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    let any = |names: &[&str]| names.iter().any(|name| env(name).is_some());
    if let Some(files) = Files::find(&env) {
        // The usual order: variables, an explicit profile, the services of clusters, the profile of
        // the machine's user, the service of the machine.
        let wanted = files.asked() || !any(&by_service);
        let Profile { keys, region, endpoint } = match files.read() {
            Ok(profile) => profile,
            Err(_) if any(&by_environment) => Profile::default(),
            Err(error) => return Err(error),
        };
        if let Some(keys) = keys.filter(|_| wanted && !any(&by_environment)) {
            builder = builder.with_credentials(Arc::new(Keys::new(files, keys)));
        }
        let regions = [AmazonS3ConfigKey::Region, AmazonS3ConfigKey::DefaultRegion];
        if let (Some(region), true) =
            (region, regions.iter().all(|key| given(&builder, *key).is_none()))
        {
            builder = builder.with_region(region);
        }
        let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
        if let (Some(url), true) =
            (endpoint, endpoints.iter().all(|key| given(&builder, *key).is_none()))
        {
            builder = builder.with_endpoint(url);
        }
    }
    let endpoint = given(&builder, AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| given(&builder, AmazonS3ConfigKey::Endpoint));
    let region = given(&builder, AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".into());
    let plain = endpoint.as_ref().is_some_and(|url| !url.starts_with("https://"));
    let allowed = given(&builder, AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    if plain
        && !allowed
            .is_some_and(|value| ["true", "1", "yes", "on"].contains(&&*value.to_lowercase()))
    {
        bail!(
            "the endpoint {} is not https://: others could read the data on the way; if the \
             network is your own, set AWS_ALLOW_HTTP=true",
            endpoint.unwrap_or_default()
        );
    }
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let client = |key: ClientConfigKey, value: String| (AmazonS3ConfigKey::Client(key), value);
    let settings = [
        // The limit counts for each request.
        client(ClientConfigKey::Timeout, format!("{} s", limit(MAX_WHOLE_BYTES).as_secs())),
        client(ClientConfigKey::ConnectTimeout, format!("{} s", CONNECT_LIMIT.as_secs())),
        client(ClientConfigKey::PoolMaxIdlePerHost, IDLE_CONNECTIONS.to_string()),
        client(ClientConfigKey::UserAgent, longhaul_base::software()),
        // Delete one object at a time: not every server has a request for several.
        (AmazonS3ConfigKey::DisableBulkDelete, "true".into()),
    ];
    for (key, value) in settings {
        builder = builder.with_config(key, value);
    }
    let builder =
        builder.with_conditional_put(S3ConditionalPut::ETagMatch).with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: RETRY_PAUSE.0,
                max_backoff: RETRY_PAUSE.1,
                base: 3.0,
            },
            max_retries: RETRIES.0 as usize,
            retry_timeout: RETRIES.1,
        });
    Ok((builder, Place { bucket: bucket.to_owned(), endpoint, replica: false }))
}

/// Variables that mean the same. If the environment has one of a group, it replaces the whole
/// group.
const GROUPS: [&[&str]; 3] = [
    &["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"],
    &["AWS_REGION", "AWS_DEFAULT_REGION"],
    &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN"],
];

/// The environment for access to the replica.
fn of_replica(mut env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let other = |(name, value): (&String, &String)| {
        Some((name.strip_prefix("LONGHAUL_REPLICA_")?.to_owned(), value.clone()))
    };
    let others: BTreeMap<String, String> = env.iter().filter_map(other).collect();
    let [endpoints, regions, keys] = GROUPS;
    // If two variables mean the same, that of the first location must not count.
    let mut given: Vec<_> =
        GROUPS.map(|group| group.iter().any(|name| others.contains_key(*name))).into();
    if others.contains_key("AWS_PROFILE") {
        // If the replica has a profile, settings for the first location must not overrule it.
        let find = |name: &str| others.get(name).or_else(|| env.get(name)).map(OsString::from);
        let profile = Files::find(&find).map(|files| files.read()).transpose()?.unwrap_or_default();
        given[0] |= profile.endpoint.is_some();
        given[1] |= profile.region.is_some();
        given[2] = true;
    }
    for (group, given) in [endpoints, regions, keys].into_iter().zip(given) {
        env.retain(|name, _| !given || !group.contains(&name.as_str()));
    }
    env.extend(others);
    Ok(env)
}

#[cfg(test)]
mod tests;
