//! Opening: the newest checkpoint that is good, then the segments after it. And writing checkpoints.

use super::super::checkpoint::{Builder, Reader};
use super::super::log::State;
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::open::{OPEN_WINDOW, Replay, Step};
use super::super::{Event, OpenError, catalog};
use super::{CHECKPOINT_PAGES, Phase, Purpose, Volume};

/// Bytes of a checkpoint read at a time.
const CHUNK_BYTES: u64 = 4 << 20;
/// Entries of a checkpoint that a segment pays for.
const ENTRIES_PER_SEGMENT: u64 = 1024;
/// Checkpoints kept: the newest, and one in case that is damaged.
const CHECKPOINTS_KEPT: usize = 2;

pub(super) enum Opening {
    List,
    Checkpoint {
        reader: Box<Reader>,
        number: u64,
        bytes: u64,
        offset: u64,
        /// Older ones, the newest last: (number, bytes).
        older: Vec<(u64, u64)>,
    },
    Replay {
        replay: Replay,
        /// The log must reach at least this segment, says this checkpoint.
        through: (u64, u64),
    },
}

impl Volume {
    pub(super) fn checkpoints_listed(&mut self, list: &[ObjectMeta]) {
        let prefix = catalog::checkpoint_prefix(self.spec.id);
        let mut found: Vec<(u64, u64)> = list
            .iter()
            .filter_map(|meta| Some((catalog::parse_number(&prefix, &meta.key)?, meta.bytes)))
            .collect();
        found.sort_unstable();
        self.checkpoints.known = found.iter().map(|&(number, _)| (number, true)).collect();
        self.open_checkpoint(found);
    }

    /// Reads the newest of these checkpoints, or all segments if there is none.
    fn open_checkpoint(&mut self, mut candidates: Vec<(u64, u64)>) {
        let Some((number, bytes)) = candidates.pop() else {
            self.state = State::new(&self.spec, self.config.announce_entries_max);
            self.replay_log(0, 0);
            return;
        };
        let reader = Reader::new(&self.spec, number, self.config.announce_entries_max);
        self.phase = Phase::Opening(Opening::Checkpoint {
            reader: Box::new(reader),
            number,
            bytes,
            offset: 0,
            older: candidates,
        });
        self.read_checkpoint_chunk();
    }

    fn replay_log(&mut self, through: u64, checkpoint: u64) {
        let newest = self.checkpoints.known.last_key_value().map_or(0, |(&number, _)| number);
        let through = (through, checkpoint).max((newest, newest));
        let replay = Replay::new(self.spec.id, self.state.number + 1, OPEN_WINDOW);
        self.phase = Phase::Opening(Opening::Replay { replay, through });
    }

    fn read_checkpoint_chunk(&mut self) {
        let Phase::Opening(Opening::Checkpoint { number, bytes, offset, .. }) = &self.phase else {
            return;
        };
        let range = *offset..(*offset + CHUNK_BYTES).min(*bytes);
        let key = catalog::checkpoint_key(self.spec.id, *number);
        self.book.issue(
            Purpose::ReadCheckpoint,
            ObjectOperation::Get { key, range: Some(range), copies: Copies::Refused },
        );
    }

    pub(super) fn checkpoint_read(&mut self, data: Option<&[u8]>) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let Opening::Checkpoint { reader, bytes, offset, .. } = opening else { return };
        let pushed = match data {
            None => Err("it vanished while it was read".to_owned()),
            Some(data) => {
                *offset += data.len() as u64;
                if data.is_empty() {
                    *offset = *bytes;
                }
                reader.push(data).map_err(|error| error.to_string())
            }
        };
        if pushed.is_ok() && *offset < *bytes {
            self.read_checkpoint_chunk();
            return;
        }
        let Opening::Checkpoint { reader, number, older, .. } =
            std::mem::replace(opening, Opening::List)
        else {
            return;
        };
        match pushed.and_then(|()| reader.finish().map_err(|error| error.to_string())) {
            Ok(checkpoint) => {
                self.state = checkpoint.state;
                self.replay_log(checkpoint.through, number);
            }
            Err(reason) => {
                self.checkpoints.known.insert(number, false);
                let key = catalog::checkpoint_key(self.spec.id, number);
                self.event(Event::CheckpointDamaged { key, reason });
                self.open_checkpoint(older);
            }
        }
    }

    /// Applies the segments that have been read, until the log ends or more has to be read.
    pub(super) fn advance_log(&mut self) {
        loop {
            let Some(replay) = self.phase.replay() else { return };
            match replay.step() {
                Step::Apply(segment) => match self.state.apply(&segment) {
                    Ok(()) => self.resized_by(&segment),
                    Err(reason) => {
                        let key = catalog::segment_key(self.spec.id, segment.header.number);
                        self.fail(OpenError::Damaged { key, reason: reason.to_owned() });
                    }
                },
                Step::Wait => {
                    for (number, part) in replay.reads() {
                        let key = catalog::segment_key(self.spec.id, number);
                        let range = Some(Replay::range(part));
                        self.book.issue(
                            Purpose::ReadLog { number, part },
                            ObjectOperation::Get { key, range, copies: Copies::Refused },
                        );
                    }
                    return;
                }
                Step::End => {
                    let applied = replay.applied;
                    self.log_ended(applied);
                }
                Step::Failed(error) => self.fail(error),
            }
        }
    }

    fn log_ended(&mut self, applied: u64) {
        match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Opening(Opening::Replay { through: (through, checkpoint), .. }) => {
                if self.state.number < through {
                    let key = catalog::checkpoint_key(self.spec.id, checkpoint);
                    let end = self.state.number;
                    self.fail(OpenError::Truncated { key, number: through, end });
                    return;
                }
                self.event(Event::Opened {
                    segments: self.state.number,
                    replayed: applied,
                    epoch: self.state.epoch(),
                    committed: self.state.committed,
                });
                self.held_bytes = 0;
                for (session, lane, frame) in std::mem::take(&mut self.held) {
                    self.message(session, lane, frame);
                }
            }
            Phase::CatchingUp(_) if applied > 0 => {
                self.event(Event::Rival {
                    epoch: self.state.epoch(),
                    host: self.state.host(),
                    segments: applied,
                });
                self.drop_holder();
            }
            _ => {}
        }
    }

    pub(super) fn advance_checkpoint(&mut self) {
        let sectors = self.state.sectors;
        self.checkpoints.builder.take_if(|builder| builder.sectors() != sectors);
        if let Some(builder) = &mut self.checkpoints.builder {
            for _ in 0..CHECKPOINT_PAGES {
                if builder.step(&self.state.map) {
                    self.put_checkpoint();
                    return;
                }
            }
            return;
        }
        // Opening from a checkpoint, nobody would find out that a size is not noted.
        if self.checkpoints.putting
            || self.sizes.is_unnoted()
            || !matches!(self.phase, Phase::Running)
        {
            return;
        }
        let number = self.state.number;
        let good = self.checkpoints.known.iter().rev().find(|&(_, &good)| good);
        let since = number - good.map_or(0, |(&number, _)| number).min(number);
        let due = if self.shutting_down {
            self.put.is_none() && self.announce_unsaved.is_none() && since > 0
        } else {
            since >= self.checkpoint_interval()
        };
        if due && !self.checkpoints.known.contains_key(&number) {
            let announce_max = self.config.announce_entries_max;
            self.checkpoints.builder = Some(Builder::new(&self.state, announce_max));
        }
    }

    /// Segments from one checkpoint to the next.
    fn checkpoint_interval(&self) -> u64 {
        let least = self.config.checkpoint_every_segments.max(1);
        let affordable = self.state.map.len() as u64 / ENTRIES_PER_SEGMENT;
        affordable.min(self.config.checkpoint_segments_max).max(least)
    }

    fn put_checkpoint(&mut self) {
        let Some(builder) = self.checkpoints.builder.take() else { return };
        let (number, entries) = (builder.number(), builder.entries());
        self.checkpoints.putting = true;
        self.book.issue(
            Purpose::PutCheckpoint { number, entries },
            ObjectOperation::Put {
                key: catalog::checkpoint_key(self.spec.id, number),
                data: builder.finish(self.state.number),
            },
        );
    }

    pub(super) fn checkpoint_put(&mut self, number: u64, entries: u64) {
        self.checkpoints.putting = false;
        self.checkpoints.known.insert(number, true);
        self.event(Event::CheckpointWritten { number, entries });
        let good = self.checkpoints.known.iter().rev().filter(|&(_, &good)| good);
        let Some(oldest) = good.map(|(&number, _)| number).nth(CHECKPOINTS_KEPT - 1) else {
            return;
        };
        let old: Vec<u64> = self.checkpoints.known.range(..oldest).map(|(&n, _)| n).collect();
        for number in old {
            let key = catalog::checkpoint_key(self.spec.id, number);
            self.book.issue(Purpose::DeleteCheckpoint { number }, ObjectOperation::Delete { key });
        }
    }
}
