//! Hit rates on synthetic traces, against LRU and FIFO of the same size: `docs/performance.md` has
//! the table that this prints (`cargo test --workspace --lib -- traces --nocapture`).

use super::LINE_BYTES;
use super::generate::traces;
use super::tests::{Rig, line};
use std::collections::{BTreeMap, BTreeSet};

const SETS: u32 = 17;
const WAYS: u16 = 63;
const LINES: u64 = SETS as u64 * WAYS as u64;

/// The share of hits, and the bytes written for each byte that the trace reads.
fn ours(trace: &[u64]) -> (f64, f64) {
    let mut rig = Rig::new(SETS, WAYS);
    rig.cache.set_interval(std::time::Duration::from_secs(10));
    let hits = trace.iter().filter(|n| rig.access(line(**n))).count();
    let written = rig.cache.status().counters.written_bytes as f64;
    let asked = trace.len() as f64;
    (hits as f64 / asked, written / asked / LINE_BYTES as f64)
}

/// The same for a cache of the same size that evicts the least recently used line, or the oldest.
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
    for (name, trace) in traces(LINES) {
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
