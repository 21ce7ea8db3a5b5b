//! Reads all that a site has written, in order, and finds what is missing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
};

use cheops_core::{id::ResourceId, replica::Durable, time::Millis};

use super::{
    CouchDb, PAGES, Shared,
    document::{Document, Name},
    index::Index,
    journal::{self, Entry, Page},
    pipeline::Pipeline,
    server::Trouble,
    snapshot::Copied,
};
use crate::{
    engine::{Damage, EngineError, Seq, meaning},
    wire::Names,
};

/// How many entries of pages a reader opens at once.
const PART: usize = 500;

/// What stands under a number.
pub(super) enum Found {
    Written(Durable),
    /// Nothing that counts.
    Forgotten,
    /// Something that can't be read.
    Lost {
        resource: Option<ResourceId>,
        /// Its document, if it had one.
        document: Option<String>,
        what: String,
        why: String,
    },
}

impl Found {
    /// The document that is lost, if one is.
    pub(super) fn lost(&self) -> Option<&str> {
        match self {
            Self::Lost { document, .. } => document.as_deref(),
            Self::Written(_) | Self::Forgotten => None,
        }
    }
}

/// A page, and what it holds under its numbers.
pub(super) struct OpenPage {
    pub(super) page: Page,
    pub(super) found: Vec<(Seq, Found)>,
}

impl Shared {
    /// What pages hold. All documents are asked for at once: most pages name few.
    pub(super) fn open_pages(
        &self,
        pages: Vec<Page>,
        names: &mut Names,
    ) -> Result<Vec<OpenPage>, Trouble> {
        let is_forgotten = |seq: Seq, entry: &Entry| match entry.resource() {
            Some(resource) => self.index().is_forgotten(&resource, seq),
            None => *entry == Entry::Gone(()),
        };
        let entries = pages.iter().flat_map(Page::numbered);
        let wanted = entries.filter_map(|(seq, entry)| match entry {
            Entry::Record(id) if !is_forgotten(seq, entry) => Some(id.clone()),
            _ => None,
        });
        let documents = self.databases.documents(&wanted.collect::<Vec<_>>())?;
        let mut open = |page: Page| {
            let found = page.numbered().map(|(seq, entry)| {
                let found = if is_forgotten(seq, entry) {
                    Found::Forgotten
                } else {
                    found(entry, &documents, names)
                };
                (seq, found)
            });
            let found = found.collect();
            OpenPage { page, found }
        };
        Ok(pages.into_iter().map(&mut open).collect())
    }

    /// What was written after a number, so much at most. What can't be read is left out.
    pub(super) fn read_after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, Trouble> {
        let (mut read, mut names, mut reached) = (Vec::new(), Names::default(), seq);
        let Some(mut from) = seq.checked_add(1).filter(|from| *from <= self.last_number()) else {
            return Ok(read);
        };
        if let Some(page) = self.databases.page_before(from)? {
            from = page.first;
        }
        while read.len() < most && from <= self.last_number() {
            let pages = self.databases.pages(from..=self.last_number(), PAGES)?;
            let Some(last) = pages.last() else { break };
            from = last.last() + 1;
            for part in journal::parts(pages, PART) {
                if read.len() >= most {
                    break;
                }
                let opened = self.open_pages(part, &mut names)?;
                for (number, found) in opened.into_iter().flat_map(|opened| opened.found) {
                    if let Found::Written(durable) = found
                        && number > reached
                        && number <= self.last_number()
                        && read.len() < most
                    {
                        reached = number;
                        read.push((number, durable));
                    }
                }
            }
        }
        Ok(read)
    }

    pub(super) fn last_number(&self) -> Seq {
        self.last.load(std::sync::atomic::Ordering::Acquire)
    }
}

fn found(entry: &Entry, documents: &BTreeMap<String, Document>, names: &mut Names) -> Found {
    let read = match entry {
        Entry::Gone(()) => return Found::Forgotten,
        Entry::Local { .. } | Entry::Copy { .. } => entry.local(names),
        Entry::Record(id) => documents.get(id).map(|document| document.read(names)),
    };
    let why = match read {
        Some(Ok(durable)) => return Found::Written(durable),
        Some(Err(why)) => why,
        None => "its document is not there any more".to_owned(),
    };
    let (document, what) = match entry {
        Entry::Record(id) => (Some(id.clone()), format!("the document `{id}`")),
        _ => (None, "an entry of the journal".to_owned()),
    };
    Found::Lost { resource: entry.resource(), document, what, why }
}

/// All that was written, in order, some of it at a time in memory.
///
/// What was lost is left out, and so is what came after it of the same resource, up to a marker.
pub(super) struct Written<'a> {
    engine: &'a mut CouchDb,
    /// None once all was read.
    pipeline: Option<Pipeline>,
    /// The number that comes next.
    expected: Seq,
    found: VecDeque<(Seq, Found)>,
    withheld: BTreeSet<ResourceId>,
    ended: bool,
}

impl<'a> Written<'a> {
    pub(super) fn new(engine: &'a mut CouchDb) -> Self {
        engine.damage.clear();
        engine.untold.clear();
        engine.lost.clear();
        engine.lost_unknown = None;
        Self {
            engine,
            pipeline: None,
            expected: 1,
            found: VecDeque::new(),
            withheld: BTreeSet::new(),
            ended: false,
        }
    }

    /// Reads on. Whether there is more.
    fn fill(&mut self) -> Result<bool, Trouble> {
        let last = self.engine.next - 1;
        if self.expected > last {
            return Ok(false);
        }
        let pipeline = if let Some(pipeline) = self.pipeline.take() {
            pipeline
        } else {
            let (shared, snapshot) = (&self.engine.shared, self.engine.snapshot.clone());
            let failed = |failure: io::Error| Trouble::Odd(failure.to_string());
            Pipeline::start(shared, snapshot, last).map_err(failed)?
        };
        let Some(copied) = pipeline.next().transpose()? else {
            self.missing(last);
            return Ok(true);
        };
        self.pipeline = Some(pipeline);
        for Copied { numbers, lost, found } in copied {
            let (first, end) = numbers.into_inner();
            if first > self.expected {
                self.missing(first - 1);
            }
            if first < self.expected {
                self.doubled(first, end);
                continue;
            }
            self.expected = end + 1;
            if let Some(at) = lost {
                self.lost_unknown(at, end + 1 - first);
            }
            self.found.extend(found);
        }
        Ok(true)
    }

    /// Pages up to a number are not there.
    fn missing(&mut self, upto: Seq) {
        let seqs = self.expected..=upto;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        self.lost_unknown(Millis::from(now).0, upto + 1 - self.expected);
        self.engine.untold.push(seqs.clone());
        self.engine.damage.push(Damage {
            seqs,
            resource: None,
            what: "a part of the journal".to_owned(),
            why: format!("its pages in {} are gone", self.engine.shared.databases.place),
            floor: 0,
        });
        self.expected = upto + 1;
    }

    /// A page stands for numbers that an earlier one has: one of them makes no sense.
    fn doubled(&mut self, first: Seq, last: Seq) {
        self.engine.damage.push(Damage {
            seqs: first..=last,
            resource: None,
            what: format!("the page `{}` of the journal", journal::id(first)),
            why: "another page stands for the same numbers".to_owned(),
            floor: 0,
        });
    }

    fn lost_unknown(&mut self, found: u64, records: u64) {
        let unknown = self.engine.lost_unknown.get_or_insert_default();
        unknown.found = unknown.found.max(found);
        unknown.records = unknown.records.saturating_add(records);
    }

    fn step(&mut self) -> Result<Option<Durable>, Trouble> {
        loop {
            let Some((seq, found)) = self.found.pop_front() else {
                if self.fill()? {
                    continue;
                }
                return Ok(None);
            };
            match found {
                Found::Forgotten => {}
                Found::Written(durable) => {
                    if let Some(resource) =
                        meaning::resumes(&durable).or_else(|| meaning::forgets(&durable))
                        && self.withheld.remove(resource)
                    {
                        let other = |damage: &Damage| damage.resource.as_ref() != Some(resource);
                        self.engine.damage.retain(other);
                    }
                    if !self.withheld.contains(durable.resource()) {
                        if Index::is_declared_by(&durable) {
                            self.engine.shared.index_mut().declare(&durable);
                        }
                        return Ok(Some(durable));
                    }
                }
                Found::Lost { resource, document, what, why } => {
                    if let Some(name) = document.as_deref().and_then(Name::read) {
                        self.engine.shared.index_mut().lose(&name);
                    }
                    self.engine.lost.extend(document);
                    let floor = resource.as_ref().and_then(|resource| {
                        self.engine
                            .shared
                            .index()
                            .of(resource)
                            .map(|known| known.last_of(&self.engine.here))
                    });
                    self.withheld.extend(resource.clone());
                    let floor = floor.unwrap_or(0);
                    let seqs = seq..=seq;
                    self.engine.damage.push(Damage { seqs, resource, what, why, floor });
                }
            }
        }
    }
}

impl Iterator for Written<'_> {
    type Item = Result<Durable, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.step() {
            Ok(Some(durable)) => Some(Ok(durable)),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(trouble) => {
                self.ended = true;
                Some(Err(self.engine.shared.fail(&trouble)))
            }
        }
    }
}
