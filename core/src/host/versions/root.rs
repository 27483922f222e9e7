//! The root of a table: one hash of the expected content of every sector of the volume.
//!
//! Promises: take two tables of one volume with one key. They have the same root exactly if they
//! expect the same version of every sector, after the same write. A holder of a root needs no table
//! to tell whether a store gives out that state of the volume. It must not know where pages come
//! from.

use super::head::Head;
use super::mark::Mark;
use super::root_hash::{Root, RootHash};
use super::table::{
    BLOCKS, PAGE_BLOCKS, PAGE_BYTES, PAGE_SPLITS, SECTORS, block_mark, sector_marks, verified,
};
use crate::block::{BLOCK_SECTORS, Seq};
use ring::hmac;

/// More than the marks of one page take.
const BUFFER_BYTES: usize = 128 << 10;
/// A bit in the number of a block.
const SPLIT: u64 = 1 << 63;
const _: () = assert!(PAGE_BLOCKS as usize * (8 + 4 * BLOCK_SECTORS as usize) < BUFFER_BYTES / 2);

const LABEL: &[u8] = b"longhaul root 1\n";

/// Computes a root, page by page.
#[derive(Debug)]
pub struct Rooting {
    context: hmac::Context,
    /// The next bytes to hash. Hashing them in small pieces would take longer.
    buffer: Vec<u8>,
    seq: Seq,
    /// The last page of sectors, and its number.
    sectors: Option<(u64, Box<[u8; PAGE_BYTES]>)>,
    known: bool,
}

impl Rooting {
    /// Computes the root of the table with that head. The table has to know the version of every
    /// block, and all of it has to be on the disk.
    #[must_use]
    pub fn new(head: &Head) -> Option<Rooting> {
        if !head.complete {
            return None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &head.key());
        let mut context = hmac::Context::with_key(&key);
        context.update(LABEL);
        context.update(&head.volume.0.to_le_bytes());
        context.update(&head.seq.to_le_bytes());
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Some(Rooting { context, buffer, seq: head.seq, sectors: None, known: true })
    }

    /// Takes page `number` of the file [`BLOCKS`]. Pages come in order; missing ones are zeroes.
    /// `sectors` returns pages of the file [`SECTORS`], with zeroes beyond the end of the file.
    ///
    /// # Errors
    /// The errors of `sectors`.
    pub fn take<E>(
        &mut self,
        number: u64,
        page: &[u8],
        mut sectors: impl FnMut(u64) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let (page, _) = verified((BLOCKS, number), page);
        for block in number * PAGE_BLOCKS..(number + 1) * PAGE_BLOCKS {
            let marks = match block_mark(&page, block) {
                Mark::BLANK | Mark::ZERO => continue,
                Mark::MIXED => {
                    let wanted = block / PAGE_SPLITS;
                    let page = match self.sectors.take() {
                        Some((number, page)) if number == wanted => page,
                        _ => verified((SECTORS, wanted), &sectors(wanted)?).0,
                    };
                    let marks = sector_marks(&page, block);
                    self.sectors = Some((wanted, page));
                    // All zeroes have one mark, wherever that knowledge comes from.
                    marks.map(|mark| if mark == Mark::BLANK { Mark::ZERO } else { mark })
                }
                mark => [mark; BLOCK_SECTORS as usize],
            };
            self.known &= !marks.contains(&Mark::UNKNOWN);
            if marks.iter().all(|mark| *mark == Mark::ZERO) {
                continue;
            }
            // A block has one mark, or, with the highest bit of its number set, eight.
            let uniform = marks.iter().all(|mark| *mark == marks[0]);
            let name = if uniform { block } else { block | SPLIT };
            self.buffer.extend_from_slice(&name.to_le_bytes());
            for mark in &marks[..if uniform { 1 } else { marks.len() }] {
                self.buffer.extend_from_slice(&mark.0.to_le_bytes());
            }
        }
        if self.buffer.len() >= BUFFER_BYTES / 2 {
            self.hash();
        }
        Ok(())
    }

    fn hash(&mut self) {
        self.context.update(&self.buffer);
        self.buffer.clear();
    }

    /// The root; `None` if the version of some block is unknown.
    #[must_use]
    pub fn finish(mut self) -> Option<Root> {
        if !self.known {
            return None;
        }
        self.hash();
        let tag = self.context.sign();
        let hash = RootHash(tag.as_ref().try_into().ok()?);
        Some(Root { seq: self.seq, hash })
    }
}
