//! The store of attached files, and fetching from sites that break, lie and stop.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cheops_agent::{
    config,
    files::{Fetch, FileError, Files},
};
use cheops_core::{
    id::SiteId,
    operation::{Action, Attachment},
    plan::Outcome,
};
use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use site::{Plan, eventually};
use storage::mount;
use tokio::io::AsyncReadExt;

#[path = "support/site.rs"]
mod site;
mod storage;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");
const SOON: Duration = Duration::from_millis(200);

fn parts(content: &[u8]) -> impl futures_util::Stream<Item = io::Result<Bytes>> + use<> {
    let parts: Vec<_> = content.chunks(1_000).map(Bytes::copy_from_slice).map(Ok).collect();
    stream::iter(parts)
}

fn content(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// Files up to this length, with no room kept.
fn limits(file: u64) -> config::Store {
    config::Store { reserve: 0, file }
}

fn attachment(content: &[u8]) -> Attachment {
    let hash = *blake3::hash(content).as_bytes();
    Attachment { name: "a".into(), content: hash, length: content.len() as u64 }
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    names
}

/// What a site does when it is asked for a file.
#[derive(Clone)]
enum Does {
    /// Sends it from where it was asked to.
    Sends(Vec<u8>),
    /// Breaks off after so many bytes.
    Breaks(Vec<u8>, usize),
    /// Sends up to this byte and then nothing.
    Stalls(Vec<u8>, usize),
    /// Does not answer.
    Silent,
    /// Can't be reached.
    Away,
}

#[derive(Default)]
struct World {
    does: Mutex<BTreeMap<String, Does>>,
    asked: Mutex<Vec<(String, u64)>>,
}

impl World {
    fn new(sites: &[(&str, Does)]) -> Arc<Self> {
        let does = sites.iter().map(|(site, does)| ((*site).to_owned(), does.clone())).collect();
        Arc::new(Self { does: Mutex::new(does), asked: Mutex::default() })
    }

    fn set(&self, site: &str, does: Does) {
        self.does.lock().unwrap().insert(site.to_owned(), does);
    }

    fn asked(&self) -> Vec<(String, u64)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Fetch for World {
    fn fetch(
        &self,
        site: &SiteId,
        _content: [u8; 32],
        offset: u64,
    ) -> BoxFuture<'static, io::Result<BoxStream<'static, io::Result<Bytes>>>> {
        self.asked.lock().unwrap().push((site.to_string(), offset));
        let from = usize::try_from(offset).unwrap();
        let broken = || io::Error::from(io::ErrorKind::ConnectionReset);
        let stream = match self.does.lock().unwrap()[site.as_str()].clone() {
            Does::Sends(all) => parts(&all[from..]).boxed(),
            Does::Breaks(all, count) => {
                let sent = &all[from..(from + count).min(all.len())];
                parts(sent).chain(stream::iter([Err(broken())])).boxed()
            }
            Does::Stalls(all, count) => parts(&all[from..count]).chain(stream::pending()).boxed(),
            Does::Silent => return std::future::pending().boxed(),
            Does::Away => return std::future::ready(Err(broken())).boxed(),
        };
        std::future::ready(Ok(stream)).boxed()
    }
}

fn sites(names: &[&str]) -> Vec<SiteId> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[tokio::test]
async fn what_was_put_is_there_once_and_whole() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path().to_owned(), limits(1 << 30)).unwrap();
    for length in [0, 1, 999, 3_000_000] {
        let content = content(length);
        let hash = *blake3::hash(&content).as_bytes();
        assert_eq!(files.path(&hash), None);
        for _ in 0..2 {
            assert_eq!(files.put(parts(&content)).await.unwrap(), (hash, length as u64));
        }
        assert_eq!(fs::read(files.path(&hash).unwrap()).unwrap(), content);
        let (mut file, whole) = files.open_at(&hash, length as u64 / 2).await.unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).await.unwrap();
        assert_eq!((rest, whole), (content[length / 2..].to_vec(), length as u64));
    }
    assert_eq!(names(directory.path()).len(), 4);
    assert!(files.open_at(&[0; 32], 0).await.is_err());
}

#[tokio::test]
async fn what_does_not_come_whole_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path().to_owned(), limits(5_000_000)).unwrap();
    let error = files.put(parts(&content(5_000_001))).await.unwrap_err();
    assert!(matches!(error, FileError::TooLarge { largest: 5_000_000 }), "{error}");
    let broken = parts(&content(3_000_000)).chain(stream::iter([Err(io::Error::other("cut"))]));
    let error = files.put(broken).await.unwrap_err();
    assert_eq!(error.to_string(), "the file did not arrive whole: cut");
    let endless = parts(&content(3_000_000)).chain(stream::pending());
    assert!(tokio::time::timeout(SOON, files.put(endless)).await.is_err());
    eventually(async || names(directory.path()).is_empty().then_some(())).await;

    fs::write(directory.path().join("put-7"), "of a killed agent").unwrap();
    Files::open(directory.path().to_owned(), limits(1)).unwrap();
    assert_eq!(names(directory.path()).len(), 0);
}

#[tokio::test]
async fn a_gigabyte_passes_through_a_buffer() {
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path().to_owned(), limits(2 << 30)).unwrap();
    let before = resident();
    let part = Bytes::from(content(1 << 16));
    let gigabyte = stream::iter((0..1 << 14).map(move |_| Ok::<_, io::Error>(part.clone())));
    let (hash, length) = files.put(gigabyte).await.unwrap();
    assert_eq!(length, 1 << 30);
    assert!(files.path(&hash).is_some());
    let grown = resident() - before;
    assert!(grown < 32 << 20, "{grown} bytes more in memory");
}

#[tokio::test]
async fn a_fetch_goes_on_where_it_broke_off() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::with_patience(directory.path().to_owned(), limits(1 << 30), SOON).unwrap();
    let content = content(50_000);
    let wanted = attachment(&content);
    let world = World::new(&[
        ("a", Does::Breaks(content.clone(), 20_000)),
        ("b", Does::Away),
        ("c", Does::Stalls(content.clone(), 30_000)),
        ("d", Does::Silent),
        ("e", Does::Sends(content.clone())),
    ]);
    let path = files.fetch(&wanted, &sites(&["a", "b", "c", "d", "e"]), &*world).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    let expected = [("a", 0), ("b", 20_000), ("c", 20_000), ("d", 30_000), ("e", 30_000)];
    assert_eq!(world.asked(), expected.map(|(site, offset)| (site.to_owned(), offset)));
    assert_eq!(names(directory.path()).len(), 1);
    files.fetch(&wanted, &[], &*world).await.unwrap();
}

#[tokio::test]
async fn a_part_outlives_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let content = content(50_000);
    let wanted = attachment(&content);
    let world = World::new(&[("a", Does::Stalls(content.clone(), 30_000))]);
    let open = || Files::with_patience(directory.path().to_owned(), limits(1 << 30), SOON).unwrap();
    {
        let files = open();
        let asked = sites(&["a"]);
        let fetch = files.fetch(&wanted, &asked, &*world);
        let stalled = eventually(async || (world.asked().len() > 1).then_some(()));
        tokio::select! { _ = fetch => panic!("it stalls"), () = stalled => {} }
    }
    world.set("a", Does::Sends(content.clone()));
    let path = open().fetch(&wanted, &sites(&["a"]), &*world).await.unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(world.asked().last().unwrap(), &("a".to_owned(), 30_000));
}

#[tokio::test]
async fn a_site_that_sends_something_else_only_costs_time() {
    let content = content(50_000);
    let wanted = attachment(&content);
    let wrong = vec![0; 50_000];
    let longer = [&content[..], b"more"].concat();
    for (a, b) in [
        (Does::Sends(wrong.clone()), Does::Sends(content.clone())),
        (Does::Breaks(wrong.clone(), 20_000), Does::Sends(content.clone())),
        (Does::Sends(longer), Does::Sends(content.clone())),
        (Does::Sends(wrong.clone()), Does::Breaks(content.clone(), 20_000)),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let files =
            Files::with_patience(directory.path().to_owned(), limits(1 << 30), SOON).unwrap();
        let world = World::new(&[("a", a), ("b", b)]);
        let path = files.fetch(&wanted, &sites(&["a", "b"]), &*world).await;
        assert_eq!(fs::read(path.unwrap()).unwrap(), content);
    }
}

#[tokio::test]
async fn those_who_wait_for_the_same_file_share_a_fetch_and_take_over() {
    let directory = tempfile::tempdir().unwrap();
    let files =
        Files::with_patience(directory.path().to_owned(), limits(1 << 30), SOON * 100).unwrap();
    let content = content(50_000);
    let wanted = attachment(&content);
    let world = World::new(&[
        ("a", Does::Stalls(content.clone(), 0)),
        ("b", Does::Sends(content.clone())),
        ("c", Does::Sends(b"another".to_vec())),
    ]);
    let (to_a, to_b, to_c) = (sites(&["a"]), sites(&["b"]), sites(&["c"]));
    let first = files.fetch(&wanted, &to_a, &*world);
    let others =
        futures_util::future::join_all((0..5).map(|_| files.fetch(&wanted, &to_b, &*world)));
    tokio::pin!(others);
    {
        tokio::pin!(first);
        let asked = eventually(async || (!world.asked().is_empty()).then_some(()));
        tokio::select! { _ = &mut first => panic!("it stalls"), () = asked => {} }
        // All of another file comes while they wait, so they had time enough to ask.
        let another = attachment(b"another");
        tokio::select! {
            biased;
            _ = &mut first => panic!("it stalls"),
            _ = &mut others => panic!("they wait for the first"),
            _ = files.fetch(&another, &to_c, &*world) => {}
        }
        assert_eq!(world.asked(), [("a".to_owned(), 0), ("c".to_owned(), 0)]);
    }
    for path in others.await {
        assert_eq!(fs::read(path.unwrap()).unwrap(), content);
    }
    assert_eq!(world.asked().len(), 3, "one of the others fetched, for all");
}

#[tokio::test]
async fn what_nobody_uses_goes_after_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path().to_owned(), limits(1 << 30)).unwrap();
    let (used, _) = files.put(parts(b"used")).await.unwrap();
    let (unused, _) = files.put(parts(b"unused")).await.unwrap();
    fs::write(directory.path().join(format!("{}.part", "0".repeat(64))), "x").unwrap();
    let in_use = BTreeSet::from([used]);
    assert_eq!(files.keep_only(&in_use, Duration::from_mins(1)).unwrap(), 0);
    assert_eq!(files.keep_only(&in_use, Duration::ZERO).unwrap(), 2);
    assert!(files.path(&used).is_some() && files.path(&unused).is_none());
}

#[tokio::test]
async fn what_was_claimed_is_not_collected_by_whoever_knew_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path().to_owned(), limits(1 << 30)).unwrap();
    let (claimed, _) = files.put(parts(b"claimed")).await.unwrap();
    let (other, _) = files.put(parts(b"other")).await.unwrap();
    let long_ago = SystemTime::now() - Duration::from_hours(2);
    for content in [&claimed, &other] {
        let file = fs::File::open(files.path(content).unwrap()).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let in_use = BTreeSet::new();
    assert_eq!(files.claim(&claimed), Some(7));
    assert_eq!(files.claim(&[0; 32]), None);
    assert_eq!(files.keep_only(&in_use, Duration::from_hours(1)).unwrap(), 1);
    assert_eq!((files.claim(&claimed), files.claim(&other)), (Some(7), None));
}

#[tokio::test]
async fn the_room_that_is_kept_is_not_taken_by_files() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    let _mounted = mount(&["-t", "tmpfs", "-o", "size=16m", "tmpfs"], &disk);
    let place = disk.join("files");
    let reserve = 8 << 20;
    let limits = config::Store { reserve, file: 1 << 30 };
    let files = Files::with_patience(place.clone(), limits, SOON).unwrap();
    let free = || {
        let stat = rustix::fs::statvfs(&disk).unwrap();
        stat.f_bavail * stat.f_frsize
    };

    let error = files.put(parts(&content(12 << 20))).await.unwrap_err();
    assert!(matches!(error, FileError::Full { reserve: kept, .. } if kept == reserve), "{error}");
    eventually(async || names(&place).is_empty().then_some(())).await;

    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let content = content(6 << 20);
    let wanted = attachment(&content);
    let world = World::new(&[("a", Does::Sends(content.clone()))]);
    let fetch = async || files.fetch(&wanted, &sites(&["a"]), &*world).await;
    for _ in 0..2 {
        let error = fetch().await.unwrap_err();
        assert!(matches!(error, FileError::Full { .. }), "{error}");
        assert!(free() >= reserve, "{} bytes are free", free());
    }
    assert_eq!(world.asked(), [("a".to_owned(), 0)], "without room nobody is asked");
    fs::remove_file(ballast).unwrap();
    assert_eq!(fs::read(fetch().await.unwrap()).unwrap(), content);
    let (_, offset) = world.asked().pop().unwrap();
    assert!(offset >= 2 << 20, "it went on from {offset}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_finds_its_files_and_others_do_not_wait_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let content = b"what is in it\n".to_vec();
    let mut wanted = attachment(&content);
    wanted.name = "it's a file".into();
    let world = World::new(&[("site2", Does::Away)]);
    let mut plan = Plan::new(directory.path(), PROGRAM);
    plan.config.runs.parallel = 1;
    plan.fetch = world.clone();
    let site = Arc::new(plan.start());
    let line = "cat {it's a file} \"$CHEOPS_FILES\"/*; test ! -w \"$CHEOPS_FILES/it's a file\" || test $(id -u) = 0";
    let action = Action::Command { line: line.into(), files: [wanted.clone()].into() };
    let waits = tokio::spawn({
        let site = site.clone();
        async move { site.submit(site.request("r", action, &["site2"])).await }
    });
    eventually(async || (!world.asked().is_empty()).then_some(())).await;
    assert_eq!(site.runner.workload().waiting, 1);
    assert_eq!(site.exec("other", "true", None).await.outcome, Outcome::Ok);
    world.set("site2", Does::Sends(content.clone()));
    let reply = waits.await.unwrap();
    assert_eq!((reply.outcome, &*reply.output), (Outcome::Ok, "what is in it\nwhat is in it\n"));
    assert_eq!(fs::read(site.files.path(&wanted.content).unwrap()).unwrap(), content);

    let large = Attachment { length: u64::MAX, content: [1; 32], name: "large".into() };
    let action = Action::Command { line: "true".into(), files: [large].into() };
    let reply = site.submit(site.request("r2", action, &["site2"])).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    assert!(reply.output.starts_with("`large`: the file is larger than"), "{}", reply.output);
}
