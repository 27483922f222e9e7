//! The metrics of a process: each is declared once, and all are written by one encoder.
//!
//! A [`Metric`] has a name, a kind, a unit, a help text, and a function that reads its value from a
//! source. [`metrics!`](crate::metrics!) declares a table of them; a name that does not fit its
//! kind and unit does not compile. [`Metrics`] writes them in the Prometheus text format, version
//! 0.0.4.

use longhaul_base::histogram::Histogram;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things, or whether something is so (0 or 1).
    Number,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A rate in bytes a second.
    BytesPerSecond,
    /// A share between 0 and 1.
    Ratio,
}

/// A metric whose value comes from a `T`.
#[derive(Debug)]
pub struct Metric<T> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
}

impl<T> Metric<T> {
    /// A value that goes up and down. The name ends with the unit.
    ///
    /// # Panics
    /// In a constant, so at compile time: if the name does not fit.
    #[must_use]
    pub const fn gauge(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        value: fn(&T) -> Option<f64>,
    ) -> Metric<T> {
        assert!(fits(name, "", unit), "the name of a gauge ends with its unit");
        Metric { name, kind: "gauge", help, value }
    }

    /// A value that only grows. The name ends with the unit and `_total`.
    ///
    /// # Panics
    /// In a constant, so at compile time: if the name does not fit.
    #[must_use]
    pub const fn counter(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        value: fn(&T) -> Option<f64>,
    ) -> Metric<T> {
        assert!(fits(name, "_total", unit), "the name of a counter ends with its unit and _total");
        Metric { name, kind: "counter", help, value }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// Whether a name ends with the unit and `suffix`.
const fn fits(name: &str, suffix: &str, unit: Unit) -> bool {
    let Some(rest) = stripped(name.as_bytes(), suffix.as_bytes()) else { return false };
    let bytes = stripped(rest, b"_bytes").is_some();
    let seconds = stripped(rest, b"_seconds").is_some();
    let rate = stripped(rest, b"_bytes_per_second").is_some();
    let total = stripped(rest, b"_total").is_some();
    match unit {
        Unit::Bytes => bytes,
        Unit::Seconds => seconds,
        Unit::BytesPerSecond => rate,
        Unit::Number | Unit::Ratio => !bytes && !seconds && !rate && !total,
    }
}

const fn stripped<'a>(text: &'a [u8], suffix: &[u8]) -> Option<&'a [u8]> {
    let Some(at) = text.len().checked_sub(suffix.len()) else { return None };
    let (rest, end) = text.split_at(at);
    let mut n = 0;
    while n < suffix.len() {
        if end[n] != suffix[n] {
            return None;
        }
        n += 1;
    }
    Some(rest)
}

/// A value in a table of [`metrics!`](crate::metrics!).
pub trait Value {
    /// The sample; `None` if there is nothing to tell.
    fn sample(self) -> Option<f64>;
}

impl Value for f64 {
    fn sample(self) -> Option<f64> {
        Some(self)
    }
}

impl Value for u64 {
    fn sample(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Value for usize {
    fn sample(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Value for bool {
    fn sample(self) -> Option<f64> {
        Some(f64::from(u8::from(self)))
    }
}

impl<V: Value> Value for Option<V> {
    fn sample(self) -> Option<f64> {
        self.and_then(Value::sample)
    }
}

/// Declares a table of metrics with values from one type: kind, name, unit, help, value.
#[macro_export]
macro_rules! metrics {
    ($(#[$doc:meta])* $table:ident: $of:ty {
        $($kind:ident $name:literal $unit:ident $help:literal |$source:ident| $value:expr;)*
    }) => {
        $(#[$doc])*
        const $table: &[$crate::metrics::Metric<$of>] = &[$($crate::metrics::Metric::$kind(
            $name,
            $crate::metrics::Unit::$unit,
            $help,
            |$source: &$of| $crate::metrics::Value::sample($value),
        )),*];
    };
}

/// Encodes metrics in the Prometheus text format, version 0.0.4.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
    names: BTreeSet<&'static str>,
}

impl Metrics {
    /// Writes the metrics of one source. Leaves out a metric without a value.
    pub fn all<T>(&mut self, metrics: &[Metric<T>], source: &T) {
        for metric in metrics {
            if let Some(value) = (metric.value)(source) {
                self.single(metric.name, metric.kind, metric.help, value);
            }
        }
    }

    /// Writes the metrics of several sources, with a label that names the source.
    pub fn each<'a, T: 'a>(
        &mut self,
        metrics: &[Metric<T>],
        label: &str,
        sources: impl Iterator<Item = (&'a str, &'a T)> + Clone,
    ) {
        for metric in metrics {
            let mut family = self.family(metric.name, metric.kind, metric.help);
            for (name, source) in sources.clone() {
                if let Some(value) = (metric.value)(source) {
                    family.sample(&[(label, name)], value);
                }
            }
        }
    }

    /// Begins a metric; its samples follow before the next one. `kind` is `counter`, `gauge` or
    /// `histogram`.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let new = self.names.insert(name);
        debug_assert!(new, "{name} is declared twice");
        debug_assert!((kind == "counter") == name.ends_with("_total"), "{name} is a {kind}");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.text, name }
    }

    /// A metric with one sample without labels.
    pub fn single(&mut self, name: &'static str, kind: &str, help: &str, value: impl Into<f64>) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// A metric whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<f64>) -> &mut Self {
        self.line("", labels, None, value.into());
        self
    }

    /// Adds the durations of a histogram.
    pub fn durations(&mut self, labels: &[(&str, &str)], of: &Histogram) -> &mut Self {
        self.histogram(labels, of.buckets(), of.above(), of.seconds())
    }

    /// Adds a histogram. Upper bounds come in ascending order, each with the number of observations
    /// up to it *and above the bound before*. Then come the number above the last bound, and the
    /// sum of all.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) -> &mut Self {
        let mut count = 0;
        for (bound, observed) in buckets {
            count += observed;
            self.line("_bucket", labels, Some(bound), count as f64);
        }
        count += above;
        self.line("_bucket", labels, Some(f64::INFINITY), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<f64>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let bound = bound
            .map(|bound| if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() });
        let all = labels.iter().copied().chain(bound.as_deref().map(|bound| ("le", bound)));
        for (n, (label, text)) in all.clone().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if all.count() > 0 { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format() {
        let mut metrics = Metrics::default();
        metrics.single("up", "gauge", "Whether.", 1);
        let mut family = metrics.family("seconds", "histogram", "How long.");
        family.histogram(&[("volume", "a\"b")], [(0.5, 2), (1.0, 3)], 1, 4.25);
        assert_eq!(
            metrics.finish(),
            "# HELP up Whether.\n# TYPE up gauge\nup 1\n\
             # HELP seconds How long.\n# TYPE seconds histogram\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"0.5\"} 2\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"1\"} 5\n\
             seconds_bucket{volume=\"a\\\"b\",le=\"+Inf\"} 6\n\
             seconds_sum{volume=\"a\\\"b\"} 4.25\nseconds_count{volume=\"a\\\"b\"} 6\n"
        );
    }

    struct Pump {
        running: bool,
        moved: Option<u64>,
    }

    metrics! {
        PUMP: Pump {
            gauge "pump_running" Number "Whether it runs." |pump| pump.running;
            counter "pump_moved_bytes_total" Bytes "Bytes moved." |pump| pump.moved;
        }
    }

    #[test]
    fn a_table_is_written_with_and_without_labels() {
        let (one, two) =
            (Pump { running: true, moved: None }, Pump { running: false, moved: Some(7) });
        let mut metrics = Metrics::default();
        metrics.all(PUMP, &one);
        assert_eq!(
            metrics.finish(),
            "# HELP pump_running Whether it runs.\n# TYPE pump_running gauge\npump_running 1\n",
            "what has no value is left out"
        );
        let mut metrics = Metrics::default();
        metrics.each(PUMP, "pump", [("a", &one), ("b", &two)].into_iter());
        assert_eq!(
            metrics.finish(),
            "# HELP pump_running Whether it runs.\n# TYPE pump_running gauge\n\
             pump_running{pump=\"a\"} 1\npump_running{pump=\"b\"} 0\n\
             # HELP pump_moved_bytes_total Bytes moved.\n\
             # TYPE pump_moved_bytes_total counter\npump_moved_bytes_total{pump=\"b\"} 7\n"
        );
    }

    #[test]
    fn names_end_with_kind_and_unit() {
        for (name, suffix, unit, good) in [
            ("moved_bytes_total", "_total", Unit::Bytes, true),
            ("moved_bytes", "_total", Unit::Bytes, false),
            ("moved_total", "_total", Unit::Bytes, false),
            ("moved_total_total", "_total", Unit::Number, false),
            ("moved_bytes", "", Unit::Number, false),
            ("moved_bytes_per_second", "", Unit::BytesPerSecond, true),
            ("lag_seconds", "", Unit::Seconds, true),
            ("total", "_total", Unit::Number, false),
        ] {
            assert_eq!(fits(name, suffix, unit), good, "{name} {suffix} {unit:?}");
        }
    }
}
