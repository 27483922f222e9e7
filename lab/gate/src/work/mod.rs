//! The work whose instructions count. All of it is the same in every run: no clock, no randomness,
//! no threads.

mod data;
mod fronts;
mod store;

use longhaul_core::block::{Range, VolumeId};

/// One kind of work.
pub struct Work {
    /// Its name in `counts.txt`.
    pub name: &'static str,
    /// Operations of a run.
    pub operations: u32,
    /// Prepares, and gives what is measured: all operations.
    prepare: fn(u32) -> Box<dyn FnMut()>,
}

/// All work.
pub const ALL: [Work; 15] = [
    Work { name: "nbd-write-4k", operations: 500, prepare: fronts::nbd_write },
    Work { name: "nbd-write-4k-depth-32", operations: 512, prepare: fronts::nbd_write_32 },
    Work { name: "nbd-read-4k", operations: 500, prepare: fronts::nbd_read },
    Work { name: "nbd-read-4k-depth-32", operations: 512, prepare: fronts::nbd_read_32 },
    Work { name: "iscsi-write-4k", operations: 500, prepare: fronts::iscsi_write },
    Work { name: "iscsi-read-4k", operations: 500, prepare: fronts::iscsi_read },
    Work { name: "record-encode-4k", operations: 1000, prepare: data::record_encode },
    Work { name: "record-encode-64k", operations: 100, prepare: data::record_encode_64 },
    Work { name: "record-verify-4k", operations: 1000, prepare: data::record_verify },
    Work { name: "block-encrypt-4k", operations: 500, prepare: data::encrypt },
    Work { name: "block-decrypt-4k", operations: 500, prepare: data::decrypt },
    Work { name: "segment-seal-1m", operations: 8, prepare: store::seal },
    Work { name: "segment-verify-1m", operations: 8, prepare: store::verify },
    Work { name: "map-lookup", operations: 2000, prepare: store::look_up },
    Work { name: "map-apply", operations: 2000, prepare: store::apply },
];

/// Does the work of this name once.
pub fn run(name: &str) -> Result<(), String> {
    let work = ALL.iter().find(|work| work.name == name).ok_or("there is no such work")?;
    let mut operations = (work.prepare)(work.operations);
    longhaul_gate_measured(&mut *operations);
    Ok(())
}

/// Valgrind counts the instructions in here: it knows this function by its name.
#[inline(never)]
fn longhaul_gate_measured(operations: &mut dyn FnMut()) {
    operations();
    // Or the call would be a jump, and the function would never return by itself.
    std::hint::black_box(());
}

/// The volume of all work.
const VOLUME: VolumeId = VolumeId(7);

/// Sectors of a block of 4 KiB.
const BLOCK: u64 = 8;

/// Sectors of the volume.
const SECTORS: u64 = 1 << 21;

/// The range of the operation with this number: all over the volume, and never the same one twice.
fn somewhere(number: u64) -> Range {
    // Odd, so it meets every block before the first one again.
    let block = number.wrapping_mul(0x9e37_79b1) % (SECTORS / BLOCK);
    Range::new(block * BLOCK, BLOCK)
}

/// Bytes that are not all alike.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_work_is_done() {
        for work in ALL {
            // In the development profile, a few of each.
            let few = if work.name.ends_with("depth-32") { 32 } else { 4 };
            (work.prepare)(few)();
        }
        assert!(run("none").is_err());
    }

    #[test]
    fn ranges_differ() {
        let all: BTreeSet<u64> = (0..10_000).map(|number| somewhere(number).lba).collect();
        assert_eq!(all.len(), 10_000);
    }
}
