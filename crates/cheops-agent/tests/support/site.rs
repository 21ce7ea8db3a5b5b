//! A small site: a real node and a real runner, with a log in memory or in a file, and no links.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use cheops_agent::{
    config::Config,
    engine::{Engine, EngineError, Reader, Seq},
    files::{Fetch, Files},
    node::{self, Clock, Handle, Hands, Running},
    run::{Runner, Setup},
    wire,
};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix,
    operation::Action,
    replica::{
        Answer, Durable, Effect, Event, Message, Replica, Reply, Settings, Submission, Ticket,
    },
    time::Millis,
};
use futures_util::{
    future::{BoxFuture, FutureExt},
    stream::BoxStream,
};

/// What was written: in memory, and in a file if there is one.
#[derive(Clone, Default)]
pub struct Log {
    written: Arc<Mutex<Vec<Durable>>>,
    file: Option<Arc<Mutex<File>>>,
}

impl Log {
    /// A log in memory that begins with this.
    pub fn of(written: Vec<Durable>) -> Self {
        Self { written: Arc::new(Mutex::new(written)), file: None }
    }

    /// A log in a file. What a killed process has left unfinished is cut off.
    pub fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let (mut at, mut written, mut names) = (0, Vec::new(), wire::Names::default());
        while let Some(length) = bytes.get(at..at + 4) {
            let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
            let Some(record) = bytes.get(at + 4..at + 4 + length) else { break };
            written.push(wire::decode_durable(record, &mut names).unwrap());
            at += 4 + length;
        }
        file.set_len(at as u64).unwrap();
        let file = Some(Arc::new(Mutex::new(file)));
        Self { written: Arc::new(Mutex::new(written)), file }
    }

    /// All that was written.
    pub fn written(&self) -> Vec<Durable> {
        self.written.lock().unwrap().clone()
    }
}

impl Engine for Log {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        if let Some(file) = &self.file {
            let mut bytes = Vec::new();
            for durable in batch {
                let record = wire::encode_durable(durable).unwrap();
                bytes.extend(u32::try_from(record.len()).unwrap().to_le_bytes());
                bytes.extend(record);
            }
            file.lock().unwrap().write_all(&bytes).unwrap();
        }
        let mut written = self.written.lock().unwrap();
        written.extend_from_slice(batch);
        Ok(written.len() as Seq)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(self.clone())
    }
}

impl Reader for Log {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        let from = usize::try_from(seq).unwrap();
        let written = self.written.lock().unwrap();
        Ok((seq + 1..).zip(written.iter().skip(from).take(most).cloned()).collect())
    }

    fn last(&self) -> Seq {
        self.written.lock().unwrap().len() as Seq
    }

    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

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
    pub log: Log,
    pub fetch: Arc<dyn Fetch>,
    pub program: PathBuf,
    pub boot_id: Option<PathBuf>,
}

impl Plan {
    pub fn new(directory: &Path, program: impl Into<PathBuf>) -> Self {
        Self {
            config: Config::new("site1".parse().unwrap(), directory),
            log: Log::default(),
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
        setup.boot_id = boot_id.unwrap_or(setup.boot_id);
        let files = Files::open(config.data.join("files"), config.store.clone()).unwrap();
        let (node, inbox) = node::channel(Clock::default());
        let runner = Runner::start(setup, files.clone(), fetch, node.clone()).unwrap();
        let settings = Settings::default();
        let replica = Replica::restore(config.site.clone(), settings, log.written());
        let hands = Box::new(OnlyRuns(runner.clone()));
        let running =
            OnceLock::from(node::start(inbox, replica, Box::new(log.clone()), hands, 0).unwrap());
        Site { config, log, files, node, runner, running }
    }
}

/// A site at work.
pub struct Site {
    pub config: Config,
    pub log: Log,
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
    pub async fn stop(self) -> Log {
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
