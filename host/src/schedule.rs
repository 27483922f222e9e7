//! Rates by time of day: `50Mbit/s,08:00-18:00=5Mbit/s`.

use anyhow::{Context as _, Result, bail, ensure};
use chrono::Timelike as _;
use longhaul_base::units;
use std::fmt;

const DAY_MINUTES: u32 = 24 * 60;

/// A rate, and others at times of the day; no rate is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In bits a second.
    otherwise: Option<u64>,
    /// The first that the time lies in counts.
    windows: Vec<Window>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    /// In minutes since midnight; over midnight if the end is not after the start.
    start: u32,
    end: u32,
    rate: Option<u64>,
}

impl Window {
    fn has(&self, minute: u32) -> bool {
        if self.start < self.end {
            (self.start..self.end).contains(&minute)
        } else {
            minute >= self.start || minute < self.end
        }
    }
}

impl Schedule {
    /// Parses a rate, or `none`, and `HH:MM-HH:MM=RATE` for times of the day, in any order, with
    /// commas between.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(text: &str) -> Result<Schedule> {
        let mut schedule = Schedule::default();
        let mut has_rate = false;
        for part in text.split(',').map(str::trim) {
            let Some((times, limit)) = part.split_once('=') else {
                ensure!(!has_rate, "`{text}` has two rates without a time: write HH:MM-HH:MM=RATE");
                (schedule.otherwise, has_rate) = (rate(part)?, true);
                continue;
            };
            let (start, end) = times
                .split_once('-')
                .with_context(|| format!("`{times}` is not a time: write HH:MM-HH:MM"))?;
            let (start, end) = (minute(start)?, minute(end)?);
            schedule.windows.push(Window { start, end: end % DAY_MINUTES, rate: rate(limit)? });
        }
        Ok(schedule)
    }

    /// The rate in bits a second at a minute of the day.
    fn at(&self, minute: u32) -> Option<u64> {
        let window = self.windows.iter().find(|window| window.has(minute));
        window.map_or(self.otherwise, |window| window.rate)
    }

    /// The rate at this time, by the clock and in the time zone of this machine, in bytes a second.
    pub fn now(&self) -> Option<u64> {
        let now = chrono::Local::now();
        self.at(now.hour() * 60 + now.minute()).map(|bits| (bits / 8).max(1))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |rate: Option<u64>| rate.map_or("none".into(), show_rate);
        write!(f, "{}", show(self.otherwise))?;
        for Window { start, end, rate } in &self.windows {
            let time = |at: &u32| format!("{:02}:{:02}", at / 60, at % 60);
            write!(f, ",{}-{}={}", time(start), time(end), show(*rate))?;
        }
        Ok(())
    }
}

/// A rate in bits per second so that [`units::rate`] takes it: `1.5Mbit/s`.
fn show_rate(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")];
    // In the largest unit that needs no more than three places.
    let fits = |factor: u64| bits >= factor && bits.is_multiple_of(factor / 1000);
    match units.into_iter().find(|(factor, _)| fits(*factor)) {
        Some((factor, unit)) => format!("{}{unit}", bits as f64 / factor as f64),
        None => format!("{bits}bit/s"),
    }
}

fn rate(text: &str) -> Result<Option<u64>> {
    match text.trim() {
        "none" => Ok(None),
        text => match units::rate(text)? {
            0 => bail!("`{text}` would stop everything: use a rate, or `none` for no limit"),
            rate => Ok(Some(rate)),
        },
    }
}

fn minute(text: &str) -> Result<u32> {
    let parsed = text.trim().split_once(':').and_then(|(hours, minutes)| {
        let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
        (minutes < 60).then_some(hours * 60 + minutes).filter(|at| *at <= DAY_MINUTES)
    });
    parsed.with_context(|| format!("`{text}` is not a time of day: write HH:MM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_by_the_time_of_day() {
        let schedule = Schedule::parse("50Mbit/s, 08:00-18:00=5Mbit/s, 22:30-06:00=none").unwrap();
        let at = |hours: u32, minutes: u32| schedule.at(hours * 60 + minutes);
        assert_eq!(at(7, 59), Some(50_000_000));
        assert_eq!(at(8, 0), Some(5_000_000));
        assert_eq!(at(17, 59), Some(5_000_000));
        assert_eq!(at(18, 0), Some(50_000_000));
        assert_eq!((at(22, 30), at(0, 0), at(5, 59)), (None, None, None));
        assert_eq!(at(6, 0), Some(50_000_000));
        assert_eq!(schedule.to_string(), "50Mbit/s,08:00-18:00=5Mbit/s,22:30-06:00=none");
        assert_eq!(Schedule::parse(&schedule.to_string()).unwrap(), schedule);
        let late = Schedule::parse("none,20:00-24:00=1.5Mbit/s").unwrap();
        assert_eq!((late.at(23 * 60 + 59), late.at(0)), (Some(1_500_000), None));
        assert_eq!(Schedule::parse(&late.to_string()).unwrap(), late);
        assert_eq!(Schedule::parse("none").unwrap(), Schedule::default());
    }

    #[test]
    fn shown_rates_can_be_parsed() {
        for (bits, text) in [
            (20_000_000, "20Mbit/s"),
            (1_500_000_000, "1.5Gbit/s"),
            (1_234_567, "1234.567kbit/s"),
            (64_000, "64kbit/s"),
            (17, "17bit/s"),
        ] {
            assert_eq!(show_rate(bits), text);
            assert_eq!(units::rate(text).unwrap(), bits);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for wrong in [
            "",
            "5",
            "0Mbit/s",
            "1Mbit/s,2Mbit/s",
            "8-18=1Mbit/s",
            "25:00-26:00=1Mbit/s",
            "08:60-09:00=1Mbit/s",
            "08:00=1Mbit/s",
            "08:00-09:00=fast",
        ] {
            assert!(Schedule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
