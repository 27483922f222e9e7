//! Which hosts a store asks to go to another one, because that one has clearly less to do.
//!
//! Each store looks at what all have and gives away only, never so much that the other one would then have
//! more than itself: nothing goes back and forth.

/// What a store has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// Attached volumes.
    pub volumes: usize,
    /// Bytes to and from hosts a second.
    pub bytes: u64,
}

/// A host at this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its session.
    pub session: u64,
    /// What comes with it.
    pub load: Load,
}

/// Traffic below which stores count as equally busy, in bytes a second: a guess, a tenth of 1 Gbit/s.
const QUIET_BYTES: u64 = 12_500_000;

/// Which of the hosts here go, and to which of the other stores, by index; at most `limit` of them.
///
/// A store with more than 5/4 of the mean number of volumes, and at least one more than it, gives away its idlest
/// hosts. Where numbers are even, one with more than 3/2 of the mean traffic gives away what brings it
/// nearest to the one that has the least.
pub fn plan(guests: &[Guest], others: &[Load], limit: usize) -> Vec<(u64, usize)> {
    let (mut guests, mut others) = (guests.to_vec(), others.to_vec());
    guests.sort_unstable_by_key(|guest| (guest.load.bytes, guest.session));
    let mut moves = Vec::new();
    while moves.len() < limit {
        let mine = guests.iter().fold(Load::default(), |sum, guest| Load {
            volumes: sum.volumes + guest.load.volumes,
            bytes: sum.bytes + guest.load.bytes,
        });
        let Some(choice) = choose(mine, &guests, &others) else { break };
        let (guest, to) = choice;
        let Guest { session, load } = guests.remove(guest);
        others[to].volumes += load.volumes;
        others[to].bytes += load.bytes;
        moves.push((session, to));
    }
    moves
}

/// One host and where it goes, by index.
fn choose(mine: Load, guests: &[Guest], others: &[Load]) -> Option<(usize, usize)> {
    let stores = others.len() + 1;
    let volumes: usize = mine.volumes + others.iter().map(|load| load.volumes).sum::<usize>();
    let bytes: u64 = mine.bytes + others.iter().map(|load| load.bytes).sum::<u64>();
    if mine.volumes * stores * 4 > volumes * 5 && mine.volumes * stores >= volumes + stores {
        let to = (0..others.len()).min_by_key(|n| (others[*n].volumes, others[*n].bytes))?;
        let fits = |guest: &Guest| {
            guest.load.volumes > 0
                && others[to].volumes + guest.load.volumes
                    <= mine.volumes.saturating_sub(guest.load.volumes)
        };
        return Some((guests.iter().position(fits)?, to));
    }
    if mine.bytes * stores as u64 * 2 > bytes * 3 {
        let to = (0..others.len()).min_by_key(|n| (others[*n].bytes, others[*n].volumes))?;
        let gap = mine.bytes.checked_sub(others[to].bytes).filter(|gap| *gap > QUIET_BYTES)?;
        // More than half of it would turn the tables; and numbers have to stay even.
        let fits = |guest: &Guest| {
            guest.load.bytes > 0
                && guest.load.bytes <= gap / 2
                && others[to].volumes + 2 * guest.load.volumes <= mine.volumes + 1
        };
        return Some((guests.iter().rposition(fits)?, to));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(loads: &[(usize, u64)]) -> Vec<Guest> {
        let guest = |(n, (volumes, bytes)): (usize, &(usize, u64))| Guest {
            session: n as u64,
            load: Load { volumes: *volumes, bytes: *bytes },
        };
        loads.iter().enumerate().map(guest).collect()
    }

    fn loads(loads: &[(usize, u64)]) -> Vec<Load> {
        loads.iter().map(|(volumes, bytes)| Load { volumes: *volumes, bytes: *bytes }).collect()
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn the_idlest_go_where_there_is_least() {
        let here = guests(&[(1, 9), (1, 1), (1, 5), (1, 7)]);
        assert_eq!(plan(&here, &loads(&[(3, 0), (0, 0)]), 1), [(1, 1)]);
        assert_eq!(plan(&here, &loads(&[(0, 0)]), usize::MAX), [(1, 0), (2, 0)]);
    }

    #[test]
    fn what_is_nearly_even_stays() {
        for (here, there) in [
            (guests(&[(1, 0), (1, 0)]), loads(&[(1, 0)])),
            (guests(&[(1, 0)]), loads(&[(0, 0)])),
            (guests(&[(3, 0)]), loads(&[(0, 0)])),
            (guests(&[]), loads(&[(5, 0)])),
            (guests(&[(1, 5 * MB), (1, 5 * MB)]), loads(&[(2, 0)])),
            (guests(&[(1, 90 * MB), (1, 0)]), loads(&[(2, 0)])),
        ] {
            assert_eq!(plan(&here, &there, usize::MAX), [], "{here:?} {there:?}");
        }
    }

    #[test]
    fn traffic_counts_where_numbers_are_even() {
        let here = guests(&[(1, 60 * MB), (1, 30 * MB), (1, 10 * MB)]);
        assert_eq!(plan(&here, &loads(&[(2, 0)]), 1), [(1, 0)]);
    }

    #[test]
    fn all_that_is_moved_settles() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let mut stores: Vec<Vec<Guest>> = vec![Vec::new(); random.usize(2..5)];
            for session in 0..random.u64(0..20) {
                let load = Load { volumes: random.usize(1..4), bytes: random.u64(0..50) * MB };
                let at = random.usize(0..stores.len());
                stores[at].push(Guest { session, load });
            }
            let mut moved = 0;
            loop {
                let before = moved;
                for at in 0..stores.len() {
                    let sum = |guests: &Vec<Guest>| Load {
                        volumes: guests.iter().map(|guest| guest.load.volumes).sum(),
                        bytes: guests.iter().map(|guest| guest.load.bytes).sum(),
                    };
                    let others: Vec<usize> = (0..stores.len()).filter(|n| *n != at).collect();
                    let load: Vec<Load> = others.iter().map(|n| sum(&stores[*n])).collect();
                    for (session, to) in plan(&stores[at], &load, 1) {
                        let n = stores[at].iter().position(|g| g.session == session).unwrap();
                        let guest = stores[at].remove(n);
                        stores[others[to]].push(guest);
                        moved += 1;
                    }
                }
                if moved == before {
                    break;
                }
                assert!(moved < 100, "hosts go back and forth: {stores:?}");
            }
        }
    }
}
