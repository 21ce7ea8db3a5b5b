//! Events, from what sites write and what they see.

use cheops_core::{
    id::Sites,
    matrix::Config,
    operation::{Action, Declaration, Operation},
    plan::Outcome,
    replica::{Replica, Reply, Settings},
    time::{Millis, Timestamp},
};

use super::*;
use crate::hooks::look::look;

fn site(n: u8) -> SiteId {
    format!("site{n}").parse().unwrap()
}

fn op(origin: u8, number: u64, parents: &[(u8, u64)]) -> Durable {
    let id = |(n, number)| OpId { site: site(n), number };
    let declares = Declaration {
        sites: Sites::new([site(1), site(2)]).unwrap(),
        config: Config::default().into(),
        base: Version::new(),
    };
    Durable::Record(
        Record::Operation(std::sync::Arc::new(Operation {
            id: id((origin, number)),
            parents: parents.iter().copied().map(id).collect(),
            at: Timestamp::at(Millis(1_000 * number)),
            resource: "web".parse().unwrap(),
            kind: "exec".parse().unwrap(),
            author: "ada".parse().unwrap(),
            action: Action::command("echo hi"),
            keep_going: false,
            reset: false,
            key: None,
            declares: parents.is_empty().then(|| Box::new(declares)),
        })),
        None,
    )
}

fn reply(at: u8, number: u64, to: (u8, u64), outcome: Outcome) -> Durable {
    Durable::Record(
        Record::Reply(std::sync::Arc::new(Reply {
            id: OpId { site: site(at), number },
            resource: "web".parse().unwrap(),
            op: OpId { site: site(to.0), number: to.1 },
            attempt: 1,
            outcome,
            era: 1,
            took: Millis(1),
            output: "no\nroom\n".into(),
            made: None,
        })),
        None,
    )
}

/// A site that writes one thing after the other, and hooks that follow.
struct World {
    here: SiteId,
    written: Vec<Durable>,
    memory: Memory,
    reachable: BTreeSet<SiteId>,
    now: u64,
}

impl World {
    fn new(here: u8) -> Self {
        let (written, memory) = (Vec::new(), Memory::default());
        let reachable = BTreeSet::from([site(1), site(2)]);
        Self { here: site(here), written, memory, reachable, now: 0 }
    }

    /// Takes in a page, and looks at what is ripe then.
    fn take(&mut self, page: &Page) -> Vec<HookEvent> {
        let mut events = self.take_only(page);
        let look = self.memory.ripe(self.now);
        events.extend(self.take_only(&Page { look, ..Page::default() }));
        events
    }

    fn take_only(&mut self, page: &Page) -> Vec<HookEvent> {
        let replica =
            Replica::restore(self.here.clone(), Settings::default(), self.written.clone());
        let wanted = self.memory.wanted(page, self.now);
        let seen = look(&self.here, &replica, &wanted);
        let moment =
            Moment { here: &self.here, now: self.now, patience: 60, reachable: &self.reachable };
        self.memory.take(page, &seen, &moment)
    }

    fn write(&mut self, durables: &[Durable]) -> Vec<HookEvent> {
        let first = self.written.len() as u64 + 1;
        self.written.extend(durables.iter().cloned());
        let written = (first..).zip(durables.iter().cloned()).collect();
        self.take(&Page { written, ..Page::default() })
    }
}

fn names(events: &[HookEvent]) -> Vec<String> {
    let name = |event: &HookEvent| {
        let summary = if event.summary { "summary " } else { "" };
        format!("{summary}{} at {}", event.event, event.site)
    };
    events.iter().map(name).collect()
}

#[test]
fn an_operation_from_its_beginning_to_its_end() {
    let mut world = World::new(1);
    assert_eq!(names(&world.write(&[op(1, 1, &[])])), ["operation.accepted at site1"]);
    let ran = world.write(&[reply(1, 2, (1, 1), Outcome::Ok)]);
    assert_eq!(names(&ran), ["operation.ran at site1"]);
    let last = world.write(&[reply(2, 1, (1, 1), Outcome::Ok)]);
    assert_eq!(
        names(&last),
        [
            "operation.ran at site2",
            "operation.settled at site1",
            "summary operation.settled at site1",
            "resource.settled at site1",
        ]
    );
    assert_eq!(last[2].runs.len(), 2);
    assert_eq!(last[2].text, "web: operation site1:1 (exec by ada) went well at all sites");
    assert!(world.memory.open.is_empty() && world.memory.count == 0);
}

#[test]
fn what_fails_at_one_site_is_told_with_what_to_do() {
    let mut world = World::new(1);
    world.write(&[op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok)]);
    let last = world.write(&[reply(2, 1, (1, 1), Outcome::Ko)]);
    assert_eq!(
        names(&last),
        [
            "operation.failed at site2",
            "summary operation.failed at site1",
            "resource.diverged at site1",
        ]
    );
    assert!(last[0].text.ends_with("failed at site2: no; room"), "{}", last[0].text);
    assert!(last[1].text.contains("has failed at 1 of 2 sites: site2"), "{}", last[1].text);
    assert!(last[2].next.as_ref().is_some_and(|next| next.contains("cheops diff web")));
    // It is told once, as long as it lasts.
    let more = world.write(&[op(1, 3, &[(1, 1)])]);
    assert_eq!(names(&more), ["operation.accepted at site1"]);
}

#[test]
fn what_is_void_where_it_was_received_is_over() {
    let mut world = World::new(1);
    world.write(&[op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok)]);
    world.write(&[reply(2, 1, (1, 1), Outcome::Ok)]);
    let last = world.write(&[op(1, 3, &[(1, 1)]), reply(1, 4, (1, 3), Outcome::Ko)]);
    assert!(
        names(&last).contains(&"summary operation.failed at site1".to_owned()),
        "{:?}",
        names(&last)
    );
    assert!(world.memory.open.is_empty());
}

/// The same records in any portions, also after a crash that lost the last of what was remembered,
/// lead to the same ids.
#[test]
fn a_crash_leads_to_doubles_with_the_same_ids_and_to_no_loss() {
    let all = [
        op(1, 1, &[]),
        reply(1, 2, (1, 1), Outcome::Ok),
        reply(2, 1, (1, 1), Outcome::Ok),
        op(1, 3, &[(1, 1)]),
        reply(1, 4, (1, 3), Outcome::Ok),
        reply(2, 2, (1, 3), Outcome::Ko),
    ];
    let ids = |events: Vec<HookEvent>| events.into_iter().map(|e| (e.id, e.event));
    let mut whole = World::new(1);
    let told: BTreeSet<_> =
        all.iter().flat_map(|one| ids(whole.write(std::slice::from_ref(one)))).collect();
    for crash in 0..all.len() {
        for saved in 0..=crash {
            let mut world = World::new(1);
            let mut heard: BTreeSet<(String, String)> = BTreeSet::new();
            let mut memory = Memory::default();
            for (n, one) in all[..crash].iter().enumerate() {
                if n == saved {
                    memory = world.memory.clone();
                }
                heard.extend(ids(world.write(std::slice::from_ref(one))));
            }
            if saved == crash {
                memory = world.memory.clone();
            }
            world.memory = memory;
            let rest = (1..).zip(world.written.clone()).skip(saved).collect();
            heard.extend(ids(world.take(&Page { written: rest, ..Page::default() })));
            for one in &all[crash..] {
                heard.extend(ids(world.write(std::slice::from_ref(one))));
            }
            let missing: Vec<_> = told.difference(&heard).collect();
            // Each in the state that it is in when somebody looks: what was over by then is not said.
            let transient = |(_, name): &&(String, String)| name == "resource.settled";
            assert!(missing.iter().all(transient), "{crash} {saved}: {missing:?}");
            assert!(heard.is_subset(&told), "{crash} {saved}");
        }
    }
}

#[test]
fn another_site_tells_for_all_if_the_origin_stays_away() {
    let end = [op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok), reply(2, 1, (1, 1), Outcome::Ok)];
    let summaries = |events: &[HookEvent]| {
        events.iter().filter(|event| event.summary).map(|e| e.id.clone()).collect::<Vec<_>>()
    };
    let mut origin = World::new(1);
    let own = summaries(&origin.write(&end));
    assert_eq!(own.len(), 1);
    for (stays_away, expected) in [(true, own.clone()), (false, Vec::new())] {
        let mut other = World::new(2);
        other.reachable.remove(&site(1));
        assert!(summaries(&other.write(&end)).is_empty());
        assert!(other.memory.ripe(59).is_empty());
        other.now = 60;
        assert_eq!(other.memory.ripe(60).len(), 1);
        if !stays_away {
            other.reachable.insert(site(1));
        }
        let told = other.take(&Page::default());
        assert_eq!(summaries(&told), expected);
        assert_eq!(names(&told).len(), expected.len(), "{:?}", names(&told));
        assert!(other.memory.open.is_empty());
    }
}

#[test]
fn links_are_told_when_they_change() {
    let mut world = World::new(1);
    let mut link = |up| {
        world.now += 1;
        let links = vec![(site(2), up)];
        names(&world.take(&Page { links, ..Page::default() }))
    };
    assert!(link(true).is_empty());
    assert!(link(true).is_empty());
    assert_eq!(link(false), ["site.lost at site1"]);
    assert_eq!(link(true), ["site.returned at site1"]);
}

#[test]
fn a_link_that_is_told_again_after_a_crash_has_the_same_id() {
    let mut world = World::new(1);
    let link = |world: &mut World, up| {
        world.now += 1_000;
        let links = vec![(site(2), up)];
        world.take(&Page { links, ..Page::default() }).into_iter().map(|e| e.id).collect::<Vec<_>>()
    };
    link(&mut world, true);
    let saved = world.memory.clone();
    let lost = link(&mut world, false);
    world.memory = saved;
    assert_eq!(link(&mut world, false), lost);
    link(&mut world, true);
    assert_ne!(link(&mut world, false), lost, "another time");
}

#[test]
fn what_was_before_a_resource_lived_again_is_followed_no_more() {
    let mut world = World::new(1);
    let web: ResourceId = "web".parse().unwrap();
    for (n, number) in [(1, 1), (1, 4), (1, 5), (2, 3), (3, 1)] {
        world.memory.open(&web, &OpId { site: site(n), number });
    }
    let mut trim = |numbers: &[(u8, u64)]| {
        let version = numbers.iter().map(|(n, number)| (site(*n), *number)).collect();
        let trimmed = Durable::Trimmed { resource: web.clone(), version };
        world.take_only(&Page { written: vec![(1, trimmed)], ..Page::default() });
        let left: Vec<String> =
            world.memory.open.values().flat_map(|o| o.keys().cloned()).collect();
        assert_eq!(left.len(), world.memory.count);
        left
    };
    assert_eq!(trim(&[(1, 4), (2, 2)]), ["site1:5", "site2:3", "site3:1"]);
    assert!(trim(&[(1, 9), (2, 9), (3, 9)]).is_empty());
}

#[test]
fn a_deleted_resource_leaves_nothing_behind() {
    let mut world = World::new(1);
    world.write(&[op(1, 1, &[]), op(1, 2, &[(1, 1)])]);
    assert_eq!(world.memory.count, 2);
    let version = Version::from([(site(1), 4), (site(2), 2)]);
    let by = OpId { site: site(1), number: 2 };
    let at = Timestamp::at(Millis(9_000));
    let gone = Durable::Forgotten { resource: "web".parse().unwrap(), version, by, at };
    assert_eq!(
        names(&world.write(&[gone])),
        [
            "operation.settled at site1",
            "summary operation.settled at site1",
            "resource.deleted at site1",
        ]
    );
    assert_eq!((world.memory.count, world.memory.open.len()), (0, 0));
}
