//! The bytes of the NBD protocol: constants, checked parsing of client messages, encoding of server
//! messages.
//!
//! Source: NBD `doc/proto.md`, and its branch `extension-ext-header` for extended headers. Parsing
//! allocates nothing and never reads beyond its slice. Encoding cannot produce a message whose
//! length field contradicts its content. The module does not know what was negotiated; the session
//! (`front::nbd`) does.

use bytes::{BufMut, BytesMut};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest string, in bytes ("Conventions").
pub const MAX_STRING_BYTES: usize = 4096;

/// First eight bytes of the server's greeting, "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second half of the greeting, and start of every option, "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Flags of the handshake, the same bits in both directions ("Handshake flags", "Client flags").
pub mod handshake {
    /// Fixed newstyle: options get replies and can be refused one by one.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The answer to `EXPORT_NAME` has no padding of 124 bytes.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Option types ("Option types").
pub mod opt {
    /// Enter the transmission phase. A refusal is possible only by closing.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter the transmission phase.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types ("Option reply types").
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;

    /// Bit of the replies that refuse an option.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u32)]
    pub enum Refusal {
        /// Unknown option.
        Unsupported = (1 << 31) + 1,
        /// Refused by policy.
        Policy = (1 << 31) + 2,
        /// Invalid, or not valid now.
        Invalid = (1 << 31) + 3,
        /// TLS is required first.
        TlsRequired = (1 << 31) + 5,
        /// No such export.
        Unknown = (1 << 31) + 6,
        /// The server is shutting down.
        Shutdown = (1 << 31) + 7,
        /// The request or the reply is too large.
        TooBig = (1 << 31) + 9,
        /// Extended headers are in use, and cannot be switched off.
        ExtendedHeadersRequired = (1 << 31) + 10,
    }
}

/// Information types of `INFO` and `GO` (`NBD_REP_INFO`).
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for a human.
    pub const DESCRIPTION: u16 = 2;
    /// Size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags ("Transmission flags").
pub mod export {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and NO_HOLE are supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// DF is supported; only with structured or extended replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the completed requests of all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// BLOCK_STATUS takes a payload; only with extended headers.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Request types ("Request types").
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Prefetch.
    pub const CACHE: u16 = 5;
    /// Zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Query the metadata contexts.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags ("Command flags").
pub mod cmd_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Do not deallocate the zeroed range.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply with one content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// Reply with one descriptor per context at most.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail unless zeroing is fast.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of the payload; only with extended headers.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Structured reply types ("Structured reply types").
pub mod chunk {
    /// Nothing: the reply is complete.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Status descriptors of 32 bits.
    pub const BLOCK_STATUS: u16 = 5;
    /// Status descriptors of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
    /// Flag: the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Flags of the context `base:allocation`.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
    /// Written since the bitmap was created; for contexts `qemu:dirty-bitmap:` (QEMU's
    /// `docs/interop/nbd.rst`).
    pub const DIRTY: u32 = 1 << 0;
}

/// Error values of replies ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// The request is invalid.
    Inval = 22,
    /// No space left, or a write beyond the end.
    NoSpc = 28,
    /// The request is too long for a reply.
    Overflow = 75,
    /// The server is shutting down.
    Shutdown = 108,
}

/// The reason why bytes cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The magic number is wrong.
    #[error("wrong magic number")]
    Magic,
    /// Lengths within the data contradict its length.
    #[error("lengths inside the data do not add up")]
    Length,
    /// A string is longer than 4096 bytes, is not UTF-8 or holds a NUL.
    #[error("a string is longer than 4096 bytes, not UTF-8, or holds a NUL")]
    Text,
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`opt`], or unknown.
    pub option: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawOption {
    magic: U64,
    option: U32,
    length: U32,
}

impl OptionHeader {
    /// Bytes of the header.
    pub const BYTES: usize = size_of::<RawOption>();

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if `bytes` is shorter than [`Self::BYTES`], [`WireError::Magic`].
    pub fn parse(bytes: &[u8]) -> Result<OptionHeader, WireError> {
        let (raw, _) = RawOption::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        if raw.magic.get() != OPTION_MAGIC {
            return Err(WireError::Magic);
        }
        Ok(OptionHeader { option: raw.option.get(), length: raw.length.get() })
    }
}

/// Parses a string: UTF-8, without NUL, at most [`MAX_STRING_BYTES`].
///
/// # Errors
///
/// [`WireError::Text`] if it is not such a string.
pub fn text(bytes: &[u8]) -> Result<&str, WireError> {
    if bytes.len() > MAX_STRING_BYTES || bytes.contains(&0) {
        return Err(WireError::Text);
    }
    std::str::from_utf8(bytes).map_err(|_| WireError::Text)
}

/// The longest prefix of `text` that the protocol allows as a string.
#[must_use]
pub fn clip(text: &str) -> &str {
    let text = text.split('\0').next().unwrap_or_default();
    &text[..text.floor_char_boundary(MAX_STRING_BYTES)]
}

fn take_u16(bytes: &mut &[u8]) -> Result<u16, WireError> {
    let (value, rest) = U16::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
    *bytes = rest;
    Ok(value.get())
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32, WireError> {
    let (value, rest) = U32::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
    *bytes = rest;
    Ok(value.get())
}

/// Takes a string after its length of 32 bits.
fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, WireError> {
    let length = take_u32(bytes)? as usize;
    let (head, rest) = bytes.split_at_checked(length).ok_or(WireError::Length)?;
    *bytes = rest;
    text(head)
}

/// The information types that an `INFO` or `GO` asks for. Unknown types are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InfoSet(u16);

impl InfoSet {
    /// Adds an information type of [`info`]. Any other is ignored.
    pub fn insert(&mut self, kind: u16) {
        if kind <= info::BLOCK_SIZE {
            self.0 |= 1 << kind;
        }
    }

    /// Whether the client asked for `kind`.
    #[must_use]
    pub fn contains(self, kind: u16) -> bool {
        kind <= info::BLOCK_SIZE && self.0 & (1 << kind) != 0
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// Export; empty for the default one.
    pub name: &'a str,
    /// The requested information.
    pub infos: InfoSet,
}

impl<'a> InfoQuery<'a> {
    /// Parses all of `data`.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] unless the parts fill `data` exactly, [`WireError::Text`].
    pub fn parse(mut data: &'a [u8]) -> Result<InfoQuery<'a>, WireError> {
        let name = take_text(&mut data)?;
        let count = usize::from(take_u16(&mut data)?);
        if data.len() != count * size_of::<u16>() {
            return Err(WireError::Length);
        }
        let mut infos = InfoSet::default();
        while !data.is_empty() {
            infos.insert(take_u16(&mut data)?);
        }
        Ok(InfoQuery { name, infos })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaQuery<'a> {
    /// Export; empty for the default one.
    pub name: &'a str,
    /// Number of queries.
    pub count: u32,
    queries: &'a [u8],
}

impl<'a> MetaQuery<'a> {
    /// Parses all of `data`, including the queries.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] unless the parts fill `data` exactly, [`WireError::Text`].
    pub fn parse(mut data: &'a [u8]) -> Result<MetaQuery<'a>, WireError> {
        let name = take_text(&mut data)?;
        let count = take_u32(&mut data)?;
        let queries = data;
        // Each query takes four bytes at least, so a count that is too large fails within
        // data.len() / 4 rounds.
        for _ in 0..count {
            take_text(&mut data)?;
        }
        if !data.is_empty() {
            return Err(WireError::Length);
        }
        Ok(MetaQuery { name, count, queries })
    }

    /// The queries, in the client's order.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut rest = self.queries;
        std::iter::from_fn(move || take_text(&mut rest).ok())
    }
}

/// The header of a transmission request, compact or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Bits of [`cmd_flag`], or unknown ones.
    pub flags: u16,
    /// One of [`cmd`], or unknown.
    pub kind: u16,
    /// The client's name for the request, which the reply repeats.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range, or of the payload.
    pub length: u64,
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCommand {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    offset: U64,
}

impl Command {
    /// Bytes of a compact header.
    pub const COMPACT_BYTES: usize = size_of::<RawCommand>() + size_of::<U32>();
    /// Bytes of an extended header.
    pub const EXTENDED_BYTES: usize = size_of::<RawCommand>() + size_of::<U64>();

    /// Parses a compact header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if `bytes` is too short, [`WireError::Magic`].
    pub fn parse_compact(bytes: &[u8]) -> Result<Command, WireError> {
        let (raw, rest) = RawCommand::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        let (length, _) = U32::ref_from_prefix(rest).map_err(|_| WireError::Length)?;
        Command::from_raw(raw, REQUEST_MAGIC, length.get().into())
    }

    /// Parses an extended header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if `bytes` is too short, [`WireError::Magic`].
    pub fn parse_extended(bytes: &[u8]) -> Result<Command, WireError> {
        let (raw, rest) = RawCommand::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        let (length, _) = U64::ref_from_prefix(rest).map_err(|_| WireError::Length)?;
        Command::from_raw(raw, EXTENDED_REQUEST_MAGIC, length.get())
    }

    fn from_raw(raw: &RawCommand, magic: u32, length: u64) -> Result<Command, WireError> {
        if raw.magic.get() != magic {
            return Err(WireError::Magic);
        }
        Ok(Command {
            flags: raw.flags.get(),
            kind: raw.kind.get(),
            cookie: raw.cookie.get(),
            offset: raw.offset.get(),
            length,
        })
    }
}

/// The payload of a `BLOCK_STATUS` that names one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusPayload {
    /// Bytes of the range.
    pub length: u64,
    /// Identifier of the context.
    pub context: u32,
}

impl StatusPayload {
    /// Bytes of the payload.
    pub const BYTES: usize = 12;

    /// Parses all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] unless there are [`Self::BYTES`] of them.
    pub fn parse(bytes: &[u8]) -> Result<StatusPayload, WireError> {
        let (length, rest) = U64::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        let context = U32::ref_from_bytes(rest).map_err(|_| WireError::Length)?;
        Ok(StatusPayload { length: length.get(), context: context.get() })
    }
}

/// Appends the greeting, with both handshake flags.
pub fn put_greeting(out: &mut BytesMut) {
    out.put_u64(GREETING_MAGIC);
    out.put_u64(OPTION_MAGIC);
    out.put_u16(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
}

/// Appends the answer to `EXPORT_NAME`. It is `padded` unless the client negotiated `NO_ZEROES`.
pub fn put_export(out: &mut BytesMut, size_bytes: u64, flags: u16, padded: bool) {
    out.put_u64(size_bytes);
    out.put_u16(flags);
    if padded {
        out.put_bytes(0, 124);
    }
}

/// Appends an option reply whose data is all `parts`. The data must be shorter than 1 GiB, as
/// everything is that this crate sends.
fn put_option_reply(out: &mut BytesMut, option: u32, reply: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(reply);
    out.put_u32(length as u32);
    for part in parts {
        out.put_slice(part);
    }
}

/// Appends `NBD_REP_ACK`.
pub fn put_ack(out: &mut BytesMut, option: u32) {
    put_option_reply(out, option, rep::ACK, &[]);
}

/// Appends a refusal with a message. At most [`MAX_STRING_BYTES`] of the message are sent.
pub fn put_refusal(out: &mut BytesMut, option: u32, refusal: rep::Refusal, message: &str) {
    put_option_reply(out, option, refusal as u32, &[clip(message).as_bytes()]);
}

/// Appends `NBD_REP_SERVER`; both strings are clipped to [`MAX_STRING_BYTES`].
pub fn put_server(out: &mut BytesMut, name: &str, description: &str) {
    let name = clip(name).as_bytes();
    let length = (name.len() as u32).to_be_bytes();
    let parts: [&[u8]; 3] = [&length, name, clip(description).as_bytes()];
    put_option_reply(out, opt::LIST, rep::SERVER, &parts);
}

/// Appends `NBD_INFO_EXPORT`.
pub fn put_info_export(out: &mut BytesMut, option: u32, size_bytes: u64, flags: u16) {
    let kind = info::EXPORT.to_be_bytes();
    let parts: [&[u8]; 3] = [&kind, &size_bytes.to_be_bytes(), &flags.to_be_bytes()];
    put_option_reply(out, option, rep::INFO, &parts);
}

/// Appends `NBD_INFO_NAME` or `NBD_INFO_DESCRIPTION`, clipped to [`MAX_STRING_BYTES`].
pub fn put_info_text(out: &mut BytesMut, option: u32, kind: u16, text: &str) {
    let parts: [&[u8]; 2] = [&kind.to_be_bytes(), clip(text).as_bytes()];
    put_option_reply(out, option, rep::INFO, &parts);
}

/// Appends `NBD_INFO_BLOCK_SIZE`: smallest, best and largest request, in bytes.
pub fn put_info_block_size(out: &mut BytesMut, option: u32, min: u32, preferred: u32, max: u32) {
    let kind = info::BLOCK_SIZE.to_be_bytes();
    let sizes = [min, preferred, max].map(u32::to_be_bytes);
    let parts: [&[u8]; 4] = [&kind, &sizes[0], &sizes[1], &sizes[2]];
    put_option_reply(out, option, rep::INFO, &parts);
}

/// Appends `NBD_REP_META_CONTEXT`.
pub fn put_meta_context(out: &mut BytesMut, option: u32, id: u32, name: &str) {
    let parts: [&[u8]; 2] = [&id.to_be_bytes(), clip(name).as_bytes()];
    put_option_reply(out, option, rep::META_CONTEXT, &parts);
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawSimple {
    magic: U32,
    error: U32,
    cookie: U64,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawStructured {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawExtended {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}

/// Appends the header of a simple reply. The data of a successful read follows.
pub fn put_simple(out: &mut BytesMut, cookie: u64, error: Option<Errno>) {
    let error = error.map_or(0, |error| error as u32);
    let raw =
        RawSimple { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
    out.put_slice(raw.as_bytes());
}

/// The two kinds of headers of reply chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// 20 bytes, after `STRUCTURED_REPLY`.
    Structured,
    /// 32 bytes, after `EXTENDED_HEADERS`.
    Extended,
}

/// The fields that all chunks of a reply have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Kind of the headers.
    pub headers: Headers,
    /// Cookie of the request.
    pub cookie: u64,
    /// Offset of the request. Only extended headers carry it.
    pub offset: u64,
}

impl Chunks {
    fn put_header(self, out: &mut BytesMut, kind: u16, done: bool, length: u32) {
        let flags = U16::new(if done { chunk::FLAG_DONE } else { 0 });
        let (kind, cookie) = (kind.into(), self.cookie.into());
        match self.headers {
            Headers::Structured => out.put_slice(
                RawStructured {
                    magic: STRUCTURED_REPLY_MAGIC.into(),
                    flags,
                    kind,
                    cookie,
                    length: length.into(),
                }
                .as_bytes(),
            ),
            Headers::Extended => out.put_slice(
                RawExtended {
                    magic: EXTENDED_REPLY_MAGIC.into(),
                    flags,
                    kind,
                    cookie,
                    offset: self.offset.into(),
                    length: u64::from(length).into(),
                }
                .as_bytes(),
            ),
        }
    }

    /// Appends a chunk without content, which ends the reply.
    pub fn put_none(self, out: &mut BytesMut) {
        self.put_header(out, chunk::NONE, true, 0);
    }

    /// Appends the header of a data chunk. `length` bytes of data must follow, at most 1 GiB.
    pub fn put_data(self, out: &mut BytesMut, done: bool, offset: u64, length: u32) {
        self.put_header(out, chunk::OFFSET_DATA, done, length + 8);
        out.put_u64(offset);
    }

    /// Appends a hole of `length` bytes; not 0.
    pub fn put_hole(self, out: &mut BytesMut, done: bool, offset: u64, length: u32) {
        self.put_header(out, chunk::OFFSET_HOLE, done, 12);
        out.put_u64(offset);
        out.put_u32(length);
    }

    /// Appends an error as the last chunk. `at` is the byte of the export where the error is.
    pub fn put_error(self, out: &mut BytesMut, error: Errno, message: &str, at: Option<u64>) {
        let message = clip(message).as_bytes();
        let (kind, tail) = match at {
            Some(_) => (chunk::ERROR_OFFSET, 8),
            None => (chunk::ERROR, 0),
        };
        self.put_header(out, kind, true, 6 + message.len() as u32 + tail);
        out.put_u32(error as u32);
        out.put_u16(message.len() as u16);
        out.put_slice(message);
        if let Some(at) = at {
            out.put_u64(at);
        }
    }

    /// Appends the status of a context, as the last chunk if `done`: at least one pair of length in
    /// bytes and flags. With structured headers, lengths must fit 32 bits.
    pub fn put_status(self, out: &mut BytesMut, done: bool, context: u32, runs: &[(u64, u32)]) {
        let count = runs.len() as u32;
        match self.headers {
            Headers::Structured => {
                self.put_header(out, chunk::BLOCK_STATUS, done, 4 + 8 * count);
                out.put_u32(context);
                for &(length, flags) in runs {
                    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
                    out.put_u32(flags);
                }
            }
            Headers::Extended => {
                self.put_header(out, chunk::BLOCK_STATUS_EXT, done, 8 + 16 * count);
                out.put_u32(context);
                out.put_u32(count);
                for &(length, flags) in runs {
                    out.put_u64(length);
                    out.put_u64(flags.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_checked() {
        assert_eq!(text(b"demo"), Ok("demo"));
        assert_eq!(text(b"a\0b"), Err(WireError::Text));
        assert_eq!(text(b"\xff"), Err(WireError::Text));
        assert!(text(&[b'a'; 4096]).is_ok());
        assert_eq!(text(&[b'a'; 4097]), Err(WireError::Text));
    }

    #[test]
    fn clipping_keeps_characters_whole() {
        assert_eq!(clip("a\0b"), "a");
        let long = "é".repeat(3000);
        assert_eq!(clip(&long).len(), 4096);
        assert_eq!(clip(&format!("x{long}")).len(), 4095);
    }

    #[test]
    fn info_query_must_fill_its_data() {
        let good = b"\0\0\0\x04demo\0\x02\0\x03\0\x01";
        let query = InfoQuery::parse(good).unwrap();
        assert_eq!(query.name, "demo");
        assert!(query.infos.contains(info::BLOCK_SIZE) && query.infos.contains(info::NAME));
        assert!(!query.infos.contains(info::DESCRIPTION));
        for cut in 0..good.len() {
            assert_eq!(InfoQuery::parse(&good[..cut]), Err(WireError::Length), "cut at {cut}");
        }
        assert_eq!(InfoQuery::parse(b"\0\0\0\0\0\0x"), Err(WireError::Length));
        assert_eq!(InfoQuery::parse(b"\xff\xff\xff\xff\0\0"), Err(WireError::Length));
    }

    #[test]
    fn meta_query_must_fill_its_data() {
        let good = b"\0\0\0\x01v\0\0\0\x02\0\0\0\x05base:\0\0\0\x00";
        let query = MetaQuery::parse(good).unwrap();
        assert_eq!((query.name, query.count), ("v", 2));
        assert_eq!(query.queries().collect::<Vec<_>>(), ["base:", ""]);
        for cut in 0..good.len() {
            assert_eq!(MetaQuery::parse(&good[..cut]), Err(WireError::Length), "cut at {cut}");
        }
        assert_eq!(MetaQuery::parse(b"\0\0\0\0\xff\xff\xff\xff"), Err(WireError::Length));
        assert_eq!(MetaQuery::parse(b"\0\0\0\0\0\0\0\0x"), Err(WireError::Length));
    }

    #[test]
    fn headers_have_the_sizes_of_the_specification() {
        assert_eq!(OptionHeader::BYTES, 16);
        assert_eq!((Command::COMPACT_BYTES, Command::EXTENDED_BYTES), (28, 32));
        let sizes = (size_of::<RawSimple>(), size_of::<RawStructured>(), size_of::<RawExtended>());
        assert_eq!(sizes, (16, 20, 32));
    }
}
