//! Connections of HTTP clients: how many there may be, and for how long each may be silent.
//!
//! Every client here has authenticated. So the limit is on two things: connections that a
//! well-meaning client keeps open by mistake, and places that one tenant takes from the others.
//! Memory is bounded for each connection.

use super::failure::Failure;
use super::routes;
use super::session::{Caller, STORES};
use axum::Router;
use axum::http::{HeaderValue, Request};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use longhaul_base::limits::{
    HTTP_HEAD_BYTES, HTTP_SILENCE, MAX_HTTP, MAX_HTTP_OF_ONE, Place, Places,
};
use longhaul_link::tcp::Visitor;
use longhaul_link::{Door, party};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// Answers requests.
pub(super) type Routes = TowerToHyperService<Router>;

/// All routes.
pub(super) fn service() -> Routes {
    TowerToHyperService::new(routes::router())
}

/// Most connections that get an answer that there are too many. The server closes others.
const MAX_TURNED_AWAY: usize = 32;
/// How long one of those may take to ask.
const TURNED_AWAY: Duration = Duration::from_secs(3);

/// The limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All of them. Each has a session once it is in use, beside those of links.
    pub connections: u64,
    /// Those of one tenant, or with one credential of the installation.
    pub of_one: u64,
    /// How long the head of a request may take, from the end of the answer before on.
    pub silence: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: MAX_HTTP, of_one: MAX_HTTP_OF_ONE, silence: HTTP_SILENCE }
    }
}

/// Counters of HTTP.
#[derive(Debug)]
pub struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    /// Connections by whose they are.
    places: Places<String>,
}

impl Counts {
    /// Nothing yet, with this number of connections.
    pub fn new(bounds: &Bounds) -> Counts {
        Counts {
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            places: Places::new(bounds.connections, bounds.of_one),
        }
    }

    /// Requests since the start.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Connections that the server turned away since the start, because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.places.taken() as usize
    }
}

/// Serves clients until the listener ends or the future is dropped. Then no connection stays.
pub async fn serve(
    mut visitors: mpsc::Receiver<Visitor>,
    door: Door,
    counts: Arc<Counts>,
    bounds: Bounds,
) {
    let routes = service();
    let (mut connections, mut turned_away) = (JoinSet::new(), JoinSet::new());
    while let Some(Visitor { stream, peer, principal }) = visitors.recv().await {
        while connections.try_join_next().is_some() {}
        while turned_away.try_join_next().is_some() {}
        let Some(place) = counts.places.take(party(&principal)) else {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("refused {peer} (HTTP): too many connections");
            if turned_away.len() < MAX_TURNED_AWAY {
                turned_away.spawn(turn_away(stream));
            }
            continue;
        };
        let caller = Arc::new(Caller::visitor(door.clone(), peer, principal));
        let service = (caller, routes.clone(), counts.clone());
        connections.spawn(connection(stream, service, place, bounds.silence));
    }
}

async fn connection(
    stream: TlsStream<TcpStream>,
    (caller, routes, counts): (Arc<Caller>, Routes, Arc<Counts>),
    _place: Place<String>,
    silence: Duration,
) {
    let service = service_fn(|mut request: Request<Incoming>| {
        counts.requests.fetch_add(1, Ordering::Relaxed);
        request.extensions_mut().insert(caller.clone());
        let stores = HeaderValue::from_str(&caller.stores().join(","));
        let answer = routes.call(request);
        async move {
            let mut answer = answer.await?;
            if let Ok(stores) = stores {
                answer.headers_mut().insert(STORES, stores);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(silence).max_buf_size(HTTP_HEAD_BYTES);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("an HTTP connection has ended: {error}");
    }
}

/// Answers one request of somebody for whom there is no place.
async fn turn_away(stream: TlsStream<TcpStream>) {
    let service = service_fn(|_: Request<Incoming>| {
        let why = "the store has too many HTTP connections with this credential, or at all: close \
                   some, or try again later";
        std::future::ready(Ok::<_, Infallible>(Failure::unavailable(why).into_response()))
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HTTP_HEAD_BYTES);
    let answered = http.serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(TURNED_AWAY, answered).await;
}
