//! The stories of the tour, as data. What plays them is [`player`](super::player).
//!
//! What must stay true: a story says what each site holds before and after the cut and which
//! operations drop out; a test compares that with what the core makes of the same operations.

/// A story about one resource.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    /// The resource; a file in the site's work directory.
    pub(super) id: &'static str,
    pub(super) config: &'static str,
    pub(super) steps: &'static [Step],
}

/// A step of a story.
#[derive(Debug)]
pub(super) enum Step {
    /// An operation is sent to a site, and has run there.
    Send(Order),
    /// All links between the sites are cut.
    Cut,
    /// The links are back.
    Heal,
    /// All sites have run the block.
    Settle,
    /// What the sites hold, each or all alike.
    Holds(Holds),
    /// Which operations are not in the block, by name.
    Dropped(&'static [&'static str]),
}

/// An operation, with a name for the story.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) name: &'static str,
    pub(super) at: &'static str,
    pub(super) kind: &'static str,
    pub(super) command: &'static str,
}

/// What sites hold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holds {
    /// All the same.
    All(&'static str),
    /// Each its own.
    Each(&'static [(&'static str, &'static str)]),
}

impl Holds {
    /// What a site holds.
    pub(super) fn at(self, site: &str) -> &'static str {
        match self {
            Self::All(value) => value,
            Self::Each(values) => {
                values.iter().find(|(name, _)| *name == site).map_or("", |(_, value)| value)
            }
        }
    }
}

/// Where the resources of all stories exist.
pub(super) const PLACE: &str = "site1 & site2 & site3";

const fn send(
    at: &'static str,
    name: &'static str,
    kind: &'static str,
    command: &'static str,
) -> Step {
    Step::Send(Order { name, at, kind, command })
}

/// A counter that one site sets and two add to during a cut, what all hold in the end, and what is
/// dropped: the matrix decides.
const fn counter(end: &'static str, dropped: &'static [&'static str]) -> [Step; 12] {
    [
        send("site1", "start", "set", "echo 10 > {id}"),
        Step::Settle,
        Step::Holds(Holds::All("10")),
        Step::Cut,
        send("site1", "set 29", "set", "echo 29 > {id}"),
        send("site2", "inc 13", "inc", "echo $(( $(cat {id}) + 13 )) > {id}"),
        send("site3", "inc -12", "inc", "echo $(( $(cat {id}) - 12 )) > {id}"),
        Step::Holds(Holds::Each(&[("site1", "29"), ("site2", "23"), ("site3", "-2")])),
        Step::Heal,
        Step::Settle,
        Step::Holds(Holds::All(end)),
        Step::Dropped(dropped),
    ]
}

pub(super) const STORIES: &[Story] = &[
    Story {
        title: "A file",
        about: "The filesystem experiment of the report. During a cut two sites append to a file and \
                one replaces it. By the matrix (table 6) what replaces wins.",
        id: "filename",
        config: r#"{
            "ResolutionMatrix": [
                {"Before": "set", "After": "add", "Result": "take-both-keep-order"},
                {"Before": "add", "After": "set", "Result": "take-both-reverse-order"},
                {"Before": "set", "After": "set", "Result": "take-one"},
                {"Before": "add", "After": "add", "Result": "take-both-agreed-order"}
            ],
            "Show": "cat {id}"
        }"#,
        steps: &[
            send("site1", "first", "set", "echo first > {id}"),
            Step::Settle,
            Step::Holds(Holds::All("first")),
            Step::Cut,
            send("site1", "left", "add", "echo left >> {id}"),
            send("site2", "middle", "set", "echo middle > {id}"),
            send("site3", "right", "add", "echo right >> {id}"),
            Step::Holds(Holds::Each(&[
                ("site1", "first left"),
                ("site2", "middle"),
                ("site3", "first right"),
            ])),
            Step::Heal,
            Step::Settle,
            Step::Holds(Holds::All("middle")),
            Step::Dropped(&["first", "left", "right"]),
        ],
    },
    Story {
        title: "A counter",
        about: "The Redis experiment of the report, with a number in a file. During a cut one site \
                sets it and two add to it. By the matrix (table 5) the `set` stands alone.",
        id: "counter",
        config: r#"{
            "ResolutionMatrix": [
                {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
                {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
                {"Before": "inc", "After": "inc", "Result": "take-both"}
            ],
            "Show": "cat {id}"
        }"#,
        steps: &counter("29", &["inc 13", "inc -12"]),
    },
    Story {
        title: "A counter that loses nothing",
        about: "The same, with one word more in the matrix: \"Concurrent\": \"take-both\". Every site \
                runs the `set` first and then both increments, and nothing is lost.",
        id: "counter2",
        config: r#"{
            "ResolutionMatrix": [
                {"Before": "set", "After": "inc", "Result": "take-both-keep-order", "Concurrent": "take-both"},
                {"Before": "inc", "After": "set", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
                {"Before": "inc", "After": "inc", "Result": "take-both"}
            ],
            "Show": "cat {id}"
        }"#,
        steps: &counter("30", &[]),
    },
];

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        process::Command,
    };

    use cheops_core::history::History;
    use serde_json::{Value, json};

    use super::*;

    /// What the core makes of the operations that are known at one place: the names in the block.
    fn block(story: &Story, rows: &[Value]) -> Vec<String> {
        let mut document: Value = serde_json::from_str(story.config).unwrap();
        document["Operations"] = rows.into();
        let history = History::from_json(&document.to_string()).unwrap();
        history.block().iter().map(|&op| history.id(op).to_owned()).collect()
    }

    /// What a fresh file holds after the commands of a block.
    fn state(block: &[String], commands: &BTreeMap<&str, &str>) -> String {
        let directory = tempfile::tempdir().unwrap();
        for name in block {
            let command = commands[name.as_str()].replace("{id}", "file");
            let mut shell = Command::new("sh");
            let status = shell.args(["-c", &command]).current_dir(&directory).status();
            assert!(status.unwrap().success(), "{command}");
        }
        let text = std::fs::read_to_string(directory.path().join("file")).unwrap_or_default();
        text.trim().replace('\n', " ")
    }

    #[test]
    fn the_stories_expect_what_the_core_decides() {
        for story in STORIES {
            // What each site knows; during a cut each has its own.
            let mut known: BTreeMap<&str, Vec<Value>> =
                ["site1", "site2", "site3"].map(|site| (site, Vec::new())).into();
            let mut commands = BTreeMap::new();
            let mut is_cut = false;
            let mut checked = 0;
            for (time, step) in story.steps.iter().enumerate() {
                match step {
                    Step::Send(order) => {
                        let parents: Vec<&Value> =
                            known[order.at].iter().map(|row| &row["Id"]).collect();
                        let row = json!({"Id": order.name, "Kind": order.kind, "Site": order.at,
                                         "Time": time, "Parents": parents});
                        commands.insert(order.name, order.command);
                        for (site, rows) in &mut known {
                            if !is_cut || *site == order.at {
                                rows.push(row.clone());
                            }
                        }
                    }
                    Step::Cut => is_cut = true,
                    Step::Heal => {
                        is_cut = false;
                        let mut all: Vec<Value> = known.values().flatten().cloned().collect();
                        let mut seen = BTreeSet::new();
                        all.retain(|row| seen.insert(row["Id"].to_string()));
                        for rows in known.values_mut() {
                            rows.clone_from(&all);
                        }
                    }
                    Step::Settle => {}
                    Step::Holds(holds) => {
                        for (site, rows) in &known {
                            let block = block(story, rows);
                            assert_eq!(
                                state(&block, &commands),
                                holds.at(site),
                                "{}: {site}: {block:?}",
                                story.title
                            );
                            checked += 1;
                        }
                    }
                    Step::Dropped(names) => {
                        let kept: BTreeSet<String> =
                            block(story, &known["site1"]).into_iter().collect();
                        let dropped: BTreeSet<&str> =
                            commands.keys().copied().filter(|&name| !kept.contains(name)).collect();
                        assert_eq!(dropped, names.iter().copied().collect(), "{}", story.title);
                        checked += 1;
                    }
                }
            }
            assert!(checked >= 10, "{}: {checked}", story.title);
        }
    }
}
