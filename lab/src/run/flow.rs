//! A bulk TCP flow between the two sides, by iperf3.

use super::{Bench, Run};
use crate::node::free_port;
use crate::process::{Server, finish};
use crate::results::Series;
use crate::scenario::Tcp;
use crate::wan::Side;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Bytes of a flow.
pub struct Carried {
    /// Bytes that arrived, in MB/s.
    pub mb_per_s: f64,
    /// The same over time.
    pub points: Vec<(f64, f64)>,
}

/// A flow that is about to run.
pub struct Flow {
    /// Ends with the client.
    _server: Server,
    command: Command,
}

impl Flow {
    /// Prepares a flow; `download` is from the store's side to the host's. The first `ramp` of the
    /// `seconds` do not count.
    ///
    /// # Errors
    /// If iperf3 is not installed.
    pub fn new(
        bench: &Bench<'_>,
        tcp: Tcp,
        seconds: f64,
        ramp: f64,
        download: bool,
    ) -> Result<Flow> {
        let (address, port) =
            (bench.wan.address(Side::Store).to_string(), free_port(false)?.to_string());
        let mut command = bench.wan.command(Side::Store, Path::new("iperf3"));
        command.args(["-s", "-1", "-B", &address, "-p", &port, "--forceflush"]);
        let log = format!("iperf3-{port}.log");
        let mut server = Server::spawn("iperf3", command, &bench.path(&log))?;
        let path = bench.path(&log);
        server.wait_until("listening server", || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains("listening"))
        })?;
        let _ = std::fs::remove_file(path);
        let mut command = bench.wan.command(Side::Host, Path::new("iperf3"));
        // Whole seconds are all that iperf3 takes.
        let (whole, omit) = ((seconds - ramp).round().max(1.0), ramp.round());
        command.args(["-c", &address, "-p", &port, "-J", "-C", tcp.name()]);
        command.args(["-t", &whole.to_string(), "-O", &omit.to_string()]);
        if download {
            command.arg("-R");
        }
        Ok(Flow { _server: server, command })
    }

    /// Lets it run to its end.
    ///
    /// # Errors
    /// If iperf3 fails.
    pub fn run(self) -> Result<Carried> {
        carried(&finish(self.command)?)
    }
}

/// The content of iperf3's JSON.
fn carried(text: &str) -> Result<Carried> {
    let json: Value = serde_json::from_str(text)?;
    let rate = json["end"]["sum_received"]["bits_per_second"].as_f64();
    let points = json["intervals"].as_array().into_iter().flatten().filter_map(|interval| {
        let sum = &interval["sum"];
        let kept = sum["omitted"] != true;
        kept.then_some((sum["end"].as_f64()?, sum["bits_per_second"].as_f64()? / 8e6))
    });
    Ok(Carried { mb_per_s: rate.context("iperf3 says no rate")? / 8e6, points: points.collect() })
}

impl Run<'_, '_> {
    /// A bulk transfer as a peer's part in any workload.
    pub(super) fn flow(&mut self, tcp: Tcp, seconds: f64, ramp: f64) -> Result<()> {
        let download = !self.point.definition.workload.uploads();
        let flow = Flow::new(self.bench, tcp, seconds + ramp, ramp, download)?;
        let (carried, _) = self.measure(|| flow.run())?;
        self.figures.insert("mb_per_s".into(), carried.mb_per_s);
        let name = format!("{}_mb_per_s", if download { "read" } else { "written" });
        self.series.push(Series { name, points: carried.points });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_iperf3() {
        let text = r#"{"intervals": [
            {"sum": {"end": 1.0, "bits_per_second": 4e6, "omitted": true}},
            {"sum": {"end": 1.0, "bits_per_second": 8e6, "omitted": false}}],
            "end": {"sum_received": {"bits_per_second": 16e6}}}"#;
        let carried = carried(text).unwrap();
        assert_eq!((carried.mb_per_s, carried.points.as_slice()), (2.0, &[(1.0, 1.0)][..]));
        assert!(super::carried("{}").is_err());
    }
}
