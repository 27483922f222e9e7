//! The negotiation of every key.

use super::*;
use crate::front::iscsi::exchange::tests::config;
use crate::front::iscsi::text::{TextPair, parse};
use proptest::prelude::*;

/// The answers to the keys of one request, with `|` for nulls, and the resulting parameters.
fn negotiate(
    negotiation: &mut Negotiation,
    config: &Config,
    text: &str,
) -> Result<(String, Parameters), String> {
    let text = text.replace('|', "\0");
    let mut answer = ResponseText::default();
    negotiation.handle(config, &parse(text.as_bytes()).unwrap(), &mut answer)?;
    Ok((said(answer), negotiation.settle()))
}

fn said(answer: ResponseText) -> String {
    String::from_utf8(answer.send().cut(usize::MAX).to_vec()).unwrap().replace('\0', "|")
}

fn alone(text: &str) -> Result<(String, Parameters), String> {
    negotiate(&mut Negotiation::new(false, true), &config(), text)
}

fn defaults() -> Parameters {
    Negotiation::new(false, true).settle()
}

/// All keys of §13: offer, answer, and the difference from the defaults.
#[test]
fn every_key() {
    type Set = fn(&mut Parameters);
    let same: Set = |_| {};
    let table: &[(&str, &str, Set)] = &[
        ("HeaderDigest=CRC32C,None", "CRC32C", |p| p.header_digest = true),
        ("HeaderDigest=None,CRC32C", "None", same),
        ("HeaderDigest=X-foo,CRC32C", "CRC32C", |p| p.header_digest = true),
        ("DataDigest=CRC32C", "CRC32C", |p| p.data_digest = true),
        ("DataDigest=None", "None", same),
        ("MaxConnections=3", "3", |p| p.max_connections = 3),
        ("MaxConnections=8", "4", |p| p.max_connections = 4),
        ("MaxConnections=65535", "4", |p| p.max_connections = 4),
        ("MaxConnections=0", "Reject", same),
        ("MaxConnections=65536", "Reject", same),
        ("MaxConnections=?", "Reject", same),
        ("MaxConnections=", "Reject", same),
        ("MaxConnections=None", "Reject", same),
        ("InitialR2T=Yes", "Yes", same),
        ("InitialR2T=No", "No", |p| p.initial_r2t = false),
        ("InitialR2T=no", "Reject", same),
        ("InitialR2T=?", "Reject", same),
        ("ImmediateData=Yes", "Yes", same),
        ("ImmediateData=No", "No", |p| p.immediate_data = false),
        ("ImmediateData=1", "Reject", same),
        ("MaxBurstLength=4096", "4096", |p| (p.max_burst, p.first_burst) = (4096, 4096)),
        ("MaxBurstLength=0x1000", "4096", |p| (p.max_burst, p.first_burst) = (4096, 4096)),
        ("MaxBurstLength=16777215", "1048576", |p| p.max_burst = 1 << 20),
        ("MaxBurstLength=16777216", "Reject", same),
        ("MaxBurstLength=511", "Reject", same),
        ("MaxBurstLength=0512", "Reject", same),
        ("FirstBurstLength=512", "512", |p| p.first_burst = 512),
        ("FirstBurstLength=16777215", "262144", |p| p.first_burst = 1 << 18),
        ("FirstBurstLength=511", "Reject", same),
        ("DefaultTime2Wait=0", "0", |p| p.time2wait = 0),
        ("DefaultTime2Wait=3600", "3600", |p| p.time2wait = 3600),
        ("DefaultTime2Wait=3601", "Reject", same),
        ("DefaultTime2Retain=0", "0", |p| p.time2retain = 0),
        ("DefaultTime2Retain=3600", "20", same),
        ("DefaultTime2Retain=-1", "Reject", same),
        ("MaxOutstandingR2T=1", "1", same),
        ("MaxOutstandingR2T=65535", "8", |p| p.max_outstanding_r2t = 8),
        ("MaxOutstandingR2T=0", "Reject", same),
        ("DataPDUInOrder=No", "Yes", same),
        ("DataPDUInOrder=Yes", "Yes", same),
        ("DataSequenceInOrder=No", "Yes", same),
        ("DataSequenceInOrder=Maybe", "Reject", same),
        ("ErrorRecoveryLevel=0", "0", same),
        ("ErrorRecoveryLevel=1", "1", |p| p.error_recovery_level = 1),
        ("ErrorRecoveryLevel=2", "2", |p| p.error_recovery_level = 2),
        ("ErrorRecoveryLevel=3", "Reject", same),
        ("iSCSIProtocolLevel=0", "0", |p| p.protocol_level = 0),
        ("iSCSIProtocolLevel=1", "1", same),
        ("iSCSIProtocolLevel=31", "2", |p| p.protocol_level = 2),
        ("iSCSIProtocolLevel=32", "Reject", same),
        ("TaskReporting=RFC3720", "RFC3720", same),
        ("TaskReporting=ResponseFence,RFC3720", "ResponseFence", |p| {
            p.task_reporting = TaskReporting::ResponseFence;
        }),
        ("TaskReporting=X,FastAbort", "FastAbort", |p| p.task_reporting = TaskReporting::FastAbort),
        ("TaskReporting=X", "Reject", same),
        ("IFMarker=Yes", "No", same),
        ("IFMarker=No", "No", same),
        ("OFMarker=Yes", "No", same),
        ("OFMarker=?", "Reject", same),
        ("IFMarkInt=1~65535", "Reject", same),
        ("OFMarkInt=2048", "Reject", same),
    ];
    for (offer, answer, set) in table {
        let mut wanted = defaults();
        set(&mut wanted);
        let key = offer.split('=').next().unwrap();
        let result = alone(&format!("{offer}|"));
        assert_eq!(result, Ok((format!("{key}={answer}|"), wanted)), "{offer}");
    }
    for (key, place) in KEYS {
        let shown = table.iter().any(|(offer, ..)| offer.split('=').next() == Some(*key));
        let declared = *key == "MaxRecvDataSegmentLength";
        assert_eq!(*place == KeyUse::Operational, shown || declared, "{key} is not in the table");
    }
}

#[test]
fn declarations_have_no_answer() {
    let (answer, parameters) = alone("MaxRecvDataSegmentLength=16777215|").unwrap();
    assert_eq!((answer.as_str(), parameters.initiator_data_segment), ("", 0xff_ffff));
    for value in ["511", "16777216", "", "Reject", "1e4"] {
        assert!(alone(&format!("MaxRecvDataSegmentLength={value}|")).is_err(), "{value}");
    }
    let mut answer = ResponseText::default();
    let mut negotiation = Negotiation::new(false, true);
    assert!(negotiation.declare(&config(), &mut answer));
    assert!(!negotiation.declare(&config(), &mut answer));
    assert_eq!(said(answer), "MaxRecvDataSegmentLength=262144|");
    assert_eq!(negotiation.settle().target_data_segment, 262_144);
}

#[test]
fn digests_must_be_had() {
    for text in ["HeaderDigest=SHA|", "DataDigest=|", "DataDigest=crc32c|", "HeaderDigest=Reject|"]
    {
        assert!(alone(text).is_err(), "{text}");
    }
}

#[test]
fn the_first_burst_depends_on_others() {
    // The order within a request does not matter.
    for (text, answer) in [
        (
            "FirstBurstLength=262144|MaxBurstLength=65536|",
            "MaxBurstLength=65536|FirstBurstLength=65536|",
        ),
        (
            "FirstBurstLength=262144|InitialR2T=Yes|ImmediateData=No|",
            "InitialR2T=Yes|ImmediateData=No|FirstBurstLength=Irrelevant|",
        ),
        ("FirstBurstLength=4096|ImmediateData=Yes|", "ImmediateData=Yes|FirstBurstLength=4096|"),
    ] {
        assert_eq!(alone(text).unwrap().0, answer);
    }
}

#[test]
fn irrelevant_keys() {
    let session = "MaxConnections=2|InitialR2T=No|ImmediateData=No|MaxBurstLength=512|\
                   MaxOutstandingR2T=2|DataPDUInOrder=No|DataSequenceInOrder=No|\
                   TaskReporting=FastAbort|iSCSIProtocolLevel=2|FirstBurstLength=512|";
    let irrelevant: String = session
        .split_terminator('|')
        .map(|pair| format!("{}=Irrelevant|", pair.split('=').next().unwrap()))
        .collect();
    let discovery = || Negotiation::new(true, true);
    let joining = || Negotiation::new(false, false);
    let (answer, parameters) = negotiate(&mut discovery(), &config(), session).unwrap();
    assert_eq!((answer, parameters), (irrelevant.clone(), defaults()));
    assert_eq!(negotiate(&mut joining(), &config(), session).unwrap().0, irrelevant);
    // A discovery session has no recovery, but has its times.
    let text = "ErrorRecoveryLevel=2|DefaultTime2Wait=5|HeaderDigest=CRC32C|";
    let answer = negotiate(&mut discovery(), &config(), text).unwrap().0;
    assert_eq!(answer, "ErrorRecoveryLevel=0|DefaultTime2Wait=5|HeaderDigest=CRC32C|");
    let answer = negotiate(&mut joining(), &config(), text).unwrap().0;
    assert_eq!(
        answer,
        "ErrorRecoveryLevel=Irrelevant|DefaultTime2Wait=Irrelevant|HeaderDigest=CRC32C|"
    );
}

#[test]
fn a_small_target_makes_offers() {
    let config = Config { max_burst: 65_536, first_burst: 8192, ..config() };
    let offered = || {
        let mut negotiation = Negotiation::new(false, true);
        assert!(negotiation.is_lacking(&config));
        let mut answer = ResponseText::default();
        assert!(negotiation.offer(&config, &mut answer));
        assert!(!negotiation.offer(&config, &mut answer), "an offer is made once");
        assert_eq!(said(answer), "MaxBurstLength=65536|FirstBurstLength=8192|");
        negotiation
    };
    let mut negotiation = offered();
    let text = "MaxBurstLength=32768|FirstBurstLength=8192|";
    let (answer, parameters) = negotiate(&mut negotiation, &config, text).unwrap();
    assert_eq!(answer, "", "an answer is not answered");
    assert_eq!((parameters.max_burst, parameters.first_burst), (32_768, 8192));
    assert!(!negotiation.is_lacking(&config));
    let text = "MaxBurstLength=65536|FirstBurstLength=Irrelevant|";
    assert_eq!(negotiate(&mut offered(), &config, text).unwrap().1.first_burst, 8192);
    for bad in ["65537", "511", "Reject", "NotUnderstood", "Irrelevant", ""] {
        let text = format!("MaxBurstLength={bad}|");
        assert!(negotiate(&mut offered(), &config, &text).is_err(), "{bad}");
    }
    // The target makes no offer for a key that the initiator offered. A rejected offer cannot be
    // repaired.
    let mut negotiation = Negotiation::new(false, true);
    let text = "MaxBurstLength=1048576|FirstBurstLength=1048576|";
    let (answer, _) = negotiate(&mut negotiation, &config, text).unwrap();
    assert_eq!(answer, "MaxBurstLength=65536|FirstBurstLength=8192|");
    assert!(!negotiation.is_lacking(&config));
    assert!(negotiate(&mut Negotiation::new(false, true), &config, "MaxBurstLength=1|").is_err());
    // Without unsolicited data there is no first burst, and discovery sessions have no bursts.
    let mut negotiation = Negotiation::new(false, true);
    negotiate(&mut negotiation, &config, "ImmediateData=No|MaxBurstLength=512|").unwrap();
    assert!(!negotiation.is_lacking(&config));
    assert!(!Negotiation::new(true, true).is_lacking(&config));
    assert!(!Negotiation::new(false, false).is_lacking(&config));
}

#[test]
fn configuration_out_of_range_is_brought_in() {
    let config = Config {
        max_burst: u32::MAX,
        first_burst: u32::MAX,
        max_recv_data_segment: u32::MAX,
        max_connections: 0,
        max_outstanding_r2t: 0,
        ..config()
    };
    let text =
        "MaxBurstLength=16777215|FirstBurstLength=16777215|MaxConnections=2|MaxOutstandingR2T=2|";
    let (answer, _) = negotiate(&mut Negotiation::new(false, true), &config, text).unwrap();
    assert_eq!(
        answer,
        "MaxBurstLength=16777215|MaxConnections=1|MaxOutstandingR2T=1|FirstBurstLength=16777215|"
    );
}

proptest! {
    /// Any offers: the answer has one pair for each, and the results are in range.
    #[test]
    fn any_offer(
        offers in prop::collection::vec((0..KEYS.len(), prop_oneof![
            any::<u32>().prop_map(|n| n.to_string()),
            (0..70_000u32).prop_map(|n| n.to_string()),
            Just("Yes".to_owned()), Just("No".to_owned()), Just("CRC32C".to_owned()),
            "[ -~]{0,20}",
        ]), 0..12),
        discovery: bool, leading: bool, small: bool,
    ) {
        let mut config = config();
        if small {
            (config.max_burst, config.first_burst) = (4096, 1024);
        }
        let pairs: Vec<TextPair<'_>> =
            offers.iter().map(|(key, value)| TextPair { key: KEYS[*key].0, value }).collect();
        let mut negotiation = Negotiation::new(discovery, leading);
        let mut answer = ResponseText::default();
        if negotiation.handle(&config, &pairs, &mut answer).is_err() {
            return Ok(());
        }
        let silent = pairs.iter().filter(|pair| pair.key == "MaxRecvDataSegmentLength").count();
        prop_assert_eq!(said(answer).matches('|').count(), pairs.len() - silent);
        let p = negotiation.settle();
        prop_assert!(p.first_burst <= p.max_burst);
        prop_assert!(LENGTHS.contains(&u64::from(p.first_burst)));
        prop_assert!((512..=0xff_ffff).contains(&p.initiator_data_segment));
        prop_assert!(p.max_connections >= 1 && p.max_connections <= config.max_connections);
        prop_assert!(p.max_outstanding_r2t >= 1 && p.max_outstanding_r2t <= 8);
        prop_assert!(p.error_recovery_level <= 2 && p.time2retain <= 20 && p.time2wait <= 3600);
        prop_assert!(p.data_pdu_in_order && p.data_sequence_in_order);
        if !negotiation.is_lacking(&config) && leading && !discovery {
            prop_assert!(p.max_burst <= config.max_burst);
        }
    }
}
