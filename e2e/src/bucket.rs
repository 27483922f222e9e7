//! A real server of the S3 API (versitygw over a directory), and stores whose objects are in its
//! bucket.

use crate::faults::Faults;
use crate::in_ci;
use crate::process::{Server, command, repository};
use crate::site::{START, Site, Store, files_below, free_port, temp_dir};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

/// The bucket that every gateway has.
pub const BUCKET: &str = "longhaul";
/// Its only user.
pub const ACCESS_KEY: &str = "E2E0ACCESS";
/// And what proves it.
pub const SECRET_KEY: &str = "e2e-secret/key+";

/// A server of the S3 API.
pub struct Gateway {
    dir: PathBuf,
    port: u16,
    /// The address of its only user.
    access_key: String,
    /// Certificate chain and private key (PEM), if it speaks TLS.
    tls: Option<(PathBuf, PathBuf)>,
    server: Option<Server>,
}

/// Whether the test can go on where it needs such a server. Without it fails in CI (`CI=true`), and
/// elsewhere says loudly that it did not run.
#[must_use]
pub fn can_use_buckets(test: &str) -> bool {
    if binary().is_file() {
        return true;
    }
    assert!(!in_ci(), "{test} needs versitygw, and in CI (CI=true) no test may be left out");
    eprintln!("SKIPPED {test}: it needs versitygw; scripts/s3-servers builds it.");
    false
}

fn binary() -> PathBuf {
    repository().join("target/tools/bin/versitygw")
}

impl Gateway {
    /// Starts one with its files in `dir`.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path) -> Gateway {
        Gateway::start_with(dir, ACCESS_KEY, None)
    }

    /// Starts one whose only user has another name.
    #[track_caller]
    #[must_use]
    pub fn start_for(dir: &Path, access_key: &str) -> Gateway {
        Gateway::start_with(dir, access_key, None)
    }

    /// Starts one that speaks TLS, with certificate chain and private key (PEM) in these files.
    #[track_caller]
    #[must_use]
    pub fn start_tls(dir: &Path, certificate: &Path, key: &Path) -> Gateway {
        Gateway::start_with(dir, ACCESS_KEY, Some((certificate.into(), key.into())))
    }

    #[track_caller]
    fn start_with(dir: &Path, access_key: &str, tls: Option<(PathBuf, PathBuf)>) -> Gateway {
        std::fs::create_dir_all(dir.join(BUCKET)).unwrap();
        let (port, access_key) = (free_port(), access_key.to_owned());
        let mut gateway = Gateway { dir: dir.into(), port, access_key, tls, server: None };
        gateway.restart();
        gateway
    }

    /// Starts it again, on the same files and port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.server = None;
        let mut gateway = command(binary());
        gateway.args(["--port", &self.address(), "--access", &self.access_key]);
        gateway.args(["--secret", SECRET_KEY]);
        if let Some((certificate, key)) = &self.tls {
            gateway.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        gateway.args(["--keep-alive", "--quiet", "posix"]).arg(&self.dir);
        let mut server = Server::start("versitygw", gateway, &self.dir.with_extension("log"));
        let address = self.address();
        server.wait_until("versitygw listens", START, || TcpStream::connect(&address).is_ok());
        self.server = Some(server);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The names of all objects in the bucket, and their sizes.
    #[must_use]
    pub fn objects(&self) -> Vec<(String, u64)> {
        let bucket = self.dir.join(BUCKET);
        let mut found: Vec<_> = files_below(&bucket)
            .iter()
            .filter_map(|path| {
                let name = path.strip_prefix(&bucket).ok()?.to_str()?.to_owned();
                // The server's own files.
                let ours = !name.starts_with(".sgwtmp");
                ours.then_some((name, std::fs::metadata(path).ok()?.len()))
            })
            .collect();
        found.sort();
        found
    }

    /// Where the server keeps the objects below a prefix: files, as in a data directory.
    #[must_use]
    pub fn path(&self, prefix: &str) -> PathBuf {
        self.dir.join(BUCKET).join(prefix)
    }

    /// Puts a file into the bucket, behind the server's back.
    pub fn add(&self, name: &str, content: &str) {
        let path = self.dir.join(BUCKET).join(name);
        std::fs::create_dir_all(path.parent().expect("a file is in a directory")).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// The environment of a store for a server at `address`.
#[must_use]
pub fn variables(address: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        // Not the tester's own files.
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".into()),
        ("AWS_CONFIG_FILE", "/dev/null".into()),
    ]
}

/// A store over a prefix of the bucket, reached at `address`; not started.
#[must_use]
pub fn store(dir: &Path, prefix: &str, address: &str) -> Store {
    let mut store = Store::stopped(dir);
    store.set_data(&format!("s3://{BUCKET}/{prefix}"));
    let variables = variables(address);
    store.set_variables(variables.iter().map(|(name, value)| (*name, value.as_str())));
    store
}

/// A started store whose objects are in a bucket that it reaches through a proxy.
#[track_caller]
#[must_use]
pub fn site() -> (Site, Gateway, Faults) {
    let dir = temp_dir();
    let gateway = Gateway::start(&dir.path().join("gateway"));
    let faults = Faults::start(&gateway.address());
    let mut store = store(&dir.path().join("store"), "lab/one", &faults.address());
    store.restart();
    (Site::around(dir, store), gateway, faults)
}
