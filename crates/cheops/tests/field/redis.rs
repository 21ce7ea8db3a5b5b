//! Real Redis servers, one at each site, that know nothing of each other.

use std::process::{Child, Stdio};

use super::{Field, agent::Agent, eventually};

pub(crate) struct Redis(Vec<Child>);

impl Redis {
    /// Starts one at each site, on the default port.
    pub(crate) fn start(field: &Field) -> Self {
        let servers = field.sites.iter().map(|site| {
            let mut command = site.command("redis-server");
            command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
                .spawn()
                .unwrap_or_else(|error| panic!("redis-server: {error}; `make hosts` installs it"))
        });
        let redis = Self(servers.collect());
        for site in &field.sites {
            eventually("Redis answers", || site.output("redis-cli", &["ping"]) == "PONG");
        }
        redis
    }

    /// The value of a key at a site.
    pub(crate) fn get(site: &Agent, key: &str) -> String {
        site.output("redis-cli", &["get", key])
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for server in &mut self.0 {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
