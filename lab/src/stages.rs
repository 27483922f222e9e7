//! Where the time of requests goes: the product's own stage timers, read from `/metrics`.
//!
//! Host and store count each stage in a histogram `longhaul_stage_seconds{stage="…"}` (Prometheus
//! text format 0.0.4). A request passes a stage once, more than once, or together with others. Its
//! time there is the growth of the stage's sum between two readings, divided by the requests of
//! that time.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The metric's name.
const METRIC: &str = "longhaul_stage_seconds";

/// The counter of the host's requests, by kind.
const REQUESTS: &str = "longhaul_host_request_seconds_count{";

/// The sums of their times.
const REQUEST_SECONDS: &str = "longhaul_host_request_seconds_sum{";

/// The counters of a host's read cache.
const CACHE: &str = "longhaul_cache_";

/// The stages that requests pass, in the order of their way (docs/operations/alerts.md). `link` and
/// `commit` contain the line and everything at the store.
pub const EXPECTED: [&str; 10] = [
    "front",
    "host",
    "journal_write",
    "journal_sync",
    "journal_read",
    "link",
    "commit",
    "store",
    "object_get",
    "object_put",
];

/// One histogram: how many, how long in all, and how many up to each bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Observations.
    pub count: f64,
    /// Their sum in seconds.
    pub sum: f64,
    /// Upper bound in seconds, the last one infinite → observations up to it.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Counts so many more up to a bound.
    fn add(&mut self, bound: f64, count: f64) {
        match self.buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
            Some((_, n)) => *n += count,
            None => self.buckets.push((bound, count)),
        }
    }

    /// The growth since an earlier reading.
    fn since(&self, before: &Histogram) -> Histogram {
        let earlier = |bound: f64| {
            before
                .buckets
                .iter()
                .find(|(b, _)| b.total_cmp(&bound).is_eq())
                .map_or(0.0, |(_, n)| *n)
        };
        let buckets = self.buckets.iter().map(|(bound, n)| (*bound, n - earlier(*bound))).collect();
        Histogram { count: self.count - before.count, sum: self.sum - before.sum, buckets }
    }

    /// The value below which a share `q` lies, in seconds, interpolated within its bucket.
    fn quantile(&self, q: f64) -> f64 {
        let wanted = q * self.count;
        let (mut low, mut under) = (0.0, 0.0);
        for &(bound, n) in &self.buckets {
            if n >= wanted && n > under {
                return if bound.is_finite() {
                    low + (bound - low) * (wanted - under) / (n - under)
                } else {
                    low
                };
            }
            (low, under) = (bound, n);
        }
        f64::NAN
    }
}

/// The time of a stage for the requests of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Stage {
    /// Its name.
    pub stage: String,
    /// How often it was passed.
    pub count: f64,
    /// Time that a request spent there in the mean, in µs.
    pub request_us: f64,
    /// Mean time of a passage in µs.
    pub mean_us: f64,
    /// Median of the passages in µs, as exact as the histogram's buckets.
    pub p50_us: f64,
}

/// One reading of `/metrics`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Stage → its histogram, of all volumes together.
    pub stages: BTreeMap<String, Histogram>,
    /// Requests that a host has answered; none at a store.
    pub requests: f64,
    /// Their time from request to reply, in seconds.
    pub request_seconds: f64,
    /// The counts of a host's read caches, without unit and prefix; none at a store.
    pub cache: BTreeMap<String, f64>,
}

/// Reads the stage histograms out of a `/metrics` page; skips other metrics and other lines.
#[must_use]
pub fn read(page: &str) -> Reading {
    let mut reading = Reading::default();
    for line in page.lines() {
        let value = line.rsplit_once('}').and_then(|(_, value)| value.trim().parse::<f64>().ok());
        let Some(value) = value else { continue };
        if line.starts_with(REQUESTS) {
            reading.requests += value;
        }
        if line.starts_with(REQUEST_SECONDS) {
            reading.request_seconds += value;
        }
        let counter = line.strip_prefix(CACHE).and_then(|rest| rest.split_once("_bytes_total{"));
        if let Some((name, _)) = counter {
            *reading.cache.entry(name.to_owned()).or_default() += value;
        }
        let Some(rest) = line.strip_prefix(METRIC) else { continue };
        let Some((suffix, rest)) = rest.split_once('{') else { continue };
        let Some((labels, _)) = rest.rsplit_once('}') else { continue };
        let (mut name, mut bound) = (None, None);
        for (key, text) in self::labels(labels) {
            match key {
                "stage" => name = Some(text),
                "le" if text == "+Inf" => bound = Some(f64::INFINITY),
                "le" => bound = text.parse().ok(),
                _ => {}
            }
        }
        let Some(name) = name else { continue };
        let stage = reading.stages.entry(name).or_default();
        match (suffix, bound) {
            ("_count", _) => stage.count += value,
            ("_sum", _) => stage.sum += value,
            ("_bucket", Some(bound)) => stage.add(bound, value),
            _ => {}
        }
    }
    for stage in reading.stages.values_mut() {
        stage.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    reading
}

/// `a="b",c="d"` as pairs. Values of ours have no escapes.
fn labels(text: &str) -> impl Iterator<Item = (&str, String)> {
    text.split("\",").filter_map(|pair| {
        let (key, value) = pair.split_once("=\"")?;
        Some((key.trim(), value.trim_end_matches('"').to_owned()))
    })
}

/// The time of each stage between two readings, with so many requests. It leaves unused stages out.
#[must_use]
pub fn between(before: &Reading, after: &Reading, requests: f64) -> Vec<Stage> {
    let nothing = Histogram::default();
    let mut stages: Vec<Stage> = after
        .stages
        .iter()
        .map(|(name, after)| (name, after.since(before.stages.get(name).unwrap_or(&nothing))))
        .filter(|(_, histogram)| histogram.count > 0.0)
        .map(|(name, histogram)| Stage {
            stage: name.clone(),
            count: histogram.count,
            request_us: histogram.sum / requests.max(1.0) * 1e6,
            mean_us: histogram.sum / histogram.count * 1e6,
            p50_us: histogram.quantile(0.5) * 1e6,
        })
        .collect();
    stages.sort_by_key(|stage| place(&stage.stage));
    stages
}

/// The place of a stage on a request's way; unknown ones come last.
#[must_use]
pub fn place(name: &str) -> usize {
    EXPECTED.iter().position(|expected| *expected == name).unwrap_or(EXPECTED.len())
}

/// The missing stages of a breakdown.
pub fn missing<'a>(stages: impl IntoIterator<Item = &'a str> + Clone) -> Vec<&'static str> {
    let there = |wanted: &str| stages.clone().into_iter().any(|name| name == wanted);
    EXPECTED.into_iter().filter(|expected| !there(expected)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP longhaul_stage_seconds time of a stage
# TYPE longhaul_stage_seconds histogram
longhaul_stage_seconds_bucket{volume="a",stage="link",le="0.001"} 10
longhaul_stage_seconds_bucket{volume="a",stage="link",le="0.002"} 30
longhaul_stage_seconds_bucket{volume="a",stage="link",le="+Inf"} 40
longhaul_stage_seconds_sum{volume="a",stage="link"} 0.06
longhaul_stage_seconds_count{volume="a",stage="link"} 40
longhaul_stage_seconds_sum{volume="a",stage="front"} 0.25
longhaul_stage_seconds_count{volume="a",stage="front"} 1
longhaul_stage_seconds_sum{volume="b",stage="front"} 0.25
longhaul_stage_seconds_count{volume="b",stage="front"} 1
longhaul_host_request_seconds_count{volume="a",kind="read"} 80
longhaul_host_request_seconds_count{volume="a",kind="write"} 20
longhaul_host_request_seconds_sum{volume="a",kind="read"} 0.5
longhaul_host_request_seconds_sum{volume="a",kind="write"} 0.25
longhaul_host_lag_bytes 7
longhaul_cache_hit_bytes_total{volume="a"} 4096
longhaul_cache_hit_bytes_total{volume="b"} 8192
longhaul_cache_valid_bytes{volume="a"} 1
longhaul_stage_seconds_sum{stage="broken"
longhaul_stage_seconds_sum{stage="broken"} x
"#;

    fn names(stages: &[Stage]) -> Vec<&str> {
        stages.iter().map(|stage| stage.stage.as_str()).collect()
    }

    #[test]
    fn a_page() {
        let reading = read(PAGE);
        assert_eq!(reading.stages.keys().collect::<Vec<_>>(), ["front", "link"]);
        assert!((reading.requests - 100.0).abs() < 1e-9);
        assert!((reading.request_seconds - 0.75).abs() < 1e-9);
        assert_eq!(reading.cache, BTreeMap::from([("hit".to_owned(), 12288.0)]));
        let stages = between(&Reading::default(), &reading, reading.requests);
        assert_eq!(names(&stages), ["front", "link"]);
        // Both volumes' halves of a second, over a hundred requests.
        assert!((stages[0].request_us - 5000.0).abs() < 1e-6);
        assert!((stages[1].mean_us - 1500.0).abs() < 1e-6);
        // The 20th of 40 lies half way between the 10 up to 1 ms and the 30 up to 2 ms.
        assert!((stages[1].p50_us - 1500.0).abs() < 1e-6);
        assert_eq!(missing(names(&stages)).len(), EXPECTED.len() - 2);
    }

    #[test]
    fn a_difference() {
        let before = read(PAGE);
        assert!(between(&before, &before, 1.0).is_empty());
        let later =
            PAGE.replace("} 40", "} 50").replace("} 30", "} 40").replace("} 0.06", "} 0.08");
        let stages = between(&before, &read(&later), 20.0);
        assert_eq!((stages.len(), stages[0].count), (1, 10.0));
        assert!((stages[0].mean_us - 2000.0).abs() < 1e-6);
        assert!((stages[0].request_us - 1000.0).abs() < 1e-6);
    }
}
