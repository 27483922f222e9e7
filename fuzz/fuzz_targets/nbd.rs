//! A client that sends any bytes, in any pieces, and gets replies. The session never panics and
//! keeps its limits. Requests lie within the export, with a payload of their length. They are the
//! same for all divisions of the stream, except with STARTTLS, where the division matters.
//!
//! Input: settings, cuts, stream.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{
    BlockError, BlockState, MAX_TRANSFER_BYTES, Range, ReadPiece, Reply, Request, StatusRun,
};
use longhaul_core::front::nbd::{
    Config, Event, ExportEntry, ExportInfo, Limits, LookupError, LookupErrorKind, Session, Tls,
};
use longhaul_fuzz::{Input, pieces, seeds};

const SECTORS: u64 = 4096;

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(flags: u16, kind: u16, at: u64, length: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(data);
    bytes
}

fn make_seeds() -> Vec<Vec<u8>> {
    let start = |settings: u8| vec![settings, 1, 2, 3, 4, 0, 0, 0, 3];
    let go = [&[0, 0, 0, 1][..], b"v", &[0, 1, 0, 3]].concat();
    let context =
        [&[0, 0, 0, 1][..], b"v", &[0, 0, 0, 1, 0, 0, 0, 15], b"base:allocation"].concat();
    let commands = [
        request(0, 1, 512, 512, &[7; 512]),
        request(1, 1, 4096, 1024, &[8; 1024]),
        request(0, 0, 0, 4096, &[]),
        request(4, 0, 0, 65536, &[]),
        request(0, 3, 0, 0, &[]),
        request(0, 4, 8192, 4096, &[]),
        request(2, 6, 8192, 4096, &[]),
        request(0, 5, 0, 4096, &[]),
        request(8, 7, 0, 1 << 20, &[]),
        request(0, 0, 1 << 40, 512, &[]),
        request(0, 2, 0, 0, &[]),
    ]
    .concat();
    let simple = [start(0), option(7, &go), commands.clone()].concat();
    let options = [
        start(2),
        option(8, &[]),
        option(3, &[]),
        option(10, &context),
        option(9, &context),
        option(6, &go),
        option(99, b"?"),
        option(7, &go),
        commands.clone(),
    ]
    .concat();
    let name = [start(4), option(1, b"v"), commands].concat();
    let tls = [start(1), option(5, &[]), option(7, &go)].concat();
    vec![simple, options, name, tls, [start(0), option(2, &[])].concat()]
}

/// The answer of the shell, as a function of the request alone.
fn reply(request: &Request) -> Result<Reply, BlockError> {
    Ok(match request {
        Request::Read(range) if range.lba % 5 == 4 => return Err(BlockError::Medium(*range)),
        Request::Read(range) if range.sectors > 3 => {
            let data = Bytes::from(vec![1; 2 * 512]);
            Reply::Data(vec![ReadPiece::Data(data), ReadPiece::Zeroes(range.sectors - 2)])
        }
        Request::Read(range) => Reply::Data(vec![ReadPiece::Zeroes(range.sectors)]),
        Request::Status(range) => {
            let sectors = range.sectors.div_ceil(2);
            let run = |sectors, state| StatusRun { sectors, state };
            let mut runs = vec![run(sectors, BlockState::Data)];
            if range.sectors > sectors {
                runs.push(run(range.sectors - sectors, BlockState::Hole));
            }
            Reply::Status(runs)
        }
        Request::Write { fua: true, .. } => return Err(BlockError::Fenced),
        _ => Reply::Done,
    })
}

fn check(request: &Request) {
    let (range, most) = match request {
        Request::Read(range) => (*range, MAX_TRANSFER_BYTES),
        Request::Write { range, data, .. } => {
            assert_eq!(data.len() as u64, range.bytes());
            (*range, MAX_TRANSFER_BYTES)
        }
        Request::Discard { range, .. } | Request::Zero { range, .. } => (*range, u64::MAX),
        Request::Prefetch(range) | Request::Status(range) => (*range, u64::MAX),
        Request::Flush => (Range::new(0, 1), u64::MAX),
        other => unreachable!("no command copies: {other:?}"),
    };
    assert!(range.fits(SECTORS) && range.bytes() <= most, "{request:?}");
}

/// Drives a session as the shell does; gives its requests, and whether TLS came into it.
fn drive<'a>(settings: u8, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Request>, bool) {
    let tls = if settings & 1 == 1 { Tls::Required } else { Tls::Off };
    let limits = Limits { max_requests: 1 + (settings >> 4) as usize, max_bytes: 64 << 10 };
    let mut session = Session::new(Config { tls, limits });
    let (mut requests, mut upgraded, mut closed) = (Vec::new(), false, false);
    let mut buffer = BytesMut::new();
    let mut output = 0u64;
    for piece in pieces.map(Some).chain([None]) {
        match piece {
            Some(piece) => buffer.extend_from_slice(piece),
            None => session.handle_eof(),
        }
        loop {
            let before = (buffer.len(), requests.len());
            session.handle_input(&mut buffer);
            assert!(session.wanted() as u64 <= MAX_TRANSFER_BYTES);
            assert!(session.inflight().requests <= limits.max_requests.max(1) + 16);
            let mut events = 0;
            while let Some(event) = session.poll_event() {
                assert!(!closed, "{event:?} after the last event");
                events += 1;
                match event {
                    Event::ListExports => {
                        let entry = ExportEntry { name: "v".into(), description: "d".into() };
                        session.handle_exports(Ok(vec![entry]));
                    }
                    Event::LookupExport { name, .. } if name == "v" || name.is_empty() => {
                        session.handle_export(Ok(ExportInfo {
                            name: "v".into(),
                            description: String::new(),
                            sectors: SECTORS,
                            min_block: if settings & 4 == 0 { 512 } else { 4096 },
                            preferred_block: 4096,
                            max_payload: 1 << 20,
                            read_only: settings & 8 != 0,
                            bitmaps: vec!["a".into(), "b".into()],
                        }));
                    }
                    Event::LookupExport { name, .. } => {
                        let kind = LookupErrorKind::Unknown;
                        session.handle_export(Err(LookupError { kind, message: name }));
                    }
                    Event::StartTls => {
                        upgraded = true;
                        session.handle_tls_established();
                    }
                    Event::Ready { name } => assert_eq!(name, "v"),
                    Event::Dirty { slot, range, .. } => {
                        check(&Request::Status(range));
                        session.handle_reply(slot, reply(&Request::Status(range)));
                    }
                    Event::Request { slot, request } => {
                        check(&request);
                        // Not so after the end, when nobody waits for an answer.
                        session.handle_reply(slot, reply(&request));
                        assert!(!session.handle_reply(slot, Ok(Reply::Done)), "answered twice");
                        requests.push(request);
                    }
                    Event::Close(_) => closed = true,
                }
            }
            let mut written = 0;
            let promised = session.output_bytes();
            while let Some(bytes) = session.poll_output() {
                written += bytes.len() as u64;
            }
            assert_eq!(written, promised);
            output += written;
            if (buffer.len(), requests.len()) == before && events == 0 && written == 0 {
                break;
            }
        }
    }
    assert!(closed && buffer.is_empty() && output > 0);
    (requests, upgraded)
}

fuzz_target!(init: seeds("nbd", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (settings, cuts) = (input.byte(), input.u32());
    let (whole, upgraded) = drive(settings, std::iter::once(input.0));
    let (cut, cut_upgraded) = drive(settings, pieces(input.0, cuts));
    if !upgraded && !cut_upgraded {
        assert_eq!(whole, cut, "the requests depend on how the stream is cut");
    }
});
