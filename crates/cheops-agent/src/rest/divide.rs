//! What each site's part of a resource is, when a resource is divided among sites.
//!
//! Integers and lists divide. An integer divides evenly, or by weights (largest remainder); what does
//! not come out even goes to the earlier parts: 10 over three is 4, 3, 3. A list is dealt out in turns,
//! like cards, or cut into stretches by weights. With `each`, every part gets all of it.
//!
//! What is neither, like `0.5`, does not divide: there is no fair third of it that all applications
//! would take. [`check`] says so before anything is created; a part has it as it is, as it has
//! all else in the body.
//!
//! What must stay true: a part is a function of the body, the rules and the share; the parts of a
//! number add up to it exactly, and each item of a list is in exactly one part.

use cheops_core::matrix::Share;
use serde_json::{Number, Value};

use super::pointer;
use crate::config::{Divide, Split};

/// What a site gets of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Its part.
    Divided(Value),
    /// Nothing in the body divides: the first site gets it whole, and the others nothing.
    Whole,
}

/// What was to be divided and can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` at `{pointer}` can't be divided among sites: integers and lists can")]
pub struct Indivisible {
    /// Where it is.
    pub pointer: String,
    /// What it is, as JSON, shortened.
    pub value: String,
}

/// What the site with this share gets of a body.
pub fn part(body: &Value, divide: &[Divide], share: Share) -> Part {
    let mut result = body.clone();
    let mut divided = false;
    for rule in divide {
        if let Some(place) = pointer::find_mut(&mut result, &rule.pointer)
            && let Some(part) = portion(place, &rule.split, share)
        {
            *place = part;
            divided = true;
        }
    }
    if divided { Part::Divided(result) } else { Part::Whole }
}

/// Whether all that is to be divided in a body can be.
pub fn check(body: &Value, divide: &[Divide]) -> Result<(), Indivisible> {
    let one = Share { part: 0, parts: 1 };
    for rule in divide {
        if let Some(value) = pointer::find(body, &rule.pointer)
            && portion(value, &rule.split, one).is_none()
        {
            let value = value.to_string().chars().take(40).collect();
            return Err(Indivisible { pointer: rule.pointer.clone(), value });
        }
    }
    Ok(())
}

/// What is divided and is touched by a patch, if the body is one (RFC 6902). Each part would be patched
/// as if it was the whole.
pub fn patched<'d>(body: &Value, divide: &'d [Divide]) -> Option<&'d str> {
    let operations = operations(body)?;
    let places =
        || operations.iter().flat_map(|op| ["path", "from"].map(|name| op.get(name)?.as_str()));
    let divided = divide.iter().filter(|rule| rule.split != Split::Each);
    let mut pointers = divided.map(|rule| rule.pointer.as_str());
    pointers.find(|at| places().flatten().any(|place| pointer::meet(at, place)))
}

/// Whether the body is a list of operations that patch a document.
pub fn is_patch(body: &Value) -> bool {
    operations(body).is_some()
}

fn operations(body: &Value) -> Option<&[Value]> {
    let is_text = |op: &Value, name: &str| op.get(name).is_some_and(Value::is_string);
    let operations = body.as_array()?;
    let all = operations.iter().all(|op| is_text(op, "op") && is_text(op, "path"));
    all.then_some(operations)
}

/// The answer of one part, with what was asked for in place of the part's own share.
pub fn restore(mut answer: Value, asked: &Value, divide: &[Divide]) -> Value {
    for rule in divide {
        let found = pointer::find(asked, &rule.pointer);
        if let (Some(whole), Some(part)) = (found, pointer::find_mut(&mut answer, &rule.pointer)) {
            *part = whole.clone();
        }
    }
    answer
}

fn portion(value: &Value, split: &Split, share: Share) -> Option<Value> {
    match (value, split) {
        (value, Split::Each) => Some(value.clone()),
        (Value::Number(number), split) => {
            let part = of_number(integer(number)?, split, share);
            let whole = i64::try_from(part).map(Number::from);
            Some(Value::Number(whole.or_else(|_| u64::try_from(part).map(Number::from)).ok()?))
        }
        (Value::Array(items), Split::Even) => {
            let dealt = items.iter().skip(share.part).step_by(share.parts.max(1));
            Some(dealt.cloned().collect())
        }
        (Value::Array(items), Split::Weights(_)) => {
            // A length fits with room to spare.
            let count = |part| {
                let share = Share { part, ..share };
                usize::try_from(of_number(items.len() as i128, split, share)).unwrap_or_default()
            };
            let start: usize = (0..share.part.min(share.parts)).map(count).sum();
            Some(items.iter().skip(start).take(count(share.part)).cloned().collect())
        }
        _ => None,
    }
}

pub(super) fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// A share of a number. Of a negative one, each part is that of its opposite, negative.
fn of_number(number: i128, split: &Split, share: Share) -> i128 {
    let Share { part, parts } = share;
    if part >= parts {
        return 0;
    }
    let given = match split {
        Split::Weights(given) => given.as_slice(),
        Split::Even | Split::Each => &[],
    };
    let mut weights: Vec<i128> =
        (0..parts).map(|n| i128::from(given.get(n).copied().unwrap_or(1))).collect();
    // Weights that leave these parts with nothing say nothing about them.
    if weights.iter().all(|weight| *weight == 0) {
        weights.fill(1);
    }
    let total: i128 = weights.iter().sum();
    let size = number.abs();
    let rounded = |n: usize| size * weights[n] / total;
    let over = size - (0..parts).map(rounded).sum::<i128>();
    // Those that lost most by rounding come first, and of these the earlier ones.
    let lost = |n: usize| size * weights[n] % total;
    let before = (0..parts).filter(|&n| (lost(n), part) > (lost(part), n)).count() as i128;
    number.signum() * (rounded(part) + i128::from(before < over))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::config::Gather;

    fn rule(pointer: &str, split: Split) -> Divide {
        Divide { pointer: pointer.to_owned(), split, gather: Gather::Sum }
    }

    fn parts(body: &Value, split: &Split, parts: usize) -> Vec<Value> {
        let share = |part| Share { part, parts };
        let got = (0..parts).map(|n| part(body, &[rule("/a", split.clone())], share(n)));
        got.map(|part| match part {
            Part::Divided(value) => value["a"].clone(),
            Part::Whole => json!("whole"),
        })
        .collect()
    }

    #[test]
    fn numbers_and_lists_divide() {
        let weights = |weights: &[u32]| Split::Weights(weights.to_vec());
        let table = [
            (json!(10), Split::Even, json!([4, 3, 3])),
            (json!(2), Split::Even, json!([1, 1, 0])),
            (json!(0), Split::Even, json!([0, 0, 0])),
            (json!(-10), Split::Even, json!([-4, -3, -3])),
            (json!(u64::MAX), Split::Even, json!([u64::MAX / 3, u64::MAX / 3, u64::MAX / 3])),
            (json!(10), Split::Each, json!([10, 10, 10])),
            (json!(10), weights(&[1, 2, 1]), json!([3, 5, 2])),
            (json!(10), weights(&[8]), json!([8, 1, 1])),
            (json!(7), weights(&[0, 1, 0]), json!([0, 7, 0])),
            (json!(7), weights(&[0, 0, 0, 5]), json!([3, 2, 2])),
            (json!(u64::MAX), weights(&[0, 1, 0]), json!([0, u64::MAX, 0])),
            (json!([1, 2, 3, 4, 5]), Split::Even, json!([[1, 4], [2, 5], [3]])),
            (json!([1]), Split::Even, json!([[1], [], []])),
            (json!([1, 2, 3, 4, 5]), weights(&[1, 3, 1]), json!([[1], [2, 3, 4], [5]])),
            (json!([1, 2]), weights(&[0, 0, 9]), json!([[], [], [1, 2]])),
            (json!([1, 2]), Split::Each, json!([[1, 2], [1, 2], [1, 2]])),
            (json!("text"), Split::Each, json!(["text", "text", "text"])),
            (json!("text"), Split::Even, json!(["whole", "whole", "whole"])),
            (json!(0.5), Split::Even, json!(["whole", "whole", "whole"])),
            (json!(null), weights(&[1]), json!(["whole", "whole", "whole"])),
        ];
        for (value, split, expected) in table {
            let body = json!({"a": value, "b": "rest"});
            let indivisible = expected[0] == "whole";
            assert_eq!(Value::from(parts(&body, &split, 3)), expected, "{value} {split:?}");
            assert_eq!(check(&body, &[rule("/a", split)]).is_err(), indivisible, "{value}");
        }
    }

    #[test]
    fn what_no_rule_names_is_in_every_part() {
        let body = json!({"spec": {"replicas": 3, "cost": 0.5, "image": "x"}});
        let rules = [
            rule("/spec/replicas", Split::Even),
            rule("/spec/cost", Split::Even),
            rule("/missing", Split::Even),
        ];
        let second = part(&body, &rules, Share { part: 1, parts: 2 });
        let expected = json!({"spec": {"replicas": 1, "cost": 0.5, "image": "x"}});
        assert_eq!(second, Part::Divided(expected));
        assert_eq!(part(&body, &rules[2..], Share { part: 0, parts: 2 }), Part::Whole);
        let error = check(&body, &rules).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`0.5` at `/spec/cost` can't be divided among sites: integers and lists can"
        );
    }

    #[test]
    fn patches_of_what_divides_are_found() {
        let rules = [
            rule("/replicas", Split::Even),
            rule("/*/members", Split::Even),
            rule("/labels", Split::Each),
        ];
        let op = |op: &str, path: &str| json!([{"op": op, "path": path, "value": 1}]);
        let table = [
            (op("replace", "/replicas"), Some("/replicas")),
            (op("test", "/replicas"), Some("/replicas")),
            (op("add", "/group/members/-"), Some("/*/members")),
            (op("replace", "/group"), Some("/*/members")),
            (op("replace", ""), Some("/replicas")),
            (json!([{"op": "copy", "from": "/replicas", "path": "/x/y"}]), Some("/replicas")),
            (op("replace", "/labels/a"), None),
            (json!([]), None),
            (json!({"op": "replace", "path": "/replicas"}), None),
            (json!([{"op": "replace", "path": "/replicas"}, 7]), None),
            (json!({"replicas": 7}), None),
        ];
        for (body, expected) in table {
            assert_eq!(patched(&body, &rules), expected, "{body}");
        }
        assert_eq!(patched(&op("replace", "/labels/a"), &rules[2..]), None);
        assert_eq!(patched(&op("replace", "/replicas2"), &rules[..1]), None);
        assert!(is_patch(&json!([])) && !is_patch(&json!([1])) && !is_patch(&json!({})));
    }

    #[test]
    fn a_share_of_nothing_is_nothing() {
        for share in [Share { part: 0, parts: 0 }, Share { part: 3, parts: 3 }] {
            let rules = [rule("", Split::Weights(vec![1]))];
            assert_eq!(part(&json!(10), &[rule("", Split::Even)], share), Part::Divided(json!(0)));
            assert_eq!(part(&json!([1, 2]), &rules, share), Part::Divided(json!([])));
        }
    }

    fn splits() -> impl Strategy<Value = Split> {
        prop_oneof![
            Just(Split::Even),
            prop::collection::vec(prop_oneof![0..4_u32, any::<u32>()], 0..9)
                .prop_map(Split::Weights),
        ]
    }

    proptest! {
        #[test]
        fn the_parts_of_a_number_add_up(number: i64, split in splits(), count in 1..9_usize) {
            let got = parts(&json!({"a": number}), &split, count);
            let sum: i128 = got.iter().map(|part| i128::from(part.as_i64().unwrap())).sum();
            prop_assert_eq!(sum, i128::from(number));
            prop_assert!(got.iter().all(|part| part.as_i64().unwrap().signum() * number.signum() >= 0));
            if split == Split::Even {
                let sizes: Vec<u64> = got.iter().map(|part| part.as_i64().unwrap().unsigned_abs()).collect();
                prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[count - 1] <= 1);
            }
        }

        #[test]
        fn each_item_is_in_one_part(length in 0..40_u64, split in splits(), count in 1..9_usize) {
            let items: Vec<u64> = (0..length).collect();
            let got = parts(&json!({"a": items}), &split, count);
            let mut all: Vec<u64> =
                got.iter().flat_map(|part| part.as_array().unwrap()).map(|n| n.as_u64().unwrap()).collect();
            if split != Split::Even {
                prop_assert!(all.is_sorted());
            }
            all.sort_unstable();
            prop_assert_eq!(all, items);
        }
    }
}
