//! Leases: a series of records for each volume. Each record has the next number, created
//! put-if-absent.
//!
//! ```text
//! v/ID/lease/0000000000000001      the newest one says which store has the volume
//! ```
//!
//! A lease has no term. So clocks need not agree, and an idle store writes nothing. The lease says
//! which store to ask, and keeps stores from working against each other. It protects no data. If
//! two stores both believe to have a volume, the log ([`super::Volume`]) keeps them from both
//! committing. The log knows nothing of leases.

use super::catalog::CatalogError;
use crate::block::VolumeId;
use crate::wire::link::StoreId;
use serde::{Deserialize, Serialize};

/// Most bytes of an encoded [`Lease`].
pub const MAX_LEASE_BYTES: usize = 16 << 10;
/// The number of leases of a volume that stay, with the newest one. A store deletes older ones
/// because a long list takes time. It keeps some because a store with an old list must not take a
/// number again. The value is a guess.
pub const KEPT: u64 = 16;

/// The store that has a volume, or the fact that the volume is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// A store has it.
    Held {
        /// Which.
        store: StoreId,
        /// The process of that store: a random number that the process draws at its start.
        incarnation: u128,
        /// The addresses of the store.
        addresses: Vec<String>,
    },
    /// Nobody gets it any more: its name is about to go, then its data.
    Deleted,
}

/// The next step of a store that wants to serve a volume.
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
    /// The meaning of the newest lease, if there is one, for a process of a store.
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

    /// Reads the output of [`Lease::encode`]; `key` is the key of the object.
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

/// A lease in its stored form; without a store the volume is deleted.
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
