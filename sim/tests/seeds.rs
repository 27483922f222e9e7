//! A modest number of worlds: the contract holds, they are reproducible, and they cover what they
//! claim to. More seeds: `cargo run --release -p longhaul-sim -- --seeds N`.

use longhaul_sim::coverage::Coverage;
use longhaul_sim::trace::Mode;
use longhaul_sim::world::run;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 320;
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
                    assert!(
                        outcome.violation.is_none(),
                        "seed {seed}: {}\nreplay: cargo run --release -p longhaul-sim -- --seed \
                         {seed} --trace",
                        outcome.violation.unwrap_or_default()
                    );
                    total.lock().unwrap().add(&outcome.coverage);
                }
            });
        }
    });
    let coverage = total.into_inner().unwrap();
    let missing: Vec<&str> =
        coverage.entries().into_iter().filter(|(_, n)| *n == 0).map(|(name, _)| name).collect();
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
