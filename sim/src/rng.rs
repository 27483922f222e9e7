//! Random numbers of a world: xoshiro256** seeded by SplitMix64 (both public domain, Blackman and
//! Vigna, <https://prng.di.unimi.it/>).
//!
//! Every entity of a world draws from a stream of its own ([`Rng::fork`]). So if one of them draws
//! more or less often, the choices of the others stay. Nothing here may depend on anything but the
//! seed.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng(std::array::from_fn(|_| split_mix(&mut state)))
    }

    /// A stream of its own for the entity `label`, which depends on this stream's state but does
    /// not advance it.
    #[must_use]
    pub fn fork(&self, label: u64) -> Rng {
        let mut state =
            self.0[0] ^ self.0[3].rotate_left(17) ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Rng(std::array::from_fn(|_| split_mix(&mut state)))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Any 128 bits, for identities.
    pub fn wide(&mut self) -> u128 {
        (u128::from(self.draw()) << 64) | u128::from(self.draw())
    }

    /// A number below `limit`; 0 if the limit is 0. The bias of the multiplication method is of no
    /// importance here.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `n` of a million cases.
    pub fn ppm(&mut self, n: u64) -> bool {
        self.below(1_000_000) < n
    }

    /// True in `n` of a hundred cases.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// A duration with many short and few long values, in nanoseconds: between `low` and `high`,
    /// uniform in the logarithm.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let low_bits = u64::from(low.max(1).ilog2());
        let high_bits = u64::from(high.max(1).ilog2());
        let bits = self.between(low_bits, high_bits.max(low_bits));
        ((1 << bits) + self.below(1 << bits)).clamp(low, high)
    }

    /// Draws an index with the given weights; 0 if all are 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if at < *weight {
                return index;
            }
            at -= weight;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_differ_and_repeat() {
        let mut root = Rng::new(7);
        let mut a = root.fork(1);
        let mut b = root.fork(2);
        let mut again = Rng::new(7).fork(1);
        let first = a.draw();
        assert_eq!(first, again.draw());
        assert_ne!(first, b.draw());
        assert_eq!(root.draw(), Rng::new(7).draw());
    }

    #[test]
    fn draws_stay_in_bounds() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=9).contains(&rng.between(5, 9)));
            assert!((100..=5000).contains(&rng.spread(100, 5000)));
            assert_ne!(rng.weighted(&[1, 0, 2]), 1);
        }
    }
}
