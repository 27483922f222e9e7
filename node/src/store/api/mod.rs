//! The HTTP API: what `longhaul volume`, `snapshot`, `tenant` and `store` can do, for programs.
//!
//! It is spoken on the store's TCP address, over TLS: who comes shows the certificate of a credential, as hosts do, and has
//! a session within the store that may do what one over the link may, and nothing else. What the API is is
//! generated from what serves it: `GET /v1/openapi.json`.

mod routes;
pub mod types;

use crate::link::tcp::Visitor;
use crate::link::{Door, LinkError, Requests};
use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use longhaul_core::wire::link::{SnapshotError, VolumeError};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, mpsc};
use tokio_rustls::TlsStream;
use types::Problem;

/// Largest body of a request.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Serves those who come until there are no more.
pub async fn serve(visitors: mpsc::Receiver<Visitor>, door: Door) {
    let router = Router::new()
        .merge(routes::router())
        .fallback(async || Failure::not_found("no such path: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            Failure(
                StatusCode::METHOD_NOT_ALLOWED,
                "not for this path: see /v1/openapi.json".into(),
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    let visitors = Visitors { visitors, door };
    let service = router.into_make_service_with_connect_info::<Who>();
    if let Err(error) = axum::serve(visitors, service).await {
        tracing::error!("the HTTP API has ended: {error}");
    }
}

struct Visitors {
    visitors: mpsc::Receiver<Visitor>,
    door: Door,
}

impl axum::serve::Listener for Visitors {
    type Io = TlsStream<TcpStream>;
    type Addr = Who;

    async fn accept(&mut self) -> (Self::Io, Who) {
        match self.visitors.recv().await {
            Some(Visitor { stream, peer, serial }) => {
                let (door, session) = (self.door.clone(), OnceCell::new());
                (stream, Who(Arc::new(Guest { door, peer, serial, session })))
            }
            // The store is stopping.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Who> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Who a connection is of.
#[derive(Clone)]
struct Who(Arc<Guest>);

struct Guest {
    door: Door,
    peer: SocketAddr,
    serial: String,
    session: OnceCell<Arc<Requests>>,
}

impl std::fmt::Debug for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.0.peer, self.0.serial)
    }
}

impl Connected<IncomingStream<'_, Visitors>> for Who {
    fn connect_info(stream: IncomingStream<'_, Visitors>) -> Who {
        stream.remote_addr().clone()
    }
}

/// The session of a connection, which begins with its first request.
struct Session(Arc<Requests>);

impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Session, Failure> {
        let Some(ConnectInfo(Who(guest))) = parts.extensions.get::<ConnectInfo<Who>>() else {
            return Err(Failure::unavailable("the connection is of nobody"));
        };
        let enter = async || {
            let session = guest.door.enter(guest.peer, guest.serial.clone()).await;
            session.map(Arc::new)
        };
        match guest.session.get_or_try_init(enter).await {
            Ok(session) => Ok(Session(session.clone())),
            Err(error @ LinkError::Revoked) => {
                Err(Failure(StatusCode::FORBIDDEN, error.to_string()))
            }
            Err(error) => Err(Failure::unavailable(&error.to_string())),
        }
    }
}

impl std::ops::Deref for Session {
    type Target = Requests;

    fn deref(&self) -> &Requests {
        &self.0
    }
}

/// Why a request was not answered otherwise.
#[derive(Debug)]
struct Failure(StatusCode, String);

impl Failure {
    fn not_found(why: &str) -> Failure {
        Failure(StatusCode::NOT_FOUND, why.to_owned())
    }

    fn invalid(why: impl Into<String>) -> Failure {
        Failure(StatusCode::BAD_REQUEST, why.into())
    }

    fn unavailable(why: &str) -> Failure {
        Failure(StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let code = match error.downcast_ref::<VolumeError>() {
            Some(VolumeError::NotFound | VolumeError::Snapshot(SnapshotError::NotFound)) => {
                StatusCode::NOT_FOUND
            }
            Some(VolumeError::Invalid(_)) => StatusCode::BAD_REQUEST,
            Some(VolumeError::Store(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Some(_) => StatusCode::CONFLICT,
            None => StatusCode::BAD_GATEWAY,
        };
        Failure(code, format!("{error:#}"))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, axum::Json(Problem { error: self.1 })).into_response()
    }
}
