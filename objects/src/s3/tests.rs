//! Tests of the client of a bucket, alone and with a real server (versitygw, if
//! `scripts/s3-servers` has built it).

use super::*;
use crate::tests::keeps_the_contract;
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
    /// Starts a server. `None` if there is none to start, which fails in CI.
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
            assert!(begun.elapsed() < Duration::from_secs(120), "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Server { child, address, dir })
    }

    fn objects(&self, prefix: &str) -> S3Objects {
        S3Objects::open_with("bucket", prefix, &environment(&self.address)).unwrap()
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
    // An empty range, one at the end, one beyond the end, and a bucket that goes.
    objects.put("v/1/seg/a", vec![Bytes::from("hello")]).await.unwrap();
    assert_eq!(objects.get("v/1/seg/a", Some(2..2)).await.unwrap(), "");
    assert_eq!(objects.get("v/1/seg/a", Some(5..9)).await.unwrap(), "");
    assert_eq!(objects.get("v/1/seg/b", Some(2..2)).await, Err(GetError::NotFound));
    assert_eq!(server.objects("some/prefix").list_some().await.unwrap().len(), 1);
    assert_eq!(server.objects("some").list("pre").await.unwrap().len(), 1);
    let usage = objects.usage().unwrap();
    assert!(usage.requests[&(Operation::Put, usage::Outcome::Exists)] > 100, "{usage:?}");
    std::fs::rename(server.dir.path().join("bucket"), server.dir.path().join("gone")).unwrap();
    let failed = |error: &StorageError| {
        assert!(error.message().contains("no bucket `bucket`"), "{error}");
    };
    let Err(GetError::Failed(error)) = objects.get("v/1/seg/a", None).await else { panic!() };
    failed(&error);
    let Err(PutError::Failed(error)) = objects.put("v/1/seg/c", vec![]).await else { panic!() };
    failed(&error);
    failed(&objects.delete("v/1/seg/a").await.unwrap_err());
    failed(&objects.list("").await.unwrap_err());
}

/// More names than a page has, which is a thousand.
#[tokio::test]
async fn lists_have_all_pages() {
    let Some(server) = Server::start() else { return };
    let dir = server.dir.path().join("bucket/p/v/1/seg");
    std::fs::create_dir_all(&dir).unwrap();
    for number in 0..2345 {
        std::fs::write(dir.join(format!("{number:04}")), "x").unwrap();
    }
    let objects = server.objects("p");
    let sorted = |list: Vec<ObjectMeta>| {
        let mut keys: Vec<_> = list.into_iter().map(|meta| meta.key).collect();
        keys.sort();
        keys.dedup();
        keys
    };
    let keys = sorted(objects.list("v/1/").await.unwrap());
    assert_eq!((keys.len(), keys[2344].as_str()), (2345, "v/1/seg/2344"));
    let after = sorted(objects.list_after("v/1/seg/", "v/1/seg/0300").await.unwrap());
    assert_eq!(after[..], keys[301..]);
    // No object need have that name.
    let after = sorted(objects.list_after("v/1/seg/", "v/1/seg/2343x").await.unwrap());
    assert_eq!(after[..], keys[2344..]);
}

/// A server that gives this answer to all requests. Each has its own connection.
fn answers(text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.extend_from_slice(&byte);
            }
            let length = text.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: \
                 {length}\r\nConnection: close\r\n\r\n{text}"
            );
        }
    });
    address
}

fn environment(address: &str) -> BTreeMap<String, String> {
    let env = [
        ("AWS_ACCESS_KEY_ID", "access"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", &format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    env.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The end of the answer to a copy counts, not the status of success at its beginning.
#[tokio::test]
async fn a_copy_that_fails_after_it_began_is_none() {
    let copied = "<CopyObjectResult><ETag>&quot;1&quot;</ETag></CopyObjectResult>";
    let objects = S3Objects::open_with("bucket", "p", &environment(&answers(copied))).unwrap();
    objects.copy("v/1/seg/1", "tree/t/v/1/seg/1").await.unwrap();
    for (answer, said) in [
        ("<Error><Code>RequestTimeout</Code><Message>too slow</Message></Error>", "too slow"),
        // An answer that begins and does not end.
        ("<CopyObjectResult><Progress>1048576</Progress>", "failed (200)"),
        ("", "failed (200)"),
    ] {
        let objects = S3Objects::open_with("bucket", "p", &environment(&answers(answer))).unwrap();
        let Err(PutError::Failed(error)) = objects.copy("v/1/seg/1", "tree/t/v/1/seg/1").await
        else {
            panic!("{answer} counts as a copy")
        };
        let text = error.message();
        assert!(text.contains(said) && text.contains("begun to copy"), "{text}");
    }
}

#[test]
fn the_replica_is_where_its_own_variables_say() {
    let home = tempfile::tempdir().unwrap();
    let credentials = home.path().join("credentials");
    std::fs::write(
        &credentials,
        "[there]\naws_access_key_id=profile\naws_secret_access_key=x\nregion=there-1\nendpoint_url=https://profile\n\
         [keys]\naws_access_key_id=profile\naws_secret_access_key=x\n",
    )
    .unwrap();
    let credentials = credentials.to_str().unwrap().to_owned();
    let here = [
        ("AWS_ACCESS_KEY_ID", "here"),
        ("AWS_SECRET_ACCESS_KEY", "here"),
        ("AWS_SESSION_TOKEN", "here"),
        ("AWS_ENDPOINT_URL_S3", "https://here"),
        ("AWS_DEFAULT_REGION", "here-1"),
        ("AWS_SHARED_CREDENTIALS_FILE", &credentials),
        ("AWS_CONFIG_FILE", "/dev/null"),
    ];
    let at = |replica: &[(&str, &str)]| {
        let replica =
            replica.iter().map(|(name, value)| (format!("LONGHAUL_REPLICA_{name}"), *value));
        let all = here.iter().map(|(name, value)| ((*name).to_owned(), *value)).chain(replica);
        let env = of_replica(all.map(|(name, value)| (name, value.to_owned())).collect()).unwrap();
        let (builder, place) = configure("bucket", &env).unwrap();
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::DefaultRegion));
        let keys = [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::Token];
        let keys = keys.map(|key| builder.get_config_value(&key).unwrap_or_default());
        (place.endpoint, region.unwrap_or_default(), keys)
    };
    let owned = |endpoint: &str, region: &str, keys: [&str; 2]| {
        (endpoint.to_owned(), region.to_owned(), keys.map(str::to_owned))
    };
    assert_eq!(at(&[]), owned("https://here", "here-1", ["here", "here"]));
    let url = ("AWS_ENDPOINT_URL", "https://there");
    assert_eq!(at(&[url]), owned("https://there", "here-1", ["here", "here"]));
    let region = ("AWS_REGION", "there-2");
    assert_eq!(at(&[url, region]), owned("https://there", "there-2", ["here", "here"]));
    let keys = [("AWS_ACCESS_KEY_ID", "there"), ("AWS_SECRET_ACCESS_KEY", "there")];
    assert_eq!(at(&keys), owned("https://here", "here-1", ["there", ""]));
    // The settings of the replica's profile count. Settings that it lacks come from the environment
    // here.
    let profile = ("AWS_PROFILE", "there");
    assert_eq!(at(&[profile]), owned("https://profile", "there-1", ["", ""]));
    assert_eq!(at(&[profile, url]), owned("https://there", "there-1", ["", ""]));
    assert_eq!(at(&[("AWS_PROFILE", "keys")]), owned("https://here", "here-1", ["", ""]));
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
    let place = Place { bucket: "b".into(), endpoint: "e".into(), replica: false };
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
    // A missing bucket, or the page of a proxy, must not end a log.
    assert_eq!(judged(Operation::Get, 404, "NoSuchBucket"), "other");
    assert_eq!(judged(Operation::Get, 404, ""), "other");
    assert_eq!(judged(Operation::Put, 404, "NoSuchKey"), "other");
    assert_eq!(judged(Operation::Put, 412, "PreconditionFailed"), "exists");
    // Another creation is under way, and may still fail.
    assert_eq!(judged(Operation::Put, 409, "ConditionalRequestConflict"), "other");
    assert_eq!(judged(Operation::Get, 416, "InvalidRange"), "past the end");
    assert_eq!(judged(Operation::List, 404, "NoSuchKey"), "other");
}
