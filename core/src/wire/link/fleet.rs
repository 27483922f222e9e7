//! Messages between the stores of an installation, and messages to hosts about stores.

use super::attach::{AttachError, JournalState};
use super::ids::HostId;
use super::limits::MAX_HEAD_BYTES;
use super::{KeyId, LiveInfo};
use crate::block::{Epoch, VolumeId};
use serde::{Deserialize, Serialize};

/// Most stores of an installation in a message to hosts.
pub const MAX_STORES: usize = 64;
/// Most volumes of one [`StoreReport`].
pub const MAX_SERVED: usize = 1300;
/// Longest [`LiveInfo::name`] in a [`StoreReport`], in bytes.
pub const MAX_SERVED_NAME_BYTES: usize = 64;

const _: () = assert!(MAX_SERVED * 190 + 4096 <= MAX_HEAD_BYTES, "postcard takes ≤ 190 B a volume");

/// The identity of a store, random at the creation of its state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoreId(pub u128);

impl std::fmt::Display for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for StoreId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<StoreId, Self::Err> {
        u128::from_str_radix(text, 16).map(StoreId)
    }
}

/// An operation on the store itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOperation {
    /// Asks for the store's report.
    Report,
    /// Asks for the reports of all stores of the installation that the store reaches.
    List,
    /// Something that stores have in common is no longer as it was: which stores there are, which
    /// volumes, which credentials count. It looks.
    Refresh,
    /// To leave a volume to the store that asks, where a host wants it.
    Release {
        /// Which.
        volume: VolumeId,
        /// Number of the lease by which the asking store believes the asked one to have it.
        lease: u64,
        /// Who wants it.
        host: HostId,
        /// The key of the session in which it does.
        key: KeyId,
        /// How.
        claim: Claim,
    },
    /// To send its hosts to other stores, and go on doing so; or to stop that.
    Evacuate {
        /// Whether to.
        on: bool,
    },
    /// To hand hosts to stores that have clearly less to do, until that is even.
    Rebalance,
    /// To strike a store that does not answer off the list of stores. If it comes back, so does its
    /// entry.
    Forget {
        /// Which.
        id: StoreId,
    },
    /// An operation on the replica.
    Replica(ReplicaOperation),
    /// Asks for a certificate, from who is to become a store and has a token.
    Sign {
        /// The identity that the new store wants.
        store: StoreId,
        /// A certificate signing request (PKCS #10, DER), of at most 4 KiB.
        request: Vec<u8>,
    },
    /// Asks for another certificate for the key of this session's, which ends later.
    Renew {
        /// A certificate signing request of that key (PKCS #10, DER), of at most 4 KiB.
        request: Vec<u8>,
    },
}

/// An operation on the replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaOperation {
    /// How it is doing.
    Show,
    /// To have one from now on.
    Add {
        /// Where, as `--data` of a store says it.
        location: String,
        /// Whether the store commits nothing before the replica has it as well.
        in_step: bool,
        /// Addresses of the standby stores, which hosts get.
        standby: Vec<String>,
        /// Whether the replica may lose its content.
        discard: bool,
    },
    /// To have none any more.
    Remove,
    /// To wait for it with commits, or not to.
    Mode {
        /// Whether to wait.
        in_step: bool,
    },
}

/// The state of the replica, as a store sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaState {
    /// Where it is.
    pub location: String,
    /// Whether the store commits nothing before the replica has it as well.
    pub in_step: bool,
    /// Whether everything has been there once.
    pub built: bool,
    /// Addresses of the stores that wait there.
    pub standby: Vec<String>,
    /// Operations of this store that the replica has not executed.
    pub operations: u64,
    /// Bytes of objects that the replica lacks, as far as known.
    pub bytes: u64,
    /// How long the oldest of them has been waiting, in milliseconds.
    pub lag_ms: u64,
    /// Volumes whose missing objects are unknown. Where commits wait for the replica, this also
    /// counts volumes that lack earlier objects.
    pub unknown: u64,
    /// Missing objects that the store has found, and the number of them that it has put.
    pub missing: (u64, u64),
    /// Bytes put there since the store has started, and those that were there from before.
    pub put_bytes: u64,
    /// See there.
    pub reused_bytes: u64,
    /// Why the last operation there failed, if it did.
    pub trouble: Option<String>,
}

/// How a host wants a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claim {
    /// It begins a new epoch.
    Attach {
        /// The facts about its journal, if it has one.
        journal: Option<JournalState>,
        /// Also if another host has a connection.
        take_over: bool,
    },
    /// It goes on with this epoch.
    Resume(Epoch),
}

/// The outcome of a [`StoreOperation`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreReply {
    /// Done.
    Done,
    /// The report of a store.
    Report(StoreReport),
    /// The same of all.
    List(Vec<StoreState>),
    /// The asked store does not use the volume, or no longer: it has nothing in progress.
    Released,
    /// The host cannot have the volume, and the store goes on with it.
    Refused(AttachError),
    /// The store asked this number of hosts to go to other stores.
    Moved(u32),
    /// The state of the replica, if there is one.
    Replica(Option<ReplicaState>),
    /// Answers [`StoreOperation::Sign`].
    Signed {
        /// The certificate, in DER.
        certificate: Vec<u8>,
        /// The key of the CA, PKCS #8.
        ca_key: Vec<u8>,
        /// The accepted certificates, as the stores share them, in JSON; empty if they do not fit a
        /// frame.
        list: Vec<u8>,
    },
    /// Answers [`StoreOperation::Renew`]: the certificate, in DER.
    Renewed(Vec<u8>),
}

/// The facts that a store reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Who it is.
    pub id: StoreId,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// For logs.
    pub software: String,
    /// Whether it sends its hosts to others.
    pub evacuating: bool,
    /// Connected hosts.
    pub hosts: u32,
    /// Volumes that connected hosts have attached here.
    pub attached: u32,
    /// Payload bytes to and from hosts a second, of the last half minute.
    pub bytes_per_second: u64,
    /// Volumes that it has open, at most [`MAX_SERVED`].
    pub volumes: Vec<Served>,
}

/// A volume that a store has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Which.
    pub volume: VolumeId,
    /// The state of the volume.
    pub live: LiveInfo,
}

/// A store of the installation, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreState {
    /// Who it is.
    pub id: StoreId,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// The report without its volumes; `None` if the store does not answer.
    pub report: Option<StoreReport>,
}
