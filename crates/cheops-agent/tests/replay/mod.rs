//! A disk that forgets what was not synced.
//!
//! The calls of a process are recorded with strace and played again, one by one, on a disk that
//! knows of each file and each directory what is synced and what is not. After any call it can say
//! what would be there after a power cut. It is stricter than most file systems: a name is there
//! only once its directory was synced, and writes that were not synced are kept or lost one by one.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// What strace is asked for; the file for the calls comes next.
pub(crate) const STRACE: [&str; 8] = [
    "--follow-forks",
    "--quiet=all",
    "-xx",
    "--string-limit=1000000",
    "--trace=openat,open,creat,close,dup,fcntl,write,pwrite64,writev,lseek,ftruncate,fallocate,\
     fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,rmdir,link,linkat,\
     copy_file_range,sendfile,sync_file_range",
    "--signal=none",
    "--seccomp-bpf",
    "-o",
];

/// A call that has returned.
pub(crate) struct Call {
    pub(crate) name: String,
    arguments: Vec<String>,
    result: u64,
    /// How many calls had returned when it began.
    began: usize,
}

/// The calls that did not fail, in the order in which they returned; but a file is closed when the
/// call begins, since others can get its number before it returns.
pub(crate) fn read(log: &Path) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut unfinished = HashMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let (process, line) = line.split_once(' ').unwrap();
        let line = line.trim_start();
        if let Some(begin) = line.strip_suffix(" <unfinished ...>") {
            unfinished.insert(process.to_owned(), (begin.to_owned(), calls.len()));
            if let Some(number) = begin.strip_prefix("close(") {
                let arguments = vec![number.trim_end_matches(')').to_owned()];
                let (name, began) = ("close".to_owned(), calls.len());
                calls.push(Call { name, arguments, result: 0, began });
            }
            continue;
        }
        let (line, began) = match line.split_once(" resumed>") {
            Some((_, end)) => {
                let (head, began) = unfinished.remove(process).unwrap();
                if head.starts_with("close(") {
                    continue;
                }
                (head + end, began)
            }
            None => (line.to_owned(), calls.len()),
        };
        let Some((call, result)) = line.rsplit_once(" = ") else { continue };
        let Some(result) = result.split(' ').next().and_then(|word| word.parse().ok()) else {
            continue;
        };
        let (name, arguments) = call.split_once('(').unwrap();
        let arguments = arguments.trim_end().trim_end_matches(')').split(", ").map(str::to_owned);
        calls.push(Call { name: name.to_owned(), arguments: arguments.collect(), result, began });
    }
    calls
}

impl Call {
    fn number(&self, at: usize) -> u64 {
        self.arguments[at].parse().unwrap()
    }

    fn bytes(&self, at: usize) -> Vec<u8> {
        let text = self.arguments[at].trim_matches('"');
        let bytes = text.split("\\x").skip(1);
        bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    fn path(&self, at: usize) -> PathBuf {
        String::from_utf8(self.bytes(at)).unwrap().into()
    }
}

/// What a file holds; what is not in `bytes` is zeros.
#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    length: u64,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Content {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(at, bytes) => {
                let start = usize::try_from(*at).unwrap();
                let end = start + bytes.len();
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[start..end].copy_from_slice(bytes);
                self.length = self.length.max(end as u64);
            }
            Change::Length(length) => {
                self.bytes.truncate(usize::try_from(*length).unwrap());
                self.length = *length;
            }
        }
    }
}

#[derive(Default)]
struct Inode {
    synced: Content,
    now: Content,
    unsynced: Vec<(usize, Change)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Node {
    Directory,
    File(usize),
}

type Names = BTreeMap<PathBuf, Node>;

/// A change of names in a directory.
struct Renamed {
    began: usize,
    directory: PathBuf,
    remove: Option<PathBuf>,
    put: Option<(PathBuf, Node)>,
}

impl Renamed {
    fn apply(&self, names: &mut Names) {
        if let Some(path) = &self.remove {
            names.remove(path);
        }
        if let Some((path, node)) = &self.put {
            names.insert(path.clone(), *node);
        }
    }
}

struct Open {
    path: PathBuf,
    node: Node,
    at: u64,
    append: bool,
}

/// What a call has changed.
pub(crate) struct Changed {
    /// Something that can be lost or not.
    pub(crate) any: bool,
    /// Something that can't be lost any more.
    pub(crate) durable: bool,
}

/// The disk.
pub(crate) struct Disk {
    root: PathBuf,
    inodes: Vec<Inode>,
    synced: Names,
    now: Names,
    unsynced: Vec<Renamed>,
    open: HashMap<u64, Open>,
    said: String,
}

impl Disk {
    pub(crate) fn new(root: &Path) -> Self {
        let names = Names::from([(root.to_owned(), Node::Directory)]);
        Self {
            root: root.to_owned(),
            inodes: Vec::new(),
            synced: names.clone(),
            now: names,
            unsynced: Vec::new(),
            open: HashMap::new(),
            said: String::new(),
        }
    }

    /// What the process has printed.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Plays a call.
    pub(crate) fn apply(&mut self, at: usize, call: &Call) -> Changed {
        let changed = |any, durable| Changed { any, durable };
        match call.name.as_str() {
            "openat" => return changed(self.open(at, call), false),
            "close" => {
                self.open.remove(&call.number(0));
            }
            "lseek" => {
                if let Some(open) = self.open.get_mut(&call.number(0)) {
                    open.at = call.result;
                }
            }
            "write" if call.number(0) == 1 => {
                self.said += &String::from_utf8_lossy(&call.bytes(1));
            }
            "write" => {
                let Some(open) = self.open.get_mut(&call.number(0)) else {
                    return changed(false, false);
                };
                let Node::File(inode) = open.node else { panic!("a write to a directory") };
                let mut bytes = call.bytes(1);
                bytes.truncate(usize::try_from(call.result).unwrap());
                if open.append {
                    open.at = self.inodes[inode].now.length;
                }
                let change = Change::Write(open.at, bytes);
                open.at += call.result;
                self.change(at, inode, change);
                return changed(true, false);
            }
            "pwrite64" | "ftruncate" => {
                let Some(Open { node: Node::File(inode), .. }) = self.open.get(&call.number(0))
                else {
                    return changed(false, false);
                };
                let change = match call.name.as_str() {
                    "ftruncate" => Change::Length(call.number(1)),
                    _ => Change::Write(call.number(3), call.bytes(1)),
                };
                self.change(at, *inode, change);
                return changed(true, false);
            }
            "fsync" | "fdatasync" => {
                let known = self.sync(call);
                return changed(known, known);
            }
            "rename" => return changed(self.rename(at, call.path(0), call.path(1)), false),
            "renameat" | "renameat2" => {
                return changed(self.rename(at, call.path(1), call.path(3)), false);
            }
            "unlink" => return changed(self.name(at, Some(call.path(0)), None), false),
            "mkdir" => {
                let put = (call.path(0), Node::Directory);
                return changed(self.name(at, None, Some(put)), false);
            }
            // Only asks for flags of a descriptor.
            "fcntl" if call.arguments[1] == "F_GETFD" => {}
            other => panic!("{other} is not played: {:?}", call.arguments),
        }
        changed(false, false)
    }

    fn open(&mut self, at: usize, call: &Call) -> bool {
        let path = call.path(1);
        let flags: Vec<_> = call.arguments[2].split('|').collect();
        if !path.starts_with(&self.root) {
            return false;
        }
        let mut changed = false;
        let node = if let Some(node) = self.now.get(&path) {
            *node
        } else {
            let node = Node::File(self.inodes.len());
            self.inodes.push(Inode::default());
            changed = self.name(at, None, Some((path.clone(), node)));
            node
        };
        if let Node::File(inode) = node
            && flags.contains(&"O_TRUNC")
            && self.inodes[inode].now.length > 0
        {
            self.change(at, inode, Change::Length(0));
            changed = true;
        }
        let append = flags.contains(&"O_APPEND");
        self.open.insert(call.result, Open { path, node, at: 0, append });
        changed
    }

    fn change(&mut self, at: usize, inode: usize, change: Change) {
        let inode = &mut self.inodes[inode];
        inode.now.apply(&change);
        inode.unsynced.push((at, change));
    }

    fn name(&mut self, at: usize, remove: Option<PathBuf>, put: Option<(PathBuf, Node)>) -> bool {
        let path = put.as_ref().map(|(path, _)| path).or(remove.as_ref()).unwrap();
        if !path.starts_with(&self.root) {
            return false;
        }
        let directory = path.parent().unwrap().to_owned();
        let renamed = Renamed { began: at, directory, remove, put };
        renamed.apply(&mut self.now);
        self.unsynced.push(renamed);
        true
    }

    fn rename(&mut self, at: usize, from: PathBuf, to: PathBuf) -> bool {
        assert_eq!(from.parent(), to.parent());
        let Some(node) = self.now.get(&from).copied() else { return false };
        self.name(at, Some(from), Some((to, node)))
    }

    /// What was changed before the call began can't be lost any more.
    fn sync(&mut self, call: &Call) -> bool {
        let Some(Open { path, node, .. }) = self.open.get(&call.number(0)) else { return false };
        match node {
            Node::File(inode) => {
                let inode = &mut self.inodes[*inode];
                let changes = std::mem::take(&mut inode.unsynced);
                for (at, change) in changes {
                    if at < call.began {
                        inode.synced.apply(&change);
                    } else {
                        inode.unsynced.push((at, change));
                    }
                }
            }
            Node::Directory => {
                let changes = std::mem::take(&mut self.unsynced);
                for renamed in changes {
                    if renamed.directory == *path && renamed.began < call.began {
                        renamed.apply(&mut self.synced);
                    } else {
                        self.unsynced.push(renamed);
                    }
                }
            }
        }
        true
    }

    /// What is there if all that is not synced is lost.
    pub(crate) fn synced(&self) -> State {
        let contents = self.inodes.iter().map(|inode| inode.synced.clone()).collect();
        State { root: self.root.clone(), names: self.synced.clone(), contents }
    }

    /// What is there if some of what is not synced is lost: names from some point on, and any
    /// writes, whole or in part.
    pub(crate) fn some(&self, random: &mut fastrand::Rng) -> State {
        let mut state = self.synced();
        for renamed in &self.unsynced[..random.usize(..=self.unsynced.len())] {
            renamed.apply(&mut state.names);
        }
        for (inode, content) in self.inodes.iter().zip(&mut state.contents) {
            for (_, change) in &inode.unsynced {
                match change {
                    _ if random.u8(..3) == 0 => {}
                    Change::Write(at, bytes) if random.u8(..3) == 0 => {
                        let part = bytes[..random.usize(..=bytes.len())].to_vec();
                        content.apply(&Change::Write(*at, part));
                    }
                    change => content.apply(change),
                }
            }
        }
        state
    }
}

/// What is there after a power cut.
pub(crate) struct State {
    root: PathBuf,
    names: Names,
    contents: Vec<Content>,
}

impl State {
    /// Writes it to another place.
    pub(crate) fn write(&self, place: &Path) {
        for (path, node) in &self.names {
            let to = place.join(path.strip_prefix(&self.root).unwrap());
            if to == place.join("") || !to.parent().unwrap().exists() {
                // What is in a directory that is not there is not there either.
                continue;
            }
            match node {
                Node::Directory => fs::create_dir(to).unwrap(),
                Node::File(inode) => {
                    let content = &self.contents[*inode];
                    let file = File::create(to).unwrap();
                    file.write_all_at(&content.bytes, 0).unwrap();
                    file.set_len(content.length).unwrap();
                }
            }
        }
    }
}
