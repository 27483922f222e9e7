//! The report: one HTML file with everything in it, and the plots as SVG and PNG beside it.

use crate::charts::{Picture, pictures, stage_medians};
use crate::model;
use crate::papers;
use crate::plot::escape;
use crate::results::{Results, label, load, number};
use crate::scenario::{Scenario, Subject, axis_number, short};
use crate::stages::missing;
use crate::verdict::{Verdict, concerns, verdicts};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const STYLE: &str = include_str!("report.css");

/// Figures that a table shows, in this order, if they exist.
const FIGURES: [(&str, &str); 16] = [
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("p999_ms", "p99.9 ms"),
    ("max_ms", "max ms"),
    ("iops", "IOPS"),
    ("mb_per_s", "MB/s"),
    ("whole_mb_per_s", "MB/s, whole"),
    ("transactions_per_s", "transactions/s"),
    ("alone_p99_ms", "p99 ms alone"),
    ("beside_p99_ms", "p99 ms beside a drain"),
    ("p99_ratio", "ratio"),
    ("drain_mb_per_s", "drain MB/s"),
    ("cubic_mb_per_s", "TCP cubic MB/s"),
    ("jain", "Jain"),
    ("queue_loss", "queue loss"),
    ("host_memory_mib", "host MiB"),
];

/// Writes `report.html`, and the plots of each scenario as `NAME-PLOT.svg` and, if `rsvg-convert`
/// is there, `.png`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(scenarios: &[Scenario], out: &Path) -> Result<()> {
    let (mut sections, mut summary) = (String::new(), String::new());
    let mut about: BTreeMap<String, String> = BTreeMap::new();
    for scenario in scenarios {
        let records = load(&out.join(format!("{}.jsonl", scenario.name)))?;
        let results = Results { scenario, records: &records };
        let pictures = pictures(results);
        for picture in &pictures {
            let path = out.join(format!("{}-{}.svg", scenario.name, picture.name));
            std::fs::write(&path, &picture.svg)?;
            crate::run::to_png(&path);
        }
        if let Some(record) = records.last() {
            about.extend(record.machine.clone());
            about.extend(record.versions.clone());
        }
        let verdicts = verdicts(results);
        summary.push_str(&summarise(scenario, &verdicts));
        sections.push_str(&section(results, &verdicts, &pictures));
    }
    let facts: Vec<String> = about
        .iter()
        .map(|(key, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(key), escape(value)))
        .collect();
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>longhaul laboratory</title><style>{STYLE}</style></head><body><main>\n\
         <h1>longhaul laboratory</h1>\n<p>Medians over valid rounds; subjects take turns in each round. Bars at points \
         are the least and the largest of the rounds. Grey is what FAST 2002 printed. A run that the emulator could not \
         keep up with does not count.</p>\n<h2>Targets</h2>\n<table><thead><tr><th>scenario</th><th>target</th>\
         <th>outcome</th></tr></thead><tbody>\n{summary}</tbody></table>\n{sections}\
         <h2>Measured with</h2>\n<dl>{}</dl>\n</main></body></html>\n",
        facts.join("\n")
    );
    std::fs::write(out.join("report.html"), page)?;
    Ok(())
}

fn badge(word: &str) -> String {
    format!("<span class=\"{}\">{word}</span>", word.replace(' ', "-"))
}

/// A row for each target of a scenario.
fn summarise(scenario: &Scenario, verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    for assert in &scenario.base.asserts {
        let all: Vec<&Verdict> =
            verdicts.iter().filter(|verdict| verdict.name == assert.name).collect();
        let count = |word: &str| all.iter().filter(|verdict| verdict.word() == word).count();
        let outcome = match (count("missed"), count("not measured")) {
            (0, 0) => badge("met"),
            (0, some) => format!("{} at {some} of {}", badge("not measured"), all.len()),
            (missed, _) => format!("{} at {missed} of {}", badge("missed"), all.len()),
        };
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{outcome}</td></tr>",
            escape(&scenario.name),
            escape(&assert.name)
        );
    }
    out
}

fn section(results: Results<'_>, verdicts: &[Verdict], pictures: &[Picture]) -> String {
    let scenario = results.scenario;
    let mut out = format!(
        "<section id=\"{}\"><h2>{}</h2>\n<p>{}</p>\n",
        escape(&scenario.name),
        escape(&scenario.base.title),
        escape(scenario.base.about.trim())
    );
    for picture in pictures {
        let _ = writeln!(out, "<figure>{}</figure>", picture.svg);
    }
    if !verdicts.is_empty() {
        out.push_str(
            "<table><thead><tr><th>target</th><th>at</th><th>measured</th><th>wanted</th><th></th></tr></thead><tbody>\n",
        );
        for verdict in verdicts {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td \
                 class=\"n\">{}</td><td>{}</td></tr>",
                escape(&verdict.name),
                escape(&verdict.point),
                verdict.value.map_or("–".into(), number),
                verdict.bound_text(),
                badge(verdict.word())
            );
        }
        out.push_str("</tbody></table>\n");
    }
    out.push_str(&medians(results));
    out.push_str(&beside_the_paper(results));
    for line in model::text(results) {
        let _ = writeln!(out, "<p class=\"model\">{}</p>", escape(&line));
    }
    out.push_str(&stages(results));
    out.push_str(&invalid(results));
    let _ = writeln!(
        out,
        "<details><summary>{}.toml</summary><pre>{}</pre></details></section>",
        escape(&scenario.name),
        escape(&scenario.text)
    );
    out
}

/// The medians of all figures that tell something, by point and subject.
fn medians(results: Results<'_>) -> String {
    let scenario = results.scenario;
    let measured =
        |name: &str| results.records.iter().any(|record| record.figures.contains_key(name));
    let columns: Vec<(&str, &str)> =
        FIGURES.into_iter().filter(|(name, _)| measured(name)).collect();
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    for key in scenario.base.matrix.keys() {
        let _ = write!(out, "<th>{}</th>", escape(short(key)));
    }
    out.push_str("<th>subject</th><th>rounds</th>");
    for (_, title) in &columns {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for point in &scenario.points {
        for &subject in &scenario.base.subjects {
            let (all, valid) = results
                .at(&point.values, subject)
                .fold((0, 0), |(all, valid), record| (all + 1, valid + usize::from(record.valid)));
            if all == 0 {
                continue;
            }
            out.push_str(if subject.is_longhaul() { "<tr class=\"ours\">" } else { "<tr>" });
            for value in point.values.values() {
                let _ = write!(out, "<td>{}</td>", escape(&crate::scenario::axis_text(value)));
            }
            let _ = write!(out, "<td>{}</td><td class=\"n\">{valid}</td>", subject.name());
            for (name, _) in &columns {
                let value = results.median(&point.values, subject, name);
                let _ = write!(out, "<td class=\"n\">{}</td>", value.map_or(String::new(), number));
            }
            out.push_str("</tr>\n");
        }
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The paper's figures that a plot names, side by side with ours at the same x.
fn beside_the_paper(results: Results<'_>) -> String {
    let mut out = String::new();
    for plot in results.scenario.base.plots.iter().filter(|plot| !plot.paper.is_empty()) {
        let series: Vec<papers::Series> =
            plot.paper.iter().filter_map(|name| papers::series(name).ok()).collect();
        let subjects = &results.scenario.base.subjects;
        let _ =
            write!(out, "<h3>{}, beside the paper's</h3><table><thead><tr>", escape(&plot.title));
        let _ = write!(out, "<th>{}</th>", escape(short(&plot.x)));
        for subject in subjects {
            let _ = write!(out, "<th>{}</th>", subject.name());
        }
        for series in &series {
            let _ = write!(out, "<th>{}</th>", escape(&series.label));
        }
        out.push_str("</tr></thead><tbody>\n");
        let share = if short(&plot.x) == "load" { 100.0 } else { 1.0 };
        let shown = || results.scenario.points.iter().filter(|point| concerns(&plot.when, point));
        let Some(first) = shown().next().map(|point| &point.values) else { continue };
        for point in shown() {
            // Of several points with one x, the first.
            let same = |key: &String| *key == plot.x || point.values.get(key) == first.get(key);
            let Some(value) = point.values.get(&plot.x).filter(|_| point.values.keys().all(same))
            else {
                continue;
            };
            let _ = write!(out, "<tr><td>{}</td>", escape(&crate::scenario::axis_text(value)));
            for &subject in subjects {
                let median = results.median(&point.values, subject, &plot.y);
                let _ =
                    write!(out, "<td class=\"n\">{}</td>", median.map_or(String::new(), number));
            }
            let x = axis_number(value).map(|x| x * share);
            for series in &series {
                let found =
                    series.points.iter().find(|(at, _)| x.is_some_and(|x| (x - at).abs() < 1e-6));
                let _ = write!(
                    out,
                    "<td class=\"n\">{}</td>",
                    found.map_or(String::new(), |(_, y)| number(*y))
                );
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table>\n");
    }
    out
}

/// Where the time went, at every point.
fn stages(results: Results<'_>) -> String {
    let scenario = results.scenario;
    if !scenario.base.subjects.iter().any(|subject| subject.is_longhaul()) {
        return String::new();
    }
    let found: Vec<(String, Vec<(String, f64)>)> = scenario
        .points
        .iter()
        .map(|point| (label(&point.values), stage_medians(results, point, Subject::Longhaul)))
        .filter(|(_, stages)| !stages.is_empty())
        .collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in found.iter().flat_map(|(_, stages)| stages) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut out = String::new();
    if !found.is_empty() {
        out.push_str(
            "<h3>Where a request's time goes: mean µs by stage</h3><table><thead><tr><th>at</th>",
        );
        for name in &names {
            let _ = write!(out, "<th>{}</th>", escape(name));
        }
        out.push_str("</tr></thead><tbody>\n");
        for (point, stages) in &found {
            let _ = write!(out, "<tr><td>{}</td>", escape(point));
            for name in &names {
                let value =
                    stages.iter().find(|(other, _)| other == name).map(|(_, value)| number(*value));
                let _ = write!(out, "<td class=\"n\">{}</td>", value.unwrap_or_default());
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table>\n");
    }
    let absent = missing(names.iter().copied());
    if !absent.is_empty() {
        let _ =
            writeln!(out, "<p>Stages without a timer, or not passed: {}.</p>", absent.join(", "));
    }
    out
}

/// Runs that do not count, and why.
fn invalid(results: Results<'_>) -> String {
    let mut out = String::new();
    for record in results.records.iter().filter(|record| !record.valid) {
        let point: Vec<String> =
            record.point.iter().map(|(key, value)| format!("{}={value}", short(key))).collect();
        let _ = writeln!(
            out,
            "<li>round {}, {} {}: {}</li>",
            record.round,
            escape(&record.subject),
            escape(&point.join(", ")),
            escape(record.reason.as_deref().unwrap_or_default())
        );
    }
    if out.is_empty() {
        return out;
    }
    format!("<details><summary>Runs that do not count</summary><ul>\n{out}</ul></details>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::append;
    use crate::results::tests::sample;

    #[test]
    fn a_report_with_everything_in_it() {
        let (scenario, records) = sample();
        let directory = tempfile::tempdir().unwrap();
        for record in &records {
            append(&directory.path().join("reads.jsonl"), record).unwrap();
        }
        write(&[scenario], directory.path()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
        for part in [
            "<svg ",
            "<span class=\"missed\">missed</span> at 1 of 2",
            "not measured",
            "late, &quot;very&quot;",
            "T_disk + T_protocol",
            "Stages without a timer, or not passed: front, host, journal_write,",
            "<td>8ms</td><td class=\"n\">16.3</td><td class=\"n\">16.4</td><td \
             class=\"n\">17.2</td>",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        // Nothing is loaded from elsewhere.
        for outside in ["src=", "href=\"http", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(directory.path().join("reads-1.svg").exists());
    }
}
