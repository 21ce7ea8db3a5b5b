//! Outputs that were too long for their reply, kept in files: the newest, within limits.
//!
//! What must stay true: the sum of what is kept here is limited, whatever commands print; and of a
//! run whose reply may not be durable yet, at least as much of the output stays as the reply needs.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::place::{Lock, Place, Runs, entries, missing};

/// At most so many outputs are kept in files.
const MOST: usize = 1_000;
/// What the name of a file ends with that says how many bytes were printed.
const PRINTED: &str = "printed";
/// At most so many bytes of them.
const MOST_BYTES: u64 = 1 << 30;

/// Beside an output that is kept: how many bytes were printed in all. The name of a run ends with a
/// number, so none ends like this.
fn printed_path(output: &Path) -> PathBuf {
    output.with_added_extension(PRINTED)
}

fn is_printed_path(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == PRINTED)
}

/// How many bytes were printed in all by the run whose output is kept there, if that is known.
pub(super) fn printed(output: &Path) -> Option<u64> {
    fs::read_to_string(printed_path(output)).ok()?.parse().ok()
}

/// The outputs that are kept.
pub(super) struct Kept {
    runs: Runs,
    /// How much of an output is in the reply.
    reply: u64,
    files: HashMap<PathBuf, (SystemTime, u64)>,
    bytes: u64,
}

impl Kept {
    pub(super) fn new(runs: Runs, reply: u64) -> Self {
        Self { runs, reply, files: HashMap::new(), bytes: 0 }
    }

    /// Looks for what earlier lives of the agent have kept.
    pub(super) fn find(runs: &Runs) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for resource in entries(&runs.kept())? {
            found.extend(entries(&resource)?.into_iter().filter(|path| !is_printed_path(path)));
        }
        found.extend(runs.all()?.iter().map(Place::output));
        Ok(found)
    }

    /// A run has ended: its output counts from now on, if it is longer than what is in the reply.
    pub(super) fn note(&mut self, output: PathBuf) -> io::Result<()> {
        let Some(about) = fs::metadata(&output).map(Some).or_else(missing)? else { return Ok(()) };
        if about.len() > self.reply {
            self.insert(output, about.modified().unwrap_or(SystemTime::UNIX_EPOCH), about.len());
            self.fit(MOST, MOST_BYTES)?;
        }
        Ok(())
    }

    fn insert(&mut self, output: PathBuf, at: SystemTime, length: u64) {
        self.bytes += length;
        if let Some((_, before)) = self.files.insert(output, (at, length)) {
            self.bytes -= before;
        }
    }

    fn remove(&mut self, output: &Path) -> Option<(SystemTime, u64)> {
        let removed = self.files.remove(output);
        self.bytes -= removed.map_or(0, |(_, length)| length);
        removed
    }

    /// Drops the oldest until the rest is within the limits.
    fn fit(&mut self, most: usize, most_bytes: u64) -> io::Result<()> {
        while self.files.len() > most || self.bytes > most_bytes {
            let oldest = self.files.iter().min_by_key(|(_, (at, _))| *at);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else { break };
            self.remove(&path);
            if path.starts_with(self.runs.kept()) {
                fs::remove_file(&path).map(Some).or_else(missing)?;
                fs::remove_file(printed_path(&path)).map(Some).or_else(missing)?;
                // Only an empty directory goes.
                let _ = path.parent().map(fs::remove_dir);
            } else if let Some(file) =
                OpenOptions::new().write(true).open(&path).map(Some).or_else(missing)?
            {
                file.set_len(self.reply)?;
            }
        }
        Ok(())
    }

    /// Removes a place whose reply is durable, and keeps its output if that is long. One that a
    /// supervisor still works in is left for the next time.
    pub(super) fn retire(&mut self, place: &Place) -> io::Result<()> {
        // The lock is held until the end: nobody begins to work there meanwhile.
        let lock = place.lock()?;
        if matches!(lock, Some(Lock::Taken)) {
            return Ok(());
        }
        let output = place.output();
        self.remove(&output);
        if let Some(about) = fs::metadata(&output).map(Some).or_else(missing)?
            && about.len() > self.reply
            && let Ok(name) = place.directory().strip_prefix(self.runs.root())
        {
            let kept = self.runs.kept().join(name);
            kept.parent().map(fs::create_dir_all).transpose()?;
            if let Some(status) = place.read_status()? {
                fs::write(printed_path(&kept), status.printed.to_string())?;
            }
            fs::rename(output, &kept)?;
            self.note(kept)?;
        }
        fs::remove_dir_all(place.directory()).map(Some).or_else(missing).map(drop)
    }

    /// Removes all that belongs to a resource.
    pub(super) fn forget(&mut self, resource: &cheops_core::id::ResourceId) -> io::Result<()> {
        for directory in [self.runs.of(resource), self.runs.kept().join(resource.as_str())] {
            let ours: Vec<_> =
                self.files.keys().filter(|path| path.starts_with(&directory)).cloned().collect();
            for path in ours {
                self.remove(&path);
            }
            fs::remove_dir_all(&directory).map(Some).or_else(missing)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn outputs(root: &Path) -> (Kept, Runs) {
        let runs = Runs::new(root.to_owned());
        (Kept::new(runs.clone(), 10), runs)
    }

    fn place(root: &Path, name: &str, length: u64) -> Place {
        let place = Place::at(&root.join(name));
        drop(place.make().unwrap());
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(place.output())
            .unwrap()
            .set_len(length)
            .unwrap();
        place
    }

    #[test]
    fn long_outputs_outlive_their_place_and_short_ones_do_not() {
        let root = tempfile::tempdir().unwrap();
        let (mut kept, runs) = outputs(root.path());
        let (long, short) = (place(root.path(), "r/a-1-1", 100), place(root.path(), "r/a-2-1", 10));
        for place in [&long, &short] {
            kept.note(place.output()).unwrap();
            kept.retire(place).unwrap();
            assert!(!place.directory().exists());
        }
        assert_eq!(entries(&runs.kept().join("r")).unwrap(), [runs.kept().join("r/a-1-1")]);
        assert_eq!((kept.files.len(), kept.bytes), (1, 100));
    }

    #[test]
    fn how_much_was_printed_is_known_as_long_as_the_output_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let (mut kept, runs) = outputs(root.path());
        let place = place(root.path(), "r/a-1-1", 100);
        let (end, took) = (super::super::job::End::Exit(0), std::time::Duration::ZERO);
        let status =
            super::super::job::Status { end, took, printed: 5_000, kept: 100, answer: None };
        fs::write(place.status(), status.encode()).unwrap();
        kept.note(place.output()).unwrap();
        kept.retire(&place).unwrap();
        let output = runs.kept().join("r/a-1-1");
        assert_eq!(printed(&output), Some(5_000));
        assert_eq!(
            Kept::find(&runs).unwrap(),
            slice::from_ref(&output),
            "only outputs are counted"
        );
        kept.fit(0, 0).unwrap();
        assert_eq!((printed(&output), entries(&runs.kept()).unwrap()), (None, Vec::new()));
    }

    #[test]
    fn the_oldest_go_first_and_the_latest_of_a_resource_keeps_what_its_reply_needs() {
        let root = tempfile::tempdir().unwrap();
        let (mut kept, runs) = outputs(root.path());
        let places: Vec<_> = (0..5_u64)
            .map(|n| {
                let place = place(root.path(), &format!("r{n}/a-1-1"), 100);
                let then = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n);
                fs::File::options()
                    .write(true)
                    .open(place.output())
                    .unwrap()
                    .set_modified(then)
                    .unwrap();
                kept.note(place.output()).unwrap();
                place
            })
            .collect();
        kept.retire(&places[0]).unwrap();
        kept.retire(&places[4]).unwrap();
        kept.fit(1_000, 250).unwrap();
        assert_eq!((kept.files.len(), kept.bytes), (2, 200));
        let left = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        assert_eq!(left(&runs.kept().join("r0/a-1-1")), 0, "removed");
        assert_eq!(left(&places[1].output()), 10, "cut to what the reply needs");
        assert_eq!(left(&places[2].output()), 10);
        assert_eq!(left(&places[3].output()), 100);
        assert_eq!(left(&runs.kept().join("r4/a-1-1")), 100);
        kept.fit(1, u64::MAX).unwrap();
        assert_eq!((kept.files.len(), kept.bytes), (1, 100));

        let (mut again, runs) = outputs(root.path());
        for output in Kept::find(&runs).unwrap() {
            again.note(output).unwrap();
        }
        assert_eq!((again.files.len(), again.bytes), (1, 100));
    }

    #[test]
    fn a_place_in_use_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (mut kept, _) = outputs(root.path());
        let place = place(root.path(), "r/a-1-1", 100);
        let lock = place.make().unwrap();
        kept.retire(&place).unwrap();
        assert!(place.output().exists());
        drop(lock);
        kept.retire(&place).unwrap();
        assert!(!place.directory().exists());
    }
}
