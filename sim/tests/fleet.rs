//! A modest number of worlds of stores. They keep the contract, a seed always gives the same world,
//! and together they reach every counter but the rare ones.
//!
//! More seeds: `cargo run --release -p longhaul-sim -- --fleet --seeds N`.

use longhaul_sim::fleet::coverage::Coverage;
use longhaul_sim::fleet::run;
use longhaul_sim::trace::Mode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 300;
/// Counters that need a thousand seeds or more.
const RARE: [&str; 2] = ["limited_late", "orphans_left"];
const STEPS: u64 = 2_000_000;

#[test]
fn the_contract_holds_and_everything_is_covered() {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Coverage::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        break;
                    }
                    let outcome = run(seed, Mode::Off, STEPS);
                    let violation = outcome.violation.unwrap_or_default();
                    let replay = "cargo run --release -p longhaul-sim -- --fleet";
                    assert!(
                        violation.is_empty(),
                        "seed {seed}: {violation}\nreplay: {replay} --seed {seed} --trace"
                    );
                    total.lock().unwrap().add(&outcome.coverage);
                }
            });
        }
    });
    let coverage = total.into_inner().unwrap();
    let missing: Vec<&str> = coverage
        .entries()
        .into_iter()
        .filter(|(name, n)| *n == 0 && !RARE.contains(name))
        .map(|(name, _)| name)
        .collect();
    assert!(missing.is_empty(), "nothing of this happened in {SEEDS} seeds: {missing:?}");
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..8 {
        let (first, second) = (run(seed, Mode::Hash, STEPS), run(seed, Mode::Hash, STEPS));
        assert_eq!((first.hash, first.steps), (second.hash, second.steps), "seed {seed}");
        assert_ne!(first.hash, run(seed + 1000, Mode::Hash, STEPS).hash);
    }
}
