//! Copies between volumes of different front threads: what their targets tell each other.

use super::volume_registry::VolumeRegistry;
use crate::front::Front;
use longhaul_core::front::iscsi::{Asker, CopyAnswer, CopyMessage, CopyQuestion, TargetId};
use std::rc::Rc;

impl VolumeRegistry {
    /// Asks the targets of all other threads about a copy.
    pub(super) async fn ask_targets(
        self: Rc<Self>,
        asker: Asker,
        question: CopyQuestion,
    ) -> Vec<(TargetId, CopyAnswer)> {
        let Some(fronts) = self.host.shared.fronts() else { return Vec::new() };
        let here = self.host.number;
        let ask = move |front: Rc<Front>| {
            let (asker, question) = (asker.clone(), question.clone());
            async move {
                let number = front.registry.host.number;
                (number != here).then(|| (number, front.target.answer_copy(&asker, question)))
            }
        };
        fronts.each(ask).await.into_iter().flatten().collect()
    }

    /// Gives a message to the target of another thread. False if the thread has ended.
    pub(super) async fn tell_target(self: Rc<Self>, to: TargetId, message: CopyMessage) -> bool {
        let here = self.host.number;
        let Some(front) = self.host.shared.fronts().and_then(|fronts| fronts.get(to)) else {
            return false;
        };
        let told = front.call(move |front| async move { front.target.told(here, message) });
        told.await.is_ok()
    }
}
