//! Parts of a volume as people write them: `1GiB+64MiB`, `1GiB-2GiB`, `all`.

use crate::units;
use anyhow::{Context as _, Result, bail};

/// A part of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// Byte after the last; `None` for the end of the volume.
    pub end: Option<u64>,
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.end {
            Some(end) => write!(f, "{}-{end}", self.start),
            None => write!(f, "{}-", self.start),
        }
    }
}

impl From<std::ops::Range<u64>> for Span {
    fn from(range: std::ops::Range<u64>) -> Span {
        Span { start: range.start, end: Some(range.end) }
    }
}

/// Parses a part of a volume: `1GiB+64MiB` (offset and length), `1GiB-2GiB` (offset and end), or
/// `all`.
pub fn parse(text: &str) -> Result<Span> {
    if text.trim() == "all" {
        return Ok(Span { start: 0, end: None });
    }
    let parsed = |start: &str, other: &str| {
        Ok::<_, anyhow::Error>((units::bytes(start)?, units::bytes(other)?))
    };
    let (start, end) = if let Some((start, length)) = text.split_once('+') {
        let (start, length) = parsed(start, length)?;
        (start, start.checked_add(length).with_context(|| format!("`{text}` is too large"))?)
    } else if let Some((start, end)) = text.split_once('-') {
        parsed(start, end)?
    } else {
        bail!(
            "`{text}` is not a range: use OFFSET+LENGTH, OFFSET-END or `all`, as in `1GiB+64MiB`"
        );
    };
    if start >= end {
        bail!("the range `{text}` is empty");
    }
    Ok(Span { start, end: Some(end) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let parsed = |text| parse(text).unwrap().to_string();
        assert_eq!(parsed("all"), "0-");
        assert_eq!(parsed("1MiB+64KiB"), "1048576-1114112");
        assert_eq!(parsed("1 MiB - 2 MiB"), "1048576-2097152");
        for wrong in ["", "5", "1MiB+", "+5", "5-5", "6-5", "1-2-3", "0+0", "16777215TiB+2TiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
