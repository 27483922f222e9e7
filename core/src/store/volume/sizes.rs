//! Resizing in three steps. A segment has the size. Then an object beside the log notes it for
//! readers that list volumes without opening them. Then the requester and the host with the volume
//! attached get an answer.
//!
//! The segment alone decides, so the log handles rivals, lost answers and fencing. A size from a
//! segment may lack its note, so the engine notes it again. The engine writes no root before that.
//! So the size in a root always has a note.

use super::super::catalog;
use super::super::event::Event;
use super::super::log::LogState;
use super::super::segment::{self, Segment, SegmentKind};
use super::super::session::SessionId;
use super::context::Context;
use super::facts::Facts;
use super::purpose::ObjectPurpose;
use super::reply::ReplyAddress;
use crate::block::Range;
use crate::record;
use crate::wire::link::{Lane, ToHost, VolumeError};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;

/// Sizes whose notes are in progress.
#[derive(Default)]
pub(super) struct SizeNotes {
    /// The segments that they are of.
    unnoted: BTreeSet<u64>,
    /// Requesters that get their answer once no note is in progress.
    waiting: Vec<ReplyAddress>,
}

/// Whether the volume can have that size, and does not have it yet.
pub(super) fn may_grow(facts: &Facts, log: &LogState, sectors: u64) -> Result<bool, VolumeError> {
    let have = log.sectors;
    match catalog::check_resize(have, sectors, facts.spec().block_bytes) {
        Err(error) => Err(VolumeError::Invalid(error.to_string())),
        Ok(()) => Ok(sectors != have),
    }
}

/// Whether the engine can cut off the end of the volume, and may do so. `connected`: its host is.
pub(super) fn may_shrink(
    facts: &Facts,
    log: &LogState,
    connected: bool,
    sectors: u64,
) -> Result<bool, VolumeError> {
    let have = log.sectors;
    let invalid = |why: String| Err(VolumeError::Invalid(why));
    match (catalog::check_size(sectors, facts.spec().block_bytes), log.host()) {
        (Err(error), _) => invalid(error.to_string()),
        (Ok(()), _) if sectors > have => {
            invalid(format!("it has {have} sectors: that is not to make it smaller"))
        }
        (Ok(()), Some(host)) if connected => Err(VolumeError::InUse(host)),
        (Ok(()), Some(host)) if !log.clean => invalid(format!(
            "host {host} has the volume attached but is not connected: start it and let it stop in \
             order, or give up its writes with `longhaul volume accept-loss`, then make the volume \
             smaller"
        )),
        (Ok(()), _) => Ok(sectors != have),
    }
}

/// The content of a segment that cuts off the end: a discard of that range, in the epoch after the
/// current one.
pub(super) fn cut(facts: &Facts, log: &LogState, sectors: u64) -> (segment::Piece, Bytes) {
    let (kind, range) = (record::Kind::Discard, Range::between(sectors, log.sectors));
    let seq = log.committed + 1;
    let mut cut = BytesMut::new();
    let epoch = log.epoch() + 1;
    record::encode_marker(facts.spec().id, kind, epoch, seq, range, &mut cut);
    let offset = segment::HEADER_BYTES as u32;
    let piece = segment::Piece { kind, range, seq, offset, staged: None, packed_bytes: 0 };
    (piece, cut.freeze())
}

impl SizeNotes {
    pub fn is_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|to| to.session != session);
    }

    /// The engine has applied a segment, its own or another store's. The session `holder` gets the
    /// new size.
    pub fn applied(&mut self, cx: &mut Context<'_>, segment: &Segment, holder: Option<SessionId>) {
        let header = &segment.header;
        let resizes = matches!(header.kind, SegmentKind::Resize | SegmentKind::Shrink);
        if !resizes || cx.facts.is_readonly() {
            return;
        }
        let (number, sectors) = (header.number, header.sectors);
        let volume = cx.facts.spec().id;
        self.unnoted.insert(number);
        let data = vec![Bytes::from(catalog::encode_size(sectors))];
        cx.out.put(ObjectPurpose::PutSize { number }, catalog::size_key(volume, number), data);
        cx.out.event(Event::Resized { sectors });
        if let Some(session) = holder {
            cx.out.send(session, Lane::Control, ToHost::Resized { volume, sectors });
        }
    }

    /// The location has noted a size: returns the requesters whose answer is due now.
    pub fn noted(&mut self, number: u64) -> Vec<ReplyAddress> {
        self.unnoted.remove(&number);
        self.due()
    }

    /// The requesters whose answer is due now.
    pub fn due(&mut self) -> Vec<ReplyAddress> {
        if self.is_unnoted() { Vec::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// Whether the requester can have its answer now. If not, the requester gets it after the note.
    /// `open`: the engine knows the log, and so the size. An engine that begins anew does not yet.
    pub fn is_noted_for(&mut self, to: ReplyAddress, open: bool) -> bool {
        let noted = open && !self.is_unnoted();
        if !noted {
            self.waiting.push(to);
        }
        noted
    }

    /// The engine will note no more sizes: returns the waiting requesters.
    pub fn give_up(&mut self) -> Vec<ReplyAddress> {
        std::mem::take(&mut self.waiting)
    }
}
