//! Resizing: a segment says it, then an object beside the log for those who list volumes without
//! opening them, then whoever asked and the host that has the volume attached are told.
//!
//! The segment alone decides, so that rivals, lost answers and fencing are the log's business. A size
//! that was read from a segment may not have been noted, and is noted again; no root is written
//! before, so that what a root holds has been.

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

/// Sizes that are being noted.
#[derive(Default)]
pub(super) struct SizeNotes {
    /// The segments that they are of.
    unnoted: BTreeSet<u64>,
    /// Who is to be told that the volume is resized once none is left.
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

/// Whether the end of the volume can be cut off, and is to be. `connected`: its host is.
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
            "host {host} has the volume attached but is not connected: start it and let it stop in order, or give up \
             what it owes with `longhaul volume accept-loss`, then make the volume smaller"
        )),
        (Ok(()), _) => Ok(sectors != have),
    }
}

/// What a segment holds that cuts off the end: a discard of that, in the epoch after the current one.
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

    /// A segment has been applied, written here or by another store. `holder` is the session to tell.
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

    /// A size is noted: gives who can be told now that the volume is resized.
    pub fn noted(&mut self, number: u64) -> Vec<ReplyAddress> {
        self.unnoted.remove(&number);
        if self.is_unnoted() { Vec::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// Whether whoever asked can be told now; is told once the size is noted if not.
    pub fn is_noted_for(&mut self, to: ReplyAddress) -> bool {
        let noted = !self.is_unnoted();
        if !noted {
            self.waiting.push(to);
        }
        noted
    }

    /// Nothing more will be noted: gives who waits.
    pub fn give_up(&mut self) -> Vec<ReplyAddress> {
        std::mem::take(&mut self.waiting)
    }
}
