//! The verdicts on a scenario's asserts. It calls a missed target missed.

use crate::results::{LineFacts, Results, label, number};
use crate::scenario::{Assert, Of, Plus, Point};
use toml::Table;

/// An assert at a point.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What is asserted.
    pub name: String,
    /// Where.
    pub point: String,
    /// The median, if there was a valid run.
    pub value: Option<f64>,
    /// The lower bound.
    pub min: Option<f64>,
    /// The upper bound.
    pub max: Option<f64>,
}

impl Verdict {
    /// Whether it holds; a missing measurement does not.
    #[must_use]
    pub fn met(&self) -> bool {
        let bounded = self.min.is_some() || self.max.is_some();
        self.value.is_some_and(|value| {
            bounded
                && self.min.is_none_or(|min| value >= min)
                && self.max.is_none_or(|max| value <= max)
        })
    }

    /// The bounds as a person writes them.
    #[must_use]
    pub fn bound_text(&self) -> String {
        match (self.min, self.max) {
            (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
            (Some(min), None) => format!("≥ {}", number(min)),
            (None, Some(max)) => format!("≤ {}", number(max)),
            (None, None) => "what it is compared with was not measured".into(),
        }
    }

    /// `met`, `missed` or `not measured`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match (self.value.is_some() && (self.min.is_some() || self.max.is_some()), self.met()) {
            (false, _) => "not measured",
            (_, true) => "met",
            (_, false) => "missed",
        }
    }
}

/// Every assert of a scenario at every point that it is about.
#[must_use]
pub fn verdicts(results: Results<'_>) -> Vec<Verdict> {
    let scenario = results.scenario;
    let mut found = Vec::new();
    for assert in &scenario.base.asserts {
        for point in scenario.points.iter().filter(|point| concerns(&assert.when, point)) {
            let (min, max) = bounds(results, assert, point);
            found.push(Verdict {
                name: assert.name.clone(),
                point: label(&point.values),
                value: results.median(&point.values, assert.subject, &assert.figure),
                min,
                max,
            });
        }
    }
    found
}

/// Whether a `when` holds at a point.
#[must_use]
pub fn concerns(when: &Table, point: &Point) -> bool {
    when.iter().all(|(key, value)| point.values.get(key) == Some(value))
}

/// The bounds of an assert at a point: no less than, no more than. Neither exists without its base.
#[must_use]
pub fn bounds(results: Results<'_>, assert: &Assert, point: &Point) -> (Option<f64>, Option<f64>) {
    let line = LineFacts::of(point);
    let factor = match &assert.of {
        None => Some(1.0),
        Some(Of::Line) => line.mb_per_s,
        Some(Of::Subject(subject)) => results.median(&point.values, *subject, &assert.figure),
        Some(Of::Point(instead)) => {
            let mut values: Table = point.values.clone();
            values.extend(instead.clone());
            results.median(&values, assert.subject, &assert.figure)
        }
    };
    let plus = match assert.plus {
        Some(Plus::Rtt) => line.rtt_ms,
        None => 0.0,
    };
    let bound = |share: Option<f64>| share.zip(factor).map(|(share, factor)| share * factor + plus);
    (bound(assert.min), bound(assert.max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn every_kind_of_bound() {
        let (scenario, records) = sample();
        let found = verdicts(Results { scenario: &scenario, records: &records });
        let shown: Vec<String> = found
            .iter()
            .map(|v| format!("{} {}: {:?} {:?} {}", v.name, v.point, v.min, v.max, v.word()))
            .collect();
        assert_eq!(
            shown,
            [
                "close delay=0ms: None Some(0.2) met",
                "close delay=8ms: None Some(16.2) missed",
                "line delay=0ms: Some(11.25) None met",
                "line delay=8ms: Some(11.25) None met",
                "better delay=8ms: None Some(16.4) met",
                "steady delay=0ms: Some(11.399999999999999) None met",
                "steady delay=8ms: Some(11.399999999999999) None met",
                "nobody measures that delay=0ms: Some(0.8) None not measured",
                "nobody measures that delay=8ms: Some(0.8) None not measured",
            ]
        );
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let (scenario, _) = sample();
        let found = verdicts(Results { scenario: &scenario, records: &[] });
        assert!(found.iter().all(|verdict| verdict.word() == "not measured" && !verdict.met()));
    }
}
