//! What the agent and a supervisor say to each other: two small files.
//!
//! Pure. The *job* is written by the agent before the supervisor starts, the *status* by the
//! supervisor when the command has ended. What must stay true: a file that was cut short, by a full
//! disk or a power cut, is not taken for a whole one; a supervisor of one version of the program
//! and an agent of the next understand each other's status.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    time::Duration,
};

const JOB: &str = "cheops job 1";
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
    /// How long all lines together may take.
    pub(super) timeout: Duration,
    /// How many bytes of what is printed are kept.
    pub(super) keep: u64,
    /// Variables to set, or, without a value, to take away.
    pub(super) environment: Vec<(String, Option<OsString>)>,
    /// The command lines, in a row; the first that fails ends it.
    pub(super) lines: Vec<String>,
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
    /// The shell could not be started, for this reason.
    Failed(String),
}

/// What a supervisor leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    /// How the last line that was run ended.
    pub(super) end: End,
    /// How long all took.
    pub(super) took: Duration,
    /// How many bytes were printed.
    pub(super) printed: u64,
    /// How many of them are in the output file.
    pub(super) kept: u64,
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
        put(self.lines.len().to_string().as_bytes());
        for line in &self.lines {
            put(line.as_bytes());
        }
        put(END.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.split(|byte| *byte == 0);
        let mut next = || fields.next();
        let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let path = |field: &[u8]| PathBuf::from(OsStr::from_bytes(field));
        if next()? != JOB.as_bytes() {
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
        let mut lines = Vec::new();
        for _ in 0..number::<usize>(next()?)? {
            lines.push(text(next()?)?);
        }
        let whole = next()? == END.as_bytes() && next()?.is_empty() && next().is_none();
        whole.then_some(Self { boot, agent, shell, work, timeout, keep, environment, lines })
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
            End::Failed(why) => format!("failed {}", why.replace('\n', " ")),
        };
        let (took, printed, kept) = (self.took.as_millis(), self.printed, self.kept);
        format!("{STATUS}\n{end}\ntook {took}\nprinted {printed}\nkept {kept}\n{END}\n")
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
            "failed" => End::Failed(rest.to_owned()),
            _ => return None,
        };
        let mut field =
            |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok();
        let (took, printed, kept) = (field("took")?, field("printed")?, field("kept")?);
        let whole = lines.next()? == END && lines.next()?.is_empty() && lines.next().is_none();
        whole.then_some(Self { end, took: Duration::from_millis(took), printed, kept })
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
            lines: vec!["echo a\necho 'é'".to_owned(), String::new()],
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        assert_eq!(Job::decode(&job().encode()), Some(job()));
        let bare = Job { environment: Vec::new(), lines: Vec::new(), ..job() };
        assert_eq!(Job::decode(&bare.encode()), Some(bare));
    }

    #[test]
    fn a_status_is_read_as_it_was_written() {
        for end in [
            End::Exit(0),
            End::Exit(255),
            End::Signal(9),
            End::TimedOut,
            End::Failed("no such file".to_owned()),
        ] {
            let status = Status { end, took: Duration::from_millis(7), printed: 1 << 40, kept: 3 };
            assert_eq!(Status::decode(status.encode().as_bytes()), Some(status));
        }
    }

    #[test]
    fn what_was_cut_short_is_not_whole() {
        let job = job().encode();
        for length in 0..job.len() {
            assert_eq!(Job::decode(&job[..length]), None, "{length}");
        }
        let status =
            Status { end: End::Exit(0), took: Duration::ZERO, printed: 12, kept: 12 }.encode();
        for length in 0..status.len() {
            assert_eq!(Status::decode(&status.as_bytes()[..length]), None, "{length}");
        }
        assert_eq!(Status::decode(&[0; 60]), None, "a file whose blocks never reached the disk");
        assert_eq!(Job::decode(&[0; 600]), None);
    }
}
