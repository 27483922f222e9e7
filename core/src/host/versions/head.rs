//! The head of a table: whose it is, and up to which write it is complete; and what a host that
//! comes back makes of it.

use super::mark::{MarkKey, TABLE_KEY_BYTES};
use super::root_hash::{ROOT_BYTES, Root, RootHash};
use crate::block::{Epoch, Range, Seq, VolumeId};
use crate::wire::link::{Attached, Changes, HostId, Moment};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSIONS_VERSION: u16 = 1;
/// Bytes of a head. There are two, which are written in turn.
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

/// Whose a table is, and how far it is complete.
#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    /// The volume.
    pub volume: VolumeId,
    /// Who attached the volume in `epoch`.
    pub host: HostId,
    /// The last epoch in which the volume was attached with this table.
    pub epoch: Epoch,
    /// All writes up to this number are in the table.
    pub seq: Seq,
    /// Whether what was never marked was never written, rather than unknown.
    pub complete: bool,
    /// Counts the heads.
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

/// Why a head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A later longhaul wrote it.
    #[error("it is of version {0}, which needs a newer longhaul")]
    Version(u16),
    /// It is another volume's.
    #[error("it is of volume {0}")]
    WrongVolume(VolumeId),
    /// Neither of the two heads is one.
    #[error("its head is damaged")]
    Damaged,
}

impl Head {
    /// Of a new table: `key` is that of the last [`Statement`], or random. With `complete`, nothing
    /// was ever written to the volume, or all of it is about to be [learned](super::Learner).
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

    /// The head that follows this one when the volume is attached again.
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

    /// Which of the two places it goes to.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.generation % 2
    }

    /// Its bytes.
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
    /// If there is something else in it than a head of this volume.
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

/// What whoever has the keys stated last about the volume, under the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// In this epoch.
    pub epoch: Epoch,
    /// All writes up to this number were committed.
    pub seq: Seq,
    /// The key of tables, which all hosts of the volume share: else they would have different
    /// roots.
    pub key: [u8; TABLE_KEY_BYTES],
    /// The last root that was worked out, of a host that let the volume go in order.
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
    /// Its bytes, to be sealed with [`crate::pack::Keys::seal`].
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

    /// Takes the bytes of an opened one apart; `None` if they are none.
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

/// Why a volume is not what this host knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rollback {
    /// The log ends before what was committed.
    #[error("the store has its writes up to {committed}, and has confirmed {known} before")]
    Shorter {
        /// What the store has.
        committed: Seq,
        /// What was known to be committed.
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
    /// The last statement known is not there any more.
    #[error("the statement that this host left in epoch {known} is gone, or an older one is there")]
    Statement {
        /// The epoch of the statement that should be there, at least.
        known: Epoch,
    },
    /// Somebody without the keys has changed it, or the store says so.
    #[error(
        "it was changed after write {seq} of epoch {epoch}, and nobody with its keys says to have done so: if the disk of \
         this host failed in that epoch, these may be its own writes"
    )]
    Changed {
        /// The last epoch of this host.
        epoch: Epoch,
        /// The last number known.
        seq: Seq,
    },
    /// The store cannot say what has changed.
    #[error(
        "the store cannot say what has changed since write {seq} of epoch {epoch}: it was rolled back or made smaller, \
         its losses were accepted, or too much was written elsewhere"
    )]
    Unknown {
        /// The last epoch of this host.
        epoch: Epoch,
        /// The last number known.
        seq: Seq,
    },
}

/// What the attach of a volume that a host knows comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The table holds; forget these ranges.
    Go(Vec<Range>),
    /// The store has to say what has changed since then ([`crate::wire::link::ToStore::Changed`]).
    Ask(Moment),
    /// The volume is not what it was.
    Refuse(Rollback),
}

/// What the journal of a returning host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEnd {
    /// All writes up to this number were committed before its first record.
    pub before: Seq,
    /// The last number that it holds.
    pub last: Seq,
}

/// What of `changes` lies in a volume of that many sectors. A store may name whole blocks, and one
/// that is not to be trusted anything; the table must not grow beyond what the volume needs.
fn within(changes: Changes, sectors: u64) -> Changes {
    let Changes::Ranges(ranges) = changes else { return changes };
    let volume = Range::new(0, sectors);
    Changes::Ranges(ranges.into_iter().filter_map(|range| range.intersect(volume)).collect())
}

impl Head {
    /// Compares what this host knows with what the store has granted. `journal` is what it holds,
    /// if there is one; `statement` the last one of anybody with the keys, `changes` the answer to
    /// [`Verdict::Ask`].
    ///
    /// What makes a change believable is a statement that is newer than all that this host knows:
    /// only who has the keys can have made it. Without one, nobody else can have written, and
    /// nothing is forgotten.
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
        // A journal that does not go on where the table ends says nothing of what lies between.
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
