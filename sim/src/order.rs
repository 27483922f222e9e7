//! The order of a log, as an independent reader sees it: the next segment, segments that arrive
//! ahead of it, and segments that never count.

use longhaul_core::store::segment::{Header, IN_FLIGHT_MAX, number_after};
use std::collections::BTreeMap;

/// The place of a segment that has just been created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Next,
    /// A segment before it has not arrived.
    Ahead,
    /// Another engine has taken a number before it. It does not count.
    Void,
}

/// The order of a log. `T` is what the world keeps of a segment that is ahead.
#[derive(Debug)]
pub struct LogOrder<T> {
    /// The last segment that belongs to another volume, the parent; 0 for none.
    base: u64,
    last: u64,
    /// The engine that wrote the last one.
    writer: u128,
    void_after: u64,
    /// The first segments of engines, and the engine before each.
    begun: BTreeMap<u64, u128>,
    ahead: BTreeMap<u64, T>,
}

impl<T> LogOrder<T> {
    /// A log that begins after a segment of another volume, which void numbers may follow.
    #[must_use]
    pub fn new(last: u64, void_after: u64) -> LogOrder<T> {
        let (begun, ahead) = (BTreeMap::new(), BTreeMap::new());
        LogOrder { base: last, last, writer: 0, void_after, begun, ahead }
    }

    fn next(&self) -> u64 {
        number_after(self.last, self.void_after)
    }

    /// The last segment that void numbers follow.
    #[must_use]
    pub fn void_after(&self) -> u64 {
        self.void_after
    }

    /// Segments ahead of the next one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ahead.len()
    }

    /// Whether the segment of that number is part of the log, or was.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        (self.base + 1..=self.last).contains(&number) && self.begun_before(number).is_none()
    }

    /// The first segment of an engine whose void numbers have this one among them.
    fn begun_before(&self, number: u64) -> Option<u64> {
        let (begun, _) = self.begun.range(..number).next_back()?;
        (number < number_after(*begun, *begun)).then_some(*begun)
    }

    /// The place of a segment in the log.
    ///
    /// # Errors
    /// No engine may put such a segment now.
    pub fn arrives(&self, number: u64, header: &Header) -> Result<Arrival, String> {
        let (next, engine) = (self.next(), header.token.incarnation);
        if number == next {
            return Ok(Arrival::Next);
        }
        if let Some(begun) = self.begun_before(number) {
            return if self.begun[&begun] == engine {
                Ok(Arrival::Void)
            } else {
                Err(format!("it is void after {begun}, and of another engine than before that"))
            };
        }
        if !(next..next + IN_FLIGHT_MAX).contains(&number) || engine != self.writer {
            return Err(format!("it is number {number}, after {}", self.last));
        }
        if header.number_durable() >= next {
            return Err(format!("it says that {next} is durable"));
        }
        Ok(Arrival::Ahead)
    }

    /// Keeps a segment that is ahead.
    pub fn keep(&mut self, number: u64, kept: T) {
        self.ahead.insert(number, kept);
    }

    /// The log has a new last segment. Returns the one after it, if that has arrived, and the
    /// number of segments that have become void.
    ///
    /// # Errors
    /// The segment does not say who wrote the one before.
    pub fn take(&mut self, header: &Header) -> Result<(Option<T>, u64), String> {
        let (number, engine) = (header.number, header.token.incarnation);
        // An engine that read its own segments again begins like another one.
        let begins = header.token.begins();
        if engine != self.writer && !begins {
            return Err("it does not say that another engine wrote the one before".to_owned());
        }
        if header.voids != (begins && self.last > self.base) {
            return Err("it leaves numbers to the engine before, or takes them".to_owned());
        }
        let mut void = 0;
        if header.voids {
            self.begun.insert(number, self.writer);
            void = std::mem::take(&mut self.ahead).len() as u64;
        }
        (self.last, self.writer, self.void_after) = (number, engine, header.last_void_after());
        Ok((self.ahead.remove(&self.next()), void))
    }
}
