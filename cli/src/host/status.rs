//! `longhaul status`: asks a running host and prints what it says.

use anyhow::{Context as _, Result, bail};
use longhaul_base::units::show_bytes;
use longhaul_host::report::{HostReport, VolumeReport};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long a host may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Largest answer taken: a host with some ten thousand volumes.
const MAX_ANSWER_BYTES: u64 = 32 << 20;

/// Prints the state of the host at this admin address.
///
/// # Errors
/// If no host answers there.
pub fn status(address: &str, json: bool) -> Result<()> {
    let text = get(address, "/status").map_err(|error| unanswered(address, error))?;
    let report: HostReport = serde_json::from_str(&text)
        .with_context(|| format!("the program at {address} is not a host of this version"))?;
    let out = if json { format!("{}\n", text.trim_end()) } else { table(&report) };
    std::io::stdout().write_all(out.as_bytes()).context("cannot write the status")
}

/// The message for an error of [`get`].
pub fn unanswered(address: &str, error: anyhow::Error) -> anyhow::Error {
    if error.is::<std::io::Error>() {
        return error.context(format!(
            "no host answers at {address}: is `longhaul host` running, and does it have that \
             --admin address?"
        ));
    }
    error.context(format!("the program at {address} cannot show the state of the host"))
}

/// The body of a page of an admin listener.
///
/// # Errors
/// If there is no answer, or not a good one.
pub fn get(address: &str, path: &str) -> Result<String> {
    let (line, body) = ask(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))?;
    if line.split(' ').nth(1) != Some("200") {
        bail!("it answered `{line}`: {}", body.trim());
    }
    Ok(body)
}

/// Has an admin listener do something.
///
/// # Errors
/// If there is no answer, or it refuses: then its reason.
pub fn post(address: &str, path: &str, token: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}");
    let kind = "Content-Type: application/json";
    let request = format!("{head}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
    let (line, body) = ask(address, &request)?;
    if line.split(' ').nth(1) != Some("200") {
        bail!("{}", body.trim());
    }
    Ok(())
}

/// Status line and body of the answer to an HTTP request.
fn ask(address: &str, request: &str) -> Result<(String, String)> {
    let address = address.to_socket_addrs()?.next().context("the address cannot be resolved")?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    // In one piece: a peer that answers after the first would reset the connection at the second.
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let line = head.lines().next().unwrap_or_default();
    Ok((line.to_owned(), body.to_owned()))
}

fn table(report: &HostReport) -> String {
    let mut rows = vec![
        [
            "VOLUME", "STATE", "SIZE", "EPOCH", "CLIENTS", "LAG", "BEHIND", "JOURNAL", "CACHE",
            "HITS",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(report.volumes.iter().map(row));
    let mut out = columns(&rows);
    for volume in &report.volumes {
        if let Some(reason) = &volume.reason {
            out += &format!("{}: {reason}\n", volume.name);
        }
        let limits =
            [("drain", &volume.limits.drain_rate), ("read-ahead", &volume.limits.readahead_rate)];
        for (what, rate) in
            limits.into_iter().filter(|(_, rate)| !matches!(rate.as_str(), "" | "none"))
        {
            out += &format!("{}: {what} limited to {rate}\n", volume.name);
        }
        if let Some((asked, total)) = volume.readahead.replay {
            let (asked, total) = (show_bytes(asked), show_bytes(total));
            out += &format!("{}: {asked} of a trace of {total} read ahead\n", volume.name);
        }
        if let Some(cache) = volume.cache.as_ref().filter(|cache| cache.pinned_bytes > 0) {
            let (pinned, there) =
                (show_bytes(cache.pinned_bytes), show_bytes(cache.pinned_valid_bytes));
            out += &format!("{}: {pinned} pinned, {there} of it in the cache\n", volume.name);
        }
        let warming = volume.cache.as_ref().and_then(|cache| cache.warming.as_ref());
        if let Some(warming) = warming.filter(|warming| warming.state == "running") {
            let (done, total) = (show_bytes(warming.done_bytes), show_bytes(warming.total_bytes));
            out += &format!("{}: {done} of {total} warmed\n", volume.name);
        }
        if let Some(rewrite) = &volume.rewrite {
            let (done, total) = (show_bytes(rewrite.done_bytes), show_bytes(rewrite.total_bytes));
            out += &match rewrite.done {
                true => format!("{}: all of it is under data key {}\n", volume.name, rewrite.key),
                false => format!(
                    "{}: encryption with data key {} under way, {done} of {total} done\n",
                    volume.name, rewrite.key
                ),
            };
        }
        if volume.readahead.recording {
            out += &format!("{}: a trace is being recorded\n", volume.name);
        }
        if volume.journal.journal_failed && volume.reason.is_none() {
            out += &format!("{}: its journal has failed; replace the disk\n", volume.name);
        }
    }
    if report.volumes.is_empty() {
        out += "(none; `longhaul attach NAME` attaches one)\n";
    }
    for damaged in &report.damaged {
        out += &format!("{}: {}\n", damaged.id, damaged.problem);
    }
    let link = &report.link;
    let peer = link.peer.as_deref().unwrap_or("the store");
    if link.up {
        out += &format!(
            "link: up for {:.0} s to {peer} over {}, round trip {:.1} ms, {} packets lost\n",
            link.since_seconds,
            link.transport.as_deref().unwrap_or("quic"),
            link.rtt_ms.unwrap_or_default(),
            link.lost_packets
        );
        if let Some(path) = link.path.filter(|path| path.rate_bytes_per_second > 0) {
            out += &format!(
                "path: {:.1} Mbit/s when last full, window {:.0} KiB, queue {:.1} ms over {:.1} \
                 ms{}\n",
                path.rate_bytes_per_second as f64 * 8e-6,
                path.window_bytes as f64 / 1024.0,
                path.queue_ms,
                path.base_rtt_ms,
                if path.competing { ", others fill it" } else { "" }
            );
        }
    } else {
        let why = link.last_error.as_deref().unwrap_or("not connected yet");
        out += &format!("link: DOWN for {:.0} s, {peer}: {why}\n", link.since_seconds);
    }
    out
}

fn row(volume: &VolumeReport) -> Vec<String> {
    if volume.id.is_none() {
        let mut row = vec![volume.name.clone(), volume.state.clone()];
        row.resize(10, "-".into());
        return row;
    }
    let journal = if volume.journal.memory_only {
        "none".into()
    } else {
        format!(
            "{} of {}",
            show_bytes(volume.journal.journal_bytes),
            show_bytes(volume.journal.journal_capacity_bytes)
        )
    };
    let (mut lag, mut behind) =
        (show_bytes(volume.journal.lag_bytes), format!("{:.1} s", volume.journal.lag_seconds));
    // Without the store only bounds are known.
    if volume.state == "attaching" && volume.journal.lag_bytes > 0 {
        (lag, behind) = (format!("<= {lag}"), format!(">= {behind}"));
    }
    vec![
        volume.name.clone(),
        volume.state.clone(),
        show_bytes(volume.size_bytes),
        volume.epoch.to_string(),
        (volume.connections + volume.iscsi_sessions).to_string(),
        lag,
        behind,
        journal,
        match &volume.cache {
            None => "none".into(),
            Some(cache) if cache.state == "ready" => {
                format!("{} of {}", show_bytes(cache.valid_bytes), show_bytes(cache.capacity_bytes))
            }
            Some(cache) => cache.state.clone(),
        },
        volume.ratios.hit_rate.map_or("-".into(), |rate| format!("{:.0} %", rate * 100.0)),
    ]
}

/// Rows as a table with columns as wide as they need to be.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer(text: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn a_body_is_taken_out_of_its_answer() {
        assert_eq!(get(&answer("HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello"), "/").unwrap(), "hello");
        let error = get(&answer("HTTP/1.0 503 No\r\n\r\nstopping\n"), "/").unwrap_err();
        assert!(error.to_string().contains("stopping"), "{error}");
        let error = status(&answer("HTTP/1.0 503 No\r\n\r\nhung\n"), false).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("hung") && !error.contains("no host answers"), "{error}");
        assert!(get(&answer("nonsense"), "/").is_err());
    }

    #[test]
    fn no_host_is_a_clear_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = status(&address, false).unwrap_err().to_string();
        assert!(error.contains("no host answers") && error.contains("--admin"), "{error}");
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".into(), "bbb".into()], vec!["cccc".into(), "d".into()]];
        assert_eq!(columns(&rows), "a     bbb\ncccc  d\n");
    }
}
