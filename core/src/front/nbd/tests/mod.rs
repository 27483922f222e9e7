//! A client that writes its bytes by hand, a volume in memory, and scripted sessions between them.
//! Expected bytes are built from the numbers of the specification, not by the encoders under test.

mod handshake;
mod properties;
mod transmission;

use super::*;
use crate::block::{
    BlockError, BlockState, MAX_TRANSFER_BYTES, Range, ReadPiece, Reply, Request, StatusRun,
};
use bytes::{Bytes, BytesMut};

pub(super) const MIB: u64 = 1 << 20;

/// Bytes, big-endian, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire(pub(super) Vec<u8>);

impl Wire {
    pub(super) fn u16(self, value: u16) -> Wire {
        self.raw(&value.to_be_bytes())
    }
    pub(super) fn u32(self, value: u32) -> Wire {
        self.raw(&value.to_be_bytes())
    }
    pub(super) fn u64(self, value: u64) -> Wire {
        self.raw(&value.to_be_bytes())
    }
    pub(super) fn raw(mut self, bytes: &[u8]) -> Wire {
        self.0.extend_from_slice(bytes);
        self
    }
    pub(super) fn then(self, other: Wire) -> Wire {
        self.raw(&other.0)
    }
    /// A string after its 32-bit length.
    pub(super) fn text(self, text: &str) -> Wire {
        self.u32(text.len() as u32).raw(text.as_bytes())
    }
}

pub(super) fn w() -> Wire {
    Wire::default()
}

pub(super) fn greeting() -> Wire {
    w().raw(b"NBDMAGICIHAVEOPT").u16(3)
}

pub(super) fn option(number: u32, data: &[u8]) -> Wire {
    w().raw(b"IHAVEOPT").u32(number).u32(data.len() as u32).raw(data)
}

pub(super) fn option_reply(number: u32, kind: u32, data: &[u8]) -> Wire {
    w().u64(0x3_e889_0455_65a9).u32(number).u32(kind).u32(data.len() as u32).raw(data)
}

pub(super) fn ack(number: u32) -> Wire {
    option_reply(number, 1, &[])
}

/// The data of INFO and GO.
pub(super) fn query(name: &str, infos: &[u16]) -> Vec<u8> {
    infos.iter().fold(w().text(name).u16(infos.len() as u16), |w, info| w.u16(*info)).0
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(super) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    queries.iter().fold(w().text(name).u32(queries.len() as u32), |w, query| w.text(query)).0
}

pub(super) fn compact(flags: u16, kind: u16, cookie: u64, offset: u64, length: u32) -> Wire {
    w().u32(0x2560_9513).u16(flags).u16(kind).u64(cookie).u64(offset).u32(length)
}

pub(super) fn extended(flags: u16, kind: u16, cookie: u64, offset: u64, length: u64) -> Wire {
    w().u32(0x21e4_1c71).u16(flags).u16(kind).u64(cookie).u64(offset).u64(length)
}

pub(super) fn simple(error: u32, cookie: u64) -> Wire {
    w().u32(0x6744_6698).u32(error).u64(cookie)
}

pub(super) fn structured(done: u16, kind: u16, cookie: u64, payload: Wire) -> Wire {
    let length = payload.0.len() as u32;
    w().u32(0x668e_33ef).u16(done).u16(kind).u64(cookie).u32(length).then(payload)
}

pub(super) fn ext(done: u16, kind: u16, cookie: u64, offset: u64, payload: Wire) -> Wire {
    let length = payload.0.len() as u64;
    w().u32(0x6e8a_278c).u16(done).u16(kind).u64(cookie).u64(offset).u64(length).then(payload)
}

/// The payload of an error chunk.
pub(super) fn error(number: u32, text: &str) -> Wire {
    w().u32(number).u16(text.len() as u16).raw(text.as_bytes())
}

/// A volume in memory that answers at once.
pub(super) struct Volume {
    sectors: Vec<(BlockState, u8)>,
    pub(super) log: Vec<Request>,
    pub(super) fail: Option<BlockError>,
}

impl Volume {
    pub(super) fn new(bytes: u64) -> Volume {
        let sectors = vec![(BlockState::Hole, 0); (bytes / 512) as usize];
        Volume { sectors, log: Vec::new(), fail: None }
    }

    fn slice(&mut self, range: Range) -> &mut [(BlockState, u8)] {
        assert!(range.fits(self.sectors.len() as u64), "{range} is beyond the end");
        assert!(!range.is_empty(), "an empty range was handed out");
        &mut self.sectors[range.lba as usize..range.end() as usize]
    }

    fn runs(&mut self, range: Range) -> Vec<(u64, (BlockState, u8))> {
        let mut runs: Vec<(u64, (BlockState, u8))> = Vec::new();
        for sector in self.slice(range) {
            match runs.last_mut() {
                Some((count, last)) if last == sector => *count += 1,
                _ => runs.push((1, *sector)),
            }
        }
        runs
    }

    /// Carries out a request. The volume keeps only the first byte of each written sector; tests
    /// use no others.
    pub(super) fn request(&mut self, request: Request) -> Result<Reply, BlockError> {
        self.log.push(request.clone());
        if let Some(error) = self.fail {
            return Err(error);
        }
        Ok(match request {
            Request::Read(range) => {
                assert!(range.bytes() <= MAX_TRANSFER_BYTES);
                let piece = |(count, (state, byte)): (u64, (BlockState, u8))| match state {
                    BlockState::Data => ReadPiece::Data(vec![byte; count as usize * 512].into()),
                    BlockState::Zero | BlockState::Hole => ReadPiece::Zeroes(count),
                };
                Reply::Data(self.runs(range).into_iter().map(piece).collect())
            }
            Request::Write { range, data, .. } => {
                assert_eq!(range.bytes(), data.len() as u64);
                assert!(range.bytes() <= MAX_TRANSFER_BYTES);
                for (sector, data) in self.slice(range).iter_mut().zip(data.chunks(512)) {
                    *sector = (BlockState::Data, data[0]);
                }
                Reply::Done
            }
            Request::Discard { range, .. } | Request::Zero { range, allocate: false, .. } => {
                self.slice(range).fill((BlockState::Hole, 0));
                Reply::Done
            }
            Request::Zero { range, .. } => {
                self.slice(range).fill((BlockState::Zero, 0));
                Reply::Done
            }
            Request::Prefetch(range) => {
                self.slice(range);
                Reply::Done
            }
            Request::Flush => Reply::Done,
            Request::Status(range) => Reply::Status(
                self.runs(range)
                    .into_iter()
                    .map(|(sectors, (state, _))| StatusRun { sectors, state })
                    .collect(),
            ),
            other => unreachable!("no command copies: {other:?}"),
        })
    }
}

/// The exports: `demo` (also the default), `coarse` (minimum block 4096), `ro`, `busy` (refused),
/// `lazy` (made on entry).
pub(super) fn lookup(name: &str) -> Result<ExportInfo, LookupError> {
    let info = |name: &str, min_block, read_only| ExportInfo {
        name: name.to_owned(),
        description: if name == "demo" { "a demonstration".to_owned() } else { String::new() },
        sectors: MIB / 512,
        min_block,
        preferred_block: 4096,
        max_payload: 1 << 20,
        read_only,
        bitmaps: if name == "ro" { vec!["b".into(), "a".into()] } else { Vec::new() },
    };
    let refused = |kind, message: &str| Err(LookupError { kind, message: message.to_owned() });
    match name {
        "" | "demo" => Ok(info("demo", 512, false)),
        "coarse" => Ok(info("coarse", 4096, false)),
        "ro" => Ok(info("ro", 512, true)),
        "busy" => refused(LookupErrorKind::Policy, "attached elsewhere"),
        "lazy" => refused(LookupErrorKind::OnEntry, "not attached here"),
        "late" => refused(LookupErrorKind::Shutdown, "going down"),
        _ => refused(LookupErrorKind::Unknown, "no such volume"),
    }
}

/// In `a` sectors 9 to 11 are dirty. Its replies end at sector 64, and a later query gets the rest.
/// `b` fails.
fn dirty(bitmap: &str, range: Range) -> Result<Reply, BlockError> {
    if bitmap == "b" {
        return Err(BlockError::Stopped);
    }
    assert_eq!(bitmap, "a");
    let end = if range.lba < 64 { range.end().min(64) } else { range.end() };
    let mut runs: Vec<StatusRun> = Vec::new();
    for lba in range.lba..end {
        let state = if (9..12).contains(&lba) { BlockState::Data } else { BlockState::Hole };
        match runs.last_mut() {
            Some(last) if last.state == state => last.sectors += 1,
            _ => runs.push(StatusRun { sectors: 1, state }),
        }
    }
    Ok(Reply::Status(runs))
}

/// A session with its shell and volume.
pub(super) struct Host {
    pub(super) session: Session,
    pub(super) volume: Volume,
    pub(super) input: BytesMut,
    pub(super) output: Vec<u8>,
    pub(super) events: Vec<Event>,
}

impl Host {
    pub(super) fn new(tls: Tls) -> Host {
        Host::with(Config { tls, limits: Limits::default() })
    }

    pub(super) fn with(config: Config) -> Host {
        Host {
            session: Session::new(config),
            volume: Volume::new(MIB),
            input: BytesMut::new(),
            output: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Processes the input so far. A TLS upgrade succeeds at once.
    pub(super) fn run(&mut self) {
        loop {
            let before = (self.input.len(), self.output.len(), self.events.len());
            self.session.handle_input(&mut self.input);
            let (inflight, limits) = (self.session.inflight(), self.session.limits());
            assert!(inflight.requests <= limits.max_requests + 16);
            assert!(inflight.bytes <= limits.max_bytes + MAX_TRANSFER_BYTES);
            while let Some(event) = self.session.poll_event() {
                match event.clone() {
                    Event::ListExports => {
                        let entry = |name: &str, description: &str| ExportEntry {
                            name: name.to_owned(),
                            description: description.to_owned(),
                        };
                        self.session.handle_exports(Ok(vec![
                            entry("demo", "a demonstration"),
                            entry("ro", ""),
                        ]));
                    }
                    Event::LookupExport { name, .. } => self.session.handle_export(lookup(&name)),
                    Event::StartTls => self.session.handle_tls_established(),
                    Event::Request { slot, request } => {
                        let reply = self.volume.request(request);
                        // Requests from before a violation are still carried out.
                        let open = !self.session.is_closed();
                        assert_eq!(self.session.handle_reply(slot, reply), open);
                        assert!(!self.session.handle_reply(slot, Ok(Reply::Done)));
                    }
                    Event::Dirty { slot, bitmap, range } => {
                        let reply = dirty(&bitmap, range);
                        let open = !self.session.is_closed();
                        assert_eq!(self.session.handle_reply(slot, reply), open);
                    }
                    Event::Ready { .. } | Event::Close(_) => {}
                }
                self.events.push(event);
            }
            while let Some(piece) = self.session.poll_output() {
                assert!(!piece.is_empty());
                self.output.extend_from_slice(&piece);
            }
            assert_eq!(self.session.output_bytes(), 0);
            if before == (self.input.len(), self.output.len(), self.events.len()) {
                return;
            }
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> &mut Host {
        self.input.extend_from_slice(bytes);
        self.run();
        self
    }

    pub(super) fn closed(&self) -> Option<&CloseReason> {
        match self.events.last() {
            Some(Event::Close(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The output since the last call.
    pub(super) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}

/// The end of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Closed,
}

/// Checks that a client that sends `bytes` gets `expected`, at once and byte by byte.
#[track_caller]
pub(super) fn script(what: &str, tls: Tls, bytes: &Wire, expected: &Wire, end: End) {
    let chunks: [usize; 3] = [usize::MAX, 1, 7];
    for chunk in chunks {
        let mut host = Host::new(tls);
        host.run();
        for part in bytes.0.chunks(chunk.min(bytes.0.len().max(1))) {
            host.feed(part);
        }
        assert_eq!(
            hex(&host.output),
            hex(&expected.0),
            "{what}, in chunks of {chunk}: sent differs from expected"
        );
        let closed = if host.closed().is_some() { End::Closed } else { End::Open };
        assert_eq!(closed, end, "{what}, in chunks of {chunk}: {:?}", host.events.last());
    }
}

/// Bytes in lines of 16, so that a difference is easy to find.
fn hex(bytes: &[u8]) -> Vec<String> {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(16).map(line).collect()
}

/// A handshake that leads to transmission, and its kind of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Simple,
    Structured,
    Extended,
}

/// Client bytes up to transmission on `name`, with size constraints and, if chunks are negotiated,
/// `base:allocation`.
pub(super) fn enter(mode: Mode, name: &str) -> Wire {
    let negotiate = match mode {
        Mode::Simple => w(),
        Mode::Structured => option(8, &[]).then(option(10, &contexts(name, &["base:allocation"]))),
        Mode::Extended => option(11, &[]).then(option(10, &contexts(name, &["base:allocation"]))),
    };
    w().u32(3).then(negotiate).then(option(7, &query(name, &[3])))
}

/// A session in transmission, without the output of its handshake.
pub(super) fn entered(mode: Mode, name: &str) -> Host {
    let mut host = Host::new(Tls::Off);
    host.feed(&enter(mode, name).0);
    assert!(matches!(host.events.last(), Some(Event::Ready { .. })), "{:?}", host.events);
    host.sent();
    host
}
