//! Servers that an agent can't use: it says so at the start, names the setting to correct, and ends.

#[path = "../../../cheops-agent/tests/support/ca.rs"]
mod ca;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

use ca::{Ca, Wanted};
use cheops_agent::api::model::Submit;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::field::{agent::Agent, all_ok, couch::Couch, submit};

/// What an agent says that does not start with these settings.
pub(crate) fn said(settings: &str, directory: &Path) -> String {
    let file = directory.join("refused.toml");
    let head = "site = 'site1'\nengine = 'couchdb'\n[listen]\napi = '127.0.0.1:0'\npeers = '127.0.0.1:0'\n";
    fs::write(&file, format!("{head}{settings}")).unwrap();
    // One that starts after all is ended.
    let output = Command::new("timeout")
        .args(["30", env!("CARGO_BIN_EXE_cheops"), "agent", "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1..=99)), "{settings}: {:?} {said}", output.status);
    said
}

/// What stands in `[couchdb]`.
fn section(url: &str, more: &str) -> String {
    format!("[couchdb]\nurl = '{url}'\n{more}")
}

/// Who asks, with a password in a file in this directory.
fn known_as(user: &str, password: &str, directory: &Path) -> String {
    let file = format!("{user}-{password}");
    fs::write(directory.join(&file), password).unwrap();
    format!("user = '{user}'\npassword_file = '{file}'\n")
}

fn works(agent: &Agent) {
    let request = Submit { sites: Some("site1".into()), ..submit("true", "set") };
    let submitted = agent.exec("x", &request);
    assert!(all_ok(&submitted, 1), "{submitted:?}");
}

#[test]
fn a_server_that_is_none_and_settings_that_make_no_sense() {
    let couch = Couch::get();
    let port = couch.config.place().1;
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let other = tempfile::tempdir().unwrap();
    let agent = Agent::alone(other.path());
    let agents = agent.url.rsplit_once(':').unwrap().1.to_owned();
    let old = Fake::start(|_, _| (200, r#"{"couchdb":"Welcome","version":"2.3.1"}"#));
    for (settings, expected) in [
        (String::new(), "there is no section [couchdb]"),
        (section(&format!("http://127.0.0.1:{nobody}"), ""), "is `couchdb.url` right?"),
        (section(&format!("http://127.0.0.1:{agents}"), ""), "makes no sense"),
        (section(&format!("http://a:b@127.0.0.1:{port}"), ""), "holds a name or a password"),
        (section(&format!("https://127.0.0.1:{port}"), ""), "is `couchdb.url` right?"),
        (section(&format!("http://{old}"), ""), "has the version 2.3.1: 3.0 or later is needed"),
    ] {
        let said = said(&settings, other.path());
        assert!(said.contains(expected), "{settings}: {said}");
        assert!(!said.contains("a:b@"), "{said}");
    }
}

/// These need `pouchdb-server` itself: its way to name admins, and one that has no admin yet.
mod pouchdb_only {
    use std::{net::SocketAddr, process::Command};

    use super::{
        super::field::{agent::Agent, couch::Pouch, eventually},
        known_as, said, section, works,
    };

    /// Asks a server as an operator does, and for as long as it takes: who is an admin is known a moment later.
    fn curl(address: SocketAddr, user: Option<&str>, method: &str, path: &str, body: &str) {
        let mut command = Command::new("curl");
        if let Some(user) = user {
            command.args(["-u", user]);
        }
        command.args(["-sS", "-m", "5", "-X", method, "-H", "Content-Type: application/json"]);
        command.args(["-d", body]);
        command.args([
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            &format!("http://{address}/{path}"),
        ]);
        eventually(path, || {
            let code = String::from_utf8(command.output().unwrap().stdout).unwrap();
            // One that was done, and not answered, is there when it is asked for again.
            code.starts_with('2') || code == "409"
        });
    }

    /// Somebody who may read alone: as with CouchDB, a design document says so.
    const READER: &str = r#"{"validate_doc_update":
        "function (doc, old, user) { if (user.name === 'reader') { throw({forbidden: 'you may only read'}); } }"}"#;

    #[test]
    fn a_server_that_takes_no_or_not_this_name_or_lets_it_only_read() {
        let server = Pouch::start();
        let root = Some("root:secret");
        curl(server.address, None, "PUT", "_config/admins/root", "\"secret\"");
        let reader = r#"{"name": "reader", "type": "user", "roles": [], "password": "r"}"#;
        curl(server.address, root, "PUT", "_users/org.couchdb.user:reader", reader);

        let directory = tempfile::tempdir().unwrap();
        let url = format!("http://{}", server.address);
        let with = |entry: &str| section(&url, entry);
        let as_root = known_as("root", "secret", directory.path());
        let mut agent =
            Agent::alone_with(directory.path(), &format!("engine = 'couchdb'\n{}", with(&as_root)));
        works(&agent);
        agent.kill();
        let members = r#"{"members": {"names": ["reader"]}, "admins": {"names": ["root"]}}"#;
        for database in ["cheops", "cheops-local", "fresh", "fresh-local"] {
            if database.starts_with("fresh") {
                curl(server.address, root, "PUT", database, "");
            }
            curl(server.address, root, "PUT", &format!("{database}/_security"), members);
            curl(server.address, root, "PUT", &format!("{database}/_design/reader"), READER);
        }
        let wrong = known_as("root", "wrong", directory.path());
        let reader = known_as("reader", "r", directory.path());
        for (entry, expected) in [
            (
                wrong,
                ["Name or password is incorrect", "`couchdb.user` and `couchdb.password_file`"],
            ),
            (String::new(), ["not authorized", "`couchdb.user` and `couchdb.password_file`"]),
            (reader.clone(), ["you may only read", "does not let `couchdb.user` do that"]),
        ] {
            let said = said(&with(&entry), directory.path());
            for expected in expected {
                assert!(said.contains(expected), "{entry}: {said}");
            }
            assert!(!said.contains("secret"), "{said}");
        }
        let other = tempfile::tempdir().unwrap();
        let reader = known_as("reader", "r", other.path());
        let said = said(&with(&format!("database = 'fresh'\n{reader}")), other.path());
        assert!(said.contains("you may only read"), "{said}");
        agent.start();
        agent.wait_until_ready();
        works(&agent);
    }
}

/// `pouchdb-server` ends when somebody who may not makes a database, so these answers are written here, as
/// CouchDB 3 gives them.
#[test]
fn a_server_that_lets_nobody_make_or_see_the_databases() {
    const WELCOME: &str = r#"{"couchdb":"Welcome","version":"3.3.3"}"#;
    let missing = Fake::start(|method, path| match (method, path) {
        (_, "/") => (200, WELCOME),
        ("GET", _) => (404, r#"{"error":"not_found","reason":"Database does not exist."}"#),
        _ => (401, r#"{"error":"unauthorized","reason":"You are not a server admin."}"#),
    });
    let closed = Fake::start(|_, path| match path {
        "/" => (200, WELCOME),
        _ => (403, r#"{"error":"forbidden","reason":"You are not allowed to access this db."}"#),
    });
    let directory = tempfile::tempdir().unwrap();
    let entry = known_as("cheops", "p", directory.path());
    for (server, expected) in [
        (missing, ["no database `cheops`", "does not let `couchdb.user` make it"]),
        (closed, ["not allowed to access this db", "make it an admin of both databases"]),
    ] {
        let said = said(&section(&format!("http://{server}"), &entry), directory.path());
        for expected in expected {
            assert!(said.contains(expected), "{said}");
        }
    }
}

#[test]
fn a_server_whose_certificate_is_not_trusted() {
    let couch = Couch::get();
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) =
        (Ca::new(&directory.path().join("ours")), Ca::new(&directory.path().join("theirs")));
    let (certificate, key) = ours.issue("couchdb", &Wanted::of("couchdb", "DNS:localhost"));
    let (host, port) = couch.config.place();
    let here = with_tls(&certificate, &key, (host.to_owned(), port));
    let trusting = |host: &str, ca: Option<&Ca>| {
        let ca = ca.map(|ca| format!("ca = '{}'\n", ca.path("ca.pem").display()));
        let (url, ca) = (format!("https://{host}:{}", here.port()), ca.unwrap_or_default());
        let login = couch.login(directory.path());
        section(&url, &format!("database = '{}'\n{ca}{login}", couch.config.database))
    };
    for settings in [
        trusting("localhost", Some(&theirs)),
        trusting("localhost", None),
        trusting("127.0.0.1", Some(&ours)),
    ] {
        let said = said(&settings, directory.path());
        assert!(said.contains("the certificate of CouchDB does not count"), "{settings}: {said}");
        assert!(said.contains("`couchdb.ca`") && said.contains("`couchdb.url`"), "{said}");
    }
    let missing = section("https://localhost", "ca = 'nowhere.pem'\n");
    let told = said(&missing, directory.path());
    assert!(told.contains("nowhere.pem"), "{told}");

    let settings = trusting("localhost", Some(&ours));
    works(&Agent::alone_with(directory.path(), &format!("engine = 'couchdb'\n{settings}")));
}

/// Has TLS spoken in front of a server, for as long as the test runs.
fn with_tls(certificate: &Path, key: &Path, server: (String, u16)) -> SocketAddr {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        tokio::runtime::Runtime::new().unwrap().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, server) = (acceptor.clone(), server.clone());
                tokio::spawn(async move {
                    let mut near = acceptor.accept(stream).await.ok()?;
                    let mut far = tokio::net::TcpStream::connect(server).await.ok()?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok()
                });
            }
        });
    });
    address
}

/// A server with answers of its own.
struct Fake;

impl Fake {
    /// Answers what it is told to, by method and path, for as long as the test runs.
    fn start(answer: fn(&str, &str) -> (u16, &'static str)) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let Some(Ok(first)) = lines.next() else { continue };
                // To the end of the head: none of these requests has a body.
                lines.map_while(Result::ok).find(String::is_empty);
                let mut words = first.split(' ');
                let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
                let (status, body) = answer(method, path);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} Said\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                );
            }
        });
        address
    }
}
