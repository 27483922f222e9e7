//! The peer of a session, as its certificate says.

use serde::{Deserialize, Serialize};

/// Names the key of a certificate: the SHA-256 of its SubjectPublicKeyInfo (RFC 5280 §4.1.2.7). A
/// renewed certificate with the same key has the same name.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub [u8; 32]);

impl KeyId {
    /// Of those who have no certificate: the store itself, and what runs in one process with it.
    pub const NONE: KeyId = KeyId([0; 32]);
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyId({:02x}{:02x}{:02x}{:02x})", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// The owner of a session. All facts come from the verified certificate, and none from the peer's
/// messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Serial number of the certificate, as the list of accepted ones has it.
    pub serial: String,
    /// The key that the peer has proven to hold.
    pub key: KeyId,
    /// The tenant whose it is; nothing for the installation's own.
    pub tenant: Option<String>,
    /// Whether it is a store's.
    pub store: bool,
    /// Name of the credential, for people: at most 256 bytes; empty if it has none.
    pub name: String,
}

impl Principal {
    /// Of those who have no certificate: [`KeyId::NONE`], and all that the installation's own may
    /// do.
    #[must_use]
    pub fn embedded() -> Principal {
        let (serial, name) = (String::new(), String::new());
        Principal { serial, key: KeyId::NONE, tenant: None, store: false, name }
    }
}
