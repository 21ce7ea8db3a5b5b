//! A small HTTP client for the API of one agent.
//!
//! Verbs call it as if it were not asynchronous: a runtime of one thread inside does the work while
//! a call waits. What must stay true: every wait has an end, except that for the next line of a
//! stream that has none; what comes in is bounded; whatever goes wrong becomes a [`Failure`] that
//! says what to do.

mod address;
mod body;
mod hints;
mod lines;
mod secure;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, env, future::Future, io, path, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use cheops_agent::api::model::{Problem, Stored};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    runtime::{self, Runtime},
    task::yield_now,
    time::timeout,
};

use self::body::{Body, Moves};
pub(crate) use self::{
    address::{Address, Path},
    lines::{Lines, Next},
    secure::Access,
};
use crate::{
    interrupt::Interrupt,
    report::{Exit, Failure, first},
};

/// The agent that is asked if nobody says which.
const DEFAULT: &str = "http://127.0.0.1:8079";

/// The variable that names the agent.
const VARIABLE: &str = "CHEOPS_AGENT";

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may take to begin, and to go on, that an agent knows by itself.
const KNOWN: Duration = Duration::from_secs(15);

/// How long an answer may take to begin, and to go on, for which an agent asks other sites. It waits
/// for these for 30 s, also for a command that shows something, and a little longer for the links.
const PASSED: Duration = Duration::from_secs(45);

/// How long bytes may stand still that are many, and the longest that a document may take in all.
const PATIENCE: Duration = Duration::from_mins(2);

/// The longest document that is taken in.
const LONGEST: usize = 256 << 20;

/// A request.
pub(crate) struct Ask<'a> {
    method: Method,
    path: &'a Path,
    body: Body,
    /// Whether the body is still on its way.
    moves: Moves,
    /// What sort of body it is.
    content: &'static str,
    /// How long the body is, if that is known.
    length: Option<u64>,
    /// What sort of answer is wanted.
    accept: &'static str,
    /// How long the answer may take to begin once the body has stopped moving.
    patience: Duration,
}

impl<'a> Ask<'a> {
    /// A request without a body.
    pub(crate) fn new(method: Method, path: &'a Path) -> Self {
        Self {
            method,
            path,
            body: body::whole(Bytes::new()),
            moves: Moves::none(),
            content: "application/json",
            length: None,
            accept: "application/json, application/problem+json",
            patience: PASSED,
        }
    }

    /// A question that an agent can answer by itself.
    pub(crate) fn get(path: &'a Path) -> Self {
        Self::new(Method::GET, path).within(KNOWN)
    }

    /// With an answer that must begin within a time.
    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// With a document for a body.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<Self, Failure> {
        let bytes = serde_json::to_vec(value).map_err(unsayable)?;
        let length = Some(bytes.len() as u64);
        Ok(Self { body: body::whole(bytes), length, ..self })
    }

    fn request(self, agent: &Address, token: Option<&str>) -> Result<Request<Body>, Failure> {
        let mut request = Request::builder()
            .uri(self.path.as_str())
            .header(header::HOST, agent.authority())
            .header(header::ACCEPT, self.accept);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(length) = self.length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        if self.method == Method::POST {
            request = request.header(header::CONTENT_TYPE, self.content);
        }
        request.method(self.method).body(self.body).map_err(unsayable)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("agent", &self.agent).finish_non_exhaustive()
    }
}

fn unsayable(error: impl std::fmt::Display) -> Failure {
    Failure::input("cannot make a request of this").caused_by(error)
}

/// What bytes come and go over.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The agent, and a connection to it.
pub(crate) struct Client {
    runtime: Runtime,
    agent: Address,
    /// What it is known by there.
    token: Option<String>,
    /// Whom it takes for the agent, where that has to be proved.
    trust: Option<Arc<ClientConfig>>,
    idle: RefCell<Option<SendRequest<Body>>>,
    /// What ends some waits early.
    interrupt: Option<Interrupt>,
}

impl Client {
    /// A client for the agent at an address, or at that of the environment, or at the default one.
    pub(crate) fn new(agent: Option<&str>, access: &Access) -> Result<Self, Failure> {
        let named = env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        let (text, origin) = match (agent, &named) {
            (Some(agent), _) => (agent, "`--agent`"),
            (None, Some(agent)) => (agent.as_str(), VARIABLE),
            (None, None) => (DEFAULT, "the default"),
        };
        let agent = Address::parse(text).map_err(|why| {
            Failure::input(format!("invalid address of an agent in {origin}"))
                .at(text, 0..text.len())
                .caused_by(why)
                .hint(format!("for example {DEFAULT}"))
        })?;
        let trust = match agent {
            Address::Host { secure: true, .. } => Some(access.trust()?),
            Address::Host { .. } | Address::Socket(_) => None,
        };
        let token = access.token()?;
        if token.is_some() && !agent.is_private() {
            return Err(Failure::input(format!("the token is not sent to {agent}"))
                .caused_by("without TLS, others on the way could read it, and use it")
                .hint(format!(
                    "use https://{}; if that agent needs no token, leave --token, CHEOPS_TOKEN and CHEOPS_TOKEN_FILE out",
                    agent.authority()
                )));
        }
        Ok(Self { token, trust, ..Self::at(agent)? })
    }

    /// A client for the agent at an address, for somebody who needs no token there.
    pub(crate) fn at(agent: Address) -> Result<Self, Failure> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            Failure::new(Exit::Wrong, "cannot start")
                .caused_by(error)
                .hint("is the machine out of memory or of file descriptors?")
        })?;
        let (token, trust, idle) = (None, None, RefCell::new(None));
        Ok(Self { runtime, agent, token, trust, idle, interrupt: None })
    }

    /// Whoever waits for lines, or with [`Self::wait_for`], is told when someone does not want to wait any longer.
    pub(crate) fn until(self, interrupt: Interrupt) -> Self {
        Self { interrupt: Some(interrupt), ..self }
    }

    /// A document.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &Path) -> Result<T, Failure> {
        self.wait(self.document(Ask::get(path)))
    }

    /// A document, if it comes soon.
    pub(crate) fn get_within<T: DeserializeOwned>(
        &self,
        path: &Path,
        patience: Duration,
    ) -> Result<T, Failure> {
        self.wait(self.document(Ask::get(path).within(patience)))
    }

    /// Several documents that other sites have, asked for at the same time.
    pub(crate) fn get_each<T: DeserializeOwned>(&self, paths: &[Path]) -> Vec<Result<T, Failure>> {
        self.wait(self.each_within(paths, PASSED))
    }

    /// Several documents, as far as they come soon: to be waited for beside something else.
    pub(crate) async fn each_within<T: DeserializeOwned>(
        &self,
        paths: &[Path],
        patience: Duration,
    ) -> Vec<Result<T, Failure>> {
        join_all(paths.iter().map(|path| self.document(Ask::get(path).within(patience)))).await
    }

    /// Waits for something for as long as nobody wants to end this.
    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> Result<T, Failure> {
        self.wait(self.unless_interrupted(async { Ok(future.await) }))
    }

    /// The document that answers a request with a body.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &Path,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.wait(self.document(Ask::new(Method::POST, path).json(body)?))
    }

    /// The document that answers a request.
    pub(crate) fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Failure> {
        self.wait(self.document(ask))
    }

    /// The documents that answer several requests without a body, made at the same time, as far as
    /// they come soon.
    pub(crate) fn post_each<T: DeserializeOwned>(&self, paths: &[Path]) -> Vec<Result<T, Failure>> {
        let each =
            paths.iter().map(|path| self.document(Ask::new(Method::POST, path).within(KNOWN)));
        self.wait(join_all(each))
    }

    /// Asks for something to be done that has no answer but that it was.
    pub(crate) fn tell(&self, method: Method, path: &Path) -> Result<(), Failure> {
        self.wait(async {
            let response = self.send(Ask::new(method, path).within(KNOWN)).await?;
            self.whole(response, KNOWN).await.map(|_| ())
        })
    }

    /// The lines of the answer to a request, as they come.
    pub(crate) fn lines<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<Lines<'_, T>, Failure> {
        let ask = Ask { accept: "application/x-ndjson, application/problem+json", ..ask };
        Ok(Lines::new(self, self.wait(self.unless_interrupted(self.send(ask)))?.into_body()))
    }

    async fn unless_interrupted<T>(
        &self,
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(interrupt) = &self.interrupt else { return future.await };
        tokio::select! {
            result = future => result,
            () = interrupt.set() => Err(Failure::new(Exit::Interrupted, "interrupted")),
        }
    }

    /// Sends a file, however long that takes while it moves on.
    pub(crate) fn upload(&self, local: &path::Path) -> Result<Stored, Failure> {
        self.upload_within(local, PATIENCE)
    }

    fn upload_within(&self, local: &path::Path, patience: Duration) -> Result<Stored, Failure> {
        let unreadable = |error: io::Error| {
            Failure::input(format!("cannot read the file `{}`", local.display()))
                .caused_by(error)
                .hint("check the path, and that you may read it")
        };
        self.wait(async {
            let file = File::open(local).await.map_err(unreadable)?;
            let about = file.metadata().await.map_err(unreadable)?;
            if about.is_dir() {
                return Err(unreadable(io::ErrorKind::IsADirectory.into())
                    .hint("pack it: tar -cf DIR.tar DIR, and attach that"));
            }
            let length = about.is_file().then_some(about.len());
            let path = Path::api("files");
            let (body, moves) = body::content(file, length);
            self.document(Ask {
                body,
                moves,
                length,
                content: "application/octet-stream",
                patience,
                ..Ask::new(Method::POST, &path)
            })
            .await
        })
    }

    /// Bytes, given to `take` as they come.
    pub(crate) fn download(
        &self,
        path: &Path,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.wait(async {
            let mut body = self.send(Ask::get(path).within(PATIENCE)).await?.into_body();
            while let Some(frame) = self.within(PATIENCE, body.frame()).await? {
                let frame = frame.map_err(|error| self.broken(&error))?;
                if let Ok(data) = frame.into_data() {
                    take(&data)?;
                }
            }
            Ok(())
        })
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    async fn document<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, Failure> {
        let patience = ask.patience;
        let response = self.send(ask).await?;
        self.read(&self.whole(response, patience).await?)
    }

    /// Sends a request, and waits until the answer begins. An answer that is an error is a failure.
    async fn send(&self, ask: Ask<'_>) -> Result<Response<Incoming>, Failure> {
        let (patience, moves) = (ask.patience, ask.moves.clone());
        let is_question = ask.method == Method::GET;
        let mut request = ask.request(&self.agent, self.token.as_deref())?;
        let mut kept = self.kept().await;
        let (connection, response) = loop {
            let is_kept = kept.is_some();
            let mut connection = match kept.take() {
                Some(kept) => kept,
                None => self.connect().await?,
            };
            let sent = moves.clone().within(patience, connection.try_send_request(request)).await;
            let silent = || match self.silent(patience) {
                silent if is_question => silent,
                silent => silent.hint(
                    "what it was asked to do may still be done; look with another agent: --agent \
                     http://HOST:PORT",
                ),
            };
            match sent.ok_or_else(silent)? {
                Ok(response) => break (connection, response),
                Err(mut error) => match error.take_message() {
                    // The agent closed the connection while nobody used it: nothing was sent. One
                    // that closes a new connection too would do so again.
                    Some(unsent) if is_kept => request = unsent,
                    _ => return Err(self.broken(&error.into_error())),
                },
            }
        };
        if response.status().is_success() {
            // It is ready again when the answer was read; until then others take a new one.
            *self.idle.borrow_mut() = Some(connection);
            return Ok(response);
        }
        let status = response.status();
        let body = self.whole(response, patience).await.unwrap_or_default();
        Err(self.refusal(status, &body))
    }

    /// The connection that was kept, if the agent has not closed it meanwhile.
    async fn kept(&self) -> Option<SendRequest<Body>> {
        let kept = self.idle.borrow_mut().take()?;
        // Nobody has looked at it since: first what came in is noticed, then what it means.
        for _ in 0..2 {
            yield_now().await;
        }
        Some(kept).filter(SendRequest::is_ready)
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Failure> {
        let unreachable = |why: String| {
            Failure::new(Exit::Unreachable, format!("no agent answers at {}", self.agent))
                .caused_by(why)
                .hint(
                    "is it running? Start one with `cheops agent`, or say where it is with --agent \
                     or CHEOPS_AGENT",
                )
        };
        let stream = match timeout(CONNECT, self.dial()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let failure = unreachable(error.to_string());
                return Err(match &self.agent {
                    Address::Host { secure: true, .. } => failure.hint(
                        "does it speak TLS? Name the certificate that its own was signed with: --cacert FILE",
                    ),
                    Address::Host { .. } | Address::Socket(_) => failure,
                });
            }
            Err(_) => return Err(unreachable(format!("nothing within {}s", CONNECT.as_secs()))),
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        // What breaks it is told to the request that is under way.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// A connection to the agent.
    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let (host, port) = match &self.agent {
            Address::Socket(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Host { host, port, .. } => (address::bare(host), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        // Requests are small, and each waits for its answer.
        let _ = stream.set_nodelay(true);
        match &self.trust {
            Some(trust) => secure::dial(stream, host, trust.clone()).await,
            None => Ok(Box::new(stream)),
        }
    }

    async fn whole(
        &self,
        response: Response<Incoming>,
        patience: Duration,
    ) -> Result<Bytes, Failure> {
        let mut body = Limited::new(response.into_body(), LONGEST);
        let mut bytes = BytesMut::new();
        let whole = async {
            while let Some(frame) = self.within(patience, body.frame()).await? {
                let frame = frame.map_err(|error| self.broken(&*error))?;
                bytes.extend(frame.into_data());
            }
            Ok::<(), Failure>(())
        };
        self.within(PATIENCE.max(patience), whole).await??;
        Ok(bytes.freeze())
    }

    async fn within<F: Future>(&self, patience: Duration, future: F) -> Result<F::Output, Failure> {
        timeout(patience, future).await.map_err(|_| self.silent(patience))
    }

    fn silent(&self, patience: Duration) -> Failure {
        let seconds = patience.as_secs();
        Failure::new(
            Exit::Silent,
            format!("the agent at {} has not answered within {seconds}s", self.agent),
        )
        .hint("it may hang; ask another agent: --agent http://HOST:PORT")
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(bytes).map_err(|error| {
            Failure::new(
                Exit::Wrong,
                format!("cannot read the answer of the agent at {}", self.agent),
            )
            .caused_by(error)
            .hint("is it a Cheops agent, of the same version as this program?")
        })
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let cause =
            error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        Failure::new(Exit::Unreachable, format!("the agent at {} broke off", self.agent))
            .caused_by(cause)
            .hint("was it stopped? What it had accepted is kept; look with `cheops get problems`")
    }

    /// What an agent refused, in its own words.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Failure {
        if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
            return told(exit_of(&problem.kind, status.as_u16()), problem);
        }
        let exit = exit_of("", status.as_u16());
        let text = String::from_utf8_lossy(body);
        let failure = Failure::new(exit, format!("the agent at {} answered {status}", self.agent))
            .hint("is it a Cheops agent, of the same version as this program?");
        match text.trim() {
            "" => failure,
            text => failure.caused_by(first(text, 200)),
        }
    }
}

/// The exit status for a sort of problem and its status: whether nothing was done, or nobody can say.
pub(crate) fn exit_of(kind: &str, status: u16) -> Exit {
    match (kind, status) {
        // It can't have been accepted by a site that it did not reach.
        ("unreachable", _) => Exit::Refused,
        // It may have been accepted.
        ("not-confirmed" | "stopping", _) | (_, 408 | 502 | 504) => Exit::Silent,
        (_, 400..=499 | 503 | 507) => Exit::Refused,
        _ => Exit::Wrong,
    }
}

/// A problem that an agent told, as a failure.
pub(crate) fn told(exit: Exit, problem: Problem) -> Failure {
    let hint = hints::hint(&problem);
    let failure =
        Failure::new(exit, problem.title).unknown_resource(problem.kind == "unknown-resource");
    let failure =
        if problem.detail.is_empty() { failure } else { failure.caused_by(problem.detail) };
    if hint.is_empty() { failure } else { failure.hint(hint) }
}
