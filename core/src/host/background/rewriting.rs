//! Encrypts content under older data keys anew, while clients use the volume.
//!
//! It begins when the keys say to [give up](crate::pack::Keys::retires) the older ones. A pass goes
//! through the volume once. It reads the content at the store. It writes everything again that is
//! not under the newest key, like any write of a client.
//!
//! Promises: the data of such a write is the last content of the range before it, in the order of
//! all writes. A pass begins once the store has all writes under older keys. Later writes are under
//! the newest one. So the pass does not ask for uncommitted ranges. If a client writes to a piece
//! after the pass has asked for it, the pass leaves that part out.
//!
//! The work has low priority. Pieces travel behind all reads of clients, and the limit of
//! read-ahead holds for them. At most [`AHEAD_BYTES`] are under way. The pass writes nothing while
//! clients could have to wait for the journal's room. It saves no progress. So a restart looks at
//! everything again, and only reads what is under the newest key already.

use super::status::RewriteStatus;
use crate::block::{BlockState, Range, SECTOR_BYTES, Seq, StatusRun, Time};
use crate::extent::{RangeSet, Uniform};
use crate::host::io::Event;
use crate::host::outputs::Outputs;
use crate::host::pieces::{Unfit, pieces};
use crate::pack::Packer;
use crate::record::packed;
use crate::wire::link::{self, Piece, ReadPart};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// All work under way takes at most this part of the journal's capacity.
const AHEAD_OF_JOURNAL: u64 = 4;
/// Most bytes asked for, or written again and not committed.
const AHEAD_BYTES: u64 = 8 << 20;
/// Sectors to ask about for content at once (64 MiB).
const LOOK: u64 = 1 << 17;
/// Pause after a write had no room, or an answer could not be compared.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause before the next pass, after the store could not give some content.
const PAUSE_FAILED: Duration = Duration::from_secs(60);

/// The pass through the volume, if there is one.
#[derive(Debug, Default)]
pub(in crate::host) struct Rewriting {
    pass: Option<Box<Pass>>,
    /// The number of the last request. No two requests have the same, in whatever pass.
    number: u64,
}

#[derive(Debug, Default)]
struct Pass {
    key: u32,
    done: bool,
    /// The pass knows nothing of writes up to this number before their commit. All later writes are
    /// under the newest key.
    from: Seq,
    /// Up to this sector the pass knows which ranges have content.
    looked: u64,
    looking: Option<u64>,
    /// Ranges with content that the pass has not asked for.
    left: RangeSet,
    asked: BTreeMap<u64, AskedPiece>,
    asked_bytes: u64,
    /// Uncommitted writes of the pass: the last number and the bytes of each.
    written: VecDeque<(Seq, u64)>,
    written_bytes: u64,
    rest: Option<Time>,
    /// The last write found no room: the tail of the journal has to move on, although nobody else
    /// may ask for it.
    wants_room: bool,
    rewritten_bytes: u64,
    failed_bytes: u64,
}

/// A piece that the pass has asked for.
#[derive(Debug)]
struct AskedPiece {
    range: Range,
    /// Without later writes of clients.
    left: RangeSet,
}

/// The next request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum RewriteWork {
    /// The committed content of a piece: see [`Rewriting::asked`].
    Read(Range),
    /// The parts of a range with content. The answer is for [`Rewriting::content_found`] with this
    /// number.
    FindContent(u64, Range),
}

/// The facts that decide whether the pass may ask for something.
#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct RewriteFacts {
    pub(in crate::host) now: Time,
    /// No client could have to wait for a write of the pass, and the store takes it.
    pub(in crate::host) may: bool,
    pub(in crate::host) committed: Seq,
    /// Of the volume.
    pub(in crate::host) sectors: u64,
    /// Capacity of the journal, in bytes.
    pub(in crate::host) capacity_bytes: u64,
    /// Longest piece, in sectors.
    pub(in crate::host) longest: u64,
    /// The limit of read-ahead lets nothing through.
    pub(in crate::host) limited: bool,
}

impl Rewriting {
    fn running(&mut self) -> Option<&mut Pass> {
        self.pass.as_deref_mut().filter(|pass| !pass.done)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    // --- inputs ---

    /// The keys may have changed. If older keys have to go, all content has to be under this one.
    /// `last` is the last number of a write.
    pub(in crate::host) fn set_key(&mut self, key: Option<u32>, last: Seq) {
        let Some(key) = key else {
            self.pass = None;
            return;
        };
        if self.pass.as_ref().is_none_or(|pass| pass.key != key) {
            self.pass = Some(Box::new(Pass { key, from: last, ..Pass::default() }));
        }
    }

    /// A client writes `range`, under the newest key.
    pub(in crate::host) fn written(&mut self, range: Range) {
        let Some(pass) = self.running() else { return };
        pass.left.remove(range);
        for piece in pass.asked.values_mut() {
            piece.left.remove(range);
        }
    }

    /// The store has everything up to `seq`.
    pub(in crate::host) fn committed(&mut self, seq: Seq) {
        let Some(pass) = self.running() else { return };
        while let Some((_, bytes)) = pass.written.pop_front_if(|(last, _)| *last <= seq) {
            pass.written_bytes -= bytes;
        }
    }

    /// The next request. If the pass is complete and committed, reports that.
    pub(in crate::host) fn next_work(
        &mut self,
        facts: &RewriteFacts,
        out: &mut Outputs,
    ) -> Option<RewriteWork> {
        let number = self.number + 1;
        let pass = self.running()?;
        let rests = pass.rest.is_some_and(|until| until > facts.now);
        if !facts.may || facts.committed < pass.from || rests {
            return None;
        }
        pass.rest = None;
        let next = pass.left.iter_from(0).next();
        if let Some(piece) = next.and_then(|(range, _)| pieces(range, facts.longest).next()) {
            let ahead = pass.asked_bytes + pass.written_bytes;
            let most = AHEAD_BYTES.min(facts.capacity_bytes / AHEAD_OF_JOURNAL);
            if ahead >= most || facts.limited {
                return None;
            }
            pass.left.remove(piece);
            return Some(RewriteWork::Read(piece));
        }
        if pass.looking.is_some() {
            return None;
        }
        if pass.looked < facts.sectors {
            pass.looking = Some(number);
            let range = Range::between(pass.looked, facts.sectors.min(pass.looked + LOOK));
            self.number = number;
            return Some(RewriteWork::FindContent(number, range));
        }
        if pass.asked.is_empty() && pass.written.is_empty() {
            self.end(facts.now, out);
        }
        None
    }

    /// A pass is complete, and the store has committed all of it.
    fn end(&mut self, now: Time, out: &mut Outputs) {
        let Some(pass) = self.running() else { return };
        let (key, bytes, failed_bytes) = (pass.key, pass.rewritten_bytes, pass.failed_bytes);
        if failed_bytes == 0 {
            pass.done = true;
        } else {
            let rest = Some(now.after(PAUSE_FAILED));
            *pass = Pass { key, from: pass.from, rest, ..Pass::default() };
        }
        out.event(Event::EncryptedAnew { key, bytes, failed_bytes });
    }

    // --- inputs: answers ---

    /// Notes a request for a part of a piece. The answer comes with this number.
    pub(in crate::host) fn asked(&mut self, range: Range) -> u64 {
        let number = self.next_number();
        if let Some(pass) = self.running() {
            let mut left = RangeSet::new();
            left.insert(range, Uniform(()));
            pass.asked.insert(number, AskedPiece { range, left });
            pass.asked_bytes += range.bytes();
        }
        number
    }

    /// Takes the parts of a range with content, as far as this host believes the store.
    pub(in crate::host) fn content_found(
        &mut self,
        now: Time,
        number: u64,
        range: Range,
        runs: &[StatusRun],
    ) {
        let Some(pass) = self.running() else { return };
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

    /// A piece cannot be written now. The pass will ask for it once more.
    pub(in crate::host) fn later(&mut self, now: Time, number: u64) {
        let Some(pass) = self.running() else { return };
        let Some(piece) = pass.take(number) else { return };
        pass.leave(&piece.left);
        pass.rest = Some(now.after(PAUSE));
    }

    /// The store cannot give the content, or not say what it has.
    pub(in crate::host) fn failed(&mut self, now: Time, number: u64) {
        let Some(pass) = self.running() else { return };
        if pass.looking == Some(number) {
            pass.looking = None;
            pass.rest = Some(now.after(PAUSE_FAILED));
        } else if let Some(piece) = pass.take(number) {
            pass.failed_bytes += piece.left.mapped_sectors() * SECTOR_BYTES;
        }
    }

    /// A piece has come. `older` are its parts under an older key. Returns the parts to write
    /// again, without those that clients wrote since the request.
    pub(in crate::host) fn take_piece(
        &mut self,
        number: u64,
        older: Vec<(Range, Bytes)>,
    ) -> Vec<(Range, Bytes)> {
        let piece = self.running().and_then(|pass| pass.take(number));
        piece.map(|piece| runs(&piece.left, older)).unwrap_or_default()
    }

    /// Notes a write of the first `done` sectors of a range, under these numbers.
    pub(in crate::host) fn rewritten(
        &mut self,
        now: Time,
        (range, done): (Range, u64),
        (first, last): (Seq, Seq),
        out: &mut Outputs,
    ) {
        let Some(pass) = self.running() else { return };
        let written = Range::new(range.lba, done);
        let rest = Range::between(written.end(), range.end());
        pass.wants_room = !rest.is_empty();
        if !rest.is_empty() {
            pass.left.insert(rest, Uniform(()));
            pass.rest = Some(now.after(PAUSE));
        }
        if !written.is_empty() {
            pass.written.push_back((last, written.bytes()));
            pass.written_bytes += written.bytes();
            pass.rewritten_bytes += written.bytes();
            out.event(Event::Rewritten { range: written, first, last });
        }
    }

    // --- outputs ---

    /// Whether there is anything to encrypt anew.
    pub(in crate::host) fn is_running(&mut self) -> bool {
        self.running().is_some()
    }

    /// Whether the journal has to make room for a write.
    pub(in crate::host) fn wants_room(&self) -> bool {
        self.pass.as_deref().is_some_and(|pass| !pass.done && pass.wants_room)
    }

    /// The time of the next piece. `limit` is the time when the limit of read-ahead lets something
    /// through.
    pub(in crate::host) fn deadline(&self, limit: Option<Time>) -> Option<Time> {
        let pass = self.pass.as_deref().filter(|pass| !pass.done)?;
        pass.rest.max(limit.filter(|_| !pass.left.is_empty()))
    }

    pub(in crate::host) fn status(&self, sectors: u64) -> Option<RewriteStatus> {
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
    /// Takes a piece out of those under way.
    fn take(&mut self, number: u64) -> Option<AskedPiece> {
        let piece = self.asked.remove(&number)?;
        self.asked_bytes -= piece.range.bytes();
        Some(piece)
    }

    /// The pass will ask for these once more.
    fn leave(&mut self, ranges: &RangeSet) {
        for (range, _) in ranges.iter_from(0) {
            self.left.insert(range, Uniform(()));
        }
    }
}

/// The parts of an answer that are under older keys, opened.
pub(in crate::host) fn older_parts(
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

/// The intersection of the parts with `left`; neighbors are one write.
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
