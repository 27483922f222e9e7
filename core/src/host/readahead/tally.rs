//! Totals of read-ahead, and the limit of its waste.
//!
//! Promises: streams waste at most [`START_BYTES`] plus 5/64 of the bytes that clients read,
//! whatever clients read. The account backs each byte of a stream's read-ahead until a client uses
//! it.

/// Bytes that streams may waste before the first read of a client.
pub(super) const START_BYTES: u64 = 2 << 20;
/// The share of the bytes that clients read which streams may waste: 5/64 is 7.8 %.
pub(super) const EARN: (u64, u64) = (5, 64);

/// The source of a read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AheadReason {
    /// A hint of a client.
    Hint,
    /// The detector.
    Stream,
    /// A trace.
    Trace,
}

/// Bytes of read-ahead by source, and their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Asked for.
    pub issued: u64,
    /// Read by a client.
    pub used: u64,
    /// Overwritten, never delivered, or dropped before anyone read them.
    pub wasted: u64,
}

impl Totals {
    /// Bytes that are neither used nor wasted yet.
    fn open(&self) -> u64 {
        self.issued.saturating_sub(self.used + self.wasted)
    }
}

/// The bytes that streams may waste. The account begins with [`START_BYTES`], earns with every byte
/// that clients read, and pays for waste.
#[derive(Debug)]
struct Account {
    balance: u64,
    most: u64,
}

/// Totals by reason, and the account of streams.
#[derive(Debug)]
pub(super) struct Tally {
    hints: Totals,
    streams: Totals,
    traces: Totals,
    account: Account,
}

impl Tally {
    /// No bytes so far, of a volume that reads at most `most` bytes ahead.
    pub(super) fn new(most: u64) -> Tally {
        let (hints, streams, traces) = Default::default();
        let account = Account { balance: START_BYTES.min(most / 2), most };
        Tally { hints, streams, traces, account }
    }

    /// For hints, streams and traces.
    pub(super) fn totals(&self) -> (Totals, Totals, Totals) {
        (self.hints, self.streams, self.traces)
    }

    /// Whether streams may have `bytes` more bytes under way, or unread.
    pub(super) fn backs_stream(&self, bytes: u64) -> bool {
        self.streams.open() + bytes <= self.account.balance
    }

    /// Lets streams waste any number of bytes.
    #[cfg(test)]
    pub(super) fn back_everything(&mut self) {
        self.account = Account { balance: u64::MAX, most: u64::MAX };
    }

    /// Counts a request.
    pub(super) fn issue(&mut self, why: AheadReason, bytes: u64) {
        self.of(why).issued += bytes;
    }

    fn of(&mut self, why: AheadReason) -> &mut Totals {
        match why {
            AheadReason::Hint => &mut self.hints,
            AheadReason::Stream => &mut self.streams,
            AheadReason::Trace => &mut self.traces,
        }
    }

    /// Counts read-ahead that a client has read.
    pub(super) fn add_use(&mut self, why: AheadReason, bytes: u64) {
        self.of(why).used += bytes;
    }

    /// Counts read-ahead that is of no use.
    pub(super) fn waste(&mut self, why: AheadReason, bytes: u64) {
        self.of(why).wasted += bytes;
        if why == AheadReason::Stream {
            let balance = &mut self.account.balance;
            *balance = balance.saturating_sub(bytes);
        }
    }

    /// Counts bytes that a client has read.
    pub(super) fn read(&mut self, bytes: u64) {
        let Account { balance, most } = &mut self.account;
        *balance = balance.saturating_add(bytes.saturating_mul(EARN.0) / EARN.1).min(*most);
    }
}
