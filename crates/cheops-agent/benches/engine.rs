//! What it costs to make operations of 500 bytes durable, and to open a store after a kill.
//!
//! Beside each rate stands that of a plain file that gets the same bytes with one write and one sync
//! a batch: the limit of this disk at this minute. Rounds are interleaved and the median is taken,
//! since machines are noisy. `cargo bench -p cheops-agent --bench engine`; with `-- 1000000` as the
//! number of operations in the store that is opened (200,000 otherwise); with `-- seals` for what signing
//! and checking costs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench prints, and fails by panic"
)]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::{
    config::Config,
    engine::{
        Engine, Opened as _,
        embedded::{Embedded, Options},
    },
    trust::{Identity, Inspector, Ledger, Members, Sealer},
    wire,
};
use cheops_core::{
    id::SiteId,
    replica::{Durable, Sent},
};

#[path = "../tests/storage/mod.rs"]
mod storage;

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(300);
const RESOURCES: u64 = 1_000;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", directory, count] => fill(Path::new(directory), count.parse().unwrap()),
        ["open", directory] => open_once(Path::new(directory)),
        ["seals"] => seals(),
        [count] => opening(count.parse().unwrap()),
        _ => {
            rates();
            seals();
            opening(200_000);
        }
    }
}

/// Operations made durable in a second.
fn rates() {
    println!("{:<24} {:>12} {:>12} {:>8}", "a batch", "engine", "plain file", "ratio");
    for size in [64, 1] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut engine = open(&directory.path().join("store"));
        let mut file = File::create(directory.path().join("plain")).unwrap();
        let mut next = 1;
        let mut batch = || {
            next += size;
            (next - size..next).map(operation).collect::<Vec<_>>()
        };
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(rate(&mut batch, |batch| {
                engine.append(batch).unwrap();
            }));
            plain.push(rate(&mut batch, |batch| {
                let encode = |durable| wire::encode_durable(durable).unwrap();
                let bytes: Vec<_> = batch.iter().flat_map(encode).collect();
                file.write_all(&bytes).unwrap();
                file.sync_data().unwrap();
            }));
        }
        let (ours, plain) = (median(ours), median(plain));
        let what = format!("{size} operations");
        println!("{what:<24} {ours:>10.0}/s {plain:>10.0}/s {:>8.2}", ours / plain);
    }
}

/// What it costs that each record is signed where it is made and checked where it arrives: operations
/// made durable in a second without that, and with both of it on the same core, one after the other.
fn seals() {
    let site: SiteId = "site1".parse().unwrap();
    let config = Config::new(site, "/nowhere");
    let ledger = Ledger::open(&config.data).unwrap();
    let members = Members::new(&config, Identity::from_seed(&[7; 32]).unwrap(), ledger);
    let (signers, stamp) = (Arc::new(members.clone()), Sealer::of(&members));
    let own = |number: u64| {
        let resource = format!("resource-{}", number % RESOURCES).parse().unwrap();
        storage::operation_of(number, "site1", &resource)
    };
    println!(
        "\n{:<24} {:>12} {:>12} {:>8} {:>8} {:>10} {:>10} {:>8}",
        "a batch", "not signed", "signed", "cost", "limit", "signing", "checking", "bytes"
    );
    for size in [64, 16, 1] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut engines = ["plain", "sealed"].map(|name| open(&directory.path().join(name)));
        let mut inspector = Inspector::new(signers.clone());
        let (mut next, mut bytes) = (1, 0);
        let (mut signing, mut checking, mut count) = (Duration::ZERO, Duration::ZERO, 0_u32);
        let (mut plain, mut signed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut batch = || {
                next += size;
                (next - size..next).map(own).collect::<Vec<_>>()
            };
            plain.push(rate(&mut batch, |batch| {
                engines[0].append(batch).unwrap();
            }));
            signed.push(rate(&mut batch, |batch| {
                let mut batch = batch.to_vec();
                let start = Instant::now();
                stamp.seal(&mut batch);
                signing += start.elapsed();
                engines[1].append(&batch).unwrap();
                let start = Instant::now();
                for durable in batch {
                    let Durable::Record(record, seal) = durable else { panic!("not a record") };
                    bytes = bytes.max(seal.as_ref().map_or(0, |seal| seal.as_bytes().len()));
                    inspector.inspect(&Sent { after: 0, record, seal }).unwrap();
                    count += 1;
                }
                checking += start.elapsed();
            }));
        }
        let (plain, signed) = (median(plain), median(signed));
        let each =
            |span: Duration| format!("{:.1} us", span.as_secs_f64() * 1e6 / f64::from(count));
        println!(
            "{:<24} {plain:>10.0}/s {signed:>10.0}/s {:>6.1} % {:>8} {:>10} {:>10} {bytes:>8}",
            format!("{size} operations"),
            (1.0 - signed / plain) * 100.0,
            "< 25 %",
            each(signing),
            each(checking),
        );
    }
}

/// The rate of one round. Making the operations is not counted.
fn rate(batch: &mut impl FnMut() -> Vec<Durable>, mut write: impl FnMut(&[Durable])) -> f64 {
    let (mut count, mut spent) = (0, Duration::ZERO);
    while spent < ROUND {
        let batch = batch();
        let start = Instant::now();
        write(&batch);
        spent += start.elapsed();
        count += batch.len();
    }
    count as f64 / spent.as_secs_f64()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Opens a store whose writer was killed, in a process of its own.
fn opening(count: u64) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = std::env::current_exe().unwrap();
    let store = directory.path().to_str().unwrap();
    let start = Instant::now();
    let mut writer = Command::new(&program)
        .args(["fill", store, &count.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    writer.kill().unwrap();
    writer.wait().unwrap();
    println!(
        "\n{count} operations, written in {:.1} s, then killed",
        start.elapsed().as_secs_f64()
    );
    for _ in 0..3 {
        assert!(Command::new(&program).args(["open", store]).status().unwrap().success());
    }
}

fn fill(directory: &Path, count: u64) {
    let mut engine = open(directory);
    let mut next = 1;
    while next <= count {
        let batch: Vec<_> = (next..next + 512).map(operation).collect();
        next = engine.append(&batch).unwrap() + 1;
    }
    println!("done");
    std::thread::park();
}

fn open_once(directory: &Path) {
    let before = memory();
    let start = Instant::now();
    let mut engine = open(directory);
    let opened = start.elapsed();
    let idle = memory();
    let start = Instant::now();
    let count = engine.written().map(Result::unwrap).count();
    let read = start.elapsed();
    println!(
        "opened in {:.2} s, {count} read in {:.2} s; {before:.0} MB before, {idle:.0} MB open, \
         {:.0} MB after reading; {:.0} MB on disk",
        opened.as_secs_f64(),
        read.as_secs_f64(),
        memory(),
        size(directory) as f64 / 1e6,
    );
}

/// The resident memory of this process, in MB.
fn memory() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1e3
}

/// The room that a directory takes on disk, in bytes.
fn size(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| match entry.metadata().unwrap() {
        data if data.is_dir() => size(&entry.path()),
        data => data.blocks() * 512,
    });
    sizes.sum()
}

fn open(directory: &Path) -> Embedded {
    Embedded::open(directory, Options::of("site01".parse().unwrap())).unwrap()
}

fn operation(number: u64) -> Durable {
    let resource = format!("resource-{}", number % RESOURCES).parse().unwrap();
    storage::operation_of(number, &format!("site{:02}", number % 10), &resource)
}
