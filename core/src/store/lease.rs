//! Which store serves a volume: a line of leases, each created put-if-absent under the next number.
//!
//! ```text
//! v/ID/lease/0000000000000001      the newest one says who has the volume
//! ```
//!
//! A lease has no term, so no clocks have to agree and nothing is written while nothing changes. It says
//! whom to ask, and keeps stores from working against each other; it protects nothing. What keeps two
//! stores that both believe to have a volume from both committing is the log ([`super::Volume`]), which
//! knows nothing of leases.

use super::catalog::CatalogError;
use crate::block::VolumeId;
use crate::wire::link::StoreId;
use serde::{Deserialize, Serialize};

/// Most bytes of an encoded [`Lease`].
pub const MAX_LEASE_BYTES: usize = 16 << 10;
/// Older leases that are kept beside the newest one. They are deleted because a list of them gets long;
/// some are kept so that whoever read the list a while ago does not take a number that was taken before.
/// A guess.
pub const KEPT: u64 = 16;

/// Who has a volume, or that it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// A store has it.
    Held {
        /// Which.
        store: StoreId,
        /// Which process of that store: drawn at random when it starts.
        incarnation: u128,
        /// Where that is reached.
        addresses: Vec<String>,
    },
    /// Nobody gets it any more: its name is about to go, then its data.
    Deleted,
}

/// What a store that wants to serve a volume does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Serve it: it is its own already.
    Serve,
    /// Take the next number: nobody has it, or an earlier process of the same store.
    Take,
    /// Ask the store that has it.
    Ask,
    /// Give up: the volume is gone.
    Gone,
}

impl Lease {
    /// What the newest lease, if there is any, means to a process of a store.
    #[must_use]
    pub fn step(newest: Option<&Lease>, asking: StoreId, process: u128) -> Step {
        match newest {
            None => Step::Take,
            Some(Lease::Deleted) => Step::Gone,
            Some(Lease::Held { store, incarnation, .. }) if *store == asking => {
                if *incarnation == process { Step::Serve } else { Step::Take }
            }
            Some(Lease::Held { .. }) => Step::Ask,
        }
    }

    /// The content of the object at [`key`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let stored = match self {
            Lease::Held { store, incarnation, addresses } => Stored {
                version: VERSION,
                store: Some(store.to_string()),
                incarnation: Some(format!("{incarnation:032x}")),
                addresses: addresses.clone(),
            },
            Lease::Deleted => {
                Stored { version: VERSION, store: None, incarnation: None, addresses: Vec::new() }
            }
        };
        // Serializing strings and integers into memory cannot fail.
        let mut out = serde_json::to_vec(&stored).unwrap_or_default();
        out.push(b'\n');
        out
    }

    /// Reads what [`Lease::encode`] wrote; `key` is where it was found.
    ///
    /// # Errors
    /// [`CatalogError::Lease`] unless it is one.
    pub fn decode(key: &str, bytes: &[u8]) -> Result<Lease, CatalogError> {
        let bad = |reason: String| CatalogError::Lease { key: key.to_owned(), reason };
        if bytes.len() > MAX_LEASE_BYTES {
            return Err(bad(format!("it has {} bytes", bytes.len())));
        }
        let stored: Stored =
            serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        if stored.version != VERSION {
            return Err(bad(format!(
                "it is of version {}, which needs a newer longhaul",
                stored.version
            )));
        }
        let (Some(store), Some(incarnation)) = (&stored.store, &stored.incarnation) else {
            return Ok(Lease::Deleted);
        };
        let number = |text: &str| {
            let number = Some(text).filter(|text| text.len() == 32);
            let number = number.and_then(|text| u128::from_str_radix(text, 16).ok());
            number.ok_or_else(|| bad(format!("{text:?} is not an identity")))
        };
        Ok(Lease::Held {
            store: StoreId(number(store)?),
            incarnation: number(incarnation)?,
            addresses: stored.addresses,
        })
    }
}

/// A lease as it is stored; without a store the volume is deleted.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
}

const VERSION: u32 = 1;

/// Beginning of the keys of a volume's leases.
#[must_use]
pub fn prefix(volume: VolumeId) -> String {
    format!("v/{volume}/lease/")
}

/// The key of the lease of that number, from 1.
#[must_use]
pub fn key(volume: VolumeId, number: u64) -> String {
    format!("v/{volume}/lease/{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Lease {
        Lease::Held {
            store: StoreId(0xa),
            incarnation: 0xb,
            addresses: vec!["store.example:7777".into()],
        }
    }

    #[test]
    fn leases_round_trip_and_keep_their_form() {
        let bytes = held().encode();
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            "{\"version\":1,\"store\":\"0000000000000000000000000000000a\",\"incarnation\":\
             \"0000000000000000000000000000000b\",\"addresses\":[\"store.example:7777\"]}\n"
        );
        assert_eq!(Lease::decode("k", &bytes), Ok(held()));
        let bytes = Lease::Deleted.encode();
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), "{\"version\":1}\n");
        assert_eq!(Lease::decode("k", &bytes), Ok(Lease::Deleted));
    }

    #[test]
    fn what_is_no_lease_is_refused_by_name() {
        let text = String::from_utf8(held().encode()).unwrap();
        for (from, to) in [(":1,", ":2,"), ("000a\"", "00a\""), ("000b\"", "000g\"")] {
            let changed = text.replacen(from, to, 1);
            let error = Lease::decode("v/1/lease/2", changed.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("v/1/lease/2"), "{error}");
        }
        assert!(Lease::decode("k", &text.as_bytes()[..20]).is_err());
        assert!(Lease::decode("k", &[b' '; MAX_LEASE_BYTES + 1]).is_err());
    }

    #[test]
    fn only_another_store_is_asked() {
        let step = |newest: Option<&Lease>| Lease::step(newest, StoreId(0xa), 0xb);
        assert_eq!(step(None), Step::Take);
        assert_eq!(step(Some(&held())), Step::Serve);
        assert_eq!(step(Some(&Lease::Deleted)), Step::Gone);
        assert_eq!(Lease::step(Some(&held()), StoreId(0xa), 0xc), Step::Take);
        assert_eq!(Lease::step(Some(&held()), StoreId(0xc), 0xb), Step::Ask);
    }
}
