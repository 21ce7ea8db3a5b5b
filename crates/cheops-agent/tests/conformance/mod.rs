//! What every engine promises, as tests: what passes on one passes on the other.

use std::collections::BTreeSet;

use cheops_agent::engine::{EngineError, Opened, Seq};
use cheops_core::{
    id::{OpId, ResourceId},
    replica::Durable,
    trust::Seal,
};
use proptest::{prelude::*, test_runner::TestRunner};

use super::{
    storage::{number, operation, operation_of},
    support,
};

/// Where an engine keeps what it is given, for as long as a test lasts.
pub(crate) trait Place {
    /// An empty one.
    fn new() -> Self;

    /// Opens the engine there, for a site.
    fn open_as(&self, site: &str) -> Result<Box<dyn Opened>, EngineError>;

    fn open(&self) -> Box<dyn Opened> {
        self.open_as("here").unwrap()
    }
}

/// The tests, for engines in places of a sort.
#[macro_export]
macro_rules! conforms {
    ($place:ty) => {
        $crate::conforms!($place:
            what_is_appended_is_read_back_in_order_with_its_numbers
            seals_are_found_by_the_records_that_they_are_of
            what_has_no_form_is_refused_for_good_and_other_batches_are_taken
            nothing_comes_after_the_last_number_there_can_be
            a_reader_reads_while_others_write
            an_empty_batch_changes_nothing
            a_batch_that_is_longer_than_a_page_is_read_back
            what_is_forgotten_is_not_read_back_and_lives_again
            the_place_of_another_site_is_refused
        );
    };
    ($place:ty: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            conformance::$name::<$place>();
        })*
    };
}

fn read(engine: &mut dyn Opened) -> Vec<Durable> {
    engine.written().map(Result::unwrap).collect()
}

pub(crate) fn what_is_appended_is_read_back_in_order_with_its_numbers<P: Place>() {
    let strategy = prop::collection::vec(prop::collection::vec(support::durable(), 1..9), 1..9);
    let config = ProptestConfig::with_cases(24);
    TestRunner::new(config)
        .run(&strategy, |batches| {
            let place = P::new();
            let mut engine = place.open();
            let mut last = 0;
            for batch in &batches {
                last += batch.len() as u64;
                prop_assert_eq!(engine.append(batch).unwrap(), last);
            }
            let numbered = kept(&batches.concat());
            let all: Vec<_> = numbered.iter().map(|(_, durable)| durable.clone()).collect();
            for round in 0..2 {
                prop_assert_eq!(&read(&mut *engine), &all, "round {}", round);
                prop_assert_eq!(engine.damage(), &[]);
                let reader = engine.reader();
                prop_assert_eq!(reader.last(), last);
                prop_assert_eq!(&reader.after(0, 1_000).unwrap(), &numbered);
                let some = reader.after(2, 3).unwrap();
                let expected: Vec<_> =
                    numbered.iter().filter(|(n, _)| *n > 2).take(3).cloned().collect();
                prop_assert_eq!(some, expected);
                prop_assert_eq!(reader.after(last, 3).unwrap(), vec![]);
                drop(reader);
                drop(engine);
                engine = place.open();
            }
            Ok(())
        })
        .unwrap();
}

/// What is left of a list, with its numbers: a resource that is forgotten leaves nothing but that.
fn kept(all: &[Durable]) -> Vec<(Seq, Durable)> {
    let forgets = |durable: &Durable, resource: &ResourceId| {
        matches!(durable, Durable::Forgotten { .. }) && durable.resource() == resource
    };
    let is_kept = |(n, durable): &(Seq, Durable)| {
        let later = all.iter().skip(usize::try_from(*n).unwrap());
        !later.into_iter().any(|later| forgets(later, durable.resource()))
    };
    (1..).zip(all.iter().cloned()).filter(is_kept).collect()
}

pub(crate) fn seals_are_found_by_the_records_that_they_are_of<P: Place>() {
    let place = P::new();
    let mut engine = place.open();
    let seal = |n: u64| Seal::new(&n.to_be_bytes());
    let sealed = |n: u64| match operation(n) {
        Durable::Record(record, _) => Durable::Record(record, seal(n).filter(|_| n != 5)),
        other => panic!("{other:?}"),
    };
    let batch: Vec<Durable> = (1..=9).map(sealed).collect();
    engine.append(&batch).unwrap();
    for _ in 0..2 {
        let reader = engine.reader();
        for (n, durable) in (1..).zip(&batch) {
            let Durable::Record(record, seal) = durable else { panic!("{durable:?}") };
            let mut wanted = BTreeSet::from([record.id().clone()]);
            wanted.insert(OpId { number: 77, ..record.id().clone() });
            let found = reader.seals(record.resource(), &wanted).unwrap();
            let expected = seal.iter().map(|seal| (record.id().clone(), seal.clone()));
            assert_eq!(found, expected.collect(), "{n}");
            assert!(reader.seals(&"nothing".parse().unwrap(), &wanted).unwrap().is_empty());
        }
        drop(reader);
        drop(engine);
        engine = place.open();
    }
}

pub(crate) fn what_has_no_form_is_refused_for_good_and_other_batches_are_taken<P: Place>() {
    let place = P::new();
    let mut engine = place.open();
    assert_eq!(engine.append(&[operation(1)]).unwrap(), 1);
    let op = OpId { site: "here".parse().unwrap(), number: u64::MAX };
    let resource = "r".parse().unwrap();
    let no_number = Durable::Intent { resource, op, attempt: 1, fresh: false };
    let failure = engine.append(&[operation(2), no_number]).unwrap_err();
    assert!(failure.is_permanent(), "{failure}");
    let expected = format!("the start of a run of here:{} of resource r can't be", u64::MAX);
    assert!(failure.to_string().contains(&expected), "{failure}");
    assert_eq!(engine.reader().last(), 1);
    assert_eq!(engine.append(&[operation(2)]).unwrap(), 2);
    drop(engine);
    assert_eq!(read(&mut *place.open()), [operation(1), operation(2)]);
}

pub(crate) fn nothing_comes_after_the_last_number_there_can_be<P: Place>() {
    let place = P::new();
    let mut engine = place.open();
    engine.append(&[operation(1)]).unwrap();
    for after in [1, Seq::MAX - 1, Seq::MAX] {
        assert_eq!(engine.reader().after(after, usize::MAX).unwrap(), [], "{after}");
    }
    assert_eq!(engine.reader().after(0, usize::MAX).unwrap().len(), 1);
}

pub(crate) fn a_reader_reads_while_others_write<P: Place>() {
    const COUNT: u64 = 2_000;
    let place = P::new();
    let mut engine = place.open();
    let reader = engine.reader();
    let follower = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < usize::try_from(COUNT).unwrap() {
            let last = seen.len() as u64;
            for (seq, durable) in reader.after(last, 100).unwrap() {
                assert!(seq <= reader.last());
                assert_eq!((seq, number(&durable)), (seen.len() as u64 + 1, seq));
                seen.push(durable);
            }
        }
        assert!(reader.free().unwrap() > 0);
        seen
    });
    let written: Vec<_> = (1..=COUNT).map(operation).collect();
    for batch in written.chunks(10) {
        engine.append(batch).unwrap();
    }
    assert_eq!(follower.join().unwrap(), written);
}

pub(crate) fn an_empty_batch_changes_nothing<P: Place>() {
    let place = P::new();
    let mut engine = place.open();
    assert_eq!(engine.append(&[]).unwrap(), 0);
    assert_eq!(engine.append(&[operation(1)]).unwrap(), 1);
    assert_eq!(engine.append(&[]).unwrap(), 1);
}

pub(crate) fn a_batch_that_is_longer_than_a_page_is_read_back<P: Place>() {
    let place = P::new();
    let written: Vec<_> = (1..=2_500).map(operation).collect();
    assert_eq!(place.open().append(&written).unwrap(), 2_500);
    let mut engine = place.open();
    assert_eq!(read(&mut *engine), written);
    let after = engine.reader().after(1_990, 20).unwrap();
    assert_eq!(
        after.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1_991..=2_010).collect::<Vec<_>>()
    );
}

pub(crate) fn what_is_forgotten_is_not_read_back_and_lives_again<P: Place>() {
    let (gone, other): (ResourceId, ResourceId) =
        ("gone".parse().unwrap(), "other".parse().unwrap());
    let op = |number, resource: &ResourceId| operation_of(number, "here", resource);
    let forgotten = Durable::Forgotten {
        resource: gone.clone(),
        version: [("here".parse().unwrap(), 2)].into_iter().collect(),
        by: OpId { site: "here".parse().unwrap(), number: 2 },
        at: cheops_core::time::Timestamp::at(cheops_core::time::Millis(1)),
    };
    let place = P::new();
    let mut engine = place.open();
    engine.append(&[op(1, &gone), op(1, &other), op(2, &gone)]).unwrap();
    engine.append(std::slice::from_ref(&forgotten)).unwrap();
    engine.append(&[op(3, &gone)]).unwrap();
    let expected = [op(1, &other), forgotten, op(3, &gone)];
    for _ in 0..2 {
        assert_eq!(read(&mut *engine), expected);
        assert_eq!(engine.damage(), []);
        let numbers = engine.reader().after(0, 10).unwrap().into_iter().map(|(seq, _)| seq);
        assert_eq!(numbers.collect::<Vec<_>>(), [2, 4, 5]);
        drop(engine);
        engine = place.open();
    }
}

pub(crate) fn the_place_of_another_site_is_refused<P: Place>() {
    let place = P::new();
    drop(place.open());
    let Err(error) = place.open_as("elsewhere") else { panic!("it was opened") };
    let problem = error.to_string();
    assert!(
        problem.contains("it belongs to site `here`, and this agent is `elsewhere`"),
        "{problem}"
    );
}
