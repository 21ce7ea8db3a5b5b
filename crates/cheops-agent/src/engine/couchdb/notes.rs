//! What a data directory says of the databases that belong to it: files beside the lock and the local journal.
//!
//! What must stay true: an agent that has written to databases goes on with these and no others, and gives no number
//! twice, also if they know less than they did.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::place;
use crate::engine::{Seq, disk};

/// The name of the databases that were written to.
const WRITTEN: &str = "written";
/// The same, of databases that somebody says are gone for good.
const LOST: &str = "lost";
/// The same, of databases that were left for another engine.
const LEFT: &str = "left";
/// The same, of databases that a copy has filled, from then until an agent starts on them.
const COPIED: &str = "copied";
/// Up to which number was written, as it was a moment ago.
const REACHED: &str = "reached";

#[derive(Debug, Clone)]
pub(super) struct Notes(PathBuf);

impl Notes {
    pub(super) fn of(data: &Path) -> Self {
        Self(place(data))
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.0.join(file)).ok().map(|line| line.trim().to_owned())
    }

    /// The name of the databases that were written to.
    pub(super) fn written(&self) -> Option<String> {
        self.read(WRITTEN)
    }

    /// The name of those that were left for another engine.
    pub(super) fn left(&self) -> Option<String> {
        self.read(LEFT)
    }

    /// Takes note that databases of a name were written to.
    pub(super) fn write(&self, name: &str) -> io::Result<()> {
        self.put(WRITTEN, name)
    }

    fn put(&self, file: &str, line: &str) -> io::Result<()> {
        disk::create_directory(&self.0)?;
        disk::replace(&self.0.join(file), line)
    }

    /// Takes note that databases of a name were filled, and hold all.
    pub(super) fn copy(&self, name: &str) -> io::Result<()> {
        self.put(COPIED, name)
    }

    /// Whether that was noted, and no agent has started on them since.
    pub(super) fn is_copied(&self, name: &str) -> bool {
        self.read(COPIED).as_deref() == Some(name)
    }

    /// Takes note that an agent starts on them.
    pub(super) fn start(&self) {
        let _ = fs::remove_file(self.0.join(COPIED));
    }

    /// Takes note of the last number that was given. It does not go back. That need not survive a power cut of this
    /// machine: it is for the case that the databases forget.
    pub(super) fn reach(&self, number: Seq) -> io::Result<()> {
        disk::create_directory(&self.0)?;
        let (path, new) = (self.0.join(REACHED), self.0.join("reached.new"));
        fs::write(&new, number.max(self.reached()).to_string())?;
        fs::rename(new, path)
    }

    fn reached(&self) -> Seq {
        self.read(REACHED).and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// The number up to which was written at least: something was, if it is not known how much.
    pub(super) fn least(&self) -> Seq {
        let something = [WRITTEN, LOST].iter().any(|file| self.0.join(file).exists());
        self.reached().max(u64::from(something))
    }

    /// Whether anything is known of databases.
    pub(super) fn is_empty(&self) -> bool {
        self.least() == 0
    }

    /// Drops what is of other databases than those that are about to be filled.
    pub(super) fn clear(&self) {
        for file in [WRITTEN, LOST, LEFT, COPIED, REACHED] {
            let _ = fs::remove_file(self.0.join(file));
        }
    }

    /// Takes note that the databases were left for another engine: what they hold is old from now on.
    pub(super) fn leave(&self) -> io::Result<()> {
        let Some(name) = self.written() else { return Ok(()) };
        self.put(LEFT, &name)?;
        for file in [WRITTEN, LOST, COPIED, REACHED] {
            let _ = fs::remove_file(self.0.join(file));
        }
        Ok(())
    }

    /// What to do if the databases that were written to are gone for good.
    pub(super) fn how_to_give_up(&self) -> String {
        format!("mv {} {}", self.0.join(WRITTEN).display(), self.0.join(LOST).display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_databases_is_kept_until_they_are_left() {
        let data = tempfile::tempdir().unwrap();
        let notes = Notes::of(data.path());
        assert!(notes.is_empty() && notes.written().is_none());
        notes.write("one").unwrap();
        assert_eq!((notes.written().as_deref(), notes.least()), (Some("one"), 1));
        notes.reach(7).unwrap();
        notes.reach(5).unwrap();
        assert_eq!(notes.least(), 7, "it does not go back");
        notes.leave().unwrap();
        assert_eq!((notes.written(), notes.left().as_deref()), (None, Some("one")));
        assert!(notes.is_empty());
        notes.clear();
        assert_eq!(notes.left(), None);
    }

    #[test]
    fn who_gives_up_databases_does_not_forget_how_far_they_were() {
        let data = tempfile::tempdir().unwrap();
        let notes = Notes::of(data.path());
        notes.write("one").unwrap();
        notes.reach(7).unwrap();
        let given_up = notes.how_to_give_up();
        let words: Vec<&str> = given_up.split(' ').collect();
        assert!(std::process::Command::new(words[0]).args(&words[1..]).status().unwrap().success());
        assert_eq!((notes.written(), notes.least()), (None, 7));
    }
}
