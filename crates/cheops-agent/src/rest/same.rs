//! Items of collections of several sites that are one resource, and what becomes of them.
//!
//! Each site lists what it has of a resource under the id that Cheops made. Copies of it are shown once;
//! parts of it are gathered, as if the resource was read by its id.
//!
//! What must stay true: only items with the same such id, each of another site, are taken for one, and
//! only if it is known whether they are copies or parts; all others stay as they came, in their order.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::id::SiteId;
use serde_json::Value;

use super::{gather::whole, ids::is_made, pointer};
use crate::config::Divide;

/// What several sites have of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// Each has all of it.
    Copies,
    /// Each has the part with this number. Some may have the same.
    Parts(BTreeMap<SiteId, usize>),
}

/// What is known of the resources of a service.
pub struct Known<'a> {
    /// Where an item says its id.
    pub pointers: &'a [String],
    /// What divides.
    pub divide: &'a [Divide],
    /// What is held of each resource, by the id that Cheops made.
    pub held: BTreeMap<String, Held>,
}

/// An item of a merged list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Where it is, in the words of a scope.
    pub(super) place: String,
    pub(super) value: Value,
}

/// The ids that Cheops made which items of more than one site have, and these sites.
pub fn repeated(
    answers: &[(SiteId, Value)],
    pointers: &[String],
) -> BTreeMap<String, BTreeSet<SiteId>> {
    let mut seen: BTreeMap<String, BTreeSet<SiteId>> = BTreeMap::new();
    for (site, answer) in answers {
        for meta in items(answer).filter_map(|item| meta(item, pointers)) {
            seen.entry(meta).or_default().insert(site.clone());
        }
    }
    seen.retain(|_, sites| sites.len() > 1);
    seen
}

/// The items of a collection.
fn items(answer: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match answer {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(members) => Box::new(members.values().filter_map(Value::as_array).flatten()),
        _ => Box::new(std::iter::empty()),
    }
}

/// The id that Cheops made for an item.
fn meta(item: &Value, pointers: &[String]) -> Option<String> {
    // Pointers lead into a document, which may be wrapped where items of a collection are not.
    let places = pointers.iter().flat_map(|at| [Some(at.as_str()), pointer::inner(at)]).flatten();
    let id = |at: &str| match pointer::find(item, at)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    places.filter_map(id).find(|id| is_made(id))
}

/// The items of a list, each of which a site gave. Where several are one, it stands in the place of the
/// first, and nothing in those of the others. Also the sites whose part does not fit the others.
pub(super) fn united(
    list: Vec<(SiteId, Value)>,
    known: &Known<'_>,
) -> (Vec<Option<Item>>, BTreeSet<SiteId>) {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, (_, item)) in list.iter().enumerate() {
        if !known.held.is_empty()
            && let Some(meta) = meta(item, known.pointers)
            && known.held.contains_key(&meta)
        {
            groups.entry(meta).or_default().push(n);
        }
    }
    let sites: Vec<SiteId> = list.iter().map(|(site, _)| site.clone()).collect();
    let alone = |(site, value): (SiteId, Value)| Some(Item { place: site.to_string(), value });
    let mut result: Vec<Option<Item>> = list.into_iter().map(alone).collect();
    let mut misfits = BTreeSet::new();
    // What one site lists several times is no list of resources: something has them.
    let of_each = |group: &[usize]| {
        let distinct: BTreeSet<&SiteId> = group.iter().map(|&n| &sites[n]).collect();
        group.len() > 1 && distinct.len() == group.len()
    };
    for (meta, group) in groups.iter().filter(|(_, group)| of_each(group)) {
        let Some((held, first)) = known.held.get(meta).zip(group.first()) else { continue };
        let part = |n: usize| match held {
            Held::Copies => 0,
            Held::Parts(parts) => parts.get(&sites[n]).copied().unwrap_or_default(),
        };
        // The first that a site says of each part.
        let mut parts: BTreeMap<usize, (BTreeSet<&SiteId>, SiteId, Value)> = BTreeMap::new();
        for &n in group {
            let Some(Item { value, .. }) = result[n].take() else { continue };
            let said =
                parts.entry(part(n)).or_insert_with(|| (BTreeSet::new(), sites[n].clone(), value));
            said.0.insert(&sites[n]);
        }
        let named = |sites: &BTreeSet<&SiteId>| {
            sites.iter().map(ToString::to_string).collect::<Vec<_>>().join(" & ")
        };
        let place = parts.values().map(|(sites, ..)| named(sites)).collect::<Vec<_>>().join(" % ");
        let said: Vec<(SiteId, Value)> =
            parts.into_values().map(|(_, site, value)| (site, value)).collect();
        let rules = rules(&said, known.divide);
        let prime = said.first().map_or(Value::Null, |(_, value)| value.clone());
        let others: Vec<SiteId> = said.iter().skip(1).map(|(site, _)| site.clone()).collect();
        let value = whole(said, &rules).unwrap_or_else(|_| {
            misfits.extend(others);
            prime
        });
        result[*first] = Some(Item { place, value });
    }
    (result, misfits)
}

/// The rules as they hold for items of a collection, which may be unwrapped.
fn rules(items: &[(SiteId, Value)], divide: &[Divide]) -> Vec<Divide> {
    let rule = |rule: &Divide| {
        let is_there = |at: &str| items.iter().any(|(_, item)| pointer::find(item, at).is_some());
        let inner = pointer::inner(&rule.pointer).filter(|_| !is_there(&rule.pointer));
        Divide { pointer: inner.unwrap_or(&rule.pointer).to_owned(), ..rule.clone() }
    };
    divide.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Gather, Split};

    const ONE: &str = "0a1b2c3d-ce05-8123-9abc-0123456789ab";
    const TWO: &str = "1a1b2c3d-ce05-8123-9abc-0123456789ab";
    const NUMBER: u64 = 4_503_599_627_370_497;

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    fn rule(pointer: &str, gather: Gather) -> Divide {
        Divide { pointer: pointer.to_owned(), split: Split::Even, gather }
    }

    #[test]
    fn what_several_items_have_is_found_wherever_they_are() {
        let pointers = ["/id", "/*/uuid"].map(str::to_owned);
        let answers = [
            (site("a"), json!({"x": [{"id": ONE}, {"id": "local"}], "y": [{"uuid": TWO}]})),
            (site("b"), json!([{"id": ONE}, {"image": {"uuid": TWO}}, {"id": NUMBER}, 7])),
            (site("c"), json!({"x": [{"id": "local"}, {"id": NUMBER, "uuid": ONE}]})),
            (site("d"), json!("none")),
        ];
        let found = repeated(&answers, &pointers);
        let sites = |names: &[&str]| names.iter().map(|name| site(name)).collect::<BTreeSet<_>>();
        let expected = [
            (ONE.to_owned(), sites(&["a", "b"])),
            (TWO.to_owned(), sites(&["a", "b"])),
            (NUMBER.to_string(), sites(&["b", "c"])),
        ];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn copies_are_shown_once_and_parts_are_gathered() {
        let pointers = ["/id".to_owned()];
        let divide = [rule("/group/n", Gather::Sum), rule("/all", Gather::Concat)];
        let parts = |parts: &[(&str, usize)]| {
            Held::Parts(parts.iter().map(|(name, part)| (site(name), *part)).collect())
        };
        let two = || parts(&[("a", 0), ("b", 1)]);
        let item = |n: Value| json!({"id": ONE, "n": n, "all": [n]});
        // What is held, what which sites list; what becomes of it, where, and whose does not fit.
        for (held, list, expected, misfit) in [
            (
                Some(Held::Copies),
                vec![("a", item(json!(4))), ("b", item(json!(4)))],
                vec![Some(("a & b", item(json!(4)))), None],
                None,
            ),
            (
                Some(two()),
                vec![("b", item(json!(3))), ("b", json!(7)), ("a", item(json!(4)))],
                vec![
                    Some(("a % b", json!({"id": ONE, "n": 7, "all": [4, 3]}))),
                    Some(("b", json!(7))),
                    None,
                ],
                None,
            ),
            (
                Some(parts(&[("a", 0), ("b", 1), ("c", 1)])),
                vec![("a", item(json!(4))), ("b", item(json!(3))), ("c", item(json!(3)))],
                vec![Some(("a % b & c", json!({"id": ONE, "n": 7, "all": [4, 3]}))), None, None],
                None,
            ),
            (
                Some(two()),
                vec![("a", item(json!(4))), ("a", item(json!(4)))],
                vec![Some(("a", item(json!(4)))), Some(("a", item(json!(4))))],
                None,
            ),
            (
                Some(two()),
                vec![("a", item(json!(4))), ("b", item(json!("many")))],
                vec![Some(("a % b", item(json!(4)))), None],
                Some("b"),
            ),
            (
                None,
                vec![("a", item(json!(4))), ("b", item(json!(4)))],
                vec![Some(("a", item(json!(4)))), Some(("b", item(json!(4))))],
                None,
            ),
        ] {
            let held: BTreeMap<String, Held> =
                held.into_iter().map(|held| (ONE.to_owned(), held)).collect();
            let known = Known { pointers: &pointers, divide: &divide, held };
            let list: Vec<_> = list.into_iter().map(|(name, item)| (site(name), item)).collect();
            let text = format!("{list:?} {:?}", known.held);
            let (found, misfits) = united(list, &known);
            let found: Vec<_> = found
                .iter()
                .map(|item| item.as_ref().map(|item| (item.place.as_str(), item.value.clone())))
                .collect();
            assert_eq!(found, expected, "{text}");
            assert_eq!(misfits, misfit.map(site).into_iter().collect(), "{text}");
        }
    }
}
