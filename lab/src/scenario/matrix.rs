//! The combinations of a scenario's matrix.

use super::Definition;
use crate::wan::WanConfig;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize as _;
use std::time::Duration;
use toml::{Table, Value};

/// Points that a scenario may have; more is a mistake.
const MOST_POINTS: usize = 1000;

/// One combination of the matrix.
#[derive(Clone, Debug)]
pub struct Point {
    /// Path → value, of this combination.
    pub values: Table,
    /// The scenario with these values in it.
    pub definition: Definition,
    /// The WAN from a time after the beginning of the workload on.
    pub steps: Vec<(Duration, WanConfig)>,
}

impl Point {
    /// Names and values, as in `delay=8ms, loss=0.01`.
    #[must_use]
    pub fn label(&self) -> String {
        let parts: Vec<String> = self
            .values
            .iter()
            .map(|(key, value)| format!("{}={}", short(key), axis_text(value)))
            .collect();
        parts.join(", ")
    }
}

/// A path's last part: what people call it.
#[must_use]
pub fn short(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A value of the matrix as a person writes it.
#[must_use]
pub fn axis_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A value of the matrix as a number on an axis: durations in ms, rates in Mbit/s, sizes in MiB.
#[must_use]
pub fn axis_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => crate::units::duration(text)
            .map(|time| time.as_secs_f64() * 1000.0)
            .or_else(|_| crate::units::rate(text).map(|rate| rate as f64 / 1e6))
            .or_else(|_| crate::units::bytes(text).map(|bytes| bytes as f64 / f64::from(1 << 20)))
            .ok(),
        _ => None,
    }
}

/// All combinations, the last key varying fastest.
pub fn points(document: &Table, matrix: &Table) -> Result<Vec<Point>> {
    let mut combinations: Vec<Table> = vec![Table::new()];
    for (path, values) in matrix {
        let values = values
            .as_array()
            .filter(|values| !values.is_empty())
            .with_context(|| format!("`matrix.\"{path}\"` is not a list of values"))?;
        combinations = combinations
            .iter()
            .flat_map(|combination| {
                values.iter().map(move |value| {
                    let mut next = combination.clone();
                    next.insert(path.clone(), value.clone());
                    next
                })
            })
            .collect();
        ensure!(combinations.len() <= MOST_POINTS, "`matrix` has more than {MOST_POINTS} points");
    }
    combinations.into_iter().map(|values| point(document, values)).collect()
}

fn point(document: &Table, values: Table) -> Result<Point> {
    let mut document = document.clone();
    for (path, value) in &values {
        set(&mut document, path, value.clone()).with_context(|| format!("`matrix.\"{path}\"`"))?;
    }
    // By way of text: only then do errors show the key and its line.
    let text = toml::to_string(&document)?;
    let definition: Definition = toml::from_str(&text).with_context(|| {
        let values: Vec<String> = values.iter().map(|(k, v)| format!("\"{k}\" = {v}")).collect();
        format!("with {} of `matrix`", values.join(", "))
    })?;
    let wan = document.get("wan").and_then(Value::as_table).cloned().unwrap_or_default();
    let steps = definition
        .steps
        .iter()
        .map(|step| {
            let mut changed = wan.clone();
            merge(&mut changed, &step.wan);
            let config = WanConfig::deserialize(Value::Table(changed))
                .with_context(|| format!("`step` at {:?}: `wan`", step.at))?;
            Ok((step.at, config))
        })
        .collect::<Result<_>>()?;
    Ok(Point { values, definition, steps })
}

/// Puts a value where a dotted path says, making tables on the way.
fn set(table: &mut Table, path: &str, value: Value) -> Result<()> {
    match path.split_once('.') {
        None => {
            table.insert(path.into(), value);
            Ok(())
        }
        Some((head, rest)) => {
            let inner = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
            match inner {
                Value::Table(inner) => set(inner, rest, value),
                _ => bail!("`{head}` is not a table"),
            }
        }
    }
}

/// Puts everything of `from` into `into`, table by table.
fn merge(into: &mut Table, from: &Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Whether the matrix has these keys with these values.
pub fn known(matrix: &Table, values: &Table) -> Result<()> {
    for (key, value) in values {
        let list = matrix.get(key).and_then(Value::as_array);
        let list = list.with_context(|| format!("`{key}` is no key of `matrix`"))?;
        ensure!(list.contains(value), "{value} is not among the values of `matrix.\"{key}\"`");
    }
    Ok(())
}
