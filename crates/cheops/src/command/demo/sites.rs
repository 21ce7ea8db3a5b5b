//! The agents of the demo as the [`World`] of a story: everything goes through their API.

use std::{
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{
    Answer, Resource, RunStatus, Show, Shown, SiteState, State, Submit,
};
use hyper::Method;

use super::player::World;
use crate::{
    client::{self, Address, Ask, Client, Next, Path},
    interrupt::Interrupt,
    report::{Exit, Failure},
    words,
};

/// How long anything in a story may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// How often is looked whether it is so far.
const LOOK: Duration = Duration::from_millis(50);

/// A client for each site.
pub(super) struct Sites {
    clients: Vec<(String, Client)>,
    interrupted: Interrupt,
}

impl Sites {
    pub(super) fn new(
        agents: Vec<(String, Address)>,
        interrupted: Interrupt,
    ) -> Result<Self, Failure> {
        let clients = agents.into_iter().map(|(site, agent)| Ok((site, Client::at(agent)?)));
        Ok(Self { clients: clients.collect::<Result<_, Failure>>()?, interrupted })
    }

    fn client(&self, site: &str) -> Result<&Client, Failure> {
        let client = self.clients.iter().find(|(name, _)| name == site).map(|(_, client)| client);
        client.ok_or_else(|| {
            Failure::new(Exit::Wrong, format!("the story names `{site}`, which is not there"))
        })
    }

    /// Looks again and again until all sites say that it is so far.
    fn wait(
        &self,
        what: &str,
        is_so: impl Fn(&str, &Client) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + DEADLINE;
        for (site, client) in &self.clients {
            while !is_so(site, client)? {
                self.interrupted.check()?;
                if Instant::now() > deadline {
                    let message =
                        format!("{what} has not happened at {site} within {}s", DEADLINE.as_secs());
                    return Err(Failure::new(Exit::Silent, message)
                        .hint("look at the log of the agent; --keep DIR keeps it"));
                }
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Tells every site something about all of its links.
    fn links(&self, verb: &str) -> Result<(), Failure> {
        for (site, client) in &self.clients {
            client.tell(Method::POST, &Path::api("sites").then(site).then(verb))?;
        }
        Ok(())
    }

    fn wait_for_links(&self, what: &str, is_so: impl Fn(SiteState) -> bool) -> Result<(), Failure> {
        self.wait(what, |_, client| {
            let known: cheops_agent::api::model::Sites = client.get(&Path::api("sites"))?;
            let mut others = known.sites.iter().filter(|site| site.state != SiteState::Here);
            Ok(others.all(|site| is_so(site.state)))
        })
    }
}

fn resource_path(id: &str) -> Path {
    Path::api("resources").then(id)
}

impl World for Sites {
    fn sites(&self) -> Vec<String> {
        self.clients.iter().map(|(site, _)| site.clone()).collect()
    }

    fn send(&mut self, site: &str, id: &str, submit: &Submit) -> Result<String, Failure> {
        let client = self.client(site)?;
        let path = resource_path(id).then("operations");
        let mut answers = client.lines::<Answer>(Ask::new(Method::POST, &path).json(submit)?)?;
        let failed = |why: String| {
            Failure::new(Exit::Wrong, format!("{site} has not run `{}`", submit.command))
                .caused_by(why)
        };
        let mut accepted = None;
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.next_within(left)? {
                Next::Line(Answer::Accepted { operation, .. }) => accepted = Some(operation),
                Next::Line(Answer::Reply(run)) if run.site == site => {
                    if run.status != RunStatus::Ok {
                        let output = run.output.unwrap_or_default();
                        return Err(failed(format!("{} {output}", words::word(run.status))));
                    }
                    return accepted.ok_or_else(|| failed("it was not accepted before".to_owned()));
                }
                Next::Line(Answer::Error(problem)) => {
                    return Err(client::told(Exit::Wrong, problem));
                }
                Next::Line(_) => {}
                Next::Nothing | Next::End => return Err(failed("there was no reply".to_owned())),
            }
        }
    }

    fn cut(&mut self) -> Result<(), Failure> {
        self.links("pause")?;
        self.wait_for_links("the cut", |state| state != SiteState::Reachable)
    }

    fn heal(&mut self) -> Result<(), Failure> {
        self.links("resume")?;
        self.wait_for_links("the end of the cut", |state| state == SiteState::Reachable)
    }

    fn settle(&mut self, id: &str, operations: usize) -> Result<(), Failure> {
        self.wait(&format!("agreement about {id}"), |_, client| {
            let resource: Resource = match client.get(&resource_path(id).query("local", Some(true)))
            {
                // A site that has not heard of it yet.
                Err(failure) if failure.is_unknown_resource() => return Ok(false),
                resource => resource?,
            };
            let summary = resource.summary;
            Ok(summary.state == State::Settled && summary.operation_count == operations)
        })
    }

    fn holds(&mut self, site: &str, id: &str) -> Result<String, Failure> {
        let show = Show { command: None, sites: Some(site.to_owned()) };
        let shown: Shown = self.client(site)?.post(&resource_path(id).then("show"), &show)?;
        Ok(match shown.sites.get(site) {
            Some(at) if at.status == "OK" => at.output.clone(),
            Some(at) => format!("{}: {}", at.status, at.output),
            None => "no answer".to_owned(),
        })
    }

    fn resource(&mut self, site: &str, id: &str) -> Result<Resource, Failure> {
        self.client(site)?.get(&resource_path(id).query("local", Some(true)))
    }
}
