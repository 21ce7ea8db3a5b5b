//! What this site has heard about who belongs to its federation, kept in its data directory.
//!
//! The file is `federation`: a line for each word, in the order in which they count here. The first
//! says how the federation began. What must stay true:
//! - what counts was written down before anybody is told of it, so a site never says two different
//!   things under one number;
//! - a line that was half written is not there: it was not told to anybody either;
//! - a site belongs to one federation at most.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use cheops_core::{
    id::{ResourceId, SiteId},
    time::{Millis, Timestamp},
    trust::{Claim, PublicKey, Roster, Statement},
};
use tokio::sync::watch;

use super::{
    Identity,
    word::{Signed, Word, WordError},
};

/// The name of the file in the data directory.
pub const FILE: &str = "federation";
/// How many words that do not count yet are kept, and how many bytes of them.
const MOST_HELD: usize = 4_096;
const MOST_BYTES: usize = 16 << 20;
/// How many bytes of words are passed on at a time, unless one alone is longer.
const BATCH: usize = 4 << 20;

/// What this site knows of its federation. All clones are the same.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
    changes: watch::Sender<u64>,
}

struct Inner {
    path: PathBuf,
    federation: Option<Federation>,
}

struct Federation {
    file: File,
    roster: Roster,
    founded: Signed,
    /// What counts, as it was signed, in the order of the roster.
    words: Vec<Signed>,
    /// What may count some day.
    held: BTreeMap<(PublicKey, u64), Signed>,
}

/// Why the ledger can't be used, or not as it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file can't be read or written.
    #[error("the list of who belongs, {}, can't be used: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// What is in the file is not what this program writes.
    #[error(
        "line {line} of {} is not a statement of a federation ({why}): restore the file from a backup, or move it away and join again",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// What was said can't be taken for true.
    #[error(transparent)]
    Word(#[from] WordError),
    /// This site belongs to no federation.
    #[error("this site belongs to no federation yet: `cheops token create` begins one")]
    Alone,
    /// This site belongs to another federation.
    #[error(
        "this site belongs to the federation {0} already: a site belongs to one; move the file `federation` of its data directory away to leave that"
    )]
    Elsewhere(PublicKey),
    /// What was said does not make this site a member.
    #[error("what the other site says does not make this site belong to its federation")]
    NotAdmitted,
    /// What this site says does not count.
    #[error(
        "this site was removed from its federation, so that nobody listens to what it says: run `cheops token create` at one that belongs, and `cheops join TOKEN` here"
    )]
    Out,
}

/// A site that was removed, and how far its records of each resource count for good.
pub type Closed = (SiteId, BTreeMap<ResourceId, u64>);

/// How far each key was heard.
pub type Heard = BTreeMap<PublicKey, u64>;

impl Ledger {
    /// Reads what is in a data directory.
    pub fn open(data: &Path) -> Result<Self, LedgerError> {
        let path = data.join(FILE);
        let federation = Federation::open(&path)?;
        let inner = Arc::new(Mutex::new(Inner { path, federation }));
        Ok(Self { inner, changes: watch::Sender::new(0) })
    }

    /// Counts changes of who belongs.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What the federation is known by; none if this site belongs to none.
    pub fn root(&self) -> Option<PublicKey> {
        self.read(|roster| *roster.root())
    }

    /// Looks at who belongs; none if this site belongs to no federation.
    pub fn read<T>(&self, look: impl FnOnce(&Roster) -> T) -> Option<T> {
        self.lock().federation.as_ref().map(|federation| look(&federation.roster))
    }

    /// Begins a federation of this site, unless it belongs to one.
    pub fn found(&self, by: &Identity, site: &SiteId, address: &str) -> Result<(), LedgerError> {
        let mut inner = self.lock();
        if inner.federation.is_some() {
            return Ok(());
        }
        let (root, address) = (by.public(), address.into());
        let word = Word::Founded { root, site: site.clone(), address };
        let founded = Signed::new(by, &root, &word)?;
        inner.federation = Some(Federation::create(&inner.path, root, &founded, &[])?);
        drop(inner);
        self.changed();
        Ok(())
    }

    /// Makes this site one of the federation that these words are about, if they make it so.
    pub fn join(
        &self,
        by: &Identity,
        root: PublicKey,
        words: Vec<Signed>,
    ) -> Result<(), LedgerError> {
        let mut inner = self.lock();
        if let Some(federation) = &inner.federation {
            let known = *federation.roster.root();
            return if known == root { Ok(()) } else { Err(LedgerError::Elsewhere(known)) };
        }
        let draft = Draft::of(root, words)?;
        if !draft.roster.sites().any(|(key, _)| *key == by.public()) {
            return Err(LedgerError::NotAdmitted);
        }
        inner.federation =
            Some(Federation::create(&inner.path, root, &draft.founded, &draft.words)?);
        drop(inner);
        self.changed();
        Ok(())
    }

    /// Makes this site one of its federation again, if these words make it so: it was removed, and what it
    /// has said since does not count any more.
    pub fn rejoin(
        &self,
        by: &Identity,
        root: PublicKey,
        words: Vec<Signed>,
    ) -> Result<(), LedgerError> {
        let mut inner = self.lock();
        let known = inner.federation.as_ref().map(|federation| *federation.roster.root());
        if let Some(known) = known.filter(|known| *known != root) {
            return Err(LedgerError::Elsewhere(known));
        }
        // What was heard here and is still to be told to the others comes after what they say.
        let own = inner.federation.iter().flat_map(|federation| federation.words.clone());
        let draft = Draft::of(root, words.into_iter().chain(own))?;
        if !draft.roster.sites().any(|(key, _)| *key == by.public()) {
            return Err(LedgerError::NotAdmitted);
        }
        inner.federation =
            Some(Federation::create(&inner.path, root, &draft.founded, &draft.words)?);
        drop(inner);
        self.changed();
        Ok(())
    }

    /// The fences that words close, and that were not closed before: the sites, and how far the records of
    /// each count. None if they are words of another federation.
    pub fn closes(&self, words: &[Signed]) -> Result<Vec<Closed>, LedgerError> {
        let Some(before) = self.read(Clone::clone) else { return Ok(Vec::new()) };
        let root = *before.root();
        let hear = |checked: bool| -> Result<Roster, LedgerError> {
            let mut roster = before.clone();
            for signed in words {
                let word = signed.claimed()?;
                let Word::Stated(statement) = &word else { continue };
                if statement.number <= roster.heard_of(&statement.by) {
                    continue;
                }
                if checked {
                    signed.check(&root, &word)?;
                }
                roster.hear(statement.clone());
            }
            Ok(roster)
        };
        // Signatures take time, and this is rare.
        if hear(false)?.closed() == before.closed() {
            return Ok(Vec::new());
        }
        Ok(newly_closed(&hear(true)?, Some(&before)))
    }

    /// The same for all that a site says to one that joins.
    pub fn closes_at_joining(
        &self,
        root: PublicKey,
        words: &[Signed],
    ) -> Result<Vec<Closed>, LedgerError> {
        let draft = Draft::of(root, words.iter().cloned())?;
        let before = self.read(Clone::clone);
        Ok(newly_closed(&draft.roster, before.as_ref()))
    }

    /// Says something, as this site. It counts from now on.
    pub fn say(&self, by: &Identity, now: Millis, claim: Claim) -> Result<(), LedgerError> {
        let mut inner = self.lock();
        let Inner { path, federation } = &mut *inner;
        let federation = federation.as_mut().ok_or(LedgerError::Alone)?;
        let (key, root) = (by.public(), *federation.roster.root());
        if !federation.roster.listens(&key) {
            return Err(LedgerError::Out);
        }
        let number = federation.roster.heard_of(&key) + 1;
        let statement = Statement { by: key, number, at: Timestamp::at(now), claim };
        let signed = Signed::new(by, &root, &Word::Stated(statement.clone()))?;
        federation.hear(path, vec![(statement, signed)])?;
        drop(inner);
        self.changed();
        Ok(())
    }

    /// Hears what others say. Gives whether anything of it is new and counts.
    pub fn hear(&self, words: &[Signed]) -> Result<bool, LedgerError> {
        // Signatures are checked while nobody has to wait for the ledger.
        let mut roster = self.read(Clone::clone).ok_or(LedgerError::Alone)?;
        let root = *roster.root();
        let mut said = Vec::new();
        for signed in words {
            let word = signed.claimed()?;
            // What nobody who ever belonged has said, or what is known, is not worth a check.
            let Word::Stated(statement) = &word else { continue };
            let by = &statement.by;
            let belonged = roster.members().contains_key(by) || roster.removed_with(by).is_some();
            if statement.number <= roster.heard_of(by) || !belonged {
                continue;
            }
            signed.check(&root, &word)?;
            roster.hear(statement.clone());
            said.push((statement.clone(), signed.clone()));
        }
        if said.is_empty() {
            return Ok(false);
        }
        let mut inner = self.lock();
        let Inner { path, federation } = &mut *inner;
        let federation = federation.as_mut().ok_or(LedgerError::Alone)?;
        let news = federation.hear(path, said)?;
        drop(inner);
        if news {
            self.changed();
        }
        Ok(news)
    }

    /// How far each key was heard here.
    pub fn heard(&self) -> Heard {
        self.read(known).unwrap_or_default()
    }

    /// What counts here and is beyond what somebody else has heard: the beginning of it, if it is much.
    pub fn beyond(&self, heard: &Heard) -> Vec<Signed> {
        let inner = self.lock();
        let Some(federation) = &inner.federation else { return Vec::new() };
        let said = federation.roster.heard().iter().zip(&federation.words);
        let new = said.filter(|(said, _)| said.number > heard.get(&said.by).copied().unwrap_or(0));
        let mut room = BATCH;
        let fits = |(_, signed): &(&Statement, &Signed)| {
            let fits = room > 0;
            room = room.saturating_sub(signed.len());
            fits
        };
        new.take_while(fits).map(|(_, signed)| signed.clone()).collect()
    }

    /// The last that counts here of what one site has said, whatever its keys: not more than so many bytes.
    pub fn last_of(&self, site: &SiteId, most: usize) -> Vec<Signed> {
        let inner = self.lock();
        let Some(federation) = &inner.federation else { return Vec::new() };
        let members = federation.roster.members();
        let its = |key| members.get(key).is_some_and(|member| member.site == *site);
        let said = federation.roster.heard().iter().zip(&federation.words).rev();
        let mut room = most;
        let fits = |signed: &&Signed| {
            room = room.saturating_sub(signed.len());
            room > 0
        };
        let said = said.filter(|(said, _)| its(&said.by)).map(|(_, signed)| signed);
        let mut last: Vec<Signed> = said.take_while(fits).cloned().collect();
        last.reverse();
        last
    }

    /// All that counts here, with the beginning: what a site that joins has to know.
    pub fn all(&self) -> Vec<Signed> {
        let inner = self.lock();
        let Some(federation) = &inner.federation else { return Vec::new() };
        std::iter::once(&federation.founded).chain(&federation.words).cloned().collect()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn newly_closed(roster: &Roster, before: Option<&Roster>) -> Vec<Closed> {
    let before = before.map(Roster::closed).unwrap_or_default();
    let closed = roster.closed().into_iter();
    let new = closed.filter(|(key, fence)| before.get(key) != Some(fence));
    new.map(|(_, (site, records))| (site.clone(), records.clone())).collect()
}

fn known(roster: &Roster) -> Heard {
    let mut heard = Heard::new();
    for statement in roster.heard() {
        heard.insert(statement.by, roster.heard_of(&statement.by));
    }
    heard
}

/// A federation, before it is written down.
struct Draft {
    roster: Roster,
    founded: Signed,
    words: Vec<Signed>,
}

impl Draft {
    /// What words amount to, of which the first says how it began.
    fn of(root: PublicKey, words: impl IntoIterator<Item = Signed>) -> Result<Self, LedgerError> {
        let mut words = words.into_iter();
        let founded = words.next().ok_or(LedgerError::NotAdmitted)?;
        Self::new(root, founded, words)
    }

    fn new(
        root: PublicKey,
        founded: Signed,
        words: impl IntoIterator<Item = Signed>,
    ) -> Result<Self, LedgerError> {
        let Word::Founded { root, site, address } = founded.read(&root)? else {
            let why = "the first statement does not say how the federation began";
            return Err(WordError::Malformed(why.to_owned()).into());
        };
        let mut draft =
            Self { roster: Roster::new(root, site, address), founded, words: Vec::new() };
        for signed in words {
            if let Word::Stated(statement) = signed.read(&root)?
                && !draft.roster.hear(statement).is_empty()
            {
                draft.words.push(signed);
            }
        }
        Ok(draft)
    }
}

impl Federation {
    /// What is in the file, if there is one. A last line without an end is cut off.
    fn open(path: &Path) -> Result<Option<Self>, LedgerError> {
        let failed = |error| LedgerError::File { path: path.to_owned(), error };
        let mut file = match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            tracing::warn!(
                "the last statement in {} was half written: it is cut off",
                path.display()
            );
            file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        let malformed = |line: usize, why: String| LedgerError::Malformed {
            path: path.to_owned(),
            line: line + 1,
            why,
        };
        let mut lines = Vec::new();
        for (n, line) in text[..whole].lines().enumerate() {
            lines.push(parse(line).map_err(|why| malformed(n, why))?);
        }
        let mut lines = lines.into_iter();
        let Some((root, founded)) = lines.next() else {
            return Ok(None);
        };
        let words = lines.map(|(_, signed)| signed);
        let draft =
            Draft::new(root, founded, words).map_err(|error| malformed(0, error.to_string()))?;
        let Draft { roster, founded, words } = draft;
        Ok(Some(Self { file, roster, founded, words, held: BTreeMap::new() }))
    }

    /// Writes a new file: all of it or nothing.
    fn create(
        path: &Path,
        root: PublicKey,
        founded: &Signed,
        words: &[Signed],
    ) -> Result<Self, LedgerError> {
        let failed = |error| LedgerError::File { path: path.to_owned(), error };
        let draft = path.with_extension("new");
        let lines: String =
            std::iter::once(founded).chain(words).map(|signed| print(&root, signed)).collect();
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(lines.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, path)?;
            let directory = path.parent().unwrap_or(Path::new("."));
            File::open(directory)?.sync_all()
        };
        write().map_err(failed)?;
        let missing = || failed(io::ErrorKind::NotFound.into());
        Self::open(path)?.ok_or_else(missing)
    }

    /// Whether one more word may be held.
    fn has_room(&self, signed: &Signed) -> bool {
        let bytes: usize = self.held.values().map(Signed::len).sum();
        self.held.is_empty() || self.held.len() < MOST_HELD && bytes + signed.len() <= MOST_BYTES
    }

    /// Hears statements, and writes down what counts from now on. Gives whether there is any.
    fn hear(&mut self, path: &Path, said: Vec<(Statement, Signed)>) -> Result<bool, LedgerError> {
        let mut roster = self.roster.clone();
        let mut new = Vec::new();
        for (statement, signed) in said {
            let place = (statement.by, statement.number);
            if statement.number > roster.heard_of(&statement.by) && self.has_room(&signed) {
                self.held.entry(place).or_insert(signed);
            }
            new.extend(roster.hear(statement));
        }
        let place = |statement: &Statement| (statement.by, statement.number);
        let words: Vec<Signed> =
            new.iter().filter_map(|said| self.held.get(&place(said)).cloned()).collect();
        if words.len() < new.len() {
            // Too much is held to know what was said: it will be told again.
            return Ok(false);
        }
        let lines: String = words.iter().map(|signed| print(roster.root(), signed)).collect();
        let before = self.file.metadata().map(|metadata| metadata.len());
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_all());
        if let Err(error) = written {
            // What is half there must not stand before what is written next.
            if let Ok(before) = before {
                let _ = self.file.set_len(before);
            }
            return Err(LedgerError::File { path: path.to_owned(), error });
        }
        for said in &new {
            self.held.remove(&place(said));
        }
        self.roster = roster;
        self.words.extend(words);
        Ok(!new.is_empty())
    }
}

/// A line of the file: the federation, what was said, and the signature.
fn print(root: &PublicKey, signed: &Signed) -> String {
    let bytes = postcard::to_allocvec(signed).unwrap_or_default();
    format!("{root} {}\n", BASE64_STANDARD_NO_PAD.encode(bytes))
}

fn parse(line: &str) -> Result<(PublicKey, Signed), String> {
    let (root, signed) = line.split_once(' ').ok_or("there is no space in it")?;
    let root = root.parse().map_err(|error| format!("{error}"))?;
    let bytes = BASE64_STANDARD_NO_PAD.decode(signed).map_err(|error| error.to_string())?;
    let signed = postcard::from_bytes(&bytes).map_err(|error| error.to_string())?;
    Ok((root, signed))
}

#[cfg(test)]
mod tests {
    use cheops_core::trust::Fence;

    use super::*;

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32]).unwrap()
    }

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    struct At {
        data: tempfile::TempDir,
        identity: Identity,
        ledger: Ledger,
    }

    impl At {
        fn new(seed: u8) -> Self {
            let data = tempfile::tempdir().unwrap();
            let ledger = Ledger::open(data.path()).unwrap();
            Self { data, identity: identity(seed), ledger }
        }

        fn say(&self, claim: Claim) {
            self.ledger.say(&self.identity, Millis(1), claim).unwrap();
        }

        fn admit(&self, seed: u8) {
            let (key, name) = (identity(seed).public(), format!("site{seed}"));
            self.say(Claim::Admit { site: site(&name), key, address: "h:1".into() });
        }

        fn names(&self) -> Vec<String> {
            let look = |roster: &Roster| {
                let mut names: Vec<String> =
                    roster.sites().map(|(_, member)| member.site.to_string()).collect();
                names.sort();
                names
            };
            self.ledger.read(look).unwrap_or_default()
        }
    }

    /// A federation that the first has begun, and the others belong to.
    fn federation(seeds: &[u8]) -> Vec<At> {
        let sites: Vec<At> = seeds.iter().map(|&seed| At::new(seed)).collect();
        let first = &sites[0];
        first.ledger.found(&first.identity, &site("site1"), "h:1").unwrap();
        seeds[1..].iter().for_each(|&seed| first.admit(seed));
        for other in &sites[1..] {
            let root = first.identity.public();
            other.ledger.join(&other.identity, root, first.ledger.all()).unwrap();
        }
        sites
    }

    #[test]
    fn what_counts_is_there_after_a_restart() {
        let sites = federation(&[1, 2]);
        assert_eq!(sites[1].names(), ["site1", "site2"]);
        sites[1].admit(3);
        let again = Ledger::open(sites[1].data.path()).unwrap();
        assert_eq!(again.all(), sites[1].ledger.all());
        assert_eq!(again.heard(), sites[1].ledger.heard());
    }

    #[test]
    fn a_line_that_is_half_written_is_cut_off_and_what_comes_next_is_whole() {
        let sites = federation(&[1, 2]);
        let path = sites[0].data.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        for end in text.trim_end().rfind('\n').unwrap() + 1..text.len() {
            fs::write(&path, &text[..end]).unwrap();
            let again = Ledger::open(sites[0].data.path()).unwrap();
            assert_eq!(again.all().len(), 1, "{end}");
            let claim = Claim::Move { address: "h:2".into() };
            again.say(&sites[0].identity, Millis(2), claim).unwrap();
            assert_eq!(Ledger::open(sites[0].data.path()).unwrap().all().len(), 2, "{end}");
        }
    }

    #[test]
    fn a_file_that_somebody_has_changed_is_refused_with_the_line() {
        let sites = federation(&[1, 2]);
        let path = sites[0].data.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        for broken in ["nonsense\n".to_owned(), text.replacen(' ', " A", 1)] {
            fs::write(&path, broken).unwrap();
            let error = Ledger::open(sites[0].data.path()).err().unwrap().to_string();
            assert!(error.contains("line 1 of") && error.contains("join again"), "{error}");
        }
    }

    #[test]
    fn sites_tell_each_other_what_they_lack() {
        let sites = federation(&[1, 2]);
        sites[0].admit(3);
        sites[1].admit(4);
        let news = sites[0].ledger.beyond(&sites[1].ledger.heard());
        assert_eq!(news.len(), 1);
        assert!(sites[1].ledger.hear(&news).unwrap());
        assert!(!sites[1].ledger.hear(&news).unwrap(), "it is known");
        assert!(sites[0].ledger.hear(&sites[1].ledger.beyond(&sites[0].ledger.heard())).unwrap());
        assert_eq!(sites[0].names(), ["site1", "site2", "site3", "site4"]);
        assert_eq!(sites[1].names(), sites[0].names());
    }

    #[test]
    fn words_may_come_in_any_order() {
        let sites = federation(&[1, 2]);
        let known = sites[1].ledger.heard();
        (3..6).for_each(|seed| sites[0].admit(seed));
        let mut news = sites[0].ledger.beyond(&known);
        news.reverse();
        for (n, signed) in news.iter().enumerate() {
            let counts = sites[1].ledger.hear(std::slice::from_ref(signed)).unwrap();
            assert_eq!(counts, n + 1 == news.len());
        }
        assert_eq!(sites[1].names(), sites[0].names());
        assert_eq!(Ledger::open(sites[1].data.path()).unwrap().heard(), sites[0].ledger.heard());
    }

    #[test]
    fn what_strangers_say_is_not_even_looked_at() {
        let sites = federation(&[1, 2]);
        let stranger = At::new(9);
        stranger.ledger.found(&stranger.identity, &site("site9"), "h:9").unwrap();
        let root = sites[0].identity.public();
        let statement = Statement {
            by: stranger.identity.public(),
            number: 1,
            at: Timestamp::at(Millis(1)),
            claim: Claim::Move { address: "h:1".into() },
        };
        let said = Signed::new(&stranger.identity, &root, &Word::Stated(statement)).unwrap();
        for _ in 0..3 {
            assert!(!sites[0].ledger.hear(std::slice::from_ref(&said)).unwrap());
        }
        assert!(sites[0].ledger.lock().federation.as_ref().unwrap().held.is_empty());
        assert_eq!(sites[0].names(), ["site1", "site2"]);
    }

    #[test]
    fn the_last_words_of_a_site_are_those_of_all_its_keys() {
        let sites = federation(&[1, 2]);
        sites[1].say(Claim::Move { address: "h:7".into() });
        sites[1].say(Claim::Renew { key: identity(8).public() });
        let moved = Claim::Move { address: "h:8".into() };
        sites[1].ledger.say(&identity(8), Millis(3), moved).unwrap();
        let last = sites[1].ledger.last_of(&site("site2"), 1 << 20);
        assert_eq!(last.len(), 3);
        assert!(sites[0].ledger.hear(&last).unwrap());
        assert_eq!(sites[0].ledger.heard(), sites[1].ledger.heard());
        let some = sites[1].ledger.last_of(&site("site2"), last[2].len() + 1);
        assert_eq!(some, last[2..]);
    }

    #[test]
    fn nobody_joins_by_what_does_not_let_it_in() {
        let sites = federation(&[1, 2]);
        let stranger = At::new(9);
        let root = sites[0].identity.public();
        let join = |root, words| stranger.ledger.join(&stranger.identity, root, words);
        let refused = join(root, sites[0].ledger.all()).unwrap_err();
        assert!(matches!(refused, LedgerError::NotAdmitted), "{refused}");
        let other = sites[1].identity.public();
        let refused = join(other, sites[0].ledger.all()).unwrap_err();
        assert!(matches!(refused, LedgerError::Word(WordError::Forged(_))), "{refused}");
        assert!(matches!(join(root, vec![]).unwrap_err(), LedgerError::NotAdmitted));
        assert_eq!(stranger.ledger.root(), None);
        assert!(!stranger.data.path().join(FILE).exists());
    }

    #[test]
    fn a_site_belongs_to_one_federation() {
        let (one, two) = (federation(&[1, 2]), federation(&[3, 2]));
        let at = &one[1];
        let refused = at.ledger.join(&at.identity, two[0].identity.public(), two[0].ledger.all());
        assert!(matches!(refused.unwrap_err(), LedgerError::Elsewhere(_)));
        assert!(
            !at.ledger.hear(&two[0].ledger.all()).unwrap(),
            "they are about another federation"
        );
        assert_eq!(at.names(), ["site1", "site2"]);
    }

    #[test]
    fn one_that_has_heard_of_its_removal_says_nothing_that_would_be_lost() {
        let sites = federation(&[1, 2]);
        let renew = |to: u8| Claim::Renew { key: identity(to).public() };
        sites[1].say(renew(8));
        let key = sites[1].identity.public();
        let told = sites[1].ledger.last_of(&site("site2"), 1 << 20);
        sites[0].say(Claim::Remove { key, fence: Fence::default() });
        // The other learns that the new key follows the one that it has removed, and does not listen to it.
        assert!(!sites[0].ledger.hear(&told).unwrap());
        let of = |roster: &Roster| roster.removed_with(&identity(8).public()).cloned();
        assert_eq!(sites[0].ledger.read(of).unwrap(), Some(site("site2")));
        assert!(sites[1].ledger.hear(&sites[0].ledger.all()).unwrap());
        let refused = sites[1].ledger.say(&identity(8), Millis(3), renew(9)).unwrap_err();
        assert!(matches!(refused, LedgerError::Out), "{refused}");
    }

    #[test]
    fn one_that_was_removed_is_not_heard_any_more() {
        let sites = federation(&[1, 2, 3]);
        let key = sites[2].identity.public();
        sites[2].admit(7);
        sites[0].say(Claim::Remove { key, fence: Fence::default() });
        let beyond = |from: usize, to: usize| sites[from].ledger.beyond(&sites[to].ledger.heard());
        assert!(sites[1].ledger.hear(&beyond(0, 1)).unwrap());
        assert!(!sites[1].ledger.hear(&beyond(2, 1)).unwrap());
        assert!(!sites[0].ledger.hear(&beyond(2, 0)).unwrap());
        assert_eq!(sites[1].names(), ["site1", "site2"]);
    }
}
