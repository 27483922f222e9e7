//! The model against what it promises. Seeds are fixed: nothing here can come out differently.

use super::*;
use crate::wan::config::{Background, GilbertElliott, Outages, Reorder};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;

fn delay(ms: u64) -> LineConfig {
    LineConfig { delay: Duration::from_millis(ms), ..LineConfig::default() }
}

fn due(fate: Fate) -> Option<Nanos> {
    match fate {
        Fate::Arrives { due, .. } => Some(due),
        _ => None,
    }
}

/// Fates of `count` packets of 1500 bytes, one every `gap`.
fn fates(line: &mut Line, count: u64, gap: Nanos) -> Vec<Fate> {
    (0..count).map(|index| line.offer(index * gap, 1500)).collect()
}

fn lost(fates: &[Fate]) -> usize {
    fates.iter().filter(|fate| **fate == Fate::Lost).count()
}

#[test]
fn a_perfect_line_delays_and_nothing_else() {
    let mut line = Line::new(delay(8), 0);
    for (index, fate) in fates(&mut line, 1000, 12_000).into_iter().enumerate() {
        assert_eq!(due(fate), Some(index as u64 * 12_000 + 8 * MS));
    }
}

#[test]
fn bottleneck_sends_at_its_rate() {
    for rate in [20_000_000u64, 155_000_000, 1_000_000_000] {
        let config = LineConfig { rate: Some(rate), queue: u64::MAX, ..delay(1) };
        let mut line = Line::new(config, 0);
        let last = fates(&mut line, 10_000, 0).into_iter().filter_map(due).max().unwrap();
        let seconds = 10_000.0 * 1500.0 * 8.0 / rate as f64;
        let measured = (last - MS) as f64 / 1e9;
        assert!((measured / seconds - 1.0).abs() < 1e-4, "{rate}: {measured} s, not {seconds} s");
    }
}

#[test]
fn queue_is_bounded_in_bytes_and_drops_its_tail() {
    let config = LineConfig { rate: Some(1_000_000_000), queue: 150_000, ..delay(0) };
    let mut line = Line::new(config, 0);
    let burst = fates(&mut line, 300, 0);
    assert_eq!(burst.iter().filter(|fate| due(**fate).is_some()).count(), 100);
    assert!(burst[100..].iter().all(|fate| *fate == Fate::QueueFull));
    // 12 µs a packet: after 36 µs there is room for three, and for many small ones instead of one.
    for _ in 0..3 {
        assert!(due(line.offer(36_000, 1500)).is_some());
    }
    assert_eq!(line.offer(36_000, 1500), Fate::QueueFull);
    assert!((0..37).all(|_| due(line.offer(48_000, 40)).is_some()));
    assert_eq!(line.offer(48_000, 40), Fate::QueueFull);
    // An idle line takes any packet.
    assert!(due(line.offer(SECOND, 1_000_000)).is_some());
}

#[test]
fn random_loss_is_as_set() {
    for (loss, packets) in
        [(0.1, 1_000_000), (1e-2, 2_000_000), (7e-4, 20_000_000), (1e-4, 40_000_000)]
    {
        let mut line = Line::new(LineConfig { loss, ..LineConfig::default() }, 11);
        let count = (0..packets).filter(|_| line.offer(0, 1500) == Fate::Lost).count();
        let measured = count as f64 / f64::from(packets);
        assert!((measured / loss - 1.0).abs() < 0.05, "{loss}: {measured}");
    }
}

#[test]
fn random_losses_are_independent() {
    let mut line = Line::new(LineConfig { loss: 0.1, ..LineConfig::default() }, 5);
    let fates = fates(&mut line, 1_000_000, 0);
    let pairs = fates.windows(2).filter(|pair| pair[0] == Fate::Lost && pair[1] == Fate::Lost);
    let share = pairs.count() as f64 / lost(&fates) as f64;
    assert!((share - 0.1).abs() < 0.005, "{share}");
}

#[test]
fn bursts_have_their_share_and_length() {
    for (good, bad, loss) in [(1000.0, 10.0, 1.0), (200.0, 4.0, 1.0), (1000.0, 20.0, 0.5)] {
        let burst_loss = Some(GilbertElliott { good, bad, loss });
        let mut line = Line::new(LineConfig { burst_loss, ..LineConfig::default() }, 3);
        let fates = fates(&mut line, 4_000_000, 0);
        let share = lost(&fates) as f64 / fates.len() as f64;
        let wanted = loss * bad / (good + bad);
        assert!((share / wanted - 1.0).abs() < 0.05, "{good} {bad}: {share}");
        if loss > 0.99 {
            let starts = fates.windows(2).filter(|p| p[0] != Fate::Lost && p[1] == Fate::Lost);
            let length = lost(&fates) as f64 / starts.count() as f64;
            assert!((length / bad - 1.0).abs() < 0.05, "{good} {bad}: {length} packets");
        }
    }
}

#[test]
fn a_lost_packet_has_taken_its_time_at_the_bottleneck() {
    let config = LineConfig { rate: Some(1_000_000_000), loss: 0.5, queue: u64::MAX, ..delay(0) };
    let mut line = Line::new(config, 1);
    let last = fates(&mut line, 10_000, 0).into_iter().filter_map(due).max().unwrap();
    assert!(last > 119 * MS, "{last}");
}

#[test]
fn jitter_stays_in_its_range_varies_and_never_reorders() {
    for (jitter, gap) in [(1, 12_000), (5, 200_000), (50, 1_000), (100, 30 * MS)] {
        let config = LineConfig { jitter: Duration::from_millis(jitter), ..delay(8) };
        let mut line = Line::new(config, 9);
        let mut last = 0;
        let (mut least, mut most) = (Nanos::MAX, 0);
        for index in 0..200_000 {
            let now = index * gap;
            let due = due(line.offer(now, 1500)).unwrap();
            assert!(due >= last);
            last = due;
            least = least.min(due - now);
            most = most.max(due - now);
        }
        assert!(least >= 8 * MS && most <= (8 + jitter) * MS, "{least} {most}");
        assert!(most - least > jitter * MS / 10, "{jitter} ms: from {least} to {most}");
    }
}

#[test]
fn a_share_is_overtaken_by_as_much_as_said_and_nothing_else_is() {
    let reorder = Some(Reorder { share: 0.01, by: Duration::from_millis(2) });
    let mut line = Line::new(LineConfig { reorder, ..delay(8) }, 4);
    let mut count = 0;
    let mut last = 0;
    for index in 0..400_000 {
        let now = index * 12_000;
        let Fate::Arrives { due, late, .. } = line.offer(now, 1500) else { panic!("lost") };
        assert_eq!(due, now + if late { 10 * MS } else { 8 * MS });
        assert!(late || due >= last);
        if !late {
            last = due;
        }
        count += u32::from(late);
    }
    assert!((f64::from(count) / 4000.0 - 1.0).abs() < 0.05, "{count}");
}

#[test]
fn outages_come_when_they_should() {
    let outages = Outages {
        after: Duration::from_secs(10),
        length: Duration::from_secs(1),
        every: Duration::from_secs(30),
    };
    let mut line = Line::new(LineConfig { outages: Some(outages.clone()), ..delay(1) }, 0);
    let down: Vec<Nanos> =
        (0..1000).filter(|tenth| line.offer(tenth * SECOND / 10, 60) == Fate::Outage).collect();
    assert_eq!(down, (100..110).chain(400..410).chain(700..710).collect::<Vec<_>>());

    let once = Outages { every: Duration::ZERO, ..outages };
    let mut line = Line::new(LineConfig { outages: Some(once), ..delay(1) }, 0);
    let down = (0..1000).filter(|tenth| line.offer(tenth * SECOND / 10, 60) == Fate::Outage);
    assert_eq!(down.count(), 10);

    line.set(100 * SECOND, LineConfig { outage: true, ..delay(1) });
    assert_eq!(line.offer(100 * SECOND, 60), Fate::Outage);
    line.set(101 * SECOND, delay(1));
    assert_eq!(due(line.offer(101 * SECOND, 60)), Some(101 * SECOND + MS));
}

#[test]
fn background_takes_its_share_of_the_bottleneck_and_does_not_back_off() {
    let rate = 155_000_000;
    let with = |load| {
        let background = Some(Background { load });
        let config = LineConfig { rate: Some(rate), queue: 256 << 10, background, ..delay(0) };
        let mut line = Line::new(config, 6);
        // As much as the line carries: all that the background leaves.
        let gap = 1500 * 8 * SECOND / rate;
        let mut through = 0;
        for index in 0..20 * SECOND / gap {
            through += u64::from(due(line.offer(index * gap, 1500)).is_some());
        }
        (through as f64 * 1500.0 * 8.0 / 20.0 / 1e6, line.background())
    };
    let (alone, none) = with(0.0);
    assert!((alone - 155.0).abs() < 1.0 && none == BackgroundCount::default(), "{alone}");
    let (beside, background) = with(0.7);
    // Both lose at the full queue, the larger packets more often.
    assert!(beside < 95.0, "{beside} Mb/s beside 106");
    let offered = background.bytes as f64 * 8.0 / 20.0 / 1e6;
    assert!((offered - 106.0).abs() < 4.0, "{offered} Mb/s of background");
    assert!(background.queue_drops > 0);
}

#[test]
fn a_new_rate_goes_for_what_waits() {
    let slow = LineConfig { rate: Some(20_000_000), queue: 2_000_000, ..delay(10) };
    let fast = LineConfig { rate: Some(1_000_000_000), ..slow.clone() };
    let mut line = Line::new(slow, 0);
    let before: Vec<Fate> = fates(&mut line, 1000, 0);
    let replan = line.set(10 * MS, fast.clone());
    assert!(replan.is_needed());
    let moved: Vec<Nanos> = before
        .iter()
        .map(|fate| match *fate {
            Fate::Arrives { left, due, .. } => replan.due(left, due),
            _ => panic!("dropped"),
        })
        .collect();
    // 10 ms at 20 Mb/s are 16.7 packets; the other 983.3 take 11.8 ms at 1 Gb/s.
    assert_eq!(moved[0], 10_600_000, "it had left");
    assert!(moved.is_sorted());
    let last = moved[999] as f64 / 1e6;
    assert!((last - (10.0 + 11.8 + 10.0)).abs() < 0.01, "{last} ms");
    // The next one queues behind them, and there is room for it.
    let next = due(line.offer(10 * MS, 1500)).unwrap();
    assert!(next >= moved[999] && next - moved[999] < 13_000, "{next}");
    // Without a bottleneck nothing waits.
    let replan = line.set(11 * MS, delay(10));
    assert_eq!(replan.left(20 * MS), 11 * MS);
    assert_eq!(replan.left(5 * MS), 5 * MS);
}

#[test]
fn a_shorter_delay_does_not_reorder() {
    let mut line = Line::new(delay(50), 0);
    let first = due(line.offer(0, 60)).unwrap();
    line.set(MS, delay(1));
    assert_eq!(due(line.offer(MS, 60)), Some(first));
    assert_eq!(due(line.offer(60 * MS, 60)), Some(61 * MS));
}

#[test]
fn same_seed_same_fates() {
    let config = LineConfig {
        rate: Some(155_000_000),
        loss: 0.01,
        jitter: Duration::from_millis(2),
        burst_loss: Some(GilbertElliott { good: 500.0, bad: 5.0, loss: 0.8 }),
        reorder: Some(Reorder { share: 0.01, by: Duration::from_millis(1) }),
        background: Some(Background { load: 0.6 }),
        ..delay(3)
    };
    let run = |seed| fates(&mut Line::new(config.clone(), seed), 100_000, 70_000);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
