//! Routing of the conversation with the store: its resume, and its end.

use super::Volume;
use crate::block::{BlockError, Epoch};
use crate::host::config::OnJournalFailure;
use crate::host::io::Event;
use crate::host::session::Resumption;
use crate::wire::link::{AttachError, Attached, RequestId};

impl Volume {
    /// Asks the store to let the epoch go on.
    pub(super) fn resume(&mut self) {
        if self.session.resume(&self.context, &mut self.out) {
            // Nothing prepared for the earlier conversation may follow the resume.
            self.drain.abandon();
            self.ask_again();
        }
    }

    /// Asks the store to resume after a pause that grows.
    pub(super) fn hold(&mut self) {
        self.drain.abandon();
        self.session.hold(self.context.now);
    }

    /// Takes the store's answer to a resume.
    pub(super) fn resumed(&mut self, request: RequestId, result: Result<Attached, AttachError>) {
        let committed = match self.session.attached(&self.context, request, result, &mut self.out) {
            Resumption::NotAsked => return,
            Resumption::Held => return self.drain.abandon(),
            Resumption::Fenced => return self.give_up(BlockError::Fenced),
            Resumption::Resumed(committed) => committed,
        };
        let possible = self.keyed.possible(committed);
        if possible > self.log.committed() && possible <= self.log.last() {
            self.log.commit(possible);
            self.keyed.commit(possible);
        }
        self.drain.restart(&self.log, committed, &mut self.out);
        self.ask_again();
        self.out.event(Event::Resumed { committed });
    }

    /// The connection has gone.
    pub(super) fn link_down(&mut self) {
        self.session.link_down();
        self.out.drop_messages();
        self.drain.abandon();
        let waiters = self.readahead.link_lost();
        self.ask_for(waiters);
    }

    /// Another epoch has begun.
    pub(super) fn fence(&mut self, epoch: Epoch) {
        if self.session.fence(epoch, &mut self.out) {
            self.give_up(BlockError::Fenced);
        }
    }

    /// The journal accepts no more writes.
    pub(super) fn journal_failed(&mut self, error: String) {
        self.log.latch();
        let continues = self.context.config.on_journal_failure == OnJournalFailure::Continue;
        self.out.event(Event::JournalFailed { error, continues });
        self.acknowledger.journal_failed(continues, &mut self.out);
        if !continues {
            self.give_up(BlockError::Stopped);
        }
    }

    /// Fails all requests that wait: their answers will not come.
    fn give_up(&mut self, error: BlockError) {
        let mut ids = self.acknowledger.give_up();
        ids.extend(self.reads.give_up());
        ids.extend(self.session.give_up());
        // Their reads have failed with all the others.
        self.readahead.link_lost();
        self.background.give_up();
        ids.extend(self.copies.give_up());
        for id in ids {
            self.out.reply(id, Err(error));
        }
    }
}
