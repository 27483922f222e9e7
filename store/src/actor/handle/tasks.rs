//! Completions go to the children they belong to.

use super::super::StoreActor;
use super::super::event::TaskDone;

impl StoreActor {
    pub(super) fn task_done(&mut self, done: TaskDone) {
        match done {
            TaskDone::Attend(call) => self.attend(&call),
            TaskDone::Schedule(read) => self.schedule_read(read),
            TaskDone::Quota(done) => self.quota_done(done),
            TaskDone::Rates(done) => self.rates_done(done),
            TaskDone::Snapshot(done) => self.snapshot_done(done),
            TaskDone::Ownership(done) => self.ownership_done(done),
            TaskDone::Job(done) => self.job_done(done),
            TaskDone::Clone(done) => self.clone_done(done),
            TaskDone::Trash(done) => self.trash_done(done),
            TaskDone::List(done) => self.list_done(done),
            TaskDone::Places(found) => self.places_found(found),
            TaskDone::Tenant(done) => self.tenant_done(done),
            TaskDone::Fleet(done) => self.fleet_done(done),
            TaskDone::Replica(done) => self.replica_done(done),
            TaskDone::Repair(done) => self.repaired(&done),
            TaskDone::OwnAnswer(message) => self.own_answer(message),
        }
    }
}
