//! Rounds of a measurement, of which only those on a quiet machine count.

use crate::quiet::{Reading, wait_for_quiet};
use crate::stats::median;
use anyhow::Result;
use std::time::{Duration, Instant};

/// The longest wait for a quiet moment before a repetition.
const PATIENCE: Duration = Duration::from_secs(20);

/// The rules of a run.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Rounds of each measurement.
    pub wanted: usize,
    /// Repetitions of a round, at most, while the machine is busy.
    pub retries: usize,
    /// The share of the machine, 0 to 1, that others may take.
    pub limit: f64,
    /// After this moment no part begins and no busy round comes again.
    pub deadline: Instant,
}

/// How busy others kept the machine during the rounds of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Shares of the machine in the rounds that count.
    pub quiet: Vec<f64>,
    /// Shares of the machine in those that do not.
    pub busy: Vec<f64>,
    /// Rounds without a quiet repetition.
    pub lost: usize,
}

impl Tally {
    /// The share of the machine that others took, if too few rounds count: fewer than half.
    #[must_use]
    pub fn too_busy(&self) -> Option<f64> {
        (self.quiet.len() < self.lost).then(|| median(&self.busy))
    }
}

impl Rounds {
    /// Of a measurement that takes a minute or more.
    #[must_use]
    pub fn few(&self) -> Rounds {
        Rounds { wanted: self.wanted.min(3), retries: self.retries.min(1), ..*self }
    }

    /// Does a round, and repeats it while the machine is busy. Gives nothing if it was always busy.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn round<T>(
        &self,
        tally: &mut Tally,
        mut measure: impl FnMut() -> Result<T>,
    ) -> Result<Option<T>> {
        self.judge(tally, || {
            let before = Reading::now()?;
            let value = measure()?;
            Ok((value, Reading::now()?.foreign_since(&before)))
        })
    }

    /// All rounds of a measurement: the values that count.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn all<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<(Vec<T>, Tally)> {
        let (mut values, mut tally) = (Vec::new(), Tally::default());
        for _ in 0..self.wanted {
            values.extend(self.round(&mut tally, &mut measure)?);
        }
        Ok((values, tally))
    }

    fn judge<T>(
        &self,
        tally: &mut Tally,
        mut measure: impl FnMut() -> Result<(T, f64)>,
    ) -> Result<Option<T>> {
        for attempt in 0..=self.retries {
            if attempt > 0 {
                if Instant::now() >= self.deadline {
                    break;
                }
                wait_for_quiet(self.limit, PATIENCE)?;
            }
            let (value, foreign) = measure()?;
            if foreign <= self.limit {
                tally.quiet.push(foreign);
                return Ok(Some(value));
            }
            tally.busy.push(foreign);
        }
        tally.lost += 1;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds without patience.
    fn rounds(retries: usize) -> Rounds {
        // A limit above any share ends each wait at its first glance.
        let deadline = Instant::now() + Duration::from_secs(60);
        Rounds { wanted: 3, retries, limit: 1.5, deadline }
    }

    fn play(rounds: Rounds, shares: &[f64]) -> (Vec<usize>, Tally) {
        let (mut values, mut tally, mut at) = (Vec::new(), Tally::default(), 0);
        for _ in 0..rounds.wanted {
            let round = rounds.judge(&mut tally, || {
                at += 1;
                Ok((at, shares[at - 1]))
            });
            values.extend(round.unwrap());
        }
        assert_eq!(at, shares.len());
        (values, tally)
    }

    #[test]
    fn a_busy_round_is_repeated() {
        let (values, tally) = play(rounds(1), &[0.1, 2.0, 0.2, 0.3]);
        assert_eq!(values, [1, 3, 4]);
        assert_eq!(tally, Tally { quiet: vec![0.1, 0.2, 0.3], busy: vec![2.0], lost: 0 });
        assert_eq!(tally.too_busy(), None);
    }

    #[test]
    fn not_for_ever() {
        let (values, tally) = play(rounds(1), &[2.0, 4.0, 3.0, 5.0, 0.5]);
        assert_eq!(values, [5]);
        assert_eq!((tally.lost, tally.too_busy()), (2, Some(3.5)));
    }

    #[test]
    fn half_of_the_rounds_are_enough() {
        let tally = |quiet: usize, lost| Tally { quiet: vec![0.0; quiet], busy: vec![0.4], lost };
        assert_eq!(tally(2, 3).too_busy(), Some(0.4));
        assert_eq!(tally(3, 2).too_busy(), None);
        assert_eq!(tally(1, 1).too_busy(), None);
        assert_eq!(tally(0, 1).too_busy(), Some(0.4));
        assert_eq!(Tally::default().too_busy(), None);
    }

    #[test]
    fn no_repetition_after_the_deadline() {
        let late = Rounds { deadline: Instant::now(), ..rounds(5) };
        let (values, tally) = play(Rounds { wanted: 2, ..late }, &[2.0, 0.5]);
        assert_eq!((values, tally.lost), (vec![2], 1));
    }
}
