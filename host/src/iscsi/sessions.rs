//! The sessions of the target, for `/status` and `longhaul iscsi sessions`.

use super::counters::Counters;
use super::server::IscsiServer;
use serde::{Deserialize, Serialize};

/// A session in `/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionReport {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// Its alias.
    pub alias: String,
    /// CHAP user, if it authenticated.
    pub user: Option<String>,
    /// Volume; none for a discovery session.
    pub volume: Option<String>,
    /// The initiator's part of the session's identity, in hexadecimal.
    pub isid: String,
    /// The target's part.
    pub tsih: u16,
    /// Where its connections come from.
    pub connections: Vec<String>,
    /// Commands that have not ended.
    pub commands: usize,
    /// Payload it holds.
    pub held_bytes: u64,
    /// Digests agreed on: `none`, `header`, `data` or `both`.
    pub digests: String,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
}

impl IscsiServer {
    /// All sessions.
    pub fn sessions(&self) -> Vec<SessionReport> {
        let peers = |ids: &[u64]| -> Vec<String> {
            let connections = ids.iter().filter_map(|id| self.connection(*id));
            connections.map(|connection| connection.peer().to_owned()).collect()
        };
        let target = self.target.borrow();
        let report = target.sessions().map(|session| {
            let parameters = session.parameters;
            SessionReport {
                alias: session.identity.alias,
                user: session.identity.user,
                volume: session.identity.volume,
                isid: session.identity.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
                tsih: session.identity.tsih,
                connections: peers(&session.connections),
                commands: session.commands,
                held_bytes: session.held_bytes,
                digests: match (parameters.header_digest, parameters.data_digest) {
                    (false, false) => "none",
                    (true, false) => "header",
                    (false, true) => "data",
                    (true, true) => "both",
                }
                .into(),
                error_recovery_level: parameters.error_recovery_level,
                initiator: session.identity.initiator,
            }
        });
        report.collect()
    }

    /// Sessions of a volume.
    pub fn sessions_of(&self, volume: &str) -> usize {
        let target = self.target.borrow();
        let found = target.sessions().filter(|s| s.identity.volume.as_deref() == Some(volume));
        found.count()
    }

    /// Totals.
    pub fn counters(&self) -> Counters {
        let target = self.target.borrow().counters().clone();
        Counters { target, ..self.counters.borrow().clone() }
    }
}
