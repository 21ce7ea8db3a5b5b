//! What is secret reaches those that it is for, and no log, no number, no page and no record.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use cheops_agent::api::model::Submit;

use super::{
    field::{
        agent::{Agent, peer},
        application::LINKS,
        eventually,
        ports::unused,
        read,
    },
    here,
};

/// In every secret here.
const HUSH: &str = "hush-4711";

/// Sends a request as it is, and gives the answer.
fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// An instance of an application that answers everything, and what it was sent.
fn instance() -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let _ = sender.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
                }
            });
        }
    });
    (address, receiver)
}

/// Two sites that are linked, with something secret wherever there can be.
struct World {
    sites: [Agent; 2],
    /// Where each is on the disk.
    places: [PathBuf; 2],
    /// Where the first listens: for people, for other agents, and for clients of the application.
    api: SocketAddr,
    peers: SocketAddr,
    image: SocketAddr,
}

fn world(directory: &Path, application: SocketAddr) -> World {
    let (image, nobody) = (unused(), unused());
    let (api, there) = (unused(), unused());
    let (peers, peers_there) = (unused(), unused());
    let [here_at, there_at] = ["site1", "site2"].map(|name| directory.join(name));
    for (place, own, other) in [
        (&here_at, ("site1", api, peers, image), ("site2", peers_there, &there_at)),
        (&there_at, ("site2", there, peers_there, unused()), ("site1", peers, &here_at)),
    ] {
        fs::create_dir_all(place).unwrap();
        fs::write(place.join("password"), HUSH).unwrap();
        let (name, api, peers, image) = own;
        let peer = peer(other.0, &other.1.to_string(), other.2);
        let config = format!(
            "site = '{name}'\n{peer}{LINKS}[listen]\napi = '{api}'\npeers = '{peers}'\n[audit]\nreads = true\n\
             [[service]]\nname = 'image'\nlisten = '{image}'\naddress = '{application}'\n\
             headers = {{ x-auth-token = '{HUSH}' }}\n\
             [[hook]]\nname = 'web'\nurl = 'http://{nobody}/{HUSH}?token={HUSH}'\nsecret = '{HUSH}'\n\
             [[hook]]\nname = 'mail'\n[hook.mail]\nserver = '{nobody}'\nfrom = 'a@b.c'\nto = ['d@e.f']\nuser = 'u'\npassword = '{HUSH}'\n\
             [[hook]]\nname = 'irc'\n[hook.irc]\nserver = '{nobody}'\nchannel = '#ops'\npassword_file = 'password'\n"
        );
        fs::write(place.join("site.toml"), config).unwrap();
    }
    let sites = [("site1", api, &here_at), ("site2", there, &there_at)].map(|(name, api, at)| {
        let mut site = Agent::on_loopback(name, &api.to_string(), at);
        site.start_traced(HUSH, fs::File::create(at.join("log")).unwrap());
        site
    });
    sites.iter().for_each(Agent::wait_until_ready);
    eventually("they are linked", || sites.iter().all(|site| site.reachable().len() == 1));
    World { sites, places: [here_at, there_at], api, peers, image }
}

/// What is answered to requests that bring something secret along.
fn asked(api: SocketAddr, image: SocketAddr, peers: SocketAddr) -> Vec<String> {
    let mut seen = Vec::new();
    let secrets = format!(
        "Authorization: Bearer {HUSH}\r\nCookie: session={HUSH}\r\nX-Auth-Token: {HUSH}\r\nIdempotency-Key: k\r\nConnection: close\r\n"
    );
    for target in [
        "/api/v1/sites",
        "/api/v1/nowhere",
        "/api/v1/resources/web",
        "/",
        "/sites",
        "/problems",
        "/hooks",
        "/api/v1/problems",
        "/api/v1/hooks",
    ] {
        let host = format!("Host: {api}\r\n");
        seen.push(exchange(
            &api.to_string(),
            &format!("GET {target} HTTP/1.1\r\n{host}{secrets}\r\n"),
        ));
    }
    let body = "{\"sites\": \"site1\", \"command\": \"true\"}";
    for path in ["/api/v1/resources/web/operations", "/api/v1/resources/web/show", "/login"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {api}\r\n{secrets}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        seen.push(exchange(&api.to_string(), &head));
    }
    // The application is sent what is for it, by way of the mesh, with a scope and without one.
    for scope in ["", "site1", "site2", "site1 & site2", "nowhere"] {
        let scope = if scope.is_empty() { "" } else { &format!("X-Scope: image: {scope}\r\n") };
        let request =
            format!("GET /v2/images?x=1 HTTP/1.1\r\nHost: {image}\r\n{scope}{secrets}\r\n");
        let answer = exchange(&image.to_string(), &request);
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        seen.push(answer);
    }
    // Whoever is no agent, and has something to say.
    seen.push(exchange(&peers.to_string(), &format!("GET / HTTP/1.1\r\n{secrets}\r\n")));
    seen
}

/// Makes a token, and does with it what people do; gives it, to be looked for.
fn with_a_token(site: &Agent, api: SocketAddr, seen: &mut Vec<String>) -> String {
    let asked = serde_json::json!({"name": "eve", "role": "viewer"});
    let (status, text) = site.post("/api/v1/access", &asked).unwrap();
    assert_eq!(status, 201, "{text}");
    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    let token = made["token"].as_str().unwrap().to_owned();
    let json = format!("{{\"token\": \"{token}\"}}");
    for (method, path, kind, body) in [
        ("GET", "/api/v1/sites", "text/plain", String::new()),
        ("GET", "/", "text/plain", String::new()),
        ("POST", "/api/v1/resources/web/operations", "application/json", json.clone()),
        ("POST", "/api/v1/session", "application/json", json),
        ("POST", "/login", "application/x-www-form-urlencoded", format!("token={token}")),
    ] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {api}\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        seen.push(exchange(&api.to_string(), &request));
    }
    seen.push(site.ask("/api/v1/access").unwrap().1);
    token
}

#[test]
fn no_secret_is_in_a_log_a_metric_an_answer_a_page_or_the_audit() {
    let directory = tempfile::tempdir().unwrap();
    let (application, sent) = instance();
    let World { mut sites, places, api, peers, image } = world(directory.path(), application);
    let site = &sites[0];
    site.exec("web", &Submit { sites: Some("site1 & site2".into()), ..here("true") });
    let mut seen = asked(api, image, peers);
    let request = sent.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(request.contains(HUSH), "the application got what was for it: {request}");
    let token = with_a_token(site, api, &mut seen);
    eventually("hooks have failed", || {
        let (_, hooks) = site.ask("/api/v1/hooks").unwrap();
        hooks.matches("last_error").count() >= 3
    });
    for name in ["web", "mail", "irc"] {
        seen.extend(site.post(&format!("/api/v1/hooks/{name}/test"), &()).map(|answer| answer.1));
    }
    for path in ["/api/v1/hooks", "/api/v1/problems", "/api/v1/audit?limit=1000", "/metrics"] {
        seen.push(site.ask(path).unwrap().1);
    }
    let cheops = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
        let output = command.args(["--agent", &site.url]).args(arguments).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    seen.push(cheops(&["audit", "-o", "json", "--limit", "1000"]));
    seen.push(cheops(&["hooks", "list", "-o", "wide"]));
    seen.push(cheops(&["get", "problems"]));
    for (site, place) in sites.iter_mut().zip(&places) {
        site.kill();
        let log = read(&place.join("log")).unwrap();
        assert!(log.contains("TRACE"), "the log says all that it can");
        seen.push(log);
        for file in fs::read_dir(place.join("data/audit")).unwrap() {
            seen.push(read(&file.unwrap().path()).unwrap());
        }
    }
    for text in &seen {
        let tells = |line: &&str| line.contains(HUSH) || line.contains(&token);
        if let Some(line) = text.lines().find(tells) {
            panic!("{line}");
        }
    }
}
