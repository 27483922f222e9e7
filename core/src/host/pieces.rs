//! Splits ranges into parts, and puts answers together from parts.

use crate::block::{BlockState, Range, ReadPiece, StatusRun};
use crate::pack::Packer;
use crate::record::RecordError;
use crate::wire::link::{self, Piece, ReadPart};
use bytes::Bytes;

/// A part of a read, and the slot that it has to fill.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingPart {
    pub(super) read: u64,
    pub(super) slot: usize,
    pub(super) range: Range,
}

/// `range` in parts of at most `sectors`, cut at multiples of `sectors`.
pub(super) fn pieces(range: Range, sectors: u64) -> impl Iterator<Item = Range> {
    let mut at = range.lba;
    std::iter::from_fn(move || {
        let end = ((at / sectors + 1) * sectors).min(range.end());
        let part = Range::between(at, end);
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// Why the volume refuses an answer of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It does not match its checksums, or does not answer the request.
    Damaged,
    /// It is not encrypted, and the volume is.
    Plain,
}

impl From<RecordError> for Unfit {
    fn from(error: RecordError) -> Unfit {
        match error {
            RecordError::Plain(_) => Unfit::Plain,
            _ => Unfit::Damaged,
        }
    }
}

/// The pieces of a store's answer. They have to cover the range, match their checksums, and be
/// encrypted if the volume is.
pub(super) fn verified(
    range: Range,
    pieces: &[Piece],
    payload: Bytes,
    packer: &mut Packer,
) -> Result<Vec<ReadPiece>, Unfit> {
    let parts = link::decode_data(range, pieces, payload).map_err(|_| Unfit::Damaged)?;
    let piece = |part| match part {
        ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => Ok(ReadPiece::Zeroes(sectors)),
        ReadPart::Data { .. } if packer.is_encrypting() => Err(Unfit::Plain),
        ReadPart::Data { wanted, fragment } => {
            fragment.verify().map_err(Unfit::from)?;
            Ok(ReadPiece::Data(fragment.sectors(wanted)))
        }
        ReadPart::Packed { wanted, record } => {
            packer.unpack(&record, wanted).map(ReadPiece::Data).map_err(Unfit::from)
        }
    };
    parts.into_iter().map(piece).collect()
}

/// Merges local knowledge with the store's runs for the unknown parts. The runs begin at the first
/// unknown sector, and the result ends where they end.
pub(super) fn merge(local: &[(Range, Option<BlockState>)], store: &[StatusRun]) -> Vec<StatusRun> {
    let mut runs: Vec<StatusRun> = Vec::new();
    let mut add = |sectors: u64, state: BlockState| match runs.last_mut() {
        Some(last) if last.state == state => last.sectors += sectors,
        _ => runs.push(StatusRun { sectors, state }),
    };
    let mut store_at: Option<u64> = None;
    let mut store = store.iter().copied().peekable();
    for &(part, state) in local {
        if let Some(state) = state {
            add(part.sectors, state);
            continue;
        }
        let mut at = part.lba;
        let mut from = store_at.unwrap_or(part.lba);
        while at < part.end() {
            let Some(run) = store.peek().copied() else { return runs };
            let run_end = from.saturating_add(run.sectors);
            let end = run_end.min(part.end());
            if end > at {
                add(end - at, run.state);
                at = end;
            }
            if run_end <= part.end() {
                store.next();
                from = run_end;
            }
        }
        store_at = Some(from);
    }
    runs
}

/// The part `wanted` of the pieces of `range`.
pub(super) fn cut(range: Range, pieces: &[ReadPiece], wanted: Range) -> Vec<ReadPiece> {
    let mut at = range.lba;
    let mut out = Vec::new();
    for piece in pieces {
        let whole = Range::new(at, piece.sectors());
        at = whole.end();
        let Some(part) = whole.intersect(wanted) else { continue };
        out.push(piece.cut(Range::new(part.lba - whole.lba, part.sectors)));
    }
    out
}
