//! The handshake phase: options, up to the start of transmission (NBD `proto.md`, "Handshake").

use super::config::Tls;
use super::contexts::{
    BASE_NAMESPACE, Contexts, DIRTY_BITMAP, MAX_LISTED, MAX_SELECTED, QEMU_NAMESPACE,
    WantedContexts,
};
use super::event::{CloseReason, Event};
use super::export::{ExportEntry, ExportInfo, ExportTerms, LookupError, LookupErrorKind};
use super::phase::{PhaseStep, SessionIo, TransmissionSetup};
use crate::block::MAX_TRANSFER_BYTES;
use crate::wire::nbd::rep::Refusal;
use crate::wire::nbd::{
    self as wire, Headers, InfoQuery, InfoSet, MAX_STRING_BYTES, MetaQuery, OptionHeader, export,
    handshake, info, opt,
};
use bytes::{Buf, BytesMut};

/// Most options of one handshake; a client that sends more looks like an attack. Clients send about
/// ten, and two or three more for each export that they look at.
pub(super) const MAX_OPTIONS: u32 = 1024;

/// Bytes of handshake output that may wait to be written. Above it the session takes no input. It
/// also limits the answer to `LIST`.
pub(super) const HANDSHAKE_OUTPUT_BYTES: u64 = 1 << 20;

/// Most bytes of option data that the session reads. It skips longer data and refuses the option.
/// The limit has room for an export name and fifteen queries of the longest kind.
const MAX_OPTION_BYTES: u32 = 64 << 10;

/// Most bytes of option data that the session skips. Above it the session closes.
const MAX_SKIPPED_BYTES: u32 = MAX_TRANSFER_BYTES as u32;

pub(super) const PLAIN_BYTES_BEFORE_TLS: CloseReason =
    CloseReason::Violation("bytes outside TLS follow STARTTLS");

/// The next thing in the stream.
#[derive(Debug)]
enum HandshakeState {
    /// The client's four bytes of flags.
    ClientFlags,
    /// An option.
    Header,
    /// The data of an option that the session needs.
    Data { option: u32, length: u32 },
    /// The data of an option that the session skips before it answers.
    Skip { option: u32, length: u32, left: u32 },
    /// Nothing: the shell has to list the exports.
    Exports,
    /// Nothing: the shell has to look an export up.
    Lookup(PendingLookup),
    /// Nothing: the shell upgrades the connection to TLS.
    Upgrade,
}

/// An option that waits for an export.
#[derive(Clone, Debug)]
struct PendingLookup {
    name: String,
    purpose: LookupPurpose,
}

#[derive(Clone, Debug)]
enum LookupPurpose {
    ExportName,
    Info { enter: bool, infos: InfoSet },
    ListContexts(WantedContexts),
    SetContexts(WantedContexts),
}

/// The handshake of a session.
#[derive(Debug)]
pub(super) struct Handshake {
    state: HandshakeState,
    fixed: bool,
    no_zeroes: bool,
    secure: bool,
    options: u32,
    negotiated: Negotiated,
}

/// The results of options. `STARTTLS` resets them.
#[derive(Debug, Default)]
struct Negotiated {
    /// Kind of reply chunks; simple replies without.
    chunks: Option<Headers>,
    /// The export that the selected contexts belong to, by its canonical name.
    contexts: Option<(String, Contexts)>,
}

impl Handshake {
    pub(super) fn new() -> Handshake {
        Handshake {
            state: HandshakeState::ClientFlags,
            fixed: false,
            no_zeroes: false,
            secure: false,
            options: 0,
            negotiated: Negotiated::default(),
        }
    }

    pub(super) fn wants_input(&self) -> bool {
        !matches!(
            self.state,
            HandshakeState::Exports | HandshakeState::Lookup(_) | HandshakeState::Upgrade
        )
    }

    /// Whether any byte that arrives now is a protocol violation.
    pub(super) fn refuses_input(&self) -> bool {
        matches!(self.state, HandshakeState::Upgrade)
    }

    pub(super) fn wanted(&self) -> usize {
        match self.state {
            HandshakeState::ClientFlags => 4,
            HandshakeState::Header => OptionHeader::BYTES,
            HandshakeState::Data { length, .. } => length as usize,
            HandshakeState::Skip { .. } => 1,
            HandshakeState::Exports | HandshakeState::Lookup(_) | HandshakeState::Upgrade => 0,
        }
    }

    pub(super) fn step(&mut self, io: &mut SessionIo, input: &mut BytesMut) -> PhaseStep {
        match self.state {
            HandshakeState::ClientFlags => self.read_flags(io, input),
            HandshakeState::Header => self.read_header(io, input),
            HandshakeState::Data { option, length } => {
                if input.len() < length as usize {
                    return PhaseStep::Starved;
                }
                let data = input.split_to(length as usize);
                self.state = HandshakeState::Header;
                self.read_data(io, option, &data)
            }
            HandshakeState::Skip { option, length, left } => {
                let skipped = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                input.advance(skipped as usize);
                let left = left - skipped;
                self.state = HandshakeState::Skip { option, length, left };
                if left > 0 {
                    return PhaseStep::Starved;
                }
                self.state = HandshakeState::Header;
                self.conclude(io, option, length, input)
            }
            HandshakeState::Exports | HandshakeState::Lookup(_) | HandshakeState::Upgrade => {
                PhaseStep::Starved
            }
        }
    }

    fn read_flags(&mut self, io: &mut SessionIo, input: &mut BytesMut) -> PhaseStep {
        const FIXED: u32 = handshake::FIXED_NEWSTYLE as u32;
        const NO_ZEROES: u32 = handshake::NO_ZEROES as u32;
        if input.len() < size_of::<u32>() {
            return PhaseStep::Starved;
        }
        let flags = input.get_u32();
        if flags & !(FIXED | NO_ZEROES) != 0 {
            return PhaseStep::Close(CloseReason::Violation(
                "unknown client flags in the handshake",
            ));
        }
        self.fixed = flags & FIXED != 0;
        self.no_zeroes = flags & NO_ZEROES != 0;
        // Without fixed newstyle a client cannot send STARTTLS, nor learn that it has to.
        if io.config.tls == Tls::Required && !self.fixed {
            return PhaseStep::Close(CloseReason::Violation(
                "TLS is required, but the client does not speak fixed newstyle",
            ));
        }
        self.state = HandshakeState::Header;
        PhaseStep::Again
    }

    /// Whether the client has to start TLS first.
    fn barred(&self, io: &SessionIo) -> bool {
        io.config.tls == Tls::Required && !self.secure
    }

    fn read_header(&mut self, io: &mut SessionIo, input: &mut BytesMut) -> PhaseStep {
        if input.len() < OptionHeader::BYTES {
            return PhaseStep::Starved;
        }
        let Ok(OptionHeader { option, length }) = OptionHeader::parse(input) else {
            return PhaseStep::Close(CloseReason::Violation("wrong magic number before an option"));
        };
        input.advance(OptionHeader::BYTES);
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return PhaseStep::Close(CloseReason::Violation("too many options in one handshake"));
        }
        if option == opt::EXPORT_NAME {
            // The option has no error reply. A refusal ends the session.
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
                return PhaseStep::Close(CloseReason::Violation(refusal));
            }
            self.state = HandshakeState::Data { option, length };
            return PhaseStep::Again;
        }
        if !self.fixed {
            return PhaseStep::Close(CloseReason::Violation(
                "an option other than EXPORT_NAME without fixed newstyle",
            ));
        }
        if length > MAX_SKIPPED_BYTES {
            return PhaseStep::Close(CloseReason::Violation("option data of more than 32 MiB"));
        }
        let read = needs_data(option)
            && length <= MAX_OPTION_BYTES
            && !self.barred(io)
            && !io.shutting_down;
        self.state = if read {
            HandshakeState::Data { option, length }
        } else {
            HandshakeState::Skip { option, length, left: length }
        };
        PhaseStep::Again
    }

    /// Answers an option that needs no data, or whose data was skipped.
    fn conclude(
        &mut self,
        io: &mut SessionIo,
        option: u32,
        length: u32,
        input: &BytesMut,
    ) -> PhaseStep {
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
                return PhaseStep::Close(CloseReason::Aborted);
            }
            opt::LIST => {
                self.state = HandshakeState::Exports;
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
        PhaseStep::Again
    }

    fn start_tls(&mut self, io: &mut SessionIo, input: &BytesMut) -> PhaseStep {
        if io.config.tls == Tls::Off {
            let text = "TLS is switched off on this address";
            return refuse(io, opt::STARTTLS, Refusal::Policy, text);
        }
        if self.secure {
            return refuse(io, opt::STARTTLS, Refusal::Invalid, "TLS is already in use");
        }
        if !input.is_empty() {
            return PhaseStep::Close(PLAIN_BYTES_BEFORE_TLS);
        }
        io.output.head(|out| wire::put_ack(out, opt::STARTTLS));
        io.events.push_back(Event::StartTls);
        self.state = HandshakeState::Upgrade;
        PhaseStep::Again
    }

    /// Resets the negotiation; only the client's flags remain, because a client sends them once.
    /// With FORCEDTLS nothing can be negotiated before TLS, but the reset does not rely on that.
    pub(super) fn handle_tls_established(&mut self) {
        if let HandshakeState::Upgrade = self.state {
            self.state = HandshakeState::Header;
            self.secure = true;
            self.negotiated = Negotiated::default();
        }
    }

    fn read_data(&mut self, io: &mut SessionIo, option: u32, data: &[u8]) -> PhaseStep {
        let (name, purpose) = match option {
            opt::EXPORT_NAME => match wire::text(data) {
                Ok(name) if io.shutting_down => {
                    return PhaseStep::Close(CloseReason::ExportRefused {
                        name: name.to_owned(),
                        message: "the server is shutting down".to_owned(),
                    });
                }
                Ok(name) => (name, LookupPurpose::ExportName),
                Err(_) => {
                    return PhaseStep::Close(CloseReason::Violation(
                        "EXPORT_NAME with a name that is not UTF-8 or holds a NUL",
                    ));
                }
            },
            opt::INFO | opt::GO => match InfoQuery::parse(data) {
                Ok(InfoQuery { name, infos }) => {
                    (name, LookupPurpose::Info { enter: option == opt::GO, infos })
                }
                Err(error) => return refuse(io, option, Refusal::Invalid, &error.to_string()),
            },
            _ => match self.read_contexts(option, data) {
                Ok(read) => read,
                Err(text) => return refuse(io, option, Refusal::Invalid, &text),
            },
        };
        let entering =
            matches!(purpose, LookupPurpose::ExportName | LookupPurpose::Info { enter: true, .. });
        let bitmaps = match &purpose {
            LookupPurpose::ListContexts(wanted) | LookupPurpose::SetContexts(wanted) => {
                wanted.bitmaps || !wanted.named.is_empty()
            }
            _ => false,
        };
        io.events.push_back(Event::LookupExport { name: name.to_owned(), entering, bitmaps });
        self.state = HandshakeState::Lookup(PendingLookup { name: name.to_owned(), purpose });
        PhaseStep::Again
    }

    /// Reads `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    fn read_contexts<'a>(
        &mut self,
        option: u32,
        data: &'a [u8],
    ) -> Result<(&'a str, LookupPurpose), String> {
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
        let mut wanted = WantedContexts { allocation: all, bitmaps: all, named: Vec::new() };
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
        let purpose =
            if set { LookupPurpose::SetContexts } else { LookupPurpose::ListContexts }(wanted);
        Ok((query.name, purpose))
    }

    pub(super) fn handle_exports(
        &mut self,
        io: &mut SessionIo,
        exports: Result<Vec<ExportEntry>, LookupError>,
    ) {
        if !matches!(self.state, HandshakeState::Exports) {
            return;
        }
        self.state = HandshakeState::Header;
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
        io: &mut SessionIo,
        export: Result<ExportInfo, LookupError>,
    ) -> PhaseStep {
        let HandshakeState::Lookup(PendingLookup { name, purpose }) = &self.state else {
            return PhaseStep::Again;
        };
        let (name, purpose) = (name.clone(), purpose.clone());
        self.state = HandshakeState::Header;
        let option = match purpose {
            LookupPurpose::ExportName => opt::EXPORT_NAME,
            LookupPurpose::Info { enter: false, .. } => opt::INFO,
            LookupPurpose::Info { enter: true, .. } => opt::GO,
            LookupPurpose::ListContexts(_) => opt::LIST_META_CONTEXT,
            LookupPurpose::SetContexts(_) => opt::SET_META_CONTEXT,
        };
        let export = match export {
            Ok(export) => export,
            Err(LookupError { message, .. }) if option == opt::EXPORT_NAME => {
                return PhaseStep::Close(CloseReason::ExportRefused { name, message });
            }
            Err(LookupError { kind: LookupErrorKind::OnEntry, .. })
                if matches!(
                    purpose,
                    LookupPurpose::ListContexts(_) | LookupPurpose::SetContexts(_)
                ) =>
            {
                // Every export has these contexts.
                self.select(io, purpose, name, &[]);
                return PhaseStep::Again;
            }
            Err(error) => return refuse(io, option, error.kind.refusal(), &error.message),
        };
        match purpose {
            LookupPurpose::ExportName => {
                let terms = ExportTerms::new(&export, false);
                let flags = self.flags(&export, terms);
                let padded = !self.no_zeroes;
                io.output.head(|out| wire::put_export(out, terms.size, flags, padded));
                self.enter(io, export, terms)
            }
            LookupPurpose::Info { enter, infos } => {
                let terms = ExportTerms::new(&export, infos.contains(info::BLOCK_SIZE));
                self.describe(io, option, &name, &export, terms, infos);
                if enter { self.enter(io, export, terms) } else { PhaseStep::Again }
            }
            LookupPurpose::ListContexts(_) | LookupPurpose::SetContexts(_) => {
                self.select(io, purpose, export.name, &export.bitmaps);
                PhaseStep::Again
            }
        }
    }

    /// Answers an option about the contexts of an export with these bitmaps.
    fn select(
        &mut self,
        io: &mut SessionIo,
        purpose: LookupPurpose,
        name: String,
        bitmaps: &[String],
    ) {
        let (option, wanted, most) = match purpose {
            LookupPurpose::SetContexts(wanted) => (opt::SET_META_CONTEXT, wanted, MAX_SELECTED),
            LookupPurpose::ListContexts(wanted) => (opt::LIST_META_CONTEXT, wanted, MAX_LISTED),
            LookupPurpose::ExportName | LookupPurpose::Info { .. } => return,
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
        io: &mut SessionIo,
        option: u32,
        asked_name: &str,
        export: &ExportInfo,
        terms: ExportTerms,
        infos: InfoSet,
    ) {
        let flags = self.flags(export, terms);
        let renamed = asked_name != export.name;
        let name = infos.contains(info::NAME) || renamed;
        let description = infos.contains(info::DESCRIPTION) && !export.description.is_empty();
        let ExportTerms { min_block, preferred_block, max_payload, .. } = terms;
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

    fn flags(&self, export: &ExportInfo, terms: ExportTerms) -> u16 {
        // CAN_MULTI_CONN: all connections to a volume end in one engine. A flush of that engine
        // covers every write that it has answered, on any connection.
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

    fn enter(&self, io: &mut SessionIo, export: ExportInfo, terms: ExportTerms) -> PhaseStep {
        let contexts = self.contexts(&export);
        io.events.push_back(Event::Ready { name: export.name });
        PhaseStep::Enter(Box::new(TransmissionSetup {
            terms,
            chunks: self.negotiated.chunks,
            contexts,
        }))
    }
}

fn needs_data(option: u32) -> bool {
    matches!(option, opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT)
}

fn refuse(io: &mut SessionIo, option: u32, refusal: Refusal, text: &str) -> PhaseStep {
    io.output.head(|out| wire::put_refusal(out, option, refusal, text));
    PhaseStep::Again
}
