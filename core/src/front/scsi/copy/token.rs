//! Tokens that stand for data (SBC-4, POPULATE TOKEN and WRITE USING TOKEN; SPC-5, "ROD tokens"), what
//! Windows calls offloaded data transfer.
//!
//! A token is good until what it stands for is written, until it has not been used for its inactivity
//! timeout, until it is deleted, and as long as this unit is in use at this host: it is kept in memory
//! only. One more than [`MAX_TOKENS`], and the oldest is revoked.
//!
//! Nobody can guess one: it holds 256 bits that follow from a secret of the shell. That alone gives no
//! right: who uses it has to be allowed to read the unit.

use super::report::ListId;
use super::{Asked, BLOCK_LENGTH_AT, DESCRIPTOR_BYTES, Designator, Plan};
use crate::block::{MAX_WATCHES, Range, Time};
use crate::front::scsi::data::number;
use crate::front::scsi::io::Kind;
use crate::front::scsi::sense::{Sense, code};
use crate::front::scsi::{Context, Device, Outcome, TaskId};
use sha3::Digest as _;
use std::collections::BTreeMap;
use std::time::Duration;

/// Service action of POPULATE TOKEN.
pub(super) const POPULATE: u8 = 0x10;

/// Service action of WRITE USING TOKEN.
pub(super) const WRITE: u8 = 0x11;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 512;

/// ROD TOKEN LENGTH of such a token.
const TOKEN_LENGTH: u16 = 0x01f8;

/// A token.
pub type Token = [u8; TOKEN_BYTES];

/// Tokens of a unit.
const MAX_TOKENS: usize = MAX_WATCHES;

/// ROD types (SPC-5): point in time, revoked when the data is written; any kind of point in time, and
/// the default one; the token for zeroes.
pub(super) const CHANGE_VULNERABLE: u32 = 0x0080_0001;
const ANY_POINT_IN_TIME: u32 = 0x0080_ffff;
const DEFAULT_POINT_IN_TIME: u32 = 0x0080_0000;
pub(super) const ZEROES: u32 = 0xffff_0001;

/// Inactivity timeouts, in seconds: where none is asked for, and the longest.
pub(super) const DEFAULT_TIMEOUT: u32 = 30;
pub(super) const MAX_TIMEOUT: u32 = 600;

/// Most ranges of a list.
pub(super) const MAX_RANGES: usize = 256;

/// Where the ranges begin in either list, and the offset into the token's data.
const POPULATE_RANGES_AT: usize = 16;
pub(super) const WRITE_RANGES_AT: usize = 536;
pub(super) const OFFSET_AT: usize = 8;
const TOKEN_AT: usize = 16;

/// Bytes of a range.
const RANGE_BYTES: usize = 16;

/// Where a token says who made it, how much it stands for, what blocks that has, and is random.
const CREATOR_AT: usize = 16;
const AMOUNT_AT: usize = 48;
const SPECIFIC_AT: usize = 96;
const RANDOM_AT: usize = 128;

#[derive(Debug)]
struct Entry {
    token: Box<Token>,
    ranges: Vec<Range>,
    watch: u64,
    timeout: Duration,
    /// When it expires, unless it is used; never while it is.
    expires: Time,
    users: u32,
    /// Not to be used any more: with which code that is refused.
    gone: Option<u16>,
}

/// Tokens that this unit made.
#[derive(Debug, Default)]
pub(in crate::front::scsi) struct Tokens {
    /// By identifier, which grows.
    entries: BTreeMap<u64, Entry>,
    last: u64,
}

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its identifier, for [`Device::release_token`].
    pub id: u64,
    /// In sectors, in order.
    pub ranges: Vec<Range>,
    /// To be watched.
    pub watch: u64,
}

impl Tokens {
    pub fn is_empty(&self) -> bool {
        self.entries.values().all(|entry| entry.gone.is_some())
    }

    fn next_expiry(&self) -> Option<Time> {
        let idle = self.entries.values().filter(|it| it.gone.is_none() && it.users == 0);
        idle.map(|entry| entry.expires).min()
    }
}

/// Whether they are the same, in a time that does not tell where they differ.
fn equal(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

impl Device {
    /// What a token of this unit stands for. It does not expire before [`Device::release_token`].
    ///
    /// # Errors
    ///
    /// The additional sense code that says why it is no good.
    pub fn use_token(&mut self, now: Time, token: &Token, delete: bool) -> Result<Grant, u16> {
        self.expire(now);
        let id = number(&token[8..16]);
        let entry = self.tokens.entries.get_mut(&id).ok_or(code::TOKEN_UNKNOWN)?;
        if !equal(&entry.token, token) {
            return Err(code::TOKEN_CORRUPT);
        }
        if let Some(gone) = entry.gone {
            return Err(gone);
        }
        entry.users += 1;
        if delete {
            entry.gone = Some(code::TOKEN_DELETED);
        }
        Ok(Grant { id, ranges: entry.ranges.clone(), watch: entry.watch })
    }

    /// A copy that used a token has ended; what it stood for has changed if `revoked`.
    pub fn release_token(&mut self, now: Time, id: u64, revoked: bool) {
        let Some(entry) = self.tokens.entries.get_mut(&id) else { return };
        entry.users = entry.users.saturating_sub(1);
        entry.expires = now.after(entry.timeout);
        if revoked {
            entry.gone.get_or_insert(code::TOKEN_REVOKED);
        }
        if entry.gone.is_some() && entry.users == 0 {
            let watch = entry.watch;
            self.unwatch(watch);
        }
    }

    /// Tokens whose time is over are remembered as expired.
    fn expire(&mut self, now: Time) {
        let mut over = Vec::new();
        for entry in self.tokens.entries.values_mut() {
            if entry.gone.is_none() && entry.users == 0 && entry.expires <= now {
                entry.gone = Some(code::TOKEN_EXPIRED);
                over.push(entry.watch);
            }
        }
        over.into_iter().for_each(|watch| self.unwatch(watch));
    }

    /// When [`Device::handle_timeout`] is to be called, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.tokens.next_expiry()
    }

    /// What was due is done.
    pub fn handle_timeout(&mut self, now: Time) {
        self.expire(now);
        self.settle();
    }

    /// A token for what is watched.
    pub(in crate::front::scsi) fn make_token(
        &mut self,
        task: TaskId,
        asked: &Populate,
        watch: u64,
    ) -> Outcome {
        let Some(nexus) = self.tasks.nexus_of(task) else { return Outcome::DONE };
        if self.tokens.entries.len() >= MAX_TOKENS
            && let Some((_, oldest)) = self.tokens.entries.pop_first()
            && (oldest.gone.is_none() || oldest.users > 0)
        {
            self.unwatch(oldest.watch);
        }
        self.tokens.last += 1;
        let id = self.tokens.last;
        let sectors = asked.ranges.iter().map(|range| range.sectors).sum::<u64>();
        let token = Box::new(self.token(id, sectors));
        let timeout = Duration::from_secs(asked.timeout.into());
        let entry = Entry {
            token: token.clone(),
            ranges: asked.ranges.clone(),
            watch,
            timeout,
            expires: self.now.after(timeout),
            users: 0,
            gone: None,
        };
        self.tokens.entries.insert(id, entry);
        self.results.add_token(nexus, asked.list, sectors, token);
        Outcome::DONE
    }

    fn token(&self, id: u64, sectors: u64) -> Token {
        let block_bytes = self.config.block_bytes;
        let mut token = [0; TOKEN_BYTES];
        token[..4].copy_from_slice(&CHANGE_VULNERABLE.to_be_bytes());
        token[6..8].copy_from_slice(&TOKEN_LENGTH.to_be_bytes());
        token[8..16].copy_from_slice(&id.to_be_bytes());
        token[CREATOR_AT..CREATOR_AT + DESCRIPTOR_BYTES]
            .copy_from_slice(&self.designator().descriptor(block_bytes));
        let bytes = u128::from(sectors) * u128::from(crate::block::SECTOR_BYTES);
        token[AMOUNT_AT..AMOUNT_AT + 16].copy_from_slice(&bytes.to_be_bytes());
        // As in READ CAPACITY(16) from byte 8 on.
        token[SPECIFIC_AT..SPECIFIC_AT + 4].copy_from_slice(&block_bytes.to_be_bytes());
        token[SPECIFIC_AT + 5] =
            crate::front::scsi::inquiry::physical_blocks(self).trailing_zeros() as u8;
        token[SPECIFIC_AT + 6] = 0xc0;
        let random = sha3::Sha3_256::new()
            .chain_update(self.config.token_secret.0)
            .chain_update(id.to_be_bytes())
            .finalize();
        token[RANDOM_AT..RANDOM_AT + random.len()].copy_from_slice(&random);
        token
    }
}

/// What a POPULATE TOKEN asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::front::scsi) struct Populate {
    list: u32,
    ranges: Vec<Range>,
    /// In seconds.
    timeout: u32,
}

fn length(context: &Context, at: usize) -> Result<u64, Outcome> {
    let length = u64::from(context.cdb.u32(10));
    if length > (at + MAX_RANGES * RANGE_BYTES) as u64 {
        return Err(Sense::list_length().into());
    }
    Ok(length)
}

/// The parameter list of POPULATE TOKEN.
pub(in crate::front::scsi) fn populate_length(
    device: &Device,
    context: &Context,
) -> Result<u64, Outcome> {
    is_free(device, context)?;
    length(context, POPULATE_RANGES_AT)
}

/// The parameter list of WRITE USING TOKEN.
pub(in crate::front::scsi) fn write_using_token_length(
    device: &Device,
    context: &Context,
) -> Result<u64, Outcome> {
    is_free(device, context)?;
    match device.is_write_protected() {
        Some(sense) => Err(sense.into()),
        None => length(context, WRITE_RANGES_AT),
    }
}

/// LIST IDENTIFIER is not that of a copy under way.
fn is_free(device: &Device, context: &Context) -> Result<(), Outcome> {
    if device.results.is_running(context.nexus, ListId::Four(context.cdb.u32(6))) {
        return Err(Sense::illegal(code::OPERATION_IN_PROGRESS).into());
    }
    Ok(())
}

/// POPULATE TOKEN. It takes no time worth mentioning, so IMMED changes nothing.
pub(in crate::front::scsi) fn populate(
    device: &mut Device,
    context: &Context,
    list: &[u8],
) -> Outcome {
    if context.cdb.u32(10) == 0 {
        return Outcome::DONE;
    }
    match parse_populate(device, context, list) {
        Ok(populate) => {
            let ranges = populate.ranges.iter().copied().filter(|it| !it.is_empty()).collect();
            let kind = Kind::Watch { ranges, populate: Box::new(populate) };
            Outcome::Medium(Box::new(device.io(kind, Range::new(0, 0), false)))
        }
        Err(sense) => sense.into(),
    }
}

fn parse_populate(device: &Device, context: &Context, list: &[u8]) -> Result<Populate, Sense> {
    let ranges = ranges(device, list, POPULATE_RANGES_AT)?;
    let timeout = match number(&list[4..8]) as u32 {
        0 => DEFAULT_TIMEOUT,
        seconds if seconds > MAX_TIMEOUT => return Err(Sense::in_list(4, None)),
        seconds => seconds,
    };
    // RTV: which type of token is wanted.
    if list[2] & 0x02 != 0 {
        match number(&list[8..12]) as u32 {
            CHANGE_VULNERABLE | ANY_POINT_IN_TIME | DEFAULT_POINT_IN_TIME => {}
            _ => return Err(Sense::illegal(code::UNSUPPORTED_TOKEN_TYPE).at(false, 8, None)),
        }
    }
    // A token for nothing.
    if ranges.iter().all(|range| range.is_empty()) {
        return Err(Sense::in_list(POPULATE_RANGES_AT + 8, None));
    }
    Ok(Populate { list: context.cdb.u32(6), ranges, timeout })
}

/// The ranges of a list in which they begin at `at`, as sectors.
fn ranges(device: &Device, list: &[u8], at: usize) -> Result<Vec<Range>, Sense> {
    if list.len() < at {
        return Err(Sense::list_length());
    }
    let available = number(&list[..2]) as usize + 2;
    let length = number(&list[at - 2..at]) as usize;
    let descriptors = list.get(at..at + length).ok_or(Sense::list_length())?;
    if available < at + length {
        return Err(Sense::in_list(0, None));
    }
    if length < RANGE_BYTES {
        return Err(Sense::in_list(at - 2, None));
    }
    // An incomplete one at the end is passed over.
    let (descriptors, _) = descriptors.as_chunks::<RANGE_BYTES>();
    if descriptors.len() > MAX_RANGES {
        return Err(Sense::illegal(code::TOO_MANY_SEGMENT_DESCRIPTORS).at(
            false,
            at as u16 - 2,
            None,
        ));
    }
    let mut ranges: Vec<Range> = Vec::with_capacity(descriptors.len());
    for (index, descriptor) in descriptors.iter().enumerate() {
        let range = device.range(number(&descriptor[..8]), number(&descriptor[8..12]))?;
        // No block twice.
        if ranges.iter().any(|other| other.intersect(range).is_some()) {
            return Err(Sense::in_list(at + index * RANGE_BYTES, None));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

/// WRITE USING TOKEN.
pub(in crate::front::scsi) fn write_using_token(
    device: &mut Device,
    context: &Context,
    list: &[u8],
) -> Outcome {
    if context.cdb.u32(10) == 0 {
        return Outcome::DONE;
    }
    match parse_write(device, list) {
        Ok(plan) => Outcome::Copy(Box::new(Asked {
            plan,
            list: Some(ListId::Four(context.cdb.u32(6))),
            action: WRITE,
            immediate: list[2] & 0x01 != 0,
        })),
        Err(sense) => sense.into(),
    }
}

fn parse_write(device: &Device, list: &[u8]) -> Result<Plan, Sense> {
    let ranges = ranges(device, list, WRITE_RANGES_AT)?;
    let unknown = Sense::illegal(code::TOKEN_UNKNOWN);
    let token = list[TOKEN_AT..].first_chunk::<TOKEN_BYTES>().ok_or(Sense::list_length())?;
    let kind = number(&token[..4]) as u32;
    if kind != CHANGE_VULNERABLE && kind != ZEROES {
        return Err(Sense::illegal(code::UNSUPPORTED_TOKEN_TYPE).at(false, TOKEN_AT as u16, None));
    }
    if number(&token[6..8]) != u64::from(TOKEN_LENGTH) {
        return Err(Sense::illegal(code::INVALID_TOKEN_LENGTH));
    }
    if kind == ZEROES {
        return Ok(Plan::Zeroes { ranges });
    }
    let creator = token[CREATOR_AT..].first_chunk::<DESCRIPTOR_BYTES>().ok_or(unknown)?;
    // In blocks of this unit.
    let skip = number(&list[OFFSET_AT..OFFSET_AT + 8])
        .checked_mul(device.block_sectors())
        .ok_or(Sense::in_list(OFFSET_AT, None))?;
    Ok(Plan::Token {
        token: Box::new(*token),
        creator: Designator::parse(creator).ok_or(unknown)?,
        skip,
        ranges,
        delete: list[2] & 0x02 != 0,
    })
}

const _: () = assert!(CREATOR_AT + BLOCK_LENGTH_AT < AMOUNT_AT);
