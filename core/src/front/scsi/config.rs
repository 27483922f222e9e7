//! The identity and the settings of a logical unit.

use crate::block::VolumeId;
use bytes::Bytes;

/// The secret that tokens are derived from. It must be unpredictable and unique to this device.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(pub [u8; 32]);

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

/// The identity and the settings of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The volume. Its identity determines the designators of VPD page 83h.
    pub volume: VolumeId,
    /// Name of the volume.
    pub name: String,
    /// SCSI device name of the target, an iSCSI name.
    pub target_name: String,
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse every write with WRITE PROTECTED.
    pub read_only: bool,
    /// The last saved persistent reservations, from
    /// [`SaveReservations`](super::DeviceOutput::SaveReservations); empty if there are none.
    pub reservations: Bytes,
    /// Keeps tokens from being guessed.
    pub token_secret: TokenSecret,
}
