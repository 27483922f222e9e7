//! The rate at which a path delivers.

use std::collections::VecDeque;
use std::time::Instant;

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    /// When that had been delivered.
    delivered_at: Instant,
    /// When the newest of that had been sent.
    newest_sent: Instant,
    /// The window was used.
    full: bool,
}

/// What is under way, and what arrived.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    /// In order of time, from the newest packet acknowledged on.
    sent: VecDeque<Sent>,
    delivered: u64,
    delivered_at: Instant,
    /// Of all that arrived.
    newest_sent: Instant,
    /// That has changed with this acknowledgement.
    news: bool,
    /// When something was sent while nothing was under way.
    flight_since: Instant,
    in_flight: u64,
}

impl Delivery {
    pub fn new(now: Instant) -> Delivery {
        Delivery {
            sent: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            newest_sent: now,
            news: false,
            flight_since: now,
            in_flight: 0,
        }
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// So many bytes are being sent. Returns how many are under way with them.
    pub fn begin(&mut self, now: Instant, bytes: u64) -> u64 {
        if self.in_flight == 0 {
            // Nothing was to be delivered meanwhile.
            self.delivered_at = now;
            self.flight_since = now;
        }
        self.in_flight += bytes;
        self.in_flight
    }

    /// They have been sent; `full`: the window is used with them.
    pub fn handle_sent(&mut self, now: Instant, full: bool) {
        match self.sent.back_mut().filter(|last| last.at >= now) {
            Some(last) => last.full = full,
            None => self.sent.push_back(Sent {
                at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                newest_sent: self.newest_sent.max(self.flight_since),
                full,
            }),
        }
    }

    /// A packet of `bytes` bytes that was sent at `sent` arrived.
    pub fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if sent > self.newest_sent {
            self.newest_sent = sent;
            self.news = true;
        }
    }

    /// An acknowledgement has ended, with `in_flight` bytes under way. If it tells of a newer packet,
    /// returns the time at which that was sent.
    pub fn take_news(&mut self, in_flight: u64) -> Option<Instant> {
        self.in_flight = in_flight;
        std::mem::take(&mut self.news).then_some(self.newest_sent)
    }

    /// Bytes delivered a second over the round trip of the newest packet; `None` if too little was
    /// sent to tell.
    pub fn rate(&mut self, now: Instant) -> Option<f64> {
        let newest = self.newest_sent;
        while self.sent.get(1).is_some_and(|next| next.at <= newest) {
            self.sent.pop_front();
        }
        let then = self.sent.front().filter(|then| then.at <= newest)?;
        // The longer of the two: acknowledgements that come at once say nothing of the path.
        let took = seconds(then.delivered_at, now).max(seconds(then.newest_sent, newest));
        (took > 0.0 && then.full).then(|| (self.delivered - then.delivered) as f64 / took)
    }
}

pub(super) fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
