//! Places that parties share.
//!
//! Promises: nobody takes more places than there are, nor more than the limit of one party. As long
//! as a party has fewer places than are free, it may have more. So if n parties take all they can,
//! each has one place in n + 1, and a party without a place finds one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of places of each party.
#[derive(Debug)]
pub struct Shares<K> {
    all: u64,
    of_one: u64,
    taken: u64,
    by: BTreeMap<K, u64>,
}

/// Most that one party may have while the others have `others`.
pub(super) fn most(all: u64, of_one: u64, others: u64) -> u64 {
    of_one.min(all.saturating_sub(others) / 2)
}

impl<K: Ord + Clone> Shares<K> {
    /// `all` places, and at most `of_one` for each party.
    #[must_use]
    pub fn new(all: u64, of_one: u64) -> Shares<K> {
        Shares { all, of_one, taken: 0, by: BTreeMap::new() }
    }

    fn of(&self, who: &K) -> u64 {
        self.by.get(who).copied().unwrap_or(0)
    }

    /// Whether this party may have one more.
    #[must_use]
    pub fn has_room(&self, who: &K) -> bool {
        let has = self.of(who);
        let first = has == 0 && self.taken < self.all && self.of_one > 0;
        first || has < most(self.all, self.of_one, self.taken - has)
    }

    /// Takes one more place, if the party may.
    pub fn take(&mut self, who: &K) -> bool {
        let room = self.has_room(who);
        if room {
            *self.by.entry(who.clone()).or_default() += 1;
            self.taken += 1;
        }
        room
    }

    /// Gives a place back.
    pub fn give_back(&mut self, who: &K) {
        let Some(has) = self.by.get_mut(who) else { return };
        *has -= 1;
        self.taken -= 1;
        if *has == 0 {
            self.by.remove(who);
        }
    }

    /// Number of places in use.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

/// The same places, each with a guard.
#[derive(Debug)]
pub struct Places<K: Ord + Clone>(Arc<Mutex<Shares<K>>>);

impl<K: Ord + Clone> Clone for Places<K> {
    fn clone(&self) -> Self {
        Places(self.0.clone())
    }
}

impl<K: Ord + Clone> Places<K> {
    /// `all` places, and at most `of_one` for each party.
    #[must_use]
    pub fn new(all: u64, of_one: u64) -> Places<K> {
        Places(Arc::new(Mutex::new(Shares::new(all, of_one))))
    }

    /// Whether this party may have one more.
    #[must_use]
    pub fn has_room(&self, who: &K) -> bool {
        lock(&self.0).has_room(who)
    }

    /// Takes one more place, if the party may.
    #[must_use]
    pub fn take(&self, who: K) -> Option<Place<K>> {
        lock(&self.0).take(&who).then(|| Place { places: self.clone(), who })
    }

    /// Number of places in use.
    #[must_use]
    pub fn taken(&self) -> u64 {
        lock(&self.0).taken()
    }
}

/// A place, until dropped.
#[derive(Debug)]
pub struct Place<K: Ord + Clone> {
    places: Places<K>,
    who: K,
}

impl<K: Ord + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        lock(&self.places.0).give_back(&self.who);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all() {
        let places = Places::new(100, 80);
        let grab = |who: &'static str| {
            let taken: Vec<Place<&str>> =
                std::iter::from_fn(|| places.take(who)).take(1000).collect();
            taken
        };
        let one = grab("one");
        assert_eq!(one.len(), 50, "half, however much one may have");
        let (two, three) = (grab("two"), grab("three"));
        assert_eq!((two.len(), three.len()), (25, 12));
        assert!(places.has_room(&"four"));
        drop((two, three));
        assert_eq!(places.taken(), 50);
        drop(one);
        assert_eq!(places.taken(), 0);
        assert_eq!(Places::new(100, 10).take("x").into_iter().count(), 1);
        let few = Places::new(100, 10);
        assert_eq!(std::iter::from_fn(|| few.take("x")).collect::<Vec<_>>().len(), 10);
    }

    #[test]
    fn the_last_place_goes_to_who_has_none() {
        let places = Places::new(3, 3);
        let _one = (places.take("a").unwrap(), places.take("b").unwrap());
        assert!(places.take("a").is_none());
        let _last = places.take("c").unwrap();
        assert!(places.take("d").is_none());
    }
}
