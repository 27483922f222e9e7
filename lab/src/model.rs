//! The model of FAST 2002, equation 1: T = T_disk + 2·T_delay + T_protocol, fitted to a run.

use crate::results::{LineFacts, Results, label};
use crate::scenario::{Point, Subject};
use crate::stats::{Line, least_squares, with_slope};
use toml::Table;

/// The model fitted to the medians of one subject over the delays.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Whose.
    pub subject: Subject,
    /// The other values of the matrix.
    pub others: Table,
    /// One-way delay in ms → median latency in ms.
    pub points: Vec<(f64, f64)>,
    /// With the slope that the model says, 2: its intercept is T_disk + T_protocol.
    pub model: Line,
    /// With whatever slope fits best: how many one-way delays a request really takes.
    pub free: Line,
}

/// The key of the matrix that is the delay, if one is.
#[must_use]
pub fn delay_axis(point: &Point) -> Option<&String> {
    point.values.keys().find(|key| key.starts_with("wan.") && key.ends_with(".delay"))
}

/// Fits every subject that has a figure at two delays or more.
#[must_use]
pub fn fits(results: Results<'_>, figure: &str) -> Vec<Fit> {
    let scenario = results.scenario;
    let Some(axis) = scenario.points.first().and_then(delay_axis) else { return Vec::new() };
    let rest = |point: &Point| {
        let mut others = point.values.clone();
        others.remove(axis);
        others
    };
    let mut groups: Vec<Table> = Vec::new();
    for point in &scenario.points {
        if !groups.contains(&rest(point)) {
            groups.push(rest(point));
        }
    }
    let mut fits = Vec::new();
    for others in groups {
        for &subject in &scenario.base.subjects {
            let points: Vec<(f64, f64)> = scenario
                .points
                .iter()
                .filter(|point| rest(point) == others)
                .filter_map(|point| {
                    let latency = results.median(&point.values, subject, figure)?;
                    Some((LineFacts::of(point).rtt_ms / 2.0, latency))
                })
                .collect();
            if let (Some(free), Some(model)) = (least_squares(&points), with_slope(&points, 2.0)) {
                fits.push(Fit { subject, others: others.clone(), points, model, free });
            }
        }
    }
    fits
}

/// The figure that the model is about.
pub const FIGURE: &str = "p50_ms";

/// The model for a scenario's results, a line for each fit, in ms.
#[must_use]
pub fn text(results: Results<'_>) -> Vec<String> {
    let line = |fit: &Fit| {
        let others = label(&fit.others);
        format!(
            "T = T_disk + 2·T_delay + T_protocol, {}{}: T_disk + T_protocol = {:.3} ms (residual \
             {:.3} ms); with a free slope {:.3} + {:.3}·T_delay (residual {:.3} ms)",
            fit.subject.name(),
            if others.is_empty() { String::new() } else { format!(" at {others}") },
            fit.model.intercept,
            fit.model.residual,
            fit.free.intercept,
            fit.free.slope,
            fit.free.residual,
        )
    };
    fits(results, FIGURE).iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn a_fit_for_each_subject() {
        let (scenario, records) = sample();
        let fits = fits(Results { scenario: &scenario, records: &records }, FIGURE);
        assert_eq!(
            fits.iter().map(|fit| fit.subject).collect::<Vec<_>>(),
            [Subject::Longhaul, Subject::Nbd]
        );
        assert_eq!(fits[0].points, [(0.0, 0.15), (8.0, 16.3)]);
        assert!((fits[0].free.slope - 2.01875).abs() < 1e-9);
        assert!((fits[0].model.intercept - 0.225).abs() < 1e-9);
        assert!((fits[0].model.residual - 0.075).abs() < 1e-9);
    }
}
