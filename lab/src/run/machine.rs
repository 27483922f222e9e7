//! The machine and the programs of the measurements.

use crate::process::output;
use std::collections::BTreeMap;
use std::path::Path;

/// Kernel, processor and memory.
#[must_use]
pub fn machine() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    BTreeMap::from([
        ("kernel".into(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("processor".into(), field(&processor, "model name").unwrap_or_default()),
        ("processors".into(), count.to_string()),
        ("memory".into(), field(&memory, "MemTotal").unwrap_or_default()),
    ])
}

/// The first line of what each program says of its version; those that are not installed are left
/// out.
#[must_use]
pub fn versions(longhaul: &Path) -> BTreeMap<String, String> {
    let programs: [(&str, &Path, &str); 7] = [
        ("longhaul", longhaul, "--version"),
        ("fio", Path::new("fio"), "--version"),
        ("nbdkit", Path::new("nbdkit"), "--version"),
        ("qemu-nbd", Path::new("qemu-nbd"), "--version"),
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
