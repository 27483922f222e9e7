//! Chooses the hosts that a store asks to go to another store with clearly less load.
//!
//! Each store looks at the loads of all, and only gives hosts away. It never gives so many that the
//! other store would then have more load than itself. So nothing goes back and forth.

/// The load of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// Attached volumes.
    pub volumes: usize,
    /// Bytes to and from hosts a second.
    pub bytes: u64,
}

/// A host at this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyHost {
    /// Its session.
    pub session: u64,
    /// The load that comes with it.
    pub load: Load,
}

/// Traffic below which stores count as equally busy, in bytes a second: a guess, a tenth of 1
/// Gbit/s.
const QUIET_BYTES: u64 = 12_500_000;

/// Chooses hosts of this store, and for each of them one of the other stores, by index; at most
/// `limit`.
///
/// A store may have more than 5/4 of the mean number of volumes, and at least one more than the
/// mean. Then it gives away its idlest hosts. If numbers are even, a store with more than 3/2 of
/// the mean traffic gives away a host. It chooses the host that brings its traffic nearest to that
/// of the store with the least.
pub fn plan(hosts: &[BusyHost], others: &[Load], limit: usize) -> Vec<(u64, usize)> {
    let (mut hosts, mut others) = (hosts.to_vec(), others.to_vec());
    hosts.sort_unstable_by_key(|host| (host.load.bytes, host.session));
    let mut moves = Vec::new();
    while moves.len() < limit {
        let mine = hosts.iter().fold(Load::default(), |sum, host| Load {
            volumes: sum.volumes + host.load.volumes,
            bytes: sum.bytes + host.load.bytes,
        });
        let Some(choice) = choose(mine, &hosts, &others) else { break };
        let (host, to) = choice;
        let BusyHost { session, load } = hosts.remove(host);
        others[to].volumes += load.volumes;
        others[to].bytes += load.bytes;
        moves.push((session, to));
    }
    moves
}

/// One host and where it goes, by index.
fn choose(mine: Load, hosts: &[BusyHost], others: &[Load]) -> Option<(usize, usize)> {
    let stores = others.len() + 1;
    let volumes: usize = mine.volumes + others.iter().map(|load| load.volumes).sum::<usize>();
    let bytes: u64 = mine.bytes + others.iter().map(|load| load.bytes).sum::<u64>();
    if mine.volumes * stores * 4 > volumes * 5 && mine.volumes * stores >= volumes + stores {
        let to = (0..others.len()).min_by_key(|n| (others[*n].volumes, others[*n].bytes))?;
        let fits = |host: &BusyHost| {
            host.load.volumes > 0
                && others[to].volumes + host.load.volumes
                    <= mine.volumes.saturating_sub(host.load.volumes)
        };
        return Some((hosts.iter().position(fits)?, to));
    }
    if mine.bytes * stores as u64 * 2 > bytes * 3 {
        let to = (0..others.len()).min_by_key(|n| (others[*n].bytes, others[*n].volumes))?;
        let gap = mine.bytes.checked_sub(others[to].bytes).filter(|gap| *gap > QUIET_BYTES)?;
        // More than half of it would turn the tables; and numbers have to stay even.
        let fits = |host: &BusyHost| {
            host.load.bytes > 0
                && host.load.bytes <= gap / 2
                && others[to].volumes + 2 * host.load.volumes <= mine.volumes + 1
        };
        return Some((hosts.iter().rposition(fits)?, to));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(loads: &[(usize, u64)]) -> Vec<BusyHost> {
        let host = |(n, (volumes, bytes)): (usize, &(usize, u64))| BusyHost {
            session: n as u64,
            load: Load { volumes: *volumes, bytes: *bytes },
        };
        loads.iter().enumerate().map(host).collect()
    }

    fn loads(loads: &[(usize, u64)]) -> Vec<Load> {
        loads.iter().map(|(volumes, bytes)| Load { volumes: *volumes, bytes: *bytes }).collect()
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn the_idlest_go_where_there_is_least() {
        let here = hosts(&[(1, 9), (1, 1), (1, 5), (1, 7)]);
        assert_eq!(plan(&here, &loads(&[(3, 0), (0, 0)]), 1), [(1, 1)]);
        assert_eq!(plan(&here, &loads(&[(0, 0)]), usize::MAX), [(1, 0), (2, 0)]);
    }

    #[test]
    fn what_is_nearly_even_stays() {
        for (here, there) in [
            (hosts(&[(1, 0), (1, 0)]), loads(&[(1, 0)])),
            (hosts(&[(1, 0)]), loads(&[(0, 0)])),
            (hosts(&[(3, 0)]), loads(&[(0, 0)])),
            (hosts(&[]), loads(&[(5, 0)])),
            (hosts(&[(1, 5 * MB), (1, 5 * MB)]), loads(&[(2, 0)])),
            (hosts(&[(1, 90 * MB), (1, 0)]), loads(&[(2, 0)])),
        ] {
            assert_eq!(plan(&here, &there, usize::MAX), [], "{here:?} {there:?}");
        }
    }

    #[test]
    fn traffic_counts_where_numbers_are_even() {
        let here = hosts(&[(1, 60 * MB), (1, 30 * MB), (1, 10 * MB)]);
        assert_eq!(plan(&here, &loads(&[(2, 0)]), 1), [(1, 0)]);
    }

    #[test]
    fn all_that_is_moved_settles() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let mut stores: Vec<Vec<BusyHost>> = vec![Vec::new(); random.usize(2..5)];
            for session in 0..random.u64(0..20) {
                let load = Load { volumes: random.usize(1..4), bytes: random.u64(0..50) * MB };
                let at = random.usize(0..stores.len());
                stores[at].push(BusyHost { session, load });
            }
            let mut moved = 0;
            loop {
                let before = moved;
                for at in 0..stores.len() {
                    let sum = |hosts: &Vec<BusyHost>| Load {
                        volumes: hosts.iter().map(|host| host.load.volumes).sum(),
                        bytes: hosts.iter().map(|host| host.load.bytes).sum(),
                    };
                    let others: Vec<usize> = (0..stores.len()).filter(|n| *n != at).collect();
                    let load: Vec<Load> = others.iter().map(|n| sum(&stores[*n])).collect();
                    for (session, to) in plan(&stores[at], &load, 1) {
                        let n = stores[at].iter().position(|g| g.session == session).unwrap();
                        let host = stores[at].remove(n);
                        stores[others[to]].push(host);
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
