//! The HTTP API: what `longhaul volume`, `snapshot`, `tenant` and `store` do, but for what moves data or needs keys.
//!
//! It is spoken on the store's TCP address, over TLS: who comes shows the certificate of a credential, as hosts do, and has
//! a session within the store that may do what one over the link may, and nothing else. What the API is is
//! generated from what serves it: `GET /v1/openapi.json`.
//!
//! - `routes`: what is answered, whoever asks; `body`: how requests are read.
//! - `serve`: the connections, and how many there may be.
//! - [`client`]: the other end, which the commands are; `calls`: what it can ask for.
//! - [`types`]: what is said.

pub mod admin;
pub mod attributes;
mod body;
mod calls;
pub mod client;
pub mod keys;
pub mod queries;
mod routes;
pub mod schedule;
mod serve;
pub mod types;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use longhaul_core::wire::link::{Principal, SnapshotError, VolumeError};
use longhaul_link::{Door, LinkError, Requests};
use queries::diff::NoSnapshot;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Mutex;
use types::{Problem, ProblemKind};

pub use serve::{Bounds, Counts, serve};

/// Header of each answer: the addresses of all stores of the installation.
const STORES: &str = "longhaul-stores";

/// Who asks; each request carries it.
struct Caller {
    way: Way,
}

/// How what is asked gets to the store.
enum Way {
    /// It is this one: by the session of a connection, which begins with its first request.
    Door {
        door: Door,
        peer: SocketAddr,
        principal: Principal,
        session: Mutex<Option<Arc<Requests>>>,
    },
    /// Over a link, by who could not reach its HTTP API.
    Link(Arc<Requests>),
}

impl Caller {
    /// Who has come by HTTP and has shown the certificate of that principal.
    fn visitor(door: Door, peer: SocketAddr, principal: Principal) -> Caller {
        Caller { way: Way::Door { door, peer, principal, session: Mutex::default() } }
    }

    /// Who has a link.
    fn linked(requests: Arc<Requests>) -> Caller {
        Caller { way: Way::Link(requests) }
    }

    /// The addresses of all stores of the installation, as the one that answers knows them.
    fn stores(&self) -> Vec<String> {
        match &self.way {
            Way::Door { door, .. } => door.stores(),
            Way::Link(requests) => requests.stores(),
        }
    }

    async fn requests(&self) -> Result<Arc<Requests>, LinkError> {
        let (door, peer, principal, session) = match &self.way {
            Way::Link(requests) => return Ok(requests.clone()),
            Way::Door { door, peer, principal, session } => (door, peer, principal, session),
        };
        let mut session = session.lock().await;
        match &*session {
            Some(requests) if requests.is_open() => Ok(requests.clone()),
            // One that has ended is not let in again, if it was for its credential.
            _ => {
                let entered = Arc::new(door.enter(*peer, principal.clone()).await?);
                Ok(session.insert(entered).clone())
            }
        }
    }
}

/// The session in which something is asked.
struct Session {
    requests: Arc<Requests>,
}

impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Session, Failure> {
        let Some(caller) = parts.extensions.get::<Arc<Caller>>() else {
            return Err(Failure::unavailable("the connection is of nobody"));
        };
        match caller.requests().await {
            Ok(requests) => Ok(Session { requests }),
            Err(error @ LinkError::Revoked) => {
                let (status, kind) = (StatusCode::FORBIDDEN, ProblemKind::Forbidden);
                Err(Failure { status, kind, why: error.to_string() })
            }
            Err(error) => Err(Failure::unavailable(&error.to_string())),
        }
    }
}

impl std::ops::Deref for Session {
    type Target = Requests;

    fn deref(&self) -> &Requests {
        &self.requests
    }
}

/// Why a request was not answered otherwise.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    kind: ProblemKind,
    why: String,
}

impl Failure {
    fn new(status: StatusCode, kind: ProblemKind, why: impl Into<String>) -> Failure {
        Failure { status, kind, why: why.into() }
    }

    fn not_found(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, ProblemKind::NotFound, why)
    }

    fn invalid(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, ProblemKind::Invalid, why)
    }

    fn unavailable(why: &str) -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, ProblemKind::Unavailable, why)
    }

    /// The same, of what is not there.
    fn of_nothing(self) -> Failure {
        Failure { status: StatusCode::NOT_FOUND, kind: ProblemKind::NotFound, ..self }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        use ProblemKind as Kind;
        let why = format!("{error:#}");
        if error.is::<NoSnapshot>() {
            return Failure::not_found(why);
        }
        let (status, kind) = match error.downcast_ref::<VolumeError>() {
            Some(VolumeError::NotFound | VolumeError::Snapshot(SnapshotError::NotFound)) => {
                (StatusCode::NOT_FOUND, Kind::NotFound)
            }
            Some(
                VolumeError::Exists
                | VolumeError::Snapshot(SnapshotError::Exists | SnapshotError::IdTaken),
            ) => (StatusCode::CONFLICT, Kind::Exists),
            Some(VolumeError::Invalid(_)) => (StatusCode::BAD_REQUEST, Kind::Invalid),
            Some(VolumeError::Forbidden(_)) => (StatusCode::FORBIDDEN, Kind::Forbidden),
            Some(VolumeError::InUse(_)) => (StatusCode::CONFLICT, Kind::InUse),
            Some(VolumeError::Store(_)) => (StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable),
            Some(VolumeError::Fenced(_) | VolumeError::Changed | VolumeError::Snapshot(_)) => {
                (StatusCode::CONFLICT, Kind::Conflict)
            }
            None => (StatusCode::BAD_GATEWAY, Kind::Failed),
        };
        Failure { status, kind, why }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Failure { status, kind, why } = self;
        (status, axum::Json(Problem { error: why, kind })).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::wire::link::HostId;

    #[test]
    fn each_error_has_a_kind_that_is_read_back() {
        let no_such = VolumeError::Snapshot(SnapshotError::NotFound);
        for (error, status, text) in [
            (VolumeError::NotFound, 404, "\"not-found\""),
            (no_such, 404, "\"not-found\""),
            (VolumeError::Exists, 409, "\"exists\""),
            (VolumeError::Invalid("x".into()), 400, "\"invalid\""),
            (VolumeError::InUse(HostId(1)), 409, "\"in-use\""),
            (VolumeError::Forbidden("x".into()), 403, "\"forbidden\""),
            (VolumeError::Store("x".into()), 503, "\"unavailable\""),
            (VolumeError::Fenced(1), 409, "\"conflict\""),
            (VolumeError::Changed, 409, "\"conflict\""),
            (VolumeError::Snapshot(SnapshotError::NoBarrier), 409, "\"conflict\""),
        ] {
            let failure = Failure::from(anyhow::Error::from(error).context("the store refused"));
            assert_eq!(failure.status.as_u16(), status, "{failure:?}");
            assert!(failure.why.starts_with("the store refused: "), "{failure:?}");
            assert_eq!(serde_json::to_string(&failure.kind).unwrap(), text);
            assert_eq!(serde_json::from_str::<ProblemKind>(text).unwrap(), failure.kind);
        }
        // What a later store may say, and an earlier one leaves out.
        let odd = r#"{"error": "x", "kind": "odd"}"#;
        assert_eq!(serde_json::from_str::<Problem>(odd).unwrap().kind, ProblemKind::Failed);
        let bare = serde_json::from_str::<Problem>(r#"{"error": "x"}"#).unwrap();
        assert_eq!(bare.kind, ProblemKind::Failed);
    }
}
