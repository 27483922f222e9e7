//! Places for clients that have not authenticated yet.
//!
//! Promises: the number of clients has a limit, and so has the number from one address. Every new
//! client gets a place. If none is free, the oldest client from the same address gives way, or the
//! oldest of the address with the most clients. So an attacker that floods a listener pushes out
//! its own clients. Clients that have sent something go last.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The origin of a client, as far as it counts before authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// An IPv4 address, or the upper 64 bits of an IPv6 address, which one site has for itself.
    Address(IpAddr),
    /// A user of this machine, at a unix socket.
    User(u32),
}

impl From<IpAddr> for Who {
    fn from(address: IpAddr) -> Who {
        Who::Address(match address.to_canonical() {
            IpAddr::V6(six) => IpAddr::from((u128::from(six) >> 64 << 64).to_be_bytes()),
            four => four,
        })
    }
}

/// The places of a listener.
#[derive(Clone, Debug)]
pub struct Strangers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    all: usize,
    of_one: usize,
    waiting: Mutex<Waiting>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// In order of arrival.
    present: BTreeMap<u64, Present>,
    counts: HashMap<Who, usize>,
}

#[derive(Debug)]
struct Present {
    who: Who,
    busy: bool,
    /// Dropped to make the client go.
    _stay: oneshot::Sender<()>,
}

impl Waiting {
    fn remove(&mut self, number: u64) -> bool {
        let Some(present) = self.present.remove(&number) else { return false };
        if let Some(count) = self.counts.get_mut(&present.who) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&present.who);
            }
        }
        true
    }

    /// Makes one client go: the oldest that is not busy, if any. Takes time in proportion to the
    /// places.
    fn make_way(&mut self, who: Who) -> bool {
        let of = || self.present.iter().filter(|(_, present)| present.who == who);
        let idle = of().find(|(_, present)| !present.busy);
        let Some(number) = idle.or_else(|| of().next()).map(|(number, _)| *number) else {
            return false;
        };
        self.remove(number)
    }
}

impl Strangers {
    /// `all` places, and at most `of_one` for each address.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Strangers {
        let (waiting, dropped) = (Mutex::default(), AtomicU64::new(0));
        Strangers { shared: Arc::new(Shared { all, of_one, waiting, dropped }) }
    }

    /// Gives a client a place, which may be that of another client.
    #[must_use]
    pub fn enter(&self, who: Who) -> Stranger {
        let shared = &self.shared;
        let mut waiting = lock(&shared.waiting);
        let mut dropped = 0;
        if waiting.counts.get(&who).copied().unwrap_or(0) >= shared.of_one {
            dropped += u64::from(waiting.make_way(who));
        }
        if waiting.present.len() >= shared.all {
            let most = waiting.counts.iter().max_by_key(|(_, count)| **count);
            if let Some(most) = most.map(|(who, _)| *who) {
                dropped += u64::from(waiting.make_way(most));
            }
        }
        if dropped > 0 {
            let before = shared.dropped.fetch_add(dropped, Ordering::Relaxed);
            if before.is_multiple_of(1000) {
                tracing::warn!(
                    "{} connections dropped because clients did not authenticate, the last from \
                     {who:?}",
                    before + dropped
                );
            }
        }
        waiting.next += 1;
        let number = waiting.next;
        let (stay, gone) = oneshot::channel();
        waiting.present.insert(number, Present { who, busy: false, _stay: stay });
        *waiting.counts.entry(who).or_default() += 1;
        Stranger { shared: shared.clone(), number, gone }
    }

    /// Number of clients.
    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.shared.waiting).present.len()
    }
}

/// The place of a client, until dropped or taken away.
#[derive(Debug)]
pub struct Stranger {
    shared: Arc<Shared>,
    number: u64,
    gone: oneshot::Receiver<()>,
}

impl Stranger {
    /// Waits until another client takes the place.
    pub async fn dropped(&mut self) {
        // Nobody ever sends on it.
        let _ = (&mut self.gone).await;
    }

    /// The switch that says whether the client is busy.
    #[must_use]
    pub fn busy(&self) -> Busy {
        Busy { shared: self.shared.clone(), number: self.number }
    }
}

/// Says whether a client is busy.
#[derive(Clone, Debug)]
pub struct Busy {
    shared: Arc<Shared>,
    number: u64,
}

impl Busy {
    /// Sets whether the client is busy. Busy clients go last.
    pub fn set(&self, busy: bool) {
        if let Some(present) = lock(&self.shared.waiting).present.get_mut(&self.number) {
            present.busy = busy;
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.shared.waiting).remove(self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn who(text: &str) -> Who {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn is_gone(stranger: &mut Stranger) -> bool {
        stranger.dropped().now_or_never().is_some()
    }

    #[test]
    fn a_flood_pushes_out_itself() {
        let strangers = Strangers::new(8, 4);
        let other = who("192.0.2.9");
        let mut patient = strangers.enter(other);
        let flood = who("192.0.2.1");
        let mut all: Vec<Stranger> = (0..100).map(|_| strangers.enter(flood)).collect();
        let left: Vec<bool> = all.iter_mut().map(is_gone).collect();
        assert_eq!(left.iter().filter(|gone| !**gone).count(), 4);
        assert!(left[..96].iter().all(|gone| *gone), "the oldest go");
        assert_eq!(strangers.len(), 5);
        // The same from many addresses.
        let more = (2..100).map(|n| strangers.enter(who(&format!("192.0.3.{n}"))));
        let more: Vec<Stranger> = more.collect();
        assert_eq!(strangers.len(), 8);
        drop((all, more));
        assert_eq!(strangers.len(), usize::from(!is_gone(&mut patient)));
    }

    #[test]
    fn who_is_served_goes_last() {
        let strangers = Strangers::new(8, 2);
        let one = who("::1");
        let mut served = strangers.enter(one);
        served.busy().set(true);
        let mut second = strangers.enter(one);
        let mut third = strangers.enter(one);
        assert!(!is_gone(&mut served) && is_gone(&mut second) && !is_gone(&mut third));
        third.busy().set(true);
        let _fourth = strangers.enter(one);
        assert!(is_gone(&mut served) && !is_gone(&mut third));
    }

    #[test]
    fn a_site_is_one() {
        assert_eq!(who("2001:db8:0:7::1"), who("2001:db8:0:7:ffff::2"));
        assert_ne!(who("2001:db8:0:7::1"), who("2001:db8:0:8::1"));
        assert_eq!(who("::ffff:192.0.2.1"), who("192.0.2.1"));
        assert_ne!(who("192.0.2.1"), who("192.0.2.2"));
    }
}
