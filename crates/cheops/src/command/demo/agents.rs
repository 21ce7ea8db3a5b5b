//! The agents of the demo: this program itself, three times.
//!
//! What must stay true: whatever way the demo ends, the agents end with it, and their directories go
//! unless someone asked for them to be kept. With the directories go the commands that still run;
//! where they are kept, the next demo finds the results.

use std::{
    env, fs, io,
    net::{Ipv4Addr, TcpListener},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{commands, directory::Directory};
use crate::{
    client::{self, Address, Client},
    interrupt::Interrupt,
    report::{Exit, Failure},
};
use cheops_agent::{
    api::model::{SiteState, Sites},
    trust::Identity,
};
use cheops_core::trust::PublicKey;

pub(super) const NAMES: [&str; 3] = ["site1", "site2", "site3"];

/// How long agents may take to be ready, and to see each other.
const READY: Duration = Duration::from_secs(30);

/// How long they may take to end by themselves.
const END: Duration = Duration::from_secs(5);

/// How often they are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// How often other ports are tried if someone else has taken one in between.
const ATTEMPTS: usize = 3;

/// How much of a log is shown when an agent fails.
const LOG: usize = 10;

/// Three agents that run.
#[derive(Debug)]
pub(super) struct Agents {
    program: PathBuf,
    running: Vec<Agent>,
    directory: Directory,
}

/// An agent that runs.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) site: String,
    pub(super) api: Address,
    pub(super) work: PathBuf,
    pub(super) log: PathBuf,
    child: Child,
}

/// Ports that were free a moment ago.
struct Ports {
    api: u16,
    peers: u16,
}

impl Agents {
    /// Starts the agents, and waits until they see each other.
    pub(super) fn start(directory: Directory, interrupted: &Interrupt) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(Exit::Wrong, "cannot start the agents of the demo")
                .caused_by(error)
                .hint("is there room for their data? --keep DIR takes another directory")
        };
        let program = env::current_exe().map_err(failed)?;
        let mut this = Self { program, running: Vec::new(), directory };
        for attempt in 1.. {
            this.launch().map_err(failed)?;
            match this.wait_until_ready(interrupted) {
                Err(_) if attempt < ATTEMPTS && this.lost_a_port() => this.end(),
                result => return result.map(|()| this),
            }
        }
        Ok(this)
    }

    fn launch(&mut self) -> io::Result<()> {
        let ports = free_ports()?;
        let home = |site: &str| self.directory.path().join(site);
        let keys = NAMES.map(|site| {
            let data = home(site).join("data");
            fs::create_dir_all(&data)?;
            Identity::open(&data).map(|identity| identity.public()).map_err(io::Error::other)
        });
        let keys = keys.into_iter().collect::<io::Result<Vec<PublicKey>>>()?;
        for (n, site) in NAMES.into_iter().enumerate() {
            let directory = home(site);
            let work = directory.join("work");
            fs::create_dir_all(&work)?;
            let log = directory.join("log");
            let written = fs::File::create(&log)?;
            let mut command = Command::new(&self.program);
            command
                .args(["agent", "--end-with-parent", "--site", site])
                // All three are this person's own, and so are their commands.
                .arg("--allow-any-shell-command")
                .arg("--data")
                .arg(directory.join("data"))
                .arg("--work")
                .arg(&work)
                .args(["--api", &format!("127.0.0.1:{}", ports[n].api)])
                // Whoever looks at one of them is on this machine, and reaches the others.
                .args(["--page", &format!("http://127.0.0.1:{}", ports[n].api)])
                .args(["--peers", &format!("127.0.0.1:{}", ports[n].peers)])
                .stdin(Stdio::null())
                .stdout(written.try_clone()?)
                .stderr(written)
                // Ctrl-C is for the demo, which then stops the agents.
                .process_group(0);
            for ((other, ports), key) in NAMES.into_iter().zip(&ports).zip(&keys) {
                if other != site {
                    command.args(["--peer", &format!("{other}={key}@127.0.0.1:{}", ports.peers)]);
                }
            }
            let api = Address::local(ports[n].api);
            self.running.push(Agent {
                site: site.to_owned(),
                api,
                work,
                log,
                child: command.spawn()?,
            });
        }
        Ok(())
    }

    fn wait_until_ready(&mut self, interrupted: &Interrupt) -> Result<(), Failure> {
        let deadline = Instant::now() + READY;
        for n in 0..self.running.len() {
            let client = Client::at(self.running[n].api.clone())?;
            while !sees_all(&client) {
                self.check()?;
                interrupted.check()?;
                if Instant::now() > deadline {
                    let agent = &self.running[n];
                    let message = format!("{} is not ready after {}s", agent.site, READY.as_secs());
                    return Err(Failure::new(Exit::Silent, message).caused_by(end_of(&agent.log)));
                }
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// A failure if an agent has ended.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for agent in &mut self.running {
            if let Ok(Some(status)) = agent.child.try_wait() {
                let message = format!("the agent of {} has ended ({status})", agent.site);
                return Err(Failure::new(Exit::Wrong, message)
                    .caused_by(end_of(&agent.log))
                    .hint("to look at its files afterwards, run the demo with --keep DIR"));
            }
        }
        Ok(())
    }

    fn lost_a_port(&self) -> bool {
        self.running.iter().any(|agent| end_of(&agent.log).to_lowercase().contains("in use"))
    }

    pub(super) fn all(&self) -> &[Agent] {
        &self.running
    }

    pub(super) fn addresses(&self) -> Vec<(String, Address)> {
        self.running.iter().map(|agent| (agent.site.clone(), agent.api.clone())).collect()
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Stops the agents, and removes what they leave.
    pub(super) fn stop(mut self) {
        self.end();
    }

    /// Asks all agents to end, waits, and ends those that don't.
    fn end(&mut self) {
        for agent in &self.running {
            let id = i32::try_from(agent.child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(id) = id {
                // One that has ended already needs no signal.
                let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            }
        }
        let deadline = Instant::now() + END;
        for mut agent in self.running.drain(..) {
            while let Ok(None) = agent.child.try_wait() {
                if Instant::now() > deadline {
                    let _ = agent.child.kill();
                    let _ = agent.child.wait();
                    break;
                }
                thread::sleep(LOOK);
            }
        }
        if let Directory::Temporary(directory) = &self.directory {
            commands::end(directory.path());
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether an agent answers, and can reach all others.
fn sees_all(client: &Client) -> bool {
    let sites: Result<Sites, Failure> =
        client.get_within(&client::Path::api("sites"), Duration::from_secs(2));
    let can_reach = |state| matches!(state, SiteState::Here | SiteState::Reachable);
    sites.is_ok_and(|sites| {
        sites.sites.len() == NAMES.len() && sites.sites.iter().all(|site| can_reach(site.state))
    })
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(LOG)..].join(" / ");
    if end.is_empty() { "its log is empty".to_owned() } else { end }
}

/// Ports for all agents. Held together, so that none is given twice.
fn free_ports() -> io::Result<Vec<Ports>> {
    let take = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let taken: Vec<[TcpListener; 2]> =
        NAMES.iter().map(|_| Ok([take()?, take()?])).collect::<io::Result<_>>()?;
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    taken.iter().map(|[api, peers]| Ok(Ports { api: port(api)?, peers: port(peers)? })).collect()
}
