//! Somebody floods a store or a host: others go on. It prints the numbers; `make bench-isolation`
//! shows them.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, http_get};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Requests to a store during a flood.
const LISTS: usize = 20;
/// Clients that connect to a host during a flood.
const CONNECTS: usize = 10;
/// The memory limit of a flooded process, its maps apart.
const MOST_KIB: u64 = 512 << 10;

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Times of something, and what it says when it fails.
fn timed(times: usize, mut what: impl FnMut()) -> Vec<Duration> {
    let once = |_| {
        let begun = Instant::now();
        what();
        begun.elapsed()
    };
    let mut all: Vec<Duration> = (0..times).map(once).collect();
    all.sort_unstable();
    all
}

struct Scene {
    site: Site,
    host: Host,
}

impl Scene {
    fn new() -> Scene {
        let site = Site::with_volume("db", 16);
        let mut host = site.host("host");
        host.start();
        host.client("db").disconnect();
        Scene { site, host }
    }

    /// Connects so many times to a TCP address and says something, at once.
    fn flood(address: &str, connections: usize, said: &[u8]) -> Vec<TcpStream> {
        let mut all = Vec::new();
        for _ in 0..connections {
            let address = address.parse().unwrap();
            // One that finds the queue full has flooded well enough.
            if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
                let _ = stream.write_all(said);
                all.push(stream);
            }
        }
        all
    }

    /// Another party lists volumes, connects to the host, and asks how it is.
    fn others_go_on(&mut self, during: &str) {
        let credential = self.site.store.credential();
        let lists = timed(LISTS, || {
            let mut list = command(longhaul());
            list.args(["volume", "list", "--json", "--credential"]).arg(&credential);
            run_within(list, LIMIT).ok();
        });
        let nbd = self.host.nbd();
        let connects = timed(CONNECTS, || {
            Client::nbd(&nbd, "db").unwrap().disconnect();
        });
        let admins = timed(CONNECTS, || {
            let (code, _) = http_get(&self.host.admin, "/status").unwrap();
            assert_eq!(code, 200);
        });
        let store = resident_kib(self.site.store.server().pid());
        let host = resident_kib(self.host.server().pid());
        println!(
            "{during}: volume list p50 {:?}, most {:?}; NBD connect most {:?}; status most {:?}; \
             store {} MiB, host {} MiB",
            lists[LISTS / 2],
            lists[LISTS - 1],
            connects[CONNECTS - 1],
            admins[CONNECTS - 1],
            store >> 10,
            host >> 10
        );
        assert!(store < MOST_KIB && host < MOST_KIB, "{during}: {store} and {host} KiB");
        assert!(self.host.server_is_alive());
    }
}

fn address_of(credential: &Path) -> String {
    let text = std::fs::read_to_string(credential).unwrap();
    let parsed: toml::Table = text.parse().unwrap();
    parsed["stores"].as_array().unwrap()[0].as_str().unwrap().to_owned()
}

#[test]
fn floods_cost_others_little() {
    let mut scene = Scene::new();
    scene.others_go_on("nothing");
    let store = address_of(&scene.site.store.credential());

    let silent = Scene::flood(&store, 600, b"");
    scene.others_go_on("600 silent connections to the store");
    drop(silent);

    let garbage = Scene::flood(&store, 600, &[0x16; 512]);
    scene.others_go_on("600 connections to the store that say nonsense");
    drop(garbage);

    let socket = scene.host.nbd();
    let socket = socket.strip_prefix("unix:").unwrap().to_owned();
    let silent: Vec<UnixStream> =
        (0..300).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    scene.others_go_on("300 silent NBD connections");
    drop(silent);

    let head = "POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n";
    let mut body = head.as_bytes().to_vec();
    body.resize(body.len() + (8 << 20) - 1, b' ');
    let bodies = Scene::flood(&scene.host.admin, 100, &body);
    scene.others_go_on("100 bodies of 8 MiB without the token");
    drop(bodies);

    let silent = Scene::flood(&scene.host.admin, 300, b"GET /status HTTP/1.1\r\n");
    scene.others_go_on("300 halves of a request to the admin address");
    drop(silent);
}

#[test]
fn the_admin_address_answers_by_its_own_names_only() {
    let mut site = Site::new();
    let mut host = site.host("host").with(["--admin-host", "disk.example"]);
    host.start();
    let ask = |name: &str| {
        let mut stream = TcpStream::connect(&host.admin).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET /status HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for name in ["localhost", "127.0.0.1:7780", "disk.example"] {
        let answer = ask(name);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");
    }
    let answer = ask("rebound.example");
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("--admin-host"), "{answer}");
    assert!(host.stop().success());
    assert!(site.store.stop().success());
}
