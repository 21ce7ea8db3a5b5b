//! A queue on disk: a file of the entries that it was changed by, one a line.
//!
//! What must stay true: what [`Journal::write`] has returned for with `sync` survives a power cut; a
//! line that was not written whole is not read; the file is written anew when much of it is past, and
//! there is a whole one at every moment; once it is [removed](Journal::remove), nothing brings it back.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::queue::{Entry, Queue};

/// How many entries more than needed a file may always have before it is written anew.
const SLACK: usize = 4_096;

/// The file of one queue.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has all that the queue has, in so many lines.
    Whole { file: File, lines: usize },
    /// Something could not be written: it lacks what the queue has.
    Stale,
    /// The hook is gone.
    Removed,
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum Change {
    /// Entries, after those that are there.
    More(Vec<Entry>),
    /// All entries of a queue, in place of those that are there.
    Anew(Vec<Entry>),
}

impl Journal {
    /// Reads a queue, or begins one. A disk that takes nothing is no reason not to begin: what waits
    /// is told all the same, and written down when there is room.
    pub(crate) fn open(path: PathBuf, most: usize) -> io::Result<(Self, Queue)> {
        let queue = read(&path, most)?;
        let mut journal = Self { path, state: State::Stale };
        if let Err(error) = journal.write(&Change::Anew(queue.entries()), true) {
            tracing::error!("{} can't be written: {error}", journal.path.display());
        }
        Ok((journal, queue))
    }

    /// What has to be written after these entries have changed a queue, which has them already.
    pub(crate) fn change(&self, entries: Vec<Entry>, queue: &Queue) -> Change {
        let needed = queue.entries_count();
        match self.state {
            State::Whole { lines, .. } if lines <= needed + needed.max(SLACK) => {
                Change::More(entries)
            }
            _ => Change::Anew(queue.entries()),
        }
    }

    /// Writes what changed; `sync`: so that it survives a power cut. After a failure, the next change
    /// is all of the queue.
    pub(crate) fn write(&mut self, change: &Change, sync: bool) -> io::Result<()> {
        let written = match (&mut self.state, change) {
            (State::Removed, _) => return Ok(()),
            (State::Whole { file, lines: count }, Change::More(entries)) => {
                *count += entries.len();
                file.write_all(&lines(entries))
                    .and_then(|()| if sync { file.sync_data() } else { Ok(()) })
            }
            (State::Stale, Change::More(_)) => Err(io::Error::other("it lacks what was before")),
            (_, Change::Anew(entries)) => rewrite(&self.path, entries).map(|file| {
                self.state = State::Whole { file, lines: entries.len() };
            }),
        };
        if written.is_err() {
            self.state = State::Stale;
        }
        written
    }

    /// Whether the file lacks something, because it could not be written.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self.state, State::Stale)
    }

    /// Removes the file: the hook is gone.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        self.state = State::Removed;
        remove(&self.path)
    }
}

/// Reads a queue; an empty one if there is no file.
fn read(path: &Path, most: usize) -> io::Result<Queue> {
    let mut queue = Queue::with_room_for(most);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(queue),
        file => file?,
    };
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        match serde_json::from_slice(&line) {
            Ok(entry) if line.ends_with(b"\n") => queue.apply(entry),
            _ => tracing::warn!("a line of {} is broken, and skipped", path.display()),
        }
        line.clear();
    }
    Ok(queue)
}

/// Removes a file, if there is one.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn lines(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        bytes.extend(serde_json::to_vec(entry).unwrap_or_default());
        bytes.push(b'\n');
    }
    bytes
}

/// Writes entries as a new file, in place of the old one.
fn rewrite(path: &Path, entries: &[Entry]) -> io::Result<File> {
    replace(path, &lines(entries))?;
    OpenOptions::new().append(true).open(path)
}

/// Puts a content in the place of a file, whole or not at all. Nobody else may read it: events hold
/// what commands printed.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    // After the whole name: two files that differ in what is after the dot have two drafts.
    let mut draft = OsString::from(path);
    draft.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.sync_data()?;
    fs::rename(&draft, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::tests::sample;

    const MOST: usize = 1_000;

    fn waiting(queue: &Queue) -> Vec<String> {
        queue.first(usize::MAX).into_iter().map(|item| item.event.id).collect()
    }

    /// Makes a change, and writes it.
    fn write(journal: &mut Journal, queue: &Queue, entries: Vec<Entry>) -> io::Result<()> {
        let change = journal.change(entries, queue);
        journal.write(&change, true)
    }

    /// An agent that dies at any moment has written a beginning of its file: whatever byte that ends
    /// with, no event that was written whole is lost, and none that was told whole comes again.
    #[test]
    fn a_queue_is_read_from_any_beginning_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone(), 3).unwrap();
        // After each line: its end in the file, and what the queue was then.
        let mut moments = vec![(fs::metadata(&path).unwrap().len(), queue.clone())];
        for id in ["a", "b", "é", "c", "d"] {
            for entry in queue.clone().add(sample(id), 7) {
                queue.apply(entry.clone());
                write(&mut journal, &queue, vec![entry]).unwrap();
                moments.push((fs::metadata(&path).unwrap().len(), queue.clone()));
            }
            if id == "b" {
                queue.apply(Entry::Done("a".into()));
                write(&mut journal, &queue, vec![Entry::Done("a".into())]).unwrap();
                moments.push((fs::metadata(&path).unwrap().len(), queue.clone()));
            }
        }
        assert_eq!(
            (waiting(&queue), queue.dropped),
            (["é", "c", "d"].map(String::from).to_vec(), 1)
        );
        let whole = fs::read(&path).unwrap();
        assert_eq!(moments.last().unwrap().0, whole.len() as u64);
        let torn = directory.path().join("torn.log");
        for end in 0..=whole.len() {
            fs::write(&torn, &whole[..end]).unwrap();
            let then = moments.iter().rev().find(|(at, _)| *at <= end as u64);
            let expected = then.map_or_else(|| Queue::with_room_for(3), |(_, queue)| queue.clone());
            let found = read(&torn, 3).unwrap();
            assert_eq!(found.entries(), expected.entries(), "after {end} bytes");
        }
        // What was read is written anew: nothing comes after a line without an end.
        fs::write(&torn, &whole[..whole.len() - 1]).unwrap();
        let (mut journal, mut queue) = Journal::open(torn.clone(), 3).unwrap();
        let entries = queue.add(sample("e"), 8);
        write(&mut journal, &queue, entries).unwrap();
        assert_eq!(read(&torn, 3).unwrap().entries(), queue.entries());
    }

    #[test]
    fn a_broken_line_costs_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone(), MOST).unwrap();
        for id in ["a", "b", "c"] {
            let entries = queue.add(sample(id), 7);
            write(&mut journal, &queue, entries).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap().replace(r#""id":"b""#, "\0\u{1}garbage");
        fs::write(&path, text).unwrap();
        let (_, queue) = Journal::open(path, MOST).unwrap();
        assert_eq!(waiting(&queue), ["a", "c"]);
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone(), MOST).unwrap();
        // The system's own full disk.
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        journal.state = State::Whole { file: full, lines: 1 };
        let entries = queue.add(sample("a"), 7);
        write(&mut journal, &queue, entries).unwrap_err();
        assert!(journal.is_stale());
        assert!(Journal::open(path.clone(), MOST).unwrap().1.len() == 0);
        let entries = queue.add(sample("b"), 8);
        write(&mut journal, &queue, entries).unwrap();
        assert!(!journal.is_stale());
        assert_eq!(waiting(&Journal::open(path, MOST).unwrap().1), ["a", "b"]);
    }

    #[test]
    fn a_queue_without_a_disk_begins_and_a_removed_one_stays_away() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("gone");
        let path = place.join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone(), MOST).unwrap();
        assert!(journal.is_stale());
        let entries = queue.add(sample("a"), 7);
        write(&mut journal, &queue, entries).unwrap_err();
        fs::create_dir(&place).unwrap();
        write(&mut journal, &queue, Vec::new()).unwrap();
        assert!(path.exists() && !journal.is_stale());
        journal.remove().unwrap();
        let entries = queue.add(sample("b"), 7);
        write(&mut journal, &queue, entries).unwrap();
        journal.write(&Change::Anew(queue.entries()), true).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone(), MOST).unwrap();
        for n in 0..20_000 {
            let id = n.to_string();
            let mut entries = queue.add(sample(&id), 0);
            entries.push(Entry::Done(id.clone()));
            queue.apply(Entry::Done(id));
            let change = journal.change(entries, &queue);
            journal.write(&change, false).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 10_000, "{lines}");
        let (_, again) = Journal::open(path, MOST).unwrap();
        assert_eq!((again.len(), again.delivered), (0, 20_000));
    }

    #[test]
    fn files_with_the_same_stem_do_not_share_a_draft() {
        let directory = tempfile::tempdir().unwrap();
        let (json, log) = (directory.path().join("added.json"), directory.path().join("added.log"));
        // Where the draft of one would be, there is something in the way.
        fs::create_dir(directory.path().join("added.json.new")).unwrap();
        replace(&json, b"{}").unwrap_err();
        replace(&log, b"").unwrap();
    }
}
