//! Reads of the journal's files: the reads under way, and the checks of their results.
//!
//! Promises: a file stays pinned as long as a read of it is under way. A result counts only after
//! its verification. One read covers records that lie close together. For a long record, the header
//! comes first, then only the wanted blocks. It must not know reads of clients.

use super::dirty::RecordPlace;
use super::journal::{BytesAt, Journal};
use super::outputs::Outputs;
use crate::block::{Range, VolumeId};
use crate::pack::Packer;
use crate::record::{Kind, Location, RecordError};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A payload up to this length comes in one read with its record's header, a longer one in a second
/// read.
const NEAR_BYTES: usize = 64 << 10;
/// One read covers records this close to each other in a file, ...
const GAP_BYTES: u64 = 16 << 10;
/// ... up to this much.
const JOINED_BYTES: u64 = 1 << 20;

/// A run of sectors in the journal's files that a slot of a read waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalPart {
    pub(super) slot: usize,
    pub(super) place: RecordPlace,
    pub(super) wanted: Range,
}

/// The use of a read of the journal's files.
#[derive(Debug)]
pub(super) enum JournalRead {
    /// Records from journal address `addr` on.
    Near { read: u64, addr: u64, parts: Vec<JournalPart> },
    /// Header and table of a long record.
    Prefix { read: u64, part: JournalPart },
    /// The wanted blocks of a long record.
    Payload { read: u64, part: JournalPart, prefix: Bytes },
    /// Frames of the next batch, from this one on.
    Frames { generation: u64, first: usize },
}

/// Reads under way by their numbers, each with the file that it pins.
#[derive(Debug, Default)]
pub(super) struct JournalReads {
    under_way: BTreeMap<u64, (u32, JournalRead)>,
}

impl JournalReads {
    /// Reads `bytes` at a journal address.
    pub(super) fn start(
        &mut self,
        journal: &mut Journal,
        (addr, bytes): (u64, usize),
        what: JournalRead,
        out: &mut Outputs,
    ) {
        let at = journal.spot(addr);
        let id = out.read_file(at, bytes);
        journal.pin(at.0);
        self.under_way.insert(id, (at.0, what));
    }

    /// Reads parts of a read, in as few reads as make sense.
    pub(super) fn start_parts(
        &mut self,
        journal: &mut Journal,
        read: u64,
        parts: Vec<JournalPart>,
        out: &mut Outputs,
    ) {
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let start = part.place.addr;
            let Some(span) = part.near_span() else {
                let Some(location) = part.location() else { continue };
                let what = JournalRead::Prefix { read, part };
                self.start(journal, (start, location.prefix_bytes), what, out);
                continue;
            };
            let file = journal.spot(start).0;
            let mut end = start + span as u64;
            let mut joined = vec![part];
            while let Some(next) = parts.peek()
                && let Some(span) = next.near_span()
                && next.place.addr >= start
                && next.place.addr <= end + GAP_BYTES
                && journal.spot(next.place.addr).0 == file
                && next.place.addr + span as u64 - start <= JOINED_BYTES
            {
                end = end.max(next.place.addr + span as u64);
                joined.push(*next);
                parts.next();
            }
            let what = JournalRead::Near { read, addr: start, parts: joined };
            self.start(journal, (start, (end - start) as usize), what, out);
        }
    }

    /// Reads the wanted part of a long record whose header has come. False if the map is wrong.
    pub(super) fn start_payload(
        &mut self,
        journal: &mut Journal,
        (read, part, prefix): (u64, JournalPart, Bytes),
        out: &mut Outputs,
    ) -> bool {
        let Some(location) = part.location() else { return false };
        let addr = part.place.addr + location.payload_start as u64;
        let what = JournalRead::Payload { read, part, prefix };
        self.start(journal, (addr, location.payload_bytes), what, out);
        true
    }

    /// Ends the read with this number. Returns its use, and the file to unpin after the caller has
    /// taken the outcome.
    pub(super) fn take(&mut self, id: u64) -> Option<(u32, JournalRead)> {
        self.under_way.remove(&id)
    }
}

impl JournalPart {
    fn location(&self) -> Option<Location> {
        Location::new(self.place.record(self.wanted), self.wanted)
    }

    /// Bytes from the start of the record that one read has to get; `None` if the map is wrong.
    fn span(&self) -> Option<usize> {
        match self.place.kind() {
            Kind::Packed => Some(self.place.packed_bytes()),
            _ => self.location().map(|location| location.span()),
        }
    }

    /// Like [`JournalPart::span`]. `None` if a second read after the header is better for the
    /// payload.
    fn near_span(&self) -> Option<usize> {
        let far = |location: Location| location.payload_start > NEAR_BYTES;
        let whole = self.place.kind() == Kind::Packed || !self.location().is_none_or(far);
        whole.then(|| self.span()).flatten()
    }

    /// Extracts the wanted bytes from memory.
    pub(super) fn extract_from_memory(
        &self,
        journal: &Journal,
        packer: &mut Packer,
    ) -> Result<Bytes, String> {
        let addr = self.place.addr;
        let found = journal.locate(addr, self.span().unwrap_or(0));
        let BytesAt::Memory(data) = found else { return Err("it is not in memory".into()) };
        self.extract(addr, &data, packer)
    }

    /// Extracts the wanted bytes from a read at journal address `addr`.
    pub(super) fn extract(
        &self,
        addr: u64,
        data: &Bytes,
        packer: &mut Packer,
    ) -> Result<Bytes, String> {
        let start = (self.place.addr - addr) as usize;
        let end = start + self.span().ok_or("the map is wrong")?;
        if data.len() < end {
            return Err(format!("only {} of {end} bytes could be read", data.len()));
        }
        if self.place.kind() == Kind::Packed {
            let (seq, record) = (self.place.seq, self.place.record(self.wanted));
            let found = packer.unpack_of(seq, record, &data[start..end], self.wanted);
            return found.map_err(|error| error.to_string());
        }
        let location = self.location().ok_or("the map is wrong")?;
        let prefix = data.slice(start..start + location.prefix_bytes);
        self.verify(packer.volume(), &prefix, data.slice(start + location.payload_start..end))
    }

    /// Extracts the wanted bytes from the payload of a record with that header.
    pub(super) fn verify(
        &self,
        volume: VolumeId,
        prefix: &Bytes,
        payload: Bytes,
    ) -> Result<Bytes, String> {
        let location = self.location().ok_or("the map is wrong")?;
        let fragment = location
            .extract(volume, self.place.seq, prefix, payload)
            .map_err(|error| error.to_string())?;
        Ok(fragment.sectors(self.wanted))
    }

    /// Why the content must not count although it is intact, if so.
    pub(super) fn unfit(&self, packer: &Packer) -> Option<String> {
        let plain = packer.is_encrypting() && self.place.kind() == Kind::Data;
        plain.then(|| RecordError::Plain(self.wanted).to_string())
    }
}
