//! What an operator accepts of a volume that is not as a host left it.

use std::str::FromStr;

/// A rollback that the operator accepts: `NAME=TOKEN`, with the token that the refused attach gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    name: String,
    token: String,
}

impl Accepted {
    /// Whether it is about that volume, in the state that has that token.
    pub fn is_of(&self, name: &str, token: &str) -> bool {
        self.name == name && self.token == token
    }
}

impl FromStr for Accepted {
    type Err = String;

    fn from_str(text: &str) -> Result<Accepted, String> {
        let parts = text.split_once('=').filter(|(name, token)| {
            !name.is_empty() && token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit())
        });
        let (name, token) = parts.ok_or_else(|| {
            format!("`{text}` is not NAME=TOKEN, with the token that the refused attach gave")
        })?;
        Ok(Accepted { name: name.into(), token: token.to_ascii_lowercase() })
    }
}
