//! The application of the storms: a number that can be set and added to.
//!
//! What must stay true: a command that fails changes nothing, and the matrices called truthful say
//! what the commands really do to each other.

use cheops_core::{
    matrix::{Concurrent, Config, Entry, Matrix, Take},
    operation::{Action, Operation},
    plan::Outcome,
};

use crate::support::world::App;

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Register(pub i64);

impl App for Register {
    fn run(&mut self, op: &Operation) -> Outcome {
        let Action::Command { line, .. } = &op.action else { panic!("a command") };
        let (verb, number) = line.split_once(' ').unwrap();
        let number: i64 = number.parse().unwrap();
        match verb {
            "set" => self.0 = number,
            "delete" => self.0 = 0,
            "inc" => self.0 = self.0.wrapping_add(number),
            "fail" => return Outcome::Ko,
            other => panic!("{other:?}"),
        }
        Outcome::Ok
    }
}

pub const KINDS: [&str; 3] = ["set", "inc", "fail"];

const TAKES: [Take; 5] =
    [Take::One, Take::Both, Take::BothKeepOrder, Take::BothReverseOrder, Take::BothAgreedOrder];
const CONCURRENT: [Option<Concurrent>; 6] = [
    None,
    None,
    Some(Concurrent::Both),
    Some(Concurrent::Before),
    Some(Concurrent::After),
    Some(Concurrent::One),
];

fn entry(before: &str, after: &str, result: Take, concurrent: Option<Concurrent>) -> Entry {
    let (before, after) = (before.parse().unwrap(), after.parse().unwrap());
    Entry { before, after, result, concurrent }
}

/// A matrix that tells the truth about the register; one of several.
fn truthful(rng: &mut fastrand::Rng) -> Matrix {
    let together = rng.bool().then_some(Concurrent::Both);
    let entries = [
        entry("set", "inc", Take::BothKeepOrder, together),
        entry("inc", "set", Take::BothReverseOrder, None),
        entry("set", "set", Take::One, None),
        entry("inc", "inc", Take::Both, None),
    ];
    Matrix::new(entries.to_vec()).unwrap()
}

/// Any matrix at all.
fn any(rng: &mut fastrand::Rng) -> Matrix {
    let count = rng.usize(0..6);
    let entries = (0..count).map(|_| {
        let (before, after) = (KINDS[rng.usize(0..3)], KINDS[rng.usize(0..3)]);
        entry(before, after, TAKES[rng.usize(0..5)], CONCURRENT[rng.usize(0..6)])
    });
    Matrix::new(entries.collect()).unwrap()
}

/// A configuration with or without `Show`, `Reset` and `Check`.
pub fn config(rng: &mut fastrand::Rng, tells_the_truth: bool) -> Config {
    Config {
        matrix: if tells_the_truth { truthful(rng) } else { any(rng) },
        show: (rng.u8(0..3) > 0).then(|| "get".to_owned()),
        reset: (rng.u8(0..3) > 0).then(|| "set 0".to_owned()),
        check: rng.bool().then(|| "grep".to_owned()),
        ..Config::default()
    }
}
