//! Who may talk to a store: its CA, its certificate, and the credentials it hands out.
//!
//! `STATE/credentials/` of a store holds
//!
//! | file | content |
//! |---|---|
//! | `ca.pem` | certificate and key of the CA, made once: hosts pin the certificate |
//! | `store.pem` | certificate and key of the store, shown to hosts and to other stores, renewed when it has served half its time |
//! | `issued.json` | the certificates that are accepted, with what each is good for, and those that were withdrawn |
//! | `admin.toml` | the first credential, good for everything |
//!
//! Each file is replaced as a whole, and a certificate lies in one file with its key, so that a crash
//! cannot leave halves. The order of writes makes `issued.json` the point at which a credential
//! becomes valid; a first start that was interrupted before it starts over.
//!
//! The server is known by its CA and the fixed name [`SERVER_NAME`], not by its address: a store may
//! move, and a host may reach it through a relay. A client certificate of that name is another store's.
//! Every client certificate is in the list of those accepted, stores' like all others.
//!
//! A client certificate is a tenant's if its subject has an organization, which is the tenant's name. Its serial number is
//! accepted together with that name and in no other form.
//!
//! - `file`: credential files; `authority`: what the CA signs; `grant`: roles and patterns; `issued`: the list;
//!   `installation`: what a store keeps, and how that changes; `join`: how another store comes to have it.

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
