//! The other front threads of the host, as the volumes of one of them see them.

use crate::iscsi::IscsiHome;
use crate::nbd::NbdHome;
use anyhow::Result;
use futures_util::future::LocalBoxFuture;
use longhaul_core::front::iscsi::{Asker, CopyAnswer, CopyMessage, CopyQuestion, TargetId};

/// A thread that has a volume.
pub trait Home: NbdHome + IscsiHome {}

/// The other threads.
pub trait OtherThreads {
    /// The thread that has a volume, unless that is this one. If none has it and it may be
    /// `attached`, a thread is to have it from now on.
    ///
    /// # Errors
    /// If the thread cannot start.
    fn place(&self, name: &str, attached: bool) -> Result<Option<Box<dyn Home>>>;

    /// The names of the volumes of all threads, or of those that are `attached`.
    fn names(&self, attached: bool) -> LocalBoxFuture<'static, Vec<String>>;

    /// Asks the targets of all other threads about a copy.
    fn ask(
        &self,
        asker: Asker,
        question: CopyQuestion,
    ) -> LocalBoxFuture<'static, Vec<(TargetId, CopyAnswer)>>;

    /// Gives a message to the target of another thread. False if the thread has ended.
    fn tell(&self, to: TargetId, message: CopyMessage) -> LocalBoxFuture<'static, bool>;
}
