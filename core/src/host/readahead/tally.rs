//! Totals of reading ahead, and how much of it may be in vain.
//!
//! Promises: what streams waste is at most [`START_BYTES`] plus 5/64 of the bytes that clients
//! read, whatever they read. Each byte that is read ahead for a stream is backed by the account
//! until it is used.

/// What streams may waste before anything was read.
pub(super) const START_BYTES: u64 = 2 << 20;
/// Of the bytes that clients read, how many streams may waste: 5/64 is 7.8 %.
pub(super) const EARN: (u64, u64) = (5, 64);

/// Who wants something read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AheadReason {
    /// A client said so.
    Hint,
    /// The detector.
    Stream,
    /// A trace.
    Trace,
}

/// Bytes read ahead by who wanted them, and what became of them.
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
    /// Neither used nor wasted yet.
    fn open(&self) -> u64 {
        self.issued.saturating_sub(self.used + self.wasted)
    }
}

/// What streams may waste: begins with [`START_BYTES`], earns with every byte that clients read,
/// and pays for what is wasted.
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
    /// Nothing so far, of a volume for which at most `most` bytes are read ahead.
    pub(super) fn new(most: u64) -> Tally {
        let (hints, streams, traces) = Default::default();
        let account = Account { balance: START_BYTES.min(most / 2), most };
        Tally { hints, streams, traces, account }
    }

    /// For hints, streams and traces.
    pub(super) fn totals(&self) -> (Totals, Totals, Totals) {
        (self.hints, self.streams, self.traces)
    }

    /// Whether streams may have so much more under way, or unread.
    pub(super) fn backs_stream(&self, bytes: u64) -> bool {
        self.streams.open() + bytes <= self.account.balance
    }

    /// Streams may waste everything.
    #[cfg(test)]
    pub(super) fn back_everything(&mut self) {
        self.account = Account { balance: u64::MAX, most: u64::MAX };
    }

    /// So much is asked for.
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

    /// A client has read what was read ahead.
    pub(super) fn add_use(&mut self, why: AheadReason, bytes: u64) {
        self.of(why).used += bytes;
    }

    /// What was read ahead, or asked for, is of no use.
    pub(super) fn waste(&mut self, why: AheadReason, bytes: u64) {
        self.of(why).wasted += bytes;
        if why == AheadReason::Stream {
            let balance = &mut self.account.balance;
            *balance = balance.saturating_sub(bytes);
        }
    }

    /// A client has read so much.
    pub(super) fn read(&mut self, bytes: u64) {
        let Account { balance, most } = &mut self.account;
        *balance = balance.saturating_add(bytes.saturating_mul(EARN.0) / EARN.1).min(*most);
    }
}
