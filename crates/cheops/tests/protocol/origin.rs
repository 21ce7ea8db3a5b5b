//! One agent on loopback, and what stands behind it: the test application, nginx, or a recorder that
//! keeps what it gets byte for byte.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::field::{
    agent::{Agent, peer},
    application::{end, program, quiet},
    eventually,
    http::Client,
    ports::unused,
};

/// An agent with one service.
pub(crate) struct Proxy {
    pub(crate) agent: Agent,
    /// Where it listens for the service.
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
}

impl Proxy {
    /// An agent in front of an instance.
    pub(crate) fn before(instance: SocketAddr) -> Self {
        Self::with(instance, "", "")
    }

    /// The same, at one of two sites. The other one can't be reached.
    pub(crate) fn beside_an_unreachable_site(instance: SocketAddr) -> Self {
        let other = tempfile::tempdir().unwrap();
        Self::with(instance, &peer("site2", &unused().to_string(), other.path()), "")
    }

    /// The same, with more settings of the service and of the mesh.
    pub(crate) fn with(instance: SocketAddr, service: &str, mesh: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = unused();
        let mut settings = format!("[mesh]\n{mesh}\n[[service]]\nname = 'web'\n");
        let _ = write!(settings, "listen = '{address}'\naddress = '{instance}'\n{service}\n");
        let agent = Agent::alone_with(directory.path(), &settings);
        Self { agent, address, directory }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// A program that ends with the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: Command) -> Self {
        Self(quiet(command))
    }

    /// Ends it now.
    pub(crate) fn end(&mut self) {
        end(&mut self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// The service that shows how requests arrive.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    client: Client,
    _running: Running,
}

impl Echo {
    pub(crate) fn start() -> Self {
        let address = unused();
        let mut command = Command::new("python3");
        command.arg(program()).args(["echo", &address.port().to_string()]);
        let running = Running::start(command);
        let echo = Self { address, client: Client::new(), _running: running };
        eventually("the service answers", || {
            echo.client.get(&echo.url("/_log")).try_send().is_some()
        });
        echo
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What it was asked so far.
    pub(crate) fn log(&self) -> Vec<serde_json::Value> {
        let log = self.client.get(&self.url("/_log")).send().expect(200).json();
        log["log"].as_array().unwrap().clone()
    }

    /// How it behaves from now on.
    pub(crate) fn mode(&self, mode: &serde_json::Value) {
        self.client.call("PUT", &self.url("/_mode")).json(mode).send().expect(200);
    }
}

/// A server that keeps what it gets, and answers each head that it sees with an empty 200.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = kept.clone();
                thread::spawn(move || record(stream, &kept));
            }
        });
        Self { address, seen }
    }

    /// All that came, and forgets it.
    pub(crate) fn take(&self) -> String {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        String::from_utf8_lossy(&seen).into_owned()
    }
}

fn record(mut stream: TcpStream, kept: &Mutex<Vec<u8>>) {
    let (mut buffer, mut tail) = ([0; 16 << 10], Vec::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        kept.lock().unwrap().extend_from_slice(&buffer[..count]);
        tail.extend_from_slice(&buffer[..count]);
        while let Some(end) = tail.windows(4).position(|four| four == b"\r\n\r\n") {
            tail.drain(..end + 4);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}

/// nginx in front of a directory with one file of so many bytes.
pub(crate) fn nginx(directory: &Path, address: SocketAddr, size: usize) -> Running {
    fs::create_dir_all(directory.join("html")).unwrap();
    fs::write(directory.join("html/file"), vec![b'x'; size]).unwrap();
    fs::write(directory.join("html/small"), "small").unwrap();
    let root = directory.display();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {root}/pid;\nerror_log {root}/error.log;\nuser root;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n access_log off; keepalive_requests 7; client_max_body_size 0;\n\
         client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;\n\
         uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;\n\
         server {{ listen {address}; root {root}/html; gzip on; gzip_types text/plain; gzip_min_length 1;\n\
         location /put {{ dav_methods PUT; create_full_put_path on; }} }}\n}}\n"
    );
    let path = directory.join("nginx.conf");
    fs::write(&path, config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&path).arg("-e").arg(directory.join("error.log"));
    let running = Running::start(command);
    eventually("nginx listens", || TcpStream::connect(address).is_ok());
    running
}

/// Sends bytes to an address, and gives what comes back until the other side closes, or until nothing
/// more came for a while.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8], patience: Duration) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // The other side may have had enough before we are done.
    let _ = stream.write_all(bytes);
    stream.set_read_timeout(Some(patience)).unwrap();
    let (mut got, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        got.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&got).into_owned()
}
