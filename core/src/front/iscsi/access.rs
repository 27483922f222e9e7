//! Who may use which volume: the questions that login and discovery ask of [`Access`].

use super::{Access, Grant, name};
use std::collections::BTreeSet;

/// What an initiator has to show before it may have what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing. `chap`: there is more for it, or another right, if it authenticates.
    Nothing {
        /// CHAP is set up for this initiator.
        chap: bool,
    },
    /// That it is one of the CHAP users of its grants.
    User,
    /// There is nothing for it, whatever it shows.
    Nobody,
}

impl Grant {
    fn is_for(&self, initiator: &str) -> bool {
        self.initiator.eq_ignore_ascii_case(initiator)
            || !self.initiator.is_ascii()
                && name::normalise(&self.initiator).is_ok_and(|name| name == initiator)
    }
}

impl Access {
    /// The volume that a target's name means, as it is spelled here; where no volume here is spelled
    /// that way but for case, as it is spelled in the name. `None` where the name is not one of this
    /// target's, or fits several volumes that differ in case only and none of them exactly.
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

    /// Who may use a volume, if that is said. A snapshot is for whom its volume is for.
    fn grants(&self, volume: &str) -> Option<&Vec<Grant>> {
        self.volumes.get(of_snapshot(volume))
    }

    fn names(&self, volume: &str) -> bool {
        self.volumes.contains_key(volume) || self.moved.contains_key(volume)
    }

    /// Whether an initiator, with the user it authenticated as, may use a volume.
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

    /// What an initiator has to show for a volume.
    pub(super) fn need(&self, initiator: &str, loopback: bool, volume: &str) -> Need {
        match self.grants(volume) {
            None if loopback => Need::Nothing { chap: false },
            None => Need::Nobody,
            Some(grants) => need(grants, initiator),
        }
    }

    /// What an initiator has to show to be told of targets. Loopback may look without showing
    /// anything: volumes without grants are its own.
    pub(super) fn need_for_discovery(&self, initiator: &str, loopback: bool) -> Need {
        match need(self.volumes.values().flatten(), initiator) {
            Need::Nobody if loopback => Need::Nothing { chap: false },
            Need::User if loopback => Need::Nothing { chap: true },
            other => other,
        }
    }
}

/// The volume that a name says, of which it may name a snapshot.
fn of_snapshot(name: &str) -> &str {
    name.split_once('@').map_or(name, |(volume, _)| volume)
}

fn need<'a>(grants: impl IntoIterator<Item = &'a Grant>, initiator: &str) -> Need {
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
        (true, chap) => Need::Nothing { chap },
        (false, true) => Need::User,
        (false, false) => Need::Nobody,
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
            ("open", false, Need::Nothing { chap: false }),
            ("user", false, Need::User),
            ("user", true, Need::User),
            ("both", false, Need::Nothing { chap: true }),
            ("none", true, Need::Nobody),
            ("unnamed", false, Need::Nobody),
            ("unnamed", true, Need::Nothing { chap: false }),
            ("away", false, Need::Nobody),
            ("user@monday", true, Need::User),
            ("none@monday", true, Need::Nobody),
        ] {
            assert_eq!(access.need(I, loopback, volume), need, "{volume} {loopback}");
        }
        assert_eq!(access.need_for_discovery(I, false), Need::Nothing { chap: true });
        assert_eq!(access.need_for_discovery("iqn.2001-04.com.example:k", false), Need::Nobody);
        assert_eq!(
            access.need_for_discovery("iqn.2001-04.com.example:k", true),
            Need::Nothing { chap: false }
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
