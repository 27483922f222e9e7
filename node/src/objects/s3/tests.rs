//! The client of a bucket, by itself and against a real server (versitygw, if `scripts/s3-servers` has built it).

use super::*;
use crate::objects::tests::keeps_the_contract;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A server of the S3 API over a directory, until dropped.
struct Server {
    child: Child,
    address: String,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts one; `None`, which CI does not take, if there is none to start.
    fn start() -> Option<Server> {
        let binary = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/bin/versitygw");
        if !std::path::Path::new(binary).exists() {
            assert!(std::env::var_os("CI").is_none(), "in CI no test may be left out: {binary}");
            eprintln!("SKIPPED: there is no versitygw; scripts/s3-servers builds it");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(binary);
        command.args(["--port", &address, "--access", "access", "--secret", "secret"]);
        command.args(["--keep-alive", "--quiet", "posix"]).arg(dir.path()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(&address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Server { child, address, dir })
    }

    fn objects(&self, prefix: &str) -> S3Objects {
        let url = format!("http://{}", self.address);
        let env = [
            ("AWS_ACCESS_KEY_ID", "access"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_ENDPOINT_URL", &url),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        S3Objects::open_with("bucket", prefix, &env.into()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn objects_in_a_bucket() {
    let Some(server) = Server::start() else { return };
    let objects = server.objects("some/prefix").below("objects");
    keeps_the_contract(Arc::new(objects.clone())).await;
    // A range of nothing, one at the end, one beyond, and a bucket that goes.
    objects.put("v/1/seg/a", vec![Bytes::from("hello")]).await.unwrap();
    assert_eq!(objects.get("v/1/seg/a", Some(2..2)).await.unwrap(), "");
    assert_eq!(objects.get("v/1/seg/a", Some(5..9)).await.unwrap(), "");
    assert_eq!(objects.get("v/1/seg/b", Some(2..2)).await, Err(GetError::NotFound));
    assert_eq!(server.objects("some/prefix").list_some().await.unwrap().len(), 1);
    assert_eq!(server.objects("some").list("pre").await.unwrap().len(), 1);
    let usage = objects.usage().unwrap();
    assert!(usage.requests[&(Operation::Put, usage::Outcome::Exists)] > 100, "{usage:?}");
    std::fs::rename(server.dir.path().join("bucket"), server.dir.path().join("gone")).unwrap();
    let failed = |error: &str| assert!(error.contains("there is no bucket `bucket`"), "{error}");
    let Err(GetError::Failed(error)) = objects.get("v/1/seg/a", None).await else { panic!() };
    failed(&error);
    let Err(PutError::Failed(error)) = objects.put("v/1/seg/c", vec![]).await else { panic!() };
    failed(&error);
    failed(&objects.delete("v/1/seg/a").await.unwrap_err());
    failed(&objects.list("").await.unwrap_err());
}

/// More than the thousand that a page has.
#[tokio::test]
async fn lists_have_all_pages() {
    let Some(server) = Server::start() else { return };
    let dir = server.dir.path().join("bucket/p/v/1/seg");
    std::fs::create_dir_all(&dir).unwrap();
    for number in 0..2345 {
        std::fs::write(dir.join(format!("{number:04}")), "x").unwrap();
    }
    let objects = server.objects("p");
    let mut keys: Vec<_> =
        objects.list("v/1/").await.unwrap().into_iter().map(|meta| meta.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), keys[2344].as_str()), (2345, "v/1/seg/2344"));
}

#[test]
fn names_stay_below_the_prefix() {
    let objects = S3Objects::open("bucket", "a/b").unwrap().below("objects");
    assert_eq!(objects.path("v/1/seg/2").unwrap().as_ref(), "a/b/objects/v/1/seg/2");
    for key in ["", "/x", "x/", "a//b", "../x", "a/../b", ".", "a\u{7}"] {
        assert!(objects.path(key).is_err(), "{key:?}");
    }
    assert_eq!(volume_of("v/00000000000000000000000000000007/seg/1"), Some(VolumeId(7)));
    assert_eq!(volume_of("volumes/v"), None);
}

#[test]
fn only_the_absence_of_the_object_is_its_absence() {
    let place = Place { bucket: "b".into(), endpoint: "e".into() };
    let judged = |operation, status, code: &str| {
        let call = Call::new(operation, None);
        call.note(Answer::Refused { status, code: code.into(), message: String::new() });
        match judge(&place, &call, &wrong("x")) {
            Failure::Exists => "exists",
            Failure::Missing => "missing",
            Failure::PastEnd => "past the end",
            Failure::Lost(_) | Failure::Other(_) => "other",
        }
    };
    assert_eq!(judged(Operation::Get, 404, "NoSuchKey"), "missing");
    // A bucket that is gone, or a proxy's page, must not end a log.
    assert_eq!(judged(Operation::Get, 404, "NoSuchBucket"), "other");
    assert_eq!(judged(Operation::Get, 404, ""), "other");
    assert_eq!(judged(Operation::Put, 404, "NoSuchKey"), "other");
    assert_eq!(judged(Operation::Put, 412, "PreconditionFailed"), "exists");
    // Another creation is under way, and may yet fail.
    assert_eq!(judged(Operation::Put, 409, "ConditionalRequestConflict"), "other");
    assert_eq!(judged(Operation::Get, 416, "InvalidRange"), "past the end");
    assert_eq!(judged(Operation::List, 404, "NoSuchKey"), "other");
}
