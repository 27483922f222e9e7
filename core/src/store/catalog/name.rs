//! Rules for names and numbers in keys.

use super::error::CatalogError;
use crate::wire::link::MAX_NAME_BYTES;

/// Checks a name: `[A-Za-z0-9][A-Za-z0-9._-]*`, at most [`MAX_NAME_BYTES`]. Such a name is also a
/// file name, a part of an URL and of an iSCSI name.
///
/// # Errors
/// [`CatalogError::Name`].
pub fn check_name(name: &str) -> Result<(), CatalogError> {
    let good = name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if good { Ok(()) } else { Err(CatalogError::Name(name.chars().take(300).collect())) }
}

/// The number at the end of a key that begins with `prefix`, if it is a key of this form.
#[must_use]
pub fn parse_number(prefix: &str, key: &str) -> Option<u64> {
    let digits = key.strip_prefix(prefix)?;
    let ours = digits.len() == 16 && digits.bytes().all(|b| b"0123456789abcdef".contains(&b));
    if ours { u64::from_str_radix(digits, 16).ok() } else { None }
}
