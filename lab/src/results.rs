//! Results of runs: a JSON line for each, and CSV.

use crate::scenario::{Point, Scenario, Subject, axis_text, short};
use crate::stages::Stage;
use crate::stats::median;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

/// One run of one subject at one point, with everything needed to judge and to draw it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    /// The scenario's name.
    pub scenario: String,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// The repetition, from 1.
    pub round: usize,
    /// Path of the matrix → value.
    pub point: BTreeMap<String, serde_json::Value>,
    /// Who.
    pub subject: String,
    /// Whether it counts.
    pub valid: bool,
    /// Why it does not.
    pub reason: Option<String>,
    /// Figure → value; the unit is at the end of the name.
    pub figures: BTreeMap<String, f64>,
    /// Settings of the line, for bounds.
    pub line: LineFacts,
    /// The emulator's report of its own work.
    pub wan: serde_json::Value,
    /// Where the product's time went.
    pub stages: Vec<Stage>,
    /// Events over time.
    pub series: Vec<Series>,
    /// Program → version.
    pub versions: BTreeMap<String, String>,
    /// The machine: kernel, processor, memory.
    pub machine: BTreeMap<String, String>,
}

/// Values that bounds are relative to.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LineFacts {
    /// Delay of the round trip in ms.
    pub rtt_ms: f64,
    /// Rate in the direction of the workload in MB/s (10⁶ bytes of IP packets).
    pub mb_per_s: Option<f64>,
}

/// A figure over time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Series {
    /// Its name; the unit is at the end.
    pub name: String,
    /// Seconds since the workload began → value.
    pub points: Vec<(f64, f64)>,
}

/// A value of a scenario file as JSON.
fn json(value: &toml::Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A point's values as JSON.
#[must_use]
pub fn point_json(values: &toml::Table) -> BTreeMap<String, serde_json::Value> {
    values.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

/// The records of a scenario.
#[derive(Clone, Copy)]
pub struct Results<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// All its records, of all rounds.
    pub records: &'a [Record],
}

impl<'a> Results<'a> {
    /// The records of a subject at a point.
    pub fn at(
        &self,
        values: &toml::Table,
        subject: Subject,
    ) -> impl Iterator<Item = &'a Record> + use<'a> {
        let (point, name) = (point_json(values), &self.scenario.name);
        self.records.iter().filter(move |record| {
            record.scenario == *name && record.subject == subject.name() && record.point == point
        })
    }

    /// The values of a figure over the valid rounds.
    #[must_use]
    pub fn values(&self, values: &toml::Table, subject: Subject, figure: &str) -> Vec<f64> {
        let valid = self.at(values, subject).filter(|record| record.valid);
        valid.filter_map(|record| record.figures.get(figure).copied()).collect()
    }

    /// The median of a figure over the valid rounds, if there is one.
    #[must_use]
    pub fn median(&self, values: &toml::Table, subject: Subject, figure: &str) -> Option<f64> {
        let found = self.values(values, subject, figure);
        (!found.is_empty()).then(|| median(&found))
    }
}

impl LineFacts {
    /// Values of a point.
    #[must_use]
    pub fn of(point: &Point) -> LineFacts {
        let definition = &point.definition;
        let (up, down) = (&definition.wan.to_store, &definition.wan.to_host);
        let rate = if definition.workload.uploads() { up.rate } else { down.rate };
        LineFacts {
            rtt_ms: (up.delay + down.delay).as_secs_f64() * 1000.0,
            mb_per_s: rate.map(|rate| rate as f64 / 8e6),
        }
    }
}

/// Appends a record to a file of JSON lines.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, record: &Record) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{}", serde_json::to_string(record)?)?;
    Ok(())
}

/// Reads a file of JSON lines.
///
/// # Errors
/// If it cannot be read, or a line is no record.
pub fn load(path: &Path) -> Result<Vec<Record>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), number + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

/// The figures as CSV, a row for each run: scenario, point, subject, round, valid, figures.
#[must_use]
pub fn csv(results: Results<'_>) -> String {
    let axes: Vec<&String> = results.scenario.base.matrix.keys().collect();
    let mut figures: Vec<&String> = results.records.iter().flat_map(|r| r.figures.keys()).collect();
    figures.sort();
    figures.dedup();
    let mut out = String::new();
    let mut row = |cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    };
    let head = ["scenario", "started", "round", "subject", "valid", "reason"].map(str::to_owned);
    let names = axes.iter().map(|axis| short(axis).to_owned());
    row(head.into_iter().chain(names).chain(figures.iter().map(|f| (*f).clone())).collect());
    for record in results.records {
        let mut cells = vec![
            record.scenario.clone(),
            record.started.to_string(),
            record.round.to_string(),
            record.subject.clone(),
            record.valid.to_string(),
            record.reason.clone().unwrap_or_default(),
        ];
        cells.extend(axes.iter().map(|axis| match record.point.get(*axis) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }));
        cells.extend(
            figures.iter().map(|f| record.figures.get(*f).map_or(String::new(), f64::to_string)),
        );
        row(cells);
    }
    out
}

/// RFC 4180.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// A point's values as `delay=8ms`, from a record.
#[must_use]
pub fn label(values: &toml::Table) -> String {
    let parts: Vec<String> =
        values.iter().map(|(k, v)| format!("{}={}", short(k), axis_text(v))).collect();
    parts.join(", ")
}

/// A number with as many digits as say something.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".into(),
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A scenario of two delays with three rounds, of which one is not valid.
    pub fn sample() -> (Scenario, Vec<Record>) {
        let text = r#"
            title = "Reads"
            subjects = ["longhaul", "nbd"]
            [wan.both]
            rate = "100Mbit/s"
            [matrix]
            "wan.both.delay" = ["0ms", "8ms"]
            [volume]
            fill = "32MiB"
            [workload.fio]
            rw = "randread"
            [[assert]]
            name = "close"
            figure = "p50_ms"
            max = 0.2
            plus = "rtt"
            [[assert]]
            name = "line"
            figure = "mb_per_s"
            min = 0.9
            of = "line"
            [[assert]]
            name = "better"
            figure = "p50_ms"
            max = 1.0
            of = { subject = "nbd" }
            when = { "wan.both.delay" = "8ms" }
            [[assert]]
            name = "steady"
            figure = "mb_per_s"
            min = 0.95
            of = { point = { "wan.both.delay" = "0ms" } }
            [[assert]]
            name = "nobody measures that"
            figure = "jain"
            min = 0.8
            [[plot]]
            title = "Latency against delay"
            x = "wan.both.delay"
            y = "p50_ms"
            paper = ["table1/Null Device/random/read/response_ms"]
        "#;
        let scenario = Scenario::parse("reads", text).unwrap();
        let mut records = Vec::new();
        for (delay, ours, theirs) in [("0ms", 0.15, 0.1), ("8ms", 16.3, 16.4)] {
            for round in 1..=3 {
                for (subject, p50) in [("longhaul", ours), ("nbd", theirs)] {
                    let figures = [("p50_ms", p50), ("mb_per_s", 12.0)];
                    records.push(Record {
                        scenario: "reads".into(),
                        started: 1_700_000_000,
                        round,
                        point: [("wan.both.delay".to_owned(), delay.into())].into(),
                        subject: subject.into(),
                        valid: round < 3,
                        reason: (round == 3).then(|| "late, \"very\"".into()),
                        figures: figures
                            .map(|(name, value)| {
                                (name.to_owned(), value * if round == 3 { 9.0 } else { 1.0 })
                            })
                            .into(),
                        line: LineFacts::default(),
                        wan: serde_json::Value::Null,
                        stages: vec![],
                        series: vec![Series {
                            name: "lag_mib".into(),
                            points: vec![(0.0, 0.0), (1.0, 5.0)],
                        }],
                        versions: BTreeMap::new(),
                        machine: BTreeMap::new(),
                    });
                }
            }
        }
        (scenario, records)
    }

    #[test]
    fn json_lines_come_back() {
        let (scenario, records) = sample();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("reads.jsonl");
        for record in &records {
            append(&path, record).unwrap();
        }
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.len(), records.len());
        let results = Results { scenario: &scenario, records: &loaded };
        let point = &scenario.points[1].values;
        // The third round does not count.
        assert_eq!(results.median(point, Subject::Longhaul, "p50_ms"), Some(16.3));
        assert_eq!(results.values(point, Subject::Nbd, "p50_ms").len(), 2);
        assert_eq!(results.median(point, Subject::Longhaul, "none"), None);
        std::fs::write(&path, "{}\n").unwrap();
        assert!(format!("{:#}", load(&path).err().unwrap()).contains("reads.jsonl:1"));
    }

    #[test]
    fn comma_separated() {
        let (scenario, records) = sample();
        let text = csv(Results { scenario: &scenario, records: &records });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 13);
        assert_eq!(lines[0], "scenario,started,round,subject,valid,reason,delay,mb_per_s,p50_ms");
        assert_eq!(lines[1], "reads,1700000000,1,longhaul,true,,0ms,12,0.15");
        assert!(lines[5].contains("false,\"late, \"\"very\"\"\",0ms"), "{}", lines[5]);
    }

    #[test]
    fn numbers() {
        for (value, shown) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (12.34, "12.3"),
            (0.1234, "0.123"),
            (7e-5, "7.0e-5"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), shown);
        }
    }
}
