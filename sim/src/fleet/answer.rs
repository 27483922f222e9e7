//! Answers on their way to the requester, and the checks of the messages of engines.

use super::World;
use super::operation::Reply;
use super::requests::Asker;
use super::task::Done;
use crate::note;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::EffectResult;
use longhaul_core::wire::link::{ToHost, VolumeError, VolumeReply};

impl World {
    pub(super) fn answer(&mut self, store: usize, asker: &Asker, message: ToHost) {
        match *asker {
            Asker::Session(session) => self.send_down(session, message),
            Asker::Operation(number, attempt) => {
                if let ToHost::Volume { result, .. } = message {
                    let result = result.map(Reply::Volume);
                    self.operation_over(store, (number, attempt), result);
                }
            }
            Asker::Task(task) => {
                if let ToHost::Volume { result, .. } = message {
                    self.result(
                        task,
                        EffectResult::Engine(match result {
                            Ok(VolumeReply::Snapshot(reply)) => Ok(reply),
                            Ok(_) => Err(VolumeError::NotFound),
                            Err(error) => Err(error),
                        }),
                    );
                }
            }
            Asker::Call(call) => self.answer_call(call, super::peers::Answer::Frame(message)),
            Asker::Nobody => {}
        }
    }

    /// Answers a request that no engine executes.
    pub(super) fn answer_volume(
        &mut self,
        store: usize,
        asker: &Asker,
        result: Result<VolumeReply, VolumeError>,
    ) {
        self.answer(store, asker, ToHost::Volume { request: 0, result });
    }

    /// Checks the statements of an engine about the log of its volume.
    pub(super) fn check_said(
        &mut self,
        store: usize,
        id: VolumeId,
        session: u64,
        message: &ToHost,
    ) {
        note!(self, "s{store} {id} says in session {session} {message:?}");
        let rivaled = self.stores[store].engines.get(&id).is_some_and(|engine| engine.rivaled);
        if let Some(truth) = self.truths.get_mut(&id).filter(|_| rivaled) {
            truth.fate.rivaled = Some(self.now);
        }
        let Some(truth) = self.truths.get(&id).filter(|truth| !truth.fate.condemned) else {
            return;
        };
        let checked = match message {
            ToHost::Committed { epoch, seq, .. } => {
                if truth.has(*epoch, *seq) {
                    Ok(())
                } else {
                    let log = format!("epoch {} and {}", truth.epoch, truth.committed);
                    Err(format!("it says that {seq} of epoch {epoch} is committed, there is {log}"))
                }
            }
            ToHost::Attached { result: Ok(attached), .. } => {
                let base = truth.base_of(attached.epoch);
                if base.is_some_and(|base| base <= attached.committed)
                    && truth.has(attached.epoch, attached.committed)
                {
                    Ok(())
                } else {
                    Err(format!("it attaches {attached:?}, that epoch began at {base:?}"))
                }
            }
            _ => Ok(()),
        };
        self.require(checked.map_err(|error| format!("store {store} volume {id}: {error}")));
    }
}

/// The outcome of a procedure, as text for the trace.
pub(super) fn show(done: &Done) -> String {
    match done {
        Done::Claimed(outcome) => format!("{outcome:?}"),
        Done::Created(result) => format!("{result:?}"),
        Done::Deleted(result) | Done::Allowed(result) | Done::AttributeSet(result) => {
            format!("{result:?}")
        }
        Done::Restored(result) | Done::Cloned(result) => format!("{result:?}"),
        Done::Condemned(result) => format!("{result:?}"),
        Done::Tended(result) => format!("{result:?}"),
        Done::Read(result) => match result {
            Ok(catalog) => format!("{:?}", catalog.entries.keys()),
            Err(error) => error.to_string(),
        },
        Done::Changes(result) => match result {
            Ok(changes) => {
                let new: Vec<&str> =
                    changes.new.iter().map(|entry| entry.spec.name.as_str()).collect();
                format!("new {new:?} gone {:?}", changes.gone)
            }
            Err(error) => error.to_string(),
        },
        Done::Records(result) => format!("{result:?}"),
        Done::Trash(result) => format!("{result:?}"),
        Done::Tenant(result) => format!("{result:?}"),
        Done::Attribute(result) => format!("{result:?}"),
        Done::Stores(result) => format!("{result:?}"),
        Done::Member(result) => format!("{result:?}"),
    }
}
