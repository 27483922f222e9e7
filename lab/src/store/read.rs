//! The cost of a read at the store, beside reading the object.

use super::{Bench, Data, SEGMENT, WRITTEN, segments};
use crate::report::Row;
use crate::stats::quantile;
use anyhow::{Context as _, Result};
use rustix::fs::Advice;
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Reads of a measurement, and bytes of each.
const READS: u64 = 2000;
pub(super) const READ_BYTES: usize = 8 << 10;

/// Bytes of a question about as long as a request, and of the pieces that an answer comes in.
const QUESTION_BYTES: usize = 100;
const PIECE_BYTES: usize = 1372;

impl Bench<'_> {
    /// A read seen from the host's side of the link, and what of it is the store's.
    pub(super) fn read(&self) -> Result<()> {
        let store = self.store(Data::Directory)?;
        let bytes = WRITTEN.to_string();
        store.load(&["write", "v", "--bytes", &bytes])?;
        let segments = segments(&self.path("objects"))?;
        let reads = READS.to_string();
        let spent = || {
            let names = ["store", "object_get"]
                .map(|stage| format!("longhaul_stage_seconds_sum{{stage=\"{stage}\"}}"));
            store.metrics([&names[0], &names[1]])
        };
        for (what, cold) in [("from the disk", true), ("in the page cache", false)] {
            let (rounds, tally) = self.rounds.all(|| {
                settle(&segments, cold)?;
                let before = spent()?;
                let args = ["read", "v", "--bytes", &bytes, "--count", &reads];
                let ours = store.load(&args)?["p50_us"].as_f64().context("no p50_us")?;
                let [work, get] = spent()?;
                settle(&segments, cold)?;
                let object = pread(&segments)?;
                let exchange = exchange()?;
                let micros = 1e6 / READS as f64;
                let within = (work - before[0] + get - before[1]) * micros - object.1;
                Ok([ours, object.0, exchange, ours - object.0 - exchange, within])
            })?;
            let of = |figure: usize| -> Vec<f64> { rounds.iter().map(|r| r[figure]).collect() };
            self.report.row(Row {
                name: format!("8 KiB read, one outstanding, {what}, p50"),
                unit: "µs".into(),
                ours: of(0),
                peer: Some(("pread of the segment".into(), of(1))),
                target: None,
                tally: tally.clone(),
            })?;
            let over: Vec<f64> = rounds.iter().map(|round| round[0] - round[1]).collect();
            let target = Some((150.0, false));
            self.report.single("… above that", &over, "µs", target, &tally)?;
            for (figure, name) in [
                (2, "… an exchange of the same bytes, UDP, nothing done, p50"),
                (3, "… above the object and the exchange"),
                (4, "… above the object within the store, mean"),
            ] {
                self.report.single(name, &of(figure), "µs", None, &tally)?;
            }
        }
        store.server.stop()
    }
}

/// Has the page cache forget the files, or know them whole.
fn settle(files: &[File], cold: bool) -> Result<()> {
    let mut data = vec![0; SEGMENT];
    for file in files {
        if cold {
            rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        } else {
            let mut at = 0;
            while let read @ 1.. = file.read_at(&mut data, at)? {
                at += read as u64;
            }
        }
    }
    Ok(())
}

/// The median and the mean time of reads from all over the files, in µs.
fn pread(files: &[File]) -> Result<(f64, f64)> {
    let mut data = [0; READ_BYTES];
    let places = SEGMENT / 2 / READ_BYTES;
    timed(|| {
        let file = fastrand::choice(files).context("there are no segments")?;
        let at = fastrand::usize(..places) * READ_BYTES;
        Ok(file.read_exact_at(&mut data, at as u64)?)
    })
}

/// The median time in which a question and an answer of [`READ_BYTES`] pass between two threads, in
/// µs. That is the time of the sockets and of waking up.
fn exchange() -> Result<f64> {
    let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (asking, answering) = (socket()?, socket()?);
    asking.connect(answering.local_addr()?)?;
    answering.connect(asking.local_addr()?)?;
    asking.set_read_timeout(Some(Duration::from_secs(5)))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut data = [0; READ_BYTES];
            // An empty question is the end.
            while let Ok(1..) = answering.recv(&mut data) {
                for piece in data.chunks(PIECE_BYTES) {
                    let _ = answering.send(piece);
                }
            }
        });
        let mut data = [0; READ_BYTES];
        let timed = timed(|| {
            asking.send(&data[..QUESTION_BYTES])?;
            let mut left = READ_BYTES;
            while left > 0 {
                left -= asking.recv(&mut data)?.min(left);
            }
            Ok(())
        });
        asking.send(&[])?;
        Ok(timed?.0)
    })
}

/// The median and the mean time of [`READS`] turns, in µs.
fn timed(mut turn: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut micros = Vec::new();
    for _ in 0..READS {
        let begun = Instant::now();
        turn()?;
        micros.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok((quantile(&micros, 0.5), micros.iter().sum::<f64>() / READS as f64))
}
