//! The snapshot: a copy, in the data directory, of all that the journal and its records amount to.
//!
//! A start reads it instead of the databases, and from there only what came after it. It is nothing but a copy: without
//! it, all is read from the databases. What must stay true:
//! - it is used only with the databases that it is a copy of, and only after all that has changed there since was
//!   compared with it (`compare`);
//! - what can't be read of it, and what comes after that, does not count (`file`): it is read from the databases;
//! - it never goes further than what is acknowledged.

mod compare;
mod file;
mod format;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use cheops_core::{id::ResourceId, replica::Durable};

use self::{
    compare::{Held, Objection, Positions},
    file::{End, Writer},
};
pub(super) use self::{
    file::frames,
    format::{Frame, Item, Run, Trailer, decode},
};
use super::{
    Shared,
    document::Name,
    feed::Which,
    index::Index,
    journal::{Entry, Page},
    place,
    read::{Found, OpenPage},
    server::Trouble,
};
use crate::{
    engine::{Seq, disk, meaning},
    wire::{self, Names},
};

/// The file, beside what else is kept of the databases.
const FILE: &str = "snapshot";
/// How many bytes of values a part has, about: parts are decoded side by side.
const PART: usize = 256 << 10;

fn path(data: &Path) -> PathBuf {
    place(data).join(FILE)
}

/// Removes the snapshot in a data directory.
pub(super) fn remove(data: &Path) {
    let path = path(data);
    match std::fs::remove_file(&path) {
        Err(failure) if failure.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), "failed to remove the snapshot: {failure}");
        }
        _ => {}
    }
}

/// A snapshot that was found, and what it says of resources.
pub(super) struct Loaded {
    path: PathBuf,
    mark: String,
    end: End,
    losses: Losses,
    /// Resources that were forgotten, and of which nothing is left in the databases, by the number of that.
    scrubbed: BTreeMap<ResourceId, Seq>,
}

/// What a snapshot says is lost.
#[derive(Debug, Clone, Default)]
struct Losses {
    documents: BTreeSet<String>,
    /// Pages that stand for lost ones, by their first numbers.
    pages: BTreeSet<Seq>,
}

/// Reads the snapshot in a data directory, if there is one of these databases. What it says of resources goes into an
/// index.
pub(super) fn load(data: &Path, databases: &str) -> Option<(Loaded, Index)> {
    let path = path(data);
    let (mut index, mut losses, mut scrubbed) =
        (Index::default(), Losses::default(), BTreeMap::new());
    let mut names = Names::default();
    let scanned = file::scan(&path, databases, |frame| match frame {
        Frame::Part(runs) => {
            for run in runs {
                enter(&mut index, run, &mut losses, &mut names);
            }
        }
        Frame::Scrubbed { resource, forgotten } => {
            if let Ok(resource) = resource.parse() {
                index.scrubbed(&resource, *forgotten);
                scrubbed.insert(resource, *forgotten);
            }
        }
        Frame::Head { .. } | Frame::Trailer(_) => {}
    });
    match scanned {
        Ok(found) => {
            let (mark, end) = found?;
            Some((Loaded { path, mark, end, losses, scrubbed }, index))
        }
        Err(failure) => {
            tracing::warn!(path = %path.display(), "failed to read the snapshot: {failure}");
            None
        }
    }
}

/// Takes note of what a run says of resources.
fn enter(index: &mut Index, run: &Run<'_>, losses: &mut Losses, names: &mut Names) {
    if run.lost.is_some() {
        losses.pages.insert(run.page);
    }
    for (seq, item) in (run.from..).zip(&run.items) {
        match item {
            Item::Gone => {}
            Item::Record { resource, site, number, hash, copied, .. } => {
                let name = Name { resource, site, number: *number, hash: *hash };
                index.enter_record(run.page, &name, *copied);
            }
            Item::Local { resource, .. } | Item::Unpurged { resource } => {
                index.enter_local(run.page, resource);
            }
            Item::Forgets { value, .. } => {
                if let Ok(durable) = wire::decode_durable(value, names) {
                    index.forget(run.page, seq, &durable);
                }
            }
            Item::Lost { resource, document, .. } => {
                if let Some(name) = document.and_then(Name::read) {
                    index.enter_record(run.page, &name, false);
                } else if let Some(resource) = resource {
                    index.enter_local(run.page, resource);
                }
                losses.documents.extend(document.map(ToOwned::to_owned));
            }
        }
    }
}

impl Loaded {
    /// Up to where it goes.
    pub(super) fn covered(&self) -> Seq {
        self.end.trailer.covered
    }

    /// Where what counts of it is.
    pub(super) fn stretch(&self) -> Stretch {
        Stretch { path: self.path.clone(), upto: self.end.at, covered: self.covered() }
    }

    /// Why it is not to be used with these databases, if it is not. What it says of resources is in the index.
    pub(super) fn objection(
        &mut self,
        shared: &Shared,
        last: Seq,
    ) -> Result<Option<String>, Trouble> {
        let trailer = &self.end.trailer;
        let Some(mut positions) = Positions::of(trailer).filter(|_| trailer.covered <= last) else {
            return Ok(Some("it is newer than the databases".to_owned()));
        };
        let held = self.losses.held(trailer.covered, trailer.covered);
        let mut objection =
            compare::objection(shared, &self.mark, trailer.last_page, &held, &positions)?;
        if objection.is_none() {
            objection = compare::compare(shared, &held, &mut positions)?;
        }
        Ok(objection.map(|objection| objection.to_string()))
    }
}

impl Losses {
    /// What a snapshot holds up to a number, of which pages after another were just read.
    fn held(&self, fresh: Seq, covered: Seq) -> Held<'_> {
        Held { fresh, covered, lost: &self.documents, lost_pages: &self.pages }
    }
}

/// The part of the file that counts.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    pub(super) path: PathBuf,
    pub(super) upto: u64,
    /// The last number in it.
    pub(super) covered: Seq,
}

/// What writes the snapshot.
pub(super) struct Keeper {
    writer: Writer,
    databases: String,
    mark: String,
    trailer: Trailer,
    positions: Positions,
    losses: Losses,
    scrubbed: BTreeMap<ResourceId, Seq>,
}

/// Why a snapshot can't be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unkept {
    #[error(transparent)]
    Server(#[from] Trouble),
    #[error("the snapshot can't be written: {0}")]
    Disk(#[from] io::Error),
    #[error("another process writes the snapshot")]
    Elsewhere,
    /// The snapshot is removed.
    #[error("{0}: the next start reads all documents")]
    Doubtful(String),
    /// The snapshot is removed, and another is begun.
    #[error("{0}: another snapshot is made")]
    Outdated(String),
}

impl Keeper {
    /// Goes on with a snapshot.
    pub(super) fn go_on(loaded: &Loaded, databases: &str) -> Result<Self, Unkept> {
        let Loaded { path, mark, end, losses, scrubbed } = loaded;
        let positions = Positions::of(&end.trailer);
        let positions =
            positions.ok_or(Unkept::Doubtful("its positions can't be read".to_owned()))?;
        Ok(Self {
            writer: Writer::go_on(path, end)?.ok_or(Unkept::Elsewhere)?,
            databases: databases.to_owned(),
            mark: mark.clone(),
            trailer: end.trailer.clone(),
            positions,
            losses: losses.clone(),
            scrubbed: scrubbed.clone(),
        })
    }

    /// Begins a snapshot of databases, in the place of any other: no other counts from then on.
    pub(super) fn begin(shared: &Shared, name: &str, mark: String) -> Result<Self, Unkept> {
        let end = |which| shared.databases.end_of_changes(which);
        // All that is read from now on is there at these positions, or changes after them.
        let positions = Positions { local: end(Which::Local)?, records: end(Which::Records)? };
        disk::create_directory(&place(&shared.data))?;
        let path = path(&shared.data);
        let writer = Writer::begin(&path, name, &mark)?.ok_or(Unkept::Elsewhere)?;
        shared.databases.set_mark(&mark)?;
        let trailer =
            Trailer { covered: 0, last_page: 0, local: String::new(), records: String::new() };
        let (databases, losses, scrubbed) = (name.to_owned(), Losses::default(), BTreeMap::new());
        Ok(Self { writer, databases, mark, trailer, positions, losses, scrubbed })
    }

    /// Up to where it goes.
    pub(super) fn covered(&self) -> Seq {
        self.trailer.covered
    }

    /// Compares the snapshot with what has changed, and writes what comes next of the journal, as it was read. Nothing
    /// is written once it is over.
    pub(super) fn extend(
        &mut self,
        shared: &Shared,
        opened: &[OpenPage],
        over: &Mutex<bool>,
    ) -> Result<(), Unkept> {
        let lost = opened.iter().flat_map(|opened| &opened.found).filter_map(|(_, it)| it.lost());
        self.losses.documents.extend(lost.map(ToOwned::to_owned));
        let in_place = opened.iter().filter(|opened| opened.page.lost.is_some());
        self.losses.pages.extend(in_place.map(|opened| opened.page.first));
        let (covered, last_page) = match opened.last() {
            Some(OpenPage { page, .. }) => (page.last(), page.first),
            None => (self.covered(), self.trailer.last_page),
        };
        let mut positions = self.positions.clone();
        let held = self.losses.held(self.covered(), covered);
        match compare::compare(shared, &held, &mut positions)? {
            None => {}
            Some(back @ Objection::Back(_)) => return Err(Unkept::Outdated(back.to_string())),
            Some(doubt) => return Err(Unkept::Doubtful(doubt.to_string())),
        }
        let (local, records) = (positions.local.to_string(), positions.records.to_string());
        let trailer = Trailer { covered, last_page, local, records };
        let values = Values::of(opened);
        let mut frames = values.parts();
        frames.push(Frame::Trailer(trailer.clone()));
        let over = over.lock().unwrap_or_else(PoisonError::into_inner);
        if *over {
            return Ok(());
        }
        self.writer.write(&frames)?;
        (self.trailer, self.positions) = (trailer, positions);
        Ok(())
    }

    /// Takes note that nothing is left in the databases of what was forgotten of a resource.
    pub(super) fn scrubbed(&mut self, resource: &ResourceId, forgotten: Seq) -> io::Result<()> {
        // Only what the snapshot holds: a start would not know of what it is, otherwise.
        if forgotten > self.covered() {
            return Ok(());
        }
        let frame = Frame::Scrubbed { resource: resource.as_str(), forgotten };
        self.writer.write(&[frame, Frame::Trailer(self.trailer.clone())])?;
        self.scrubbed.insert(resource.clone(), forgotten);
        Ok(())
    }

    /// Writes the snapshot anew, without what was forgotten and removed from the databases.
    pub(super) fn rewrite(&mut self) -> io::Result<()> {
        if self.scrubbed.is_empty() {
            return Ok(());
        }
        let new = self.writer.path.with_extension("new");
        let in_use = || io::Error::from(io::ErrorKind::WouldBlock);
        let mut writer = Writer::begin(&new, &self.databases, &self.mark)?.ok_or_else(in_use)?;
        let mut frames = frames(&self.writer.path, self.writer.length())?;
        while let Some(bytes) = frames.next()? {
            let Some(Frame::Part(mut runs)) = decode(&bytes) else { continue };
            for run in &mut runs {
                for (seq, item) in (run.from..).zip(&mut run.items) {
                    if item.is_before(seq, &self.scrubbed) {
                        *item = Item::Gone;
                    }
                }
            }
            writer.write(&[Frame::Part(runs)])?;
        }
        writer.write(&[Frame::Trailer(self.trailer.clone())])?;
        let path = self.writer.path.clone();
        std::fs::rename(&new, &path)?;
        writer.path = path;
        self.writer = writer;
        self.scrubbed.clear();
        Ok(())
    }

    /// Removes the snapshot.
    pub(super) fn discard(self) {
        self.writer.discard();
    }
}

impl Item<'_> {
    /// Whether it is of a resource that was forgotten after it, by the numbers of that.
    fn is_before(&self, seq: Seq, forgotten: &BTreeMap<ResourceId, Seq>) -> bool {
        let (Item::Record { resource, .. }
        | Item::Local { resource, .. }
        | Item::Forgets { resource, .. }
        | Item::Unpurged { resource }
        | Item::Lost { resource: Some(resource), .. }) = self
        else {
            return false;
        };
        let resource = resource.parse::<ResourceId>().ok();
        resource.and_then(|resource| forgotten.get(&resource)).is_some_and(|number| seq < *number)
    }
}

/// The values of pages, as they are written.
struct Values<'a> {
    opened: &'a [OpenPage],
    /// Of each entry of each page.
    encoded: Vec<Vec<Option<Vec<u8>>>>,
}

impl<'a> Values<'a> {
    fn of(opened: &'a [OpenPage]) -> Self {
        let encode = |(_, found): &(Seq, Found)| match found {
            Found::Written(durable) => wire::encode_durable(durable).ok(),
            Found::Forgotten | Found::Lost { .. } => None,
        };
        let encoded = opened.iter().map(|opened| opened.found.iter().map(encode).collect());
        Self { opened, encoded: encoded.collect() }
    }

    /// As parts of about the same length.
    fn parts(&self) -> Vec<Frame<'_>> {
        let (mut parts, mut runs, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (OpenPage { page, found }, encoded) in self.opened.iter().zip(&self.encoded) {
            let lost = page.lost.map(|found| (page.last(), found));
            let mut run = Run { page: page.first, lost, from: page.first, items: Vec::new() };
            for (n, ((seq, found), value)) in found.iter().zip(encoded).enumerate() {
                if bytes >= PART {
                    let rest = Run { lost: None, from: *seq, items: Vec::new(), ..run };
                    runs.push(std::mem::replace(&mut run, rest));
                    parts.push(Frame::Part(std::mem::take(&mut runs)));
                    bytes = 0;
                }
                bytes += value.as_ref().map_or(8, Vec::len);
                run.items.push(item(page, n, found, value.as_deref()));
            }
            runs.push(run);
        }
        parts.push(Frame::Part(runs));
        parts
    }
}

/// One entry of a page, as it is written.
fn item<'a>(page: &'a Page, n: usize, found: &'a Found, value: Option<&'a [u8]>) -> Item<'a> {
    let entry = page.entries.get(n);
    match (found, value) {
        (Found::Written(durable), Some(value)) => {
            let resource = durable.resource().as_str();
            let name = entry.and_then(|entry| entry.document()).and_then(Name::read);
            match name {
                Some(Name { site, number, hash, .. }) => {
                    let copied = matches!(entry, Some(Entry::Copy { .. }));
                    Item::Record { resource, site, number, hash, copied, value }
                }
                None if meaning::forgets(durable).is_some() => Item::Forgets { resource, value },
                None => Item::Local { resource, value },
            }
        }
        (Found::Lost { resource, document, what, why }, _) => Item::Lost {
            resource: resource.as_ref().map(ResourceId::as_str),
            document: document.as_deref(),
            what,
            why,
        },
        // The start that reads this finds the page, and goes on with the purge.
        (Found::Forgotten, _) => match entry.and_then(Entry::resource_name) {
            Some(resource) => Item::Unpurged { resource },
            None => Item::Gone,
        },
        (Found::Written(_), None) => Item::Gone,
    }
}

/// What a part of the file holds, page by page. What is forgotten by now is left out.
pub(super) fn open_part(
    bytes: &[u8],
    is_forgotten: impl Fn(&str, Seq) -> bool,
    names: &mut Names,
) -> Result<Vec<Copied>, String> {
    let Some(Frame::Part(runs)) = decode(bytes) else { return Ok(Vec::new()) };
    let open = |run: Run<'_>| {
        let upto =
            run.lost.map_or((run.from + run.items.len() as Seq).saturating_sub(1), |it| it.0);
        let found = (run.from..).zip(run.items).map(|(seq, item)| {
            let found = match item {
                Item::Gone | Item::Unpurged { .. } => Found::Forgotten,
                Item::Record { resource, value, .. }
                | Item::Local { resource, value }
                | Item::Forgets { resource, value } => {
                    if is_forgotten(resource, seq) {
                        Found::Forgotten
                    } else {
                        let decoded: Result<Durable, _> = wire::decode_durable(value, names);
                        Found::Written(decoded.map_err(|error| error.to_string())?)
                    }
                }
                Item::Lost { resource: Some(resource), .. } if is_forgotten(resource, seq) => {
                    Found::Forgotten
                }
                Item::Lost { resource, document, what, why } => Found::Lost {
                    resource: resource.and_then(|resource| resource.parse().ok()),
                    document: document.map(ToOwned::to_owned),
                    what: what.to_owned(),
                    why: why.to_owned(),
                },
            };
            Ok((seq, found))
        });
        let found = found.collect::<Result<_, String>>()?;
        Ok(Copied { numbers: run.from..=upto, lost: run.lost.map(|(_, at)| at), found })
    };
    runs.into_iter().map(open).collect()
}

/// Some of a page, as the snapshot has it.
pub(super) struct Copied {
    pub(super) numbers: RangeInclusive<Seq>,
    /// It stands for lost ones, which was found at this time.
    pub(super) lost: Option<u64>,
    pub(super) found: Vec<(Seq, Found)>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn clearing(resource: &str) -> Vec<u8> {
        wire::encode_durable(&Durable::Clearing(resource.parse().unwrap())).unwrap()
    }

    fn keeper(data: &Path) -> Keeper {
        disk::create_directory(&place(data)).unwrap();
        let writer = Writer::begin(&path(data), "ours", "mark").unwrap().unwrap();
        let [local, records] = [(); 2].map(|()| "7".to_owned());
        Keeper {
            writer,
            databases: "ours".to_owned(),
            mark: "mark".to_owned(),
            trailer: Trailer { covered: 4, last_page: 1, local, records },
            positions: Positions { local: json!(7), records: json!(7) },
            losses: Losses::default(),
            scrubbed: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_forgotten_and_removed_leaves_the_file_when_it_is_rewritten() {
        let data = tempfile::tempdir().unwrap();
        let mut keeper = keeper(data.path());
        let (gone, stays) = (clearing("gone"), clearing("stays"));
        let item = |resource, value| Item::Local { resource, value };
        // Of number 4 on, it lives again.
        let items = vec![
            item("gone", &gone[..]),
            item("stays", &stays),
            item("gone", &gone),
            item("gone", &gone),
        ];
        let run = Run { page: 1, lost: None, from: 1, items };
        let trailer = keeper.trailer.clone();
        keeper.writer.write(&[Frame::Part(vec![run]), Frame::Trailer(trailer)]).unwrap();
        keeper.scrubbed(&"gone".parse().unwrap(), 4).unwrap();
        keeper.rewrite().unwrap();
        let mut found = Vec::new();
        let scanned = file::scan(&path(data.path()), "ours", |frame| match frame {
            Frame::Part(runs) => found.extend(runs.iter().flat_map(|run| {
                run.items.iter().map(|item| match item {
                    Item::Gone => String::new(),
                    Item::Local { resource, .. } => (*resource).to_owned(),
                    other => panic!("{other:?}"),
                })
            })),
            other => panic!("{other:?}"),
        });
        let (mark, end) = scanned.unwrap().unwrap();
        assert_eq!(found, ["", "stays", "", "gone"]);
        assert_eq!((mark.as_str(), end.trailer.covered), ("mark", 4));
        // It goes on in the new file.
        keeper.scrubbed(&"stays".parse().unwrap(), 3).unwrap();
        let (loaded, _) = load(data.path(), "ours").unwrap();
        assert_eq!(loaded.scrubbed, BTreeMap::from([("stays".parse().unwrap(), 3)]));
    }
}
