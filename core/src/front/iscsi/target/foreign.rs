//! Copies between volumes of different targets: what this target does for others, and they for it.

use super::Target;
use super::copies::facts;
use crate::block::Time;
use crate::front::iscsi::Event;
use crate::front::iscsi::copies::{CopyNotice, CopyUnit};
use crate::front::iscsi::foreign::{
    Asker, CopyAnswer, CopyId, CopyMessage, CopyQuestion, TargetId,
};
use crate::front::scsi::copy::{CopyPart, PartFailure};

impl Target {
    /// Answers [`Event::Ask`] of another target.
    pub fn answer_copy(&mut self, now: Time, asker: &Asker, question: CopyQuestion) -> CopyAnswer {
        self.now = now;
        match question {
            CopyQuestion::Units(names) => {
                let units = names.iter().map(|(name, write)| self.find_as(asker, name, *write));
                CopyAnswer::Units(units.map(Iterator::collect).collect())
            }
            CopyQuestion::Token { creator, token, delete } => {
                let mut units = self.find_as(asker, &creator, false).map(|unit| unit.device);
                let (first, more) = (units.next(), units.next().is_some());
                drop(units);
                let Some(unit) = first.filter(|_| !more).and_then(|id| self.devices.get_mut(id))
                else {
                    return CopyAnswer::Token(None);
                };
                let used = unit.device.use_token(now, &token, delete);
                let device = first.unwrap_or_default();
                let facts = facts(device, &unit.device);
                self.run(device);
                CopyAnswer::Token(Some((facts, used)))
            }
        }
    }

    /// The answers of all other targets to [`Event::Ask`]. Those that do not exist any more have
    /// none.
    pub fn handle_answers(
        &mut self,
        now: Time,
        copy: CopyId,
        answers: Vec<(TargetId, CopyAnswer)>,
    ) {
        self.now = now;
        match self.copies.stop_waiting(copy) {
            Some(waiting) => self.plan_copy(copy, waiting, answers),
            // The copy has ended meanwhile.
            None => {
                for (target, answer) in answers {
                    if let CopyAnswer::Token(Some((facts, Ok(rod)))) = answer {
                        let unit = CopyUnit::Foreign(target, facts.device);
                        self.release_token(unit, rod.id, false);
                    }
                }
            }
        }
        self.run(copy.0);
        self.settle_all();
        self.forget_idle(copy.0);
    }

    /// A message of another target ([`Event::Tell`]).
    pub fn handle_told(&mut self, now: Time, from: TargetId, message: CopyMessage) {
        self.now = now;
        match message {
            CopyMessage::Part { task, device, asker, part } => {
                let write = !matches!(part, CopyPart::Stage { .. });
                let nexus = self.reach_as(&asker, None, device, write);
                match (nexus, self.devices.get_mut(device)) {
                    (Some(nexus), Some(unit)) => {
                        let own = self.copies.begin_foreign(from, task, device);
                        unit.device.handle_part(now, nexus, own, part);
                        self.run(device);
                    }
                    _ => {
                        let result = Err(PartFailure::NotReachable);
                        self.tell_target(from, CopyMessage::Done { task, result });
                    }
                }
            }
            CopyMessage::End { task } => {
                if let Some((device, own)) = self.copies.foreign(from, task)
                    && let Some(unit) = self.devices.get_mut(device)
                {
                    unit.device.end_part(now, own);
                    self.run(device);
                }
            }
            CopyMessage::Done { task, result } => {
                self.copies.notify(CopyNotice::Part { task, result });
                self.run_copies();
            }
            CopyMessage::Release { device, token, revoked } => {
                self.release_token(CopyUnit::Own(device), token, revoked);
            }
        }
        self.settle_all();
    }

    pub(super) fn tell_target(&mut self, target: TargetId, message: CopyMessage) {
        self.events.push_back(Event::Tell { target, message });
    }
}
