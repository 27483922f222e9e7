//! One connection to a store for one command: requests and their replies, no reconnecting.

use super::Transport;
use super::connect::{self, Greeting, Senders};
use super::dial::Dialer;
use super::elsewhere::Elsewhere;
use super::error::LinkError;
use super::transport::Connection;
use crate::credential::{Credential, tenant_of};
use anyhow::{Context as _, Result, bail};
use longhaul_core::store::tenant::within;
use longhaul_core::wire::link::{
    Frame, Lane, RequestId, StoreOperation, StoreReply, TenantOperation, TenantReply, ToHost,
    ToStore, VolumeError, VolumeOperation, VolumeReply,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// The time that a store has for a reply, and for the next one after it. Where a tenant's limits
/// delay requests, the store answers many at a time one by one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

type Waiting = Mutex<HashMap<RequestId, oneshot::Sender<Frame<ToHost>>>>;

/// A connection for requests.
pub struct Requests {
    address: String,
    greeting: Arc<OnceLock<Greeting>>,
    /// The tenant of the credential.
    tenant: Option<String>,
    senders: Senders,
    waiting: Arc<Waiting>,
    /// When the last reply came.
    heard: Arc<Mutex<Instant>>,
    next: AtomicU64,
    ended: watch::Receiver<Option<String>>,
    connection: Arc<dyn Connection>,
    notices: tokio::sync::Mutex<mpsc::UnboundedReceiver<ToHost>>,
    task: tokio::task::JoinHandle<()>,
}

impl Requests {
    /// Connects to the store of a credential, or to the one at `store`.
    ///
    /// # Errors
    /// If no store answers, or the store refuses. The message names the store and the next step.
    pub async fn connect(credential: &Credential, store: Option<&str>) -> Result<Requests> {
        Requests::connect_by(Transport::Auto, credential, store).await
    }

    /// As [`Requests::connect`], by `transport`.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_by(
        transport: Transport,
        credential: &Credential,
        store: Option<&str>,
    ) -> Result<Requests> {
        let mut dialer = Dialer::new(credential, transport)?;
        let stores = store.map_or(credential.stores.clone(), |store| vec![store.to_owned()]);
        let opening = connect::Opening::new(false);
        // A store that is gone does not hold up who can go to another one.
        let elsewhere = Elsewhere::new(credential.clone(), &dialer);
        match Box::pin(elsewhere.first(&mut dialer, &stores, None, opening)).await {
            Ok((other, established)) => {
                let mut requests = Requests::new(established, Some(other.unwrap_or(dialer)));
                requests.tenant = tenant_of(&credential.serial).map(str::to_owned);
                Ok(requests)
            }
            Err(errors) => bail!("cannot reach the {}", connect::describe(&errors)),
        }
    }

    /// Makes requests over a connection that is there, to the store at `address`.
    ///
    /// # Errors
    /// If that is none to talk to.
    pub(super) async fn over(
        connection: Arc<dyn Connection>,
        address: String,
    ) -> Result<Requests, LinkError> {
        Ok(Requests::new(connect::over(connection, address).await?, None))
    }

    fn new(established: connect::Established, dialer: Option<Dialer>) -> Requests {
        let address = established.address.clone();
        let greeting = established.greeting.clone();
        let (connection, senders, moving) = established.split();
        let kept = connection.clone();
        let waiting = Arc::new(Waiting::default());
        let (notify, mut notices) = mpsc::unbounded_channel();
        if dialer.is_none() {
            // Nobody asks for them there, for as long as the session lasts.
            notices.close();
        }
        let (end, ended) = watch::channel(None);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let deliver = {
            let (waiting, heard) = (waiting.clone(), heard.clone());
            move |_, frame: Frame<ToHost>| {
                match request_of(&frame.message) {
                    None => {
                        let _ = notify.send(frame.message);
                    }
                    Some(request) => {
                        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(reply) = waiting.remove(&request) {
                            let _ = reply.send(frame);
                        }
                    }
                }
                true
            }
        };
        let unanswered = waiting.clone();
        let task = tokio::spawn(async move {
            let (_keep, urgent) = watch::channel(false);
            let result = connect::pump(connection, moving, urgent, deliver).await;
            let reason = result.err().map_or("closed".to_owned(), |error| error.to_string());
            end.send_replace(Some(reason));
            unanswered.lock().unwrap_or_else(PoisonError::into_inner).clear();
            if let Some(dialer) = dialer {
                dialer.wait_idle().await;
            }
        });
        Requests {
            address,
            greeting,
            tenant: None,
            senders,
            waiting,
            heard,
            next: AtomicU64::new(1),
            ended,
            connection: kept,
            notices: tokio::sync::Mutex::new(notices),
            task,
        }
    }

    /// Where the store is that has answered.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The addresses of all stores of the installation, as this one knows them.
    pub fn stores(&self) -> Vec<String> {
        self.greeting.get().map(|greeting| greeting.stores.clone()).unwrap_or_default()
    }

    /// The name of a volume, as the operator of an installation knows it, of one that this
    /// connection knows as `name`.
    pub fn canonical(&self, name: &str) -> String {
        let name = name.split_once('@').map_or(name, |(volume, _)| volume);
        within(self.tenant.as_deref(), name)
    }

    /// Whether the connection has not ended.
    pub fn is_open(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Bytes that have come, whatever they say; nothing where the kernel sees to it that the peer
    /// lives.
    pub fn received_bytes(&self) -> Option<u64> {
        let quic = self.connection.transport() == "quic";
        quic.then(|| self.connection.statistics().received_bytes)
    }

    /// Sends what has no reply of its own.
    pub fn send(&self, lane: Lane, frame: Frame<ToStore>) {
        // Fails only after the end, which the next request reports.
        let _ = self.senders[lane as usize].send(frame);
    }

    /// Makes a request and waits for its reply.
    ///
    /// # Errors
    /// If the connection ends first, or there is no reply in time.
    pub async fn call(
        &self,
        lane: Lane,
        request: impl FnOnce(RequestId) -> ToStore,
    ) -> Result<Frame<ToHost>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut reply) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        self.send(lane, request(id).into());
        if self.ended.borrow().is_some() {
            return Err(self.lost());
        }
        let mut limit = Instant::now() + REPLY_TIMEOUT;
        loop {
            match tokio::time::timeout_at(limit.into(), &mut reply).await {
                Ok(Ok(frame)) => return Ok(frame),
                Ok(Err(_)) => return Err(self.lost()),
                Err(_) => {}
            }
            let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard + REPLY_TIMEOUT <= limit {
                bail!(
                    "the store at {} is connected but did not answer within {} s: look at its log \
                     and try again",
                    self.address,
                    REPLY_TIMEOUT.as_secs()
                );
            }
            limit = heard + REPLY_TIMEOUT;
        }
    }

    /// The next message that answers no request.
    ///
    /// # Errors
    /// If the connection has ended.
    pub async fn notice(&self) -> Result<ToHost> {
        self.notices.lock().await.recv().await.ok_or_else(|| self.lost())
    }

    /// Executes an operation on volumes as a whole.
    ///
    /// # Errors
    /// The answer of the store, or the end of the connection.
    pub async fn volume(&self, operation: VolumeOperation) -> Result<VolumeReply> {
        self.call_volume(operation).await?.context("the store refused")
    }

    /// The same, for who goes on where the store refuses.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn call_volume(
        &self,
        operation: VolumeOperation,
    ) -> Result<Result<VolumeReply, VolumeError>> {
        let frame =
            self.call(Lane::Control, |request| ToStore::Volume { request, operation }).await?;
        match frame.message {
            ToHost::Volume { result, .. } => Ok(result),
            _ => bail!("the store at {} gave an answer that does not fit", self.address),
        }
    }

    /// Asks for something about stores.
    ///
    /// # Errors
    /// The answer of the store, or the end of the connection.
    pub async fn store(&self, operation: StoreOperation) -> Result<StoreReply> {
        let ask = |request| ToStore::Store { request, operation };
        match self.call(Lane::Control, ask).await?.message {
            ToHost::Store { result, .. } => result.context("the store refused"),
            _ => bail!("the store at {} gave an answer that does not fit", self.address),
        }
    }

    /// Asks for something about tenants.
    ///
    /// # Errors
    /// The answer of the store, or the end of the connection.
    pub async fn tenant(&self, operation: TenantOperation) -> Result<TenantReply> {
        let ask = |request| ToStore::Tenant { request, operation };
        match self.call(Lane::Control, ask).await?.message {
            ToHost::Tenant { result, .. } => result.context("the store refused"),
            _ => bail!("the store at {} gave an answer that does not fit", self.address),
        }
    }

    /// Sends the queued frames and closes the connection.
    pub async fn close(self) {
        drop(self.senders);
        let _ = tokio::time::timeout(Duration::from_secs(3), self.task).await;
    }

    fn lost(&self) -> anyhow::Error {
        let reason = self.ended.borrow().clone().unwrap_or_else(|| "it ended".to_owned());
        anyhow::anyhow!("lost the connection to the store at {}: {reason}", self.address)
    }
}

/// The request that a message answers.
fn request_of(message: &ToHost) -> Option<RequestId> {
    match message {
        ToHost::Attached { request, .. }
        | ToHost::Detached { request }
        | ToHost::Data { request, .. }
        | ToHost::Status { request, .. }
        | ToHost::Staged { request, .. }
        | ToHost::Changed { request, .. }
        | ToHost::Store { request, .. }
        | ToHost::Tenant { request, .. }
        | ToHost::Volume { request, .. } => Some(*request),
        ToHost::Hello { .. }
        | ToHost::Committed { .. }
        | ToHost::Fenced { .. }
        | ToHost::Resized { .. }
        | ToHost::Stores { .. }
        | ToHost::Barrier { .. }
        | ToHost::Room { .. }
        | ToHost::Replica { .. }
        | ToHost::Damaged { .. }
        | ToHost::BatchRefused { .. } => None,
    }
}
