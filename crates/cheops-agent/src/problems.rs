//! What needs a person at this site: found by looking, or noted when it happened.
//!
//! What must stay true: what is noted is bounded, and each problem says what to do next.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cheops_core::{
    id::{ResourceId, SiteId},
    operation::{Action, Operation},
    replica::{self, Replica},
};

use crate::{
    api::{
        Context,
        model::{Trouble, Urgency},
        view::rfc3339,
    },
    audit::{self, Damage},
    engine::Waiting,
    expiry,
    node::{Health, Stopping},
    peers::State as Reach,
    policy::Landlock,
    replicants::Replicant,
    run::answer,
    shell,
};

/// How many different refusals are remembered.
const MAX_NOTED: usize = 100;
/// How many operations that wait for a decision are listed.
const MAX_HELD: usize = 100;
/// How many resources with problems are listed.
const MAX_LISTED: usize = 1_000;

/// What was noted when it happened. A handle; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Noted(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    /// What each peer said that was not taken in, and how often.
    refused: BTreeMap<Refused, u64>,
    /// The same, the oldest first.
    order: VecDeque<Refused>,
    /// What could not be read when the agent started.
    damage: Vec<String>,
}

/// Something that a peer said and that was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Refused {
    from: SiteId,
    resource: Option<ResourceId>,
    why: String,
    urgency: Urgency,
    next: String,
}

impl Notes {
    /// Whether it is new.
    fn refuse(&mut self, refused: Refused) -> bool {
        if let Some(count) = self.refused.get_mut(&refused) {
            *count += 1;
            return false;
        }
        if self.order.len() == MAX_NOTED {
            self.make_room();
        }
        self.order.push_back(refused.clone());
        self.refused.insert(refused, 1);
        true
    }

    /// Drops the oldest of the peer that most is noted of, so that nobody hides what others did.
    fn make_room(&mut self) {
        let mut counts: BTreeMap<&SiteId, usize> = BTreeMap::new();
        for refused in &self.order {
            *counts.entry(&refused.from).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|&(_, count)| count);
        let most = most.map(|(site, _)| site.clone());
        let at = self.order.iter().position(|refused| Some(&refused.from) == most.as_ref());
        if let Some(oldest) = at.and_then(|at| self.order.remove(at)) {
            self.refused.remove(&oldest);
        }
    }
}

impl Noted {
    /// Notes that something a peer said was not taken in.
    pub fn refused(&self, from: &SiteId, resource: &ResourceId, why: &str) {
        self.lock().refuse(Refused {
            from: from.clone(),
            resource: Some(resource.clone()),
            why: why.to_owned(),
            urgency: Urgency::Medium,
            next: REFUSED.to_owned(),
        });
    }

    /// Notes that a peer said what it can't have meant well, and what to do. Whether it is the first time.
    pub fn doubted(
        &self,
        from: &SiteId,
        resource: Option<&ResourceId>,
        why: &str,
        next: &str,
    ) -> bool {
        self.lock().refuse(Refused {
            from: from.clone(),
            resource: resource.cloned(),
            why: why.to_owned(),
            urgency: Urgency::High,
            next: next.to_owned(),
        })
    }

    /// Notes that something in the store could not be read.
    pub fn damaged(&self, what: String) {
        let mut notes = self.lock();
        if notes.damage.len() < MAX_NOTED {
            notes.damage.push(what);
        }
    }

    /// All that was noted, as problems of this site.
    pub fn troubles(&self, here: &SiteId) -> Vec<Trouble> {
        let notes = self.lock();
        let damage = notes
            .damage
            .iter()
            .map(|what| trouble(Urgency::High, here, None, "damaged", what, DAMAGED));
        let refused = notes.refused.iter().map(|(refused, count)| {
            let Refused { from, resource, why, urgency, next } = refused;
            let of = resource.as_ref().map(|id| format!(" of `{id}`")).unwrap_or_default();
            let times = if *count == 1 { "once" } else { &format!("{count} times") };
            let text = format!("what `{from}` said{of} was not taken in, {times}: {why}");
            trouble(*urgency, here, resource.as_ref(), "refused", text, next)
        });
        damage.chain(refused).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const AWAY: &str = "what it misses is sent when it is back; if it stays away, look at its agent and at the network";
const DAMAGED: &str =
    "check the disk, or who else writes to CouchDB: what breaks once breaks again";
const REFUSED: &str = "see docs/operations.md, *Backup and restore*, if a site was restored from a backup, or the log of both agents";

pub(crate) fn trouble(
    urgency: Urgency,
    site: &SiteId,
    resource: Option<&ResourceId>,
    what: &str,
    text: impl Into<String>,
    next: impl Into<String>,
) -> Trouble {
    Trouble {
        urgency,
        site: site.to_string(),
        resource: resource.map(ToString::to_string),
        what: what.to_owned(),
        text: text.into(),
        next: next.into(),
    }
}

/// All problems of this site.
pub async fn here(context: &Context) -> Result<Vec<Trouble>, Stopping> {
    let site = context.here();
    let mut all = context.noted.troubles(site);
    all.extend(disk(site, &context.node.health()));
    all.extend(context.node.feed().waiting().map(|waiting| waits(site, &waiting)));
    all.extend(runs(site, context.runner.workload().stuck));
    all.extend(context.hooks.troubles());
    all.extend(unkept(site, context.gate.unkept()));
    all.extend(audit(site, &context.audit.how()));
    all.extend(access(context));
    all.extend(expiry::troubles(context));
    let removed_by = context.federation.removed_by();
    for peer in context.peers.view() {
        all.extend(link(site, &peer, removed_by.as_ref()));
        all.extend(clock(site, &peer));
        all.extend(doubled(site, &peer));
    }
    let here = site.clone();
    let withheld = move |replica: &Replica| {
        let known = |id: &ResourceId| replica.resource(id).is_some();
        let troubles = replica.withheld().take(MAX_LISTED);
        troubles.map(|id| withheld(&here, id, known(id))).collect::<Vec<_>>()
    };
    all.extend(context.node.read(withheld).await?);
    let here = site.clone();
    all.extend(context.node.read(move |replica| held(&here, replica)).await?);
    all.extend(removed_by.map(|by| told_out(site, &by)));
    all.extend(context.peers.members().shut_out().iter().map(|other| shut_out(site, other)));
    let (here, known) = (site.clone(), context.peers.sites());
    let look = move |replica: &Replica, resource: &replica::Resource, found: &mut Found| {
        if !replica.is_withheld(resource.id()) {
            found.troubles.extend(of(&here, resource));
        }
        let others = resource.present().filter(|&other| *other != here);
        for stranger in others.filter(|&other| !known.contains(other)) {
            *found.strangers.entry(stranger.clone()).or_default() += 1;
        }
        found.troubles.len() < MAX_LISTED
    };
    let found = Found { troubles: all, strangers: BTreeMap::new() };
    let Found { mut troubles, strangers } = context.node.walk(found, look).await?;
    troubles.extend(strangers.iter().map(|(stranger, count)| strange(site, stranger, *count)));
    Ok(troubles)
}

/// What a walk over the resources has found.
struct Found {
    troubles: Vec<Trouble>,
    /// Sites that resources name and that are not known here, and how many do.
    strangers: BTreeMap<SiteId, usize>,
}

fn strange(site: &SiteId, stranger: &SiteId, count: usize) -> Trouble {
    trouble(
        Urgency::Medium,
        site,
        None,
        "unknown-site",
        format!(
            "`{stranger}` is a site of {count} resources, and `{site}` does not know where it is"
        ),
        format!(
            "let it join (cheops token create), or add it to the configuration of `{site}` as a [[peer]]"
        ),
    )
}

fn disk(site: &SiteId, health: &Health) -> Option<Trouble> {
    let (text, next) = match health {
        Health::Well => return None,
        Health::Full { free } => (
            format!("the disk is full ({free} bytes are free): no operation is accepted"),
            "make room; the agent goes on by itself",
        ),
        Health::Stalled { why, away: false } => (
            format!("the agent can't write: {why}"),
            "look at the disk; it is tried again every second",
        ),
        Health::Stalled { why, away: true } => {
            let text = format!("the agent can't write: {why}");
            let next = "no operation is accepted until CouchDB takes what the agent writes: it is tried again every second";
            return Some(trouble(Urgency::High, site, None, "store", text, next));
        }
    };
    Some(trouble(Urgency::High, site, None, "disk", text, next))
}

/// What is accepted waits for CouchDB.
fn waits(site: &SiteId, waiting: &Waiting) -> Trouble {
    let Waiting { since, why, values, bytes, limit } = waiting;
    let since = rfc3339(*since);
    let text = format!(
        "{values} values wait in the local journal for CouchDB since {since}, {bytes} of {limit} bytes: {why}"
    );
    let next = "operations are accepted until the local journal is full; what waits is written when CouchDB is back";
    trouble(Urgency::High, site, None, "store", text, next)
}

fn runs(site: &SiteId, stuck: usize) -> Option<Trouble> {
    (stuck > 0).then(|| {
        trouble(
            Urgency::High,
            site,
            None,
            "stuck",
            format!("{stuck} commands can't be started"),
            "see the agent's log for why: usually a full disk or too many processes. They are tried again every second",
        )
    })
}

/// Rules about paths, where the kernel can't keep them.
fn unkept(site: &SiteId, rules: Option<(Vec<&str>, Landlock)>) -> Option<Trouble> {
    let (rules, landlock) = rules?;
    let rules = rules.join("`, `");
    let (urgency, text) = match landlock {
        Landlock::Required => (
            Urgency::High,
            format!("the kernel has no Landlock, so that what the rules `{rules}` allow is denied"),
        ),
        Landlock::BestEffort => (
            Urgency::Medium,
            format!(
                "the kernel has no Landlock, so that what the rules `{rules}` allow may touch every path"
            ),
        ),
    };
    let next = "use a kernel that has it (5.13 or later, with `landlock` among its `lsm`), or take `landlock` out of these rules";
    Some(trouble(urgency, site, None, "landlock", text, next))
}

fn audit(site: &SiteId, how: &audit::State) -> Vec<Trouble> {
    let high = |text: String, next: &str| trouble(Urgency::High, site, None, "audit", text, next);
    let failing = how.failing.as_ref().map(|why| {
        let text = format!("the audit of `{site}` can't be written: {why}");
        let next = if how.ended {
            "start the agent again: until then nothing is written, and its log says why"
        } else {
            "look at `audit` in the data directory; lines wait, and it is tried again"
        };
        high(text, next)
    });
    let unsigned = how.unsigned.as_ref().map(|why| {
        let text = format!("where the audit of `{site}` ends can't be signed: {why}");
        high(text, "look at `audit` in the data directory; it is tried again")
    });
    let found = how.found.map(|found| {
        let text = match found {
            Damage::Cut { from, to } => format!(
                "lines {from} to {to} of the audit of `{site}` are gone: somebody cut them off"
            ),
            Damage::Altered { n } => format!(
                "line {n} of the audit of `{site}` is not the one that was written: somebody changed it"
            ),
            Damage::Headless { n } => format!(
                "nothing said where the audit of `{site}` ended when the agent started: lines after {n} may have been cut off"
            ),
        };
        high(text, "find out who can write to its data directory: cheops audit --verify")
    });
    let lost = (how.lost > 0).then(|| {
        let text = format!(
            "{} lines of the audit of `{site}` are lost: they could not be written in time",
            how.lost
        );
        let next = "look at the disk; a line of the audit says where they are missing";
        trouble(Urgency::Medium, site, None, "audit", text, next)
    });
    [failing, unsigned, found, lost].into_iter().flatten().collect()
}

/// What is wrong with how the API is protected.
fn access(context: &Context) -> Vec<Trouble> {
    let mut all = Vec::new();
    let site = context.here();
    let mut add = |urgency, what, text: String, next: &str| {
        all.push(trouble(urgency, site, None, what, text, next));
    };
    let config = &context.config;
    if config.entry.insecure && config.is_wide() && context.certificate.is_none() {
        let text = "whoever reaches the API may run commands at all sites: `api.insecure_anyone_may_do_anything` is set";
        let next = "give the API a certificate, and people tokens: see docs/access.md";
        add(Urgency::High, "anyone", text.to_owned(), next);
    }
    all
}

fn clock(site: &SiteId, peer: &crate::peers::Peer) -> Option<Trouble> {
    let offset = peer.clock_offset.filter(|_| peer.clock_is_off())?;
    let (seconds, way) =
        (offset.unsigned_abs() / 1_000, if offset < 0 { "behind" } else { "ahead" });
    let name = &peer.site;
    Some(trouble(
        Urgency::Medium,
        site,
        None,
        "clock",
        format!("the clock of `{name}` is {seconds} s {way} of the one of `{site}`"),
        "set the clocks; until then the later of two concurrent operations may not be the one that people mean",
    ))
}

/// Two agents use the key of a site.
fn doubled(site: &SiteId, peer: &crate::peers::Peer) -> Option<Trouble> {
    let name = &peer.site;
    peer.is_doubled.then(|| {
        trouble(
            Urgency::High,
            site,
            None,
            "duplicate-key",
            format!(
                "two agents have the key of `{name}`: the link to it switches between them, and both give the same numbers to different operations"
            ),
            format!(
                "stop the agent that should not be there, for example one that was started from a copy of the data directory of `{name}`; then see which resources have diverged"
            ),
        )
    })
}

/// What hinders a link; for a site that was removed, as another says, it is that.
fn link(site: &SiteId, peer: &crate::peers::Peer, removed_by: Option<&SiteId>) -> Option<Trouble> {
    let name = &peer.site;
    match peer.state {
        Reach::Paused => Some(trouble(
            Urgency::Low,
            site,
            None,
            "paused",
            format!("the link to `{name}` is paused"),
            format!("when you have seen enough: cheops site resume {}", shell::last(name.as_str())),
        )),
        Reach::Unreachable => {
            let text = match &peer.error {
                Some(why) => why.clone(),
                None => format!("`{name}` can't be reached at {}", peer.address),
            };
            let next = removed_by.map_or_else(|| AWAY.to_owned(), |by| come_back(site, by));
            Some(trouble(Urgency::Medium, site, None, "unreachable", text, next))
        }
        Reach::Reachable => None,
    }
}

/// This site was removed, and has been told.
fn told_out(here: &SiteId, by: &SiteId) -> Trouble {
    trouble(
        Urgency::High,
        here,
        None,
        "removed",
        format!(
            "`{here}` was removed from the federation, says `{by}`: it goes on alone, and nobody takes what it records"
        ),
        format!(
            "{}; what it has recorded alone is held then, and you decide about each operation",
            come_back(here, by)
        ),
    )
}

/// A site was removed, and is in the configuration of this one.
fn shut_out(here: &SiteId, other: &SiteId) -> Trouble {
    trouble(
        Urgency::Medium,
        here,
        None,
        "removed-peer",
        format!(
            "`{other}` is in the configuration of `{here}`, and was removed from the federation: it is not let in by that, whatever its key"
        ),
        format!("{}; otherwise take it out of the configuration", come_back(other, here)),
    )
}

/// How a site comes back that was removed.
fn come_back(site: &SiteId, by: &SiteId) -> String {
    format!(
        "if `{site}` should come back: `cheops token create` at `{by}`, and `cheops join TOKEN` at `{site}`"
    )
}

/// Operations that were received here while this site was removed.
fn held(here: &SiteId, replica: &Replica) -> Vec<Trouble> {
    let one = |held: &replica::Held| {
        let Operation { resource, id, kind, author, .. } = &*held.op;
        trouble(
            Urgency::Medium,
            here,
            Some(resource),
            "held",
            format!(
                "{kind} {id} of `{resource}`, by {author}, was received at `{here}` while that was removed: the others do not have it, and it is out of the block"
            ),
            format!(
                "submit it again: cheops site adopt {resource} {}; or not: cheops site discard {resource} {}",
                shell::last(&id.to_string()),
                shell::last(&id.to_string())
            ),
        )
    };
    replica.held().take(MAX_HELD).map(one).collect()
}

/// A resource of which something is lost. If what created it is, nobody here knows its sites.
fn withheld(here: &SiteId, id: &ResourceId, known: bool) -> Trouble {
    let (text, next) = if known {
        (
            format!("something of `{id}` is lost at `{here}`, so that nothing of it is run there"),
            format!(
                "look at `cheops diff {id}` and at the application, then declare the state with an operation and --force"
            ),
        )
    } else {
        (
            format!(
                "what created `{id}` is lost at `{here}`, so that its sites are not known there and nothing of it is run"
            ),
            format!(
                "look at the application, then declare the state and the sites: cheops exec --id {id} --sites '…' --force --command …"
            ),
        )
    };
    trouble(Urgency::High, here, Some(id), "damaged", text, next)
}

/// The status with which the application has answered, if it has.
pub(crate) fn answered(reply: &replica::Reply) -> Option<u16> {
    answer::Answer::of_reply(&reply.output).map(|answer| answer.status)
}

/// How the state of a resource is declared anew: of one that is made of the application's requests, by
/// a request.
struct Remedy<'a> {
    id: &'a ResourceId,
    replicant: Option<Replicant>,
}

impl Remedy<'_> {
    /// Whatever has happened.
    fn of_all(&self) -> String {
        match &self.replicant {
            None => "then declare the state with an operation and --force".to_owned(),
            Some(replicant) => format!(
                "then send DELETE {} to the service `{}`, and create it again",
                replicant.path(),
                replicant.service
            ),
        }
    }

    /// What an operation has left at only some sites.
    fn of(&self, op: &Operation) -> String {
        match (&op.action, &self.replicant) {
            (Action::Http(request), Some(_)) if op.action.is_repeatable() => format!(
                "then send a PUT of the whole document to {}: it makes good what failed there",
                request.target
            ),
            (Action::Http(_), Some(_)) => format!(
                "{}: a POST is not sent again by itself, since it may have been carried out",
                self.of_all()
            ),
            _ => self.of_all(),
        }
    }

    fn compare(&self) -> String {
        match self.replicant {
            None => format!("compare: cheops diff {}", self.id),
            Some(_) => format!("see why: cheops describe {}", self.id),
        }
    }
}

/// What needs a person about a resource.
pub(crate) fn of(here: &SiteId, resource: &replica::Resource) -> Option<Trouble> {
    let id = resource.id();
    let remedy = Remedy { id, replicant: Replicant::of(resource) };
    if resource.is_contradicted() {
        let text = format!(
            "two sites of `{id}` know different records by the same number: a site was started from a copy or an old backup of its data, and their logs differ for good"
        );
        let next = format!(
            "stop the agent that should not be there, {}, and then delete `{id}` and create it again",
            remedy.compare()
        );
        return Some(trouble(Urgency::High, here, Some(id), "diverged", text, next));
    }
    if resource.is_stuck() {
        return Some(trouble(
            Urgency::High,
            here,
            Some(id),
            "needs-decision",
            format!(
                "something that was run at `{here}` has left the block of `{id}`, and there is no way back"
            ),
            format!("look at `cheops describe {id}`, {}", remedy.of_all()),
        ));
    }
    if let Some((op, site)) = resource.in_doubt() {
        let next = match remedy.replicant {
            Some(_) => format!("look there, {}", remedy.of_all()),
            None => format!(
                "look there, {}; a Check command in the configuration of `{id}` can tell by itself next time",
                remedy.of_all()
            ),
        };
        return Some(trouble(
            Urgency::High,
            here,
            Some(id),
            "unknown",
            format!("nobody knows whether operation {op} of `{id}` took effect at `{site}`"),
            next,
        ));
    }
    if let Some((op, site)) = resource.denied() {
        return Some(denied(here, resource, op, site, &remedy));
    }
    let (urgency, what, text, next) = match resource.state() {
        replica::State::Settled | replica::State::Pending | replica::State::Denied => return None,
        replica::State::Failed => (
            Urgency::Medium,
            "failed",
            if resource.block().next().is_none() {
                format!(
                    "all that was asked for of `{id}` failed where it was received, and is void"
                )
            } else {
                format!("what was asked for last of `{id}` has failed everywhere")
            },
            format!("see why: cheops describe {id}; then send a better one"),
        ),
        replica::State::Diverged if resource.replied() != replica::State::Diverged => (
            Urgency::High,
            "diverged",
            format!(
                "the sites of `{id}` have run the same, and `Show` prints different things or fails at some: the matrix is wrong, or somebody changed it from outside"
            ),
            format!("{}; {}", remedy.compare(), remedy.of_all()),
        ),
        replica::State::Diverged => {
            let (text, next) = match resource.apart() {
                Some((op, site)) => (failed_at(resource, op, site), remedy.of(op)),
                None => (
                    format!(
                        "a site of `{id}` has run what is not in the block, or what others never will"
                    ),
                    remedy.of_all(),
                ),
            };
            (Urgency::High, "diverged", text, format!("{}; {next}", remedy.compare()))
        }
    };
    Some(trouble(urgency, here, Some(id), what, text, next))
}

/// That the policy of a site does not let it run an operation. Nobody tries again by itself.
fn denied(
    here: &SiteId,
    resource: &replica::Resource,
    op: &Operation,
    site: &SiteId,
    remedy: &Remedy<'_>,
) -> Trouble {
    let id = resource.id();
    let said = resource.reply(&op.id, site).map(|reply| reply.output.clone()).unwrap_or_default();
    trouble(
        Urgency::High,
        here,
        Some(id),
        "denied",
        format!("`{site}` denied {} {} of `{id}`: {}", op.kind, op.id, said.trim_end()),
        format!(
            "if it should run there, allow it in the policy of `{site}` (docs/policy.md) and restart its agent; {}",
            remedy.of(op)
        ),
    )
}

/// That an operation went well at one site and failed at another.
fn failed_at(resource: &replica::Resource, op: &Operation, site: &SiteId) -> String {
    let status = resource.reply(&op.id, site).and_then(answered);
    let answered = status.map(|status| format!(" (answered {status})")).unwrap_or_default();
    let (kind, number, id) = (&op.kind, &op.id, resource.id());
    format!(
        "the sites of `{id}` differ: {kind} {number} failed at `{site}`{answered} and went well at another, and nothing has made it good since"
    )
}

#[cfg(test)]
pub(crate) mod tests;
