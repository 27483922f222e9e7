//! Routing of writes: into the log, to every machine that has to know of them, and to their
//! acknowledgment.

use super::Volume;
use crate::block::Range;
use crate::host::config::Mode;
use crate::host::writes::{PendingWrite, WriteContent};
use bytes::Bytes;

impl Volume {
    /// A client writes.
    pub(super) fn write(&mut self, id: u64, content: WriteContent, fua: bool) {
        let mut write = PendingWrite::new(id, content, fua);
        if !self.acknowledger.has_waiting_writes() && self.append(&mut write) {
            self.acknowledge(&write);
        } else {
            self.acknowledger.queue(write);
        }
    }

    /// Admits waiting writes, in order.
    pub(super) fn admit(&mut self) {
        while let Some(mut write) = self.acknowledger.take_waiting() {
            if !self.append(&mut write) {
                return self.acknowledger.put_back(write);
            }
            self.acknowledge(&write);
        }
    }

    /// All of a write is in the journal.
    fn acknowledge(&mut self, write: &PendingWrite) {
        let progress = self.log.progress();
        self.acknowledger.acknowledge(&self.context.config, progress, write, &mut self.out);
    }

    /// A client wants everything so far to be durable.
    pub(super) fn flush(&mut self, id: u64) {
        let progress = self.log.progress();
        self.acknowledger.wait_until_durable(&self.context.config, progress, id, &mut self.out);
    }

    /// Writes a range again, for this host itself. Returns whether all of it had room, and the
    /// number of written sectors.
    pub(super) fn write_own(&mut self, range: Range, data: Bytes) -> (bool, u64) {
        let mut write = PendingWrite::own(range, data);
        (self.append(&mut write), write.done())
    }

    /// Appends as much of a write as has room. True if that is all of it. Every machine that keeps
    /// something of a range learns that the range has new content.
    fn append(&mut self, write: &mut PendingWrite) -> bool {
        let Volume {
            context,
            log,
            keyed,
            readahead,
            caching,
            session,
            copies,
            background,
            drain,
            ..
        } = self;
        let now = context.now;
        // Only a cache and a version table care whether an answer is spoiled.
        let spoils = caching.is_on() || keyed.has_versions();
        let announces = context.config.mode != Mode::WriteThrough && session.is_up();
        log.append(context, keyed.packer(), write, |header| {
            let range = header.range;
            readahead.forget(range);
            caching.forget(now, range);
            if spoils {
                session.spoil(range);
            }
            copies.written(range);
            background.written(range);
            if announces {
                drain.written(now, range, header.seq);
            }
        })
    }
}
