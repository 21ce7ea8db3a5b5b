//! Stories that an operator can read, and what must come of them: one text file a case, in
//! `tests/fixtures`. Its README explains the format.
//!
//! A story is played by real replicas on virtual sites. At each `expect`, what the sites know and
//! what their applications have seen is written in the words of the file, and compared with it.
//! Whatever the file says, sites that know the same must say the same, and while no link is cut
//! they must all know the same.
//!
//! `FIXTURE=name` plays the files whose names contain that. `UPDATE=1` writes what came out into
//! the files that fail, so that a person reviews the difference.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use cheops_core::{
    duration,
    id::{OpId, ResourceId, SiteId, Sites},
    log::Ix,
    matrix::{Concurrent, Config, Entry, Matrix, Take},
    operation::{Action, Operation},
    plan::Outcome,
    replica::{
        Answer, Effect, Input, Replica, Resource, Settings, State, Submission, Ticket, Version,
    },
    resolve::Receipt,
    time::{Millis, Now},
};
use support::world::{App, Weather, World};

/// Each line of a story happens this long after the one before.
const A_LINE: u64 = 1_000;
/// How long an `expect` waits for the sites to come to rest.
const A_REST: u64 = 60_000;
/// A command ends at once, for a person.
const AT_ONCE: u64 = 1;

/// What is wrong with a file, and in which line, from 1.
#[derive(Debug, PartialEq)]
struct Problem {
    line: usize,
    what: String,
}

type Read<T> = Result<T, String>;

// ------------------------------------------------------------------------------------------------
// The application
// ------------------------------------------------------------------------------------------------

/// A number or a text, at one site, and what it has seen.
#[derive(Debug, Default, Clone, PartialEq)]
struct Value {
    site: String,
    text: String,
    seen: Vec<Seen>,
}

#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Run(OpId, Outcome),
    Clear,
}

/// What the application can do.
const VERBS: [&str; 6] = ["set", "apply", "inc", "dec", "append", "add"];

/// Stands between a command and the sites that it fails at; everywhere if none are named.
const FAILS: &str = " # fails at";

impl Value {
    /// The text after a command; nothing if it fails, and then nothing has changed.
    fn after(&self, line: &str) -> Option<String> {
        let (command, failing) = line.split_once(FAILS).unwrap_or((line, "nowhere"));
        if failing.is_empty() || failing.split_whitespace().any(|site| site == self.site) {
            return None;
        }
        let (verb, argument) = command.split_once(' ')?;
        let number = if self.text.is_empty() { Ok(0) } else { self.text.parse::<i64>() };
        match verb {
            "set" | "apply" => Some(argument.to_owned()),
            "append" | "add" => Some(format!("{} {argument}", self.text).trim().to_owned()),
            "inc" => Some((number.ok()? + argument.parse::<i64>().ok()?).to_string()),
            "dec" => {
                let less = number.ok()? - argument.parse::<i64>().ok()?;
                (less >= 0).then(|| less.to_string())
            }
            _ => None,
        }
    }
}

impl App for Value {
    fn run(&mut self, op: &Operation) -> Outcome {
        let Action::Command { line, .. } = &op.action else { return Outcome::Ko };
        let after = self.after(line);
        let outcome = if after.is_some() { Outcome::Ok } else { Outcome::Ko };
        self.text = after.unwrap_or_else(|| std::mem::take(&mut self.text));
        self.seen.push(Seen::Run(op.id.clone(), outcome));
        outcome
    }

    fn clear(&mut self) {
        self.text.clear();
        self.seen.push(Seen::Clear);
    }
}

// ------------------------------------------------------------------------------------------------
// The text format
// ------------------------------------------------------------------------------------------------

/// A file, read.
#[derive(Debug, Default)]
struct Fixture {
    sites: Vec<SiteId>,
    /// Where the resource is created, unless a line says otherwise.
    on: Vec<SiteId>,
    /// Configurations by name; the one without a name is the one that the resource is created with.
    configs: BTreeMap<String, Config>,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    line: usize,
    act: Act,
}

#[derive(Debug)]
enum Act {
    Ask(Ask),
    CutAll,
    CutApart(Vec<Vec<usize>>),
    CutOneWay(usize, usize),
    Heal,
    Crash(usize),
    PowerCut { site: usize, took_effect: bool },
    Clock(usize, i64),
    Wait(u64),
    CommandsTake(u64),
    Expect(Expect),
}

/// An operator's request to a site.
#[derive(Debug)]
struct Ask {
    /// At the same moment as the line before.
    together: bool,
    site: usize,
    name: String,
    command: String,
    kind: String,
    author: String,
    config: Option<String>,
    on: Option<Vec<SiteId>>,
    force: bool,
    keep_going: bool,
    refused: bool,
}

#[derive(Debug)]
struct Expect {
    at_once: bool,
    /// The raw lines of the file that belong to it, counted from 0.
    body: std::ops::Range<usize>,
    /// Without comments and spare blanks.
    lines: Vec<String>,
    aspects: BTreeSet<Aspect>,
}

/// What can be expected something of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Operations,
    Sites,
    Config,
    Block,
    Dropped,
    Runs,
    Replies,
    Value,
    State,
}

impl Aspect {
    const ALL: [(&'static str, Self); 9] = [
        ("operations", Self::Operations),
        ("sites", Self::Sites),
        ("config", Self::Config),
        ("block", Self::Block),
        ("dropped", Self::Dropped),
        ("runs", Self::Runs),
        ("replies", Self::Replies),
        ("value", Self::Value),
        ("state", Self::State),
    ];

    /// What is written for an `expect` that names nothing.
    const USUAL: [Self; 5] = [Self::Block, Self::Dropped, Self::Runs, Self::Value, Self::State];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, aspect)| *aspect == self).map_or("", |(word, _)| word)
    }

    /// The aspect that a line of an `expect` is about: the first word that names one.
    fn of(line: &str) -> Option<Self> {
        line.split(' ').find_map(|word| Self::ALL.iter().find(|(name, _)| *name == word))
            .map(|(_, aspect)| *aspect)
    }
}

/// A line without its comment and spare blanks.
fn plain(line: &str) -> String {
    let text = if line.starts_with('#') { "" } else { line };
    let text = text.split(" #").next().unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read(text: &str) -> Result<Fixture, Problem> {
    let raw: Vec<&str> = text.lines().collect();
    let mut fixture = Fixture::default();
    let mut next = 0;
    while next < raw.len() {
        let (line, at) = (plain(raw[next]), next + 1);
        let problem = |what: String| Problem { line: at, what };
        next += 1;
        if line.is_empty() {
            continue;
        }
        if raw[at - 1].starts_with(' ') {
            return Err(problem("an indented line belongs to `matrix` or `expect`".to_owned()));
        }
        // The indented lines that follow, with blank lines and comments between them.
        let body_from = next;
        let is_body = |line: &&str| line.starts_with(' ') || plain(line).is_empty();
        next += raw[next..].iter().take_while(|line| is_body(line)).count();
        while next > body_from && !raw[next - 1].starts_with(' ') {
            next -= 1;
        }
        let body = body_from..next;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let word = word.trim_end_matches(',');
        if body.is_empty() || matches!(word, "matrix" | "expect") {
            fixture.read_line(word, rest, at, body, &raw)?;
        } else {
            return Err(Problem {
                line: body_from + 1,
                what: format!("`{word}` has no indented lines"),
            });
        }
    }
    match &fixture {
        Fixture { sites, .. } if sites.is_empty() => {
            Err(Problem { line: 1, what: "there is no `sites` line".to_owned() })
        }
        Fixture { steps, .. } if !steps.iter().any(|s| matches!(s.act, Act::Expect(_))) => {
            Err(Problem { line: raw.len(), what: "nothing is expected: add `expect`".to_owned() })
        }
        _ => Ok(fixture),
    }
}

impl Fixture {
    fn read_line(
        &mut self,
        word: &str,
        rest: &str,
        line: usize,
        body: std::ops::Range<usize>,
        raw: &[&str],
    ) -> Result<(), Problem> {
        let problem = |what: String| Problem { line, what };
        let act = match word {
            "sites" => {
                self.sites = names(rest).map_err(problem)?;
                if self.on.is_empty() {
                    self.on.clone_from(&self.sites);
                }
                return Ok(());
            }
            "resource" => {
                let on = rest.strip_prefix("on ").ok_or("`resource on site1 site2`".to_owned());
                self.on = on.and_then(|on| self.known(on)).map_err(problem)?;
                return Ok(());
            }
            "matrix" => {
                let (name, config) = matrix(rest, body, raw, line)?;
                self.configs.insert(name, config);
                return Ok(());
            }
            "expect" => Act::Expect(expect(rest, body, raw, line)?),
            "cut" => self.cut(rest).map_err(problem)?,
            "heal" => Act::Heal,
            "crash" => Act::Crash(self.site(rest).map_err(problem)?),
            "power" => self.power_cut(rest).map_err(problem)?,
            "clock" => self.clock(rest).map_err(problem)?,
            "wait" => Act::Wait(span(rest).map_err(problem)?),
            "commands" => {
                let take = rest.strip_prefix("take ").ok_or("`commands take 5s`".to_owned());
                Act::CommandsTake(take.and_then(span).map_err(problem)?)
            }
            "and" => {
                let (site, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                Act::Ask(self.ask(site, rest, true).map_err(problem)?)
            }
            site => Act::Ask(self.ask(site, rest, false).map_err(problem)?),
        };
        self.steps.push(Step { line, act });
        Ok(())
    }

    fn site(&self, name: &str) -> Read<usize> {
        self.sites.iter().position(|site| site.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = self.sites.iter().map(SiteId::as_str).collect();
            format!("`{name}` is neither a site ({}) nor a word that starts a line", known.join(" "))
        })
    }

    fn known(&self, list: &str) -> Read<Vec<SiteId>> {
        list.split(' ').map(|name| self.site(name).map(|n| self.sites[n].clone())).collect()
    }

    fn cut(&self, rest: &str) -> Read<Act> {
        if rest == "all" {
            return Ok(Act::CutAll);
        }
        if let Some((from, to)) = rest.split_once(" -> ") {
            return Ok(Act::CutOneWay(self.site(from)?, self.site(to)?));
        }
        let group = |group: &str| group.split(' ').map(|name| self.site(name)).collect();
        let groups: Vec<Vec<usize>> = rest.split(" | ").map(group).collect::<Read<_>>()?;
        if groups.len() < 2 {
            return Err("`cut all`, `cut site1 | site2 site3` or `cut site1 -> site2`".to_owned());
        }
        Ok(Act::CutApart(groups))
    }

    fn power_cut(&self, rest: &str) -> Read<Act> {
        let usage = "`power cut site1, before the command took effect`, or `after`";
        let parts = rest.strip_prefix("cut ").and_then(|rest| rest.split_once(", "));
        let (site, when) = parts.ok_or(usage)?;
        let took_effect = match when {
            "before the command took effect" => false,
            "after the command took effect" => true,
            _ => return Err(usage.to_owned()),
        };
        Ok(Act::PowerCut { site: self.site(site)?, took_effect })
    }

    fn clock(&self, rest: &str) -> Read<Act> {
        let (site, skew) = rest.split_once(' ').ok_or("`clock site1 -2h`")?;
        let (sign, length) = match (skew.strip_prefix('-'), skew.strip_prefix('+')) {
            (Some(length), _) => (-1, length),
            (_, Some(length)) => (1, length),
            _ => return Err("how far a clock is off begins with + or -".to_owned()),
        };
        let length = i64::try_from(span(length)?).map_err(|error| error.to_string())?;
        Ok(Act::Clock(self.site(site)?, sign * length))
    }

    /// `set 5 as a, force, kind put`
    fn ask(&self, site: &str, rest: &str, together: bool) -> Read<Ask> {
        let site = self.site(site)?;
        let mut parts = rest.split(", ");
        let first = parts.next().unwrap_or("");
        let (command, name) =
            first.split_once(" as ").ok_or("a command has a name: `site1 set 5 as a`")?;
        let verb = command.split(' ').next().unwrap_or("");
        if !VERBS.contains(&verb) || verb == command {
            return Err(format!("`{command}`: a command is one of {} and a value", VERBS.join(" ")));
        }
        if name.contains(' ') {
            return Err(format!("`{name}`: a name is one word; a comma comes before what follows"));
        }
        let mut ask = Ask {
            together,
            site,
            name: name.to_owned(),
            command: command.to_owned(),
            kind: verb.to_owned(),
            author: "operator".to_owned(),
            config: None,
            on: None,
            force: false,
            keep_going: false,
            refused: false,
        };
        for part in parts {
            match part.split_once(' ').unwrap_or((part, "")) {
                ("force", "") => ask.force = true,
                ("keep-going", "") => ask.keep_going = true,
                ("refused", "") => ask.refused = true,
                ("fails", "") => ask.command += FAILS,
                ("fails", at) => {
                    let sites = at.strip_prefix("at ").ok_or("`fails` or `fails at site2`")?;
                    self.known(sites)?;
                    ask.command += &format!("{FAILS} {sites}");
                }
                ("kind", kind) => kind.clone_into(&mut ask.kind),
                ("by", author) => author.clone_into(&mut ask.author),
                ("on", sites) => ask.on = Some(self.known(sites)?),
                ("matrix", name) if self.configs.contains_key(name) => {
                    ask.config = Some(name.to_owned());
                }
                _ => {
                    return Err(format!(
                        "`{part}` is none of: force, keep-going, refused, fails [at SITES], kind KIND, \
                         by AUTHOR, on SITES, matrix NAME (one that is defined above)"
                    ));
                }
            }
        }
        Ok(ask)
    }
}

fn names(list: &str) -> Read<Vec<SiteId>> {
    let site = |name: &str| {
        if Aspect::of(name).is_some() {
            return Err(format!("`{name}` has a meaning of its own here"));
        }
        name.parse::<SiteId>().map_err(|error| error.to_string())
    };
    list.split(' ').map(site).collect()
}

/// A span of time in milliseconds.
fn span(text: &str) -> Read<u64> {
    let span = duration::parse(text).map_err(|_| format!("`{text}`: {}", duration::HINT))?;
    u64::try_from(span.as_millis()).map_err(|error| error.to_string())
}

/// `matrix [NAME][, with Reset[ and Check]]`, and its entries.
fn matrix(
    rest: &str,
    body: std::ops::Range<usize>,
    raw: &[&str],
    line: usize,
) -> Result<(String, Config), Problem> {
    let (name, with) = match rest.split_once("with ") {
        Some((name, with)) => (name.trim_end_matches([' ', ',']), with),
        None => (rest, ""),
    };
    let mut config = Config::default();
    for word in with.split(" and ").filter(|word| !word.is_empty()) {
        match word {
            "Reset" => config.reset = Some("clear".to_owned()),
            "Check" => config.check = Some("check".to_owned()),
            _ => {
                let what = format!("`{word}` is neither Reset nor Check");
                return Err(Problem { line, what });
            }
        }
    }
    let mut entries = Vec::new();
    for n in body {
        let text = plain(raw[n]);
        if !text.is_empty() {
            entries.push(entry(&text).map_err(|what| Problem { line: n + 1, what })?);
        }
    }
    config.matrix =
        Matrix::new(entries).map_err(|error| Problem { line, what: error.to_string() })?;
    Ok((name.to_owned(), config))
}

/// `set then inc: take-both-keep-order, concurrent take-both`
fn entry(text: &str) -> Read<Entry> {
    let usage = "an entry reads `set then inc: take-one` or `…, concurrent take-both`";
    let (pair, words) = text.split_once(": ").ok_or(usage)?;
    let (before, after) = pair.split_once(" then ").ok_or(usage)?;
    let (result, concurrent) = match words.split_once(", ") {
        Some((result, more)) => (result, Some(more.strip_prefix("concurrent ").ok_or(usage)?)),
        None => (words, None),
    };
    Ok(Entry {
        before: before.parse().map_err(|_| format!("`{before}` is not a kind"))?,
        after: after.parse().map_err(|_| format!("`{after}` is not a kind"))?,
        result: word(result, &Take::WORDS)?,
        concurrent: concurrent.map(|text| word(text, &Concurrent::WORDS)).transpose()?,
    })
}

fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Read<T> {
    words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("`{text}` is none of: {}", words.join(", "))
    })
}

fn expect(
    rest: &str,
    body: std::ops::Range<usize>,
    raw: &[&str],
    line: usize,
) -> Result<Expect, Problem> {
    let at_once = match rest {
        "" => false,
        "at once" => true,
        _ => return Err(Problem { line, what: "`expect` or `expect at once`".to_owned() }),
    };
    let (mut lines, mut aspects) = (Vec::new(), BTreeSet::new());
    for n in body.clone() {
        let text = plain(raw[n]);
        if text.is_empty() {
            continue;
        }
        let Some(aspect) = Aspect::of(&text) else {
            let words = Aspect::ALL.map(|(word, _)| word).join(", ");
            let what = format!("a line that is expected has one of these words: {words}");
            return Err(Problem { line: n + 1, what });
        };
        aspects.insert(aspect);
        lines.push(text);
    }
    if aspects.is_empty() {
        aspects.extend(Aspect::USUAL);
    }
    Ok(Expect { at_once, body, lines, aspects })
}

// ------------------------------------------------------------------------------------------------
// The stage
// ------------------------------------------------------------------------------------------------

/// A story while it is played.
struct Stage<'a> {
    fixture: &'a Fixture,
    world: World<Value>,
    settings: Settings,
    resource: ResourceId,
    /// The operations, in the order of the story.
    ops: Vec<(String, OpId)>,
    links_are_cut: bool,
}

impl<'a> Stage<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        let settings = Settings::default();
        let mut world = World::new(&fixture.sites, 1, Weather::calm(), settings.clone());
        let resource: ResourceId = "resource".parse().unwrap();
        for site in &mut world.sites {
            let value = Value { site: site.name.to_string(), ..Value::default() };
            site.apps.insert(resource.clone(), value);
        }
        world.introduce_all();
        Self { fixture, world, settings, resource, ops: Vec::new(), links_are_cut: false }
    }

    /// Plays the story. Returns what each `expect` found.
    fn play(&mut self) -> Result<Vec<Vec<String>>, Problem> {
        let mut found = Vec::new();
        for step in &self.fixture.steps {
            let together = matches!(step.act, Act::Ask(Ask { together: true, .. }));
            if !together {
                self.world.run_for(A_LINE);
            }
            let problem = |what: String| Problem { line: step.line, what };
            if let Act::Expect(expect) = &step.act {
                if !expect.at_once {
                    self.world.run_for(A_REST);
                    self.sites_agree().map_err(problem)?;
                }
                let aspects = expect.aspects.iter();
                found.push(aspects.flat_map(|&aspect| self.describe(aspect)).collect());
            } else {
                self.act(&step.act).map_err(problem)?;
            }
        }
        Ok(found)
    }

    fn act(&mut self, act: &Act) -> Read<()> {
        let world = &mut self.world;
        match act {
            Act::Ask(ask) => self.ask(ask)?,
            Act::CutAll => {
                self.links_are_cut = true;
                let each: Vec<Vec<usize>> = (0..world.sites.len()).map(|n| vec![n]).collect();
                world.partition(&each);
            }
            Act::CutApart(groups) => {
                self.links_are_cut = true;
                world.partition(groups);
            }
            Act::CutOneWay(from, to) => {
                self.links_are_cut = true;
                world.cut(*from, *to);
            }
            Act::Heal => {
                self.links_are_cut = false;
                world.heal_all();
            }
            Act::Crash(site) => world.crash(*site, false),
            Act::PowerCut { site, took_effect } => self.power_cut(*site, *took_effect)?,
            Act::Clock(site, skew) => world.sites[*site].skew = *skew,
            Act::Wait(span) => world.run_for(*span),
            Act::CommandsTake(span) => world.weather.run = (*span, *span),
            Act::Expect(_) => {}
        }
        Ok(())
    }

    fn ask(&mut self, ask: &Ask) -> Read<()> {
        if self.ops.iter().any(|(name, _)| *name == ask.name) {
            return Err(format!("there is a `{}` already", ask.name));
        }
        let config = match &ask.config {
            Some(name) => self.fixture.configs.get(name),
            None if self.at(ask.site).is_none() => self.fixture.configs.get(""),
            None => None,
        };
        let sites = ask.on.as_ref().unwrap_or(&self.fixture.on);
        let submission = Submission {
            ticket: Ticket(0),
            resource: self.resource.clone(),
            sites: Some(Sites::new(sites.iter().cloned()).map_err(|error| error.to_string())?),
            config: config.cloned(),
            kind: ask.kind.parse().map_err(|_| format!("`{}` is not a kind", ask.kind))?,
            author: ask.author.parse().map_err(|_| format!("`{}` has no name", ask.author))?,
            action: Action::command(ask.command.clone()),
            force: ask.force,
            keep_going: ask.keep_going,
            wait: Millis(A_REST),
        };
        let ticket = self.world.submit(ask.site, submission).ok_or("the site is down")?;
        match (self.world.answers.get(&ticket).and_then(|answers| answers.first()), ask.refused) {
            (Some(Answer::Accepted(id)), false) => self.ops.push((ask.name.clone(), id.clone())),
            (Some(Answer::Accepted(_)), true) => return Err("it was not refused".to_owned()),
            (Some(Answer::Refused(_)), true) => {}
            (answer, _) => return Err(format!("it was not accepted: {answer:?}")),
        }
        Ok(())
    }

    /// Cuts the power of a site during a run. Whether the command had taken effect is for the
    /// story to say, and for a `Check` command to find out.
    fn power_cut(&mut self, n: usize, took_effect: bool) -> Read<()> {
        if self.at(n).is_none_or(Resource::is_idle) {
            return Err("no command is running there: `commands take 5s` makes them last".to_owned());
        }
        let (_, op, _) = self.world.sites[n].runs.last().ok_or("nothing was run there")?.clone();
        let mut value = self.world.app(n, &self.resource);
        if took_effect {
            value.run(&op);
        }
        self.world.crash(n, true);
        let site = &mut self.world.sites[n];
        site.apps.insert(self.resource.clone(), value);

        // The world starts the site again after a while; unless it will ask a `Check` command,
        // which only this story can answer.
        let now = Now { wall: Millis(0), steady: Millis(self.world.now) };
        let disk = site.disk.clone();
        let mut replica = Replica::restore(site.name.clone(), self.settings.clone(), disk);
        let mut effects = replica.handle(Input::Started, now);
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Recall(run) => effects.extend(replica.handle(Input::Lost(run), now)),
                Effect::Check { run, .. } => {
                    self.world.sites[n].replica = Some(replica);
                    self.world.input(n, Input::Checked { run, happened: took_effect });
                    for other in (0..self.world.sites.len()).filter(|&other| other != n) {
                        self.world.introduce(n, other);
                    }
                    break;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a site knows of the resource.
    fn at(&self, n: usize) -> Option<&Resource> {
        self.world.sites[n].replica.as_ref()?.resource(&self.resource)
    }

    /// What must hold in every story: who knows the same says the same; while no link is cut all
    /// know the same; and only the resource's sites know of it.
    fn sites_agree(&self) -> Read<()> {
        let mut known: BTreeMap<Version, (usize, Vec<String>)> = BTreeMap::new();
        for n in 0..self.world.sites.len() {
            let Some(resource) = self.at(n) else { continue };
            let name = &self.world.sites[n].name;
            if !resource.sites().contains(name) {
                return Err(format!("{name} knows of a resource that is not for it"));
            }
            let says = [
                Aspect::Operations,
                Aspect::Sites,
                Aspect::Config,
                Aspect::Block,
                Aspect::Dropped,
                Aspect::Replies,
            ];
            let says: Vec<String> =
                says.into_iter().flat_map(|aspect| self.look(aspect, n)).collect();
            let (other, same) = known.entry(resource.version()).or_insert((n, says.clone()));
            if *same != says {
                let other = &self.world.sites[*other].name;
                return Err(format!(
                    "{other} and {name} know the same and say\n  {}\n  {}",
                    same.join("; "),
                    says.join("; ")
                ));
            }
        }
        if known.len() > 1 && !self.links_are_cut {
            return Err(format!("no link is cut and the sites don't know the same: {known:?}"));
        }
        Ok(())
    }

    /// The sites of the resource, as far as anyone knows.
    fn holders(&self) -> Vec<usize> {
        let sites = &self.world.sites;
        let knows = |resource: &Resource, n: usize| resource.sites().contains(&sites[n].name);
        let anyone = |n: usize| {
            (0..sites.len()).any(|other| self.at(other).is_some_and(|known| knows(known, n)))
        };
        (0..sites.len()).filter(|&n| anyone(n)).collect()
    }

    /// What there is to say about something; once where all sites say the same.
    fn describe(&self, aspect: Aspect) -> Vec<String> {
        let mut groups: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
        for n in self.holders() {
            let says = self.look(aspect, n);
            match groups.iter_mut().find(|(_, same)| *same == says) {
                Some((sites, _)) => sites.push(n),
                None => groups.push((vec![n], says)),
            }
        }
        let everywhere = groups.len() == 1;
        let mut lines = Vec::new();
        for (sites, says) in groups {
            let names: Vec<&str> = sites.iter().map(|&n| self.fixture.sites[n].as_str()).collect();
            let who = if everywhere { String::new() } else { names.join(" ") + " " };
            lines.extend(says.iter().map(|text| format!("{who}{} {text}", aspect.as_str())));
        }
        lines
    }

    /// What a site says about something.
    fn look(&self, aspect: Aspect, n: usize) -> Vec<String> {
        match aspect {
            Aspect::Runs => return vec![self.runs(n)],
            Aspect::Value => {
                let text = self.world.app(n, &self.resource).text;
                return vec![if text.is_empty() { "empty".to_owned() } else { text }];
            }
            _ => {}
        }
        if self.world.sites[n].replica.is_none() {
            return vec!["(the site is down)".to_owned()];
        }
        let Some(resource) = self.at(n) else { return vec!["(unknown here)".to_owned()] };
        let of_each = |say: &dyn Fn(&str, Ix) -> Option<String>| {
            let known =
                self.ops.iter().filter_map(|(name, id)| Some((name, resource.log().find(id)?)));
            known.filter_map(|(name, ix)| say(name, ix)).collect::<Vec<_>>()
        };
        let lines = match aspect {
            Aspect::Operations => of_each(&|name, ix| Some(self.operation(resource, name, ix))),
            Aspect::Sites => {
                vec![resource.sites().iter().map(SiteId::as_str).collect::<Vec<_>>().join(" ")]
            }
            Aspect::Config => vec![self.config(resource)],
            Aspect::Block => vec![self.names(resource.block().map(|op| &op.id), " ")],
            Aspect::Dropped => of_each(&|name, ix| self.receipt(resource, name, ix)),
            Aspect::Replies => of_each(&|name, ix| Some(replies(resource, name, ix))),
            Aspect::State => vec![state(resource)],
            Aspect::Runs | Aspect::Value => Vec::new(),
        };
        if lines.iter().all(String::is_empty) { vec!["none".to_owned()] } else { lines }
    }

    fn name(&self, id: &OpId) -> &str {
        self.ops.iter().find(|(_, other)| other == id).map_or("?", |(name, _)| name)
    }

    fn names<'b>(&self, ids: impl IntoIterator<Item = &'b OpId>, between: &str) -> String {
        ids.into_iter().map(|id| self.name(id)).collect::<Vec<_>>().join(between)
    }

    /// What the application has seen, in order.
    fn runs(&self, n: usize) -> String {
        let value = self.world.app(n, &self.resource);
        let mut before = BTreeSet::new();
        let mut runs = Vec::new();
        for seen in &value.seen {
            match seen {
                Seen::Clear => runs.push("(clear)".to_owned()),
                Seen::Run(id, outcome) => {
                    let again = !before.insert(id.clone());
                    let mark = match (again, outcome) {
                        (true, Outcome::Ko) => " (again, ko)",
                        (true, _) => " (again)",
                        (false, Outcome::Ko) => " (ko)",
                        (false, _) => "",
                    };
                    runs.push(format!("{}{mark}", self.name(id)));
                }
            }
        }
        if runs.is_empty() { "nothing".to_owned() } else { runs.join(", ") }
    }

    /// What an operation carries.
    fn operation(&self, resource: &Resource, name: &str, ix: Ix) -> String {
        let op = resource.log().op(ix);
        let Action::Command { line, .. } = &op.action else { return String::new() };
        let mut text = format!("{name}: {line} ({}) by {}, at {}", op.kind, op.author, op.id.site);
        // Only how the times of operations compare is for a person to see.
        let first = self.ops.iter().find_map(|(_, id)| resource.log().find(id));
        let start = first.map_or(0, |first| resource.log().op(first).at.wall().0);
        let since = op.at.wall().0.checked_signed_diff(start).unwrap_or(0);
        let ticks = op.at.to_bits() & 0xffff;
        let _ = write!(text, ", {since:+} ms");
        if ticks > 0 {
            let _ = write!(text, " and {ticks}");
        }
        if !op.parents.is_empty() {
            let _ = write!(text, ", after {}", self.names(&op.parents, " "));
        }
        if op.reset {
            text += ", resets";
        }
        text
    }

    fn config(&self, resource: &Resource) -> String {
        let found = self.fixture.configs.iter().find(|(_, config)| *config == resource.config());
        found.map_or("?", |(name, _)| if name.is_empty() { "the first matrix" } else { name }).into()
    }

    /// Why an operation is not in the block.
    fn receipt(&self, resource: &Resource, name: &str, ix: Ix) -> Option<String> {
        let log = resource.log();
        Some(match resource.resolution().receipt(log, ix)? {
            Receipt::Void => format!("{name}: void, it failed at {}", log.op(ix).id.site),
            Receipt::Over { by } => {
                format!("{name}: over, {} resets", self.name(&log.op(by).id))
            }
            Receipt::Fallen { by, row } => {
                let entries = resource.config().matrix.entries();
                let entry = row.and_then(|row| entries.get(row - 1)).map(told).unwrap_or_default();
                format!("{name}: fell to {} ({entry})", self.name(&log.op(by).id))
            }
        })
    }
}

/// An entry, as the file writes it.
fn told(entry: &Entry) -> String {
    let more = entry.concurrent.map(|word| format!(", concurrent {word}")).unwrap_or_default();
    format!("{} then {}: {}{more}", entry.before, entry.after, entry.result)
}

/// How an operation went at each site.
fn replies(resource: &Resource, name: &str, ix: Ix) -> String {
    let id = &resource.log().op(ix).id;
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for site in resource.sites().iter() {
        let word = match resource.reply(id, site).map(|reply| reply.outcome) {
            Some(Outcome::Ok) => "ok",
            Some(Outcome::Ko) => "ko",
            Some(Outcome::Unknown) => "unknown",
            None => "no reply",
        };
        groups.entry(word).or_default().push(site.as_str());
    }
    let one = groups.len() == 1;
    let group = |(word, sites): (&&str, &Vec<&str>)| {
        if one { format!("{word} everywhere") } else { format!("{word} at {}", sites.join(" ")) }
    };
    format!("{name}: {}", groups.iter().map(group).collect::<Vec<_>>().join(", "))
}

fn state(resource: &Resource) -> String {
    let word = match resource.state() {
        State::Settled => "settled",
        State::Pending => "pending",
        State::Failed => "failed",
        State::Diverged => "diverged",
    };
    let stuck = if resource.is_stuck() { ", needs a decision" } else { "" };
    format!("{word}{stuck}")
}

// ------------------------------------------------------------------------------------------------
// The tests
// ------------------------------------------------------------------------------------------------

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn stories() -> Vec<PathBuf> {
    let wanted = std::env::var("FIXTURE").unwrap_or_default();
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt") && name(path).contains(&wanted))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Plays a story. Nothing if all went as expected; else what did not, and the text as it would
/// be right.
fn play(path: &Path, text: &str) -> Option<(String, Option<String>)> {
    let problem = |Problem { line, what }| format!("{}:{line}: {what}\n", name(path));
    let fixture = match read(text) {
        Ok(fixture) => fixture,
        Err(found) => return Some((problem(found), None)),
    };
    let found = match Stage::new(&fixture).play() {
        Ok(found) => found,
        Err(found) => return Some((problem(found), None)),
    };
    let mut raw: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut report = String::new();
    let expects = fixture.steps.iter().filter_map(|step| match &step.act {
        Act::Expect(expect) => Some((step.line, expect)),
        _ => None,
    });
    // From the last on, so that the places of those before stay right.
    for ((line, expect), found) in expects.zip(&found).collect::<Vec<_>>().into_iter().rev() {
        if expect.lines != *found {
            let differs = difference(&expect.lines, found);
            report = format!("{}:{line}: expected (-) and found (+)\n{differs}{report}", name(path));
            let written = written(&raw[expect.body.clone()], found);
            raw.splice(expect.body.clone(), written);
        }
    }
    (!report.is_empty()).then(|| (report, Some(raw.join("\n") + "\n")))
}

fn difference(expected: &[String], found: &[String]) -> String {
    let gone = expected.iter().filter(|line| !found.contains(line)).map(|line| ('-', line));
    let here =
        found.iter().map(|line| (if expected.contains(line) { ' ' } else { '+' }, line));
    let mut text = String::new();
    for (mark, line) in gone.chain(here) {
        let _ = writeln!(text, "  {mark} {line}");
    }
    if expected.len() == found.len() && found.iter().all(|line| expected.contains(line)) {
        text += "  (the same lines, in another order)\n";
    }
    text
}

/// What was found as lines of a file. Lines that were right stay as they are, with their comments.
fn written(before: &[String], found: &[String]) -> Vec<String> {
    let comments = before.iter().filter(|line| line.trim_start().starts_with('#')).cloned();
    let lines = found.iter().map(|line| {
        if let Some(same) = before.iter().find(|old| plain(old) == *line) {
            return same.clone();
        }
        let aspect = Aspect::of(line).map_or("", Aspect::as_str);
        let (who, text) = line.split_once(aspect).unwrap_or(("", line));
        let head = format!("  {who}{aspect}");
        format!("{head:<12}{}{}", if head.len() < 12 { "" } else { " " }, text.trim_start())
    });
    comments.chain(lines).collect()
}

#[test]
fn every_story_ends_as_its_file_says() {
    let update = std::env::var("UPDATE").is_ok_and(|value| value == "1");
    let files = stories();
    assert!(!files.is_empty(), "no fixture has that name");
    let mut failed = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        if let Some((report, right)) = play(path, &text) {
            if let Some(right) = right.filter(|_| update) {
                fs::write(path, right).unwrap();
            }
            failed.push(report);
        }
    }
    let count = failed.len();
    let hint = if update { "They were rewritten where they could be." } else { "UPDATE=1 rewrites them." };
    assert!(failed.is_empty(), "{count} of {} failed. {hint}\n\n{}", files.len(), failed.join("\n"));
}

#[test]
fn the_readme_lists_every_story_once() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    for path in stories() {
        let name = name(&path);
        let count = readme.matches(&format!("({name})")).count();
        assert_eq!(count, 1, "{name} in README.md");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let start = "sites a b\nmatrix\n  set then set: take-one\n";
    for (text, line, part) in [
        ("", 1, "there is no `sites` line"),
        ("sites a\na set 1 as x\n", 2, "nothing is expected"),
        ("sites a\nmatrix\n  set, set: take-one\n", 3, "an entry reads"),
        ("sites a\nmatrix\n  set then set: take-two\n", 3, "take-both-agreed-order"),
        ("sites a\nc set 1 as x\n", 2, "`c` is neither a site (a)"),
        ("sites a\na set 1\n", 2, "a command has a name"),
        ("sites a\na put 1 as x\n", 2, "a command is one of set"),
        ("sites a\na set 1 as x, hard\n", 2, "`hard` is none of"),
        ("sites a\na set 1 as x\n  block x\n", 3, "`a` has no indented lines"),
        ("sites a\nexpect\n  nothing at all\n", 3, "has one of these words"),
        ("sites a\nclock a 2h\n", 2, "begins with + or -"),
        ("sites a\nwait long\n", 2, "a duration is a number and a unit"),
        ("sites a\ncut a\n", 2, "`cut all`"),
        ("sites block\n", 1, "has a meaning of its own"),
    ] {
        let problem = read(text).unwrap_err();
        assert_eq!(problem.line, line, "{text}{problem:?}");
        assert!(problem.what.contains(part), "{text}{problem:?}");
    }
    let story = format!("{start}a set 1 as x\na set 2 as x\nexpect\n  block x\n");
    let fixture = read(&story).unwrap();
    let problem = Stage::new(&fixture).play().unwrap_err();
    assert_eq!(problem, Problem { line: 5, what: "there is a `x` already".to_owned() });
}
