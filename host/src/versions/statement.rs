//! The statement about an encrypted volume that its key holders keep at the store.

use crate::context::HostContext;
use crate::failure::AttachFailure;
use longhaul_api::keys;
use longhaul_core::block::VolumeId;
use longhaul_core::host::versions::Statement;
use longhaul_core::pack::Keys;
use longhaul_core::wire::link::{ToHost, ToStore, VolumeOperation, VolumeReply};

/// The last statement of a holder of the keys.
pub async fn statement(
    host: &HostContext,
    (name, volume): (&str, VolumeId),
    keys: &Keys,
) -> Result<Option<Statement>, AttachFailure> {
    let attribute = keys::VERSIONS_ATTRIBUTE.into();
    let operation = VolumeOperation::GetAttribute { volume, attribute };
    let reply = host.router.call(|request| ToStore::Volume { request, operation }).await?;
    let data = match reply {
        ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. } => data,
        ToHost::Volume { result: Err(error), .. } => {
            return Err(AttachFailure::Refused(format!(
                "volume {name}: cannot read the last statement about it: {error}"
            )));
        }
        _ => {
            return Err(AttachFailure::Refused(
                "the store gave an answer that does not fit".into(),
            ));
        }
    };
    let opened = keys::open_statement(keys, volume, &data);
    if opened.is_none() && !data.is_empty() {
        tracing::warn!(
            volume = name,
            "the statement about the volume at the store was not made with its keys"
        );
    }
    Ok(opened)
}

/// States something at the store: also when there are new keys, since the old ones may be given up.
///
/// # Errors
/// If the store does not take it.
pub async fn put(
    host: &HostContext,
    (name, volume): (&str, VolumeId),
    statement: &Statement,
    keys: &Keys,
) -> Result<(), AttachFailure> {
    let (epoch, attribute) = (statement.epoch, keys::VERSIONS_ATTRIBUTE.to_owned());
    let data = keys::seal_statement(keys, volume, statement)?;
    let operation =
        VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces: None };
    match host.router.call(|request| ToStore::Volume { request, operation }).await? {
        ToHost::Volume { result: Ok(_), .. } => Ok(()),
        ToHost::Volume { result: Err(error), .. } => Err(AttachFailure::Refused(format!(
            "volume {name}: the store does not keep the statement about it: {error}"
        ))),
        _ => Err(AttachFailure::Refused("the store gave an answer that does not fit".into())),
    }
}
