//! The root of an encrypted volume, as its last host stated it under the keys.

use anyhow::Result;
use longhaul_api::attributes;
use longhaul_api::client::Client;
use longhaul_api::keys::{self, Given, VERSIONS_ATTRIBUTE, open_statement};
use longhaul_api::queries::info;
use longhaul_core::host::versions;
use serde_json::{Value, json};

/// The root, or why there is none.
pub(super) enum Root {
    /// The volume has none: it is not encrypted.
    Plain,
    /// Nobody has stated one.
    Unknown,
    /// This one, and how many writes came later.
    Is(versions::Root, u64),
}

/// The root of a volume.
///
/// # Errors
/// If the store does not answer, or nothing opens the keys of the volume.
pub(super) async fn of_volume(client: &Client, name: &str, given: &Given) -> Result<Root> {
    let link = client.link().await?;
    // The store knows the last commit after it has opened the volume.
    attributes::epoch(link, name).await?;
    let info = info(link, name).await?;
    if !keys::is_encrypted(link, &info).await? {
        return Ok(Root::Plain);
    }
    let Some(keys) = keys::of_volume(link, &info, given).await? else { return Ok(Root::Plain) };
    let data = attributes::get(link, &info, VERSIONS_ATTRIBUTE).await?;
    let stated = open_statement(&keys, info.id, &data).and_then(|stated| stated.root);
    let committed = info.live.map_or(0, |live| live.committed);
    Ok(match stated {
        None => Root::Unknown,
        Some(root) => Root::Is(root, committed.saturating_sub(root.seq)),
    })
}

impl Root {
    pub(super) fn to_json(&self) -> Value {
        match self {
            Root::Plain | Root::Unknown => Value::Null,
            Root::Is(root, later) => {
                json!({ "hash": root.hash.to_string(), "write": root.seq, "later_writes": later })
            }
        }
    }
}

impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Root::Plain => f.write_str("none: the store says that the volume is not encrypted"),
            Root::Unknown => {
                f.write_str("not known: no host that knows all of the volume has let it go")
            }
            Root::Is(root, 0) => write!(f, "{}", root.hash),
            Root::Is(root, later) => {
                write!(f, "{} after write {}, and {later} came later", root.hash, root.seq)
            }
        }
    }
}
