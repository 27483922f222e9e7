//! Prints the circles of files in a crate, and the names that make each of their arrows.
//!
//! `cargo run -p longhaul-tidy --example arrows -- core [core/src/store/]`

use longhaul_tidy::imports::Imports;
use longhaul_tidy::source::sources;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "core".into());
    let below = arguments.next().unwrap_or_default();
    let root = format!("{name}/src/");
    let imports = Imports::read(&root, &sources(&root)?);
    for circle in imports.circles() {
        if !circle.iter().all(|file| file.starts_with(&below)) {
            continue;
        }
        println!("{} files", circle.len());
        for from in &circle {
            for to in imports.arrows()[from].iter().filter(|to| circle.contains(to)) {
                let names: Vec<_> = imports.names(from, to).collect();
                println!("  {from} -> {to}: {}", names.join(", "));
            }
        }
    }
    Ok(())
}
