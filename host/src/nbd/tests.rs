//! The server against a client of a few lines, over real sockets.

use super::*;
use crate::null::{One, volume};
use crate::volume::Clock;
use longhaul_core::host::journal::Geometry;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

/// NBD's fixed newstyle with NBD_OPT_GO and simple replies.
struct Client<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn greeted(mut stream: S) -> Client<S> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes()).await.unwrap();
        Client(stream)
    }

    async fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        self.0.write_all(&out).await.unwrap();
        self.option_reply().await
    }

    async fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).await.unwrap();
        let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
        let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
        self.0.read_exact(&mut data).await.unwrap();
        (kind, data)
    }

    async fn go(&mut self, name: &str) -> Result<(), String> {
        self.look_up(7, name).await
    }

    /// With NBD_OPT_INFO or NBD_OPT_GO.
    async fn look_up(&mut self, option: u32, name: &str) -> Result<(), String> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend([0, 0]);
        let mut reply = self.option(option, &data).await;
        loop {
            match reply {
                (1, _) => return Ok(()),
                (kind, text) if kind >> 31 == 1 => {
                    return Err(String::from_utf8(text).unwrap());
                }
                _ => reply = self.option_reply().await,
            }
        }
    }

    async fn send(&mut self, kind: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        let mut out = 0x25609513u32.to_be_bytes().to_vec();
        out.extend(0u16.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(data);
        self.0.write_all(&out).await.unwrap();
    }

    async fn reply(&mut self, data: usize) -> (u32, u64, Vec<u8>) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).await.unwrap();
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let mut payload = vec![0; if error == 0 { data } else { 0 }];
        self.0.read_exact(&mut payload).await.unwrap();
        (error, u64::from_be_bytes(head[8..].try_into().unwrap()), payload)
    }

    async fn ends(&mut self) -> bool {
        let read = self.0.read_u8().await;
        matches!(read, Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    }
}

fn local<F: Future<Output = ()>>(test: F) {
    let runtime = crate::runtime::front_runtime().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(180), test).await.unwrap() };
    runtime.block_on(tokio::task::LocalSet::new().run_until(limited));
}

fn server(tls: Option<Arc<rustls::ServerConfig>>) -> Rc<NbdServer> {
    let geometry = Geometry { file_bytes: 16 << 20, files: 4 };
    let one = Rc::new(One(volume("v", 1 << 16, Clock::start(), geometry)));
    NbdServer::new(one, tls, NbdPlaces::default())
}

fn unix_server(dir: &tempfile::TempDir) -> (Rc<NbdServer>, PathBuf) {
    let path = dir.path().join("nbd.sock");
    let server = server(None);
    let listener = Listener::bind(&Address::Unix(path.clone()), false, false).unwrap();
    tokio::task::spawn_local(listener.run(server.clone()));
    (server, path)
}

#[test]
fn reads_what_was_written_over_a_unix_socket() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let (server, path) = unix_server(&dir);
        let mut client = Client::greeted(UnixStream::connect(&path).await.unwrap()).await;
        let refusal = client.go("other").await.unwrap_err();
        assert!(refusal.contains("the only export is `v`"), "{refusal}");
        client.go("v").await.unwrap();
        client.send(WRITE, 1, 4096, 8192, &[7; 8192]).await;
        assert_eq!(client.reply(0).await, (0, 1, vec![]));
        client.send(FLUSH, 2, 0, 0, &[]).await;
        assert_eq!(client.reply(0).await, (0, 2, vec![]));
        client.send(READ, 3, 0, 8192, &[]).await;
        let mut expected = vec![0; 4096];
        expected.extend([7; 4096]);
        assert!(client.reply(8192).await == (0, 3, expected));
        assert_eq!(server.connections_of("v"), 1);
        client.send(DISCONNECT, 4, 0, 0, &[]).await;
        assert!(client.ends().await);
        assert_eq!(server.connections(), 0);
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = unix_server(&dir);
        let mut client = Client::greeted(UnixStream::connect(&path).await.unwrap()).await;
        client.go("v").await.unwrap();
        // More replies than session and socket buffers hold.
        const READS: u64 = 300;
        const BYTES: u32 = 1 << 20;
        let (mut reader, mut writer) = client.0.into_split();
        let sender = tokio::task::spawn_local(async move {
            for cookie in 0..READS {
                let mut out = 0x25609513u32.to_be_bytes().to_vec();
                out.extend([0, 0, 0, 0]);
                out.extend(cookie.to_be_bytes());
                out.extend(0u64.to_be_bytes());
                out.extend(BYTES.to_be_bytes());
                writer.write_all(&out).await.unwrap();
            }
            writer
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut reply = vec![0; BYTES as usize + 16];
        for _ in 0..READS {
            reader.read_exact(&mut reply).await.unwrap();
            assert_eq!(&reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        }
        drop(sender.await.unwrap());
    });
}

#[test]
fn stopping_answers_what_is_in_flight_and_ends_connections() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let (server, path) = unix_server(&dir);
        let mut client = Client::greeted(UnixStream::connect(&path).await.unwrap()).await;
        client.go("v").await.unwrap();
        client.send(WRITE, 1, 0, 4096, &[1; 4096]).await;
        assert_eq!(client.reply(0).await, (0, 1, vec![]));
        server.stop();
        assert!(client.ends().await);
        let mut late = UnixStream::connect(&path).await.unwrap();
        assert!(late.read_u8().await.is_err());
    });
}

#[test]
fn nothing_listens_off_loopback_without_tls_and_ca() {
    local(async {
        let everyone: Address = "0.0.0.0:0".parse().unwrap();
        for (tls, ca) in [(false, false), (true, false)] {
            let error = Listener::bind(&everyone, tls, ca).err().unwrap().to_string();
            assert!(error.contains("--nbd-tls-ca"), "{error}");
        }
        let taken = Listener::bind(&"127.0.0.1:0".parse().unwrap(), false, false).unwrap();
        let error = Listener::bind(taken.address(), false, false).err().unwrap();
        assert!(format!("{error:#}").contains("--nbd"), "{error:#}");
    });
    for wrong in ["", "unix:", "host", "127.0.0.1", "1.2.3.4:x"] {
        assert!(wrong.parse::<Address>().is_err(), "{wrong}");
    }
    assert_eq!("localhost:1".parse::<Address>().unwrap().to_string(), "127.0.0.1:1");
}

#[test]
fn unix_sockets_replace_dead_ones_only() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        std::fs::write(&path, "precious").unwrap();
        let error = format!("{:#}", Listener::bind(&address, false, false).err().unwrap());
        assert!(error.contains("no socket"), "{error}");
        std::fs::remove_file(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&address, false, false).unwrap();
        let error = format!("{:#}", Listener::bind(&address, false, false).err().unwrap());
        assert!(error.contains("another process"), "{error}");
        drop(live);
        assert!(!path.exists());
    });
}

#[test]
fn clients_that_choose_nothing_keep_nobody_out() {
    local(async {
        let server = server(None);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), false, false).unwrap();
        let Address::Tcp(address) = *listener.address() else { panic!() };
        tokio::task::spawn_local(listener.run(server.clone()));
        let connect = async || TcpStream::connect(address).await.unwrap();
        let mut first = Client::greeted(connect().await).await;
        first.go("v").await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(connect().await);
        }
        let mut late = Client::greeted(connect().await).await;
        late.go("v").await.unwrap();
        let most = longhaul_base::limits::MAX_NBD_STRANGERS_OF_ONE;
        assert!(server.connections() <= most + 2, "{}", server.connections());
        // Those that use an export stay.
        first.send(READ, 2, 0, 4096, &[]).await;
        assert_eq!(first.reply(4096).await.0, 0);
        let mut rest = Vec::new();
        let oldest = silent[0].read_to_end(&mut rest);
        let _ = tokio::time::timeout(Duration::from_secs(30), oldest).await.unwrap();
    });
}

/// Also before the session is ready: nothing looks again after its lookup.
#[test]
fn a_right_withdrawn_ends_who_has_looked_the_volume_up() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.toml");
        std::fs::write(&config, "[nbd.volumes]\nv = [\"uid:12345\"]\n").unwrap();
        let others = access::load(Some(&config)).unwrap();
        let server = server(None);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), false, false).unwrap();
        let Address::Tcp(address) = *listener.address() else { panic!() };
        tokio::task::spawn_local(listener.run(server.clone()));
        for option in [6, 7] {
            server.set_access(Access::default());
            let mut client = Client::greeted(TcpStream::connect(address).await.unwrap()).await;
            client.look_up(option, "v").await.unwrap();
            server.set_access(others.clone());
            assert!(client.ends().await, "{option}");
        }
    });
}

struct Pki {
    dir: tempfile::TempDir,
    roots: rustls::RootCertStore,
    client: rustls::sign::CertifiedKey,
}

impl Pki {
    fn new() -> Pki {
        let dir = tempfile::tempdir().unwrap();
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(params, ca_key).unwrap();
        let issue = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &ca).unwrap(), key)
        };
        let (server, server_key) = issue("localhost");
        std::fs::write(dir.path().join("cert"), server.pem()).unwrap();
        std::fs::write(dir.path().join("key"), server_key.serialize_pem()).unwrap();
        std::fs::write(dir.path().join("ca"), ca.pem()).unwrap();
        let (client, client_key) = issue("client");
        let key = rustls::pki_types::PrivateKeyDer::try_from(client_key.serialize_der()).unwrap();
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let client = rustls::sign::CertifiedKey::new(vec![client.der().clone()], key);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        Pki { dir, roots, client }
    }

    fn server(&self) -> Arc<rustls::ServerConfig> {
        let path = |name| self.dir.path().join(name);
        tls_config(&path("cert"), &path("key"), Some(&path("ca"))).unwrap()
    }

    fn connector(&self, with_certificate: bool) -> tokio_rustls::TlsConnector {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = if with_certificate {
            let single = rustls::sign::SingleCertAndKey::from(self.client.clone());
            builder.with_client_cert_resolver(Arc::new(single))
        } else {
            builder.with_no_client_auth()
        };
        Arc::new(config).into()
    }
}

#[test]
fn tls_is_required_and_clients_show_who_they_are() {
    local(async {
        let pki = Pki::new();
        let server = server(Some(pki.server()));
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), true, true).unwrap();
        let Address::Tcp(address) = *listener.address() else { panic!() };
        tokio::task::spawn_local(listener.run(server.clone()));
        let plain = async || Client::greeted(TcpStream::connect(address).await.unwrap()).await;
        let name = || rustls::pki_types::ServerName::try_from("localhost").unwrap();

        let refusal = plain().await.go("v").await.unwrap_err();
        assert!(refusal.to_lowercase().contains("tls"), "{refusal}");

        let mut client = plain().await;
        assert_eq!(client.option(5, &[]).await.0, 1);
        let tls = pki.connector(true).connect(name(), client.0).await.unwrap();
        let mut client = Client(tls);
        client.go("v").await.unwrap();
        let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 7) as u8).collect();
        client.send(WRITE, 1, 0, data.len() as u32, &data).await;
        assert_eq!(client.reply(0).await.0, 0);
        client.send(READ, 2, 0, data.len() as u32, &[]).await;
        assert!(client.reply(data.len()).await == (0, 2, data));
        client.send(DISCONNECT, 3, 0, 0, &[]).await;
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).await.expect("TLS is ended in order");

        let mut nobody = plain().await;
        assert_eq!(nobody.option(5, &[]).await.0, 1);
        // With TLS 1.3 the client hears of the refusal only when it reads.
        if let Ok(mut tls) = pki.connector(false).connect(name(), nobody.0).await {
            assert!(tls.read_u8().await.is_err());
        }
    });
}

#[test]
fn tls_files_that_are_none_are_named() {
    let pki = Pki::new();
    let path = |name| pki.dir.path().join(name);
    let error = tls_config(&path("key"), &path("key"), None).err().unwrap();
    assert!(format!("{error:#}").contains("certificates from"), "{error:#}");
    let error = tls_config(&path("cert"), &path("cert"), None).err().unwrap();
    assert!(format!("{error:#}").contains("private key"), "{error:#}");
}
