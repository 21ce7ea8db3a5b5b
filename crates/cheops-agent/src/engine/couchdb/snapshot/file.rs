//! The file of a snapshot: written at its end, and read from its start.
//!
//! What must stay true:
//! - one process at a time writes it: the one that has locked the file;
//! - a write that is torn, at any byte, leaves the snapshot as it was before that write.

use std::{
    fs::{File, TryLockError},
    io::{self, BufReader, Read, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use super::format::{self, FORMAT, Frame, HEAD, Trailer};

/// How much is read at once.
const BUFFER: usize = 1 << 20;
/// How much room a frame gets before it is read: nearly all fit, and a length that makes no sense costs no more.
const ROOM: usize = 512 << 10;
/// How many frames are read ahead.
const AHEAD: usize = 16;

/// Reads the frames of a file up to a place.
pub(in super::super) struct Frames<R> {
    reader: R,
    /// How many bytes were read.
    pub(super) at: u64,
    sum: u32,
    upto: u64,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(reader: R, upto: u64) -> Self {
        Self { reader, at: 0, sum: 0, upto }
    }

    /// Whether all was read that there is to read.
    pub(in super::super) fn is_at_end(&self) -> bool {
        self.at >= self.upto
    }

    /// The bytes of the next frame; nothing at the end, or where something is damaged.
    pub(in super::super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.at >= self.upto {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        if !fill(&mut self.reader, &mut head)? {
            return Ok(None);
        }
        let Some((length, sum)) = format::head(head) else { return Ok(None) };
        let mut body = Vec::with_capacity(length.min(ROOM));
        // Not more than there is, whatever the length says.
        let read = (&mut self.reader).take(length as u64).read_to_end(&mut body)?;
        if read < length || format::checksum(self.sum, &body) != sum {
            return Ok(None);
        }
        (self.sum, self.at) = (sum, self.at + (HEAD + length) as u64);
        Ok(Some(body))
    }
}

/// Reads as many bytes as there is room for; false if there are fewer.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(failure) if failure.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Where what counts of a file ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct End {
    pub(super) at: u64,
    pub(super) sum: u32,
    pub(in super::super) trailer: Trailer,
}

/// Opens the frames of a snapshot.
pub(in super::super) fn frames(path: &Path, upto: u64) -> io::Result<Frames<BufReader<File>>> {
    Ok(Frames::new(BufReader::with_capacity(BUFFER, File::open(path)?), upto))
}

/// Reads a snapshot of these databases: hands out all frames that count, in their order. Says the mark of the snapshot
/// and where it ends; nothing if there is none that can be used.
pub(in super::super) fn scan(
    path: &Path,
    databases: &str,
    each: impl FnMut(&Frame<'_>),
) -> io::Result<Option<(String, End)>> {
    let mut frames = match frames(path, u64::MAX) {
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => return Ok(None),
        frames => frames?,
    };
    let Some(first) = frames.next()? else { return Ok(None) };
    let mark = match format::decode(&first) {
        Some(Frame::Head { format: FORMAT, databases: found, mark }) if found == databases => {
            mark.to_owned()
        }
        _ => return Ok(None),
    };
    // One thread reads and sums up, while this one decodes.
    let end = thread::scope(|scope| {
        let (hand, read) = sync_channel(AHEAD);
        let reader = thread::Builder::new().name("couchdb-snapshot".to_owned());
        reader.spawn_scoped(scope, move || read_on(frames, &hand))?;
        take_in(&read, each)
    })?;
    Ok(end.map(|end| (mark, end)))
}

/// The bytes of a frame, and the end of the file if it ended after it.
struct ReadFrame {
    bytes: Vec<u8>,
    at: u64,
    sum: u32,
}

/// Reads frames to the end, or for as long as they are taken.
fn read_on(mut frames: Frames<BufReader<File>>, hand: &SyncSender<io::Result<ReadFrame>>) {
    while let Some(read) = frames.next().transpose() {
        let failed = read.is_err();
        let (at, sum) = (frames.at, frames.sum);
        if hand.send(read.map(|bytes| ReadFrame { bytes, at, sum })).is_err() || failed {
            return;
        }
    }
}

/// Hands out the frames that count. Says where they end: what was written after the last trailer does not count.
fn take_in(
    read: &Receiver<io::Result<ReadFrame>>,
    mut each: impl FnMut(&Frame<'_>),
) -> io::Result<Option<End>> {
    let (mut waiting, mut end) = (Vec::new(), None);
    for frame in read {
        let ReadFrame { bytes, at, sum } = frame?;
        if format::is_content(&bytes) {
            waiting.push(bytes);
            continue;
        }
        let Some(Frame::Trailer(trailer)) = format::decode(&bytes) else { break };
        let content: Option<Vec<Frame<'_>>> =
            waiting.iter().map(|bytes| format::decode(bytes)).collect();
        let Some(content) = content else { break };
        content.iter().for_each(&mut each);
        drop(content);
        waiting.clear();
        end = Some(End { at, sum, trailer });
    }
    Ok(end)
}

/// Writes a snapshot.
pub(in super::super) struct Writer {
    file: File,
    pub(super) path: PathBuf,
    /// Where the next frame goes.
    at: u64,
    sum: u32,
}

impl Writer {
    /// Goes on where a snapshot ends; nothing if another process writes it.
    pub(super) fn go_on(path: &Path, end: &End) -> io::Result<Option<Self>> {
        let file = File::options().read(true).write(true).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(failure)) => return Err(failure),
            Ok(()) => {}
        }
        file.set_len(end.at)?;
        Ok(Some(Self { file, path: path.to_owned(), at: end.at, sum: end.sum }))
    }

    /// Begins a snapshot, in the place of any other; nothing if another process writes that.
    pub(super) fn begin(path: &Path, databases: &str, mark: &str) -> io::Result<Option<Self>> {
        let file =
            File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(failure)) => return Err(failure),
            Ok(()) => {}
        }
        file.set_len(0)?;
        let mut this = Self { file, path: path.to_owned(), at: 0, sum: 0 };
        this.write(&[Frame::Head { format: FORMAT, databases, mark }])?;
        Ok(Some(this))
    }

    /// Writes frames. After a failure the next ones go to the same place.
    pub(super) fn write(&mut self, frames: &[Frame<'_>]) -> io::Result<()> {
        let (mut bytes, mut sum) = (Vec::new(), self.sum);
        for frame in frames {
            let odd = || io::Error::new(io::ErrorKind::InvalidData, "it is too long");
            let (encoded, next) = format::encode(frame, sum).ok_or_else(odd)?;
            bytes.extend_from_slice(&encoded);
            sum = next;
        }
        self.file.write_all_at(&bytes, self.at)?;
        (self.at, self.sum) = (self.at + bytes.len() as u64, sum);
        Ok(())
    }

    /// How many bytes were written.
    pub(super) fn length(&self) -> u64 {
        self.at
    }

    /// Makes it useless, here and for whoever finds it.
    pub(super) fn discard(mut self) {
        let discarded = self.file.set_len(0).and_then(|()| self.file.flush());
        if let Err(failure) = discarded.and_then(|()| std::fs::remove_file(&self.path)) {
            tracing::warn!(path = %self.path.display(), "failed to remove the snapshot: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailer(covered: u64) -> Frame<'static> {
        let [local, records] = [(); 2].map(|()| "7".to_owned());
        Frame::Trailer(Trailer { covered, last_page: 1, local, records })
    }

    fn scrubbed(resource: &str) -> Frame<'_> {
        Frame::Scrubbed { resource, forgotten: 3 }
    }

    /// The resources of the frames that count, and up to where they go.
    fn read(path: &Path) -> Option<(Vec<String>, u64)> {
        let mut found = Vec::new();
        let (mark, end) = scan(path, "ours", |frame| match frame {
            Frame::Scrubbed { resource, .. } => found.push((*resource).to_owned()),
            other => panic!("{other:?}"),
        })
        .unwrap()?;
        assert_eq!(mark, "mark");
        Some((found, end.trailer.covered))
    }

    fn written(path: &Path) -> Vec<u64> {
        let mut writer = Writer::begin(path, "ours", "mark").unwrap().unwrap();
        let mut lengths = vec![writer.length()];
        for (resource, covered) in [("a", 10), ("b", 20)] {
            writer.write(&[scrubbed(resource), trailer(covered)]).unwrap();
            lengths.push(writer.length());
        }
        lengths
    }

    #[test]
    fn a_file_that_ends_anywhere_holds_what_was_whole_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let lengths = written(&path);
        let bytes = std::fs::read(&path).unwrap();
        for end in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let expected = match end as u64 {
                end if end >= lengths[2] => Some((vec!["a".to_owned(), "b".to_owned()], 20)),
                end if end >= lengths[1] => Some((vec!["a".to_owned()], 10)),
                _ => None,
            };
            assert_eq!(read(&path), expected, "{end}");
        }
    }

    #[test]
    fn a_byte_that_changes_takes_what_comes_after_it_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let lengths = written(&path);
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&path, &damaged).unwrap();
            let before = (at as u64 >= lengths[1]).then(|| (vec!["a".to_owned()], 10));
            assert_eq!(read(&path), before, "{at}");
        }
        let [_, one, two] = lengths[..] else { panic!("two parts") };
        let moved = [
            &bytes[..usize::try_from(lengths[0]).unwrap()],
            &bytes[usize::try_from(one).unwrap()..],
        ];
        std::fs::write(&path, moved.concat()).unwrap();
        assert_eq!(read(&path), None, "a part is missing, of {two} bytes");
    }

    #[test]
    fn it_goes_on_after_the_last_trailer_and_is_written_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        written(&path);
        assert!(scan(&path, "others", |_| {}).unwrap().is_none(), "it is of other databases");
        let (_, end) = scan(&path, "ours", |_| {}).unwrap().unwrap();
        let mut writer = Writer::go_on(&path, &end).unwrap().unwrap();
        assert!(Writer::go_on(&path, &end).unwrap().is_none());
        assert!(Writer::begin(&path, "ours", "other").unwrap().is_none());
        writer.write(&[scrubbed("torn")]).unwrap();
        drop(writer);
        let mut writer = Writer::go_on(&path, &end).unwrap().unwrap();
        writer.write(&[scrubbed("c"), trailer(30)]).unwrap();
        assert_eq!(read(&path), Some((["a", "b", "c"].map(ToOwned::to_owned).to_vec(), 30)));
        writer.discard();
        assert!(!path.exists() && scan(&path, "ours", |_| {}).unwrap().is_none());
    }
}
