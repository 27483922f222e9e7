//! The front thread of each volume.
//!
//! Promises: as long as anybody holds a [`Seat`] of a volume, the volume stays with its thread. A
//! volume and its snapshots have one thread. A new volume gets the thread with the fewest volumes.

use crate::volume::snapshot_of;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The threads of the volumes that somebody uses.
#[derive(Debug)]
pub struct Placement {
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    by_volume: BTreeMap<String, Place>,
    /// Volumes of each thread.
    volumes: Vec<usize>,
}

#[derive(Debug)]
struct Place {
    thread: usize,
    seats: usize,
}

/// Keeps a volume with its thread.
#[derive(Debug)]
pub struct Seat {
    placement: Arc<Placement>,
    volume: String,
    thread: usize,
}

impl Placement {
    /// No volumes yet, for this many threads, at least one.
    pub fn new(threads: usize) -> Arc<Placement> {
        let places = Places { by_volume: BTreeMap::new(), volumes: vec![0; threads.max(1)] };
        Arc::new(Placement { places: Mutex::new(places) })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.lock().volumes.len()
    }

    /// A seat of the volume with this name, or of the volume whose snapshot it names.
    pub fn sit(self: &Arc<Placement>, name: &str) -> Seat {
        let volume = snapshot_of(name).unwrap_or(name).to_owned();
        let places = &mut *self.lock();
        let place = places.by_volume.entry(volume.clone()).or_insert_with(|| {
            let threads = 0..places.volumes.len();
            // `new` makes at least one.
            let thread = threads.min_by_key(|thread| places.volumes[*thread]).unwrap_or(0);
            places.volumes[thread] += 1;
            Place { thread, seats: 0 }
        });
        place.seats += 1;
        Seat { placement: self.clone(), volume, thread: place.thread }
    }

    /// A seat of the volume of a name if this thread has it. The first thread may also take one
    /// that nobody uses.
    pub fn sit_on(self: &Arc<Placement>, name: &str, thread: usize) -> Option<Seat> {
        let volume = snapshot_of(name).unwrap_or(name).to_owned();
        let places = &mut *self.lock();
        match places.by_volume.get_mut(&volume) {
            Some(place) if place.thread == thread => place.seats += 1,
            None if thread == 0 => {
                places.by_volume.insert(volume.clone(), Place { thread, seats: 1 });
                places.volumes[thread] += 1;
            }
            _ => return None,
        }
        Some(Seat { placement: self.clone(), volume, thread })
    }

    /// A panic with the lock held leaves whole numbers behind.
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Number of the thread.
    pub fn thread(&self) -> usize {
        self.thread
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let places = &mut *self.placement.lock();
        if let Some(place) = places.by_volume.get_mut(&self.volume) {
            place.seats -= 1;
            if place.seats == 0 {
                places.by_volume.remove(&self.volume);
                places.volumes[self.thread] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_spread_over_the_threads_and_stay() {
        let placement = Placement::new(3);
        let seats: Vec<Seat> = ('a'..='f').map(|name| placement.sit(&name.to_string())).collect();
        let threads: Vec<usize> = seats.iter().map(Seat::thread).collect();
        assert_eq!(threads, [0, 1, 2, 0, 1, 2]);
        let again = placement.sit("b");
        let snapshot = placement.sit("b@monday");
        drop(seats);
        assert_eq!((again.thread(), snapshot.thread()), (1, 1));
        drop(again);
        assert_eq!(placement.sit("b").thread(), 1, "its snapshot keeps it there");
        drop(snapshot);
        assert_eq!(placement.sit("b").thread(), 0, "nobody has it any more");
    }

    #[test]
    fn a_thread_sits_on_its_own_volumes() {
        let placement = Placement::new(2);
        let [a, b] = ["a", "b"].map(|name| placement.sit(name));
        assert!(placement.sit_on("a", 1).is_none() && placement.sit_on("b", 0).is_none());
        assert_eq!(placement.sit_on("b", 1).unwrap().thread(), 1);
        assert!(placement.sit_on("c", 1).is_none());
        let c = placement.sit_on("c", 0).unwrap();
        assert_eq!(placement.sit("c").thread(), 0);
        drop((a, b, c));
        assert_eq!(placement.sit("d").thread(), 0);
    }

    #[test]
    fn a_thread_that_lost_volumes_gets_the_next() {
        let placement = Placement::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|name| placement.sit(name));
        assert_eq!([a.thread(), b.thread(), c.thread()], [0, 1, 0]);
        drop((a, c));
        assert_eq!(placement.sit("d").thread(), 0);
        drop(b);
        assert_eq!(Placement::new(0).threads(), 1);
    }
}
