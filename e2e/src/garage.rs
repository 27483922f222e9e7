//! Garage on one node: a server of the S3 API that ignores the condition of a creation.

use crate::process::{LIMIT, Server, command, repository, run_within};
use crate::site::{START, free_port, http_get};
use std::path::{Path, PathBuf};

/// The bucket that it has.
pub const BUCKET: &str = "longhaul";
/// Its only user; of this form, it says.
pub const ACCESS_KEY: &str = "GK0123456789abcdef01234567";
/// And what proves it.
pub const SECRET_KEY: &str = "6c6f6e676861756c6c6f6e676861756c6c6f6e676861756c6c6f6e676861756c";

/// A running server; ends when dropped.
pub struct Garage {
    config: PathBuf,
    port: u16,
    _server: Server,
}

/// Where `scripts/s3-servers garage` puts it.
fn binary() -> PathBuf {
    let binary = repository().join("target/tools/bin/garage");
    assert!(binary.is_file(), "there is no Garage: `make soak-engines` builds it");
    binary
}

impl Garage {
    /// Starts one with its files in `dir`, and with the bucket and its user.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path) -> Garage {
        std::fs::create_dir_all(dir).unwrap();
        let (port, rpc, admin) = (free_port(), free_port(), free_port());
        let config = dir.join("garage.toml");
        let text = format!(
            r#"
metadata_dir = "{dir}/meta"
data_dir = "{dir}/data"
db_engine = "sqlite"
replication_factor = 1
rpc_bind_addr = "127.0.0.1:{rpc}"
rpc_public_addr = "127.0.0.1:{rpc}"
rpc_secret = "{SECRET_KEY}"
[s3_api]
s3_region = "us-east-1"
api_bind_addr = "127.0.0.1:{port}"
root_domain = ".s3.garage"
[admin]
api_bind_addr = "127.0.0.1:{admin}"
"#,
            dir = dir.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut garage = command(binary());
        garage.arg("-c").arg(&config).args(["server", "--single-node", "--default-bucket"]);
        garage.env("GARAGE_DEFAULT_ACCESS_KEY", ACCESS_KEY);
        garage.env("GARAGE_DEFAULT_SECRET_KEY", SECRET_KEY);
        garage.env("GARAGE_DEFAULT_BUCKET", BUCKET);
        let mut server = Server::start("garage", garage, &dir.with_extension("log"));
        let admin = format!("127.0.0.1:{admin}");
        server.wait_until("Garage is ready", START, || {
            http_get(&admin, "/health").is_some_and(|(code, _)| code == 200)
        });
        let garage = Garage { config, port, _server: server };
        // It says so a moment before it has made the bucket.
        crate::wait_for("the bucket", LIMIT, || garage.info().contains(ACCESS_KEY));
        garage
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn info(&self) -> String {
        let mut info = command(binary());
        info.arg("-c").arg(&self.config).args(["bucket", "info", BUCKET]);
        run_within(info, LIMIT).stdout
    }

    /// How many objects there are in the bucket, as it says itself.
    #[track_caller]
    #[must_use]
    pub fn objects(&self) -> u64 {
        let info = self.info();
        let line = info.lines().find_map(|line| line.strip_prefix("Objects:"));
        let count = line.and_then(|count| count.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no count of objects in:\n{info}"))
    }
}
