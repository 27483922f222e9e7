//! Routing of batches to the store, and of commits.

use super::Volume;
use crate::block::Seq;
use crate::host::drain::{Demand, FrameRead};
use bytes::Bytes;

impl Volume {
    /// How urgent shipping is.
    pub(super) fn demand(&self) -> Demand {
        Demand {
            open: self.session.is_up() && !self.session.is_fenced(),
            versions_full: self.keyed.is_full(),
            awaited: self.awaited(),
            writes_wait: self.acknowledger.has_waiting_writes(),
            closing: self.session.is_closing(),
        }
    }

    /// Ships as many batches as are due and fit the window.
    pub(super) fn ship(&mut self) {
        while let Some(reads) = self.drain.begin(&self.context, &self.demand(), &mut self.log) {
            for FrameRead { addr, bytes, generation, first } in reads {
                self.log.read_frames((addr, bytes), (generation, first), &mut self.out);
            }
            self.send_batch();
        }
    }

    /// Takes the outcome of a read for a batch.
    pub(super) fn frames_read(
        &mut self,
        generation: u64,
        first: usize,
        outcome: Result<Bytes, String>,
    ) {
        let Volume { context, drain, log, out, .. } = self;
        if drain.frames_read(context, (generation, first), outcome, log, out) {
            self.send_batch();
        }
    }

    /// Sends the batch if all of it is there.
    fn send_batch(&mut self) {
        let Volume { context, drain, log, keyed, caching, session, out, .. } = self;
        let batch = drain.finish(context, log, out, |records| keyed.feed(records));
        let Some(batch) = batch else { return };
        drain.announce_pending(context, session.is_up(), log, out);
        caching.shipped(batch.last, &batch.payload);
        drain.send(context, batch, out);
    }

    /// The store has committed everything up to a number.
    pub(super) fn commit(&mut self, seq: Seq) {
        // More than was shipped can only be a mistake of the store: nothing is forgotten for it.
        if seq <= self.log.committed() || seq > self.drain.shipped() {
            return;
        }
        self.log.commit(seq);
        self.keyed.commit(seq);
        self.drain.commit(self.context.now, seq);
        self.caching.offer_committed(&self.context, &self.log, &mut self.keyed);
        self.session.committed();
    }
}
