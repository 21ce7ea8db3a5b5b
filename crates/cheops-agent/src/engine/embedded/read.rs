//! Reads all that a site has written, in order, and finds what is missing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::Ordering,
};

use cheops_core::{id::ResourceId, replica::Durable};

use super::{
    Acknowledged, Embedded,
    disk::error,
    rebuild::{self, Holes},
    store::{Store, Trouble},
};
use crate::{
    engine::{
        Damage, EngineError, Seq,
        entry::{Gone, Loss, Why},
        meaning,
    },
    wire::Names,
};

/// How many values are read at once.
const CHUNK: usize = 1_024;

/// All that was written, in order, a part at a time in memory.
///
/// What was lost is left out, and so is what came after it of the same resource, up to a marker. A
/// failure ends it: the disk can't be read, or the store was written by another program.
pub(super) struct Written<'a> {
    engine: &'a mut Embedded,
    names: Names,
    /// The number that comes next.
    expected: Seq,
    records: VecDeque<(Seq, Durable)>,
    gone: VecDeque<Gone>,
    /// From where the next ranges of gone numbers are read; none when there are no more.
    more_gone: Option<Seq>,
    withheld: BTreeSet<ResourceId>,
    lost: Vec<Gone>,
    rebuilt: bool,
    ended: bool,
}

impl<'a> Written<'a> {
    pub(super) fn new(engine: &'a mut Embedded) -> Self {
        Self {
            engine,
            names: Names::default(),
            expected: 1,
            records: VecDeque::new(),
            gone: VecDeque::new(),
            more_gone: Some(0),
            withheld: BTreeSet::new(),
            lost: Vec::new(),
            rebuilt: false,
            ended: false,
        }
    }

    /// The next that is handed out, if any.
    fn step(&mut self) -> Result<Option<Durable>, Trouble> {
        loop {
            self.fill()?;
            let upto = match self.records.front() {
                Some((seq, _)) if *seq <= self.expected => {
                    let Some((seq, durable)) = self.records.pop_front() else { continue };
                    // A number that is both there and gone is gone.
                    if seq == self.expected {
                        self.expected += 1;
                        if self.hands_out(&durable) {
                            return Ok(Some(durable));
                        }
                    }
                    continue;
                }
                Some((seq, _)) => seq - 1,
                None => self.engine.next - 1,
            };
            if self.expected > upto {
                return Ok(None);
            }
            self.explain()?;
        }
    }

    /// Reads on where nothing is at hand.
    fn fill(&mut self) -> Result<(), Trouble> {
        let guard = self.engine.shared.store();
        let Some(store) = guard.as_ref() else { return Ok(()) };
        if self.records.is_empty() {
            self.records = store.records(self.expected, CHUNK, &mut self.names)?.into();
        }
        while let (true, Some(from)) = (self.gone.is_empty(), self.more_gone) {
            let gone = store.gone(from, CHUNK)?;
            self.more_gone = gone.last().map(|last| last.first + 1);
            self.gone = gone.into();
            // What was lost and then forgotten lies within a longer range.
            self.gone.retain(|gone| gone.last >= self.expected);
        }
        Ok(())
    }

    /// Why the expected number is missing.
    fn explain(&mut self) -> Result<(), Trouble> {
        let told = self.gone.front().is_some_and(|gone| gone.first <= self.expected);
        if told && let Some(gone) = self.gone.pop_front() {
            if gone.last >= self.expected {
                self.expected = gone.last + 1;
                self.note(gone);
            }
            return Ok(());
        }
        // Nothing says why. All that is missing from here on is noted at once, since each note
        // takes a look at the whole index.
        let why = "it was acknowledged, and is not there any more";
        let (from, last) = (self.expected, self.engine.next - 1);
        self.with(|store| rebuild::declare(store, &Holes::of(store, from, last)?, why))?;
        self.gone.clear();
        self.more_gone = Some(from);
        Ok(())
    }

    fn with<T: Default>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.engine.shared.store().as_ref().map_or_else(|| Ok(T::default()), read)
    }

    fn note(&mut self, gone: Gone) {
        if let Why::Lost(loss) = &gone.why {
            if let Some(resource) = &loss.resource {
                self.withheld.insert(resource.clone());
            } else {
                let unknown = self.engine.lost_unknown.get_or_insert_default();
                unknown.found = loss.found.max(unknown.found);
                unknown.records += gone.last - gone.first + 1;
            }
            if loss.resource.is_some() || !loss.told {
                self.lost.push(gone);
            }
        }
    }

    /// Whether something may be handed out. What was lost of its resource before it ends here if it
    /// says so.
    fn hands_out(&mut self, durable: &Durable) -> bool {
        let ends = meaning::resumes(durable).or_else(|| meaning::forgets(durable));
        if let Some(resource) = ends
            && self.withheld.remove(resource)
        {
            let other = |gone: &Gone| match &gone.why {
                Why::Lost(loss) => loss.resource.as_ref() != Some(resource),
                Why::Forgotten => true,
            };
            self.lost.retain(other);
        }
        !self.withheld.contains(durable.resource())
    }

    /// The highest number of this site's stream of each resource of which something is lost.
    fn floors(&self) -> Result<BTreeMap<ResourceId, u64>, Trouble> {
        let here = &self.engine.options.site;
        let mut floors = BTreeMap::new();
        for gone in &self.lost {
            if let Why::Lost(Loss { resource: Some(resource), .. }) = &gone.why
                && !floors.contains_key(resource)
            {
                let floor = self.with(|store| {
                    store.of_resource(resource).try_fold(0, |floor, found| {
                        found.map(|(_, entry)| entry.number(here).unwrap_or(0).max(floor))
                    })
                })?;
                floors.insert(resource.clone(), floor);
            }
        }
        Ok(floors)
    }

    /// What was lost, as it is reported.
    fn report(&mut self) -> Result<(), Trouble> {
        let floors = self.floors()?;
        for gone in std::mem::take(&mut self.lost) {
            let Why::Lost(Loss { resource, what, why, .. }) = &gone.why else { continue };
            let floor = resource.as_ref().and_then(|resource| floors.get(resource));
            self.engine.damage.push(Damage {
                seqs: gone.first..=gone.last,
                resource: resource.clone(),
                what: what.clone(),
                why: why.clone(),
                floor: floor.copied().unwrap_or(0),
            });
            if resource.is_none() {
                self.engine.untold.push(gone);
            }
        }
        Ok(())
    }

    /// Rebuilds the store, once, and goes on from where reading stopped.
    fn repair(&mut self, trouble: &Trouble) -> Result<(), EngineError> {
        let place = &self.engine.shared.directory;
        match trouble {
            Trouble::Broken(why) if !self.rebuilt => {
                self.rebuilt = true;
                let engine = &mut *self.engine;
                let last = engine.rebuild(Acknowledged::AtLeast(engine.next - 1), why)?;
                // Nothing was appended yet: all that is there counts.
                engine.next = engine.next.max(last + 1);
                engine.shared.last.fetch_max(last, Ordering::Release);
                self.records.clear();
                self.gone.clear();
                self.more_gone = Some(0);
                Ok(())
            }
            trouble => Err(error(place, trouble.to_string())),
        }
    }
}

impl Iterator for Written<'_> {
    type Item = Result<Durable, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let trouble = match self.step() {
                Ok(Some(durable)) => return Some(Ok(durable)),
                Ok(None) => match self.report() {
                    Ok(()) => {
                        self.ended = true;
                        return None;
                    }
                    Err(trouble) => trouble,
                },
                Err(trouble) => trouble,
            };
            if let Err(failure) = self.repair(&trouble) {
                self.ended = true;
                return Some(Err(failure));
            }
        }
        None
    }
}
