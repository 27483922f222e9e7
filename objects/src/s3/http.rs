//! The requests to a bucket, below `object_store`. Each request is counted and has a time limit.
//! All wait while the bucket asks for fewer requests.
//!
//! `object_store` tells its callers little of why a request failed. This module sees the answer. So
//! it notes the answer for the code that judges the operation of the request ([`Call`]).

use super::usage::{Operation, Outcome, Usage};
use async_trait::async_trait;
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt as _;
use longhaul_core::block::VolumeId;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an answer may take to begin, besides the time for sending and receiving bytes.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Slowest line that a request waits for, in bytes/s: a segment of 5 MiB may take 40 s.
const LEAST_RATE: u64 = 256 << 10;
/// First and longest pause of all requests when the bucket asks for fewer. Each further such answer
/// doubles it.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Most bytes that a copy within the bucket may move: no object is larger. They do not pass this
/// process.
pub const COPIED_BYTES: u64 = 70 << 20;
/// Most bytes to read of the explanation of a failure.
const MAX_EXPLANATION_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// The operation that a request is part of.
    pub static CALL: Arc<Call>;
}

/// Time limit of a request with `bytes` bytes.
pub fn limit(bytes: u64) -> Duration {
    ANSWER_LIMIT + Duration::from_secs(bytes / LEAST_RATE)
}

/// Bytes that a request moves; it sends `sent` of them.
fn moved(operation: Operation, sent: u64) -> u64 {
    if operation == Operation::Copy { COPIED_BYTES } else { sent }
}

/// An operation, and the last answer of the bucket to it.
#[derive(Debug)]
pub struct Call {
    /// Its kind.
    pub operation: Operation,
    /// The volume of its object.
    pub volume: Option<VolumeId>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    requests: u32,
    last: Option<Answer>,
}

/// How a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bucket refused it.
    Refused {
        /// HTTP status.
        status: u16,
        /// The word for it in the body, empty if there is none.
        code: String,
        /// The text for people in the body.
        message: String,
    },
    /// No answer came, or not all of it. The bucket may have done the operation.
    Lost(String),
}

impl Call {
    /// An operation without a request so far.
    pub fn new(operation: Operation, volume: Option<VolumeId>) -> Call {
        Call { operation, volume, progress: Mutex::default() }
    }

    /// The failure of its last request. `None` if that succeeded, or there was none.
    pub fn last(&self) -> Option<Answer> {
        self.progress().last.clone()
    }

    #[cfg(test)]
    pub fn note(&self, answer: Answer) {
        self.progress().last = Some(answer);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that all requests share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Counters.
    pub usage: Mutex<Usage>,
    gate: Mutex<Gate>,
}

/// The time until which no request goes to the bucket.
#[derive(Debug, Default)]
struct Gate {
    until: Option<Instant>,
    pause: Duration,
}

impl Gate {
    /// The bucket asks for fewer requests. Returns the pause, if that begins one.
    fn throttled(&mut self, now: Instant) -> Option<Duration> {
        // Requests that were under way at the first such answer give no new information.
        if self.until.is_some_and(|until| until > now) {
            return None;
        }
        self.pause = (self.pause * 2).clamp(PAUSE.0, PAUSE.1);
        self.until = Some(now + self.pause);
        Some(self.pause)
    }

    /// The bucket takes requests.
    fn succeeded(&mut self, now: Instant) {
        // No such answer for as long as the pause was: the next pause is short again.
        if self.until.is_some_and(|until| until + self.pause <= now) {
            *self = Gate::default();
        }
    }

    /// The time to wait for. It is random, so that the waiting requests do not all come at once.
    fn closed(&self, now: Instant) -> Option<Instant> {
        let until = self.until.filter(|until| *until > now)?;
        Some(until + self.pause.mul_f64(fastrand::f64() / 2.0))
    }
}

impl Shared {
    /// The counters.
    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the bucket asks for a pause.
    async fn wait(&self) {
        let begun = Instant::now();
        // A signature is valid for minutes. The caller decides whether to wait longer.
        while begun.elapsed() < PAUSE.1 {
            let closed = self.gate().closed(Instant::now());
            let Some(until) = closed else { return };
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Makes clients that count requests and hold them back.
#[derive(Debug)]
pub struct Connector {
    /// Their common state.
    pub shared: Arc<Shared>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { client, shared: self.shared.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    shared: Arc<Shared>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let sent = request.body().content_length() as u64;
        // Requests for credentials go to another server and have no signature.
        let signed = request.headers().contains_key("x-amz-content-sha256");
        let Some(call) = CALL.try_with(Arc::clone).ok().filter(|_| signed) else {
            return within(limit(sent), self.client.execute(request)).await;
        };
        self.shared.wait().await;
        let again = {
            let mut progress = call.progress();
            progress.requests += 1;
            progress.requests > 1
        };
        let begun = Instant::now();
        let result = within(limit(moved(call.operation, sent)), async {
            let response = self.client.execute(request).await?;
            explain(call.operation, response).await
        })
        .await;
        let took = begun.elapsed();
        let (outcome, answer) = match &result {
            Ok((_, None)) => (Outcome::Ok, None),
            Ok((_, Some(answer))) => (outcome(answer), Some(answer.clone())),
            Err(error) => (Outcome::Lost, Some(Answer::Lost(causes(error)))),
        };
        let now = Instant::now();
        let pause = match outcome {
            Outcome::Throttled => self.shared.gate().throttled(now),
            Outcome::Lost => None,
            _ => {
                self.shared.gate().succeeded(now);
                None
            }
        };
        let mut usage = self.shared.usage();
        usage.request(call.operation, outcome, call.volume, sent, took, again);
        pause.into_iter().for_each(|pause| usage.paused(pause));
        drop(usage);
        call.progress().last = answer;
        result.map(|(response, _)| response)
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => {
            let text = format!("no answer within {} s", limit.as_secs());
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
            Err(HttpError::new(HttpErrorKind::Timeout, error))
        }
    }
}

/// Reads why the bucket refuses, and leaves the text where `object_store` looks for it.
///
/// The answer to a copy begins when the copy does. So a status of success is not enough: the rest
/// says how the copy ended (S3 API, `CopyObject`). `object_store` knows some of the words for
/// failures, and takes all others for success.
async fn explain(
    operation: Operation,
    response: HttpResponse,
) -> Result<(HttpResponse, Option<Answer>), HttpError> {
    let success = response.status().is_success();
    if success && operation != Operation::Copy {
        return Ok((response, None));
    }
    let (mut parts, body) = response.into_parts();
    let mut text = Vec::new();
    let mut stream = body.bytes_stream();
    while let Some(part) = stream.next().await {
        text.extend_from_slice(&part?);
        if text.len() > MAX_EXPLANATION_BYTES {
            break;
        }
    }
    text.truncate(MAX_EXPLANATION_BYTES);
    let readable = String::from_utf8_lossy(&text);
    let answer = if success && is_copied(&readable) {
        None
    } else {
        Some(Answer::Refused {
            status: parts.status.as_u16(),
            code: element(&readable, "Code"),
            message: element(&readable, "Message"),
        })
    };
    if success && answer.is_some() {
        parts.status = StatusCode::INTERNAL_SERVER_ERROR;
    }
    let body = HttpResponseBody::from(Bytes::from(readable.into_owned()));
    Ok((HttpResponse::from_parts(parts, body), answer))
}

/// Whether the answer to a copy says that the copy exists. If the answer ends early, it may not
/// exist.
fn is_copied(xml: &str) -> bool {
    !element(xml, "ETag").is_empty() && element(xml, "Code").is_empty()
}

/// The text of the first XML element of that name, at most 200 characters of it.
fn element(xml: &str, name: &str) -> String {
    let text = xml.split_once(&format!("<{name}>")).map(|(_, rest)| rest);
    let text = text.and_then(|rest| rest.split_once(&format!("</{name}>")));
    let text = text.map_or("", |(text, _)| text).trim();
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn outcome(answer: &Answer) -> Outcome {
    let Answer::Refused { status, code, .. } = answer else { return Outcome::Lost };
    match (*status, code.as_str()) {
        (_, "SlowDown" | "RequestLimitExceeded" | "TooManyRequests" | "Throttling")
        | (429 | 503, _) => Outcome::Throttled,
        // Some servers answer 304 in the place of 412.
        (304 | 412, _) => Outcome::Exists,
        (404, "NoSuchKey") => Outcome::Missing,
        // The object has nothing in that range.
        (416, _) => Outcome::Ok,
        (401 | 403, _) => Outcome::Denied,
        // A copy that began and failed.
        (200..=299 | 500.., _) => Outcome::Failed,
        _ => Outcome::Refused,
    }
}

/// An error with its causes, each once.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_are_taken_apart() {
        let xml = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>The key\ndoes not \
                   exist.</Message></Error>";
        assert_eq!(element(xml, "Code"), "NoSuchKey");
        assert_eq!(element(xml, "Message"), "The keydoes not exist.");
        for other in ["", "<html>", "<Code>", "<Code>x"] {
            assert_eq!(element(other, "Code"), "");
        }
        let refused = |status, code: &str| {
            outcome(&Answer::Refused { status, code: code.into(), message: String::new() })
        };
        assert_eq!(refused(404, "NoSuchKey"), Outcome::Missing);
        // Another failure must not count as the absence of the object.
        assert_eq!(refused(404, "NoSuchBucket"), Outcome::Refused);
        assert_eq!(refused(404, ""), Outcome::Refused);
        assert_eq!(refused(412, ""), Outcome::Exists);
        assert_eq!(refused(409, "ConditionalRequestConflict"), Outcome::Refused);
        assert_eq!(refused(503, ""), Outcome::Throttled);
        assert_eq!(refused(400, "SlowDown"), Outcome::Throttled);
        assert_eq!(refused(500, "InternalError"), Outcome::Failed);
        assert_eq!(refused(200, "RequestTimeout"), Outcome::Failed);
    }

    #[test]
    fn copies_have_the_time_that_they_take() {
        assert_eq!(limit(moved(Operation::Put, 4 << 20)), limit(4 << 20));
        assert_eq!(limit(moved(Operation::Get, 0)), ANSWER_LIMIT);
        assert!(limit(moved(Operation::Copy, 0)) > ANSWER_LIMIT * 10);
    }

    #[test]
    fn pauses_double_while_the_bucket_complains_and_end_after() {
        let mut gate = Gate::default();
        let mut now = Instant::now();
        assert_eq!(gate.closed(now), None);
        let mut expected = PAUSE.0;
        for _ in 0..8 {
            assert_eq!(gate.throttled(now), Some(expected));
            // Many at once count as one.
            assert_eq!(gate.throttled(now + expected / 2), None);
            let waits = (0..50).filter_map(|_| gate.closed(now)).map(|until| until - now);
            let (least, most) = (expected, expected.mul_f64(1.5));
            assert!(waits.into_iter().all(|wait| (least..=most).contains(&wait)));
            now += expected;
            assert_eq!(gate.closed(now), None);
            gate.succeeded(now);
            expected = (expected * 2).min(PAUSE.1);
        }
        gate.succeeded(now + PAUSE.1);
        assert_eq!(gate.throttled(now + PAUSE.1), Some(PAUSE.0));
    }
}
