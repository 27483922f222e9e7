//! How commands print: data to stdout, as a table or as JSON; everything else to stderr.

use anyhow::{Context as _, Result};
use longhaul_base::text::{self, tell};
use serde_json::Value;
use std::io::Write as _;

pub(crate) fn done(json: bool, message: &str) -> Result<()> {
    if json {
        return print("{}\n");
    }
    tell(message);
    Ok(())
}

/// Data, to stdout.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to stdout")
}

pub(crate) fn pretty(value: &Value) -> Result<String> {
    Ok(text::json(&serde_json::to_string_pretty(value)?) + "\n")
}

pub(crate) fn fields(all: &[(&str, String)]) -> String {
    all.iter().map(|(name, value)| format!("{name:<12} {}\n", text::escaped(value))).collect()
}

pub(crate) fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let clean = |row: Vec<String>| row.iter().map(|cell| text::escaped(cell)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(clean).collect();
    let mut widths: Vec<usize> = head.iter().map(String::len).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A progress bar on a terminal, nothing elsewhere.
pub(crate) fn progress(total: u64, wanted: bool) -> indicatif::ProgressBar {
    use std::io::IsTerminal as _;
    if !wanted || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(total);
    let template = "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A sign that something is being waited for on a terminal, nothing elsewhere.
pub(crate) fn waiting(wanted: bool) -> indicatif::ProgressBar {
    use std::io::IsTerminal as _;
    if !wanted || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let sign = indicatif::ProgressBar::new_spinner();
    sign.enable_steady_tick(std::time::Duration::from_millis(100));
    sign
}
