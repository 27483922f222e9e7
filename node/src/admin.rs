//! The admin address of a store or host: `/metrics` (Prometheus text), `/livez`, `/readyz` and `/status` (JSON).
//! `/healthz` is another name of `/readyz`.
//!
//! Nobody is asked who they are, so it listens on loopback only, and what changes anything needs a token
//! that only the owner of the state directory can read: a browser on this machine, or another user, is
//! on loopback too. It knows nothing of what it shows:
//! that is a [`Report`].

use crate::commands::Usage;
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Largest change taken: as many ranges as a host keeps.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Whoever asked did not show that they may.
    Forbidden,
    /// It cannot be done: why.
    Failed(String),
}

/// A reason why a process is not ready.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unready {
    /// In one word, for programs, as in `fenced`.
    pub reason: &'static str,
    /// The volume that is concerned, if it is one.
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

/// What there is to show.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Numbers in Prometheus text format, as [`Metrics::finish`] gives them.
    async fn metrics(&self) -> String;
    /// The state for people and scripts; the error says why there is none to be had.
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
    /// Does what is asked on a page by someone who shows `token`; `None` if there is no such page.
    async fn change(
        &self,
        _name: &str,
        _token: &str,
        _change: serde_json::Value,
    ) -> Option<Result<(), Refusal>> {
        None
    }
}

/// Binds the address of `--admin`; `none` is no listener.
///
/// # Errors
/// If it is no address, not a loopback address, or cannot be bound.
pub fn bind(address: &str) -> Result<Option<TcpListener>> {
    if address == "none" {
        return Ok(None);
    }
    let parsed: SocketAddr = address.parse().map_err(|_| {
        Usage(format!("--admin {address} is not an address: give IP:PORT, or `none`"))
    })?;
    if !parsed.ip().is_loopback() {
        bail!(Usage(format!(
            "--admin {address} is not a loopback address, and whoever reaches it is not asked for credentials: use \
             127.0.0.1:PORT, and a proxy that authenticates if it must be reached from elsewhere"
        )));
    }
    let listener = TcpListener::bind(parsed).with_context(|| {
        format!("cannot listen on {address} for --admin: choose another port, or `none`")
    })?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Serves until the task is dropped.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: TcpListener, report: Arc<dyn Report>) -> Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/status", get(status))
        .route("/{page}", get(page).post(change))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(report);
    let listener = tokio::net::TcpListener::from_std(listener)?;
    axum::serve(listener, router).await.context("the admin listener failed")
}

/// Serves from a thread of its own, for as long as the process lives.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(listener: TcpListener, report: Arc<dyn Report>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("admin".into()).spawn(move || {
        if let Err(error) = runtime.block_on(serve(listener, report)) {
            tracing::error!("{error:#}");
        }
    })?;
    Ok(())
}

async fn metrics(State(report): State<Arc<dyn Report>>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], report.metrics().await)
}

async fn status(State(report): State<Arc<dyn Report>>) -> impl IntoResponse {
    match report.status().await {
        Ok(status) => axum::Json(status).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn ready(State(report): State<Arc<dyn Report>>) -> impl IntoResponse {
    let reasons = report.ready().await;
    let ready = reasons.is_empty();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(Readiness { ready, reasons }))
}

async fn live(State(report): State<Arc<dyn Report>>) -> impl IntoResponse {
    match report.live().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

async fn page(State(report): State<Arc<dyn Report>>, Path(name): Path<String>) -> Response {
    match report.page(&name).await {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Ok(page)) => axum::Json(page).into_response(),
        Some(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn change(
    State(report): State<Arc<dyn Report>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    axum::Json(change): axum::Json<serde_json::Value>,
) -> Response {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    match report.change(&name, token, change).await {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Ok(())) => StatusCode::OK.into_response(),
        Some(Err(Refusal::Forbidden)) => {
            let why = "a change needs the token that the state directory holds\n";
            (StatusCode::FORBIDDEN, why).into_response()
        }
        Some(Err(Refusal::Failed(reason))) => (StatusCode::CONFLICT, reason + "\n").into_response(),
    }
}

/// Writes numbers in the Prometheus text format, version 0.0.4.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Begins a metric; its samples follow before the next one. `kind` is `counter`, `gauge` or
    /// `histogram`.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.text, name }
    }

    /// A metric with one sample without labels.
    pub fn single(&mut self, name: &'static str, kind: &str, help: &str, value: impl Into<f64>) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// A metric whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<f64>) -> &mut Self {
        self.line("", labels, None, value.into());
        self
    }

    /// Adds a histogram: upper bounds in ascending order, each with the number of observations up to
    /// it *and above the bound before*; then the number above the last bound, and the sum of all.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) -> &mut Self {
        let mut count = 0;
        for (bound, observed) in buckets {
            count += observed;
            self.line("_bucket", labels, Some(bound), count as f64);
        }
        count += above;
        self.line("_bucket", labels, Some(f64::INFINITY), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<f64>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let bound = bound
            .map(|bound| if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() });
        let all = labels.iter().copied().chain(bound.as_deref().map(|bound| ("le", bound)));
        for (n, (label, text)) in all.clone().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if all.count() > 0 { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn the_text_format() {
        let mut metrics = Metrics::default();
        metrics.single("up", "gauge", "Whether.", 1);
        let mut family = metrics.family("seconds", "histogram", "How long.");
        family.histogram(&[("volume", "a\"b")], [(0.5, 2), (1.0, 3)], 1, 4.25);
        assert_eq!(
            metrics.finish(),
            "# HELP up Whether.\n# TYPE up gauge\nup 1\n\
             # HELP seconds How long.\n# TYPE seconds histogram\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"0.5\"} 2\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"1\"} 5\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"+Inf\"} 6\n\
             seconds_sum{volume=\"a\\\"b\"} 4.25\nseconds_count{volume=\"a\\\"b\"} 6\n"
        );
    }

    #[test]
    fn only_loopback() {
        assert!(bind("none").unwrap().is_none());
        assert!(bind("127.0.0.1:0").unwrap().is_some());
        assert!(format!("{:#}", bind("0.0.0.0:0").unwrap_err()).contains("not a loopback"));
        assert!(bind("localhost").is_err());
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
    }

    #[tokio::test]
    async fn answers_over_http() {
        let listener = bind("127.0.0.1:0").unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        start(listener, Arc::new(Sick)).unwrap();
        for (path, expected) in [
            ("metrics", "m 1"),
            ("status", "{\"a\":1}"),
            ("livez", "200 OK"),
            ("readyz", "503"),
            ("readyz", "{\"reason\":\"no-disk\",\"volume\":\"v\",\"detail\":\"it is gone\"}"),
            ("healthz", "\"ready\":false"),
            ("else", "404"),
        ] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            assert!(reply.contains(expected), "{path}: {reply}");
        }
    }
}
