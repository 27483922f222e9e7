//! The plots of a scenario's results.

use crate::papers;
use crate::plot::{Bar, Chart, Look, Spot, Trace, bars};
use crate::results::{LineFacts, Record, Results, label};
use crate::scenario::{Of, Plot, Point, Subject, axis_number, short};
use crate::stages::{EXPECTED, Stage, place};
use crate::stats::median;
use crate::verdict::{bounds, concerns};
use toml::Table;

/// A picture with the end of its file's name.
pub struct Picture {
    /// As in `1`, `time` or `stages`.
    pub name: String,
    /// SVG.
    pub svg: String,
}

/// All pictures of a scenario; none of what was not measured.
#[must_use]
pub fn pictures(results: Results<'_>) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for (number, plot) in results.scenario.base.plots.iter().enumerate() {
        let chart = chart(results, plot);
        if !chart.is_empty() {
            pictures.push(Picture { name: (number + 1).to_string(), svg: chart.svg() });
        }
    }
    for (name, chart) in over_time(results) {
        pictures.push(Picture { name: format!("time-{name}"), svg: chart.svg() });
    }
    if let Some(svg) = stages(results) {
        pictures.push(Picture { name: "stages".into(), svg });
    }
    pictures
}

/// A subject's color, the same everywhere.
fn colour(subject: Subject) -> usize {
    Subject::ALL.iter().position(|other| *other == subject).unwrap_or_default()
}

/// A figure's name with its unit as a person reads it.
fn figure_label(figure: &str) -> String {
    let units = [
        ("_mb_per_s", "MB/s"),
        ("mb_per_s", "MB/s"),
        ("_ms", "ms"),
        ("_per_s", "per second"),
        ("_mib", "MiB"),
        ("_mb", "MB"),
        ("_s", "s"),
    ];
    let percentile = |name: &str| name.replace("p999", "p99.9").replace('_', " ");
    match units.iter().find(|(end, _)| figure.ends_with(end)) {
        Some((end, unit)) => match figure.trim_end_matches(end) {
            "" => (*unit).to_owned(),
            name => format!("{} ({unit})", percentile(name)),
        },
        None => percentile(figure),
    }
}

/// An axis of the matrix as a person reads it.
fn axis_label(path: &str) -> String {
    match short(path) {
        "delay" => "one-way delay (ms)".into(),
        "loss" => "share of packets lost".into(),
        "load" => "background load (share of the line)".into(),
        "rate" => "line (Mbit/s)".into(),
        "cache-share" => "cache (share of the working set)".into(),
        "depth" => "requests outstanding".into(),
        other => other.into(),
    }
}

fn chart(results: Results<'_>, plot: &Plot) -> Chart {
    let scenario = results.scenario;
    let rest = |point: &Point| {
        let mut others = point.values.clone();
        others.remove(&plot.x);
        others.retain(|key, _| !plot.when.contains_key(key));
        others
    };
    let shown = || scenario.points.iter().filter(|point| concerns(&plot.when, point));
    let mut groups: Vec<Table> = Vec::new();
    for point in shown() {
        if !groups.contains(&rest(point)) {
            groups.push(rest(point));
        }
    }
    let mut traces = Vec::new();
    for &subject in &scenario.base.subjects {
        for (group, others) in groups.iter().enumerate() {
            let inside = || shown().filter(|point| rest(point) == *others);
            let mut spots: Vec<Spot> = inside()
                .filter_map(|point| {
                    let x = axis_number(point.values.get(&plot.x)?)?;
                    let values = results.values(&point.values, subject, &plot.y);
                    let ends = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
                    Some(Spot { x, y: median(&values), range: (ends(f64::min)?, ends(f64::max)?) })
                })
                .collect();
            spots.sort_by(|a, b| a.x.total_cmp(&b.x));
            if plot.relative {
                spots = relative(&spots);
            }
            let more = label(others);
            let name = if more.is_empty() {
                subject.name().into()
            } else {
                format!("{}, {more}", subject.name())
            };
            let look = Look::Measured(
                if scenario.base.subjects.len() == 1 { group } else { colour(subject) },
                group,
            );
            if !spots.is_empty() {
                traces.push(Trace { label: name, look, spots });
            }
        }
    }
    for (number, name) in plot.paper.iter().enumerate() {
        if let Ok(series) = papers::series(name) {
            let spots: Vec<Spot> =
                series.points.iter().map(|(x, y)| Spot { x: *x, y: *y, range: (*y, *y) }).collect();
            // The paper's loads are in percent.
            let share = if short(&plot.x) == "load" { 0.01 } else { 1.0 };
            let mut spots: Vec<Spot> =
                spots.into_iter().map(|spot| Spot { x: spot.x * share, ..spot }).collect();
            if plot.relative {
                spots = relative(&spots);
            }
            traces.push(Trace { label: series.label, look: Look::Paper(number), spots });
        }
    }
    if plot.bounds && !plot.relative {
        traces.extend(bound_traces(results, plot));
    }
    let y_label = plot.y_label.clone().unwrap_or_else(|| figure_label(&plot.y));
    Chart {
        title: plot.title.clone(),
        x_label: plot.x_label.clone().unwrap_or_else(|| axis_label(&plot.x)),
        y_label: if plot.relative {
            format!("{y_label}, relative to the first point")
        } else {
            y_label
        },
        log: (plot.log_x, plot.log_y),
        traces,
        spans: Vec::new(),
    }
}

/// Each point divided by the first one's median.
fn relative(spots: &[Spot]) -> Vec<Spot> {
    let Some(first) = spots.first().map(|spot| spot.y).filter(|first| *first > 0.0) else {
        return Vec::new();
    };
    let divide = |spot: &Spot| Spot {
        x: spot.x,
        y: spot.y / first,
        range: (spot.range.0 / first, spot.range.1 / first),
    };
    spots.iter().map(divide).collect()
}

/// The bounds that the asserts set for the plot's figure.
fn bound_traces(results: Results<'_>, plot: &Plot) -> Vec<Trace> {
    let scenario = results.scenario;
    let mut traces: Vec<Trace> = Vec::new();
    for assert in scenario.base.asserts.iter().filter(|assert| assert.figure == plot.y) {
        // A bound relative to another measurement would be a cloud of lines.
        if matches!(assert.of, Some(Of::Point(_))) {
            continue;
        }
        let mut spots: Vec<Spot> = Vec::new();
        for point in scenario
            .points
            .iter()
            .filter(|point| concerns(&assert.when, point) && concerns(&plot.when, point))
        {
            let (min, max) = bounds(results, assert, point);
            let x = point.values.get(&plot.x).and_then(axis_number);
            if let (Some(x), Some(bound)) = (x, min.or(max))
                && !spots.iter().any(|spot| spot.x.total_cmp(&x).is_eq())
            {
                spots.push(Spot { x, y: bound, range: (bound, bound) });
            }
        }
        spots.sort_by(|a, b| a.x.total_cmp(&b.x));
        if spots.len() > 1 {
            traces.push(Trace {
                label: format!("target: {}", assert.name),
                look: Look::Bound,
                spots,
            });
        }
    }
    traces
}

/// Figures over time, in the last valid run of each subject with a series. Each series has a chart,
/// of the last point of the matrix.
fn over_time(results: Results<'_>) -> Vec<(String, Chart)> {
    let scenario = results.scenario;
    let Some(point) = scenario.points.last() else { return Vec::new() };
    let mut charts: Vec<(String, Chart)> = Vec::new();
    for &subject in &scenario.base.subjects {
        let last: Option<&Record> =
            results.at(&point.values, subject).filter(|record| record.valid).last();
        for series in last
            .into_iter()
            .flat_map(|record| &record.series)
            .filter(|series| series.points.len() > 2)
        {
            let spots =
                series.points.iter().map(|(x, y)| Spot { x: *x, y: *y, range: (*y, *y) }).collect();
            let trace =
                Trace { label: subject.name().into(), look: Look::Time(colour(subject)), spots };
            if let Some((_, chart)) = charts.iter_mut().find(|(name, _)| *name == series.name) {
                chart.traces.push(trace);
                continue;
            }
            let place = label(&point.values);
            let title = format!(
                "{} over time{}{place}",
                scenario.base.title,
                if place.is_empty() { "" } else { ", " }
            );
            charts.push((
                series.name.clone(),
                Chart {
                    title,
                    x_label: "seconds".into(),
                    y_label: figure_label(&series.name),
                    traces: vec![trace],
                    spans: outages(point),
                    ..Chart::default()
                },
            ));
        }
    }
    charts
}

/// When nothing got through, as the scenario says it.
fn outages(point: &Point) -> Vec<(f64, f64, String)> {
    let mut spans = Vec::new();
    let mut since = point.definition.wan.to_store.outage.then_some(0.0);
    for (at, wan) in &point.steps {
        let at = at.as_secs_f64();
        match since {
            None if wan.to_store.outage => since = Some(at),
            Some(from) if !wan.to_store.outage => {
                spans.push((from, at, "outage".into()));
                since = None;
            }
            _ => {}
        }
    }
    spans
}

/// The stages of a subject at a point: the median over the valid runs of what a request spent
/// there, in µs.
#[must_use]
pub fn stage_medians(results: Results<'_>, point: &Point, subject: Subject) -> Vec<(String, f64)> {
    let runs: Vec<&[Stage]> = results
        .at(&point.values, subject)
        .filter(|record| record.valid)
        .map(|record| record.stages.as_slice())
        .collect();
    let of = |name: &str| {
        let all = runs.iter().flat_map(|run| run.iter()).filter(|stage| stage.stage == name);
        let times: Vec<f64> = all.map(|stage| stage.request_us).collect();
        (!times.is_empty()).then(|| median(&times))
    };
    let mut found: Vec<(String, f64)> =
        EXPECTED.iter().filter_map(|name| Some(((*name).to_owned(), of(name)?))).collect();
    // The rest of the link is the paper's "protocol": sockets, encryption, and the wait for a turn.
    if let (Some(link), false) = (of("link"), point.definition.workload.uploads()) {
        let inside = LineFacts::of(point).rtt_ms * 1000.0
            + of("store").unwrap_or_default()
            + of("object_get").unwrap_or_default();
        found.push((LINK_REST.into(), (link - inside).max(0.0)));
    }
    found
}

/// The link's time without what else it contains.
const LINK_REST: &str = "link without line, store and objects";

/// Where the time of requests goes at the first point, beside the paper's Figure 2.
fn stages(results: Results<'_>) -> Option<String> {
    let point = results.scenario.points.first()?;
    let found = stage_medians(results, point, Subject::Longhaul);
    if found.is_empty() {
        return None;
    }
    let colour = |name: &str| if name == LINK_REST { place("link") } else { place(name) };
    let mut list: Vec<Bar> = found
        .into_iter()
        .map(|(name, value)| Bar { colour: Some(colour(&name)), label: name, value })
        .collect();
    list.extend(papers::STAGES_US.map(|(name, value)| Bar {
        label: format!("FAST 2002: {name}"),
        value,
        colour: None,
    }));
    let at = label(&point.values);
    let comma = if at.is_empty() { "" } else { ", " };
    Some(bars(&format!("Where a request's time goes{comma}{at}"), "µs", &list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn pictures_of_a_scenario() {
        let (scenario, mut records) = sample();
        for record in &mut records {
            record.stages = vec![Stage {
                stage: "link".into(),
                count: 1.0,
                request_us: 80.0,
                mean_us: 80.0,
                p50_us: 70.0,
            }];
            record.series[0].points.push((2.0, 1.0));
        }
        let all = pictures(Results { scenario: &scenario, records: &records });
        let names: Vec<&str> = all.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["1", "time-lag_mib", "stages"]);
        for text in ["longhaul", "nbd", "FAST 2002, Null Device", "target: close"] {
            assert!(all[0].svg.contains(text), "{text}");
        }
        assert!(
            pictures(Results { scenario: &scenario, records: &[] }).iter().all(|p| p.name == "1")
        );
    }

    #[test]
    fn labels() {
        assert_eq!(figure_label("p999_ms"), "p99.9 (ms)");
        assert_eq!(figure_label("mb_per_s"), "MB/s");
        assert_eq!(figure_label("jain"), "jain");
        assert_eq!(figure_label("transactions_per_s"), "transactions (per second)");
    }

    #[test]
    fn relative_to_the_first() {
        let spot = |x, y| Spot { x, y, range: (y, y) };
        assert_eq!(relative(&[spot(0.0, 4.0), spot(1.0, 2.0)])[1], spot(1.0, 0.5));
        assert!(relative(&[spot(0.0, 0.0)]).is_empty());
    }
}
