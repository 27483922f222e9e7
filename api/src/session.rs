//! The session of a request.

use crate::failure::Failure;
use crate::types::ProblemKind;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use longhaul_core::wire::link::Principal;
use longhaul_link::{Door, LinkError, Requests};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Header of each answer: the addresses of all stores of the installation.
pub(crate) const STORES: &str = "longhaul-stores";

/// The client of a request; each request carries it.
pub(crate) struct Caller {
    pub(crate) way: Way,
}

/// The way of a request to the store.
pub(crate) enum Way {
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

/// The session of a request.
pub(crate) struct Session {
    pub(crate) requests: Arc<Requests>,
}

impl Caller {
    /// A client over HTTP, with the certificate of that principal.
    pub(crate) fn visitor(door: Door, peer: SocketAddr, principal: Principal) -> Caller {
        Caller { way: Way::Door { door, peer, principal, session: Mutex::default() } }
    }

    /// A client with a link.
    pub(crate) fn linked(requests: Arc<Requests>) -> Caller {
        Caller { way: Way::Link(requests) }
    }

    /// The addresses of all stores of the installation, as the one that answers knows them.
    pub(crate) fn stores(&self) -> Vec<String> {
        match &self.way {
            Way::Door { door, .. } => door.stores(),
            Way::Link(requests) => requests.stores(),
        }
    }

    pub(crate) async fn requests(&self) -> Result<Arc<Requests>, LinkError> {
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

impl<S: Sync> FromRequestParts<S> for Session {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Session, Failure> {
        let Some(caller) = parts.extensions.get::<Arc<Caller>>() else {
            return Err(Failure::unavailable("the connection has no session"));
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
