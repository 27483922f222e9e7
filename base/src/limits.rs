//! What one party may take of a store or a host: every limit is here.
//!
//! `docs/operations/tasks/party-limits.md` says how to size them, and `docs/security.md` what they
//! promise together.
//!
//! - [`Strangers`]: places for who has not shown yet who they are; the oldest give way.
//! - [`Places`]: places for who has; nobody takes all of them.
//! - [`Budget`]: bytes for answers, and for what waits to be stored, shared among parties and their sessions.

mod budget;
mod shares;
mod strangers;

pub use budget::{Answer, Budget, Urgency};
pub use shares::{Place, Places};
pub use strangers::{Stranger, Strangers, Who};

use std::time::Duration;

/// How long a client of a store may take to show who it is. A TLS handshake takes two round trips; a busy
/// machine may need seconds for its part.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Clients of a store over TCP, and as many over QUIC, that have not shown who they are. One costs less than
/// 64 KiB.
pub const MAX_STRANGERS: usize = 512;
/// The same from one address. A link over TCP is eleven connections at once.
pub const MAX_STRANGERS_OF_ONE: usize = 128;
/// Links over TCP of which some connections have come; each of these costs less than 64 KiB.
pub const MAX_INCOMPLETE: usize = 256;
/// The same with one credential.
pub const MAX_INCOMPLETE_OF_ONE: usize = 32;

/// Sessions over links, those of other stores apart. One costs some 100 KiB without answers and data.
pub const MAX_SESSIONS: u64 = 1024;
/// Sessions of one tenant, or with one credential of the installation.
pub const MAX_SESSIONS_OF_ONE: u64 = 512;
/// Sessions from one address.
pub const MAX_SESSIONS_OF_ADDRESS: u64 = 512;
/// Sessions of other stores of the installation.
pub const MAX_STORE_SESSIONS: u64 = 256;

/// Connections of who speaks HTTP with a store. Each has a session once it is used, beside those of links.
pub const MAX_HTTP: u64 = 256;
/// Those of one tenant, or with one credential of the installation.
pub const MAX_HTTP_OF_ONE: u64 = 64;
/// How long the head of an HTTP request may take, from the end of the answer before on: also how long a
/// connection may be idle.
pub const HTTP_SILENCE: Duration = Duration::from_secs(30);

/// Bytes of answers to reads that were begun and are not sent, of all sessions. An answer counts from when its
/// read is begun until the transport is done with it.
pub const ANSWER_BYTES: u64 = 256 << 20;
/// Those of one tenant, or with one credential of the installation.
pub const ANSWER_BYTES_OF_ONE: u64 = 128 << 20;
/// Those of one session: at 100 ms of round trip it reads 3.8 Gbit/s with them.
pub const ANSWER_BYTES_OF_SESSION: u64 = 48 << 20;
/// What the answer to anything but a read counts for.
pub const OTHER_ANSWER_BYTES: u64 = 64 << 10;
/// Bytes of answers to anything but reads. They are apart, so that unread data keeps nobody from a command.
pub const OTHER_ANSWERS_BYTES: u64 = 64 << 20;
/// Those of one tenant, or with one credential of the installation.
pub const OTHER_ANSWERS_BYTES_OF_ONE: u64 = 32 << 20;
/// Those of one session.
pub const OTHER_ANSWERS_BYTES_OF_SESSION: u64 = 4 << 20;

/// Bytes of frames of one session about volumes that are not known yet: they wait until the location was looked at. A host
/// with a thousand volumes that another store has just created fits.
pub const MAX_STRANGE_BYTES: usize = 8 << 20;
/// What a frame counts for besides its payload.
pub const STRANGE_FRAME_BYTES: usize = 4 << 10;
/// Frames of one party that wait to be put into the queue of the shell, which takes one of each that waits in turn. So
/// nobody's frame waits for more than so many of each other party.
pub const FRAMES_OF_ONE: usize = 16;

/// Requests other than reads that have no answer yet, of all sessions: attach, detach, and what commands ask. One takes some
/// 200 bytes. A host that resumes thousands of volumes at once fits.
pub const MAX_OPEN_REQUESTS: u64 = 64 << 10;
/// Those of one tenant, or with one credential of the installation. A session that asks for more is ended.
pub const MAX_OPEN_REQUESTS_OF_ONE: u64 = 16 << 10;

/// Bytes of batches that have come in and are not stored, of all sessions: from when they are read off the link until their
/// segment is. Of that a session has its part; the rest waits at the host.
pub const BATCH_BYTES: u64 = 144 << 20;
/// Those of one tenant, or with one credential of the installation.
pub const BATCH_BYTES_OF_ONE: u64 = 72 << 20;
/// Those of one session. Where it is alone it has 27 MiB: at 200 ms for a segment it writes 1.1 Gbit/s with them.
pub const BATCH_BYTES_OF_SESSION: u64 = 48 << 20;
/// Bytes of attaches, announcements and what else has no answer that counts, as long as they wait for something. They are
/// apart, so that batches that wait keep nobody from a detach.
pub const FRAMES_BYTES: u64 = 32 << 20;
/// Those of one tenant, or with one credential of the installation.
pub const FRAMES_BYTES_OF_ONE: u64 = 16 << 20;
/// Those of one session.
pub const FRAMES_BYTES_OF_SESSION: u64 = 8 << 20;
/// What each of these, and each batch, counts for besides what it carries.
pub const FRAME_BYTES: u64 = 1 << 10;

/// Walks over maps of snapshots, for usage and differences, at a time; of one party one.
pub const MAX_WALKS: usize = 4;
/// Snapshots that only walks have opened and that stay open when another walk begins. One takes some 10 KiB, and
/// pages of `--map-memory`.
pub const MAX_IDLE_SNAPSHOTS: usize = 64;

/// What a store takes of a tenant beyond its `--max-stored`: what hosts have acknowledged before they hear that there is
/// no room, which is a round trip's worth. More than that waits: it stays in the journals of hosts.
pub const QUOTA_GRACE_BYTES: u64 = 64 << 20;

/// Connections to an admin address. When there are as many the one that has been idle the longest is closed.
pub const MAX_ADMIN_CONNECTIONS: usize = 64;
/// How long the head of a request to an admin address may take, and how long a connection may be idle.
pub const ADMIN_SILENCE: Duration = Duration::from_secs(10);
/// How long a whole change may take to come in.
pub const ADMIN_BODY_LIMIT: Duration = Duration::from_secs(10);
/// Changes whose bodies are in memory at once, of at most [`ADMIN_BODY_BYTES`] each.
pub const ADMIN_BODIES: usize = 4;
/// Largest change taken: as many ranges as a host keeps pinned.
pub const ADMIN_BODY_BYTES: usize = 8 << 20;
/// Largest change of rights or keys.
pub const ADMIN_SMALL_BODY_BYTES: usize = 64 << 10;
/// Bytes of a request's head, and of what is read of an HTTP connection at a time.
pub const HTTP_HEAD_BYTES: usize = 32 << 10;

/// NBD clients that have not chosen an export. One costs less than 512 KiB.
pub const MAX_NBD_STRANGERS: usize = 128;
/// The same from one address, or of one user at a unix socket.
pub const MAX_NBD_STRANGERS_OF_ONE: usize = 64;
/// NBD clients that use an export. One takes less than 1 MiB as long as it has nothing in flight.
pub const MAX_NBD_CLIENTS: u64 = 512;
/// The same from one address, or of one user at a unix socket.
pub const MAX_NBD_CLIENTS_OF_ONE: u64 = 256;

/// iSCSI connections that have not logged in. One costs less than 512 KiB.
pub const MAX_ISCSI_STRANGERS: usize = 256;
/// The same from one address.
pub const MAX_ISCSI_STRANGERS_OF_ONE: usize = 64;
/// iSCSI connections that have logged in. One takes less than 1 MiB as long as it has nothing in flight.
pub const MAX_ISCSI_CONNECTIONS: u64 = 1024;
/// The same from one address.
pub const MAX_ISCSI_CONNECTIONS_OF_ONE: u64 = 512;

const _: () = assert!(MAX_STRANGERS_OF_ONE < MAX_STRANGERS, "one address leaves places");
const _: () = assert!(MAX_NBD_STRANGERS_OF_ONE < MAX_NBD_STRANGERS, "one address leaves places");
const _: () = assert!(
    ANSWER_BYTES + OTHER_ANSWERS_BYTES + BATCH_BYTES + FRAMES_BYTES < 512 << 20,
    "what is not read or not stored must not take what a store is said to need"
);
