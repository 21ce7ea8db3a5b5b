//! What happens to one request of the node, from start to end.
//!
//! What must stay true: each request is answered once, unless the agent stops; what is said is what
//! was found in the place of the run (see `recall`), never what we think must have happened.

use std::{
    any::Any,
    io,
    ops::Range,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use cheops_core::{
    id::{OpId, ResourceId, ServiceName, SiteId, Sites},
    matrix::Share,
    operation::{Action, Operation},
    plan::Outcome,
    replica::{Input, Print, Reply, Report, RunId},
    time::Millis,
};
use tokio::{net::TcpStream, process::Child, sync::Semaphore, task::spawn_blocking, time::sleep};

use super::{
    Counted, Inner,
    answer::Answer,
    attend::{AGAIN, Attended, attend, verdict},
    beginning, complain,
    job::{End, Job, Request, Status, Step},
    place::{Lock, Place},
    recall::{Found, look},
    report::{Account, denied, millis, needless, refused, report},
    request::{Local, mentioned},
    stretch,
    task::{Task, uses_ids},
};
use crate::{
    audit,
    files::FileError,
    open_files,
    policy::{Asker, Denial, Kind},
    rest::ids,
};

/// How long to wait before something that failed is tried again.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// How often to look whether a supervisor that is not our child has ended.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// How many bytes of an answer are looked at for what was made.
const LOOKED_AT: u64 = 1 << 20;
/// How often a `Reset` command is run again whose supervisor was killed.
const CLEARINGS: usize = 3;

/// What came of an attempt to start a supervisor.
enum Begun {
    Started(Child),
    /// One is at work already.
    UnderWay,
    /// A file is not in the store any more.
    FileMissing,
}

/// What is known at the end.
enum Ended {
    Known(Report, End),
    /// The supervisor is gone, and nobody knows.
    Lost,
    /// A file is not in the store any more: nothing was started.
    FileMissing,
}

/// What a command of a resource itself has to do with.
#[derive(Default)]
struct Known {
    /// What of the resource is at this site.
    share: Option<Share>,
    /// Who put the command into the configuration.
    by: Asker,
}

/// What the application here calls what an operation names.
#[derive(Default)]
struct Called {
    /// What was made for its resource.
    made: Option<String>,
    /// What was made for others: their meta ids, and the application's own.
    others: Vec<(Box<str>, Box<str>)>,
}

impl Inner {
    pub(super) async fn run(
        self: Arc<Self>,
        run: RunId,
        op: &Operation,
        timeout: Option<Millis>,
        share: Option<Share>,
        before: Option<Arc<Reply>>,
    ) {
        // What would make one more of something is not sent again if it went well before, or may have.
        let stands = before.filter(|before| !before.outcome.is_failure());
        if let Some(before) = stands.filter(|_| !op.action.is_repeatable()) {
            return self.tell(Input::Ran { run, report: before.report() }).await;
        }
        let allowed = match self.gate.operation(op, share) {
            Ok(allowed) => allowed,
            Err(denial) => {
                tracing::warn!(resource = %run.resource, op = %run.op, "{denial}");
                if let Some(audit) = &self.audit {
                    let (author, resource) = (op.author.as_str(), run.resource.as_str());
                    let rule = denial.rule.clone();
                    audit.note(audit::Event::denied(author, resource, run.op.to_string(), rule));
                }
                return self.tell(Input::Ran { run, report: denied(&denial) }).await;
            }
        };
        let place = self.runs.place(&run);
        let Ok(Called { made, others }) = self.called(op).await else { return };
        let local =
            Local { services: &self.services, made: made.as_deref(), others: &others, share };
        let task = match Task::of_operation(&self.here, op, local, allowed) {
            Err(why) => Err(refused(why)),
            Ok(task) => task.needless().map(needless).map_or(Ok(task), Err),
        };
        let input = match task {
            Err(report) => Input::Ran { run, report },
            Ok(task) => loop {
                let fetched = {
                    let _waiting = Counted::new(&self.counts.waiting);
                    self.fetch(&run.resource, &task).await
                };
                match fetched {
                    Fetched::All => {}
                    Fetched::Never(why) => break Input::Ran { run, report: refused(why) },
                    Fetched::Stopping => return,
                }
                let _sending = self.sending(&op.action);
                match self.supervised(&run.resource, &place, &task, timeout).await {
                    Ended::Known(report, _) => break Input::Ran { run, report },
                    Ended::Lost => break Input::Lost(run),
                    Ended::FileMissing => {}
                }
            },
        };
        self.tell(input).await;
    }

    /// Tells who wants to know that requests are being sent, until what this gives is dropped.
    fn sending(&self, action: &Action) -> Vec<Box<dyn Any + Send>> {
        let Some(watch) = self.watch.get() else { return Vec::new() };
        match action {
            Action::Command { .. } => Vec::new(),
            Action::Http(request) => watch.sending(&request.headers).into_iter().collect(),
            Action::Steps(steps) => steps.iter().flat_map(|step| self.sending(step)).collect(),
        }
    }

    pub(super) async fn recall(self: Arc<Self>, run: RunId) {
        let place = self.runs.place(&run);
        let input = match self.outcome(&place).await {
            Found::Ended(status) => Input::Ran { report: self.report(&place, status).await, run },
            Found::NotStarted => Input::NotStarted(run),
            Found::Lost | Found::UnderWay => Input::Lost(run),
        };
        self.tell(input).await;
    }

    /// Asks the `Check` command. One that can't say is asked again, and then nobody knows: to take
    /// it for a no would run the operation twice.
    pub(super) async fn check(self: Arc<Self>, run: RunId, line: &str, timeout: Option<Millis>) {
        let Ok(known) = self.known(&run.resource).await else { return };
        let task = self.own(Kind::Check, &run.resource, Some(&run.op), line, &known);
        let why = match task {
            Err(refused) => refused.to_string(),
            Ok(task) => {
                let mut pauses = AGAIN.iter();
                loop {
                    let attended = {
                        let Some(_turn) = self.turn().await else { return };
                        let job = self.job(&task, &self.runs.place(&run), timeout);
                        attend(job, self.host.clone(), 0).await
                    };
                    let end = attended.status.end;
                    if let Some(happened) = verdict(&end) {
                        return self.tell(Input::Checked { run, happened }).await;
                    }
                    match pauses.next() {
                        Some(pause) => sleep(*pause).await,
                        None => break said(&end),
                    }
                }
            }
        };
        let output = format!(
            "the end of the run is not known: its supervisor is gone (a power cut, a reboot, or killed), and the Check command could not tell ({why}); nobody knows if it took effect"
        );
        let report = Report {
            outcome: Outcome::Unknown,
            took: Millis(0),
            output: output.into(),
            made: None,
        };
        self.tell(Input::Ran { run, report }).await;
    }

    pub(super) async fn clear(
        self: Arc<Self>,
        resource: ResourceId,
        line: &str,
        timeout: Option<Millis>,
    ) {
        let place = self.runs.clear(&resource);
        let mut ok = false;
        let Ok(known) = self.known(&resource).await else { return };
        let task = self.own(Kind::Reset, &resource, None, line, &known);
        if let Err(refused) = &task {
            tracing::warn!(%resource, "the Reset command can't be run: {refused}");
        }
        if let Ok(task) = task {
            for _ in 0..CLEARINGS {
                if let Ended::Known(report, end) =
                    self.supervised(&resource, &place, &task, timeout).await
                {
                    ok = end.is_ok();
                    if !ok {
                        tracing::warn!(%resource, "the Reset command failed: {}", report.output);
                    }
                    break;
                }
            }
        }
        self.tell(Input::Cleared { resource, ok }).await;
    }

    pub(super) async fn show(
        &self,
        resource: &ResourceId,
        line: &str,
        asker: Option<Asker>,
        timeout: Duration,
    ) -> Report {
        let Ok(Ok(_turn)) = tokio::time::timeout(timeout, self.shows.acquire()).await else {
            return refused("too many commands are being shown at this site; try again");
        };
        self.look(resource, line, asker, timeout).await
    }

    /// Runs the `Show` command that nobody waits for, however long its turn takes to come, and tells
    /// what it printed as a digest.
    pub(super) async fn print(
        self: Arc<Self>,
        resource: ResourceId,
        block: u64,
        line: &str,
        timeout: Option<Millis>,
    ) {
        let Ok(_turn) = self.prints.acquire().await else { return };
        let report = self.look(&resource, line, None, self.timeout(timeout)).await;
        if report.outcome == Outcome::Denied {
            return self.tell(Input::NotShown { resource, block }).await;
        }
        let print = (report.outcome == Outcome::Ok).then(|| {
            let mut print = Print::default();
            blake3::Hasher::new().update(report.output.as_bytes()).finalize_xof().fill(&mut print);
            print
        });
        self.tell(Input::Shown { resource, block, print }).await;
    }

    /// Runs a command that shows a resource: of the resource itself, unless somebody asked for another.
    async fn look(
        &self,
        resource: &ResourceId,
        line: &str,
        asker: Option<Asker>,
        timeout: Duration,
    ) -> Report {
        let Ok(known) = self.known(resource).await else { return refused("the agent is stopping") };
        let known = Known { by: asker.unwrap_or(known.by), ..known };
        let task = match self.own(Kind::Show, resource, None, line, &known) {
            Ok(task) => task,
            Err(Refused::Denied(denial)) => return denied(&denial),
            Err(Refused::Impossible(why)) => return refused(why),
        };
        let job = self.job(&task, &self.runs.clear(resource), Some(millis(timeout)));
        let most = self.settings.output;
        let attended = attend(job, self.host.clone(), most).await;
        let Attended { status, printed } = &attended;
        report(Account { status, printed, timeout, made: None }, most)
    }

    /// A command that is not an operation, if it may be run.
    fn own(
        &self,
        kind: Kind<'_>,
        resource: &ResourceId,
        op: Option<&OpId>,
        line: &str,
        known: &Known,
    ) -> Result<Task, Refused> {
        let allowed = self.gate.command(&known.by, kind, resource, line, known.share)?;
        let task = Task::of_resource(&self.here, resource, op, line, known.share, allowed);
        task.map_err(Refused::Impossible)
    }

    pub(super) async fn tell(&self, input: Input) {
        // A node that is stopping will ask again when it starts.
        let _ = self.node.tell(input).await;
    }

    /// Waits for a turn among the commands that run.
    async fn turn(&self) -> Option<Turn<'_>> {
        self.turn_of(&self.permits).await
    }

    async fn turn_of<'a>(&'a self, permits: &'a Semaphore) -> Option<Turn<'a>> {
        let permit = {
            let _waiting = Counted::new(&self.counts.waiting);
            permits.acquire().await.ok()?
        };
        Some(Turn { _permit: permit, _running: Counted::new(&self.counts.running) })
    }

    fn job(&self, task: &Task, place: &Place, timeout: Option<Millis>) -> Job {
        let (steps, environment) = task.at(&place.files(), &self.settings.shell);
        let makes = |step: &Step| matches!(step, Step::Request(request) if request.makes);
        let least = if steps.iter().any(makes) { LOOKED_AT } else { 0 };
        Job {
            boot: self.boot.now.clone(),
            agent: std::process::id(),
            shell: self.settings.shell.clone(),
            work: self.work.clone(),
            timeout: self.timeout(timeout),
            keep: self.settings.output_file.max(self.settings.output as u64).max(least),
            environment,
            steps,
        }
    }

    /// How long a command may take.
    fn timeout(&self, configured: Option<Millis>) -> Duration {
        configured.map_or(self.settings.timeout, |span| Duration::from_millis(span.0))
    }

    /// Fetches the files of a task, for as long as it takes.
    async fn fetch(&self, resource: &ResourceId, task: &Task) -> Fetched {
        let mut stuck = Stuck::new(self);
        for file in task.attachments() {
            while self.files.claim(&file.content).is_none() {
                let Ok(sites) = self.other_sites(resource).await else { return Fetched::Stopping };
                match self.files.fetch(file, &sites, &*self.fetch).await {
                    Ok(_) => stuck.over(),
                    Err(error @ FileError::TooLarge { .. }) => {
                        return Fetched::Never(format!("`{}`: {error}", file.name));
                    }
                    // How much is free changes all the time, and is said once.
                    Err(FileError::Full { reserve, .. }) => {
                        let why = format!(
                            "there is no room for its files: {reserve} bytes must stay free"
                        );
                        stuck.wait(&why).await;
                    }
                    Err(error) => stuck.wait(&error).await,
                }
            }
        }
        Fetched::All
    }

    /// What a command of a resource itself has to do with.
    async fn known(&self, resource: &ResourceId) -> Result<Known, crate::node::Stopping> {
        let (resource, here) = (resource.clone(), self.here.clone());
        let look = move |replica: &cheops_core::replica::Replica| {
            let Some(resource) = replica.resource(&resource) else { return Known::default() };
            let by = resource.configured_by();
            let op = by.and_then(|op| Some(resource.log().op(resource.log().find(op)?)));
            let author = op.map(|op| op.author.clone());
            let by = Asker { author, origin: by.map(|op| op.site.clone()) };
            Known { share: resource.config().share(&here), by }
        };
        self.node.read(look).await
    }

    /// What the application here calls all that an operation names by meta ids, as the log has it now.
    async fn called(&self, op: &Operation) -> Result<Called, crate::node::Stopping> {
        let (uses, mentioned) = (uses_ids(&op.action), mentioned(&op.action));
        if !uses && mentioned.is_empty() {
            return Ok(Called::default());
        }
        let (own, here) = (op.resource.clone(), self.here.clone());
        let look = move |replica: &cheops_core::replica::Replica| {
            let made = |resource: &ResourceId| replica.resource(resource)?.made(&here);
            let other = |(resource, meta): (ResourceId, Box<str>)| {
                let local = made(&resource).filter(|_| resource != own)?;
                Some((meta, local.into()))
            };
            Called {
                made: made(&own).filter(|_| uses).map(str::to_owned),
                others: mentioned.into_iter().filter_map(other).collect(),
            }
        };
        self.node.read(look).await
    }

    async fn other_sites(
        &self,
        resource: &ResourceId,
    ) -> Result<Vec<SiteId>, crate::node::Stopping> {
        let (resource, here) = (resource.clone(), self.here.clone());
        let sites = move |replica: &cheops_core::replica::Replica| {
            let sites = replica.resource(&resource).map(cheops_core::replica::Resource::sites);
            sites.into_iter().flat_map(Sites::iter).filter(|site| **site != here).cloned().collect()
        };
        self.node.read(sites).await
    }

    /// Runs a task under a supervisor, when it is its turn.
    async fn supervised(
        self: &Arc<Self>,
        resource: &ResourceId,
        place: &Place,
        task: &Task,
        timeout: Option<Millis>,
    ) -> Ended {
        let mut stuck = Stuck::new(self);
        // An application that is down must not keep commands from running.
        let permits = if task.has_requests() { &self.calls } else { &self.permits };
        self.wait_for_others(resource, place).await;
        loop {
            let Some(turn) = self.turn_of(permits).await else { return Ended::Lost };
            let begun = {
                let (inner, resource, place, task) =
                    (self.clone(), resource.clone(), place.clone(), task.clone());
                blocking(move || inner.begin(&resource, &place, &task, timeout)).await
            };
            match begun {
                Ok(Begun::Started(mut child)) => {
                    stuck.over();
                    // How it ended is in the place, whatever the code of the supervisor itself.
                    let _ = child.wait().await;
                }
                Ok(Begun::UnderWay) => {}
                Ok(Begun::FileMissing) => return Ended::FileMissing,
                Err(error) => {
                    drop(turn);
                    stuck.wait(&error).await;
                    continue;
                }
            }
            let found = self.outcome(place).await;
            drop(turn);
            match found {
                Found::Ended(status) => {
                    let end = status.end.clone();
                    return Ended::Known(self.report(place, status).await, end);
                }
                Found::NotStarted => match task.first_instance() {
                    Some(instance) => self.reach(instance, &mut stuck).await,
                    None => stuck.wait(&"the supervisor could not begin").await,
                },
                Found::Lost | Found::UnderWay => return Ended::Lost,
            }
        }
    }

    /// Waits until an instance of the application can be reached, or may be, for as long as it takes:
    /// what it was to get has not been sent.
    async fn reach(&self, instance: &Request, stuck: &mut Stuck<'_>) {
        let Request { service, address, connect, .. } = instance;
        loop {
            let why = match tokio::time::timeout(*connect, TcpStream::connect(address)).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "there was no connection in time".to_owned(),
            };
            let why = format!("the instance of `{service}` at {address} can't be reached: {why}");
            stuck.wait(&why).await;
        }
    }

    /// Starts a supervisor, unless one is at work: without a status, nobody has been told of that
    /// one, so it is the one that is asked for. Whatever else is there belongs to another life.
    fn begin(
        self: &Arc<Self>,
        resource: &ResourceId,
        place: &Place,
        task: &Task,
        timeout: Option<Millis>,
    ) -> io::Result<Begun> {
        let under_way = place.read_status()?.is_none();
        let Lock::Ours(lock) = place.make()? else {
            return if under_way {
                Ok(Begun::UnderWay)
            } else {
                Err(io::Error::other("the one before has not ended yet"))
            };
        };
        // Looked at while the lock is held: whoever takes over waits for that, and finds what was started.
        if !self.fence.holds() {
            return Err(io::Error::other(
                "this agent does not have the lease of its site: CouchDB can't be used, or another agent of this site is at work",
            ));
        }
        place.wipe()?;
        if task.link(&self.files, &place.files())?.is_some() {
            return Ok(Begun::FileMissing);
        }
        place.write_job(&self.job(task, place, timeout))?;
        let earlier = self.earlier(resource, place)?;
        let child = {
            let mut command = Command::new(&self.host.program);
            command.arg0("cheops").arg("supervise").arg(place.directory()).process_group(0);
            command.stdin(lock).stdout(Stdio::null()).stderr(Stdio::null());
            // The commands inherit these, and can read what their parent was started with.
            command.env_clear().envs(&*self.host.variables);
            if let Some(files) = self.host.open_files {
                command.env(open_files::VARIABLE, files.to_string());
            }
            tokio::process::Command::from(command).spawn()?
        };
        if !earlier.is_empty() {
            // Nobody waits for it, and the names of these places are never used again.
            let inner = self.clone();
            self.runtime.spawn_blocking(move || {
                let retired = earlier.iter().try_for_each(|place| inner.kept().retire(place));
                complain("what an earlier run has left can't be removed", retired);
            });
        }
        Ok(Begun::Started(child))
    }

    /// The places of earlier runs of a resource: the node asks for the next thing only after the
    /// reply to the one before is durable. The place of its `Reset` command is used again.
    fn earlier(&self, resource: &ResourceId, except: &Place) -> io::Result<Vec<Place>> {
        let clear = self.runs.clear(resource);
        let mut places = self.runs.places(resource)?;
        places.retain(|place| place != except && *place != clear);
        Ok(places)
    }

    /// What became of a run, once no supervisor is at work.
    pub(super) async fn outcome(self: &Arc<Self>, place: &Place) -> Found {
        let mut stuck = Stuck::new(self);
        let mut pause = FIRST_LOOK;
        let mut running = None;
        loop {
            let (inner, at) = (self.clone(), place.clone());
            match blocking(move || look(&at, &inner.boot)).await {
                Ok(Found::UnderWay) => {
                    // It runs, whether there is a turn for it or not.
                    let _ = running.get_or_insert_with(|| Counted::new(&self.counts.running));
                    sleep(pause).await;
                    pause = (pause * 2).min(LAST_LOOK);
                }
                Ok(found) => return found,
                Err(error) => stuck.wait(&error).await,
            }
        }
    }

    /// What the reply says; the output counts among those that are kept from now on.
    async fn report(self: &Arc<Self>, place: &Place, status: Status) -> Report {
        let mut stuck = Stuck::new(self);
        loop {
            let (inner, place, status) = (self.clone(), place.clone(), status.clone());
            let read = move || {
                let most = inner.settings.output;
                let printed = beginning(&place.output(), most)?;
                let asks_job = status.end == End::TimedOut || status.answer.is_some();
                let job = if asks_job { place.read_job()? } else { None };
                let timeout = job.as_ref().map_or(inner.settings.timeout, |job| job.timeout);
                let made = match (&status.answer, &job) {
                    (Some(at), Some(job)) => inner.named(&place, at, job)?,
                    _ => None,
                };
                complain("an output can't be counted", inner.kept().note(place.output()));
                Ok(report(Account { status: &status, printed: &printed, timeout, made }, most))
            };
            match blocking(read).await {
                Ok(report) => return report,
                Err(error) => stuck.wait(&error).await,
            }
        }
    }
}

impl Inner {
    /// What an answer says that was made. It is in the output at this place.
    fn named(&self, place: &Place, at: &Range<u64>, job: &Job) -> io::Result<Option<Box<str>>> {
        let making = job.steps.iter().find_map(|step| match step {
            Step::Request(request) if request.makes => request.service.parse().ok(),
            Step::Request(_) | Step::Program(_) | Step::Line(_) => None,
        });
        let service = making.and_then(|name: ServiceName| self.services.get(&name));
        let Some(service) = service else { return Ok(None) };
        let output =
            stretch(&place.output(), at.start, at.end.saturating_sub(at.start).min(LOOKED_AT))?;
        let Some(answer) = Answer::read(&output) else { return Ok(None) };
        let made = ids::made(&service.ids, answer.status, &answer.headers, answer.body);
        Ok(made.map(Into::into))
    }
}

/// A place among the commands that run.
struct Turn<'a> {
    _permit: tokio::sync::SemaphorePermit<'a>,
    _running: Counted<'a>,
}

/// Why a command of a resource is not run.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("{0}")]
    Impossible(String),
}

enum Fetched {
    All,
    Never(String),
    Stopping,
}

/// Something that fails, and is tried again until it does not.
pub(super) struct Stuck<'a> {
    inner: &'a Inner,
    why: Option<(String, Counted<'a>)>,
}

impl<'a> Stuck<'a> {
    pub(super) fn new(inner: &'a Inner) -> Self {
        Self { inner, why: None }
    }

    pub(super) async fn wait(&mut self, why: &impl std::fmt::Display) {
        let why = why.to_string();
        if self.why.as_ref().is_none_or(|(before, _)| *before != why) {
            tracing::error!("a command can't be run: {why}; it is tried again every second");
        }
        self.why = Some((why, Counted::new(&self.inner.counts.stuck)));
        sleep(PAUSE).await;
    }

    fn over(&mut self) {
        self.why = None;
    }
}

fn said(end: &End) -> String {
    match end {
        End::Exit(code) => format!("exit code {code}"),
        End::Signal(signal) => format!("ended by signal {signal}"),
        End::TimedOut => "it took too long".to_owned(),
        End::Http(status) | End::Gone(status) => format!("status {status}"),
        End::Failed(why) => why.clone(),
    }
}

/// Does something with the disk, where nobody waits for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}
