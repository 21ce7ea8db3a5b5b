//! What is known of an operation while its answers come in: a tally, and the last words about it.
//!
//! Pure: it takes answers and gives text, so that what an operator reads can be tested without an
//! agent.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cheops_agent::api::model::{Answer, Run, RunStatus, Submitted};
use cheops_core::{duration, id::ResourceId};

use super::accepted::Accepted;
use crate::{
    client,
    command::View,
    printed,
    report::{Exit, Failure, clean},
    shell, words,
};

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) id: &'a ResourceId,
    pub(crate) wait: Duration,
    /// It counts even if it fails at the site that receives it.
    pub(crate) keep_going: bool,
    /// Where whoever asked finds what was accepted, however the following ends.
    pub(crate) accepted: &'a OnceCell<Accepted>,
}

/// What is known so far.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    asked: Asked<'a>,
    operation: Option<String>,
    sites: Vec<String>,
    runs: BTreeMap<String, Run>,
    superseded_by: Option<String>,
    /// The agent has said that nothing more will come.
    done: bool,
    /// The agent broke off before it had said so.
    broken: bool,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(asked: Asked<'a>) -> Self {
        Self {
            asked,
            operation: None,
            sites: Vec::new(),
            runs: BTreeMap::new(),
            superseded_by: None,
            done: false,
            broken: false,
        }
    }

    /// Takes in an answer. One that tells of an error is a failure.
    pub(crate) fn take(&mut self, answer: Answer) -> Result<(), Failure> {
        match answer {
            Answer::Accepted { operation, sites } => {
                let accepted = Accepted { operation: operation.clone(), sites: sites.clone() };
                // An agent that accepts twice has said it once.
                let _ = self.asked.accepted.set(accepted);
                self.operation = Some(operation);
                self.sites = sites;
            }
            Answer::Running { .. } => {}
            Answer::Reply(run) => {
                self.runs.insert(run.site.clone(), run);
            }
            Answer::Superseded { by } => self.superseded_by = Some(by),
            // Who did not wait has not waited in vain.
            Answer::Timeout { .. } if self.asked.wait.is_zero() => {}
            Answer::Timeout { sites } => sites.into_iter().for_each(|site| self.silent(site)),
            Answer::Done => self.done = true,
            Answer::Error(problem) => {
                let exit = match client::exit_of(&problem.kind, problem.status) {
                    // What was accepted is not refused any more.
                    Exit::Refused if self.is_accepted() => Exit::Wrong,
                    exit => exit,
                };
                return Err(client::told(exit, problem));
            }
        }
        Ok(())
    }

    /// Nothing more will come. Unless the agent has said so itself, who has not answered is silent;
    /// it says so too when there is nothing left to wait for, as with an operation that is void.
    pub(crate) fn give_up(&mut self) {
        let is_open = !self.done && self.superseded_by.is_none();
        if is_open && !self.asked.wait.is_zero() {
            let silent: Vec<String> = self.open_sites().into_iter().map(str::to_owned).collect();
            for site in silent {
                self.silent(site);
            }
        }
    }

    /// The agent is gone; what was accepted is kept.
    pub(crate) fn broke_off(&mut self) {
        self.broken = true;
    }

    fn silent(&mut self, site: String) {
        self.runs.entry(site.clone()).or_insert(Run {
            site,
            status: RunStatus::Timeout,
            attempt: None,
            took_ms: None,
            output: None,
        });
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.operation.is_some()
    }

    /// What someone reads who does not wait for the rest; nothing if there is nothing accepted.
    pub(crate) fn left(&self) -> Option<String> {
        let operation = self.operation.as_deref()?;
        let (heard, all) = (self.runs.len(), self.site_count());
        Some(format!(
            "interrupted: {operation} was accepted and goes on; {heard} of {} answered so far. \
             Look at it with: cheops describe {}",
            words::count(all, "site"),
            shell::last(self.asked.id.as_str())
        ))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// The sites whose replies are waited for.
    pub(crate) fn sites(&self) -> &[String] {
        &self.sites
    }

    /// How many sites it is about: those that it was accepted for, and others that have answered.
    fn site_count(&self) -> usize {
        self.sites.iter().chain(self.runs.keys()).collect::<BTreeSet<_>>().len()
    }

    /// The command that fetches all that was printed at a site.
    pub(crate) fn fetch(&self, site: &str) -> String {
        printed::fetch(self.asked.id.as_str(), self.operation.as_deref().unwrap_or_default(), site)
    }

    /// Whether an operation is the one that is waited for.
    pub(crate) fn is_about(&self, operation: &str) -> bool {
        self.operation.as_deref() == Some(operation)
    }

    /// The agent broke off before all was known.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The sites that have not answered.
    pub(crate) fn open_sites(&self) -> Vec<&str> {
        let open = self.sites.iter().filter(|site| !self.runs.contains_key(*site));
        open.map(String::as_str).collect()
    }

    /// The sites that have said nothing in time.
    pub(crate) fn silent_sites(&self) -> Vec<&str> {
        self.with(RunStatus::Timeout)
    }

    /// The site that received the operation.
    fn origin(&self) -> &str {
        let operation = self.operation.as_deref().unwrap_or_default();
        operation.rsplit_once(':').map_or("", |(site, _)| site)
    }

    /// It failed at the site that received it, so it takes no part anywhere.
    fn is_void(&self) -> bool {
        let at_origin = self.runs.get(self.origin());
        !self.asked.keep_going && at_origin.is_some_and(|run| is_failure(run.status))
    }

    /// The sites that nobody waits for any more, since the operation is void.
    pub(crate) fn spared_sites(&self) -> Vec<&str> {
        if !self.is_void() {
            return Vec::new();
        }
        self.open_sites()
    }

    fn with(&self, status: RunStatus) -> Vec<&str> {
        let runs = self.runs.values().filter(|run| run.status == status);
        runs.map(|run| run.site.as_str()).collect()
    }

    pub(crate) fn exit(&self) -> Exit {
        let some = |status| self.runs.values().any(|run| run.status == status);
        if self.runs.values().any(|run| is_failure(run.status))
            || some(RunStatus::Unknown)
            || self.superseded_by.is_some()
        {
            Exit::Wrong
        } else if some(RunStatus::Timeout) {
            Exit::Silent
        } else {
            Exit::Fine
        }
    }

    /// The last words: how it went, and what to do if not all is well.
    pub(crate) fn summary(&self) -> String {
        let id = self.asked.id;
        let last = shell::last(id.as_str());
        let operation = self.operation.as_deref().unwrap_or("the operation");
        let (ok, all) = (self.with(RunStatus::Ok), self.site_count());
        let failed = self.with(RunStatus::Ko);
        let mut lines = vec![match (&self.superseded_by, ok.len()) {
            _ if self.is_void() => format!(
                "{id}: {operation} is void: it failed at {}, which received it, so it takes no part anywhere",
                self.origin()
            ),
            (None, 0) if failed.len() == all => {
                format!("{id}: {operation} failed on {}", words::everyone(&failed))
            }
            (Some(by), _) => format!("{id}: {operation} is set aside: {by} won"),
            (None, 0) if self.asked.wait.is_zero() && self.runs.is_empty() => {
                format!("{id}: {operation} is accepted; follow it with: cheops watch {last}")
            }
            (None, n) if n == all => {
                format!("{id}: {operation} is OK on {}", words::everyone(&ok))
            }
            (None, n) => format!("{id}: {operation} is OK on {n} of {}", words::count(all, "site")),
        }];
        if self.superseded_by.is_some() {
            lines.push(format!("why: cheops describe {last}"));
        }
        if self.is_void() {
            lines.push("correct the command and send it again".to_owned());
        } else if failed.len() == all {
            lines.push(format!("look with: cheops describe {last}"));
        } else if !failed.is_empty() {
            lines.push(format!(
                "{} failed; look with: cheops describe {last}",
                words::listed(&failed)
            ));
        }
        let denied = self.with(RunStatus::Denied);
        if !denied.is_empty() {
            lines.push(format!(
                "{} denied it; which rule did, and what to write: cheops describe {last}",
                words::listed(&denied)
            ));
        }
        let unknown = self.with(RunStatus::Unknown);
        if !unknown.is_empty() {
            lines.push(format!(
                "{} can't tell whether it took effect; look there, then repair with: cheops exec {} --force …",
                words::listed(&unknown),
                shell::option("--id", id.as_str())
            ));
        }
        let silent = self.silent_sites();
        if !silent.is_empty() && self.superseded_by.is_none() {
            let silent = words::listed(&silent);
            lines.push(if self.broken {
                format!(
                    "the agent broke off, so nothing was heard of {silent}; what was accepted is kept: cheops describe {last}"
                )
            } else {
                format!(
                    "{silent} did not answer within {}; the work goes on: cheops describe {last}",
                    duration::print(self.asked.wait)
                )
            });
        }
        lines.into_iter().map(|line| clean(&line) + "\n").collect()
    }

    /// All of it, for programs.
    pub(crate) fn submitted(&self) -> Submitted {
        Submitted {
            operation: self.operation.clone().unwrap_or_default(),
            runs: self.runs.values().cloned().collect(),
            superseded_by: self.superseded_by.clone(),
        }
    }
}

/// Whether a run has changed nothing.
fn is_failure(status: RunStatus) -> bool {
    matches!(status, RunStatus::Ko | RunStatus::Denied)
}

impl View for Submitted {
    fn text(&self, _wide: bool) -> String {
        String::new()
    }

    fn names(&self) -> Vec<String> {
        vec![format!("operation/{}", self.operation)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(site: &str, status: RunStatus) -> Answer {
        Answer::Reply(Run {
            site: site.into(),
            status,
            attempt: Some(1),
            took_ms: Some(1),
            output: None,
        })
    }

    fn accepted() -> Answer {
        let sites = ["site1", "site2", "site3"].map(str::to_owned).to_vec();
        Answer::Accepted { operation: "site1:7".into(), sites }
    }

    #[test]
    fn last_words_and_exit_status() {
        use RunStatus::{Ko, Ok, Unknown};
        let timeout = |site: &str| Answer::Timeout { sites: vec![site.into()] };
        for (answers, exit, expected) in [
            (
                vec![reply("site1", Ok), reply("site2", Ok), reply("site3", Ok)],
                Exit::Fine,
                "web: site1:7 is OK on site1, site2 and site3\n",
            ),
            (
                ["site1", "site2", "site3", "site4"].map(|site| reply(site, Ok)).to_vec(),
                Exit::Fine,
                "web: site1:7 is OK on site1, site2, site3 and site4\n",
            ),
            (
                ["site1", "site2", "site4"].map(|site| reply(site, Ok)).to_vec(),
                Exit::Silent,
                "web: site1:7 is OK on 3 of 4 sites\nsite3 did not answer within 30s; the work goes \
                 on: cheops describe web\n",
            ),
            (
                vec![reply("site1", Ok), reply("site2", Ko), reply("site3", Ok)],
                Exit::Wrong,
                "web: site1:7 is OK on 2 of 3 sites\nsite2 failed; look with: cheops describe web\n",
            ),
            (
                vec![reply("site1", Ko), Answer::Done],
                Exit::Wrong,
                "web: site1:7 is void: it failed at site1, which received it, so it takes no part \
                 anywhere\ncorrect the command and send it again\n",
            ),
            (
                vec![reply("site1", Ok)],
                Exit::Silent,
                "web: site1:7 is OK on 1 of 3 sites\nsite2 and site3 did not answer within 30s; the \
                 work goes on: cheops describe web\n",
            ),
            (
                vec![reply("site1", Ok), reply("site2", Ok), timeout("site3")],
                Exit::Silent,
                "web: site1:7 is OK on 2 of 3 sites\nsite3 did not answer within 30s; the work goes \
                 on: cheops describe web\n",
            ),
            (
                vec![reply("site1", Ok), reply("site2", Unknown), reply("site3", Ok)],
                Exit::Wrong,
                "web: site1:7 is OK on 2 of 3 sites\nsite2 can't tell whether it took effect; look \
                 there, then repair with: cheops exec --id web --force …\n",
            ),
            (
                vec![reply("site1", Ok), Answer::Superseded { by: "site2:7".into() }],
                Exit::Wrong,
                "web: site1:7 is set aside: site2:7 won\nwhy: cheops describe web\n",
            ),
        ] {
            let id = "web".parse().unwrap();
            let accepted = OnceCell::new();
            let tally = tally(&id, &accepted, false, answers);
            assert_eq!(tally.summary(), expected);
            assert_eq!(tally.exit(), exit, "{expected}");
        }
    }

    fn tally<'a>(
        id: &'a ResourceId,
        accepted_to: &'a OnceCell<Accepted>,
        keep_going: bool,
        answers: Vec<Answer>,
    ) -> Tally<'a> {
        let wait = Duration::from_secs(30);
        let mut tally = Tally::new(Asked { id, wait, keep_going, accepted: accepted_to });
        for answer in [vec![accepted()], answers].concat() {
            tally.take(answer).unwrap();
        }
        tally.give_up();
        tally
    }

    #[test]
    fn what_is_void_spares_the_others_and_what_counts_all_the_same_fails_everywhere() {
        let id = "web".parse().unwrap();
        let (first, second) = (OnceCell::new(), OnceCell::new());
        let ko = |site| reply(site, RunStatus::Ko);
        let void = tally(&id, &first, false, vec![ko("site1"), ko("site3"), Answer::Done]);
        assert_eq!(void.spared_sites(), ["site2"]);
        let all = [ko("site1"), ko("site2"), ko("site3"), Answer::Done].to_vec();
        let counts = tally(&id, &second, true, all);
        assert!(counts.spared_sites().is_empty());
        assert_eq!(
            counts.summary(),
            "web: site1:7 failed on site1, site2 and site3\nlook with: cheops describe web\n"
        );
    }
}
