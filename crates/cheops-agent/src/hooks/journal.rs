//! A queue on disk: a file of the entries that it was changed by, one a line.
//!
//! What must stay true: what [`Journal::append`] has returned for with `sync` survives a power cut; a
//! line that was not written whole is not read; the file is written anew when much of it is past, and
//! there is a whole one at every moment.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::queue::{Entry, Queue};

/// How many entries more than needed a file may have before it is written anew.
const SLACK: usize = 4_096;

/// The file of one queue.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    /// Something could not be written: the file lacks what the queue has.
    stale: bool,
}

impl Journal {
    /// Reads a queue, or begins one.
    pub(crate) fn open(path: PathBuf) -> io::Result<(Self, Queue)> {
        let mut queue = Queue::default();
        if path.exists() {
            let mut reader = BufReader::new(File::open(&path)?);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line)? > 0 {
                match serde_json::from_slice(&line) {
                    Ok(entry) if line.ends_with(b"\n") => queue.apply(entry),
                    _ => tracing::warn!("a line of {} is broken, and skipped", path.display()),
                }
                line.clear();
            }
        }
        let (file, lines) = rewrite(&path, &queue)?;
        Ok((Self { path, file, lines, stale: false }, queue))
    }

    /// Writes what changed; `sync`: so that it survives a power cut. After a failure, the next time
    /// writes all of the queue.
    pub(crate) fn append(
        &mut self,
        entries: &[Entry],
        queue: &Queue,
        sync: bool,
    ) -> io::Result<()> {
        let written = self.write(entries, queue, sync);
        self.stale = written.is_err();
        written
    }

    fn write(&mut self, entries: &[Entry], queue: &Queue, sync: bool) -> io::Result<()> {
        let past = self.lines.saturating_sub(queue.entries_count());
        if past > SLACK || self.stale {
            // The queue has these entries already.
            (self.file, self.lines) = rewrite(&self.path, queue)?;
            return Ok(());
        }
        self.file.write_all(&lines(entries))?;
        self.lines += entries.len();
        if sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Whether the file lacks something, because it could not be written.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Removes the file: the hook is gone.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
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

/// Writes a queue as a new file, in place of the old one.
fn rewrite(path: &Path, queue: &Queue) -> io::Result<(File, usize)> {
    let entries = queue.entries();
    replace(path, &lines(&entries))?;
    Ok((OpenOptions::new().append(true).open(path)?, entries.len()))
}

/// Puts a content in the place of a file, whole or not at all. Nobody else may read it: events hold
/// what commands printed.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
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

    fn waiting(queue: &Queue) -> Vec<String> {
        queue.first(usize::MAX).into_iter().map(|item| item.event.id).collect()
    }

    #[test]
    fn a_queue_is_read_as_it_was_even_after_a_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone()).unwrap();
        for id in ["a", "b", "c"] {
            let entries = queue.add(sample(id), 7);
            journal.append(&entries, &queue, true).unwrap();
        }
        queue.apply(Entry::Done("a".into()));
        journal.append(&[Entry::Done("a".into())], &queue, false).unwrap();
        // The agent dies while it writes.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"done":"b"#).unwrap();
        for _ in 0..2 {
            let (_, queue) = Journal::open(path.clone()).unwrap();
            assert_eq!(waiting(&queue), ["b", "c"]);
            assert_eq!((queue.delivered, queue.dropped), (1, 0));
            assert_eq!(queue.first(1)[0].since, 7);
        }
    }

    #[test]
    fn a_file_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ops.log");
        let (mut journal, mut queue) = Journal::open(path.clone()).unwrap();
        for n in 0..20_000 {
            let id = n.to_string();
            let mut entries = queue.add(sample(&id), 0);
            entries.push(Entry::Done(id.clone()));
            queue.apply(Entry::Done(id));
            journal.append(&entries, &queue, false).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 10_000, "{lines}");
        let (_, again) = Journal::open(path).unwrap();
        assert_eq!((again.len(), again.delivered), (0, 20_000));
    }
}
