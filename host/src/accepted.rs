//! What an operator says of the state of encrypted volumes: a rollback that is accepted, a root that is expected.

use longhaul_core::host::versions::{ROOT_BYTES, RootHash};
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

/// What a volume has to be that this host does not know: `NAME=HASH`, or `NAME=any`; without `NAME=` it is the only
/// volume that the host attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    name: Option<String>,
    /// `None`: what the store has now, all of it at once.
    root: ExpectedRoot,
}

/// What is expected of a volume.
pub type ExpectedRoot = Option<RootHash>;

impl Expected {
    /// What is expected of that volume, if this is about it.
    pub fn of(&self, name: &str) -> Option<ExpectedRoot> {
        (self.name.as_deref() == Some(name)).then_some(self.root)
    }

    /// Gives one without a name that of the only volume there is.
    ///
    /// # Errors
    /// If there is none or several: what to do.
    pub fn named(self, volumes: &[String]) -> Result<Expected, String> {
        let name = match (self.name, volumes) {
            (Some(name), _) => name,
            (None, [only]) => only.clone(),
            (None, volumes) => {
                return Err(format!(
                    "--expect-root HASH is for a host with one --volume, and there are {}: give --expect-root NAME=HASH",
                    volumes.len()
                ));
            }
        };
        Ok(Expected { name: Some(name), root: self.root })
    }
}

impl FromStr for Expected {
    type Err = String;

    fn from_str(text: &str) -> Result<Expected, String> {
        let wrong = || {
            format!(
                "`{text}` is not NAME=HASH, with the {} hexadecimal digits of `longhaul volume show`, or NAME=any",
                2 * ROOT_BYTES
            )
        };
        let (name, root) = match text.split_once('=') {
            None => (None, text),
            Some(("", _)) => return Err(wrong()),
            Some((name, root)) => (Some(name.to_owned()), root),
        };
        let root = match root {
            "any" => None,
            root => Some(root.parse().map_err(|_| wrong())?),
        };
        Ok(Expected { name, root })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_a_root_or_anything() {
        let hash = "0a".repeat(ROOT_BYTES);
        let expected: Expected = format!("acme/db={hash}").parse().unwrap();
        assert_eq!(expected.of("acme/db"), Some(Some(RootHash([10; ROOT_BYTES]))));
        assert_eq!(expected.of("db"), None);
        let any: Expected = "db=any".parse().unwrap();
        assert_eq!(any.of("db"), Some(None));
        let alone: Expected = hash.parse().unwrap();
        assert_eq!(alone.of("db"), None);
        let named = alone.clone().named(&["db".to_owned()]).unwrap();
        assert_eq!(named.of("db"), Some(Some(RootHash([10; ROOT_BYTES]))));
        assert_eq!(any.clone().named(&[]), Ok(any));
        for several in [vec![], vec!["db".to_owned(), "web".to_owned()]] {
            assert!(alone.clone().named(&several).unwrap_err().contains("NAME=HASH"));
        }
        let (long, short) = (format!("db={hash}0a"), format!("db={}", &hash[1..]));
        for wrong in ["db", "db=", &format!("={hash}"), &long, &short, "db=all"] {
            assert!(wrong.parse::<Expected>().unwrap_err().contains("NAME=HASH"), "{wrong}");
        }
    }
}
