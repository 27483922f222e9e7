//! Medians, ratios, and their presentation.

use crate::stats::median;
use anyhow::Result;
use std::io::Write as _;
use std::path::PathBuf;

/// A figure that was compared, round by round.
pub struct Pair {
    /// What was measured.
    pub name: String,
    /// In which unit.
    pub unit: &'static str,
    /// Who else.
    pub peer: String,
    /// Ours, a value a round.
    pub ours: Vec<f64>,
    /// The peer's, a value a round.
    pub theirs: Vec<f64>,
    /// The target for the ratio ours/theirs, and whether more is better.
    pub target: Option<(f64, bool)>,
}

/// Where results go: standard output and, if asked for, a file of JSON lines.
pub struct Report {
    json: Option<PathBuf>,
}

impl Report {
    /// A report that also appends to `json`.
    pub fn new(json: Option<PathBuf>) -> Report {
        println!("| what | longhaul | peer | ratio (median of rounds) | target |");
        println!("|---|---|---|---|---|");
        Report { json }
    }

    /// A row for a comparison.
    pub fn pair(&self, pair: &Pair) -> Result<()> {
        let ratios: Vec<f64> = pair.ours.iter().zip(&pair.theirs).map(|(a, b)| a / b).collect();
        let ratio = median(&ratios);
        let target = match pair.target {
            None => String::new(),
            Some((target, more)) => {
                let met = if more { ratio >= target } else { ratio <= target };
                let sign = if more { "≥" } else { "≤" };
                format!("{sign} {target:.2} {}", if met { "met" } else { "**missed**" })
            }
        };
        println!(
            "| {} | {} {} | {}: {} {} | {ratio:.2} | {target} |",
            pair.name,
            number(median(&pair.ours)),
            pair.unit,
            pair.peer,
            number(median(&pair.theirs)),
            pair.unit,
        );
        self.line(&serde_json::json!({
            "what": pair.name, "unit": pair.unit, "peer": pair.peer,
            "ours": pair.ours, "theirs": pair.theirs, "ratio": ratio,
        }))
    }

    /// A row for a figure without a peer.
    pub fn single(
        &self,
        name: &str,
        value: f64,
        unit: &str,
        target: Option<(f64, bool)>,
    ) -> Result<()> {
        let shown = match target {
            None => String::new(),
            Some((target, more)) => {
                let met = if more { value >= target } else { value <= target };
                let sign = if more { "≥" } else { "≤" };
                format!(
                    "{sign} {} {unit} {}",
                    number(target),
                    if met { "met" } else { "**missed**" }
                )
            }
        };
        println!("| {name} | {} {unit} | | | {shown} |", number(value));
        self.line(&serde_json::json!({ "what": name, "unit": unit, "value": value }))
    }

    fn line(&self, value: &serde_json::Value) -> Result<()> {
        if let Some(path) = &self.json {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{value}")?;
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
