//! REPORT TARGET PORT GROUPS.

use super::handler::{CommandContext, CommandOutcome};
use super::logical_unit::LogicalUnit;
use super::nexus::TARGET_PORT;
use super::sense::Sense;

/// REPORT TARGET PORT GROUPS: one group in the active/optimized state, with one port.
pub(super) fn report_target_port_groups(
    unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let cdb = &context.cdb;
    let mut bytes = match cdb.byte(1) >> 5 {
        0 => vec![0; 4],
        // The extended header. IMPLICIT TRANSITION TIME is 0, because no transition takes place.
        1 => vec![0, 0, 0, 0, 0x10, 0, 0, 0],
        _ => return Sense::in_cdb(1, Some(7)).into(),
    };
    let [group_high, group_low] = TARGET_PORT.to_be_bytes();
    let port = unit.nexuses.relative_port(context.nexus);
    let [port_high, port_low] = port.to_be_bytes();
    // AO_SUP: no other state is supported.
    bytes.extend([0x00, 0x01, group_high, group_low, 0, 0, 0, 1, 0, 0, port_high, port_low]);
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    CommandOutcome::data(bytes, cdb.u32(6) as usize)
}
