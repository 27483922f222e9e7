//! Limits on the resources that one party may take of a store or a host.
//!
//! `docs/operations/tasks/party-limits.md` says how to size them. `docs/security.md` says what they
//! promise together.
//!
//! - [`Strangers`]: places for clients that have not authenticated yet; the oldest give way.
//! - [`Places`]: places for clients that have; nobody takes all of them.
//! - [`Budget`]: bytes for answers, and for data that waits to be stored. Parties and their
//!   sessions share them.

mod budget;
mod shares;
mod strangers;

pub use budget::{Answer, Budget, Urgency};
pub use shares::{Place, Places};
pub use strangers::{Stranger, Strangers, Who};

use std::time::Duration;

/// Time for a client of a store to authenticate. A TLS handshake takes two round trips. A busy
/// machine may need seconds for its part.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Most clients of a store over TCP, and as many over QUIC, that have not authenticated. One costs
/// less than 64 KiB.
pub const MAX_STRANGERS: usize = 512;
/// Most of them from one address. A link over TCP is eleven connections at once.
pub const MAX_STRANGERS_OF_ONE: usize = 128;
/// Most links over TCP with some connections missing. Each of these costs less than 64 KiB.
pub const MAX_INCOMPLETE: usize = 256;
/// Most of them with one credential.
pub const MAX_INCOMPLETE_OF_ONE: usize = 32;

/// Most sessions over links, without those of other stores. One costs some 100 KiB plus its answers
/// and data.
pub const MAX_SESSIONS: u64 = 1024;
/// Sessions of one tenant, or with one credential of the installation.
pub const MAX_SESSIONS_OF_ONE: u64 = 512;
/// Sessions from one address.
pub const MAX_SESSIONS_OF_ADDRESS: u64 = 512;
/// Sessions of other stores of the installation.
pub const MAX_STORE_SESSIONS: u64 = 256;

/// Most HTTP connections of a store. Once one is in use it has a session, beside those of links.
pub const MAX_HTTP: u64 = 256;
/// Most HTTP connections of one tenant, or with one credential of the installation.
pub const MAX_HTTP_OF_ONE: u64 = 64;
/// Time for the head of an HTTP request, from the end of the answer before. So it is also the time
/// for which a connection may be idle.
pub const HTTP_SILENCE: Duration = Duration::from_secs(30);

/// Bytes of answers to reads, for all sessions together. An answer counts from the beginning of its
/// read until the transport is done with it.
pub const ANSWER_BYTES: u64 = 256 << 20;
/// Bytes of one tenant, or with one credential of the installation.
pub const ANSWER_BYTES_OF_ONE: u64 = 128 << 20;
/// Bytes of one session. At a round trip of 100 ms it can read 3.8 Gbit/s with them.
pub const ANSWER_BYTES_OF_SESSION: u64 = 48 << 20;
/// The bytes that the answer to any other request counts for.
pub const OTHER_ANSWER_BYTES: u64 = 64 << 10;
/// Bytes of answers to all requests but reads. They have their own limit, so that unread data
/// blocks no command.
pub const OTHER_ANSWERS_BYTES: u64 = 64 << 20;
/// Bytes of one tenant, or with one credential of the installation.
pub const OTHER_ANSWERS_BYTES_OF_ONE: u64 = 32 << 20;
/// Bytes of one session.
pub const OTHER_ANSWERS_BYTES_OF_SESSION: u64 = 4 << 20;

/// Bytes of frames of one session about unknown volumes. They wait until the store has looked at
/// its location. That has room for a host with a thousand volumes that another store has just
/// created.
pub const MAX_STRANGE_BYTES: usize = 8 << 20;
/// Bytes that a frame counts for, besides its payload.
pub const STRANGE_FRAME_BYTES: usize = 4 << 10;
/// Frames of one party that may wait for the queue of the store service. The queue takes one frame
/// of each waiting party in turn. So no frame waits for more than this many of each other party.
pub const FRAMES_OF_ONE: usize = 16;

/// Requests without an answer, except reads, for all sessions together: attach, detach, and
/// requests of commands. One takes some 200 bytes. That has room for a host that resumes thousands
/// of volumes.
pub const MAX_OPEN_REQUESTS: u64 = 64 << 10;
/// Requests of one tenant, or with one credential of the installation. The store ends a session
/// that asks for more.
pub const MAX_OPEN_REQUESTS_OF_ONE: u64 = 16 << 10;

/// Bytes of batches that the store has received and not stored, for all sessions together. A batch
/// counts from its arrival until its segment is stored. A session has a part of them. The rest of
/// its data waits at the host.
pub const BATCH_BYTES: u64 = 144 << 20;
/// Bytes of one tenant, or with one credential of the installation.
pub const BATCH_BYTES_OF_ONE: u64 = 72 << 20;
/// Bytes of one session. A session without others has 27 MiB. If a segment takes 200 ms, it writes
/// 1.1 Gbit/s with them.
pub const BATCH_BYTES_OF_SESSION: u64 = 48 << 20;
/// Bytes of waiting frames without a counted answer, for example attaches and announcements. They
/// have their own limit, so that waiting batches do not block a detach.
pub const FRAMES_BYTES: u64 = 32 << 20;
/// Bytes of one tenant, or with one credential of the installation.
pub const FRAMES_BYTES_OF_ONE: u64 = 16 << 20;
/// Bytes of one session.
pub const FRAMES_BYTES_OF_SESSION: u64 = 8 << 20;
/// Bytes that each of these frames, and each batch, counts for besides its content.
pub const FRAME_BYTES: u64 = 1 << 10;

/// Map diffs and usage counts of snapshots at a time. One party has one at a time.
pub const MAX_WALKS: usize = 4;
/// Snapshots that stay open for such work when more of it begins. One takes some 10 KiB, and pages
/// of `--map-memory`.
pub const MAX_IDLE_SNAPSHOTS: usize = 64;

/// Bytes that a store takes of a tenant beyond its `--max-stored`. Hosts acknowledge writes for a
/// round trip before they hear that the quota is full. Writes beyond this stay in the journals of
/// the hosts.
pub const QUOTA_GRACE_BYTES: u64 = 64 << 20;

/// Most connections to an admin address. If one more comes, the server closes the one that has been
/// idle the longest.
pub const MAX_ADMIN_CONNECTIONS: usize = 64;
/// Time for the head of a request to an admin address, and for which a connection may be idle.
pub const ADMIN_SILENCE: Duration = Duration::from_secs(10);
/// Time for the whole body of a change.
pub const ADMIN_BODY_LIMIT: Duration = Duration::from_secs(10);
/// Bodies of changes in memory at once, each of at most [`ADMIN_BODY_BYTES`].
pub const ADMIN_BODIES: usize = 4;
/// Largest body of a change: it has room for the most pinned ranges of a host.
pub const ADMIN_BODY_BYTES: usize = 8 << 20;
/// Largest body of a change of rights or keys.
pub const ADMIN_SMALL_BODY_BYTES: usize = 64 << 10;
/// Bytes of a request's head, and of one read from an HTTP connection.
pub const HTTP_HEAD_BYTES: usize = 32 << 10;

/// NBD clients that have not chosen an export. One costs less than 512 KiB.
pub const MAX_NBD_STRANGERS: usize = 128;
/// Most of them from one address, or of one user at a unix socket.
pub const MAX_NBD_STRANGERS_OF_ONE: usize = 64;
/// NBD clients that use an export. One takes less than 1 MiB as long as it has nothing in flight.
pub const MAX_NBD_CLIENTS: u64 = 512;
/// Most of them from one address, or of one user at a unix socket.
pub const MAX_NBD_CLIENTS_OF_ONE: u64 = 256;

/// iSCSI connections that have not logged in. One costs less than 512 KiB.
pub const MAX_ISCSI_STRANGERS: usize = 256;
/// Most of them from one address.
pub const MAX_ISCSI_STRANGERS_OF_ONE: usize = 64;
/// iSCSI connections that have logged in. One takes less than 1 MiB as long as it has nothing in
/// flight.
pub const MAX_ISCSI_CONNECTIONS: u64 = 1024;
/// Most of them from one address.
pub const MAX_ISCSI_CONNECTIONS_OF_ONE: u64 = 512;

const _: () = assert!(MAX_STRANGERS_OF_ONE < MAX_STRANGERS, "one address leaves places");
const _: () = assert!(MAX_NBD_STRANGERS_OF_ONE < MAX_NBD_STRANGERS, "one address leaves places");
const _: () = assert!(
    ANSWER_BYTES + OTHER_ANSWERS_BYTES + BATCH_BYTES + FRAMES_BYTES < 512 << 20,
    "what is not read or not stored must not take what a store is said to need"
);
