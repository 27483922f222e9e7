//! Errors in the objects of a map.

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The bytes end too soon.
    #[error("cut short")]
    Short,
    /// It is something else.
    #[error("not a {0}")]
    Magic(&'static str),
    /// A later version wrote it.
    #[error("of format version {0}, which needs a newer longhaul")]
    Version(u16),
    /// A checksum does not match.
    #[error("{0} does not match its checksum")]
    Checksum(&'static str),
    /// Intact, but not what it may say.
    #[error("not valid: {0}")]
    Invalid(&'static str),
}
