//! Hit rates on synthetic traces, against LRU and FIFO of the same size: `docs/performance.md` has the
//! table that this prints (`cargo test --workspace --lib -- traces --nocapture`).

use super::LINE_BYTES;
use super::tests::{Rig, line};
use std::collections::{BTreeMap, BTreeSet};

const SETS: u32 = 17;
const WAYS: u16 = 63;
const LINES: u64 = SETS as u64 * WAYS as u64;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> f64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Lines of a region of ten caches, the nth most popular proportional to n^-0.9, scattered.
fn zipf(rng: &mut Rng, cdf: &[f64]) -> u64 {
    let at = rng.next() * cdf.last().unwrap();
    let rank = cdf.partition_point(|sum| *sum < at) as u64;
    rank * 7919 % cdf.len() as u64
}

fn cdf() -> Vec<f64> {
    let mut sum = 0.0;
    let weight = |n: u64| (n as f64).powf(-0.9);
    (1..=10 * LINES).map(|n| (sum += weight(n), sum).1).collect()
}

fn traces() -> Vec<(&'static str, Vec<u64>)> {
    let cdf = cdf();
    let mut rng = Rng(1);
    let plain: Vec<u64> = (0..40 * LINES).map(|_| zipf(&mut rng, &cdf)).collect();
    let mut scans = Vec::new();
    for n in 0..10 {
        scans.extend((0..3 * LINES).map(|_| zipf(&mut rng, &cdf)));
        // A backup reads twice the cache once.
        scans.extend((0..2 * LINES).map(|at| 1_000_000 + n * 2 * LINES + at));
    }
    let looping = |lines: u64| (0..20 * LINES).map(|n| n % lines).collect::<Vec<u64>>();
    let mut shift = Vec::new();
    for n in 0..4 {
        shift.extend((0..10 * LINES).map(|_| n * 20 * LINES + zipf(&mut rng, &cdf)));
    }
    vec![
        ("Zipf 0.9 over 10 caches", plain),
        ("the same with scans of 2 caches", scans),
        ("the same, moving 4 times", shift),
        ("loop over 0.95 of the cache", looping(LINES * 95 / 100)),
        ("loop over 1.2 caches", looping(LINES * 12 / 10)),
        ("one scan of 20 caches", (0..20 * LINES).collect()),
    ]
}

/// Share of hits, and bytes written for each byte asked for.
fn ours(trace: &[u64]) -> (f64, f64) {
    let mut rig = Rig::new(SETS, WAYS);
    rig.cache.set_interval(std::time::Duration::from_secs(10));
    let hits = trace.iter().filter(|n| rig.access(line(**n))).count();
    let written = rig.cache.status().counters.written_bytes as f64;
    let asked = trace.len() as f64;
    (hits as f64 / asked, written / asked / LINE_BYTES as f64)
}

/// The same for a cache of as many lines that evicts what was used or came longest ago.
fn simple(trace: &[u64], lru: bool) -> (f64, f64) {
    let (mut when, mut order) = (BTreeMap::new(), BTreeSet::new());
    let mut hits = 0;
    for (now, line) in trace.iter().enumerate() {
        if let Some(then) = when.get(line).copied() {
            hits += 1;
            if lru {
                order.remove(&(then, *line));
                order.insert((now, *line));
                when.insert(*line, now);
            }
            continue;
        }
        if when.len() as u64 == LINES
            && let Some((_, old)) = order.pop_first()
        {
            when.remove(&old);
        }
        order.insert((now, *line));
        when.insert(*line, now);
    }
    let asked = trace.len() as f64;
    (f64::from(hits) / asked, (asked - f64::from(hits)) / asked)
}

#[test]
fn it_hits_no_less_than_lru_and_writes_far_less() {
    let mut totals = [0.0; 4];
    println!("| trace | ours | LRU | FIFO | written, ours | LRU |\n|---|---|---|---|---|---|");
    for (name, trace) in traces() {
        let (ours, lru, fifo) = (ours(&trace), simple(&trace, true), simple(&trace, false));
        println!(
            "| {name} | {:.1} % | {:.1} % | {:.1} % | {:.2} | {:.2} |",
            100.0 * ours.0,
            100.0 * lru.0,
            100.0 * fifo.0,
            ours.1,
            lru.1
        );
        assert!(ours.0 >= lru.0 - 0.03, "{name}");
        for (total, value) in totals.iter_mut().zip([ours.0, lru.0, ours.1, lru.1]) {
            *total += value;
        }
    }
    assert!(totals[0] > totals[1] && totals[2] < totals[3] / 2.0, "{totals:?}");
}
