//! Where the sites of the demo live: a directory that goes with the demo, or one that is kept.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::agents::NAMES;
use crate::{
    report::{Exit, Failure},
    shell,
};

/// Where the agents keep their data.
#[derive(Debug)]
pub(super) enum Directory {
    Temporary(TempDir),
    Kept(PathBuf),
}

impl Directory {
    /// A directory that can be written to: the one to keep, or one that goes with the demo.
    pub(super) fn prepare(keep: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = keep else {
            let made = tempfile::Builder::new().prefix("cheops-demo-").tempdir();
            return made.map(Self::Temporary).map_err(|error| {
                Failure::new(Exit::Wrong, "cannot make a directory for the demo")
                    .caused_by(error)
                    .hint("is there room in the temporary directory? --keep DIR takes another")
            });
        };
        usable(path).map(Self::Kept).map_err(|error| {
            Failure::input(format!("cannot keep the sites in `{}`", path.display()))
                .caused_by(error)
                .hint("name a directory that you may write to, or one that can be made: --keep DIR")
        })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Kept(path) => path,
        }
    }

    /// Whether sites of an earlier demo are in it.
    pub(super) fn holds_sites(&self) -> bool {
        NAMES.iter().any(|site| self.path().join(site).exists())
    }

    /// A failure, for a tour that would meet what an earlier one has left.
    pub(super) fn is_used(&self) -> Failure {
        let path = self.path().display().to_string();
        Failure::input(format!("`{path}` holds the sites of an earlier demo"))
            .caused_by("the tour starts with sites that know of nothing")
            .hint(format!(
                "name another directory; or look at these sites with: cheops demo {}",
                shell::option("--keep", &path)
            ))
    }
}

/// A directory that is there and can be written to, by its full name.
fn usable(path: &Path) -> io::Result<PathBuf> {
    if path.exists() && !path.is_dir() {
        return Err(io::Error::other("it is no directory"));
    }
    fs::create_dir_all(path)?;
    // Found out now, and not by an agent.
    tempfile::tempfile_in(path)?;
    fs::canonicalize(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_to_keep_is_made_or_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let (file, fresh) = (temporary.path().join("file"), temporary.path().join("a/b"));
        fs::write(&file, "").unwrap();
        for path in [&file, &file.join("below"), Path::new("/proc/cheops")] {
            let failure = Directory::prepare(Some(path)).unwrap_err();
            assert_eq!(failure.exit(), Exit::Refused, "{}", failure.line());
            assert!(failure.line().starts_with("cannot keep the sites in `"), "{}", failure.line());
        }
        let directory = Directory::prepare(Some(&fresh)).unwrap();
        assert!(!directory.holds_sites());
        fs::create_dir(fresh.join("site2")).unwrap();
        assert!(directory.holds_sites());
    }
}
