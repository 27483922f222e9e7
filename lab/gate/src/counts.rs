//! Expected counts: their file, and the comparison.

use std::fmt::Write as _;

/// Work and the instructions of one operation.
pub type Counts = Vec<(String, u64)>;

/// How much a count may grow, and how much it may fall before somebody should lower it.
const TOLERANCE_PERCENT: u64 = 3;

const HEAD: &str = "\
# Instructions of one operation, as Valgrind counts them on x86-64 with AVX2. `make gate` compares,
# `make gate-accept` writes this file again: commit that with the reason for the change.
";

/// The file's text.
pub fn text(counts: &[(String, u64)]) -> String {
    let mut out = HEAD.to_owned();
    for (name, count) in counts {
        let _ = writeln!(out, "{name:<24} {count:>10}");
    }
    out
}

/// The counts in a file.
pub fn parse(text: &str) -> Result<Counts, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next().map(str::parse), words.next()) {
                (Some(name), Some(Ok(count)), None) => Ok((name.to_owned(), count)),
                _ => Err(format!("`{line}` is no work with its count")),
            }
        })
        .collect()
}

/// A table of the changes, and whether nothing grew or is unknown.
pub fn compare(expected: &[(String, u64)], found: &[(String, u64)]) -> (String, bool) {
    let mut out = format!(
        "{:<24} {:>10} {:>10} {:>8}\n",
        "instructions of one", "expected", "found", "change"
    );
    let (mut grown, mut fallen, mut unknown) = (0, 0, 0);
    for (name, count) in found {
        let before = expected.iter().find(|(other, _)| other == name).map(|(_, count)| *count);
        let Some(before) = before else {
            unknown += 1;
            let _ = writeln!(out, "{name:<24} {:>10} {count:>10} {:>8}  NEW", "-", "-");
            continue;
        };
        let change = (*count as f64 / before.max(1) as f64 - 1.0) * 100.0;
        let word = if count * 100 > before * (100 + TOLERANCE_PERCENT) {
            grown += 1;
            "  GREW"
        } else if count * 100 < before * (100 - TOLERANCE_PERCENT) {
            fallen += 1;
            "  fell"
        } else {
            ""
        };
        let _ = writeln!(out, "{name:<24} {before:>10} {count:>10} {change:>+7.1}%{word}");
    }
    for (name, _) in expected.iter().filter(|(name, _)| found.iter().all(|(n, _)| n != name)) {
        unknown += 1;
        let _ = writeln!(out, "{name:<24} is expected but there is no such work");
    }
    if grown + unknown > 0 {
        out.push_str(
            "\nMore instructions than expected, or other work: find out why.\nIf the change is \
             worth it, run `make gate-accept` and commit lab/gate/counts.txt with the reason.\n",
        );
    }
    if fallen > 0 {
        out.push_str(
            "\nFewer instructions than expected: run `make gate-accept` and commit \
             lab/gate/counts.txt,\nso that they do not come back unseen.\n",
        );
    }
    (out, grown + unknown == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(list: &[(&str, u64)]) -> Counts {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_file_comes_back() {
        let all = counts(&[("write", 12345), ("read", 7)]);
        assert_eq!(parse(&text(&all)), Ok(all));
        assert!(parse("write\n").is_err());
        assert!(parse("write many\n").is_err());
        assert!(parse("write 1 2\n").is_err());
    }

    #[test]
    fn up_to_three_percent_more_is_nothing() {
        let expected = counts(&[("write", 1000), ("read", 2000)]);
        let (report, good) = compare(&expected, &counts(&[("write", 1030), ("read", 1940)]));
        assert!(good && !report.contains("make gate-accept"), "{report}");
    }

    #[test]
    fn more_is_a_failure_and_less_is_an_invitation() {
        let expected = counts(&[("write", 1000), ("read", 2000)]);
        let (report, good) = compare(&expected, &counts(&[("write", 1031), ("read", 1900)]));
        assert!(!good);
        for part in ["+3.1%  GREW", "-5.0%  fell", "find out why", "do not come back unseen"] {
            assert!(report.contains(part), "{part} is not in\n{report}");
        }
        let (report, good) = compare(&expected, &counts(&[("write", 1000), ("read", 1900)]));
        assert!(good && report.contains("fell"), "{report}");
    }

    #[test]
    fn other_work_is_a_failure() {
        let expected = counts(&[("write", 1000)]);
        let (report, good) = compare(&expected, &counts(&[("write", 1000), ("read", 1)]));
        assert!(!good && report.contains("NEW"), "{report}");
        let (report, good) = compare(&expected, &[]);
        assert!(!good && report.contains("there is no such work"), "{report}");
    }
}
