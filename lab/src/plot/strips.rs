//! Strips: for each measurement the rounds of ours above those of the peer, with medians and bound.

use super::{COLOURS, GREY, WIDTH, at, escape, open, width_of};
use crate::results::number;
use crate::stats::median;
use std::fmt::Write as _;

/// One measurement.
#[derive(Clone, Debug, Default)]
pub struct Strip {
    /// Beside it.
    pub label: String,
    /// The peer, below that.
    pub peer: String,
    /// The unit of the values.
    pub unit: String,
    /// Ours, by round.
    pub ours: Vec<f64>,
    /// The peer's, by round.
    pub theirs: Vec<f64>,
    /// Where the target is, on the scale of the values.
    pub bound: Option<f64>,
}

/// The width of the labels, and of the numbers at the right edge.
const LABELS: f64 = 330.0;
const NUMBERS: f64 = 110.0;
const LABEL_SIZE: f64 = 11.0;
const ROW: f64 = 34.0;
const BEGIN: f64 = 46.0;

/// Strips as a picture. Each has a scale of its own, from zero.
#[must_use]
pub fn strips(title: &str, list: &[Strip]) -> String {
    let height = BEGIN + ROW * list.len() as f64 + 24.0;
    let mut out = open(WIDTH, height, title);
    for (row, strip) in list.iter().enumerate() {
        let top = BEGIN + ROW * row as f64;
        let all = strip.ours.iter().chain(&strip.theirs).chain(&strip.bound);
        let most = all.copied().filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
        let place = |value: f64| LABELS + value / most * (WIDTH - LABELS - NUMBERS);
        for (text, y, colour) in
            [(&strip.label, top + 12.0, "#3d444d"), (&strip.peer, top + 25.0, GREY)]
        {
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{}\" font-size=\"{LABEL_SIZE}\" fill=\"{colour}\" \
                 text-anchor=\"end\">{}</text>",
                at(LABELS - 10.0),
                at(y),
                escape(&shortened(text)),
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{LABELS}\" y1=\"{}\" x2=\"{LABELS}\" y2=\"{}\" stroke=\"#8c959f\"/>",
            at(top + 2.0),
            at(top + 28.0),
        );
        for (values, y, colour) in
            [(&strip.ours, top + 9.0, COLOURS[0]), (&strip.theirs, top + 22.0, GREY)]
        {
            draw(&mut out, values, &strip.unit, y, colour, &place);
        }
        if let Some(bound) = strip.bound.filter(|bound| bound.is_finite()) {
            let x = at(place(bound));
            let _ = writeln!(
                out,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"#b42318\" \
                 stroke-width=\"1.5\" stroke-dasharray=\"3 2\"/>",
                at(top + 1.0),
                at(top + 29.0),
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"20\" y=\"{}\" font-size=\"11\" fill=\"#57606a\">Points are rounds, strokes \
         medians: longhaul blue, the peer grey; red is the target. Each row has its own \
         scale.</text>\n</svg>",
        at(height - 8.0)
    );
    out
}

fn draw(
    out: &mut String,
    values: &[f64],
    unit: &str,
    y: f64,
    colour: &str,
    place: &dyn Fn(f64) -> f64,
) {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let (Some(least), Some(most)) =
        (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max))
    else {
        return;
    };
    let _ = write!(
        out,
        "<line x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" \
         stroke-width=\"2\" stroke-opacity=\"0.45\"/>",
        at(place(least)),
        at(place(most)),
        y = at(y),
    );
    for value in &values {
        let _ = write!(
            out,
            "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{colour}\" fill-opacity=\"0.6\"/>",
            at(place(*value)),
            at(y)
        );
    }
    let middle = median(&values);
    let x = at(place(middle));
    let _ = writeln!(
        out,
        "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"{colour}\" \
         stroke-width=\"2.5\"/><text x=\"{}\" y=\"{}\" font-size=\"11\" \
         fill=\"{colour}\">{} {}</text>",
        at(y - 6.0),
        at(y + 6.0),
        at(WIDTH - NUMBERS + 12.0),
        at(y + 4.0),
        number(middle),
        escape(unit),
    );
}

/// As much of a label as there is room for.
fn shortened(label: &str) -> String {
    if width_of(label, LABEL_SIZE) <= LABELS - 20.0 {
        return label.to_owned();
    }
    let room = ((LABELS - 20.0) / width_of("x", LABEL_SIZE)) as usize;
    label.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture() {
        let strip = Strip {
            label: "4 KiB <write>".into(),
            peer: "tgt".into(),
            unit: "IOPS".into(),
            ours: vec![100.0, 300.0, 200.0],
            theirs: vec![400.0, f64::NAN],
            bound: Some(400.0),
        };
        let nothing = Strip { label: "x".repeat(200), ..Strip::default() };
        let svg = strips("Host", &[strip, nothing]);
        for part in ["4 KiB &lt;write&gt;", ">tgt<", ">200 IOPS<", ">400 IOPS<", "xxx…"] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert!(!svg.contains("NaN"));
        assert_eq!(svg.matches("<circle").count(), 4);
    }
}
