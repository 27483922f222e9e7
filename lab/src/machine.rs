//! The machine and the programs of the measurements.

use crate::process::output;
use std::collections::BTreeMap;
use std::path::Path;

/// A file that may not be there, without white space around it.
fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Kernel, processor and memory.
#[must_use]
pub fn machine() -> BTreeMap<String, String> {
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    BTreeMap::from([
        ("kernel".into(), read("/proc/sys/kernel/osrelease")),
        ("processor".into(), field(&processor, "model name").unwrap_or_default()),
        ("processors".into(), count.to_string()),
        ("memory".into(), field(&memory, "MemTotal").unwrap_or_default()),
        ("governor".into(), governor()),
    ])
}

/// The governor of the first processor's frequency.
fn governor() -> String {
    match read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").as_str() {
        "" => "none that this machine shows".into(),
        name => name.to_owned(),
    }
}

/// The file system and the disk of a directory.
#[must_use]
pub fn disk(dir: &Path) -> BTreeMap<String, String> {
    let place = dir.display().to_string();
    let mut facts = BTreeMap::from([("data".into(), place.clone())]);
    let args = ["--noheadings", "--output", "SOURCE,FSTYPE,OPTIONS", "--target", &place];
    let mount = output(Path::new("findmnt"), &args).unwrap_or_default();
    let mut columns = mount.split_whitespace();
    let (Some(source), Some(kind)) = (columns.next(), columns.next()) else { return facts };
    let options = columns.next().unwrap_or_default();
    facts.insert("file system".into(), format!("{kind} ({options})"));
    // A partition has its disk above it, and what has no queue is no disk.
    let Some(name) = source.strip_prefix("/dev/") else { return facts };
    let Ok(device) = Path::new("/sys/class/block").join(name).canonicalize() else { return facts };
    let above = device.parent().map(Path::to_owned).unwrap_or_default();
    let Some(device) = [device, above].into_iter().find(|path| path.join("queue").is_dir()) else {
        return facts;
    };
    let bytes = read(device.join("size")).parse::<u64>().unwrap_or_default() * 512;
    let model = read(device.join("device/model"));
    let kind = match read(device.join("queue/rotational")).as_str() {
        "0" => "not rotational",
        _ => "rotational, as the kernel says",
    };
    let text = [
        source.to_owned(),
        model,
        format!("{} GiB", bytes >> 30),
        kind.to_owned(),
        format!("scheduler {}", read(device.join("queue/scheduler"))),
        format!("cache {}", read(device.join("queue/write_cache"))),
    ];
    let text: Vec<String> = text.into_iter().filter(|part| !part.is_empty()).collect();
    facts.insert("disk".into(), text.join(", "));
    facts
}

/// The versions of packages that have no program to ask.
const PACKAGES: [&str; 3] = ["libnbd0", "libiscsi-bin", "qemu-block-extra"];

/// The versions of all programs and packages that the benchmarks use.
#[must_use]
pub fn bench_versions(longhaul: &Path) -> BTreeMap<String, String> {
    let mut found = versions(longhaul);
    for name in PACKAGES {
        let args = ["--show", "--showformat", "${Version}", name];
        if let Ok(version) = output(Path::new("dpkg-query"), &args) {
            found.insert(name.into(), version);
        }
    }
    found
}

/// The first line of what each program says of its version; those that are not installed are left
/// out.
#[must_use]
pub fn versions(longhaul: &Path) -> BTreeMap<String, String> {
    let programs: [(&str, &Path, &str); 9] = [
        ("longhaul", longhaul, "--version"),
        ("fio", Path::new("fio"), "--version"),
        ("nbdkit", Path::new("nbdkit"), "--version"),
        ("qemu-nbd", Path::new("qemu-nbd"), "--version"),
        ("qemu-storage-daemon", Path::new("qemu-storage-daemon"), "--version"),
        ("qemu-img", Path::new("qemu-img"), "--version"),
        ("tgtd", Path::new("tgtd"), "--version"),
        ("iperf3", Path::new("iperf3"), "--version"),
        ("nbdfuse", Path::new("nbdfuse"), "--version"),
    ];
    let mut found: BTreeMap<String, String> = programs
        .iter()
        .filter_map(|(name, path, flag)| {
            let text = output(path, &[flag]).ok()?;
            Some(((*name).to_owned(), text.lines().next()?.trim().to_owned()))
        })
        .collect();
    // Debug builds are slower: whoever reads the numbers should know.
    let profile = if longhaul.components().any(|part| part.as_os_str() == "release") {
        "release"
    } else {
        "other"
    };
    found.insert("build".into(), profile.into());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let machine = machine();
        for fact in ["kernel", "processors", "memory", "governor"] {
            assert!(!machine[fact].is_empty(), "{fact}");
        }
        let here = disk(Path::new("."));
        assert_eq!(here["data"], ".");
    }
}
