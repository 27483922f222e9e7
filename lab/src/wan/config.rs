//! The emulated line between the two sides.

use super::human;
use anyhow::{Result, ensure};
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// One direction of the WAN. The default is a perfect line: no delay, no bottleneck, no loss.
///
/// A packet enters the bottleneck's queue, leaves at the bottleneck's rate, gets lost or not on the
/// way, and arrives after the delay. Sizes are those of IP packets, headers included.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LineConfig {
    /// One-way propagation delay, at most [`DELAY_MAX`].
    #[serde(with = "human::duration")]
    pub delay: Duration,
    /// The variation of the delay: it wanders between `delay` and `delay + jitter`, and never
    /// reorders.
    #[serde(with = "human::duration")]
    pub jitter: Duration,
    /// Bottleneck in bits per second; none: unlimited.
    #[serde(with = "human::rate")]
    pub rate: Option<u64>,
    /// Bytes that may wait at the bottleneck; it drops packets beyond. 0: what the line carries in
    /// twice its delay, at least [`QUEUE_MIN`].
    #[serde(with = "human::bytes")]
    pub queue: u64,
    /// Share of packets lost at random, each independent of the others.
    #[serde(with = "human::share")]
    pub loss: f64,
    /// Losses in bursts, on top of `loss`.
    pub burst_loss: Option<GilbertElliott>,
    /// Packets that arrive after later ones.
    pub reorder: Option<Reorder>,
    /// Other people's traffic through the same bottleneck.
    pub background: Option<Background>,
    /// Nothing gets through.
    pub outage: bool,
    /// Times when nothing gets through.
    pub outages: Option<Outages>,
}

/// The two-state model of Gilbert and Elliott, with a step at every packet. In the good state only
/// [`LineConfig::loss`] applies, in the bad one also `loss`. The mean share of packets in the bad
/// state is `bad / (good + bad)`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Mean length of a stay in the good state, in packets, at least 1.
    pub good: f64,
    /// Mean length of a stay in the bad state, in packets, at least 1.
    pub bad: f64,
    /// Probability of a loss in the bad state.
    #[serde(with = "human::share", default = "certain")]
    pub loss: f64,
}

fn certain() -> f64 {
    1.0
}

/// The late packets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Share of the packets.
    #[serde(with = "human::share")]
    pub share: f64,
    /// How much later than they should these arrive.
    #[serde(with = "human::duration")]
    pub by: Duration,
}

/// Open-loop traffic at the bottleneck, which does not back off: the paper's profile, scaled to the
/// line's rate.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// Load factor, 0 to 1: the row of Table 3 it is drawn from, or what lies between two rows.
    #[serde(with = "human::share")]
    pub load: f64,
}

/// Outages that come again and again.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Outages {
    /// The first begins this long after the start of the line.
    #[serde(with = "human::duration")]
    pub after: Duration,
    /// How long each lasts.
    #[serde(with = "human::duration")]
    pub length: Duration,
    /// From the beginning of one to the beginning of the next; 0: there is only one.
    #[serde(with = "human::duration", default)]
    pub every: Duration,
}

/// The longest delay: ten times what the laboratory is for.
pub const DELAY_MAX: Duration = Duration::from_secs(2);
/// The smallest default queue of a line, in bytes: one super-packet.
pub const QUEUE_MIN: u64 = 64 << 10;
/// The range of a rate, in bits per second.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;

impl LineConfig {
    /// Whether it makes sense.
    pub fn check(&self) -> Result<()> {
        let delay = self.delay + self.jitter;
        ensure!(delay <= DELAY_MAX, "delay and jitter of {delay:?} are over {DELAY_MAX:?}");
        if let Some(rate) = self.rate {
            ensure!(RATES.contains(&rate), "a rate of {rate} bit/s is not from {RATES:?}");
        }
        ensure!((0.0..=1.0).contains(&self.loss), "a loss of {} is not from 0 to 1", self.loss);
        if let Some(bursts) = &self.burst_loss {
            let stays = bursts.good >= 1.0 && bursts.bad >= 1.0;
            ensure!(stays, "a stay in either state of `burst_loss` is at least one packet");
            let loss = bursts.loss;
            ensure!((0.0..=1.0).contains(&loss), "a loss of {loss} in bursts is not from 0 to 1");
        }
        if let Some(reorder) = &self.reorder {
            let share = reorder.share;
            ensure!((0.0..=1.0).contains(&share), "a share of {share} is not from 0 to 1");
            let by = reorder.by;
            ensure!(by <= DELAY_MAX, "reordering by {by:?} is over {DELAY_MAX:?}");
        }
        if let Some(background) = &self.background {
            let load = background.load;
            ensure!((0.0..=1.0).contains(&load), "a load of {load} is not from 0 to 1");
            ensure!(self.rate.is_some(), "`background` loads a bottleneck: it needs a `rate`");
        }
        if let Some(outages) = &self.outages {
            let fits = outages.every.is_zero() || outages.every >= outages.length;
            ensure!(fits, "outages last longer than from one to the next");
        }
        Ok(())
    }

    /// Bytes that may wait at the bottleneck.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        match (self.queue, self.rate) {
            (0, Some(rate)) => {
                let bytes = rate as f64 / 8.0 * 2.0 * self.delay.as_secs_f64();
                (bytes as u64).max(QUEUE_MIN)
            }
            (queue, _) => queue,
        }
    }
}

/// Both directions.
///
/// In TOML a table `both` gives what `to_store` and `to_host` do not say themselves:
/// `both = { delay = "8ms", rate = "1Gbit/s" }`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WanConfig {
    /// From the host's side to the store's.
    pub to_store: LineConfig,
    /// From the store's side to the host's.
    pub to_host: LineConfig,
    /// The seed of everything random.
    pub seed: u64,
}

impl WanConfig {
    /// The same line in both directions.
    #[must_use]
    pub fn both(line: LineConfig, seed: u64) -> WanConfig {
        WanConfig { to_store: line.clone(), to_host: line, seed }
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<()> {
        self.to_store.check().and_then(|()| self.to_host.check())
    }
}

impl<'de> Deserialize<'de> for WanConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WanConfig, D::Error> {
        use serde::de::Error as _;
        type Table = serde_json::Map<String, serde_json::Value>;

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            #[serde(default)]
            both: Table,
            #[serde(default)]
            to_store: Table,
            #[serde(default)]
            to_host: Table,
            #[serde(default)]
            seed: u64,
        }

        let raw = Raw::deserialize(from)?;
        let line = |own: Table| {
            let mut merged = raw.both.clone();
            merged.extend(own);
            LineConfig::deserialize(serde_json::Value::Object(merged)).map_err(D::Error::custom)
        };
        let config = WanConfig {
            to_store: line(raw.to_store)?,
            to_host: line(raw.to_host)?,
            seed: raw.seed,
        };
        config.check().map_err(D::Error::custom)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_with_both_and_an_exception() {
        let text = r#"
            seed = 7
            both = { delay = "8ms", rate = "1Gbit/s", queue = "2MB", loss = 1e-4 }
            [to_host]
            delay = "1500us"
            loss = "0.1%"
            burst_loss = { good = 10000, bad = 8 }
            outages = { after = "5s", length = "1s" }
        "#;
        let config: WanConfig = toml::from_str(text).unwrap();
        assert_eq!(config.seed, 7);
        assert_eq!(config.to_store.delay, Duration::from_millis(8));
        assert_eq!(config.to_host.delay, Duration::from_micros(1500));
        assert_eq!(config.to_host.rate, Some(1_000_000_000));
        assert_eq!(config.to_host.queue, 2_000_000);
        assert!((config.to_store.loss - 1e-4).abs() < 1e-12);
        assert!((config.to_host.loss - 1e-3).abs() < 1e-12);
        assert_eq!(config.to_host.burst_loss.as_ref().map(|b| b.loss), Some(1.0));
        let again: WanConfig =
            serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, word) in [
            ("both = { dealy = \"8ms\" }", "dealy"),
            ("both = { delay = \"3s\" }", "3s"),
            ("both = { delay = \"8\" }", "8"),
            ("both = { loss = 1.5 }", "1.5"),
            ("both = { background = { load = 0.5 } }", "rate"),
            ("both = { rate = \"1bit/s\" }", "rate"),
            ("to_stroe = {}", "to_stroe"),
        ] {
            let error = toml::from_str::<WanConfig>(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn queue_by_default_is_what_a_round_trip_carries() {
        let mut line = LineConfig { rate: Some(1_000_000_000), ..LineConfig::default() };
        assert_eq!(line.queue_bytes(), QUEUE_MIN);
        line.delay = Duration::from_millis(8);
        assert_eq!(line.queue_bytes(), 2_000_000);
    }
}
