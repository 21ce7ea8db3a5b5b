//! One answer from those of several sites.
//!
//! [`whole`] makes one resource of its parts, [`lists`] one collection of those of several sites, in
//! the shape of the service's own. Items that are one resource (see [`same`](super::same)) are one.
//!
//! What must stay true: the first answer says what the result looks like; what is not declared to be
//! summed or is no list comes from it alone. Nothing is lost in silence: a site whose answer does
//! not fit is named.

use std::{collections::BTreeSet, fmt, iter, mem};

use cheops_core::id::SiteId;
use serde_json::{Map, Value};

use super::{
    divide::integer,
    pointer,
    same::{Item, Known, united},
};
use crate::config::{Cross, Divide, Gather};

/// Parts of a resource that should say the same and don't.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the parts of the resource differ at `{pointer}`: {}", Told(values))]
pub struct Differs {
    /// Where.
    pub pointer: String,
    /// What each site says, if it says anything.
    pub values: Vec<(SiteId, Option<Value>)>,
}

/// What each site says, in words.
struct Told<'v>(&'v [(SiteId, Option<Value>)]);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (site, value)) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { ", " })?;
            match value {
                None => write!(f, "{site} has nothing there")?,
                Some(value) => {
                    let json = value.to_string();
                    let short: String = json.chars().take(40).collect();
                    let cut = if short.len() < json.len() { "…" } else { "" };
                    write!(f, "{site} has {short}{cut}")?;
                }
            }
        }
        Ok(())
    }
}

/// Collections of several sites as one.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// In the shape of the first.
    pub value: Value,
    /// For each list, by its name (the answer itself has none), how many items each site gave, in the
    /// order in which they stand.
    pub items: Vec<(String, Vec<(SiteId, usize)>)>,
    /// Sites whose answer, or a part of it, has another shape than the first.
    pub misfits: Vec<SiteId>,
}

/// One resource from its parts, that of the prime site first. Without any, `null`.
///
/// A part that has nothing at a place, or `null`, takes no part there, except where all must say the
/// same. Numbers that are no integers are summed as well, as applications report such.
pub fn whole(parts: Vec<(SiteId, Value)>, divide: &[Divide]) -> Result<Value, Differs> {
    let mut gathered = Vec::new();
    for rule in divide {
        let all = || parts.iter().map(|(_, part)| pointer::find(part, &rule.pointer));
        let found = || all().flatten().filter(|value| !value.is_null());
        let fits = match rule.gather {
            Gather::Sum => found().all(Value::is_number),
            Gather::Concat => found().all(Value::is_array),
            Gather::First => true,
            Gather::Same => all().all(|value| Some(value) == all().next()),
        };
        if !fits {
            let said = |(site, part): &(SiteId, Value)| {
                (site.clone(), pointer::find(part, &rule.pointer).cloned())
            };
            let values = parts.iter().map(said).collect();
            return Err(Differs { pointer: rule.pointer.clone(), values });
        }
        let value = match rule.gather {
            Gather::Sum => sum(found()),
            Gather::Concat => concat(found()),
            Gather::First | Gather::Same => found().next().cloned(),
        };
        gathered.extend(value.map(|value| (&rule.pointer, value)));
    }
    let mut result = parts.into_iter().next().map_or(Value::Null, |(_, first)| first);
    for (at, value) in gathered {
        pointer::set(&mut result, at, value);
    }
    Ok(result)
}

/// Collections of several sites as one: lists are concatenated in the order of the answers, declared
/// counters summed, links to the next page left out, and all else is as the first has it.
///
/// Several answers of one site are pages of one collection: a counter, which counts what is on all
/// pages, is taken from the first of them. One that counts what is in a list counts what is one as one.
pub fn lists(answers: Vec<(SiteId, Value)>, cross: &Cross, known: &Known<'_>) -> Merged {
    let mut merged = Merged { value: Value::Null, items: Vec::new(), misfits: Vec::new() };
    let mut counted: BTreeSet<SiteId> = BTreeSet::new();
    let mut counters: Vec<Vec<Value>> = vec![Vec::new(); cross.counters.len()];
    for (n, (site, mut answer)) in answers.into_iter().enumerate() {
        for at in &cross.next {
            pointer::remove(&mut answer, at);
        }
        let numbers: Vec<Option<Value>> =
            cross.counters.iter().map(|at| pointer::find(&answer, at).cloned()).collect();
        let fits = if n == 0 {
            merged.start(&site, answer);
            true
        } else {
            merged.add(&site, answer)
        };
        if fits && counted.insert(site) {
            counters.iter_mut().zip(numbers).for_each(|(values, number)| values.extend(number));
        }
    }
    let lengths = merged.unite(known, cross.mark.as_deref());
    for (values, at) in counters.iter().zip(&cross.counters) {
        if let Some(sum) = sum(values.iter()) {
            let counts = |length: &&(usize, usize)| sum.as_u64() == Some(length.0 as u64);
            let sum = lengths.iter().find(counts).map_or(sum.clone(), |(_, now)| (*now).into());
            pointer::set(&mut merged.value, at, sum);
        }
    }
    merged
}

/// The link to the next page of a collection.
pub fn next_page(answer: &Value, cross: &Cross) -> Option<String> {
    let link = |at: &String| pointer::find(answer, at)?.as_str().filter(|link| !link.is_empty());
    cross.next.iter().find_map(link).map(str::to_owned)
}

/// What may exist only once among the sites, of what is to be created: where it is, and its value.
pub fn unique<'v>(body: &'v Value, cross: &'v Cross) -> Option<(&'v str, &'v Value)> {
    let at = cross.unique.as_deref()?;
    let value = pointer::find(body, at).filter(|value| !value.is_null())?;
    Some((at, value))
}

/// Whether a collection holds an item that has this value at the pointer. The pointer leads into what
/// is to be created, which may be wrapped (`/server/name`) where items of a collection are not.
pub fn names(collection: &Value, at: &str, wanted: &Value) -> bool {
    let has = |item: &Value| {
        let found = |at| pointer::find(item, at) == Some(wanted);
        found(at) || pointer::inner(at).is_some_and(found)
    };
    match collection {
        Value::Array(items) => items.iter().any(has),
        Value::Object(members) => members.values().filter_map(Value::as_array).flatten().any(has),
        _ => false,
    }
}

impl Merged {
    fn start(&mut self, site: &SiteId, answer: Value) {
        match &answer {
            Value::Array(items) => self.note("", site, items.len()),
            Value::Object(members) => {
                for (name, member) in members {
                    if let Value::Array(items) = member {
                        self.note(name, site, items.len());
                    }
                }
            }
            _ => {}
        }
        self.value = answer;
    }

    /// Whether the answer has the shape of the first, its lists aside.
    fn add(&mut self, site: &SiteId, answer: Value) -> bool {
        let mut value = mem::take(&mut self.value);
        let fits = match (&mut value, answer) {
            (Value::Array(all), Value::Array(mut items)) => {
                self.note("", site, items.len());
                all.append(&mut items);
                true
            }
            (Value::Object(all), Value::Object(members)) => {
                for (name, member) in members {
                    self.add_member(all, name, member, site);
                }
                true
            }
            (one, other) => *one == other,
        };
        self.value = value;
        if !fits {
            self.misfit(site);
        }
        fits
    }

    fn add_member(
        &mut self,
        all: &mut Map<String, Value>,
        name: String,
        member: Value,
        site: &SiteId,
    ) {
        match (all.get_mut(&name), member) {
            (Some(Value::Array(list)), Value::Array(mut items)) => {
                self.note(&name, site, items.len());
                list.append(&mut items);
            }
            // Some applications leave a list out, or say `null`, if it is empty.
            (None | Some(Value::Null), Value::Array(items)) => {
                self.note(&name, site, items.len());
                all.insert(name, Value::Array(items));
            }
            (Some(Value::Array(_)), Value::Null) => {}
            (Some(Value::Array(_)), _) | (Some(_), Value::Array(_)) => self.misfit(site),
            _ => {}
        }
    }

    /// Makes one of items that are, in each list, and writes into each where it is. Gives how many items
    /// each list had, and how many it has now.
    fn unite(&mut self, known: &Known<'_>, mark: Option<&str>) -> Vec<(usize, usize)> {
        let mut lengths = Vec::new();
        let mut misfits = BTreeSet::new();
        for (name, counts) in &mut self.items {
            let list = match &mut self.value {
                Value::Array(items) => items,
                Value::Object(members) => match members.get_mut(name) {
                    Some(Value::Array(items)) => items,
                    _ => continue,
                },
                _ => continue,
            };
            let before = list.len();
            let sites = counts.iter().flat_map(|(site, n)| iter::repeat_n(site.clone(), *n));
            let (items, wrong) = united(sites.zip(mem::take(list)).collect(), known);
            misfits.extend(wrong);
            let mut items = items.into_iter();
            for (_, count) in counts {
                let of_site = items.by_ref().take(mem::take(count));
                for Item { place, mut value } in of_site.flatten() {
                    if let (Some(field), Some(members)) = (mark, value.as_object_mut()) {
                        members.insert(field.to_owned(), place.into());
                    }
                    *count += 1;
                    list.push(value);
                }
            }
            lengths.push((before, list.len()));
        }
        for site in &misfits {
            self.misfit(site);
        }
        lengths
    }

    fn note(&mut self, list: &str, site: &SiteId, count: usize) {
        let at = self.items.iter().position(|(name, _)| name == list).unwrap_or_else(|| {
            self.items.push((list.to_owned(), Vec::new()));
            self.items.len() - 1
        });
        let (_, counts) = &mut self.items[at];
        match counts.last_mut() {
            Some((newest, before)) if newest == site => *before += count,
            _ => counts.push((site.clone(), count)),
        }
    }

    fn misfit(&mut self, site: &SiteId) {
        if !self.misfits.contains(site) {
            self.misfits.push(site.clone());
        }
    }
}

/// Exact if all are integers and the sum fits one.
fn sum<'v>(values: impl Iterator<Item = &'v Value>) -> Option<Value> {
    let mut exact = Some(0_i128);
    let mut rounded = 0.0;
    let mut any = false;
    for number in values.filter_map(|value| match value {
        Value::Number(number) => Some(number),
        _ => None,
    }) {
        any = true;
        exact = exact.and_then(|sum| sum.checked_add(integer(number)?));
        rounded += number.as_f64().unwrap_or_default();
    }
    let whole = exact.and_then(|sum| {
        let small = i64::try_from(sum).map(Value::from).ok();
        small.or_else(|| u64::try_from(sum).map(Value::from).ok())
    });
    any.then(|| whole.unwrap_or_else(|| rounded.into()))
}

fn concat<'v>(values: impl Iterator<Item = &'v Value>) -> Option<Value> {
    let mut lists = values.filter_map(Value::as_array).peekable();
    lists.peek()?;
    Some(lists.flatten().cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cheops_core::matrix::Share;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        config::Split,
        rest::{
            divide::{Part, part},
            same::Held,
        },
    };

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    fn at_sites(values: &[Value]) -> Vec<(SiteId, Value)> {
        (1..).zip(values).map(|(n, value)| (site(&format!("site{n}")), value.clone())).collect()
    }

    fn rule(pointer: &str, gather: Gather) -> Divide {
        Divide { pointer: pointer.to_owned(), split: Split::Even, gather }
    }

    fn cross() -> Cross {
        Cross {
            counters: vec!["/total".into(), "/meta/count".into()],
            next: vec!["/next".into(), "/links/0/href".into()],
            mark: None,
            unique: None,
            strict: false,
        }
    }

    fn nothing() -> Known<'static> {
        Known { pointers: &[], divide: &[], held: BTreeMap::new() }
    }

    #[test]
    fn items_that_are_one_are_counted_and_marked_as_one() {
        let meta = "0a1b2c3d-ce05-8123-9abc-0123456789ab";
        let held = [(meta.to_owned(), Held::Copies)].into();
        let known = Known { pointers: &["/id".to_owned()], divide: &[], held };
        let cross = Cross { mark: Some("at".into()), ..cross() };
        let page = |total: u64, more: &[u64]| {
            let more = more.iter().map(|n| json!({"id": n}));
            let all: Vec<Value> = [json!({"id": meta})].into_iter().chain(more).collect();
            json!({"a": all, "b": [], "total": total})
        };
        // Where a counter counts more than the list has, it can't be told how many of that are one.
        for (totals, expected) in [([2, 1], 2), ([7, 8], 15)] {
            let pages = [page(totals[0], &[1]), page(totals[1], &[])];
            let merged = lists(at_sites(&pages), &cross, &known);
            let items = json!([{"id": meta, "at": "site1 & site2"}, {"id": 1, "at": "site1"}]);
            assert_eq!(merged.value, json!({"a": items, "b": [], "total": expected}));
            let (name, counts) = &merged.items[0];
            assert_eq!(
                (name.as_str(), counts.as_slice()),
                ("a", &[(site("site1"), 2), (site("site2"), 0)][..])
            );
        }
    }

    #[test]
    fn parts_become_one_resource_by_their_rules() {
        let parts = [
            json!({"id": "m", "n": 4, "list": [1], "same": "x", "f": 0.5, "only": {"k": 1}}),
            json!({"id": "o", "n": 3, "list": [2, 3], "same": "x", "f": 1, "late": "y"}),
            json!({"id": "p", "n": null, "same": "x", "late": "z", "only": {"k": 2}}),
        ];
        let table = [
            ("/n", Gather::Sum, json!(7)),
            ("/f", Gather::Sum, json!(1.5)),
            ("/list", Gather::Concat, json!([1, 2, 3])),
            ("/same", Gather::Same, json!("x")),
            ("/id", Gather::First, json!("m")),
            ("/late", Gather::First, json!("y")),
            ("/only/*", Gather::Sum, json!(3)),
        ];
        for (at, gather, expected) in table {
            let whole = whole(at_sites(&parts), &[rule(at, gather)]).unwrap();
            assert_eq!(pointer::find(&whole, at), Some(&expected), "{at}");
            assert_eq!(whole["id"], "m", "all else is as the first has it");
        }
        let untouched = whole(at_sites(&parts), &[rule("/nowhere/x", Gather::Sum)]).unwrap();
        assert_eq!(untouched, parts[0]);
        assert_eq!(whole(Vec::new(), &[rule("/n", Gather::Sum)]), Ok(Value::Null));
    }

    #[test]
    fn sums_are_exact_as_long_as_they_can_be() {
        let table = [
            (json!([i64::MAX, 1]), json!(9_223_372_036_854_775_808_u64)),
            (json!([u64::MAX, -1]), json!(u64::MAX - 1)),
            (json!([u64::MAX, u64::MAX]), json!(36_893_488_147_419_103_232.0)),
            (json!([1, 2.5]), json!(3.5)),
        ];
        for (values, expected) in table {
            assert_eq!(sum(values.as_array().unwrap().iter()), Some(expected), "{values}");
        }
    }

    #[test]
    fn parts_that_differ_are_told_by_site() {
        let parts = [json!({"a": "x", "n": 1}), json!({"a": "y", "n": "2"}), json!({"n": 3})];
        let table = [
            (
                rule("/a", Gather::Same),
                r#"the parts of the resource differ at `/a`: site1 has "x", site2 has "y", site3 has nothing there"#,
            ),
            (
                rule("/a", Gather::Concat),
                r#"the parts of the resource differ at `/a`: site1 has "x", site2 has "y", site3 has nothing there"#,
            ),
            (
                rule("/n", Gather::Sum),
                r#"the parts of the resource differ at `/n`: site1 has 1, site2 has "2", site3 has 3"#,
            ),
        ];
        for (rule, expected) in table {
            let error = whole(at_sites(&parts), &[rule]).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let missing = whole(at_sites(&parts[1..]), &[rule("/b", Gather::Same)]);
        assert_eq!(missing, Ok(parts[1].clone()), "nothing anywhere is the same everywhere");
    }

    /// The merged value, the counts as text, and the misfits.
    fn merged(values: &[Value], cross: &Cross) -> (Value, String, Vec<String>) {
        let merged = lists(at_sites(values), cross, &nothing());
        let counts = merged.items.iter().map(|(list, counts)| {
            let counts: Vec<String> = counts.iter().map(|(s, n)| format!("{s}={n}")).collect();
            format!("{list}:{}", counts.join(","))
        });
        let counts: Vec<String> = counts.collect();
        let misfits = merged.misfits.iter().map(ToString::to_string).collect();
        (merged.value, counts.join(" "), misfits)
    }

    #[test]
    fn collections_become_one_in_the_shape_of_the_first() {
        let table = [
            (json!([[1, 2], [], [3]]), json!([1, 2, 3]), ":site1=2,site2=0,site3=1", &[][..]),
            (
                json!([{"a": [1], "n": 1, "next": "/x"}, {"a": [2], "n": 2, "next": "/y"}]),
                json!({"a": [1, 2], "n": 1}),
                "a:site1=1,site2=1",
                &[],
            ),
            (
                json!([{"a": [], "total": 1, "meta": {"count": 5}}, {"a": [2], "total": 2, "meta": {"count": 6}}]),
                json!({"a": [2], "total": 3, "meta": {"count": 11}}),
                "a:site1=0,site2=1",
                &[],
            ),
            (
                json!([{"n": 1}, {"a": [2]}, {"a": null}, {"a": [3]}]),
                json!({"n": 1, "a": [2, 3]}),
                "a:site2=1,site4=1",
                &[],
            ),
            (json!([{"a": null}, {"a": [2]}]), json!({"a": [2]}), "a:site2=1", &[]),
            (
                json!([{"a": [1], "links": [{"rel": "next", "href": "/x"}]}, {"a": [2]}]),
                json!({"a": [1, 2], "links": []}),
                "a:site1=1,site2=1 links:site1=0",
                &[],
            ),
            (
                json!([[1], {"a": [2]}, "no", [3]]),
                json!([1, 3]),
                ":site1=1,site4=1",
                &["site2", "site3"],
            ),
            (
                json!([{"a": [1], "b": 2, "total": 1}, {"a": {}, "b": [3], "total": 1}, {"total": "x"}]),
                json!({"a": [1], "b": 2, "total": 2}),
                "a:site1=1",
                &["site2"],
            ),
            (json!(["ok", "ok"]), json!("ok"), "", &[]),
            (json!([]), json!(null), "", &[]),
        ];
        for (answers, value, counts, misfits) in table {
            let found = merged(answers.as_array().unwrap(), &cross());
            assert_eq!(found.0, value, "{answers}");
            assert_eq!(found.1, counts, "{answers}");
            assert_eq!(found.2, misfits, "{answers}");
        }
    }

    #[test]
    fn items_are_marked_with_their_site() {
        let cross = Cross { mark: Some("site".into()), ..cross() };
        let (value, _, _) =
            merged(&[json!({"a": [{"x": 1}, 7]}), json!({"a": [{"x": 2}]})], &cross);
        assert_eq!(value, json!({"a": [{"x": 1, "site": "site1"}, 7, {"x": 2, "site": "site2"}]}));
    }

    #[test]
    fn pages_of_one_site_count_once() {
        let page = |site: &str, value: Value| (site.parse::<SiteId>().unwrap(), value);
        let answers = vec![
            page("a", json!({"items": [1], "total": 2, "next": "/2"})),
            page("a", json!({"items": [2], "total": 2})),
            page("b", json!({"items": [3], "total": 1})),
        ];
        let merged = lists(answers, &cross(), &nothing());
        assert_eq!(merged.value, json!({"items": [1, 2, 3], "total": 3}));
        assert_eq!(merged.items, [("items".to_owned(), vec![(site("a"), 2), (site("b"), 1)])]);
    }

    #[test]
    fn the_next_page_is_where_a_pointer_finds_a_link() {
        let table = [
            (json!({"next": "/2"}), Some("/2")),
            (json!({"next": null, "links": [{"href": "/3"}]}), Some("/3")),
            (json!({"next": ""}), None),
            (json!([]), None),
        ];
        for (answer, expected) in table {
            assert_eq!(next_page(&answer, &cross()).as_deref(), expected, "{answer}");
        }
    }

    #[test]
    fn what_is_to_be_unique_is_found_in_what_is_to_be_created() {
        let of = |at: &str| Cross { unique: Some(at.into()), ..cross() };
        let body = json!({"server": {"name": "x", "zone": null}});
        for (cross, expected) in [
            (of("/server/name"), Some(json!("x"))),
            (of("/*/name"), Some(json!("x"))),
            (of("/server/zone"), None),
            (of("/name"), None),
            (cross(), None),
        ] {
            let found = unique(&body, &cross);
            assert_eq!(found.map(|(_, value)| value), expected.as_ref(), "{:?}", cross.unique);
            assert!(found.is_none_or(|(at, _)| Some(at) == cross.unique.as_deref()));
        }
    }

    #[test]
    fn a_name_is_found_wherever_the_collection_has_its_items() {
        let table = [
            (json!([{"name": "x"}]), "/name", true),
            (json!({"servers": [{"name": "y"}, {"name": "x"}]}), "/server/name", true),
            (json!({"servers": [{"name": "x"}]}), "/*/name", true),
            (json!({"items": [{"metadata": {"name": "x"}}]}), "/metadata/name", true),
            (json!({"servers": [{"name": "y", "title": "x"}]}), "/server/name", false),
            (json!({"name": "x"}), "/name", false),
            (json!("x"), "/name", false),
        ];
        for (collection, at, expected) in table {
            assert_eq!(names(&collection, at, &json!("x")), expected, "{collection} {at}");
        }
    }

    proptest! {
        #[test]
        fn what_was_divided_is_whole_again(
            number: i64,
            items in prop::collection::vec(any::<u8>(), 0..20),
            weights in prop::collection::vec(0..9_u32, 0..5),
            count in 1..6_usize,
        ) {
            let weighed = |pointer: &str, gather| Divide {
                pointer: pointer.to_owned(), split: Split::Weights(weights.clone()), gather,
            };
            let rules = [
                rule("/even", Gather::Sum),
                weighed("/weighed", Gather::Sum),
                weighed("/list", Gather::Concat),
                Divide { split: Split::Each, ..rule("/each", Gather::Same) },
            ];
            let body = json!({
                "even": number, "weighed": number, "list": items, "each": items, "rest": {"x": 1},
            });
            let parts = (0..count).map(|n| match part(&body, &rules, Share { part: n, parts: count }) {
                Part::Divided(value) => value,
                Part::Whole => unreachable!("there is a number"),
            });
            let parts: Vec<Value> = parts.collect();
            prop_assert_eq!(whole(at_sites(&parts), &rules), Ok(body));
        }
    }
}
