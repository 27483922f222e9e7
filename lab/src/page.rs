//! The report of the benchmarks: one HTML file that loads nothing.

use crate::plot::{Strip, escape, strips};
use crate::report::{Row, Section, Table, Verdict, busy_text};
use crate::results::number;
use crate::rounds::Rounds;
use crate::stats::median;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const STYLE: &str = include_str!("report.css");

/// How the measurements were made.
pub struct Facts {
    /// When they began, for a person.
    pub started: String,
    /// The machine: a fact and its value.
    pub machine: BTreeMap<String, String>,
    /// Program → version.
    pub versions: BTreeMap<String, String>,
    /// The rules of the rounds.
    pub rounds: Rounds,
    /// The command.
    pub command: String,
    /// Parts that time ran out for.
    pub left_out: Vec<String>,
}

/// The page.
#[must_use]
pub fn page(facts: &Facts, sections: &[Section]) -> String {
    let limit = facts.rounds.limit * 100.0;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>longhaul benchmarks</title>\
         <style>{STYLE}</style></head><body><main>\n<h1>longhaul benchmarks</h1>\n<p>{}. Subjects \
         take turns in each round. Figures are medians over the rounds that count, with the least \
         and the largest round in brackets. A ratio is the median of the rounds' ratios.</p>\n\
         <p>A round counts if other programs and the hypervisor took at most <b>{limit:.0} %</b> \
         of the machine's processor time meanwhile. A busier one is repeated up to {} times. With \
         fewer than half of the rounds a row has no figures and no ratio.</p>\n",
        escape(&facts.started),
        facts.rounds.retries
    );
    out.push_str(&summary(facts, sections));
    for (title, list) in
        [("Machine", &facts.machine), ("Versions of product and peers", &facts.versions)]
    {
        let _ = writeln!(out, "<h2>{title}</h2>\n<dl>");
        for (key, value) in list {
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(key), escape(value));
        }
        out.push_str("</dl>\n");
    }
    let _ = writeln!(out, "<p class=\"model\">{}</p>", escape(&facts.command));
    for section in sections {
        out.push_str(&self::section(section));
    }
    out.push_str("</main></body></html>\n");
    out
}

/// How many targets hold, and which do not.
fn summary(facts: &Facts, sections: &[Section]) -> String {
    let rows = || sections.iter().flat_map(|section| &section.rows);
    let count = |wanted: fn(Verdict) -> bool| rows().filter(|row| wanted(row.verdict())).count();
    let (met, missed, busy) = (
        count(|verdict| verdict == Verdict::Met),
        count(|verdict| verdict == Verdict::Missed),
        count(|verdict| matches!(verdict, Verdict::Busy(_))),
    );
    let mut out = format!(
        "<h2>Targets</h2>\n<p>{met} {}, {missed} {}, {busy} {} because the machine was busy.</p>\n",
        badge("met"),
        badge("missed"),
        badge("not measured")
    );
    let failed =
        sections.iter().filter_map(|section| Some((&section.name, section.error.as_ref()?)));
    for (name, error) in failed {
        let _ = writeln!(
            out,
            "<p>{} <a href=\"#{0}\">{1}</a>: {2}</p>",
            badge("failed"),
            escape(name),
            escape(error)
        );
    }
    if !facts.left_out.is_empty() {
        let names = facts.left_out.join(", ");
        let _ = writeln!(out, "<p>No time was left for: {}.</p>", escape(&names));
    }
    out.push_str(
        "<table><thead><tr><th>part</th><th>target</th><th>measured</th><th>wanted</th><th></th>\
         </tr></thead><tbody>\n",
    );
    for section in sections {
        for row in section.rows.iter().filter(|row| row.target.is_some()) {
            let against = row.peer.as_ref().map_or(String::new(), |(peer, _)| format!(" / {peer}"));
            let measured = row.judged().map_or("–".into(), |value| match &row.peer {
                Some(_) => format!("{value:.2} ×"),
                None => format!("{} {}", number(value), row.unit),
            });
            let _ = writeln!(
                out,
                "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td class=\"n\">{2}</td><td \
                 class=\"n\">{3}</td><td>{4}</td></tr>",
                escape(&section.name),
                escape(&format!("{}{against}", row.name)),
                escape(&measured),
                escape(&row.target_text()),
                verdict(row)
            );
        }
    }
    out.push_str("</tbody></table>\n");
    out
}

fn badge(word: &str) -> String {
    format!("<span class=\"{}\">{word}</span>", word.replace(' ', "-"))
}

fn verdict(row: &Row) -> String {
    match row.verdict() {
        Verdict::Met => badge("met"),
        Verdict::Missed => badge("missed"),
        Verdict::Open => String::new(),
        Verdict::Busy(share) => format!("{} {}", badge("not measured"), busy_text(share)),
    }
}

/// The median with the least and the largest value.
fn spread(values: &[f64], unit: &str) -> String {
    let (Some(least), Some(most)) =
        (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max))
    else {
        return "–".into();
    };
    let middle = number(median(values));
    let middle = format!("{middle} {unit}");
    let middle = escape(middle.trim());
    if values.len() == 1 {
        return middle;
    }
    format!("{middle} ({}–{})", number(least), number(most))
}

fn section(section: &Section) -> String {
    let mut out = format!(
        "<section id=\"{0}\"><h2>{0}</h2>\n<p>{1} It took {2:.0} s.</p>\n",
        escape(&section.name),
        escape(&section.about),
        section.seconds
    );
    if let Some(error) = &section.error {
        let _ = writeln!(out, "<p>{} {}</p>", badge("failed"), escape(error));
    }
    let shown: Vec<Strip> = section.rows.iter().filter_map(strip).collect();
    if !shown.is_empty() {
        let _ = writeln!(out, "<figure>{}</figure>", strips(&section.name, &shown));
    }
    if !section.rows.is_empty() {
        out.push_str(
            "<div class=\"wide\"><table><thead><tr><th>what</th><th>rounds</th><th>longhaul</th>\
             <th>peer</th><th></th><th>ratio</th><th>target</th><th></th><th>others took</th></tr>\
             </thead><tbody>\n",
        );
        for row in &section.rows {
            out.push_str(&self::row(row));
        }
        out.push_str("</tbody></table></div>\n");
    }
    for table in &section.tables {
        out.push_str(&self::table(table));
    }
    for note in &section.notes {
        let _ = writeln!(out, "<p>{}</p>", escape(note));
    }
    out.push_str("</section>\n");
    out
}

/// A row's picture; none of a busy machine.
fn strip(row: &Row) -> Option<Strip> {
    row.judged()?;
    let (peer, theirs) = row.peer.clone().unwrap_or_default();
    let scale = if row.peer.is_some() { median(&theirs) } else { 1.0 };
    Some(Strip {
        label: row.name.clone(),
        peer,
        unit: row.unit.clone(),
        ours: row.ours.clone(),
        theirs,
        bound: row.target.map(|(bound, _)| bound * scale),
    })
}

fn row(row: &Row) -> String {
    let tally = &row.tally;
    let percent = |shares: &[f64]| {
        let most = shares.iter().copied().reduce(f64::max);
        most.map_or(String::new(), |most| format!("≤ {:.0} %", most * 100.0))
    };
    let quiet = row.tally.too_busy().is_none();
    let (peer, theirs) =
        row.peer.as_ref().map_or(("", &[][..]), |(peer, theirs)| (peer.as_str(), &theirs[..]));
    let shown = |values: &[f64], unit: &str| {
        if quiet { spread(values, unit) } else { "–".into() }
    };
    let theirs = if row.peer.is_some() { shown(theirs, &row.unit) } else { String::new() };
    let ratio = if row.peer.is_some() { shown(&row.ratios(), "") } else { String::new() };
    let repeated =
        if tally.busy.is_empty() { String::new() } else { format!(", {} busy", tally.busy.len()) };
    format!(
        "<tr><td>{}</td><td class=\"n\">{}{repeated}</td><td class=\"n\">{}</td><td>{}</td><td \
         class=\"n\">{theirs}</td><td class=\"n\">{ratio}</td><td class=\"n\">{}</td>\
         <td>{}</td><td class=\"n\">{}</td></tr>\n",
        escape(&row.name),
        row.ours.len(),
        shown(&row.ours, &row.unit),
        escape(peer),
        escape(&row.target_text()),
        verdict(row),
        percent(&tally.quiet),
    )
}

fn table(table: &Table) -> String {
    let cells = |cells: &[String], tag: &str| {
        cells.iter().fold(String::new(), |mut out, cell| {
            let _ = write!(out, "<{tag}>{}</{tag}>", escape(cell));
            out
        })
    };
    let mut out = format!(
        "<h3>{}</h3><table><thead><tr>{}</tr></thead><tbody>\n",
        escape(&table.title),
        cells(&table.head, "th")
    );
    for row in &table.rows {
        let _ = writeln!(out, "<tr>{}</tr>", cells(row, "td"));
    }
    out.push_str("</tbody></table>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::pair;
    use crate::rounds::Tally;
    use std::time::Instant;

    #[test]
    fn everything_is_in_it() {
        let facts = Facts {
            started: "Monday".into(),
            machine: [("kernel".into(), "6.1 <x>".into())].into(),
            versions: [("fio".into(), "fio-3.33".into())].into(),
            rounds: Rounds { wanted: 3, retries: 2, limit: 0.1, deadline: Instant::now() },
            command: "longhaul-lab bench".into(),
            left_out: vec!["recovery".into()],
        };
        let busy = Row {
            name: "busy row".into(),
            ours: vec![123_456.0],
            tally: Tally { quiet: vec![0.0], busy: vec![0.3, 0.3], lost: 2 },
            ..pair()
        };
        let alone = Row { name: "alone".into(), peer: None, target: None, ..pair() };
        let host = Section {
            name: "host".into(),
            about: "Writes.".into(),
            rows: vec![pair(), busy, alone],
            tables: vec![Table {
                title: "threads".into(),
                head: vec!["name".into()],
                rows: vec![vec!["front & more".into()]],
            }],
            ..Section::default()
        };
        let broken =
            Section { name: "flush".into(), error: Some("gone".into()), ..Section::default() };
        let page = page(&facts, &[host, broken]);
        for part in [
            "at most <b>10 %</b>",
            "0 <span class=\"met\">met</span>, 1 <span class=\"missed\">missed</span>, 1 <span",
            "1100 IOPS (900–1300)",
            "1.100 (0.900–1.300)",
            "machine was busy (30 % of it)",
            "<td>front &amp; more</td>",
            "<dd>6.1 &lt;x&gt;</dd>",
            "fio-3.33",
            "No time was left for: recovery.",
            "gone",
            "<svg ",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        // A busy row shows no figure, and nothing is loaded from elsewhere.
        for absent in ["123456", "src=", "href=\"http", "@import", "url("] {
            assert!(!page.contains(absent), "{absent}");
        }
    }
}
