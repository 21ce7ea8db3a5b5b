//! Stories of who belongs, and properties of what all come to know.

use alloc::{
    format,
    string::{String, ToString},
    vec,
};

use proptest::prelude::*;

use super::*;

fn key(letter: char) -> PublicKey {
    PublicKey::from_bytes([u8::try_from(letter).unwrap_or_default(); 32])
}

/// A statement in short: `a1@5 admits b`, `b1@7 removes a up to 2`, `c1@9 vouches for a up to 3`.
fn statement(text: &str) -> Statement {
    let words: Vec<&str> = text.split(' ').collect();
    let (who, at) = words[0].split_once('@').unwrap();
    let (by, number) = who.split_at(1);
    let named = |at: usize| key(words[at].chars().next().unwrap());
    let up_to = |at: usize| {
        let statements = words.get(at + 2).map_or(0, |last| last.parse().unwrap());
        Fence { statements, ..Fence::default() }
    };
    let claim = match words[1] {
        "admits" => {
            let site = format!("site-{}", words[2]).parse().unwrap();
            Claim::Admit { site, key: named(2), address: words[2].into() }
        }
        "renews" => Claim::Renew { key: named(2) },
        "moves" => Claim::Move { address: words[2].into() },
        "removes" => Claim::Remove { key: named(2), fence: up_to(3) },
        "vouches" => Claim::Vouch { key: named(3), fence: up_to(4) },
        "closes" => Claim::Close { key: named(2), fence: up_to(3) },
        other => panic!("{other}"),
    };
    Statement {
        by: key(by.chars().next().unwrap()),
        number: number.parse().unwrap(),
        at: Timestamp::at(Millis(at.parse().unwrap())),
        claim,
    }
}

fn roster<'a>(statements: impl IntoIterator<Item = &'a Statement>) -> Roster {
    let mut roster = Roster::new(key('a'), "site-a".parse().unwrap(), "a".into());
    for statement in statements {
        roster.hear(statement.clone());
    }
    roster
}

/// The first letters of the keys that belong.
fn belong(roster: &Roster) -> String {
    roster.sites().map(|(key, _)| char::from(key.as_bytes()[0])).collect()
}

#[test]
fn who_belongs() {
    for (story, statements, expected) in [
        ("a site alone", vec![], "a"),
        ("one joins, and lets another in", vec!["a1@1 admits b", "b1@2 admits c"], "abc"),
        ("nobody lets itself in", vec!["b1@1 admits b"], "a"),
        ("strangers let nobody in", vec!["x1@1 admits y"], "a"),
        ("what came before is awaited", vec!["a2@2 admits c"], "a"),
        ("it comes", vec!["a2@2 admits c", "b1@1 admits d", "a1@1 admits b"], "abcd"),
        ("one is removed", vec!["a1@1 admits b", "a2@2 removes b up to 0"], "a"),
        ("the first one, too", vec!["a1@1 admits b", "b1@2 removes a up to 1"], "b"),
        (
            "whom the removed one had let in stays",
            vec!["a1@1 admits b", "b1@2 admits c", "a2@3 removes b up to 1"],
            "ac",
        ),
        (
            "also if only somebody else had heard of it",
            vec!["a1@1 admits b", "b1@2 admits c", "a2@3 removes b up to 0"],
            "ac",
        ),
        (
            "whom it lets in after does not get in",
            vec!["a1@1 admits b", "a2@3 removes b up to 0", "b1@2 admits c"],
            "a",
        ),
        (
            "nor can it remove who has removed it",
            vec!["a1@1 admits b", "a2@3 removes b up to 0", "b1@0 removes a up to 0"],
            "a",
        ),
        (
            "unless somebody who belongs had heard of it",
            vec![
                "a1@1 admits b",
                "a2@2 admits d",
                "a3@4 removes b up to 0",
                "b1@3 admits c",
                "d1@5 vouches for b up to 1",
            ],
            "acd",
        ),
        (
            "an accomplice of the removed one vouches in vain",
            vec![
                "a1@1 admits b",
                "a2@4 removes b up to 0",
                "b1@3 admits c",
                "c1@3 vouches for b up to 1",
                "b2@4 vouches for b up to 9",
            ],
            "a",
        ),
        (
            "a removed key does not come back",
            vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits b"],
            "a",
        ),
        (
            "with another key it does",
            vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits B"],
            "Ba",
        ),
        (
            "who closes a fence removes",
            vec!["a1@1 admits b", "a2@2 closes b up to 0", "b1@3 admits c"],
            "a",
        ),
    ] {
        tell(story, &statements, expected);
    }
}

#[test]
fn keys_that_are_renewed_belong_together() {
    for (story, statements, expected) in [
        ("a key is renewed", vec!["a1@1 admits b", "b1@2 renews B"], "Ba"),
        (
            "whoever has the old key can do nothing any more",
            vec!["a1@1 renews A", "a2@3 removes A up to 0", "a3@4 admits b"],
            "A",
        ),
        (
            "a key is renewed once",
            vec!["a1@1 admits b", "b1@2 renews B", "b2@3 renews C", "b3@4 renews D"],
            "Ba",
        ),
        (
            "keys that were made in advance are of no use",
            vec![
                "a1@1 admits b",
                "b1@2 renews c",
                "c1@2 renews d",
                "a2@3 removes d up to 0",
                "d1@4 renews e",
                "c2@4 renews f",
                "b2@4 renews g",
            ],
            "a",
        ),
        (
            "also if the remover had not heard of them",
            vec![
                "a1@1 admits b",
                "a2@1 admits z",
                "b1@2 renews c",
                "c1@2 renews d",
                "a3@3 removes b up to 0",
            ],
            "az",
        ),
        (
            "or others hear of them after",
            vec![
                "a1@1 admits b",
                "a2@1 admits z",
                "a3@3 removes b up to 0",
                "z1@4 vouches for b up to 1",
                "b1@2 renews c",
                "c1@2 admits d",
            ],
            "az",
        ),
        (
            "a removal that is heard before what let the site in is not forgotten",
            vec!["a1@1 admits b", "a2@3 removes c up to 0", "b1@2 admits c"],
            "ab",
        ),
        (
            "nobody vouches for itself, with whatever key",
            vec![
                "a1@1 admits b",
                "b1@2 vouches for b up to 9",
                "b2@2 vouches for c up to 9",
                "b3@2 renews c",
                "c1@2 vouches for c up to 9",
                "a2@3 removes c up to 1",
                "c2@4 admits d",
            ],
            "a",
        ),
        (
            "nobody takes another with it",
            vec!["a1@1 admits b", "a2@1 admits c", "b1@2 renews c", "a3@3 removes b up to 1"],
            "ac",
        ),
    ] {
        tell(story, &statements, expected);
    }
}

/// Hears statements, in this order and again, and says who belongs.
fn tell(story: &str, statements: &[&str], expected: &str) {
    let statements: Vec<Statement> = statements.iter().copied().map(statement).collect();
    let heard = roster(&statements);
    assert_eq!(belong(&heard), expected, "{story}");
    assert_eq!(roster(heard.heard()).members, heard.members, "{story}, heard again");
}

#[test]
fn of_two_with_one_name_the_first_that_was_heard_of_has_it_until_it_is_removed() {
    let admits = |text: &str| {
        let mut said = statement(text);
        if let Claim::Admit { site, .. } = &mut said.claim {
            *site = "twin".parse().unwrap();
        }
        said
    };
    let said = [
        statement("a1@1 admits b"),
        admits("a2@3 admits d"),
        // Whatever time it has on it.
        admits("b1@0 admits e"),
        statement("d1@4 renews f"),
        statement("a3@5 removes f up to 0"),
    ];
    let (twin, web) = ("twin".parse().unwrap(), "web".parse().unwrap());
    for (heard, expected, holder) in [(3, "abd", 'd'), (4, "abf", 'f'), (5, "abe", 'e')] {
        let roster = roster(&said[..heard]);
        assert_eq!(belong(&roster), expected);
        for letter in ['e', 'f'] {
            let counts = roster.counts(&key(letter), &twin, &web, 1);
            assert_eq!(counts, letter == holder, "{letter} of {expected}");
        }
    }
}

#[test]
fn records_count_up_to_the_fence() {
    let [web, other]: [ResourceId; 2] = ["web", "db"].map(|id| id.parse().unwrap());
    let site: SiteId = "site-b".parse().unwrap();
    let fence = |number| Fence { statements: 0, records: [(web.clone(), number)].into() };
    let says = |by, number, claim| Statement {
        by: key(by),
        number,
        at: Timestamp::at(Millis(number)),
        claim,
    };
    let mut roster = roster(&[statement("a1@1 admits b"), statement("a2@2 admits c")]);
    let counts = |roster: &Roster, resource: &ResourceId, number| {
        roster.counts(&key('b'), &site, resource, number)
    };
    assert!(counts(&roster, &web, 9) && !roster.counts(&key('c'), &site, &web, 1));
    roster.hear(says('a', 3, Claim::Remove { key: key('b'), fence: fence(4) }));
    assert!(counts(&roster, &web, 4) && !counts(&roster, &web, 5));
    assert!(!counts(&roster, &other, 1));
    roster.hear(says('c', 1, Claim::Vouch { key: key('b'), fence: fence(6) }));
    assert!(counts(&roster, &web, 6) && !counts(&roster, &web, 7));
    // What it says of itself after that changes nothing.
    roster.hear(says('b', 1, Claim::Vouch { key: key('b'), fence: fence(100) }));
    assert!(!counts(&roster, &web, 7));
}

#[test]
fn what_does_not_count_keeps_out_nothing_that_does() {
    let mut roster = roster(&[statement("a1@1 admits b"), statement("a2@2 removes b up to 0")]);
    for number in 1..=MOST_HELD as u64 + 1 {
        roster.hear(Statement { number, ..statement("b1@3 moves away") });
    }
    assert_eq!(roster.hear(statement("a3@4 admits c")).len(), 1);
    assert_eq!(belong(&roster), "ac");
}

#[test]
fn a_fence_that_is_closed_moves_no_more() {
    let web: ResourceId = "web".parse().unwrap();
    let site: SiteId = "site-b".parse().unwrap();
    let fence = |number| Fence { statements: 0, records: [(web.clone(), number)].into() };
    let says = |by, number, at, claim| Statement {
        by: key(by),
        number,
        at: Timestamp::at(Millis(at)),
        claim,
    };
    let begin = ["a1@1 admits b", "a2@1 admits c"].map(statement);
    let said = [
        says('a', 3, 2, Claim::Remove { key: key('b'), fence: fence(4) }),
        says('a', 4, 5, Claim::Close { key: key('b'), fence: fence(4) }),
        says('a', 5, 6, Claim::Admit { site: site.clone(), key: key('B'), address: "".into() }),
        says('c', 1, 7, Claim::Vouch { key: key('b'), fence: fence(6) }),
        says('c', 2, 8, Claim::Close { key: key('b'), fence: fence(9) }),
        says('B', 1, 9, Claim::Vouch { key: key('b'), fence: fence(12) }),
    ];
    // In whatever order the words of different sites are heard.
    for order in [[0, 1, 2, 3, 4, 5], [3, 4, 0, 1, 2, 5], [0, 3, 1, 4, 2, 5]] {
        let mut roster = roster(&begin);
        for n in order {
            roster.hear(said[n].clone());
        }
        let counts = |number| roster.counts(&key('b'), &site, &web, number);
        assert!(counts(4) && !counts(5), "{order:?}");
        assert!(roster.counts(&key('B'), &site, &web, 100));
        assert_eq!(roster.removed(), BTreeSet::new(), "it is back");
        assert_eq!(roster.closed()[&key('b')].1[&web], 4);
        assert_eq!(roster.open_fences(&site), vec![]);
    }
}

#[test]
fn the_line_is_drawn_when_all_that_belong_have_said_how_far_they_knew_the_site() {
    let site: SiteId = "site-x".parse().unwrap();
    let names = |roster: &Roster| -> Vec<String> {
        roster.awaited_about(&site).iter().map(ToString::to_string).collect()
    };
    let begin = ["a1@1 admits b", "a2@1 admits c", "a3@1 admits x", "b1@1 renews B"];
    let mut heard = roster(&begin.map(statement));
    assert!(names(&heard).is_empty(), "it was not removed");
    for (said, waits) in [
        ("a4@2 removes x up to 0", vec!["site-b", "site-c"]),
        ("B1@3 vouches for x up to 0", vec!["site-c"]),
        ("a5@4 admits d", vec!["site-c", "site-d"]),
        ("d1@5 vouches for x up to 0", vec!["site-c"]),
        // One that is gone, too, is not waited for.
        ("a6@6 removes c up to 0", vec![]),
    ] {
        heard.hear(statement(said));
        assert_eq!(names(&heard), waits, "{said}");
    }
}

#[test]
fn no_earlier_key_of_a_removed_site_counts_beyond_its_fence() {
    let web: ResourceId = "web".parse().unwrap();
    let site: SiteId = "site-b".parse().unwrap();
    let mut roster = roster(&["a1@1 admits b", "b1@2 renews B"].map(statement));
    assert!(roster.counts(&key('b'), &site, &web, 9));
    let fence = Fence { statements: 0, records: [(web.clone(), 4)].into() };
    let removes = Claim::Remove { key: key('B'), fence };
    roster.hear(Statement { claim: removes, ..statement("a2@3 admits x") });
    assert_eq!(roster.removed(), [site.clone()].into());
    for letter in ['b', 'B'] {
        assert!(roster.counts(&key(letter), &site, &web, 4));
        assert!(!roster.counts(&key(letter), &site, &web, 5));
    }
}

#[test]
fn a_key_that_follows_a_removed_one_beyond_its_fence_is_known_for_it() {
    let all = ["a1@1 admits b", "a2@3 removes b up to 0", "b1@2 renews B", "B1@4 renews c"];
    let all = all.map(statement);
    let named = |roster: &Roster, letter| roster.removed_with(&key(letter)).cloned();
    let gone = Some("site-b".parse().unwrap());
    let after = roster(&all);
    assert_eq!(belong(&after), "a");
    assert_eq!(
        ["b", "B", "c"].map(|of| named(&after, of.chars().next().unwrap())),
        [gone.clone(), gone.clone(), gone.clone()]
    );
    assert_eq!((named(&after, 'a'), named(&after, 'x')), (None, None));
    assert_eq!([key('a'), key('b'), key('B')].map(|key| after.listens(&key)), [true, false, false]);
    // Of two that name each other and were never let in, neither is anybody's.
    let strange = [statement("x1@1 renews y"), statement("y1@1 renews x")];
    assert_eq!(named(&roster(&strange), 'x'), None);
    // Where the renewal was heard before, the new key was put out with the old one.
    let early = roster(&[all[0].clone(), all[2].clone(), all[1].clone()]);
    assert_eq!([named(&early, 'b'), named(&early, 'B')], [gone.clone(), gone]);
}

fn letter() -> impl Strategy<Value = char> {
    prop_oneof![Just('a'), Just('b'), Just('c'), Just('d'), Just('e')]
}

fn anything() -> impl Strategy<Value = Statement> {
    let claim = (letter(), 0..4_u64, 0..5_u8).prop_map(|(other, last, sort)| {
        let (key, fence) = (key(other), Fence { statements: last, ..Fence::default() });
        let site = format!("site-{other}").parse().unwrap();
        match sort {
            0 | 1 => Claim::Admit { site, key, address: "".into() },
            2 => Claim::Remove { key, fence },
            3 => Claim::Vouch { key, fence },
            _ => Claim::Renew { key },
        }
    });
    (letter(), 1..4_u64, 0..20_u64, claim).prop_map(|(by, number, at, claim)| Statement {
        by: key(by),
        number,
        at: Timestamp::at(Millis(at)),
        claim,
    })
}

/// A thief's words: beyond what anybody has heard of its key.
fn lies(roster: &Roster, thief: PublicKey, lies: &[Statement]) -> Vec<Statement> {
    let fence = roster.members()[&thief].standing.fence().unwrap().statements;
    let from = fence.max(roster.heard_of(&thief)) + 1;
    let said = |(number, said): (u64, &Statement)| Statement { by: thief, number, ..said.clone() };
    (from..).zip(lies).map(said).collect()
}

proptest! {
    #[test]
    fn what_counts_can_be_heard_again(all in prop::collection::vec(anything(), 0..16)) {
        let heard = roster(&all);
        let again = roster(heard.heard());
        prop_assert_eq!(again.members(), heard.members());
        prop_assert_eq!(again.heard(), heard.heard());
    }

    #[test]
    fn nothing_that_a_removed_key_says_beyond_its_fence_counts(
        statements in prop::collection::vec(anything(), 0..16),
        more in prop::collection::vec(anything(), 1..6),
    ) {
        let mut before = roster(&statements);
        // What may still come of what was said before is another matter.
        before.held.clear();
        for (thief, member) in before.members() {
            if member.standing.fence().is_none() {
                continue;
            }
            let mut after = before.clone();
            for lie in lies(&before, *thief, &more) {
                prop_assert_eq!(after.hear(lie), vec![]);
            }
            prop_assert_eq!(before.members(), after.members());
        }
    }

    /// Three sites that have heard a removal at different times tell each other all that they know.
    #[test]
    fn sites_that_heard_of_a_removal_at_different_times_come_to_know_the_same(
        said in 0..4_usize, heard in prop::array::uniform3(0..4_usize), seed: u64
    ) {
        let begin = ["a1@1 admits b", "a2@1 admits c", "a3@1 admits x"].map(statement);
        let words = ["x1@2 admits y", "x2@3 admits z", "x3@4 moves elsewhere"].map(statement);
        let removes = Statement {
            claim: Claim::Remove {
                key: key('x'),
                fence: Fence { statements: heard[0].min(said) as u64, ..Fence::default() },
            },
            ..statement("a4@5 removes x up to 0")
        };
        let mut sites: Vec<Roster> = heard
            .iter()
            .map(|&heard| roster(begin.iter().chain(&words[..heard.min(said)])))
            .collect();
        let names = ['a', 'b', 'c'];
        for (site, name) in sites.iter_mut().zip(names) {
            let known = site.heard_of(&key('x'));
            site.hear(removes.clone());
            if name != 'a' {
                let fence = Fence { statements: known, ..Fence::default() };
                let number = site.heard_of(&key(name)) + 1;
                let claim = Claim::Vouch { key: key('x'), fence };
                site.hear(Statement { by: key(name), number, claim, ..removes.clone() });
            }
        }
        let mut random = seed;
        let mut all: Vec<Statement> = sites.iter().flat_map(|site| site.heard().to_vec()).collect();
        for site in &mut sites {
            for n in (1..all.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                all.swap(n, usize::try_from(random >> 33).unwrap() % (n + 1));
            }
            for statement in &all {
                site.hear(statement.clone());
            }
            // The thief goes on, and nobody listens.
            site.hear(Statement { number: 9, ..words[0].clone() });
        }
        prop_assert_eq!(sites[0].members(), sites[1].members());
        prop_assert_eq!(sites[1].members(), sites[2].members());
        let furthest = *heard.iter().max().unwrap();
        prop_assert_eq!(sites[0].heard_of(&key('x')), furthest.min(said) as u64);
    }
}
