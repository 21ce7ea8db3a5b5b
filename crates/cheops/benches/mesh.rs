//! What it costs to pass a request through an agent, beside HAProxy, nginx and Envoy.
//!
//! All stand in front of the same upstream. What is measured has one core for itself; the load and the
//! upstream share another. Each round gives every proxy its turn, and ratios are taken within a round,
//! so that a machine that is busy for a while is so for all of them. Prints a table, then each number
//! that has a limit. `cargo bench -p cheops --bench mesh`; `-- NAME…` for some of `small`, `alone`
//! and `large`. `CHEOPS_ENVOY` names the program `envoy`; `CHEOPS_ROUNDS` and `CHEOPS_SECONDS` say how
//! many rounds there are and how long each turn is.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench prints, and fails by panic"
)]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

#[path = "mesh/bodies.rs"]
mod bodies;
#[path = "mesh/process.rs"]
mod process;
#[path = "mesh/proxies.rs"]
mod proxies;
#[path = "mesh/scopes.rs"]
mod scopes;
#[path = "mesh/wrk.rs"]
mod wrk;

use bodies::Way;
use proxies::{Lane, Stage};

/// The length of a large body.
const LARGE: u64 = 1 << 30;
/// By how much an agent may grow while such bodies pass.
const GROWTH: f64 = 16.0;

/// Places of lanes in the table. The first is the one that others are compared with.
const HAPROXY: usize = 0;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    process::step_aside();
    if !wrk::is_there() {
        println!("wrk is not installed: nothing can be measured (`make proxies` installs it)");
        return;
    }
    let Some(stage) = Stage::new(bodies::upstream()) else {
        println!("nginx is not installed: there is no upstream (`make proxies` installs it)");
        return;
    };
    let mut lanes = Vec::new();
    for (name, lane) in
        [("haproxy", stage.haproxy()), ("nginx", stage.nginx()), ("envoy", stage.envoy())]
    {
        match lane {
            Some(lane) => lanes.push(lane),
            None => println!("{name} is not installed: left out (`make proxies` installs it)"),
        }
    }
    let cheops = stage.agent();
    let scoped = Lane {
        name: "cheops, scope of this site",
        header: Some("X-Scope: image: alone, store: alone"),
        ..cheops.clone()
    };
    lanes.extend([cheops, scoped]);
    lanes.extend(stage.pair());
    let mut bench = Bench {
        rounds: setting("CHEOPS_ROUNDS", 5),
        seconds: setting("CHEOPS_SECONDS", 2),
        direct: stage.direct(),
        lanes,
        limits: Vec::new(),
    };
    if wants("small") {
        bench.small();
    }
    if wants("alone") {
        bench.alone();
    }
    if wants("large") {
        bench.large();
    }
    println!();
    for limit in &bench.limits {
        println!("{limit}");
    }
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

struct Bench {
    rounds: usize,
    /// How long a turn lasts.
    seconds: usize,
    /// The way without a proxy: what the load and the upstream can do.
    direct: Lane,
    lanes: Vec<Lane>,
    limits: Vec<String>,
}

impl Bench {
    /// Requests per second and processor time per request, with 64 connections.
    fn small(&mut self) {
        let (rounds, seconds) = (self.rounds, self.seconds);
        let [mut rates, mut costs] = [(); 2].map(|()| Series::new(self.lanes.len()));
        let direct = wrk::ask(self.direct.small, None, 64, seconds);
        for _ in 0..rounds {
            for (n, lane) in self.lanes.iter().enumerate() {
                let before = lane.processor_time();
                let asked = wrk::ask(lane.small, lane.header, 64, seconds);
                rates.push(n, asked.per_second);
                costs.push(n, (lane.processor_time() - before) * 1e6 / asked.requests);
            }
        }
        println!("\n64 connections (no proxy: {:.0} requests/s)", direct.per_second);
        self.print("requests/s", &rates, 0);
        self.print("processor, µs a request", &costs, 1);
        let of = |name: &str| self.lane(name);
        let (cheops, scoped) = (of("cheops"), of("cheops, scope of this site"));
        self.limit("requests/s at 64 connections", rates.ratio(cheops, HAPROXY), Least(0.95));
        self.limit("processor a request", costs.ratio(cheops, HAPROXY), Most(1.1));
        for name in ["cheops, site1 to site2", "cheops, site2 to site1"] {
            let ratio = costs.ratio(self.lane(name), HAPROXY);
            self.limit(&format!("processor of both agents: {name}"), ratio, Most(2.5));
        }
        let (reading, beside) = (scopes::reading(self.lanes[scoped].header), costs.median(cheops));
        println!("  reading a scope: {reading:.2} µs");
        self.limit("a scope: reading it, beside a request", Some(reading / beside), Most(0.03));
    }

    /// The median time of an answer, with one connection.
    fn alone(&mut self) {
        let mut medians = Series::new(self.lanes.len());
        let direct = wrk::ask(self.direct.small, None, 1, self.seconds);
        for _ in 0..self.rounds {
            for (n, lane) in self.lanes.iter().enumerate() {
                let asked = wrk::ask(lane.small, lane.header, 1, self.seconds);
                medians.push(n, asked.median.as_secs_f64() * 1e6);
            }
        }
        println!("\n1 connection (no proxy: {:.0} µs)", direct.median.as_secs_f64() * 1e6);
        self.print("median, µs", &medians, 0);
        let ratio = medians.ratio(self.lane("cheops"), HAPROXY);
        self.limit("median at 1 connection", ratio, Most(1.0));
    }

    /// Large bodies, down and up, and what they do to the memory of an agent.
    fn large(&mut self) {
        let [mut down, mut up, mut grown] = [(); 3].map(|()| Series::new(self.lanes.len()));
        for lane in &self.lanes {
            // Whatever grows once has grown.
            bodies::pass(lane.large, lane.header, Way::Down, LARGE / 64);
            bodies::pass(lane.large, lane.header, Way::Up, LARGE / 64);
        }
        let before: Vec<f64> = self.lanes.iter().map(Lane::peak).collect();
        for _ in 0..self.rounds {
            for (n, lane) in self.lanes.iter().enumerate() {
                for (way, series) in [(Way::Down, &mut down), (Way::Up, &mut up)] {
                    let took = bodies::pass(lane.large, lane.header, way, LARGE);
                    series.push(n, LARGE as f64 / took.as_secs_f64() / 1e6);
                }
            }
        }
        for (n, lane) in self.lanes.iter().enumerate() {
            grown.push(n, lane.peak() - before[n]);
        }
        println!("\na body of 1 GB");
        self.print("down, MB/s", &down, 0);
        self.print("up, MB/s", &up, 0);
        self.print("growth of memory, MB", &grown, 1);
        let cheops = self.lane("cheops");
        self.limit("1 GB down", down.ratio(cheops, HAPROXY), Least(0.9));
        self.limit("1 GB up", up.ratio(cheops, HAPROXY), Least(0.9));
        let memory = Some(grown.median(cheops));
        self.limit("1 GB: growth of memory, MB", memory, Most(GROWTH));
    }

    fn lane(&self, name: &str) -> usize {
        self.lanes.iter().position(|lane| lane.name == name).unwrap()
    }

    /// Whether there is HAProxy to compare with.
    fn has_haproxy(&self) -> bool {
        self.lanes[HAPROXY].name == "haproxy"
    }

    fn print(&self, what: &str, series: &Series, digits: usize) {
        println!("  {what:<28} {:>10} {:>10}", "median", "x haproxy");
        for (n, lane) in self.lanes.iter().enumerate() {
            let ratio = series.ratio(n, HAPROXY).filter(|_| self.has_haproxy());
            let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            println!("    {:<26} {:>10.digits$} {ratio:>10}", lane.name, series.median(n));
        }
    }

    fn limit(&mut self, what: &str, measured: Option<f64>, limit: Limit) {
        let against_us = what.starts_with("a scope") || what.contains("memory");
        let measured = measured.filter(|_| self.has_haproxy() || against_us);
        let (word, bound) = match limit {
            Least(bound) => (">=", bound),
            Most(bound) => ("<=", bound),
        };
        let (measured, verdict) = match measured {
            Some(measured) if limit.holds(measured) => (format!("{measured:.3}"), "ok"),
            Some(measured) => (format!("{measured:.3}"), "MISS"),
            None => ("-".to_owned(), "not measured"),
        };
        self.limits.push(format!("{what:<52} {measured:>8}  {word} {bound:<5} {verdict}"));
    }
}

#[derive(Clone, Copy)]
enum Limit {
    Least(f64),
    Most(f64),
}
use Limit::{Least, Most};

impl Limit {
    fn holds(&self, measured: f64) -> bool {
        match self {
            Least(bound) => measured >= *bound,
            Most(bound) => measured <= *bound,
        }
    }
}

/// What was measured of each lane, round by round.
struct Series(Vec<Vec<f64>>);

impl Series {
    fn new(lanes: usize) -> Self {
        Self(vec![Vec::new(); lanes])
    }

    fn push(&mut self, lane: usize, value: f64) {
        self.0[lane].push(value);
    }

    fn median(&self, lane: usize) -> f64 {
        median(self.0[lane].clone())
    }

    /// How a lane stands beside another, in the median round; nothing if there is nothing to divide by.
    fn ratio(&self, lane: usize, other: usize) -> Option<f64> {
        let pairs = self.0[lane].iter().zip(&self.0[other]);
        let ratio = median(pairs.map(|(one, other)| one / other).collect());
        ratio.is_finite().then_some(ratio)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Lane {
    /// What all that requests pass through has used, in seconds.
    fn processor_time(&self) -> f64 {
        self.processes.iter().map(|process| process.processor_time().as_secs_f64()).sum()
    }

    /// The most memory that any of them has had, in MB.
    fn peak(&self) -> f64 {
        let peaks = self.processes.iter().map(|process| process.peak());
        peaks.max().unwrap_or(0) as f64 / f64::from(1 << 20)
    }
}
