//! The processor time of the threads of this process.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Ticks of a second in `/proc` (`USER_HZ`): Linux has 100 wherever this runs.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time by the name of the thread. Threads with one name count together. The
/// main thread is `main`. The time of threads that have ended is not in it.
///
/// # Errors
/// If `/proc` is unreadable.
pub fn seconds() -> io::Result<BTreeMap<String, f64>> {
    of(Path::new("/proc/self/task"), std::process::id())
}

fn of(tasks: &Path, main: u32) -> io::Result<BTreeMap<String, f64>> {
    let mut seconds = BTreeMap::new();
    for entry in std::fs::read_dir(tasks)? {
        // A thread may end before this reads it.
        let Ok(text) = std::fs::read_to_string(entry?.path().join("stat")) else { continue };
        let Some((number, name, ticks)) = parse(&text) else { continue };
        let name = if number == main { "main" } else { name };
        *seconds.entry(name.to_owned()).or_default() += ticks as f64 / TICKS_PER_SECOND;
    }
    Ok(seconds)
}

/// The number, the name, and the ticks in user and system mode (proc_pid_stat(5)). A name may hold
/// any characters.
fn parse(stat: &str) -> Option<(u32, &str, u64)> {
    let (number, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(')')?;
    // Fields 14 and 15. The first one behind the name is field 3.
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((number.parse().ok()?, name, ticks()? + ticks()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14";
        assert_eq!(parse(stat), Some((7, "a (b) c", 42)));
        for cut in ["", "7", "7 (a", "7 (a) S 1 2 3", "x (a) S 1 2 3 4 5 6 7 8 9 10 1 2"] {
            assert_eq!(parse(cut), None, "{cut}");
        }
    }

    #[test]
    fn threads_of_one_name_count_together() {
        let dir = tempfile::tempdir().unwrap();
        let task = |number: u32, name: &str, ticks: u32| {
            let path = dir.path().join(number.to_string());
            std::fs::create_dir(&path).unwrap();
            let stat = format!("{number} ({name}) S 1 2 3 4 5 6 7 8 9 10 {ticks} 0 0");
            std::fs::write(path.join("stat"), stat).unwrap();
        };
        for (number, name, ticks) in [(5, "longhaul", 100), (6, "link", 50), (7, "link", 150)] {
            task(number, name, ticks);
        }
        std::fs::create_dir(dir.path().join("8")).unwrap();
        let seconds = of(dir.path(), 5).unwrap();
        let ratio = seconds["link"] / seconds["main"];
        assert!(seconds.len() == 2 && (ratio - 2.0).abs() < 1e-9, "{seconds:?}");
    }

    #[test]
    fn this_process_has_a_main_thread() {
        assert!(seconds().unwrap().contains_key("main"));
    }
}
