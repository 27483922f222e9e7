//! The head of a table: its volume, and the write up to which it is complete. Also the check of a
//! host that comes back.

use super::mark::{MarkKey, TABLE_KEY_BYTES};
use super::root_hash::{ROOT_BYTES, Root, RootHash};
use crate::block::{Epoch, Range, Seq, VolumeId};
use crate::wire::link::{Attached, Changes, HostId, Moment};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSIONS_VERSION: u16 = 1;
/// Bytes of a head. A table has two, and writes go to them in turn.
pub const HEAD_BYTES: usize = 4096;

const MAGIC: u32 = u32::from_le_bytes(*b"LHVT");
const COMPLETE: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U32,
    version: U16,
    flags: U16,
    generation: U64,
    volume: U128,
    host: U128,
    epoch: U64,
    seq: U64,
    key: [u8; TABLE_KEY_BYTES],
    reserved: [u8; 28],
    crc: U32,
}

const RAW_BYTES: usize = size_of::<RawHead>();
const _: () = assert!(RAW_BYTES == 128);

/// The identity of a table, and how far it is complete.
#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    /// The volume.
    pub volume: VolumeId,
    /// The host of `epoch`.
    pub host: HostId,
    /// The last epoch of an attach with this table.
    pub epoch: Epoch,
    /// All writes up to this number are in the table.
    pub seq: Seq,
    /// Whether a blank mark means that nobody ever wrote there, rather than that nobody knows.
    pub complete: bool,
    /// Number of this head: each new head has a higher one.
    generation: u64,
    key: [u8; TABLE_KEY_BYTES],
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head")
            .field("epoch", &self.epoch)
            .field("seq", &self.seq)
            .field("complete", &self.complete)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

/// Why a head is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A later longhaul wrote it.
    #[error("it is of version {0}, which needs a newer longhaul")]
    Version(u16),
    /// It is another volume's.
    #[error("it is of volume {0}")]
    WrongVolume(VolumeId),
    /// Neither of the two heads is valid.
    #[error("its head is damaged")]
    Damaged,
}

impl Head {
    /// The head of a new table: `key` is that of the last [`Statement`], or random. With
    /// `complete`, the volume has no writes, or the host is about to [learn](super::Learner) all of
    /// it.
    #[must_use]
    pub fn new(
        attached: &Attached,
        host: HostId,
        complete: bool,
        key: [u8; TABLE_KEY_BYTES],
    ) -> Head {
        let Attached { volume, epoch, committed, .. } = *attached;
        Head { volume, host, epoch, seq: committed, complete, generation: 1, key }
    }

    /// The head that follows this one at the next attach.
    #[must_use]
    pub fn attached(&self, attached: &Attached, host: HostId) -> Head {
        let generation = self.generation.wrapping_add(1);
        Head { host, epoch: attached.epoch, generation, ..self.clone() }
    }

    pub(super) fn next(&self, seq: Seq) -> Head {
        Head { seq, generation: self.generation.wrapping_add(1), ..self.clone() }
    }

    /// The key of its marks, for a [`Statement`].
    #[must_use]
    pub fn key(&self) -> [u8; TABLE_KEY_BYTES] {
        self.key
    }

    pub(super) fn mark_key(&self) -> Option<MarkKey> {
        MarkKey::new(&self.key)
    }

    /// The place of this head, one of two.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.generation % 2
    }

    /// Encodes the head.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut raw = RawHead {
            magic: MAGIC.into(),
            version: VERSIONS_VERSION.into(),
            flags: (if self.complete { COMPLETE } else { 0 }).into(),
            generation: self.generation.into(),
            volume: self.volume.0.into(),
            host: self.host.0.into(),
            epoch: self.epoch.into(),
            seq: self.seq.into(),
            key: self.key,
            reserved: [0; 28],
            crc: 0.into(),
        };
        raw.crc = crc32c::crc32c(&raw.as_bytes()[..RAW_BYTES - 4]).into();
        let mut out = BytesMut::with_capacity(HEAD_BYTES);
        out.extend_from_slice(raw.as_bytes());
        out.put_bytes(0, HEAD_BYTES - RAW_BYTES);
        out.freeze()
    }

    fn parse(bytes: &[u8]) -> Result<Head, HeadError> {
        let (raw, _) = RawHead::read_from_prefix(bytes).map_err(|_| HeadError::Damaged)?;
        let crc = crc32c::crc32c(&raw.as_bytes()[..RAW_BYTES - 4]);
        if raw.magic.get() != MAGIC || raw.crc.get() != crc {
            return Err(HeadError::Damaged);
        }
        if raw.version.get() != VERSIONS_VERSION {
            return Err(HeadError::Version(raw.version.get()));
        }
        Ok(Head {
            volume: VolumeId(raw.volume.get()),
            host: HostId(raw.host.get()),
            epoch: raw.epoch.get(),
            seq: raw.seq.get(),
            complete: raw.flags.get() & COMPLETE != 0,
            generation: raw.generation.get(),
            key: raw.key,
        })
    }

    /// The newest head in the file of heads; `None` if the file is empty or only zeroes.
    ///
    /// # Errors
    /// If the file holds something else than heads of this volume.
    pub fn newest(volume: VolumeId, file: &[u8]) -> Result<Option<Head>, HeadError> {
        let mut error = None;
        let mut newest: Option<Head> = None;
        for slot in file.chunks(HEAD_BYTES).take(2) {
            if slot.iter().all(|byte| *byte == 0) {
                continue;
            }
            match Head::parse(slot) {
                Ok(head) if head.volume != volume => {
                    return Err(HeadError::WrongVolume(head.volume));
                }
                Ok(head) => {
                    if newest.as_ref().is_none_or(|newest| newest.generation < head.generation) {
                        newest = Some(head);
                    }
                }
                Err(HeadError::Version(version)) => return Err(HeadError::Version(version)),
                Err(other) => error = Some(other),
            }
        }
        match (newest, error) {
            (None, Some(error)) => Err(error),
            (newest, _) => Ok(newest),
        }
    }
}

/// The last statement of a holder of the keys about the volume, sealed under the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// The epoch of the statement.
    pub epoch: Epoch,
    /// All writes up to this number were committed.
    pub seq: Seq,
    /// The key of tables. All hosts of the volume share it. Otherwise they would have different
    /// roots.
    pub key: [u8; TABLE_KEY_BYTES],
    /// The last root, from a host that ended its epoch in order.
    pub root: Option<Root>,
}

impl std::fmt::Debug for Statement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statement")
            .field("epoch", &self.epoch)
            .field("seq", &self.seq)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStatement {
    epoch: U64,
    seq: U64,
    key: [u8; TABLE_KEY_BYTES],
    root_seq: U64,
    /// Zeroes if there is none.
    root: [u8; ROOT_BYTES],
}

/// Bytes of a statement.
pub const STATEMENT_BYTES: usize = size_of::<RawStatement>();
const _: () = assert!(STATEMENT_BYTES == 88);

impl Statement {
    /// Encodes it, for a seal with [`crate::pack::Keys::seal`].
    #[must_use]
    pub fn encode(&self) -> [u8; STATEMENT_BYTES] {
        let none = Root { seq: 0, hash: RootHash([0; ROOT_BYTES]) };
        let root = self.root.unwrap_or(none);
        zerocopy::transmute!(RawStatement {
            epoch: self.epoch.into(),
            seq: self.seq.into(),
            key: self.key,
            root_seq: root.seq.into(),
            root: root.hash.0,
        })
    }

    /// Parses the bytes of an opened statement; `None` if they are invalid.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Statement> {
        let raw = RawStatement::read_from_bytes(bytes).ok()?;
        let root = Root { seq: raw.root_seq.get(), hash: RootHash(raw.root) };
        Some(Statement {
            epoch: raw.epoch.get(),
            seq: raw.seq.get(),
            key: raw.key,
            root: Some(root).filter(|_| raw.root != [0; ROOT_BYTES]),
        })
    }
}

/// Why a volume is not as this host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rollback {
    /// The log ends before committed writes.
    #[error("the store has its writes up to {committed}, and has confirmed {known} before")]
    Shorter {
        /// The last write that the store has.
        committed: Seq,
        /// The last write that is known to be committed.
        known: Seq,
    },
    /// The epoch is not a new one.
    #[error("the store gave epoch {epoch}, and has given {known} before")]
    Epoch {
        /// The epoch given.
        epoch: Epoch,
        /// The last one known.
        known: Epoch,
    },
    /// The last known statement is missing.
    #[error("the statement that this host left in epoch {known} is gone, or an older one is there")]
    Statement {
        /// The least epoch of the statement that should be there.
        known: Epoch,
    },
    /// Somebody without the keys has changed it, or the store says so.
    #[error(
        "it was changed after write {seq} of epoch {epoch}, and no holder of its keys confirms the \
         change: if the disk of this host failed in that epoch, these may be its own writes"
    )]
    Changed {
        /// The last epoch of this host.
        epoch: Epoch,
        /// The last number known.
        seq: Seq,
    },
    /// The store cannot list the changes.
    #[error(
        "the store cannot say what has changed since write {seq} of epoch {epoch}: somebody rolled \
         it back, shrank it or accepted its losses, or too many writes came from elsewhere"
    )]
    Unknown {
        /// The last epoch of this host.
        epoch: Epoch,
        /// The last number known.
        seq: Seq,
    },
}

/// The outcome of an attach of a volume that a host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The table is valid. Forget these ranges.
    Go(Vec<Range>),
    /// The store has to list the changes since then ([`crate::wire::link::ToStore::Changed`]).
    Ask(Moment),
    /// The volume has changed wrongly.
    Refuse(Rollback),
}

/// The range of numbers in the journal of a returning host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEnd {
    /// All writes up to this number were committed before its first record.
    pub before: Seq,
    /// The last number in it.
    pub last: Seq,
}

/// The part of `changes` that lies in a volume of that many sectors. A store may name whole blocks,
/// and an untrustworthy one may name anything. The table must not grow beyond the need of the
/// volume.
fn within(changes: Changes, sectors: u64) -> Changes {
    let Changes::Ranges(ranges) = changes else { return changes };
    let volume = Range::new(0, sectors);
    Changes::Ranges(ranges.into_iter().filter_map(|range| range.intersect(volume)).collect())
}

impl Head {
    /// Compares this host's knowledge with the epoch that the store has granted. `journal` is the
    /// range of the journal, if there is one. `statement` is the last one of any holder of the
    /// keys. `changes` is the answer to [`Verdict::Ask`].
    ///
    /// A change is believable if a statement is newer than all that this host knows. Only a holder
    /// of the keys can have made it. Without one, nobody else can have written, and the host
    /// forgets nothing.
    #[must_use]
    pub fn judge(
        &self,
        attached: &Attached,
        journal: Option<JournalEnd>,
        statement: Option<Statement>,
        changes: Option<Changes>,
    ) -> Verdict {
        let Attached { epoch, committed, .. } = *attached;
        let known = self.seq.max(statement.map_or(0, |statement| statement.seq));
        if committed < known {
            return Verdict::Refuse(Rollback::Shorter { committed, known });
        }
        let stated = statement.map_or(0, |statement| statement.epoch);
        if epoch <= self.epoch || epoch <= stated {
            let known = self.epoch.max(stated);
            return Verdict::Refuse(Rollback::Epoch { epoch, known });
        }
        if stated < self.epoch {
            return Verdict::Refuse(Rollback::Statement { known: self.epoch });
        }
        // If a journal does not go on where the table ends, it says nothing about the writes
        // between.
        let last = journal
            .filter(|journal| journal.before <= self.seq)
            .map_or(self.seq, |journal| journal.last.max(self.seq));
        if self.epoch.checked_add(1) == Some(epoch) && committed <= last {
            return Verdict::Go(Vec::new());
        }
        let seq = last.min(committed);
        let newer = statement
            .is_some_and(|stated| (stated.epoch, stated.seq) > (self.epoch, last.max(self.seq)));
        let changes = changes.map(|changes| within(changes, attached.sectors));
        match changes {
            None => Verdict::Ask(Moment { epoch: self.epoch, host: self.host, seq }),
            Some(Changes::Unknown) => {
                Verdict::Refuse(Rollback::Unknown { epoch: self.epoch, seq: last })
            }
            Some(Changes::Ranges(ranges)) if ranges.is_empty() || newer => Verdict::Go(ranges),
            Some(Changes::Ranges(_)) => {
                Verdict::Refuse(Rollback::Changed { epoch: self.epoch, seq: last })
            }
        }
    }
}
