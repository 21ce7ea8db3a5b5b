//! What many sites cost: messages and bytes for each operation, the time that sites need to agree
//! again after cuts, and memory, and how each grows with sites and with operations.
//!
//! The numbers come from the world of the simulator: real replicas, virtual links and a virtual
//! clock. `cargo bench -p cheops-core --bench scale` prints a table; with `-- --write` it writes
//! `docs/scale.md` and `docs/scale.svg` as well.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panic")]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests")]
#[path = "../tests/support/world.rs"]
mod world;

#[path = "scale/page.rs"]
mod page;
#[path = "scale/plot.rs"]
mod plot;

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, Operation},
    plan::Outcome,
    replica::{Durable, Record, Replica, Resource, Settings, Submission, Ticket},
    time::Millis,
};
use world::{App, Tally, Weather, World};

/// How long operations come in, in virtual seconds.
pub(crate) const SPAN: u64 = 300;
/// As long as this, in seconds, a tenth of the sites is cut off; then another tenth.
pub(crate) const CUT: u64 = 30;

const CONFIG: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}], "Reset": "redis-cli del {id}"}"#;

/// An application that costs nothing.
#[derive(Debug, Default, Clone, PartialEq)]
struct Anything;

impl App for Anything {
    fn run(&mut self, _: &Operation) -> Outcome {
        Outcome::Ok
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) sites: usize,
    pub(crate) resources: usize,
    pub(crate) operations: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) size: Size,
    /// How many others a site shares something with, on average.
    pub(crate) peers: f64,
    pub(crate) push: Tally,
    pub(crate) compare: Tally,
    pub(crate) repair: Tally,
    /// How many bytes an operation weighs, on average.
    pub(crate) weight: f64,
    /// Which part of the resources was not the same everywhere when the links came back.
    pub(crate) apart: f64,
    /// Seconds from then on until half of these, 99 % and all were.
    pub(crate) agree: [f64; 3],
    /// Bytes of memory for each site.
    pub(crate) memory: f64,
    /// Seconds of real time, and how many inputs were handled in it.
    pub(crate) took: f64,
    pub(crate) inputs: u64,
}

impl Measured {
    pub(crate) fn per_operation(&self, what: u64) -> f64 {
        what as f64 / self.size.operations as f64
    }

    /// Of what all sites sent while operations came in: how much for each site and second.
    pub(crate) fn per_second(&self, what: u64) -> f64 {
        what as f64 / self.size.sites as f64 / SPAN as f64
    }

    /// For the process that asked for it.
    fn to_line(&self) -> String {
        let tallies =
            [self.push, self.compare, self.repair].map(|t| format!("{} {}", t.messages, t.bytes));
        let [half, most, all] = self.agree;
        format!(
            "{} {} {} {} {half} {most} {all} {} {} {}",
            self.peers,
            tallies.join(" "),
            self.weight,
            self.apart,
            self.memory,
            self.took,
            self.inputs
        )
    }

    fn from_line(size: Size, line: &str) -> Self {
        let mut words = line.split_whitespace();
        let mut number = || words.next().unwrap().parse::<f64>().unwrap();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "they are counts"
        )]
        let count = |number: f64| number as u64;
        let peers = number();
        let mut tally = || Tally { messages: count(number()), bytes: count(number()) };
        let (push, compare, repair) = (tally(), tally(), tally());
        let (weight, apart) = (number(), number());
        let agree = [number(), number(), number()];
        let (memory, took, inputs) = (number(), number(), count(number()));
        Self { size, peers, push, compare, repair, weight, apart, agree, memory, took, inputs }
    }
}

struct Federation {
    world: World<Anything>,
    size: Size,
    resources: Vec<(ResourceId, Vec<usize>)>,
    names: Vec<SiteId>,
    peers: Vec<BTreeSet<usize>>,
    config: Config,
}

impl Federation {
    fn new(size: Size) -> Self {
        let names: Vec<SiteId> =
            (0..size.sites).map(|n| format!("site-{n:04}").parse().unwrap()).collect();
        let weather = Weather {
            delay: (10, 300),
            loss: 1_000,
            double: 0,
            run: (10, 100),
            notice: (100, 2_000),
            crash: 0,
            power_cut: 0,
        };
        let mut world: World<Anything> = World::new(&names, 1, weather, Settings::default());
        world.lean = true;
        let resources = (0..size.resources).map(|n| {
            let (mut on, count) = (BTreeSet::new(), world.rng.usize(3..=7));
            while on.len() < count {
                on.insert(world.rng.usize(0..size.sites));
            }
            (format!("resource-{n:05}").parse().unwrap(), on.into_iter().collect())
        });
        let resources: Vec<(ResourceId, Vec<usize>)> = resources.collect();
        let mut peers = vec![BTreeSet::new(); size.sites];
        for (_, on) in &resources {
            for &site in on {
                peers[site].extend(on.iter().copied().filter(|&other| other != site));
            }
        }
        let config = Config::from_json(CONFIG).unwrap();
        Self { world, size, resources, names, peers, config }
    }

    fn introduce(&mut self) {
        for (site, peers) in self.peers.iter().enumerate() {
            for &peer in peers.range(..site) {
                self.world.introduce(site, peer);
            }
        }
        self.world.run_for(5_000);
    }

    fn submit(&mut self, n: usize) {
        let (id, on) = &self.resources[self.world.rng.usize(0..self.resources.len())];
        let site = on[self.world.rng.usize(0..on.len())];
        let known =
            self.world.sites[site].replica.as_ref().is_some_and(|r| r.resource(id).is_some());
        let (kind, verb) =
            if self.world.rng.u8(0..10) == 0 { ("set", "set") } else { ("inc", "incrby") };
        let submission = Submission {
            ticket: Ticket(0),
            resource: id.clone(),
            sites: (!known).then(|| Sites::new(on.iter().map(|&n| self.names[n].clone())).unwrap()),
            config: (!known).then(|| self.config.clone()),
            kind: kind.parse().unwrap(),
            author: "operator".parse().unwrap(),
            action: Action::command(format!("redis-cli -h localhost -p 6379 {verb} {id} {n}")),
            force: false,
            keep_going: false,
            key: None,
            wait: Millis(10_000),
        };
        self.world.submit(site, submission);
    }

    /// Cuts a tenth of the sites off from all others, and lets the others see each other.
    fn cut_some_off(&mut self) {
        self.world.heal_all();
        for site in 0..self.size.sites {
            if self.world.rng.u8(0..10) == 0 {
                for peer in self.peers[site].clone() {
                    self.world.cut(site, peer);
                    self.world.cut(peer, site);
                }
            }
        }
    }

    /// Lets operations come in, and cuts come and go.
    fn work(&mut self) {
        let start = self.world.now;
        let mut cut = 0;
        for n in 0..self.size.operations {
            let at = n as u64 * SPAN * 1_000 / self.size.operations as u64;
            while cut <= at {
                self.world.run_until(start + cut);
                self.cut_some_off();
                cut += CUT * 1_000;
            }
            self.world.run_until(start + at);
            self.submit(n);
        }
        self.world.run_until(start + SPAN * 1_000);
    }

    fn agrees(&self, id: &ResourceId, on: &[usize]) -> bool {
        let mut found = on
            .iter()
            .map(|&site| self.world.sites[site].replica.as_ref().and_then(|r| r.resource(id)));
        let Some(first) = found.next() else { return true };
        let version = first.map(Resource::version);
        first.is_none_or(Resource::is_idle)
            && found.all(|other| {
                other.map(Resource::version) == version && other.is_none_or(Resource::is_idle)
            })
    }

    /// Heals everything and waits until all resources are the same everywhere: which part of them
    /// was not, and when half of these, 99 % and all were.
    fn agree(&mut self) -> (f64, [f64; 3]) {
        self.world.weather.loss = 0;
        self.world.heal_all();
        let start = self.world.now;
        let mut apart: Vec<(ResourceId, Vec<usize>)> = self.resources.clone();
        apart.retain(|(id, on)| !self.agrees(id, on));
        let count = apart.len();
        let mut marks = [None; 3];
        while marks[2].is_none() {
            self.world.run_for(100);
            apart.retain(|(id, on)| !self.agrees(id, on));
            let now = (self.world.now - start) as f64 / 1_000.0;
            for (mark, left) in marks.iter_mut().zip([count / 2, count / 100, 0]) {
                if apart.len() <= left && mark.is_none() {
                    *mark = Some(now);
                }
            }
            assert!(now < 120.0, "{} resources never agree", apart.len());
        }
        assert!(self.resources.iter().all(|(id, on)| self.agrees(id, on)));
        (count as f64 / self.resources.len() as f64, marks.map(|mark| mark.unwrap_or(0.0)))
    }

    /// Builds each site again from its records, none of which is shared with another site.
    fn rebuilt(&self) -> Vec<Replica> {
        let rebuild = |site: &world::Site<Anything>| {
            let mut records = Vec::new();
            for resource in site.replica.iter().flat_map(Replica::resources) {
                for (_, op) in resource.log().iter() {
                    records.push(Record::Operation(Arc::new((**op).clone())));
                }
                for (_, op) in resource.log().iter() {
                    let replies =
                        resource.sites().iter().filter_map(|from| resource.reply(&op.id, from));
                    records.extend(replies.map(|reply| Record::Reply(Arc::new(reply.clone()))));
                }
            }
            let records = records.into_iter().map(|record| Durable::Record(record, None));
            Replica::restore(site.name.clone(), Settings::default(), records)
        };
        self.world.sites.iter().map(rebuild).collect()
    }

    fn weight(&self) -> f64 {
        let (mut count, mut weight) = (0, 0);
        for (id, on) in &self.resources {
            let replica = self.world.sites[on[0]].replica.as_ref();
            for (_, op) in
                replica.and_then(|r| r.resource(id)).into_iter().flat_map(|r| r.log().iter())
            {
                count += 1;
                weight += op.weight();
            }
        }
        assert_eq!(count, self.size.operations, "every operation is known");
        weight as f64 / f64::from(u32::try_from(count).unwrap())
    }
}

/// The resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) * 1_024.0
}

fn measure(size: Size) -> Measured {
    let begun = Instant::now();
    let mut federation = Federation::new(size);
    federation.introduce();
    let before = federation.world.books.clone();
    federation.work();
    let after = federation.world.books.clone();
    let (apart, agree) = federation.agree();
    let took = begun.elapsed().as_secs_f64();
    let inputs = federation.world.books.inputs;
    let less = |after: Tally, before: Tally| Tally {
        messages: after.messages - before.messages,
        bytes: after.bytes - before.bytes,
    };
    // What is repaired after the heal is part of the price; the comparing goes on for ever.
    let repair = less(federation.world.books.repair, before.repair);
    let weight = federation.weight();
    let shared = resident();
    let rebuilt = federation.rebuilt();
    let memory = (resident() - shared) / rebuilt.len() as f64;
    let peers = federation.peers.iter().map(BTreeSet::len).sum::<usize>() as f64;
    Measured {
        size,
        peers: peers / size.sites as f64,
        push: less(after.push, before.push),
        compare: less(after.compare, before.compare),
        repair,
        weight,
        apart,
        agree,
        memory,
        took,
        inputs,
    }
}

/// Measures in a process of its own, so that no run is given the memory that another has freed.
fn measure_apart(size: Size) -> Measured {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let args = [size.sites, size.resources, size.operations].map(|n| n.to_string());
    let output = child.arg("--one").args(args).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{size:?} failed");
    Measured::from_line(size, &String::from_utf8(output.stdout).unwrap())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [one, sizes @ ..] = args.as_slice()
        && one == "--one"
    {
        let sizes: Vec<usize> = sizes.iter().map(|size| size.parse().unwrap()).collect();
        let size = Size { sites: sizes[0], resources: sizes[1], operations: sizes[2] };
        return println!("{}", measure(size).to_line());
    }
    let size = |sites, operations| Size { sites, resources: sites * 10, operations };
    if !args.iter().any(|arg| arg == "--bench") {
        // Run as a test: that it works is enough.
        return page::print(&[measure_apart(size(20, 2_000))]);
    }
    let sizes = [
        size(100, 10_000),
        size(300, 30_000),
        size(1_000, 10_000),
        size(1_000, 30_000),
        size(1_000, 100_000),
    ];
    let measured = sizes.map(measure_apart);
    page::print(&measured);
    if args.iter().any(|arg| arg == "--write") {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        std::fs::write(format!("{docs}/scale.md"), page::page(&measured)).unwrap();
        std::fs::write(format!("{docs}/scale.svg"), plot::plot(&measured)).unwrap();
    }
}
