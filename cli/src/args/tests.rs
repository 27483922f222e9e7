//! Where values come from: command line, environment, config file.

use super::*;

#[test]
fn command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn config_fills_in_what_the_command_line_leaves_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("longhaul.toml");
    std::fs::write(
        &path,
        "[host]\njournal-size = \"2GiB\"\ncache-size = \"10GiB\"\nwrite-through = true\nvolume = \
         [\"a\", \"b\"]\nstate = \"/s\"\ncredential = \"/c\"",
    )
    .unwrap();
    let args = ["longhaul", "--config", path.to_str().unwrap(), "host", "--state", "/mine"];
    let all = arguments(args.iter().map(OsString::from).collect()).unwrap();
    let Command::Host(host) = Cli::try_parse_from(all).unwrap().command else { panic!() };
    assert_eq!(host.state, PathBuf::from("/mine"));
    assert_eq!(host.credential, PathBuf::from("/c"));
    assert_eq!(host.journal_args.journal_size, 2 << 30);
    assert_eq!(host.cache_size, 10 << 30);
    assert_eq!(host.volume_args.volumes, ["a", "b"]);
    assert!(host.write_through);
}

#[test]
fn config_has_tables_for_the_commands_of_commands() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("longhaul.toml");
    std::fs::write(
        &path,
        "[credential.rotate]\nstate = \"/s\"\n[volume]\njson = true\n\
         [volume.create]\nblock-size = 4096\nsize = \"1MiB\"",
    )
    .unwrap();
    let parse = |args: &[&str]| {
        let mut all = vec!["store", "--config", path.to_str().unwrap()];
        all.extend(args);
        let all = arguments(all.iter().map(OsString::from).collect()).unwrap();
        Cli::try_parse_from(all).unwrap().command
    };
    let Command::Credential(credential) = parse(&["credential", "rotate"]) else { panic!() };
    let CredentialCommand::Rotate { state } = credential.command else { panic!() };
    assert_eq!(state, PathBuf::from("/s"));
    let Command::Volume(volume) = parse(&["volume", "create", "list", "--size", "2MiB"]) else {
        panic!()
    };
    assert!(volume.json);
    let VolumeCommand::Create { name, size, block_size, .. } = volume.command else { panic!() };
    assert_eq!((name.as_str(), size, block_size.as_str()), ("list", 2 << 20, "4096"));
    let Command::Volume(volume) = parse(&["volume", "show", "create"]) else { panic!() };
    assert!(matches!(volume.command, VolumeCommand::Show { name } if name == "create"));
}

#[test]
fn rights_in_the_config_are_no_flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("longhaul.toml");
    let text = "[iscsi]\nweak-chap = true\n[store]\ndata = \"/d\"\n[host]\niscsi = [\"::1\"]";
    std::fs::write(&path, text).unwrap();
    let parse = |args: &[&str]| {
        let all = [&["longhaul", "--config", path.to_str().unwrap()], args].concat();
        let all = arguments(all.iter().map(OsString::from).collect()).unwrap();
        Cli::try_parse_from(all).unwrap().command
    };
    let Command::Iscsi(iscsi) = parse(&["iscsi", "allow", "store", "iqn.x"]) else { panic!() };
    let IscsiCommand::Allow { volume, .. } = iscsi.command else { panic!() };
    assert_eq!(volume, "store", "a volume may be named like a command");
    let Command::Host(host) = parse(&["host", "--state", "/s", "--credential", "/c"]) else {
        panic!()
    };
    assert_eq!(host.iscsi, ["::1"]);
}

#[test]
fn config_mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("longhaul.toml");
    let args: Vec<OsString> =
        ["longhaul", "--config", path.to_str().unwrap(), "host"].map(OsString::from).to_vec();
    assert!(arguments(args.clone()).unwrap_err().to_string().contains("cannot read"));
    std::fs::write(&path, "[hosts]").unwrap();
    assert!(arguments(args.clone()).unwrap_err().to_string().contains("`hosts` is no command"));
    std::fs::write(&path, "[host]\nstate = { a = 1 }").unwrap();
    assert!(arguments(args).unwrap_err().to_string().contains("`state` cannot be"));
}

#[test]
fn limits_of_tenants_say_of_what_they_are() {
    let limits = |given: &[&str]| {
        let args = ["longhaul", "tenant", "set", "acme"].iter().chain(given);
        let Command::Tenant(tenant) = Cli::try_parse_from(args).ok()?.command else { panic!() };
        let TenantCommand::Set { limits, .. } = tenant.command else { panic!() };
        Some((limits.max_iops, limits.max_rate))
    };
    let rate = |text| limits(&["--max-rate", text]).map(|(_, rate)| rate.unwrap().0);
    assert_eq!(rate("50MiB/s"), Some(Some(50 << 20)));
    assert_eq!(rate("1.5 MB"), Some(Some(1_500_000)));
    assert_eq!(rate("100Mbit/s"), Some(Some(12_500_000)));
    assert_eq!(rate("none"), Some(None));
    for wrong in ["", "8", "50/s", "8 Mbyte/s", "fast", "-1MiB/s", "0B/s", "7bit/s"] {
        assert_eq!(rate(wrong), None, "{wrong}");
    }
    assert_eq!(limits(&["--max-iops", "500"]), Some((Some(LimitArg(Some(500))), None)));
    assert_eq!(limits(&["--max-iops", "none"]), Some((Some(LimitArg(None)), None)));
    assert_eq!((limits(&["--max-iops", "0"]), limits(&["--max-iops", "1/s"])), (None, None));
}

#[test]
fn what_opens_volumes_may_be_for_one_or_for_all() {
    let host = ["longhaul", "host", "--credential", "/c", "--state", "/s"];
    let flags = ["--key-file", "/a,db=/b", "--plain", "x", "--plain", "y", "--require-encryption"];
    let Command::Host(host) = Cli::try_parse_from(host.iter().chain(&flags)).unwrap().command
    else {
        panic!()
    };
    assert_eq!(host.keys.key_files, ["/a", "db=/b"]);
    assert_eq!(host.keys.plain, ["x", "y"]);
    assert!(host.keys.require_encryption && host.keys.encrypted.is_empty());
    let volume = |args: &[&str]| {
        Cli::try_parse_from(["longhaul", "volume"].iter().chain(args)).map(|cli| cli.command)
    };
    let add = ["key", "add", "db", "--key-file", "/k"];
    assert!(volume(&[&add[..], &["--recovery"]].concat()).is_ok());
    for two in [["--recovery", "--new-key-file=/x"], ["--new-passphrase-file=-", "--recovery"]] {
        assert!(volume(&[&add[..], &two].concat()).is_err());
    }
    // A passphrase is never an argument.
    assert!(volume(&["key", "list", "db", "--passphrase", "secret"]).is_err());
}
