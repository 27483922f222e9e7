//! NBD over TLS with real clients, and the refusals without.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, command, run, run_within};
use longhaul_e2e::site::{Site, free_port};
use std::path::{Path, PathBuf};

/// A CA, a server's certificate for localhost, and two clients': one of the CA's, one of another's.
struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    fn new(dir: PathBuf) -> Certificates {
        std::fs::create_dir(&dir).unwrap();
        let this = Certificates { dir };
        for ca in ["ca", "other"] {
            this.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj \
                 /CN={ca} -keyout {ca}-key.pem -out {ca}-cert.pem"
            ));
        }
        this.signed("server", "ca", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        for (client, ca) in [("good", "ca"), ("bad", "other")] {
            this.signed("client", ca, "extendedKeyUsage=clientAuth");
            let own = this.dir.join(client);
            std::fs::create_dir(&own).unwrap();
            let copy = |from: &str, to: &str| {
                std::fs::copy(this.dir.join(from), own.join(to)).unwrap();
            };
            copy("ca-cert.pem", "ca-cert.pem");
            copy("client-cert.pem", "client-cert.pem");
            copy("client-key.pem", "client-key.pem");
        }
        this
    }

    fn openssl(&self, args: &str) {
        let mut openssl = command("openssl");
        openssl.current_dir(&self.dir).args(args.split_whitespace());
        run_within(openssl, LIMIT).ok();
    }

    fn signed(&self, name: &str, ca: &str, extension: &str) {
        std::fs::write(
            self.dir.join("extension"),
            format!("basicConstraints=CA:FALSE\n{extension}\n"),
        )
        .unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout \
             {name}-key.pem -out request.pem"
        ));
        self.openssl(&format!(
            "x509 -req -in request.pem -days 2 -CA {ca}-cert.pem -CAkey {ca}-key.pem \
             -CAcreateserial -extfile extension -out {name}-cert.pem"
        ));
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn clients_with_a_certificate_and_no_others() {
    let site = Site::with_volume("disk", 32);
    let certificates = Certificates::new(site.path("tls"));
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let (cert, key, ca) = (
        certificates.path("server-cert.pem"),
        certificates.path("server-key.pem"),
        certificates.path("ca-cert.pem"),
    );
    let mut host = site.host("host").with([
        "--nbd",
        &address,
        "--nbd-tls-cert",
        &cert,
        "--nbd-tls-key",
        &key,
        "--nbd-tls-ca",
        &ca,
        "--volume",
        "disk",
    ]);
    host.launch();
    host.server()
        .wait_until("the host listens", LIMIT, || std::net::TcpStream::connect(&address).is_ok());

    let uri = |client: &str| {
        format!("nbds://localhost:{port}/disk?tls-certificates={}", certificates.path(client))
    };
    let info = run("nbdinfo", ["--json", &uri("good")]).ok().json();
    assert_eq!(info["TLS"], true, "{info}");
    let (from, to) = (site.path("from"), site.path("to"));
    let mut data = vec![0; 32 << 20];
    fastrand::Rng::with_seed(3).fill(&mut data);
    std::fs::write(&from, &data).unwrap();
    run("nbdcopy", ["--flush", text(&from), &uri("good")]).ok();
    run("nbdcopy", [&uri("good"), text(&to)]).ok();
    assert!(std::fs::read(&to).unwrap() == data, "TLS brought back something else");
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", certificates.path("good"));
    let image = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls");
    run(
        "qemu-img",
        [
            "compare",
            "--object",
            &object,
            "--image-opts",
            &image,
            &format!("driver=raw,file.filename={}", text(&from)),
        ],
    )
    .ok();

    // Once the list names somebody, the client has to be one of them.
    host.control("nbd", ["allow", "disk", "cert:another"]).ok();
    let refused = run("nbdinfo", [uri("good")]);
    assert!(!refused.status.success(), "{refused}");
    host.control("nbd", ["allow", "disk", "cert:client"]).ok();
    run("nbdinfo", [uri("good")]).ok();

    let bad = run("nbdinfo", [uri("bad")]);
    assert!(!bad.status.success(), "a certificate of another CA is accepted: {bad}");
    let plain = run("nbdinfo", [format!("nbd://localhost:{port}/disk")]);
    assert!(!plain.status.success(), "no TLS is accepted: {plain}");
    let refused = Client::nbd(&address, "disk").err().expect("no TLS is accepted");
    // NBD_REP_ERR_TLS_REQD
    assert!(refused.to_string().contains("0x80000005"), "{refused}");
    assert!(host.stop().success());
}

#[test]
fn nothing_listens_unauthenticated_off_loopback() {
    let site = Site::new();
    let address = format!("0.0.0.0:{}", free_port());
    site.host("a").with(["--nbd", &address]).run_to_failure().fails(2, &["tls", &address]);
    let certificates = Certificates::new(site.path("tls"));
    let (cert, key) = (certificates.path("server-cert.pem"), certificates.path("server-key.pem"));
    let tls = ["--nbd", &address, "--nbd-tls-cert", &cert, "--nbd-tls-key", &key];
    site.host("b").with(tls).run_to_failure().fails(2, &["--nbd-tls-ca"]);
    site.host("c").with(["--nbd-tls-cert", &cert]).run_to_failure().fails(2, &["--nbd-tls-key"]);
    let mut host = site.host("d");
    host.admin = format!("0.0.0.0:{}", free_port());
    host.run_to_failure().fails(2, &["loopback"]);
    let missing = ["--nbd-tls-cert", "/no/such.pem", "--nbd-tls-key", "/no/such.pem"];
    site.host("e").with(missing).run_to_failure().fails(1, &["/no/such.pem"]);
}
