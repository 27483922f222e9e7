//! The root of a table as a value; [`Rooting`](super::Rooting) computes it.

use crate::block::Seq;
use std::str::FromStr;

/// Bytes of a root.
pub const ROOT_BYTES: usize = 32;

/// The expected state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// It has all writes up to this number, and no later one.
    pub seq: Seq,
    /// HMAC-SHA256, with the key of the marks, over the number and all marks that are not zeroes.
    pub hash: RootHash,
}

/// The hash of a root; as text it is hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootHash(pub [u8; ROOT_BYTES]);

impl std::fmt::Display for RootHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is not the hash of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a root is {} hexadecimal digits", 2 * ROOT_BYTES)]
pub struct NoRoot;

impl FromStr for RootHash {
    type Err = NoRoot;

    fn from_str(text: &str) -> Result<RootHash, NoRoot> {
        let digit =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| digit.try_into().ok());
        let mut hash = [0_u8; ROOT_BYTES];
        if text.len() != 2 * ROOT_BYTES {
            return Err(NoRoot);
        }
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (high, low): (u8, u8) =
                (digit(pair[0]).ok_or(NoRoot)?, digit(pair[1]).ok_or(NoRoot)?);
            *byte = high << 4 | low;
        }
        Ok(RootHash(hash))
    }
}
