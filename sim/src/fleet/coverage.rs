//! Counters of the events in the worlds of stores. Every counter has to be above zero over the
//! seeds of CI.

use crate::coverage::counters;

counters! {
    /// Answers that confirm the creation of a volume.
    created,
    /// Creations refused because another volume has the name.
    name_taken,
    /// Clones that an operator heard of for the first time.
    cloned,
    /// Repeated requests for a clone that existed already.
    cloned_again,
    /// Clones that lost their name again before an operator heard of them.
    clones_undone,
    /// Clones that got their name after their parent had lost its own.
    clones_orphaned,
    /// Clones that nobody heard of, and whose parent was still deleted at the end.
    orphans_left,
    /// Answers that confirm the deletion of a volume.
    deleted,
    /// Deletions refused because the volume has clones.
    has_clones,
    /// Deletions that stopped halfway, so that their volumes stay.
    kept,
    /// Deletions that found their volume with its name again, which an operator had restored.
    named_again,
    /// Answers that confirm the restoration of a volume.
    restored,
    /// Restorations under another name.
    restored_renamed,
    /// Restorations of clones refused because the parent is deleted.
    orphans_refused,
    /// Restorations that a store took back because they had stopped halfway.
    taken_back,
    /// Completed removals of the data of deleted volumes.
    removed,
    /// Decisions to remove the data of a volume because its time was up.
    expired,
    /// Purges refused because the volume has clones.
    purges_refused,
    /// Leases taken from nobody, or from an earlier process of the same store.
    leases_first,
    /// Leases taken from a store that released the volume.
    leases_handed,
    /// Leases taken from a store that did not answer.
    leases_silent,
    /// Leases taken from a silent store while another running store counted the volume as its own.
    leases_partitioned,
    /// Claims that found the volume gone.
    claims_gone,
    /// New attempts of claims, after another store was faster or a step failed.
    claims_again,
    /// Requests of stores for a volume that its holder refused, for example for its connected host.
    releases_refused,
    /// Volumes that a store released to another store after their engines had stopped.
    engines_left,
    /// Engines that their store dropped because another store had the volume in between.
    engines_stale,
    /// Forwarded requests that the store with the volume answered.
    forwarded,
    /// Questions between stores that ended without an answer.
    calls_lost,
    /// Attachments.
    attached,
    /// Attachments at another store than the last one that served the host.
    attached_elsewhere,
    /// Sessions that resumed at another store.
    resumed_elsewhere,
    /// Hosts that lost their volume to another host or to a deletion.
    fenced,
    /// Commit messages that hosts received.
    commits,
    /// Puts of engines with the result "exists".
    commits_refused,
    /// Segments put after a store had decided to remove the data of their volume.
    commits_late,
    /// Objects of purged volumes that came too late for the removal, and that no volume needs.
    leftovers,
    /// Descriptions of open volumes in answers to operators.
    shown,
    /// Answers that confirm another size.
    resized,
    /// Answers that confirm the value of an attribute.
    attributes_set,
    /// Answers with the value of an attribute.
    attributes_read,
    /// Tenants created.
    tenants_created,
    /// Changes of the limits of a tenant.
    tenants_set,
    /// Tenants deleted.
    tenants_deleted,
    /// Deletions of tenants refused because the tenant has volumes.
    tenants_in_use,
    /// Creations refused because of a limit.
    limited,
    /// Creations refused because of a limit after the volume had got its name.
    limited_late,
    /// Lists of all volumes in answers to operators.
    catalogs,
    /// Lists of several pages that differ from the existing keys when the last page arrives.
    lists_torn,
    /// Stores that died at a random time.
    crashes,
    /// Processes that ended with a procedure in progress.
    crashes_busy,
    /// Stores that joined after the first second.
    joined,
    /// Hosts that went to another store because theirs told them to leave.
    drained,
    /// Stores that stopped in order.
    stopped,
    /// Stores whose registration another store removed.
    forgotten,
    /// Broken links between stores.
    partitions,
    /// Puts that took effect and returned a failure.
    puts_done,
    /// Puts that took effect after they had failed.
    puts_late,
    /// Puts of names that took effect after they had failed.
    names_late,
    /// Puts that failed without effect.
    puts_failed,
    /// Deletions that took effect and returned a failure.
    deletes_done,
    /// Puts that took effect and returned "exists".
    puts_exist,
    /// Operations that an operator sent once more.
    asked_again,
    /// Volumes with several lease objects at the end.
    leases_old,
    /// Segments that arrived before one of the segments before them.
    segments_ahead,
    /// Segments that arrived when another store had taken a number before them.
    segments_void,
    /// Volumes at the end whose content equals their log.
    logs_read,
}
