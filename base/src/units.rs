//! Human units: `10GiB`, `8ms`, `100Mbit/s`.

use anyhow::{Context as _, Result, bail};
pub use longhaul_core::block::show_bytes;
use std::time::Duration;

/// Parses a size in bytes: a number with an optional unit. `K`, `M`, `G`, `T` and `KiB` … are
/// powers of 1024, as for `qemu-img`; `KB`, `MB` … powers of 1000.
pub fn bytes(text: &str) -> Result<u64> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => bail!("`{text}` is not a size: use a number with KiB, MiB, GiB or TiB, as in `10GiB`"),
    };
    scaled(number, factor, text).with_context(|| format!("`{text}` is not a size; try `10GiB`"))
}

/// Parses a duration: `8ms`, `5s`, `2m`, `100us`.
pub fn duration(text: &str) -> Result<Duration> {
    let (number, unit) = split(text);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" if number == "0" => 1,
        _ => {
            bail!("`{text}` is not a duration: use a number with us, ms, s, m, h or d, as in `8ms`")
        }
    };
    let nanos = scaled(number, nanos, text)
        .with_context(|| format!("`{text}` is not a duration; try `8ms`"))?;
    Ok(Duration::from_nanos(nanos))
}

/// Parses a rate in bits per second: `100Mbit/s`, `1Gbit/s`; powers of 1000.
pub fn rate(text: &str) -> Result<u64> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().trim_end_matches("/s") {
        "bit" => 1,
        "kbit" => 1000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => bail!("`{text}` is not a rate: use a number with kbit/s, Mbit/s or Gbit/s"),
    };
    scaled(number, factor, text).with_context(|| format!("`{text}` is not a rate; try `100Mbit/s`"))
}

/// Parses a share: `0.1%`, or a number from 0 to 1. The result is from 0 to 1.
pub fn share(text: &str) -> Result<f64> {
    let (number, unit) = split(text);
    let number: f64 =
        number.parse().with_context(|| format!("`{text}` is not a share; try `0.1%`"))?;
    let share = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => bail!("`{text}` is not a share; try `0.1%`"),
    };
    if !(0.0..=1.0).contains(&share) {
        bail!("`{text}` is not a share: it must be from 0 to 100%");
    }
    Ok(share)
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn scaled(number: &str, factor: u64, text: &str) -> Result<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).with_context(|| format!("`{text}` is too large"));
    }
    let value: f64 = number.parse()?;
    let scaled = value * factor as f64;
    // Beyond 2^53 a fraction cannot be told from rounding.
    if !(0.0..9.0e15).contains(&scaled) {
        bail!("`{text}` is out of range");
    }
    Ok(scaled.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("10GiB").unwrap(), 10 << 30);
        assert_eq!(bytes("4G").unwrap(), 4 << 30);
        assert_eq!(bytes("1.5 MiB").unwrap(), 3 << 19);
        assert_eq!(bytes("512").unwrap(), 512);
        assert_eq!(bytes("2kb").unwrap(), 2000);
        for wrong in ["", "GiB", "-1", "10XB", "99999999999999TiB", "1e3", "..", "nan"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("8ms").unwrap(), Duration::from_millis(8));
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("30d").unwrap(), Duration::from_secs(30 * 86_400));
        assert_eq!(duration("0").unwrap(), Duration::ZERO);
        for wrong in ["", "8", "ms", "8 parsecs", "-1s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_and_shares() {
        assert_eq!(rate("100Mbit/s").unwrap(), 100_000_000);
        assert_eq!(rate("1.5Gbit").unwrap(), 1_500_000_000);
        assert_eq!(share("0.1%").unwrap(), 0.001);
        assert_eq!(share("0.5").unwrap(), 0.5);
        for wrong in ["", "8", "Mbit/s", "8 MB/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "%", "101%", "1.1", "5 percent"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show_bytes(512), "512 B");
        assert_eq!(show_bytes(10 << 30), "10 GiB");
        assert_eq!(show_bytes(3 << 19), "1.5 MiB");
    }
}
