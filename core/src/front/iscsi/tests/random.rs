//! Any input: the target does not panic, keeps its bounds, and behaves the same however its input
//! is cut. The driver checks every PDU from the target.

use super::super::*;
use super::device::{READ, WRITE};
use super::driver::*;
use crate::wire::iscsi::{BHS_BYTES, opcode};
use proptest::prelude::*;

/// A PDU that is nearly valid.
fn nearly() -> impl Strategy<Value = Out> {
    let code = prop_oneof![
        6 => Just(opcode::SCSI_COMMAND),
        6 => Just(opcode::DATA_OUT),
        2 => Just(opcode::TASK_MANAGEMENT),
        1 => Just(opcode::NOP_OUT),
        1 => Just(opcode::TEXT),
        2 => Just(opcode::SNACK),
        1 => Just(opcode::LOGOUT),
        1 => 0u8..64,
    ];
    let bytes = prop_oneof![Just(0u32), Just(512), Just(4096), Just(200 << 10), Just(u32::MAX)];
    let solicited = (0u32..4, 0u32..3).prop_map(|(slot, tag)| slot << 16 | tag);
    let ttt = prop_oneof![3 => Just(u32::MAX), 3 => 0u32..4, 2 => solicited];
    let small = || prop_oneof![4 => 0u32..5, 1 => Just(u32::MAX)];
    (
        (code, prop::bool::weighted(0.2), any::<u8>(), 0u32..6),
        (bytes, ttt, 0u32..8, prop_oneof![Just(0usize), Just(1), Just(511), Just(512), Just(4096)]),
        (small(), prop_oneof![4 => (0u32..9).prop_map(|n| n * 512), 1 => any::<u32>()], small()),
        (any::<bool>(), prop::option::weighted(0.1, (0usize..BHS_BYTES, any::<u8>()))),
    )
        .prop_map(
            |(
                (code, immediate, flags, itt),
                (bytes, ttt, sn, data),
                (data_sn, offset, run),
                (write, change),
            )| {
                let flags = match code {
                    opcode::SCSI_COMMAND => {
                        flags & 0x80 | if write { W } else { F | R } | flags & 7
                    }
                    opcode::TASK_MANAGEMENT => F | (flags % 14),
                    opcode::LOGOUT => F | if flags < 200 { 1 + flags % 2 } else { flags % 4 },
                    opcode::SNACK => F | (flags % 5),
                    _ => flags & 0xc0,
                };
                let data = if code == opcode::SCSI_COMMAND && !write { 0 } else { data };
                let mut out = Out::new(code, immediate, flags, itt).data(&vec![flags; data]);
                out = match code {
                    opcode::SCSI_COMMAND => {
                        out.bhs[32..].copy_from_slice(&cdb(
                            if write { WRITE } else { READ },
                            u64::from(data_sn),
                            bytes.min(4 << 20) & !511,
                        ));
                        out.put(20, bytes)
                    }
                    opcode::LOGOUT => out.put(20, u32::from(flags & 1) << 16),
                    opcode::TASK_MANAGEMENT => {
                        out.put(20, run).put(32, 100u32.wrapping_add(data_sn)).put(36, 0)
                    }
                    opcode::SNACK => out.put(20, ttt).put(40, data_sn).put(44, run),
                    _ => out.put(20, ttt).put(36, data_sn).put(40, offset),
                };
                out = out.put(24, 100 + sn);
                if let Some((at, value)) = change {
                    out.bhs[at] = value;
                }
                out
            },
        )
}

#[derive(Clone, Debug)]
enum Action {
    Send { which: usize, out: Out, damage: bool },
    Answer(usize),
    R2t(usize),
    Drop(usize),
    Join(u16, bool),
    Pass(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => (0usize..3, nearly(), prop::bool::weighted(0.05))
            .prop_map(|(which, out, damage)| Action::Send { which, out, damage }),
        6 => (0usize..8).prop_map(Action::Answer),
        4 => (0usize..3).prop_map(Action::R2t),
        1 => (0usize..3).prop_map(Action::Drop),
        2 => (0u16..3, any::<bool>()).prop_map(|(cid, same)| Action::Join(cid, same)),
        1 => (0u64..8).prop_map(Action::Pass),
    ]
}

fn some_parameters() -> impl Strategy<Value = Parameters> {
    (any::<[bool; 6]>(), 0u8..3, 1u16..4).prop_map(|(b, error_recovery_level, r2ts)| Parameters {
        header_digest: b[0],
        data_digest: b[1],
        initial_r2t: b[2],
        immediate_data: b[3],
        data_pdu_in_order: b[4],
        data_sequence_in_order: b[5],
        max_outstanding_r2t: r2ts,
        error_recovery_level,
        max_burst: 4096,
        first_burst: 2048,
        initiator_data_segment: 1024,
        protocol_level: 2,
        ..parameters()
    })
}

fn small_config() -> Config {
    Config { commands: 6, session_bytes: 256 << 10, sessions_per_initiator: 3, ..config() }
}

/// Runs the actions. Returns the output of each connection, and the reason of its end.
fn run(actions: &[Action], p: Parameters, cut: usize) -> Vec<(Vec<In>, Option<CloseReason>)> {
    let mut world = World::new(small_config());
    world.cut = cut;
    world.hold = true;
    let mut all: Vec<Vec<In>> = vec![Vec::new()];
    let first = world.connect(identity(1, 0, 0), p, 100);
    let tsih = world.tsih(first);
    world.conns[first].again = true;
    for action in actions {
        let count = world.conns.len();
        match action {
            Action::Send { which, out, damage } => {
                let at = count - 1 - which % count;
                if world.conns[at].closed.is_some() {
                    continue;
                }
                let stat_sn = world.conns[at].stat_sn;
                let mut bytes = out.clone().put(28, stat_sn).encode(&world.conns[at].parameters);
                if *damage {
                    *bytes.last_mut().unwrap() ^= 4;
                }
                world.send_bytes(at, &bytes);
            }
            Action::Answer(n) => {
                if !world.held.is_empty() {
                    let n = n % world.held.len();
                    let (device, id, request) = world.held.remove(n).unwrap();
                    world.answer(device, id, request);
                    world.pump();
                }
            }
            Action::R2t(which) => {
                let at = count - 1 - which % count;
                let r2t = world.conns[at].received.iter().rfind(|pdu| pdu.opcode() == opcode::R2T);
                if let Some(r2t) = r2t.cloned()
                    && world.conns[at].closed.is_none()
                {
                    solicited(&mut world, at, &r2t, &vec![6; 4 << 20]);
                }
            }
            Action::Drop(which) => {
                let at = count - 1 - which % count;
                if world.conns[at].closed.is_none() {
                    world.drop_connection(at);
                }
            }
            Action::Join(cid, same) => {
                let id = if *same { identity(1, tsih, *cid) } else { identity(2, 0, *cid) };
                if count < 12
                    && let Ok(at) = world.try_connect(id, p, 100)
                {
                    world.conns[at].again = true;
                    all.push(Vec::new());
                }
            }
            Action::Pass(seconds) => world.pass(Duration::from_secs(*seconds)),
        }
        for session in world.target.sessions() {
            // The target always admits one command, and each command may have brought unsolicited
            // data.
            let most = (32 << 20) + (256 << 10) + 12 * 2048 + (1 << 20);
            assert!(session.held_bytes <= most, "{} bytes", session.held_bytes);
            assert!(session.commands <= 2048);
        }
        for at in 0..world.conns.len() {
            if world.conns[at].closed.is_none() {
                let wanted = world.target.wanted(world.conns[at].id);
                assert!(wanted <= (64 << 10) + 48 + 1020 + 8, "wants {wanted} bytes");
            }
        }
    }
    // No state is left.
    world.answer_all();
    for (at, received) in all.iter_mut().enumerate() {
        received.extend(world.take(at));
        if world.conns[at].closed.is_none() {
            world.drop_connection(at);
        }
    }
    world.pass(Duration::from_secs(60));
    assert_eq!(world.target.sessions().count(), 0);
    assert_eq!(world.target.poll_timeout(), None);
    all.into_iter().zip(world.conns.iter().map(|conn| conn.closed.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 2000 }))]

    #[test]
    fn nearly_valid_streams(
        actions in prop::collection::vec(action(), 1..60),
        p in some_parameters(),
        cut in prop_oneof![Just(1usize), Just(7), Just(48), Just(1000)],
    ) {
        let whole = run(&actions, p, usize::MAX);
        prop_assert_eq!(whole, run(&actions, p, cut));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), p in some_parameters()) {
        let mut world = World::new(small_config());
        let at = world.connect(identity(1, 0, 0), p, 100);
        world.send_bytes(at, &bytes);
        let peer = Peer { address: String::new(), portal: String::new(), loopback: true };
        world.target.handle_accept(world.now, 1, peer, [0; 32]);
        world.target.handle_input(world.now, 1, &mut bytes::BytesMut::from(&bytes[..]));
    }
}
