//! The places of sessions: each party and each address has a share of them.

use super::party;
use longhaul_base::limits::{self, Place, Places, Who};
use longhaul_core::wire::link::Principal;
use std::net::SocketAddr;

/// The places of sessions over links: of hosts and commands by whose they are and by where they
/// come from, and of other stores.
pub(super) struct Seats {
    parties: Places<String>,
    addresses: Places<Who>,
    stores: Places<String>,
}

/// A session's, for as long as it lasts.
pub(super) struct Seat {
    _party: Place<String>,
    _address: Option<Place<Who>>,
}

impl Seats {
    pub fn new() -> Seats {
        Seats {
            parties: Places::new(limits::MAX_SESSIONS, limits::MAX_SESSIONS_OF_ONE),
            addresses: Places::new(2 * limits::MAX_SESSIONS, limits::MAX_SESSIONS_OF_ADDRESS),
            stores: Places::new(limits::MAX_STORE_SESSIONS, limits::MAX_STORE_SESSIONS),
        }
    }

    /// Takes the places for a session.
    ///
    /// # Errors
    /// No place is left, for this reason.
    pub fn take(&self, peer: SocketAddr, principal: &Principal) -> Result<Seat, &'static str> {
        let party = party(principal);
        if principal.store {
            let place = self.stores.take(party).ok_or("too many sessions of other stores")?;
            return Ok(Seat { _party: place, _address: None });
        }
        let place = self.parties.take(party);
        let place = place.ok_or("too many sessions of this tenant, or with this credential")?;
        let address = self.addresses.take(peer.ip().into());
        let address = address.ok_or("too many sessions from this address")?;
        Ok(Seat { _party: place, _address: Some(address) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::wire::link::KeyId;

    fn principal(tenant: Option<&str>, serial: &str) -> Principal {
        Principal {
            key: KeyId::NONE,
            tenant: tenant.map(str::to_owned),
            store: serial.starts_with("store"),
            name: String::new(),
            serial: serial.to_owned(),
        }
    }

    #[test]
    fn links_of_one_leave_places_for_others() {
        let seats = Seats::new();
        let at = |n: u32| SocketAddr::from((std::net::Ipv4Addr::from(0xc000_0200 + n), 1));
        let take = |tenant: Option<&str>, serial: &str, n| {
            seats.take(at(n), &principal(tenant, serial)).ok()
        };
        // A tenant with many credentials, from many addresses.
        let all: Vec<Seat> =
            (0..2000).filter_map(|n| take(Some("acme"), &format!("tenant:acme:{n}"), n)).collect();
        assert_eq!(all.len() as u64, limits::MAX_SESSIONS_OF_ONE);
        let others: Vec<Seat> =
            (0..200).filter_map(|n| take(Some("other"), "tenant:other:1", n)).collect();
        assert_eq!(others.len(), 200);
        assert!(take(None, "01", 1).is_some() && take(None, "store:1", 1).is_some());
        drop(all);
        // Many tenants at one address.
        let all: Vec<Seat> =
            (0..2000).filter_map(|n| take(Some(&format!("t{n}")), "x", 7)).collect();
        assert!(all.len() as u64 <= limits::MAX_SESSIONS_OF_ADDRESS);
        assert!(take(Some("late"), "y", 8).is_some());
    }
}
