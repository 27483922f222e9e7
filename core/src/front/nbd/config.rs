//! Settings and limits of a session.

use crate::block::MAX_TRANSFER_BYTES;

/// How a session treats TLS (NBD `proto.md`, "TLS support").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// NOTLS: the session refuses `STARTTLS`.
    Off,
    /// FORCEDTLS: before the upgrade the session accepts only `STARTTLS` and `ABORT`.
    Required,
}

/// Limits of what one session holds at a time.
///
/// Memory is bounded by `max_bytes` plus two transfers of [`MAX_TRANSFER_BYTES`]: one admitted just
/// below the limit, one being received. Each request adds less than 1 KiB. Reads that find data and
/// zeroes alternating by sector add an eighth.
///
/// A payload also keeps the rest of the buffer alive that it was split from. The shell bounds that
/// by the size of the buffers it reads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests without a reply; the session always takes at least one. A status query counts once
    /// for each of its contexts. Such a query may exceed the limit by its contexts, of which there
    /// are at most 17.
    pub max_requests: usize,
    /// Bytes of payload: of requests without a reply, of reads without an answer, and of waiting
    /// output.
    pub max_bytes: u64,
}

impl Default for Limits {
    /// 1024 requests and 64 MiB. That never slows a client with two of the largest requests in
    /// flight, nor one with the deepest queue that Linux configures. Guessed, not measured.
    fn default() -> Limits {
        Limits { max_requests: 1024, max_bytes: 2 * MAX_TRANSFER_BYTES }
    }
}

/// Settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Treatment of TLS.
    pub tls: Tls,
    /// Memory bounds.
    pub limits: Limits,
}

/// Requests that are outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inflight {
    /// Requests without a reply.
    pub requests: usize,
    /// Their payload in bytes, as counted against [`Limits::max_bytes`].
    pub bytes: u64,
}
