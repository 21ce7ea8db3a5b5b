//! Programs under measurement.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The core of what is measured; the rest shares the other one.
const MEASURED: &str = "0";
const REST: &str = "1";

/// Keeps this process, and all that it starts, off the core of what is measured.
pub(crate) fn step_aside() {
    let here = std::process::id().to_string();
    let moved = Command::new("taskset").args(["-cp", REST, &here]).stdout(Stdio::null()).status();
    assert!(moved.is_ok_and(|status| status.success()), "two cores and `taskset` are needed");
}

/// A program that ends with this.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a program on the core of what is measured.
    pub(crate) fn measured(program: &str, arguments: &[&str]) -> Option<Self> {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().ok()?;
        if !found.status.success() {
            return None;
        }
        let mut command = Command::new("taskset");
        Some(Self::start(command.args(["-c", MEASURED, program]).args(arguments)))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// What it has used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |n: usize| fields[n].parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// The most memory that it has ever had, in bytes.
    pub(crate) fn peak(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Addresses that are free.
pub(crate) fn addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

pub(crate) fn wait_for(address: SocketAddr) {
    eventually("somebody listens", || TcpStream::connect(address).is_ok());
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
