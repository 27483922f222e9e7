//! Runs this program below Valgrind and reads the count.

use crate::counts::Counts;
use crate::work;
use std::process::{Command, Stdio};

/// Why counts of this machine cannot be compared.
pub fn unfit() -> Option<&'static str> {
    // Valgrind's processor is one of three, by what the real one has. Code that chooses by the
    // processor (memcpy, checksums, encryption) takes other ways on the smaller two.
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Some("this processor has no AVX2");
    }
    (!cfg!(target_arch = "x86_64")).then_some("this machine is no x86-64")
}

/// The instructions of one operation of each work.
pub fn count_all() -> Result<Counts, String> {
    let counts = work::ALL.iter().map(|work| {
        let count = count(work.name)?;
        Ok((work.name.to_owned(), count / u64::from(work.operations)))
    });
    counts.collect()
}

/// The instructions of a run within [`work::measured`].
fn count(name: &str) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (Some(dir), Some(file)) = (program.parent(), program.file_name()) else {
        return Err(format!("{} has no directory", program.display()));
    };
    let mut command = Command::new("valgrind");
    // The environment and the path are on the stack: they move it, and what is aligned on it.
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(dir);
    // A copy of a block counts an instruction for each byte then, which is about what it costs
    // beside the rest. With vector instructions, a needless copy would be a percent or two.
    command.env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=2048");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.args(["--collect-atstart=no", "--toggle-collect=*longhaul_gate_measured*"]);
    command.arg(format!("./{}", file.display())).args(["run", name]);
    let run = command.stdin(Stdio::null()).output();
    let run = run.map_err(|error| format!("cannot run valgrind: {error}; is it installed?"))?;
    let text = String::from_utf8_lossy(&run.stderr);
    if !run.status.success() {
        return Err(format!("{name} below valgrind: {}\n{text}", run.status));
    }
    collected(&text).ok_or_else(|| format!("valgrind counted nothing for {name}:\n{text}"))
}

/// The number in callgrind's line `==1== Collected : 123`.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected : "))?.1;
    line.trim().parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_callgrind() {
        let text = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(text), Some(123_456));
        assert_eq!(collected("==7== Collected : 0\n"), None);
        assert_eq!(collected(""), None);
    }
}
