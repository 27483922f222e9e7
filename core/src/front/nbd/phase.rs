//! The state that the phases of a session share, and the results of their steps.

use super::config::Config;
use super::contexts::Contexts;
use super::event::{CloseReason, Event};
use super::export::ExportTerms;
use crate::front::output::OutputQueue;
use crate::wire::nbd::Headers;
use std::collections::VecDeque;

/// The settings, events and output of a session; every phase uses them.
#[derive(Debug)]
pub(super) struct SessionIo {
    pub(super) config: Config,
    pub(super) events: VecDeque<Event>,
    pub(super) output: OutputQueue,
    pub(super) shutting_down: bool,
}

/// The result of a step of a phase.
#[derive(Debug)]
pub(super) enum PhaseStep {
    /// The phase made progress: step again.
    Again,
    /// The phase needs more input.
    Starved,
    /// The handshake is over.
    Enter(Box<TransmissionSetup>),
    /// The session is over.
    Close(CloseReason),
}

/// The results of the handshake that the transmission phase needs.
#[derive(Debug)]
pub(super) struct TransmissionSetup {
    pub(super) terms: ExportTerms,
    /// Kind of reply chunks; simple replies without.
    pub(super) chunks: Option<Headers>,
    /// The metadata contexts that are selected.
    pub(super) contexts: Contexts,
}
