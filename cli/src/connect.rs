//! How commands reach a store.

use crate::args::KeyArgs;
use anyhow::Result;
use longhaul_api::client::Client;
use longhaul_api::keys::Given;
use longhaul_base::Usage;
use longhaul_link::credential::Credential;
use std::path::Path;

/// The means of a command to open volumes.
pub(crate) fn given(args: &KeyArgs) -> Given {
    Given::new(args.key_file.clone(), args.passphrase_file.clone(), args.plain)
}

/// The part of the store that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its HTTP API, or the same over a link if HTTP does not get through.
    Api,
    /// A link: to move data, or keys.
    Link,
}

/// Does something at the store of a credential, or at another address of it.
pub(crate) fn connected(
    credential: Option<&Path>,
    store: Option<&str>,
    reach: Reach,
    work: impl AsyncFnOnce(&Client) -> Result<()>,
) -> Result<()> {
    let path = credential.ok_or_else(|| {
        Usage(
            "no credential: give --credential FILE or LONGHAUL_CREDENTIAL, the admin.toml that the \
             store wrote"
                .into(),
        )
    })?;
    let credential = Credential::load(path)?;
    // The connection lives on a thread of its own. The command may wait for a passphrase, or derive
    // a key from one, for longer than the store keeps a silent connection.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let result = runtime.block_on(async {
        let client = match reach {
            Reach::Api => Client::connect(credential, store).await?,
            Reach::Link => Client::linked(credential, store).await?,
        };
        let result = work(&client).await;
        client.close().await;
        result
    });
    // A thread that reads standard input may wait for ever.
    runtime.shutdown_background();
    result
}
