//! Human units in TOML and JSON, for `#[serde(with = …)]`: `delay = "8ms"`, `rate = "1Gbit/s"`,
//! `queue = "2MB"`, `loss = "0.1%"`. Writing a value and reading it back gives the same value.

use crate::units;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
use std::time::Duration;

/// A whole number of the largest unit that divides it.
fn exact(value: u128, scale: &[(u128, &str)]) -> String {
    let fits = |(factor, _): &&(u128, &str)| value.is_multiple_of(*factor) && value > 0;
    let (factor, unit) = scale.iter().rev().find(fits).unwrap_or(&scale[0]);
    format!("{}{unit}", value / factor)
}

/// `8ms`.
pub mod duration {
    use super::*;

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        units::duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&show(*value))
    }

    /// As text.
    pub fn show(value: Duration) -> String {
        let scale = [(1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s")];
        exact(value.as_nanos(), &scale)
    }
}

/// A size in bytes, `2MB`; a bare number is bytes.
pub mod bytes {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(u64),
        Text(String),
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Size::deserialize(from)? {
            Size::Number(bytes) => Ok(bytes),
            Size::Text(text) => units::bytes(&text).map_err(D::Error::custom),
        }
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*value)
    }
}

/// An optional rate, `1Gbit/s`; `none` is none.
pub mod rate {
    use super::*;

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        match Option::<String>::deserialize(from)?.as_deref() {
            None | Some("none") => Ok(None),
            Some(text) => units::rate(text).map(Some).map_err(D::Error::custom),
        }
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            None => to.serialize_none(),
            Some(rate) => to.serialize_str(&show(*rate)),
        }
    }

    /// As text.
    pub fn show(rate: u64) -> String {
        let scale =
            [(1, "bit/s"), (1_000, "kbit/s"), (1_000_000, "Mbit/s"), (1_000_000_000, "Gbit/s")];
        exact(u128::from(rate), &scale)
    }
}

/// A share: `"0.1%"` or a number from 0 to 1.
pub mod share {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Share {
        Number(f64),
        Text(String),
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        match Share::deserialize(from)? {
            Share::Number(share) if (0.0..=1.0).contains(&share) => Ok(share),
            Share::Number(other) => Err(D::Error::custom(format!("{other} is not from 0 to 1"))),
            Share::Text(text) => parse(&text).map_err(D::Error::custom),
        }
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*value)
    }

    /// From text; also as people write small ones, `1e-4`.
    pub fn parse(text: &str) -> anyhow::Result<f64> {
        match text.parse() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
            _ => units::share(text),
        }
    }
}
