//! The operator's word on the state of encrypted volumes: rollbacks to accept, and roots to expect.

use longhaul_core::host::versions::{ROOT_BYTES, RootHash};
use std::str::FromStr;

/// An argument about the state of encrypted volumes is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootArgumentError {
    /// Of `--accept-rollback`.
    #[error("`{0}` is not NAME=TOKEN, with the token that the refused attach gave")]
    NotNameToken(String),
    /// Of `--expect-root`.
    #[error(
        "`{0}` is not NAME=HASH, with the {hexadecimal} hexadecimal digits of `longhaul volume \
         show`, or NAME=any",
        hexadecimal = 2 * ROOT_BYTES
    )]
    NotNameHash(String),
    /// Of `--expect-root` without a name, on a host that attaches this many volumes.
    #[error(
        "--expect-root HASH is for a host with one --volume, and this one has {0}: give \
         --expect-root NAME=HASH"
    )]
    NoName(usize),
}

/// A rollback that the operator accepts: `NAME=TOKEN`, with the token that the refused attach gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedRollback {
    name: String,
    token: String,
}

impl AcceptedRollback {
    /// Whether it is about that volume, in the state that has that token.
    pub fn is_of(&self, name: &str, token: &str) -> bool {
        self.name == name && self.token == token
    }
}

impl FromStr for AcceptedRollback {
    type Err = RootArgumentError;

    fn from_str(text: &str) -> Result<AcceptedRollback, RootArgumentError> {
        let parts = text.split_once('=').filter(|(name, token)| {
            !name.is_empty() && token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit())
        });
        let (name, token) =
            parts.ok_or_else(|| RootArgumentError::NotNameToken(text.to_owned()))?;
        Ok(AcceptedRollback { name: name.into(), token: token.to_ascii_lowercase() })
    }
}

/// The root that a volume must have if this host does not know the volume: `NAME=HASH`, or
/// `NAME=any`. Without `NAME=` it is the only volume that the host attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootExpectation {
    name: Option<String>,
    /// `None`: the host takes the content that the store has now, all of it at once.
    root: ExpectedRoot,
}

/// The root that the operator expects; `None` is any.
pub type ExpectedRoot = Option<RootHash>;

impl RootExpectation {
    /// The root that the operator expects of that volume, if this is about it.
    pub fn of(&self, name: &str) -> Option<ExpectedRoot> {
        (self.name.as_deref() == Some(name)).then_some(self.root)
    }

    /// Gives one without a name that of the only volume there is.
    ///
    /// # Errors
    /// If there is none or several: what to do.
    pub fn named(self, volumes: &[String]) -> Result<RootExpectation, RootArgumentError> {
        let name = match (self.name, volumes) {
            (Some(name), _) => name,
            (None, [only]) => only.clone(),
            (None, volumes) => {
                return Err(RootArgumentError::NoName(volumes.len()));
            }
        };
        Ok(RootExpectation { name: Some(name), root: self.root })
    }
}

impl FromStr for RootExpectation {
    type Err = RootArgumentError;

    fn from_str(text: &str) -> Result<RootExpectation, RootArgumentError> {
        let wrong = || RootArgumentError::NotNameHash(text.to_owned());
        let (name, root) = match text.split_once('=') {
            None => (None, text),
            Some(("", _)) => return Err(wrong()),
            Some((name, root)) => (Some(name.to_owned()), root),
        };
        let root = match root {
            "any" => None,
            root => Some(root.parse().map_err(|_| wrong())?),
        };
        Ok(RootExpectation { name, root })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_a_root_or_anything() {
        let hash = "0a".repeat(ROOT_BYTES);
        let expected: RootExpectation = format!("acme/db={hash}").parse().unwrap();
        assert_eq!(expected.of("acme/db"), Some(Some(RootHash([10; ROOT_BYTES]))));
        assert_eq!(expected.of("db"), None);
        let any: RootExpectation = "db=any".parse().unwrap();
        assert_eq!(any.of("db"), Some(None));
        let alone: RootExpectation = hash.parse().unwrap();
        assert_eq!(alone.of("db"), None);
        let named = alone.clone().named(&["db".to_owned()]).unwrap();
        assert_eq!(named.of("db"), Some(Some(RootHash([10; ROOT_BYTES]))));
        assert_eq!(any.clone().named(&[]), Ok(any));
        for several in [vec![], vec!["db".to_owned(), "web".to_owned()]] {
            assert!(alone.clone().named(&several).unwrap_err().to_string().contains("NAME=HASH"));
        }
        let (long, short) = (format!("db={hash}0a"), format!("db={}", &hash[1..]));
        for wrong in ["db", "db=", &format!("={hash}"), &long, &short, "db=all"] {
            assert!(
                wrong.parse::<RootExpectation>().unwrap_err().to_string().contains("NAME=HASH"),
                "{wrong}"
            );
        }
    }
}
