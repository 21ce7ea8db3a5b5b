//! The embedded engine on a disk that changes bytes, or has no room.
//!
//! Tests that mount a file system need root, and say so if they are not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod storage;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use cheops_agent::engine::{Engine, Opened, Seq, embedded::Embedded};
use cheops_core::{
    id::ResourceId,
    replica::{Durable, Record},
};
use storage::{
    PATIENCE, broken, memory as directory, mount, number, open, operation, options, read, resource,
    run,
};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// A store that was closed, with so many operations in batches of so many.
fn store(operations: u64, batch: usize) -> (tempfile::TempDir, Vec<Durable>) {
    let directory = directory();
    let written: Vec<_> = (1..=operations).map(operation).collect();
    let mut engine = open(directory.path());
    for batch in written.chunks(batch) {
        engine.append(batch).unwrap();
    }
    drop(engine);
    // Opening it again cuts off the zeros at the journal's end.
    assert_eq!(read(&mut open(directory.path())), written);
    (directory, written)
}

/// Whatever was acknowledged is read back as it was, or reported as lost, or withheld since
/// something before it of the same resource is lost. Says what was read, and what was lost.
fn check(engine: &mut Embedded, written: &[Durable], context: &str) -> (Vec<Durable>, u64) {
    let found = read(engine);
    let mut lost = BTreeSet::new();
    let mut withheld: BTreeMap<ResourceId, Seq> = BTreeMap::new();
    for damage in engine.damage() {
        lost.extend(damage.seqs.clone());
        if let Some(resource) = &damage.resource {
            let from = withheld.entry(resource.clone()).or_insert(Seq::MAX);
            *from = (*from).min(*damage.seqs.start());
            let own = written.iter().filter(|durable| is_own(durable, resource));
            let floor = own.map(number).max().unwrap_or(0);
            assert!(damage.floor <= floor, "{context}: {damage:?}");
        }
    }
    let expected: Vec<_> = written
        .iter()
        .filter(|durable| !lost.contains(&number(durable)))
        .filter(|durable| {
            withheld.get(&resource(number(durable))).is_none_or(|from| number(durable) < *from)
        })
        .cloned()
        .collect();
    if found != expected {
        let numbers = |durables: &[Durable]| durables.iter().map(number).collect::<BTreeSet<_>>();
        let (found, expected) = (numbers(&found), numbers(&expected));
        panic!(
            "{context}: not read: {:?}, not expected: {:?}, damage: {:?}",
            expected.difference(&found).collect::<Vec<_>>(),
            found.difference(&expected).collect::<Vec<_>>(),
            engine.damage(),
        );
    }
    (found, lost.len() as u64)
}

fn is_own(durable: &Durable, resource: &ResourceId) -> bool {
    matches!(durable, Durable::Record(Record::Operation(op), _)
        if op.id.site.as_str() == "here" && op.resource == *resource)
}

/// Changes something in a file, and says what.
fn harm(path: &Path, random: &mut fastrand::Rng) -> String {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    if length == 0 {
        return "nothing".into();
    }
    let at = random.u64(..length);
    match random.u8(..10) {
        0 => {
            file.set_len(at).unwrap();
            format!("cut at {at} of {length}")
        }
        1 => {
            let zeros = vec![0; usize::try_from((length - at).min(512)).unwrap()];
            file.write_all_at(&zeros, at).unwrap();
            format!("{} zeros at {at} of {length}", zeros.len())
        }
        2 => {
            fs::remove_file(path).unwrap();
            "removed".into()
        }
        _ => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            let bit = random.u8(..8);
            file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
            format!("bit {bit} of byte {at} of {length}")
        }
    }
}

#[test]
fn what_a_broken_file_takes_away_is_reported_and_nothing_else_is_lost() {
    let (sound, written) = store(1_200, 10);
    let mut random = fastrand::Rng::with_seed(1);
    let (mut rebuilt, mut lost_in_all) = (0, 0);
    for round in 0..200 {
        let copied = directory();
        copy(sound.path(), copied.path());
        let mut context = format!("round {round}");
        // How much is in tables as well depends on how busy the machine is. Without them there is
        // no second copy, and harm takes something away on every machine.
        let only_journal = round % 4 == 0;
        if only_journal {
            let tables =
                |path: &PathBuf| path.components().any(|part| part.as_os_str() == "tables");
            files(copied.path()).iter().filter(|path| tables(path)).for_each(|path| {
                fs::remove_file(path).unwrap();
            });
            context = format!("{context}: without tables");
        }
        for _ in 0..random.u8(1..=2) {
            let mut files = files(&copied.path().join("db"));
            if only_journal {
                files.retain(|path| path.extension().is_some_and(|name| name == "jnl"));
            }
            let Some(path) = random.choice(&files) else { break };
            let what = harm(path, &mut random);
            context = format!("{context}: {}: {what}", path.display());
        }
        let mut engine = open(copied.path());
        let (mut found, lost) = check(&mut engine, &written, &context);
        lost_in_all += lost;
        rebuilt += broken(copied.path());
        // Each number comes once, and only after all that went before.
        let next = operation(number(written.last().unwrap()) + 1);
        let reported = engine.damage().iter().filter(|damage| damage.resource.is_some()).count();
        let withheld =
            engine.damage().iter().any(|damage| damage.resource == Some(resource(number(&next))));
        assert_eq!(engine.append(std::slice::from_ref(&next)).unwrap(), number(&next), "{context}");
        drop(engine);
        if !withheld {
            found.push(next);
        }
        let mut engine = open(copied.path());
        assert!(read(&mut engine) == found, "{context}: read again");
        assert_eq!(engine.damage().len(), reported, "{context}: {:?}", engine.damage());
    }
    // Otherwise the test would test nothing.
    assert!(rebuilt > 80, "{rebuilt} were rebuilt");
    assert!(lost_in_all > 20, "{lost_in_all} were lost");
}

#[test]
fn the_report_says_which_operation_of_which_resource_is_lost() {
    let (sound, written) = store(40, 4);
    let journal = |store: &Path| {
        let mut files = files(&store.join("db"));
        files.retain(|path| path.extension().is_some_and(|extension| extension == "jnl"));
        files.pop().unwrap()
    };
    // The command of operation 15 stands in the journal once.
    let bytes = fs::read(journal(sound.path())).unwrap();
    let begins = |at: &usize| bytes[at - 1] != b'x' && bytes[*at..].starts_with(&[b'x'; 200]);
    let places: Vec<_> = (1..bytes.len()).filter(begins).collect();
    assert_eq!(places.len(), 40);
    let file = File::options().write(true).open(journal(sound.path())).unwrap();
    file.write_all_at(b"y", places[14] as u64).unwrap();
    let mut engine = open(sound.path());
    check(&mut engine, &written, "one letter");
    let [damage] = engine.damage() else { panic!("{:?}", engine.damage()) };
    assert_eq!(damage.seqs, 15..=15);
    assert_eq!(damage.what, "operation here:15 of resource resource1");
    assert!(damage.why.contains("the checksum of a batch is wrong"), "{}", damage.why);
    // 36 is the highest of this site's, and it is not lost.
    assert_eq!((&damage.resource, damage.floor), (&Some(resource(1)), 36));
}

#[test]
fn a_journal_that_is_cut_loses_nothing_in_silence() {
    let (sound, written) = store(60, 3);
    let files = files(&sound.path().join("db"));
    let journal = files.iter().find(|path| path.extension().is_some_and(|name| name == "jnl"));
    let journal = journal.unwrap().strip_prefix(sound.path()).unwrap();
    let length = fs::metadata(sound.path().join(journal)).unwrap().len();
    let mut ends = BTreeSet::new();
    for at in (length.saturating_sub(9_000)..=length).step_by(97) {
        for tail_is_known in [true, false] {
            let context = format!("cut at {at} of {length}, tail: {tail_is_known}");
            let copied = directory();
            copy(sound.path(), copied.path());
            let file = File::options().write(true).open(copied.path().join(journal)).unwrap();
            file.set_len(at).unwrap();
            if tail_is_known {
                check(&mut open(copied.path()), &written, &context);
            } else {
                // As after a power cut: what is not whole was not acknowledged.
                fs::remove_file(copied.path().join("tail")).unwrap();
                let mut engine = open(copied.path());
                let found = read(&mut engine);
                assert_eq!(found[..], written[..found.len()], "{context}");
                assert_eq!((found.len() % 3, engine.damage()), (0, [].as_slice()), "{context}");
                assert_eq!(broken(copied.path()), 0, "{context}");
                ends.insert(found.len());
            }
        }
    }
    assert!(ends.len() > 3, "{ends:?}");
}

#[test]
fn a_table_that_breaks_while_it_is_in_use_does_not_stop_the_engine() {
    let (store, mut written) = store(1_000, 10);
    let mut engine = open(store.path());
    assert_eq!(read(&mut engine), written);
    let deadline = Instant::now() + PATIENCE;
    // All tables of the index: merging them has to read them.
    let index = store.path().join("db/keyspaces/2/tables");
    while files(&index).is_empty() {
        assert!(Instant::now() < deadline, "there are no tables");
        let next = operation(written.len() as u64 + 1);
        engine.append(std::slice::from_ref(&next)).unwrap();
        written.push(next);
    }
    let tables = files(&index);
    for table in tables {
        let file = File::options().write(true).open(table).unwrap();
        file.write_all_at(&[0xff; 64], 100).unwrap();
    }
    let mut failures = 0;
    for _ in 0..300 {
        let first = written.len() as u64 + 1;
        let batch: Vec<_> = (first..first + 10).map(operation).collect();
        let mut outcome = engine.append(&batch);
        while outcome.is_err() {
            failures += 1;
            assert!(Instant::now() < deadline, "{outcome:?}");
            thread::sleep(Duration::from_millis(10));
            outcome = engine.recover().and_then(|()| engine.append(&batch));
        }
        assert_eq!(outcome.unwrap(), first + 9);
        written.extend(batch);
    }
    assert!((1..20).contains(&failures), "it failed {failures} times");
    drop(engine);
    let mut engine = open(store.path());
    assert_eq!(check(&mut engine, &written, "reopened"), (written.clone(), 0));
    assert_eq!(engine.damage(), []);
}

#[test]
fn a_reader_goes_on_after_what_it_can_not_read() {
    let (store, mut written) = store(1_000, 10);
    let mut engine = open(store.path());
    let tables = store.path().join("db/keyspaces/1/tables");
    let deadline = Instant::now() + PATIENCE;
    while files(&tables).is_empty() {
        assert!(Instant::now() < deadline, "there are no tables");
        let next = operation(written.len() as u64 + 1);
        engine.append(std::slice::from_ref(&next)).unwrap();
        written.push(next);
    }
    let table = files(&tables).swap_remove(0);
    let file = File::options().read(true).write(true).open(table).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 9_000).unwrap();
    file.write_all_at(&[!byte[0]], 9_000).unwrap();
    let found = engine.reader().after(0, usize::MAX).unwrap();
    let missing = written.len() - found.len();
    assert!((1..100).contains(&missing), "{missing} are missing");
    assert!(found.iter().all(|(seq, durable)| number(durable) == *seq));
    assert_eq!(found.last().unwrap().1, *written.last().unwrap());
}

#[test]
fn a_full_disk_is_said_to_be_full_and_nothing_is_lost_when_there_is_room_again() {
    let directory = directory();
    let disk = directory.path().join("disk");
    let _mounted = mount(&["-t", "tmpfs", "-o", "size=40m", "tmpfs"], &disk);
    let ballast = disk.join("ballast");
    let mut engine = open(&disk.join("store"));
    let mut written = Vec::new();
    for round in 0_u64..4 {
        let free = usize::try_from(engine.reader().free().unwrap()).unwrap();
        fs::write(&ballast, vec![1; free - (2 << 20)]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let (batch, failure) = loop {
            assert!(Instant::now() < deadline, "the disk was never full");
            let first = written.len() as u64 + 1;
            let batch: Vec<_> = (first..first + 10 + round).map(operation).collect();
            match engine.append(&batch) {
                Ok(last) => assert_eq!(last, first + 9 + round),
                Err(failure) => break (batch, failure.to_string()),
            }
            written.extend(batch);
        };
        assert!(failure.contains("the disk is full"), "{failure}");
        assert_eq!(engine.reader().last(), written.len() as u64);
        // There may be room for it once the store was opened again. If not, it fails again.
        let mut retry = || engine.recover().and_then(|()| engine.append(&batch));
        let mut outcome = retry();
        for _ in 0..2 {
            outcome = outcome.or_else(|_| retry());
        }
        fs::remove_file(&ballast).unwrap();
        while outcome.is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            outcome = retry();
        }
        assert_eq!(outcome.unwrap(), (written.len() + batch.len()) as u64, "round {round}");
        written.extend(batch);
        assert_eq!(engine.reader().last(), written.len() as u64, "round {round}");
        drop(engine);
        engine = open(&disk.join("store"));
        assert_eq!(read(&mut engine), written, "round {round}");
        assert_eq!(engine.damage(), [], "round {round}");
        assert_eq!(broken(&disk.join("store")), 0, "round {round}");
    }
}

#[test]
fn a_disk_that_can_not_be_written_is_refused_with_what_to_do() {
    let directory = directory();
    let disk = directory.path().join("disk");
    let _mounted = mount(&["-t", "tmpfs", "tmpfs"], &disk);
    drop(open(&disk.join("store")));
    run("mount", &["-o", "remount,ro", disk.to_str().unwrap()]);
    match Embedded::open(&disk.join("store"), options("here")) {
        Ok(_) => panic!("it was opened"),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("mount it so that the agent can write"), "{error}");
        }
    }
}
