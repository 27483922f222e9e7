//! Datagram client and datagram server with a bad network between them, on a clock of the test.

use super::*;
use crate::block::{Range, Time, VolumeId};
use crate::wire::link::{Frame, ReadError, ToHost, ToStore};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const VOLUME: VolumeId = VolumeId(7);
/// The room that an Ethernet path leaves in a packet of 1,472 bytes.
const DATAGRAM_BYTES: usize = 1430;

/// A generator of numbers, good enough to lose packets with.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn is(&mut self, share: f64) -> bool {
        (self.below(1 << 40) as f64) < share * (1_u64 << 40) as f64
    }
}

#[derive(Clone, Copy)]
struct Net {
    one_way: Duration,
    loss: f64,
    twice: f64,
    /// Random extra delay, which reorders.
    jitter: Duration,
    /// How long the store takes, at most.
    work: Duration,
}

impl Net {
    fn lossy(rtt_ms: u64, loss: f64) -> Net {
        let (twice, jitter) = (0.0, Duration::ZERO);
        let one_way = Duration::from_micros(rtt_ms * 500);
        Net { one_way, loss, twice, jitter, work: Duration::ZERO }
    }
}

enum Due {
    AtStore(Bytes),
    AtHost(Bytes),
    Executed(Frame<ToHost>),
    StreamAtStore(Frame<ToStore>),
    StreamAtHost(Frame<ToHost>),
    Timer,
}

/// One host and one store; each execution of a request gives another reply.
struct Rig {
    net: Net,
    chance: Chance,
    now: Time,
    client: DatagramClient,
    server: DatagramServer,
    events: BTreeMap<(Time, u64), Due>,
    next: u64,
    timer: Option<u64>,
    executed: u64,
    streamed: u64,
    /// UDP payloads both ways.
    carried_bytes: u64,
    replies: Vec<(Time, Frame<ToHost>)>,
}

fn read(request: u64, sectors: u64) -> Frame<ToStore> {
    let range = Range::new(request * 8, sectors);
    ToStore::Read { request, volume: VOLUME, epoch: 1, range }.into()
}

impl Rig {
    fn new(net: Net, seed: u64) -> Rig {
        Rig {
            net,
            chance: Chance(seed * 2 + 0x9E37_79B9_7F4A_7C15),
            now: Time(1_000_000),
            client: DatagramClient::new(net.one_way * 2),
            server: DatagramServer::new(),
            events: BTreeMap::new(),
            next: 0,
            timer: None,
            executed: 0,
            streamed: 0,
            carried_bytes: 0,
            replies: Vec::new(),
        }
    }

    fn at(&mut self, after: Duration, due: Due) {
        self.next += 1;
        self.events.insert((self.now.after(after), self.next), due);
    }

    fn carry(&mut self, bytes: Bytes, to_store: bool) {
        assert!(bytes.len() <= DATAGRAM_BYTES);
        self.carried_bytes += bytes.len() as u64 + 63;
        let copies = 1 + usize::from(self.chance.is(self.net.twice));
        for _ in 0..copies {
            if self.chance.is(self.net.loss) {
                continue;
            }
            let jitter = self.chance.below(self.net.jitter.as_nanos() as u64 + 1);
            let after = self.net.one_way + Duration::from_nanos(jitter);
            let bytes = bytes.clone();
            self.at(after, if to_store { Due::AtStore(bytes) } else { Due::AtHost(bytes) });
        }
    }

    fn ask(&mut self, frame: Frame<ToStore>) {
        self.client.handle_request(self.now, frame, Some(DATAGRAM_BYTES));
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(output) = self.client.poll() {
            match output {
                Output::Datagram(bytes) => self.carry(bytes, true),
                Output::Stream(frame) => {
                    self.streamed += 1;
                    self.at(self.net.one_way * 3, Due::StreamAtStore(frame));
                }
                Output::Reply(frame) => self.replies.push((self.now, frame)),
            }
        }
        while let Some(bytes) = self.server.poll_datagram() {
            self.carry(bytes, false);
        }
        if let Some(at) = self.client.poll_timeout() {
            // Timers of the shell have a millisecond's grain.
            let late = at.0.next_multiple_of(1_000_000).max(self.now.0);
            if self.timer != Some(late) {
                self.timer = Some(late);
                self.at(Duration::from_nanos(late - self.now.0), Due::Timer);
            }
        }
    }

    /// Every byte of a reply names its execution.
    fn execute(&mut self, frame: &Frame<ToStore>) -> Frame<ToHost> {
        self.executed += 1;
        let ToStore::Read { request, volume, range, .. } = frame.message else {
            panic!("{frame:?}")
        };
        let message = ToHost::Data { request, volume, result: Ok(Vec::new()) };
        let payload = vec![(self.executed % 251) as u8; range.bytes() as usize + 8];
        Frame { message, payload: payload.into() }
    }

    /// Continues until this number of replies has come; false if nothing more happens.
    fn run(&mut self, replies: usize) -> bool {
        while self.replies.len() < replies {
            let Some(((at, _), due)) = self.events.pop_first() else { return false };
            self.now = at.max(self.now);
            match due {
                Due::AtStore(bytes) => {
                    let frame = self.server.handle_datagram(bytes, DATAGRAM_BYTES);
                    if let Some(frame) = frame {
                        let reply = self.execute(&frame);
                        let work = self.chance.below(self.net.work.as_nanos() as u64 + 1);
                        self.at(Duration::from_nanos(work), Due::Executed(reply));
                    }
                }
                Due::Executed(reply) => {
                    assert!(self.server.handle_reply(reply, DATAGRAM_BYTES).is_none());
                }
                Due::AtHost(bytes) => self.client.handle_datagram(self.now, bytes),
                Due::StreamAtStore(frame) => {
                    let reply = self.execute(&frame);
                    let reply = self.server.handle_reply(reply, DATAGRAM_BYTES).unwrap();
                    self.at(self.net.one_way, Due::StreamAtHost(reply));
                }
                Due::StreamAtHost(frame) => self.replies.push((self.now, frame)),
                // The machine has set another timer since.
                Due::Timer if self.timer != Some(at.0) => continue,
                Due::Timer => {
                    self.timer = None;
                    self.client.handle_timeout(self.now);
                }
            }
            self.flush();
        }
        true
    }
}

fn check(request: u64, sectors: u64, reply: &Frame<ToHost>) {
    let ToHost::Data { request: got, volume, .. } = &reply.message else { panic!("{reply:?}") };
    assert_eq!((*got, *volume), (request, VOLUME));
    assert_eq!(reply.payload.len() as u64, sectors * 512 + 8);
    let first = reply.payload[0];
    assert!(reply.payload.iter().all(|byte| *byte == first), "put together from two executions");
}

/// One request at a time; gives their latencies in microseconds, sorted.
fn datagram(rig: &mut Rig, requests: u64) -> Vec<u64> {
    let mut took = Vec::new();
    for request in 1..=requests {
        let begun = rig.now;
        rig.ask(read(request, 16));
        assert!(rig.run(1), "request {request} is never answered");
        let (at, reply) = rig.replies.pop().unwrap();
        check(request, 16, &reply);
        took.push(at.since(begun).as_micros() as u64);
        // All packets in flight arrive.
        rig.now = rig.now.after(Duration::from_micros(200));
    }
    took.sort_unstable();
    took
}

fn percentile(sorted: &[u64], share: f64) -> u64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

#[test]
fn loss_costs_a_lone_read_little_and_the_overhead_is_what_it_says() {
    // The target is a p99.9 of 8 ms at RTT 2 ms and a loss of 1 %.
    for (rtt, loss, p99, p999) in [
        (2, 0.0007, 2_000, 4_500),
        (2, 0.01, 4_000, 6_000),
        (16, 0.0007, 16_000, 34_500),
        (16, 0.01, 32_500, 38_500),
    ] {
        let mut rig = Rig::new(Net::lossy(rtt, loss), rtt);
        let took = datagram(&mut rig, 30_000);
        let all = [0.5, 0.99, 0.999, 1.0].map(|share| percentile(&took, share));
        let (host, store) = (rig.client.counters(), rig.server.counters());
        // Unneeded parity is in the host's sum and in the store's.
        let twice = 115 * (host.requests - u64::from(host.redundant_bytes == 0));
        let redundant = store.redundant_bytes + twice;
        let share = redundant as f64 / (rig.carried_bytes - redundant) as f64;
        println!("RTT {rtt} ms, loss {loss}: {all:?} µs, redundant {share:.3}, {host:?} {store:?}");
        assert_eq!(all[0], rtt * 1000);
        assert!(all[1] <= p99 && all[2] <= p999, "{all:?}");
        assert!(rig.streamed < 30, "{}", rig.streamed);
        assert!(share * 1000.0 <= REDUNDANT_PER_MILLE as f64, "{share}");
        assert!(store.repeated_bytes < rig.carried_bytes / 50, "{store:?}");
    }
}

/// Replies then come later than all waiting times: those for repeats, and the one for the stream.
#[test]
fn a_path_that_becomes_longer_costs_a_few_reads() {
    for (before, after) in [(100, 8), (200, 8), (1000, 8), (8000, 25), (100, 100), (8000, 400)] {
        for loss in [0.0, 0.001, 0.01] {
            let one_way = Duration::from_micros(before);
            let mut rig = Rig::new(Net { one_way, ..Net::lossy(1, loss) }, before);
            datagram(&mut rig, 300);
            rig.net.one_way = Duration::from_millis(after);
            let first = datagram(&mut rig, 5);
            let streamed = rig.streamed;
            let took = datagram(&mut rig, 1000);
            let line = format!("{before} µs to {after} ms, loss {loss}");
            assert!(first[4] <= 6 * after * 1000, "{line}: {first:?}");
            assert_eq!(percentile(&took, 0.5), 2 * after * 1000, "{line}");
            assert!(percentile(&took, 0.9) <= 3 * after * 1000, "{line}");
            assert!(rig.streamed - streamed <= 10, "{line}: {}", rig.streamed - streamed);
            // And shorter again.
            rig.net.one_way = one_way;
            let took = datagram(&mut rig, 1000);
            assert_eq!(percentile(&took, 0.5), 2 * before, "{line}, and back");
        }
    }
}

#[test]
fn whatever_the_network_does_each_request_comes_out_once_and_whole() {
    for seed in 0..200 {
        let mut chance = Chance(seed + 1);
        let net = Net {
            one_way: Duration::from_micros(100 + chance.below(20_000)),
            loss: chance.below(40) as f64 / 100.0,
            twice: chance.below(20) as f64 / 100.0,
            jitter: Duration::from_micros(chance.below(30_000)),
            work: Duration::from_micros(chance.below(50_000)),
        };
        let mut rig = Rig::new(net, seed + 1);
        let (mut asked, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for request in 1..=100 {
            let sectors = 1 + chance.below(MAX_SECTORS + 4);
            asked.insert(request, sectors);
            rig.ask(read(request, sectors));
            while asked.len() - seen.len() > 1 + chance.below(40) as usize {
                assert!(rig.run(1), "seed {seed}");
                for (_, reply) in std::mem::take(&mut rig.replies) {
                    let ToHost::Data { request, .. } = reply.message else { panic!() };
                    assert!(seen.insert(request), "seed {seed}: {request} twice");
                    check(request, asked[&request], &reply);
                }
            }
        }
        // Everything else, and nothing twice.
        rig.run(1000);
        for (_, reply) in std::mem::take(&mut rig.replies) {
            let ToHost::Data { request, .. } = reply.message else { panic!() };
            assert!(seen.insert(request), "seed {seed}: {request} twice");
            check(request, asked[&request], &reply);
        }
        assert_eq!(seen.len(), 100, "seed {seed}");
        assert_eq!((rig.client.asked(), rig.client.poll_timeout()), ((0, 0), None), "seed {seed}");
    }
}

#[test]
fn a_dead_path_for_datagrams_leaves_the_stream() {
    let mut rig = Rig::new(Net::lossy(16, 1.0), 1);
    rig.ask(read(1, 16));
    assert!(rig.run(1));
    assert_eq!((rig.streamed, rig.client.counters().by_stream), (1, 1));
    check(1, 16, &rig.replies[0].1);
}

#[test]
fn a_slow_store_executes_once_and_says_that_it_works() {
    let mut rig = Rig::new(Net { work: Duration::from_secs(3), ..Net::lossy(2, 0.0) }, 3);
    rig.ask(read(1, 16));
    assert!(rig.run(1));
    assert_eq!((rig.executed, rig.streamed), (1, 0));
    assert!(rig.server.counters().repeats < 12, "{:?}", rig.server.counters());
}

#[test]
fn what_is_long_or_too_much_goes_by_stream() {
    let mut client = DatagramClient::new(Duration::from_millis(2));
    let now = Time(0);
    let streams = |client: &mut DatagramClient| {
        std::iter::from_fn(|| client.poll()).filter(|o| matches!(o, Output::Stream(_))).count()
    };
    client.handle_request(now, read(1, MAX_SECTORS + 1), Some(DATAGRAM_BYTES));
    client.handle_request(now, read(1, 8), Some(100));
    client.handle_request(now, read(1, 8), None);
    let detach = ToStore::Detach { request: 1, volume: VOLUME, epoch: 1 };
    client.handle_request(now, detach.into(), Some(DATAGRAM_BYTES));
    assert_eq!(streams(&mut client), 4);
    for request in 0..MAX_CALLS as u64 + 3 {
        client.handle_request(now, read(request, 8), Some(DATAGRAM_BYTES));
    }
    assert_eq!(streams(&mut client), 3);
    let mut client = DatagramClient::new(Duration::from_millis(2));
    for request in 0..10 {
        client.handle_request(now, read(request, MAX_SECTORS), Some(DATAGRAM_BYTES));
    }
    assert_eq!(streams(&mut client), 2);
}

#[test]
fn a_reply_that_is_too_large_is_sent_for_by_stream() {
    let mut client = DatagramClient::new(Duration::from_millis(2));
    let mut server = DatagramServer::new();
    client.handle_request(Time(0), read(5, 8), Some(DATAGRAM_BYTES));
    let Some(Output::Datagram(request)) = client.poll() else { panic!() };
    let frame = server.handle_datagram(request.clone(), DATAGRAM_BYTES).unwrap();
    let ToStore::Read { request: number, .. } = frame.message else { panic!() };
    assert_ne!(number, 5, "a number that no stream uses");
    let message = ToHost::Data { request: number, volume: VOLUME, result: Ok(Vec::new()) };
    let reply = Frame { message, payload: vec![1; MAX_REPLY_BYTES].into() };
    assert!(server.handle_reply(reply, DATAGRAM_BYTES).is_none());
    // A repeated question gets the answer again.
    let Some(Packet::Request { call, head, .. }) = Packet::decode(request.clone()) else {
        panic!()
    };
    let again = Packet::Request { call, attempt: 1, reply: 0, have: 0, head }.encode();
    for datagram in [request, again.clone(), again] {
        assert!(server.handle_datagram(datagram, DATAGRAM_BYTES).is_none());
    }
    for stream in [1, 0] {
        client.handle_datagram(Time(1), server.poll_datagram().unwrap());
        let streams = std::iter::from_fn(|| client.poll()).count();
        assert_eq!(streams, stream);
    }
    assert!(server.poll_datagram().is_none());
}

#[test]
fn replies_of_the_wrong_kind_or_to_nobody_are_not_passed_on() {
    let mut server = DatagramServer::new();
    for number in [5, 1 << 63 | 5] {
        let result = Err(ReadError::NotAttached);
        let reply = Frame::from(ToHost::Data { request: number, volume: VOLUME, result });
        assert!(server.handle_reply(reply, DATAGRAM_BYTES).is_some(), "no such request");
    }
    let batch = ToStore::Batch { volume: VOLUME, epoch: 1, first: 1, last: 1 };
    let head = Frame::from(batch).encode_head().unwrap().slice(8..);
    let packet = Packet::Request { call: 1, attempt: 0, reply: 0, have: 0, head };
    assert!(server.handle_datagram(packet.encode(), DATAGRAM_BYTES).is_none());

    let mut client = DatagramClient::new(Duration::from_millis(2));
    client.handle_request(Time(0), read(5, 8), Some(DATAGRAM_BYTES));
    client.poll();
    let wrong = Frame::from(ToHost::Detached { request: 5 }).encode_head().unwrap();
    let part = Part {
        call: 1,
        reply: 1,
        attempt: 0,
        index: 0,
        count: 1,
        last: true,
        total: wrong.len() as u32,
        data: wrong,
    };
    client.handle_datagram(Time(1), Packet::Part(part).encode());
    assert!(matches!(client.poll(), Some(Output::Stream(_))));
}

#[test]
fn a_store_remembers_no_more_than_it_should() {
    let mut server = DatagramServer::new();
    let mut open = 0;
    for call in 0..1000 {
        let head = read(call, MAX_SECTORS).encode_head().unwrap().slice(8..);
        let packet = Packet::Request { call, attempt: 0, reply: 0, have: 0, head };
        let frame = server.handle_datagram(packet.encode(), DATAGRAM_BYTES);
        let Some(Frame { message: ToStore::Read { request, range, .. }, .. }) = frame else {
            // Nobody has answered yet.
            assert!(open == 64);
            continue;
        };
        open += 1;
        if call % 2 == 0 {
            open -= 1;
            let message = ToHost::Data { request, volume: VOLUME, result: Ok(Vec::new()) };
            let payload = vec![3; range.bytes() as usize].into();
            let reply = Frame { message, payload };
            assert!(server.handle_reply(reply, DATAGRAM_BYTES).is_none());
        }
        while server.poll_datagram().is_some() {}
    }
    assert!(server.kept_bytes() <= 256 << 10);
}
