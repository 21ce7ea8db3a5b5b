//! Tells how an operation goes while it goes.
//!
//! On a terminal each site has a line that changes from waiting to running to how it went; to a file
//! or a pipe goes one line for each reply as it comes. What must stay true: what is said at the end
//! does not depend on which of the two it was; nothing that is asked beside keeps a reply from being
//! shown, or Ctrl-C from being heard.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use anstream::{AutoStream, ColorChoice};
use cheops_agent::api::model::{Answer, Run};
use futures_util::future::Either;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::answers::{Asked, Tally};
use crate::{
    client::{Ask, Client, Next},
    command::{
        Outcome, Output,
        running::{self, Running},
    },
    printed::Printed,
    report::{Exit, Failure, clean, clean_lines},
    screen, shell,
    table::{padded, widest},
    words,
};

/// How much longer than asked for an agent may take to say that the time is over.
const GRACE: Duration = Duration::from_secs(15);

/// When to look why some sites have not answered yet.
const LOOK: Duration = Duration::from_secs(2);

/// The most sites that have a line of their own on a terminal.
const LIVE: usize = 40;

/// Sends a request that makes an operation, and tells how it goes.
pub(crate) fn follow(
    client: &Client,
    request: Ask<'_>,
    asked: Asked<'_>,
    output: Output,
) -> Result<Outcome, Failure> {
    let patience = asked.wait.saturating_add(GRACE);
    let lines = client.lines::<Answer>(request.within(patience));
    let mut lines = lines.map_err(|failure| unknown_if_interrupted(failure, asked))?;
    let mut tally = Tally::new(asked);
    let mut display = Display::new(output);
    let deadline = Instant::now() + patience;
    let mut look_at = look_after(output).map(|pause| Instant::now() + pause);
    let mut look = None;
    while !tally.is_done() {
        let until = look_at.map_or(deadline, |look_at| look_at.min(deadline));
        let left = until.saturating_duration_since(Instant::now());
        let heard = match &mut look {
            Some(look) => lines.next_or(left, look),
            None => lines.next_within(left).map(Either::Left),
        };
        match heard {
            Ok(Either::Left(Next::Line(answer))) => {
                let is_idle = asked.wait.is_zero() && matches!(answer, Answer::Timeout { .. });
                let told = answer.clone();
                tally.take(answer)?;
                if !is_idle {
                    display.tell(&told, &tally)?;
                }
            }
            Ok(Either::Left(Next::Nothing)) if Instant::now() < deadline => {
                if look_at.take().is_some() {
                    look = Some(Box::pin(running::look(client, asked.id, &tally.open_sites())));
                }
            }
            Ok(Either::Right(runs)) => {
                look = None;
                let open = tally.open_sites();
                let is_behind = |running: &&Running| {
                    open.contains(&running.site.as_str()) && !tally.is_about(&running.operation)
                };
                let mut behind = runs.iter().filter(is_behind);
                behind.try_for_each(|running| display.behind(running, &tally))?;
            }
            Ok(Either::Left(Next::Nothing)) => break,
            Ok(Either::Left(Next::End)) => {
                tally.broke_off();
                break;
            }
            Err(failure) if failure.exit() == Exit::Interrupted => {
                display.end();
                let Some(said) = tally.left() else {
                    return Err(unknown_if_interrupted(failure, asked));
                };
                screen::note(&said);
                return Ok(Outcome::silent(Exit::Interrupted));
            }
            // What was accepted is kept, so the rest can be looked up.
            Err(failure) if tally.is_accepted() && failure.exit() == Exit::Unreachable => {
                tally.broke_off();
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    if !tally.is_accepted() {
        return Err(Failure::new(
            Exit::Silent,
            "the agent has not said whether it accepted the operation",
        )
        .hint(look_first(asked)));
    }
    let told_before = tally.silent_sites().len();
    tally.give_up();
    if tally.silent_sites().len() > told_before {
        let sites = tally.silent_sites().into_iter().map(str::to_owned).collect();
        display.tell(&Answer::Timeout { sites }, &tally)?;
    }
    display.spare(&tally)?;
    display.end();
    let text = if output.is_text() {
        let silent = if tally.is_broken() { Vec::new() } else { tally.silent_sites() };
        let runs = running::sentences(&running::at(client, asked.id, &silent));
        let runs: String = runs.into_iter().map(|line| line + "\n").collect();
        tally.summary() + &runs
    } else {
        output.write(&tally.submitted())?
    };
    Ok(Outcome { text, exit: tally.exit() })
}

/// When to look why some sites have not answered; never if nobody would be told.
fn look_after(output: Output) -> Option<Duration> {
    output.is_text().then_some(LOOK)
}

/// Whoever did not wait until the agent accepted an operation can't know whether it did.
fn unknown_if_interrupted(failure: Failure, asked: Asked<'_>) -> Failure {
    if failure.exit() != Exit::Interrupted {
        return failure;
    }
    let message = "interrupted before the agent said whether it accepted the operation";
    Failure::new(Exit::Interrupted, message).hint(look_first(asked))
}

/// What to do if nobody knows whether an operation was accepted.
fn look_first(asked: Asked<'_>) -> String {
    let id = shell::last(asked.id.as_str());
    format!(
        "look with `cheops get operations {id}` before you send it again, or send it with --key"
    )
}

/// Where the progress is told.
enum Display {
    /// Nowhere: a program reads the result.
    None,
    /// One line for each reply.
    Plain { wide: bool },
    /// A line for each site that changes.
    Live(Live),
}

struct Live {
    lines: MultiProgress,
    sites: Vec<(String, ProgressBar)>,
}

impl Display {
    fn new(output: Output) -> Self {
        if !output.is_text() {
            return Self::None;
        }
        if output == Output::Table && screen::is_terminal() && io::stderr().is_terminal() {
            return Self::Live(Live { lines: MultiProgress::new(), sites: Vec::new() });
        }
        Self::Plain { wide: output == Output::Wide }
    }

    fn tell(&mut self, answer: &Answer, tally: &Tally<'_>) -> Result<(), Failure> {
        match (&mut *self, answer) {
            (Self::Live(_), Answer::Accepted { sites, .. }) if sites.len() > LIVE => {
                *self = Self::Plain { wide: false };
                Ok(())
            }
            (Self::Live(live), _) => {
                live.tell(answer, tally);
                Ok(())
            }
            (Self::Plain { wide }, answer) => screen::print(&plain(answer, tally, *wide)),
            (Self::None, _) => Ok(()),
        }
    }

    /// Tells what a site runs while the operation waits there.
    fn behind(&mut self, running: &Running, tally: &Tally<'_>) -> Result<(), Failure> {
        let brief = running.brief();
        match self {
            Self::None => {}
            Self::Live(live) => {
                if let Some(line) = live.line(&running.site) {
                    line.set_message(format!("waiting: RUNNING {brief} ·"));
                }
            }
            Self::Plain { .. } => {
                let width = widest(tally.sites().iter().map(String::as_str));
                let (site, style) = (padded(&running.site, width), words::OPEN);
                screen::print(&format!("{site}  {style}RUNNING{style:#}  {brief}\n"))?;
            }
        }
        Ok(())
    }

    /// Tells of the sites that nobody waits for any more.
    fn spare(&mut self, tally: &Tally<'_>) -> Result<(), Failure> {
        let style = words::OPEN;
        let told = format!("{style}VOID{style:#}");
        match self {
            Self::None => {}
            Self::Live(live) => {
                tally.spared_sites().into_iter().for_each(|site| live.finish(site, told.clone()));
            }
            Self::Plain { .. } => {
                let width = widest(tally.sites().iter().map(String::as_str));
                let spared = tally.spared_sites().into_iter();
                let lines = spared.map(|site| format!("{}  {told}\n", padded(site, width)));
                screen::print(&lines.collect::<String>())?;
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Self::Live(live) = self {
            live.end("no reply");
        }
    }
}

/// An answer as a line: `site1  OK  12ms  output`.
fn plain(answer: &Answer, tally: &Tally<'_>, wide: bool) -> String {
    let width = widest(tally.sites().iter().map(String::as_str));
    match answer {
        Answer::Reply(run) => {
            let mut text = format!("{}  {}\n", padded(&run.site, width), told(run, tally, !wide));
            if wide {
                let printed = Printed::by(run);
                let rest = printed.rest(Some(&tally.fetch(&run.site)));
                let lines = clean_lines(printed.text).chain(rest.map(|rest| clean(&rest)));
                text.extend(lines.map(|line| format!("    {line}\n")));
            }
            text
        }
        Answer::Timeout { sites } => {
            let style = words::OPEN;
            let line =
                |site: &String| format!("{}  {style}TIMEOUT{style:#}\n", padded(site, width));
            sites.iter().map(line).collect::<Vec<_>>().concat()
        }
        _ => String::new(),
    }
}

/// How a run went: status, time, and the start of what it printed.
fn told(run: &Run, tally: &Tally<'_>, with_output: bool) -> String {
    let style = words::run_style(run.status);
    let printed = Printed::by(run);
    let status = clean(&printed.status(&words::word(run.status)));
    let mut parts = vec![format!("{style}{status}{style:#}")];
    parts.extend(run.took_ms.map(words::took));
    let output = clean(&printed.line(Some(&tally.fetch(&run.site))));
    if with_output && !output.is_empty() {
        parts.push(output);
    }
    parts.join("  ")
}

impl Live {
    fn tell(&mut self, answer: &Answer, tally: &Tally<'_>) {
        match answer {
            Answer::Accepted { sites, .. } => {
                let width = widest(sites.iter().map(String::as_str));
                for site in sites {
                    let line = self.lines.add(ProgressBar::new_spinner());
                    if let Ok(style) = ProgressStyle::with_template("{prefix}  {msg} {elapsed}") {
                        line.set_style(style);
                    }
                    line.set_prefix(padded(site, width));
                    line.set_message("waiting");
                    line.enable_steady_tick(Duration::from_millis(200));
                    self.sites.push((site.clone(), line));
                }
            }
            Answer::Running { site } => {
                if let Some(line) = self.line(site) {
                    line.set_message("running");
                }
            }
            Answer::Reply(run) => self.finish(&run.site, told(run, tally, true)),
            Answer::Timeout { sites } => {
                let style = words::OPEN;
                for site in sites {
                    self.finish(site, format!("{style}TIMEOUT{style:#}"));
                }
            }
            Answer::Superseded { .. } => self.end("set aside"),
            Answer::Done | Answer::Error(_) => {}
        }
    }

    fn line(&self, site: &str) -> Option<&ProgressBar> {
        self.sites.iter().find(|(name, _)| name == site).map(|(_, line)| line)
    }

    /// Ends the lines that have not ended, with a word for why.
    fn end(&self, why: &str) {
        for (site, _) in self.sites.iter().filter(|(_, line)| !line.is_finished()) {
            self.finish(site, why.to_owned());
        }
    }

    fn finish(&self, site: &str, message: String) {
        let Some(line) = self.line(site) else { return };
        let colours = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        let message =
            if colours { message } else { anstream::adapter::strip_str(&message).to_string() };
        if let Ok(style) = ProgressStyle::with_template("{prefix}  {msg}") {
            line.set_style(style);
        }
        line.disable_steady_tick();
        line.abandon_with_message(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_asked_what_they_run_only_if_someone_is_told() {
        for output in [Output::Table, Output::Wide] {
            assert_eq!(look_after(output), Some(LOOK), "{output:?}");
        }
        for output in [Output::Json, Output::Yaml, Output::Name] {
            assert_eq!(look_after(output), None, "{output:?}");
        }
    }
}
