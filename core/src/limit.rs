//! A limit on a rate: how much may go now, and when the next piece may.
//!
//! Promises: over any span, the limit lets through at most the rate times the span, plus the burst,
//! plus all overdrafts. A caller of [`Limit::wait`] overdraws by at most one piece. A caller that
//! takes at most [`Limit::available`] overdraws nothing. It must not know the limited things.

use crate::block::Time;
use std::time::Duration;

/// The default burst: the idle time that may save up.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket. It holds the time at which the income has paid for all takings.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// In units a second, bytes for one; never zero.
    rate: Option<u64>,
    /// The idle time that may save up.
    burst: Duration,
    paid: Time,
}

impl Default for Limit {
    fn default() -> Limit {
        Limit::with_burst(BURST)
    }
}

impl Limit {
    /// None yet, that will let through at once what it lets through in this time.
    pub(crate) fn with_burst(burst: Duration) -> Limit {
        Limit { rate: None, burst, paid: Time(0) }
    }

    /// From now on lets through `rate` a second, or everything. Earlier takings still count, and
    /// earlier savings do not.
    pub(crate) fn set(&mut self, now: Time, rate: Option<u64>) {
        if rate == self.rate {
            return;
        }
        let owed = self.rate.map_or(0, |rate| worth(rate, self.paid.since(now)));
        self.rate = rate.map(|rate| rate.max(1));
        self.paid = now;
        if owed > 0 {
            self.pay(owed);
        }
    }

    /// In units a second.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// When the next piece may go; `None` if that is now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        self.rate.is_some().then_some(self.paid).filter(|at| *at > now)
    }

    /// How much a caller may take now: nothing while there is a debt.
    pub(crate) fn available(&self, now: Time) -> u64 {
        self.rate.map_or(u64::MAX, |rate| worth(rate, now.since(self.paid).min(self.burst)))
    }

    /// When so much is there, which is no more than the burst is worth; `None` if that is now.
    pub(crate) fn when(&self, now: Time, amount: u64) -> Option<Time> {
        let rate = self.rate?;
        Some(self.since(now).after(time_of(rate, amount))).filter(|at| *at > now)
    }

    /// `amount` goes now, whether it is its time or not.
    pub(crate) fn take(&mut self, now: Time, amount: u64) {
        self.paid = self.since(now);
        self.pay(amount);
    }

    /// Returns `amount` of the takings that did not go.
    pub(crate) fn give_back(&mut self, amount: u64) {
        let Some(rate) = self.rate else { return };
        let nanos = u128::from(amount) * 1_000_000_000 / u128::from(rate);
        self.paid.0 = self.paid.0.saturating_sub(u64::try_from(nanos).unwrap_or(u64::MAX));
    }

    /// The time since which the income is untaken, as far as it saves up.
    fn since(&self, now: Time) -> Time {
        let saved = u64::try_from(self.burst.as_nanos()).unwrap_or(u64::MAX);
        self.paid.max(Time(now.0.saturating_sub(saved)))
    }

    fn pay(&mut self, amount: u64) {
        let Some(rate) = self.rate else { return };
        self.paid = self.paid.after(time_of(rate, amount));
    }

    /// A piece that does not make the rate uneven: what goes in a tenth of a second, 64 KiB at
    /// least.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| worth(rate, BURST).max(64 << 10))
    }
}

/// The income of a time, rounded down.
fn worth(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long it takes to come in, rounded up.
fn time_of(rate: u64, amount: u64) -> Duration {
    let nanos = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(rate));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_span_gets_more_than_its_share(
            rate in 1_000..100_000_000u64,
            pieces in prop::collection::vec((0..5_000_000u64, 1..3_000_000u64), 1..100),
        ) {
            let mut limit = Limit::default();
            let mut now = Time(1_000_000_000);
            limit.set(now, Some(rate));
            let mut taken: Vec<(Time, u64)> = Vec::new();
            for (pause, bytes) in pieces {
                now = Time(now.0 + pause);
                if let Some(at) = limit.wait(now) {
                    now = at;
                }
                prop_assert_eq!(limit.wait(now), None);
                limit.take(now, bytes);
                taken.push((now, bytes));
            }
            for (from, (start, _)) in taken.iter().enumerate() {
                let mut sum = 0u128;
                for (at, bytes) in &taken[from..] {
                    // The last one may go when those before it are paid for.
                    let span = u128::from(at.since(*start).as_nanos() as u64) + 100_000_000;
                    prop_assert!(sum * 1_000_000_000 <= u128::from(rate) * (span + 1000));
                    sum += u128::from(*bytes);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_available_is_there_and_no_more(
            rate in 1..100_000_000u64,
            steps in prop::collection::vec((0..2_000_000_000u64, 1..3_000_000u64, any::<bool>()), 1..100),
        ) {
            let mut limit = Limit::with_burst(Duration::from_secs(1));
            let (start, mut now, mut taken) = (Time(7), Time(7), 0_u128);
            limit.set(start, Some(rate));
            prop_assert_eq!(limit.available(start), 0);
            for (pause, amount, back) in steps {
                now = Time(now.0 + pause);
                let amount = amount.min(rate);
                if let Some(at) = limit.when(now, amount) {
                    prop_assert!(limit.available(now) < amount);
                    now = at;
                }
                let before = limit.available(now);
                prop_assert!((amount..=rate).contains(&before));
                limit.take(now, amount);
                if back {
                    limit.give_back(amount);
                    prop_assert!(limit.available(now) <= before);
                } else {
                    taken += u128::from(amount);
                }
                let span = now.since(start).as_nanos();
                prop_assert!(taken * 1_000_000_000 <= u128::from(rate) * span);
            }
        }
    }

    #[test]
    fn a_new_rate_takes_over_what_is_owed() {
        let mut limit = Limit::default();
        let now = Time(1_000_000_000);
        assert_eq!(limit.wait(now), None);
        limit.take(now, 1 << 30);
        assert_eq!(limit.wait(now), None, "without a limit nothing is owed");
        limit.set(now, Some(1000));
        limit.take(now, 2000);
        assert_eq!(limit.wait(now), Some(now.after(Duration::from_secs(2))));
        limit.set(now, Some(2000));
        assert_eq!(limit.wait(now), Some(now.after(Duration::from_secs(1))));
        limit.set(now, None);
        assert_eq!(limit.wait(now), None);
        assert_eq!(limit.piece_bytes(), u64::MAX);
    }
}
