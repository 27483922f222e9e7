//! Text of login and text requests: its grammar (RFC 7143 §6.1), and its transfer in several PDUs
//! (§6.2).
//!
//! No bytes make the parsers panic or loop.

use crate::wire::iscsi::Response;
use bytes::Bytes;

/// Most bytes of text in one exchange or login. §6.2 asks for 8192 at least, besides the keys of
/// authentication methods with longer ones. CHAP has none of these.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;

/// Longest simple value, in bytes (§6.1).
pub const MAX_VALUE_BYTES: usize = 255;

/// Longest name of a key, in bytes (§6.1).
pub const MAX_KEY_BYTES: usize = 63;

/// The answer to an unknown key.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// The answer to an invalid value.
pub const REJECT: &str = "Reject";
/// The answer to a key without a meaning here.
pub const IRRELEVANT: &str = "Irrelevant";
/// The option of a list that stands for no other option.
pub const NONE: &str = "None";

/// A violation of the grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The last pair has no null after it.
    #[error("the text does not end with a null")]
    Unterminated,
    /// A pair has no `=`.
    #[error("a pair of the text has no `=`")]
    NoSeparator,
    /// A key has an invalid name.
    #[error("{0:?} is no name of a key")]
    KeyName(String),
    /// A value is not UTF-8, or has control characters.
    #[error("the value of {0} is not text")]
    Value(String),
    /// The text has more than [`MAX_REQUEST_BYTES`].
    #[error("more than {MAX_REQUEST_BYTES} bytes of text")]
    TooLong,
}

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPair<'a> {
    /// Name of the key: a letter, then letters, digits and `.-+@_#`. §6.1 wants an upper case
    /// letter first, but RFC 7144 has iSCSIProtocolLevel.
    pub key: &'a str,
    /// The value, which has no control characters.
    pub value: &'a str,
}

/// Parses the pairs of a text.
///
/// Nulls after the last pair are ignored, because some initiators count padding as data.
///
/// # Errors
///
/// The violation of the grammar.
pub fn parse(text: &[u8]) -> Result<Vec<TextPair<'_>>, TextError> {
    let Some(end) = text.iter().rposition(|b| *b != 0) else { return Ok(Vec::new()) };
    if end + 1 == text.len() {
        return Err(TextError::Unterminated);
    }
    text[..=end].split(|b| *b == 0).map(parse_pair).collect()
}

fn parse_pair(pair: &[u8]) -> Result<TextPair<'_>, TextError> {
    let at = pair.iter().position(|b| *b == b'=').ok_or(TextError::NoSeparator)?;
    let (key, value) = (&pair[..at], &pair[at + 1..]);
    let show = || String::from_utf8_lossy(&key[..key.len().min(MAX_KEY_BYTES)]).into_owned();
    let good = key.len() <= MAX_KEY_BYTES
        && key.first().is_some_and(u8::is_ascii_alphabetic)
        && key.iter().all(|b| b.is_ascii_alphanumeric() || b".-+@_#".contains(b));
    let key = std::str::from_utf8(key).ok().filter(|_| good);
    let key = key.ok_or_else(|| TextError::KeyName(show()))?;
    match std::str::from_utf8(value) {
        Ok(value) if !value.contains(char::is_control) => Ok(TextPair { key, value }),
        _ => Err(TextError::Value(key.to_owned())),
    }
}

/// Parses a numerical value below 2^64 (§6.1): decimal without leading zeros, or hexadecimal after
/// `0x`.
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    if value.len() > MAX_VALUE_BYTES {
        return None;
    }
    if let Some(digits) = after(value, b'x') {
        let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        return u64::from_str_radix(digits, 16).ok().filter(|_| good);
    }
    let good =
        value.bytes().all(|b| b.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    value.parse().ok().filter(|_| good)
}

/// Parses a binary value of at most `limit` bytes (§6.1): hexadecimal after `0x`, base64 after
/// `0b`. An odd number of hexadecimal digits means a leading zero.
#[must_use]
pub fn binary(value: &str, limit: usize) -> Option<Vec<u8>> {
    if let Some(digits) = after(value, b'x') {
        if digits.is_empty() || digits.len().div_ceil(2) > limit {
            return None;
        }
        let nibbles: Option<Vec<u8>> =
            digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let nibbles = nibbles?;
        let (head, rest) = nibbles.split_at(nibbles.len() % 2);
        let pairs = rest.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
        return Some(head.iter().copied().chain(pairs).collect());
    }
    let digits = after(value, b'b')?;
    if digits.is_empty() || !digits.len().is_multiple_of(4) || digits.len() / 4 * 3 > limit + 2 {
        return None;
    }
    let bare = digits.strip_suffix("==").or_else(|| digits.strip_suffix('=')).unwrap_or(digits);
    let mut bytes = Vec::with_capacity(bare.len() / 4 * 3 + 2);
    let (mut bits, mut held) = (0u32, 0);
    for digit in bare.bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // RFC 4648 §3.5: the padding bits of the last digit are zero.
    (bits == 0 && bytes.len() <= limit).then_some(bytes)
}

/// The digits after `0x` or `0b`, in either case.
fn after(value: &str, mark: u8) -> Option<&str> {
    let (prefix, digits) = value.split_at_checked(2)?;
    let prefix = prefix.as_bytes();
    (prefix[0] == b'0' && prefix[1].eq_ignore_ascii_case(&mark)).then_some(digits)
}

/// Bytes as a hexadecimal constant.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A response without its numbers, which the connection fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPdu {
    /// The fields of the header.
    pub response: Response,
    /// Data segment.
    pub text: Bytes,
}

/// Text that is being built.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseText(Vec<u8>);

impl ResponseText {
    /// Adds a pair.
    pub(super) fn push(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the pairs of another text.
    pub(super) fn append(&mut self, mut other: ResponseText) {
        self.0.append(&mut other.0);
    }

    /// Makes the text ready to be sent.
    pub(super) fn send(self) -> TextOutbox {
        TextOutbox(Bytes::from(self.0))
    }
}

/// Text that is sent in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct TextOutbox(Bytes);

impl TextOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next piece. If the outbox still holds text after that, more follows.
    pub(super) fn cut(&mut self, limit: usize) -> Bytes {
        self.0.split_to(self.0.len().min(limit))
    }
}

/// An address without its portal group tag.
pub(super) fn without_group(address: &str) -> &str {
    address.split_once(',').map_or(address, |(address, _)| address)
}
