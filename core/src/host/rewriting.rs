//! Encrypting anew what is under older data keys, while clients use the volume.
//!
//! Begins when the keys say that the older ones are to be [given up](crate::pack::Keys::retires). A pass goes through the
//! volume once: it reads what the store has, and writes what is not under the newest key again, like any write of a client.
//!
//! Promises: what is written again is what the range held last before that write, in the order of all writes. A pass begins
//! once the store has all that was written under older keys; whatever is written later is under the newest one. So what is not
//! committed is not asked for, and what a client writes after a piece was asked for is taken off that piece. It is low in
//! priority: pieces travel behind all that clients read, the limit of reading ahead holds for them, what is under way is at
//! most [`AHEAD_BYTES`], and none is written while clients could have to wait for the journal's room. Nothing of it is kept:
//! a restart looks at everything again, and reads what is under the newest key without writing it.

use super::io::Event;
use super::pieces::{Unfit, pieces};
use super::reads::{Asked, LinkUse};
use super::versions::Standing;
use super::volume::{Link, Volume};
use crate::block::{BLOCK_SECTORS, BlockState, Range, SECTOR_BYTES, Seq, StatusRun, Time};
use crate::extent::{RangeSet, Uniform};
use crate::pack::Packer;
use crate::record::packed;
use crate::wire::link::{self, Piece, ReadError, ReadPart};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Longest piece, in sectors (256 KiB).
const PIECE: u64 = 512;
/// A piece is no more than this part of what the journal holds, ...
const PIECES_OF_JOURNAL: u64 = 16;
/// ... and all that is under way no more than this part.
const AHEAD_OF_JOURNAL: u64 = 4;
/// Most bytes asked for, or written again and not committed.
const AHEAD_BYTES: u64 = 8 << 20;
/// Sectors that are looked at for content at once (64 MiB).
const LOOK: u64 = 1 << 17;
/// Pause after something could not be written for want of room, or not be compared.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause before everything is looked at again, after the store could not give some of it.
const PAUSE_FAILED: Duration = Duration::from_secs(60);

/// Where encrypting anew stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteStatus {
    /// Number of the key that everything is to be under.
    pub key: u32,
    /// Whether everything is, and the store has committed it.
    pub done: bool,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes of it that have been looked at, in this pass.
    pub done_bytes: u64,
    /// Bytes that were written again, in this pass.
    pub rewritten_bytes: u64,
    /// Bytes that the store could not give, in this pass: there will be another one.
    pub failed_bytes: u64,
}

/// What there is to encrypt anew, if anything is.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    pass: Option<Box<Pass>>,
    /// Of what was asked last: no two have the same, in whatever pass.
    number: u64,
}

#[derive(Debug, Default)]
struct Pass {
    key: u32,
    done: bool,
    /// Of what was written up to here nothing is known before it is committed. All later writes are under the newest key.
    from: Seq,
    /// Up to this sector it is known what has content.
    looked: u64,
    looking: Option<u64>,
    /// What has content and was not asked for.
    left: RangeSet,
    asked: BTreeMap<u64, AskedPiece>,
    asked_bytes: u64,
    /// Writes that are not committed: the last number and the bytes of each.
    written: VecDeque<(Seq, u64)>,
    written_bytes: u64,
    rest: Option<Time>,
    /// The last write found none: the tail of the journal has to move on, although nobody else may ask for it.
    wants_room: bool,
    rewritten_bytes: u64,
    failed_bytes: u64,
}

/// A piece that was asked for.
#[derive(Debug)]
struct AskedPiece {
    range: Range,
    /// Without what was written since.
    left: RangeSet,
}

impl Rewriting {
    fn running(&mut self) -> Option<&mut Pass> {
        self.pass.as_deref_mut().filter(|pass| !pass.done)
    }

    /// Whether the journal has to make room for a write.
    pub(super) fn wants_room(&self) -> bool {
        self.pass.as_deref().is_some_and(|pass| !pass.done && pass.wants_room)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// `range` is written, under the newest key.
    pub(super) fn written(&mut self, range: Range) {
        let Some(pass) = self.running() else { return };
        pass.left.remove(range);
        for piece in pass.asked.values_mut() {
            piece.left.remove(range);
        }
    }

    pub(super) fn status(&self, sectors: u64) -> Option<RewriteStatus> {
        let pass = self.pass.as_deref()?;
        let open = pass.left.mapped_sectors() + sectors.saturating_sub(pass.looked);
        let total_bytes = sectors * SECTOR_BYTES;
        Some(RewriteStatus {
            key: pass.key,
            done: pass.done,
            total_bytes,
            done_bytes: total_bytes.saturating_sub(open * SECTOR_BYTES + pass.asked_bytes),
            rewritten_bytes: pass.rewritten_bytes,
            failed_bytes: pass.failed_bytes,
        })
    }
}

impl Pass {
    /// Takes a piece out of those that were asked for.
    fn take(&mut self, number: u64) -> Option<AskedPiece> {
        let piece = self.asked.remove(&number)?;
        self.asked_bytes -= piece.range.bytes();
        Some(piece)
    }

    /// These are asked for once more.
    fn leave(&mut self, ranges: &RangeSet) {
        for (range, _) in ranges.iter_from(0) {
            self.left.insert(range, Uniform(()));
        }
    }
}

impl Volume {
    /// The keys may be others than before.
    pub(super) fn rewrite_begin(&mut self) {
        let Some(key) =
            self.packer.key().filter(|_| self.packer.retires() && self.context.epoch > 0)
        else {
            self.rewriting.pass = None;
            return;
        };
        if self.rewriting.pass.as_ref().is_none_or(|pass| pass.key != key) {
            let from = self.log.last();
            self.rewriting.pass = Some(Box::new(Pass { key, from, ..Pass::default() }));
        }
    }

    /// Goes on with what is to be encrypted anew.
    pub(super) fn rewrite_on(&mut self) {
        let (now, committed, sectors) = (self.context.now, self.log.committed(), self.sectors());
        let may = self.link == Link::Up && self.may_rewrite();
        let most = AHEAD_BYTES.min(self.log.journal().capacity_bytes() / AHEAD_OF_JOURNAL);
        let longest = self.rewrite_sectors();
        let Some(pass) = self.rewriting.running() else { return };
        while let Some((_, bytes)) = pass.written.pop_front_if(|(last, _)| *last <= committed) {
            pass.written_bytes -= bytes;
        }
        if !may || committed < pass.from || pass.rest.is_some_and(|until| until > now) {
            return;
        }
        pass.rest = None;
        while let Some(pass) = self.rewriting.running() {
            let Some((range, _)) = pass.left.iter_from(0).next() else { break };
            let ahead = pass.asked_bytes + pass.written_bytes;
            if ahead >= most || self.readahead.limit.wait(now).is_some() {
                return;
            }
            let Some(piece) = pieces(range, longest).next() else { break };
            pass.left.remove(piece);
            self.rewrite_ask(piece);
        }
        let number = self.rewriting.number + 1;
        let Some(pass) = self.rewriting.running() else { return };
        if !pass.left.is_empty() || pass.looking.is_some() {
            return;
        }
        if pass.looked < sectors {
            pass.looking = Some(number);
            let range = Range::between(pass.looked, sectors.min(pass.looked + LOOK));
            self.rewriting.number = number;
            return self.ask(range, LinkUse::Look(number), false);
        }
        if pass.asked.is_empty() && pass.written.is_empty() {
            self.rewrite_end();
        }
    }

    /// A pass has come to its end, and all of it is committed.
    fn rewrite_end(&mut self) {
        let now = self.context.now;
        let Some(pass) = self.rewriting.running() else { return };
        let (key, bytes, failed_bytes) = (pass.key, pass.rewritten_bytes, pass.failed_bytes);
        if failed_bytes == 0 {
            pass.done = true;
        } else {
            let rest = Some(now.after(PAUSE_FAILED));
            *pass = Pass { key, from: pass.from, rest, ..Pass::default() };
        }
        self.out.event(Event::EncryptedAnew { key, bytes, failed_bytes });
    }

    /// Longest piece, in sectors.
    fn rewrite_sectors(&self) -> u64 {
        let journal = self.log.journal().capacity_bytes() / PIECES_OF_JOURNAL / SECTOR_BYTES;
        let most = PIECE.min(self.log.journal().record_sectors_max()).min(journal);
        (most / BLOCK_SECTORS * BLOCK_SECTORS).max(BLOCK_SECTORS)
    }

    /// Whether nobody could have to wait for what is written again, and it would get to the store.
    fn may_rewrite(&self) -> bool {
        self.may_repair()
    }

    /// Asks for a piece, without what is not committed: that was written under the newest key.
    fn rewrite_ask(&mut self, piece: Range) {
        let Some(piece) = piece.intersect(Range::new(0, self.sectors())) else { return };
        let committed = self.log.committed();
        let mut wanted = RangeSet::new();
        let parts = self.log.cover(piece);
        for (part, _) in parts.filter(|(_, place)| place.is_none_or(|p| p.seq <= committed)) {
            wanted.insert(part, Uniform(()));
        }
        let wanted: Vec<Range> = wanted.iter_from(0).map(|(range, _)| range).collect();
        for range in wanted {
            let number = self.rewriting.next_number();
            let Some(pass) = self.rewriting.running() else { return };
            let mut left = RangeSet::new();
            left.insert(range, Uniform(()));
            pass.asked.insert(number, AskedPiece { range, left });
            pass.asked_bytes += range.bytes();
            self.readahead.limit.take(self.context.now, range.bytes());
            self.ask(range, LinkUse::Rewrite(number), false);
        }
    }

    /// The store has said what of a range has content, as far as this host believes it.
    pub(super) fn rewrite_looked(&mut self, number: u64, range: Range, runs: &[StatusRun]) {
        let now = self.context.now;
        let Some(pass) = self.rewriting.running() else { return };
        if pass.looking != Some(number) {
            return;
        }
        pass.looking = None;
        let mut at = range.lba;
        for run in runs {
            let part = Range::between(at, range.end().min(at.saturating_add(run.sectors)));
            at = part.end();
            if run.state == BlockState::Data && !part.is_empty() {
                pass.left.insert(part, Uniform(()));
            }
        }
        if at == range.lba {
            pass.rest = Some(now.after(PAUSE));
        }
        pass.looked = pass.looked.max(at);
    }

    /// The store has answered with what it has of a piece.
    pub(super) fn rewrite_came(
        &mut self,
        (number, asked): (u64, Asked),
        found: Result<Vec<Piece>, ReadError>,
        (payload, standing): (Bytes, &Standing),
    ) {
        let pieces = match found {
            Ok(pieces) => pieces,
            Err(error) => return self.store_refused(asked, error),
        };
        let range = asked.range;
        let older = older(range, &pieces, payload, &mut self.packer);
        let unfit = match (older, standing) {
            (Ok(_), Standing::Outdated) if asked.spoiled => {
                // It may have been the newest when it was asked for.
                return self.rewrite_later(number);
            }
            (Ok(_), Standing::Outdated) => None,
            (Ok(older), _) => {
                self.adopt(&asked, standing);
                return self.rewrite(number, older);
            }
            (Err(unfit), _) => Some(unfit),
        };
        if !asked.again {
            return self.ask(range, LinkUse::Rewrite(number), true);
        }
        self.out.event(match unfit {
            None => Event::StoreOutdated { range },
            Some(Unfit::Damaged) => Event::StoreDamaged { range },
            Some(Unfit::Plain) => Event::StorePlain { range },
        });
        self.rewrite_failed(number);
    }

    fn rewrite_later(&mut self, number: u64) {
        let now = self.context.now;
        let Some(pass) = self.rewriting.running() else { return };
        let Some(piece) = pass.take(number) else { return };
        pass.leave(&piece.left);
        pass.rest = Some(now.after(PAUSE));
    }

    /// The store cannot give it, or not say what it has.
    pub(super) fn rewrite_failed(&mut self, number: u64) {
        let now = self.context.now;
        let Some(pass) = self.rewriting.running() else { return };
        if pass.looking == Some(number) {
            pass.looking = None;
            pass.rest = Some(now.after(PAUSE_FAILED));
        } else if let Some(piece) = pass.take(number) {
            pass.failed_bytes += piece.left.mapped_sectors() * SECTOR_BYTES;
        }
    }

    /// Writes what of a piece is under an older key, without what was written since it was asked for.
    fn rewrite(&mut self, number: u64, older: Vec<(Range, Bytes)>) {
        if !self.may_rewrite() {
            return self.rewrite_later(number);
        }
        let Some(piece) = self.rewriting.running().and_then(|pass| pass.take(number)) else {
            return;
        };
        for (range, data) in runs(&piece.left, older) {
            let first = self.log.journal().next_seq();
            let (whole, done) = self.write_own(range, data);
            let written = Range::new(range.lba, done);
            let rest = Range::between(written.end(), range.end());
            let (now, last) = (self.context.now, self.log.last());
            let Some(pass) = self.rewriting.running() else { return };
            pass.wants_room = !whole;
            if !whole {
                pass.left.insert(rest, Uniform(()));
                pass.rest = Some(now.after(PAUSE));
            }
            if !written.is_empty() {
                pass.written.push_back((last, written.bytes()));
                pass.written_bytes += written.bytes();
                pass.rewritten_bytes += written.bytes();
                self.out.event(Event::Rewritten { range: written, first, last });
            }
        }
    }

    /// When [`Volume::rewrite_on`] has something to do that it has not now.
    pub(super) fn rewrite_deadline(&self) -> Option<Time> {
        let pass = self.rewriting.pass.as_deref().filter(|pass| !pass.done)?;
        let limit = self.readahead.limit.wait(self.context.now).filter(|_| !pass.left.is_empty());
        pass.rest.max(limit)
    }
}

/// What of an answer is under older keys, opened.
fn older(
    range: Range,
    pieces: &[Piece],
    payload: Bytes,
    packer: &mut Packer,
) -> Result<Vec<(Range, Bytes)>, Unfit> {
    let newest = packer.key();
    let parts = link::decode_data(range, pieces, payload).map_err(|_| Unfit::Damaged)?;
    let mut found = Vec::new();
    for part in parts {
        match part {
            ReadPart::Hole(_) | ReadPart::Zero(_) => {}
            ReadPart::Data { .. } => return Err(Unfit::Plain),
            ReadPart::Packed { wanted, record } => {
                let opened = packed::open(packer.volume(), &record);
                let (_, lock, _) = opened.map_err(|_| Unfit::Damaged)?;
                if Some(lock.key) != newest {
                    found.push((wanted, packer.unpack(&record, wanted).map_err(Unfit::from)?));
                }
            }
        }
    }
    Ok(found)
}

/// What of the parts is in `left`; neighbours are one write.
fn runs(left: &RangeSet, parts: Vec<(Range, Bytes)>) -> Vec<(Range, Bytes)> {
    let mut runs: Vec<(Range, BytesMut)> = Vec::new();
    for (range, data) in parts {
        for (part, _) in left.overlapping(range) {
            let skip = ((part.lba - range.lba) * SECTOR_BYTES) as usize;
            let data = &data[skip..skip + part.bytes() as usize];
            match runs.last_mut() {
                Some((run, all)) if run.end() == part.lba => {
                    run.sectors += part.sectors;
                    all.extend_from_slice(data);
                }
                _ => runs.push((part, BytesMut::from(data))),
            }
        }
    }
    runs.into_iter().map(|(range, data)| (range, data.freeze())).collect()
}
