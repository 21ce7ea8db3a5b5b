//! An agent, as a process at a site of the field.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use cheops_agent::{
    api::model::{Problem, Resource, Shown, SiteState, Sites, Submit, Submitted},
    trust::Identity,
};
use serde::de::DeserializeOwned;

use super::{eventually, ports::unused};

/// What a configuration says of another site, whose own one is in this directory.
pub(crate) fn peer(name: &str, address: &str, directory: &Path) -> String {
    let data = directory.join("data");
    fs::create_dir_all(&data).unwrap();
    let key = Identity::open(&data).unwrap().public();
    format!("[[peer]]\nname = '{name}'\naddress = '{address}'\nkey = '{key}'\n")
}

pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) url: String,
    /// Where it lives; with us, if nowhere else.
    namespace: Option<String>,
    directory: PathBuf,
    child: Option<Child>,
    http: ureq::Agent,
}

impl Agent {
    /// An agent with a host of its own.
    pub(crate) fn new(name: &str, namespace: &str, ip: &str, directory: &Path) -> Self {
        let namespace = Some(namespace.to_owned());
        Self::at(name, namespace, &format!("{ip}:8079"), directory)
    }

    /// The only agent of its world, on loopback. It is started, and ready.
    pub(crate) fn alone(directory: &Path) -> Self {
        Self::alone_with(directory, "")
    }

    /// The same, with more sections in its configuration.
    pub(crate) fn alone_with(directory: &Path, settings: &str) -> Self {
        let (api, peers) = (unused(), unused());
        let config =
            format!("site = 'site1'\n{settings}\n[listen]\napi = '{api}'\npeers = '{peers}'\n");
        fs::write(directory.join("site.toml"), config).unwrap();
        let mut agent = Self::at("site1", None, &api.to_string(), directory);
        agent.start();
        agent.wait_until_ready();
        agent
    }

    /// One of several agents on loopback; its configuration is there.
    pub(crate) fn on_loopback(name: &str, api: &str, directory: &Path) -> Self {
        Self::at(name, None, api, directory)
    }

    fn at(name: &str, namespace: Option<String>, api: &str, directory: &Path) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(90)))
            .http_status_as_error(false)
            .build();
        Self {
            name: name.into(),
            url: format!("http://{api}"),
            namespace,
            directory: directory.into(),
            child: None,
            http: config.into(),
        }
    }

    /// Another way to the same agent, which does not end with it.
    pub(crate) fn again(&self) -> Self {
        Self {
            name: self.name.clone(),
            url: self.url.clone(),
            namespace: self.namespace.clone(),
            directory: self.directory.clone(),
            child: None,
            http: self.http.clone(),
        }
    }

    /// Where its commands run.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    /// A program at this site.
    pub(crate) fn command(&self, program: &str) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }

    /// What a program prints at this site.
    pub(crate) fn output(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts the agent; it is not ready yet.
    pub(crate) fn start(&mut self) {
        let command = self.command(env!("CARGO_BIN_EXE_cheops"));
        self.start_as(command);
    }

    /// Starts the agent with a clock that is off by this much: `+2h`.
    pub(crate) fn start_at(&mut self, offset: &str) {
        let mut command = self.command("env");
        command.args(["FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", offset]);
        command.arg(env!("CARGO_BIN_EXE_cheops"));
        self.start_as(command);
    }

    /// Starts the agent with another place for its log.
    pub(crate) fn start_logging_to(&mut self, log: impl Into<Stdio>) {
        let command = self.command(env!("CARGO_BIN_EXE_cheops"));
        self.start_with(command, Stdio::null(), log);
    }

    /// Starts the agent with something secret in its environment, and a log of all that it can say.
    pub(crate) fn start_traced(&mut self, secret: &str, log: impl Into<Stdio>) {
        let mut command = self.command(env!("CARGO_BIN_EXE_cheops"));
        command.env("CHEOPS_LOG", "trace").env("DATABASE_PASSWORD", secret);
        self.start_with(command, Stdio::null(), log);
    }

    fn start_as(&mut self, command: Command) {
        let log = self.directory.join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        self.start_with(command, log.try_clone().unwrap(), log);
    }

    fn start_with(
        &mut self,
        mut command: Command,
        output: impl Into<Stdio>,
        log: impl Into<Stdio>,
    ) {
        let config = self.directory.join("site.toml");
        command.args(["agent", "--config"]).arg(&config);
        // A test that is about policies has one of its own.
        if !fs::read_to_string(config).is_ok_and(|config| config.contains("[policy")) {
            command.arg("--allow-any-shell-command");
        }
        command.stdin(Stdio::null()).stdout(output).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    pub(crate) fn wait_until_ready(&self) {
        let ready = || self.try_get::<serde_json::Value>("/readyz").is_some();
        let start = std::time::Instant::now();
        while !ready() {
            if start.elapsed() > super::SOON {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                panic!("{} is not ready:\n{log}", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the agent as a power cut of the process would: at once. `ip netns exec` has become the
    /// agent, so that there is nothing between.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills the agent, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.start();
        self.wait_until_ready();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The exit code of the agent, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.as_mut().and_then(|child| child.try_wait().unwrap()).and_then(|s| s.code())
    }

    /// The id of the agent's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// A value that the system tells of the agent's process, in kB: `VmHWM`, `VmRSS`.
    pub(crate) fn memory(&self, what: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The sites that this one can reach.
    pub(crate) fn reachable(&self) -> Vec<String> {
        let sites = self.try_get::<Sites>("/api/v1/sites").map(|sites| sites.sites);
        let reachable = sites.unwrap_or_default().into_iter();
        reachable.filter(|s| s.state == SiteState::Reachable).map(|s| s.name).collect()
    }

    /// A resource as this site alone knows it.
    pub(crate) fn resource(&self, id: &str) -> Option<Resource> {
        self.try_get(&format!("/api/v1/resources/{id}?local=true&limit=10000"))
    }

    /// Asks for an operation, and waits for all that is heard of it.
    pub(crate) fn exec(&self, id: &str, submit: &Submit) -> Submitted {
        self.try_exec(id, submit).unwrap_or_else(|problem| panic!("{}: {problem:?}", self.name))
    }

    pub(crate) fn try_exec(&self, id: &str, submit: &Submit) -> Result<Submitted, Problem> {
        let path = format!("/api/v1/resources/{id}/operations");
        let (status, text) = self.post(&path, submit).ok_or_else(gone)?;
        if status < 300 {
            serde_json::from_str(&text).map_err(|_| gone())
        } else {
            Err(serde_json::from_str(&text).unwrap_or_else(|_| gone()))
        }
    }

    /// Runs a command on sites.
    pub(crate) fn show(&self, id: &str, command: Option<&str>) -> Shown {
        let path = format!("/api/v1/resources/{id}/show");
        let body = serde_json::json!(command.map_or_else(
            || serde_json::json!({}),
            |command| serde_json::json!({ "command": command })
        ));
        let (status, text) = self.post(&path, &body).unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// What the agent answers to a body of JSON; nothing if it can't be reached.
    pub(crate) fn post(&self, path: &str, body: &impl serde::Serialize) -> Option<(u16, String)> {
        let body = serde_json::to_vec(body).unwrap();
        let request = self.http.post(format!("{}{path}", self.url));
        let mut response = request.content_type("application/json").send(&body[..]).ok()?;
        Some((response.status().as_u16(), response.body_mut().read_to_string().ok()?))
    }

    /// What the agent answers; nothing if it can't be reached.
    pub(crate) fn ask(&self, path: &str) -> Option<(u16, String)> {
        let mut response = self.http.get(format!("{}{path}", self.url)).call().ok()?;
        let body = response.body_mut().with_config().limit(1 << 30).read_to_string().ok()?;
        Some((response.status().as_u16(), body))
    }

    pub(crate) fn try_get<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let (status, text) = self.ask(path)?;
        if status == 200 { serde_json::from_str(&text).ok() } else { None }
    }

    /// Waits until the agent says this of a resource.
    pub(crate) fn wait_for(
        &self,
        id: &str,
        what: &str,
        mut condition: impl FnMut(&Resource) -> bool,
    ) {
        eventually(what, || self.resource(id).is_some_and(|resource| condition(&resource)));
    }
}

/// The agent could not be asked, or did not answer.
fn gone() -> Problem {
    Problem {
        kind: "gone".into(),
        title: String::new(),
        status: 0,
        detail: String::new(),
        hint: String::new(),
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            #[allow(
                clippy::print_stderr,
                reason = "whoever reads a failure needs the agents' words"
            )]
            {
                eprintln!("--- the last words of {}:\n{}", self.name, tail.join("\n"));
            }
        }
    }
}
