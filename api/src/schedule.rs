//! Scheduled snapshots: which are due, and which have expired.
//!
//! A schedule is an attribute of the volume, so it moves with the volume from store to store. The
//! store that has the volume open keeps it. A volume that nobody uses has nothing new to take a
//! snapshot of.

use longhaul_core::store::snapshot::Snapshot;
use std::fmt;
use std::str::FromStr;
use time::{Date, Duration, OffsetDateTime};

/// The attribute of a volume that holds its schedule.
pub const ATTRIBUTE: &str = "schedule";
/// Most snapshots of one kind to keep.
const KEPT_MAX: u32 = 4096;

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Period {
    Hourly,
    Daily,
    Weekly,
    Monthly,
}

impl Period {
    const ALL: [Period; 4] = [Period::Hourly, Period::Daily, Period::Weekly, Period::Monthly];

    fn name(self) -> &'static str {
        match self {
            Period::Hourly => "hourly",
            Period::Daily => "daily",
            Period::Weekly => "weekly",
            Period::Monthly => "monthly",
        }
    }

    /// When the present one began, in UTC; weeks begin on Monday.
    fn begin(self, now: OffsetDateTime) -> OffsetDateTime {
        let midnight = |date: Date| date.midnight().assume_utc();
        let date = now.date();
        match self {
            Period::Hourly => midnight(date) + Duration::hours(now.hour().into()),
            Period::Daily => midnight(date),
            Period::Weekly => {
                midnight(date) - Duration::days(date.weekday().number_days_from_monday().into())
            }
            Period::Monthly => midnight(date) - Duration::days(i64::from(date.day()) - 1),
        }
    }

    /// The beginning of the names of its snapshots.
    fn prefix(self) -> String {
        format!("{}-", self.name())
    }
}

/// How many snapshots of which kinds to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    kept: Vec<(Period, u32)>,
}

impl Schedule {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl FromStr for Schedule {
    type Err = String;

    /// `hourly=24,daily=7`, or `none`.
    fn from_str(text: &str) -> Result<Schedule, String> {
        let mut kept: Vec<(Period, u32)> = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty() && *part != "none") {
            let wrong = || {
                format!(
                    "{part:?} is not a part of a schedule: it is PERIOD=NUMBER, with hourly, \
                     daily, weekly or monthly and how many of these snapshots to keep, 1 to \
                     {KEPT_MAX}, as in hourly=24,daily=7"
                )
            };
            let (name, count) = part.split_once('=').ok_or_else(wrong)?;
            let period = Period::ALL.into_iter().find(|period| period.name() == name.trim());
            let period = period.ok_or_else(wrong)?;
            let count: u32 = count.trim().parse().map_err(|_| wrong())?;
            let known = kept.iter().any(|(other, _)| *other == period);
            if known || count == 0 || count > KEPT_MAX {
                return Err(wrong());
            }
            kept.push((period, count));
        }
        kept.sort_unstable();
        Ok(Schedule { kept })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (n, (period, count)) in self.kept.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(f, "{comma}{}={count}", period.name())?;
        }
        Ok(())
    }
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Take a snapshot of this name.
    Take(String),
    /// Delete the one of this name.
    Delete(String),
}

impl Schedule {
    /// The next action, if any is due: one at a time. `changed`: a client has written since the
    /// last snapshot of any name.
    pub fn due(&self, now: OffsetDateTime, changed: bool, there: &[&Snapshot]) -> Option<Due> {
        let visible = || there.iter().filter(|snapshot| !snapshot.hidden);
        for (period, count) in &self.kept {
            let prefix = period.prefix();
            let ours = || visible().filter(|snapshot| snapshot.name.starts_with(&prefix));
            let begin = period.begin(now);
            let name = format!("{prefix}{}", stamp(begin));
            let taken = visible().any(|snapshot| snapshot.name == name);
            let began = u64::try_from(begin.unix_timestamp()).unwrap_or(0);
            // The first snapshot is due even without a change, because there is none yet.
            let first = ours().next().is_none();
            if !taken && (changed || first) && ours().all(|snapshot| snapshot.created < began) {
                return Some(Due::Take(name));
            }
            if ours().count() > *count as usize
                && let Some(oldest) = ours().min_by_key(|snapshot| snapshot.segment)
            {
                return Some(Due::Delete(oldest.name.clone()));
            }
        }
        None
    }
}

/// A time in a name: `20261122T1700Z`.
fn stamp(time: OffsetDateTime) -> String {
    let (year, month, day) = time.to_calendar_date();
    format!("{year:04}{:02}{day:02}T{:02}{:02}Z", u8::from(month), time.hour(), time.minute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::block::VolumeId;

    #[test]
    fn schedules_are_read_and_written() {
        for (text, normal) in [
            ("hourly=24,daily=7", "hourly=24,daily=7"),
            ("monthly=12, weekly=4", "weekly=4,monthly=12"),
            ("none", "none"),
            ("", "none"),
        ] {
            let text = text.replace(' ', "");
            let schedule: Schedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), normal);
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for bad in ["hourly", "hourly=0", "hourly=4097", "hourly=x", "yearly=1", "daily=1,daily=2"]
        {
            let error = bad.parse::<Schedule>().unwrap_err();
            assert!(error.contains("hourly=24,daily=7"), "{error}");
        }
    }

    #[test]
    fn periods_begin_where_calendars_say() {
        // A Sunday.
        let now = OffsetDateTime::from_unix_timestamp(1_795_364_123).unwrap();
        let begins = Period::ALL.map(|period| stamp(period.begin(now)));
        assert_eq!(
            begins,
            ["20261122T1600Z", "20261122T0000Z", "20261116T0000Z", "20261101T0000Z"],
            "{now}"
        );
    }

    fn snapshot(segment: u64, name: &str, created: u64) -> Snapshot {
        let id = VolumeId(segment.into());
        Snapshot { segment, id, name: name.into(), created, sectors: 8, hidden: false }
    }

    #[test]
    fn a_day_of_snapshots() {
        let schedule: Schedule = "hourly=3,daily=2".parse().unwrap();
        let mut there = vec![snapshot(1, "mine", 5), snapshot(2, "hourly-by-hand", 7)];
        let mut segment = 2;
        for minute in 0..3 * 24 * 60 {
            // Nobody writes on the second day.
            let changed = minute / 60 / 24 != 1;
            let seconds = 1_795_305_600 + minute * 60;
            let now = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
            while let Some(due) = schedule.due(now, changed, &there.iter().collect::<Vec<_>>()) {
                match due {
                    Due::Take(name) => {
                        segment += 1;
                        there.push(snapshot(segment, &name, seconds as u64));
                    }
                    Due::Delete(name) => there.retain(|snapshot| snapshot.name != name),
                }
            }
        }
        let names: Vec<&str> = there.iter().map(|snapshot| snapshot.name.as_str()).collect();
        let expected = [
            "mine",
            "daily-20261122T0000Z",
            "daily-20261124T0000Z",
            "hourly-20261124T2100Z",
            "hourly-20261124T2200Z",
            "hourly-20261124T2300Z",
        ];
        assert_eq!(names, expected);
        // One that is gone from sight is no reason to take no other.
        there.iter_mut().for_each(|snapshot| snapshot.hidden = true);
        let now = OffsetDateTime::from_unix_timestamp(1_795_305_600 + 3 * 86400 - 1).unwrap();
        let due = schedule.due(now, false, &there.iter().collect::<Vec<_>>());
        assert_eq!(due, Some(Due::Take("hourly-20261124T2300Z".into())));
    }
}
