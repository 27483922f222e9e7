//! The link's numbers in `docs/performance-history.md`.

use super::*;

/// Single reads with loss, by stream and in datagrams, for docs/performance-history.md:
/// `cargo test --release -p longhaul-link --lib lone_latency -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "a measurement prints what it measured")]
fn lone_latency() {
    for (delay, loss) in [(1, 0.0), (1, 0.0007), (1, 0.01), (8, 0.0007), (8, 0.01)] {
        for lane in [Lane::ReadAhead, Lane::Read] {
            let shape = Shape { delay: Duration::from_millis(delay), loss, ..Shape::default() };
            let site = Site::start(Some(shape));
            let mut took = Vec::new();
            for request in 0..3000 / delay {
                let begun = Instant::now();
                site.client.send(lane, read(request));
                site.next();
                took.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            took.sort_by(f64::total_cmp);
            let of = |share: f64| took[((took.len() as f64 * share) as usize).min(took.len() - 1)];
            println!(
                "RTT {} ms, loss {loss}, {lane:?}: p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.2} ms; {:?}",
                2 * delay,
                of(0.5),
                of(0.99),
                of(0.999),
                of(1.0),
                site.client.status().datagrams,
            );
        }
    }
}

/// Numbers for docs/performance-history.md:
/// `cargo test -p longhaul-link --lib loopback -- --ignored --nocapture`. With
/// `LONGHAUL_LINES=100Mbit/s:8ms:0.1%` only that line: rate, one-way delay, loss.
#[test]
#[ignore = "a measurement"]
fn loopback() {
    let shape = |line: &str| {
        let mut parts = line.split(':');
        let mut next = || parts.next().unwrap();
        Shape {
            rate: Some(longhaul_base::units::rate(next()).unwrap()),
            delay: longhaul_base::units::duration(next()).unwrap(),
            loss: longhaul_base::units::share(next()).unwrap(),
            ..Shape::default()
        }
    };
    if let Ok(lines) = std::env::var("LONGHAUL_LINES") {
        return lines.split(' ').for_each(|line| measure(Some(shape(line))));
    }
    measure(None);
    for line in [
        "1Gbit/s:1ms:0%",
        "1Gbit/s:8ms:0%",
        "1Gbit/s:8ms:0.01%",
        "1Gbit/s:50ms:0%",
        "155Mbit/s:8ms:0.07%",
        "155Mbit/s:8ms:1%",
        "20Mbit/s:8ms:0%",
    ] {
        measure(Some(shape(line)));
    }
}

/// A store that answers everything at once, in a thread of its own, and a host.
struct Site {
    client: Client,
    events: std::cell::RefCell<UnboundedReceiver<LinkEvent>>,
    _relay: Option<Relay>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Site {
    fn start(shape: Option<Shape>) -> Site {
        let (ready, address) = std::sync::mpsc::channel();
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = async move {
            let mut store = store();
            ready.send((store.address, store.credential())).unwrap();
            loop {
                let event = tokio::select! {
                    event = store.listener.event() => event.unwrap(),
                    _ = &mut stopped => break,
                };
                let ListenerEvent::Frame { session, lane, frame } = event else { continue };
                match frame.message {
                    ToStore::Read { request, range, .. } => {
                        store.listener.send(session, lane, data(request, range.bytes() as usize));
                    }
                    ToStore::Batch { last, .. } => {
                        let reply = ToHost::Committed { volume: VolumeId(1), epoch: 1, seq: last };
                        store.listener.send(session, Lane::Control, reply.into());
                    }
                    _ => {}
                }
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(serve);
        });
        let (address, credential) = address.recv().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let relay = shape.map(|shape| Relay::start(any, address, shape).unwrap());
        let at = relay.as_ref().map_or(address, Relay::address);
        let (client, events) =
            Client::start(credential, Some(at.to_string()), Transport::Auto).unwrap();
        let (stop, thread, events) = (Some(stop), Some(thread), events.into());
        let site = Site { client, events, _relay: relay, stop, thread };
        site.next();
        site
    }

    fn next(&self) -> Option<ToHost> {
        let event = self.events.borrow_mut().blocking_recv().unwrap();
        match event {
            LinkEvent::Frame(frame) => Some(frame.message),
            LinkEvent::Up { .. } => None,
            LinkEvent::Stores(_) => self.next(),
            LinkEvent::Down { reason } => panic!("{reason}"),
            LinkEvent::Early => None,
            LinkEvent::Unreachable => panic!("unreachable"),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.client.close();
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

#[expect(clippy::print_stdout, reason = "a measurement prints what it measured")]
fn measure(shape: Option<Shape>) {
    let site = Site::start(shape);
    let (client, next) = (&site.client, || site.next());
    println!("{shape:?}");
    let limit = Duration::from_secs(2);
    for depth in [1, 32] {
        let begun = Instant::now();
        let mut done = 0;
        for request in 0..depth {
            client.send(Lane::Read, read(request));
        }
        while begun.elapsed() < limit {
            next();
            done += 1;
            client.send(Lane::Read, read(done));
        }
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        println!("  8 KiB reads, depth {depth}: {rate:.0} per second");
        for _ in 0..depth {
            next();
        }
    }
    let slow = shape.and_then(|shape| shape.rate).is_some_and(|rate| rate < 100_000_000);
    let bulk = Bytes::from(vec![7; if slow { 256 << 10 } else { 1 << 20 }]);
    let frame = |last| Frame {
        message: ToStore::Batch { volume: VolumeId(1), epoch: 1, first: last, last },
        payload: bulk.clone(),
    };
    // As much as 64 MiB of drain window, and a read at a time beside it.
    let p99 = |datagram: &mut Vec<Duration>| {
        datagram.sort_unstable();
        let at = |share: f64| {
            datagram[((datagram.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
        };
        format!("p50 {:.2} ms, p99 {:.2} ms of {}", at(0.5), at(0.99), datagram.len())
    };
    let mut datagram = Vec::new();
    for request in 0..100 {
        let begun = Instant::now();
        client.send(Lane::Read, read(request));
        next();
        datagram.push(begun.elapsed());
    }
    println!("  a read at a time: {}", p99(&mut datagram));
    datagram.clear();
    let depth = if slow { 16 } else { 40 };
    let warm_up = Duration::from_secs(2);
    let begun = Instant::now();
    (0..depth).for_each(|last| client.send(Lane::Drain, frame(last)));
    let (mut sent, mut done) = (depth, 0);
    let mut asked = Instant::now();
    client.send(Lane::Read, read(0));
    let before = client.status();
    while begun.elapsed() < warm_up + limit * 2 {
        match next() {
            Some(ToHost::Committed { .. }) => {
                sent += 1;
                done += u64::from(begun.elapsed() >= warm_up);
                client.send(Lane::Drain, frame(sent));
            }
            _ => {
                datagram.push(asked.elapsed());
                asked = Instant::now();
                client.send(Lane::Read, read(1));
            }
        }
    }
    let took = (begun.elapsed() - warm_up).as_secs_f64();
    let rate = (done * bulk.len() as u64) as f64 / 1e6 / took;
    let status = client.status();
    let lost = status.lost_bytes - before.lost_bytes;
    let all = status.sent_bytes - before.sent_bytes;
    println!("  drain: {rate:.1} MB/s, {:.2} % lost", 100.0 * lost as f64 / all as f64);
    println!("  a read at a time beside it: {}", p99(&mut datagram));
    println!("  {:?}", status.path);
}

/// A store that resumes, reads and commits at once, behind a relay, in a thread of its own.
struct Behind {
    relay: Relay,
    credential: Credential,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Behind {
    fn start(shape: Shape) -> Behind {
        let (ready, address) = std::sync::mpsc::channel();
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = async move {
            let mut store = store();
            ready.send((store.address, store.credential())).unwrap();
            loop {
                let event = tokio::select! {
                    event = store.listener.event() => event.unwrap(),
                    _ = &mut stopped => break,
                };
                let ListenerEvent::Frame { session, lane, frame } = event else { continue };
                match frame.message {
                    ToStore::Read { request, range, .. }
                    | ToStore::EarlyRead { request, range, .. } => {
                        store.listener.send(session, lane, data(request, range.bytes() as usize));
                    }
                    ToStore::Resume { request, .. } => {
                        let result = Err(longhaul_core::wire::link::AttachError::NotFound);
                        let reply = ToHost::Attached { request, result };
                        store.listener.send(session, lane, reply.into());
                    }
                    ToStore::Batch { last, .. } => {
                        let reply = ToHost::Committed { volume: VolumeId(1), epoch: 1, seq: last };
                        store.listener.send(session, Lane::Control, reply.into());
                    }
                    _ => {}
                }
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(serve);
        });
        let (address, credential) = address.recv().unwrap();
        let relay = Relay::start("127.0.0.1:0".parse().unwrap(), address, shape).unwrap();
        Behind { relay, credential, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self, transport: Transport) -> (Client, UnboundedReceiver<LinkEvent>) {
        let at = self.relay.address().to_string();
        Client::start(self.credential.clone(), Some(at), transport).unwrap()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// Measures the time from the return of a line that was away for `outage` to the first answer to a
/// read. It works like a host: Resume, and the read behind it, in the first flight if possible. It
/// also returns the time at which the link was up again.
fn after_outage(delay: Duration, outage: Duration) -> (f64, f64) {
    let behind = Behind::start(Shape { delay, ..Shape::default() });
    let (client, mut events) = behind.connect(Transport::Auto);
    while !matches!(events.blocking_recv().unwrap(), LinkEvent::Up { .. }) {}
    std::thread::sleep(Duration::from_millis(300));
    behind.relay.change(|shape| shape.cut = true);
    // A request in flight at the cut of the line, which the link sends again.
    client.send(Lane::Read, read(1));
    let ask = || {
        let host = longhaul_core::wire::link::HostId(1);
        let (volume, range) = (VolumeId(1), Range::new(0, 16));
        let resume = ToStore::Resume { request: 1, volume, epoch: 1, host };
        let read = ToStore::EarlyRead { request: 1, volume, epoch: 1, committed: 0, range };
        client.send(Lane::Control, resume.into());
        client.send(Lane::Read, read.into());
    };
    let (mut up, mut asked) = (f64::NAN, false);
    let cut = Instant::now();
    while cut.elapsed() < outage {
        match events.try_recv() {
            Ok(LinkEvent::Early) => {
                asked = true;
                ask();
            }
            Ok(LinkEvent::Down { .. } | LinkEvent::Unreachable) => asked = false,
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    behind.relay.change(|shape| shape.cut = false);
    let returned = Instant::now();
    loop {
        match events.blocking_recv().unwrap() {
            LinkEvent::Early => {
                asked = true;
                ask();
            }
            LinkEvent::Up { .. } => {
                up = returned.elapsed().as_secs_f64() * 1e3;
                if !asked {
                    ask();
                }
            }
            LinkEvent::Frame(Frame { message: ToHost::Data { .. }, .. }) => break,
            LinkEvent::Frame(_) => {}
            LinkEvent::Down { .. } | LinkEvent::Unreachable => asked = false,
            LinkEvent::Stores(_) => {}
        }
    }
    let read = returned.elapsed().as_secs_f64() * 1e3;
    client.close();
    (up, read)
}

/// For docs/performance-history.md:
/// `cargo test -p longhaul-link --lib outage_end -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "a measurement prints what it measured")]
fn outage_end() {
    for (delay, from, step) in [(8, 7000, 370), (100, 7000, 370), (8, 1500, 330), (100, 1500, 330)]
    {
        let threads: Vec<_> = (0..10)
            .map(|nth| {
                let outage = Duration::from_millis(from + nth * step);
                let delay = Duration::from_millis(delay);
                std::thread::spawn(move || after_outage(delay, outage))
            })
            .collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let mut up: Vec<_> = all.iter().map(|(up, _)| *up).collect();
        let mut read: Vec<_> = all.iter().map(|(_, read)| *read).collect();
        let mut set_up: Vec<_> = all.iter().map(|(up, read)| read - up).collect();
        for list in [&mut up, &mut read, &mut set_up] {
            list.sort_by(f64::total_cmp);
        }
        println!(
            "RTT {} ms, outages of {from} ms and more: up again p50 {:.0} max {:.0} ms, first read p50 {:.0} max {:.0} ms, \
             read after up p50 {:.0} ms",
            2 * delay,
            up[5],
            up[9],
            read[5],
            read[9],
            set_up[5]
        );
    }
}

/// Single commits with loss, for docs/performance-history.md:
/// `cargo test -p longhaul-link --lib commit_latency -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "a measurement prints what it measured")]
fn commit_latency() {
    for (delay, loss, bytes) in [(1, 0.01, 4 << 10), (8, 0.01, 4 << 10), (8, 0.01, 512)] {
        let shape = Shape { delay: Duration::from_millis(delay), loss, ..Shape::default() };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    let behind = Behind::start(shape);
                    let (client, mut events) = behind.connect(Transport::Quic);
                    while !matches!(events.blocking_recv().unwrap(), LinkEvent::Up { .. }) {}
                    let sent = client.status();
                    let mut took = Vec::new();
                    for last in 1..=2000 / delay.max(2) {
                        let begun = Instant::now();
                        let message =
                            ToStore::Batch { volume: VolumeId(1), epoch: 1, first: last, last };
                        let payload = Bytes::from(vec![7; bytes]);
                        client.set_drain_urgent(true);
                        client.send(Lane::Drain, Frame { message, payload });
                        loop {
                            let event = events.blocking_recv().unwrap();
                            let LinkEvent::Frame(frame) = event else { panic!("{event:?}") };
                            if matches!(frame.message, ToHost::Committed { seq, .. } if seq == last)
                            {
                                break;
                            }
                        }
                        took.push(begun.elapsed().as_secs_f64() * 1e3);
                        client.set_drain_urgent(false);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let now = client.status();
                    let bytes =
                        now.sent_bytes + now.received_bytes - sent.sent_bytes - sent.received_bytes;
                    client.close();
                    let each = bytes as f64 / took.len() as f64;
                    (took, each)
                })
            })
            .collect();
        let (mut took, mut each) = (Vec::new(), 0.0);
        for thread in threads {
            let (some, bytes) = thread.join().unwrap();
            took.extend(some);
            each += bytes / 4.0;
        }
        took.sort_by(f64::total_cmp);
        let of = |share: f64| took[((took.len() as f64 * share) as usize).min(took.len() - 1)];
        println!(
            "RTT {} ms, loss {loss}, {bytes} bytes: p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.2} ms of {}; {each:.0} bytes each",
            2 * delay,
            of(0.5),
            of(0.99),
            of(0.999),
            of(1.0),
            took.len()
        );
    }
}
