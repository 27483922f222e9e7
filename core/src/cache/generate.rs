//! Synthetic traces; `bench/cache` uses them too.

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

/// Lines of a region of ten caches. The popularity of the nth is proportional to n^-0.9, and the
/// popular lines are scattered.
fn zipf(rng: &mut Rng, cdf: &[f64]) -> u64 {
    let at = rng.next() * cdf.last().copied().unwrap_or_default();
    let rank = cdf.partition_point(|sum| *sum < at) as u64;
    rank * 7919 % cdf.len() as u64
}

fn cdf(lines: u64) -> Vec<f64> {
    let mut sum = 0.0;
    let weight = |n: u64| (n as f64).powf(-0.9);
    (1..=10 * lines).map(|n| (sum += weight(n), sum).1).collect()
}

/// Names of the traces, and the lines that each reads in order, for a cache of `lines` lines.
pub fn traces(lines: u64) -> Vec<(&'static str, Vec<u64>)> {
    let cdf = cdf(lines);
    let mut rng = Rng(1);
    let plain: Vec<u64> = (0..40 * lines).map(|_| zipf(&mut rng, &cdf)).collect();
    let mut scans = Vec::new();
    for n in 0..10 {
        scans.extend((0..3 * lines).map(|_| zipf(&mut rng, &cdf)));
        // A backup reads twice the size of the cache, once.
        scans.extend((0..2 * lines).map(|at| 1_000_000 + n * 2 * lines + at));
    }
    let looping = |loops: u64| (0..20 * lines).map(|n| n % loops).collect::<Vec<u64>>();
    let mut shift = Vec::new();
    for n in 0..4 {
        shift.extend((0..10 * lines).map(|_| n * 20 * lines + zipf(&mut rng, &cdf)));
    }
    vec![
        ("Zipf 0.9 over 10 caches", plain),
        ("the same with scans of 2 caches", scans),
        ("the same, moving 4 times", shift),
        ("loop over 0.95 of the cache", looping(lines * 95 / 100)),
        ("loop over 1.2 caches", looping(lines * 12 / 10)),
        ("one scan of 20 caches", (0..20 * lines).collect()),
    ]
}
