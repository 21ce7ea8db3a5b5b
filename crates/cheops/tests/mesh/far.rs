//! What passes between sites as it passes through one: all of HTTP, in little memory. The first site
//! has no instance of its own.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::Submit;
use serde_json::{Value, json};

use crate::field::{
    Field, SOON,
    application::{end, program, quiet},
    eventually,
    http::Client,
    submit,
    websocket::{converse, open, say},
};

/// Two sites, and a service that only the second has an instance of.
struct Far {
    field: Field,
    echo: Child,
    client: Client,
}

impl Far {
    fn start() -> Self {
        Self::with("")
    }

    /// The same, with more settings of the service.
    fn with(settings: &str) -> Self {
        let field = Field::with_each(2, |n, ip| {
            let instance = if n == 1 { "address = '127.0.0.1:18000'\n" } else { "" };
            format!("[[service]]\nname = 'web'\nlisten = '{ip}:8000'\n{instance}{settings}\n")
        });
        let mut command = field.sites[1].command("python3");
        command.arg(program()).args(["echo", "18000", "--site", "site2"]);
        let far = Self { field, echo: quiet(command), client: Client::new() };
        eventually("the service answers", || {
            far.client.get(&far.instance("/_log")).try_send().is_some()
        });
        far
    }

    /// An address at the first site's agent.
    fn url(&self, path: &str) -> String {
        format!("http://{}:8000{path}", self.field.net.ip(0))
    }

    fn instance(&self, path: &str) -> String {
        format!("http://{}:18000{path}", self.field.net.ip(1))
    }

    fn log(&self) -> Vec<Value> {
        let log = self.client.get(&self.instance("/_log")).send().expect(200).json();
        log["log"].as_array().unwrap().clone()
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "60", "-H", "X-Scope: web: site2"]).args(arguments);
        let output = command.arg(self.url(path)).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        end(&mut self.echo);
    }
}

#[test]
fn all_of_http_passes_between_sites() {
    let far = Far::start();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for more in [&["-d", "hello"][..], &["-d", "hello", "-H", "Expect: 100-continue"]] {
            let got: Value =
                serde_json::from_str(&far.curl("/echo?a=%2F", &[&[version], more].concat()))
                    .unwrap();
            assert_eq!(
                (&got["site"], &got["target"], &got["size"]),
                (&json!("site2"), &json!("/echo?a=%2F"), &json!(5))
            );
        }
        let trailers = far.curl("/trailers", &[version, "-i", "--raw", "-H", "TE: trailers"]);
        assert!(
            trailers.contains("hello") && trailers.to_lowercase().contains("x-sum: 11"),
            "{trailers}"
        );
        let head = far.curl("/bytes/5000", &[version, "-I"]).to_lowercase();
        assert!(
            head.contains("content-length: 5000") && head.contains("x-cheops-site: site2"),
            "{head}"
        );
    }
    converse(open(&format!("{}:8000", far.field.net.ip(0)), "X-Scope: web: site2\r\n"));
    // Whoever is between says so, and nobody takes the agents' connection for the one that was asked.
    let answer = far.client.get(&far.url("/echo")).scope("web: site2").send().expect(200);
    assert_eq!(answer.header("via"), "2 cheops");
    let seen = far.log().pop().unwrap();
    assert_eq!(seen["headers"]["via"], "1.1 cheops", "{seen}");
    let host = format!("{}:8000", far.field.net.ip(0));
    assert_eq!(seen["headers"]["host"], host, "{seen}");
    assert_eq!(seen["headers"]["x-forwarded-host"], host, "{seen}");
    // Where there is no instance, a request without a scope has nowhere to go.
    far.client.get(&far.url("/echo")).send().problem(502, "no-instance");
    let fallback = far.client.get(&far.url("/echo")).scope("web: site1; site2").send().expect(200);
    assert_eq!(fallback.site(), "site2");
}

/// One rule for connections to the instance here and elsewhere.
#[test]
fn a_changed_connection_between_sites_lasts_as_long_as_something_passes() {
    let far = Far::with("idle = '1s'\nanswer = '2s'");
    let address = format!("{}:8000", far.field.net.ip(0));
    let mut stream = open(&address, "X-Scope: web: site2\r\n");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        assert_eq!(say(&mut stream, "still here"), "still here");
        thread::sleep(Duration::from_millis(300));
    }
    let silent = Instant::now();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    assert!(silent.elapsed() < Duration::from_secs(5), "{:?}", silent.elapsed());
    // It is enough that one of the two talks.
    let mut feed = TcpStream::connect(&address).unwrap();
    feed.set_read_timeout(Some(SOON)).unwrap();
    let head = "GET /feed HTTP/1.1\r\nHost: web\r\nX-Scope: web: site2\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\n";
    feed.write_all(head.as_bytes()).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        feed.read_exact(&mut [0; 5]).unwrap();
    }
    // An instance that does not answer is given up as any other.
    let hold = far.client.call("PUT", &far.instance("/_mode")).json(&json!({ "hold": true }));
    hold.send().expect(200);
    let start = Instant::now();
    let args = ["-o", "/dev/null", "-w", "%{http_code}", "-H", "Connection: Upgrade"];
    let code = far.curl("/ws", &[&args[..], &["-H", "Upgrade: websocket"]].concat());
    assert_eq!(code, "504");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

/// Those who read slowly, or not at all, must not cut a site off from another.
#[test]
fn clients_leave_room_on_a_link_for_others_and_for_the_agents() {
    const ROOM: usize = 192;
    let far = Far::start();
    let mut stalled: Vec<TcpStream> = Vec::new();
    for _ in 0..ROOM {
        let mut stream = TcpStream::connect(format!("{}:8000", far.field.net.ip(0))).unwrap();
        let head = "GET /bytes/50000000 HTTP/1.1\r\nHost: web\r\nX-Scope: web: site2\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // It has begun, and nobody reads on.
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.read_exact(&mut [0; 15]).unwrap();
        stalled.push(stream);
    }
    let start = Instant::now();
    let more = far.client.get(&far.url("/echo")).scope("web: site2").send();
    let problem = more.problem(503, "no-answer");
    assert!(problem["detail"].as_str().unwrap().contains("under way"), "{problem}");
    // The agents' own calls get through: the other site is asked for what only it has.
    let there = Submit { sites: Some("site2".into()), ..submit("echo hello", "add") };
    far.field.sites[1].exec("there", &there);
    let (status, told) = far.field.sites[0].ask("/api/v1/resources/there").unwrap();
    assert_eq!(status, 200, "{told}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // As soon as one goes, there is room again.
    stalled.pop();
    eventually("there is room", || {
        far.client.get(&far.url("/echo")).scope("web: site2").send().status == 200
    });
}

#[test]
fn a_client_that_goes_away_takes_its_request_along_at_the_other_site() {
    let far = Far::start();
    far.client
        .call("PUT", &far.instance("/_mode"))
        .json(&json!({ "hold": true }))
        .send()
        .expect(200);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let before = far.log().len();
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "60", version, "-H", "X-Scope: web: site2", &far.url("/echo")]);
        let mut client = quiet(command);
        eventually("the instance has the request", || far.log().len() == before + 1);
        end(&mut client);
        eventually("the instance sees it end", || far.log()[before]["gone"] == true);
    }
}

#[test]
fn large_bodies_pass_between_sites_in_little_memory() {
    const LARGE: u64 = 200 << 20;
    let far = Far::start();
    let memory = |what| far.field.sites.iter().map(|site| site.memory(what)).collect::<Vec<_>>();
    let before = memory("VmRSS");
    let upload = format!(
        "head -c {LARGE} /dev/zero | curl -sS -m 120 -H 'X-Scope: web: site2' -T - {}",
        far.url("/echo")
    );
    let output = Command::new("sh").args(["-c", &upload]).output().unwrap();
    let got = String::from_utf8_lossy(&output.stdout);
    assert!(got.contains(&format!(r#""size": {LARGE},"#)), "{got}");
    let path = format!("/bytes/{LARGE}");
    let size = far.curl(&path, &["-m", "120", "-o", "/dev/null", "-w", "%{size_download}"]);
    assert_eq!(size, LARGE.to_string());
    for (most, before) in memory("VmHWM").into_iter().zip(before) {
        let grown = most.saturating_sub(before);
        assert!(grown < 30 << 10, "it took {grown} kB");
    }
}

/// How many requests to a site may be under way at once, and a few more.
const MORE_THAN_FIT: usize = 230;

#[test]
fn trailers_about_one_connection_do_not_go_over_a_link() {
    let far = Far::start();
    let address = (far.field.net.ip(0), 8000);
    let request = "Transfer-Encoding: chunked\r\n\
        Connection: close, x-named\r\nTrailer: Keep-Alive, X-Named, X-Scope, X-Sum\r\n\r\n\
        5\r\nhello\r\n0\r\nConnection: close\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nTE: gzip\r\n\
        Transfer-Encoding: chunked\r\nUpgrade: h2c\r\nX-Named: 1\r\nX-Scope: web: site9\r\n\
        X-Cheops-Service: other\r\nX-Sum: 11\r\n\r\n";
    let send = |scope: &str| {
        let mut stream = TcpStream::connect(address.clone()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("POST /echo HTTP/1.1\r\nHost: web\r\nX-Scope: {scope}\r\n");
        stream.write_all((head + request).as_bytes()).unwrap();
        stream
    };
    let answer = |mut stream: TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let check = |answer: &str| {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        let got: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&got["size"], &got["trailers"]), (&json!(5), &json!(["x-sum: 11"])), "{got}");
    };
    // A short body is kept where it may have to be sent again.
    check(&answer(send("web: site2; site1")));
    let all: Vec<TcpStream> = (0..MORE_THAN_FIT).map(|_| send("web: site2")).collect();
    let start = Instant::now();
    for answer in all.into_iter().map(answer) {
        // As many as fit at once are served, and the others are told so.
        if !answer.starts_with("HTTP/1.1 503") {
            check(&answer);
        }
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // There is room again, and trailers of answers are held to the same rules.
    let got =
        far.curl("/trailers/connection", &["-i", "--raw", "-H", "TE: trailers"]).to_lowercase();
    let trailers = got.rsplit_once("world").unwrap().1;
    assert!(trailers.contains("x-sum: 11"), "{got}");
    assert_eq!(trailers.matches(": ").count(), 1, "{got}");
}
