//! Counters of the events of a run. A simulator without faults finds nothing. So every counter has
//! to be above zero over the seeds of CI (`tests/seeds.rs`).

/// Declares a `Coverage` with these counters.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters, added up over worlds.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Coverage {
            /// Adds another world's.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }

            /// Names and values.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

pub(crate) use counters;

counters! {
    /// Reads and status queries asked in datagrams.
    datagram_requests,
    /// Of them asked again, for all of a reply or for a part of it.
    datagram_repeats,
    /// Replies with a part restored from the parity.
    datagram_recovered,
    /// Of them that went by stream after all.
    datagram_by_stream,
    /// Reads answered and compared with the model.
    reads_checked,
    /// Sectors compared.
    sectors_checked,
    /// Reads that did not wait for the answer to a resume, at stores that know such.
    reads_behind,
    /// Of them answered before it.
    reads_before_attached,
    /// Bytes read that streams had read ahead.
    read_ahead,
    /// Bytes of reads that met a read-ahead under way.
    read_while_coming,
    /// Bytes of read-ahead that was overwritten, lost or dropped before any read of it.
    read_ahead_wasted,
    /// Traces replayed to their end.
    traces_followed,
    /// Times the limits of a volume changed.
    limits_changed,
    /// Writes acknowledged.
    writes_acknowledged,
    /// Discards and zeroes acknowledged.
    markers_acknowledged,
    /// Flushes answered.
    flushes_acknowledged,
    /// FUA writes answered.
    fua_acknowledged,
    /// Status queries compared with the model.
    status_checked,
    /// Stagings with an answer, compared with the committed content.
    staged,
    /// The ones among them for another volume than the source.
    staged_across,
    /// Of them guarded by a watch.
    staged_watched,
    /// Stagings refused because a client wrote to the watched range.
    staged_changed,
    /// Stagings told that there is an object of their number.
    staged_exists,
    /// Acknowledged writes of staged ranges.
    copies_acknowledged,
    /// Parts of staged records written.
    copies_cut,
    /// Reads that began when what they are about was a copy that the store had not committed.
    copies_read_early,
    /// Sectors found to hold a copy.
    copies_found,
    /// Stagings refused because what they are about is encrypted.
    copies_refused,
    /// Parts of writes that became packed records.
    writes_packed,
    /// Of them those that became several, which are there together or not.
    writes_joined,
    /// Packed records found in segments.
    packed_committed,
    /// Journals recovered with copies that the store had not committed.
    copies_recovered,
    /// Copies committed.
    copies_committed,
    /// Host processes that died with the page cache surviving.
    host_crashes,
    /// Power cuts of hosts.
    host_power_cuts,
    /// Hosts told to stop that stopped in order.
    host_shutdowns,
    /// Hosts whose state directory is gone.
    hosts_lost,
    /// Journals carried to another host.
    journals_carried,
    /// Attaches by a host while another one had the volume.
    competing_attaches,
    /// Attaches refused because another host was connected, or on its way back.
    in_use,
    /// Attaches that took a volume from a connected host, on the order of an operator.
    volumes_taken,
    /// Journals refused since only another key's word stood for them.
    carried_refused,
    /// Frames in the name of a host, from a session with another key.
    forged,
    /// The ones among them that came while that host was connected.
    forged_connected,
    /// Resumes and attaches among them, refused.
    forged_refused,
    /// Store processes that died.
    store_crashes,
    /// Stores told to stop that stopped in order.
    store_shutdowns,
    /// Links cut.
    link_cuts,
    /// Sessions that continued at another store process.
    store_switches,
    /// Object store outages.
    outages,
    /// Puts that failed without effect.
    puts_failed_before,
    /// Puts that failed after they had taken effect.
    puts_failed_after,
    /// Puts that took effect after the report of their failure.
    puts_late,
    /// Puts answered "exists" because of the very same put.
    puts_exist_own,
    /// Puts answered "exists" because of another writer.
    puts_exist_other,
    /// Gets that failed for a moment.
    gets_failed,
    /// Writes and syncs of the journal's disk that began beside others.
    disk_together,
    /// Writes to the journal's disk that failed.
    disk_write_errors,
    /// Syncs of the journal's disk that failed.
    disk_sync_errors,
    /// Writes that landed elsewhere on the disk.
    disk_misdirected,
    /// Bits that flipped on the disk.
    disk_flips,
    /// Power cuts that kept a part of the unsynced data.
    torn_writes,
    /// Journals recovered with writes in them.
    journals_recovered,
    /// Page caches with what a failed sync had left in them, dropped before recovery.
    deceptive_caches_dropped,
    /// Journals found damaged by recovery, after the disk had damaged them.
    journals_damaged,
    /// Attachments granted.
    attaches,
    /// Sessions resumed after a cut.
    resumes,
    /// Reports to hosts that they are fenced.
    fences,
    /// Attaches refused because announced writes are missing.
    loss_pending,
    /// Answers about losses that had to name something.
    losses_named,
    /// Questions about the log to a store that another had overtaken.
    overtaken_asked,
    /// Reads by observers compared with the log.
    observer_reads,
    /// Losses accepted by the operator.
    losses_accepted,
    /// Attaches refused because the volume went on without the journal's writes.
    diverged,
    /// Acknowledged writes that a new attachment went on without.
    writes_lost,
    /// Journals latched after a disk error.
    latches,
    /// Times a write had to wait for room.
    write_waits,
    /// Times a journal came round its ring.
    ring_wraps,
    /// Data segments put.
    segments,
    /// Data segments with parts of several batches, or with coalesced records.
    segments_coalesced,
    /// Segments that carry announcements.
    segments_announcing,
    /// Segments put that resize.
    resizes,
    /// Sizes noted beside the log.
    sizes_noted,
    /// Resizes acknowledged, some of them of no effect.
    resizes_acknowledged,
    /// Reports to hosts of a growth of their attached volume.
    resizes_told,
    /// Segments that make a volume smaller.
    shrinks,
    /// Of them those that cut off something.
    shrinks_with_data,
    /// Shrinks acknowledged, some of them of no effect.
    shrinks_acknowledged,
    /// Shrinks refused because a host is connected.
    shrinks_refused,
    /// Acknowledged writes beyond the size at the volume's creation.
    writes_beyond,
    /// Snapshots taken.
    snapshots,
    /// The ones among them after a barrier for the host.
    snapshots_barriered,
    /// Snapshots not taken since the host had gone away.
    snapshots_unbarriered,
    /// Snapshots deleted.
    snapshots_deleted,
    /// Volumes rolled back.
    rollbacks,
    /// Volumes not rolled back since somebody wrote to them.
    rollbacks_refused,
    /// Caches dropped after a rollback of the volume.
    caches_dropped,
    /// Snapshots read whole and compared.
    snapshots_read,
    /// Of them by an engine that had been open for a while.
    snapshots_read_again,
    /// Of them before there was a root of them.
    snapshots_replayed,
    /// Snapshots that turned out to be gone.
    snapshots_gone,
    /// Roots of snapshots found as the segments say.
    pins_verified,
    /// Fragments at the end, each named by a root.
    fragments_named,
    /// Tables of maps flushed.
    map_flushes,
    /// Merges of fragments that wrote new ones.
    map_merges,
    /// Maps merged into one level, in order to count them.
    map_compacted,
    /// Pages of maps read for lookups.
    map_pages_read,
    /// Generations of maps claimed.
    claims,
    /// Stores that found that another had claimed a later generation.
    superseded,
    /// Roots put.
    roots,
    /// Roots put after a newer one: late, or by superseded stores.
    roots_outdated,
    /// Newer roots of other stores gone on from.
    roots_adopted,
    /// Segments whose map a store read again, because such a root was of an earlier one.
    roots_behind,
    /// Bundles put.
    bundles,
    /// Segments deleted.
    segments_deleted,
    /// Segments that arrived before one of the segments before them.
    segments_ahead,
    /// Of them such that another store took a number before them: they never count.
    segments_overtaken,
    /// Segments that arrived when another store had taken a number before them.
    segments_void,
    /// Most segments that a store had on their way at once in a world.
    segments_in_flight,
    /// Segments put in the place of deleted ones, by stores that had been out of touch.
    segments_again,
    /// Stores that found that the log had gone on far from what they knew.
    left_behind,
    /// Objects of maps deleted.
    map_deletes,
    /// Most levels that a map had in a world.
    map_levels,
    /// Detach segments put.
    detaches,
    /// Times a store found that another had written to a log that it had open.
    rivals,
    /// Volumes that a store let go in order, for another one to serve.
    handed_over,
    /// Of them such that a host had attached there.
    handed_over_attached,
    /// Engines that a store parted with at once, another one having taken the volume.
    engines_dropped,
    /// Of them such that had something under way.
    engines_dropped_busy,
    /// Batches refused by the store.
    batches_refused,
    /// Medium errors answered, all after the disk had damaged the data.
    medium_errors,
    /// Deliveries that waited because a store did not want more input.
    input_held,
    /// Announcements delivered.
    announcements,
    /// Shadow recoveries at an acknowledged flush.
    shadow_recoveries,
    /// Bytes that reads found in a cache.
    cache_hits,
    /// Bytes of reads, or of committed writes, that a cache took.
    cache_written,
    /// Lines evicted from caches.
    cache_evictions,
    /// Attaches after which the cache kept some of its content.
    cache_kept,
    /// Attaches after which the cache dropped a part of its content.
    cache_dropped_some,
    /// Blocks that a cache found damaged.
    cache_damaged,
    /// Caches turned off after their disk had failed.
    cache_failures,
    /// Power cuts that kept a part of what a cache had not synced.
    cache_torn,
    /// Caches carried to another host, left behind, or brought back from a copy.
    cache_strange,
    /// Reads of objects that a store's cache answered, compared with the object.
    copies_read,
    /// Power cuts that kept a part of what a store's cache had not synced.
    copies_torn,
    /// Power cuts that kept a part of what a version table had not synced.
    tables_torn,
    /// Attaches with a version table that held.
    tables_kept,
    /// Ranges of tables forgotten because another host had written to them.
    versions_forgotten,
    /// Times a keyed volume went from a host that had died to another one and back, and that host
    /// died again.
    relays,
    /// Tables given up because of a rollback, or a possible one.
    rollbacks_accepted,
    /// Answers replaced by lies about keyed volumes.
    lies,
    /// Lies that hosts found out.
    lies_found,
    /// Answers that deny the writes made while a host was away.
    changes_denied,
    /// Bytes of pins in the cache at the end of a host process.
    cache_pinned,
    /// Bytes that commands brought into caches.
    cache_warmed,
    /// Ranges of objects reported as damaged that stores found, and reported to hosts.
    damage_told,
    /// Ranges that hosts wrote back from their caches.
    written_back,
    /// Of them those with data.
    written_back_data,
    /// Ranges that hosts wrote again under a newer data key.
    rewritten,
    /// Times a volume was all under the newest data key.
    encrypted_anew,
    /// Logs replayed and compared at the end.
    logs_verified,
    /// Operations repeated on the replica.
    repeated,
    /// Times it was away.
    second_outages,
    /// Objects deleted there.
    second_deletes,
    /// Volumes opened and read on the replica, as if home was lost.
    second_opened,
    /// Of these, volumes that were behind.
    second_behind,
}
