//! A command in a process group of its own, and what it prints: the same for whoever watches it, be it a supervisor or the agent itself.
//!
//! What must stay true: what is kept of an output is its beginning, without a hole, and within its
//! limit; all of it is counted; and reading it never waits for what was not printed yet.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::pipe::{PipeFlags, pipe_with};

use super::{
    confine,
    job::{Job, Program, Step},
};
use crate::open_files;

/// How much of what is printed is taken at a time.
const BUFFER: usize = 64 << 10;

/// A step of a job that is a command, ready to start, and the pipe with what it will print. The pipe
/// ends only when this is dropped, too. `itself` is this program, which becomes the command where that
/// is to be confined. `variables` are those that all commands get, unless this process has those and no
/// others, as a supervisor does.
pub(super) fn command(
    job: &Job,
    step: &Step,
    itself: &Path,
    variables: Option<&BTreeMap<OsString, OsString>>,
) -> io::Result<(Command, OwnedFd)> {
    let (pipe, printed) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = match step {
        Step::Line(line) => {
            let mut command = Command::new(&job.shell);
            command.arg("-c").arg(line);
            command
        }
        Step::Program(program) => started(program, itself),
        Step::Request(_) => return Err(io::Error::other("a request is no command")),
    };
    command.current_dir(&job.work).process_group(0);
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed);
    let own = match step {
        Step::Program(program) => program.variables.as_ref(),
        Step::Line(_) | Step::Request(_) => None,
    };
    if let Some(own) = own {
        command.env_clear().envs(own.iter().map(|(name, value)| (name, value)));
    } else if let Some(variables) = variables {
        command.env_clear().envs(variables);
    } else {
        command.env_remove(open_files::VARIABLE);
    }
    for (name, value) in &job.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok((command, pipe))
}

fn started(program: &Program, itself: &Path) -> Command {
    let Program { path, arguments, terms, .. } = program;
    let mut command = match terms {
        None => Command::new(path),
        Some(terms) => {
            let mut command = Command::new(itself);
            command.arg0("cheops").arg(confine::VERB).arg(terms).arg(path);
            command
        }
    };
    command.args(arguments);
    command
}

/// Where the beginning of an output is kept.
pub(super) trait Keep {
    /// Keeps these bytes after those before, and says how many of them it could.
    fn keep(&mut self, bytes: &[u8]) -> usize;
}

impl Keep for Vec<u8> {
    fn keep(&mut self, bytes: &[u8]) -> usize {
        self.extend_from_slice(bytes);
        bytes.len()
    }
}

/// A file that is made once there is something for it: most commands print nothing.
pub(super) struct Later {
    path: PathBuf,
    file: Option<File>,
}

impl Later {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, file: None }
    }
}

impl Keep for Later {
    fn keep(&mut self, bytes: &[u8]) -> usize {
        if self.file.is_none() {
            let mut new = File::options();
            new.write(true).create(true).truncate(true).mode(0o600);
            self.file = new.open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return 0 };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..)
            && !rest.is_empty()
        {
            match file.write(rest) {
                Ok(count) if count > 0 => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        done
    }
}

/// What takes in an output.
pub(super) struct Sink<K> {
    pub(super) place: K,
    /// How many bytes are kept at most.
    limit: u64,
    pub(super) printed: u64,
    pub(super) kept: u64,
    buffer: Vec<u8>,
}

impl<K: Keep> Sink<K> {
    pub(super) fn new(place: K, limit: u64) -> Self {
        Self { place, limit, printed: 0, kept: 0, buffer: vec![0; BUFFER] }
    }

    /// Takes what is in a pipe: as much as one look finds, or exactly so much. Says whether more may
    /// come.
    pub(super) fn take(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
        exactly: Option<u64>,
    ) -> bool {
        let mut left = exactly.unwrap_or(1);
        while left > 0 {
            let most =
                exactly.map_or(BUFFER, |_| usize::try_from(left).unwrap_or(BUFFER).min(BUFFER));
            match read(&mut self.buffer[..most]) {
                Ok(0) => return false,
                Ok(count) => {
                    self.put(count);
                    left = left.saturating_sub(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Takes these bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let room = self.room(bytes.len());
        if room > 0 {
            self.kept += self.place.keep(&bytes[..room]) as u64;
        }
    }

    /// Keeps the beginning of the buffer, if there is room for it.
    fn put(&mut self, count: usize) {
        let room = self.room(count);
        if room > 0 {
            self.kept += self.place.keep(&self.buffer[..room]) as u64;
        }
    }

    /// Counts so many bytes, and says for how many of them there is room.
    fn room(&mut self, count: usize) -> usize {
        // What there was no room for ends what is kept: an output with a hole would be a lie.
        let room = if self.kept == self.printed { self.limit.saturating_sub(self.kept) } else { 0 };
        self.printed += count as u64;
        count.min(usize::try_from(room).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has room for so many bytes at a time.
    struct Narrow(Vec<u8>, Vec<usize>);

    impl Keep for Narrow {
        fn keep(&mut self, bytes: &[u8]) -> usize {
            let count = self.1.pop().unwrap_or(0).min(bytes.len());
            self.0.keep(&bytes[..count])
        }
    }

    #[test]
    fn what_is_kept_is_the_beginning_without_a_hole() {
        // The limit, the room at each time, and what is kept of "abcdef" in three pieces.
        for (limit, room, expected) in [
            (9, [9, 9, 9], "abcdef"),
            (3, [9, 9, 9], "abc"),
            (0, [9, 9, 9], ""),
            (9, [2, 1, 9], "abc"),
            (9, [0, 9, 9], ""),
        ] {
            let rooms = room.into_iter().rev().collect();
            let mut sink = Sink::new(Narrow(Vec::new(), rooms), limit);
            for piece in ["ab", "cd", "ef"] {
                let more = sink.take(
                    |buffer| {
                        buffer[..2].copy_from_slice(piece.as_bytes());
                        Ok(2)
                    },
                    None,
                );
                assert!(more);
            }
            assert_eq!(sink.place.0, expected.as_bytes(), "{limit} {room:?}");
            assert_eq!((sink.printed, sink.kept), (6, expected.len() as u64), "{limit} {room:?}");
        }
    }

    #[test]
    fn no_more_is_taken_than_was_asked_for() {
        let mut endless = |buffer: &mut [u8]| {
            buffer.fill(b'x');
            Ok(buffer.len())
        };
        let mut sink = Sink::new(Vec::new(), 10);
        let much = 3 * BUFFER as u64 + 7;
        assert!(sink.take(&mut endless, Some(much)));
        assert_eq!((sink.printed, sink.kept, sink.place.len()), (much, 10, 10));
        assert!(sink.take(&mut endless, Some(0)));
        assert_eq!(sink.printed, much);
        for (kind, more) in [(io::ErrorKind::WouldBlock, true), (io::ErrorKind::BrokenPipe, false)]
        {
            assert_eq!(sink.take(|_| Err(kind.into()), Some(1)), more);
        }
        assert!(!sink.take(|_| Ok(0), None));
    }
}
