//! A standby: a store over a replica that waits for the order to take it over.
//!
//! It serves only two paths of the HTTP API, to clients with a credential of the installation.
//! Hosts that try its address find no store there, and go on looking.

use super::super::location::{LocationRecord, LocationRole};
use super::promote;
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use longhaul_api::admin::{Metrics, Report, Unready};
use longhaul_api::types::{Problem, ProblemKind};
use longhaul_core::wire::link::Principal;
use longhaul_link::credential::{self, Issued, Kind, ServerIdentity};
use longhaul_link::tcp::{Acceptor, Visitor};
use longhaul_objects::Objects;
use serde::Deserialize;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, watch};
use tokio_rustls::TlsStream;

/// A store that waits.
pub struct Standby {
    base: Arc<dyn Objects>,
    /// The role of the location. It changes after a takeover.
    site: watch::Sender<LocationRecord>,
    /// One at a time goes on.
    going_on: Mutex<()>,
}

impl Standby {
    /// Over a location that is a replica.
    pub fn new(base: Arc<dyn Objects>, site: LocationRecord) -> Arc<Standby> {
        let (site, going_on) = (watch::Sender::new(site), Mutex::new(()));
        Arc::new(Standby { base, site, going_on })
    }

    /// Waits until somebody has gone on with it. Returns what the location is then.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn wait(
        self: Arc<Standby>,
        address: SocketAddr,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
    ) -> Result<LocationRecord> {
        let mut acceptor = Acceptor::bind_for_http(address, identity, issued.clone())?;
        let visitors = acceptor.visitors().context("the listener belongs to another process")?;
        let router = Router::new()
            .route("/v1/standby", get(show))
            .route("/v1/failover", post(go_on))
            .fallback(async || {
                let why = "this store waits over a replica: longhaul store failover makes it serve";
                problem(StatusCode::SERVICE_UNAVAILABLE, ProblemKind::Unavailable, why)
            })
            .with_state(self.clone());
        let service = router.into_make_service_with_connect_info::<Caller>();
        let served = axum::serve(Visitors(visitors, issued), service);
        let mut site = self.site.subscribe();
        let promoted = async {
            let role = |site: &LocationRecord| matches!(site.role, LocationRole::Primary { .. });
            let site = site.wait_for(role).await.map(|site| site.clone());
            // The requester gets its answer first.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            site
        };
        tokio::select! {
            site = promoted => Ok(site?),
            ended = served => match ended {
                Ok(()) => bail!("the listener has ended"),
                Err(error) => Err(error).context("cannot listen"),
            },
        }
    }

    fn state(&self) -> longhaul_api::types::Standby {
        let site = self.site.borrow();
        let (role, of, complete) = match &site.role {
            LocationRole::Replica { of, built, .. } => ("standby", Some(of.clone()), *built),
            _ => ("store", None, true),
        };
        longhaul_api::types::Standby { role: role.to_owned(), of, complete }
    }
}

/// Who asks.
#[derive(Clone, Debug)]
struct Caller {
    peer: SocketAddr,
    principal: Principal,
    issued: Arc<Issued>,
}

struct Visitors(mpsc::Receiver<Visitor>, Arc<Issued>);

impl axum::serve::Listener for Visitors {
    type Io = TlsStream<TcpStream>;
    type Addr = Caller;

    async fn accept(&mut self) -> (Self::Io, Caller) {
        match self.0.recv().await {
            Some(Visitor { stream, peer, principal }) => {
                let issued = self.1.clone();
                (stream, Caller { peer, principal, issued })
            }
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Caller> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl Connected<IncomingStream<'_, Visitors>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Visitors>) -> Caller {
        stream.remote_addr().clone()
    }
}

fn problem(status: StatusCode, kind: ProblemKind, why: &str) -> Response {
    (status, Json(Problem { error: why.to_owned(), kind })).into_response()
}

async fn show(State(standby): State<Arc<Standby>>) -> Response {
    // It becomes complete without anybody telling this one.
    match super::super::location::read(&*standby.base).await {
        Ok(site) => {
            standby.site.send_replace(site);
            Json(standby.state()).into_response()
        }
        Err(error) => {
            let why = format!("{error:#}");
            problem(StatusCode::SERVICE_UNAVAILABLE, ProblemKind::Unavailable, &why)
        }
    }
}

#[derive(Deserialize)]
struct How {
    #[serde(default)]
    force: bool,
}

async fn go_on(
    State(standby): State<Arc<Standby>>,
    Query(how): Query<How>,
    ConnectInfo(caller): ConnectInfo<Caller>,
) -> Response {
    let serial = &caller.principal.serial;
    let role = caller.issued.grant(serial).map(|grant| (grant.kind, grant.role));
    let may = matches!(role, Some((Kind::Operator | Kind::Host, credential::Role::Admin)));
    if !may || !caller.issued.reach(serial).is_everything() {
        tracing::warn!("{} (credential {serial}) may not have this replica go on", caller.peer);
        let why = "the credential is not one of role admin for all volumes: use an admin.toml";
        return problem(StatusCode::FORBIDDEN, ProblemKind::Forbidden, why);
    }
    let _alone = standby.going_on.lock().await;
    tracing::info!(
        "{} (credential {}) has this replica go on",
        caller.peer,
        caller.principal.serial
    );
    match promote(&standby.base, how.force).await {
        Ok(site) => {
            standby.site.send_replace(site);
            Json(standby.state()).into_response()
        }
        Err(error) => {
            tracing::warn!("it cannot go on: {error:#}");
            problem(StatusCode::CONFLICT, ProblemKind::Conflict, &format!("{error:#}"))
        }
    }
}

#[async_trait]
impl Report for Standby {
    async fn metrics(&self) -> String {
        let mut out = Metrics::default();
        let help = "Whether this store is a standby over a replica.";
        out.single("longhaul_store_standby", "gauge", help, 1);
        out.finish()
    }

    async fn status(&self) -> Result<Value, String> {
        serde_json::to_value(self.state()).map_err(|error| error.to_string())
    }

    async fn ready(&self) -> Vec<Unready> {
        Vec::new()
    }
}
