//! The other stores of the installation, and the requests to them.
//!
//! A store sends requests over a connection like a host's, and keeps it while in use. If another
//! store did not answer, it gets no request for a moment. Otherwise each volume of a dead store
//! would ask it again.

use longhaul_core::wire::link::{
    Frame, Lane, RequestId, StoreId, StoreOperation, StoreReply, StoreReport, ToHost, ToStore,
    VolumeError,
};
use longhaul_link::Requests;
use longhaul_link::credential::Own;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long another store may take until its Hello. Stores of one installation are near each other,
/// or near enough to the same objects; and a host wants service within seconds. A guess.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Time for an answer: to leave a volume the other store finishes a segment. Unfinished work of it
/// does no harm, because the log decides.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How long a store that did not answer counts as silent.
const SILENCE: Duration = Duration::from_secs(3);
/// How long to keep an unused connection.
const UNUSED: Duration = Duration::from_secs(60);

/// A store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent;

#[derive(Default)]
struct Peer {
    addresses: Vec<String>,
    /// One at a time connects; the others wait for the outcome.
    link: Arc<tokio::sync::Mutex<Link>>,
}

#[derive(Default)]
struct Link {
    requests: Option<Arc<Requests>>,
    used: Option<Instant>,
    silent: Option<Instant>,
}

/// Waits until a store has not even acknowledged the packets just sent to it. Then it is not busy
/// but gone.
async fn silence(requests: &Requests) {
    let mut before = requests.received_bytes();
    loop {
        if before.is_none() {
            return std::future::pending().await;
        }
        tokio::time::sleep(CONNECT_LIMIT).await;
        let now = requests.received_bytes();
        if now == before {
            return;
        }
        before = now;
    }
}

/// All other stores. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Peers {
    own: Arc<Own>,
    all: Arc<Mutex<BTreeMap<StoreId, Peer>>>,
}

impl Peers {
    /// Speaks to them with the certificate of this store.
    pub fn new(own: Arc<Own>) -> Peers {
        Peers { own, all: Arc::default() }
    }

    fn all<T>(&self, work: impl FnOnce(&mut BTreeMap<StoreId, Peer>) -> T) -> T {
        work(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// There are these.
    pub fn set(&self, found: BTreeMap<StoreId, Vec<String>>) {
        self.all(|all| {
            all.retain(|id, _| found.contains_key(id));
            for (id, addresses) in found {
                let peer = all.entry(id).or_default();
                if peer.addresses != addresses {
                    *peer = Peer { addresses, link: Arc::default() };
                }
            }
        });
    }

    /// A store was heard of: it is worth asking again.
    pub fn heard(&self) {
        self.all(|all| {
            for peer in all.values() {
                if let Ok(mut link) = peer.link.try_lock() {
                    link.silent = None;
                }
            }
        });
    }

    /// The other stores and their addresses.
    pub fn list(&self) -> BTreeMap<StoreId, Vec<String>> {
        self.all(|all| all.iter().map(|(id, peer)| (*id, peer.addresses.clone())).collect())
    }

    /// Ends connections that nobody uses.
    pub fn tidy(&self) {
        self.all(|all| {
            for peer in all.values() {
                if let Ok(mut link) = peer.link.try_lock()
                    && link.used.is_some_and(|used| used.elapsed() > UNUSED)
                {
                    *link = Link::default();
                }
            }
        });
    }

    async fn connect(&self, id: StoreId, addresses: &[String]) -> Result<Arc<Requests>, Silent> {
        let link = self.all(|all| {
            let peer = all
                .entry(id)
                .or_insert_with(|| Peer { addresses: addresses.to_vec(), link: Arc::default() });
            peer.link.clone()
        });
        let mut link = link.lock().await;
        link.used = Some(Instant::now());
        if let Some(requests) = link.requests.as_ref().filter(|requests| requests.is_open()) {
            return Ok(requests.clone());
        }
        if link.silent.is_some_and(|since| since.elapsed() < SILENCE) {
            return Err(Silent);
        }
        let stores = self.all(|all| all.get(&id).map(|peer| peer.addresses.clone()));
        let mut credential = (*self.own.now()).clone();
        credential.stores = stores.unwrap_or_else(|| addresses.to_vec());
        let connecting = Requests::connect(&credential, None);
        let why = match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
            Ok(Ok(requests)) => {
                let requests = Arc::new(requests);
                link.silent = None;
                link.requests = Some(requests.clone());
                return Ok(requests);
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("no answer from {}", credential.stores.join(", ")),
        };
        tracing::warn!("store {id}: {why}");
        link.silent = Some(Instant::now());
        link.requests = None;
        Err(Silent)
    }

    /// Sends a request to a store. `addresses` are used if there are no newer ones.
    ///
    /// # Errors
    /// If it does not answer in time.
    pub async fn call(
        &self,
        id: StoreId,
        addresses: &[String],
        lane: Lane,
        message: impl FnOnce(RequestId) -> ToStore,
    ) -> Result<Frame<ToHost>, Silent> {
        let requests = self.connect(id, addresses).await?;
        let answer = tokio::select! {
            answer = requests.call(lane, message) => answer.map_err(|error| format!("{error:#}")),
            () = tokio::time::sleep(ANSWER_LIMIT) => Err("no answer in time".to_owned()),
            () = silence(&requests) => Err("it is silent".to_owned()),
        };
        match answer {
            Ok(frame) => Ok(frame),
            Err(why) => {
                tracing::warn!("store {id}: {why}");
                let link = self.all(|all| all.get(&id).map(|peer| peer.link.clone()));
                if let Some(link) = link {
                    let mut link = link.lock().await;
                    // Another one may have connected anew meanwhile.
                    if link.requests.as_ref().is_some_and(|now| Arc::ptr_eq(now, &requests)) {
                        link.requests = None;
                        link.silent = Some(Instant::now());
                    }
                }
                Err(Silent)
            }
        }
    }

    /// Asks a store for something about stores.
    ///
    /// # Errors
    /// If it does not answer in time.
    pub async fn operate(
        &self,
        id: StoreId,
        addresses: &[String],
        operation: StoreOperation,
    ) -> Result<Result<StoreReply, VolumeError>, Silent> {
        let ask = |request| ToStore::Store { request, operation };
        let frame = self.call(id, addresses, Lane::Control, ask).await?;
        match frame.message {
            ToHost::Store { result, .. } => Ok(result),
            _ => Err(Silent),
        }
    }

    /// Tells all other stores that something has changed. If one is out of reach, it finds out by
    /// itself when it matters.
    pub async fn tell(&self) {
        let told = self.list().into_iter().map(|(id, addresses)| async move {
            let _ = self.operate(id, &addresses, StoreOperation::Refresh).await;
        });
        futures_util::future::join_all(told).await;
    }

    /// The reports of the stores that answer.
    pub async fn reports(&self) -> Vec<(StoreId, Vec<String>, Option<StoreReport>)> {
        let asked = self.list().into_iter().map(|(id, addresses)| async move {
            let answer = self.operate(id, &addresses, StoreOperation::Report).await;
            let report = match answer {
                Ok(Ok(StoreReply::Report(report))) => Some(report),
                _ => None,
            };
            (id, addresses, report)
        });
        futures_util::future::join_all(asked).await
    }

    /// Has another store do what a host or a command asked of this one. The answer has the number
    /// of the original request.
    ///
    /// # Errors
    /// If it does not answer in time.
    pub async fn forward(
        &self,
        id: StoreId,
        addresses: &[String],
        lane: Lane,
        message: ToStore,
    ) -> Result<Frame<ToHost>, Silent> {
        let original = match &message {
            ToStore::Read { request, .. }
            | ToStore::Status { request, .. }
            | ToStore::Volume { request, .. } => *request,
            _ => return Err(Silent),
        };
        let renumber = |request| match message {
            ToStore::Read { volume, epoch, range, .. } => {
                ToStore::Read { request, volume, epoch, range }
            }
            ToStore::Status { volume, epoch, range, .. } => {
                ToStore::Status { request, volume, epoch, range }
            }
            ToStore::Volume { operation, .. } => ToStore::Volume { request, operation },
            other => other,
        };
        let mut frame = self.call(id, addresses, lane, renumber).await?;
        match &mut frame.message {
            ToHost::Data { request, .. }
            | ToHost::Status { request, .. }
            | ToHost::Volume { request, .. } => *request = original,
            _ => return Err(Silent),
        }
        Ok(frame)
    }
}
