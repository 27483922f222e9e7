//! Results of the benchmarks: medians, ratios, verdicts, and their presentation as text.

use crate::rounds::Tally;
use crate::stats::median;
use anyhow::Result;
use std::cell::RefCell;
use std::io::Write as _;
use std::path::PathBuf;

/// A bound, and whether more is better.
pub type Target = Option<(f64, bool)>;

/// One figure, by round, maybe beside a peer's.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Ours, a value a round.
    pub ours: Vec<f64>,
    /// The peer's name and its values, one a round.
    pub peer: Option<(String, Vec<f64>)>,
    /// The target: of the ratio ours/theirs if there is a peer.
    pub target: Target,
    /// How busy others kept the machine.
    pub tally: Tally,
}

/// The outcome of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It holds.
    Met,
    /// It does not.
    Missed,
    /// There is none.
    Open,
    /// Others took this share of the machine: too few rounds count.
    Busy(f64),
}

impl Row {
    /// The ratios ours/theirs by round; none without a peer.
    #[must_use]
    pub fn ratios(&self) -> Vec<f64> {
        let theirs = self.peer.iter().flat_map(|(_, theirs)| theirs);
        self.ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    }

    /// The value that the target is about, if the machine was quiet.
    #[must_use]
    pub fn judged(&self) -> Option<f64> {
        let values = if self.peer.is_some() { self.ratios() } else { self.ours.clone() };
        (self.tally.too_busy().is_none() && !values.is_empty()).then(|| median(&values))
    }

    /// Whether the target holds.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.tally.too_busy(), self.judged(), self.target) {
            (Some(share), ..) => Verdict::Busy(share),
            (None, Some(value), Some((bound, more))) => {
                // A ratio that is no number meets nothing.
                let met = if more { value >= bound } else { value <= bound };
                if met { Verdict::Met } else { Verdict::Missed }
            }
            (None, None, Some(_)) => Verdict::Missed,
            (None, _, None) => Verdict::Open,
        }
    }

    /// The target as a person writes it.
    #[must_use]
    pub fn target_text(&self) -> String {
        self.target.map_or(String::new(), |(bound, more)| {
            let sign = if more { "≥" } else { "≤" };
            match &self.peer {
                Some(_) => format!("{sign} {bound:.2} ×"),
                None => format!("{sign} {} {}", number(bound), self.unit).trim_end().to_owned(),
            }
        })
    }

    /// The row in Markdown.
    fn text(&self) -> String {
        let value = |values: &[f64]| {
            if values.is_empty() {
                "–".to_owned()
            } else {
                format!("{} {}", number(median(values)), self.unit).trim_end().to_owned()
            }
        };
        let verdict = match self.verdict() {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed => "**missed**".to_owned(),
            Verdict::Open => String::new(),
            Verdict::Busy(share) => return format!("| {} | {} |", self.name, busy_text(share)),
        };
        let (peer, ratio) = match &self.peer {
            None => (String::new(), String::new()),
            Some((name, theirs)) => (
                format!("{name}: {}", value(theirs)),
                self.judged().map_or("–".into(), |ratio| format!("{ratio:.2}")),
            ),
        };
        let target = format!("{} {verdict}", self.target_text());
        format!("| {} | {} | {peer} | {ratio} | {} |", self.name, value(&self.ours), target.trim(),)
    }

    fn json(&self) -> serde_json::Value {
        let mut line = serde_json::json!({
            "what": self.name, "unit": self.unit, "ours": self.ours,
            "foreign": self.tally.quiet, "foreign_busy": self.tally.busy,
        });
        if let Some((name, theirs)) = &self.peer {
            line["peer"] = serde_json::json!(name);
            line["theirs"] = serde_json::json!(theirs);
            line["ratio"] = serde_json::json!(self.judged());
        } else {
            line["value"] = serde_json::json!(self.judged());
        }
        line
    }
}

/// Why a row has no figures.
#[must_use]
pub fn busy_text(share: f64) -> String {
    format!("machine was busy ({:.0} % of it)", share * 100.0)
}

/// Facts in rows and columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What they are.
    pub title: String,
    /// The columns.
    pub head: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

/// The results of one part.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The part's name.
    pub name: String,
    /// What it measures.
    pub about: String,
    /// Its figures.
    pub rows: Vec<Row>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Facts that a reader has to know.
    pub notes: Vec<String>,
    /// Why it ended early.
    pub error: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

/// Where results go: standard output, the sections for the report and, if asked for, a file of JSON
/// lines.
pub struct Report {
    json: Option<PathBuf>,
    sections: RefCell<Vec<Section>>,
}

impl Report {
    /// A report that also appends to `json`.
    pub fn new(json: Option<PathBuf>) -> Report {
        Report { json, sections: RefCell::default() }
    }

    /// Begins a part: what follows belongs to it.
    pub fn begin(&self, name: &str, about: &str) {
        println!("\n## {name}\n\n{about}\n");
        println!("| what | longhaul | peer | ratio (median of rounds) | target |");
        println!("|---|---|---|---|---|");
        let section = Section { name: name.into(), about: about.into(), ..Section::default() };
        self.sections.borrow_mut().push(section);
    }

    /// Ends a part.
    pub fn end(&self, seconds: f64, error: Option<String>) {
        if let Some(error) = &error {
            println!("\nfailed: {error}");
        }
        self.change(|section| {
            section.seconds = seconds;
            section.error = error;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Section)) {
        let mut sections = self.sections.borrow_mut();
        if sections.is_empty() {
            sections.push(Section::default());
        }
        if let Some(section) = sections.last_mut() {
            change(section);
        }
    }

    /// A figure.
    pub fn row(&self, row: Row) -> Result<()> {
        println!("{}", row.text());
        if let Some(path) = &self.json {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{}", row.json())?;
        }
        self.change(|section| section.rows.push(row));
        Ok(())
    }

    /// A figure without a peer, of the rounds that count.
    pub fn single(
        &self,
        name: &str,
        values: &[f64],
        unit: &str,
        target: Target,
        tally: &Tally,
    ) -> Result<()> {
        self.row(Row {
            name: name.into(),
            unit: unit.into(),
            ours: values.to_vec(),
            peer: None,
            target,
            tally: tally.clone(),
        })
    }

    /// A table, after the part's rows.
    pub fn table(&self, table: Table) {
        println!("\n{}\n\n| {} |", table.title, table.head.join(" | "));
        println!("|{}", "---|".repeat(table.head.len()));
        for row in &table.rows {
            println!("| {} |", row.join(" | "));
        }
        println!();
        self.change(|section| section.tables.push(table));
    }

    /// A sentence about the part.
    pub fn note(&self, text: &str) {
        println!("\n{text}\n");
        self.change(|section| section.notes.push(text.into()));
    }

    /// Everything so far.
    pub fn sections(&self) -> Vec<Section> {
        self.sections.borrow().clone()
    }
}

fn number(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Three rounds beside a peer.
    pub fn pair() -> Row {
        Row {
            name: "4 KiB write".into(),
            unit: "IOPS".into(),
            ours: vec![900.0, 1100.0, 1300.0],
            peer: Some(("qemu-nbd".into(), vec![1000.0, 1000.0, 1000.0])),
            target: Some((1.2, true)),
            tally: Tally { quiet: vec![0.01; 3], busy: Vec::new(), lost: 0 },
        }
    }

    #[test]
    fn verdicts() {
        let row = pair();
        assert_eq!((row.judged(), row.verdict()), (Some(1.1), Verdict::Missed));
        assert_eq!(
            row.text(),
            "| 4 KiB write | 1100 IOPS | qemu-nbd: 1000 IOPS | 1.10 | ≥ 1.20 × **missed** |"
        );
        let met = Row { target: Some((1.1, true)), ..pair() };
        assert_eq!(met.verdict(), Verdict::Met);
        let open = Row { target: None, ..pair() };
        assert_eq!(open.verdict(), Verdict::Open);
        let nothing = Row { ours: Vec::new(), ..pair() };
        assert_eq!((nothing.judged(), nothing.verdict()), (None, Verdict::Missed));
        let no_number = Row { ours: vec![f64::NAN], ..pair() };
        assert_eq!(no_number.verdict(), Verdict::Missed);
        let alone = Row { peer: None, target: Some((1000.0, false)), ..pair() };
        assert_eq!(alone.verdict(), Verdict::Missed);
        assert_eq!(alone.text(), "| 4 KiB write | 1100 IOPS |  |  | ≤ 1000 IOPS **missed** |");
    }

    #[test]
    fn no_ratio_of_a_busy_machine() {
        let tally = Tally { quiet: vec![0.05], busy: vec![0.2, 0.4], lost: 2 };
        let row = Row { ours: vec![5000.0], tally, ..pair() };
        assert_eq!((row.judged(), row.verdict()), (None, Verdict::Busy(0.30000000000000004)));
        assert_eq!(row.text(), "| 4 KiB write | machine was busy (30 % of it) |");
        assert!(row.json()["ratio"].is_null());
    }

    #[test]
    fn sections() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let report = Report::new(Some(path.clone()));
        report.begin("host", "Writes.");
        report.row(pair()).unwrap();
        report.single("memory", &[3.0, 5.0, 4.0], "MiB", None, &Tally::default()).unwrap();
        report.end(2.0, Some("it broke".into()));
        report.begin("flush", "Flushes.");
        report.table(Table { title: "t".into(), head: vec!["a".into()], rows: Vec::new() });
        let found = report.sections();
        assert_eq!((found.len(), found[0].rows.len(), found[1].tables.len()), (2, 2, 1));
        assert_eq!(found[0].error.as_deref(), Some("it broke"));
        let lines = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["ratio"], &lines[1]["value"]), (&1.1.into(), &4.0.into()));
    }
}
