//! Horizontal bars with their values.

use super::{COLOURS, GREY, WIDTH, at, escape, open, width_of};
use crate::results::number;
use std::fmt::Write as _;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Beside it.
    pub label: String,
    /// How long it is.
    pub value: f64,
    /// The number of its color; none for peers.
    pub colour: Option<usize>,
}

/// Bars as a picture.
#[must_use]
pub fn bars(title: &str, unit: &str, list: &[Bar]) -> String {
    const ROW: f64 = 26.0;
    let height = 56.0 + ROW * list.len() as f64 + 10.0;
    let left = list.iter().map(|bar| width_of(&bar.label, 12.0)).fold(60.0, f64::max) + 30.0;
    let most = list.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = open(WIDTH, height, title);
    for (row, bar) in list.iter().enumerate() {
        let y = 52.0 + ROW * row as f64;
        let width = (bar.value / most * (WIDTH - left - 110.0)).max(1.0);
        let colour = bar.colour.map_or(GREY, |number| COLOURS[number % COLOURS.len()]);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"#3d444d\" \
             text-anchor=\"end\">{}</text><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"16\" \
             rx=\"2\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\" font-size=\"12\" \
             fill=\"#3d444d\">{} {}</text>",
            at(left - 8.0),
            at(y + 12.0),
            escape(&bar.label),
            at(left),
            at(y),
            at(width),
            at(left + width + 6.0),
            at(y + 12.0),
            number(bar.value),
            escape(unit),
        );
    }
    out.push_str("</svg>\n");
    out
}
