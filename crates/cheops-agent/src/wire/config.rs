//! The twins of what an operation says about its resource: sites and configuration.

use core::time::Duration;

use cheops_core::{
    id::{self, SiteId},
    matrix, operation,
};
use serde::{Deserialize, Serialize};

use super::{
    Names, Problem, Twin, WireError, error::At, list::List, message::Version, names::Text,
};

#[derive(Serialize, Deserialize)]
pub(super) struct Declaration<'a> {
    #[serde(borrow)]
    sites: List<Text<'a, SiteId>>,
    #[serde(borrow)]
    matrix: List<Entry<'a>>,
    #[serde(borrow)]
    show: Option<Command<'a>>,
    #[serde(borrow)]
    reset: Option<Command<'a>>,
    #[serde(borrow)]
    check: Option<Command<'a>>,
    timeout: Option<Timeout>,
    #[serde(borrow)]
    base: Version<'a>,
    #[serde(borrow)]
    parts: List<Part<'a>>,
}

impl<'a> Twin<'a> for Declaration<'a> {
    type Value = operation::Declaration;

    fn of(value: &'a operation::Declaration) -> Result<Self, WireError> {
        let config = &value.config;
        Ok(Self {
            sites: List::of(value.sites.iter()).at("sites")?,
            matrix: List::of(config.matrix.entries()).at("matrix")?,
            show: Twin::of(&config.show).at("show")?,
            reset: Twin::of(&config.reset).at("reset")?,
            check: Twin::of(&config.check).at("check")?,
            timeout: Twin::of(&config.timeout).at("timeout")?,
            base: Version::of(&value.base).at("base")?,
            parts: parts(&config.parts).at("parts")?,
        })
    }

    fn read(self, names: &mut Names) -> Result<operation::Declaration, WireError> {
        let sites: Vec<SiteId> = self.sites.read_ascending(names, SiteId::clone).at("sites")?;
        let entries = self.matrix.read(names).at("matrix")?;
        let parts: Vec<id::Sites> = self.parts.read(names).at("parts")?;
        matrix::check_parts(&parts).map_err(Problem::from).at("parts")?;
        Ok(operation::Declaration {
            sites: id::Sites::new(sites).map_err(Problem::from).at("sites")?,
            config: matrix::Config {
                matrix: matrix::Matrix::new(entries).map_err(Problem::from).at("matrix")?,
                show: self.show.read(names).at("show")?,
                reset: self.reset.read(names).at("reset")?,
                check: self.check.read(names).at("check")?,
                timeout: self.timeout.read(names).at("timeout")?,
                parts,
            }
            .into(),
            base: self.base.read(names).at("base")?,
        })
    }
}

/// The sites of a part, ascending.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Part<'a>(#[serde(borrow)] List<Text<'a, SiteId>>);

impl<'a> Twin<'a> for Part<'a> {
    type Value = id::Sites;

    fn of(value: &'a id::Sites) -> Result<Self, WireError> {
        Ok(Self(List::of(value.iter())?))
    }

    fn read(self, names: &mut Names) -> Result<id::Sites, WireError> {
        let sites: Vec<SiteId> = self.0.read_ascending(names, SiteId::clone)?;
        Ok(id::Sites::new(sites)?)
    }
}

fn parts(parts: &[id::Sites]) -> Result<List<Part<'_>>, WireError> {
    matrix::check_parts(parts)?;
    List::of(parts)
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    before: Text<'a, id::Kind>,
    #[serde(borrow)]
    after: Text<'a, id::Kind>,
    result: Take,
    concurrent: Option<Concurrent>,
}

/// What stays of two operations. The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Take {
    One,
    Both,
    BothKeepOrder,
    BothReverseOrder,
    BothAgreedOrder,
}

/// What stays of two that did not know of each other. The order is that of the format.
#[derive(Serialize, Deserialize)]
enum Concurrent {
    Both,
    Before,
    After,
    One,
}

impl<'a> Twin<'a> for Entry<'a> {
    type Value = matrix::Entry;

    fn of(value: &'a matrix::Entry) -> Result<Self, WireError> {
        Ok(Self {
            before: Text::of(&value.before)?,
            after: Text::of(&value.after)?,
            result: match value.result {
                matrix::Take::One => Take::One,
                matrix::Take::Both => Take::Both,
                matrix::Take::BothKeepOrder => Take::BothKeepOrder,
                matrix::Take::BothReverseOrder => Take::BothReverseOrder,
                matrix::Take::BothAgreedOrder => Take::BothAgreedOrder,
            },
            concurrent: value.concurrent.map(|concurrent| match concurrent {
                matrix::Concurrent::Both => Concurrent::Both,
                matrix::Concurrent::Before => Concurrent::Before,
                matrix::Concurrent::After => Concurrent::After,
                matrix::Concurrent::One => Concurrent::One,
            }),
        })
    }

    fn read(self, names: &mut Names) -> Result<matrix::Entry, WireError> {
        Ok(matrix::Entry {
            before: self.before.read(names).at("before")?,
            after: self.after.read(names).at("after")?,
            result: match self.result {
                Take::One => matrix::Take::One,
                Take::Both => matrix::Take::Both,
                Take::BothKeepOrder => matrix::Take::BothKeepOrder,
                Take::BothReverseOrder => matrix::Take::BothReverseOrder,
                Take::BothAgreedOrder => matrix::Take::BothAgreedOrder,
            },
            concurrent: self.concurrent.map(|concurrent| match concurrent {
                Concurrent::Both => matrix::Concurrent::Both,
                Concurrent::Before => matrix::Concurrent::Before,
                Concurrent::After => matrix::Concurrent::After,
                Concurrent::One => matrix::Concurrent::One,
            }),
        })
    }
}

/// A command that does something, as a configuration must have it.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Command<'a>(&'a str);

impl<'a> Command<'a> {
    fn new(line: &'a str) -> Result<Self, Problem> {
        if line.trim().is_empty() { Err(Problem::NoCommand) } else { Ok(Self(line)) }
    }
}

impl<'a> Twin<'a> for Command<'a> {
    type Value = String;

    fn of(value: &'a String) -> Result<Self, WireError> {
        Ok(Self::new(value)?)
    }

    fn read(self, _: &mut Names) -> Result<String, WireError> {
        Ok(Self::new(self.0)?.0.to_owned())
    }
}

/// A time limit: seconds, and nanoseconds below one second; not zero.
#[derive(Serialize, Deserialize)]
struct Timeout {
    seconds: u64,
    nanoseconds: u32,
}

impl<'a> Twin<'a> for Timeout {
    type Value = Duration;

    fn of(value: &'a Duration) -> Result<Self, WireError> {
        let (seconds, nanoseconds) = (value.as_secs(), value.subsec_nanos());
        if value.is_zero() {
            return Err(Problem::Timeout.into());
        }
        Ok(Self { seconds, nanoseconds })
    }

    fn read(self, _: &mut Names) -> Result<Duration, WireError> {
        let within_a_second = self.nanoseconds < 1_000_000_000;
        if !within_a_second || (self.seconds, self.nanoseconds) == (0, 0) {
            return Err(Problem::Timeout.into());
        }
        Ok(Duration::new(self.seconds, self.nanoseconds))
    }
}
