//! The memory of the two sides of a connection, so that the next one can begin with data. It has
//! TLS sessions for 0-RTT (RFC 8446 §2.3), and tokens that prove an address (RFC 9000 §8.1.3).
//! Without a token a store may answer a first flight with at most three times its bytes.
//!
//! Promises: a store takes a session once, and a token once. The constants here bound the memory at
//! either side. All of it is in memory: neither survives its process.

use bytes::Bytes;
use quinn::{TokenLog, TokenReuseError, TokenStore};
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls_pki_types::ServerName;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Sessions that a host asks for with each connection, of some 90 bytes on the wire each. While a
/// line is away each beginning of a connection uses one up, once a second.
pub(super) const TICKETS: u8 = 32;
/// Sessions that a store keeps, of some kilobyte each; more make it forget the oldest.
pub(super) const SESSIONS_KEPT: usize = 1024;
/// Tokens that a store remembers to have seen.
const TOKENS_SEEN: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions that a host remembers of its last connections to one store.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    /// The new connection may continue a session.
    offering: bool,
    /// The newest last.
    tickets: VecDeque<Tls13ClientSessionValue>,
    token: Option<Bytes>,
}

impl Remembered {
    /// Whether there is a session to go on with.
    pub fn has_session(&self) -> bool {
        !lock(&self.0).tickets.is_empty()
    }

    /// Lets the connection that `begin` makes continue a session. Other connections do not, so that
    /// the session is there when data goes along.
    pub fn offer<T>(&self, begin: impl FnOnce() -> T) -> T {
        lock(&self.0).offering = true;
        let begun = begin();
        lock(&self.0).offering = false;
        begun
    }
}

impl ClientSessionStore for Remembered {
    // The host first asks only for one group, and speaks only TLS 1.3.
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let tickets = &mut lock(&self.0).tickets;
        if tickets.len() >= usize::from(TICKETS) {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut memory = lock(&self.0);
        if memory.offering { memory.tickets.pop_back() } else { None }
    }
}

impl TokenStore for Remembered {
    fn insert(&self, _: &str, token: Bytes) {
        lock(&self.0).token = Some(token);
    }

    /// The same token for each beginning of a connection, until one has brought another: the store
    /// takes it from the first that arrives. That a network could tell from it which of them are of
    /// one host (RFC 9000 §8.1.3) says no more than their addresses do.
    fn take(&self, _: &str) -> Option<Bytes> {
        let memory = lock(&self.0);
        memory.token.clone().filter(|_| memory.offering)
    }
}

/// The tokens that a store has seen.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Tokens>);

#[derive(Debug, Default)]
struct Tokens {
    nonces: HashSet<u128>,
    /// The same tokens with the times of their issue, in order of arrival.
    order: VecDeque<(u128, SystemTime)>,
    /// The store may have forgotten tokens of this time and before.
    forgotten: Option<SystemTime>,
}

impl TokenLog for Seen {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut tokens = lock(&self.0);
        if tokens.forgotten.is_some_and(|until| issued <= until) || !tokens.nonces.insert(nonce) {
            return Err(TokenReuseError);
        }
        tokens.order.push_back((nonce, issued));
        if tokens.order.len() > TOKENS_SEEN
            && let Some((oldest, issued)) = tokens.order.pop_front()
        {
            tokens.nonces.remove(&oldest);
            tokens.forgotten = tokens.forgotten.max(Some(issued));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_also_when_it_has_been_forgotten() {
        let (seen, start) = (Seen::default(), SystemTime::UNIX_EPOCH);
        let take = |nonce: u64| {
            let issued = start + Duration::from_secs(nonce);
            seen.check_and_insert(u128::from(nonce), issued, Duration::MAX).is_ok()
        };
        let all = TOKENS_SEEN as u64 + 100;
        assert!((0..all).all(take));
        assert!(!(0..all).any(take));
        assert!(take(all));
        assert!(lock(&seen.0).nonces.len() <= TOKENS_SEEN);
    }
}
