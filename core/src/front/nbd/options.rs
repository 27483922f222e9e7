//! The handshake: option haggling up to the start of transmission (NBD `proto.md`, "Handshake").

use super::transmission::Transmission;
use super::{
    CloseReason, Event, ExportEntry, ExportInfo, HANDSHAKE_OUTPUT_BYTES, Io, LookupError,
    LookupErrorKind, MAX_OPTIONS, Step, Terms, Tls,
};
use crate::block::MAX_TRANSFER_BYTES;
use crate::wire::nbd::rep::Refusal;
use crate::wire::nbd::{
    self as wire, Headers, InfoQuery, InfoSet, MAX_STRING_BYTES, MetaQuery, OptionHeader, export,
    handshake, info, opt,
};
use bytes::{Buf, BytesMut};

/// Option data up to this size are read; more are skipped and refused. Room for an export name and
/// fifteen queries of the longest kind.
const MAX_OPTION_BYTES: u32 = 64 << 10;

/// Option data above this size are not even skipped.
const MAX_SKIPPED_BYTES: u32 = MAX_TRANSFER_BYTES as u32;

/// The identifier of `base:allocation`. Not 0, which in `LIST_META_CONTEXT` means "reserved".
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
const BASE_NAMESPACE: &str = "base";
const BASE_ALLOCATION: &str = "base:allocation";
/// The identifier of the first dirty bitmap that is selected; those of the others follow.
pub(super) const FIRST_BITMAP_ID: u32 = 2;
const QEMU_NAMESPACE: &str = "qemu";
const DIRTY_BITMAP: &str = "dirty-bitmap:";
/// Dirty bitmaps listed at most, and those selected.
const MAX_LISTED: usize = 512;
const MAX_SELECTED: usize = 16;

/// Metadata contexts of an export.
#[derive(Clone, Debug, Default)]
pub(super) struct Contexts {
    /// `base:allocation`.
    pub(super) allocation: bool,
    /// Names of dirty bitmaps.
    pub(super) bitmaps: Vec<String>,
}

impl Contexts {
    pub(super) fn is_empty(&self) -> bool {
        !self.allocation && self.bitmaps.is_empty()
    }

    /// The identifiers.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let bitmaps = (FIRST_BITMAP_ID..).take(self.bitmaps.len());
        self.allocation.then_some(BASE_ALLOCATION_ID).into_iter().chain(bitmaps)
    }

    /// The bitmap of an identifier.
    pub(super) fn bitmap(&self, id: u32) -> Option<&String> {
        self.bitmaps.get(id.checked_sub(FIRST_BITMAP_ID)? as usize)
    }

    fn put(&self, out: &mut BytesMut, option: u32) {
        // "Reserved" in a list.
        let id = |id| if option == opt::SET_META_CONTEXT { id } else { 0 };
        if self.allocation {
            wire::put_meta_context(out, option, id(BASE_ALLOCATION_ID), BASE_ALLOCATION);
        }
        for (number, name) in (FIRST_BITMAP_ID..).zip(&self.bitmaps) {
            let name = format!("{QEMU_NAMESPACE}:{DIRTY_BITMAP}{name}");
            wire::put_meta_context(out, option, id(number), &name);
        }
    }
}

/// Contexts that a client asks for, whether or not there are any.
#[derive(Clone, Debug, Default)]
struct Wanted {
    allocation: bool,
    /// All of them.
    bitmaps: bool,
    /// Or these.
    named: Vec<String>,
}

impl Wanted {
    fn of(&self, bitmaps: &[String], most: usize) -> Contexts {
        let wanted = |name: &&String| self.bitmaps || self.named.contains(name);
        let bitmaps = bitmaps.iter().filter(wanted).take(most);
        Contexts { allocation: self.allocation, bitmaps: bitmaps.cloned().collect() }
    }
}

pub(super) const PLAIN_BYTES_BEFORE_TLS: CloseReason =
    CloseReason::Violation("bytes outside TLS follow STARTTLS");

/// Where the handshake stands.
#[derive(Debug)]
enum State {
    /// The client's four bytes of flags come next.
    ClientFlags,
    /// An option comes next.
    Header,
    /// Its data come next, and are needed.
    Data { option: u32, length: u32 },
    /// Its data are passed over, then it is concluded.
    Skip { option: u32, length: u32, left: u32 },
    /// The shell is asked for the list of exports.
    Exports,
    /// The shell is asked about an export.
    Lookup(Lookup),
    /// The shell upgrades the connection.
    Upgrade,
}

/// An option that waits for an export.
#[derive(Clone, Debug)]
struct Lookup {
    name: String,
    purpose: Purpose,
}

#[derive(Clone, Debug)]
enum Purpose {
    ExportName,
    Info { enter: bool, infos: InfoSet },
    ListContexts(Wanted),
    SetContexts(Wanted),
}

/// The handshake of a session.
#[derive(Debug)]
pub(super) struct Handshake {
    state: State,
    fixed: bool,
    no_zeroes: bool,
    secure: bool,
    options: u32,
    negotiated: Negotiated,
}

/// What options have changed. `STARTTLS` forgets it.
#[derive(Debug, Default)]
struct Negotiated {
    /// Kind of reply chunks; simple replies without.
    chunks: Option<Headers>,
    /// The export for which contexts are selected, by its canonical name.
    contexts: Option<(String, Contexts)>,
}

impl Handshake {
    pub(super) fn new() -> Handshake {
        Handshake {
            state: State::ClientFlags,
            fixed: false,
            no_zeroes: false,
            secure: false,
            options: 0,
            negotiated: Negotiated::default(),
        }
    }

    pub(super) fn wants_input(&self) -> bool {
        !matches!(self.state, State::Exports | State::Lookup(_) | State::Upgrade)
    }

    /// Whether any byte that arrives now is an attack.
    pub(super) fn refuses_input(&self) -> bool {
        matches!(self.state, State::Upgrade)
    }

    pub(super) fn wanted(&self) -> usize {
        match self.state {
            State::ClientFlags => 4,
            State::Header => OptionHeader::BYTES,
            State::Data { length, .. } => length as usize,
            State::Skip { .. } => 1,
            State::Exports | State::Lookup(_) | State::Upgrade => 0,
        }
    }

    pub(super) fn step(&mut self, io: &mut Io, input: &mut BytesMut) -> Step {
        match self.state {
            State::ClientFlags => self.read_flags(io, input),
            State::Header => self.read_header(io, input),
            State::Data { option, length } => {
                if input.len() < length as usize {
                    return Step::Starved;
                }
                let data = input.split_to(length as usize);
                self.state = State::Header;
                self.read_data(io, option, &data)
            }
            State::Skip { option, length, left } => {
                let skipped = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                input.advance(skipped as usize);
                let left = left - skipped;
                self.state = State::Skip { option, length, left };
                if left > 0 {
                    return Step::Starved;
                }
                self.state = State::Header;
                self.conclude(io, option, length, input)
            }
            State::Exports | State::Lookup(_) | State::Upgrade => Step::Starved,
        }
    }

    fn read_flags(&mut self, io: &mut Io, input: &mut BytesMut) -> Step {
        const FIXED: u32 = handshake::FIXED_NEWSTYLE as u32;
        const NO_ZEROES: u32 = handshake::NO_ZEROES as u32;
        if input.len() < size_of::<u32>() {
            return Step::Starved;
        }
        let flags = input.get_u32();
        if flags & !(FIXED | NO_ZEROES) != 0 {
            return Step::Close(CloseReason::Violation("unknown client flags in the handshake"));
        }
        self.fixed = flags & FIXED != 0;
        self.no_zeroes = flags & NO_ZEROES != 0;
        // Without it there is no STARTTLS and no way to say that one is needed.
        if io.config.tls == Tls::Required && !self.fixed {
            return Step::Close(CloseReason::Violation(
                "TLS is required, but the client does not speak fixed newstyle",
            ));
        }
        self.state = State::Header;
        Step::Again
    }

    /// Whether TLS has to come first.
    fn barred(&self, io: &Io) -> bool {
        io.config.tls == Tls::Required && !self.secure
    }

    fn read_header(&mut self, io: &mut Io, input: &mut BytesMut) -> Step {
        if input.len() < OptionHeader::BYTES {
            return Step::Starved;
        }
        let Ok(OptionHeader { option, length }) = OptionHeader::parse(input) else {
            return Step::Close(CloseReason::Violation("wrong magic number before an option"));
        };
        input.advance(OptionHeader::BYTES);
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Step::Close(CloseReason::Violation("too many options in one handshake"));
        }
        if option == opt::EXPORT_NAME {
            // There is no error reply: what cannot be honoured ends the session.
            let refusal = if self.barred(io) {
                Some("EXPORT_NAME before TLS")
            } else if self.negotiated.chunks == Some(Headers::Extended) {
                Some("EXPORT_NAME after EXTENDED_HEADERS")
            } else if length as usize > MAX_STRING_BYTES {
                Some("EXPORT_NAME with a name longer than 4096 bytes")
            } else {
                None
            };
            if let Some(refusal) = refusal {
                return Step::Close(CloseReason::Violation(refusal));
            }
            self.state = State::Data { option, length };
            return Step::Again;
        }
        if !self.fixed {
            return Step::Close(CloseReason::Violation(
                "an option other than EXPORT_NAME without fixed newstyle",
            ));
        }
        if length > MAX_SKIPPED_BYTES {
            return Step::Close(CloseReason::Violation("option data of more than 32 MiB"));
        }
        let read = needs_data(option)
            && length <= MAX_OPTION_BYTES
            && !self.barred(io)
            && !io.shutting_down;
        self.state = if read {
            State::Data { option, length }
        } else {
            State::Skip { option, length, left: length }
        };
        Step::Again
    }

    /// Answers an option that needs no data, or cannot have them.
    fn conclude(&mut self, io: &mut Io, option: u32, length: u32, input: &BytesMut) -> Step {
        if self.barred(io) && !matches!(option, opt::STARTTLS | opt::ABORT) {
            return refuse(io, option, Refusal::TlsRequired, "this server requires TLS first");
        }
        if io.shutting_down && option != opt::ABORT {
            return refuse(io, option, Refusal::Shutdown, "the server is shutting down");
        }
        let bare = matches!(
            option,
            opt::LIST | opt::STARTTLS | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS
        );
        if bare && length > 0 {
            return refuse(io, option, Refusal::Invalid, "this option takes no data");
        }
        match option {
            opt::ABORT => {
                io.output.head(|out| wire::put_ack(out, option));
                return Step::Close(CloseReason::Aborted);
            }
            opt::LIST => {
                self.state = State::Exports;
                io.events.push_back(Event::ListExports);
            }
            opt::STARTTLS => return self.start_tls(io, input),
            opt::STRUCTURED_REPLY => {
                if self.negotiated.chunks == Some(Headers::Extended) {
                    let text = "extended headers are in use and take precedence";
                    return refuse(io, option, Refusal::ExtendedHeadersRequired, text);
                }
                self.negotiated.chunks = Some(Headers::Structured);
                io.output.head(|out| wire::put_ack(out, option));
            }
            opt::EXTENDED_HEADERS => {
                self.negotiated.chunks = Some(Headers::Extended);
                io.output.head(|out| wire::put_ack(out, option));
            }
            _ if needs_data(option) => {
                if option == opt::SET_META_CONTEXT {
                    self.negotiated.contexts = None;
                }
                return refuse(io, option, Refusal::TooBig, "option data exceed 64 KiB");
            }
            _ => return refuse(io, option, Refusal::Unsupported, "this server has no such option"),
        }
        Step::Again
    }

    fn start_tls(&mut self, io: &mut Io, input: &BytesMut) -> Step {
        if io.config.tls == Tls::Off {
            let text = "TLS is switched off on this address";
            return refuse(io, opt::STARTTLS, Refusal::Policy, text);
        }
        if self.secure {
            return refuse(io, opt::STARTTLS, Refusal::Invalid, "TLS is already in use");
        }
        if !input.is_empty() {
            return Step::Close(PLAIN_BYTES_BEFORE_TLS);
        }
        io.output.head(|out| wire::put_ack(out, opt::STARTTLS));
        io.events.push_back(Event::StartTls);
        self.state = State::Upgrade;
        Step::Again
    }

    /// Starts the negotiation afresh; only the client's flags remain, which have no second chance.
    /// FORCEDTLS lets nothing be negotiated before; that it is forgotten does not rely on it.
    pub(super) fn handle_tls_established(&mut self) {
        if let State::Upgrade = self.state {
            self.state = State::Header;
            self.secure = true;
            self.negotiated = Negotiated::default();
        }
    }

    fn read_data(&mut self, io: &mut Io, option: u32, data: &[u8]) -> Step {
        let (name, purpose) = match option {
            opt::EXPORT_NAME => match wire::text(data) {
                Ok(name) if io.shutting_down => {
                    return Step::Close(CloseReason::ExportRefused {
                        name: name.to_owned(),
                        message: "the server is shutting down".to_owned(),
                    });
                }
                Ok(name) => (name, Purpose::ExportName),
                Err(_) => {
                    return Step::Close(CloseReason::Violation(
                        "EXPORT_NAME with a name that is not UTF-8 or holds a NUL",
                    ));
                }
            },
            opt::INFO | opt::GO => match InfoQuery::parse(data) {
                Ok(InfoQuery { name, infos }) => {
                    (name, Purpose::Info { enter: option == opt::GO, infos })
                }
                Err(error) => return refuse(io, option, Refusal::Invalid, &error.to_string()),
            },
            _ => match self.read_contexts(option, data) {
                Ok(read) => read,
                Err(text) => return refuse(io, option, Refusal::Invalid, &text),
            },
        };
        let entering = matches!(purpose, Purpose::ExportName | Purpose::Info { enter: true, .. });
        let bitmaps = match &purpose {
            Purpose::ListContexts(wanted) | Purpose::SetContexts(wanted) => {
                wanted.bitmaps || !wanted.named.is_empty()
            }
            _ => false,
        };
        io.events.push_back(Event::LookupExport { name: name.to_owned(), entering, bitmaps });
        self.state = State::Lookup(Lookup { name: name.to_owned(), purpose });
        Step::Again
    }

    /// Reads `LIST_META_CONTEXT` or `SET_META_CONTEXT`; a refusal says why.
    fn read_contexts<'a>(
        &mut self,
        option: u32,
        data: &'a [u8],
    ) -> Result<(&'a str, Purpose), String> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // "Issuing this command replaces all previously-set metadata contexts (including when
            // this command fails)."
            self.negotiated.contexts = None;
            if self.negotiated.chunks.is_none() {
                return Err("negotiate structured replies or extended headers first".to_owned());
            }
        }
        let query = MetaQuery::parse(data).map_err(|error| error.to_string())?;
        let all = !set && query.count == 0;
        let mut wanted = Wanted { allocation: all, bitmaps: all, named: Vec::new() };
        for text in query.queries() {
            let (namespace, leaf) =
                text.split_once(':').ok_or("a query must start with a namespace and a colon")?;
            if namespace == BASE_NAMESPACE {
                wanted.allocation |= leaf == "allocation" || (leaf.is_empty() && !set);
            } else if namespace == QEMU_NAMESPACE {
                match leaf.strip_prefix(DIRTY_BITMAP) {
                    Some("") => wanted.bitmaps |= !set,
                    Some(name) => wanted.named.push(name.to_owned()),
                    None => wanted.bitmaps |= leaf.is_empty() && !set,
                }
            }
        }
        let purpose = if set { Purpose::SetContexts } else { Purpose::ListContexts }(wanted);
        Ok((query.name, purpose))
    }

    pub(super) fn handle_exports(
        &mut self,
        io: &mut Io,
        exports: Result<Vec<ExportEntry>, LookupError>,
    ) {
        if !matches!(self.state, State::Exports) {
            return;
        }
        self.state = State::Header;
        let entries = match exports {
            Ok(entries) => entries,
            Err(error) => {
                refuse(io, opt::LIST, error.kind.refusal(), &error.message);
                return;
            }
        };
        let listed = || entries.iter().filter(|entry| entry.name.len() <= MAX_STRING_BYTES);
        let bytes: usize =
            listed().map(|entry| 24 + entry.name.len() + entry.description.len()).sum();
        if bytes as u64 > HANDSHAKE_OUTPUT_BYTES {
            refuse(io, opt::LIST, Refusal::TooBig, "too many exports to list; name one instead");
            return;
        }
        for entry in listed() {
            io.output.head(|out| wire::put_server(out, &entry.name, &entry.description));
        }
        io.output.head(|out| wire::put_ack(out, opt::LIST));
    }

    pub(super) fn handle_export(
        &mut self,
        io: &mut Io,
        export: Result<ExportInfo, LookupError>,
    ) -> Step {
        let State::Lookup(Lookup { name, purpose }) = &self.state else { return Step::Again };
        let (name, purpose) = (name.clone(), purpose.clone());
        self.state = State::Header;
        let option = match purpose {
            Purpose::ExportName => opt::EXPORT_NAME,
            Purpose::Info { enter: false, .. } => opt::INFO,
            Purpose::Info { enter: true, .. } => opt::GO,
            Purpose::ListContexts(_) => opt::LIST_META_CONTEXT,
            Purpose::SetContexts(_) => opt::SET_META_CONTEXT,
        };
        let export = match export {
            Ok(export) => export,
            Err(LookupError { message, .. }) if option == opt::EXPORT_NAME => {
                return Step::Close(CloseReason::ExportRefused { name, message });
            }
            Err(LookupError { kind: LookupErrorKind::OnEntry, .. })
                if matches!(purpose, Purpose::ListContexts(_) | Purpose::SetContexts(_)) =>
            {
                // What every export has.
                self.select(io, purpose, name, &[]);
                return Step::Again;
            }
            Err(error) => return refuse(io, option, error.kind.refusal(), &error.message),
        };
        match purpose {
            Purpose::ExportName => {
                let terms = Terms::new(&export, false);
                let flags = self.flags(&export, terms);
                let padded = !self.no_zeroes;
                io.output.head(|out| wire::put_export(out, terms.size, flags, padded));
                self.enter(io, export, terms)
            }
            Purpose::Info { enter, infos } => {
                let terms = Terms::new(&export, infos.contains(info::BLOCK_SIZE));
                self.describe(io, option, &name, &export, terms, infos);
                if enter { self.enter(io, export, terms) } else { Step::Again }
            }
            Purpose::ListContexts(_) | Purpose::SetContexts(_) => {
                self.select(io, purpose, export.name, &export.bitmaps);
                Step::Again
            }
        }
    }

    /// Answers the options about contexts of an export with these bitmaps.
    fn select(&mut self, io: &mut Io, purpose: Purpose, name: String, bitmaps: &[String]) {
        let (option, wanted, most) = match purpose {
            Purpose::SetContexts(wanted) => (opt::SET_META_CONTEXT, wanted, MAX_SELECTED),
            Purpose::ListContexts(wanted) => (opt::LIST_META_CONTEXT, wanted, MAX_LISTED),
            Purpose::ExportName | Purpose::Info { .. } => return,
        };
        let contexts = wanted.of(bitmaps, most);
        io.output.head(|out| {
            contexts.put(out, option);
            wire::put_ack(out, option);
        });
        if option == opt::SET_META_CONTEXT {
            self.negotiated.contexts = Some((name, contexts));
        }
    }

    /// Answers `INFO` and `GO`.
    fn describe(
        &self,
        io: &mut Io,
        option: u32,
        asked_name: &str,
        export: &ExportInfo,
        terms: Terms,
        infos: InfoSet,
    ) {
        let flags = self.flags(export, terms);
        let renamed = asked_name != export.name;
        let name = infos.contains(info::NAME) || renamed;
        let description = infos.contains(info::DESCRIPTION) && !export.description.is_empty();
        let Terms { min_block, preferred_block, max_payload, .. } = terms;
        io.output.head(|out| {
            wire::put_info_export(out, option, terms.size, flags);
            if name && export.name.len() <= MAX_STRING_BYTES {
                wire::put_info_text(out, option, info::NAME, &export.name);
            }
            if description {
                wire::put_info_text(out, option, info::DESCRIPTION, &export.description);
            }
            wire::put_info_block_size(out, option, min_block, preferred_block, max_payload);
            wire::put_ack(out, option);
        });
    }

    fn flags(&self, export: &ExportInfo, terms: Terms) -> u16 {
        // CAN_MULTI_CONN: all connections to a volume end in one engine, whose flush covers every
        // write it has answered, whichever connection it came by.
        let mut flags = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::CAN_MULTI_CONN
            | export::SEND_CACHE;
        flags |= if terms.read_only {
            export::READ_ONLY
        } else {
            export::SEND_TRIM | export::SEND_WRITE_ZEROES | export::SEND_FAST_ZERO
        };
        if self.negotiated.chunks.is_some() {
            flags |= export::SEND_DF;
        }
        let selected = !self.contexts(export).is_empty();
        if self.negotiated.chunks == Some(Headers::Extended) && selected {
            flags |= export::BLOCK_STATUS_PAYLOAD;
        }
        flags
    }

    /// The contexts that are selected for an export.
    fn contexts(&self, export: &ExportInfo) -> Contexts {
        let selected = self.negotiated.contexts.as_ref();
        let own = selected.filter(|(name, _)| *name == export.name);
        own.map(|(_, contexts)| contexts.clone()).unwrap_or_default()
    }

    fn enter(&self, io: &mut Io, export: ExportInfo, terms: Terms) -> Step {
        let contexts = self.contexts(&export);
        io.events.push_back(Event::Ready { name: export.name });
        Step::Enter(Box::new(Transmission::new(terms, self.negotiated.chunks, contexts)))
    }
}

fn needs_data(option: u32) -> bool {
    matches!(option, opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT)
}

fn refuse(io: &mut Io, option: u32, refusal: Refusal, text: &str) -> Step {
    io.output.head(|out| wire::put_refusal(out, option, refusal, text));
    Step::Again
}
