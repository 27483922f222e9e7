//! Questions of commands before they destroy something, their refusals, and their remains after a
//! stop.

use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{START, Site, free_address};
use longhaul_e2e::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

/// A command that may have to ask.
fn asking(site: &Site, args: &[&str]) -> Output {
    let mut asking = command(longhaul());
    asking.env_remove("LONGHAUL_YES").args(args);
    if args[0] != "credential" {
        asking.arg("--credential").arg(site.store.credential());
    }
    run_within(asking, LIMIT)
}

/// The same on a terminal, on which `answer` is typed.
fn on_terminal(site: &Site, args: &[&str], answer: &str) -> Output {
    let credential = site.store.credential();
    let line = format!(
        "{} {} --credential {}",
        longhaul().display(),
        args.join(" "),
        credential.display()
    );
    let typed = format!("printf '{answer}' | script -qec '{line}' /dev/null");
    let mut shell = command("sh");
    shell.env_remove("LONGHAUL_YES").args(["-c", &typed]);
    run_within(shell, LIMIT)
}

#[test]
fn what_destroys_something_asks_or_wants_to_be_told() {
    let site = Site::with_volume("disk", 8);
    site.snapshot(["create", "disk@a"]).ok();
    run(
        longhaul(),
        ["tenant", "create", "t", "--credential"].into_iter().chain([site
            .store
            .credential()
            .to_str()
            .unwrap()]),
    )
    .ok();
    let state = site.store.dir().to_str().unwrap();
    for args in [
        &["volume", "delete", "disk"][..],
        &["volume", "delete", "disk", "--now"],
        &["volume", "resize", "disk", "4MiB", "--force"],
        &["volume", "accept-loss", "disk"],
        &["volume", "key", "remove", "disk", "1"],
        &["snapshot", "delete", "disk@a"],
        &["snapshot", "rollback", "disk@a"],
        &["tenant", "delete", "t"],
        &["store", "forget", "0"],
        &["store", "replica", "remove"],
        &["credential", "revoke", "--tenant", "t", "--state", state],
    ] {
        asking(&site, args).fails(2, &["--yes"]);
    }
    assert_eq!(site.show("disk")["size_bytes"], 8 << 20);
    asking(&site, &["volume", "resize", "disk", "16MiB"]).ok();
    // New content discards the old one; an empty volume loses nothing.
    let (image, stream) = (site.path("image"), site.path("stream"));
    let (image, stream) = (image.to_str().unwrap(), stream.to_str().unwrap());
    std::fs::write(image, vec![7; 1 << 20]).unwrap();
    site.snapshot(["send", "disk@a", stream]).ok();
    site.create("copy", 8);
    asking(&site, &["volume", "import", "copy", image]).ok();
    for args in [&["volume", "import", "copy", image][..], &["snapshot", "receive", "copy", stream]]
    {
        asking(&site, args).fails(2, &["has data", "--yes"]);
    }

    // On a terminal it asks; any answer but yes is a no.
    for answer in ["n\\n", "\\n"] {
        let said = on_terminal(&site, &["snapshot", "delete", "disk@a"], answer);
        assert_eq!(said.status.code(), Some(1), "{said}");
        assert!(
            said.stdout.contains("Go on?") && said.stdout.contains("nothing was done"),
            "{said}"
        );
    }
    on_terminal(&site, &["snapshot", "delete", "disk@a"], "y\\n").ok();
    let left = site.snapshot(["list", "disk", "--json"]).ok().json();
    assert_eq!(left["snapshots"].as_array().unwrap().len(), 0);
    asking(&site, &["volume", "delete", "disk", "--yes"]).ok();
}

#[test]
fn files_are_not_written_over_and_streams_not_to_a_terminal() {
    let site = Site::with_volume("disk", 8);
    let file = site.path("image");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "mine").unwrap();
    site.volume(["export", "disk", name]).fails(1, &["exists", "--force"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    site.volume(["export", "disk", name, "--force"]).ok();
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
    site.volume(["export", "disk", "/dev/null"]).ok();
    site.snapshot(["create", "disk@a"]).ok();
    site.snapshot(["send", "disk@a", name]).fails(1, &["exists", "--force"]);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
    site.snapshot(["send", "disk@a", "/dev/null"]).ok();
    let said = on_terminal(&site, &["snapshot", "send", "disk@a", "-"], "");
    assert_eq!(said.status.code(), Some(2), "{said}");
    assert!(said.stdout.contains("not for a terminal"), "{said}");
}

#[test]
fn a_snapshot_that_nobody_has_read_is_sent() {
    let mut site = Site::with_volume("disk", 8);
    let image = site.path("image");
    let data: Vec<u8> = (0..8 << 20).map(|n: u32| (n / 512) as u8 | 1).collect();
    std::fs::write(&image, &data).unwrap();
    site.volume(["import", "disk", image.to_str().unwrap()]).ok();
    site.snapshot(["create", "disk@a"]).ok();
    for round in 0..3 {
        match round {
            0 => {}
            1 => {
                site.volume(["delete", "disk"]).ok();
                site.volume(["undelete", "disk"]).ok();
            }
            _ => {
                site.store.stop();
                site.store.restart();
            }
        }
        let stream = site.path(&format!("stream{round}"));
        site.snapshot(["send", "disk@a", stream.to_str().unwrap()]).ok();
        let copy = format!("copy{round}");
        site.create(&copy, 8);
        site.snapshot(["receive", &copy, stream.to_str().unwrap()]).ok();
        assert!(site.export(&copy) == data, "round {round}");
    }
}

#[test]
fn a_list_says_what_is_missing_after_a_restart() {
    let mut site = Site::with_volume("disk", 64);
    site.create("unused", 8);
    let mut host = site.host("host").with(["--volume", "disk", "--drain-rate", "2Mbit/s"]);
    host.start();
    let mut client = host.client("disk");
    for block in 0..24_u64 {
        client.write(block << 18, &vec![block as u8 + 1; 256 << 10]).unwrap();
    }
    client.flush().unwrap();
    let announced = |site: &Site| site.show("disk")["live"]["announced_bytes"].as_u64();
    wait_for("the writes to be announced", LIMIT, || announced(&site).is_some_and(|n| n > 1 << 20));
    host.kill();
    site.store.stop();
    site.store.restart();
    // Nobody has asked for the volume since.
    let list = site.volume(["list", "--json"]).ok().json();
    let of = |name: &str| {
        let all = list["volumes"].as_array().unwrap();
        all.iter().find(|volume| volume["name"] == name).unwrap()["live"].clone()
    };
    assert!(of("disk")["announced_bytes"].as_u64().is_some_and(|n| n > 1 << 19), "{list}");
    assert_eq!(of("disk")["announced_bytes"].as_u64(), announced(&site));
    assert_eq!(of("unused")["announced_bytes"], 0, "{list}");
    let table = site.volume(["list"]).ok().stdout;
    let named = of("disk")["host"].as_str().unwrap().to_owned();
    assert!(table.contains("writes missing") && table.contains(&named), "{table}");
    drop(client);
}

/// An import of standard input, of which `mib` MiB have come.
fn importing(site: &Site, mib: usize) -> Child {
    let mut import = command(longhaul());
    import.args(["volume", "import", "disk", "-", "--yes", "--credential"]);
    import.arg(site.store.credential());
    import.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut import = import.spawn().unwrap();
    let data = vec![7; mib << 20];
    import.stdin.as_mut().unwrap().write_all(&data).unwrap();
    wait_for("a part to be committed", LIMIT, || {
        let live = site.show("disk")["live"].clone();
        live["connected"] == true && live["mapped_bytes"].as_u64().is_some_and(|n| n > 1 << 20)
    });
    import
}

#[test]
fn an_import_that_is_stopped_is_in_nobodys_way() {
    let site = Site::with_volume("disk", 32);
    let import = importing(&site, 8);
    let pid = Pid::from_raw(i32::try_from(import.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = import.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("incomplete") && said.contains("stopped"), "{said}");
    let live = site.show("disk")["live"].clone();
    assert_eq!((&live["connected"], &live["clean"]), (&false.into(), &true.into()), "{live}");

    // One that is killed says nothing to anybody.
    let mut import = importing(&site, 8);
    import.kill().unwrap();
    import.wait().unwrap();
    wait_for("the store to notice", LIMIT, || site.show("disk")["live"]["connected"] == false);
    let table = site.volume(["list"]).ok().stdout;
    assert!(table.contains("import cut short"), "{table}");
    let image = site.path("image");
    std::fs::write(&image, vec![9; 1 << 20]).unwrap();
    // A host that may only have lost its connection has a moment to come back.
    wait_for("another import", LIMIT, || {
        site.volume(["import", "disk", image.to_str().unwrap(), "--yes"]).status.success()
    });
    let table = site.volume(["list"]).ok().stdout;
    assert!(table.contains("detached"), "{table}");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_refused_start_leaves_nothing() {
    let site = Site::new();
    let taken = site.path("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("mine"), "mine").unwrap();
    let empty = site.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let before = names(site.path("").as_path());
    let data = site.store.dir().display().to_string();
    let start = |args: &[&str], state: &Path, parts: &[&str]| {
        let mut start = command(longhaul());
        start.arg("store").args(args).arg("--state").arg(state);
        let given = |flag: &str| args.contains(&flag);
        let (listen, admin) = (free_address(), free_address());
        if !given("--listen") {
            start.args(["--listen", &listen]);
        }
        if !given("--admin") {
            start.args(["--admin", &admin]);
        }
        let ended = run_within(start, START);
        let code = ended.status.code().unwrap();
        ended.fails(code, parts);
        assert!(code == 1 || code == 2);
        assert_eq!(names(site.path("").as_path()), before, "{args:?}");
        assert_eq!(names(&empty), Vec::<String>::new(), "{args:?}");
    };
    let (new, deep) = (site.path("new"), site.path("a/b/c"));
    let text = |path: &Path| path.display().to_string();
    for state in [&new, &deep, &empty] {
        let of = text(state);
        start(&["--data", &of, "--listen", &site.store.address], state, &["listen"]);
        start(&["--data", &of, "--admin", &site.store.admin], state, &["--admin"]);
        start(&["--data", &of, "--map-memory", "1KiB"], state, &["--map-memory"]);
        start(&["--data", &of, "--gc-percent", "50"], state, &["--gc-percent"]);
        start(&["--data", &text(&taken)], state, &["neither empty"]);
        // Of another CA, which shows only once this one has its own.
        start(&["--data", &data], state, &["another CA"]);
        start(&["--data", &format!("file://{}", text(&taken.join("mine")))], state, &[]);
    }
    assert_eq!(names(&taken), ["mine"]);
    site.create("disk", 8);
}

#[test]
fn what_stops_in_order_warns_of_nothing() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    site.snapshot(["create", "disk@a"]).ok();
    let logs = [site.path("host.log"), site.store.dir().with_extension("log")];
    assert!(host.stop().success() && site.store.stop().success());
    for log in logs {
        let text = std::fs::read_to_string(&log).unwrap();
        let warned: Vec<&str> =
            text.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
        assert!(warned.is_empty(), "{}: {warned:#?}\n{text}", log.display());
    }
}
