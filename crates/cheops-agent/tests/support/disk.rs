//! The one disk of the tests: in memory, and in a file as well if it is to outlive its process. It
//! fails, is full, or takes its time when it is told to.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cheops_agent::{
    engine::{Engine, EngineError, Reader, Seq, Sort},
    wire,
};
use cheops_core::{
    id::{OpId, ResourceId},
    replica::Durable,
    trust::Seal,
};

/// A disk. All clones are one.
#[derive(Clone)]
pub struct Disk {
    written: Arc<Mutex<Vec<Durable>>>,
    file: Option<Arc<Mutex<File>>>,
    appends: Arc<AtomicU64>,
    free: Arc<AtomicU64>,
    broken: Arc<AtomicBool>,
    for_good: Arc<AtomicBool>,
    /// Whoever holds it makes the disk wait.
    pub gate: Arc<Mutex<()>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl Disk {
    /// A disk that begins with this.
    pub fn of(written: Vec<Durable>) -> Self {
        Self {
            written: Arc::new(Mutex::new(written)),
            file: None,
            appends: Arc::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            broken: Arc::default(),
            for_good: Arc::default(),
            gate: Arc::default(),
        }
    }

    /// A disk in a file. What a killed process has left unfinished is cut off.
    pub fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let (mut at, mut written, mut names) = (0, Vec::new(), wire::Names::default());
        while let Some(length) = bytes.get(at..at + 4) {
            let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
            let Some(record) = bytes.get(at + 4..at + 4 + length) else { break };
            written.push(wire::decode_durable(record, &mut names).unwrap());
            at += 4 + length;
        }
        file.set_len(at as u64).unwrap();
        Self { file: Some(Arc::new(Mutex::new(file))), ..Self::of(written) }
    }

    /// Another disk with the same on it.
    pub fn copy(&self) -> Self {
        Self::of(self.written())
    }

    /// All that was written.
    pub fn written(&self) -> Vec<Durable> {
        self.written.lock().unwrap().clone()
    }

    /// How many batches were.
    pub fn appends(&self) -> u64 {
        self.appends.load(Ordering::SeqCst)
    }

    pub fn set_free(&self, bytes: u64) {
        self.free.store(bytes, Ordering::SeqCst);
    }

    pub fn set_broken(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }

    /// Breaks it so that trying again is of no use.
    pub fn break_for_good(&self) {
        self.for_good.store(true, Ordering::SeqCst);
        self.set_broken(true);
    }
}

impl Engine for Disk {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        let _gate = self.gate.lock().unwrap();
        if self.broken.load(Ordering::SeqCst) {
            return Err(EngineError {
                place: "memory".into(),
                problem: "it is broken".into(),
                sort: if self.for_good.load(Ordering::SeqCst) {
                    Sort::Permanent
                } else {
                    Sort::Disk
                },
            });
        }
        self.appends.fetch_add(1, Ordering::SeqCst);
        if let Some(file) = &self.file {
            let mut bytes = Vec::new();
            for durable in batch {
                let record = wire::encode_durable(durable).unwrap();
                bytes.extend(u32::try_from(record.len()).unwrap().to_le_bytes());
                bytes.extend(record);
            }
            file.lock().unwrap().write_all(&bytes).unwrap();
        }
        let mut written = self.written.lock().unwrap();
        written.extend_from_slice(batch);
        Ok(written.len() as Seq)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(self.clone())
    }
}

impl Reader for Disk {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        let written = self.written.lock().unwrap();
        let rest = (1..).zip(written.iter().cloned()).skip(usize::try_from(seq).unwrap());
        Ok(rest.take(most).collect())
    }

    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        let written = self.written.lock().unwrap();
        let seals = written.iter().filter_map(|durable| match durable {
            Durable::Record(record, Some(seal)) if record.resource() == resource => {
                Some((record.id().clone(), seal.clone()))
            }
            _ => None,
        });
        Ok(seals.filter(|(id, _)| records.contains(id)).collect())
    }

    fn last(&self) -> Seq {
        self.written.lock().unwrap().len() as Seq
    }

    fn free(&self) -> io::Result<u64> {
        Ok(self.free.load(Ordering::SeqCst))
    }
}

/// Makes a disk wait until it is dropped.
pub fn hold(disk: &Disk) -> impl Drop + use<> {
    struct Held(Option<std::sync::mpsc::Sender<()>>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    let gate = disk.gate.clone();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (to_held, held) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _gate = gate.lock().unwrap();
        to_held.send(()).unwrap();
        let _ = released.recv();
    });
    held.recv().unwrap();
    Held(Some(release))
}
