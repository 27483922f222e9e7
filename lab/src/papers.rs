//! Figures of FAST 2002: Ng, Hillyer, Shriver, Gabber, Özden, "Obtaining High Performance for
//! Storage Outsourcing", Tables 1 to 3. The report shows them beside ours.

use anyhow::{Context as _, Result, bail, ensure};

const TABLE1: &str = include_str!("../papers/fast2002_table1.csv");
const TABLE2: &str = include_str!("../papers/fast2002_table2.csv");
const TABLE3: &str = include_str!("../papers/fast2002_table3.csv");

/// Points of a figure of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in a legend.
    pub label: String,
    /// One-way delay in ms (Tables 1 and 2) or load factor in percent (Table 3) → value.
    pub points: Vec<(f64, f64)>,
}

/// The rows of a table, each with its cells in the order of the header. No cell has a comma or
/// quotes.
fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().skip(1).map(|line| line.split(',').collect())
}

fn column(text: &str, name: &str) -> Result<usize> {
    let header = text.lines().next().unwrap_or_default();
    let found = header.split(',').position(|cell| cell == name);
    found.with_context(|| format!("`{name}` is none of {header}"))
}

/// The points that a scenario's `paper` names.
///
/// # Errors
/// If the paper has no such row or column.
pub fn series(name: &str) -> Result<Series> {
    let parts: Vec<&str> = name.split('/').collect();
    let found = match parts.as_slice() {
        ["table1", device, pattern, op, value] => {
            let value = column(TABLE1, value)?;
            let points = rows(TABLE1)
                .filter(|row| row[0] == "remote" && row[3..6] == [*device, *pattern, *op])
                .map(|row| Ok((row[1].parse()?, row[value].parse()?)))
                .collect::<Result<_>>()?;
            Series { label: format!("FAST 2002, {device}"), points }
        }
        ["table2", os, benchmark, filesystem] => {
            let points = rows(TABLE2)
                .filter(|row| row[0] == "remote" && row[2..5] == [*os, *benchmark, *filesystem])
                .map(|row| Ok((row[1].parse()?, row[5].parse()?)))
                .collect::<Result<_>>()?;
            Series { label: format!("FAST 2002, {benchmark}, {os} {filesystem}"), points }
        }
        ["table3", value] => {
            let index = column(TABLE3, value)?;
            let points = rows(TABLE3)
                .filter(|row| !row[index].is_empty())
                .map(|row| Ok((row[0].parse()?, row[index].parse()?)))
                .collect::<Result<_>>()?;
            Series { label: format!("FAST 2002, {value}"), points }
        }
        _ => bail!(
            "`{name}` is not table1/DEVICE/PATTERN/OP/COLUMN, table2/OS/BENCHMARK/FILESYSTEM or \
             table3/COLUMN"
        ),
    };
    ensure!(!found.points.is_empty(), "the paper has no `{name}`");
    Ok(found)
}

/// The paper's T_iSCSI of 8 KiB and where it goes, in µs (§4.1, §4.3, Figure 2).
pub const STAGES_US: [(&str, f64); 2] = [("HG and SG", 327.0), ("gigabit switch", 81.0)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let null = series("table1/Null Device/random/read/response_ms").unwrap();
        assert_eq!(null.points, [(0.0, 0.44), (1.0, 2.46), (2.0, 4.48), (4.0, 8.43), (8.0, 17.2)]);
        let postmark = series("table2/FreeBSD 3.4/PostMark/Soft").unwrap();
        assert_eq!(postmark.points.last(), Some(&(8.0, 0.03)));
        let loads = series("table3/postmark_softupd_tps").unwrap();
        assert_eq!((loads.points.len(), loads.points[8]), (9, (70.0, 29.0)));
        for wrong in ["", "table4/x", "table3/x", "table1/DEC/random/read/response_ms"] {
            assert!(series(wrong).is_err(), "{wrong}");
        }
    }
}
