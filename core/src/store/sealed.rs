//! Small objects of a store end with a line that binds their content to their name.
//!
//! ```text
//! content, then "seal ", then CRC32C of name, a zero byte and content in 8 hexadecimal digits, then a line feed
//! ```
//!
//! The line reveals a flipped bit, a cut, and an object that lies under another name. It is in
//! descriptions of volumes, leases, sizes, attributes, tenants, deleted volumes, and the stores'
//! own records. Objects with data and maps have no such line: readers read parts of them, and they
//! have checksums and names of their own.

use super::catalog;
use bytes::Bytes;

/// Bytes of the line.
pub const SEAL_BYTES: usize = MARK.len() + 8 + 1;

const MARK: &[u8] = b"seal ";

/// Objects of a volume that contain the identity of the volume themselves.
const OWN_CHECKSUMS: [&str; 6] = ["seg/", "root/", "snap/", "frag/", "bundle/", "staged/"];

/// Why an object is not the one of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It does not end with such a line.
    #[error("it is cut short, or was not written by longhaul: it does not end with a seal")]
    Missing,
    /// The content or the name differs from the written one.
    #[error("it does not match its seal: it is damaged, or was written under another name")]
    Broken,
}

/// Whether the object of that name ends with the line.
#[must_use]
pub fn is_sealed(key: &str) -> bool {
    match catalog::parse_volume_key(key) {
        Some((_, rest)) => !OWN_CHECKSUMS.iter().any(|kind| rest.starts_with(kind)),
        None => true,
    }
}

/// The line that belongs behind this content under that name.
#[must_use]
pub fn seal(key: &str, content: &[Bytes]) -> Bytes {
    let begun = crc32c::crc32c_append(crc32c::crc32c(key.as_bytes()), &[0]);
    let crc = content.iter().fold(begun, |crc, part| crc32c::crc32c_append(crc, part));
    let mut line = MARK.to_vec();
    line.extend_from_slice(format!("{crc:08x}\n").as_bytes());
    line.into()
}

/// Returns the content of the object `key`, which the caller has read with its line.
///
/// # Errors
/// See [`SealError`].
pub fn open(key: &str, object: &Bytes) -> Result<Bytes, SealError> {
    let end = object.len().checked_sub(SEAL_BYTES).ok_or(SealError::Missing)?;
    let content = object.slice(..end);
    let line = &object[end..];
    if !line.starts_with(MARK) {
        return Err(SealError::Missing);
    }
    let sealed = seal(key, std::slice::from_ref(&content));
    if line == &sealed[..] { Ok(content) } else { Err(SealError::Broken) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::VolumeId;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let parts = [Bytes::from("{\"version\":1,"), Bytes::from("\"sectors\":160}\n")];
        let key = catalog::size_key(VolumeId(0xfeed), 7);
        assert_eq!(seal(&key, &parts), "seal 3407e50b\n");
    }

    #[test]
    fn what_has_checksums_of_its_own_is_not_sealed() {
        let id = VolumeId(9);
        for key in [
            catalog::segment_key(id, 1),
            catalog::staged_key(id, 1 << 63),
            format!("{}1", catalog::root_prefix(id)),
            format!("{}1", catalog::pin_prefix(id)),
            format!("{}1", catalog::fragment_prefix(id)),
            format!("{}1", catalog::bundle_prefix(id)),
        ] {
            assert!(!is_sealed(&key), "{key}");
        }
        for key in [
            catalog::size_key(id, 1),
            catalog::owner_key(id, 1),
            catalog::attribute_key(id, "keys", 1, 1),
            super::super::lease::key(id, 1),
            catalog::name_key("seg/"),
            "tenants/acme/0000000000000001".into(),
            "v/9/seg/1".into(),
        ] {
            assert!(is_sealed(&key), "{key}");
        }
    }

    proptest! {
        #[test]
        fn nothing_else_opens(
            content in prop::collection::vec(any::<u8>(), 0..99),
            at in any::<prop::sample::Index>(),
            bit in 0..8u8,
        ) {
            let content = Bytes::from(content);
            let line = seal("a/1", std::slice::from_ref(&content));
            let object: Bytes = [&content[..], &line].concat().into();
            prop_assert_eq!(open("a/1", &object), Ok(content));
            prop_assert_eq!(open("a/2", &object), Err(SealError::Broken));
            let at = at.index(object.len());
            prop_assert!(open("a/1", &object.slice(..at)).is_err());
            let mut flipped = object.to_vec();
            flipped[at] ^= 1 << bit;
            prop_assert!(open("a/1", &flipped.into()).is_err());
        }
    }
}
