//! The admin address of a store or host: `/metrics` (Prometheus text), `/livez`, `/readyz` and
//! `/status` (JSON). `/healthz` is another name of `/readyz`.
//!
//! The listener does not authenticate readers, so it listens on loopback only. Browsers and other
//! users of this machine are on loopback too. So a change needs a token that only the owner of the
//! state directory can read. The listener also refuses requests of pages that a browser has loaded
//! from elsewhere, under a name that leads here. The content is that of a [`Report`].
//!
//! Memory is bounded by the number of connections and the sizes of heads and bodies. The listener
//! reads the body of a request only after a valid token.

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use longhaul_base::Usage;
use longhaul_base::limits::{self, Stranger, Strangers};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use crate::metrics::Metrics;

/// Why a change was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client did not show a valid token.
    Forbidden,
    /// The change failed, for this reason.
    Failed(String),
}

/// A reason why a process is not ready.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unready {
    /// In one word, for programs, as in `fenced`.
    pub reason: &'static str,
    /// The affected volume, if it is one.
    pub volume: Option<String>,
    /// For people.
    pub detail: String,
}

/// The body of `/readyz`.
#[derive(serde::Serialize)]
struct Readiness {
    ready: bool,
    reasons: Vec<Unready>,
}

/// The content of the pages.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Numbers in Prometheus text format, as [`Metrics::finish`] gives them.
    async fn metrics(&self) -> String;
    /// The state for people and scripts; the error gives the reason why it is missing.
    async fn status(&self) -> Result<serde_json::Value, String>;
    /// Whether the process serves at all; the error says what does not.
    async fn live(&self) -> Result<(), String> {
        Ok(())
    }
    /// Why it cannot do all that it is there for; nothing if it can.
    async fn ready(&self) -> Vec<Unready>;
    /// Another page as JSON; `None` if there is no such page.
    async fn page(&self, _name: &str) -> Option<Result<serde_json::Value, String>> {
        None
    }
    /// Whether someone who shows `token` may change something on a page, and in how many bytes at
    /// most; `None` if there is no such page.
    fn may_change(&self, _name: &str, _token: &str) -> Option<Result<usize, Refusal>> {
        None
    }
    /// Makes a change on a page, for a client with a valid token.
    async fn change(&self, _name: &str, _change: serde_json::Value) -> Result<(), Refusal> {
        Err(Refusal::Forbidden)
    }
}

/// A bound admin address.
pub struct Bound {
    listener: TcpListener,
    /// Names of the listener, besides loopback addresses and `localhost`.
    names: Arc<[String]>,
}

impl Bound {
    /// The same address once more.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn try_clone(&self) -> std::io::Result<Bound> {
        Ok(Bound { listener: self.listener.try_clone()?, names: self.names.clone() })
    }
}

/// Binds the address of `--admin`; `none` is no listener. `names` are those of `--admin-host`.
///
/// # Errors
/// If it is no address, not a loopback address, or the bind fails.
pub fn bind(address: &str, names: &[String]) -> Result<Option<Bound>> {
    if address == "none" {
        return Ok(None);
    }
    let parsed: SocketAddr = address.parse().map_err(|_| {
        Usage(format!("--admin {address} is not an address: give IP:PORT, or `none`"))
    })?;
    if !parsed.ip().is_loopback() {
        bail!(Usage(format!(
            "--admin {address} is not a loopback address, and the admin address does not \
             authenticate clients: use 127.0.0.1:PORT, and for access from elsewhere a proxy that \
             authenticates"
        )));
    }
    let listener = TcpListener::bind(parsed).with_context(|| {
        format!("cannot listen on {address} for --admin: choose another port, or `none`")
    })?;
    listener.set_nonblocking(true)?;
    Ok(Some(Bound { listener, names: names.into() }))
}

/// The sources of the answers.
#[derive(Clone)]
struct Desk {
    report: Arc<dyn Report>,
    /// Bodies that may be in memory.
    bodies: Arc<Semaphore>,
}

/// Answers requests.
type Routes = TowerToHyperService<Router>;

/// Serves until the task ends.
///
/// # Errors
/// If the listener fails.
pub async fn serve(bound: Bound, report: Arc<dyn Report>) -> Result<()> {
    let desk = Desk { report, bodies: Arc::new(Semaphore::new(limits::ADMIN_BODIES)) };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/status", get(status))
        .route("/{page}", get(page).post(change))
        .with_state(desk);
    let routes = TowerToHyperService::new(router);
    let Bound { listener, names } = bound;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let all = limits::MAX_ADMIN_CONNECTIONS;
    let places = Strangers::new(all, all);
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let place = places.enter(peer.ip().into());
                connections.spawn(connection(stream, place, routes.clone(), names.clone()));
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection to the admin address: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, mut place: Stranger, routes: Routes, names: Arc<[String]>) {
    let busy = place.busy();
    let service = service_fn(|request: Request<Incoming>| {
        let answer = check(&request, &names).map(|()| {
            busy.set(true);
            routes.call(request)
        });
        let busy = busy.clone();
        async move {
            let answer = match answer {
                Ok(answer) => answer.await,
                Err(why) => Ok((StatusCode::FORBIDDEN, why).into_response()),
            };
            busy.set(false);
            Ok::<Response, Infallible>(answer.unwrap_or_else(|never| match never {}))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits::ADMIN_SILENCE)
        .max_buf_size(limits::HTTP_HEAD_BYTES);
    tokio::select! {
        ended = http.serve_connection(TokioIo::new(stream), service) => {
            if let Err(error) = ended {
                tracing::debug!("a connection to the admin address has ended: {error}");
            }
        }
        () = place.dropped() => tracing::debug!("an idle connection to the admin address was closed"),
    }
}

/// Checks that a request uses a name of this address, and that no page from elsewhere made it. A
/// browser sends both facts (RFC 9110 §7.2, RFC 6454 §7).
fn check<B>(request: &Request<B>, names: &[String]) -> Result<(), String> {
    let header = |name| request.headers().get_all(name).into_iter();
    let hosts = header(header::HOST).map(|value| value.to_str().unwrap_or_default());
    let asked = request.uri().authority().map(|authority| authority.as_str());
    if let Some(other) = hosts.chain(asked).find(|host| !is_ours(host, names)) {
        return Err(format!(
            "`{}` is no name of this address: use 127.0.0.1 or localhost, or allow the name with \
             --admin-host\n",
            longhaul_base::text::bounded(other)
        ));
    }
    let origins = header(header::ORIGIN).map(|value| value.to_str().unwrap_or_default());
    let foreign = |origin: &&str| {
        let host = origin.split_once("://").map(|(_, host)| host);
        !host.is_some_and(|host| is_ours(host, names))
    };
    match origins.into_iter().find(foreign) {
        Some(_) => Err("a page from elsewhere may not ask this\n".to_owned()),
        None => Ok(()),
    }
}

/// Whether `HOST[:PORT]` is this machine's loopback, or one of the names.
fn is_ours(authority: &str, names: &[String]) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(six) => six.split_once(']').map_or(six, |(host, _)| host),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
        || host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// Serves from a thread of its own, for as long as the process lives.
///
/// # Errors
/// If the thread cannot start.
pub fn start(bound: Bound, report: Arc<dyn Report>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("admin".into()).spawn(move || {
        if let Err(error) = runtime.block_on(serve(bound, report)) {
            tracing::error!("{error:#}");
        }
    })?;
    Ok(())
}

async fn metrics(State(desk): State<Desk>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], desk.report.metrics().await + &process_metrics())
}

/// The metrics of every process.
fn process_metrics() -> String {
    let mut out = Metrics::default();
    let help = "Processor time by the name of the thread. A front thread near one second in each \
                second limits its volumes.";
    let mut family = out.family("longhaul_thread_seconds_total", "counter", help);
    // Without /proc there are no samples.
    for (thread, seconds) in longhaul_base::threads::seconds().unwrap_or_default() {
        family.sample(&[("thread", &thread)], seconds);
    }
    out.finish()
}

async fn status(State(desk): State<Desk>) -> impl IntoResponse {
    match desk.report.status().await {
        Ok(status) => axum::Json(status).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn ready(State(desk): State<Desk>) -> impl IntoResponse {
    let reasons = desk.report.ready().await;
    let ready = reasons.is_empty();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(Readiness { ready, reasons }))
}

async fn live(State(desk): State<Desk>) -> impl IntoResponse {
    match desk.report.live().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

async fn page(State(desk): State<Desk>, Path(name): Path<String>) -> Response {
    match desk.report.page(&name).await {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Ok(page)) => axum::Json(page).into_response(),
        Some(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn change(
    State(desk): State<Desk>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // Check this before reading any of the body.
    let done = match desk.report.may_change(&name, token) {
        None => return StatusCode::NOT_FOUND.into_response(),
        Some(Err(refusal)) => Err(refusal),
        Some(Ok(most)) => match taken_in(&desk, &headers, body, most).await {
            Ok(change) => desk.report.change(&name, change).await,
            Err(refused) => return refused.into_response(),
        },
    };
    match done {
        Ok(()) => StatusCode::OK.into_response(),
        Err(Refusal::Forbidden) => {
            let why = "a change needs the token that the state directory holds\n";
            (StatusCode::FORBIDDEN, why).into_response()
        }
        Err(Refusal::Failed(reason)) => (StatusCode::CONFLICT, reason + "\n").into_response(),
    }
}

/// Reads the body of a change.
async fn taken_in(
    desk: &Desk,
    headers: &HeaderMap,
    body: Body,
    most: usize,
) -> Result<serde_json::Value, (StatusCode, String)> {
    let too_large = (StatusCode::PAYLOAD_TOO_LARGE, format!("at most {most} bytes\n"));
    let said = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if said.and_then(|value| value.parse().ok()).is_some_and(|bytes: usize| bytes > most) {
        return Err(too_large);
    }
    let read = async {
        // Never closed.
        let _place = desk.bodies.acquire().await.ok();
        let bytes = axum::body::to_bytes(body, most).await.map_err(|_| too_large)?;
        let invalid = |error| (StatusCode::BAD_REQUEST, format!("this is no JSON: {error}\n"));
        serde_json::from_slice(&bytes).map_err(invalid)
    };
    let late = |_| {
        let limit = limits::ADMIN_BODY_LIMIT.as_secs();
        (StatusCode::REQUEST_TIMEOUT, format!("the change did not come within {limit} s\n"))
    };
    tokio::time::timeout(limits::ADMIN_BODY_LIMIT, read).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn only_loopback() {
        assert!(bind("none", &[]).unwrap().is_none());
        assert!(bind("127.0.0.1:0", &[]).unwrap().is_some());
        let Err(error) = bind("0.0.0.0:0", &[]) else { panic!("it must not listen there") };
        assert!(format!("{error:#}").contains("not a loopback"));
        assert!(bind("localhost", &[]).is_err());
    }

    #[test]
    fn names_that_lead_here_are_not_all_ours() {
        let names = ["Store.example".to_owned()];
        for ours in ["127.0.0.1", "127.0.0.1:7780", "[::1]:7780", "LOCALHOST:1", "store.example:80"]
        {
            assert!(is_ours(ours, &names), "{ours}");
        }
        for other in ["", "evil.example", "192.0.2.1:7780", "[2001:db8::1]", "localhost.evil", "x@"]
        {
            assert!(!is_ours(other, &names), "{other}");
        }
    }

    struct Sick;

    #[async_trait]
    impl Report for Sick {
        async fn metrics(&self) -> String {
            "m 1\n".into()
        }
        async fn status(&self) -> Result<serde_json::Value, String> {
            Ok(serde_json::json!({"a": 1}))
        }
        async fn ready(&self) -> Vec<Unready> {
            let volume = Some("v".to_owned());
            vec![Unready { reason: "no-disk", volume, detail: "it is gone".into() }]
        }
        fn may_change(&self, name: &str, token: &str) -> Option<Result<usize, Refusal>> {
            let may = if token == "t" { Ok(100) } else { Err(Refusal::Forbidden) };
            (name == "it").then_some(may)
        }
        async fn change(&self, _: &str, change: serde_json::Value) -> Result<(), Refusal> {
            Err(Refusal::Failed(change.to_string()))
        }
    }

    fn serving() -> SocketAddr {
        let bound = bind("127.0.0.1:0", &["store.example".to_owned()]).unwrap().unwrap();
        let address = bound.listener.local_addr().unwrap();
        start(bound, Arc::new(Sick)).unwrap();
        address
    }

    async fn asked(address: SocketAddr, request: String) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        // If the server closes a connection with input on its way, the client sees a reset after
        // the answer.
        let _ = tokio::time::timeout(Duration::from_secs(30), read).await.unwrap();
        String::from_utf8(reply).unwrap()
    }

    #[tokio::test]
    async fn answers_over_http() {
        let address = serving();
        for (path, expected) in [
            ("metrics", "m 1"),
            ("status", "{\"a\":1}"),
            ("livez", "200 OK"),
            ("readyz", "503"),
            ("readyz", "{\"reason\":\"no-disk\",\"volume\":\"v\",\"detail\":\"it is gone\"}"),
            ("healthz", "\"ready\":false"),
            ("else", "404"),
        ] {
            let head = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close");
            let reply = asked(address, format!("{head}\r\n\r\n")).await;
            assert!(reply.contains(expected), "{path}: {reply}");
        }
    }

    #[tokio::test]
    async fn pages_from_elsewhere_are_turned_away() {
        let address = serving();
        for (head, code) in [
            ("Host: localhost", "200"),
            ("Host: store.example:7781", "200"),
            ("Host: localhost\r\nOrigin: http://localhost:7780", "200"),
            ("Host: evil.example", "403"),
            ("Host: 192.0.2.1", "403"),
            ("Host: localhost\r\nOrigin: http://evil.example", "403"),
            ("Host: localhost\r\nOrigin: null", "403"),
        ] {
            let get = format!("GET /status HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n");
            let reply = asked(address, get).await;
            assert!(reply.starts_with(&format!("HTTP/1.1 {code} ")), "{head}: {reply}");
        }
    }

    #[tokio::test]
    async fn nothing_is_read_of_who_may_not_change_anything() {
        let address = serving();
        let post = |token: &str, length: usize, body: &str| {
            let head = "POST /it HTTP/1.1\r\nHost: localhost\r\nConnection: close";
            format!(
                "{head}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n{body}"
            )
        };
        // The answer comes although nothing of the body ever does.
        let reply = asked(address, post("wrong", 8 << 20, "")).await;
        assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
        let reply = asked(address, post("t", 8 << 20, "")).await;
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
        let reply = asked(address, post("t", 7, "{\"a\":1}")).await;
        assert!(reply.starts_with("HTTP/1.1 409 ") && reply.contains("{\"a\":1}"), "{reply}");
    }

    #[tokio::test]
    async fn silent_connections_shut_nobody_out() {
        let address = serving();
        let mut silent = Vec::new();
        for _ in 0..4 * limits::MAX_ADMIN_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        assert!(asked(address, get.to_owned()).await.contains("m 1"));
        let mut closed = 0;
        for stream in &mut silent[..2 * limits::MAX_ADMIN_CONNECTIONS] {
            let read = tokio::time::timeout(Duration::from_secs(30), stream.read_u8()).await;
            closed += usize::from(read.unwrap().is_err());
        }
        assert_eq!(closed, 2 * limits::MAX_ADMIN_CONNECTIONS, "the oldest go");
    }
}
