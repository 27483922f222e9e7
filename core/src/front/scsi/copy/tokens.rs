//! Tokens that represent data (SPC-5, "ROD tokens").
//!
//! A token is valid until one of these happens. Somebody writes its data. Nobody uses the token for
//! its inactivity timeout. An initiator deletes it. The target drops this unit. Memory is the only
//! place of tokens. If there are more than [`MAX_TOKENS`], the unit revokes the oldest.
//!
//! Nobody can guess a token: it holds 256 bits that follow from a secret of the shell. A token
//! alone gives no right: its user needs the right to read the unit.

use super::format::{MAX_TOKENS, RodToken};
use crate::block::{Range, Time};
use crate::front::scsi::command::number;
use crate::front::scsi::sense::code;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
#[derive(Debug)]
struct TokenEntry {
    token: Box<RodToken>,
    ranges: Vec<Range>,
    watch: u64,
    timeout: Duration,
    /// The time when the token expires without a use until then. It does not expire during a use.
    expires: Time,
    users: u32,
    /// The additional sense code for later uses, if the token is not valid any more.
    gone: Option<u16>,
}

/// The tokens that this unit made.
#[derive(Debug, Default)]
pub(in crate::front::scsi) struct RodTokens {
    /// By identifier; identifiers grow.
    entries: BTreeMap<u64, TokenEntry>,
    last: u64,
    /// Watches that no token needs any more.
    unwatched: VecDeque<u64>,
}

/// The data that a token represents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rod {
    /// Identifier of the token, for [`release_token`](crate::front::scsi::Device::release_token).
    pub id: u64,
    /// Ranges in sectors, in order.
    pub ranges: Vec<Range>,
    /// The watch on the ranges.
    pub watch: u64,
}

impl RodTokens {
    /// Whether no token is valid.
    pub fn is_empty(&self) -> bool {
        self.entries.values().all(|entry| entry.gone.is_some())
    }

    /// When the next token expires, if one does.
    pub fn next_expiry(&self) -> Option<Time> {
        let idle = self.entries.values().filter(|it| it.gone.is_none() && it.users == 0);
        idle.map(|entry| entry.expires).min()
    }

    /// A watch that no token needs any more.
    pub fn poll_unwatch(&mut self) -> Option<u64> {
        self.unwatched.pop_front()
    }

    /// An identifier for a new token. If there are too many tokens, the unit revokes the oldest.
    pub(super) fn allot(&mut self) -> u64 {
        if self.entries.len() >= MAX_TOKENS
            && let Some((_, oldest)) = self.entries.pop_first()
            && (oldest.gone.is_none() || oldest.users > 0)
        {
            self.unwatched.push_back(oldest.watch);
        }
        self.last += 1;
        self.last
    }

    /// Keeps a token for watched ranges.
    pub(super) fn insert(
        &mut self,
        now: Time,
        id: u64,
        token: Box<RodToken>,
        ranges: &[Range],
        watch: u64,
        timeout: Duration,
    ) {
        let expires = now.after(timeout);
        let ranges = ranges.to_vec();
        let entry = TokenEntry { token, ranges, watch, timeout, expires, users: 0, gone: None };
        self.entries.insert(id, entry);
    }

    /// The data that a token represents. The token does not expire before [`RodTokens::release`].
    ///
    /// # Errors
    ///
    /// The additional sense code that says why the token cannot be used.
    pub fn redeem(&mut self, now: Time, token: &RodToken, delete: bool) -> Result<Rod, u16> {
        self.expire(now);
        let id = number(&token[8..16]);
        let entry = self.entries.get_mut(&id).ok_or(code::TOKEN_UNKNOWN)?;
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
        Ok(Rod { id, ranges: entry.ranges.clone(), watch: entry.watch })
    }

    /// A copy that used a token has ended. `revoked`: the represented data has changed.
    pub fn release(&mut self, now: Time, id: u64, revoked: bool) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.users = entry.users.saturating_sub(1);
        entry.expires = now.after(entry.timeout);
        if revoked {
            entry.gone.get_or_insert(code::TOKEN_REVOKED);
        }
        if entry.gone.is_some() && entry.users == 0 {
            self.unwatched.push_back(entry.watch);
        }
    }

    /// Marks the tokens whose time is over as expired.
    pub fn expire(&mut self, now: Time) {
        for entry in self.entries.values_mut() {
            if entry.gone.is_none() && entry.users == 0 && entry.expires <= now {
                entry.gone = Some(code::TOKEN_EXPIRED);
                self.unwatched.push_back(entry.watch);
            }
        }
    }
}

/// Whether two tokens are equal. The time does not depend on where they differ.
fn equal(a: &RodToken, b: &RodToken) -> bool {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
