//! The volume as the initiator sees it.
//!
//! [`Volume`] takes block requests and answers them: writes go into a journal on local stable
//! storage ([`journal`]), reads come from there, from what was read ahead, or from the store, and a
//! drain ships the journal to the store in order. Like everything in this crate it is a state
//! machine: inputs are `handle_*`, outputs `poll_*`, to be called until they give nothing after any
//! input.
//!
//! It must not know sockets, files, threads or protocols of initiators. What it promises is the
//! contract of the project: a flush is durable, what the store holds is a prefix, reads return what
//! was acknowledged last or an error, a local disk error latches, memory is bounded by [`Config`].
//!
//! # Machines
//!
//! [`Volume`] owns one machine for each concern, and only routes between them. A machine keeps its
//! state to itself; it takes facts as arguments, and returns effects or adds them to the outputs.
//!
//! | machine | file | concern |
//! |---|---|---|
//! | `WriteLog` | `log.rs` | every write until the store has committed it; reads of the journal's files |
//! | `Acknowledger` | `acknowledge.rs` | writes that wait for room, requests that wait for durability |
//! | `StoreSession` | `session.rs` | link, resume, fence, detach, barriers, requests to the store |
//! | `Drain` | `drain/` | batches, window, announcements |
//! | `Reads` | `reads/` | reads of clients that wait for content |
//! | `ReadAhead` | `readahead/` | hints, streams, traces |
//! | `Caching` | `caching.rs` | content for the read cache, reads of it |
//! | `KeyedContent` | `keyed.rs` | packing, encryption, the table of versions |
//! | `Copies` | `copy.rs` | watches, ranges to stage |
//! | `Background` | `background/` | repairs, warming, encrypting anew |
//! | `Outputs` | `outputs.rs` | replies, disk operations, messages, events, counters |
//!
//! # Life of a journal
//!
//! [`journal::create_plan`] says what files to create. From then on every start runs a
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

/// The message that asks the store for a new epoch of the volume `name`, with what the host's
/// journal for it says of itself, if there is one. The store's answer to `request` holds what
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
