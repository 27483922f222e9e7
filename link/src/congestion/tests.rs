use super::bench::{Bench, Load, Path, SECOND, jain};
use super::control::Control;
use std::time::{Duration, Instant};

const ALWAYS: u64 = u64::MAX;
const PACKET: u64 = 1472;

/// Share of the line between two times.
fn share(bench: &Bench, flow: usize, path: Path, from: u64, to: u64) -> f64 {
    bench.rate(flow, from, to) / (path.rate / 1e6 * 1472.0 / 1500.0)
}

fn alone(path: Path, seconds: u64) -> (Bench, usize) {
    let mut bench = Bench::new(path);
    let flow = bench.ours(Load::Bulk, 0, ALWAYS);
    bench.run(seconds * SECOND + 1_000_000);
    (bench, flow)
}

/// Mb/s, RTT in ms, queue in products of both, and loss. Then two results after the first second
/// (the first two at RTT 100). They are the least share of the line, and the largest 99th
/// percentile of the queue in ms.
const LINES: [(f64, f64, f64, f64, f64, f64); 11] = [
    (1000.0, 0.2, 8.0, 0.0, 0.98, 1.0),
    (1000.0, 2.0, 1.0, 0.0, 0.98, 1.0),
    (1000.0, 16.0, 1.0, 0.0, 0.98, 1.5),
    (1000.0, 100.0, 1.0, 0.0, 0.94, 6.0),
    (1000.0, 16.0, 1.0, 1e-4, 0.98, 1.5),
    (1000.0, 16.0, 0.1, 0.0, 0.90, 1.6),
    (155.0, 16.0, 1.0, 7e-4, 0.98, 2.5),
    (155.0, 16.0, 1.0, 1e-2, 0.96, 2.5),
    (20.0, 16.0, 1.0, 0.0, 0.97, 6.0),
    (20.0, 2.0, 1.0, 0.0, 0.97, 6.0),
    (20.0, 100.0, 1.0, 1e-2, 0.94, 12.0),
];

#[test]
fn fills_the_line_with_a_short_queue_and_few_losses_of_its_own() {
    for (mbit, rtt, queue, loss, least, longest) in LINES {
        let path = Path::new(mbit, rtt, queue, loss);
        let (bench, flow) = alone(path, 6);
        let from = if rtt < 100.0 { SECOND } else { 2 * SECOND };
        let got = share(&bench, flow, path, from, 6 * SECOND);
        let p99 = bench.queue_ms(0.99, from, 6 * SECOND);
        let own = bench.own_loss(flow);
        let line = format!("{mbit} Mb/s, {rtt} ms, {queue} BDP, {loss}");
        assert!(got >= least, "{line}: {got} of the line");
        assert!(p99 <= longest, "{line}: {p99} ms of queue");
        assert!(own <= 0.02, "{line}: {own} lost in the queue");
    }
}

#[test]
fn a_machine_that_stalls_still_fills_most_of_the_line() {
    for (stall_ms, least) in [(5, 0.85), (10, 0.8), (20, 0.6), (40, 0.3)] {
        let path = Path { stall: stall_ms * 1_000_000, ..Path::new(1000.0, 16.0, 1.0, 1e-4) };
        let (bench, flow) = alone(path, 6);
        let got = share(&bench, flow, path, SECOND, 6 * SECOND);
        assert!(got >= least, "{stall_ms} ms: {got}");
    }
}

/// Mb/s, loss, jitter in ms each way, share reordered by 4 ms; RTT 16 ms, a queue of one product.
const UNSTEADY: [(f64, f64, u64, f64); 9] = [
    (155.0, 1e-4, 1, 0.0),
    (155.0, 1e-4, 2, 0.0),
    (155.0, 1e-4, 4, 0.0),
    (155.0, 1e-4, 8, 0.0),
    (155.0, 1e-2, 4, 0.0),
    (1000.0, 1e-4, 2, 0.0),
    (20.0, 1e-4, 4, 0.0),
    (155.0, 0.0, 0, 1e-3),
    (155.0, 0.0, 0, 1e-2),
];

fn unsteady(mbit: f64, loss: f64, jitter_ms: u64, reorder: f64) -> Path {
    let jitter = jitter_ms * 1_000_000;
    let reorder = (reorder, 4_000_000);
    Path { jitter, reorder, ..Path::new(mbit, 16.0, 1.0, loss) }
}

#[test]
fn shares_with_a_flow_of_tcp_cubic() {
    for (mbit, rtt, queue) in [
        (100.0, 16.0, 0.5),
        (100.0, 16.0, 1.0),
        (100.0, 16.0, 2.0),
        (20.0, 16.0, 1.0),
        (20.0, 50.0, 1.0),
        (100.0, 100.0, 1.0),
        (1000.0, 16.0, 0.5),
    ] {
        for (ours, theirs) in [(0, 3), (3, 0)] {
            let mut bench = Bench::new(Path::new(mbit, rtt, queue, 0.0));
            let flow = bench.ours(Load::Bulk, ours * SECOND, ALWAYS);
            let other = bench.cubic(theirs * SECOND, ALWAYS);
            bench.run(40 * SECOND + 1_000_000);
            let rates = [flow, other].map(|id| bench.rate(id, 10 * SECOND, 40 * SECOND));
            let line = format!("{mbit} Mb/s, {rtt} ms, {queue} BDP, ours from {ours} s");
            assert!(jain(&rates) >= 0.8, "{line}: {rates:?}");
            assert!(bench.own_loss(flow) <= 0.02, "{line}: {}", bench.own_loss(flow));
        }
    }
}

#[test]
fn keeps_most_of_a_line_that_jitters_or_reorders() {
    for (mbit, loss, jitter, reorder) in UNSTEADY {
        let path = unsteady(mbit, loss, jitter, reorder);
        let (bench, flow) = alone(path, 20);
        let got = share(&bench, flow, path, 0, 20 * SECOND);
        let line = format!("{mbit} Mb/s, loss {loss}, jitter {jitter} ms, {reorder} reordered");
        assert!(got >= if jitter > 0 { 0.6 } else { 0.95 }, "{line}: {got}");
        assert!(bench.own_loss(flow) <= 0.02, "{line}: {}", bench.own_loss(flow));
    }
}

#[test]
fn the_queue_is_short_again_once_the_other_flow_has_ended() {
    let path = Path::new(100.0, 16.0, 1.0, 0.0);
    let mut bench = Bench::new(path);
    let flow = bench.ours(Load::Bulk, 0, ALWAYS);
    bench.cubic(5 * SECOND, 20 * SECOND);
    bench.run(20 * SECOND);
    assert!(bench.estimate(flow).competing);
    bench.run(36 * SECOND + 1_000_000);
    assert!(!bench.estimate(flow).competing);
    let p99 = bench.queue_ms(0.99, 27 * SECOND, 36 * SECOND);
    assert!(p99 < 3.0, "{p99} ms");
    assert!(share(&bench, flow, path, 27 * SECOND, 36 * SECOND) > 0.95);
}

#[test]
fn flows_like_it_share_a_short_queue() {
    for (mbit, longest) in [(20.0, 12.0), (100.0, 5.0), (1000.0, 5.0)] {
        let mut bench = Bench::new(Path::new(mbit, 16.0, 1.0, 0.0));
        let first = bench.ours(Load::Bulk, 0, ALWAYS);
        let second = bench.ours(Load::Bulk, 3 * SECOND, ALWAYS);
        bench.run(20 * SECOND + 1_000_000);
        let rates = [first, second].map(|id| bench.rate(id, 10 * SECOND, 20 * SECOND));
        assert!(jain(&rates) >= 0.85, "{mbit} Mb/s: {rates:?}");
        assert!(rates.iter().sum::<f64>() > 0.95 * mbit, "{mbit} Mb/s: {rates:?}");
        let p50 = bench.queue_ms(0.5, 10 * SECOND, 20 * SECOND);
        assert!(p50 < longest, "{mbit} Mb/s: {p50} ms");
    }
}

#[test]
fn follows_a_path_that_changes() {
    let before = Path::new(100.0, 16.0, 1.0, 0.0);
    let slower = Path::new(20.0, 16.0, 5.0, 0.0);
    let faster = Path::new(200.0, 16.0, 0.5, 0.0);
    let longer = Path::new(200.0, 50.0, 0.5, 0.0);
    let mut bench = Bench::new(before);
    for (at, path) in [(5, slower), (10, faster), (15, longer)] {
        bench.change(at * SECOND, path);
    }
    let flow = bench.ours(Load::Bulk, 0, ALWAYS);
    bench.run(50 * SECOND + 1_000_000);
    assert!(share(&bench, flow, before, SECOND, 5 * SECOND) > 0.95);
    assert!(share(&bench, flow, slower, 6 * SECOND, 10 * SECOND) > 0.85);
    assert!(bench.queue_ms(0.99, 6 * SECOND, 10 * SECOND) < 10.0);
    assert!(share(&bench, flow, faster, 12 * SECOND, 15 * SECOND) > 0.9);
    let share_of_longer = share(&bench, flow, longer, 17 * SECOND, 50 * SECOND);
    assert!(share_of_longer > 0.9, "{share_of_longer}");
    assert!(bench.own_loss(flow) < 0.02);
}

/// Mb/s, round-trip time in ms before and after, stalls of the machine in ms.
const LONGER: [(f64, f64, f64, u64); 8] = [
    (155.0, 0.2, 16.0, 0),
    (155.0, 0.2, 16.0, 2),
    (155.0, 2.0, 16.0, 0),
    (155.0, 16.0, 32.0, 0),
    (20.0, 0.2, 16.0, 0),
    (1000.0, 0.2, 16.0, 0),
    (1000.0, 2.0, 50.0, 0),
    (155.0, 0.2, 100.0, 0),
];

/// Paths of a row of [`LONGER`], and the time by which the flow should have adapted to the second
/// path. The second path comes at 5 s. The flow has a second and five round trips.
fn longer((mbit, before, after, stall): (f64, f64, f64, u64)) -> (Path, Path, u64) {
    let stall = stall * 1_000_000;
    let path = |rtt: f64| Path { stall, ..Path::new(mbit, rtt, 16.0 / rtt.min(16.0), 0.0) };
    (path(before), path(after), 6 * SECOND + (5.0 * after * 1e6) as u64)
}

#[test]
fn a_way_that_becomes_longer_is_full_again_after_a_second() {
    for row in LONGER {
        let (before, after, adapted) = longer(row);
        let mut bench = Bench::new(before);
        bench.change(5 * SECOND, after);
        let flow = bench.ours(Load::Bulk, 0, ALWAYS);
        bench.run(15 * SECOND + 1_000_000);
        let got = share(&bench, flow, after, adapted, adapted + 3 * SECOND);
        let queue = bench.queue_ms(0.5, adapted, 15 * SECOND);
        let own = bench.own_loss(flow);
        assert!(got >= 0.9, "{row:?}: {got} of the line");
        assert!(queue <= if row.3 == 0 { 3.0 } else { 10.0 }, "{row:?}: {queue} ms of queue");
        assert!(own <= 0.02, "{row:?}: {own} lost in the queue");
    }
}

#[test]
fn comes_back_within_a_second_or_two_after_an_outage() {
    let path = Path::new(100.0, 16.0, 1.0, 0.0);
    let mut bench = Bench::new(path);
    bench.change(5 * SECOND, Path { rate: 0.0, ..path });
    bench.change(8 * SECOND, path);
    let flow = bench.ours(Load::Bulk, 0, ALWAYS);
    bench.run(14 * SECOND + 1_000_000);
    assert!(share(&bench, flow, path, 11 * SECOND, 14 * SECOND) > 0.95);
}

#[test]
fn bursts_neither_shrink_the_window_nor_flood_the_queue() {
    let path = Path::new(100.0, 16.0, 1.0, 0.0);
    let mut bench = Bench::new(path);
    // 40 Mb/s, each burst more than the path and its queue hold.
    let flow = bench.ours(Load::Bursts(500_000, SECOND / 10), 0, ALWAYS);
    bench.run(10 * SECOND + 1_000_000);
    assert!(bench.rate(flow, SECOND, 10 * SECOND) > 39.0);
    assert!(bench.own_loss(flow) < 0.02, "{}", bench.own_loss(flow));
    let window = bench.estimate(flow).window as f64;
    assert!((0.7..1.6).contains(&(window / 200_000.0)), "{window}");
}

/// One packet at a time, answered after `rtt`.
fn lone(control: &mut Control, from: Instant, count: u32, rtt: Duration) -> Instant {
    let mut now = from;
    for _ in 0..count {
        control.handle_sent(now, PACKET);
        let sent = now;
        now += rtt;
        control.handle_ack(now, sent, PACKET);
        control.handle_acks_end(now, 0);
        now += Duration::from_millis(5);
    }
    now
}

#[test]
fn lone_requests_on_a_slow_machine_leave_the_window_alone() {
    let start = Instant::now();
    let mut control = Control::new(start, PACKET);
    let window = control.window();
    let now = lone(&mut control, start, 100, Duration::from_millis(1));
    lone(&mut control, now, 1000, Duration::from_millis(9));
    assert_eq!(control.window(), window);
}

#[test]
fn a_lost_probe_of_everything_starts_anew() {
    let start = Instant::now();
    let mut control = Control::new(start, PACKET);
    let now = lone(&mut control, start, 10, Duration::from_millis(10));
    control.handle_sent(now, 10 * PACKET);
    control.handle_loss(now + Duration::from_secs(2), now, 10 * PACKET, true);
    assert_eq!(control.window(), 4 * PACKET);
}

#[test]
fn a_mark_counts_like_congestion() {
    let path = Path::new(100.0, 16.0, 1.0, 0.0);
    let (mut bench, flow) = alone(path, 3);
    let before = bench.estimate(flow).window;
    bench.mark(flow);
    bench.run(3 * SECOND + SECOND / 10);
    let after = bench.estimate(flow).window;
    assert!(after < before * 9 / 10, "{before} {after}");
}

/// Numbers for docs/performance-history.md:
/// `cargo test --release -p longhaul-link --lib bench_table -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table"]
#[expect(clippy::print_stdout, reason = "prints a table")]
fn bench_table() {
    for (mbit, rtt, queue, loss, ..) in LINES {
        let path = Path::new(mbit, rtt, queue, loss);
        let (bench, flow) = alone(path, 10);
        println!(
            "{mbit} Mb/s, RTT {rtt} ms, queue {queue} BDP, loss {loss}: {:.1} % of 10 s, {:.1} % of the last 5, \
             queue p50 {:.2} ms p99 {:.2} ms, lost in the queue {:.2} %",
            100.0 * share(&bench, flow, path, 0, 10 * SECOND),
            100.0 * share(&bench, flow, path, 5 * SECOND, 10 * SECOND),
            bench.queue_ms(0.5, 5 * SECOND, 10 * SECOND),
            bench.queue_ms(0.99, 5 * SECOND, 10 * SECOND),
            100.0 * bench.own_loss(flow),
        );
    }
    for stall in [5, 10, 20, 40] {
        let path = Path { stall: stall * 1_000_000, ..Path::new(1000.0, 16.0, 1.0, 1e-4) };
        let (bench, flow) = alone(path, 20);
        let got = 100.0 * share(&bench, flow, path, SECOND, 20 * SECOND);
        println!("1000 Mb/s, RTT 16 ms, loss 0.0001, stalls of up to {stall} ms: {got:.1} %");
    }
    for (mbit, loss, jitter, reorder) in UNSTEADY {
        let path = unsteady(mbit, loss, jitter, reorder);
        let mut beside = Bench::new(path);
        let cubic = beside.cubic(0, ALWAYS);
        beside.run(20 * SECOND + 1_000_000);
        let (bench, flow) = alone(path, 20);
        println!(
            "{mbit} Mb/s, RTT 16 ms, loss {loss}, jitter {jitter} ms, {reorder} reordered by 4 ms: {:.1} % of 20 s, \
             lost in the queue {:.2} %; CUBIC {:.1} %",
            100.0 * share(&bench, flow, path, 0, 20 * SECOND),
            100.0 * bench.own_loss(flow),
            100.0 * share(&beside, cubic, path, 0, 20 * SECOND),
        );
    }
    for (mbit, rtt) in
        [(20.0, 16.0), (20.0, 50.0), (100.0, 16.0), (100.0, 100.0), (155.0, 16.0), (1000.0, 16.0)]
    {
        for queue in [0.5, 1.0, 2.0] {
            for (ours, theirs) in [(0, 3), (3, 0)] {
                let mut bench = Bench::new(Path::new(mbit, rtt, queue, 0.0));
                let flow = bench.ours(Load::Bulk, ours * SECOND, ALWAYS);
                let other = bench.cubic(theirs * SECOND, ALWAYS);
                bench.run(60 * SECOND + 1_000_000);
                let rates = [flow, other].map(|id| bench.rate(id, 10 * SECOND, 60 * SECOND));
                println!(
                    "{mbit} Mb/s, RTT {rtt} ms, queue {queue} BDP, ours from {ours} s: ours {:.1}, CUBIC {:.1} Mb/s, \
                     Jain {:.2}, lost in the queue {:.2} %",
                    rates[0],
                    rates[1],
                    jain(&rates),
                    100.0 * bench.own_loss(flow)
                );
            }
        }
    }
}
