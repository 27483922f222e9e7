//! Resizing: a segment says it, then an object beside the log for those who list volumes without
//! opening them, then whoever asked and the host that has the volume attached are told.
//!
//! The segment alone decides, so that rivals, lost answers and fencing are the log's business. A size
//! that was read from a segment may not have been noted, and is noted again; no root is written
//! before, so that what a root holds has been.

use super::super::object::ObjectOperation;
use super::super::segment::{self, Segment, SegmentKind};
use super::super::{Event, SessionId, catalog};
use super::commit::Work;
use super::{Purpose, Volume};
use crate::block::Range;
use crate::record;
use crate::wire::link::{Lane, RequestId, ToHost, VolumeError, VolumeInfo, VolumeReply};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;

/// Sizes that are being noted.
#[derive(Default)]
pub(super) struct Sizes {
    /// The segments that they are of.
    unnoted: BTreeSet<u64>,
    /// Who is to be told that the volume is resized once none is left.
    waiting: Vec<(SessionId, Lane, RequestId)>,
}

impl Sizes {
    pub fn is_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|(other, ..)| *other != session);
    }
}

impl Volume {
    pub(super) fn begin_resize(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        sectors: u64,
    ) {
        let have = self.state.sectors;
        if let Err(error) = catalog::check_resize(have, sectors, self.spec.block_bytes) {
            let error = VolumeError::Invalid(error.to_string());
            self.reply_volume(session, lane, request, Err(error));
        } else if sectors == have {
            self.reply_resized(session, lane, request);
        } else {
            let work = Work::Resize { session, lane, request, sectors, shrink: false };
            self.put_segment(SegmentKind::Resize, Vec::new(), Some(work));
        }
    }

    /// Cuts off the end, in an epoch that is nobody's: no host goes on with what it knew, and no cache with what was
    /// there.
    pub(super) fn begin_shrink(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        sectors: u64,
    ) {
        let have = self.state.sectors;
        let invalid = |why: String| Err(VolumeError::Invalid(why));
        let allowed = match (catalog::check_size(sectors, self.spec.block_bytes), self.state.host())
        {
            (Err(error), _) => invalid(error.to_string()),
            (Ok(()), _) if sectors > have => {
                invalid(format!("it has {have} sectors: that is not to make it smaller"))
            }
            (Ok(()), Some(host)) if self.connected() => Err(VolumeError::InUse(host)),
            (Ok(()), Some(host)) if !self.state.clean => invalid(format!(
                "host {host} has the volume attached but is not connected: start it and let it stop in order, or give up \
                 what it owes with `longhaul volume accept-loss`, then make the volume smaller"
            )),
            (Ok(()), _) => Ok(()),
        };
        if let Err(error) = allowed {
            return self.reply_volume(session, lane, request, Err(error));
        }
        if sectors == have {
            return self.reply_resized(session, lane, request);
        }
        let (committed, epoch) = (self.state.committed, self.state.epoch() + 1);
        let (kind, range) = (record::Kind::Discard, Range::between(sectors, have));
        let seq = committed + 1;
        let mut cut = BytesMut::new();
        record::encode_marker(self.spec.id, kind, epoch, seq, range, &mut cut);
        let offset = segment::HEADER_BYTES as u32;
        let piece = segment::Piece { kind, range, seq, offset, staged: None, packed_bytes: 0 };
        // As after a rollback: a journal that was delivered holds nothing that would come back.
        let base = committed;
        let footer = segment::Footer { pieces: vec![piece], base, ..segment::Footer::default() };
        let work = Work::Resize { session, lane, request, sectors, shrink: true };
        let records = vec![cut.freeze()];
        self.put_built(SegmentKind::Shrink, epoch, None, committed, footer, records, Some(work));
    }

    /// A segment has been applied, written here or elsewhere.
    pub(super) fn resized_by(&mut self, segment: &Segment) {
        let header = &segment.header;
        let resizes = matches!(header.kind, SegmentKind::Resize | SegmentKind::Shrink);
        if !resizes || self.is_readonly() {
            return;
        }
        let (number, sectors) = (header.number, header.sectors);
        self.sizes.unnoted.insert(number);
        let key = catalog::size_key(self.spec.id, number);
        let data = vec![Bytes::from(catalog::encode_size(sectors))];
        self.book.issue(Purpose::PutSize { number }, ObjectOperation::Put { key, data });
        self.event(Event::Resized { sectors });
        if let Some(holder) = self.holder.filter(|holder| holder.connected) {
            let volume = self.spec.id;
            self.send(holder.session, Lane::Control, ToHost::Resized { volume, sectors });
        }
    }

    pub(super) fn size_put(&mut self, number: u64) {
        self.sizes.unnoted.remove(&number);
        if self.sizes.is_unnoted() {
            return;
        }
        for (session, lane, request) in std::mem::take(&mut self.sizes.waiting) {
            self.reply_resized(session, lane, request);
        }
    }

    /// Says how large the volume is once that is noted.
    pub(super) fn reply_resized(&mut self, session: SessionId, lane: Lane, request: RequestId) {
        if self.sizes.is_unnoted() {
            self.sizes.waiting.push((session, lane, request));
        } else {
            let info = self.volume_info();
            self.reply_volume(session, lane, request, Ok(VolumeReply::Volume(info)));
        }
    }

    /// Nothing more will be noted.
    pub(super) fn refuse_resized(&mut self) {
        let reason = self.failed().map(ToString::to_string).unwrap_or_default();
        for (session, lane, request) in std::mem::take(&mut self.sizes.waiting) {
            let error = VolumeError::Store(reason.clone());
            self.reply_volume(session, lane, request, Err(error));
        }
    }

    pub(super) fn volume_info(&self) -> VolumeInfo {
        self.spec.info(self.state.sectors, self.info())
    }
}
