//! Events: what a session asks of the shell.

use crate::block::{Range, Request};

/// An event for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answer with [`handle_exports`](super::Session::handle_exports). The session takes no input
    /// until then.
    ListExports,
    /// Answer with [`handle_export`](super::Session::handle_export). The session takes no input
    /// until then.
    LookupExport {
        /// The name that the client wrote; empty means the default export.
        name: String,
        /// The transmission phase starts on success. Otherwise the client only asks for
        /// information.
        entering: bool,
        /// The answer needs [`bitmaps`](super::ExportInfo::bitmaps).
        bitmaps: bool,
    },
    /// Write all output, then do the server's part of a TLS handshake, then call
    /// [`handle_tls_established`](super::Session::handle_tls_established). All later bytes, both
    /// ways, are inside TLS.
    StartTls,
    /// Transmission begins on the export of this canonical name.
    Ready {
        /// The name in the answer to the lookup.
        name: String,
    },
    /// Answer with [`handle_reply`](super::Session::handle_reply), in any order.
    Request {
        /// Names the request in the answer.
        slot: u64,
        /// Within the export; a payload has the length of the range.
        request: Request,
    },
    /// Answer with [`handle_reply`](super::Session::handle_reply) as a status query. Dirty sectors
    /// are [`BlockState::Data`](crate::block::BlockState::Data), all others a hole.
    Dirty {
        /// Names the request in the answer.
        slot: u64,
        /// The name of a bitmap of the export.
        bitmap: String,
        /// Within the export.
        range: Range,
    },
    /// The last event. Write all output, then end TLS and the connection. Drop the replies to
    /// outstanding requests.
    Close(CloseReason),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client sent `NBD_OPT_ABORT`.
    #[error("the client aborted the handshake")]
    Aborted,
    /// The client sent `NBD_CMD_DISC`, and all requests before it are answered.
    #[error("the client disconnected")]
    Disconnected,
    /// The connection ended without `NBD_CMD_DISC`.
    #[error("the connection ended without a disconnect request")]
    Eof,
    /// The client sent `EXPORT_NAME`, which has no error reply, and cannot have the export.
    #[error("refused the export {name:?} to a client, which cannot get the reason: {message}")]
    ExportRefused {
        /// The name that the client asked for.
        name: String,
        /// The reason.
        message: String,
    },
    /// The client broke the protocol, and no reply is safe.
    ///
    /// Plain bytes after a `STARTTLS` are such a case. If they were taken for TLS-protected ones,
    /// an attacker in the path could insert options of the client (CVE-2021-3716).
    #[error("protocol violation: {0}; check the client's NBD implementation")]
    Violation(&'static str),
}
