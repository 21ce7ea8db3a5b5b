//! A record on a disk: written, broken, and gone on with.

use std::{
    fs,
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use super::{
    chain::{Broken, Head, Last},
    read::parts,
    *,
};
use crate::trust::Identity;

struct World {
    data: TempDir,
    identity: Arc<Identity>,
    settings: config::Audit,
}

impl World {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let identity = Arc::new(Identity::open(data.path()).unwrap());
        Self { data, identity, settings: config::Audit::default() }
    }

    fn directory(&self) -> PathBuf {
        directory(self.data.path())
    }

    fn open_at(&self, now: Timestamp) -> Writer {
        self.opened(now).0
    }

    fn opened(&self, now: Timestamp) -> (Writer, Option<Damage>) {
        let (settings, site) = (self.settings.clone(), "site1".parse().unwrap());
        Writer::open(self.directory(), settings, self.own(), &site, now).unwrap()
    }

    /// An audit that signs as it is told.
    fn audit(&self, own: Own) -> Audit {
        self.fenced(own, Fence::open())
    }

    fn fenced(&self, own: Own, fence: Fence) -> Audit {
        let (settings, site) = (self.settings.clone(), "site1".parse().unwrap());
        Audit::open(self.data.path(), settings, own, &site, fence).unwrap()
    }

    /// Opens a record that was touched, goes on with it, and says what was found.
    fn damaged(&self) -> Option<Damage> {
        let (writer, found) = self.opened(at(0));
        writer.settle().run().unwrap();
        found
    }

    /// Why lines say that the record was repaired.
    fn repaired(&self) -> Vec<String> {
        let repaired = |entry: &Entry| entry.event.what == What::Repaired;
        self.all().into_iter().filter(repaired).filter_map(|entry| entry.event.why).collect()
    }

    fn head(&self) -> Head {
        serde_json::from_slice(&fs::read(self.directory().join("head")).unwrap()).unwrap()
    }

    fn own(&self) -> Own {
        let identity = self.identity.clone();
        Arc::new(move || identity.clone())
    }

    fn open(&self) -> Writer {
        self.open_at(at(0))
    }

    /// Writes a record of so many requests, and signs where it ends.
    fn written(&self, requests: u64) {
        let mut writer = self.open();
        for n in 0..requests {
            writer.keep(at(n), asked(&format!("r{n}")));
        }
        writer.write().unwrap();
        writer.settle().run().unwrap();
    }

    fn verify(&self) -> Verdict {
        verify(&self.directory(), Some(&self.identity.public())).unwrap()
    }

    fn broken(&self) -> Broken {
        self.verify().broken.unwrap().0
    }

    fn newest(&self) -> PathBuf {
        parts(&self.directory()).unwrap().pop().unwrap().path
    }

    fn entries(&self, wanted: Wanted) -> Vec<Entry> {
        entries(&self.directory(), &Wanted { limit: wanted.limit.max(1), ..wanted }).unwrap()
    }

    fn all(&self) -> Vec<Entry> {
        self.entries(Wanted { after: Some(0), limit: 1_000_000, ..Wanted::default() })
    }
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + i64::try_from(second).unwrap()).unwrap()
}

fn asked(resource: &str) -> Event {
    Event {
        author: Some("ada".into()),
        resource: Some(resource.into()),
        status: Some(200),
        ..Event::of(What::Request)
    }
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn a_record_goes_on_over_restarts() {
    let world = World::new();
    world.written(3);
    world.written(2);
    let verdict = world.verify();
    assert_eq!((verdict.lines, verdict.first, verdict.last.n), (7, 1, 7));
    assert_eq!((verdict.unsigned, verdict.headed, verdict.broken), (0, true, None));
    let what: Vec<What> = world.all().into_iter().map(|entry| entry.event.what).collect();
    assert_eq!((what[0], what[4]), (What::Started, What::Started));
}

#[test]
fn whoever_touches_a_record_is_found() {
    let cut = Broken::Cut { from: 5, to: 6 };
    for (touch, expected) in [
        (
            Box::new(|lines: &mut Vec<String>| lines[2] = lines[2].replace("ada", "eve"))
                as Box<dyn Fn(&mut Vec<String>)>,
            Broken::Altered { n: 3 },
        ),
        (Box::new(|lines| drop(lines.remove(2))), Broken::Missing { from: 3, to: 3 }),
        (Box::new(|lines| lines.swap(2, 3)), Broken::Missing { from: 3, to: 3 }),
        (Box::new(|lines| lines.truncate(4)), cut),
        (Box::new(|lines| lines[5] = lines[5].replace("ada", "eve")), Broken::Altered { n: 6 }),
    ] {
        let world = World::new();
        world.written(5);
        change(&world.newest(), |lines| touch(lines));
        let (broken, place) = world.verify().broken.unwrap();
        assert_eq!(broken, expected);
        assert_eq!(place.file, world.newest());
    }
}

#[test]
fn a_record_written_anew_is_not_that_of_the_head() {
    let (world, other) = (World::new(), World::new());
    world.written(5);
    other.written(5);
    // All lines follow each other, and only the head knows that there were others.
    change(&other.newest(), |lines| lines.truncate(4));
    other.written(1);
    fs::copy(other.newest(), world.newest()).unwrap();
    assert!(matches!(world.broken(), Broken::Altered { .. } | Broken::Missing { .. }));
    // The head of another site is none.
    let [here, there] = [&world, &other].map(|world| world.directory().join("head"));
    fs::copy(there, here).unwrap();
    assert_eq!(world.broken(), Broken::Head);
    fs::remove_file(world.directory().join("head")).unwrap();
    assert!(!world.verify().headed, "nobody can tell whether the end is there");
}

#[test]
fn what_a_crash_left_of_a_line_is_put_aside_and_said() {
    let long = vec![255; 200_000];
    for rest in [&b"{\"n\":7,\"at\":\"2023-"[..], b"\0\0\0\0", b"garbage\nmore {}\n", &long] {
        let world = World::new();
        world.written(5);
        let path = world.newest();
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(rest).unwrap();
        drop(world.open());
        let verdict = world.verify();
        assert_eq!((verdict.broken, verdict.last.n), (None, 8), "{rest:?}");
        let repaired = &world.all()[6].event;
        assert_eq!(repaired.what, What::Repaired);
        let aside = world.directory().join("00000000000000000006.broken");
        assert_eq!(fs::read(aside).unwrap(), rest, "{repaired:?}");
    }
}

#[test]
fn an_end_that_was_cut_off_stays_missing() {
    let world = World::new();
    world.written(5);
    change(&world.newest(), |lines| lines.truncate(4));
    world.written(1);
    assert_eq!(world.broken(), Broken::Missing { from: 5, to: 6 });
    let said = world.all().into_iter().find(|entry| entry.event.what == What::Repaired).unwrap();
    assert_eq!((said.n, said.event.why.unwrap().contains("lines 5 to 6")), (7, true));
}

#[test]
fn full_and_old_files_are_followed_by_new_ones_and_the_oldest_goes() {
    let mut world = World::new();
    world.settings = config::Audit { bytes: 2_000, keep: 3, ..config::Audit::default() };
    world.written(100);
    let files = parts(&world.directory()).unwrap();
    assert_eq!(files.len(), 3);
    let verdict = world.verify();
    assert_eq!((verdict.broken, verdict.first, verdict.last.n), (None, files[0].first, 101));
    assert!(verdict.first > 1);
    for file in &files {
        assert!(fs::metadata(&file.path).unwrap().len() < 2_500);
    }
    // The chain goes on over files: one that is removed before its time is missed.
    fs::remove_file(&files[0].path).unwrap();
    let missing = Broken::Missing { from: files[0].first, to: files[1].first - 1 };
    assert_eq!(world.broken(), missing);

    let mut world = World::new();
    world.settings.age = Duration::from_secs(100);
    let mut writer = world.open();
    for second in [1, 50, 99, 101, 150, 300] {
        writer.keep(at(second), asked("r"));
        writer.write().unwrap();
    }
    assert_eq!(parts(&world.directory()).unwrap().len(), 3);
    // One that is opened again is as old as its first line.
    drop(world.open_at(at(390)));
    assert_eq!(parts(&world.directory()).unwrap().len(), 3);
    drop(world.open_at(at(401)));
    assert_eq!(parts(&world.directory()).unwrap().len(), 4);
}

#[test]
fn lines_are_found_by_number_time_author_and_resource() {
    let mut world = World::new();
    world.settings.bytes = 1_000;
    world.settings.keep = 100;
    world.written(50);
    let numbers = |wanted: Wanted| -> Vec<u64> {
        world.entries(wanted).into_iter().map(|entry| entry.n).collect()
    };
    let any = Wanted { limit: 3, ..Wanted::default() };
    assert_eq!(numbers(any.clone()), [49, 50, 51]);
    assert_eq!(numbers(Wanted { after: Some(20), ..any.clone() }), [21, 22, 23]);
    assert_eq!(numbers(Wanted { after: Some(51), ..any.clone() }), [0; 0]);
    assert_eq!(numbers(Wanted { resource: Some("r7".into()), ..any.clone() }), [9]);
    assert_eq!(numbers(Wanted { author: Some("eve".into()), ..any.clone() }), [0; 0]);
    assert_eq!(numbers(Wanted { since: Some(at(48)), ..any.clone() }), [50, 51]);
    let everything = Wanted { limit: 1_000, ..any };
    assert_eq!(numbers(everything), (1..=51).collect::<Vec<u64>>());
}

#[test]
fn a_head_says_no_more_than_was_synced() {
    let world = World::new();
    let mut writer = world.open();
    writer.settle().run().unwrap();
    writer.keep(at(1), asked("r"));
    writer.write().unwrap();
    let verdict = world.verify();
    assert_eq!((verdict.broken, verdict.unsigned), (None, 1));
    let head = world.head();
    assert_eq!((head.first, head.n), (1, 1));
}

#[test]
fn what_can_not_be_written_waits_and_what_is_too_much_is_counted() {
    let mut world = World::new();
    world.settings.bytes = 1;
    let mut writer = world.open();
    // A new file can't be begun where there is a directory of its name.
    let obstacle = world.directory().join("00000000000000000002.jsonl");
    fs::create_dir(&obstacle).unwrap();
    for n in 0..10_005 {
        writer.keep(at(n), asked("r"));
    }
    assert!(writer.write().is_err());
    assert_eq!((writer.lost(), writer.waits()), (5, true));
    fs::remove_dir(&obstacle).unwrap();
    writer.settings.bytes = 64 << 20;
    assert_eq!(writer.write().unwrap(), 10_001);
    writer.settle().run().unwrap();
    assert_eq!(world.verify().broken, None);
    let lost = world.entries(Wanted { limit: 1, ..Wanted::default() }).remove(0).event;
    assert_eq!((lost.what, lost.more), (What::Lost, Some(5)));
}

#[tokio::test]
async fn whoever_records_something_can_read_it_at_once() {
    let world = World::new();
    let audit = world.audit(world.own());
    for n in 0..20 {
        audit.record(asked(&format!("r{n}"))).await;
        let newest = audit.entries(Wanted { limit: 1, ..Wanted::default() }).await.unwrap();
        assert_eq!(newest[0].event.resource, Some(format!("r{n}")));
    }
    audit.stop().await;
    let verdict = world.verify();
    assert_eq!((verdict.broken, verdict.unsigned, verdict.last.n), (None, 0, 21));
    assert_eq!(audit.how().written, 20);
}

#[tokio::test]
async fn refusals_do_not_fill_the_record_and_nothing_else_is_left_out() {
    let world = World::new();
    let audit = world.audit(world.own());
    for _ in 0..3_000 {
        audit.record(Event { status: Some(403), ..asked("r") }).await;
    }
    for _ in 0..100 {
        audit.record(asked("r")).await;
    }
    audit.stop().await;
    let all = world.all();
    let refused = all.iter().filter(|entry| entry.event.status == Some(403)).count();
    let done = all.iter().filter(|entry| entry.event.status == Some(200)).count();
    assert!((1_000..1_500).contains(&refused), "{refused}");
    assert_eq!(done, 100);
    assert_eq!(audit.how().unwritten, 3_000 - refused as u64);
}

#[tokio::test]
async fn what_only_looks_does_not_fill_the_record_and_each_author_pays_for_itself() {
    let world = World::new();
    let audit = world.audit(world.own());
    let by = |author: &str| Event { author: Some(author.to_owned()), ..asked("r") };
    for _ in 0..2_000 {
        audit.record(Event { looks: true, ..by("eve") }).await;
    }
    for _ in 0..100 {
        audit.record(Event { looks: true, ..by("ada") }).await;
        audit.record(by("eve")).await;
    }
    audit.stop().await;
    let count = |author: &str| {
        let of = |entry: &&Entry| entry.event.author.as_deref() == Some(author);
        world.all().iter().filter(of).count()
    };
    // What eve did besides has a line each; of what she looked at, a thousand.
    assert!((1_100..1_200).contains(&count("eve")), "{}", count("eve"));
    assert_eq!(count("ada"), 100);
    assert_eq!(audit.how().unwritten, 2_100 - count("eve") as u64);
    let more: u64 = world.all().iter().filter_map(|entry| entry.event.more).sum();
    assert!(more > 0 && more <= audit.how().unwritten, "{more}");
}

#[test]
fn a_join_that_is_refused_is_a_refusal() {
    let joined = Event::join("10.0.0.1:4000", "site2 key", None);
    let refused = Event::join("10.0.0.1:4000", "site2 key", Some((403, "token-used".to_owned())));
    assert!(!joined.is_refusal() && refused.is_refusal());
    let line = serde_json::to_value(&refused).unwrap();
    let expected = serde_json::json!({ "what": "join", "from": "10.0.0.1:4000",
        "subject": "site2 key", "status": 403, "why": "token-used" });
    assert_eq!(line, expected);
}

#[test]
fn the_first_start_finds_nothing_wrong() {
    let world = World::new();
    assert_eq!(world.damaged(), None);
    assert_eq!(world.damaged(), None);
    assert_eq!(world.repaired(), [""; 0]);
    // Nor does one after a crash that came before the first line.
    let world = World::new();
    fs::create_dir_all(world.directory()).unwrap();
    fs::write(world.directory().join("00000000000000000001.jsonl"), "").unwrap();
    assert_eq!(world.damaged(), None);
}

#[test]
fn a_record_whose_head_was_taken_away_says_so() {
    type Take = fn(&World);
    let takes: [Take; 4] = [
        |world| fs::remove_file(world.directory().join("head")).unwrap(),
        |world| fs::write(world.directory().join("head"), "no head").unwrap(),
        |world| fs::write(world.directory().join("head"), "").unwrap(),
        |world| {
            let other = World::new();
            other.written(5);
            fs::copy(other.directory().join("head"), world.directory().join("head")).unwrap();
        },
    ];
    for take in takes {
        let world = World::new();
        world.written(5);
        change(&world.newest(), |lines| lines.truncate(4));
        take(&world);
        assert_eq!(world.damaged(), Some(Damage::Headless { n: 4 }));
        let said = world.repaired();
        assert!(said.len() == 1 && said[0].contains("line 4"), "{said:?}");
        // It is said once.
        assert_eq!(world.damaged(), None);
        assert_eq!(world.repaired().len(), 1);
    }
}

#[test]
fn no_number_is_given_twice_where_a_file_was_emptied() {
    let mut world = World::new();
    world.settings.bytes = 1_000;
    world.written(20);
    let newest = parts(&world.directory()).unwrap().pop().unwrap();
    for part in parts(&world.directory()).unwrap() {
        fs::write(part.path, "").unwrap();
    }
    fs::remove_file(world.directory().join("head")).unwrap();
    assert_eq!(world.damaged(), Some(Damage::Headless { n: 0 }));
    assert_eq!(world.all()[0].n, newest.first);
}

#[test]
fn a_line_that_was_changed_while_the_agent_was_away_stays_changed() {
    for unsigned in [0, 3] {
        let world = World::new();
        world.written(5);
        // Some may have come after the last head.
        let mut writer = world.open();
        for n in 0..unsigned {
            writer.keep(at(n), asked("late"));
        }
        writer.write().unwrap();
        if unsigned == 0 {
            writer.settle().run().unwrap();
        }
        let n = world.head().n;
        drop(writer);
        change(&world.newest(), |lines| {
            let mut last = Last::default();
            let mut entries: Vec<Entry> =
                lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
            entries[usize::try_from(n).unwrap() - 1].event.from = Some("elsewhere".into());
            // All that follows is written anew.
            let anew = |entry: Entry| last.follow(entry.at, entry.event);
            let anew = entries.into_iter().map(anew).map(|line| String::from_utf8(line).unwrap());
            *lines = anew.map(|line| line.trim_end().to_owned()).collect();
        });
        assert_eq!(world.damaged(), Some(Damage::Altered { n }), "{unsigned}");
        assert!(world.repaired()[0].contains(&format!("line {n} is not")), "{unsigned}");
        world.written(2);
        assert!(matches!(world.broken(), Broken::Altered { .. }), "{unsigned}");
    }
}

#[test]
fn a_crash_before_the_last_lines_were_signed_is_no_damage() {
    let world = World::new();
    world.written(5);
    let mut writer = world.open();
    writer.keep(at(1), asked("late"));
    writer.write().unwrap();
    drop(writer);
    assert_eq!(world.damaged(), None);
    assert_eq!((world.verify().broken, world.repaired().len()), (None, 0));
}

#[test]
fn an_older_head_never_follows_a_newer_one() {
    let mut world = World::new();
    world.settings = config::Audit { bytes: 1_000, keep: 2, ..config::Audit::default() };
    let mut writer = world.open();
    let old = writer.settle();
    for n in 0..50 {
        writer.keep(at(n), asked("r"));
    }
    writer.write().unwrap();
    let turned = world.head();
    assert!(turned.first > 1);
    old.run().unwrap();
    assert_eq!(world.head(), turned);
    writer.settle().run().unwrap();
    assert_eq!((world.verify().broken, world.head().n), (None, 51));
}

/// New files are begun while lines of those before are made durable: both write the head.
#[test]
fn heads_are_written_one_at_a_time() {
    let mut world = World::new();
    world.settings = config::Audit { bytes: 500, keep: 2, ..config::Audit::default() };
    let mut writer = world.open();
    let (to_settle, settles) = std::sync::mpsc::sync_channel::<write::Settle>(4);
    thread::scope(|scope| {
        let settling = scope.spawn(move || settles.into_iter().try_for_each(write::Settle::run));
        for n in 0..400 {
            writer.keep(at(n), asked("r"));
            writer.write().unwrap();
            let _ = to_settle.try_send(writer.settle());
        }
        drop(to_settle);
        settling.join().unwrap().unwrap();
    });
    writer.settle().run().unwrap();
    assert_eq!((world.verify().broken, world.verify().unsigned), (None, 0));
}

/// Whoever signs has to pass it.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    waits: AtomicBool,
}

impl Gate {
    fn own(self: &Arc<Self>, world: &World) -> Own {
        let (gate, own) = (self.clone(), world.own());
        Arc::new(move || {
            while gate.closed.load(SeqCst) {
                gate.waits.store(true, SeqCst);
                thread::sleep(Duration::from_millis(1));
            }
            own()
        })
    }
}

#[tokio::test]
async fn an_event_of_one_who_hangs_up_has_a_line_or_is_counted() {
    let (world, gate) = (World::new(), Arc::new(Gate::default()));
    let audit = world.audit(gate.own(&world));
    gate.closed.store(true, SeqCst);
    audit.record(asked("first")).await;
    eventually("the clerk is held up", || gate.waits.load(SeqCst)).await;
    // Whoever hangs up while there is a place has a line.
    let brief = Duration::from_millis(1);
    tokio::time::timeout(brief, audit.record(asked("hung-up"))).await.unwrap_err();
    for _ in 1..QUEUE {
        audit.note(asked("r"));
    }
    assert_eq!(audit.how().lost, 0);
    tokio::time::timeout(brief, audit.record(asked("lost"))).await.unwrap_err();
    audit.note(asked("lost"));
    assert_eq!(audit.how().lost, 2);
    gate.closed.store(false, SeqCst);
    eventually("a line tells of it", || {
        let told = world.all().into_iter().filter(|entry| entry.event.what == What::Lost);
        told.filter_map(|entry| entry.event.more).sum::<u64>() == 2
    })
    .await;
    audit.stop().await;
    let count = |resource: &str| {
        let about = |entry: &&Entry| entry.event.resource.as_deref() == Some(resource);
        world.all().iter().filter(about).count()
    };
    assert_eq!([count("hung-up"), count("r"), count("lost")], [1, QUEUE - 1, 0]);
    assert_eq!((audit.how().lost, world.verify().broken), (2, None));
}

#[tokio::test]
async fn a_clerk_that_is_gone_is_a_problem_and_what_it_does_not_write_is_counted() {
    let world = World::new();
    let (broken, own) = (Arc::new(AtomicBool::new(false)), world.own());
    let sees = broken.clone();
    let audit = world.audit(Arc::new(move || {
        assert!(!sees.load(SeqCst), "it breaks, as this test wants it");
        own()
    }));
    broken.store(true, SeqCst);
    audit.record(asked("r")).await;
    eventually("it is gone", || audit.how().ended).await;
    let failing = audit.how().failing.unwrap();
    assert!(failing.contains("has ended"), "{failing}");
    let before = audit.how().lost;
    audit.record(asked("r")).await;
    audit.note(asked("r"));
    assert_eq!(audit.how().lost, before + 2);
}

#[test]
fn what_came_before_the_end_is_written_and_what_comes_later_is_counted() {
    let world = World::new();
    let (desk, writer) = (Arc::new(Desk::new(None)), world.open());
    let (queue, jobs) = mpsc::channel(QUEUE);
    let note = || Job::Write(Note::of(asked("r"), None, &desk));
    let (ready, answer) = oneshot::channel();
    queue.try_send(Job::Stop(Question { after: 0, ready })).ok().unwrap();
    for _ in 0..1_000 {
        queue.try_send(note()).ok().unwrap();
    }
    Clerk::new(writer, world.directory(), desk.clone(), Fence::open()).work(jobs);
    answer.blocking_recv().unwrap().unwrap().run().unwrap();
    let verdict = world.verify();
    assert_eq!((verdict.broken, verdict.unsigned, verdict.last.n), (None, 0, 1_001));
    assert!(queue.try_send(note()).is_err());
    let state = desk.state(|state| state.clone());
    assert_eq!((state.lost, state.ended, state.failing), (1, true, None));
}

#[test]
fn that_the_head_can_not_be_written_is_said_once_until_it_can() {
    let desk = Desk::new(None);
    let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
    let said = said(|| {
        for _ in 0..5 {
            assert!(!desk.signed(full()));
        }
        assert!(desk.state(|state| state.unsigned.is_some()));
        assert!(desk.signed(Ok(())));
        assert!(desk.state(|state| state.unsigned.is_none()));
        assert!(!desk.signed(full()));
    });
    assert_eq!(said, 2);
}

/// How often something is logged.
fn said(what: impl FnOnce()) -> u64 {
    use tracing::{Event, Metadata, Subscriber, span};
    struct Count(Arc<AtomicU64>);
    impl Subscriber for Count {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let count = Arc::new(AtomicU64::new(0));
    tracing::subscriber::with_default(Count(count.clone()), what);
    count.load(Relaxed)
}

#[tokio::test]
async fn a_head_that_can_not_be_written_is_shown_until_it_can() {
    let world = World::new();
    let audit = world.audit(world.own());
    let draft = world.directory().join("head.new");
    fs::create_dir(&draft).unwrap();
    audit.record(asked("r")).await;
    eventually("it is shown", || audit.how().unsigned.is_some()).await;
    fs::remove_dir(&draft).unwrap();
    eventually("it is not any more", || audit.how().unsigned.is_none()).await;
    assert_eq!(world.verify().unsigned, 0);
}

#[tokio::test]
async fn an_agent_that_another_may_have_followed_writes_nothing() {
    let world = World::new();
    let audit = world.fenced(world.own(), Fence::fallen());
    let before = (world.all().len(), world.head());
    audit.record(asked("r")).await;
    audit.stop().await;
    assert_eq!((world.all().len(), world.head()), before);
    assert!(audit.how().failing.unwrap().contains("another agent"));
    assert!(world.verify().broken.is_none());
}
