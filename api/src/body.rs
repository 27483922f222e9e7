//! Reads requests. A fault in one gets an answer like any other.

use super::failure::Failure;
use super::types::ProblemKind;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Largest body of a request.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// How much of a body that is too large to read and drop. Its sender looks for the answer only
/// after sending all of it, and must not find the connection closed. The server cuts off even
/// larger ones.
const MAX_DROPPED_BYTES: usize = 4 << 20;
/// How long a body may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A body in JSON.
pub(super) struct Said<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Said<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let (parts, body) = request.into_parts();
        let bytes = match tokio::time::timeout(LIMIT, whole(&parts.headers, body)).await {
            Ok(bytes) => bytes?,
            Err(_) => {
                let why = format!("the request did not come within {} s", LIMIT.as_secs());
                return Err(Failure::new(StatusCode::REQUEST_TIMEOUT, ProblemKind::Invalid, why));
            }
        };
        let request = Request::from_parts(parts, Body::from(bytes));
        let said = Json::<T>::from_request(request, state).await;
        let Json(said) = said.map_err(|error: JsonRejection| {
            Failure::new(error.status(), ProblemKind::Invalid, error.body_text())
        })?;
        Ok(Said(said))
    }
}

/// All of a body.
async fn whole(headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
    let too_large = || {
        let why = format!("a request has at most {MAX_BYTES} bytes");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, ProblemKind::TooLarge, why)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    // A client that asks whether to send the body has not sent any of it.
    if announced > MAX_BYTES as u64 && headers.contains_key(header::EXPECT) {
        return Err(too_large());
    }
    let mut read = Vec::new();
    let mut bytes = 0;
    let mut stream = body.into_data_stream();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| Failure::invalid(error.to_string()))?;
        bytes += part.len();
        if bytes <= MAX_BYTES {
            read.extend_from_slice(&part);
        } else if bytes > MAX_DROPPED_BYTES {
            break;
        }
    }
    if bytes > MAX_BYTES { Err(too_large()) } else { Ok(read.into()) }
}

/// The query of the URI, after the `?`.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let query = query.map_err(|error: QueryRejection| {
            Failure::new(error.status(), ProblemKind::Invalid, error.body_text())
        })?;
        Ok(Query(query.0))
    }
}
