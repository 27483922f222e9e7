//! Failures of requests, as answers.

use crate::queries::diff::NoSnapshot;
use crate::types::{Problem, ProblemKind};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use longhaul_core::store::{StorageError, StorageErrorKind};
use longhaul_core::wire::link::{SnapshotError, VolumeError};

/// A failure of a request.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) kind: ProblemKind,
    pub(crate) why: String,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, kind: ProblemKind, why: impl Into<String>) -> Failure {
        Failure { status, kind, why: why.into() }
    }

    pub(crate) fn not_found(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, ProblemKind::NotFound, why)
    }

    pub(crate) fn invalid(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, ProblemKind::Invalid, why)
    }

    pub(crate) fn unavailable(why: &str) -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, ProblemKind::Unavailable, why)
    }

    /// The same, of what is not there.
    pub(crate) fn of_nothing(self) -> Failure {
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
            None => match storage_kind(&error) {
                Some(StorageErrorKind::Full) => {
                    (StatusCode::INSUFFICIENT_STORAGE, Kind::Unavailable)
                }
                Some(StorageErrorKind::Unavailable | StorageErrorKind::Denied) => {
                    (StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable)
                }
                // A later attempt does not help.
                Some(StorageErrorKind::Misconfigured | StorageErrorKind::Damaged) | None => {
                    (StatusCode::BAD_GATEWAY, Kind::Failed)
                }
            },
        };
        Failure { status, kind, why }
    }
}

/// The kind of a failure of the object store among the causes; `None` if none of them is one.
fn storage_kind(error: &anyhow::Error) -> Option<StorageErrorKind> {
    error.chain().find_map(|cause| cause.downcast_ref::<StorageError>()).map(StorageError::kind)
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
        for (kind, status) in [
            (StorageErrorKind::Unavailable, 503),
            (StorageErrorKind::Denied, 503),
            (StorageErrorKind::Full, 507),
            (StorageErrorKind::Damaged, 502),
        ] {
            let error = anyhow::Error::new(StorageError::new(kind, "x")).context("it failed");
            assert_eq!(Failure::from(error).status.as_u16(), status, "{kind:?}");
        }
        // Later stores may add kinds.
        let odd = r#"{"error": "x", "kind": "odd"}"#;
        assert_eq!(serde_json::from_str::<Problem>(odd).unwrap().kind, ProblemKind::Failed);
    }
}
