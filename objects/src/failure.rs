//! The kinds of failures of files and devices, and the next step for an operator.

use longhaul_base::files;
use longhaul_core::store::{GetError, PutError, StorageError, StorageErrorKind};
use std::fmt::Display;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Said of a failure that an operator has to end. The operations wait for that.
pub const MEANWHILE: &str = "nothing is lost meanwhile";

/// The kind of a failure of the operating system.
pub fn kind_of_io(error: &Error) -> StorageErrorKind {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageErrorKind::Full,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StorageErrorKind::Denied,
        _ => StorageErrorKind::Unavailable,
    }
}

/// The error for a failure of the operating system. `what` begins the message.
pub fn of_io(what: impl Display, error: &Error) -> StorageError {
    let kind = kind_of_io(error);
    let step = match kind {
        StorageErrorKind::Denied => {
            "check the rights of the store's user there, and that it is not mounted read-only"
        }
        StorageErrorKind::Full => "make space or enlarge the quota",
        _ => return StorageError::new(kind, format!("{what}: {error}")),
    };
    StorageError::new(kind, format!("{what}: {error}; {step}; {MEANWHILE}"))
}

/// The error for an object that a file or a device has no room for.
pub fn no_space(message: impl Display) -> StorageError {
    StorageError::new(StorageErrorKind::Full, format!("{message}; {MEANWHILE}"))
}

/// The error for a text that names no object.
pub fn not_a_name(key: &str) -> StorageError {
    StorageError::unavailable(format!("`{key}` is not an object name"))
}

/// The error for a thread that ended without a result.
pub fn of_thread(error: tokio::task::JoinError) -> StorageError {
    StorageError::unavailable(format!("a thread of ours failed: {error}"))
}

/// The kind of the first failure of the storage among the causes of an error.
pub fn kind_of(error: &anyhow::Error) -> StorageErrorKind {
    let kind = error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<StorageError>() {
            return Some(error.kind());
        }
        match (cause.downcast_ref(), cause.downcast_ref(), cause.downcast_ref()) {
            (Some(GetError::Failed(error)), _, _) | (_, Some(PutError::Failed(error)), _) => {
                Some(error.kind())
            }
            (Some(GetError::Damaged(_)), _, _) => Some(StorageErrorKind::Damaged),
            (_, _, Some(error)) => Some(kind_of_io(error)),
            _ => None,
        }
    });
    kind.unwrap_or(StorageErrorKind::Unavailable)
}

/// Creates a directory. Only a kind that an operator has to act on is that of the cause.
pub fn create_dir(dir: &Path) -> std::io::Result<()> {
    files::create_dir(dir).map_err(|error| {
        let cause = error.downcast_ref::<Error>();
        let acts = |cause: &&Error| kind_of_io(cause) != StorageErrorKind::Unavailable;
        let kind = cause.filter(acts).map_or(ErrorKind::Other, Error::kind);
        Error::new(kind, format!("{error:#}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn an_operator_learns_the_next_step_by_the_kind() {
        for (errno, kind, said) in [
            (libc::ENOSPC, StorageErrorKind::Full, "quota"),
            (libc::EDQUOT, StorageErrorKind::Full, "make space"),
            (libc::EACCES, StorageErrorKind::Denied, "rights"),
            (libc::EROFS, StorageErrorKind::Denied, "read-only"),
            (libc::EIO, StorageErrorKind::Unavailable, "os error 5"),
        ] {
            let error = of_io("cannot write x", &Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().starts_with("cannot write x: "), "{error}");
            assert!(error.message().contains(said), "{error}");
            let waits = error.message().ends_with(MEANWHILE);
            assert_eq!(waits, kind != StorageErrorKind::Unavailable, "{error}");
        }
    }

    #[test]
    fn the_kind_is_found_among_causes() {
        let full = || StorageError::new(StorageErrorKind::Full, "full");
        let wrapped = Err::<(), _>(PutError::Failed(full())).context("a").context("b");
        assert_eq!(kind_of(&wrapped.unwrap_err()), StorageErrorKind::Full);
        let wrapped = Err::<(), _>(full().context("x")).context("a");
        assert_eq!(kind_of(&wrapped.unwrap_err()), StorageErrorKind::Full);
        let denied = Err::<(), _>(Error::from(ErrorKind::PermissionDenied)).context("a");
        assert_eq!(kind_of(&denied.unwrap_err()), StorageErrorKind::Denied);
        assert_eq!(kind_of(&anyhow::anyhow!("x")), StorageErrorKind::Unavailable);
    }
}
