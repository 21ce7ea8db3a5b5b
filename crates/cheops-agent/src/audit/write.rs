//! Writing a record: where it goes on after a crash, lines, new files, the head.
//!
//! What must stay true:
//! - a line is written whole or not at all; what a crash left of one is put aside at the next start,
//!   and a line says so;
//! - the head is never ahead of what is on the disk: lines are synced first; and a head never gives way to an
//!   older one;
//! - what is wrong when the record is gone on with stays wrong, for whoever checks it later, or a line says so;
//! - what can't be written now is kept, within a limit, and written when it can be; what is over the
//!   limit is counted, and a line says how many;
//! - there are never more files than are to be kept.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use cheops_core::id::SiteId;
use jiff::Timestamp;

use super::{
    chain::{Head, LONGEST, Last},
    entry::{Event, What},
    read::{self, HEAD, Part},
};
use crate::{config, trust::Own};

/// How much of the end of a file is looked at for the last line.
const TAIL: u64 = 1 << 20;
/// How many events wait for a disk that takes nothing.
const WAITING: usize = 10_000;

/// The one who writes the record of a site.
pub(super) struct Writer {
    directory: PathBuf,
    pub(super) settings: config::Audit,
    own: Own,
    heads: Arc<Heads>,
    file: Arc<File>,
    /// How long the file is, up to the end of its last line.
    length: u64,
    /// When its first line was written.
    born: Timestamp,
    /// The number of the first line that is kept.
    first: u64,
    last: Last,
    /// What could not be written yet, and when it happened.
    waiting: VecDeque<(Timestamp, Event)>,
    /// How many events are lost, and no line says so yet.
    lost: u64,
}

/// What was wrong with a record when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Lines that the head tells of are not there.
    #[error("lines {from} to {to} were there, and are not any more")]
    Cut {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// The line that the head tells of is another.
    #[error("line {n} is not the one that was written: it was changed while the agent was away")]
    Altered {
        /// Its number.
        n: u64,
    },
    /// There are lines, and no head that this site has signed.
    #[error(
        "there was no head that the key of this site has signed: the record ended with line {n}; whether it was changed, and whether more had followed, can't be told"
    )]
    Headless {
        /// The number of the last line.
        n: u64,
    },
}

impl Writer {
    /// Goes on with the record in a directory, or begins one.
    pub(super) fn open(
        directory: PathBuf,
        settings: config::Audit,
        own: Own,
        site: &SiteId,
        now: Timestamp,
    ) -> io::Result<(Self, Option<Damage>)> {
        fs::create_dir_all(&directory)?;
        let head = read::head(&directory)?;
        let mut parts = read::parts(&directory)?;
        let (mut last, mut repaired) = (Last::default(), None);
        // The newest may have no line yet.
        for part in parts.iter().rev() {
            let (found, aside) = last_of(&directory, part)?;
            repaired = repaired.or(aside);
            if let Some(found) = found {
                last = found;
                break;
            }
        }
        let signed = head.and_then(|head| head.last(&own().public()));
        let found = held_against(signed, &parts, last)?;
        match (found, signed) {
            (Some(Damage::Cut { .. }), Some(signed)) => last = signed,
            // The next line follows the one that was signed: no later head makes this one good.
            (Some(Damage::Altered { .. }), Some(signed)) => last.hash = signed.hash,
            // No line has a number that another had.
            _ => last.n = last.n.max(parts.last().map_or(0, |part| part.first.saturating_sub(1))),
        }
        let cut = matches!(found, Some(Damage::Cut { .. }));
        if parts.is_empty() || cut {
            parts.push(Part::new(&directory, last.n + 1));
        }
        let newest = &parts[parts.len() - 1];
        let file = opened(&newest.path)?;
        let length = file.metadata()?.len();
        let mut writer = Self {
            born: born(&newest.path)?.unwrap_or(now),
            first: parts[0].first,
            heads: Arc::new(Heads { directory: directory.clone(), newest: Mutex::default() }),
            file: Arc::new(file),
            directory,
            settings,
            own,
            length,
            last,
            waiting: VecDeque::new(),
            lost: 0,
        };
        writer.events_of_start(site, now, repaired, found);
        // On a disk that is full they wait, like all others: the site can still be looked at.
        if let Err(error) = writer.write() {
            tracing::error!("the audit can't be written: {error}; lines wait");
        }
        Ok((writer, found))
    }

    fn events_of_start(
        &mut self,
        site: &SiteId,
        now: Timestamp,
        repaired: Option<String>,
        found: Option<Damage>,
    ) {
        for why in repaired.into_iter().chain(found.map(|found| found.to_string())) {
            self.keep(now, Event { why: Some(why), ..Event::of(What::Repaired) });
        }
        self.keep(now, Event { from: Some(site.to_string()), ..Event::of(What::Started) });
    }

    /// Keeps an event until it is written; if too many wait, it is lost, and counted.
    pub(super) fn keep(&mut self, at: Timestamp, event: Event) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back((at, event));
        } else {
            self.lost += 1;
        }
    }

    /// Counts events that never came here.
    pub(super) fn lose(&mut self, count: u64) {
        self.lost += count;
    }

    /// How many events are lost, and no line says so yet.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// How many events wait to be written.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Whether there is something to be written.
    pub(super) fn waits(&self) -> bool {
        self.lost > 0 || !self.waiting.is_empty()
    }

    /// Writes what waits, and says how many lines that were.
    pub(super) fn write(&mut self) -> io::Result<u64> {
        let mut written = 0;
        while self.waits() {
            if self.lost > 0 && self.waiting.len() < WAITING {
                let lost = Event { more: Some(self.lost), ..Event::of(What::Lost) };
                let at = self.waiting.back().map_or_else(Timestamp::now, |(at, _)| *at);
                self.waiting.push_back((at, lost));
                self.lost = 0;
            }
            if self.is_old(self.waiting.front().map(|(at, _)| *at)) {
                self.turn()?;
            }
            written += self.write_some()?;
        }
        Ok(written)
    }

    /// Writes lines until the file is full.
    fn write_some(&mut self) -> io::Result<u64> {
        let (mut last, mut bytes, mut count) = (self.last, Vec::new(), 0);
        for (at, event) in &self.waiting {
            let full = self.length + bytes.len() as u64 >= self.settings.bytes;
            if full && self.length + bytes.len() as u64 > 0 {
                break;
            }
            bytes.extend(last.follow(at.to_string(), event.clone()));
            count += 1;
        }
        if let Err(error) = (&*self.file).write_all(&bytes) {
            // What was written of it goes, so that the next line follows a whole one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.waiting.drain(..count);
        (self.last, self.length) = (last, self.length + bytes.len() as u64);
        Ok(count as u64)
    }

    /// Whether the file is to be followed by another one.
    fn is_old(&self, now: Option<Timestamp>) -> bool {
        let age = now.map_or(0, |now| now.as_millisecond() - self.born.as_millisecond());
        let age = u128::try_from(age).unwrap_or(0);
        self.length > 0
            && (self.length >= self.settings.bytes || age >= self.settings.age.as_millis())
    }

    /// Begins a new file, and lets the oldest go.
    fn turn(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let part = Part::new(&self.directory, self.last.n + 1);
        self.file = Arc::new(opened(&part.path)?);
        // Lines are there after a power cut only if their file is.
        File::open(&self.directory)?.sync_all()?;
        self.length = self.file.metadata()?.len();
        self.born = self.waiting.front().map_or_else(Timestamp::now, |(at, _)| *at);
        let mut parts = read::parts(&self.directory)?;
        let over = parts.len().saturating_sub(self.settings.keep);
        let gone: Vec<Part> = parts.drain(..over).collect();
        self.first = parts.first().map_or(self.last.n + 1, |part| part.first);
        // First the head says that they are not kept: otherwise they would seem to be removed.
        self.heads.write(&self.head())?;
        for part in gone {
            fs::remove_file(part.path)?;
        }
        Ok(())
    }

    /// What has to be done so that all that is written survives a power cut.
    pub(super) fn settle(&self) -> Settle {
        Settle { file: self.file.clone(), heads: self.heads.clone(), head: self.head() }
    }

    fn head(&self) -> Head {
        let own = (self.own)();
        Head::sign(self.first, self.last, &own.public(), |bytes| own.sign(bytes))
    }

    /// The last line.
    pub(super) fn last(&self) -> Last {
        self.last
    }
}

/// Makes lines durable, then the head: beside what goes on to be written.
pub(super) struct Settle {
    file: Arc<File>,
    heads: Arc<Heads>,
    head: Head,
}

impl Settle {
    /// The number of the last line that it makes durable.
    pub(super) fn last(&self) -> u64 {
        self.head.n
    }

    pub(super) fn run(self) -> io::Result<()> {
        self.file.sync_data()?;
        self.heads.write(&self.head)
    }
}

/// Where heads are written: one at a time, by the one who begins a new file or the one who makes lines durable.
struct Heads {
    directory: PathBuf,
    /// How far the newest goes: its last line, and its first.
    newest: Mutex<(u64, u64)>,
}

impl Heads {
    /// Writes a head, unless a newer one is there. It waits for no more than another head.
    fn write(&self, head: &Head) -> io::Result<()> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if (head.n, head.first) < *newest {
            return Ok(());
        }
        let draft = self.directory.join("head.new");
        let mut file = options().create(true).truncate(true).open(&draft)?;
        file.write_all(&serde_json::to_vec(head)?)?;
        file.sync_data()?;
        fs::rename(draft, self.directory.join(HEAD))?;
        *newest = (head.n, head.first);
        Ok(())
    }
}

/// What is wrong with a record that ends in this line, as far as what the site has signed tells.
fn held_against(signed: Option<Last>, parts: &[Part], last: Last) -> io::Result<Option<Damage>> {
    let Some(signed) = signed else {
        let begun = last.n > 0 || parts.iter().any(|part| part.first > 1);
        return Ok(begun.then_some(Damage::Headless { n: last.n }));
    };
    if signed.n > last.n {
        return Ok(Some(Damage::Cut { from: last.n + 1, to: signed.n }));
    }
    let there = if signed.n == last.n { Some(last) } else { numbered(parts, signed.n)? };
    Ok((there != Some(signed)).then_some(Damage::Altered { n: signed.n }))
}

/// The line with a number.
fn numbered(parts: &[Part], n: u64) -> io::Result<Option<Last>> {
    let begun = parts.partition_point(|part| part.first <= n);
    let Some(part) = begun.checked_sub(1).map(|at| &parts[at]) else { return Ok(None) };
    let mut found = None;
    read::lines(&part.path, |read| {
        if let read::Read::Line(line) = read {
            found = Last::of(line).filter(|last| last.n == n);
        }
        found.is_none()
    })?;
    Ok(found)
}

/// Nobody else is to read who asked for what.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn opened(path: &Path) -> io::Result<File> {
    options().append(true).create(true).open(path)
}

/// When the first line of a file was written.
fn born(path: &Path) -> io::Result<Option<Timestamp>> {
    let mut born = None;
    read::lines(path, |read| {
        if let read::Read::Line(line) = read {
            let entry = serde_json::from_slice::<super::entry::Entry>(line);
            born = entry.ok().and_then(|entry| entry.at.parse().ok());
        }
        false
    })?;
    Ok(born)
}

/// The last line of a file. What stands after it is put aside, and it is said what that was.
fn last_of(directory: &Path, part: &Part) -> io::Result<(Option<Last>, Option<String>)> {
    let mut file = OpenOptions::new().read(true).write(true).open(&part.path)?;
    let length = file.metadata()?.len();
    let (mut looked_at, mut tail) = (TAIL, Vec::new());
    let (from, found, good) = loop {
        let from = length.saturating_sub(looked_at);
        tail.clear();
        file.seek(SeekFrom::Start(from))?;
        io::Read::by_ref(&mut file).take(looked_at).read_to_end(&mut tail)?;
        let (found, good) = last_in(&tail);
        if found.is_some() || from == 0 {
            break (from, found, good);
        }
        looked_at *= 8;
    };
    if good == tail.len() {
        return Ok((found, None));
    }
    let rest = &tail[good..];
    let aside = directory.join(format!("{:020}.broken", found.map_or(part.first, |last| last.n)));
    let kept = set_aside(&aside, rest);
    file.set_len(from + good as u64)?;
    file.sync_data()?;
    let (count, name) = (rest.len(), aside.file_name().unwrap_or_default().to_string_lossy());
    let what = format!("the last {count} bytes were not a whole line");
    let said = match kept {
        Ok(()) => format!("{what}: they are in {name}"),
        Err(error) => format!("{what}, and could not be kept: {error}"),
    };
    Ok((found, Some(said)))
}

fn set_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options().create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// The last line in the end of a file, and where it ends.
fn last_in(tail: &[u8]) -> (Option<Last>, usize) {
    let mut end = tail.len();
    while let Some(stop) = tail[..end].iter().rposition(|&byte| byte == b'\n') {
        let start = tail[..stop].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let line = &tail[start..stop];
        if let Some(last) = Some(line).filter(|line| line.len() <= LONGEST).and_then(Last::of) {
            return (Some(last), stop + 1);
        }
        end = stop;
    }
    (None, 0)
}
