//! The admin listener of a host: `/status`, `/metrics`, `/healthz`.
//!
//! It has a thread of its own, so that whoever scrapes it costs the front thread one question, not
//! HTTP. It does not authenticate: it only listens on loopback.

use super::metrics::Kind;
use super::report::{Answer, Question, VolumeReport};
use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long the front thread may take for an answer before the host counts as hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A running admin listener; it ends when dropped.
pub struct Admin {
    _stop: Option<oneshot::Sender<()>>,
}

impl Admin {
    /// Listens on `address`, unless that is `none`.
    ///
    /// # Errors
    /// If it is no address, not of loopback, or taken.
    pub fn start(address: &str, questions: mpsc::Sender<Question>) -> Result<Admin> {
        if address == "none" {
            return Ok(Admin { _stop: None });
        }
        let parsed: SocketAddr = address
            .replace("localhost:", "127.0.0.1:")
            .parse()
            .with_context(|| format!("--admin {address}: neither ADDR:PORT nor `none`"))?;
        if !parsed.ip().is_loopback() {
            bail!(
                "refusing to listen on {address} for --admin: it does not ask who is there; use a \
                 loopback address and put an authenticating proxy in front of it"
            );
        }
        let listener = std::net::TcpListener::bind(parsed).with_context(|| {
            format!("cannot listen on {address} for --admin: stop what does, or choose another one")
        })?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let app = Router::new()
            .route("/healthz", get(healthz))
            .route("/status", get(status))
            .route("/metrics", get(metrics))
            .with_state(questions);
        std::thread::Builder::new().name("admin".into()).spawn(move || {
            runtime.block_on(async move {
                let serve =
                    async { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await };
                tokio::select! {
                    served = serve => {
                        if let Err(error) = served {
                            tracing::error!("the admin listener ended: {error}");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Admin { _stop: Some(stop) })
    }
}

async fn ask(questions: &mpsc::Sender<Question>) -> Result<Answer, Response> {
    let (question, answer) = oneshot::channel();
    let asked = async {
        questions.send(question).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(ANSWER_LIMIT, asked).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => {
            Err((StatusCode::SERVICE_UNAVAILABLE, "the host is stopping\n").into_response())
        }
        Err(_) => {
            let text = "the host's front thread does not answer\n";
            Err((StatusCode::SERVICE_UNAVAILABLE, text).into_response())
        }
    }
}

async fn healthz(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions).await {
        Ok(_) => "ok\n".into_response(),
        Err(response) => response,
    }
}

async fn status(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions).await {
        Ok(answer) => axum::Json(answer.report).into_response(),
        Err(response) => response,
    }
}

async fn metrics(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions).await {
        Ok(answer) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            (kind, prometheus(&answer)).into_response()
        }
        Err(response) => response,
    }
}

/// A gauge or counter of a volume: name, kind, help, value.
type VolumeMetric = (&'static str, &'static str, &'static str, fn(&VolumeReport) -> f64);

const VOLUME_METRICS: [VolumeMetric; 14] = [
    ("volume_attached", "gauge", "Whether the volume is attached.", |v| {
        f64::from(u8::from(v.state == "attached"))
    }),
    ("epoch", "gauge", "Writing epoch.", |v| v.epoch as f64),
    ("size_bytes", "gauge", "Size of the volume.", |v| v.size_bytes as f64),
    ("lag_bytes", "gauge", "Bytes the store has not committed.", |v| v.lag_bytes as f64),
    ("lag_seconds", "gauge", "Age of the oldest write the store has not committed.", |v| {
        v.lag_seconds
    }),
    ("journal_bytes", "gauge", "Journal space taken by undelivered writes.", |v| {
        v.journal_bytes as f64
    }),
    ("journal_capacity_bytes", "gauge", "Journal space.", |v| v.journal_capacity_bytes as f64),
    ("journal_failed", "gauge", "Whether the journal has failed.", |v| {
        f64::from(u8::from(v.journal_failed))
    }),
    ("memory_bytes", "gauge", "Buffers of writes in memory.", |v| v.memory_bytes as f64),
    ("dirty_entries", "gauge", "Entries of the dirty map.", |v| v.dirty_entries as f64),
    ("waiting_reads", "gauge", "Reads that wait for disk or store.", |v| v.waiting_reads as f64),
    ("waiting_writes", "gauge", "Writes that wait for room.", |v| v.waiting_writes as f64),
    ("waiting_flushes", "gauge", "Flushes that wait for durability.", |v| v.waiting_flushes as f64),
    ("connections", "gauge", "NBD clients.", |v| v.connections as f64),
];

/// The text format of Prometheus.
fn prometheus(answer: &Answer) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        // Writing to a string does not fail.
        let _ =
            writeln!(out, "# HELP longhaul_host_{name} {help}\n# TYPE longhaul_host_{name} {kind}");
        for (suffix, value) in samples {
            let _ = writeln!(out, "longhaul_host_{name}{suffix} {value}");
        }
    };
    let volumes = &answer.report.volumes;
    let labels = |name: &str| format!("{{volume=\"{name}\"}}");
    for (name, kind, help, value) in VOLUME_METRICS {
        let samples = volumes.iter().map(|v| (labels(&v.name), value(v))).collect();
        family(name, kind, help, samples);
    }
    let counters: std::collections::BTreeSet<&String> =
        volumes.iter().flat_map(|v| v.counters.keys()).collect();
    for counter in counters {
        let samples = volumes
            .iter()
            .filter_map(|v| Some((labels(&v.name), *v.counters.get(counter)? as f64)))
            .collect();
        let help = format!("{} since the attach.", counter.replace('_', " "));
        family(&format!("{counter}_total"), "counter", &help, samples);
    }
    let mut samples = Vec::new();
    for (name, metrics) in &answer.metrics {
        for (kind, label) in Kind::ALL {
            let histogram = metrics.of(kind);
            let labels = format!("volume=\"{name}\",kind=\"{label}\"");
            for (bound, count) in histogram.cumulative() {
                samples.push((format!("_bucket{{{labels},le=\"{bound}\"}}"), count as f64));
            }
            let count = histogram.count() as f64;
            samples.push((format!("_bucket{{{labels},le=\"+Inf\"}}"), count));
            samples.push((format!("_sum{{{labels}}}"), histogram.seconds()));
            samples.push((format!("_count{{{labels}}}"), count));
        }
    }
    family("request_seconds", "histogram", "Time from request to reply.", samples);
    let link = &answer.report.link;
    let one = |value: f64| vec![(String::new(), value)];
    family("link_up", "gauge", "Whether a store is connected.", one(f64::from(u8::from(link.up))));
    if let Some(rtt) = link.rtt_ms {
        family("link_rtt_seconds", "gauge", "Round-trip time to the store.", one(rtt / 1e3));
    }
    let totals = [
        ("link_sent_bytes_total", "Bytes sent to the store.", link.sent_bytes),
        ("link_received_bytes_total", "Bytes received from the store.", link.received_bytes),
        ("link_lost_packets_total", "Packets that count as lost.", link.lost_packets),
        ("link_reconnects_total", "Connections after the first.", link.reconnects),
        (
            "connections_refused_total",
            "NBD clients turned away.",
            answer.report.connections_refused,
        ),
    ];
    for (name, help, value) in totals {
        family(name, "counter", help, one(value as f64));
    }
    out
}
