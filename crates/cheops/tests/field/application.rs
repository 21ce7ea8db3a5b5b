//! A small application of two services, one instance of it at each site: `image`, and `compute`, which
//! asks `image` on every boot. It is a program of its own, `app/app.py`, and knows nothing of Cheops.
//!
//! The instances listen on all addresses of their sites, so that a request that went straight to one
//! from elsewhere would be served, and be seen in its log.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    Field, eventually,
    http::{Answer, Call, Client},
};

/// Links that notice soon that a site is away.
pub(crate) const LINKS: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'\n";

/// Where the application's own calls leave, at each site.
pub(crate) const OUTBOUND: &str = "127.0.0.1:8077";

/// The test application's program.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/field/app/app.py"))
}

/// A service: its name, where agents listen for it, and the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Image,
    Compute,
}

impl Service {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Compute => "compute",
        }
    }

    /// Where agents listen for it.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Image => 9292,
            Self::Compute => 8774,
        }
    }

    /// Where the instance does.
    pub(crate) fn instance(self) -> u16 {
        self.port() + 10_000
    }
}

/// How the application is set up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    /// Ids are numbers, those of each site from another one on.
    pub(crate) numbers: bool,
    /// More settings of the service `image`.
    pub(crate) image: String,
    /// More settings of `[mesh]`; `IP` stands for the address of the site.
    pub(crate) mesh: String,
    /// How long an instance may take to answer; two seconds if this is empty.
    pub(crate) answer: &'static str,
    /// More sections.
    pub(crate) sections: String,
}

/// Sites, each with an agent and the application.
pub(crate) struct World {
    pub(crate) field: Field,
    setup: Setup,
    instances: Vec<(usize, Service, Child)>,
    pub(crate) client: Client,
}

impl World {
    pub(crate) fn new(count: usize) -> Self {
        Self::with(count, Setup::default())
    }

    pub(crate) fn with(count: usize, setup: Setup) -> Self {
        let field = Field::with_each(count, |_, ip| settings(ip, &setup));
        let mut world = Self { field, setup, instances: Vec::new(), client: Client::new() };
        for n in 0..count {
            world.start(n, Service::Image);
            world.start(n, Service::Compute);
        }
        for n in 0..count {
            world.wait_until_up(n, Service::Image);
            world.wait_until_up(n, Service::Compute);
        }
        world
    }

    /// Starts an instance. It is not ready yet.
    pub(crate) fn start(&mut self, n: usize, service: Service) {
        let site = &self.field.sites[n];
        let mut command = site.command("python3");
        command.arg(program()).args([service.name(), &service.instance().to_string()]);
        command.args(["--site", &site.name]);
        // It is ended by force: what it leaves behind goes with the field.
        command.env("TMPDIR", self.field.directory(n));
        match service {
            Service::Image if self.setup.numbers => {
                let first = [42, 6, 17][n % 3];
                command.args(["--numbers", &first.to_string()]);
            }
            Service::Image => {}
            Service::Compute => {
                command.args(["--image", "http://image", "--proxy", &format!("http://{OUTBOUND}")]);
            }
        }
        self.instances.push((n, service, quiet(command)));
    }

    pub(crate) fn wait_until_up(&self, n: usize, service: Service) {
        let what = format!("{} of site{} answers", service.name(), n + 1);
        let client = Client::patient(Duration::from_secs(5));
        let url = self.instance(n, service, "/_log");
        eventually(&what, || client.get(&url).try_send().is_some());
    }

    /// Ends an instance: from now on, nothing listens there.
    pub(crate) fn stop(&mut self, n: usize, service: Service) {
        self.instances.retain_mut(|(site, this, child)| {
            let stays = (*site, *this) != (n, service);
            if !stays {
                end(child);
            }
            stays
        });
    }

    /// The address of something at an agent's listener.
    pub(crate) fn url(&self, n: usize, service: Service, path: &str) -> String {
        format!("http://{}:{}{path}", self.field.net.ip(n), service.port())
    }

    /// The address of something at an instance, past all agents.
    pub(crate) fn instance(&self, n: usize, service: Service, path: &str) -> String {
        format!("http://{}:{}{path}", self.field.net.ip(n), service.instance())
    }

    /// A request to the agent of a site, for `image`.
    pub(crate) fn image(&self, n: usize, method: &str, path: &str) -> Call {
        self.client.call(method, &self.url(n, Service::Image, path))
    }

    /// A request to the agent of a site, for `compute`.
    pub(crate) fn compute(&self, n: usize, method: &str, path: &str) -> Call {
        self.client.call(method, &self.url(n, Service::Compute, path))
    }

    /// Makes an image at one site, with data, past all agents. Gives its id.
    pub(crate) fn has_image(&self, n: usize, name: &str, data: &str) -> String {
        let at = |path: &str| self.instance(n, Service::Image, path);
        let made = self.client.call("POST", &at("/v2/images"));
        let made = made.json(&json!({ "name": name })).send().expect(201).json();
        let id = text(&made["id"]);
        let file = at(&format!("/v2/images/{id}/file"));
        self.client.call("PUT", &file).body(data).send().expect(204);
        id
    }

    /// Boots something from an image, asked of a site's agent.
    pub(crate) fn boot(&self, n: usize, image: &str) -> Call {
        self.compute(n, "POST", "/servers").json(&json!({ "name": "vm", "image": image }))
    }

    /// What an instance has of something, past all agents.
    pub(crate) fn has(&self, n: usize, service: Service, path: &str) -> Answer {
        self.client.get(&self.instance(n, service, path)).send()
    }

    /// How an instance behaves from now on.
    pub(crate) fn mode(&self, n: usize, service: Service, mode: &Value) {
        let call = self.client.call("PUT", &self.instance(n, service, "/_mode"));
        call.json(mode).send().expect(200);
    }

    /// What an instance was asked so far.
    pub(crate) fn log(&self, n: usize, service: Service) -> Vec<Value> {
        let log = self.has(n, service, "/_log").expect(200).json();
        log["log"].as_array().unwrap().clone()
    }

    /// What an instance was asked so far: methods and targets.
    pub(crate) fn asked(&self, n: usize, service: Service) -> Vec<String> {
        let line = |entry: Value| format!("{} {}", text(&entry["method"]), text(&entry["target"]));
        self.log(n, service).into_iter().map(line).collect()
    }

    /// Empties all logs.
    pub(crate) fn forget(&self) {
        for (n, service, _) in &self.instances {
            let url = self.instance(*n, *service, "/_log");
            self.client.call("DELETE", &url).send().expect(200);
        }
    }

    /// Cuts one site off from all others, and waits until they have noticed.
    pub(crate) fn isolate(&self, alone: usize) {
        let sites = &self.field.sites;
        let others: Vec<usize> = (0..sites.len()).filter(|&n| n != alone).collect();
        for &n in &others {
            self.field.net.cut(alone, n);
        }
        eventually("they have noticed", || {
            let name = &sites[alone].name;
            sites[alone].reachable().is_empty()
                && others.iter().all(|&n| !sites[n].reachable().contains(name))
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.instances.iter_mut().for_each(|(_, _, child)| end(child));
    }
}

/// The text of a JSON value: of a string, what it says.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn settings(ip: &str, setup: &Setup) -> String {
    let answer = if setup.answer.is_empty() { "2s" } else { setup.answer };
    let service = |service: Service, more: &str| {
        format!(
            "[[service]]\nname = '{}'\nlisten = '{ip}:{}'\naddress = '127.0.0.1:{}'\nconnect = '500ms'\nanswer = '{answer}'\n{more}\n",
            service.name(),
            service.port(),
            service.instance()
        )
    };
    [
        service(Service::Image, &setup.image),
        service(Service::Compute, ""),
        format!("[mesh]\noutbound = '{OUTBOUND}'\n{}\n", setup.mesh.replace("IP", ip)),
        LINKS.to_owned(),
        setup.sections.clone(),
    ]
    .concat()
}

/// Starts a program that says nothing.
pub(crate) fn quiet(mut command: Command) -> Child {
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub(crate) fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
