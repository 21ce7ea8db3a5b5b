//! A small site: a real node and a real runner, with a log in memory or in a file, and no links.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

mod disk;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use cheops_agent::{
    config::Config,
    files::{Fetch, Files},
    node::{self, Clock, Handle, Hands, Running},
    run::{Runner, Setup},
    trust::{Identity, Sealer},
};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix,
    operation::Action,
    replica::{Answer, Effect, Event, Message, Replica, Reply, Settings, Submission, Ticket},
    time::Millis,
};
use futures_util::{
    future::{BoxFuture, FutureExt},
    stream::BoxStream,
};

pub use self::disk::Disk;

struct OnlyRuns(Runner);

impl Hands for OnlyRuns {
    fn send(&mut self, _to: &SiteId, _message: Message) {}

    fn run(&mut self, effect: Effect) {
        self.0.give(effect);
    }

    fn tell(&mut self, event: &Event) {
        if let Event::Forgotten(resource) = event {
            self.0.forget(resource);
        }
    }
}

/// No other site has anything.
pub struct Nowhere;

impl Fetch for Nowhere {
    fn fetch(
        &self,
        _site: &SiteId,
        _content: [u8; 32],
        _offset: u64,
    ) -> BoxFuture<'static, io::Result<BoxStream<'static, io::Result<Bytes>>>> {
        std::future::ready(Err(io::ErrorKind::NotConnected.into())).boxed()
    }
}

/// How a site is to be.
pub struct Plan {
    pub config: Config,
    pub log: Disk,
    pub fetch: Arc<dyn Fetch>,
    pub program: PathBuf,
    pub boot_id: Option<PathBuf>,
}

impl Plan {
    pub fn new(directory: &Path, program: impl Into<PathBuf>) -> Self {
        Self {
            config: Config::new("site1".parse().unwrap(), directory),
            log: Disk::default(),
            fetch: Arc::new(Nowhere),
            program: program.into(),
            boot_id: None,
        }
    }

    pub fn start(self) -> Site {
        let Self { config, log, fetch, program, boot_id } = self;
        let scratch = config.data.join("runs");
        let mut setup =
            Setup::new(config.runs.clone(), config.site.clone(), config.work.clone(), scratch)
                .unwrap();
        setup.program = program;
        setup.services = config.mesh.services.clone();
        setup.gate = cheops_agent::policy::Gate::new(&config, || false);
        setup.boot_id = boot_id.unwrap_or(setup.boot_id);
        let files = Files::open(config.data.join("files"), config.store.clone()).unwrap();
        let (node, inbox) = node::channel(Clock::default());
        let runner = Runner::start(setup, files.clone(), fetch, node.clone()).unwrap();
        let settings = Settings::default();
        let replica = Replica::restore(config.site.clone(), settings, log.written());
        let hands = Box::new(OnlyRuns(runner.clone()));
        let identity = Identity::from_seed(&[1; 32]).unwrap();
        let sealer = Sealer::new(Arc::new(identity), config.site.clone());
        let running = node::start(inbox, replica, Box::new(log.clone()), hands, sealer, 0);
        let running = OnceLock::from(running.unwrap());
        Site { config, log, files, node, runner, running }
    }
}

/// A site at work.
pub struct Site {
    pub config: Config,
    pub log: Disk,
    pub files: Files,
    pub node: Handle,
    pub runner: Runner,
    running: OnceLock<Running>,
}

impl Site {
    /// A request for an operation on a resource that is at this site and at others, if any.
    pub fn request(&self, id: &str, action: Action, others: &[&str]) -> Submission {
        let here = self.config.site.clone();
        let sites = others.iter().map(|site| site.parse().unwrap()).chain([here]);
        Submission {
            ticket: Ticket(0),
            resource: id.parse().unwrap(),
            sites: Some(Sites::new(sites).unwrap()),
            config: None,
            kind: "do".parse().unwrap(),
            author: "test".parse().unwrap(),
            action,
            force: false,
            keep_going: true,
            key: None,
            wait: Millis(600_000),
        }
    }

    /// Asks for an operation, and waits for the reply of this site.
    pub async fn submit(&self, submission: Submission) -> Reply {
        let mut answers = self.node.submit(submission).await.unwrap();
        loop {
            match answers.recv().await {
                Some(Answer::Reply(reply)) if reply.id.site == self.config.site => return *reply,
                Some(Answer::Accepted(_, _) | Answer::Reply(_)) => {}
                other => panic!("{other:?} instead of a reply"),
            }
        }
    }

    /// Runs a command on a resource with this timeout.
    pub async fn exec(&self, id: &str, line: &str, timeout: Option<Duration>) -> Reply {
        let mut submission = self.request(id, Action::command(line), &[]);
        submission.config = Some(matrix::Config { timeout, ..matrix::Config::default() });
        self.submit(submission).await
    }

    /// The reply of this site to its own operation with this number, once there is one.
    pub async fn reply(&self, id: &str, number: u64) -> Reply {
        let resource: ResourceId = id.parse().unwrap();
        let here = self.config.site.clone();
        eventually(|| {
            let (resource, here) = (resource.clone(), here.clone());
            async move {
                let op = cheops_core::id::OpId { site: here.clone(), number };
                let look = move |replica: &Replica| {
                    replica.resource(&resource).and_then(|it| it.reply(&op, &here)).cloned()
                };
                self.node.read(look).await.unwrap()
            }
        })
        .await
    }

    /// Stops the node; what runs goes on.
    pub async fn stop(self) -> Disk {
        self.node.stop();
        if let Some(running) = self.running.into_inner() {
            running.stopped().await;
        }
        self.log
    }
}

/// Waits until there is something, for a minute at most.
pub async fn eventually<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < Duration::from_mins(1), "nothing came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
