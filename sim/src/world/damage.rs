//! Damage that stores report to hosts although there is none. The writes of hosts change nothing,
//! whatever the report, and whenever it comes. From then on such a write is one of known content,
//! held to the rules of all writes.

use super::{Event, MS, State, World};
use crate::model::OpId;
use crate::note;
use longhaul_core::block::{Range, Seq};
use longhaul_core::store::catalog;
use longhaul_core::wire::link::ToHost;

impl World {
    /// Some host gets a report of some ranges: from a store that finds a damaged object, or from
    /// one that is out of touch.
    pub(super) fn tell_damage(&mut self) {
        if self.finishing {
            return;
        }
        let next = self.damage_rng.spread(2 * MS, 100 * MS);
        self.after(next, Event::Tell);
        let rng = &mut self.damage_rng;
        let volume = rng.index(self.volumes.len());
        let truth = &self.volumes[volume].truth;
        let ranges: Vec<Range> = (0..rng.between(1, 3))
            .map(|_| {
                let most = if rng.percent(70) { 64 } else { truth.sectors };
                let length = rng.between(1, most.min(truth.sectors));
                Range::new(rng.below(truth.sectors - length + 1), length)
            })
            .collect();
        let number = rng.between(1, truth.segments.max(1));
        if rng.percent(50) {
            let store = rng.index(self.stores.len());
            let key = catalog::segment_key(self.volumes[volume].id, number);
            let now = self.now;
            let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
            note!(self, "s{store} finds {key} damaged: {ranges:?}");
            open.machine.handle_damaged(now, &key, &ranges);
            return self.pump_store(store, volume);
        }
        let host = rng.index(self.hosts.len());
        let slot = &self.hosts[host].slots[volume];
        let Some(session) = slot.session.filter(|_| matches!(slot.state, State::Running(_))) else {
            return;
        };
        let (volume, epoch) = (self.volumes[volume].id, slot.epoch);
        note!(self, "h{host} is told of {ranges:?}");
        self.take_down(session, ToHost::Damaged { volume, epoch, ranges }.into());
    }

    /// A host has written what the volume held by then: what it had in its cache, or encrypted
    /// anew. Whether that is zeroes.
    pub(super) fn written_back(
        &mut self,
        host: usize,
        volume: usize,
        range: Range,
        (first, last): (Seq, Seq),
    ) -> bool {
        let epoch = self.hosts[host].slots[volume].epoch;
        let plan = self.plan.volumes[volume];
        let Some(branch) = self.branches.get_mut(&(volume, epoch)) else { return false };
        let content = branch.newest(range, &self.ops);
        let before = branch.log.len() as Seq;
        let zero = content.iter().all(|stamp| *stamp == Default::default());
        let longest = if plan.packs() && !zero { plan.packed_sectors } else { u64::MAX };
        let mut ids: Vec<OpId> = Vec::new();
        for part in super::client::cut(range, longest) {
            let skip = (part.lba - range.lba) as usize;
            let content = &content[skip..skip + part.sectors as usize];
            let id = self.ops.push_again(volume, part, content, zero);
            branch.push(id, part);
            ids.push(id);
        }
        if let (Some(one), Some(last)) = (ids.first(), ids.last()) {
            self.ops.join(*one, *last);
        }
        let now = branch.log.len() as Seq;
        if (before + 1, now) != (first, last) {
            self.fail(format!(
                "host {host} wrote {range} back as {first} to {last}, and not as {} to {now}",
                before + 1
            ));
        }
        note!(self, "h{host} v{volume} wrote {range} back, {first} to {last}");
        zero
    }
}
