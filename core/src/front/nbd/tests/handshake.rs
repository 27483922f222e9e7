//! Scripted handshakes: every option, valid and invalid.

use super::*;
use crate::front::nbd::export::ExportTerms;
use crate::front::nbd::handshake::MAX_OPTIONS;

const UNSUP: u32 = 0x8000_0001;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const TLS_REQD: u32 = 0x8000_0005;
const UNKNOWN: u32 = 0x8000_0006;
const SHUTDOWN: u32 = 0x8000_0007;
const TOO_BIG: u32 = 0x8000_0009;
const EXT_REQD: u32 = 0x8000_000a;

const WRITABLE: u16 = 0xd6d;

/// `NBD_INFO_EXPORT` of a volume of 1 MiB.
fn info_export(number: u32, flags: u16) -> Wire {
    option_reply(number, 3, &w().u16(0).u64(MIB).u16(flags).0)
}

fn info_sizes(number: u32, min: u32, preferred: u32, max: u32) -> Wire {
    option_reply(number, 3, &w().u16(3).u32(min).u32(preferred).u32(max).0)
}

fn refused(number: u32, kind: u32, text: &str) -> Wire {
    option_reply(number, kind, text.as_bytes())
}

#[test]
fn flags_are_those_of_the_specification() {
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO.
    assert_eq!(WRITABLE, 1 | 4 | 8 | 32 | 64 | 256 | 1024 | 2048);
}

#[test]
fn export_name() {
    let head = greeting().u64(MIB).u16(WRITABLE);
    let padded = head.clone().raw(&[0; 124]);
    let name = |name: &[u8]| option(1, name);
    script("with padding", Tls::Off, &w().u32(1).then(name(b"demo")), &padded, End::Open);
    script("without", Tls::Off, &w().u32(3).then(name(b"demo")), &head, End::Open);
    script("default export", Tls::Off, &w().u32(3).then(name(b"")), &head, End::Open);
    script("not fixed newstyle", Tls::Off, &w().u32(2).then(name(b"demo")), &head, End::Open);
    let ro = greeting().u64(MIB).u16(1 | 2 | 4 | 8 | 256 | 1024);
    script("read-only", Tls::Off, &w().u32(3).then(name(b"ro")), &ro, End::Open);
    let pipelined = w().u32(3).then(name(b"demo")).then(compact(0, 3, 9, 0, 0));
    script("pipelined", Tls::Off, &pipelined, &head.clone().then(simple(0, 9)), End::Open);
    let structured = w().u32(3).then(option(8, &[])).then(name(b"demo"));
    let expected = greeting().then(ack(8)).u64(MIB).u16(WRITABLE | 128);
    script("after structured replies", Tls::Off, &structured, &expected, End::Open);
    let extended = w().u32(3).then(option(11, &[])).then(name(b"demo"));
    let expected = greeting().then(ack(11));
    script("after extended headers", Tls::Off, &extended, &expected, End::Closed);
    for bad in [&b"nope"[..], b"busy", b"\xff\xfe", b"de\0mo", &[b'a'; 4097]] {
        script("refused", Tls::Off, &w().u32(3).then(name(bad)), &greeting(), End::Closed);
    }
}

#[test]
fn client_flags() {
    script("unknown flag", Tls::Off, &w().u32(4), &greeting(), End::Closed);
    script("unknown high flag", Tls::Off, &w().u32(1 << 31 | 3), &greeting(), End::Closed);
    script("needs fixed newstyle for TLS", Tls::Required, &w().u32(2), &greeting(), End::Closed);
    let list = w().u32(2).then(option(3, &[]));
    script("option without fixed newstyle", Tls::Off, &list, &greeting(), End::Closed);
    let magic = w().u32(3).raw(b"IHAVEOPU").u32(3).u32(0);
    script("option magic", Tls::Off, &magic, &greeting(), End::Closed);
}

#[test]
fn go_and_info() {
    for (number, what) in [(7, "GO"), (6, "INFO")] {
        let run = |data: &[u8], expected: Wire| {
            let bytes = w().u32(3).then(option(number, data));
            script(what, Tls::Off, &bytes, &greeting().then(expected), End::Open);
        };
        let export = || info_export(number, WRITABLE);
        let all = |sizes: Wire| export().then(sizes).then(ack(number));
        run(&query("demo", &[3]), all(info_sizes(number, 512, 4096, 1 << 20)));
        // Without the question the terms are 512 bytes and 32 MiB, whatever the export prefers.
        run(&query("demo", &[]), all(info_sizes(number, 512, 4096, 32 << 20)));
        let name = option_reply(number, 3, &w().u16(1).raw(b"coarse").0);
        run(&query("coarse", &[]), all(info_sizes(number, 512, 4096, 32 << 20)));
        run(
            &query("coarse", &[1, 3]),
            export().then(name).then(info_sizes(number, 4096, 4096, 1 << 20)).then(ack(number)),
        );
        // Unknown and repeated information types have no effect.
        let name = || option_reply(number, 3, &w().u16(1).raw(b"demo").0);
        let text = option_reply(number, 3, &w().u16(2).raw(b"a demonstration").0);
        let sizes = || info_sizes(number, 512, 4096, 1 << 20);
        run(
            &query("demo", &[0, 2, 1, 1, 3, 77, 0xffff]),
            export().then(name()).then(text).then(sizes()).then(ack(number)),
        );
        // The reply for the default export has its name.
        run(&query("", &[3]), export().then(name()).then(sizes()).then(ack(number)));
        run(&query("nope", &[3]), refused(number, UNKNOWN, "no such volume"));
        run(&query("busy", &[3]), refused(number, POLICY, "attached elsewhere"));
        run(&query("late", &[3]), refused(number, SHUTDOWN, "going down"));
        let malformed = "lengths inside the data do not add up";
        run(&[], refused(number, INVALID, malformed));
        run(&w().u32(50).raw(b"demo").u16(0).0, refused(number, INVALID, malformed));
        run(&w().text("demo").u16(1).0, refused(number, INVALID, malformed));
        run(&w().text("demo").u16(0).u16(3).0, refused(number, INVALID, malformed));
        let text = "a string is longer than 4096 bytes, not UTF-8, or holds a NUL";
        run(&w().u32(2).raw(b"\xc3\x28").u16(0).0, refused(number, INVALID, text));
        run(&query(&"a".repeat(4097), &[]), refused(number, INVALID, text));
        run(&query(&"a".repeat(4096), &[]), refused(number, UNKNOWN, "no such volume"));
        run(&vec![0; (64 << 10) + 1], refused(number, TOO_BIG, "option data exceed 64 KiB"));
    }
}

#[test]
fn info_does_not_enter_but_go_does() {
    let bytes =
        w().u32(3).then(option(6, &query("demo", &[3]))).then(option(7, &query("demo", &[3])));
    let mut host = Host::new(Tls::Off);
    host.feed(&bytes.0);
    let lookup =
        |entering| Event::LookupExport { name: "demo".to_owned(), entering, bitmaps: false };
    let ready = Event::Ready { name: "demo".to_owned() };
    assert_eq!(host.events, [lookup(false), lookup(true), ready]);
}

#[test]
fn list() {
    let server =
        |name: &str, text: &str| option_reply(3, 2, &w().text(name).raw(text.as_bytes()).0);
    let expected =
        greeting().then(server("demo", "a demonstration")).then(server("ro", "")).then(ack(3));
    script("list", Tls::Off, &w().u32(3).then(option(3, &[])), &expected, End::Open);
    let expected = greeting().then(refused(3, INVALID, "this option takes no data"));
    script("with data", Tls::Off, &w().u32(3).then(option(3, b"x")), &expected, End::Open);

    let listed = |exports| {
        let mut session = Session::new(Config { tls: Tls::Off, limits: Limits::default() });
        session.handle_input(&mut BytesMut::from(&w().u32(3).then(option(3, &[])).0[..]));
        session.handle_exports(exports);
        let mut output = Vec::new();
        while let Some(piece) = session.poll_output() {
            output.extend_from_slice(&piece);
        }
        output.split_off(18)
    };
    let entry = |name: String| ExportEntry { name, description: String::new() };
    assert_eq!(listed(Ok(vec![])), ack(3).0);
    assert_eq!(listed(Ok(vec![entry("a".repeat(4097))])), ack(3).0);
    let flood = vec![entry("a".repeat(4096)); 300];
    let text = "too many exports to list; name one instead";
    assert_eq!(listed(Ok(flood)), refused(3, TOO_BIG, text).0);
    let error = LookupError { kind: LookupErrorKind::Policy, message: "not for you".to_owned() };
    assert_eq!(listed(Err(error)), refused(3, POLICY, "not for you").0);
}

#[test]
fn abort_and_unknown_options() {
    let bytes = w().u32(3).then(option(2, b"ignored"));
    script("abort", Tls::Off, &bytes, &greeting().then(ack(2)), End::Closed);
    let unknown = "this server has no such option";
    for number in [0, 4, 12, 0x7fff_ffff, u32::MAX] {
        for length in [0, 5, (64 << 10) + 5] {
            let bytes = w().u32(3).then(option(number, &vec![7; length])).then(option(3, b"x"));
            let expected = greeting().then(refused(number, UNSUP, unknown)).then(refused(
                3,
                INVALID,
                "this option takes no data",
            ));
            script("unknown option", Tls::Off, &bytes, &expected, End::Open);
        }
    }
    let huge = w().u32(3).raw(b"IHAVEOPT").u32(99).u32((32 << 20) + 1);
    script("huge option", Tls::Off, &huge, &greeting(), End::Closed);
}

#[test]
fn too_many_options_end_the_session() {
    let mut host = Host::new(Tls::Off);
    host.feed(&3u32.to_be_bytes());
    for _ in 0..MAX_OPTIONS {
        host.feed(&option(99, &[]).0);
        assert_eq!(host.closed(), None);
    }
    host.feed(&option(99, &[]).0);
    assert!(matches!(host.closed(), Some(CloseReason::Violation(_))));
}

#[test]
fn structured_replies_and_extended_headers() {
    let go = || option(7, &query("demo", &[3]));
    let entered =
        |flags| info_export(7, flags).then(info_sizes(7, 512, 4096, 1 << 20)).then(ack(7));
    let bytes = w().u32(3).then(option(8, &[])).then(go());
    let expected = greeting().then(ack(8)).then(entered(WRITABLE | 128));
    script("structured", Tls::Off, &bytes, &expected, End::Open);
    let bytes =
        w().u32(3).then(option(8, &[])).then(option(11, &[])).then(option(8, &[])).then(go());
    let expected = greeting()
        .then(ack(8))
        .then(ack(11))
        .then(refused(8, EXT_REQD, "extended headers are in use and take precedence"))
        .then(entered(WRITABLE | 128));
    script("extended", Tls::Off, &bytes, &expected, End::Open);
    let bytes = enter(Mode::Extended, "demo");
    let context = option_reply(10, 4, &w().u32(1).raw(b"base:allocation").0);
    let expected = greeting()
        .then(ack(11))
        .then(context)
        .then(ack(10))
        .then(entered(WRITABLE | 128 | 1 << 12));
    script("extended with a context", Tls::Off, &bytes, &expected, End::Open);
    let data = "this option takes no data";
    let bytes = w().u32(3).then(option(8, b"x")).then(option(11, b"x"));
    let expected = greeting().then(refused(8, INVALID, data)).then(refused(11, INVALID, data));
    script("with data", Tls::Off, &bytes, &expected, End::Open);
}

#[test]
fn metadata_contexts() {
    let run = |number, data: &[u8], expected: Wire| {
        let bytes = w().u32(3).then(option(8, &[])).then(option(number, data));
        let expected = greeting().then(ack(8)).then(expected);
        script("contexts", Tls::Off, &bytes, &expected, End::Open);
    };
    let found = |number, id| {
        option_reply(number, 4, &w().u32(id).raw(b"base:allocation").0).then(ack(number))
    };
    run(9, &contexts("demo", &[]), found(9, 0));
    run(9, &contexts("demo", &["base:"]), found(9, 0));
    run(9, &contexts("demo", &["x-a:b", "base:allocation", "base:"]), found(9, 0));
    run(9, &contexts("demo", &["qemu:dirty-bitmap:x", "base:nothing"]), ack(9));
    run(10, &contexts("demo", &[]), ack(10));
    run(10, &contexts("demo", &["base:"]), ack(10));
    run(10, &contexts("demo", &["base:allocation", "base:allocation"]), found(10, 1));
    run(10, &contexts("demo", &["qemu:x", "base:allocation"]), found(10, 1));
    let bitmaps = |number, names: &[(u32, &str)]| {
        let put = |all: Wire, (id, name): &(u32, &str)| {
            let name = format!("qemu:dirty-bitmap:{name}");
            all.then(option_reply(number, 4, &w().u32(*id).raw(name.as_bytes()).0))
        };
        names.iter().fold(w(), put).then(ack(number))
    };
    for all in ["qemu:", "qemu:dirty-bitmap:"] {
        run(9, &contexts("ro", &[all]), bitmaps(9, &[(0, "b"), (0, "a")]));
        run(10, &contexts("ro", &[all]), ack(10));
    }
    for number in [9, 10] {
        let id = if number == 9 { 0 } else { 2 };
        let asked = ["qemu:dirty-bitmap:a", "qemu:dirty-bitmap:c"];
        run(number, &contexts("ro", &asked), bitmaps(number, &[(id, "a")]));
    }
    // An export that is made on entry has the contexts that every export has.
    run(9, &contexts("lazy", &[]), found(9, 0));
    run(10, &contexts("lazy", &["qemu:dirty-bitmap:", "base:allocation"]), found(10, 1));
    let malformed = "lengths inside the data do not add up";
    for number in [9, 10] {
        run(number, &contexts("nope", &[]), refused(number, UNKNOWN, "no such volume"));
        run(
            number,
            &contexts("demo", &["nocolon"]),
            refused(number, INVALID, "a query must start with a namespace and a colon"),
        );
        run(number, b"", refused(number, INVALID, malformed));
        run(number, &w().text("demo").u32(2).text("base:").0, refused(number, INVALID, malformed));
        run(number, &w().text("demo").u32(0).raw(b"x").0, refused(number, INVALID, malformed));
        run(
            number,
            &vec![0; (64 << 10) + 1],
            refused(number, TOO_BIG, "option data exceed 64 KiB"),
        );
    }
    // Only SET needs structured replies.
    let bytes = w().u32(3).then(option(9, &contexts("demo", &[])));
    script("list", Tls::Off, &bytes, &greeting().then(found(9, 0)), End::Open);
    let bytes = w().u32(3).then(option(10, &contexts("demo", &["base:allocation"])));
    let text = "negotiate structured replies or extended headers first";
    let expected = greeting().then(refused(10, INVALID, text));
    script("set", Tls::Off, &bytes, &expected, End::Open);
}

#[test]
fn who_looks_at_what_is_made_for_who_enters_is_told_so() {
    let bytes = w().u32(3).then(option(6, &query("lazy", &[])));
    let expected = greeting().then(refused(6, UNKNOWN, "not attached here"));
    script("info", Tls::Off, &bytes, &expected, End::Open);
}

/// Contexts count only if the last selection succeeded and named the export of the entry.
#[test]
fn a_context_is_forgotten() {
    let select = || option(10, &contexts("demo", &["base:allocation"]));
    let cases = [
        ("kept", select(), "demo", true),
        ("kept under the default name", select(), "", true),
        ("other export", select(), "ro", false),
        ("failed", select().then(option(10, b"x")), "demo", false),
        ("too big", select().then(option(10, &vec![0; 70_000])), "demo", false),
        ("unknown export", select().then(option(10, &contexts("nope", &["base:"]))), "demo", false),
        ("emptied", select().then(option(10, &contexts("demo", &[]))), "demo", false),
    ];
    for (what, options, name, kept) in cases {
        let go = option(7, &query(name, &[3]));
        let mut host = Host::new(Tls::Off);
        host.feed(&w().u32(3).then(option(8, &[])).then(options).then(go).0);
        host.sent();
        host.feed(&compact(0, 7, 5, 0, 512).0);
        let kind = u16::from_be_bytes(host.sent()[6..8].try_into().unwrap());
        assert_eq!(kind == 5, kept, "{what}");
    }
}

#[test]
fn tls_off() {
    let bytes = w().u32(3).then(option(5, &[]));
    let expected = greeting().then(refused(5, POLICY, "TLS is switched off on this address"));
    script("STARTTLS", Tls::Off, &bytes, &expected, End::Open);
}

#[test]
fn tls_required() {
    let first = "this server requires TLS first";
    for number in [3, 6, 7, 8, 9, 10, 11, 99] {
        let bytes = w().u32(3).then(option(number, b"abc"));
        let expected = greeting().then(refused(number, TLS_REQD, first));
        script("before TLS", Tls::Required, &bytes, &expected, End::Open);
    }
    let bytes = w().u32(3).then(option(1, b"demo"));
    script("EXPORT_NAME before TLS", Tls::Required, &bytes, &greeting(), End::Closed);
    let bytes = w().u32(3).then(option(2, &[]));
    script("ABORT before TLS", Tls::Required, &bytes, &greeting().then(ack(2)), End::Closed);
    let bytes = w().u32(3).then(option(5, b"x"));
    let expected = greeting().then(refused(5, INVALID, "this option takes no data"));
    script("STARTTLS with data", Tls::Required, &bytes, &expected, End::Open);

    let mut host = Host::new(Tls::Required);
    host.feed(&w().u32(3).then(option(5, &[])).0);
    assert_eq!(host.events, [Event::StartTls]);
    assert_eq!(host.sent(), greeting().then(ack(5)).0);
    host.feed(&option(5, &[]).0);
    assert_eq!(host.sent(), refused(5, INVALID, "TLS is already in use").0);
    // The negotiation before TLS agreed on NO_ZEROES, which still holds.
    host.feed(&option(1, b"demo").0);
    assert_eq!(host.sent(), w().u64(MIB).u16(WRITABLE).0);
}

/// The session never takes bytes outside TLS, with or after STARTTLS, for bytes inside.
#[test]
fn no_plain_bytes_after_starttls() {
    let start = w().u32(3).then(option(5, &[]));
    let mut session = Session::new(Config { tls: Tls::Required, limits: Limits::default() });
    let mut input = BytesMut::from(&start.clone().then(option(3, &[])).0[..]);
    session.handle_input(&mut input);
    assert!(matches!(session.poll_event(), Some(Event::Close(CloseReason::Violation(_)))));
    assert_eq!(session.poll_event(), None);
    assert!(input.is_empty() && !session.wants_input());

    let mut session = Session::new(Config { tls: Tls::Required, limits: Limits::default() });
    session.handle_input(&mut BytesMut::from(&start.0[..]));
    assert_eq!(session.poll_event(), Some(Event::StartTls));
    assert!(!session.wants_input());
    assert_eq!(session.wanted(), 0);
    session.handle_input(&mut BytesMut::from(&b"I"[..]));
    assert!(matches!(session.poll_event(), Some(Event::Close(CloseReason::Violation(_)))));
    session.handle_tls_established();
    assert!(!session.wants_input());
}

/// Answers of the shell to questions that were not asked change nothing.
#[test]
fn unsolicited_answers_are_ignored() {
    let mut host = Host::new(Tls::Required);
    host.session.handle_tls_established();
    host.session.handle_export(lookup("demo"));
    host.session.handle_exports(Ok(vec![]));
    host.feed(&w().u32(3).then(option(8, &[])).0);
    let text = "this server requires TLS first";
    assert_eq!(host.sent(), greeting().then(refused(8, TLS_REQD, text)).0);
}

#[test]
fn shutdown_refuses_options() {
    let mut host = Host::new(Tls::Off);
    host.feed(&w().u32(3).0);
    host.session.handle_shutdown();
    host.sent();
    host.feed(&option(7, &query("demo", &[3])).then(option(3, &[])).0);
    let text = "the server is shutting down";
    assert_eq!(host.sent(), refused(7, SHUTDOWN, text).then(refused(3, SHUTDOWN, text)).0);
    host.feed(&option(1, b"demo").0);
    assert!(matches!(host.closed(), Some(CloseReason::ExportRefused { .. })));
}

#[test]
fn odd_exports_are_served_on_sane_terms() {
    let export = |sectors, min_block, preferred_block, max_payload| ExportInfo {
        name: String::new(),
        description: String::new(),
        sectors,
        min_block,
        preferred_block,
        max_payload,
        read_only: false,
        bitmaps: Vec::new(),
    };
    let sizes = |export: &ExportInfo| {
        let terms = ExportTerms::new(export, true);
        (terms.min_block, terms.preferred_block, terms.max_payload)
    };
    assert_eq!(sizes(&export(2048, 4096, 4096, 1 << 20)), (4096, 4096, 1 << 20));
    // The size is not a multiple of the minimum block, and the end must stay accessible.
    assert_eq!(sizes(&export(2047, 4096, 4096, 1 << 20)), (512, 4096, 1 << 20));
    assert_eq!(sizes(&export(2048, 0, 0, 0)), (512, 512, 512));
    assert_eq!(sizes(&export(2048, 3000, 5000, u32::MAX)), (4096, 8192, 32 << 20));
    assert_eq!(sizes(&export(1 << 20, u32::MAX, u32::MAX, 0)), (1 << 16, 1 << 24, 1 << 24));
    assert_eq!(ExportTerms::new(&export(u64::MAX, 512, 512, 512), true).size, 1 << 62);
}
