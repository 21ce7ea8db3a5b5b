//! An agent for tests: it answers as a test says, and remembers what it was asked.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
};

use bytes::Bytes;
use cheops_agent::api::model::Problem;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc};

/// What an agent was asked.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) accept: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    /// `GET /api/v1/sites`.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What it answers.
pub(crate) enum Reply {
    Json(Value),
    /// One line each.
    Lines(Vec<Value>),
    /// One line each, as a test sends them; the end when it drops its side.
    Stream(mpsc::UnboundedReceiver<Value>),
    /// Some lines, and then the connection breaks.
    Torn(Vec<Value>),
    Bytes(Vec<u8>),
    Done,
    Problem(Problem),
    /// Something that no agent says.
    Other(u16, &'static str),
}

pub(crate) fn json(value: &impl Serialize) -> Reply {
    Reply::Json(serde_json::to_value(value).unwrap())
}

pub(crate) fn lines<T: Serialize>(values: &[T]) -> Reply {
    Reply::Lines(values.iter().map(|value| serde_json::to_value(value).unwrap()).collect())
}

/// A problem; its sort is what its title says.
pub(crate) fn problem(status: u16, title: &str, detail: &str, hint: &str) -> Reply {
    Reply::Problem(Problem {
        kind: title.replace(' ', "-"),
        title: title.into(),
        status,
        detail: detail.into(),
        hint: hint.into(),
    })
}

/// An agent that listens on a port of its own.
pub(crate) struct Agent {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

impl Agent {
    pub(crate) fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (answer, remembered) = (Arc::new(answer), seen.clone());
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (answer, remembered) = (answer.clone(), remembered.clone());
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (answer, remembered) = (answer.clone(), remembered.clone());
                        async move {
                            let seen = read(request).await;
                            remembered.lock().unwrap().push(seen.clone());
                            Ok::<_, Infallible>(response(answer(&seen)))
                        }
                    });
                    tokio::spawn(
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                    );
                }
            });
        });
        Self { url, seen }
    }

    /// Runs the program with this agent.
    pub(crate) fn cheops(&self, arguments: &[&str]) -> Said {
        self.command(arguments).output().unwrap().into()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = cheops(arguments);
        command.env("CHEOPS_AGENT", &self.url);
        command
    }

    /// What it was asked so far: method and path.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(Seen::line).collect()
    }

    /// The last request.
    pub(crate) fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

/// The program, with nothing from the environment that it would take notice of.
pub(crate) fn cheops(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
    for name in
        ["CHEOPS_AGENT", "CHEOPS_AUTHOR", "USER", "LOGNAME", "MYFQDN", "CHEOPS_LOG", "RUST_LOG"]
    {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

async fn read(request: Request<Incoming>) -> Seen {
    let accept = request.headers().get("accept").map(|value| value.to_str().unwrap().to_owned());
    Seen {
        method: request.method().to_string(),
        path: request.uri().to_string(),
        accept: accept.unwrap_or_default(),
        body: request.into_body().collect().await.unwrap().to_bytes().to_vec(),
    }
}

fn line(value: &Value) -> Frame<Bytes> {
    Frame::data(Bytes::from(format!("{value}\n")))
}

fn response(reply: Reply) -> Response<Body> {
    let (status, kind, body) = match reply {
        Reply::Json(value) => (200, "application/json", full(value.to_string())),
        Reply::Lines(values) => {
            let lines: Vec<_> = values.iter().map(|value| Ok(line(value))).collect();
            (200, "application/x-ndjson", StreamBody::new(stream::iter(lines)).boxed_unsync())
        }
        Reply::Torn(values) => {
            let lines: Vec<_> = values.iter().map(|value| Ok(line(value))).collect();
            // What was said goes out first.
            let torn = stream::once(async {
                tokio::task::yield_now().await;
                Err(std::io::Error::other("torn"))
            });
            let body = StreamBody::new(stream::iter(lines).chain(torn)).boxed_unsync();
            (200, "application/x-ndjson", body)
        }
        Reply::Stream(values) => {
            let values = stream::unfold(values, async |mut values| {
                values.recv().await.map(|value| (value, values))
            });
            let lines = values.map(|value| Ok(line(&value)));
            (200, "application/x-ndjson", StreamBody::new(lines).boxed_unsync())
        }
        Reply::Bytes(bytes) => (200, "application/octet-stream", full(bytes)),
        Reply::Done => (204, "application/json", full("")),
        Reply::Problem(problem) => {
            let text = serde_json::to_string(&problem).unwrap();
            (problem.status, "application/problem+json", full(text))
        }
        Reply::Other(status, text) => (status, "text/html", full(text)),
    };
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What the program said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// What it wrote, if it went well.
    #[track_caller]
    pub(crate) fn fine(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self.out
    }
}
