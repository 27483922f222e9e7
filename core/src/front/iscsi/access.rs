//! The rights to volumes, and the proof that an initiator has to give for them.

use super::config::Secret;
use super::name;
use std::collections::{BTreeMap, BTreeSet};

/// The rights to the volumes of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// CHAP users and their secrets.
    pub users: BTreeMap<String, Secret>,
    /// The user and the secret by which the target authenticates itself, if an initiator asks for
    /// that.
    pub target_user: Option<(String, Secret)>,
    /// Grants by volume name. A volume that is missing here may be used from loopback only.
    pub volumes: BTreeMap<String, Vec<Grant>>,
    /// Volumes whose initiators are redirected, with the address of the portal to go to.
    pub moved: BTreeMap<String, String>,
}

/// The right of an initiator to use a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// The CHAP user that the initiator has to authenticate as; `None` if it need not authenticate.
    pub user: Option<String>,
}

/// The proof that an initiator has to give before it gets what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequiredProof {
    /// No proof. `chap`: the initiator gets other rights if it authenticates.
    Nothing {
        /// Grants of this initiator name CHAP users.
        chap: bool,
    },
    /// The initiator has to authenticate as a CHAP user of its grants.
    User,
    /// No proof helps: the initiator has no rights here.
    Nobody,
}

impl Grant {
    fn is_for(&self, initiator: &str) -> bool {
        self.initiator.eq_ignore_ascii_case(initiator)
            || !self.initiator.is_ascii()
                && name::normalize(&self.initiator).is_ok_and(|name| name == initiator)
    }
}

impl Access {
    /// The volume of a target name, in the spelling of this value.
    ///
    /// If no volume matches even without regard to case, the spelling is that of the target name.
    /// `None` if the name is not one of this target's. `None` also if several volumes match that
    /// differ only in case, and none of them exactly.
    #[must_use]
    pub fn volume_of(&self, target: &str) -> Option<String> {
        let asked = name::volume_of(target)?;
        let volume = of_snapshot(&asked);
        if self.names(volume) {
            return Some(asked);
        }
        let fits: BTreeSet<&String> = self
            .volumes
            .keys()
            .chain(self.moved.keys())
            .filter(|other| other.eq_ignore_ascii_case(volume))
            .collect();
        match fits.len() {
            0 => Some(asked),
            1 => fits.first().map(|spelled| format!("{spelled}{}", &asked[volume.len()..])),
            _ => None,
        }
    }

    /// The grants of a volume, if it has a list. A snapshot has the grants of its volume.
    fn grants(&self, volume: &str) -> Option<&Vec<Grant>> {
        self.volumes.get(of_snapshot(volume))
    }

    fn names(&self, volume: &str) -> bool {
        self.volumes.contains_key(volume) || self.moved.contains_key(volume)
    }

    /// Whether an initiator that authenticated as `user` may use a volume.
    #[must_use]
    pub fn may_use(
        &self,
        initiator: &str,
        user: Option<&str>,
        loopback: bool,
        volume: &str,
    ) -> bool {
        match self.grants(volume) {
            None => loopback,
            Some(grants) => grants.iter().any(|grant| {
                grant.is_for(initiator) && (grant.user.is_none() || grant.user.as_deref() == user)
            }),
        }
    }

    /// The proof that an initiator has to give for a volume.
    pub(super) fn need(&self, initiator: &str, loopback: bool, volume: &str) -> RequiredProof {
        match self.grants(volume) {
            None if loopback => RequiredProof::Nothing { chap: false },
            None => RequiredProof::Nobody,
            Some(grants) => need(grants, initiator),
        }
    }

    /// The proof that an initiator has to give for discovery. From loopback none is needed, because
    /// volumes without grants may be used from there.
    pub(super) fn need_for_discovery(&self, initiator: &str, loopback: bool) -> RequiredProof {
        match need(self.volumes.values().flatten(), initiator) {
            RequiredProof::Nobody if loopback => RequiredProof::Nothing { chap: false },
            RequiredProof::User if loopback => RequiredProof::Nothing { chap: true },
            other => other,
        }
    }
}

/// The volume of a name that may be that of a snapshot.
fn of_snapshot(name: &str) -> &str {
    name.split_once('@').map_or(name, |(volume, _)| volume)
}

fn need<'a>(grants: impl IntoIterator<Item = &'a Grant>, initiator: &str) -> RequiredProof {
    let (mut open, mut chap) = (false, false);
    for grant in grants {
        if grant.is_for(initiator) {
            match grant.user {
                None => open = true,
                Some(_) => chap = true,
            }
        }
    }
    match (open, chap) {
        (true, chap) => RequiredProof::Nothing { chap },
        (false, true) => RequiredProof::User,
        (false, false) => RequiredProof::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const I: &str = "iqn.2001-04.com.example:i";

    fn grant(initiator: &str, user: Option<&str>) -> Grant {
        Grant { initiator: initiator.to_owned(), user: user.map(str::to_owned) }
    }

    fn access() -> Access {
        let volumes = [
            ("open", vec![grant("IQN.2001-04.com.example:I", None)]),
            ("user", vec![grant(I, Some("alice")), grant("iqn.2001-04.com.example:j", None)]),
            ("both", vec![grant(I, Some("alice")), grant(I, None)]),
            ("none", vec![]),
            ("Case", vec![grant(I, None)]),
            ("twin", vec![]),
            ("Twin", vec![]),
        ];
        Access {
            volumes: volumes.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            moved: [("away".to_owned(), "10.0.0.1:3260".to_owned())].into(),
            ..Access::default()
        }
    }

    #[test]
    fn needs() {
        let access = access();
        for (volume, loopback, need) in [
            ("open", false, RequiredProof::Nothing { chap: false }),
            ("user", false, RequiredProof::User),
            ("user", true, RequiredProof::User),
            ("both", false, RequiredProof::Nothing { chap: true }),
            ("none", true, RequiredProof::Nobody),
            ("unnamed", false, RequiredProof::Nobody),
            ("unnamed", true, RequiredProof::Nothing { chap: false }),
            ("away", false, RequiredProof::Nobody),
            ("user@monday", true, RequiredProof::User),
            ("none@monday", true, RequiredProof::Nobody),
        ] {
            assert_eq!(access.need(I, loopback, volume), need, "{volume} {loopback}");
        }
        assert_eq!(access.need_for_discovery(I, false), RequiredProof::Nothing { chap: true });
        assert_eq!(
            access.need_for_discovery("iqn.2001-04.com.example:k", false),
            RequiredProof::Nobody
        );
        assert_eq!(
            access.need_for_discovery("iqn.2001-04.com.example:k", true),
            RequiredProof::Nothing { chap: false }
        );
    }

    #[test]
    fn rights() {
        let access = access();
        assert!(access.may_use(I, None, false, "open"));
        assert!(access.may_use(I, Some("anyone"), false, "open"));
        assert!(!access.may_use(I, None, false, "user"));
        assert!(!access.may_use(I, Some("bob"), false, "user"));
        assert!(!access.may_use(I, Some("bob"), true, "user@monday"));
        assert!(access.may_use(I, Some("alice"), false, "user@monday"));
        assert!(access.may_use(I, Some("alice"), false, "user"));
        assert!(!access.may_use(I, Some("alice"), true, "none"));
        assert!(access.may_use(I, None, true, "unnamed"));
        assert!(!access.may_use(I, Some("alice"), false, "unnamed"));
    }

    #[test]
    fn spelling() {
        let access = access();
        let of = |volume: &str| access.volume_of(&format!("iqn.2026-11.io.longhaul:{volume}"));
        assert_eq!(of("case").as_deref(), Some("Case"));
        assert_eq!(of("AWAY").as_deref(), Some("away"));
        assert_eq!(of("twin").as_deref(), Some("twin"));
        assert_eq!(of("TWIN"), None);
        assert_eq!(of("other").as_deref(), Some("other"));
        assert_eq!(access.volume_of("iqn.2001-04.com.example:open"), None);
    }
}
