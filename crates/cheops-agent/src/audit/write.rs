//! Writing a record: where it goes on after a crash, lines, new files, the head.
//!
//! What must stay true:
//! - a line is written whole or not at all; what a crash left of one is put aside at the next start,
//!   and a line says so;
//! - the head is never ahead of what is on the disk: lines are synced first;
//! - what can't be written now is kept, within a limit, and written when it can be; what is over the
//!   limit is counted, and a line says how many;
//! - there are never more files than are to be kept.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
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

/// What was found when a record was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Lines that the head tells of, and that are not there.
    pub(super) cut: Option<(u64, u64)>,
}

impl Writer {
    /// Goes on with the record in a directory, or begins one.
    pub(super) fn open(
        directory: PathBuf,
        settings: config::Audit,
        own: Own,
        site: &SiteId,
        now: Timestamp,
    ) -> io::Result<(Self, Found)> {
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
        let mut found = Found::default();
        // Whoever signed, it can't be read as fewer lines than there were.
        if let Some(signed) = head.and_then(|head| head.last(&own().public()))
            && signed.n > last.n
        {
            found.cut = Some((last.n + 1, signed.n));
            last = signed;
        }
        if parts.is_empty() || found.cut.is_some() {
            parts.push(Part::new(&directory, last.n + 1));
        }
        let newest = &parts[parts.len() - 1];
        let file = opened(&newest.path)?;
        let length = file.metadata()?.len();
        let mut writer = Self {
            born: born(&newest.path)?.unwrap_or(now),
            first: parts[0].first,
            file: Arc::new(file),
            directory,
            settings,
            own,
            length,
            last,
            waiting: VecDeque::new(),
            lost: 0,
        };
        writer.events_of_start(site, now, repaired, &found);
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
        found: &Found,
    ) {
        if let Some(why) = repaired {
            self.keep(now, Event { why: Some(why), ..Event::of(What::Repaired) });
        }
        if let Some((from, to)) = found.cut {
            let why = format!("lines {from} to {to} were there, and are not any more");
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

    /// Whether events wait to be written.
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
        self.length = self.file.metadata()?.len();
        self.born = self.waiting.front().map_or_else(Timestamp::now, |(at, _)| *at);
        let mut parts = read::parts(&self.directory)?;
        let over = parts.len().saturating_sub(self.settings.keep);
        let gone: Vec<Part> = parts.drain(..over).collect();
        self.first = parts.first().map_or(self.last.n + 1, |part| part.first);
        // First the head says that they are not kept: otherwise they would seem to be removed.
        self.head().write(&self.directory)?;
        for part in gone {
            fs::remove_file(part.path)?;
        }
        Ok(())
    }

    /// What has to be done so that all that is written survives a power cut.
    pub(super) fn settle(&self) -> Settle {
        Settle { file: self.file.clone(), directory: self.directory.clone(), head: self.head() }
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
    directory: PathBuf,
    head: Head,
}

impl Settle {
    /// The number of the last line that it makes durable.
    pub(super) fn last(&self) -> u64 {
        self.head.n
    }

    pub(super) fn run(self) -> io::Result<()> {
        self.file.sync_data()?;
        self.head.write(&self.directory)
    }
}

impl Head {
    fn write(&self, directory: &Path) -> io::Result<()> {
        let draft = directory.join("head.new");
        let mut file = options().create(true).truncate(true).open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(draft, directory.join(HEAD))
    }
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
