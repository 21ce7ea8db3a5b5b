//! Makes a new store of all that can still be read of a broken one.
//!
//! Every file of the old database is searched for frames. What is found goes into a new database
//! under the same numbers; what is missing is noted there as lost, with what the index knew of it.
//! The old database is kept aside. What must stay true: the old one stays as it is until the new
//! one is whole and durable, so that a rebuild that is interrupted starts again.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use cheops_core::id::ResourceId;

use super::{
    Acknowledged, Options,
    disk::{self, error, explain},
    frame::{self, HEADER, Kind},
    store::{Items, Store, Trouble, io_error},
};
use crate::{
    engine::{
        EngineError, Seq,
        entry::{Entry, Gone, Loss, Why},
        meaning,
    },
    wire::{self, Names},
};

/// How many broken databases are kept.
const KEPT: usize = 3;
/// What their names begin with.
const ASIDE: &str = "broken-";
/// About how many bytes are written to the new database at once.
const BATCH: usize = 1 << 20;
/// How many of the things that are lost are named one by one.
const NAMED: usize = 8;

/// Where the database is.
pub(super) fn database(directory: &Path) -> PathBuf {
    directory.join("db")
}

fn unfinished(directory: &Path) -> PathBuf {
    directory.join("db.new")
}

/// Puts right what an interrupted rebuild has left.
pub(super) fn tidy(directory: &Path) -> io::Result<()> {
    let new = unfinished(directory);
    if new.exists() {
        if database(directory).exists() {
            fs::remove_dir_all(&new)?;
        } else {
            // The old one was put aside, so the new one is whole.
            fs::rename(new, database(directory))?;
        }
        disk::sync_directory(directory)?;
    }
    Ok(())
}

/// Rebuilds the database of a directory that nobody has open.
pub(super) fn rebuild(
    directory: &Path,
    options: &Options,
    acknowledged: Acknowledged,
    why: &str,
) -> Result<(), EngineError> {
    let old = database(directory);
    tracing::error!("the store in {} is broken ({why}); it is rebuilt", directory.display());
    let mut found = Found::search(&old).map_err(|failure| error(directory, explain(&failure)))?;
    if found.is_empty() && acknowledged.last() == 0 {
        // It was never in use: the machine stopped while it was made.
        let removed = fs::remove_dir_all(&old).and_then(|()| disk::sync_directory(directory));
        return removed.map_err(|failure| error(directory, explain(&failure)));
    }
    found.drop_unfinished(acknowledged.last());
    let new = unfinished(directory);
    let built = found.write(&new, options, acknowledged, why).map_err(|problem| {
        // There is nothing in it that is not in the old one.
        let _ = fs::remove_dir_all(&new);
        error(directory, format!("it is broken ({why}) and can't be rebuilt: {problem}"))
    })?;
    let kept = put_aside(directory, &old).map_err(|failure| error(directory, explain(&failure)))?;
    // For whoever looks at it later; what matters is in the new store.
    let _ = fs::write(kept.join("why"), format!("{}: {why}\n", jiff::Timestamp::now()));
    tracing::error!(
        "the store in {} was rebuilt: {built} records were taken over; the broken one is kept in {}",
        directory.display(),
        kept.display(),
    );
    Ok(())
}

/// Puts the old database aside and the new one in its place.
fn put_aside(directory: &Path, old: &Path) -> io::Result<PathBuf> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        kept.extend(name.to_str().and_then(|name| name.strip_prefix(ASIDE)?.parse::<u64>().ok()));
    }
    kept.sort_unstable();
    let place = |number: u64| directory.join(format!("{ASIDE}{number}"));
    let aside = place(kept.last().map_or(1, |last| last + 1));
    fs::rename(old, &aside)?;
    disk::sync_directory(directory)?;
    fs::rename(unfinished(directory), old)?;
    disk::sync_directory(directory)?;
    for number in kept.iter().rev().skip(KEPT - 1) {
        // A broken database more than wanted does no harm.
        let _ = fs::remove_dir_all(place(*number));
    }
    Ok(aside)
}

/// Where a frame's content is.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    at: u64,
    length: usize,
    batch: (Seq, Seq),
}

/// What was found in the files of a database.
struct Found {
    files: Vec<File>,
    log: BTreeMap<Seq, Place>,
    index: BTreeMap<Seq, Place>,
    gone: BTreeMap<Seq, Gone>,
}

impl Found {
    fn search(database: &Path) -> io::Result<Self> {
        let (log, index, gone) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut found = Self { files: Vec::new(), log, index, gone };
        let mut directories = vec![database.to_path_buf()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else {
                    found.search_file(&entry.path())?;
                }
            }
        }
        Ok(found)
    }

    fn search_file(&mut self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let number = self.files.len();
        frame::scan(&file, 0, |at, frame| {
            let (at, length) = (at + HEADER as u64, frame.body.len());
            let place = Place { file: number, at, length, batch: frame.batch };
            match frame.kind {
                Kind::Log => {
                    self.log.insert(frame.seq, place);
                }
                Kind::Index => {
                    self.index.insert(frame.seq, place);
                }
                // A range can be written again when more is known of it: then it is longer, or it
                // was lost and is forgotten now, or it was told.
                Kind::Gone => {
                    if let Some(gone) = Gone::decode(frame.seq, frame.body) {
                        let better = |known: &Gone| rank(&gone) > rank(known);
                        if self.gone.get(&frame.seq).is_none_or(better) {
                            self.gone.insert(frame.seq, gone);
                        }
                    }
                }
            }
        });
        self.files.push(file);
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.log.is_empty() && self.index.is_empty() && self.gone.is_empty()
    }

    /// A batch is written whole or not at all. If the last one is not whole and is not known to
    /// have been acknowledged, what there is of it is left out.
    fn drop_unfinished(&mut self, tail: Seq) {
        let Some((_, Place { batch: (first, last), .. })) = self.log.last_key_value() else {
            return;
        };
        let (first, last) = (*first, *last);
        // What the batch itself forgets again is not in the log.
        let gone = |seq: Seq| {
            self.gone.range(..=seq).next_back().is_some_and(|(_, gone)| gone.last >= seq)
        };
        let there = |seq: Seq| self.log.contains_key(&seq) || gone(seq);
        if last > tail && !(first..=last).all(there) {
            self.log.split_off(&first);
            self.gone.split_off(&first);
        }
    }

    fn read(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.length];
        self.files[place.file].read_exact_at(&mut bytes, place.at)?;
        Ok(bytes)
    }

    /// Writes what was found into a new database, and notes what is missing. Says how many records
    /// that was.
    fn write(
        &self,
        new: &Path,
        options: &Options,
        acknowledged: Acknowledged,
        why: &str,
    ) -> Result<u64, String> {
        let fjall = |failure: fjall::Error| match io_error(&failure) {
            Some(failure) => explain(failure),
            None => failure.to_string(),
        };
        let disk = |failure: io::Error| explain(&failure);
        if new.exists() {
            fs::remove_dir_all(new).map_err(disk)?;
        }
        let store = Store::open(new, options).map_err(fjall)?;
        let mut holes = Holes::from(1);
        let mut items = Items::default();
        for gone in self.gone.values() {
            items.gone(gone);
        }
        let mut gone = self.gone.values().peekable();
        let (mut names, mut count) = (Names::default(), 0);
        let mut forgotten: BTreeMap<ResourceId, Seq> = BTreeMap::new();
        for (seq, place) in &self.log {
            while let Some(range) = gone.next_if(|range| range.first <= *seq) {
                holes.skip(range);
            }
            if *seq < holes.next {
                // It was forgotten, and its old bytes are still there.
                continue;
            }
            let body = self.read(*place).map_err(disk)?;
            items.log(*seq, place.batch, &body);
            // What this program can't decode is kept; whoever reads it says so.
            if let Ok(durable) = wire::decode_durable(&body, &mut names) {
                items.index(*seq, place.batch, &Entry::of(&durable));
                if let Some(resource) = meaning::forgets(&durable) {
                    forgotten.insert(resource.clone(), *seq);
                }
            }
            holes.reach(*seq);
            count += 1;
            if items.bytes > BATCH {
                store.write(std::mem::take(&mut items), false).map_err(fjall)?;
            }
        }
        gone.for_each(|range| holes.skip(range));
        let indexed = self.index.keys().last().copied().unwrap_or(0);
        holes.reach(match acknowledged {
            Acknowledged::AtLeast(tail) => tail.max(indexed) + 1,
            Acknowledged::Exactly(last) => last + 1,
        });
        for (seq, place) in &self.index {
            if holes.contains(*seq) {
                let body = self.read(*place).map_err(disk)?;
                if let Some(entry) = Entry::decode(&body) {
                    items.index(*seq, place.batch, &entry);
                }
            }
        }
        store.write(items, false).map_err(fjall)?;
        declare(&store, &holes, why).map_err(|trouble| trouble.to_string())?;
        // Records of a forgotten resource are found again if the note that they are gone is not.
        for (resource, seq) in forgotten {
            let mut items = Items::default();
            forget(&store, &resource, seq, &mut items).map_err(|trouble| trouble.to_string())?;
            store.write(items, false).map_err(fjall)?;
        }
        store.sync().map_err(fjall)?;
        Ok(count)
    }
}

/// Removes all that was written of a resource before a number, and notes that.
pub(super) fn forget(
    store: &Store,
    resource: &ResourceId,
    before: Seq,
    items: &mut Items,
) -> Result<(), Trouble> {
    let mut run: Option<Gone> = None;
    for found in store.of_resource(resource) {
        let (seq, _) = found?;
        if seq >= before {
            break;
        }
        items.remove(resource, seq);
        match &mut run {
            Some(run) if run.last + 1 == seq => run.last = seq,
            _ => {
                let next = Gone { first: seq, last: seq, why: Why::Forgotten };
                if let Some(run) = run.replace(next) {
                    items.gone(&run);
                }
            }
        }
    }
    if let Some(run) = run {
        items.gone(&run);
    }
    Ok(())
}

fn rank(gone: &Gone) -> (u8, Seq) {
    match &gone.why {
        Why::Lost(loss) => (u8::from(loss.told), gone.last),
        Why::Forgotten => (2, gone.last),
    }
}

/// Numbers that are missing without a reason, in order.
pub(super) struct Holes {
    next: Seq,
    holes: Vec<(Seq, Seq)>,
}

impl Holes {
    fn from(next: Seq) -> Self {
        Self { next, holes: Vec::new() }
    }

    /// Those of a store, from a number on and up to the last one.
    pub(super) fn of(store: &Store, from: Seq, last: Seq) -> Result<Self, Trouble> {
        let mut holes = Self::from(from);
        let mut gone = store.gone(from, usize::MAX)?.into_iter().peekable();
        for seq in store.numbers(from) {
            let seq = seq?;
            while let Some(range) = gone.next_if(|range| range.first <= seq) {
                holes.skip(&range);
            }
            holes.reach(seq);
        }
        gone.for_each(|range| holes.skip(&range));
        holes.reach(last + 1);
        Ok(holes)
    }

    fn contains(&self, seq: Seq) -> bool {
        let after = self.holes.partition_point(|(first, _)| *first <= seq);
        after.checked_sub(1).is_some_and(|hole| seq <= self.holes[hole].1)
    }

    /// What comes next has this number.
    fn reach(&mut self, seq: Seq) {
        if self.next < seq {
            self.holes.push((self.next, seq - 1));
        }
        self.next = self.next.max(seq + 1);
    }

    /// These are missing with a reason.
    fn skip(&mut self, gone: &Gone) {
        if self.next < gone.first {
            self.holes.push((self.next, gone.first - 1));
        }
        self.next = self.next.max(gone.last + 1);
    }
}

/// Notes that numbers are lost, with what the index knows of them. Reads all of the index.
pub(super) fn declare(store: &Store, holes: &Holes, why: &str) -> Result<(), Trouble> {
    if holes.holes.is_empty() {
        return Ok(());
    }
    let mut known = BTreeMap::new();
    for found in store.entries() {
        let (seq, entry) = found?;
        if holes.contains(seq) {
            known.insert(seq, entry);
        }
    }
    let found = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let found = u64::try_from(found.as_millis()).unwrap_or(u64::MAX);
    let mut items = Items::default();
    for (first, last) in &holes.holes {
        for gone in losses(*first, *last, &known, found, why) {
            items.gone(&gone);
        }
    }
    let failed = |failure: fjall::Error| match io_error(&failure) {
        Some(failure) => Trouble::Unwritten(explain(failure)),
        None => Trouble::Unwritten(failure.to_string()),
    };
    store.write(items, true).map_err(failed)
}

/// The losses of a hole: one for each stretch of numbers that are of one resource, or of none that
/// is known.
fn losses(first: Seq, last: Seq, known: &BTreeMap<Seq, Entry>, found: u64, why: &str) -> Vec<Gone> {
    let mut stretches: Vec<(Seq, Seq, Vec<&Entry>)> = Vec::new();
    let mut next = first;
    for (seq, entry) in known.range(first..=last) {
        if next < *seq {
            stretches.push((next, seq - 1, Vec::new()));
        }
        next = seq + 1;
        match stretches.last_mut() {
            Some((_, end, entries))
                if *end + 1 == *seq
                    && entries.first().is_some_and(|first| first.resource == entry.resource) =>
            {
                *end = *seq;
                entries.push(entry);
            }
            _ => stretches.push((*seq, *seq, vec![entry])),
        }
    }
    if next <= last {
        stretches.push((next, last, Vec::new()));
    }
    let loss = |(first, last, entries): (Seq, Seq, Vec<&Entry>)| {
        let resource = entries.first().map(|entry| entry.resource.clone());
        let count = last - first + 1;
        let what = match &resource {
            None if count == 1 => "something of a resource that is not known".to_owned(),
            None => format!("{count} records of resources that are not known"),
            Some(resource) => {
                let named: Vec<_> = entries.iter().take(NAMED).map(ToString::to_string).collect();
                let rest = entries.len() - named.len();
                let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                format!("{}{rest} of resource {resource}", named.join(", "))
            }
        };
        let why = Why::Lost(Loss { resource, told: false, found, what, why: why.to_owned() });
        Gone { first, last, why }
    };
    stretches.into_iter().map(loss).collect()
}
