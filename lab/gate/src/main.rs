//! `longhaul-gate`: counts the instructions of fixed work in the core, and fails when they grow.
//!
//! Valgrind counts them: its processor is the same on every machine, so a busy or a slow one counts
//! the same. `longhaul-gate check` runs this program below Valgrind for each kind of work, and
//! compares with `lab/gate/counts.txt`. docs/laboratory.md says more.

mod counts;
mod valgrind;
mod work;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: longhaul-gate check FILE | accept FILE | run WORK | list";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["check", file] => check(Path::new(file)),
        ["accept", file] => accept(Path::new(file)),
        ["run", name] => work::run(name).map(|()| true),
        ["list"] => {
            work::ALL.iter().for_each(|work| println!("{}", work.name));
            Ok(true)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("longhaul-gate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compares with the expected counts. Whether nothing grew.
fn check(file: &Path) -> Result<bool, String> {
    if let Some(why) = valgrind::unfit() {
        println!("instruction counts: not checked, {why}");
        return Ok(true);
    }
    let text = std::fs::read_to_string(file).map_err(|error| {
        format!("cannot read {}: {error}; `make gate-accept` writes it", file.display())
    })?;
    let expected = counts::parse(&text)?;
    let (report, good) = counts::compare(&expected, &valgrind::count_all()?);
    print!("{report}");
    Ok(good)
}

/// Writes the counts as they are now.
fn accept(file: &Path) -> Result<bool, String> {
    if let Some(why) = valgrind::unfit() {
        return Err(format!("cannot count, {why}"));
    }
    let found = valgrind::count_all()?;
    std::fs::write(file, counts::text(&found))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    println!("wrote {}; commit it with the reason for the change", file.display());
    Ok(true)
}
