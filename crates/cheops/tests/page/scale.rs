//! The page of a federation with a hundred sites and ten thousand resources: it is there before one gets
//! impatient, and what happens is on the screen before one looks up.
//!
//! Times are those of the browser, from its own clock, up to the frame after the change. The federation is
//! described in `federation`; all of it and the browser share the processors of this machine, and the program
//! is the one that the tests are built with.

use std::{
    fmt::Write as _,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{Grid, State, Submit};
use serde_json::{Value, json};

use crate::{
    browser::Browser,
    federation::{self, Federation, Made, RESOURCES, SITES},
    field::{agent::Agent, eventually, submit},
};

/// How long a page may take until it can be used, in milliseconds.
const INTERACTIVE: f64 = 1_000.0;
/// How long an event may take to the screen.
const EVENT: f64 = 200.0;
/// How long it may take while many operations come in, and until it is seen how one went.
const FOLLOWED: f64 = 500.0;
/// How many events are measured.
const EVENTS: usize = 10;
/// How often a round that was disturbed is measured again: processors are shared.
const ROUNDS: usize = 3;
/// How many rows a page has.
const ROWS: usize = 50;
/// How many operations come in a second when many come in, and for how long.
const RATE: u32 = 200;
const FLOOD: Duration = Duration::from_secs(5);
/// How many times in a second a page may ask while they do: for rows, and for the whole list.
const ASKS: f64 = 15.0;
/// For how long a page fetches nothing before an event is measured by itself, in milliseconds.
const QUIET: u32 = 250;

/// Waits in the page until `condition` holds, after it has done `action`: how long that took, from the
/// action or from the `start` that is given, until it is painted.
fn until(browser: &Browser, start: &str, action: &str, condition: &str) -> f64 {
    let script = format!(
        "const done = arguments[arguments.length - 1];
         window.steps ??= {{}};
         const start = {start};
         const is = () => {{ {condition} }};
         let over = false;
         const look = () => {{
             if (over || !is()) return;
             over = true;
             window.steps.swapped = performance.now();
             observer.disconnect();
             requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
         }};
         const observer = new MutationObserver(look);
         observer.observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
         {action};
         look();"
    );
    browser.script_until_done(&script, Vec::new()).as_f64().unwrap()
}

/// Waits until the page has fetched all that came of what happened before.
fn quiet(browser: &Browser) {
    let script = format!(
        "const done = arguments[arguments.length - 1];
         performance.setResourceTimingBufferSize(100000);
         const look = () => {{
             const parts = performance.getEntriesByType('resource').filter((e) => e.name.includes('/part/'));
             const last = Math.max(0, ...parts.map((e) => e.responseEnd));
             if (performance.now() - last > {QUIET}) done(); else setTimeout(look, 20);
         }};
         look();"
    );
    browser.script_until_done(&script, Vec::new());
}

/// The whole list is there, with so many rows, if that matters.
fn listed(rows: &str) -> String {
    format!(
        "const list = document.getElementById('list');
         const rows = [...list.querySelectorAll('tbody tr')];
         return !list.getAttribute('hx-trigger').startsWith('load') && {rows};"
    )
}

/// Submits an operation from the page, as a script would.
fn post(id: &str, command: &str) -> String {
    let body = json!({ "command": command, "kind": "set", "keep_going": true, "wait": "0s" });
    format!(
        "fetch('/api/v1/resources/{id}/operations', {{ method: 'POST',
             headers: {{ 'Content-Type': 'application/json' }}, body: JSON.stringify({body}) }})"
    )
}

/// What was measured, for people.
#[derive(Default)]
struct Report {
    text: String,
    missed: usize,
}

impl Report {
    /// Each of the spans of a round has to be below a limit.
    fn measure(&mut self, what: &str, limit: f64, mut round: impl FnMut() -> Vec<f64>) {
        for n in 1..=ROUNDS {
            let mut spans = round();
            spans.sort_by(f64::total_cmp);
            let (median, worst) = (spans[spans.len() / 2], spans[spans.len() - 1]);
            let line = format!("{what}: median {median:.0} ms, worst {worst:.0} ms");
            self.note(&format!("{line} (limit {limit} ms)"), worst < limit || n < ROUNDS);
            if worst < limit {
                break;
            }
        }
    }

    fn note(&mut self, text: &str, holds: bool) {
        let mark = if holds { "" } else { "  <-- missed" };
        let _ = writeln!(self.text, "{text}{mark}");
        self.missed += usize::from(!holds);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("scale.txt"), &self.text).unwrap();
    }
}

#[test]
fn a_hundred_sites_and_ten_thousand_resources_are_there_at_once_and_live() {
    let mut report = Report::default();
    let start = Instant::now();
    let federation = Federation::start();
    let span = start.elapsed().as_secs_f64();
    report.note(&format!("the federation was there after {span:.1} s"), true);
    // A failure is told without the last words of a hundred agents.
    let looked = catch_unwind(AssertUnwindSafe(|| look(&federation, &mut report)));
    drop(federation);
    looked.unwrap_or_else(|panic| resume_unwind(panic));
    assert_eq!(report.missed, 0, "\n{}", report.text);
}

fn look(federation: &Federation, report: &mut Report) {
    let browser = Browser::new();
    let url = |path: &str| format!("{}{path}", federation.hub().url);
    is_as_it_was_made(federation);
    the_grid_is_there(&browser, &url("/resources"), report);
    events_are_seen(&browser, federation, report);
    others_are_heard(&browser, federation, report);
    a_flood_is_followed(&browser, federation, report);
    a_resource_is_live(&browser, federation, report);
    the_sites_are_there(&browser, &url("/"), report);
}

/// All sites and states are told of; those that are silent by others.
fn is_as_it_was_made(federation: &Federation) {
    let grid: Grid = federation.hub().try_get("/api/v1/grid?limit=200").unwrap();
    assert_eq!(grid.sites.len(), SITES);
    assert_eq!(grid.sites.iter().filter(|site| !site.answered).count(), federation::silent());
    assert_eq!(grid.rows.len(), 200);
    for (row, made) in grid.rows.iter().zip(&federation.resources) {
        let named: Vec<String> = made.sites.iter().map(|&site| federation::name(site)).collect();
        assert_eq!(row.id, made.id);
        assert!(row.cells.keys().eq(&named), "{row:?} {named:?}");
    }
    let cells = || grid.rows.iter().flat_map(|row| row.cells.values());
    for state in [State::Settled, State::Pending, State::Failed, State::Diverged] {
        assert!(cells().any(|cell| cell.state == state && cell.told_by.is_none()), "{state:?}");
    }
    assert!(cells().any(|cell| cell.told_by.is_some()), "nothing is told of a silent site");
    let last = format!("/api/v1/grid?after=resource-{:05}", RESOURCES - 2);
    let last: Grid = federation.hub().try_get(&last).unwrap();
    assert_eq!(last.rows.len(), 1);
}

/// From following a link to rows that can be read, to what all sites say, and to what is searched for.
fn the_grid_is_there(browser: &Browser, url: &str, report: &mut Report) {
    report.measure("grid: from the start of navigation to rows", INTERACTIVE, || {
        let span = |_| {
            browser.open("about:blank");
            browser.open(url);
            let timing = browser.script(
                "return [performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
                    document.querySelectorAll('#list tbody tr').length]",
                Vec::new(),
            );
            let (ready, rows): (f64, usize) = serde_json::from_value(timing).unwrap();
            assert_eq!(rows, ROWS);
            ready
        };
        (0..5).map(span).collect()
    });
    report.measure("grid: from the start of navigation to what all sites say", INTERACTIVE, || {
        let span = |_| {
            browser.open("about:blank");
            browser.open(url);
            until(browser, "0", "", &listed(&format!("rows.length === {ROWS}")))
        };
        (0..5).map(span).collect()
    });
    report.measure("grid: from a key to what all sites have of it", INTERACTIVE, || {
        (0..5).map(|n| search(browser, &format!("{n}7{n}"))).collect()
    });
    browser.open(url);
    until(browser, "0", "", &listed("true"));
    browser.wait_for("#live", |text| text == "live");
    browser.shot("scale-grid");
}

/// Types into the field, and waits for the rows.
fn search(browser: &Browser, wanted: &str) -> f64 {
    let action = format!(
        "const field = document.querySelector('input[name=find]');
         field.value = '{wanted}';
         field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
    );
    let found = format!("rows.length > 10 && rows.every((row) => row.id.includes('{wanted}'))");
    until(browser, "performance.now()", &action, &listed(&found))
}

/// The moment of a row's last update, and its state at the site that is looked at.
fn cell(id: &str) -> String {
    format!(
        "const row = document.getElementById('line-{id}');
         const [at, state] = [row.querySelector('time').dateTime, row.cells[3].innerText];"
    )
}

/// An operation is submitted, and seen; then how it went. `before` is done before each.
fn events(browser: &Browser, plain: &[&str], before: impl Fn(&Browser)) -> (Vec<f64>, Vec<f64>) {
    let (mut accepted, mut went) = (Vec::new(), Vec::new());
    for (n, id) in plain.iter().enumerate() {
        before(browser);
        let (command, letter) = if n % 2 == 0 { ("false", "F") } else { ("echo again", "S") };
        let read = cell(id);
        let before = browser.script(&format!("{read} return at"), Vec::new());
        accepted.push(until(
            browser,
            "window.submittedAt = performance.now()",
            &post(id, command),
            &format!("{read} return at !== {before}"),
        ));
        let ended = format!("{read} return at !== {before} && state === '{letter}'");
        went.push(until(browser, "window.submittedAt", "", &ended));
    }
    (accepted, went)
}

/// Resources on the first page that nothing is wrong with.
fn plain(federation: &Federation) -> Vec<&str> {
    let first = &federation.resources[..ROWS];
    let plain = first.iter().filter(|made| made.is_plain());
    let plain: Vec<&str> = plain.map(|made| made.id.as_str()).take(EVENTS).collect();
    assert_eq!(plain.len(), EVENTS);
    plain
}

/// Where the time goes from an operation that is submitted to the screen.
fn steps(browser: &Browser, id: &str) -> String {
    let told = "document.addEventListener('changed', () => { window.steps.told ??= performance.now(); }, true);
        performance.clearResourceTimings();";
    let read = cell(id);
    let before = browser.script(&format!("{read} {told} return at"), Vec::new());
    let action = format!(
        "window.steps = {{ start }};
         {}.then(() => {{ window.steps.accepted = performance.now(); }})",
        post(id, "true")
    );
    let whole =
        until(browser, "performance.now()", &action, &format!("{read} return at !== {before}"));
    let steps = browser.script(
        "const rows = performance.getEntriesByType('resource').find((e) => e.name.includes('/part/grid/rows'));
         const { start, accepted, told, swapped } = window.steps;
         return [accepted, told, rows.requestStart, rows.responseEnd, swapped].map((at) => at - start)",
        Vec::new(),
    );
    let [accepted, told, asked, answered, swapped]: [f64; 5] =
        serde_json::from_value(steps).unwrap();
    format!(
        "accepted after {accepted:.0}, told after {told:.0}, asked after {asked:.0}, answered after {answered:.0}, swapped after {swapped:.0}, painted after {whole:.0}"
    )
}

fn events_are_seen(browser: &Browser, federation: &Federation, report: &mut Report) {
    let plain = plain(federation);
    let what = "grid: an operation that is submitted here, to the screen";
    report.measure(what, EVENT, || events(browser, &plain, quiet).0);
    report.note(&format!("grid: of that, in ms: {}", steps(browser, plain[0])), true);
    let what = "grid: an operation that is submitted here, to how it went";
    report.measure(what, FOLLOWED, || events(browser, &plain, quiet).1);
}

/// What is submitted at another site is seen here. Both clocks are this machine's.
fn others_are_heard(browser: &Browser, federation: &Federation, report: &mut Report) {
    let first = &federation.resources[..ROWS];
    let plain: Vec<_> = first.iter().filter(|made| made.is_plain()).take(EVENTS).collect();
    let span = |made: &&Made| {
        quiet(browser);
        let read = cell(&made.id);
        let before = browser.script(&format!("{read} return at"), Vec::new());
        browser.script(
            &format!(
                "window.seenAt = null;
                 const look = () => {{
                     {read}
                     if (window.seenAt !== null || at === {before}) return;
                     observer.disconnect();
                     requestAnimationFrame(() => setTimeout(() => {{ window.seenAt = Date.now(); }}));
                 }};
                 const observer = new MutationObserver(look);
                 observer.observe(document, {{ subtree: true, childList: true }});"
            ),
            Vec::new(),
        );
        let other = federation.at(made.sites[1]);
        let started = jiff::Timestamp::now().as_millisecond();
        let ask = Submit { wait: Some("0s".into()), keep_going: true, ..submit("true", "set") };
        other.exec(&made.id, &ask);
        let mut seen = Value::Null;
        eventually("it is seen here", || {
            seen = browser.script("return window.seenAt", Vec::new());
            !seen.is_null()
        });
        #[expect(clippy::cast_precision_loss, reason = "it is a measurement")]
        let started = started as f64;
        seen.as_f64().unwrap() - started
    };
    let what = "grid: an operation that is submitted elsewhere, to the screen";
    report.measure(what, EVENT, || plain.iter().map(span).collect());
}

/// Many operations come in: the page neither falls behind, nor asks for each of them.
fn a_flood_is_followed(browser: &Browser, federation: &Federation, report: &mut Report) {
    let hub = federation.hub();
    let (near, busy) = (federation::name(1), "resource-00000-busy");
    // Its first operation lasts as long as the federation, so that the others are accepted and wait: commands
    // are not what is measured.
    let sites = Some(format!("{} & {near}", federation::name(0)));
    let lasts = format!("while [ -e '{}' ]; do sleep 1; done", federation.directory().display());
    let first = Submit { sites, wait: Some("0s".into()), ..submit(&lasts, "set") };
    hub.exec(busy, &first);
    until(browser, "0", "", &listed(&format!("rows.some((row) => row.id === 'line-{busy}')")));
    let (mut sent, mut asked) = (0, 0.0);
    report.measure("flood: an operation that is submitted here, to the screen", FOLLOWED, || {
        browser.script("performance.clearResourceTimings(); window.floodAt = performance.now()", vec![]);
        let spans = thread::scope(|scope| {
            let flood = [(); 4].map(|()| scope.spawn(|| flood(hub, busy, RATE / 4)));
            let (start, plain) = (Instant::now(), plain(federation));
            let mut spans = Vec::new();
            while start.elapsed() < FLOOD {
                spans.extend(events(browser, &plain[..2], |_| {}).0);
            }
            sent = flood.map(|thread| thread.join().unwrap()).iter().sum();
            spans
        });
        let times = browser.script(
            "const asked = performance.getEntriesByType('resource').filter((e) => e.name.includes('/part/'));
             return asked.length * 1000 / (performance.now() - window.floodAt)",
            Vec::new(),
        );
        asked = times.as_f64().unwrap();
        spans
    });
    let enough = u128::from(sent) * 1_000 > FLOOD.as_millis() * u128::from(RATE) / 2;
    report.note(&format!("flood: {sent} operations in {FLOOD:?}"), enough);
    report.note(&format!("flood: the page has asked {asked:.1} times a second"), asked < ASKS);
}

/// Sends operations of a resource at a pace; how many there were.
fn flood(hub: &Agent, id: &str, rate: u32) -> u32 {
    let hub = hub.again();
    let ask = Submit { wait: Some("0s".into()), ..submit("true", "inc") };
    let (start, mut sent) = (Instant::now(), 0_u32);
    while start.elapsed() < FLOOD {
        hub.exec(id, &ask);
        sent += 1;
        // The next one has its time; if it is late, it is not waited for.
        thread::sleep((sent * Duration::from_secs(1) / rate).saturating_sub(start.elapsed()));
    }
    sent
}

fn a_resource_is_live(browser: &Browser, federation: &Federation, report: &mut Report) {
    let mut fresh = federation.resources[ROWS..].iter().filter(|made| made.is_plain());
    report.measure("resource: an operation that is submitted here, to the screen", EVENT, || {
        // One that nothing was done to yet.
        let id = &fresh.next().unwrap().id;
        browser.open(&format!("{}/resources/{id}", federation.hub().url));
        browser.wait_for("#live", |text| text == "live");
        let span = |n| {
            quiet(browser);
            let command = format!("echo event {n}.");
            let seen =
                format!("return document.getElementById('seen').innerText.includes('{command}');");
            until(browser, "performance.now()", &post(id, &command), &seen)
        };
        (0..EVENTS).map(span).collect()
    });
}

fn the_sites_are_there(browser: &Browser, url: &str, report: &mut Report) {
    let all = format!("return document.querySelectorAll('#sites tbody tr').length === {SITES};");
    report.measure("sites: from the start of navigation to all of them", INTERACTIVE, || {
        let span = |_| {
            browser.open("about:blank");
            browser.open(url);
            until(browser, "0", "", &all)
        };
        (0..3).map(span).collect()
    });
    let named = browser.script("return document.querySelectorAll('.ring text').length", vec![]);
    assert!(named.as_u64().is_some_and(|named| named > federation::silent() as u64), "{named}");
    browser.is_accessible();
    browser.shot("scale-sites");
}
