//! Where a run keeps its files, and what they tell about it.
//!
//! ```text
//! runs/@boot                                the boot that all is known of, see `recall`
//! runs/@kept/RESOURCE/SITE-NUMBER-ATTEMPT   long outputs of earlier runs
//! runs/RESOURCE/SITE-NUMBER-ATTEMPT/        the latest run of a resource
//!          job      what to do; written by the agent before the start
//!          lock     locked as long as the supervisor lives
//!          started  written by the supervisor just before it starts a command or sends a request
//!          output   what was printed, up to a limit
//!          status   how it ended
//!          files/   the attached files, by name
//!          bodies/  the bodies of requests, by number
//!          plain/   those among them whose names need quotes, under names that need none
//! runs/RESOURCE/clear/                      the same, for the `Reset` command
//! ```
//!
//! What must stay true: there is no moment at which a supervisor is about to start and the lock is
//! free. The agent takes the lock, and the supervisor inherits it as its standard input: the lock
//! belongs to the open file, which both share, and falls when the last of them is gone. So whoever
//! gets the lock knows that nobody else can write in the directory, and that what is there is final.
//! For the same reason the lock file itself is never replaced while its directory exists.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::RunId,
};

use super::job::{Job, Status};

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place(PathBuf);

/// The lock of a place.
#[derive(Debug)]
pub(super) enum Lock {
    /// It is ours: nobody is at work there.
    Ours(File),
    /// A supervisor is at work.
    Taken,
}

/// The directory of all runs.
#[derive(Debug, Clone)]
pub(super) struct Runs(PathBuf);

impl Runs {
    pub(super) fn new(root: PathBuf) -> Self {
        Self(root)
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    pub(super) fn boot(&self) -> PathBuf {
        self.0.join("@boot")
    }

    pub(super) fn kept(&self) -> PathBuf {
        self.0.join("@kept")
    }

    pub(super) fn of(&self, resource: &ResourceId) -> PathBuf {
        // An id holds no `/` and no `@`, and is neither `.` nor `..`.
        self.0.join(resource.as_str())
    }

    pub(super) fn place(&self, run: &RunId) -> Place {
        Place(self.of(&run.resource).join(name(run)))
    }

    pub(super) fn clear(&self, resource: &ResourceId) -> Place {
        Place(self.of(resource).join("clear"))
    }

    /// Where the output of a run goes that is no longer the latest of its resource.
    pub(super) fn kept_output(&self, run: &RunId) -> PathBuf {
        self.kept().join(run.resource.as_str()).join(name(run))
    }

    /// The places of a resource.
    pub(super) fn places(&self, resource: &ResourceId) -> io::Result<Vec<Place>> {
        entries(&self.of(resource)).map(|paths| paths.into_iter().map(Place).collect())
    }

    /// All places.
    pub(super) fn all(&self) -> io::Result<Vec<Place>> {
        let mut all = Vec::new();
        for resource in entries(&self.0)? {
            let ours =
                resource.file_name().is_some_and(|name| !name.as_encoded_bytes().contains(&b'@'));
            if ours && resource.is_dir() {
                all.extend(entries(&resource)?.into_iter().map(Place));
            }
        }
        Ok(all)
    }
}

/// What is in a directory; nothing, if there is none.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// `SITE-NUMBER-ATTEMPT`. The two numbers hold no dash, so no two runs share a name.
fn name(run: &RunId) -> String {
    format!("{}-{}-{}", site_name(&run.op.site), run.op.number, run.attempt)
}

/// A site's name as a part of a file name: itself if it is short and plain, otherwise its hash. No
/// site's name begins with `~`.
fn site_name(site: &SiteId) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if site.as_str().len() <= 64 && site.as_str().bytes().all(plain) {
        return site.to_string();
    }
    let hash = blake3::hash(site.as_str().as_bytes()).to_hex();
    format!("~{}", &hash[..32])
}

impl Place {
    pub(super) fn at(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    pub(super) fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    pub(super) fn files(&self) -> PathBuf {
        self.0.join("files")
    }

    pub(super) fn started(&self) -> PathBuf {
        self.0.join("started")
    }

    pub(super) fn status(&self) -> PathBuf {
        self.0.join("status")
    }

    fn job(&self) -> PathBuf {
        self.0.join("job")
    }

    /// Takes the lock, if the place exists.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        self.open_lock(false)
    }

    /// Takes the lock, and makes the place first if need be.
    pub(super) fn make(&self) -> io::Result<Lock> {
        if let Some(lock) = self.open_lock(true).or_else(missing)? {
            return Ok(lock);
        }
        fs::create_dir_all(&self.0)?;
        self.open_lock(true)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_lock(&self, create: bool) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false);
        let Some(file) = options.open(self.0.join("lock")).map(Some).or_else(missing)? else {
            return Ok(None);
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock::Ours(file))),
            Err(TryLockError::WouldBlock) => Ok(Some(Lock::Taken)),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes what an earlier run has left, except the lock.
    pub(super) fn wipe(&self) -> io::Result<()> {
        for path in entries(&self.0)? {
            if path.file_name().is_some_and(|name| name == "lock") {
                continue;
            }
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.or_else(|error| missing(error).map(|_: Option<()>| ()))?;
        }
        Ok(())
    }

    pub(super) fn write_job(&self, job: &Job) -> io::Result<()> {
        // Requests may hold tokens.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(self.job())?.write_all(&job.encode())
    }

    /// The job, if it was written whole.
    pub(super) fn read_job(&self) -> io::Result<Option<Job>> {
        let bytes = fs::read(self.job()).map(Some).or_else(missing)?;
        Ok(bytes.and_then(|bytes| Job::decode(&bytes)))
    }

    /// The status, if it was written whole.
    pub(super) fn read_status(&self) -> io::Result<Option<Status>> {
        let bytes = fs::read(self.status()).map(Some).or_else(missing)?;
        Ok(bytes.and_then(|bytes| Status::decode(&bytes)))
    }

    /// Notes that a command may have been started, so that nobody takes it for certain later that
    /// none was.
    pub(super) fn doubt(&self) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        OpenOptions::new().append(true).create(true).open(self.started()).map(drop)
    }
}

/// Nothing, where something does not exist.
pub(crate) fn missing<T>(error: io::Error) -> io::Result<Option<T>> {
    if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cheops_core::id::OpId;

    use super::*;

    fn run(site: &str, number: u64, attempt: u32) -> RunId {
        let op = OpId { site: site.parse().unwrap(), number };
        RunId { resource: "r".parse().unwrap(), op, attempt }
    }

    #[test]
    fn each_run_has_a_name_of_its_own_that_fits_in_a_directory() {
        let long = "é".repeat(126);
        let names: Vec<_> = [
            run("site1", 1, 1),
            run("site1", 11, 1),
            run("site1", 1, 11),
            run("site1-1", 1, 1),
            run("DC 1", 1, 1),
            run("DC_1", 1, 1),
            run("Évry", 1, 1),
            run("..", 1, 1),
            run(&"a".repeat(253), u64::MAX, u32::MAX),
            run(&long, u64::MAX, u32::MAX),
        ]
        .iter()
        .map(name)
        .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for name in names {
            let plain = |c: char| c.is_ascii_alphanumeric() || "~._-".contains(c);
            assert!(name.len() <= 255 && name.chars().all(plain), "{name}");
        }
    }

    #[test]
    fn a_lock_lasts_as_long_as_anyone_has_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("a/b"));
        assert!(place.lock().unwrap().is_none());
        let Lock::Ours(file) = place.make().unwrap() else { panic!("the lock is free") };
        let inherited = file.try_clone().unwrap();
        drop(file);
        assert!(matches!(place.make().unwrap(), Lock::Taken));
        place.wipe().unwrap();
        assert!(matches!(place.lock().unwrap(), Some(Lock::Taken)));
        drop(inherited);
        assert!(matches!(place.lock().unwrap(), Some(Lock::Ours(_))));
    }
}
