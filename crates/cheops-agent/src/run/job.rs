//! What the agent and a supervisor say to each other: two small files.
//!
//! Pure. The *job* is written by the agent before the supervisor starts, the *status* by the
//! supervisor when it has done it. What must stay true: a file that was cut short, by a full disk or
//! a power cut, is not taken for a whole one; a supervisor of one version of the program and an agent
//! of the next understand each other's status, and the agent the other's job.

use std::{
    ffi::{OsStr, OsString},
    net::SocketAddr,
    ops::Range,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    time::Duration,
};

const JOB: &str = "cheops job 2";
/// The one that knew nothing but lines.
const LINES: &str = "cheops job 1";
const STATUS: &str = "cheops status 1";
const END: &str = "end";

/// What a supervisor is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    /// Which boot of the machine this was written in.
    pub(super) boot: String,
    /// The process that waits for the result.
    pub(super) agent: u32,
    /// `SHELL -c LINE`.
    pub(super) shell: PathBuf,
    /// Where.
    pub(super) work: PathBuf,
    /// How long all steps together may take.
    pub(super) timeout: Duration,
    /// How many bytes of what is printed are kept.
    pub(super) keep: u64,
    /// Variables to set, or, without a value, to take away.
    pub(super) environment: Vec<(String, Option<OsString>)>,
    /// What to do, in a row; the first that fails ends it.
    pub(super) steps: Vec<Step>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A command line, for the shell.
    Line(String),
    /// A program.
    Program(Box<Program>),
    /// A request to the application.
    Request(Box<Request>),
}

/// A program to start without a shell, or within limits. No field of it holds a zero byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: String,
    pub(super) arguments: Vec<String>,
    /// All variables, besides those of the job; nothing if it has those that all commands have.
    pub(super) variables: Option<Vec<(String, String)>>,
    /// What the process takes upon itself before it becomes the program.
    pub(super) terms: Option<String>,
}

/// A request to the application's instance at this site. No field of it holds a zero byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The service that it is for.
    pub(super) service: String,
    /// The instance.
    pub(super) address: SocketAddr,
    /// The instance speaks HTTP/2.
    pub(super) http2: bool,
    /// How long it may take until there is a connection, each time that one is tried.
    pub(super) connect: Duration,
    pub(super) method: String,
    pub(super) target: String,
    /// All of them, in order, as they are sent.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    /// The file that holds the body, and how long that is.
    pub(super) body: Option<(PathBuf, u64)>,
    /// The answer says what was made.
    pub(super) makes: bool,
    /// What it names is to be gone: if it is not there, that is how it should be.
    pub(super) deletes: bool,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// With this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It took too long, and was ended.
    TimedOut,
    /// The application answered with this status.
    Http(u16),
    /// It answered with this status that what was to be deleted is not there.
    Gone(u16),
    /// The shell could not be started, or the application not be asked, for this reason.
    Failed(String),
}

impl End {
    /// Whether it is how it should be.
    pub(super) fn is_ok(&self) -> bool {
        match self {
            Self::Exit(code) => *code == 0,
            Self::Http(status) => *status < 400,
            Self::Gone(_) => true,
            Self::Signal(_) | Self::TimedOut | Self::Failed(_) => false,
        }
    }
}

/// What a supervisor leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    /// How the last step that was taken ended.
    pub(super) end: End,
    /// How long all took.
    pub(super) took: Duration,
    /// How many bytes were printed.
    pub(super) printed: u64,
    /// How many of them are in the output file.
    pub(super) kept: u64,
    /// Where in the output the answer is that says what was made, if there is one.
    pub(super) answer: Option<Range<u64>>,
}

impl Job {
    /// As bytes: fields with a zero byte after each. No field can hold one, since neither paths nor
    /// arguments nor variables can.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        let mut put = |field: &[u8]| {
            bytes.extend_from_slice(field);
            bytes.push(0);
        };
        put(JOB.as_bytes());
        put(self.boot.as_bytes());
        put(self.agent.to_string().as_bytes());
        put(self.shell.as_os_str().as_bytes());
        put(self.work.as_os_str().as_bytes());
        put(self.timeout.as_millis().to_string().as_bytes());
        put(self.keep.to_string().as_bytes());
        put(self.environment.len().to_string().as_bytes());
        for (name, value) in &self.environment {
            put(name.as_bytes());
            put(if value.is_some() { b"=" } else { b"-" });
            put(value.as_deref().unwrap_or_default().as_bytes());
        }
        put(self.steps.len().to_string().as_bytes());
        for step in &self.steps {
            match step {
                Step::Line(line) => {
                    put(b"line");
                    put(line.as_bytes());
                }
                Step::Program(program) => {
                    put(b"program");
                    program.encode(&mut put);
                }
                Step::Request(request) => {
                    put(b"request");
                    request.encode(&mut put);
                }
            }
        }
        put(END.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.split(|byte| *byte == 0);
        let mut next = || fields.next();
        let version = next()?;
        let only_lines = version == LINES.as_bytes();
        if version != JOB.as_bytes() && !only_lines {
            return None;
        }
        let boot = text(next()?)?;
        let agent = number(next()?)?;
        let (shell, work) = (path(next()?), path(next()?));
        let timeout = Duration::from_millis(number(next()?)?);
        let keep = number(next()?)?;
        let mut environment = Vec::new();
        for _ in 0..number::<usize>(next()?)? {
            let (name, set) = (text(next()?)?, next()? == b"=");
            let value = OsString::from_vec(next()?.to_vec());
            environment.push((name, set.then_some(value)));
        }
        let mut steps = Vec::new();
        for _ in 0..number::<usize>(next()?)? {
            let sort = if only_lines { b"line" } else { next()? };
            steps.push(match sort {
                b"line" => Step::Line(text(next()?)?),
                b"program" => Step::Program(Box::new(Program::decode(&mut next)?)),
                b"request" => Step::Request(Box::new(Request::decode(&mut next)?)),
                _ => return None,
            });
        }
        let whole = next()? == END.as_bytes() && next()?.is_empty() && next().is_none();
        whole.then_some(Self { boot, agent, shell, work, timeout, keep, environment, steps })
    }
}

impl Program {
    fn encode(&self, put: &mut impl FnMut(&[u8])) {
        put(self.path.as_bytes());
        put(self.arguments.len().to_string().as_bytes());
        self.arguments.iter().for_each(|argument| put(argument.as_bytes()));
        put(flag(self.variables.is_some()));
        if let Some(variables) = &self.variables {
            put(variables.len().to_string().as_bytes());
            for (name, value) in variables {
                put(name.as_bytes());
                put(value.as_bytes());
            }
        }
        put(flag(self.terms.is_some()));
        self.terms.iter().for_each(|terms| put(terms.as_bytes()));
    }

    fn decode<'a>(next: &mut impl FnMut() -> Option<&'a [u8]>) -> Option<Self> {
        let path = text(next()?)?;
        let mut arguments = Vec::new();
        for _ in 0..number::<usize>(next()?)? {
            arguments.push(text(next()?)?);
        }
        let mut variables = None;
        if read_flag(next()?)? {
            let all = variables.insert(Vec::new());
            for _ in 0..number::<usize>(next()?)? {
                all.push((text(next()?)?, text(next()?)?));
            }
        }
        let terms = if read_flag(next()?)? { Some(text(next()?)?) } else { None };
        Some(Self { path, arguments, variables, terms })
    }
}

impl Request {
    fn encode(&self, put: &mut impl FnMut(&[u8])) {
        put(self.service.as_bytes());
        put(self.address.to_string().as_bytes());
        put(flag(self.http2));
        put(self.connect.as_millis().to_string().as_bytes());
        put(self.method.as_bytes());
        put(self.target.as_bytes());
        put(self.headers.len().to_string().as_bytes());
        for (name, value) in &self.headers {
            put(name.as_bytes());
            put(value);
        }
        put(flag(self.body.is_some()));
        if let Some((path, length)) = &self.body {
            put(path.as_os_str().as_bytes());
            put(length.to_string().as_bytes());
        }
        put(flag(self.makes));
        put(flag(self.deletes));
    }

    fn decode<'a>(next: &mut impl FnMut() -> Option<&'a [u8]>) -> Option<Self> {
        let service = text(next()?)?;
        let address = number(next()?)?;
        let http2 = read_flag(next()?)?;
        let connect = Duration::from_millis(number(next()?)?);
        let (method, target) = (text(next()?)?, text(next()?)?);
        let mut headers = Vec::new();
        for _ in 0..number::<usize>(next()?)? {
            headers.push((text(next()?)?, next()?.to_vec()));
        }
        let body = if read_flag(next()?)? { Some((path(next()?), number(next()?)?)) } else { None };
        let (makes, deletes) = (read_flag(next()?)?, read_flag(next()?)?);
        Some(Self {
            service,
            address,
            http2,
            connect,
            method,
            target,
            headers,
            body,
            makes,
            deletes,
        })
    }
}

fn text(field: &[u8]) -> Option<String> {
    String::from_utf8(field.to_vec()).ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(field))
}

fn flag(set: bool) -> &'static [u8] {
    if set { b"yes" } else { b"no" }
}

fn read_flag(field: &[u8]) -> Option<bool> {
    match field {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

impl Status {
    pub(super) fn encode(&self) -> String {
        let end = match &self.end {
            End::Exit(code) => format!("exit {code}"),
            End::Signal(signal) => format!("signal {signal}"),
            End::TimedOut => "timed-out".to_owned(),
            End::Http(status) => format!("http {status}"),
            End::Gone(status) => format!("gone {status}"),
            End::Failed(why) => format!("failed {}", why.replace('\n', " ")),
        };
        let (took, printed, kept) = (self.took.as_millis(), self.printed, self.kept);
        let answer = self.answer.as_ref().map(|at| format!("answer {} {}\n", at.start, at.end));
        let answer = answer.unwrap_or_default();
        format!("{STATUS}\n{end}\ntook {took}\nprinted {printed}\nkept {kept}\n{answer}{END}\n")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n');
        if lines.next()? != STATUS {
            return None;
        }
        let end = lines.next()?;
        let (word, rest) = end.split_once(' ').unwrap_or((end, ""));
        let end = match word {
            "exit" => End::Exit(rest.parse().ok()?),
            "signal" => End::Signal(rest.parse().ok()?),
            "timed-out" => End::TimedOut,
            "http" => End::Http(rest.parse().ok()?),
            "gone" => End::Gone(rest.parse().ok()?),
            "failed" => End::Failed(rest.to_owned()),
            _ => return None,
        };
        let mut field =
            |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok();
        let (took, printed, kept) = (field("took")?, field("printed")?, field("kept")?);
        let mut last = lines.next()?;
        let mut answer = None;
        if let Some(at) = last.strip_prefix("answer ") {
            let (start, end) = at.split_once(' ')?;
            answer = Some(start.parse().ok()?..end.parse().ok()?);
            last = lines.next()?;
        }
        let whole = last == END && lines.next()?.is_empty() && lines.next().is_none();
        whole.then_some(Self { end, took: Duration::from_millis(took), printed, kept, answer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            boot: "b00t".to_owned(),
            agent: 42,
            shell: "/bin/sh".into(),
            work: "/var/lib/a b".into(),
            timeout: Duration::from_mins(5),
            keep: 1 << 30,
            environment: vec![
                ("CHEOPS_ID".to_owned(), Some("x".into())),
                ("CHEOPS_SITE".to_owned(), Some("Évry 1".into())),
                ("CHEOPS_FILES".to_owned(), None),
                ("EMPTY".to_owned(), Some("".into())),
            ],
            steps: vec![
                Step::Line("echo a\necho 'é'".to_owned()),
                Step::Line(String::new()),
                Step::Program(Box::new(Program {
                    path: "/bin/echo".to_owned(),
                    arguments: vec!["é; a".to_owned(), String::new()],
                    variables: Some(vec![("PATH".to_owned(), "/bin".to_owned())]),
                    terms: Some("{}".to_owned()),
                })),
                Step::Program(Box::new(Program {
                    path: "true".to_owned(),
                    arguments: Vec::new(),
                    variables: None,
                    terms: None,
                })),
                Step::Request(Box::new(request())),
                Step::Request(Box::new(Request {
                    body: None,
                    headers: Vec::new(),
                    makes: false,
                    ..request()
                })),
            ],
        }
    }

    fn request() -> Request {
        Request {
            service: "image".to_owned(),
            address: "[::1]:9292".parse().unwrap(),
            http2: true,
            connect: Duration::from_secs(2),
            method: "POST".to_owned(),
            target: "/v2/images?a=b%00".to_owned(),
            headers: vec![("x".to_owned(), b"\xff".to_vec()), ("y".to_owned(), Vec::new())],
            body: Some(("/var/a b".into(), 1 << 40)),
            makes: true,
            deletes: false,
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        assert_eq!(Job::decode(&job().encode()), Some(job()));
        let bare = Job { environment: Vec::new(), steps: Vec::new(), ..job() };
        assert_eq!(Job::decode(&bare.encode()), Some(bare));
    }

    #[test]
    fn a_job_of_the_version_before_is_read() {
        let bytes =
            b"cheops job 1\0b\x30\x30t\x0042\0/bin/sh\0/\x001000\x009\x000\x001\0true\0end\0";
        let job = Job::decode(bytes).unwrap();
        assert_eq!((job.boot.as_str(), job.agent, job.keep), ("b00t", 42, 9));
        assert_eq!(job.steps, [Step::Line("true".to_owned())]);
    }

    #[test]
    fn a_status_is_read_as_it_was_written() {
        for end in [
            End::Exit(0),
            End::Exit(255),
            End::Signal(9),
            End::TimedOut,
            End::Http(201),
            End::Gone(404),
            End::Failed("no such file".to_owned()),
        ] {
            for answer in [None, Some(7..1 << 40)] {
                let took = Duration::from_millis(7);
                let status = Status { end: end.clone(), took, printed: 1 << 40, kept: 3, answer };
                assert_eq!(Status::decode(status.encode().as_bytes()), Some(status));
            }
        }
    }

    #[test]
    fn what_was_cut_short_is_not_whole() {
        let job = job().encode();
        for length in 0..job.len() {
            assert_eq!(Job::decode(&job[..length]), None, "{length}");
        }
        let took = Duration::ZERO;
        let status =
            Status { end: End::Http(201), took, printed: 12, kept: 12, answer: Some(0..12) };
        let status = status.encode();
        for length in 0..status.len() {
            assert_eq!(Status::decode(&status.as_bytes()[..length]), None, "{length}");
        }
        assert_eq!(Status::decode(&[0; 60]), None, "a file whose blocks never reached the disk");
        assert_eq!(Job::decode(&[0; 600]), None);
    }
}
