//! Histories that people write: reading them, what they amount to, and what each site would run.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    history::{Act, History, Story},
    id::OpId,
    log::Ix,
    matrix::Matrix,
    operation::Operation,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{
    cases,
    history::{self, Event, events, matrices},
    reference,
};

fn read(matrix: &Value, operations: &Value) -> History {
    let text = json!({"ResolutionMatrix": matrix, "Operations": operations}).to_string();
    History::from_json(&text).unwrap()
}

fn ids(history: &History, ops: &[Ix]) -> String {
    ops.iter().map(|&op| history.id(op)).collect::<Vec<_>>().join(" ")
}

/// The block, and each dropped operation: `a < b: because`.
fn told(history: &History) -> Vec<String> {
    let mut told = vec![ids(history, history.block())];
    for dropped in history.dropped() {
        let by = dropped.by.map_or("nobody", |by| history.id(by));
        told.push(format!("{} < {by}: {}", history.id(dropped.op), dropped.because));
    }
    told
}

/// A site's story: `a b! clear a* | …`, with `*` for a replay, `=` for a fresh start, `!` for KO.
fn story(history: &History, site: &str) -> String {
    let Story { apart, after } = history.story(&site.parse().unwrap());
    let act = |act: &Act| match *act {
        Act::Clear => "clear".to_owned(),
        Act::Decide => "decide".to_owned(),
        Act::Run { op, again, fresh, failed } => {
            let mark = |on, mark| if on { mark } else { "" };
            let marks = [mark(fresh, "="), mark(again, "*"), mark(failed, "!")].concat();
            format!("{}{marks}", history.id(op))
        }
    };
    let line = |acts: &[Act]| acts.iter().map(act).collect::<Vec<_>>().join(" ");
    format!("{} | {}", line(&apart), line(&after))
}

fn op(id: &str, kind: &str, site: &str, time: i64, parents: &[&str]) -> Value {
    json!({"Id": id, "Kind": kind, "Site": site, "Time": time, "Parents": parents})
}

fn with(mut op: Value, field: &str) -> Value {
    op[field] = json!(true);
    op
}

/// The report's table 5.
fn redis() -> Value {
    json!([
        {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
        {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
        {"Before": "inc", "After": "inc", "Result": "take-both"}
    ])
}

/// The report's experiment: a value, then apart from each other a new value and two increments.
fn apart() -> Value {
    json!([
        op("init", "set", "site1", 1, &[]),
        op("set29", "set", "site1", 4, &["init"]),
        op("inc2", "inc", "site2", 2, &["init"]),
        op("inc3", "inc", "site3", 3, &["init"]),
    ])
}

#[test]
fn the_set_wins_over_increments() {
    let history = read(&redis(), &apart());
    // Nothing is said of set and set, so the first one stays, too.
    assert_eq!(
        told(&history),
        [
            "init set29",
            "inc2 < set29: set over inc (matrix row 2)",
            "inc3 < set29: set over inc (matrix row 2)"
        ]
    );
    assert_eq!(story(&history, "site1"), "init= set29= | ");
    assert_eq!(story(&history, "site2"), "init= inc2 | set29=");
}

#[test]
fn each_receipt_says_why() {
    let row = |result: &str, a: &str, b: &str| json!({"Before": a, "After": b, "Result": result});
    let pair = json!([op("x", "a", "s1", 1, &[]), op("y", "b", "s2", 2, &[])]);
    let same = json!([op("x", "a", "s1", 1, &[]), op("y", "a", "s2", 2, &[])]);
    let chain = json!([op("x", "a", "s1", 1, &[]), op("y", "b", "s2", 2, &["x"])]);
    let three =
        json!([op("x", "a", "s1", 1, &[]), op("y", "b", "s2", 2, &[]), op("z", "c", "s3", 3, &[])]);
    let circle = json!([
        row("take-both-keep-order", "a", "b"),
        row("take-both-keep-order", "b", "c"),
        row("take-both-keep-order", "c", "a")
    ]);
    let mut forced = chain.clone();
    forced[1]["Force"] = json!(true);
    let mut before = json!([row("take-both", "a", "a")]);
    before[0]["Concurrent"] = json!("take-before");
    for (matrix, operations, expected) in [
        (
            json!([row("take-one", "a", "a")]),
            &same,
            vec!["y", "x < y: the later of two a (take-one, matrix row 1)"],
        ),
        (
            json!([row("take-one", "b", "a")]),
            &pair,
            vec!["y", "x < y: the later of a and b (take-one, matrix row 1)"],
        ),
        (
            json!([row("take-both", "c", "c"), row("take-both-reverse-order", "b", "a")]),
            &pair,
            vec!["x", "y < x: a over b (matrix row 2)"],
        ),
        (
            json!([row("take-both-keep-order", "a", "a")]),
            &same,
            vec!["x", "y < x: the earlier of two a (take-both-keep-order, matrix row 1)"],
        ),
        (before, &same, vec!["x", "y < x: the earlier of two a (take-before, matrix row 1)"]),
        (
            json!([row("take-one", "a", "b")]),
            &chain,
            vec!["y", "x < y: reset: b replaced what came before (matrix row 1)"],
        ),
        (json!([]), &forced, vec!["y", "x < y: force: b replaced what came before"]),
        (
            circle,
            &three,
            vec![
                "z",
                "x < z: c over a (matrix row 3)",
                "y < z: the later of b and c, whose entries form a circle (matrix row 2)",
            ],
        ),
    ] {
        assert_eq!(told(&read(&matrix, operations)), expected, "{matrix}");
    }
}

#[test]
fn what_failed_takes_no_part() {
    let one = json!([{"Before": "a", "After": "a", "Result": "take-one"}]);
    let operations = json!([
        op("x", "a", "s1", 1, &[]),
        with(op("y", "a", "s1", 2, &["x"]), "Void"),
        op("z", "b", "s2", 3, &["y"]),
    ]);
    let history = read(&one, &operations);
    assert_eq!(told(&history), ["x z", "y < nobody: void: failed at s1"]);
    // The site that received it tries it; the other one has heard how that went.
    assert_eq!(story(&history, "s1"), "x= y=! | z");
    assert_eq!(story(&history, "s2"), "x= z | ");
}

#[test]
fn a_site_may_have_to_clear_or_to_ask() {
    // Without an operation that replaces, appends in the wrong order can't be undone.
    let matrix = json!([{"Before": "add", "After": "add", "Result": "take-both-agreed-order"}]);
    let operations = json!([op("x", "add", "s1", 1, &[]), op("y", "add", "s2", 2, &[])]);
    let history = read(&matrix, &operations);
    assert_eq!(story(&history, "s1"), "x | y");
    assert_eq!(story(&history, "s2"), "y | decide");

    let text = json!({"ResolutionMatrix": matrix, "Operations": operations, "Reset": "rm file"});
    let history = History::from_json(&text.to_string()).unwrap();
    assert_eq!(story(&history, "s2"), "y | clear x y*");
    assert_eq!(story(&history, "elsewhere"), " | x y");
}

#[test]
fn ties_fall_to_the_site_and_then_to_the_id_as_text() {
    let operations = json!([
        op("b10", "k", "s2", -7, &[]),
        op("b9", "k", "s2", -7, &[]),
        op("z", "k", "s10", -7, &[]),
        op("late", "k", "s1", i64::MAX, &[]),
        op("first", "k", "s9", i64::MIN, &[]),
    ]);
    let history = read(&json!([]), &operations);
    assert_eq!(told(&history), ["first z b10 b9 late"]);
    let times: Vec<i64> = history.block().iter().map(|&op| history.time(op)).collect();
    assert_eq!(times, [i64::MIN, -7, -7, -7, i64::MAX]);
}

#[test]
fn parents_count_once_and_the_file_has_no_order() {
    let operations = json!([op("b", "k", "s", 1, &["a", "a"]), op("a", "k", "s", 9, &[])]);
    let history = read(&Value::Null, &operations);
    assert_eq!(told(&history), ["a b"]);
    let b = history.block()[1];
    assert_eq!(ids(&history, history.parents(b)), "a");
    assert_eq!(told(&read(&json!([]), &json!([]))), [""]);
}

#[test]
fn what_is_refused_is_refused_with_a_place() {
    let a = |parents: &[&str]| op("a", "k", "s", 1, parents);
    let circle = json!([
        op("last", "k", "s", 1, &["c"]),
        a(&["root", "c"]),
        op("b", "k", "s", 1, &["a"]),
        op("c", "k", "s", 1, &["b"]),
        op("root", "k", "s", 1, &[]),
    ]);
    for (operations, error) in [
        (json!([a(&["b"])]), "[0].Parents[0]: there is no operation `b`"),
        (json!([a(&["a"])]), "[0].Parents[0]: `a` can't be its own parent"),
        (
            json!([a(&[]), a(&[])]),
            "[1]: the id `a` belongs to the operation at $.Operations[0] already",
        ),
        (circle, "[1].Parents: the parents form a circle: `a` after `c` after `b` after `a`"),
        (json!({}), ": expected a list, found an object"),
    ] {
        let text = json!({"Operations": operations}).to_string();
        let refused = History::from_json(&text).unwrap_err();
        assert_eq!(refused.to_string(), format!("at $.Operations{error}"));
    }
    let blank = "it needs at least one character that is not a space";
    for (field, value, error) in [
        ("Time", json!("1"), ".Time: expected a whole number, found a text".to_owned()),
        ("Time", Value::Null, ": the field `Time` is missing".to_owned()),
        ("Id", json!(" "), format!(".Id: ` ` is not a name for an operation: {blank}")),
        ("Id", json!(7), ".Id: expected a text in quotes, found a number".to_owned()),
        ("Kind", json!(""), format!(".Kind: `` is not a kind: {blank}")),
        ("Void", json!(1), ".Void: expected `true` or `false`, found a number".to_owned()),
        ("Parents", json!("a"), ".Parents: expected a list, found a text".to_owned()),
        (
            "Parents",
            json!([" "]),
            format!(".Parents[0]: ` ` is not a name for an operation: {blank}"),
        ),
    ] {
        let mut operation = a(&[]);
        operation[field] = value;
        let text = json!({"Operations": [operation]}).to_string();
        let refused = History::from_json(&text).unwrap_err();
        assert_eq!(refused.to_string(), format!("at $.Operations[0]{error}"));
    }
    assert_eq!(
        History::from_json("{}").unwrap_err().to_string(),
        "at $: the field `Operations` is missing"
    );
}

#[test]
fn what_is_refused_comes_with_the_next_step() {
    let first = op("first", "k", "s", 1, &[]);
    for (operations, hint) in [
        (json!([first, op("b", "k", "s", 2, &["frist"])]), "Did you mean `first`?"),
        (
            json!([first, op("b", "k", "s", 2, &["elephant"])]),
            "Add that operation, or take it out of the parents.",
        ),
        (json!([op("b", "k", "s", 2, &["b"])]), "Take it out of the parents."),
        (
            json!([op("a", "k", "s", 1, &["b"]), op("b", "k", "s", 2, &["a"])]),
            "Parents are what came before. Take one of these out of the parents of another.",
        ),
        (json!([first, first]), "Give each operation an id of its own."),
    ] {
        let text = json!({"Operations": operations}).to_string();
        let refused = History::from_json(&text).unwrap_err();
        assert_eq!(refused.hint.as_deref(), Some(hint), "{refused}");
    }
    let hint = History::from_json("{}").unwrap_err().hint.unwrap();
    assert!(hint.starts_with("Add what happened: \"Operations\": ["), "{hint}");
}

#[test]
fn a_field_that_is_given_twice_is_refused() {
    let text = r#"{"Operations": [{"Id": "a", "Kind": "k", "Site": "s", "Time": 1, "Time": 2}]}"#;
    let refused = History::from_json(text).unwrap_err().to_string();
    assert_eq!(refused, "at line 1, column 71: the field `Time` is given twice");
}

#[test]
fn too_many_chains_are_refused() {
    let alone = |n: usize| op(&n.to_string(), "k", "s", 1, &[]);
    let apart = |count: usize| {
        let operations: Vec<Value> = (0..count).map(alone).collect();
        History::from_json(&json!({"operations": operations}).to_string())
    };
    assert_eq!(apart(History::MAX_CHAINS).unwrap().chains(), History::MAX_CHAINS);
    for count in [History::MAX_CHAINS + 1, History::MAX_OPERATIONS] {
        let refused = apart(count).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "at $.operations: the operations form more than 20000 chains that don't know of each \
             other, and a history has at most 20000"
        );
        assert!(refused.hint.unwrap().starts_with("Are parents missing?"));
    }
}

#[test]
fn a_long_history_by_a_circular_matrix_is_refused() {
    let over = |before: &str, after: &str| json!({"Before": before, "After": after, "Result": "take-both-keep-order"});
    let circle = json!([over("a", "b"), over("b", "c"), over("c", "a")]);
    let chain = |count: usize| -> Value {
        let operation = |n: usize| {
            let before = n.checked_sub(1).map(|n| n.to_string());
            let parents: Vec<&str> = before.iter().map(String::as_str).collect();
            op(&n.to_string(), "a", "s", 1, &parents)
        };
        (0..count).map(operation).collect()
    };
    assert_eq!(read(&circle, &chain(History::MAX_TANGLED)).log().len(), History::MAX_TANGLED);
    assert_eq!(read(&redis(), &chain(History::MAX_TANGLED + 1)).chains(), 1);
    let text = json!({"ResolutionMatrix": circle, "Operations": chain(History::MAX_TANGLED + 1)});
    let refused = History::from_json(&text.to_string()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "at $.Operations: the kinds of the matrix win over each other in a circle, and then a \
         history has at most 5000 operations; this one has 5001"
    );
    assert!(refused.hint.unwrap().contains("`cheops matrix check`"));
}

#[test]
fn the_configuration_is_read_as_everywhere() {
    for (field, error) in [
        (json!({"Timeout": 3}), "at $.Timeout: expected a text in quotes, found a number"),
        (json!({"Reset": " "}), "at $.Reset: the command is empty"),
        (
            json!({"ResolutionMatrix": [{}]}),
            "at $.ResolutionMatrix[0]: the field `Before` is missing",
        ),
        (
            json!({"operations": []}),
            "at $.operations: the field `Operations` is given twice, in two spellings",
        ),
    ] {
        let mut document = json!({"Operations": []});
        document.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let refused = History::from_json(&document.to_string()).unwrap_err();
        assert_eq!(refused.to_string(), error);
    }
    let text =
        r#"{"operations": [], "Show": "cat x", "Reset": "rm x", "Check": "y", "Timeout": "3s"}"#;
    assert_eq!(History::from_json(text).unwrap().config().reset.as_deref(), Some("rm x"));
}

#[test]
fn long_chains_and_long_circles_are_no_danger() {
    const LENGTH: usize = 20_000;
    let chain = |closed: bool| {
        let parents = |n: usize| match n {
            0 if closed => vec![(LENGTH - 1).to_string()],
            0 => vec![],
            _ => vec![(n - 1).to_string()],
        };
        let operation = |n: usize| {
            let parents = parents(n);
            json!({"Id": n.to_string(), "Kind": "set", "Site": format!("s{}", n % 7), "Time": 0,
                "Parents": parents})
        };
        let one = json!([{"Before": "set", "After": "set", "Result": "take-one"}]);
        json!({"ResolutionMatrix": one, "Operations": (0..LENGTH).map(operation).collect::<Value>()})
    };
    let history = History::from_json(&chain(false).to_string()).unwrap();
    assert_eq!(ids(&history, history.block()), "19999");
    assert_eq!(history.dropped().len(), LENGTH - 1);
    let refused = History::from_json(&chain(true).to_string()).unwrap_err();
    assert!(refused.cause.ends_with("`19993` after 19992 more after `0`"), "{refused}");
}

/// A random history as a document. Ids sort as numbers do, and times are around zero.
fn document(matrix: &Matrix, ops: &[Operation], void: &BTreeSet<OpId>, forced: &[bool]) -> Value {
    let id = |id: &OpId| format!("op{:03}", id.number);
    let operation = |(op, &forced): (&Operation, &bool)| {
        let time = op.at.to_bits().cast_signed() - 5;
        let parents: Vec<String> = op.parents.iter().map(id).collect();
        json!({"Id": id(&op.id), "Kind": op.kind.as_str(), "Site": op.id.site.as_str(),
            "Time": time, "Parents": parents, "Void": void.contains(&op.id), "Force": forced})
    };
    let operations: Vec<Value> = ops.iter().zip(forced).map(operation).collect();
    json!({"ResolutionMatrix": matrix.to_json(), "Operations": operations})
}

fn number(history: &History, op: Ix) -> u64 {
    history.id(op)[2..].parse().unwrap()
}

/// Plays a history from its text and compares with the reference.
fn check(matrix: &Matrix, ops: &[Operation], void: &BTreeSet<OpId>, forced: &[bool], turn: usize) {
    let mut document = document(matrix, ops, void, forced);
    let listed = document["Operations"].as_array_mut().unwrap();
    let middle = turn % listed.len().max(1);
    listed.rotate_left(middle);
    let history = History::from_json(&document.to_string()).unwrap();

    let expected = reference::amounts(matrix, ops, void);
    let numbers = |ids: &[OpId]| ids.iter().map(|id| id.number).collect::<Vec<_>>();
    let resets: BTreeMap<u64, bool> = ops.iter().map(|op| (op.id.number, op.reset)).collect();
    for (ix, _) in history.log().iter() {
        let derived = history.reset(ix).is_some();
        assert_eq!(derived, resets[&number(&history, ix)], "reset of {}", history.id(ix));
    }
    let block: Vec<u64> = history.block().iter().map(|&op| number(&history, op)).collect();
    assert_eq!(block, numbers(&expected.block));

    let lost: BTreeMap<u64, Vec<u64>> = expected
        .dropped
        .iter()
        .map(|(id, by)| (id.number, by.iter().map(|id| id.number).collect()))
        .collect();
    let dropped = history.dropped();
    assert_eq!(dropped.len(), lost.len());
    for dropped in dropped {
        let winners = &lost[&number(&history, dropped.op)];
        match dropped.by {
            Some(by) => assert!(winners.contains(&number(&history, by))),
            None => assert!(history.is_void(dropped.op)),
        }
    }
    for site in history.sites() {
        follow(&history, &history.story(site), site.as_str());
    }
}

/// Follows what a site does, and compares where it ends with the block.
fn follow(history: &History, story: &Story, site: &str) {
    let mut ran = BTreeSet::new();
    let mut state: Vec<Ix> = Vec::new();
    let mut based = false;
    for act in story.apart.iter().chain(&story.after) {
        match *act {
            Act::Decide => {}
            Act::Clear => panic!("there is no Reset command"),
            Act::Run { op, again, fresh, failed } => {
                assert_eq!(again, !ran.insert(op));
                assert_eq!(failed, history.is_void(op));
                if failed {
                    assert_eq!(history.log().op(op).id.site.as_str(), site);
                    continue;
                }
                if fresh {
                    state.clear();
                    based = true;
                }
                state.push(op);
            }
        }
    }
    if story.after.last() == Some(&Act::Decide) {
        return;
    }
    let base = state.first().filter(|_| based);
    let from = base.map(|base| history.block().iter().position(|op| op == base).unwrap());
    let mut tail = history.block()[from.unwrap_or(0)..].to_vec();
    tail.sort_unstable();
    state.sort_unstable();
    assert_eq!(state, tail, "at {site}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(1500), ..ProptestConfig::default() })]

    #[test]
    fn a_history_is_played_as_the_reference_has_it(
        matrix in matrices(),
        events in events(32),
        turn in any::<usize>(),
    ) {
        let (ops, void) = history::play(&matrix, &events);
        let forced: Vec<bool> = events
            .iter()
            .filter_map(|event| match event {
                Event::Receive { force, .. } => Some(*force),
                Event::Hear { .. } => None,
            })
            .collect();
        check(&matrix, &ops, &void, &forced, turn);
    }

    #[test]
    fn also_if_no_site_could_have_produced_it(
        matrix in matrices(),
        rows in history::wild_rows(),
        turn in any::<usize>(),
    ) {
        let (ops, void) = history::wild(&rows, |ops, void, op| {
            let pasts = reference::pasts(&[ops, std::slice::from_ref(op)].concat());
            let in_past = |other: &&Operation| pasts[&op.id].contains(&other.id);
            let view: Vec<Operation> = ops.iter().filter(in_past).cloned().collect();
            reference::resets(&matrix, &view, void, op)
        });
        let forced: Vec<bool> = rows.iter().map(|row| row.4 == 0).collect();
        check(&matrix, &ops, &void, &forced, turn);
    }

    #[test]
    fn graphs_with_holes_and_circles_are_refused(
        rows in prop::collection::vec((0..12_u8, prop::collection::vec(0..13_u8, 0..3)), 0..9),
    ) {
        let operation = |(id, parents): &(u8, Vec<u8>)| {
            let parents: Vec<String> = parents.iter().map(ToString::to_string).collect();
            json!({"Id": id.to_string(), "Kind": "k", "Site": "s", "Time": 0, "Parents": parents})
        };
        let text = json!({"Operations": rows.iter().map(operation).collect::<Value>()}).to_string();
        // Takes away what has no parents left; what can't be taken away is on a circle or a hole.
        let ids: BTreeSet<u8> = rows.iter().map(|row| row.0).collect();
        let mut gone: BTreeSet<u8> = BTreeSet::new();
        for _ in &rows {
            for (id, parents) in &rows {
                if parents.iter().all(|parent| gone.contains(parent)) {
                    gone.insert(*id);
                }
            }
        }
        let sound = ids.len() == rows.len() && gone == ids;
        prop_assert_eq!(History::from_json(&text).is_ok(), sound);
    }

    #[test]
    fn no_text_leads_to_a_panic(text in ".*") {
        let _ = History::from_json(&text);
    }

    #[test]
    fn no_damage_to_a_document_leads_to_a_panic(
        matrix in matrices(),
        events in events(8),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, any::<prop::sample::Index>()), 1..4),
    ) {
        const SPLINTERS: [&str; 14] = [
            "", "\"", "null", "[", "]", "{", "}", ",", "-1", "1e400", "true", "\"Id\":", "\"\\u0000\"",
            "99999999999999999999",
        ];
        let (ops, void) = history::play(&matrix, &events);
        let mut text = document(&matrix, &ops, &void, &vec![false; ops.len()]).to_string();
        for (at, length, splinter) in cuts {
            let at = at.index(text.len());
            let end = text.len().min(at + length);
            text.replace_range(at..end, SPLINTERS[splinter.index(SPLINTERS.len())]);
        }
        if let Ok(history) = History::from_json(&text) {
            history.dropped();
            for site in history.sites() {
                history.story(site);
            }
        }
    }
}
