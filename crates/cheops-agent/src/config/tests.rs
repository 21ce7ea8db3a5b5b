//! Configurations, as they are written and as they are read.

use super::*;

fn read(text: &str) -> Result<Config, String> {
    Config::from_toml(text, Path::new("/etc/cheops"))
}

#[test]
fn a_name_is_enough() {
    let config = read("site = 'site1'").unwrap();
    assert_eq!(config, Config::new("site1".parse().unwrap(), "/etc/cheops/data"));
}

#[test]
fn all_settings() {
    let key = PublicKey::from_bytes([1; 32]);
    let config = read(
        r#"
            site = "site1"
            data = "/var/lib/cheops"
            work = "here"
            [listen]
            api = "127.0.0.1:1"
            socket = "run/api.sock"
            peers = "[::]:2"
            [[peer]]
            name = "site2"
            address = "10.0.0.2:8078"
            key = "KEY"
            [api]
            connections = 5
            feeds = 6
            streams = 7
            headers = "1s"
            header_bytes = 10000
            idle = "2s"
            stall = "3s"
            page = "https://site1.example/"
            tokens = "required"
            certificate = "api.crt"
            key = "/etc/ssl/api.key"
            insecure_anyone_may_do_anything = true
            [runs]
            parallel = 3
            timeout = "1m"
            output = 10
            output_file = 20
            shell = "/bin/bash"
            show_after = "0s"
            environment = { keep = ["LC_*"], set = { COLOUR = "blue" } }
            [links]
            heartbeat = "1s"
            silence = "3s"
            retry = "2s"
            queue = 30
            [store]
            reserve = 40
            file = 50
            [audit]
            reads = true
            bytes = 100000
            age = "2h"
            keep = 5
            [limits]
            rate = 60
            "#
        .replace("KEY", &key.to_string())
        .as_str(),
    )
    .unwrap();
    assert_eq!(config.data, Path::new("/var/lib/cheops"));
    assert_eq!(config.work, Path::new("/etc/cheops/here"));
    let peer = Peer { address: "10.0.0.2:8078".to_owned(), key: Some(key) };
    assert_eq!(config.sites[&"site2".parse().unwrap()], peer);
    assert_eq!(config.socket, Socket::At("/etc/cheops/run/api.sock".into()));
    let entry = Entry {
        tokens_required: true,
        certificate: Some(("/etc/cheops/api.crt".into(), "/etc/ssl/api.key".into())),
        insecure: true,
    };
    assert_eq!(config.entry, entry);
    let seconds = Duration::from_secs;
    let serve = Serve {
        connections: 5,
        feeds: 6,
        streams: 7,
        headers: seconds(1),
        header_bytes: 10_000,
        idle: seconds(2),
        stall: seconds(3),
        page: Some("https://site1.example/".to_owned()),
        accept: seconds(10),
    };
    assert_eq!(config.serve, serve);
    assert_eq!(config.runs.timeout, Duration::from_mins(1));
    assert_eq!((config.runs.output, config.runs.output_file), (10, 20));
    assert_eq!(config.runs.show_after, None);
    let Environment { keep, set } = &config.runs.environment;
    let keep: Vec<&str> = keep.iter().map(cheops_core::pattern::Pattern::as_str).collect();
    assert_eq!(keep, ["PATH", "HOME", "LANG", "LC_*"]);
    assert_eq!(set["COLOUR"], "blue");
    assert_eq!(config.links.silence, Duration::from_secs(3));
    assert_eq!((config.store.reserve, config.store.file), (40, 50));
    let age = Duration::from_hours(2);
    assert_eq!(config.audit, Audit { reads: true, bytes: 100_000, age, keep: 5 });
    assert_eq!(config.rates, Rates { rate: 60, burst: 120 });
}

#[test]
fn a_peer_needs_no_key_where_there_are_certificates() {
    let config = read(
        "site = 'a'\n[trust]\nca = 'ca.pem'\ncertificate = 'a.pem'\nkey = '/k/a.key'\n[[peer]]\nname = 'b'\naddress = 'h:1'",
    )
    .unwrap();
    let pki = config.pki.unwrap();
    assert_eq!(pki.ca, Path::new("/etc/cheops/ca.pem"));
    assert_eq!((pki.key.as_path(), pki.revoked), (Path::new("/k/a.key"), None));
    assert_eq!(config.sites[&"b".parse().unwrap()].key, None);
}

#[test]
fn a_shell_with_a_path_is_beside_the_file_and_one_without_is_looked_for() {
    for (shell, expected) in
        [("/bin/bash", "/bin/bash"), ("bin/sh", "/etc/cheops/bin/sh"), ("bash", "bash")]
    {
        let config = read(&format!("site = 'a'\n[runs]\nshell = '{shell}'")).unwrap();
        assert_eq!(config.runs.shell, Path::new(expected));
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (text, expected) in [
        ("", "missing field `site`"),
        ("site = 'a&b'", "`site`: `a&b` is not a site name"),
        ("site = 'a'\nsitee = 1", "line 2: unknown field `sitee`"),
        (&peers(&[("a", "h:1", 1)]), "is this site itself"),
        (&peers(&[("b", "h", 1)]), "is not HOST:PORT"),
        (&peers(&[("b", "h:1", 1), ("b", "h:1", 2)]), "is named twice"),
        (&peers(&[("b", "h:1", 1), ("c", "h:2", 1)]), "`c` has the key of `b`"),
        ("site = 'a'\n[[peer]]\nname = 'b'\naddress = 'h:1'", "`cheops site key` at `b` prints it"),
        (
            "site = 'a'\n[[peer]]\nname = 'b'\naddress = 'h:1'\nkey = 'abc'",
            "`peer.key` of `b`: a key has 56 letters",
        ),
        (
            "site = 'a'\n[trust]\nca = 'c'\ncertificate = 'd'",
            "`[trust]` has no `trust.key`: sites that recognise each other by certificates need",
        ),
        ("site = 'a'\n[trust]\nrevoked = 'r'", "has no `trust.ca`"),
        ("site = 'a'\n[trust]\nroot = 'r'", "unknown field `root`"),
        ("site = 'a'\n[runs]\ntimeout = 'soon'", "line 3: `runs.timeout`"),
        ("\nsite = 'a&b'", "line 2: `site`"),
        ("site = 'a'\nruns.timeout = 'soon'", "line 2: `runs.timeout`"),
        ("site = 'a'\n[runs]\nparallel = 0", "line 3: `runs.parallel` must be at least 1"),
        ("site = 'a'\n[runs]\ntimeout = '0s'", "line 3: `runs.timeout` must be longer than 0s"),
        (
            "site = 'a'\n[runs]\nenvironment = { keep = ['CHEOPS_TOKEN'] }",
            "line 3: `runs.environment`: commands never get the agent's own",
        ),
        (
            "site = 'a'\n[runs]\nenvironment = { keep = ['A=b'] }",
            "line 3: `runs.environment`: `A=b` can't be the name of a variable",
        ),
        ("site = 'a'\n[runs]\nenvironment = { kept = ['A'] }", "line 3: unknown field `kept`"),
        ("site = 'a'\n[runs]\nenvironment = ['A']", "line 3: invalid type"),
        (
            "site = 'a'\n[[policy.rule]]\nname = 'x'\ndecision = 'allow'\n\
             allow_any_shell_command = true\nenvironment = { keep = ['CHEOPS_*'] }",
            "line 3: the rule `x` of the policy: `environment`: commands never get",
        ),
        ("site = 'a'\n[api]\ntokens = 'some'", "line 3: `api.tokens` is `some`"),
        ("site = 'a'\n[api]\nkey = 'k'", "line 3: `api.key` needs an `api.certificate`"),
        ("site = 'a'\n[api]\nfeeds = 0", "must be at least 1"),
        ("site = 'a'\n[api]\nconnections = 2000000", "at most 1048576"),
        ("site = 'a'\n[api]\nidle = '0s'", "must be longer than 0s"),
        ("site = 'a'\n[api]\nheader_bytes = 10", "`api.header_bytes` must be from 8192"),
        ("site = 'a'\n[runs]\noutput = 4194305", "`runs.output` must be at most 4194304"),
        ("site = 'a'\n[links]\nheartbeat = '9s'", "`links.silence` must be longer"),
        ("site = 'a'\n[[hook]]\nname = 'b'", "the hook `b`: it needs a way to tell"),
        (
            "site = 'a'\n[[hook]]\nname = 'b'\ncommand = 'c'\n[[hook]]\nname = 'b'\ncommand = 'd'",
            "the hook `b` is named twice",
        ),
        ("site = 'a'\n[policy]\nallow_any_shell = true", "line 3: unknown field `allow_any_shell`"),
        ("site = 'a'\n[policy]\nlandlock = 'maybe'", "line 3: unknown variant `maybe`"),
        (
            "site = 'a'\n[[policy.rule]]\nname = 'x'\ndecision = 'allow'",
            "line 3: the rule `x` of the policy: it does not say what it allows",
        ),
        ("site = 'a'\n[audit]\nkeep = 1", "line 3: `audit.keep` must be at least 2"),
        ("site = 'a'\n[audit]\nbytes = 5", "line 3: `audit.bytes` must be at least 65536"),
        ("site = 'a'\n[audit]\nage = '1ms'", "line 3: `audit.age` must be at least 1s"),
        ("site = 'a'\n[audit]\nage = 'old'", "line 3: `audit.age`"),
        ("site = 'a'\n[limits]\nrate = 0", "line 3: `limits.rate` and `limits.burst` must"),
        ("site = 'a'\n[hooks]\ntakeover = '0s'", "line 3: `hooks.takeover` must be longer"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

fn peers(peers: &[(&str, &str, u8)]) -> String {
    let peer = |(name, address, byte): &(&str, &str, u8)| {
        let key = PublicKey::from_bytes([*byte; 32]);
        format!("[[peer]]\nname = '{name}'\naddress = '{address}'\nkey = '{key}'\n")
    };
    "site = 'a'\n".to_owned() + &peers.iter().map(peer).collect::<String>()
}

#[test]
fn a_page_is_on_the_web() {
    for (text, expected) in [
        ("http://10.0.0.1:8079", true),
        ("https://site1.example/cheops/", true),
        ("javascript:alert(1)", false),
        ("site1.example:8079", false),
        ("/x", false),
        ("", false),
    ] {
        assert_eq!(is_web_address(text), expected, "{text}");
    }
    let at = |api: &str| read(&format!("site = 'a'\n[listen]\napi = '{api}'")).unwrap().page();
    assert_eq!(at("127.0.0.1:8079"), None);
    assert_eq!(at("0.0.0.0:8079"), None);
    assert_eq!(at("10.0.0.1:8079").as_deref(), Some("http://10.0.0.1:8079"));
}

#[test]
fn whoever_asks_needs_a_token_where_commands_are_confined() {
    let rule = |terms: &str| {
        format!(
            "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nallow_any_shell_command = true\n{terms}\n"
        )
    };
    let by_user = rule("user = 'nobody'");
    let by_paths = rule("landlock = { read = ['/usr'] }");
    for (tokens, rules, required) in [
        ("", "", false),
        ("", &*rule("limits = { cpu = '1s' }"), false),
        ("", &*by_user, true),
        ("", &*by_paths, true),
        ("tokens = 'optional'", &*by_user, false),
        ("tokens = 'required'", "", true),
    ] {
        let text = format!("site = 'a'\n[api]\n{tokens}\n{rules}");
        let config = Config::from_toml(&text, Path::new("/")).unwrap();
        assert_eq!(config.entry.tokens_required, required, "{text}");
    }
}

#[test]
fn the_engine_is_the_embedded_one_unless_couchdb_is_named() {
    let read = |text: &str| Config::from_toml(&format!("site = 's'\n{text}"), Path::new("/etc"));
    assert_eq!(read("").unwrap().engine, Engine::Embedded);
    assert_eq!(read("engine = 'embedded'").unwrap().engine, Engine::Embedded);
    let text = "engine = 'couchdb'\n[couchdb]\nurl = 'https://db.example'\nuser = 'u'\npassword_file = 'p'\nca = 'ca.pem'";
    let Engine::CouchDb(couchdb) = read(text).unwrap().engine else { panic!("{text}") };
    assert_eq!(couchdb.place(), ("db.example", 443));
    assert_eq!((couchdb.database.as_str(), couchdb.local()), ("cheops", "cheops-local".to_owned()));
    assert_eq!(couchdb.password, Some(Secret::File("/etc/p".into())));
    let text = "engine = 'couchdb'\n[couchdb]\nurl = 'http://[::1]:5984/'\ndatabase = 'a-1'";
    let Engine::CouchDb(couchdb) = read(text).unwrap().engine else { panic!("{text}") };
    assert_eq!((couchdb.place(), couchdb.local()), (("::1", 5984), "a-1-local".to_owned()));

    let url = "url = 'http://db.example:5984'";
    let config = read(&format!("engine = 'embedded'\n[couchdb]\n{url}")).unwrap();
    assert_eq!(config.engine, Engine::Embedded, "what the line says is used");
    assert_eq!(config.couchdb.unwrap().place(), ("db.example", 5984));
    for (text, expected) in [
        ("engine = 'couch'".to_owned(), "write embedded or couchdb"),
        ("engine = 'couchdb'".to_owned(), "there is no section [couchdb]"),
        (format!("[couchdb]\n{url}"), "write engine = 'couchdb'"),
        ("engine = 'embedded'\n[couchdb]\nurl = 'db'".to_owned(), "write it like http://"),
        ("engine = 'couchdb'\n[couchdb]".to_owned(), "has no `couchdb.url`"),
        ("engine = 'couchdb'\n[couchdb]\nurl = 'db:5984'".to_owned(), "write it like http://"),
        ("engine = 'couchdb'\n[couchdb]\nurl = 'http://u:p@db'".to_owned(), "holds a name or"),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\nuser = 'u'"), "go together"),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\nlocal_journal = 0"), "is 0 bytes"),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\ndatabase = 'x-local'"), "end with -local"),
        (
            format!("engine = 'couchdb'\n[couchdb]\n{url}\nrelay = '0.0.0.0:5990'"),
            "CouchDB reaches",
        ),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\nrelay = '127.0.0.1:0'"), "and a port"),
        (
            format!("engine = 'couchdb'\n[couchdb]\n{url}\nrelay_name = 'a'"),
            "goes with `couchdb.relay`",
        ),
        (
            format!(
                "engine = 'couchdb'\n[couchdb]\n{url}\nrelay = '127.0.0.1:5990'\nrelay_name = 'a/b'"
            ),
            "write a name of this machine",
        ),
        (
            format!(
                "engine = 'couchdb'\n[couchdb]\n{url}\nrelay = '127.0.0.1:5990'\nrelay_name = 'a'"
            ),
            "needs `api.certificate`",
        ),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\nca = 'x'"), "begins with https"),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\ndatabase = 'A/b'"), "a name begins with"),
        (format!("engine = 'couchdb'\n[couchdb]\n{url}\nuri = 'x'"), "unknown field `uri`"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("u:p"), "{error}");
    }
}

#[test]
fn brackets_without_an_end_are_an_error_and_not_the_end_of_the_program() {
    for text in [
        "a = { 'm'\n[b]".repeat(10_000),
        "[".repeat(100_000),
        "a = [".repeat(10_000),
        // What closes nothing, or stands in a string or a comment.
        "a = { b =] ".repeat(10_000),
        "a = [ '}', { b = ".repeat(10_000),
        "a = [ ']', ".repeat(10_000),
        "a = [ # ]\n".repeat(10_000),
    ] {
        let problem = Config::from_toml(&text, Path::new("/")).unwrap_err();
        assert!(problem.contains("brackets"), "{problem}");
    }
}
