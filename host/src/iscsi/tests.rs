//! The target over real sockets, with an initiator of a few lines; and rights in files.

use super::access::{InitiatorGrantReport, check_secret, new_token, read_secret};
use super::server::*;
use super::*;
use crate::null::volume;
use crate::volume::{Clock, Volume};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_core::front::iscsi::{Access, Config, Grant, OpenError, TARGET_PREFIX};
use longhaul_core::host::journal::Geometry;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const INITIATOR: &str = "iqn.2001-04.com.example:i";

/// One volume, `v`, on nothing.
struct One(Rc<Volume>, RefCell<Vec<Bytes>>);

impl Volumes for One {
    fn open(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<OpenedVolume, OpenError>> {
        Box::pin(async move {
            if name == "v" {
                Ok((self.0.clone(), Bytes::new()))
            } else {
                Err(OpenError::NotFound(name))
            }
        })
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>> {
        Box::pin(async { vec!["v".to_owned()] })
    }

    fn save(
        self: Rc<Self>,
        _: Rc<Volume>,
        data: Bytes,
    ) -> LocalBoxFuture<'static, Result<(), ReservationError>> {
        self.1.borrow_mut().push(data);
        Box::pin(async { Ok(()) })
    }
}

fn local<F: Future<Output = ()>>(test: F) {
    let runtime = crate::runtime::front_runtime().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(180), test).await.unwrap() };
    runtime.block_on(tokio::task::LocalSet::new().run_until(limited));
}

fn serve(access: Access) -> (Rc<IscsiServer>, std::net::SocketAddr) {
    let geometry = Geometry { file_bytes: 1 << 20, files: 4 };
    let volume = volume("v", 1 << 16, Clock::start(), geometry);
    let one = Rc::new(One(volume, RefCell::default()));
    let config = Config { login_limit: Duration::from_secs(3), ..config(Vec::new(), false) };
    let server = IscsiServer::new(one, Clock::start(), config, (access, IscsiPlaces::default()));
    tokio::task::spawn_local(server.clone().run());
    let listener = Portal::bind("127.0.0.1:0").unwrap();
    let address = listener.address();
    tokio::task::spawn_local(listener.run(server.clone()));
    (server, address)
}

struct Initiator(TcpStream, u32);

impl Initiator {
    async fn connect(address: std::net::SocketAddr) -> Initiator {
        Initiator(TcpStream::connect(address).await.unwrap(), 1)
    }

    /// Sends a PDU; `rest` is its header from byte 20 on as far as it is not zero.
    async fn send(&mut self, head: [u8; 4], lun: u64, itt: u32, rest: &[u8], data: &[u8]) {
        let mut pdu = vec![0; 48];
        pdu[..4].copy_from_slice(&head);
        pdu[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        pdu[8..16].copy_from_slice(&lun.to_be_bytes());
        pdu[16..20].copy_from_slice(&itt.to_be_bytes());
        pdu[20..20 + rest.len()].copy_from_slice(rest);
        pdu.extend(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        self.0.write_all(&pdu).await.unwrap();
    }

    async fn receive(&mut self) -> ([u8; 48], Vec<u8>) {
        let mut header = [0; 48];
        self.0.read_exact(&mut header).await.unwrap();
        let bytes = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; bytes.next_multiple_of(4)];
        self.0.read_exact(&mut data).await.unwrap();
        data.truncate(bytes);
        (header, data)
    }

    /// Logs in; gives the status of the login.
    async fn login(&mut self, keys: &str) -> u16 {
        let text: String =
            keys.split(' ').chain(["InitialR2T=No"]).map(|key| format!("{key}\0")).collect();
        // Operational to full feature; the ISID; a new session.
        let isid = 0x8000_0000_0001_0000;
        self.send([0x43, 0x87, 0, 0], isid, 7, &[0, 0, 0, 0, 0, 0, 0, 1], text.as_bytes()).await;
        let (header, _) = self.receive().await;
        assert_eq!(header[0], 0x23);
        u16::from_be_bytes([header[36], header[37]])
    }

    /// A command with its numbers; data goes with it.
    async fn command(&mut self, flags: u8, bytes: u32, cdb: [u8; 16], data: &[u8]) {
        let number = self.1;
        self.1 += 1;
        let mut rest = bytes.to_be_bytes().to_vec();
        rest.extend(number.to_be_bytes());
        rest.extend(0u32.to_be_bytes());
        rest.extend(cdb);
        self.send([0x01, 0x80 | flags, 0, 0], 0, number, &rest, data).await;
    }

    async fn ends(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.is_ok()
    }
}

fn normal(volume: &str) -> String {
    format!("InitiatorName={INITIATOR} TargetName={TARGET_PREFIX}{volume}")
}

fn read_or_write(operation: u8, block: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = operation;
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

#[test]
fn initiators_that_do_not_log_in_keep_nobody_out() {
    local(async {
        let (server, address) = serve(Access::default());
        let mut first = Initiator::connect(address).await;
        assert_eq!(first.login(&normal("v")).await, 0);
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(Initiator::connect(address).await);
        }
        let mut late = Initiator::connect(address).await;
        let other = normal("v").replace(INITIATOR, &format!("{INITIATOR}:late"));
        assert_eq!(late.login(&other).await, 0);
        let most = longhaul_base::limits::MAX_ISCSI_STRANGERS_OF_ONE;
        assert!(server.connections() <= most + 2, "{}", server.connections());
        // Those that have logged in stay.
        assert_eq!(server.sessions_of("v"), 2);
        silent[0].ends().await;
    });
}

#[test]
fn an_initiator_reads_what_it_wrote_and_all_of_it_is_seen() {
    local(async {
        let (server, address) = serve(Access::default());
        let mut initiator = Initiator::connect(address).await;
        assert_eq!(initiator.login(&normal("v")).await, 0);
        // The unit attention of a new nexus.
        initiator.command(0, 0, [0; 16], &[]).await;
        assert_eq!(initiator.receive().await.0[..4], [0x21, 0x80, 0, 2]);
        // Many at once, whose answers are more than a socket holds.
        let data: Vec<u8> = (0..64 << 10).map(|i: u32| (i / 5) as u8).collect();
        for round in 0..32 {
            let write = read_or_write(0x2a, round * 128, 128);
            initiator.command(0x20, data.len() as u32, write, &data).await;
        }
        // Reads do not wait for the sync that writes before them wait for.
        for _ in 0..32 {
            assert_eq!(initiator.receive().await.0[..4], [0x21, 0x80, 0, 0]);
        }
        for round in 0..32 {
            let read = read_or_write(0x28, round * 128, 128);
            initiator.command(0x40, data.len() as u32, read, &[]).await;
        }
        assert_eq!(server.sessions_of("v"), 1);
        let mut read = Vec::new();
        while read.len() < 32 * data.len() {
            let (header, part) = initiator.receive().await;
            assert_eq!(header[0], 0x25);
            read.extend(part);
        }
        assert!(read == data.repeat(32));
        let report = server.sessions();
        assert_eq!(report[0].initiator, INITIATOR);
        assert_eq!((report[0].connections.len(), report[0].commands), (1, 0));
        let counters = server.counters();
        assert!(counters.sent_bytes > 2 << 20 && counters.received_bytes > 2 << 20);
        assert_eq!(counters.target.logins, 1);
        drop(initiator);
        while server.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(server.sessions().is_empty());
    });
}

#[test]
fn who_may_not_or_dawdles_is_closed() {
    local(async {
        let grant = Grant { initiator: INITIATOR.to_owned(), user: None };
        let access =
            Access { volumes: [("v".to_owned(), vec![grant])].into(), ..Access::default() };
        let (server, address) = serve(access.clone());
        let mut silent = Initiator::connect(address).await;
        let mut garbage = Initiator::connect(address).await;
        garbage.0.write_all(&[0xff; 4096]).await.unwrap();
        garbage.ends().await;
        let mut other = Initiator::connect(address).await;
        let keys = normal("v").replace(INITIATOR, "iqn.2001-04.com.example:other");
        assert_ne!(other.login(&keys).await, 0);
        assert!(other.ends().await);
        let mut unknown = Initiator::connect(address).await;
        assert_ne!(unknown.login(&normal("unknown")).await, 0);
        assert!(silent.ends().await, "the login limit");
        let mut initiator = Initiator::connect(address).await;
        assert_eq!(initiator.login(&normal("v")).await, 0);
        // Others' rights are not its own: a change of them leaves it alone, one of its own does
        // not.
        server.set_access(access);
        assert_eq!(server.sessions_of("v"), 1);
        server
            .set_access(Access { volumes: [("v".to_owned(), vec![])].into(), ..Access::default() });
        let (header, _) = initiator.receive().await;
        assert_eq!((header[0], header[36]), (0x32, 1), "asked to log out");
        server.volume_gone("v", "gone");
        assert!(initiator.ends().await);
        let counters = server.counters();
        assert_eq!(counters.closed["login_limit"], 1);
        assert!(counters.closed["refused"] >= 2, "{counters:?}");
    });
}

fn rights(dir: &Path, table: &str) -> anyhow::Result<InitiatorRights> {
    let config = dir.join("config.toml");
    longhaul_base::files::replace(&config, table.as_bytes(), 0o600)?;
    InitiatorRights::open(dir, ConfiguredAccess::load(Some(&config))?)
}

const TABLE: &str = r#"
[iscsi]
portals = ["192.0.2.1:3260"]
[iscsi.users]
carol = { secret = "carols-secret-01" }
[iscsi.target-user]
name = "longhaul"
secret = "targets-secret-1"
[iscsi.volumes]
db = ["IQN.2001-04.com.example:A", { initiator = "iqn.2001-04.com.example:b", chap-user = "carol" }]
closed = []
[iscsi.moved]
away = "192.0.2.2:3260"
"#;

#[tokio::test]
async fn rights_of_config_and_commands_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut rights_ = rights(dir.path(), TABLE).unwrap();
    assert!(!rights_.is_empty());
    let access = rights_.access().unwrap();
    assert_eq!(access.volumes["db"][0].initiator, "iqn.2001-04.com.example:a", "normalised");
    assert!(access.volumes["closed"].is_empty());
    assert_eq!(access.moved["away"], "192.0.2.2:3260");
    let set = |name: &str, secret: &[u8], target| InitiatorChange::SetUser {
        name: name.into(),
        secret: access::hex(secret),
        target,
    };
    let allow = |volume: &str, user: Option<&str>| InitiatorChange::Allow {
        volume: volume.into(),
        initiator: INITIATOR.into(),
        user: user.map(str::to_owned),
    };
    let deny =
        |volume: &str| InitiatorChange::Deny { volume: volume.into(), initiator: INITIATOR.into() };
    let moved =
        |to: Option<&str>| InitiatorChange::Move { volume: "db".into(), to: to.map(str::to_owned) };
    for change in [
        set("alice", b"alices-secret-01", false),
        allow("db", None),
        allow("db", Some("alice")),
        allow("new", Some("carol")),
        moved(Some("192.0.2.3:3260")),
    ] {
        rights_.change(change).await.unwrap();
    }
    let refused = [
        (set("carol", b"another-secret-1", false), "config file"),
        (set("longhaul", b"another-secret-1", true), "config file"),
        (set("bob", b"targets-secret-1", false), "own challenges"),
        (set("bob", b"short", false), "12 to 255"),
        (set("b b", b"another-secret-1", false), "no CHAP user"),
        (allow("db", Some("nobody")), "no user nobody"),
        (deny("other"), "not granted"),
        (InitiatorChange::RemoveUser { name: "alice".into(), target: false }, "deny it first"),
        (InitiatorChange::RemoveUser { name: "carol".into(), target: false }, "config file"),
        (moved(Some("nowhere")), "no portal"),
    ];
    for (change, why) in refused {
        let error = rights_.change(change.clone()).await.unwrap_err().to_string();
        assert!(error.contains(why), "{change:?}: {error}");
    }
    // As after a restart.
    let mut rights_ = rights(dir.path(), TABLE).unwrap();
    let access = rights_.access().unwrap();
    assert_eq!(access.volumes["db"].len(), 3);
    assert_eq!(access.volumes["db"][2].user.as_deref(), Some("alice"), "the second grant counts");
    assert_eq!(access.users.len(), 2);
    assert_eq!(access.moved["db"], "192.0.2.3:3260");
    let report = serde_json::to_string(&rights_.report(Vec::new())).unwrap();
    assert!(report.contains("alice") && !report.contains("secret"), "{report}");
    for change in [deny("db"), deny("new"), moved(None)] {
        rights_.change(change).await.unwrap();
    }
    let gone = InitiatorChange::RemoveUser { name: "alice".into(), target: false };
    let access = rights_.change(gone).await.unwrap();
    assert_eq!(access, rights(dir.path(), TABLE).unwrap().access().unwrap());
    assert!(access.volumes["new"].is_empty(), "nobody is named any more, and nobody may use it");
    let nobody = |grant: &InitiatorGrantReport| grant.volume == "new" && grant.initiator.is_none();
    assert_eq!(rights_.report(Vec::new()).grants.iter().filter(|grant| nobody(grant)).count(), 1);
    let open = |volume: &str| InitiatorChange::Open { volume: volume.into() };
    let error = rights_.change(open("db")).await.unwrap_err().to_string();
    assert!(error.contains("config file"), "{error}");
    let access = rights_.change(open("new")).await.unwrap();
    assert!(!access.volumes.contains_key("new"));
    let error = rights_.change(open("new")).await.unwrap_err().to_string();
    assert!(error.contains("no list"), "{error}");
}

#[test]
fn files_with_secrets_are_private_and_whole() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640)).unwrap();
    };
    let secret = dir.path().join("secret");
    longhaul_base::files::replace(&secret, b"0123456789ab\r\n", 0o600).unwrap();
    assert_eq!(read_secret(&secret).unwrap().0, b"0123456789ab");
    open(&secret);
    assert!(read_secret(&secret).unwrap_err().to_string().contains("chmod 600"));
    assert!(check_secret(vec![b'x'; 11]).is_err() && check_secret(vec![b'x'; 256]).is_err());
    let token = new_token(dir.path()).unwrap();
    assert_ne!(token, new_token(dir.path()).unwrap());
    let state = dir.path().join("iscsi.json");
    let fails = |content: &str, why: &str| {
        longhaul_base::files::replace(&state, content.as_bytes(), 0o600).unwrap();
        let error = format!("{:#}", rights(dir.path(), "").err().unwrap());
        assert!(error.contains(why), "{error}");
    };
    fails("{", "damaged");
    let empty = r#"{"version":2,"users":{},"target_user":null,"volumes":{},"moved":{}}"#;
    fails(empty, "another version");
    longhaul_base::files::replace(&state, empty.replace('2', "1").as_bytes(), 0o600).unwrap();
    assert!(rights(dir.path(), "").unwrap().is_empty());
    open(&state);
    assert!(rights(dir.path(), "").err().unwrap().to_string().contains("chmod 600"));
}
