//! Routing of writes: into the log, to every machine that has to know of them, and to their
//! acknowledgement.

use super::Volume;
use crate::block::Range;
use crate::host::config::Mode;
use crate::host::volume::Link;
use crate::host::writes::{PendingWrite, WriteContent};

impl Volume {
    /// A client writes.
    pub(in crate::host) fn write(&mut self, id: u64, content: WriteContent, fua: bool) {
        let mut write = PendingWrite::new(id, content, fua);
        if !self.acknowledger.has_waiting_writes() && self.append(&mut write) {
            self.acknowledge(&write);
        } else {
            self.acknowledger.queue(write);
        }
    }

    /// Lets writes in that waited, in order.
    pub(super) fn admit(&mut self) {
        while let Some(mut write) = self.acknowledger.take_waiting() {
            if !self.append(&mut write) {
                return self.acknowledger.put_back(write);
            }
            self.acknowledge(&write);
        }
    }

    fn acknowledge(&mut self, write: &PendingWrite) {
        let progress = self.log.progress();
        self.acknowledger.acknowledge(&self.context.config, progress, write, &mut self.out);
    }

    /// A client wants everything so far to be durable.
    pub(super) fn flush(&mut self, id: u64) {
        let progress = self.log.progress();
        self.acknowledger.wait_until_durable(&self.context.config, progress, id, &mut self.out);
    }

    /// Writes a range again with what it holds. False if there was no room for all of it; the number of
    /// sectors that were written comes with it.
    pub(in crate::host) fn write_own(&mut self, range: Range, data: bytes::Bytes) -> (bool, u64) {
        let mut write = PendingWrite::own(range, data);
        (self.append(&mut write), write.done())
    }

    /// Appends as much of a write as there is room for; true if that is all of it. Whatever is kept of a
    /// range elsewhere learns that the range has new content.
    fn append(&mut self, write: &mut PendingWrite) -> bool {
        let now = self.context.now;
        let matters = self.caching.is_on() || self.versions.is_on();
        let announces = self.context.config.mode != Mode::WriteThrough && self.link == Link::Up;
        self.log.append(&self.context, &mut self.packer, write, |header| {
            let range = header.range;
            self.readahead.forget(range);
            self.caching.forget(now, range);
            self.reads.spoil(range, matters);
            self.copies.written(range);
            self.rewriting.written(range);
            if announces {
                self.announcer.add(now, range, header.seq);
            }
        })
    }
}
