//! The workloads of a scenario.

use super::{Size, Subject};
use serde::Deserialize;

/// What is done.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Requests at a fixed depth.
    Fio(Fio),
    /// Writes pile up while the line is cut; then they are drained.
    Drain(Drain),
    /// PostMark on ext4.
    Postmark(Postmark),
    /// Cold reads, alone and beside a drain.
    Beside(Beside),
    /// A bulk transfer beside a TCP cubic flow.
    Fair(Fair),
}

/// The requests, in fio's words.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Random reads.
    RandRead,
    /// Sequential writes.
    Write,
    /// Random writes.
    RandWrite,
}

impl Pattern {
    /// fio's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::RandRead => "randread",
            Pattern::Write => "write",
            Pattern::RandWrite => "randwrite",
        }
    }

    /// Whether it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandWrite)
    }
}

/// Requests of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fio {
    /// Which.
    pub rw: Pattern,
    /// Bytes of each.
    #[serde(default = "eight_kib")]
    pub block: Size,
    /// How many are outstanding.
    #[serde(default = "one")]
    pub depth: u32,
    /// How long, in seconds.
    #[serde(default = "five_seconds")]
    pub seconds: f64,
    /// Seconds before that which do not count.
    #[serde(default)]
    pub ramp: f64,
    /// The working set, from the volume's beginning; by default what is filled, or all of it.
    #[serde(default)]
    pub working_set: Option<Size>,
    /// fio's `random_distribution`, such as `zipf:0.9`; uniform by default.
    #[serde(default)]
    pub distribution: Option<String>,
    /// Read the whole working set that many times before measuring.
    #[serde(default)]
    pub warm: u32,
    /// Keep what happened over time, for a plot.
    #[serde(default)]
    pub series: bool,
}

fn eight_kib() -> Size {
    Size(8 << 10)
}

fn one() -> u32 {
    1
}

fn five_seconds() -> f64 {
    5.0
}

/// Writes that pile up and are drained.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Drain {
    /// How much piles up.
    pub amount: Size,
    /// Bytes of each write.
    #[serde(default = "drain_block")]
    pub block: Size,
    /// Random or sequential.
    #[serde(default)]
    pub random: bool,
    /// How much of each 4 KiB is zeroes, in percent: what compression can save.
    #[serde(default)]
    pub compressible: u8,
    /// For how long a peer's flow runs, in seconds.
    #[serde(default = "five_seconds")]
    pub seconds: f64,
}

fn drain_block() -> Size {
    Size(64 << 10)
}

/// PostMark: many small files (Katcher, NetApp TR3022, 1997).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Postmark {
    /// Files in the pool.
    pub files: u32,
    /// Transactions: create or delete, read or append.
    pub transactions: u32,
    /// Smallest file.
    #[serde(default = "smallest")]
    pub smallest: Size,
    /// Largest file.
    #[serde(default = "largest")]
    pub largest: Size,
    /// Subdirectories.
    #[serde(default)]
    pub directories: u32,
    /// Options of `mount`, such as `dirsync`.
    #[serde(default)]
    pub mount: Option<String>,
    /// Page cache and memory that PostMark has, so that the working set does not fit.
    #[serde(default)]
    pub memory: Option<Size>,
}

fn smallest() -> Size {
    Size(512)
}

fn largest() -> Size {
    Size(16 << 10)
}

/// Cold random reads, alone and beside a drain at full rate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Beside {
    /// Bytes of each read.
    #[serde(default = "eight_kib")]
    pub block: Size,
    /// How many are outstanding.
    #[serde(default = "one")]
    pub depth: u32,
    /// How long each of the two lasts, in seconds.
    #[serde(default = "five_seconds")]
    pub seconds: f64,
    /// Bytes of each write that is drained.
    #[serde(default = "drain_block")]
    pub write_block: Size,
}

/// A bulk transfer beside a TCP cubic flow.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fair {
    /// Write (drain) or read.
    pub rw: Pattern,
    /// How long both run, in seconds.
    #[serde(default = "ten_seconds")]
    pub seconds: f64,
    /// Seconds at the beginning that do not count.
    #[serde(default = "two_seconds")]
    pub ramp: f64,
}

fn ten_seconds() -> f64 {
    10.0
}

fn two_seconds() -> f64 {
    2.0
}

impl Workload {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Fio(_) => "fio",
            Workload::Drain(_) => "drain",
            Workload::Postmark(_) => "postmark",
            Workload::Beside(_) => "beside",
            Workload::Fair(_) => "fair",
        }
    }

    /// Whether most bytes go to the store.
    #[must_use]
    pub fn uploads(&self) -> bool {
        match self {
            Workload::Fio(fio) => fio.rw.writes(),
            Workload::Fair(fair) => fair.rw.writes(),
            Workload::Drain(_) | Workload::Postmark(_) => true,
            Workload::Beside(_) => false,
        }
    }

    /// Whether it leaves the volume other than it was.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.uploads() || matches!(self, Workload::Beside(_))
    }

    /// Whether a subject can do it.
    #[must_use]
    pub fn suits(&self, subject: Subject) -> bool {
        let flow = subject.flow().is_some();
        match self {
            Workload::Fio(fio) => {
                subject != Subject::LocalDirect && (!flow || fio.rw != Pattern::RandRead)
            }
            Workload::Drain(_) => subject == Subject::Longhaul || flow,
            Workload::Postmark(_) => !flow,
            Workload::Beside(_) => subject == Subject::Longhaul,
            Workload::Fair(_) => subject == Subject::Longhaul || subject == Subject::TcpCubic,
        }
    }
}
