//! What a machine of a volume is given with every input.

use super::super::log::LogState;
use super::facts::Facts;
use super::outputs::Outputs;

/// What a machine looks at while it handles an input, and where it leaves what is to be done.
pub(super) struct Context<'a> {
    pub facts: &'a Facts,
    /// The log as far as it has been applied.
    pub log: &'a LogState,
    pub out: &'a mut Outputs,
}
