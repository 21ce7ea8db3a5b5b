//! The network of a field.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A bridge with hosts.
pub(crate) struct Network {
    bridge: String,
    hosts: Vec<String>,
    prefix: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Network {
    pub(crate) fn new(count: usize) -> Self {
        let id =
            std::process::id().wrapping_mul(16).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let prefix = format!("10.{}.{}", 64 + id / 256 % 128, id % 256);
        let bridge = format!("ch{:x}", id % 0xfff_ffff);
        let hosts = (0..count).map(|n| format!("{bridge}n{n}")).collect();
        let net = Self { bridge, hosts, prefix };
        net.build();
        net
    }

    fn build(&self) {
        let bridge = &self.bridge;
        ip(&["link", "add", bridge, "type", "bridge"]);
        ip(&["addr", "add", &format!("{}/24", self.gateway()), "dev", bridge]);
        ip(&["link", "set", bridge, "up"]);
        for (n, host) in self.hosts.iter().enumerate() {
            let (inside, outside) = (format!("{bridge}i{n}"), format!("{bridge}o{n}"));
            ip(&["netns", "add", host]);
            ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside]);
            ip(&["link", "set", &inside, "netns", host]);
            ip(&["link", "set", &outside, "master", bridge, "up"]);
            ip(&["-n", host, "addr", "add", &format!("{}/24", self.ip(n)), "dev", &inside]);
            ip(&["-n", host, "link", "set", &inside, "up"]);
            ip(&["-n", host, "link", "set", "lo", "up"]);
        }
    }

    pub(crate) fn ip(&self, n: usize) -> String {
        format!("{}.{}", self.prefix, n + 1)
    }

    /// The address of what is outside of all hosts, which no cut keeps from them.
    pub(crate) fn gateway(&self) -> String {
        format!("{}.254", self.prefix)
    }

    /// A program at a host.
    pub(crate) fn command(&self, n: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[n], program]);
        command
    }

    pub(crate) fn namespace(&self, n: usize) -> &str {
        &self.hosts[n]
    }

    /// The processes of a site.
    pub(crate) fn processes(&self, n: usize) -> Vec<u32> {
        processes(&self.hosts[n])
    }

    /// Drops all packets between two sites.
    pub(crate) fn cut(&self, a: usize, b: usize) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Drops all packets from one site to another.
    pub(crate) fn cut_one_way(&self, from: usize, to: usize) {
        let from = self.ip(from);
        inside(&self.hosts[to], &["iptables", "-w", "-A", "INPUT", "-s", &from, "-j", "DROP"]);
    }

    /// Drops all packets between any two sites.
    pub(crate) fn cut_all(&self) {
        for to in 0..self.hosts.len() {
            (0..to).for_each(|from| self.cut(from, to));
        }
    }

    /// Has a site refuse connections to a port from itself, as if nobody listened there.
    pub(crate) fn refuse(&self, n: usize, port: u16) {
        let port = port.to_string();
        let which = ["iptables", "-w", "-A", "INPUT", "-i", "lo", "-p", "tcp", "--dport", &port];
        inside(
            &self.hosts[n],
            &[&which[..], &["-j", "REJECT", "--reject-with", "tcp-reset"]].concat(),
        );
    }

    /// Drops and refuses nothing any more.
    pub(crate) fn heal(&self) {
        for host in &self.hosts {
            inside(host, &["iptables", "-w", "-F", "INPUT"]);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            // What agents ran goes on without them, by design.
            let left = processes(host).into_iter().map(|pid| pid.to_string());
            let _ = quiet("kill").arg("-KILL").args(left).status();
            let _ = quiet("ip").args(["netns", "del", host]).status();
        }
        let _ = quiet("ip").args(["link", "del", &self.bridge]).status();
    }
}

/// The processes of a host; none if there is no such host any more.
fn processes(host: &str) -> Vec<u32> {
    let output = Command::new("ip").args(["netns", "pids", host]).output();
    let pids = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&pids).lines().filter_map(|pid| pid.trim().parse().ok()).collect()
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}

fn inside(host: &str, arguments: &[&str]) {
    run("ip", &[&["netns", "exec", host], arguments].concat());
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program} can't be run: {error}; `make hosts` installs it")
    });
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {} failed: {error}(these tests make network namespaces: they need root)",
        arguments.join(" ")
    );
}
