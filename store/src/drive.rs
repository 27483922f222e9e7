//! Carries out what the procedures of [`longhaul_core::store::fleet`] ask for.

use super::peers::Peers;
use futures_util::StreamExt as _;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::{Effect, EffectResult, Note, Procedure, Runner};
use longhaul_core::wire::link::{SnapshotOperation, SnapshotReply, VolumeError};
use longhaul_objects::{ObjectOperation, ObjectResult, Objects, execute};
use tokio::sync::oneshot;

/// The answer of an engine, once there is one.
pub type EngineAnswer = oneshot::Receiver<Result<SnapshotReply, VolumeError>>;

/// Asks the engine of a volume, wherever that is.
pub type Engines<'a> = &'a (dyn Fn(VolumeId, SnapshotOperation) -> EngineAnswer + Sync);

/// Runs a procedure to its end. Without `peers` no other store answers.
pub async fn drive<P: Procedure>(
    procedure: P,
    objects: &dyn Objects,
    peers: Option<&Peers>,
) -> P::Outcome {
    drive_with(procedure, objects, peers, None).await
}

/// As [`drive`], with engines to be asked.
pub async fn drive_with<P: Procedure>(
    procedure: P,
    objects: &dyn Objects,
    peers: Option<&Peers>,
    engines: Option<Engines<'_>>,
) -> P::Outcome {
    let mut runner = Runner::new(procedure, super::clock::now());
    loop {
        while let Some(note) = runner.poll_note() {
            match note {
                Note::Debug(text) => tracing::debug!("{text}"),
                Note::Warning(text) => tracing::warn!("{text}"),
                Note::Error(text) => tracing::error!("{text}"),
            }
        }
        if let Some(outcome) = runner.poll_outcome() {
            return outcome;
        }
        let Some(effect) = runner.poll_effect() else { return std::future::pending().await };
        let result = carry_out(effect, objects, peers, engines).await;
        runner.handle_result(super::clock::now(), result);
    }
}

async fn carry_out(
    effect: Effect,
    objects: &dyn Objects,
    peers: Option<&Peers>,
    engines: Option<Engines<'_>>,
) -> EffectResult {
    match effect {
        Effect::Object(operation) => EffectResult::Object(operate(objects, operation).await),
        Effect::Objects { operations, at_once } => {
            let mut under_way = futures_util::stream::iter(operations)
                .map(|operation| operate(objects, operation))
                .buffered(at_once);
            let mut results = Vec::new();
            while let Some(result) = under_way.next().await {
                let failed = result.is_failed();
                results.push(result);
                if failed {
                    break;
                }
            }
            EffectResult::Objects(results)
        }
        Effect::Peer { store, addresses, operation } => EffectResult::Peer(match peers {
            Some(peers) => peers.operate(store, &addresses, operation).await.ok(),
            None => None,
        }),
        Effect::Engine { volume, operation } => {
            let answer = engines.map(|engines| engines(volume, operation));
            let stopped = || Err(VolumeError::Store("the store stops".to_owned()));
            EffectResult::Engine(match answer {
                Some(answer) => answer.await.unwrap_or_else(|_| stopped()),
                None => stopped(),
            })
        }
        Effect::Pause(pause) => {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            EffectResult::Paused
        }
    }
}

/// As [`execute`], but a deletion is done when it succeeds.
async fn operate(objects: &dyn Objects, operation: ObjectOperation) -> ObjectResult {
    match operation {
        ObjectOperation::Delete { key } => ObjectResult::Delete(objects.delete(&key).await),
        other => execute(objects, other).await,
    }
}
