//! Histories as JSON: a configuration, and operations that refer to each other by name.
//!
//! What must stay true: what this lets through is a graph without circles whose every parent
//! exists, each operation after its parents; the order in which the file lists them has no
//! influence on the result. Nothing here is recursive, so no graph is too deep for it.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec,
    vec::Vec,
};

use serde_json::{Map, Value};

use super::History;
use crate::{
    id::{Kind, NameError, SiteId},
    json::{self, JsonError, Node},
    matrix::Config,
    spelling::nearest,
};

/// One operation as it was written.
pub(super) struct Row {
    pub(super) id: Box<str>,
    pub(super) kind: Kind,
    pub(super) site: SiteId,
    pub(super) time: i64,
    /// The places of its parents among the rows, ascending, each once.
    pub(super) parents: Vec<usize>,
    pub(super) void: bool,
    pub(super) force: bool,
}

/// A history as it was written: its rows in order of time, site and id as far as each comes after
/// its parents.
pub(super) struct Document {
    pub(super) config: Config,
    /// Where the operations stand in the document.
    pub(super) place: String,
    pub(super) rows: Vec<Row>,
}

const OPERATIONS: &str = "Operations";

const OPERATIONS_HINT: &str = "Add what happened: \"Operations\": [{\"Id\": \"a\", \"Kind\": \"set\", \
                               \"Site\": \"site1\", \"Time\": 1}]. To look at a configuration \
                               alone, use `cheops matrix check`.";

impl Document {
    pub(super) fn from_json(text: &str) -> Result<Self, JsonError> {
        let value = json::parse(text)?;
        let known = ["ResolutionMatrix", OPERATIONS, "Show", "Reset", "Check", "Timeout", "Parts"];
        let [_, operations, ..] = Node::root(&value).object(known)?;
        // A configuration knows nothing of operations, so it is read without them.
        let settings: Map<String, Value> = value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !name.eq_ignore_ascii_case(OPERATIONS))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let config = Config::read(&Node::root(&Value::Object(settings)))?;
        let operations = operations.required().map_err(|error| error.with_hint(OPERATIONS_HINT))?;
        Ok(Self { config, place: operations.path().to_owned(), rows: rows(&operations)? })
    }
}

fn rows(operations: &Node<'_>) -> Result<Vec<Row>, JsonError> {
    let items = operations.list()?;
    if items.len() > History::MAX_OPERATIONS {
        return Err(operations
            .error(format_args!(
                "a history has at most {} operations, and this one has {}",
                History::MAX_OPERATIONS,
                items.len()
            ))
            .with_hint("Leave out operations that came long before the ones you ask about."));
    }
    let mut rows = Vec::with_capacity(items.len());
    let mut links = Vec::with_capacity(items.len());
    for item in items {
        let (row, parents) = row(&item)?;
        rows.push(row);
        links.push((item, parents));
    }
    let names = names(&rows, &links)?;
    let mut parents = Vec::with_capacity(rows.len());
    for (place, (_, link)) in links.iter().enumerate() {
        parents.push(link.as_ref().map_or(Ok(Vec::new()), |link| find(link, place, &names))?);
    }
    for (row, parents) in rows.iter_mut().zip(parents) {
        row.parents = parents;
    }
    let order = order(&rows);
    if order.len() < rows.len() {
        return Err(circle(&rows, &order, &links));
    }
    Ok(arranged(rows, &order))
}

/// An operation whose parents are still to be looked up, and where they are named.
fn row<'a>(node: &Node<'a>) -> Result<(Row, Option<Node<'a>>), JsonError> {
    let [id, kind, site, time, parents, void, force] =
        node.object(["Id", "Kind", "Site", "Time", "Parents", "Void", "Force"])?;
    let flag = |node: Option<Node<'_>>| node.map_or(Ok(false), |node| node.bool());
    let row = Row {
        id: name(&id.required()?)?.into(),
        kind: kind.required()?.parse()?,
        site: site.required()?.parse()?,
        time: time.required()?.integer()?,
        parents: Vec::new(),
        void: flag(void.optional())?,
        force: flag(force.optional())?,
    };
    Ok((row, parents.optional()))
}

/// The name of an operation: any text that can be shown on a line.
fn name<'a>(node: &Node<'a>) -> Result<&'a str, JsonError> {
    const SHOWN: usize = 40;
    let text = node.text()?;
    let why = if text.trim().is_empty() {
        "it needs at least one character that is not a space"
    } else if text.len() > 255 {
        "it is at most 255 bytes long"
    } else if text.chars().any(char::is_control) {
        "control characters are not allowed"
    } else {
        return Ok(text);
    };
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    Err(node.error(NameError { what: "name for an operation", text: shown, why }))
}

/// What a link is made from: an operation's place in the document, and where it names its parents.
type Link<'a> = (Node<'a>, Option<Node<'a>>);

/// Where each name stands among the rows.
fn names<'r>(rows: &'r [Row], links: &[Link<'_>]) -> Result<BTreeMap<&'r str, usize>, JsonError> {
    let mut names = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        if let Some(first) = names.insert(&*row.id, place) {
            let (this, first) = (&links[place].0, &links[first].0);
            return Err(this
                .error(format_args!(
                    "the id `{}` belongs to the operation at {} already",
                    row.id,
                    first.path()
                ))
                .with_hint("Give each operation an id of its own."));
        }
    }
    Ok(names)
}

/// The places of the parents that an operation names.
fn find(
    link: &Node<'_>,
    place: usize,
    names: &BTreeMap<&str, usize>,
) -> Result<Vec<usize>, JsonError> {
    let mut parents = BTreeSet::new();
    for node in link.list()? {
        let name = name(&node)?;
        match names.get(name) {
            None => {
                let hint = nearest(name, names.keys()).map_or_else(
                    || "Add that operation, or take it out of the parents.".to_owned(),
                    |id| format!("Did you mean `{id}`?"),
                );
                let error = node.error(format_args!("there is no operation `{name}`"));
                return Err(error.with_hint(hint));
            }
            Some(&parent) if parent == place => {
                return Err(node
                    .error(format_args!("`{name}` can't be its own parent"))
                    .with_hint("Take it out of the parents."));
            }
            Some(&parent) => parents.insert(parent),
        };
    }
    Ok(parents.into_iter().collect())
}

/// The places of the rows, each after its parents and otherwise in order of time, site and id.
/// Those on a circle, and those that follow one, are not among them.
fn order(rows: &[Row]) -> Vec<usize> {
    let key = |place: usize| {
        let row = &rows[place];
        (row.time, &row.site, &row.id, place)
    };
    let mut children = vec![Vec::new(); rows.len()];
    let mut waits: Vec<usize> = Vec::with_capacity(rows.len());
    for (place, row) in rows.iter().enumerate() {
        row.parents.iter().for_each(|&parent| children[parent].push(place));
        waits.push(row.parents.len());
    }
    let mut ready: BTreeSet<_> =
        (0..rows.len()).filter(|&place| waits[place] == 0).map(key).collect();
    let mut order = Vec::with_capacity(rows.len());
    while let Some((.., place)) = ready.pop_first() {
        order.push(place);
        for &child in &children[place] {
            waits[child] -= 1;
            if waits[child] == 0 {
                ready.insert(key(child));
            }
        }
    }
    order
}

/// A complaint about parents that form a circle, which some of the rows outside `order` do.
fn circle(rows: &[Row], order: &[usize], links: &[Link<'_>]) -> JsonError {
    const SHOWN: usize = 8;
    let on_it = find_circle(rows, order);
    let id = |place: &usize| format!("`{}`", rows[*place].id);
    let mut told: Vec<String> = on_it.iter().take(SHOWN).map(id).collect();
    if on_it.len() > SHOWN {
        told.push(format!("{} more", on_it.len() - SHOWN));
    }
    told.extend(on_it.first().map(id));
    let (item, link) = &links[on_it.first().copied().unwrap_or(0)];
    let told = told.join(" after ");
    link.as_ref()
        .unwrap_or(item)
        .error(format_args!("the parents form a circle: {told}"))
        .with_hint("Parents are what came before. Take one of these out of the parents of another.")
}

/// The rows on a circle, each followed by one of its parents, from the one that is written first.
fn find_circle(rows: &[Row], order: &[usize]) -> Vec<usize> {
    let mut sound = vec![false; rows.len()];
    for &place in order {
        sound[place] = true;
    }
    let mut steps = vec![None; rows.len()];
    let mut path: Vec<usize> = Vec::new();
    let mut next = sound.iter().position(|&sound| !sound);
    // Each that is left has a parent that is left, so that going back ends in a circle.
    while let Some(place) = next.filter(|&place| steps[place].is_none()) {
        steps[place] = Some(path.len());
        path.push(place);
        next = rows[place].parents.iter().copied().find(|&parent| !sound[parent]);
    }
    let mut on_it = path.split_off(next.and_then(|place| steps[place]).unwrap_or(0));
    if let Some(first) = (0..on_it.len()).min_by_key(|&n| on_it[n]) {
        on_it.rotate_left(first);
    }
    on_it
}

/// The rows in another order, with parents that say where they are there.
fn arranged(rows: Vec<Row>, order: &[usize]) -> Vec<Row> {
    let mut places = vec![0; rows.len()];
    for (place, &before) in order.iter().enumerate() {
        places[before] = place;
    }
    let mut rows: Vec<(usize, Row)> = places.iter().copied().zip(rows).collect();
    rows.sort_unstable_by_key(|&(place, _)| place);
    rows.into_iter()
        .map(|(_, mut row)| {
            row.parents.iter_mut().for_each(|parent| *parent = places[*parent]);
            row.parents.sort_unstable();
            row
        })
        .collect()
}
