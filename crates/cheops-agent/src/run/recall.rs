//! What became of a run that was under way when the agent stopped.
//!
//! The intent is durable in the engine; what happened after is told by the run's place (see
//! `place`). What must stay true: a run is said not to have started only if that is certain.
//!
//! - The lock is taken: a supervisor is at work, or about to be. Its end is waited for.
//! - There is a whole status: that is the result.
//! - The marker `started` is there: the command ran, in part or in full. Lost.
//! - There is no marker, and the machine has not been booted since the run was intended: what was
//!   written to the file system is what is there, synced or not, whoever was killed. Not started.
//! - There is no marker, and the machine has been booted: the marker may have been lost with all
//!   else that was not synced. Lost.
//!
//! Which boot a run was intended in is written in its job. Without a job the note `@boot` says it.
//! The note is brought up to date only after each run under way that has no job was marked as
//! doubtful: otherwise an agent that stops twice after a power cut would forget that there was one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    job::Status,
    orphan,
    place::{Lock, Place},
};

/// What a place tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// A supervisor is at work.
    UnderWay,
    /// The command ended.
    Ended(Status),
    /// No command was started.
    NotStarted,
    /// Nobody can tell.
    Lost,
}

/// The boots that matter.
#[derive(Debug, Clone)]
pub(super) struct Boot {
    /// This one.
    pub(super) now: String,
    /// The one that the last agent knew of.
    noted: Option<String>,
    note: PathBuf,
}

impl Boot {
    /// Reads the id of this boot from where the system says it, and the note.
    pub(super) fn read(source: &Path, note: PathBuf) -> io::Result<Self> {
        let now = match fs::read_to_string(source) {
            Ok(id) => id.trim().to_owned(),
            // Then each start counts as a boot of its own: nothing is taken for certain.
            Err(_) => unique(),
        };
        let noted = fs::read_to_string(&note).map(Some).or_else(super::place::missing)?;
        let noted = noted.and_then(|text| text.strip_suffix('\n').map(str::to_owned));
        Ok(Self { now, noted, note })
    }

    pub(super) fn is_new(&self) -> bool {
        self.noted.as_ref() != Some(&self.now)
    }

    /// Brings the note up to date, given the runs under way.
    pub(super) fn settle<'a>(&self, under_way: impl Iterator<Item = &'a Place>) -> io::Result<()> {
        for place in under_way {
            if place.read_job()?.is_none() {
                place.doubt()?;
            }
        }
        fs::write(&self.note, format!("{}\n", self.now))
    }
}

fn unique() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", since.as_nanos(), std::process::id())
}

/// Looks what became of a run. A command that nobody watches any more is ended.
pub(super) fn look(place: &Place, boot: &Boot) -> io::Result<Found> {
    // The lock is held while we look, so that nothing changes meanwhile.
    let lock = place.lock()?;
    let taken = matches!(lock, Some(Lock::Taken));
    let intended = place.read_job()?.map(|job| job.boot).or_else(|| boot.noted.clone());
    let same_boot = intended.as_ref() == Some(&boot.now);
    let started = place.started().try_exists()?;
    let found = judge(taken, place.read_status()?, started, same_boot);
    if found == Found::Lost && same_boot && orphan::end(&place.started()) {
        let place = place.directory().display();
        tracing::warn!("the supervisor of {place} was killed; its command is ended as well");
    }
    Ok(found)
}

fn judge(taken: bool, status: Option<Status>, started: bool, same_boot: bool) -> Found {
    match (taken, status, started, same_boot) {
        (true, _, _, _) => Found::UnderWay,
        (false, Some(status), _, _) => Found::Ended(status),
        (false, None, false, true) => Found::NotStarted,
        (false, None, true, _) | (false, None, _, false) => Found::Lost,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::job::{End, Job};

    fn status() -> Status {
        Status { end: End::Exit(0), took: Duration::ZERO, printed: 0, kept: 0, answer: None }
    }

    #[test]
    fn only_what_is_certain_is_said() {
        for (taken, ended, started, same_boot, expected) in [
            (true, false, false, true, Found::UnderWay),
            (true, true, true, false, Found::UnderWay),
            (false, true, true, true, Found::Ended(status())),
            (false, true, true, false, Found::Ended(status())),
            (false, true, false, false, Found::Ended(status())),
            (false, false, true, true, Found::Lost),
            (false, false, true, false, Found::Lost),
            (false, false, false, false, Found::Lost),
            (false, false, false, true, Found::NotStarted),
        ] {
            let found = judge(taken, ended.then(status), started, same_boot);
            assert_eq!(found, expected, "{taken} {ended} {started} {same_boot}");
        }
    }

    struct Machine {
        directory: tempfile::TempDir,
    }

    impl Machine {
        fn boots(&self, id: &str) {
            fs::write(self.directory.path().join("boot_id"), format!("{id}\n")).unwrap();
        }

        fn agent_starts(&self) -> Boot {
            let note = self.directory.path().join("@boot");
            Boot::read(&self.directory.path().join("boot_id"), note).unwrap()
        }

        fn place(&self, name: &str) -> Place {
            Place::at(&self.directory.path().join(name))
        }
    }

    fn job(boot: &Boot) -> Job {
        Job {
            boot: boot.now.clone(),
            agent: 1,
            shell: "/bin/sh".into(),
            work: "/".into(),
            timeout: Duration::from_secs(1),
            keep: 1,
            environment: Vec::new(),
            steps: Vec::new(),
        }
    }

    #[test]
    fn a_power_cut_is_remembered_however_often_the_agent_stops_after_it() {
        let machine = Machine { directory: tempfile::tempdir().unwrap() };
        let (gone, unwritten) = (machine.place("gone"), machine.place("unwritten"));
        machine.boots("one");
        let boot = machine.agent_starts();
        assert!(boot.is_new());
        boot.settle([].into_iter()).unwrap();
        assert!(!machine.agent_starts().is_new());
        assert_eq!(look(&gone, &machine.agent_starts()).unwrap(), Found::NotStarted);

        machine.boots("two");
        let boot = machine.agent_starts();
        assert_eq!(look(&gone, &boot).unwrap(), Found::Lost);
        // It stops before it could settle, and again after.
        assert_eq!(look(&gone, &machine.agent_starts()).unwrap(), Found::Lost);
        boot.settle([&gone].into_iter()).unwrap();
        assert_eq!(look(&gone, &machine.agent_starts()).unwrap(), Found::Lost);
        assert_eq!(look(&unwritten, &machine.agent_starts()).unwrap(), Found::NotStarted);
    }

    #[test]
    fn the_boot_of_a_job_counts_more_than_the_note() {
        let machine = Machine { directory: tempfile::tempdir().unwrap() };
        let place = machine.place("run");
        machine.boots("one");
        let boot = machine.agent_starts();
        let lock = place.make().unwrap();
        place.write_job(&job(&boot)).unwrap();
        assert_eq!(look(&place, &boot).unwrap(), Found::UnderWay);
        drop(lock);
        assert_eq!(look(&place, &machine.agent_starts()).unwrap(), Found::NotStarted);
        machine.boots("two");
        machine.agent_starts().settle([&place].into_iter()).unwrap();
        assert_eq!(look(&place, &machine.agent_starts()).unwrap(), Found::Lost);
        fs::write(place.status(), "cheops status 1\nexit 0\n").unwrap();
        assert_eq!(look(&place, &machine.agent_starts()).unwrap(), Found::Lost);
        fs::write(place.status(), status().encode()).unwrap();
        assert_eq!(look(&place, &machine.agent_starts()).unwrap(), Found::Ended(status()));
    }

    #[test]
    fn a_system_that_does_not_say_its_boot_makes_nothing_certain() {
        let machine = Machine { directory: tempfile::tempdir().unwrap() };
        machine.agent_starts().settle([].into_iter()).unwrap();
        assert_eq!(look(&machine.place("run"), &machine.agent_starts()).unwrap(), Found::Lost);
    }
}
