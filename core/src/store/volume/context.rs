//! The input that a machine of a volume gets with every call.

use super::super::log::LogState;
use super::facts::Facts;
use super::outputs::Outputs;

/// The state that a machine may read while it handles an input, and the place for its outputs.
pub(super) struct Context<'a> {
    pub facts: &'a Facts,
    /// The log up to the last applied segment.
    pub log: &'a LogState,
    pub out: &'a mut Outputs,
}
