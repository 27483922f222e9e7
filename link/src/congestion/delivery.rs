//! The rate at which a path delivers.

use std::collections::VecDeque;
use std::time::Instant;

/// Facts at the time of sending a packet.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    /// The time at which `delivered` was reached.
    delivered_at: Instant,
    /// The time of sending of its newest packet.
    newest_sent: Instant,
    /// The flow used its window.
    full: bool,
}

/// Bytes under way, and arrivals.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    /// In order of time, from the newest acknowledged packet on.
    sent: VecDeque<Sent>,
    delivered: u64,
    delivered_at: Instant,
    /// Time of sending of the newest packet that arrived.
    newest_sent: Instant,
    /// It has changed with this acknowledgment.
    news: bool,
    /// Beginning of the present flight: before it nothing was under way.
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

    /// The flow sends so many bytes. Returns the bytes under way with them.
    pub fn begin(&mut self, now: Instant, bytes: u64) -> u64 {
        if self.in_flight == 0 {
            // The path had nothing to deliver meanwhile.
            self.delivered_at = now;
            self.flight_since = now;
        }
        self.in_flight += bytes;
        self.in_flight
    }

    /// The flow has sent them. `full`: it uses its window now.
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

    /// A packet of `bytes` bytes from the time `sent` arrived.
    pub fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if sent > self.newest_sent {
            self.newest_sent = sent;
            self.news = true;
        }
    }

    /// An acknowledgment has ended, with `in_flight` bytes under way. If it tells of a newer
    /// packet, returns the time of sending of that packet.
    pub fn take_news(&mut self, in_flight: u64) -> Option<Instant> {
        self.in_flight = in_flight;
        std::mem::take(&mut self.news).then_some(self.newest_sent)
    }

    /// Bytes delivered a second over the round trip of the newest packet. `None` if the flow sent
    /// too little to tell.
    pub fn rate(&mut self, now: Instant) -> Option<f64> {
        let newest = self.newest_sent;
        while self.sent.get(1).is_some_and(|next| next.at <= newest) {
            self.sent.pop_front();
        }
        let then = self.sent.front().filter(|then| then.at <= newest)?;
        // The longer of the two: acknowledgments that come at once say nothing of the path.
        let took = seconds(then.delivered_at, now).max(seconds(then.newest_sent, newest));
        (took > 0.0 && then.full).then(|| (self.delivered - then.delivered) as f64 / took)
    }
}

pub(super) fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
