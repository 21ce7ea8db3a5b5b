//! Reading a record from its directory: what it says, and whether it is whole.
//!
//! Nothing here is changed, so that it can be done beside an agent that writes, or from a copy. What
//! must stay true: whatever the files hold, what is read at a time is bounded; a line that is being
//! written is no damage.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use cheops_core::trust::PublicKey;
use jiff::Timestamp;

use super::{
    chain::{Broken, Chain, Head, LONGEST, Last},
    entry::Entry,
};

/// How the files are called: the number of the first line, and this.
const ENDING: &str = ".jsonl";
/// Where the head is.
pub(super) const HEAD: &str = "head";
/// How often a check begins again if files come and go meanwhile.
const ATTEMPTS: usize = 3;
/// The longest head.
const LONGEST_HEAD: u64 = 4 << 10;

/// Where the audit of a site with this data directory is.
pub fn directory(data: &Path) -> PathBuf {
    data.join("audit")
}

/// A file of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// The number of its first line.
    pub(super) first: u64,
    pub(super) path: PathBuf,
}

impl Part {
    pub(super) fn new(directory: &Path, first: u64) -> Self {
        Self { first, path: directory.join(format!("{first:020}{ENDING}")) }
    }
}

/// The files of a record, the oldest first.
pub(super) fn parts(directory: &Path) -> io::Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name.and_then(|name| name.strip_suffix(ENDING)?.parse().ok());
        parts.extend(first.map(|first| Part { first, path }));
    }
    parts.sort();
    Ok(parts)
}

/// The head, if there is one that can be read.
pub(super) fn head(directory: &Path) -> io::Result<Option<Head>> {
    let file = match File::open(directory.join(HEAD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST_HEAD).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

/// What stands in a file where a line could be.
pub(super) enum Read<'a> {
    /// A line, without its end.
    Line(&'a [u8]),
    /// The file ends in the middle of one.
    Unfinished,
}

/// Goes over the lines of a file, as long as `each` wants more. One that is longer than any that was
/// written is given in pieces, which are no lines.
pub(super) fn lines(path: &Path, mut each: impl FnMut(Read<'_>) -> bool) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', &mut line)?;
        let more = match line.split_last() {
            None => return Ok(()),
            Some((b'\n', line)) => each(Read::Line(line)),
            Some(_) if read > LONGEST => each(Read::Line(&line)),
            Some(_) => each(Read::Unfinished),
        };
        if !more {
            return Ok(());
        }
    }
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The number of the first line that is kept.
    pub first: u64,
    /// The last line that is where it belongs.
    pub last: Last,
    /// How many lines are in order.
    pub lines: u64,
    /// How many of them came after the head was signed last: nobody vouches for these.
    pub unsigned: u64,
    /// Whether there is a head. Without one, nobody can tell whether the end is there.
    pub headed: bool,
    /// What is wrong, and where.
    pub broken: Option<(Broken, Place)>,
}

/// A place in a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line in it, counted from 1.
    pub line: u64,
}

/// Checks a whole record. `key` is that of the site; without it, the one that the head names is
/// taken at its word.
pub fn verify(directory: &Path, key: Option<&PublicKey>) -> io::Result<Verdict> {
    let mut attempt = 1;
    loop {
        let before = head(directory)?;
        let verdict = verify_once(directory, before.as_ref(), key);
        // The oldest file may have gone meanwhile, and the head that said so come.
        let moved = || Ok::<_, io::Error>(head(directory)? != before);
        match verdict {
            Ok(verdict) if verdict.broken.is_none() => return Ok(verdict),
            verdict if attempt == ATTEMPTS || !moved()? => return verdict,
            _ => attempt += 1,
        }
    }
}

fn verify_once(
    directory: &Path,
    head: Option<&Head>,
    key: Option<&PublicKey>,
) -> io::Result<Verdict> {
    let parts = parts(directory)?;
    let (mut chain, mut place) = (Chain::default(), Place::default());
    let (mut first, mut count, mut broken) = (None, 0, None);
    // Where the head points: the line with its number, as it is here.
    let (mut pointed, wanted) = (None, head.map(|head| head.n));
    for part in &parts {
        place = Place { file: part.path.clone(), line: 0 };
        lines(&part.path, |read| {
            let Read::Line(line) = read else { return true };
            place.line += 1;
            match chain.push(line) {
                Ok(last) => {
                    count += 1;
                    first.get_or_insert(last.n);
                    pointed = pointed.or_else(|| Some(last).filter(|last| Some(last.n) == wanted));
                }
                Err(error) => broken = Some(error),
            }
            broken.is_none()
        })?;
        if broken.is_some() {
            break;
        }
    }
    let last = chain.last().unwrap_or_default();
    if let (None, Some(head)) = (&broken, head) {
        broken = held_against(head, key, first.unwrap_or(0), last, pointed);
    }
    let first = first.unwrap_or(0);
    Ok(Verdict {
        first,
        last,
        lines: count,
        unsigned: head.map_or(count, |head| last.n.saturating_sub(head.n)),
        headed: head.is_some(),
        broken: broken.map(|broken| (broken, place)),
    })
}

/// What is wrong with a record that is whole in itself, if its head is right.
fn held_against(
    head: &Head,
    key: Option<&PublicKey>,
    first: u64,
    last: Last,
    pointed: Option<Last>,
) -> Option<Broken> {
    let named = head.key.parse().ok();
    let signed = key.or(named.as_ref()).and_then(|key| head.last(key));
    let Some(signed) = signed else { return Some(Broken::Head) };
    if last.n < signed.n {
        return Some(Broken::Cut { from: last.n + 1, to: signed.n });
    }
    if first > head.first {
        return Some(Broken::Missing { from: head.first, to: first - 1 });
    }
    (pointed != Some(signed)).then_some(Broken::Altered { n: signed.n })
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only those after the one with this number; the first of them. Without it, the newest.
    pub after: Option<u64>,
    /// Only those from this moment on.
    pub since: Option<Timestamp>,
    /// Only those of this author.
    pub author: Option<String>,
    /// Only those about this resource.
    pub resource: Option<String>,
    /// No more than so many.
    pub limit: usize,
}

impl Wanted {
    fn has(&self, entry: &Entry) -> bool {
        let is =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        self.after.is_none_or(|after| entry.n > after)
            && self
                .since
                .is_none_or(|since| entry.at.parse().is_ok_and(|at: Timestamp| at >= since))
            && is(&self.author, &entry.event.author)
            && is(&self.resource, &entry.event.resource)
    }
}

/// The lines that are wanted, the oldest first. What is none is left out: [`verify`] finds it.
pub fn entries(directory: &Path, wanted: &Wanted) -> io::Result<Vec<Entry>> {
    let mut parts = match parts(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        parts => parts?,
    };
    let mut found = VecDeque::new();
    if let Some(after) = wanted.after {
        let begun = parts.partition_point(|part| part.first <= after).saturating_sub(1);
        for part in &parts[begun..] {
            in_part(part, wanted, |entry| {
                found.push_back(entry);
                found.len() < wanted.limit
            })?;
            if found.len() >= wanted.limit {
                break;
            }
        }
        return Ok(found.into());
    }
    // The newest: from the last file backwards, until there are enough.
    while let Some(part) = parts.pop() {
        let room = wanted.limit.saturating_sub(found.len());
        if room == 0 {
            break;
        }
        let mut newest = VecDeque::new();
        in_part(&part, wanted, |entry| {
            newest.push_back(entry);
            if newest.len() > room {
                newest.pop_front();
            }
            true
        })?;
        newest.append(&mut found);
        found = newest;
    }
    Ok(found.into())
}

fn in_part(part: &Part, wanted: &Wanted, mut each: impl FnMut(Entry) -> bool) -> io::Result<()> {
    let read = lines(&part.path, |read| {
        let Read::Line(line) = read else { return true };
        match serde_json::from_slice::<Entry>(line) {
            Ok(entry) if wanted.has(&entry) => each(entry),
            _ => true,
        }
    });
    match read {
        // It was the oldest, and is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        read => read,
    }
}
