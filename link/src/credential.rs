//! The identities of a link: the CA of a store, its certificate, and the credentials that it
//! issues.
//!
//! `STATE/credentials/` of a store holds
//!
//! | file | content |
//! |---|---|
//! | `ca.pem` | certificate and key of the CA, made once: hosts pin the certificate |
//! | `store.pem` | certificate and key of the store, shown to hosts and to other stores, renewed after half its time |
//! | `issued.json` | the accepted certificates with their permissions, and the withdrawn ones |
//! | `admin.toml` | the first credential, with all permissions |
//!
//! A store replaces each file as a whole, and keeps a certificate in one file with its key. So a
//! crash cannot leave halves. The order of writes makes `issued.json` the point at which a
//! credential becomes valid. If a first start stops before that point, the next one starts over.
//!
//! A host knows the store by its CA and the fixed name [`SERVER_NAME`], not by its address. A store
//! may move, and a host may reach it through a relay. A client certificate of that name belongs to
//! another store. The list of accepted certificates has every client certificate, also those of
//! stores.
//!
//! If the subject of a client certificate has an organization, that is the name of its tenant. The
//! list accepts its serial number together with that name and in no other form.
//!
//! - dules: `file` has credential files, `authority` the signatures of the CA, `grant` roles and
//!   patterns, and `issued` the list. `installation` has the files of a store and their changes,
//!   and `join` gives them to another store.

// Also found from where the fuzz targets include this file.
#[path = "credential/authority.rs"]
mod authority;
#[path = "credential/directory.rs"]
mod directory;
#[path = "credential/file.rs"]
mod file;
#[path = "credential/grant.rs"]
mod grant;
#[path = "credential/installation.rs"]
mod installation;
#[path = "credential/issued.rs"]
pub mod issued;
#[path = "credential/join.rs"]
pub mod join;
#[path = "credential/seen.rs"]
mod seen;

pub use file::{Credential, set_certificate, set_stores, unpack};
pub use grant::{ALL, Grant, Kind, Reach, Role};
pub use installation::{
    Own, ServerIdentity, Wanted, accept, accepted, issue, prepare, renew, revoke, revoke_store,
    rotate,
};
pub use issued::{Accepted, Issued, Stamp};
pub use join::{Joining, Signed, answer, invite};
pub use seen::{OF_STORE, OF_TENANT, SERVER_NAME, Seen, bare, date, inspect, key_id, tenant_of};

// Also found from where the fuzz targets include this file.
#[cfg(test)]
#[path = "credential/tests.rs"]
pub mod tests;
