//! Plots as SVG: lines over a linear or logarithmic axis with the spread of their points, and bars.
//!
//! A plot is a picture on its own. It names fonts by family with fallbacks, has fixed colors, and
//! loads nothing. A subject has the same color in every plot.

mod axis;
mod bars;
mod strips;

pub use bars::{Bar, bars};
pub use strips::{Strip, strips};

use axis::Axis;
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
/// Room for the y axis, and at the right edge.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 54.0;
const BODY: f64 = 300.0;

/// Okabe and Ito's colors, which people with any vision can tell apart, darkest first.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444444"];
/// The peers.
const GREY: &str = "#8a8f98";

/// A point with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Where.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// The least and the largest.
    pub range: (f64, f64),
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Measured: the number of its color, and of its dashes and marks.
    Measured(usize, usize),
    /// Somebody else's figures.
    Paper(usize),
    /// A bound.
    Bound,
    /// Over time, without marks.
    Time(usize),
}

/// A line.
#[derive(Clone, Debug)]
pub struct Trace {
    /// For the legend.
    pub label: String,
    /// How it looks.
    pub look: Look,
    /// In the order of x.
    pub spots: Vec<Spot>,
}

/// A plot with two axes.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// Beside the x axis.
    pub x_label: String,
    /// Beside the y axis.
    pub y_label: String,
    /// Logarithmic axes, x and y.
    pub log: (bool, bool),
    /// Its lines, the first on top.
    pub traces: Vec<Trace>,
    /// Spans of x with a name: outages.
    pub spans: Vec<(f64, f64, String)>,
}

/// Text in XML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A position, with as many digits as can be seen.
fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// How wide text is, about.
fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// The beginning of a picture.
fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
         aria-label=\"{label}\" font-family=\"Inter, 'Helvetica Neue', Helvetica, 'DejaVu Sans', Arial, sans-serif\">\n\
         <rect width=\"{w}\" height=\"{h}\" rx=\"6\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"16\" font-weight=\"600\" fill=\"#1b1f24\">{label}</text>\n",
        w = at(width),
        h = at(height),
        label = escape(title)
    )
}

impl Look {
    fn colour(self) -> &'static str {
        match self {
            Look::Measured(colour, _) | Look::Time(colour) => COLOURS[colour % COLOURS.len()],
            Look::Paper(_) => GREY,
            Look::Bound => "#b42318",
        }
    }

    fn stroke(self) -> &'static str {
        match self {
            Look::Measured(_, 0) => "stroke-width=\"2.2\"",
            Look::Measured(_, 1) => "stroke-width=\"2.2\" stroke-dasharray=\"7 3\"",
            Look::Measured(_, _) => "stroke-width=\"2.2\" stroke-dasharray=\"2 3\"",
            Look::Paper(_) => "stroke-width=\"1.6\" stroke-dasharray=\"5 4\"",
            Look::Bound => "stroke-width=\"1.3\" stroke-dasharray=\"3 3\"",
            Look::Time(_) => "stroke-width=\"1.6\"",
        }
    }

    /// The mark of a point, if it has one.
    fn mark(self, x: f64, y: f64) -> Option<String> {
        let colour = self.colour();
        let (x_text, y_text) = (at(x), at(y));
        match self {
            Look::Measured(_, 0) => Some(format!(
                "<circle cx=\"{x_text}\" cy=\"{y_text}\" r=\"4\" fill=\"{colour}\" \
                 stroke=\"#fff\"/>"
            )),
            Look::Measured(..) => Some(format!(
                "<rect x=\"{}\" y=\"{}\" width=\"7\" height=\"7\" fill=\"{colour}\" \
                 stroke=\"#fff\"/>",
                at(x - 3.5),
                at(y - 3.5)
            )),
            Look::Paper(which) => {
                let d = 4.5;
                let shape = match which % 2 {
                    0 => [(0.0, -d), (d, 0.0), (0.0, d), (-d, 0.0)],
                    _ => [(-d, d), (0.0, -d), (d, d), (d, d)],
                };
                let points: Vec<String> =
                    shape.iter().map(|(dx, dy)| format!("{},{}", at(x + dx), at(y + dy))).collect();
                let points = points.join(" ");
                Some(format!(
                    "<polygon points=\"{points}\" fill=\"#fff\" stroke=\"{colour}\" \
                     stroke-width=\"1.4\"/>"
                ))
            }
            Look::Bound | Look::Time(_) => None,
        }
    }
}

impl Chart {
    /// Whether there is anything to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.traces.iter().all(|trace| trace.look == Look::Bound || trace.spots.is_empty())
    }

    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let rows = self.legend();
        let top = 52.0 + 20.0 * rows.len() as f64;
        let height = top + BODY + BOTTOM;
        let spots = || self.traces.iter().flat_map(|trace| &trace.spots);
        let xs: Vec<f64> = spots().map(|spot| spot.x).collect();
        let ys: Vec<f64> = spots().flat_map(|spot| [spot.y, spot.range.0, spot.range.1]).collect();
        let x = Axis::new(&xs, self.log.0, (LEFT, WIDTH - RIGHT));
        let timed = self.traces.iter().any(|trace| matches!(trace.look, Look::Time(_)));
        let x = if timed { x.starting_at_zero() } else { x.at_values(&xs) };
        let y = Axis::new(&ys, self.log.1, (top + BODY, top)).starting_at_zero();
        let mut out = open(WIDTH, height, &self.title);
        self.draw_legend(&mut out, &rows);
        self.draw_axes(&mut out, &x, &y, top);
        for (from, to, name) in &self.spans {
            let (left, right) = (x.place(*from), x.place(*to));
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#b42318\" \
                 fill-opacity=\"0.08\"/><text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"#b42318\" \
                 text-anchor=\"middle\">{}</text>",
                at(left),
                at(top),
                at((right - left).max(0.0)),
                at(BODY),
                at(f64::midpoint(left, right)),
                at(top + 14.0),
                escape(name)
            );
        }
        for trace in self.traces.iter().rev() {
            draw(&mut out, trace, &x, &y);
        }
        out.push_str("</svg>\n");
        out
    }

    /// The traces' numbers, by row of the legend.
    fn legend(&self) -> Vec<Vec<usize>> {
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut used = f64::INFINITY;
        for (number, trace) in self.traces.iter().enumerate() {
            let width = 44.0 + width_of(&trace.label, 12.0);
            if used + width > WIDTH - 40.0 {
                rows.push(Vec::new());
                used = 0.0;
            }
            used += width;
            if let Some(row) = rows.last_mut() {
                row.push(number);
            }
        }
        rows
    }

    fn draw_legend(&self, out: &mut String, rows: &[Vec<usize>]) {
        for (row, traces) in rows.iter().enumerate() {
            let y = 52.0 + 20.0 * row as f64;
            let mut x = 20.0;
            for trace in traces.iter().map(|number| &self.traces[*number]) {
                let _ = write!(
                    out,
                    "<line x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{}\" {}/>",
                    at(x),
                    at(x + 24.0),
                    trace.look.colour(),
                    trace.look.stroke(),
                );
                out.push_str(&trace.look.mark(x + 12.0, y).unwrap_or_default());
                let _ = writeln!(
                    out,
                    "<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"#3d444d\">{}</text>",
                    at(x + 30.0),
                    at(y + 4.0),
                    escape(&trace.label)
                );
                x += 44.0 + width_of(&trace.label, 12.0);
            }
        }
    }

    fn draw_axes(&self, out: &mut String, x: &Axis, y: &Axis, top: f64) {
        let floor = top + BODY;
        for (value, text) in y.ticks() {
            let place = at(y.place(value));
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{place}\" x2=\"{}\" y2=\"{place}\" \
                 stroke=\"#e4e7eb\"/><text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"#57606a\" \
                 text-anchor=\"end\">{text}</text>",
                at(WIDTH - RIGHT),
                at(LEFT - 8.0),
                at(y.place(value) + 4.0),
            );
        }
        for (value, text) in x.ticks() {
            let place = at(x.place(value));
            let _ = writeln!(
                out,
                "<line x1=\"{place}\" y1=\"{}\" x2=\"{place}\" y2=\"{}\" stroke=\"#8c959f\"/><text \
                 x=\"{place}\" y=\"{}\" font-size=\"11\" fill=\"#57606a\" \
                 text-anchor=\"middle\">{text}</text>",
                at(floor),
                at(floor + 5.0),
                at(floor + 19.0),
            );
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{f}\" x2=\"{}\" y2=\"{f}\" stroke=\"#8c959f\"/><text \
             x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"#3d444d\" \
             text-anchor=\"middle\">{}</text><text transform=\"translate(18 {}) rotate(-90)\" \
             font-size=\"12\" fill=\"#3d444d\" text-anchor=\"middle\">{}</text>",
            at(WIDTH - RIGHT),
            at(middle),
            at(floor + 40.0),
            escape(&self.x_label),
            at(top + BODY / 2.0),
            escape(&self.y_label),
            f = at(floor),
        );
    }
}

fn draw(out: &mut String, trace: &Trace, x: &Axis, y: &Axis) {
    let places: Vec<(f64, f64)> =
        trace.spots.iter().map(|spot| (x.place(spot.x), y.place(spot.y))).collect();
    let colour = trace.look.colour();
    let line: Vec<String> = places.iter().map(|(x, y)| format!("{},{}", at(*x), at(*y))).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-linejoin=\"round\" {}/>",
        line.join(" "),
        trace.look.stroke()
    );
    for (spot, (px, py)) in trace.spots.iter().zip(&places) {
        let (low, high) = (y.place(spot.range.0), y.place(spot.range.1));
        if (low - high).abs() > 3.0 {
            let _ = write!(
                out,
                "<path d=\"M{x} {low}V{high}M{l} {low}H{r}M{l} {high}H{r}\" stroke=\"{colour}\" \
                 stroke-opacity=\"0.55\" fill=\"none\"/>",
                x = at(*px),
                l = at(px - 4.0),
                r = at(px + 4.0),
                low = at(low),
                high = at(high),
            );
        }
        out.push_str(&trace.look.mark(*px, *py).unwrap_or_default());
    }
    out.push('\n');
}

#[cfg(test)]
mod tests;
