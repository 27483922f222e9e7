//! Operators: the choice of their operations, and the check of attribute values.

use super::operation::{Kind, Operation, value_bytes};
use super::place::SECOND;
use super::store::{Stage, Store};
use super::truth::{Tenants, Truth, named_by};
use super::{Event, World};
use crate::rng::Rng;
use longhaul_core::block::{Epoch, Time, VolumeId};
use longhaul_core::store::ObjectOperation;
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::{TenantLimits, TenantOperation};
use std::collections::BTreeMap;

const TENANTS: [&str; 2] = ["acme", "zeta"];
/// Largest size that a resize asks for, in sectors.
const MOST_SECTORS: u64 = 96;

/// A value that an attribute may have.
struct Value {
    epoch: Epoch,
    value: u64,
    /// The time of the first request for the value, and the time of its first acknowledgment.
    asked: Time,
    acknowledged: Option<Time>,
    /// Whether a purge has removed the volume since, and a clone with its identity has begun anew.
    lost: bool,
}

/// The requested values of the attribute of each volume.
#[derive(Default)]
pub(super) struct Attributes(BTreeMap<VolumeId, Vec<Value>>);

impl Attributes {
    fn ask(&mut self, id: VolumeId, epoch: Epoch, value: u64, asked: Time) {
        let value = Value { epoch, value, asked, acknowledged: None, lost: false };
        self.0.entry(id).or_default().push(value);
    }

    pub fn set(&mut self, id: VolumeId, epoch: Epoch, value: u64, (asked, at): (Time, Time)) {
        let values = self.0.entry(id).or_default();
        if let Some(found) = values.iter_mut().find(|found| found.value == value) {
            if !found.lost {
                found.acknowledged.get_or_insert(at);
            }
        } else {
            values.push(Value { epoch, value, asked, acknowledged: Some(at), lost: false });
        }
    }

    /// Handles a clone that begins anew. It may lack all values from before.
    pub fn begin_anew(&mut self, id: VolumeId) {
        for value in self.0.get_mut(&id).into_iter().flatten() {
            (value.acknowledged, value.lost) = (None, true);
        }
    }

    /// Handles the refusal of a value. An earlier attempt may have set the value, so it stays among
    /// the possible ones.
    pub fn refused(&mut self, _: VolumeId, _: u64) {}

    /// Checks a value that an operator read. `asked` is the time of that request.
    pub fn check(&self, id: VolumeId, bytes: &[u8], asked: Time) -> Result<(), String> {
        let values = self.0.get(&id).map_or(&[][..], Vec::as_slice);
        let read = values.iter().find(|value| value_bytes(value.value) == bytes);
        let before = values.iter().filter(|v| v.acknowledged.is_some_and(|at| at < asked));
        for value in before {
            // A value may replace another one of an older epoch. Within an epoch, its
            // acknowledgment must not precede the request for the other one.
            let fits = read.is_some_and(|read| {
                read.epoch > value.epoch
                    || read.epoch == value.epoch
                        && read.acknowledged.is_none_or(|at| at >= value.asked)
            });
            if !fits {
                let (epoch, value) = (value.epoch, value.value);
                let text = String::from_utf8_lossy(bytes);
                return Err(format!("the attribute is {text:?}, after {value} of epoch {epoch}"));
            }
        }
        if read.is_none() && !bytes.is_empty() {
            return Err("the attribute has a value that nobody set".to_owned());
        }
        Ok(())
    }
}

pub(super) struct Operator {
    pub operations: BTreeMap<u64, Operation>,
    pub tenants: Tenants,
    pub attributes: Attributes,
    /// The number of volumes from which on operators seldom create another one.
    most: usize,
    with_tenants: bool,
    names: u64,
    pub rng: Rng,
}

impl Operator {
    pub fn new(mut rng: Rng, with_tenants: bool) -> Operator {
        Operator {
            operations: BTreeMap::new(),
            tenants: Tenants::default(),
            attributes: Attributes::default(),
            most: rng.between(1, 6) as usize,
            with_tenants,
            names: rng.between(2, 5),
            rng,
        }
    }

    /// A random running store.
    pub fn some_store(&mut self, stores: &[Store]) -> Option<usize> {
        let up: Vec<usize> =
            (0..stores.len()).filter(|at| stores[*at].stage == Stage::Up).collect();
        if up.is_empty() { None } else { Some(up[self.rng.index(up.len())]) }
    }

    /// A name out of a few, so that names repeat. Without a given tenant, the name may be one of
    /// any tenant.
    fn some_name(&mut self, tenant: Option<&str>) -> String {
        let name = format!("n{}", self.rng.below(self.names));
        match tenant {
            Some(tenant) => format!("{tenant}/{name}"),
            None if self.with_tenants && self.rng.percent(50) => {
                format!("{}/{name}", TENANTS[self.rng.index(2)])
            }
            None => name,
        }
    }

    fn limits(&mut self) -> TenantLimits {
        let max_volumes = self.rng.percent(80).then(|| self.rng.between(1, 3));
        let max_bytes = self.rng.percent(30).then(|| self.rng.between(1, 3) * 40 * 512);
        TenantLimits { max_volumes, max_bytes, ..TenantLimits::default() }
    }
}

fn clone_of(operation: &Operation) -> Option<VolumeId> {
    if let Kind::Clone { id, .. } = operation.kind { Some(id) } else { None }
}

fn pick<'a>(rng: &mut Rng, mut all: impl Iterator<Item = &'a Truth>) -> Option<&'a Truth> {
    let some: Vec<&Truth> = all.by_ref().collect();
    if some.is_empty() { None } else { Some(some[rng.index(some.len())]) }
}

impl World {
    pub(super) fn operator_wakes(&mut self) {
        if self.end.is_quiet() {
            return;
        }
        let delay = self.operator.rng.spread(SECOND / 50, self.plan.pace);
        self.after(delay, Event::Operator);
        if self.operator.operations.len() >= 8 {
            return;
        }
        if let Some(kind) = self.choose() {
            self.begin_operation(kind);
        }
    }

    /// At times an operator deletes a volume while the name of a new clone of it is slow to come.
    /// Returns the delay of that name in nanoseconds.
    pub(super) fn may_delete_parent(&mut self, operation: &ObjectOperation) -> u64 {
        let Some(spec) = named_by(operation) else { return 0 };
        if self.end.is_quiet() || !self.operator.rng.percent(20) {
            return 0;
        }
        let parent = spec.parents.first().and_then(|parent| self.truths.get(&parent.volume));
        let Some(parent) = parent else { return 0 };
        let Some(name) = parent.names.first().cloned() else { return 0 };
        // While an operator waits for a clone, no operator removes the data of that clone.
        let mut waiting = self.operator.operations.values().filter_map(clone_of);
        if self.plan.grace == 0 && waiting.any(|clone| clone == parent.spec.id) {
            return 0;
        }
        self.begin_operation(Kind::Delete { name });
        self.operator.rng.spread(SECOND, 8 * SECOND)
    }

    /// At times an operator restores a volume by another name while the name of a restoration is
    /// slow to come. Returns the delay of that name in nanoseconds.
    pub(super) fn may_restore_otherwise(&mut self, operation: &ObjectOperation) -> u64 {
        let Some(spec) = named_by(operation) else { return 0 };
        if self.end.is_quiet() || !self.operator.rng.percent(10) {
            return 0;
        }
        let restores = self.truths.get(&spec.id).is_some_and(|truth| !truth.records.is_empty());
        if !restores {
            return 0;
        }
        let name = self.operator.some_name(tenant_of(&spec.name));
        self.begin_operation(Kind::Restore { id: spec.id, name });
        self.operator.rng.spread(SECOND, 8 * SECOND)
    }

    fn choose(&mut self) -> Option<Kind> {
        let Operator { operations, .. } = &self.operator;
        let waiting: Vec<VolumeId> = operations.values().filter_map(clone_of).collect();
        let operator = &mut self.operator;
        let truths = &self.truths;
        let named = truths.values().filter(|truth| !truth.names.is_empty());
        // While an operator waits for a clone, no operator removes the data of that clone.
        let waits = |truth: &Truth| waiting.contains(&truth.spec.id);
        let grace = self.plan.grace;
        let count = named.clone().count();
        let create = if count < operator.most { 25 } else { 4 };
        let tenants = if operator.with_tenants { 8 } else { 0 };
        let weights = [create, 12, 12, 10, 5, 10, 10, 6, 8, 5, 3, 4, tenants, 6, 6, 5, 4];
        let rng = &mut operator.rng;
        let choice = rng.weighted(&weights);
        let name_of = |truth: &Truth| truth.names.first().cloned();
        match choice {
            0 => {
                let name = operator.some_name(None);
                let sectors = operator.rng.between(2, 8) * 8;
                Some(Kind::Create { name, sectors })
            }
            1 => {
                let name = name_of(pick(rng, named)?)?;
                let (snapshot, id) = (format!("s{}", rng.below(4)), VolumeId(rng.wide()));
                Some(Kind::Snapshot { name, snapshot, id })
            }
            2 => {
                let parent = pick(rng, named.filter(|truth| !truth.snapshots.is_empty()))?;
                let snapshots: Vec<&String> =
                    parent.snapshots.values().map(|taken| &taken.name).collect();
                let snapshot = snapshots[rng.index(snapshots.len())].clone();
                let (id, parent) = (VolumeId(rng.wide()), name_of(parent)?);
                let tenant = tenant_of(&parent).map(str::to_owned);
                let mut name = operator.some_name(tenant.as_deref());
                if tenant.is_none() && tenant_of(&name).is_some() {
                    name = format!("n{}", operator.rng.below(operator.names));
                }
                Some(Kind::Clone { parent, snapshot, name, id })
            }
            3 => {
                let stays = |truth: &&Truth| grace == 0 && waits(truth);
                let truth = pick(rng, named.filter(|truth| !stays(truth)))?;
                Some(Kind::Delete { name: name_of(truth)? })
            }
            4 => {
                let parent = pick(rng, named.filter(|truth| !truth.snapshots.is_empty()))?;
                let snapshot = parent.snapshots.values().next_back()?.name.clone();
                Some(Kind::DeleteSnapshot { name: name_of(parent)?, snapshot })
            }
            5 | 6 => {
                let gone = |truth: &&Truth| !truth.fate.condemned && !truth.records.is_empty();
                // Half of the time the operator prefers a clone without an existing parent.
                let orphan = |truth: &&Truth| {
                    let parent = truth.spec.parents.first();
                    let parent = parent.and_then(|parent| truths.get(&parent.volume));
                    parent.is_some_and(|parent| parent.names.is_empty())
                };
                let orphans = truths.values().filter(gone).filter(orphan);
                let orphan = if rng.percent(50) { pick(rng, orphans) } else { None };
                let truth = match orphan {
                    Some(truth) => truth,
                    None => pick(rng, truths.values().filter(gone))?,
                };
                let (id, name) = (truth.spec.id, truth.spec.name.clone());
                let tenant = tenant_of(&name).map(str::to_owned);
                if rng.percent(70) {
                    return Some(Kind::Restore { id, name });
                }
                Some(Kind::Restore { id, name: operator.some_name(tenant.as_deref()) })
            }
            7 => {
                let gone = |truth: &&Truth| {
                    !truth.fate.condemned && !truth.records.is_empty() && !waits(truth)
                };
                // The operator prefers a volume whose data an existing clone needs.
                let needed = |truth: &&Truth| {
                    let of = |other: &Truth| {
                        let parents = &other.spec.parents;
                        parents.iter().any(|parent| parent.volume == truth.spec.id)
                    };
                    truths.values().any(|other| !other.names.is_empty() && of(other))
                };
                let needed = truths.values().filter(gone).filter(needed);
                if let Some(truth) = pick(rng, needed) {
                    return Some(Kind::Purge { id: truth.spec.id });
                }
                Some(Kind::Purge { id: pick(rng, truths.values().filter(gone))?.spec.id })
            }
            8 => Some(Kind::Show { name: name_of(pick(rng, named)?)? }),
            9 => {
                let truth = pick(rng, named)?;
                let sectors = (truth.sectors + 8).min(MOST_SECTORS);
                Some(Kind::Resize { name: name_of(truth)?, sectors })
            }
            10 => {
                let truth = pick(rng, named.filter(|truth| truth.sectors > 24))?;
                Some(Kind::Shrink { name: name_of(truth)?, sectors: truth.sectors - 8 })
            }
            11 => Some(Kind::AcceptLoss { name: name_of(pick(rng, named)?)? }),
            12 => {
                let tenant = TENANTS[rng.index(2)].to_owned();
                let choice = rng.weighted(&[50, 30, 20]);
                let limits = operator.limits();
                Some(Kind::Tenant(match choice {
                    0 => TenantOperation::Create { tenant, limits },
                    1 => TenantOperation::Set { tenant, limits },
                    _ => TenantOperation::Delete { tenant },
                }))
            }
            13 => {
                let truth = pick(rng, named)?;
                let (id, epoch, value) = (truth.spec.id, truth.epoch.max(1), rng.draw());
                operator.attributes.ask(id, epoch, value, self.now);
                Some(Kind::SetAttribute { id, epoch, value })
            }
            14 => Some(Kind::GetAttribute { id: pick(rng, named)?.spec.id }),
            15 => Some(Kind::List),
            _ => Some(Kind::ListDeleted),
        }
    }
}
