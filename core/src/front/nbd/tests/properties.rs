//! Properties over generated clients: the cuts between bytes do not matter, and garbage does no
//! harm.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Options, mostly valid ones.
fn any_option() -> impl Strategy<Value = Wire> {
    let name = prop_oneof![Just("demo"), Just("coarse"), Just("ro"), Just("nope"), Just("")];
    let leaf = prop_oneof![Just("base:"), Just("base:allocation"), Just("x-y:z"), Just("bad")];
    prop_oneof![
        Just(option(3, &[])),
        Just(option(8, &[])),
        Just(option(11, &[])),
        (name.clone(), vec(0..5u16, 0..4))
            .prop_map(|(name, infos)| option(6, &query(name, &infos))),
        (9..11u32, name, vec(leaf, 0..3))
            .prop_map(|(number, name, queries)| option(number, &contexts(name, &queries))),
        (any::<u32>().prop_map(|number| number.max(12)), vec(any::<u8>(), 0..40))
            .prop_map(|(number, data)| option(number, &data)),
        vec(any::<u8>(), 0..40).prop_map(|data| option(6, &data)),
        vec(any::<u8>(), 0..40).prop_map(|data| option(10, &data)),
    ]
}

/// A command, valid or not, with a payload of the right length.
fn any_command(mode: Mode) -> impl Strategy<Value = Wire> {
    let near = |scale: u64, most: u64| prop_oneof![8 => (0..=most).prop_map(move |n| n * scale), 1 => 0..most * scale];
    let flags = prop_oneof![6 => Just((0u16, true)), 3 => any::<(u16, bool)>()];
    let kind = prop_oneof![9 => 0..8u16, 1 => any::<u16>()];
    (flags, kind, 0..100u64, near(512, 2060), near(512, 40)).prop_map(
        move |((flags, tame), kind, cookie, offset, length)| {
            // Without DISC, after which nothing could be checked; flags mostly fit the command.
            let kind = if kind == 2 { 3 } else { kind };
            let (flags, offset, length) = match kind {
                _ if !tame => (flags, offset, length),
                0 => (flags & 5, offset, length),
                3 => (flags & 1, 0, 0),
                6 => (flags & 19, offset, length),
                7 => (flags & 9, offset, length),
                _ => (flags & 1, offset, length),
            };
            let (head, carries) = if mode == Mode::Extended {
                let flags = if kind == 1 { flags | 32 } else { flags };
                (extended(flags, kind, cookie, offset, length), flags & 32 != 0)
            } else {
                (compact(flags, kind, cookie, offset, length as u32), kind == 1)
            };
            let payload = if carries { vec![cookie as u8; length as usize] } else { vec![] };
            head.raw(&payload)
        },
    )
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Simple), Just(Mode::Structured), Just(Mode::Extended)]
}

/// The bytes of a whole session that negotiates this kind of headers.
fn any_session(mode: impl Strategy<Value = Mode>) -> impl Strategy<Value = Wire> {
    let name = prop_oneof![3 => Just("demo"), 1 => Just("coarse"), 1 => Just("ro")];
    (mode, name, vec(any_option(), 0..6)).prop_flat_map(|(mode, name, options)| {
        let start = match mode {
            // Leave out options that change the kind of headers.
            Mode::Extended => options,
            _ => options.into_iter().filter(|wire| wire.0[11] != 11 && wire.0[11] != 8).collect(),
        };
        let handshake = enter(mode, name).0;
        let start = start.into_iter().fold(w().raw(&handshake[..4]), Wire::then);
        let start = start.raw(&handshake[4..]);
        vec(any_command(mode), 0..30)
            .prop_map(move |commands| commands.into_iter().fold(start.clone(), Wire::then))
    })
}

fn run(limits: Limits, chunks: &[&[u8]]) -> Host {
    let mut host = Host::with(Config { tls: Tls::Off, limits });
    host.run();
    for chunk in chunks {
        host.feed(chunk);
    }
    host
}

fn cut<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut chunks = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, tail) = rest.split_at((*size).min(rest.len()));
        chunks.push(chunk);
        rest = tail;
    }
    chunks
}

/// Splits transmission output without simple reads into replies, and groups them by cookie. It
/// panics unless the stream is in step.
fn chunked_replies(mut bytes: &[u8]) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut replies: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    while !bytes.is_empty() {
        let word = |at: usize, len: usize| {
            bytes[at..at + len].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let total = match word(0, 4) {
            0x6744_6698 => 16,
            0x668e_33ef => 20 + word(16, 4),
            0x6e8a_278c => 32 + word(24, 8),
            magic => panic!("{magic:x} is not a reply"),
        };
        let (reply, rest) = bytes.split_at(total as usize);
        replies.entry(word(8, 8)).or_default().push(reply.to_vec());
        bytes = rest;
    }
    replies
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// With one request at a time, the bytes determine the output completely.
    #[test]
    fn cutting_changes_nothing(
        bytes in any_session(any_mode()),
        sizes in prop_oneof![Just(vec![1]), vec(1..60usize, 1..8), vec(1..20_000usize, 1..4)],
    ) {
        let limits = Limits { max_requests: 1, ..Limits::default() };
        let whole = run(limits, &[&bytes.0]);
        let parts = run(limits, &cut(&bytes.0, &sizes));
        prop_assert!(whole.input.is_empty());
        prop_assert!(whole.output == parts.output, "outputs differ");
        prop_assert_eq!(whole.closed(), None);
        prop_assert_eq!(whole.events, parts.events);
    }

    /// With many requests at a time, refusals may overtake replies, but each reply stays the same.
    #[test]
    fn pipelining_changes_only_the_order(
        bytes in any_session(prop_oneof![Just(Mode::Structured), Just(Mode::Extended)]),
    ) {
        let one = run(Limits { max_requests: 1, ..Limits::default() }, &[&bytes.0]);
        let many = run(Limits::default(), &[&bytes.0]);
        let ready = one.events.iter().position(|event| matches!(event, Event::Ready { .. }));
        prop_assert!(ready.is_some());
        // The handshake is the same in both, and ends with the acknowledgment of GO.
        let end = ack(7).0;
        let at = one.output.windows(end.len()).position(|part| part == end).unwrap() + end.len();
        prop_assert_eq!(&one.output[..at], &many.output[..at]);
        let mut one = chunked_replies(&one.output[at..]);
        let mut many = chunked_replies(&many.output[at..]);
        for replies in one.values_mut().chain(many.values_mut()) {
            replies.sort();
        }
        prop_assert!(one == many, "replies differ");
    }

    /// Garbage at any point: no panic, no invalid request, and at most one `Close`, as the last
    /// event. A session that is not closed takes more input.
    #[test]
    fn garbage_does_no_harm(
        tls in prop_oneof![Just(Tls::Off), Just(Tls::Required)],
        prefix in prop_oneof![
            Just(w()),
            Just(w().u32(3)),
            (any_mode()).prop_map(|mode| enter(mode, "demo")),
        ],
        garbage in vec(
            prop_oneof![
                vec(any::<u8>(), 0..64),
                any_option().prop_map(|wire| wire.0),
                (any_mode().prop_flat_map(any_command)).prop_map(|wire| wire.0),
                (any::<u16>(), any::<u16>(), any::<u64>(), any::<u64>(), any::<u32>())
                    .prop_map(|(f, k, c, o, l)| compact(f, k, c, o, l).0),
                (any::<u32>(), any::<u32>())
                    .prop_map(|(number, length)| w().raw(b"IHAVEOPT").u32(number).u32(length).0),
            ],
            0..12,
        ),
        sizes in vec(1..500usize, 1..4),
    ) {
        let limits = Limits { max_requests: 4, max_bytes: 1 << 16 };
        let mut host = Host::with(Config { tls, limits });
        host.run();
        let bytes = [prefix.0, garbage.concat()].concat();
        for chunk in cut(&bytes, &sizes) {
            host.feed(chunk);
            prop_assert!(host.session.wanted() as u64 <= MAX_TRANSFER_BYTES);
            if !host.session.wants_input() {
                break;
            }
        }
        let closes = host.events.iter().filter(|event| matches!(event, Event::Close(_))).count();
        prop_assert!(closes <= 1);
        prop_assert_eq!(closes == 1, host.closed().is_some());
        prop_assert_eq!(host.session.wants_input(), closes == 0);
        if closes == 1 {
            prop_assert!(host.input.is_empty());
        }
    }
}
