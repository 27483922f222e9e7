//! The whole emulator, with real sockets on both sides. No assert depends on how busy the machine
//! is.

use super::router::EARLY;
use super::traffic::{Flow, Sink, send};
use super::*;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

/// Whether a WAN can be had. Without it the test fails in CI (`CI=true`), and elsewhere says that
/// it did not run.
fn can_emulate() -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/net/tun").exists() {
        "/dev/net/tun"
    } else {
        return true;
    };
    let ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    assert!(!ci, "this test needs {missing}, and in CI (CI=true) no test may be left out");
    eprintln!("SKIPPED: it needs {missing}. Run `make test` as root to run it.");
    false
}

fn wan(line: LineConfig) -> Wan {
    Wan::start(&WanConfig::both(line, 1)).unwrap()
}

fn delay(ms: u64) -> LineConfig {
    LineConfig { delay: Duration::from_millis(ms), ..LineConfig::default() }
}

fn udp(wan: &Wan, side: Side, port: u16) -> UdpSocket {
    let socket = wan.inside(side, || Ok(UdpSocket::bind((wan.address(side), port))?)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
fn datagrams_arrive_intact_and_not_too_early() {
    if !can_emulate() {
        return;
    }
    let wan = wan(delay(5));
    let (host, store) = (udp(&wan, Side::Host, 0), udp(&wan, Side::Store, 7000));
    host.connect((wan.address(Side::Store), 7000)).unwrap();
    let mut buffer = vec![0; 65_536];
    let early = Duration::from_nanos(EARLY);
    // The last two are longer than the line's packets: IP cuts them.
    for length in [1, 100, 1472, 1473, 9000] {
        let message: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
        let start = Instant::now();
        host.send(&message).unwrap();
        let (got, from) = store.recv_from(&mut buffer).unwrap();
        assert!(start.elapsed() + early >= Duration::from_millis(5));
        assert_eq!(buffer[..got], message);
        store.send_to(&buffer[..got], from).unwrap();
        let got = host.recv(&mut buffer).unwrap();
        assert!(start.elapsed() + 2 * early >= Duration::from_millis(10));
        assert_eq!(buffer[..got], message);
    }
    let report = wan.report();
    assert_eq!((report.to_store.packets, report.to_host.packets), (12, 12));
    assert_eq!(report.to_store.delivered, 12);
    assert_eq!(report.to_host.bytes, 5 * 28 + (1 + 100 + 1472 + 1473 + 9000) + 7 * 20);
}

#[test]
fn a_tcp_stream_survives_loss_jitter_reordering_and_a_narrow_queue() {
    if !can_emulate() {
        return;
    }
    let wan = wan(LineConfig {
        jitter: Duration::from_millis(1),
        rate: Some(200_000_000),
        queue: 100_000,
        loss: 0.005,
        reorder: Some(Reorder { share: 0.01, by: Duration::from_millis(1) }),
        ..delay(1)
    });
    let address = (wan.address(Side::Store), 7001);
    let listener = wan.inside(Side::Store, || Ok(TcpListener::bind(address)?)).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let bytes: Vec<u8> = (0..4_000_000).map(|_| rng.u8(..)).collect();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = wan.inside(Side::Host, || Ok(TcpStream::connect(address)?)).unwrap();
        stream.write_all(&bytes).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(received == bytes, "{} of {} bytes, or others", received.len(), bytes.len());
    let report = wan.report();
    assert!(report.to_store.lost > 0 && report.to_store.reordered > 0, "{report:?}");
    assert!(report.to_store.packets > 2700, "counted as on the wire: {report:?}");
}

#[test]
fn what_is_lost_of_super_packets_is_what_does_not_arrive() {
    if !can_emulate() {
        return;
    }
    for (line, batch) in [
        (LineConfig { loss: 0.05, ..delay(1) }, 40),
        (LineConfig { rate: Some(50_000_000), queue: 100_000, ..delay(1) }, 40),
        (LineConfig { loss: 0.05, rate: Some(400_000_000), ..delay(1) }, 1),
    ] {
        let wan = wan(line);
        let sink = Sink::start(&wan).unwrap();
        let flow = Flow { packet_bytes: 1000, batch, rate: 20_000.0 };
        wan.mark();
        let sent = send(&wan, flow, Duration::from_millis(500)).unwrap();
        sink.settle(Duration::from_millis(300));
        let line = wan.report().to_store;
        assert_eq!((line.packets, line.bytes), (sent, sent * 1000));
        assert!(line.lost + line.queue_drops > 0, "{line:?}");
        assert_eq!(line.delivered, sent - line.lost - line.queue_drops);
        assert_eq!(sink.packets(flow), line.delivered);
        assert_eq!(line.delivered_bytes, line.delivered * 1000);
    }
}

#[test]
fn segments_keep_their_bytes_and_their_order() {
    if !can_emulate() {
        return;
    }
    let wan = wan(LineConfig { loss: 0.1, rate: Some(300_000_000), queue: 1_000_000, ..delay(1) });
    let (host, store) = (udp(&wan, Side::Host, 0), udp(&wan, Side::Store, 7002));
    host.connect((wan.address(Side::Store), 7002)).unwrap();
    store.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&store, 4 << 20).unwrap();
    let mut sent = Vec::new();
    for batch in 0..20u8 {
        // The last segment of each is shorter.
        let segments =
            (0..10u8).map(|index| vec![batch * 10 + index; if index < 9 { 1200 } else { 77 }]);
        let segments: Vec<Vec<u8>> = segments.collect();
        if batch % 2 == 0 {
            traffic::set_udp_option(&host, libc::UDP_SEGMENT, 1200).unwrap();
            host.send(&segments.concat()).unwrap();
        } else {
            // One by one: the router may put them together, and the kernel takes them apart again.
            traffic::set_udp_option(&host, libc::UDP_SEGMENT, 0).unwrap();
            segments.iter().for_each(|segment| assert!(host.send(segment).is_ok()));
        }
        sent.extend(segments);
    }
    let mut buffer = vec![0; 65_536];
    let mut received = Vec::new();
    while let Ok(length) = store.recv(&mut buffer) {
        received.push(buffer[..length].to_vec());
    }
    let line = wan.report().to_store;
    assert_eq!(received.len() as u64, 200 - line.lost);
    assert!(line.lost > 0);
    let mut expected = sent.into_iter();
    for datagram in &received {
        assert!(expected.any(|sent| sent == *datagram), "out of order or damaged");
    }
}

#[test]
fn lines_change_while_they_run() {
    if !can_emulate() {
        return;
    }
    let wan = wan(delay(1));
    let (host, store) = (udp(&wan, Side::Host, 0), udp(&wan, Side::Store, 7003));
    host.connect((wan.address(Side::Store), 7003)).unwrap();
    let mut buffer = [0; 100];
    host.send(b"before").unwrap();
    assert_eq!(store.recv(&mut buffer).unwrap(), 6);
    let down = LineConfig { outage: true, ..delay(1) };
    wan.set(&WanConfig { to_store: down, to_host: delay(1), seed: 1 });
    // The router works in order: after the answer the line is down.
    let _ = wan.report();
    host.send(b"lost").unwrap();
    while wan.report().to_store.outage_drops == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    wan.set(&WanConfig::both(delay(30), 1));
    let _ = wan.report();
    let start = Instant::now();
    host.send(b"after it").unwrap();
    assert_eq!(store.recv(&mut buffer).unwrap(), 8);
    assert!(start.elapsed() + Duration::from_nanos(EARLY) >= Duration::from_millis(30));
    let report = wan.report();
    assert_eq!((report.to_store.outage_drops, report.to_store.delivered), (1, 2));
}

#[test]
fn processes_inside_end_with_the_wan() {
    if !can_emulate() {
        return;
    }
    let wan = wan(delay(1));
    // One that does not want to.
    let script = "trap '' TERM; echo ready; while true; do sleep 0.05; done";
    let mut shell = wan.command(Side::Store, Path::new("/bin/sh"));
    let mut child = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    drop(wan);
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn nonsense_is_refused() {
    let line = LineConfig { loss: 2.0, ..delay(1) };
    let error = Wan::start(&WanConfig::both(line, 0)).err().unwrap();
    assert!(error.to_string().contains("loss of 2"), "{error:#}");
}
