//! Configuration files: whatever the text, either a message or arguments that the command line
//! takes or refuses in words; no panic.
#![no_main]
#![allow(dead_code, unused_imports)]

// This crate stands for these crates.
extern crate self as longhaul_base;
extern crate self as longhaul_host;
extern crate self as longhaul_link;
extern crate self as longhaul_store;

use clap::Parser as _;
use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::seeds;
use std::ffi::OsString;

// The target includes these files as they are, so that it need not build what their crate depends
// on.
#[path = "../../host/src/accepted.rs"]
mod accepted;
#[path = "../../cli/src/args.rs"]
mod args;
#[path = "../../link/src/choice.rs"]
mod choice;
#[path = "../../base/src/pattern.rs"]
mod pattern;
#[path = "../../host/src/schedule.rs"]
mod schedule;
#[path = "../../base/src/span.rs"]
mod span;
#[path = "../../base/src/units.rs"]
mod units;

#[path = "../../base/src/log.rs"]
mod log;

#[path = "../../host/src/args.rs"]
mod host_args;
#[path = "../../store/src/args.rs"]
mod store_args;

pub use accepted::{AcceptedRollback, RootExpectation};
pub use choice::Transport;
pub use host_args::HostArgs;
pub use schedule::Schedule;
pub use store_args::StoreArgs;

fn make_seeds() -> Vec<Vec<u8>> {
    [
        "[host]\nstate = \"/s\"\ncredential = \"/c\"\njournal-size = \"2GiB\"\nnbd = \
         [\"unix:/x\"]\n",
        "[store]\ndata = \"/d\"\nlisten = \"127.0.0.1:1\"\nadmin = \"none\"\n",
        "[demo]\nwan-delay = \"8ms\"\nsize = 1073741824\nwrite-through = true\nonce = false\n",
        "[host]\nvolume = [1, 2.5, \"a\"]\ndrain-limit = \"10s\"\n[status]\n",
        "[store]\ndata = \"s3://bucket/prefix\"\nstate = \"/s\"\n",
        "[hosts]\n",
        "[store]\ndata = \"/d\"\nnew-ca = true\nscrub-every = \"1d\"\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fuzz_target!(init: seeds("config", make_seeds), |data: &[u8]| {
    let path = std::env::temp_dir().join(format!("longhaul-fuzz-{}.toml", std::process::id()));
    std::fs::write(&path, data).unwrap();
    for command in ["host", "store", "demo"] {
        let args = [OsString::from("longhaul"), "--config".into(), path.clone().into(), command.into()];
        if let Ok(args) = args::arguments(args.to_vec()) {
            assert!(args.len() >= 4);
            if let Err(error) = args::Cli::try_parse_from(args) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
    let text = String::from_utf8_lossy(data);
    let _ = (units::bytes(&text), units::duration(&text));
    let _ = std::fs::remove_file(&path);
});
