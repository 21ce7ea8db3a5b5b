//! The upstream, the proxies in front of it, and the agents, each set up to do the same: pass requests
//! on over kept connections, say whom they came from, keep no body, write no log.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
};

use cheops_agent::trust::Identity;
use serde_json::{Value, json};

use super::process::{Process, addresses, eventually, wait_for};

/// What is measured: a way to the upstream.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    /// Where small requests go.
    pub(crate) small: SocketAddr,
    /// Where large bodies go.
    pub(crate) large: SocketAddr,
    /// A header that requests have.
    pub(crate) header: Option<&'static str>,
    /// What they pass through.
    pub(crate) processes: Vec<Rc<Process>>,
}

/// Those who answer.
#[derive(Clone, Copy)]
pub(crate) struct Upstreams {
    pub(crate) small: SocketAddr,
    pub(crate) large: SocketAddr,
}

/// All that is set up, in a directory that goes away with it.
pub(crate) struct Stage {
    directory: tempfile::TempDir,
    pub(crate) upstreams: Upstreams,
    _upstream: Process,
}

impl Stage {
    /// Starts the upstream of small requests: nginx, which answers from memory.
    pub(crate) fn new(large: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let [small] = addresses();
        let server =
            format!("server {{ listen {small} backlog=1024; return 200 'what an answer'; }}");
        let file = nginx_file(directory.path(), "upstream", &server);
        let mut command = std::process::Command::new("nginx");
        let there = command.arg("-v").stderr(std::process::Stdio::null()).status();
        there.ok()?;
        let mut command = std::process::Command::new("nginx");
        let upstream = Process::start(command.args(["-c", file.to_str().unwrap()]));
        wait_for(small);
        Some(Self { directory, upstreams: Upstreams { small, large }, _upstream: upstream })
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.directory.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    fn lane(name: &'static str, doors: [SocketAddr; 2], process: Process) -> Lane {
        let [small, large] = doors;
        wait_for(small);
        wait_for(large);
        Lane { name, small, large, header: None, processes: vec![Rc::new(process)] }
    }

    /// The way without any proxy.
    pub(crate) fn direct(&self) -> Lane {
        let Upstreams { small, large } = self.upstreams;
        Lane { name: "no proxy", small, large, header: None, processes: Vec::new() }
    }

    pub(crate) fn haproxy(&self) -> Option<Lane> {
        let doors: [SocketAddr; 2] = addresses();
        let [small, large] = doors;
        let Upstreams { small: to_small, large: to_large } = self.upstreams;
        let config = format!(
            "global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option forwardfor
  http-reuse always
  timeout connect 2s
  timeout client 5m
  timeout server 5m
listen small
  bind {small}
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  server one {to_small}
listen large
  bind {large}
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  server one {to_large}
"
        );
        let file = self.file("haproxy.cfg", &config);
        let process = Process::measured("haproxy", &["-db", "-q", "-f", &file])?;
        Some(Self::lane("haproxy", doors, process))
    }

    pub(crate) fn nginx(&self) -> Option<Lane> {
        let doors: [SocketAddr; 2] = addresses();
        let [small, large] = doors;
        let Upstreams { small: to_small, large: to_large } = self.upstreams;
        let config = format!(
            "upstream small {{ server {to_small}; keepalive 256; keepalive_requests 1000000000; }}
upstream large {{ server {to_large}; keepalive 256; }}
proxy_http_version 1.1;
proxy_buffering off;
proxy_request_buffering off;
proxy_set_header Connection '';
proxy_set_header Host $host;
proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
proxy_set_header X-Forwarded-Proto $scheme;
proxy_set_header X-Forwarded-Host $host;
server {{ listen {small} backlog=1024; location / {{ proxy_pass http://small; }} }}
server {{ listen {large}; location / {{ proxy_pass http://large; }} }}"
        );
        let file = nginx_file(self.directory.path(), "proxy", &config);
        let process = Process::measured("nginx", &["-c", file.to_str().unwrap()])?;
        Some(Self::lane("nginx", doors, process))
    }

    /// Envoy, if `CHEOPS_ENVOY` or the path says where it is.
    pub(crate) fn envoy(&self) -> Option<Lane> {
        let doors: [SocketAddr; 2] = addresses();
        let [small, large] = doors;
        let Upstreams { small: to_small, large: to_large } = self.upstreams;
        let config = json!({"static_resources": {
            "listeners": [envoy_listener("small", small), envoy_listener("large", large)],
            "clusters": [envoy_cluster("small", to_small), envoy_cluster("large", to_large)],
        }});
        let file = self.file("envoy.json", &config.to_string());
        let program = std::env::var("CHEOPS_ENVOY").unwrap_or_else(|_| "envoy".to_owned());
        let arguments =
            ["--concurrency", "1", "--disable-hot-restart", "--log-level", "off", "-c", &file];
        let process = Process::measured(&program, &arguments)?;
        Some(Self::lane("envoy", doors, process))
    }

    /// One agent that knows of no other.
    pub(crate) fn agent(&self) -> Lane {
        let [api, peers, small, large] = addresses();
        let agent = self.start_agent("alone", api, peers, [small, large], "");
        Self::lane("cheops", [small, large], agent)
    }

    /// Two agents: the ways from each to the instance of the other.
    pub(crate) fn pair(&self) -> [Lane; 2] {
        let [apis, peers, one, other] = [(); 4].map(|()| addresses::<2>());
        let peer = |n: usize| {
            let (name, address) = (format!("site{}", n + 1), peers[n]);
            let data = self.directory.path().join(&name).join("data");
            fs::create_dir_all(&data).unwrap();
            let key = Identity::open(&data).unwrap().public();
            format!("[[peer]]\nname = '{name}'\naddress = '{address}'\nkey = '{key}'\n")
        };
        let first = self.start_agent("site1", apis[0], peers[0], one, &peer(1));
        let second = self.start_agent("site2", apis[1], peers[1], other, &peer(0));
        let processes = vec![Rc::new(first), Rc::new(second)];
        for api in apis {
            eventually("the agents are linked", || {
                let sites = ureq::get(format!("http://{api}/api/v1/sites")).call();
                let text = sites.ok().and_then(|mut sites| sites.body_mut().read_to_string().ok());
                text.is_some_and(|text| text.contains("\"reachable\""))
            });
        }
        [
            ("cheops, site1 to site2", one, "X-Scope: image: site2, store: site2"),
            ("cheops, site2 to site1", other, "X-Scope: image: site1, store: site1"),
        ]
        .map(|(name, [small, large], header)| Lane {
            name,
            small,
            large,
            header: Some(header),
            processes: processes.clone(),
        })
    }

    fn start_agent(
        &self,
        site: &str,
        api: SocketAddr,
        peers: SocketAddr,
        [small, large]: [SocketAddr; 2],
        others: &str,
    ) -> Process {
        let home = self.directory.path().join(site);
        fs::create_dir_all(&home).unwrap();
        let Upstreams { small: to_small, large: to_large } = self.upstreams;
        let config = format!(
            "site = '{site}'
[listen]
api = '{api}'
peers = '{peers}'
[[service]]
name = 'image'
listen = '{small}'
address = '{to_small}'
[[service]]
name = 'store'
listen = '{large}'
address = '{to_large}'
{others}"
        );
        let file = home.join("site.toml");
        fs::write(&file, config).unwrap();
        let program = env!("CARGO_BIN_EXE_cheops");
        let agent =
            Process::measured(program, &["agent", "--config", file.to_str().unwrap()]).unwrap();
        wait_for(small);
        wait_for(large);
        agent
    }
}

fn nginx_file(directory: &Path, name: &str, http: &str) -> PathBuf {
    let file = directory.join(format!("{name}.conf"));
    let at = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|sort| format!("{sort}_temp_path {at}/{name}-{sort};\n"))
        .concat();
    let config = format!(
        "daemon off;
master_process off;
worker_rlimit_nofile 4096;
pid {at}/{name}.pid;
error_log /dev/null;
events {{ worker_connections 2048; }}
http {{
access_log off;
keepalive_requests 1000000000;
client_max_body_size 0;
{temporary}{http}
}}
"
    );
    fs::write(&file, config).unwrap();
    file
}

fn envoy_listener(name: &str, at: SocketAddr) -> Value {
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    json!({
        "address": envoy_address(at),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": manager,
                "stat_prefix": name,
                "use_remote_address": true,
                "route_config": {"virtual_hosts": [{
                    "name": name,
                    "domains": ["*"],
                    "request_headers_to_add": [
                        {"header": {"key": "x-forwarded-host", "value": "%REQ(:authority)%"}},
                    ],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "0s"}}],
                }]},
                "http_filters": [
                    {"name": "envoy.filters.http.router", "typed_config": {"@type": router}},
                ],
            },
        }]}],
    })
}

fn envoy_cluster(name: &str, at: SocketAddr) -> Value {
    let endpoint = json!({"endpoint": {"address": envoy_address(at)}});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    })
}

fn envoy_address(at: SocketAddr) -> Value {
    json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}})
}
