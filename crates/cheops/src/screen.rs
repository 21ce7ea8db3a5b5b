//! Standard output: the one place that writes to it. What is said beside a result goes to standard
//! error.
//!
//! What must stay true: colours reach a terminal and nothing else; a reader that has seen enough
//! (`| head`) is not a failure; a result that can't be written is not one that was refused, since
//! what was asked for may be done. A verb that goes on for ever asks [`is_closed`] whether it still
//! has one.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::report::{Exit, Failure, clean};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Writes text, with colours if a terminal reads it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes bytes as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Says something beside the result.
pub(crate) fn note(text: &str) {
    // With standard error closed there is nobody left to tell.
    let _ = anstream::stderr().write_all((clean(text) + "\n").as_bytes());
}

/// Whether a person reads along.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether nobody reads any more: the other end of the pipe, or the terminal, is gone.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed) || has_hung_up()
}

fn has_hung_up() -> bool {
    let stdout = io::stdout();
    let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut ends, Some(&Timespec::default())).is_ok() && ends[0].revents().intersects(gone)
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error)
            if error.kind() == io::ErrorKind::BrokenPipe
                || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
                    && has_hung_up() =>
        {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(Failure::new(Exit::Wrong, "cannot write the result")
            .caused_by(error)
            .hint("is the disk full?")),
        Ok(()) => Ok(()),
    }
}
