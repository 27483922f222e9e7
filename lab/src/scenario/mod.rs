//! Scenarios: the workload, the WAN, the subjects, and the asserts.
//!
//! A scenario is a TOML file. Its `matrix` can vary everything in it. The keys are paths into the
//! file itself (`"wan.both.delay" = ["0ms", "8ms"]`), and each combination is a [`Point`]. Loading
//! names each error with the file and the key, before anything runs.

mod matrix;
mod workload;

pub use matrix::{Point, axis_number, axis_text, short};
pub use workload::{Beside, Drain, Fair, Fio, Pattern, Postmark, Workload};

use crate::wan::WanConfig;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// The time of a run beyond which a scenario is a mistake.
const LONGEST_SECONDS: f64 = 3600.0;

/// A scenario file, with the matrix not yet applied.
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    /// Its original text.
    pub text: String,
    /// The values of every point.
    pub base: Definition,
    /// Every combination of the matrix; one if there is none.
    pub points: Vec<Point>,
}

/// The content of a scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Definition {
    /// One line for a person.
    pub title: String,
    /// The subject and the method of the measurement, for the report.
    #[serde(default)]
    pub about: String,
    /// The number of repetitions.
    #[serde(default = "five")]
    pub rounds: usize,
    /// Congestion control of the peers' TCP, on both sides.
    #[serde(default)]
    pub tcp: Tcp,
    /// The WAN when a run begins.
    pub wan: WanConfig,
    /// Changes of the WAN, in the order of their time.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
    /// Path into this file → values.
    #[serde(default)]
    pub matrix: Table,
    /// Host and store.
    #[serde(default)]
    pub longhaul: Longhaul,
    /// The volume.
    #[serde(default)]
    pub volume: Volume,
    /// What is done.
    pub workload: Workload,
    /// By whom, in this order in each round.
    #[serde(default = "longhaul_alone")]
    pub subjects: Vec<Subject>,
    /// What is expected.
    #[serde(default, rename = "assert")]
    pub asserts: Vec<Assert>,
    /// Pictures.
    #[serde(default, rename = "plot")]
    pub plots: Vec<Plot>,
}

fn five() -> usize {
    5
}

fn longhaul_alone() -> Vec<Subject> {
    vec![Subject::Longhaul]
}

/// A congestion control of the kernel's TCP.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Tcp {
    /// RFC 9438; what most of the world runs.
    #[default]
    Cubic,
    /// The kernel's BBR.
    Bbr,
}

impl Tcp {
    /// The kernel's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tcp::Cubic => "cubic",
            Tcp::Bbr => "bbr",
        }
    }
}

/// A change of the WAN.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// How long after the workload has begun.
    #[serde(deserialize_with = "duration")]
    pub at: Duration,
    /// Changes: keys as in `wan`; absent ones stay as `wan` has them.
    #[serde(default)]
    pub wan: Table,
}

/// Flags of host and store beyond those that every run needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Longhaul {
    /// Flags of `longhaul host`.
    pub host: Vec<String>,
    /// Flags of `longhaul store`.
    pub store: Vec<String>,
    /// The capacity of the host's cache as a share of the workload's working set, 0 to 2.
    pub cache_share: Option<f64>,
}

/// The volume and the peers' disks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Volume {
    /// Its size.
    pub size: Size,
    /// The storage side fills so much at its beginning with random data before the host attaches:
    /// the host has none of it.
    pub fill: Size,
    /// Encrypt it, with a key that only hosts have.
    pub encrypt: bool,
}

impl Default for Volume {
    fn default() -> Volume {
        Volume { size: Size(4 << 30), fill: Size(0), encrypt: false }
    }
}

/// The subject of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Host and store, with the scenario's flags.
    Longhaul,
    /// Host and store with `--write-through`: the paper's "no cache".
    LonghaulWriteThrough,
    /// nbdkit at the storage side, over TCP through the WAN.
    Nbd,
    /// nbdkit at the host side with its cache and read-ahead filters, before that plain server.
    NbdCached,
    /// tgt at the storage side; at the host side QEMU's initiator, used through a local NBD socket.
    Iscsi,
    /// nbdkit on a disk of the host side: no WAN at all.
    Local,
    /// A file on a disk of the host side, without any server.
    LocalDirect,
    /// A bulk TCP flow with cubic.
    TcpCubic,
    /// A bulk TCP flow with BBR.
    TcpBbr,
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 9] = [
        Subject::Longhaul,
        Subject::LonghaulWriteThrough,
        Subject::Nbd,
        Subject::NbdCached,
        Subject::Iscsi,
        Subject::Local,
        Subject::LocalDirect,
        Subject::TcpCubic,
        Subject::TcpBbr,
    ];

    /// Its name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Subject::Longhaul => "longhaul",
            Subject::LonghaulWriteThrough => "longhaul-write-through",
            Subject::Nbd => "nbd",
            Subject::NbdCached => "nbd-cached",
            Subject::Iscsi => "iscsi",
            Subject::Local => "local",
            Subject::LocalDirect => "local-direct",
            Subject::TcpCubic => "tcp-cubic",
            Subject::TcpBbr => "tcp-bbr",
        }
    }

    /// Whether it is what all this is about.
    #[must_use]
    pub fn is_longhaul(self) -> bool {
        matches!(self, Subject::Longhaul | Subject::LonghaulWriteThrough)
    }

    /// Whether it is on the host's side alone.
    #[must_use]
    pub fn is_local(self) -> bool {
        matches!(self, Subject::Local | Subject::LocalDirect)
    }

    /// The congestion control, if it is a flow of TCP and no block device.
    #[must_use]
    pub fn flow(self) -> Option<Tcp> {
        match self {
            Subject::TcpCubic => Some(Tcp::Cubic),
            Subject::TcpBbr => Some(Tcp::Bbr),
            _ => None,
        }
    }
}

/// The expectation for the median of a figure over the rounds, at every point or at some.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assert {
    /// Its text, for a person.
    pub name: String,
    /// Whose figure.
    #[serde(default = "longhaul_subject")]
    pub subject: Subject,
    /// Which figure.
    pub figure: String,
    /// No less than this.
    #[serde(default)]
    pub min: Option<f64>,
    /// No more than this.
    #[serde(default)]
    pub max: Option<f64>,
    /// An addition to the bound.
    #[serde(default)]
    pub plus: Option<Plus>,
    /// The base that multiplies the bound.
    #[serde(default)]
    pub of: Option<Of>,
    /// Only at points with these values in the matrix.
    #[serde(default)]
    pub when: Table,
}

fn longhaul_subject() -> Subject {
    Subject::Longhaul
}

/// Possible additions to a bound.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Plus {
    /// The round trip's delay, in ms.
    Rtt,
}

/// Possible bases of a bound.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// The line's rate in MB/s, in the direction of the workload.
    Line,
    /// The same figure of another subject at the same point.
    Subject(Subject),
    /// The same figure of the same subject at the point with these values instead.
    Point(Table),
}

/// A picture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plot {
    /// Its heading.
    pub title: String,
    /// A key of the matrix.
    pub x: String,
    /// A figure.
    pub y: String,
    /// Text beside the x axis; by default the key's last part, with its unit.
    #[serde(default)]
    pub x_label: Option<String>,
    /// Text beside the y axis; by default the figure's name.
    #[serde(default)]
    pub y_label: Option<String>,
    /// Logarithmic axes.
    #[serde(default)]
    pub log_x: bool,
    /// Logarithmic axes.
    #[serde(default)]
    pub log_y: bool,
    /// Show each line divided by its own value at the smallest x.
    #[serde(default)]
    pub relative: bool,
    /// Draw what the asserts of this figure allow.
    #[serde(default = "yes")]
    pub bounds: bool,
    /// Only points with these values in the matrix.
    #[serde(default)]
    pub when: Table,
    /// Points of the paper: `table1/DEVICE/PATTERN/OP/COLUMN`, `table2/OS/BENCHMARK/FILESYSTEM`,
    /// `table3/COLUMN`.
    #[serde(default)]
    pub paper: Vec<String>,
}

fn yes() -> bool {
    true
}

/// A number of bytes, written as a number or as `8KiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        use serde::de::Error as _;
        match Value::deserialize(deserializer)? {
            Value::Integer(bytes) => u64::try_from(bytes).map(Size).map_err(D::Error::custom),
            Value::String(text) => crate::units::bytes(&text)
                .map(Size)
                .map_err(|error| D::Error::custom(format!("{error:#}"))),
            _ => Err(D::Error::custom("a size is a number of bytes, or text such as \"8KiB\"")),
        }
    }
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    crate::units::duration(&text).map_err(|error| serde::de::Error::custom(format!("{error:#}")))
}

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If it cannot be read or says something that makes no sense; the message names file and key.
    pub fn load(path: &Path) -> Result<Scenario> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read scenario {}", path.display()))?;
        let name = path.file_stem().map(PathBuf::from).unwrap_or_default().display().to_string();
        Scenario::parse(&name, &text).with_context(|| format!("scenario {}", path.display()))
    }

    /// Checks a scenario's text.
    ///
    /// # Errors
    /// If it makes no sense; the message names the key.
    pub fn parse(name: &str, text: &str) -> Result<Scenario> {
        let base: Definition = toml::from_str(text)?;
        let document: Table = toml::from_str(text)?;
        let points = matrix::points(&document, &base.matrix)?;
        ensure!(base.rounds >= 1, "`rounds`: there has to be one");
        ensure!(!base.subjects.is_empty(), "`subjects`: name one at least");
        for point in &points {
            check(&point.definition).with_context(|| match point.label() {
                label if label.is_empty() => "not usable".to_owned(),
                label => format!("at {label}"),
            })?;
        }
        let scenario = Scenario { name: name.into(), text: text.into(), base, points };
        scenario.check_asserts()?;
        Ok(scenario)
    }

    fn check_asserts(&self) -> Result<()> {
        let matrix = &self.base.matrix;
        for assert in &self.base.asserts {
            let what = || format!("`assert` \"{}\"", assert.name);
            ensure!(
                self.base.subjects.contains(&assert.subject),
                "{}: `subject`: {} is not among `subjects`",
                what(),
                assert.subject.name()
            );
            ensure!(
                assert.min.is_some() || assert.max.is_some(),
                "{}: give `min` or `max`",
                what()
            );
            matrix::known(matrix, &assert.when).with_context(|| format!("{}: `when`", what()))?;
            match &assert.of {
                Some(Of::Subject(subject)) => ensure!(
                    self.base.subjects.contains(subject),
                    "{}: `of`: {} is not among `subjects`",
                    what(),
                    subject.name()
                ),
                Some(Of::Point(table)) => {
                    matrix::known(matrix, table).with_context(|| format!("{}: `of`", what()))?;
                }
                Some(Of::Line) | None => {}
            }
        }
        for plot in &self.base.plots {
            ensure!(
                matrix.contains_key(&plot.x),
                "`plot` \"{}\": `x`: {} is no key of `matrix`",
                plot.title,
                plot.x
            );
            matrix::known(matrix, &plot.when)
                .with_context(|| format!("`plot` \"{}\": `when`", plot.title))?;
            for name in &plot.paper {
                crate::papers::series(name)
                    .with_context(|| format!("`plot` \"{}\": `paper`", plot.title))?;
            }
        }
        Ok(())
    }
}

/// Rules that no type can express.
fn check(definition: &Definition) -> Result<()> {
    let volume = &definition.volume;
    ensure!(
        volume.size.0 > 0 && volume.size.0.is_multiple_of(4096),
        "`volume.size` is not a multiple of 4 KiB"
    );
    ensure!(volume.fill <= volume.size, "`volume.fill` is more than `volume.size`");
    for subject in &definition.subjects {
        ensure!(
            definition.workload.suits(*subject),
            "`subjects`: {} cannot do the workload {}",
            subject.name(),
            definition.workload.name()
        );
    }
    let time = |key: &str, seconds: f64, least: f64| {
        ensure!(
            seconds >= least && seconds <= LONGEST_SECONDS,
            "`workload.{}.{key}` is not between {least} and {LONGEST_SECONDS} s",
            definition.workload.name()
        );
        Ok(())
    };
    match &definition.workload {
        Workload::Fio(fio) => {
            time("seconds", fio.seconds, 0.1)?;
            time("ramp", fio.ramp, 0.0)?;
            ensure!(fio.depth >= 1, "`workload.fio.depth`: one at least");
            ensure!(
                fio.block.0 > 0 && fio.block.0.is_multiple_of(512),
                "`workload.fio.block` is not a multiple of 512"
            );
            let set = fio.working_set.unwrap_or(volume.size);
            ensure!(set <= volume.size, "`workload.fio.working-set` is more than `volume.size`");
            ensure!(
                fio.rw.writes() || volume.fill.0 > 0,
                "`volume.fill`: there is nothing to read; fill what is read"
            );
        }
        Workload::Drain(drain) => {
            time("seconds", drain.seconds, 0.1)?;
            ensure!(
                drain.amount <= volume.size,
                "`workload.drain.amount` is more than `volume.size`"
            );
            ensure!(drain.amount.0 >= 1 << 20, "`workload.drain.amount` is less than 1 MiB");
            ensure!(drain.compressible <= 100, "`workload.drain.compressible` is more than 100");
        }
        Workload::Postmark(postmark) => {
            ensure!(postmark.files >= 1, "`workload.postmark.files`: one at least");
            ensure!(
                postmark.smallest <= postmark.largest,
                "`workload.postmark.smallest` is more than `workload.postmark.largest`"
            );
        }
        Workload::Beside(beside) => {
            time("seconds", beside.seconds, 0.1)?;
            ensure!(
                volume.fill.0 > 0,
                "`volume.fill`: there is nothing to read; fill what is read"
            );
        }
        Workload::Fair(fair) => {
            time("seconds", fair.seconds, 0.1)?;
            time("ramp", fair.ramp, 0.0)?;
            ensure!(fair.ramp < fair.seconds, "`workload.fair.ramp` leaves nothing of `seconds`");
            ensure!(
                fair.rw.writes() || volume.fill.0 > 0,
                "`volume.fill`: there is nothing to read; fill what is read"
            );
        }
    }
    if let Some(share) = definition.longhaul.cache_share {
        ensure!((0.0..=2.0).contains(&share), "`longhaul.cache-share` is not between 0 and 2");
        ensure!(
            matches!(definition.workload, Workload::Fio(_) | Workload::Postmark(_)),
            "`longhaul.cache-share`: {} has no working set",
            definition.workload.name()
        );
    }
    let mut last = Duration::ZERO;
    for step in &definition.steps {
        if step.at < last {
            bail!("`step`: {:?} comes after {last:?}", step.at);
        }
        last = step.at;
    }
    Ok(())
}

impl Definition {
    /// The filled bytes before the attach: none for a workload that only writes.
    #[must_use]
    pub fn fill(&self) -> u64 {
        match &self.workload {
            Workload::Beside(_) => self.volume.fill.0,
            other if other.uploads() => 0,
            _ => self.volume.fill.0,
        }
    }

    /// Bytes that the workload works on, if it has a set.
    #[must_use]
    pub fn working_set(&self) -> Option<u64> {
        match &self.workload {
            Workload::Fio(fio) => {
                let all = if self.volume.fill.0 > 0 { self.volume.fill } else { self.volume.size };
                Some(fio.working_set.unwrap_or(all).0)
            }
            // The space of the files on the disk. PostMark draws their sizes uniformly. A file
            // system gives them whole blocks, half of one more than their size in the mean, and
            // ext4 an inode each.
            Workload::Postmark(postmark) => {
                const BLOCK: u64 = 4096;
                const INODE: u64 = 256;
                let mean = (postmark.smallest.0 + postmark.largest.0) / 2 + BLOCK / 2 + INODE;
                Some(u64::from(postmark.files) * mean)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
