//! Telling hosts what is damaged of their volumes, whoever found it: they may have it in their caches.

use super::super::scrub::{Found, Scrub};
use super::Shell;
use longhaul_core::block::Range;
use longhaul_core::store::Event;
use longhaul_core::wire::link::Parent;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What a read found is not told again for so long: clients may read it again and again.
const AGAIN: Duration = Duration::from_secs(60);
/// What is known is told again after so long, if it is still read from there.
const TELL_AGAIN: Duration = Duration::from_secs(3600);
/// Most of what reads found that is remembered.
const RECENT_MAX: usize = 64;

/// What is known of damage.
pub(super) struct Damage {
    scrub: Scrub,
    /// What the scrub finds.
    found: mpsc::UnboundedReceiver<Found>,
    /// What reads found of late.
    recent: VecDeque<(Instant, String, Range)>,
}

impl Damage {
    pub(super) fn new(scrub: Scrub) -> Damage {
        let found = scrub.reports();
        Damage { scrub, found, recent: VecDeque::new() }
    }

    /// What the scrub finds next.
    pub(super) async fn next(&mut self) -> Found {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// What an engine says of damage; the object and the range, if that is to be told.
    pub(super) fn event(&mut self, event: &Event) -> Option<(String, Range)> {
        match event {
            Event::DamageTold { bytes, .. } => self.scrub.told(*bytes),
            Event::DataDamaged { key, range, .. } => {
                self.recent.retain(|(at, ..)| at.elapsed() < AGAIN);
                if self.recent.iter().any(|(_, k, r)| k == key && r == range) {
                    return None;
                }
                if self.recent.len() == RECENT_MAX {
                    self.recent.pop_front();
                }
                self.recent.push_back((Instant::now(), key.clone(), *range));
                return Some((key.clone(), *range));
            }
            _ => {}
        }
        None
    }
}

impl Shell {
    /// An object of a volume is damaged: that concerns its host, and those of the volume's clones.
    pub(super) fn found_damaged(&mut self, found: Found) {
        let Found { volume, object, ranges } = found;
        let now = self.now();
        let mut told = Vec::new();
        for (id, engine) in &mut self.engines {
            let spec = engine.volume.spec();
            let of = |parent: &Parent| parent.volume == volume;
            if spec.id == *id && (spec.id == volume || spec.parents.iter().any(of)) {
                engine.volume.handle_damaged(now, &object, &ranges);
                told.push(*id);
            }
        }
        for id in told {
            self.drive(id);
        }
    }

    /// Hosts that have come are told what was found before, and now and then again: what was in the way of writing it back may have
    /// gone. Not at once, since a host that attaches a volume takes a while until it listens.
    pub(super) fn tell_known_damage(&mut self) {
        let now = self.now();
        let mut told = Vec::new();
        for (id, engine) in &mut self.engines {
            let host = engine.volume.session();
            let seen = std::mem::replace(&mut engine.seen, host) == host;
            let Some(host) = host.filter(|_| seen) else { continue };
            if engine.told.is_some_and(|(to, at)| to == host && at.elapsed() < TELL_AGAIN) {
                continue;
            }
            engine.told = Some((host, Instant::now()));
            let spec = engine.volume.spec().clone();
            let parents = spec.parents.iter().map(|parent| parent.volume);
            for volume in std::iter::once(spec.id).chain(parents) {
                for (object, ranges) in self.damage.scrub.known(volume) {
                    engine.volume.handle_damaged(now, &object, &ranges);
                    told.push(*id);
                }
            }
        }
        told.dedup();
        for id in told {
            self.drive(id);
        }
    }
}
