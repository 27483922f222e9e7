use super::*;

/// Sees to it that every tag is closed in order, every attribute quoted, and no place undefined.
pub fn well_formed(svg: &str) {
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let mut open: Vec<&str> = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(
                ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                "{text}"
            );
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a tag has a name"));
        }
    }
    assert!(open.is_empty(), "{open:?} not closed");
}

fn spot(x: f64, y: f64) -> Spot {
    Spot { x, y, range: (y * 0.9, y * 1.2) }
}

fn chart() -> Chart {
    let looks = [
        Look::Measured(0, 0),
        Look::Measured(1, 1),
        Look::Paper(0),
        Look::Paper(1),
        Look::Bound,
        Look::Time(3),
    ];
    let traces = looks.map(|look| Trace {
        label: format!("{look:?} <&> \"a long name for the legend\""),
        look,
        spots: vec![spot(0.0, 1.0), spot(8.0, 30.0)],
    });
    Chart {
        title: "A < B & \"C\"".into(),
        x_label: "one-way delay (ms)".into(),
        y_label: "p50 (ms)".into(),
        traces: traces.into(),
        spans: vec![(1.0, 2.0, "outage".into())],
        ..Chart::default()
    }
}

#[test]
fn a_chart_is_well_formed() {
    for log in [(false, false), (true, true), (false, true)] {
        well_formed(&Chart { log, ..chart() }.svg());
    }
    assert!(!chart().is_empty());
}

#[test]
fn a_chart_of_nothing() {
    let nothing = Chart { traces: vec![], ..chart() };
    assert!(nothing.is_empty());
    well_formed(&nothing.svg());
    let mut single = chart();
    single.traces[0].spots = vec![Spot { x: 1.0, y: 0.0, range: (0.0, 0.0) }];
    single.traces.truncate(1);
    well_formed(&single.svg());
}

#[test]
fn bars_are_well_formed() {
    let list = [
        Bar { label: "link".into(), value: 120.0, colour: Some(0) },
        Bar { label: "HG & SG".into(), value: 0.0, colour: None },
    ];
    well_formed(&bars("Where the time goes", "µs", &list));
    well_formed(&bars("Nothing", "µs", &[]));
}

#[test]
fn the_legend_wraps() {
    assert!(chart().legend().len() > 1);
    assert_eq!(chart().legend().concat(), [0, 1, 2, 3, 4, 5]);
}
