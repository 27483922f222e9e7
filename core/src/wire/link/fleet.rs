//! What the stores of an installation say to each other, and to hosts about each other.

use super::attach::{AttachError, JournalState};
use super::ids::HostId;
use super::limits::MAX_HEAD_BYTES;
use super::{KeyId, LiveInfo};
use crate::block::{Epoch, VolumeId};
use serde::{Deserialize, Serialize};

/// Most stores of an installation that are told to hosts.
pub const MAX_STORES: usize = 64;
/// Most volumes of one [`StoreReport`].
pub const MAX_SERVED: usize = 1300;
/// Longest [`LiveInfo::name`] in a [`StoreReport`], in bytes.
pub const MAX_SERVED_NAME_BYTES: usize = 64;

const _: () = assert!(MAX_SERVED * 190 + 4096 <= MAX_HEAD_BYTES, "postcard takes ≤ 190 B a volume");

/// The identity of a store, drawn at random when its state directory is made.
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

/// What is asked of a store as such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOperation {
    /// What it is, and what it serves.
    Report,
    /// What all stores of the installation are and serve, as far as it reaches them.
    List,
    /// Something that stores have in common is no longer as it was: which stores there are, which
    /// volumes, which credentials count. It looks.
    Refresh,
    /// To leave a volume to the store that asks, where a host wants it.
    Release {
        /// Which.
        volume: VolumeId,
        /// Number of the lease by which the asked store is taken to have it.
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
    /// To strike a store that does not answer off the list of those there are. If it comes back, so does its entry.
    Forget {
        /// Which.
        id: StoreId,
    },
    /// About the second place of all objects.
    Replica(ReplicaOperation),
    /// Asks for a certificate, from who is to become a store and has a token.
    Sign {
        /// Who it is to be.
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

/// What is asked about the second place of all objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaOperation {
    /// How it is doing.
    Show,
    /// To have one from now on.
    Add {
        /// Where, as `--data` of a store says it.
        location: String,
        /// Whether nothing is committed before it is there as well.
        in_step: bool,
        /// Addresses of the stores that wait there, which hosts are told.
        standby: Vec<String>,
        /// Whether what is there may be lost.
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

/// How the second place of all objects is doing, as a store sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaState {
    /// Where it is.
    pub location: String,
    /// Whether nothing is committed before it is there as well.
    pub in_step: bool,
    /// Whether everything has been there once.
    pub built: bool,
    /// Addresses of the stores that wait there.
    pub standby: Vec<String>,
    /// Operations of this store that are not done there.
    pub operations: u64,
    /// Bytes of objects that are not there, as far as that is known.
    pub bytes: u64,
    /// How long the oldest of them has been waiting, in milliseconds.
    pub lag_ms: u64,
    /// Volumes of which it is not known yet what is missing; where commits wait, also those of which something is missing that
    /// was committed before they did.
    pub unknown: u64,
    /// Objects that were found missing and are being put, and how many of them are there.
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
        /// What its journal says, if it has one.
        journal: Option<JournalState>,
        /// Also if another host is connected.
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
    /// What a store is and serves.
    Report(StoreReport),
    /// The same of all.
    List(Vec<StoreState>),
    /// The store that was asked does not use the volume, or no longer: it has nothing under way.
    Released,
    /// The host cannot have the volume, and the store goes on with it.
    Refused(AttachError),
    /// So many hosts were asked to go to other stores.
    Moved(u32),
    /// How the second place is doing, if there is one.
    Replica(Option<ReplicaState>),
    /// Answers [`StoreOperation::Sign`].
    Signed {
        /// The certificate, in DER.
        certificate: Vec<u8>,
        /// The key of the CA, PKCS #8.
        ca_key: Vec<u8>,
        /// The certificates that are accepted, as the stores share them, in JSON; empty if they are too many for a frame.
        list: Vec<u8>,
    },
    /// Answers [`StoreOperation::Renew`]: the certificate, in DER.
    Renewed(Vec<u8>),
}

/// What a store says of itself.
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
    /// What is known of it.
    pub live: LiveInfo,
}

/// A store of the installation, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreState {
    /// Who it is.
    pub id: StoreId,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// What it says, without its volumes; nothing if it does not answer.
    pub report: Option<StoreReport>,
}
