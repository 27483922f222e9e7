//! Exports: the shell's description of one, and the terms under which a client gets it.

use crate::block::{MAX_TRANSFER_BYTES, MAX_VOLUME_SECTORS};
use crate::wire::nbd::rep;

/// The description of an export. The client sees it, and the session checks requests against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name, at most 4096 bytes.
    pub name: String,
    /// Text for a human; may be empty.
    pub description: String,
    /// Size, at most [`MAX_VOLUME_SECTORS`].
    pub sectors: u64,
    /// Minimum block size, for clients that ask for it: a power of two from 512 to 65536. Other
    /// clients may always use 512. An export whose size is not a multiple of it is served with 512.
    pub min_block: u32,
    /// Preferred block size, which needs no read-modify-write: a power of two. The session raises
    /// it to `min_block`.
    pub preferred_block: u32,
    /// Largest payload, for clients that ask for it. The session moves it into the range from
    /// `preferred_block` to [`MAX_TRANSFER_BYTES`].
    pub max_payload: u32,
    /// Whether writes fail.
    pub read_only: bool,
    /// Bitmaps that clients can ask for as `qemu:dirty-bitmap:NAME`, the likeliest first. The
    /// session reads it only if the lookup asked for it.
    pub bitmaps: Vec<String>,
}

/// An entry of the answer to `LIST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name to open it by. An entry with a name of more than 4096 bytes is left out.
    pub name: String,
    /// Text for a human; may be empty.
    pub description: String,
}

/// The reason why a lookup failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LookupError {
    /// The error that the client gets.
    pub kind: LookupErrorKind,
    /// Text for the operator of the client: the problem, where it is, and what to do next.
    pub message: String,
}

/// The kinds of [`LookupError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupErrorKind {
    /// No such export.
    Unknown,
    /// No such export yet, but one that is made when a client enters it. A client that only asks
    /// for information does not make it. Clients select contexts before they enter, so the session
    /// accepts the contexts that every export has.
    OnEntry,
    /// The export exists, but this client cannot have it now.
    Policy,
    /// The server is shutting down.
    Shutdown,
}

impl LookupErrorKind {
    pub(super) fn refusal(self) -> rep::Refusal {
        match self {
            LookupErrorKind::Unknown | LookupErrorKind::OnEntry => rep::Refusal::Unknown,
            LookupErrorKind::Policy => rep::Refusal::Policy,
            LookupErrorKind::Shutdown => rep::Refusal::Shutdown,
        }
    }
}

/// The terms under which an export is served to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportTerms {
    /// Size in bytes.
    pub(super) size: u64,
    /// Alignment of offsets and lengths, in bytes: a power of two, a multiple of a sector.
    pub(super) min_block: u32,
    pub(super) preferred_block: u32,
    /// Largest payload, at most [`MAX_TRANSFER_BYTES`].
    pub(super) max_payload: u32,
    pub(super) read_only: bool,
}

impl ExportTerms {
    /// `asked`: the client asked for size constraints and so promised to keep them (NBD `proto.md`,
    /// "Size constraints"). A client that did not ask may use any sector, the smallest unit of the
    /// engine. It may also assume a maximum payload of 32 MiB.
    pub(super) fn new(export: &ExportInfo, asked: bool) -> ExportTerms {
        const SECTOR: u32 = 512;
        const MAX_TRANSFER: u32 = MAX_TRANSFER_BYTES as u32;
        const { assert!(MAX_TRANSFER as u64 == MAX_TRANSFER_BYTES) };
        let power = |value: u32, min: u32| {
            value.clamp(min, 1 << 24).checked_next_power_of_two().unwrap_or(min)
        };
        let size = export.sectors.min(MAX_VOLUME_SECTORS) * u64::from(SECTOR);
        let mut min_block = power(export.min_block, SECTOR).min(1 << 16);
        if !asked || !size.is_multiple_of(min_block.into()) {
            min_block = SECTOR;
        }
        let preferred_block = power(export.preferred_block, min_block);
        let max_payload = if asked {
            export.max_payload.clamp(preferred_block, MAX_TRANSFER)
        } else {
            MAX_TRANSFER
        };
        ExportTerms { size, min_block, preferred_block, max_payload, read_only: export.read_only }
    }
}
