//! `pouchdb-server`, a server that speaks the protocol of `CouchDB`, as a peer to compare with.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::load;

pub(crate) struct Pouch {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Pouch {
    /// Starts one with an empty database, if the program is there.
    pub(crate) fn start() -> Option<Self> {
        let program = std::env::var("CHEOPS_POUCHDB").ok()?;
        let directory = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .args(["--port", &address.port().to_string(), "--host", "127.0.0.1", "--dir", "."])
            .env("NODE_OPTIONS", "--unhandled-rejections=warn")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < Duration::from_mins(1), "pouchdb-server does not start");
            thread::sleep(Duration::from_millis(50));
        }
        let created = Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-X", "PUT", &format!("http://{address}/operations")])
            .status();
        assert!(created.unwrap().success());
        Some(Self { child, address, _directory: directory })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A document of the size of an operation.
    pub(crate) fn request(_: usize) -> String {
        let padding = "x".repeat(300);
        load::request("/operations", &format!(r#"{{"command":"true {padding}","kind":"inc"}}"#))
    }
}

impl Drop for Pouch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
