//! The commands' end of the HTTP API.
//!
//! A command sends its requests over HTTP. It may be that HTTP does not get through, because only
//! UDP does. Then the server's code answers the same requests within this process, over a link to
//! the store. So a command knows only one interface. The choice falls when the command connects.
//! Answers of a store do not change it.

use super::serve::{Routes, service};
use super::session::{Caller, STORES};
use super::types::{Problem, ProblemKind};
use anyhow::{Context as _, Result, anyhow, bail};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::Service as _;
use hyper_util::rt::TokioIo;
use longhaul_base::text::tell;
use longhaul_core::wire::link::MAX_STORES;
use longhaul_link::credential::{Credential, SERVER_NAME, set_stores};
use longhaul_link::{LinkError, Requests, SETUP_TIMEOUT, tcp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell, watch};
use tokio::task::JoinHandle;

/// Time for HTTP alone, before a link is tried too. A guess: TCP and TLS take less on nearly all
/// paths.
const LINK_AFTER: Duration = Duration::from_secs(1);
/// Time for an answer. A bit longer than the time that the store allows each of its own requests,
/// so that it can report a timeout of those.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(65);
/// How long the end of a connection may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for why it has ended: it is on its way, and only an error waits for it.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: some 100,000 volumes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The store refused the request, or failed.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    kind: ProblemKind,
    why: String,
}

/// Why a store did not do something, if it said so.
pub fn problem(error: &anyhow::Error) -> Option<ProblemKind> {
    error.downcast_ref::<Refused>().map(|refused| refused.kind)
}

/// A store, for one command.
pub struct Client {
    credential: Credential,
    /// Its address, if it is not one of the credential's.
    store: Option<String>,
    http: Option<Http>,
    link: OnceCell<Linked>,
}

impl Client {
    /// Connects to a store of a credential, or to the one at `store`.
    ///
    /// # Errors
    /// If no store is reachable or it refuses. The message says which, and what to do.
    pub async fn connect(credential: Credential, store: Option<&str>) -> Result<Client> {
        let mut client = Client::new(credential, store);
        client.http = client.reach().await?;
        Ok(client)
    }

    /// A connection for HTTP; or nothing, and there is a link.
    async fn reach(&self) -> Result<Option<Http>> {
        let stores = match &self.store {
            Some(store) => std::slice::from_ref(store),
            None => &self.credential.stores,
        };
        let (failed, mut no_http) = watch::channel(false);
        let answered = Arc::<AtomicBool>::default();
        let mut visit = std::pin::pin!(async {
            let visit = tcp::visit(&self.credential, stores, &answered).await;
            failed.send_replace(!matches!(visit, Ok(Some(_))));
            visit
        });
        let mut link = std::pin::pin!(async {
            let _ = tokio::time::timeout(LINK_AFTER, no_http.wait_for(|failed| *failed)).await;
            self.link().await.map(drop)
        });
        let (mut visited, mut unlinked) = (false, None);
        loop {
            tokio::select! {
                biased;
                visit = &mut visit, if !visited => {
                    visited = true;
                    match (visit?, unlinked.take()) {
                        (Some(visit), _) => return Http::new(visit).await.map(Some),
                        (None, Some(error)) => return Err(error),
                        (None, None) => {}
                    }
                }
                linked = &mut link, if unlinked.is_none() => match linked {
                    // TCP gets through, and the handshake takes longer on a busy machine.
                    Ok(()) if !visited && answered.load(Ordering::Relaxed) => {
                        let visit = tokio::time::timeout(SETUP_TIMEOUT, visit).await;
                        return match visit.unwrap_or(Ok(None))? {
                            Some(visit) => Http::new(visit).await.map(Some),
                            None => Ok(None),
                        };
                    }
                    Ok(()) => return Ok(None),
                    Err(error) if visited => return Err(error),
                    Err(error) => unlinked = Some(error),
                },
            }
        }
    }

    /// Connects to a store with a link, and sends requests over it too.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub async fn linked(credential: Credential, store: Option<&str>) -> Result<Client> {
        let client = Client::new(credential, store);
        client.link().await?;
        Ok(client)
    }

    fn new(credential: Credential, store: Option<&str>) -> Client {
        let store = store.map(str::to_owned);
        Client { credential, store, http: None, link: OnceCell::new() }
    }

    /// A link to the store, for what moves data or keys.
    ///
    /// # Errors
    /// As for [`Client::connect`].
    pub async fn link(&self) -> Result<&Requests> {
        let connect = async || {
            let requests = Requests::connect(&self.credential, self.store.as_deref()).await?;
            anyhow::Ok(Linked::new(requests))
        };
        Ok(&self.link.get_or_try_init(connect).await?.requests)
    }

    /// Whether requests go over HTTP.
    pub fn is_over_http(&self) -> bool {
        self.http.is_some()
    }

    /// The addresses of all stores of the installation as the store knows them that has answered,
    /// its own first; nothing if none has said.
    pub fn known_stores(&self) -> Vec<String> {
        let (own, mut all) = match (&self.http, self.link.get()) {
            (Some(http), _) => (http.address.clone(), http.stores()),
            (None, Some(linked)) => {
                (linked.requests.address().to_owned(), linked.requests.stores())
            }
            (None, None) => return Vec::new(),
        };
        if !all.is_empty() {
            all.retain(|address| *address != own);
            all.insert(0, own);
        }
        all
    }

    /// Adds new addresses of stores to the file of the credential. If the stores that it names are
    /// gone, the next command finds the others.
    fn remember(&self) {
        let credential = &self.credential;
        let Some(path) = credential.path.as_ref().filter(|_| self.store.is_none()) else { return };
        let mut stores = self.known_stores();
        if stores.is_empty() {
            return;
        }
        for old in &credential.stores {
            if !stores.contains(old) {
                stores.push(old.clone());
            }
        }
        stores.truncate(MAX_STORES);
        let known = stores.iter().all(|store| credential.stores.contains(store));
        if known && stores.first() == credential.stores.first() {
            return;
        }
        if let Err(error) = set_stores(path, &stores) {
            tell(&format!(
                "the addresses of other stores ({}) are not remembered: {error:#}",
                stores.join(", ")
            ));
        }
    }

    /// Ends it.
    pub async fn close(self) {
        self.remember();
        if let Some(Http { sender, task, .. }) = self.http {
            drop(sender);
            let _ = tokio::time::timeout(END_TIMEOUT, task).await;
        }
        if let Some(Linked { requests, caller, .. }) = self.link.into_inner() {
            drop(caller);
            if let Some(requests) = Arc::into_inner(requests) {
                requests.close().await;
            }
        }
    }

    /// Asks for something.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        decoded(&self.ask(Method::GET, path, None::<&()>, Some(ANSWER_TIMEOUT)).await?)
    }

    /// Sends a request whose answer may take any time. The code below checks that the store is
    /// alive.
    pub(super) async fn get_in_time<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        decoded(&self.ask(Method::GET, path, None::<&()>, None).await?)
    }

    /// Has something done, and asks what came of it.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        what: &impl Serialize,
    ) -> Result<T> {
        decoded(&self.ask(method, path, Some(what), Some(ANSWER_TIMEOUT)).await?)
    }

    /// The same, where there is nothing to say about it.
    pub(super) async fn act_for<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<T> {
        decoded(&self.ask(method, path, None::<&()>, Some(ANSWER_TIMEOUT)).await?)
    }

    /// Has something done.
    pub(super) async fn act(&self, method: Method, path: &str) -> Result<()> {
        self.ask(method, path, None::<&()>, Some(ANSWER_TIMEOUT)).await.map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        what: Option<&impl Serialize>,
        limit: Option<Duration>,
    ) -> Result<Bytes> {
        let body = what.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header(header::HOST, SERVER_NAME);
        let request = match what {
            Some(_) => request.header(header::CONTENT_TYPE, "application/json"),
            None => request,
        };
        let request = request.body(Full::new(Bytes::from(body)))?;
        let (status, body) = match (&self.http, self.link.get()) {
            (Some(http), _) => http.ask(request, limit).await?,
            (None, Some(link)) => link.ask(request).await?,
            (None, None) => bail!("the connection to the store is gone"),
        };
        if status.is_success() {
            return Ok(body);
        }
        let refused = match serde_json::from_slice::<Problem>(&body) {
            Ok(Problem { error: why, kind }) => Refused { kind, why },
            Err(_) => Refused {
                kind: ProblemKind::Failed,
                why: format!("the store answered with status {status} and no reason"),
            },
        };
        Err(refused.into())
    }
}

fn decoded<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body)
        .context("the store gave an answer that does not fit: are both of the same version?")
}

/// All of an answer.
async fn whole<B: Body>(answer: axum::http::Response<B>) -> Result<(StatusCode, Bytes)>
where
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    Ok((status, body.map_err(|error| anyhow!(error))?.to_bytes()))
}

/// A store, reached over HTTP.
struct Http {
    address: String,
    /// The other stores that the last answer named.
    stores: std::sync::Mutex<Vec<String>>,
    sender: Mutex<SendRequest<Full<Bytes>>>,
    /// Why the connection is over.
    ended: watch::Receiver<Option<LinkError>>,
    task: JoinHandle<()>,
}

impl Http {
    async fn new(visit: tcp::Visit) -> Result<Http> {
        let tcp::Visit { stream, address } = visit;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let (end, ended) = watch::channel(None);
        let task = tokio::spawn(async move {
            let why = connection.await.err().as_ref().and_then(cause);
            let why = why.unwrap_or_else(|| LinkError::Lost("the store has closed it".into()));
            end.send_replace(Some(why));
        });
        let (sender, stores) = (Mutex::new(sender), std::sync::Mutex::default());
        Ok(Http { address, stores, sender, ended, task })
    }

    fn stores(&self) -> Vec<String> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, headers: &HeaderMap) {
        let Some(said) = headers.get(STORES).and_then(|value| value.to_str().ok()) else { return };
        let stores = said.split(',').filter(|store| !store.is_empty()).map(str::to_owned);
        let stores = stores.take(MAX_STORES).collect();
        *self.stores.lock().unwrap_or_else(PoisonError::into_inner) = stores;
    }

    async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        limit: Option<Duration>,
    ) -> Result<(StatusCode, Bytes)> {
        let mut sender = self.sender.lock().await;
        let asked = async {
            let answer = async {
                sender.ready().await?;
                sender.send_request(request).await
            };
            match answer.await {
                Ok(answer) => {
                    self.learn(answer.headers());
                    whole(answer).await
                }
                Err(error) => Err(error.into()),
            }
        };
        let result = match limit {
            Some(limit) => tokio::time::timeout(limit, asked).await.map_err(|_| {
                anyhow!(
                    "the store at {} is connected but did not answer within {} s: look at its log \
                     and try again",
                    self.address,
                    limit.as_secs()
                )
            })?,
            None => asked.await,
        };
        match result {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.lost(&error).await),
        }
    }

    /// Why there is no answer.
    async fn lost(&self, error: &anyhow::Error) -> anyhow::Error {
        let mut ended = self.ended.clone();
        let why = match error.chain().find_map(of_io) {
            Some(why) => Some(why),
            // The connection may know better.
            None => {
                match tokio::time::timeout(REASON_TIMEOUT, ended.wait_for(Option::is_some)).await {
                    Ok(Ok(why)) => why.clone(),
                    _ => None,
                }
            }
        };
        let why = why.unwrap_or_else(|| LinkError::Lost(format!("{error:#}")));
        // A store refuses a credential only after everything else is settled.
        match why.needs_operator() {
            true => anyhow!("cannot reach the store at {}: {why}", self.address),
            false => anyhow!("lost the connection to the store at {}: {why}", self.address),
        }
    }
}

/// The cause of a connection's error.
fn cause(error: &hyper::Error) -> Option<LinkError> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(why) = of_io(error) {
            return Some(why);
        }
        source = error.source();
    }
    None
}

fn of_io(error: &(dyn Error + 'static)) -> Option<LinkError> {
    error.downcast_ref::<std::io::Error>().map(tcp::client_error)
}

/// A store, reached over a link.
struct Linked {
    requests: Arc<Requests>,
    caller: Arc<Caller>,
    routes: Routes,
}

impl Linked {
    fn new(requests: Requests) -> Linked {
        let requests = Arc::new(requests);
        let caller = Arc::new(Caller::linked(requests.clone()));
        Linked { requests, caller, routes: service() }
    }

    async fn ask(&self, mut request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
        request.extensions_mut().insert(self.caller.clone());
        match self.routes.call(request).await {
            Ok(answer) => whole(answer).await,
            Err(never) => match never {},
        }
    }
}
