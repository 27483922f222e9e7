//! Scripted transmissions: every command in every mode, valid and invalid.

use super::*;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ESHUTDOWN: u32 = 108;

const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// A command in the form of `mode`.
fn command(mode: Mode, flags: u16, kind: u16, cookie: u64, offset: u64, length: u64) -> Wire {
    match mode {
        Mode::Simple | Mode::Structured => compact(flags, kind, cookie, offset, length as u32),
        Mode::Extended => {
            let flags = if kind == 1 { flags | 32 } else { flags };
            extended(flags, kind, cookie, offset, length)
        }
    }
}

/// Success without data, for any command but a read.
fn done(mode: Mode, cookie: u64, offset: u64) -> Wire {
    match mode {
        Mode::Simple | Mode::Structured => simple(0, cookie),
        Mode::Extended => ext(1, 0, cookie, offset, w()),
    }
}

/// A refusal. The test takes its text from the output: only its number and form are fixed.
#[track_caller]
fn assert_error(mode: Mode, sent: &[u8], number: u32, cookie: u64, offset: u64) {
    let head = match mode {
        Mode::Simple => return assert_eq!(sent, simple(number, cookie).0),
        Mode::Structured => 20,
        Mode::Extended => 32,
    };
    let text = std::str::from_utf8(&sent[head + 6..]).unwrap();
    assert!(!text.is_empty());
    let payload = error(number, text);
    let expected = match mode {
        Mode::Structured => structured(1, 0x8001, cookie, payload),
        _ => ext(1, 0x8001, cookie, offset, payload),
    };
    assert_eq!(sent, expected.0);
}

#[test]
fn commands_without_data() {
    let range = Range::new(8, 16);
    for mode in MODES {
        let mut host = entered(mode, "demo");
        let mut run = |flags, kind, request: Request| {
            host.feed(&command(mode, flags, kind, 77, 4096, 8192).0);
            assert_eq!(host.sent(), done(mode, 77, 4096).0);
            assert_eq!(host.volume.log.pop(), Some(request));
        };
        run(0, 4, Request::Discard { range, fua: false });
        run(1, 4, Request::Discard { range, fua: true });
        run(0, 5, Request::Prefetch(range));
        run(1, 5, Request::Prefetch(range));
        run(0, 6, Request::Zero { range, allocate: false, fua: false });
        run(2, 6, Request::Zero { range, allocate: true, fua: false });
        run(1 | 2 | 16, 6, Request::Zero { range, allocate: true, fua: true });
        for flags in [0, 1] {
            host.feed(&command(mode, flags, 3, u64::MAX, 0, 0).0);
            assert_eq!(host.sent(), done(mode, u64::MAX, 0).0);
            assert_eq!(host.volume.log.pop(), Some(Request::Flush));
        }
    }
}

#[test]
fn writes_and_reads() {
    for mode in MODES {
        let mut host = entered(mode, "demo");
        let data = [vec![1; 512], vec![2; 512]].concat();
        for (flags, fua) in [(0, false), (1, true)] {
            host.feed(&command(mode, flags, 1, 5, 1024, 1024).raw(&data).0);
            assert_eq!(host.sent(), done(mode, 5, 1024).0);
            let range = Range::new(2, 2);
            let data = Bytes::from(data.clone());
            assert_eq!(host.volume.log.pop(), Some(Request::Write { range, data, fua }));
        }
        // A hole, two pieces of data, a hole.
        host.feed(&command(mode, 0, 0, 6, 512, 2048).0);
        let data = w().raw(&data);
        let zeroes = w().raw(&[0; 512]);
        let expected = match mode {
            Mode::Simple => {
                simple(0, 6).then(zeroes.clone()).then(data.clone()).then(zeroes.clone())
            }
            Mode::Structured => structured(0, 2, 6, w().u64(512).u32(512))
                .then(structured(0, 1, 6, w().u64(1024).then(data.clone())))
                .then(structured(1, 2, 6, w().u64(2048).u32(512))),
            Mode::Extended => ext(0, 2, 6, 512, w().u64(512).u32(512))
                .then(ext(0, 1, 6, 512, w().u64(1024).then(data.clone())))
                .then(ext(1, 2, 6, 512, w().u64(2048).u32(512))),
        };
        assert_eq!(host.sent(), expected.0);
        // DF: one chunk, whatever its content.
        let all = w().u64(512).then(zeroes.clone()).then(data.clone()).then(zeroes);
        let expected = match mode {
            Mode::Simple => simple(EINVAL, 6),
            Mode::Structured => structured(1, 1, 6, all),
            Mode::Extended => ext(1, 1, 6, 512, all),
        };
        host.feed(&command(mode, 4, 0, 6, 512, 2048).0);
        assert_eq!(host.sent(), expected.0);
        host.feed(&command(mode, 4, 0, 6, 4096, 65536).0);
        let hole = w().u64(4096).u32(65536);
        let expected = match mode {
            Mode::Simple => simple(EINVAL, 6),
            Mode::Structured => structured(1, 2, 6, hole),
            Mode::Extended => ext(1, 2, 6, 4096, hole),
        };
        assert_eq!(host.sent(), expected.0);
    }
}

#[test]
fn zero_lengths_do_nothing() {
    for mode in MODES {
        let mut host = entered(mode, "demo");
        for offset in [0, 512, MIB] {
            for kind in [1, 4, 5, 6] {
                host.feed(&command(mode, 0, kind, 8, offset, 0).0);
                assert_eq!(host.sent(), done(mode, 8, offset).0);
            }
            host.feed(&command(mode, 0, 0, 8, offset, 0).0);
            let expected = match mode {
                Mode::Structured => structured(1, 0, 8, w()),
                _ => done(mode, 8, offset),
            };
            assert_eq!(host.sent(), expected.0);
            host.feed(&command(mode, 0, 7, 8, offset, 0).0);
            assert_error(mode, &host.sent(), EINVAL, 8, offset);
        }
        assert_eq!(host.volume.log, []);
    }
}

/// Every refusal keeps the stream in step: the session answers the flush after it.
#[test]
fn refusals() {
    let end = MIB;
    // Command, flags, offset, length, error.
    let cases = [
        (0, 0, end, 512, EINVAL),
        (0, 0, end - 512, 1024, EINVAL),
        (0, 0, u64::MAX - 511, 512, EINVAL),
        (0, 0, u64::MAX, 0, EINVAL),
        (1, 0, end - 512, 1024, ENOSPC),
        (1, 0, u64::MAX - 511, 512, ENOSPC),
        (6, 0, end - 512, 1024, ENOSPC),
        (4, 0, end - 512, 1024, EINVAL),
        (5, 0, end - 512, 1024, EINVAL),
        (7, 0, end - 512, 1024, EINVAL),
        (0, 0, 1, 512, EINVAL),
        (0, 0, 0, 511, EINVAL),
        (1, 0, 0, 100, EINVAL),
        (1, 0, 100, 512, EINVAL),
        (4, 0, 0, 513, EINVAL),
        (5, 0, 0, 513, EINVAL),
        (6, 0, 0, 513, EINVAL),
        (7, 0, 0, 513, EINVAL),
        (3, 0, 512, 0, EINVAL),
        (3, 0, 0, 512, EINVAL),
        (8, 0, 0, 512, EINVAL),
        (9, 0, 0, 512, EINVAL),
        (0xffff, 0, 0, 512, EINVAL),
        (0, 2, 0, 512, EINVAL),
        (0, 8, 0, 512, EINVAL),
        (0, 16, 0, 512, EINVAL),
        (0, 64, 0, 512, EINVAL),
        (1, 2, 0, 512, EINVAL),
        (1, 4, 0, 512, EINVAL),
        (1, 0x8000, 0, 512, EINVAL),
        (3, 4, 0, 0, EINVAL),
        (4, 2, 0, 512, EINVAL),
        (5, 2, 0, 512, EINVAL),
        (6, 4, 0, 512, EINVAL),
        (7, 2, 0, 512, EINVAL),
    ];
    for mode in MODES {
        let mut host = entered(mode, "demo");
        for (kind, flags, offset, length, expected) in cases {
            let payload = vec![0x25; if kind == 1 { length as usize } else { 0 }];
            let bad = command(mode, flags, kind, 3, offset, length).raw(&payload);
            host.feed(&bad.0);
            assert_error(mode, &host.sent(), expected, 3, offset);
            assert_eq!(host.volume.log, [], "command {kind}, flags {flags}");
            host.feed(&command(mode, 0, 3, 4, 0, 0).0);
            assert_eq!(host.sent(), done(mode, 4, 0).0, "command {kind}, flags {flags}");
            host.volume.log.clear();
        }
    }
}

#[test]
fn a_read_only_export_is_not_written() {
    for mode in MODES {
        let mut host = entered(mode, "ro");
        for kind in [1, 4, 6] {
            host.feed(
                &command(mode, 0, kind, 3, 0, 512)
                    .raw(&[0; 512][..if kind == 1 { 512 } else { 0 }])
                    .0,
            );
            assert_error(mode, &host.sent(), EPERM, 3, 0);
        }
        assert_eq!(host.volume.log, []);
        host.feed(&command(mode, 0, 3, 4, 0, 0).0);
        assert_eq!(host.sent(), done(mode, 4, 0).0);
    }
}

#[test]
fn minimum_blocks() {
    let mut asked = entered(Mode::Structured, "coarse");
    asked.feed(&compact(0, 0, 3, 512, 4096).0);
    assert_error(Mode::Structured, &asked.sent(), EINVAL, 3, 512);
    let mut host = Host::new(Tls::Off);
    host.feed(&w().u32(3).then(option(7, &query("coarse", &[]))).0);
    host.sent();
    host.feed(&compact(0, 0, 3, 512, 512).0);
    assert_eq!(host.sent(), simple(0, 3).raw(&[0; 512]).0);
}

/// Lengths around the advertised maximum (1 MiB), the guaranteed maximum, and the most that the
/// session skips.
#[test]
fn payload_limits() {
    let big = |name: &str| ExportInfo { sectors: 1 << 20, ..lookup(name).unwrap() };
    for mode in MODES {
        let host = || {
            let mut session = Session::new(Config { tls: Tls::Off, limits: Limits::default() });
            let mut input = BytesMut::from(&enter(mode, "demo").0[..]);
            while !input.is_empty() {
                session.handle_input(&mut input);
                session.handle_export(Ok(big("demo")));
            }
            while session.poll_event().is_some() || session.poll_output().is_some() {}
            let (events, output) = (Vec::new(), Vec::new());
            Host { session, volume: Volume::new(512 * MIB), input, output, events }
        };
        let mut open = host();
        let long = MIB + 512;
        open.feed(&command(mode, 0, 0, 3, 0, long).0);
        let expected = if mode == Mode::Simple { EINVAL } else { EOVERFLOW };
        assert_error(mode, &open.sent(), expected, 3, 0);
        for length in [long, 32 * MIB] {
            open.feed(&command(mode, 0, 1, 3, 0, length).raw(&vec![0; length as usize]).0);
            assert_error(mode, &open.sent(), EINVAL, 3, 0);
        }
        // Commands without a payload have no limit.
        open.feed(&command(mode, 0, 6, 3, 0, 512 * MIB).0);
        assert_eq!(open.sent(), done(mode, 3, 0).0);
        let most = if mode == Mode::Extended { 32 * MIB } else { 64 * MIB };
        let mut drained = host();
        drained.feed(&command(mode, 0, 1, 3, 0, most).0);
        assert_eq!(drained.closed(), None);
        drained.feed(&vec![0; most as usize]);
        assert_error(mode, &drained.sent(), EINVAL, 3, 0);
        let mut closed = host();
        closed.feed(&command(mode, 0, 1, 3, 0, most + 512).0);
        assert!(matches!(closed.closed(), Some(CloseReason::Violation(_))));
    }
}

#[test]
fn payload_flag() {
    // Compact headers do not have the flag, and a write has its payload anyway.
    let mut host = entered(Mode::Structured, "demo");
    host.feed(&compact(32, 1, 3, 0, 512).raw(&[0; 512]).0);
    assert_error(Mode::Structured, &host.sent(), EINVAL, 3, 0);
    host.feed(&compact(32, 0, 3, 0, 512).0);
    assert_error(Mode::Structured, &host.sent(), EINVAL, 3, 0);
    // With extended headers, the session skips the payload of a command that takes none.
    let mut host = entered(Mode::Extended, "demo");
    for kind in [0, 3, 4, 5, 6, 8] {
        host.feed(&extended(32, kind, 3, 0, 24).raw(&[0x25; 24]).0);
        assert_error(Mode::Extended, &host.sent(), EINVAL, 3, 0);
    }
    host.feed(&extended(0, 3, 4, 0, 0).0);
    assert_eq!(host.sent(), done(Mode::Extended, 4, 0).0);
    // A write without the flag leaves open where the next command starts.
    host.feed(&extended(0, 1, 3, 0, 512).0);
    assert!(matches!(host.closed(), Some(CloseReason::Violation(_))));
}

#[test]
fn several_contexts() {
    const HOLE: u32 = 3;
    for mode in [Mode::Structured, Mode::Extended] {
        let select = |names: &[&str]| {
            let chunks = if mode == Mode::Extended { 11 } else { 8 };
            w().u32(3)
                .then(option(chunks, &[]))
                .then(option(10, &contexts("ro", names)))
                .then(option(7, &query("ro", &[3])))
        };
        let status = |done, context, offset, runs: &[(u64, u32)]| match mode {
            Mode::Extended => {
                let head = w().u32(context).u32(runs.len() as u32);
                let put = |w: Wire, run: &(u64, u32)| w.u64(run.0).u64(run.1.into());
                ext(done, 6, 5, offset, runs.iter().fold(head, put))
            }
            _ => {
                let put = |w: Wire, run: &(u64, u32)| w.u32(run.0 as u32).u32(run.1);
                structured(done, 5, 5, runs.iter().fold(w().u32(context), put))
            }
        };
        let a = [(4608, 0), (1536, 1), (32768 - 6144, 0)];
        let mut host = Host::new(Tls::Off);
        host.feed(&select(&["qemu:dirty-bitmap:a"]).0);
        host.sent();
        host.feed(&command(mode, 0, 7, 5, 0, MIB).0);
        assert_eq!(host.sent(), status(1, 2, 0, &a).0);
        host.feed(&command(mode, 8, 7, 5, 0, MIB).0);
        assert_eq!(host.sent(), status(1, 2, 0, &a[..1]).0);

        let mut host = Host::new(Tls::Off);
        host.feed(&select(&["qemu:dirty-bitmap:a", "base:allocation"]).0);
        host.sent();
        host.feed(&command(mode, 0, 7, 5, 0, MIB).0);
        let both = status(0, 1, 0, &[(MIB, HOLE)]).then(status(1, 2, 0, &a));
        assert_eq!(host.sent(), both.0);
        if mode == Mode::Extended {
            host.feed(&command(mode, 32, 7, 5, 0, 12).u64(MIB).u32(2).0);
            assert_eq!(host.sent(), status(1, 2, 0, &a).0);
            host.feed(&command(mode, 32, 7, 5, 0, 12).u64(MIB).u32(3).0);
            assert_ne!(host.sent(), status(1, 3, 0, &a).0);
        }

        // If one context fails, the reply ends with the error.
        let mut host = Host::new(Tls::Off);
        host.feed(&select(&["qemu:dirty-bitmap:b", "qemu:dirty-bitmap:a"]).0);
        host.sent();
        host.feed(&command(mode, 0, 7, 5, 0, MIB).0);
        let sent = host.sent();
        assert!(!sent.is_empty());
        host.feed(&command(mode, 0, 0, 6, 0, 512).0);
        assert!(!host.sent().is_empty(), "it goes on");
        assert!(host.closed().is_none());
    }
}

#[test]
fn block_status() {
    const HOLE: u32 = 3;
    const ZERO: u32 = 2;
    for mode in [Mode::Structured, Mode::Extended] {
        let mut host = entered(mode, "demo");
        host.feed(&command(mode, 0, 1, 1, 4096, 4096).raw(&[9; 4096]).0);
        host.feed(&command(mode, 0, 1, 1, 8192, 512).raw(&[8; 512]).0);
        host.feed(&command(mode, 2, 6, 1, 8704, 512).0);
        host.sent();
        let status = |offset, runs: &[(u64, u32)]| match mode {
            Mode::Extended => {
                let head = w().u32(1).u32(runs.len() as u32);
                let put = |w: Wire, run: &(u64, u32)| w.u64(run.0).u64(run.1.into());
                ext(1, 6, 5, offset, runs.iter().fold(head, put))
            }
            _ => {
                let put = |w: Wire, run: &(u64, u32)| w.u32(run.0 as u32).u32(run.1);
                structured(1, 5, 5, runs.iter().fold(w().u32(1), put))
            }
        };
        let mut ask = |flags, offset, length, runs: &[(u64, u32)]| {
            host.feed(&command(mode, flags, 7, 5, offset, length).0);
            assert_eq!(host.sent(), status(offset, runs).0);
        };
        let rest = MIB - 9216;
        ask(0, 0, MIB, &[(4096, HOLE), (4608, 0), (512, ZERO), (rest, HOLE)]);
        ask(8, 0, MIB, &[(4096, HOLE)]);
        ask(8 | 1, 4096, MIB - 4096, &[(4608, 0)]);
        ask(8, 4096, 512, &[(512, 0)]);
        ask(0, 8704, 1024, &[(512, ZERO), (512, HOLE)]);
        if mode == Mode::Extended {
            let filtered = |length: u64, id: u32| extended(32, 7, 5, 0, 12).u64(length).u32(id);
            host.feed(&filtered(8192, 1).0);
            assert_eq!(host.sent(), status(0, &[(4096, HOLE), (4096, 0)]).0);
            let bad = [
                filtered(8192, 2),
                filtered(MIB + 512, 1),
                filtered(0, 1),
                filtered(u64::MAX, 1),
                extended(32, 7, 5, 0, 8).u64(512),
                extended(32, 7, 5, 0, 16).u64(512).u32(1).u32(1),
                extended(32, 7, 5, 0, 13).u64(512).u32(1).raw(&[1]),
                extended(32, 7, 5, 0, 0),
            ];
            for bad in bad {
                host.feed(&bad.0);
                assert_error(mode, &host.sent(), EINVAL, 5, 0);
            }
            host.feed(&extended(0, 3, 4, 0, 0).0);
            assert_eq!(host.sent(), done(mode, 4, 0).0);
        }
    }
    // Not negotiated.
    let mut host = Host::new(Tls::Off);
    host.feed(&w().u32(3).then(option(8, &[])).then(option(7, &query("demo", &[3]))).0);
    host.sent();
    host.feed(&compact(0, 7, 5, 0, 512).0);
    assert_error(Mode::Structured, &host.sent(), EINVAL, 5, 0);
}

/// A client that promised blocks of 4096 gets descriptors in blocks of 4096.
#[test]
fn descriptors_keep_the_minimum_block() {
    let mut host = entered(Mode::Structured, "coarse");
    let range = Range::new(9, 1);
    host.volume.request(Request::Zero { range, allocate: true, fua: false }).unwrap();
    let range = Range::new(17, 1);
    let data = Bytes::from_static(&[1; 512]);
    host.volume.request(Request::Write { range, data, fua: false }).unwrap();
    host.feed(&compact(0, 7, 5, 0, 16384).0);
    let runs = w().u32(1).u32(4096).u32(3).u32(4096).u32(2).u32(4096).u32(0).u32(4096).u32(3);
    assert_eq!(host.sent(), structured(1, 5, 5, runs).0);
}

#[test]
fn errors_of_the_engine() {
    let range = Range::new(4, 1);
    let cases = [
        (BlockError::Medium(range), EIO),
        (BlockError::Fenced, EIO),
        (BlockError::Stopped, EIO),
        (BlockError::ShuttingDown, ESHUTDOWN),
        (BlockError::NoSpace, ENOSPC),
    ];
    for mode in MODES {
        for (failure, number) in cases {
            let mut host = entered(mode, "demo");
            host.volume.fail = Some(failure);
            host.feed(&command(mode, 0, 3, 2, 0, 0).0);
            assert_error(mode, &host.sent(), number, 2, 0);
            host.feed(&command(mode, 0, 0, 2, 0, 1024).0);
            assert_error(mode, &host.sent(), number, 2, 0);
        }
    }
    // The offset of damage is sent to clients that negotiated chunks.
    let mut host = entered(Mode::Structured, "demo");
    host.volume.fail = Some(BlockError::Medium(range));
    host.feed(&compact(0, 0, 2, 1024, 4096).0);
    let payload = error(EIO, "medium error at sectors 4+1").u64(2048);
    assert_eq!(host.sent(), structured(1, 0x8002, 2, payload).0);
}

#[test]
fn answers_that_do_not_fit_become_errors() {
    let data = |bytes: usize| Reply::Data(vec![ReadPiece::Data(vec![1; bytes].into())]);
    let zeroes = |sectors| Reply::Data(vec![ReadPiece::Zeroes(sectors)]);
    let (read, status, flush) = ((0, 1024), (7, 1024), (3, 0));
    let cases = [
        (read, Reply::Done),
        (read, data(512)),
        (read, data(1536)),
        (read, zeroes(3)),
        (read, zeroes(u64::MAX)),
        (read, Reply::Data(vec![])),
        (status, Reply::Status(vec![])),
        (status, Reply::Done),
        (flush, data(512)),
    ];
    for ((kind, length), reply) in cases {
        let mut host = entered(Mode::Structured, "demo");
        let mut input = BytesMut::from(&compact(0, kind, 2, 0, length).0[..]);
        host.session.handle_input(&mut input);
        let Some(Event::Request { slot, .. }) = host.session.poll_event() else { panic!() };
        assert!(host.session.handle_reply(slot, Ok(reply)));
        host.run();
        assert_error(Mode::Structured, &host.sent(), EIO, 2, 0);
    }
    // The reply leaves out empty pieces and runs.
    let mut host = entered(Mode::Structured, "demo");
    let mut input = BytesMut::from(&compact(0, 0, 2, 0, 1024).0[..]);
    host.session.handle_input(&mut input);
    let Some(Event::Request { slot, .. }) = host.session.poll_event() else { panic!() };
    let half = || ReadPiece::Data(Bytes::from_static(&[1; 512]));
    let pieces = vec![ReadPiece::Zeroes(0), half(), ReadPiece::Zeroes(0), half()];
    host.session.handle_reply(slot, Ok(Reply::Data(pieces)));
    host.run();
    assert_eq!(host.sent(), structured(1, 1, 2, w().u64(0).raw(&[1; 1024])).0);
}

#[test]
fn bad_magic_closes() {
    for mode in MODES {
        let mut host = entered(mode, "demo");
        host.feed(&[0; 32]);
        assert!(matches!(host.closed(), Some(CloseReason::Violation(_))));
        assert!(host.sent().is_empty());
    }
    // Bytes of the other kind of header count as a wrong magic number.
    let mut host = entered(Mode::Structured, "demo");
    host.feed(&extended(0, 3, 1, 0, 0).0);
    assert!(matches!(host.closed(), Some(CloseReason::Violation(_))));
    let mut host = entered(Mode::Extended, "demo");
    host.feed(&compact(0, 3, 1, 0, 0).u32(0).0);
    assert!(matches!(host.closed(), Some(CloseReason::Violation(_))));
}

fn slots(host: &mut Host) -> Vec<u64> {
    let slot = |event| match event {
        Event::Request { slot, .. } => slot,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| host.session.poll_event()).map(slot).collect()
}

fn output(host: &mut Host) -> Vec<u8> {
    std::iter::from_fn(|| host.session.poll_output()).flatten().collect()
}

#[test]
fn replies_come_in_any_order_and_disconnect_waits_for_them() {
    let mut host = entered(Mode::Simple, "demo");
    let bytes = compact(0, 3, 1, 0, 0).then(compact(0, 0, 2, 0, 512)).then(compact(0, 2, 3, 0, 0));
    let mut input = BytesMut::from(&bytes.raw(b"never read").0[..]);
    host.session.handle_input(&mut input);
    assert_eq!(&input[..], b"never read");
    assert!(!host.session.wants_input());
    assert_eq!(host.session.inflight(), Inflight { requests: 2, bytes: 512 });
    let slots = slots(&mut host);
    assert!(host.session.handle_reply(slots[1], Ok(Reply::Data(vec![ReadPiece::Zeroes(1)]))));
    assert_eq!(host.session.poll_event(), None);
    assert!(host.session.handle_reply(slots[0], Ok(Reply::Done)));
    assert_eq!(host.session.poll_event(), Some(Event::Close(CloseReason::Disconnected)));
    assert_eq!(output(&mut host), simple(0, 2).raw(&[0; 512]).then(simple(0, 1)).0);
    assert!(!host.session.handle_reply(slots[0], Ok(Reply::Done)));

    let mut host = entered(Mode::Simple, "demo");
    host.feed(&compact(0, 2, 3, 0, 0).0);
    assert_eq!(host.closed(), Some(&CloseReason::Disconnected));
}

/// A second answer never counts as the answer to a later request.
#[test]
fn slots_are_not_mistaken_for_each_other() {
    let mut host = entered(Mode::Simple, "demo");
    let ask = |host: &mut Host| {
        host.session.handle_input(&mut BytesMut::from(&compact(0, 3, 1, 0, 0).0[..]));
        slots(host)[0]
    };
    let first = ask(&mut host);
    assert!(host.session.handle_reply(first, Ok(Reply::Done)));
    let second = ask(&mut host);
    for slot in [first, second + 1, u64::MAX] {
        assert!(!host.session.handle_reply(slot, Ok(Reply::Done)));
    }
    assert_eq!(output(&mut host), simple(0, 1).0);
    assert!(host.session.handle_reply(second, Ok(Reply::Done)));
}

#[test]
fn the_end_of_the_connection() {
    let mut host = entered(Mode::Simple, "demo");
    host.session.handle_input(&mut BytesMut::from(&compact(0, 3, 1, 0, 0).0[..]));
    let slot = slots(&mut host)[0];
    host.session.handle_eof();
    host.session.handle_eof();
    assert_eq!(host.session.poll_event(), Some(Event::Close(CloseReason::Eof)));
    assert_eq!(host.session.poll_event(), None);
    assert!(!host.session.handle_reply(slot, Ok(Reply::Done)));
    assert_eq!(host.session.poll_output(), None);
    assert_eq!(host.session.inflight(), Inflight::default());
}

#[test]
fn shutdown_answers_what_is_in_flight_and_refuses_the_rest() {
    let mut host = entered(Mode::Simple, "demo");
    host.session.handle_input(&mut BytesMut::from(&compact(0, 3, 1, 0, 0).0[..]));
    let slot = slots(&mut host)[0];
    host.session.handle_shutdown();
    host.session.handle_input(&mut BytesMut::from(&compact(0, 1, 2, 0, 512).raw(&[1; 512]).0[..]));
    assert_eq!(output(&mut host), simple(ESHUTDOWN, 2).0);
    host.session.handle_reply(slot, Ok(Reply::Done));
    assert_eq!(output(&mut host), simple(0, 1).0);
}

#[test]
fn limits_hold_the_client_back() {
    let limits = Limits { max_requests: 2, max_bytes: 4096 };
    let start = || {
        let mut host = Host::with(Config { tls: Tls::Off, limits });
        host.feed(&enter(Mode::Simple, "demo").0);
        host.sent();
        host
    };
    let mut host = start();
    let flushes = (0..3).fold(w(), |w, cookie| w.then(compact(0, 3, cookie, 0, 0)));
    let mut input = BytesMut::from(&flushes.0[..]);
    host.session.handle_input(&mut input);
    assert_eq!((input.len(), host.session.wants_input(), host.session.wanted()), (28, false, 0));
    let slot = slots(&mut host)[0];
    host.session.handle_reply(slot, Ok(Reply::Done));
    host.session.handle_input(&mut input);
    assert!(input.is_empty());

    // Bytes count from the command until its reply is written.
    let mut host = start();
    let reads = compact(0, 0, 1, 0, 8192).then(compact(0, 0, 2, 0, 512));
    let mut input = BytesMut::from(&reads.0[..]);
    host.session.handle_input(&mut input);
    assert_eq!((input.len(), host.session.wants_input()), (28, false));
    let slot = slots(&mut host)[0];
    host.session.handle_reply(slot, Ok(Reply::Data(vec![ReadPiece::Zeroes(16)])));
    assert_eq!((host.session.output_bytes(), host.session.wants_input()), (8208, false));
    output(&mut host);
    assert!(host.session.wants_input());
    host.session.handle_input(&mut input);
    assert!(input.is_empty());
}

/// A write's payload is the memory that it was read into, and `wanted` is the number of bytes to
/// read.
#[test]
fn payloads_are_not_copied() {
    let mut host = entered(Mode::Simple, "demo");
    assert_eq!(host.session.wanted(), 28);
    let mut input = BytesMut::from(&compact(0, 1, 1, 0, 65536).0[..]);
    host.session.handle_input(&mut input);
    assert_eq!(host.session.wanted(), 65536);
    input.reserve(65536);
    input.extend_from_slice(&[7; 65536]);
    let memory = input.as_ptr();
    host.session.handle_input(&mut input);
    let Some(Event::Request { slot, request: Request::Write { data, .. } }) =
        host.session.poll_event()
    else {
        panic!()
    };
    assert_eq!(data.as_ptr(), memory);
    host.session.handle_reply(slot, Ok(Reply::Done));
    host.run();

    host.session.handle_input(&mut BytesMut::from(&compact(0, 0, 1, 0, 65536).0[..]));
    let slot = slots(&mut host)[0];
    host.session.handle_reply(slot, Ok(Reply::Data(vec![ReadPiece::Data(data)])));
    assert_eq!(host.session.poll_output().map(|head| head.len()), Some(16));
    assert_eq!(host.session.poll_output().map(|data| data.as_ptr()), Some(memory));
}
