//! Why a host cannot do all that it is there for, as `/readyz` says it.

use super::report::{HostReport, VolumeReport};
use longhaul_api::admin::Unready;

/// How long the store may be out of reach before that is a reason: longer than a store takes to be
/// restarted.
const LINK_GRACE_SECONDS: f64 = 30.0;

/// The share of a journal that is full when writes wait for room in it.
const FULL_SHARE: f64 = 0.9;

/// The reasons, those of the host as a whole first.
pub fn reasons(report: &HostReport) -> Vec<Unready> {
    let mut reasons = Vec::new();
    if report.stopping {
        let detail = "the host is shutting down".to_owned();
        reasons.push(Unready { reason: "shutting-down", volume: None, detail });
    }
    let link = &report.link;
    if !link.up && link.since_seconds > LINK_GRACE_SECONDS {
        let why = link.last_error.as_deref().unwrap_or("not connected yet");
        let detail = format!("no store for {:.0} s: {why}", link.since_seconds);
        reasons.push(Unready { reason: "link-down", volume: None, detail });
    }
    for damaged in &report.damaged {
        let (volume, detail) = (Some(damaged.id.clone()), damaged.problem.clone());
        reasons.push(Unready { reason: "description-damaged", volume, detail });
    }
    for volume in &report.volumes {
        for (reason, detail) in of_volume(volume) {
            reasons.push(Unready { reason, volume: Some(volume.name.clone()), detail });
        }
    }
    reasons
}

fn of_volume(volume: &VolumeReport) -> Vec<(&'static str, String)> {
    let why = |text: &str| volume.reason.clone().unwrap_or_else(|| text.to_owned());
    let mut reasons = Vec::new();
    match volume.state.as_str() {
        "fenced" => reasons.push(("fenced", why("another host has attached it"))),
        "refused" => reasons.push(("unattachable", why("it cannot be attached"))),
        "stopped" if !volume.journal.journal_failed => {
            reasons.push(("unattachable", why("it cannot be attached")));
        }
        _ => {}
    }
    if volume.journal.journal_failed {
        reasons.push(("journal-failed", why("its journal has failed")));
    }
    if volume.at_store.no_space {
        let text = "its tenant is over the quota of stored bytes: new data is refused";
        reasons.push(("out-of-space", text.to_owned()));
    }
    let full = volume.journal.journal_bytes as f64
        >= volume.journal.journal_capacity_bytes as f64 * FULL_SHARE;
    if full && volume.journal.journal_capacity_bytes > 0 && volume.waiting.waiting_writes > 0 {
        let text = "its journal is full, writes wait for the store";
        reasons.push(("journal-full", text.to_owned()));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(state: &str) -> VolumeReport {
        let (name, reason) = ("v".to_owned(), Some("why".to_owned()));
        VolumeReport { name, reason, state: state.into(), ..VolumeReport::default() }
    }

    #[test]
    fn each_state_has_its_reason() {
        let name = |volume: &VolumeReport| {
            of_volume(volume).into_iter().map(|(reason, _)| reason).collect::<Vec<_>>()
        };
        let cases: [(&str, &[&str]); 7] = [
            ("attached", &[]),
            ("attaching", &[]),
            ("detaching", &[]),
            ("left", &[]),
            ("fenced", &["fenced"]),
            ("refused", &["unattachable"]),
            ("stopped", &["unattachable"]),
        ];
        for (state, reasons) in cases {
            assert_eq!(name(&volume(state)), reasons, "{state}");
        }
        assert_eq!(of_volume(&volume("fenced"))[0].1, "why");
        let mut failed = volume("stopped");
        failed.journal.journal_failed = true;
        assert_eq!(name(&failed), ["journal-failed"]);
        let mut full = volume("attached");
        (full.journal.journal_bytes, full.journal.journal_capacity_bytes) = (95, 100);
        (full.waiting.waiting_writes, full.at_store.no_space) = (1, true);
        assert_eq!(name(&full), ["out-of-space", "journal-full"]);
        (full.waiting.waiting_writes, full.at_store.no_space) = (0, false);
        assert!(name(&full).is_empty());
    }
}
