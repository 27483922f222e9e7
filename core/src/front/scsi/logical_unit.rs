//! The state of a logical unit that commands read and change.
//!
//! The handler of a command gets this state and nothing else. It can reach neither the task set nor
//! the outputs of the device.

use super::config::DeviceConfig;
use super::copy::plan::Designator;
use super::copy::results::CopyResults;
use super::copy::tokens::RodTokens;
use super::mode_parameters::ModeParameters;
use super::nexus::TARGET_PORT;
use super::nexuses::Nexuses;
use super::reservations::Reservations;
use super::sense::{Sense, code, key};
use super::volume_io::{IoKind, VolumeIo};
use crate::block::{BLOCK_BYTES, Range, SECTOR_BYTES};

/// Relative identifiers of the target ports.
const PORTS: [u16; 1] = [TARGET_PORT];

/// Code set (binary) and type (NAA) of [`LogicalUnit::naa`], as in VPD page 83h.
pub(super) const NAA: (u8, u8) = (1, 0x3);

/// A logical unit without its tasks.
#[derive(Debug)]
pub(super) struct LogicalUnit {
    pub config: DeviceConfig,
    pub nexuses: Nexuses,
    pub mode: ModeParameters,
    pub reservations: Reservations,
    pub copies: CopyResults,
    pub tokens: RodTokens,
}

impl LogicalUnit {
    /// A logical unit without nexuses.
    pub fn new(config: DeviceConfig) -> LogicalUnit {
        // If the saved reservations cannot be read, nobody may write until an initiator clears
        // them. Ignoring them could let two hosts write.
        let reservations = Reservations::restore(&PORTS, &config.reservations)
            .unwrap_or_else(|_| Reservations::lost(&PORTS));
        LogicalUnit {
            config,
            nexuses: Nexuses::default(),
            mode: ModeParameters::default(),
            reservations,
            copies: CopyResults::default(),
            tokens: RodTokens::default(),
        }
    }

    /// Sectors in a logical block.
    pub fn block_sectors(&self) -> u64 {
        (u64::from(self.config.block_bytes) / SECTOR_BYTES).max(1)
    }

    /// Whole logical blocks of the volume. Sectors after the last whole block are not accessible.
    pub fn blocks(&self) -> u64 {
        self.config.sectors / self.block_sectors()
    }

    /// Logical blocks in a physical block. A physical block can be written without reading its
    /// neighbors.
    pub fn physical_blocks(&self) -> u64 {
        (BLOCK_BYTES / u64::from(self.config.block_bytes.max(1))).max(1)
    }

    /// The sectors of these logical blocks.
    ///
    /// # Errors
    ///
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub fn range(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        let size = self.blocks();
        if lba > size || blocks > size - lba {
            return Err(Sense::out_of_range(lba.max(size)));
        }
        Ok(Range::new(lba * self.block_sectors(), blocks * self.block_sectors()))
    }

    pub fn io(&self, kind: IoKind, range: Range, durable: bool) -> VolumeIo {
        VolumeIo::new(kind, range, self.block_sectors(), durable)
    }

    /// The sense data of a refused write, if writes are refused.
    pub fn is_write_protected(&self) -> Option<Sense> {
        if self.config.read_only {
            return Some(Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED));
        }
        let software = Sense::new(key::DATA_PROTECT, code::SOFTWARE_WRITE_PROTECTED);
        self.mode.write_protect.then_some(software)
    }

    /// Whether writes have to be durable before they end.
    pub fn writes_through(&self) -> bool {
        !self.mode.write_cache
    }

    /// The NAA designator, locally assigned: 60 of the 128 bits of the volume's identity.
    pub fn naa(&self) -> [u8; 8] {
        let id = self.config.volume.0;
        let local = (id >> 64) as u64 ^ id as u64;
        (local >> 4 | 3 << 60).to_be_bytes()
    }

    /// The designator by which copies name this unit.
    pub fn designator(&self) -> Designator {
        let (code_set, kind) = NAA;
        Designator { code_set, kind, value: self.naa().to_vec() }
    }

    /// Whether a designator is this unit's.
    pub fn is_called(&self, designator: &Designator) -> bool {
        let (code_set, kind) = NAA;
        designator.code_set == code_set && designator.kind == kind && designator.value == self.naa()
    }
}
