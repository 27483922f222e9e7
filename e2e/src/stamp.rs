//! A workload whose every block says which write it is from, and the judge of what a disk shows
//! after a crash.
//!
//! One client writes, zeroes, discards, reads and flushes random ranges with several requests in
//! flight. No request overlaps one in flight, so what a block should hold is never in doubt.
//! [`History`] remembers every change in the order of sending, and the promises of flushes. A disk
//! is sound if it shows exactly the result of the first P changes for some P, no smaller than the
//! flushed number. The order holds, only a suffix is lost, no write is there in parts, and no block
//! is foreign.

use crate::client::{Client, Command};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::ops::Range;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Bytes of a stamped block.
pub const BLOCK: usize = 4096;

/// The number of a change; 0 stands for zeroes.
type Stamp = u64;

struct Change {
    stamp: Stamp,
    blocks: Range<usize>,
}

/// Every request to a volume since it was empty.
pub struct History {
    changes: Vec<Change>,
    /// The content of each block after all changes.
    current: Vec<Stamp>,
    /// So many changes have acknowledgments, counting all before the last such one.
    acknowledged: usize,
    /// So many changes must be there whatever happens.
    flushed: usize,
    next: Stamp,
}

impl History {
    /// Of an empty volume of this many blocks.
    #[must_use]
    pub fn new(blocks: usize) -> History {
        History {
            changes: Vec::new(),
            current: vec![0; blocks],
            acknowledged: 0,
            flushed: 0,
            next: 1,
        }
    }

    /// How many changes there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether it has no changes yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many of them flushes and FUA writes have made sure of.
    #[must_use]
    pub fn flushed(&self) -> usize {
        self.flushed
    }

    /// So many of them have answers, counting all before the last such one: a host whose process
    /// dies has them all.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Bytes of the volume.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.current.len() * BLOCK) as u64
    }

    /// The blocks that changes from number `from` (counted from 0) on were about.
    #[must_use]
    pub fn blocks_since(&self, from: usize) -> BTreeSet<usize> {
        self.changes[from..].iter().flat_map(|change| change.blocks.clone()).collect()
    }

    fn change(&mut self, blocks: Range<usize>, zeroes: bool) -> Stamp {
        let stamp = if zeroes { 0 } else { self.next };
        self.next += 1;
        self.current[blocks.clone()].fill(stamp);
        self.changes.push(Change { stamp, blocks });
        stamp
    }

    /// The content of the whole volume if nothing was lost.
    #[must_use]
    pub fn expected(&self, block: usize) -> Vec<u8> {
        content(block, self.current[block])
    }

    /// Finds the longest prefix of at least `least` changes whose result is exactly `image`.
    ///
    /// # Errors
    /// Says what is wrong with the image when there is none.
    pub fn prefix_of(&self, image: &[u8], least: usize) -> std::result::Result<usize, String> {
        self.prefixes_of(image, least).map(|(_, longest)| longest)
    }

    /// Shortest and longest prefix whose result is exactly `image`, the longest of at least `least`
    /// changes. They differ when changes undid each other.
    ///
    /// # Errors
    /// As for [`History::prefix_of`].
    pub fn prefixes_of(
        &self,
        image: &[u8],
        least: usize,
    ) -> std::result::Result<(usize, usize), String> {
        assert_eq!(image.len(), self.current.len() * BLOCK, "the image has the volume's size");
        let mut seen = Vec::with_capacity(self.current.len());
        for (block, bytes) in image.chunks_exact(BLOCK).enumerate() {
            seen.push(read_stamp(block, bytes)?);
        }
        let mut holds = vec![0; seen.len()];
        let mut wrong = seen.iter().filter(|stamp| **stamp != 0).count();
        let mut found: Option<(usize, usize)> = None;
        let mut best = (wrong, 0);
        for count in 0..=self.changes.len() {
            if let Some(change) = count.checked_sub(1).map(|last| &self.changes[last]) {
                for block in change.blocks.clone() {
                    wrong -= usize::from(holds[block] != seen[block]);
                    holds[block] = change.stamp;
                    wrong += usize::from(holds[block] != seen[block]);
                }
            }
            if wrong == 0 {
                found = Some((found.map_or(count, |(first, _)| first), count));
            }
            best = best.min((wrong, self.changes.len() - count));
        }
        match found {
            Some((first, count)) if count >= least => Ok((first, count)),
            Some((_, count)) => Err(format!(
                "the disk shows the first {count} of {} changes, but {least} must be there: {} lost",
                self.changes.len(),
                least - count
            )),
            None => Err(self.explain(&seen, self.changes.len() - best.1, least)),
        }
    }

    fn explain(&self, seen: &[Stamp], nearest: usize, least: usize) -> String {
        let mut holds = vec![0; seen.len()];
        for change in &self.changes[..nearest] {
            holds[change.blocks.clone()].fill(change.stamp);
        }
        let place = |stamp: Stamp| match stamp {
            0 => "zeroes".to_owned(),
            _ => match self.changes.iter().position(|change| change.stamp == stamp) {
                Some(at) => format!("change {}", at + 1),
                None => format!("a change that a crash had undone (stamp {stamp})"),
            },
        };
        let mut text = format!(
            "the disk shows no prefix of the {} changes ({least} are flushed); nearest is the \
             first {nearest}, where",
            self.changes.len()
        );
        let wrong = (0..seen.len()).filter(|block| seen[*block] != holds[*block]);
        for block in wrong.clone().take(10) {
            let (is, should) = (place(seen[block]), place(holds[block]));
            text += &format!("\n  block {block} shows {is} instead of {should}");
            let mut later = self.changes[nearest..].iter();
            if let Some(by) = later
                .position(|change| change.stamp == seen[block] && change.blocks.contains(&block))
            {
                text += &format!(", as change {} leaves it", nearest + by + 1);
            }
        }
        text + &format!("\n  {} blocks are wrong", wrong.count())
    }

    /// Forgets the changes after the first `count`: a crash has undone them.
    pub fn cut(&mut self, count: usize) {
        self.changes.truncate(count);
        self.current.fill(0);
        for change in &self.changes {
            self.current[change.blocks.clone()].fill(change.stamp);
        }
        self.acknowledged = count;
        self.flushed = count;
    }
}

/// The content of a block from `stamp`.
fn content(block: usize, stamp: Stamp) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    fill(block, stamp, &mut bytes);
    bytes
}

/// The bytes of a block from `stamp`, except for the two numbers at its beginning. They are a part
/// of one sequence of random bytes: a test makes and compares gigabytes.
fn noise(block: usize, stamp: Stamp) -> &'static [u8] {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut noise = vec![0; 1 << 20];
        Rng::with_seed(1).fill(&mut noise);
        noise
    });
    let seed = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block as u64;
    let start = Rng::with_seed(seed).usize(..=NOISE.len() - BLOCK);
    &NOISE[start..start + BLOCK]
}

/// Puts the content of a block from `stamp` into zeroes.
fn fill(block: usize, stamp: Stamp, bytes: &mut [u8]) {
    if stamp == 0 {
        return;
    }
    bytes.copy_from_slice(noise(block, stamp));
    bytes[..8].copy_from_slice(&(block as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&stamp.to_le_bytes());
}

fn read_stamp(block: usize, bytes: &[u8]) -> std::result::Result<Stamp, String> {
    if bytes == [0; BLOCK] {
        return Ok(0);
    }
    let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let (lba, stamp) = (word(0), word(8));
    let holds = lba == block as u64 && stamp != 0;
    if holds && bytes[16..] == noise(block, stamp)[16..] {
        return Ok(stamp);
    }
    let what = if usize::try_from(lba).is_ok_and(|lba| lba != block && bytes == content(lba, stamp))
    {
        format!("what stamp {stamp} wrote to block {lba}")
    } else {
        let same = bytes.iter().zip(content(block, stamp)).take_while(|(a, b)| **a == *b).count();
        format!("garbage: claims block {lba}, stamp {stamp}, and differs from byte {same} on")
    };
    Err(format!("block {block} shows {what}"))
}

/// How a [`Workload`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests in flight.
    pub depth: usize,
    /// Longest request, in blocks.
    pub max_blocks: usize,
    /// Of 1000 requests, so many are flushes.
    pub flushes: u32,
    /// Of 1000 requests, so many are reads.
    pub reads: u32,
    /// Of 1000 requests, so many zero or discard.
    pub zeroes: u32,
    /// It asks for no more than this on average: a test fills a disk soon enough.
    pub bytes_per_second: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            depth: 16,
            max_blocks: 16,
            flushes: 10,
            reads: 100,
            zeroes: 30,
            bytes_per_second: 32 << 20,
        }
    }
}

enum Sent {
    Change { count: usize, before: usize, fua: bool },
    Flush { before: usize },
    Read,
}

/// A client at work.
pub struct Workload<'a> {
    history: &'a mut History,
    client: &'a mut Client,
    rng: Rng,
    shape: Shape,
    in_flight: BTreeMap<u64, (Range<usize>, Sent, Instant)>,
    start: Instant,
    sent_bytes: u64,
    slowest: Duration,
}

impl<'a> Workload<'a> {
    /// On a volume of the history's size.
    #[must_use]
    pub fn new(history: &'a mut History, client: &'a mut Client, seed: u64, shape: Shape) -> Self {
        assert!(client.size() >= history.bytes());
        Workload {
            history,
            client,
            rng: Rng::with_seed(seed),
            shape,
            in_flight: BTreeMap::new(),
            start: Instant::now(),
            sent_bytes: 0,
            slowest: Duration::ZERO,
        }
    }

    /// Works until `done` (asked before each request) and all replies are there.
    ///
    /// # Errors
    /// If the connection breaks or a request fails; the history has the promises.
    ///
    /// # Panics
    /// If a read returns anything but what the block must hold.
    pub fn run(&mut self, mut done: impl FnMut(&History) -> bool) -> Result<()> {
        while !done(self.history) {
            self.send()?;
            while self.in_flight.len() >= self.shape.depth {
                self.receive()?;
            }
        }
        self.settle()
    }

    /// Writes every block once, in order.
    ///
    /// # Errors
    /// As for [`Workload::run`].
    pub fn fill(&mut self) -> Result<()> {
        let blocks = self.history.current.len();
        for start in (0..blocks).step_by(self.shape.max_blocks) {
            self.change(start..blocks.min(start + self.shape.max_blocks), false, false)?;
            while self.in_flight.len() >= self.shape.depth {
                self.receive()?;
            }
        }
        self.settle()
    }

    /// Waits for all replies.
    ///
    /// # Errors
    /// As for [`Workload::run`].
    pub fn settle(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    /// The number of changes so far.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.history.len()
    }

    /// The longest time that a reply has taken.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    fn send(&mut self) -> Result<()> {
        let due = self.sent_bytes as f64 / self.shape.bytes_per_second as f64;
        let early = Duration::from_secs_f64(due).saturating_sub(self.start.elapsed());
        if early > Duration::from_millis(5) {
            // Requests in flight may get answers while the client has nothing to send.
            if !self.in_flight.is_empty() {
                return self.receive();
            }
            std::thread::sleep(early);
        }
        let dice = self.rng.u32(..1000);
        if dice < self.shape.flushes {
            let cookie = self.client.send(Command::Flush, false, 0, 0, &[])?;
            let before = self.history.acknowledged;
            self.in_flight.insert(cookie, (0..0, Sent::Flush { before }, Instant::now()));
            return Ok(());
        }
        let Some(blocks) = self.free_range() else { return self.receive() };
        let at = (blocks.start * BLOCK) as u64;
        let length = (blocks.len() * BLOCK) as u32;
        self.sent_bytes += u64::from(length);
        if dice < self.shape.flushes + self.shape.reads {
            let cookie = self.client.send(Command::Read, false, at, length, &[])?;
            self.in_flight.insert(cookie, (blocks, Sent::Read, Instant::now()));
            return Ok(());
        }
        let zeroes = dice < self.shape.flushes + self.shape.reads + self.shape.zeroes;
        let fua = self.rng.u32(..200) == 0;
        self.change(blocks, zeroes, fua)
    }

    fn change(&mut self, blocks: Range<usize>, zeroes: bool, fua: bool) -> Result<()> {
        let (at, length) = ((blocks.start * BLOCK) as u64, (blocks.len() * BLOCK) as u32);
        let before = self.history.acknowledged;
        // The history has it before the send: nobody knows how much of it gets through if the
        // connection breaks now.
        let stamp = self.history.change(blocks.clone(), zeroes);
        let count = self.history.len();
        let mut data = Vec::new();
        if !zeroes {
            data.resize(length as usize, 0);
            for (block, bytes) in blocks.clone().zip(data.chunks_exact_mut(BLOCK)) {
                fill(block, stamp, bytes);
            }
        }
        let command = match (zeroes, self.rng.bool()) {
            (false, _) => Command::Write,
            (true, false) => Command::Zero,
            (true, true) => Command::Discard,
        };
        let fua = fua && self.client.takes_fua(command);
        let cookie = self.client.send(command, fua, at, length, &data)?;
        self.in_flight
            .insert(cookie, (blocks, Sent::Change { count, before, fua }, Instant::now()));
        Ok(())
    }

    /// A random range that nothing in flight touches.
    fn free_range(&mut self) -> Option<Range<usize>> {
        for _ in 0..100 {
            let length = self.rng.usize(1..=self.shape.max_blocks);
            let start = self.rng.usize(..=self.history.current.len() - length);
            let range = start..start + length;
            let overlaps = |busy: &Range<usize>| busy.start < range.end && range.start < busy.end;
            if !self.in_flight.values().any(|(busy, ..)| overlaps(busy)) {
                return Some(range);
            }
        }
        None
    }

    fn receive(&mut self) -> Result<()> {
        let reply = self.client.receive()?;
        let found = self.in_flight.remove(&reply.cookie);
        let (blocks, sent, since) = found.expect("the client matches cookies");
        self.slowest = self.slowest.max(since.elapsed());
        let data = reply.result.map_err(|number| {
            Error::other(format!("the server failed a request with error {number}"))
        })?;
        let history = &mut self.history;
        match sent {
            Sent::Flush { before } => history.flushed = history.flushed.max(before),
            Sent::Change { count, before, fua } => {
                history.acknowledged = history.acknowledged.max(count);
                if fua {
                    history.flushed = history.flushed.max(count).max(before);
                }
            }
            Sent::Read => {
                for (block, bytes) in blocks.zip(data.chunks_exact(BLOCK)) {
                    let should = history.current[block];
                    let is =
                        read_stamp(block, bytes).unwrap_or_else(|error| panic!("a read: {error}"));
                    assert_eq!(is, should, "a read of block {block} returned another write's data");
                }
            }
        }
        Ok(())
    }
}

/// Reads a whole volume.
///
/// # Errors
/// As for [`Client::read`].
pub fn read_all(client: &mut Client, bytes: u64) -> Result<Vec<u8>> {
    let mut image = Vec::with_capacity(bytes as usize);
    while (image.len() as u64) < bytes {
        let part = (bytes - image.len() as u64).min(1 << 20) as u32;
        image.extend(client.read(image.len() as u64, part)?);
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(history: &History, count: usize) -> Vec<u8> {
        let mut holds = vec![0; history.current.len()];
        for change in &history.changes[..count] {
            holds[change.blocks.clone()].fill(change.stamp);
        }
        holds.iter().enumerate().flat_map(|(block, stamp)| content(block, *stamp)).collect()
    }

    fn sample() -> History {
        let mut history = History::new(8);
        history.change(0..4, false);
        history.change(2..6, false);
        history.change(3..4, true);
        history.change(0..8, false);
        history
    }

    #[test]
    fn every_prefix_is_found_and_a_short_one_is_a_loss() {
        let history = sample();
        for count in 0..=4 {
            assert_eq!(history.prefix_of(&image(&history, count), 0), Ok(count));
        }
        let lost = history.prefix_of(&image(&history, 2), 3).unwrap_err();
        assert!(lost.contains("1 lost"), "{lost}");
    }

    #[test]
    fn holes_torn_and_misplaced_writes_are_found() {
        let history = sample();
        let good = image(&history, 4);
        let hole = [&good[..BLOCK], &image(&history, 2)[BLOCK..]].concat();
        assert!(history.prefix_of(&hole, 0).unwrap_err().contains("no prefix"));
        let mut torn = good.clone();
        torn[BLOCK - 1] ^= 1;
        assert!(history.prefix_of(&torn, 0).unwrap_err().contains("differs from byte 4095"));
        let mut misplaced = good.clone();
        misplaced.copy_within(..BLOCK, BLOCK);
        assert!(history.prefix_of(&misplaced, 0).unwrap_err().contains("to block 0"));
    }

    #[test]
    fn a_cut_undoes_the_rest() {
        let mut history = sample();
        let late = image(&history, 4);
        history.cut(2);
        assert_eq!((history.len(), history.flushed()), (2, 2));
        assert!(history.prefix_of(&late, 0).unwrap_err().contains("a crash had undone"));
        history.change(0..8, false);
        assert_eq!(history.prefix_of(&image(&history, 3), 2), Ok(3));
    }
}
