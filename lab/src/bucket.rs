//! A bucket in memory that takes its time for each new object, as one in another building does.

use anyhow::{Context as _, Result};
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, Method, Response, StatusCode, Uri, header};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The name of the bucket.
pub const BUCKET: &str = "lab";
/// Any date: nothing depends on it.
const DATE: &str = "Fri, 27 Nov 2026 00:00:00 GMT";

type Objects = Arc<Mutex<BTreeMap<String, Bytes>>>;

/// A server of the part of the S3 API that a store uses, without authentication, on loopback. It
/// ends with this.
pub struct Bucket {
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl Bucket {
    /// Starts one that takes `delay` for each new object.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(delay: Duration) -> Result<Bucket> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the bucket's runtime")?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let objects = Objects::default();
        let router = axum::Router::new()
            .fallback(move |method, uri, headers, State(objects), body| {
                answer(delay, method, uri, headers, objects, body)
            })
            .layer(DefaultBodyLimit::disable())
            .with_state(objects);
        runtime.spawn(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let _ = axum::serve(listener, router).await;
        });
        Ok(Bucket { address, _runtime: runtime })
    }
}

fn reply(status: StatusCode, headers: &[(HeaderName, String)], body: Bytes) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    // All headers above are valid.
    response.body(Body::from(body)).unwrap_or_default()
}

async fn answer(
    delay: Duration,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    objects: Objects,
    body: Bytes,
) -> Response<Body> {
    let key = uri.path().trim_start_matches('/').trim_start_matches(BUCKET);
    let key = key.trim_start_matches('/').to_owned();
    let locked = || objects.lock().unwrap_or_else(PoisonError::into_inner);
    let nothing = |status| reply(status, &[], Bytes::new());
    match method {
        Method::PUT => {
            let only_new = headers.contains_key(header::IF_NONE_MATCH);
            tokio::time::sleep(delay).await;
            let mut objects = locked();
            if only_new && objects.contains_key(&key) {
                return error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
            }
            objects.insert(key, body);
            reply(StatusCode::OK, &[(header::ETAG, "\"1\"".to_owned())], Bytes::new())
        }
        Method::DELETE => {
            locked().remove(&key);
            nothing(StatusCode::NO_CONTENT)
        }
        Method::GET if key.is_empty() => list(&locked(), uri.query().unwrap_or_default()),
        Method::GET | Method::HEAD => {
            let Some(data) = locked().get(&key).cloned() else {
                return error(StatusCode::NOT_FOUND, "NoSuchKey");
            };
            let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
            part(&data, range)
        }
        _ => nothing(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn error(status: StatusCode, code: &str) -> Response<Body> {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    reply(status, &[(header::CONTENT_TYPE, "application/xml".to_owned())], text.into())
}

/// An object, or a range of it.
fn part(data: &Bytes, range: Option<&str>) -> Response<Body> {
    let mut headers =
        vec![(header::ETAG, "\"1\"".to_owned()), (header::LAST_MODIFIED, DATE.to_owned())];
    let range = range.and_then(|range| range.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return reply(StatusCode::OK, &headers, data.clone());
    };
    let end = last.parse().map_or(data.len(), |last: usize| (last + 1).min(data.len()));
    match first.parse::<usize>() {
        Ok(first) if first < end => {
            let content = format!("bytes {first}-{}/{}", end - 1, data.len());
            headers.push((header::CONTENT_RANGE, content));
            reply(StatusCode::PARTIAL_CONTENT, &headers, data.slice(first..end))
        }
        _ => reply(StatusCode::RANGE_NOT_SATISFIABLE, &[], Bytes::new()),
    }
}

/// `ListObjectsV2`, with all names in one page.
fn list(objects: &BTreeMap<String, Bytes>, query: &str) -> Response<Body> {
    let query: HashMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.replace("%2F", "/")))
        .collect();
    let prefix = query.get("prefix").map_or("", String::as_str);
    let after = query.get("start-after").map_or("", String::as_str).to_owned();
    let mut text = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    text.push_str("<IsTruncated>false</IsTruncated>");
    for (key, data) in objects.range((Bound::Excluded(after), Bound::Unbounded)) {
        if key.starts_with(prefix) {
            text.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-11-27T00:00:00Z\
                 </LastModified><ETag>1</ETag></Contents>",
                data.len()
            ));
        }
    }
    text.push_str("</ListBucketResult>");
    let headers = [(header::CONTENT_TYPE, "application/xml".to_owned())];
    reply(StatusCode::OK, &headers, text.into())
}
