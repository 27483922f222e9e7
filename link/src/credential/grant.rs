//! The permissions of a credential: its role, and the volumes that the role is for.

use anyhow::{Result, bail};
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::tenant;
use serde::{Deserialize, Serialize};

/// Most patterns of a credential.
pub const MAX_PATTERNS: usize = 64;
/// Longest name of a credential, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
const MAX_PATTERN_BYTES: usize = 255;
/// The pattern that covers all volumes.
pub const ALL: &str = "*";

/// The permission for the volumes of a credential. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// List, show, read, export.
    Read,
    /// Attach; take and delete snapshots.
    Write,
    /// Create, delete, resize, roll back, give up lost writes, restore; for all volumes also
    /// tenants and stores.
    Admin,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        })
    }
}

/// The kind of a credential's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Somebody who runs commands.
    Operator,
    /// A host gateway.
    Host,
    /// A store of the installation.
    Store,
    /// A store that is to become one, once.
    Join,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Operator => "operator",
            Kind::Host => "host",
            Kind::Store => "store",
            Kind::Join => "join",
        })
    }
}

/// The facts that all stores know of a certificate that they accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Its name for people.
    pub name: String,
    /// Whose it is.
    pub kind: Kind,
    /// Its permission.
    pub role: Role,
    /// Patterns of the names of the volumes, within its tenant if it is one's.
    pub volumes: Vec<String>,
    /// SHA-256 of its public key, in hexadecimal.
    pub key: String,
    /// Of a store's: which store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The time of its issue, RFC 3339.
    pub issued: String,
    /// When the certificate ends, RFC 3339.
    pub not_after: String,
}

impl Grant {
    /// The volumes that it knows of, for the tenant of its certificate.
    pub fn reach(&self, tenant: Option<&str>) -> Reach {
        Reach { tenant: tenant.map(str::to_owned), patterns: self.volumes.clone() }
    }
}

/// The volumes that a credential knows of: others are not there for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    tenant: Option<String>,
    patterns: Vec<String>,
}

impl Reach {
    /// No volume, not even a new one.
    pub fn nothing() -> Reach {
        Reach { tenant: None, patterns: Vec::new() }
    }

    /// The tenant whose volumes they are.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Whether it is all of the installation.
    pub fn is_everything(&self) -> bool {
        self.tenant.is_none() && self.patterns.iter().any(|pattern| pattern == ALL)
    }

    /// Whether a volume is among them, by the name that the credential's holder has for it.
    pub fn covers(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether a volume is among them, by its name in the catalog.
    pub fn has(&self, name: &str) -> bool {
        match (&self.tenant, tenant::split(name)) {
            (None, _) => self.covers(name),
            (Some(tenant), (of, name)) => of == Some(tenant) && self.covers(name),
        }
    }
}

/// Whether a name is of a pattern: `*` stands for any characters but `/`, and alone for every name.
fn matches(pattern: &str, name: &str) -> bool {
    if pattern == ALL {
        return true;
    }
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut n) = (0, 0);
    // Where the last `*` was, and up to where of the name it reaches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if at < pattern.len() && pattern[at] == b'*' {
            star = Some((at, n));
            at += 1;
        } else if at < pattern.len() && pattern[at] == name[n] {
            (at, n) = (at + 1, n + 1);
        } else if let Some((back, until)) = star.filter(|(_, until)| name[*until] != b'/') {
            star = Some((back, until + 1));
            (at, n) = (back + 1, until + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Checks the patterns of a credential of a tenant, or of the installation.
///
/// # Errors
/// If one is none.
pub fn check_patterns(patterns: &[String], tenant: Option<&str>) -> Result<()> {
    if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
        bail!("a credential has 1 to {MAX_PATTERNS} patterns of volumes");
    }
    for pattern in patterns {
        let byte = |b: u8| b.is_ascii_alphanumeric() || b"._-*".contains(&b);
        let parts: Vec<&str> = pattern.split('/').collect();
        let good = pattern.len() <= MAX_PATTERN_BYTES
            && parts.len() <= 1 + usize::from(tenant.is_none())
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(byte));
        if !good {
            bail!(
                "{pattern:?} is no pattern of volumes: use letters, digits, `.`, `_`, `-`, and `*` \
                 for any of them; the installation's own credentials may name volumes of tenants \
                 as TENANT/NAME"
            );
        }
    }
    Ok(())
}

/// Checks the name of a credential.
///
/// # Errors
/// If it is none.
pub fn check_credential_name(name: &str) -> Result<()> {
    if name.len() > MAX_NAME_BYTES || check_name(name).is_err() {
        bail!(
            "{name:?} is no name of a credential: begin with a letter or digit, and use at most \
             {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_names_within_a_tenant() {
        for (pattern, names, others) in [
            ("*", &["db", "acme/db", "x.y"][..], &[][..]),
            ("db", &["db"], &["db1", "d", "acme/db", ""]),
            ("db*", &["db", "db1", "dbx"], &["d", "dbx/secret", "xdb"]),
            ("*-log", &["a-log", "-log", "a-log-log"], &["log", "a-logs", "t/a-log"]),
            ("a*b*c", &["abc", "a-b-b-c", "abcbc"], &["ab", "acb", "abcd"]),
            ("acme/*", &["acme/db", "acme/"], &["acme", "acme2/db", "db"]),
            ("**", &["db", ""], &["a/b"]),
        ] {
            let reach = Reach { tenant: None, patterns: vec![pattern.to_owned()] };
            assert!(names.iter().all(|name| reach.has(name)), "{pattern} has {names:?}");
            assert!(!others.iter().any(|name| reach.has(name)), "{pattern} has not {others:?}");
        }
        let acme = Reach { tenant: Some("acme".into()), patterns: vec!["db*".into()] };
        assert!(acme.has("acme/db1") && acme.covers("db1"));
        assert!(!acme.has("db1") && !acme.has("acme/x") && !acme.has("acme2/db1"));
        let all = |tenant: Option<&str>| Reach {
            tenant: tenant.map(str::to_owned),
            patterns: vec!["x".into(), ALL.into()],
        };
        assert!(all(None).is_everything() && !all(Some("acme")).is_everything());
        assert!(!Reach::nothing().has("db") && !Reach::nothing().is_everything());
    }

    #[test]
    fn patterns_are_checked() {
        let check = |pattern: &str, tenant| check_patterns(&[pattern.to_owned()], tenant).is_ok();
        assert!(check("*", None) && check("a*.b-c_d", Some("t")) && check("acme/*", None));
        for odd in ["", "a/b/c", "/a", "a/", "a b", "[ab]", "?", "a@b", &"x".repeat(256)] {
            assert!(!check(odd, None), "{odd}");
        }
        assert!(!check("acme/*", Some("acme")));
        assert!(check_patterns(&[], None).is_err());
        assert!(check_patterns(&vec![ALL.to_owned(); MAX_PATTERNS + 1], None).is_err());
        for odd in ["", "a b", "-a", "a/b", "a\u{1b}", &"x".repeat(65)] {
            assert!(check_credential_name(odd).is_err(), "{odd}");
        }
        assert!(check_credential_name("db-host.1").is_ok());
        assert!(Role::Read < Role::Write && Role::Write < Role::Admin);
    }
}
