//! Where a value is on an axis, and which values it shows.

use crate::results::number;

/// About how many ticks an axis has.
const TICKS: f64 = 6.0;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// Places of the lowest and the highest value.
    span: (f64, f64),
    /// Ticks that are there for a reason of their own.
    fixed: Option<Vec<f64>>,
}

impl Axis {
    /// An axis on which all values have a place. A logarithmic one needs values above zero: with
    /// others it is linear.
    pub fn new(values: &[f64], log: bool, span: (f64, f64)) -> Axis {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (mut low, mut high) = finite()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let log = log && low > 0.0;
        if log {
            // To the next 1, 2 or 5, so that the ends have ticks.
            low = marks(low / 5.0, low * 1.0001).last().copied().unwrap_or(low);
            high = marks(high * 0.9999, high * 5.0).first().copied().unwrap_or(high);
        }
        if high - low <= 0.0 {
            high = if low == 0.0 { 1.0 } else { low + low.abs() };
        }
        Axis { low, high, log, span, fixed: None }
    }

    /// Ticks at these values, if they have room.
    pub fn at_values(mut self, values: &[f64]) -> Axis {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let room =
            sorted.windows(2).all(|pair| (self.place(pair[1]) - self.place(pair[0])).abs() >= 26.0);
        if room && sorted.len() <= 12 {
            self.fixed = Some(sorted);
        }
        self
    }

    /// A linear axis that begins at zero, and ends with a tick.
    pub fn starting_at_zero(mut self) -> Axis {
        if !self.log {
            self.low = self.low.min(0.0);
            let step = step(self.high - self.low);
            self.high = (self.high / step).ceil() * step;
        }
        self
    }

    /// Where a value is.
    pub fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        self.span.0 + share.clamp(-0.02, 1.02) * (self.span.1 - self.span.0)
    }

    /// The values that are shown, with their text.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = match &self.fixed {
            Some(values) => values.clone(),
            None if self.log => {
                let all = marks(self.low * 0.9999, self.high * 1.0001);
                // Beyond some ticks only powers of ten.
                if all.len() <= 9 {
                    all
                } else {
                    all.into_iter()
                        .filter(|value| (value.log10() - value.log10().round()).abs() < 1e-9)
                        .collect()
                }
            }
            None => {
                let step = step(self.high - self.low);
                let first = (self.low / step).ceil() as i64;
                let last = (self.high / step * 1.000001).floor() as i64;
                (first..=last).map(|n| n as f64 * step).collect()
            }
        };
        values.into_iter().map(|value| (value, tidy(value))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, such that a span has about [`TICKS`] of it.
fn step(span: f64) -> f64 {
    let rough = span / TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= rough * 0.999);
    times.unwrap_or(10.0) * power
}

/// All 1, 2 and 5 times powers of ten within bounds.
fn marks(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power)));
    all.filter(|value| (low..=high).contains(value)).collect()
}

/// A tick's text.
fn tidy(value: f64) -> String {
    if value != 0.0 && (value.abs() < 0.001 || value.abs() >= 1e6) {
        return number(value).replace(".0e", "e");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn linear() {
        let axis = Axis::new(&[3.0, 117.0], false, (0.0, 100.0)).starting_at_zero();
        assert_eq!(texts(&axis), ["0", "20", "40", "60", "80", "100", "120"]);
        assert!((axis.place(60.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn logarithmic() {
        let axis = Axis::new(&[0.2, 40.0], true, (100.0, 0.0));
        assert_eq!(texts(&axis), ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]);
        assert!(axis.place(0.2) > axis.place(1.0));
        // Zero has no logarithm.
        assert_eq!(texts(&Axis::new(&[0.0, 6.0], true, (0.0, 1.0))).len(), 7);
    }

    #[test]
    fn ticks_at_values() {
        let delays = [0.0, 1.0, 2.0, 4.0, 8.0];
        let axis = Axis::new(&delays, false, (0.0, 600.0)).at_values(&delays);
        assert_eq!(texts(&axis), ["0", "1", "2", "4", "8"]);
        let narrow = Axis::new(&delays, false, (0.0, 60.0)).at_values(&delays);
        assert_ne!(texts(&narrow), ["0", "1", "2", "4", "8"]);
    }

    #[test]
    fn of_nothing() {
        for values in [&[][..], &[5.0], &[0.0], &[f64::NAN]] {
            let axis = Axis::new(values, true, (0.0, 10.0)).starting_at_zero();
            assert!(axis.place(5.0).is_finite() && axis.ticks().len() < 20, "{values:?}");
        }
    }
}
