//! `cheops audit`: who asked for what at a site, and whether that record is as it was written.

use std::{
    path::{Path as File, PathBuf},
    thread,
    time::Duration,
};

use cheops_agent::{
    api::model::{AuditPage, AuditVerdict},
    audit::{self, Entry, Wanted, What},
    trust::Identity,
};
use cheops_core::trust::PublicKey;
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, List, Outcome, Output, View, ask, json_line, yaml};
use crate::{
    client::{Ask, Client, Path},
    report::{Exit, Failure, clean, first},
    screen,
    table::{Cell, Table},
    words::{self, BAD, GOOD, NONE},
};

/// How many lines are asked for at a time.
const PAGE: usize = 1_000;
/// How long an agent may take to check a record.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often is looked for more.
const LOOK: Duration = Duration::from_millis(500);
/// How much of a reason is shown.
const SHOWN: usize = 60;

/// Show who asked for what at a site, from where, and what came of it
///
/// Requests that change something, and all that were refused. `--verify` checks that the record is as it
/// was written; the exit status is 1 if it is not.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Check the whole record instead of showing it
    #[arg(long, conflicts_with_all = ["since", "author", "resource", "follow", "limit"])]
    verify: bool,
    /// With `--verify`: line N must have this hash, as an earlier `--verify` has printed them
    #[arg(long, value_name = "N:HASH", requires = "verify", requires = "data")]
    expect: Option<String>,
    /// Only what happened in the last while, or since a moment: `2h`, `2026-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only what this author asked for
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
    /// Only what is about this resource
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// At most so many lines, the newest
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Ask no agent: the record in this data directory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let source = match &arguments.data {
        Some(data) => Source::Directory(data.clone()),
        None => Source::Agent(Box::new(context.client()?)),
    };
    if arguments.verify {
        let verdict = Verified(source.verify(arguments.expect.as_deref())?);
        let exit = if verdict.0.whole { Exit::Fine } else { Exit::Wrong };
        return Ok(Outcome { text: context.output.write(&verdict)?, exit });
    }
    let mut wanted = Wanted {
        after: None,
        since: arguments.since.as_deref().map(moment).transpose()?,
        author: arguments.author.clone(),
        resource: arguments.resource.clone(),
        limit: arguments.limit.clamp(1, PAGE),
    };
    let lines = Lines { lines: source.lines(&wanted)? };
    if !arguments.follow {
        return Ok(Outcome::success(context.output.write(&lines)?));
    }
    let mut lines = lines.lines;
    while !screen::is_closed() {
        for entry in &lines {
            screen::print(&told(entry, context.output)?)?;
        }
        wanted.after = lines.last().map(|entry| entry.n).or(wanted.after).or(Some(0));
        wanted.limit = PAGE;
        thread::sleep(LOOK);
        lines = source.lines(&wanted)?;
    }
    Ok(Outcome::silent(Exit::Fine))
}

/// Where lines come from.
enum Source {
    Agent(Box<Client>),
    Directory(PathBuf),
}

impl Source {
    fn lines(&self, wanted: &Wanted) -> Result<Vec<Entry>, Failure> {
        match self {
            Self::Agent(client) => {
                let path = Path::api("audit")
                    .query("after", wanted.after)
                    .query("since", wanted.since)
                    .query("author", wanted.author.as_deref())
                    .query("resource", wanted.resource.as_deref())
                    .query("limit", Some(wanted.limit));
                let page: AuditPage = client.get(&path)?;
                Ok(page.entries)
            }
            Self::Directory(data) => {
                let directory = in_data(data)?;
                audit::entries(&directory, wanted).map_err(|error| unreadable(data, &error))
            }
        }
    }

    fn verify(&self, expected: Option<&str>) -> Result<AuditVerdict, Failure> {
        match self {
            Self::Agent(client) => {
                let path = Path::api("audit").then("verify");
                client.ask(Ask::get(&path).within(PATIENCE))
            }
            Self::Directory(data) => {
                let directory = in_data(data)?;
                let key = key_in(data)?;
                let verdict = audit::verify(&directory, key.as_ref());
                let mut verdict =
                    AuditVerdict::from(verdict.map_err(|error| unreadable(data, &error))?);
                if let Some((n, hash)) = expected.map(expectation).transpose()? {
                    hold(&mut verdict, &directory, n, hash)
                        .map_err(|error| unreadable(data, &error))?;
                }
                Ok(verdict)
            }
        }
    }
}

/// Where the record is in a data directory.
fn in_data(data: &File) -> Result<PathBuf, Failure> {
    let directory = audit::directory(data);
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(Failure::input(format!("there is no audit in {}", data.display()))
        .hint("name the data directory of an agent: `data` in its configuration"))
}

fn unreadable(data: &File, error: &std::io::Error) -> Failure {
    let failure = Failure::input(format!("the audit in {} can't be read", data.display()));
    failure.caused_by(error).hint("it belongs to the user that the agent runs as")
}

/// The key of the site, if it is there and may be read: it is not made.
fn key_in(data: &File) -> Result<Option<PublicKey>, Failure> {
    if !data.join("site.key").exists() {
        return Ok(None);
    }
    let failed = |error| Failure::input("the key of the site can't be read").caused_by(error);
    Identity::open(data).map(|identity| Some(identity.public())).map_err(failed)
}

fn expectation(text: &str) -> Result<(u64, &str), Failure> {
    let parsed = text.split_once(':').and_then(|(n, hash)| Some((n.parse().ok()?, hash)));
    parsed.ok_or_else(|| {
        Failure::input("invalid `--expect`")
            .at(text, 0..text.len())
            .hint("write the number and the hash that an earlier `cheops audit --verify` printed")
    })
}

/// Holds a record that is whole in itself against the hash that a line once had: the line after it
/// has that hash, or it is the last.
fn hold(verdict: &mut AuditVerdict, directory: &File, n: u64, hash: &str) -> std::io::Result<()> {
    let found = if n == verdict.last {
        Some(verdict.hash.clone())
    } else {
        let wanted = Wanted { after: Some(n), limit: 1, ..Wanted::default() };
        let next = audit::entries(directory, &wanted)?.into_iter().next();
        next.filter(|next| next.n == n + 1).map(|next| next.before)
    };
    if verdict.broken.is_none() && found.as_deref() != Some(hash) {
        verdict.whole = false;
        verdict.broken = Some(match found {
            Some(_) => format!("line {n} is another than it was: the record was written anew"),
            None => format!("line {n} is not there any more"),
        });
    }
    Ok(())
}

/// A moment, or how long ago it was.
fn moment(text: &str) -> Result<Timestamp, Failure> {
    if let Ok(moment) = text.parse() {
        return Ok(moment);
    }
    let ago = ask::duration("--since", text)?;
    Ok(Timestamp::now().checked_sub(ago).unwrap_or(Timestamp::MIN))
}

/// A line that is told as it comes.
fn told(entry: &Entry, output: Output) -> Result<String, Failure> {
    match output {
        Output::Json => json_line(entry),
        Output::Yaml => Ok(format!("---\n{}", yaml(entry)?)),
        Output::Name => Ok(format!("{}\n", Lines::name(entry))),
        Output::Table | Output::Wide => {
            let asked = Asked::of(entry);
            Ok(clean(&format!(
                "{}  {}  {}  {}  {}",
                entry.at, asked.author, asked.what, asked.result, asked.from
            )) + "\n")
        }
    }
}

/// Lines, the oldest first.
#[derive(Debug, Serialize)]
struct Lines {
    lines: Vec<Entry>,
}

/// A line in words.
struct Asked {
    author: String,
    what: String,
    result: String,
    from: String,
    well: bool,
}

impl Asked {
    fn of(entry: &Entry) -> Self {
        let event = &entry.event;
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
        let what = match event.what {
            What::Request => {
                let subject = event.subject.as_deref().map(|subject| first(subject, SHOWN));
                let made = event.operation.clone().or(subject);
                let made = made.map(|made| format!(" ({made})")).unwrap_or_default();
                format!("{} {}{made}", text(&event.method), text(&event.path))
            }
            What::Join => format!("{} wants to join", first(&text(&event.subject), SHOWN)),
            What::Link => "a link".to_owned(),
            What::Record => format!("a record of {}", text(&event.resource)),
            What::Denied => {
                format!("{} of {}", text(&event.operation), text(&event.resource))
            }
            What::Started => "the agent started".to_owned(),
            What::Repaired => "the end was repaired".to_owned(),
            What::Lost => "lines are lost".to_owned(),
            What::Other => "something that this version does not know".to_owned(),
        };
        let status = event.status.map(|status| status.to_string());
        let why = event.why.as_deref().map(|why| first(why, SHOWN));
        let more = event.more.map(|more| format!("and {more} more"));
        let result: Vec<String> = [status, why, more].into_iter().flatten().collect();
        Self {
            author: text(&event.author),
            what,
            result: if result.is_empty() { NONE.to_owned() } else { result.join(" ") },
            from: text(&event.from),
            well: !event.is_refusal(),
        }
    }
}

impl List for Lines {
    type Item = Entry;

    fn items(&self) -> &[Entry] {
        &self.lines
    }

    fn name(entry: &Entry) -> String {
        format!("audit/{}", entry.n)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["N", "WHEN", "AUTHOR", "WHAT", "RESULT", "FROM"]);
        for entry in &self.lines {
            let Asked { author, what, result, from, well } = Asked::of(entry);
            let when = if wide { entry.at.clone() } else { words::ago(&entry.at) };
            table.row([
                Cell::from(entry.n.to_string()),
                when.into(),
                author.into(),
                what.into(),
                Cell::styled(result, if well { GOOD } else { BAD }),
                from.into(),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        "No lines.".to_owned()
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Verified(AuditVerdict);

impl View for Verified {
    fn text(&self, _wide: bool) -> String {
        let AuditVerdict { lines, first, last, hash, unsigned, headed, broken, .. } = &self.0;
        let mut text = vec![match broken {
            None => format!("{lines} lines are as they were written: {first} to {last}"),
            Some(broken) => {
                let place = match (&self.0.file, self.0.line) {
                    (Some(file), Some(line)) => format!(" ({file}, line {line})"),
                    _ => String::new(),
                };
                clean(&format!("{broken}{place}; {lines} lines before that are in order"))
            }
        }];
        if !headed {
            let unsaid = "Nothing says where the record ends: the end may have been cut off.";
            text.push(unsaid.to_owned());
        } else if broken.is_none() && *unsigned > 0 {
            text.push(format!("The last {unsigned} came after the site signed where it ends."));
        }
        if broken.is_none() {
            text.push(format!("To hold it against later: --expect {last}:{hash}"));
        }
        text.join("\n") + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![format!("audit/{}", self.0.last)]
    }
}
