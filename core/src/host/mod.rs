//! The volume as the initiator sees it.
//!
//! [`Volume`] takes block requests and answers them. Writes go into a journal on local stable
//! storage ([`journal`]). Reads come from there, from the read-ahead, from the read cache, or from
//! the store. A drain sends the journal to the store in order. Like everything in this crate it is
//! a state machine: inputs are `handle_*`, outputs are `poll_*`. After any input, call the outputs
//! until they return nothing.
//!
//! It must not know sockets, files, threads or protocols of initiators. It promises the contract of
//! the project. A flush is durable. The store holds a prefix of the writes. Reads return the last
//! acknowledged content or an error. A local disk error latches. [`Config`] bounds the memory.
//!
//! # Machines
//!
//! [`Volume`] owns one machine for each concern, and only routes between them. A machine keeps its
//! state to itself; it takes facts as arguments, and returns effects or adds them to the outputs.
//!
//! | machine | file | concern |
//! |---|---|---|
//! | `WriteLog` | `log.rs` | every write until its commit by the store; reads of journal files |
//! | `Acknowledger` | `acknowledge.rs` | writes that wait for room, requests for durability |
//! | `StoreSession` | `session.rs` | link, resume, fence, detach, barriers, requests to the store |
//! | `Drain` | `drain/` | batches, window, announcements |
//! | `Reads` | `reads/` | reads of clients that wait for content |
//! | `ReadAhead` | `readahead/` | hints, streams, traces |
//! | `Caching` | `caching.rs` | content for the read cache, reads of it |
//! | `KeyedContent` | `keyed.rs` | packing, encryption, the version table |
//! | `Copies` | `copy.rs` | watches, ranges to stage |
//! | `Background` | `background/` | repairs, warming, encrypting anew |
//! | `Outputs` | `outputs.rs` | replies, disk operations, messages, events, counters |
//!
//! # Life of a journal
//!
//! [`journal::create_plan`] lists the files to create. From then on every start runs a
//! [`journal::Recovery`] over them, attaches with [`attach`], and gives both outcomes to
//! [`Volume::new`].

mod acknowledge;
mod background;
mod barrier;
mod caching;
mod config;
mod context;
mod copy;
mod dirty;
mod drain;
mod io;
pub mod journal;
mod journal_reads;
mod keyed;
mod log;
mod outputs;
mod peak;
mod pieces;
mod readahead;
mod reads;
mod requests;
mod session;
mod status;
#[cfg(test)]
mod tests;
pub mod versions;
mod volume;
mod writes;

pub use crate::cache;
pub use background::{RewriteStatus, WarmError, WarmState, WarmStatus};
pub use config::{Config, Durability, Mode, OnJournalFailure};
pub use io::{DiskOperation, DiskResult, Event};
pub use readahead::{MAX_TRACE_BYTES, MAX_TRACE_RANGES, ReadAheadStatus, Totals, Trace};
pub use status::{Counters, Status};
pub use versions::{Versions, VersionsStatus};
pub use volume::Volume;

use crate::wire::link::{Frame, HostId, RequestId, ToStore};

/// The message that asks the store for a new epoch of the volume `name`. It holds the state of the
/// host's journal for the volume, if there is one. The store's answer to `request` holds what
/// [`Volume::new`] needs.
#[must_use]
pub fn attach(
    request: RequestId,
    name: &str,
    host: HostId,
    journal: Option<&journal::Recovered>,
) -> Frame<ToStore> {
    let journal = journal.and_then(journal::Recovered::state);
    ToStore::Attach { request, name: name.to_owned(), host, journal, take_over: false }.into()
}
