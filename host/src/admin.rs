//! The pages of a host's admin listener. Each request goes to the front thread. The answer is JSON,
//! or text for Prometheus.

use super::exposition::prometheus;
use super::ready;
use super::report::{AdminRequest, HostSnapshot};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use longhaul_api::admin::{self, Refusal, Unready};
use longhaul_base::limits::{ADMIN_BODY_BYTES, ADMIN_SMALL_BODY_BYTES};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long the front thread may take for an answer before the host counts as hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Serves `address` from a thread of its own, unless that is `none`. `names` are the host names
/// that requests may use. A client that wants to change something has to show `token`.
///
/// # Errors
/// If the address is not usable.
pub fn start(
    address: &str,
    names: &[String],
    token: String,
    questions: mpsc::Sender<AdminRequest>,
) -> Result<()> {
    match admin::bind(address, names)? {
        Some(listener) => admin::start(listener, Arc::new(Host { questions, token })),
        None => Ok(()),
    }
}

struct Host {
    questions: mpsc::Sender<AdminRequest>,
    token: String,
}

impl Host {
    async fn report(&self) -> Result<HostSnapshot> {
        self.ask(AdminRequest::Report).await
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> AdminRequest) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let asked = async {
            self.questions.send(question(sender)).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(ANSWER_LIMIT, asked)
            .await
            .context("the host's front thread does not answer")?
            .context("the host is stopping")
    }
}

#[async_trait]
impl admin::Report for Host {
    async fn metrics(&self) -> String {
        match self.report().await {
            Ok(answer) => prometheus(&answer),
            // Alarms notice missing numbers.
            Err(error) => format!("# {error:#}\n"),
        }
    }

    async fn status(&self) -> Result<serde_json::Value, String> {
        let answer = self.report().await;
        answer
            .and_then(|answer| Ok(serde_json::to_value(answer.report)?))
            .map_err(|error| format!("{error:#}"))
    }

    async fn live(&self) -> Result<(), String> {
        match self.report().await {
            // A host that stops has not hung.
            Err(error) if !self.questions.is_closed() => Err(format!("{error:#}")),
            _ => Ok(()),
        }
    }

    async fn ready(&self) -> Vec<Unready> {
        match self.report().await {
            Ok(answer) => ready::reasons(&answer.report),
            Err(error) => {
                let hung = !self.questions.is_closed();
                let reason = if hung { "not-answering" } else { "shutting-down" };
                vec![Unready { reason, volume: None, detail: format!("{error:#}") }]
            }
        }
    }

    async fn page(&self, name: &str) -> Option<Result<serde_json::Value, String>> {
        if name == "traces" {
            let traces = self.ask(AdminRequest::Traces).await.flatten();
            let page = traces.and_then(|traces| Ok(serde_json::to_value(traces)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name == "pins" {
            let pins = self.ask(AdminRequest::Pins).await;
            let page = pins.and_then(|pins| Ok(serde_json::to_value(pins)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name == "nbd" {
            let rights = self.ask(AdminRequest::NbdRights).await;
            let page = rights.and_then(|rights| Ok(serde_json::to_value(rights)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name != "iscsi" {
            return None;
        }
        let rights = self.ask(AdminRequest::Rights).await;
        let page = rights.and_then(|rights| Ok(serde_json::to_value(rights)?));
        Some(page.map_err(|error| format!("{error:#}")))
    }

    fn may_change(&self, name: &str, token: &str) -> Option<Result<usize, Refusal>> {
        let most = match name {
            "iscsi" | "nbd" => ADMIN_SMALL_BODY_BYTES,
            "control" => ADMIN_BODY_BYTES,
            _ => return None,
        };
        Some(if same(token, &self.token) { Ok(most) } else { Err(Refusal::Forbidden) })
    }

    async fn change(&self, name: &str, change: serde_json::Value) -> Result<(), Refusal> {
        let unknown = |error| anyhow::Error::new(error).context("this host knows no such change");
        let changed = if name == "control" {
            match serde_json::from_value(change) {
                Ok(control) => {
                    self.ask(|sender| AdminRequest::Control(control, sender)).await.flatten()
                }
                Err(error) => Err(unknown(error)),
            }
        } else if name == "nbd" {
            match serde_json::from_value(change) {
                Ok(change) => {
                    self.ask(|sender| AdminRequest::NbdChange(change, sender)).await.flatten()
                }
                Err(error) => Err(unknown(error)),
            }
        } else {
            match serde_json::from_value(change) {
                Ok(change) => {
                    self.ask(|sender| AdminRequest::Change(change, sender)).await.flatten()
                }
                Err(error) => Err(unknown(error)),
            }
        };
        changed.map_err(|error| Refusal::Failed(format!("{error:#}")))
    }
}

/// Compares in constant time, wherever the texts differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
