//! Plays a story, and compares what happens with what the story expects.
//!
//! It knows the sites as a [`World`] only, so that it can be tried without agents. What must stay
//! true: a difference is told where it is found, and the rest is played all the same; the exit
//! status is 0 only if there was none.

use std::collections::BTreeMap;

use cheops_agent::api::model::{Fate, Operation, Resource, Submit};
use serde_json::Value;

use super::story::{Holds, Order, PLACE, Step, Story};
use crate::{
    report::{Exit, Failure, clean},
    table::{Cell, Table},
    words::{BAD, BOLD, GOOD, NONE},
};

/// The sites, as a story needs them.
pub(super) trait World {
    /// The names of all sites.
    fn sites(&self) -> Vec<String>;

    /// Sends an operation to a site, and waits until it has run there; the operation's id.
    fn send(&mut self, site: &str, id: &str, submit: &Submit) -> Result<String, Failure>;

    /// Cuts all links, and waits until no site can reach another.
    fn cut(&mut self) -> Result<(), Failure>;

    /// Restores all links, and waits until every site can reach every other.
    fn heal(&mut self) -> Result<(), Failure>;

    /// Waits until every site knows so many operations and says that all have run the block.
    fn settle(&mut self, id: &str, operations: usize) -> Result<(), Failure>;

    /// What a site holds of a resource, asked of that site alone.
    fn holds(&mut self, site: &str, id: &str) -> Result<String, Failure>;

    /// What a site knows of a resource.
    fn resource(&mut self, site: &str, id: &str) -> Result<Resource, Failure>;
}

/// Plays stories.
pub(super) struct Player<'a, W, P> {
    world: &'a mut W,
    print: P,
    /// How many differences there were.
    wrong: usize,
}

impl<'a, W: World, P: FnMut(&str) -> Result<(), Failure>> Player<'a, W, P> {
    pub(super) fn new(world: &'a mut W, print: P) -> Self {
        Self { world, print, wrong: 0 }
    }

    pub(super) fn play(mut self, stories: &[Story]) -> Result<Exit, Failure> {
        for story in stories {
            self.story(story)?;
        }
        if self.wrong == 0 {
            let sites = self.world.sites().len();
            self.say(&format!("{GOOD}All {sites} sites agree with what was expected.{GOOD:#}"))?;
            Ok(Exit::Fine)
        } else {
            let wrong = self.wrong;
            self.say(&format!("{BAD}Not as expected: {wrong} of the tables above.{BAD:#}"))?;
            Ok(Exit::Wrong)
        }
    }

    fn say(&mut self, line: &str) -> Result<(), Failure> {
        (self.print)(&format!("{line}\n"))
    }

    fn story(&mut self, story: &Story) -> Result<(), Failure> {
        self.say(&format!("{BOLD}{}{BOLD:#}\n{}\n", story.title, story.about))?;
        let mut sent: BTreeMap<&str, String> = BTreeMap::new();
        for step in story.steps {
            match step {
                Step::Send(order) => {
                    let operation = self.send(story, order, sent.is_empty())?;
                    sent.insert(order.name, operation);
                }
                Step::Cut => {
                    self.world.cut()?;
                    self.say("  all links are cut")?;
                }
                Step::Heal => {
                    self.world.heal()?;
                    self.say("  the links are back")?;
                }
                Step::Settle => self.world.settle(story.id, sent.len())?,
                Step::Holds(holds) => self.holds(story, *holds)?,
                Step::Dropped(names) => self.dropped(story, &sent, names)?,
            }
        }
        Ok(())
    }

    fn send(&mut self, story: &Story, order: &Order, is_first: bool) -> Result<String, Failure> {
        let config: Option<Value> =
            is_first.then(|| serde_json::from_str(story.config)).transpose().map_err(|error| {
                Failure::new(Exit::Wrong, "the story has no valid configuration").caused_by(error)
            })?;
        let submit = Submit {
            command: order.command.to_owned(),
            kind: Some(order.kind.to_owned()),
            sites: is_first.then(|| PLACE.to_owned()),
            config,
            author: Some("tour".to_owned()),
            ..Submit::default()
        };
        let operation = self.world.send(order.at, story.id, &submit)?;
        let told =
            format!("  {} accepts {}  {} ({})", order.at, operation, order.command, order.kind);
        self.say(&clean(&told))?;
        Ok(operation)
    }

    /// A table of what each site holds, and whether that was expected.
    fn holds(&mut self, story: &Story, expected: Holds) -> Result<(), Failure> {
        let mut table = Table::new(["SITE", "HOLDS", "EXPECTED"]).indented(4);
        let mut as_expected = true;
        for site in self.world.sites() {
            let held = self.world.holds(&site, story.id)?;
            let held = held.trim().replace('\n', " ");
            let is_right = held == expected.at(&site);
            as_expected &= is_right;
            let style = if is_right { GOOD } else { BAD };
            table.row([Cell::from(&site), Cell::styled(&held, style), expected.at(&site).into()]);
        }
        self.wrong += usize::from(!as_expected);
        (self.print)(&format!("\n{}\n", table.render()))
    }

    /// The receipts, as every site has them.
    fn dropped(
        &mut self,
        story: &Story,
        sent: &BTreeMap<&str, String>,
        names: &[&str],
    ) -> Result<(), Failure> {
        let name_of = |id: &str| {
            sent.iter()
                .find(|(_, operation)| *operation == id)
                .map_or(id, |(&name, _)| name)
                .to_owned()
        };
        let mut expected: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        expected.sort();
        let mut as_expected = true;
        let mut table = Table::new(["NOT IN THE BLOCK", "BY", "WHY"]).indented(4);
        for (n, site) in self.world.sites().into_iter().enumerate() {
            let resource = self.world.resource(&site, story.id)?;
            let is_dropped = |operation: &&Operation| operation.fate != Fate::Kept;
            let dropped: Vec<&Operation> = resource.operations.iter().filter(is_dropped).collect();
            let mut found: Vec<String> =
                dropped.iter().map(|operation| name_of(&operation.id)).collect();
            found.sort();
            as_expected &= found == expected;
            if n > 0 {
                continue;
            }
            for operation in dropped {
                let receipt = operation.receipt.as_ref();
                let by = receipt.and_then(|receipt| receipt.by.as_deref());
                let by = by.map_or(NONE.to_owned(), |by| format!("{} ({by})", name_of(by)));
                table.row([
                    format!("{} ({})", name_of(&operation.id), operation.id).into(),
                    by.into(),
                    receipt.map_or(NONE, |receipt| receipt.why.as_str()).into(),
                ]);
            }
        }
        let rows = if table.is_empty() {
            "    all operations are in the block\n".to_owned()
        } else {
            table.render()
        };
        (self.print)(&format!("{rows}\n"))?;
        if !as_expected {
            self.wrong += 1;
            self.say(&format!(
                "    {BAD}expected to be dropped, at every site: {}{BAD:#}\n",
                expected.join(", ")
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cheops_agent::api::model::{ResourceSummary, State};

    use super::*;
    use crate::command::demo::story::STORIES;

    /// Sites that do what the story says, except where a test spoils it.
    struct Scripted {
        story: usize,
        step: usize,
        sent: Vec<(String, String, Submit)>,
        spoil: Option<(&'static str, &'static str)>,
        dropped_too_many: bool,
        calls: Vec<&'static str>,
    }

    impl Scripted {
        fn new() -> Self {
            Self {
                story: 0,
                step: 0,
                sent: Vec::new(),
                spoil: None,
                dropped_too_many: false,
                calls: Vec::new(),
            }
        }

        fn story(id: &str) -> &'static Story {
            STORIES.iter().find(|story| story.id == id).unwrap()
        }
    }

    impl World for Scripted {
        fn sites(&self) -> Vec<String> {
            ["site1", "site2", "site3"].map(str::to_owned).to_vec()
        }

        fn send(&mut self, site: &str, id: &str, submit: &Submit) -> Result<String, Failure> {
            if submit.config.is_some() {
                self.step = 0;
                self.story += 1;
            }
            self.calls.push("send");
            self.sent.push((site.to_owned(), id.to_owned(), submit.clone()));
            Ok(format!("{site}:{}", self.sent.len()))
        }

        fn cut(&mut self) -> Result<(), Failure> {
            self.calls.push("cut");
            Ok(())
        }

        fn heal(&mut self) -> Result<(), Failure> {
            self.calls.push("heal");
            Ok(())
        }

        fn settle(&mut self, id: &str, operations: usize) -> Result<(), Failure> {
            let sent = self.sent.iter().filter(|(_, of, _)| of == id).count();
            assert_eq!(operations, sent);
            self.calls.push("settle");
            Ok(())
        }

        fn holds(&mut self, site: &str, id: &str) -> Result<String, Failure> {
            // Each table asks all sites, so every third question is about the next one.
            let tables: Vec<Holds> = Self::story(id)
                .steps
                .iter()
                .filter_map(|step| match step {
                    Step::Holds(holds) => Some(*holds),
                    _ => None,
                })
                .collect();
            let table = tables[self.step / 3];
            self.step += 1;
            match self.spoil {
                Some((of, at)) if of == id && at == site && self.step > 6 => {
                    Ok("spoilt\n".to_owned())
                }
                _ => Ok(table.at(site).replace(' ', "\n") + "\n"),
            }
        }

        fn resource(&mut self, _site: &str, id: &str) -> Result<Resource, Failure> {
            let story = Self::story(id);
            let names = story.steps.iter().find_map(|step| match step {
                Step::Dropped(names) => Some(*names),
                _ => None,
            });
            let of_story = self.sent.iter().enumerate().filter(|(_, (_, of, _))| of == id);
            let orders = story.steps.iter().filter_map(|step| match step {
                Step::Send(order) => Some(order.name),
                _ => None,
            });
            let operations = of_story.zip(orders).map(|((n, (site, _, submit)), name)| {
                let dropped = names.unwrap().contains(&name) || self.dropped_too_many;
                Operation {
                    id: format!("{site}:{}", n + 1),
                    kind: submit.kind.clone().unwrap(),
                    author: "tour".to_owned(),
                    at: "2026-01-01T00:00:00Z".to_owned(),
                    parents: Vec::new(),
                    command: submit.command.clone(),
                    files: Vec::new(),
                    reset: false,
                    request: false,
                    keep_going: false,
                    key: None,
                    fate: if dropped { Fate::Fallen } else { Fate::Kept },
                    place: None,
                    receipt: None,
                    runs: Vec::new(),
                }
            });
            Ok(Resource {
                operations: operations.collect(),
                summary: ResourceSummary {
                    id: id.to_owned(),
                    state: State::Settled,
                    deleting: false,
                    sites: self.sites(),
                    removed: Vec::new(),
                    parts: Vec::new(),
                    operation_count: 4,
                    block_length: 2,
                    updated: None,
                },
                seen_by: "site1".to_owned(),
                config: Value::Null,
                block_ids: Vec::new(),
                version: BTreeMap::new(),
                by_site: Vec::new(),
            })
        }
    }

    fn played(world: &mut Scripted) -> (Exit, String) {
        let mut text = String::new();
        let print = |part: &str| {
            text += part;
            Ok(())
        };
        let exit = Player::new(world, print).play(STORIES).unwrap();
        (exit, anstream::adapter::strip_str(&text).to_string())
    }

    #[test]
    fn sites_that_do_as_expected_are_a_success() {
        let mut world = Scripted::new();
        let (exit, text) = played(&mut world);
        assert_eq!(exit, Exit::Fine, "{text}");
        assert!(text.ends_with("All 3 sites agree with what was expected.\n"), "{text}");
        let once = ["send", "settle", "cut", "send", "send", "send", "heal", "settle"];
        assert_eq!(world.calls, once.repeat(STORIES.len()));
        let first = &world.sent[0].2;
        assert_eq!(first.sites.as_deref(), Some(PLACE));
        assert!(first.config.as_ref().unwrap()["Show"].is_string());
        assert!(world.sent[1].2.config.is_none() && world.sent[1].2.sites.is_none());
    }

    #[test]
    fn a_site_that_holds_something_else_is_told_and_is_a_failure() {
        let mut world = Scripted { spoil: Some(("counter", "site2")), ..Scripted::new() };
        let (exit, text) = played(&mut world);
        assert_eq!(exit, Exit::Wrong);
        assert!(text.contains("site2   spoilt   29"), "{text}");
        assert!(text.ends_with("Not as expected: 1 of the tables above.\n"), "{text}");
        assert_eq!(world.story, STORIES.len(), "the rest is played all the same");
    }

    #[test]
    fn receipts_that_were_not_expected_are_a_failure() {
        let mut world = Scripted { dropped_too_many: true, ..Scripted::new() };
        let (exit, text) = played(&mut world);
        assert_eq!(exit, Exit::Wrong);
        assert!(text.contains("expected to be dropped, at every site: inc -12, inc 13"), "{text}");
    }
}
