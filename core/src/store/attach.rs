//! Decides which host may attach a volume: the rules of lineage, as a function of the log and the
//! journal.
//!
//! For each epoch the log remembers the last number that the epoch built on, its *base*. The base
//! is the last number committed at that time. If the journal of the attaching host held more, the
//! base is the last number of the journal. If an epoch after the journal's own built on less than
//! the journal holds, that epoch left the journal behind.
//!
//! Only its host says what a journal holds. The store believes that statement in two cases: the key
//! is the one that began the epoch, or the host asks for a takeover explicitly. For an epoch of
//! another key, the journal counts only as far as its writes arrived. Writes that have not arrived
//! belong to the current epoch. So the key of the current epoch has to say that a journal holds
//! them, whatever the epoch of the journal.

use crate::block::{Epoch, Seq, VolumeId};
use crate::wire::link::{AttachError, HostId, JournalState, KeyId};
use bytes::BufMut;
use zerocopy::little_endian::{U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an epoch in a root.
#[cfg(test)]
pub(super) const EPOCH_BYTES: usize = size_of::<RawEpoch>();
/// Most epochs in a root.
pub const MAX_HISTORY: usize = 1 << 20;

/// An epoch in the history of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The epoch.
    pub epoch: Epoch,
    /// The host of the epoch; `None` if an accepted loss or a rollback began the epoch.
    pub host: Option<HostId>,
    /// The last number that it builds on; 0 of one that rolling back begins, which builds on none
    /// of the writes as they were then.
    pub base: Seq,
    /// The last committed number when the epoch began: the part of the base that depends on no
    /// host's statement.
    pub committed: Seq,
    /// The key of the session that began it; [`KeyId::NONE`] of one that is nobody's.
    pub key: KeyId,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEpoch {
    epoch: U64,
    base: U64,
    committed: U64,
    host: U128,
    key: [u8; 32],
}

/// Appends all epochs from the first.
pub(super) fn encode_history(history: &[HistoryEntry], out: &mut impl BufMut) {
    for entry in history {
        let raw = RawEpoch {
            epoch: entry.epoch.into(),
            base: entry.base.into(),
            committed: entry.committed.into(),
            host: entry.host.map_or(0, |host| host.0).into(),
            key: entry.key.0,
        };
        out.put_slice(raw.as_bytes());
    }
}

fn host_of(raw: U128) -> Option<HostId> {
    Some(HostId(raw.get())).filter(|host| *host != HostId(0))
}

/// Takes `epochs` epochs off the front; `None` if they are no output of [`encode_history`].
pub(super) fn decode_history(bytes: &[u8], epochs: usize) -> Option<(Vec<HistoryEntry>, &[u8])> {
    let (history, rest) = <[RawEpoch]>::ref_from_prefix_with_elems(bytes, epochs).ok()?;
    let entry = |raw: &RawEpoch| HistoryEntry {
        epoch: raw.epoch.get(),
        host: host_of(raw.host),
        base: raw.base.get(),
        committed: raw.committed.get(),
        key: KeyId(raw.key),
    };
    let history: Vec<HistoryEntry> = history.iter().map(entry).collect();
    let rising = history.iter().enumerate().all(|(n, entry)| entry.epoch == n as u64 + 1);
    rising.then_some((history, rest))
}

/// The host that asks for an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The key of the session.
    pub key: KeyId,
    /// Whether an operator has ordered to take the volume from its present host.
    pub take_over: bool,
}

/// The state of the log when a host attaches.
#[derive(Clone, Copy, Debug)]
pub struct Lineage<'a> {
    /// The volume.
    pub volume: VolumeId,
    /// All epochs, the current one last.
    pub history: &'a [HistoryEntry],
    /// Last committed number.
    pub committed: Seq,
    /// Last number of all announced ranges, 0 if there are none.
    pub announced_last: Seq,
    /// Bytes in announced ranges.
    pub announced_bytes: u64,
}

/// Leave to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The last number that the new epoch builds on.
    pub base: Seq,
    /// The journal of the new epoch still owes the announced writes up to this number. The journal
    /// does not hold later ones, so they will never arrive.
    pub owed: Seq,
}

/// Whether a host may attach with that journal, or with none.
///
/// # Errors
/// [`AttachError::WrongVolume`], [`AttachError::Diverged`], [`AttachError::LossPending`],
/// [`AttachError::Carried`], or [`AttachError::Damaged`] for a journal of an epoch that the log has
/// not seen.
pub fn decide(
    log: Lineage<'_>,
    requester: Requester,
    journal: Option<JournalState>,
) -> Result<Granted, AttachError> {
    let current = log.history.last();
    let epoch = current.map_or(0, |entry| entry.epoch);
    // An epoch may have begun on a journal whose rest never arrived, before the host announced any
    // of that rest.
    let promised = current.map_or(0, |entry| entry.base).max(log.announced_last);
    let pending = AttachError::LossPending {
        host: current.and_then(|entry| entry.host).unwrap_or(HostId(0)),
        bytes: log.announced_bytes,
    };
    let Some(journal) = journal else {
        return if promised > log.committed {
            Err(pending)
        } else {
            Ok(Granted { base: log.committed, owed: log.committed })
        };
    };
    if journal.volume != log.volume {
        return Err(AttachError::WrongVolume(journal.volume));
    }
    if journal.epoch > epoch {
        return Err(AttachError::Damaged(format!(
            "the journal is of epoch {}, the log ends in epoch {epoch}: part of the log is gone; \
             bring the missing segments back from a copy of the object store",
            journal.epoch
        )));
    }
    if journal.epoch < epoch {
        let later = log.history.iter().filter(|entry| entry.epoch > journal.epoch);
        let base = later.clone().map(|entry| entry.base).min().unwrap_or(journal.last);
        if journal.last > base {
            return Err(AttachError::Diverged {
                epoch: journal.epoch,
                from: base.saturating_add(1),
                to: journal.last,
            });
        }
        // Another key may have said that it had this very journal, and delivered something else.
        let own = log.history.iter().find(|entry| entry.epoch == journal.epoch);
        let own = own.map_or(requester.key, |entry| entry.key);
        let doubtful = |entry: &&HistoryEntry| {
            entry.key != requester.key && entry.key != own && journal.last > entry.committed
        };
        if let Some(entry) = later.clone().find(doubtful)
            && !requester.take_over
        {
            return Err(AttachError::Carried { epoch: entry.epoch, key: entry.key });
        }
        if promised > journal.last.max(log.committed) {
            return Err(pending);
        }
    }
    // The missing writes are for the current epoch to deliver, whatever epoch the journal names.
    // Only an operator knows whether another key has that journal.
    let missing = promised.max(journal.last) > log.committed;
    if let Some(current) = current
        && missing
        && current.key != requester.key
        && !requester.take_over
    {
        return Err(AttachError::Carried { epoch, key: current.key });
    }
    Ok(Granted { base: journal.last.max(log.committed), owed: journal.last })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = HostId(0xa);
    const B: HostId = HostId(0xb);
    const VOLUME: VolumeId = VolumeId(1);
    const ANYBODY: Requester = Requester { key: KeyId::NONE, take_over: false };

    fn entry(
        epoch: Epoch,
        host: Option<HostId>,
        base: Seq,
        committed: Seq,
        key: KeyId,
    ) -> HistoryEntry {
        HistoryEntry { epoch, host, base, committed, key }
    }

    /// One line of the table: history as (epoch, host, base), committed, announced up to, journal
    /// as (epoch, last), outcome in short.
    type Case<'a> =
        (&'a str, &'a [(u64, Option<HostId>, u64)], u64, u64, Option<(u64, u64)>, &'a str);

    #[test]
    fn truth_table() {
        #[rustfmt::skip]
        let table: &[Case<'_>] = &[
            ("new volume",                     &[],                                      0,   0, None,           "base 0"),
            ("new volume, journal unused",     &[],                                      0,   0, Some((0, 0)),   "base 0"),
            ("clean, no journal",              &[(1, Some(A), 0)],                      50,   0, None,           "base 50"),
            ("lag, no journal",                &[(1, Some(A), 0)],                      50,  60, None,           "loss"),
            ("lag, the journal",               &[(1, Some(A), 0)],                      50,  60, Some((1, 60)),  "base 60"),
            ("lag, journal lost its tail",     &[(1, Some(A), 0)],                      50,  60, Some((1, 55)),  "base 55"),
            ("store ahead of journal",         &[(1, Some(A), 0)],                      50,   0, Some((1, 40)),  "base 50"),
            ("attached, crashed at once",      &[(1, Some(A), 0), (2, Some(A), 60)],    50,   0, Some((1, 60)),  "base 60"),
            ("same, seen by another",          &[(1, Some(A), 0), (2, Some(A), 60)],    50,   0, None,           "loss"),
            ("same, after delivery",           &[(1, Some(A), 0), (2, Some(A), 60)],    60,   0, None,           "base 60"),
            ("old journal, new lag",           &[(1, Some(A), 0), (2, Some(B), 50)],    50,  70, Some((1, 50)),  "loss"),
            ("old journal, all delivered",     &[(1, Some(A), 0), (2, Some(B), 50)],    70,   0, Some((1, 50)),  "base 70"),
            ("left behind",                    &[(1, Some(A), 0), (2, Some(B), 50)],    70,   0, Some((1, 60)),  "diverged 51..=60"),
            ("loss accepted, journal returns", &[(1, Some(A), 0), (2, None, 50)],       50,   0, Some((1, 60)),  "diverged 51..=60"),
            ("loss accepted, no journal",      &[(1, Some(A), 0), (2, None, 50)],       50,   0, None,           "base 50"),
            ("accepted after an epoch on it",  &[(1, Some(A), 0), (2, Some(A), 60), (3, None, 55)], 55, 0, Some((1, 60)), "diverged 56..=60"),
            ("same, journal of that epoch",    &[(1, Some(A), 0), (2, Some(A), 60), (3, None, 55)], 55, 0, Some((2, 60)), "diverged 56..=60"),
            ("same, all of it arrived",        &[(1, Some(A), 0), (2, Some(A), 60), (3, None, 60)], 60, 0, Some((2, 60)), "base 60"),
            ("journal of a lost epoch",        &[(1, Some(A), 0)],                      50,   0, Some((2, 60)),  "damaged"),
        ];
        for (name, history, committed, announced_last, journal, expected) in table {
            let history: Vec<_> = history
                .iter()
                .map(|&(epoch, host, base)| entry(epoch, host, base, base, KeyId::NONE))
                .collect();
            let log = Lineage {
                volume: VOLUME,
                history: &history,
                committed: *committed,
                announced_last: *announced_last,
                announced_bytes: 4096,
            };
            let journal = journal.map(|(epoch, last)| JournalState { volume: VOLUME, epoch, last });
            let got = match decide(log, ANYBODY, journal) {
                Ok(granted) => format!("base {}", granted.base),
                Err(AttachError::LossPending { .. }) => "loss".into(),
                Err(AttachError::Diverged { from, to, .. }) => format!("diverged {from}..={to}"),
                Err(AttachError::Damaged(_)) => "damaged".into(),
                Err(other) => format!("{other:?}"),
            };
            assert_eq!(got, *expected, "{name}");
        }
    }

    #[test]
    fn a_journal_of_another_volume_is_named() {
        let log = Lineage {
            volume: VOLUME,
            history: &[],
            committed: 0,
            announced_last: 0,
            announced_bytes: 0,
        };
        let journal = JournalState { volume: VolumeId(2), epoch: 0, last: 0 };
        assert_eq!(decide(log, ANYBODY, Some(journal)), Err(AttachError::WrongVolume(VolumeId(2))));
    }

    #[test]
    fn what_the_journal_holds_stays_owed() {
        let history = [entry(1, Some(A), 0, 0, KeyId::NONE)];
        let log = Lineage {
            volume: VOLUME,
            history: &history,
            committed: 50,
            announced_last: 60,
            announced_bytes: 512,
        };
        let journal = JournalState { volume: VOLUME, epoch: 1, last: 55 };
        assert_eq!(decide(log, ANYBODY, Some(journal)), Ok(Granted { base: 55, owed: 55 }));
    }

    /// The store believes the journal of the key that began the epoch, and of a takeover. For other
    /// keys only arrived writes count.
    #[test]
    fn a_journal_is_believed_of_its_own_key() {
        const V: KeyId = KeyId([1; 32]);
        const X: KeyId = KeyId([2; 32]);
        /// History as (epoch, base, committed, key), committed, announced up to, journal,
        /// requester, outcome in short.
        type Case<'a> =
            (&'a str, &'a [(u64, u64, u64, KeyId)], u64, u64, (u64, u64), (KeyId, bool), &'a str);
        #[rustfmt::skip]
        let table: &[Case<'_>] = &[
            ("its own",                          &[(1, 0, 0, V)],                   50, 60, (1, 60), (V, false), "base 60 owed 60"),
            ("forged: nothing is owed",          &[(1, 0, 0, V)],                   50, 60, (1, 50), (X, false), "carried 1 1"),
            ("forged: all of it is here",        &[(1, 0, 0, V)],                   50, 60, (1, 60), (X, false), "carried 1 1"),
            ("forged: more than was announced",  &[(1, 0, 0, V)],                   50,  0, (1, 60), (X, false), "carried 1 1"),
            ("carried, and nothing is missing",  &[(1, 0, 0, V)],                   60,  0, (1, 60), (X, false), "base 60 owed 60"),
            ("carried, as an operator says",     &[(1, 0, 0, V)],                   50, 60, (1, 60), (X, true),  "base 60 owed 60"),
            ("that host crashes at once",        &[(1, 0, 0, V), (2, 60, 50, X)],   50, 60, (1, 60), (X, false), "base 60 owed 60"),
            ("the victim after a forgery",       &[(1, 0, 0, V), (2, 60, 50, X)],   60,  0, (1, 60), (V, false), "carried 2 2"),
            ("its journal is carried on",        &[(1, 0, 0, V), (2, 60, 50, X)],   50, 60, (1, 60), (V, true),  "base 60 owed 60"),
            ("forged of an epoch before",        &[(1, 0, 0, X), (2, 60, 50, V)],   50, 60, (1, 60), (X, false), "carried 2 1"),
            ("its own, twice",                   &[(1, 0, 0, V), (2, 60, 50, V)],   50, 60, (1, 60), (V, false), "base 60 owed 60"),
            ("forged of the victim's before",    &[(1, 0, 0, V), (2, 60, 50, V)],   50, 60, (1, 60), (X, false), "carried 2 1"),
            ("the same, before it announced",    &[(1, 0, 0, V), (2, 60, 50, V)],   50,  0, (1, 60), (X, false), "carried 2 1"),
            ("the same, as an operator says",    &[(1, 0, 0, V), (2, 60, 50, V)],   50, 60, (1, 60), (X, true),  "base 60 owed 60"),
            ("the same, and nothing is missing", &[(1, 0, 0, V), (2, 60, 50, V)],   60,  0, (1, 60), (X, false), "base 60 owed 60"),
            ("forged once it was taken back",    &[(1, 0, 0, V), (2, 60, 50, X), (3, 60, 50, V)], 50, 60, (1, 60), (X, false), "carried 3 1"),
        ];
        for (name, history, committed, announced_last, (epoch, last), (key, take_over), expected) in
            table
        {
            let of = |&(epoch, base, committed, key): &(u64, u64, u64, KeyId)| {
                entry(epoch, Some(A), base, committed, key)
            };
            let history: Vec<_> = history.iter().map(of).collect();
            let log = Lineage {
                volume: VOLUME,
                history: &history,
                committed: *committed,
                announced_last: *announced_last,
                announced_bytes: 4096,
            };
            let journal = JournalState { volume: VOLUME, epoch: *epoch, last: *last };
            let requester = Requester { key: *key, take_over: *take_over };
            let got = match decide(log, requester, Some(journal)) {
                Ok(Granted { base, owed }) => format!("base {base} owed {owed}"),
                Err(AttachError::Carried { epoch, key }) => format!("carried {epoch} {}", key.0[0]),
                Err(AttachError::Diverged { from, to, .. }) => format!("diverged {from}..={to}"),
                Err(other) => format!("{other:?}"),
            };
            assert_eq!(got, *expected, "{name}");
        }
    }

    #[test]
    fn histories_round_trip() {
        let history =
            vec![entry(1, Some(A), 3, 2, KeyId([7; 32])), entry(2, None, 9, 9, KeyId::NONE)];
        let mut bytes = Vec::new();
        encode_history(&history, &mut bytes);
        assert_eq!((bytes.len(), EPOCH_BYTES), (2 * 72, 72));
        bytes.push(5);
        assert_eq!(decode_history(&bytes, 2), Some((history, &[5][..])));
        assert_eq!(decode_history(&bytes, 3), None);
    }
}
