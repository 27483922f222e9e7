//! A limit on a rate: how much may go now, and when the next may.
//!
//! Promises: over any span no more is let through than the rate times the span, plus a tenth of a
//! second's worth, plus one piece and whatever was taken although it was not yet its time. It must not
//! know what it limits.

use crate::block::Time;
use std::time::Duration;

/// What an idle time may save up for.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket, kept as the time at which all that was taken is paid for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limit {
    /// In bytes a second, never zero.
    rate: Option<u64>,
    paid: Time,
}

impl Limit {
    /// No more than `rate` bytes a second from now on, or as much as there is. What was taken before
    /// is still to be paid for.
    pub(crate) fn set(&mut self, now: Time, rate: Option<u64>) {
        if rate == self.rate {
            return;
        }
        let owed = self.rate.map_or(0, |rate| owed_bytes(rate, self.paid.since(now)));
        self.rate = rate.map(|rate| rate.max(1));
        self.paid = now;
        if owed > 0 {
            self.pay(owed);
        }
    }

    /// In bytes a second.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// When the next piece may go; `None` if that is now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        self.rate.is_some().then_some(self.paid).filter(|at| *at > now)
    }

    /// `bytes` go now, whether it is their time or not.
    pub(crate) fn take(&mut self, now: Time, bytes: u64) {
        let saved = u64::try_from(BURST.as_nanos()).unwrap_or(0);
        self.paid = self.paid.max(Time(now.0.saturating_sub(saved)));
        self.pay(bytes);
    }

    fn pay(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        self.paid = self.paid.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
    }

    /// A piece that does not make the rate uneven: what goes in a tenth of a second, 64 KiB at least.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| owed_bytes(rate, BURST).max(64 << 10))
    }
}

fn owed_bytes(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
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
