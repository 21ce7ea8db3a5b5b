//! The twins of what an operation does.
//!
//! An action can hold actions, and readers of such things recurse. So an action is written flat:
//! the list of its parts, each before what it holds, and steps only as their number. Nothing
//! recurses over bytes; what is built from the list is limited in depth.

use core::iter::Enumerate;

use cheops_core::{
    id::ServiceName,
    operation::{self, HttpBody, HttpRequest},
};
use serde::{Deserialize, Serialize};

use super::{Names, Problem, Twin, WireError, error::At, list::List, names::Text};

/// How deep steps can stand in each other.
pub const MAX_DEPTH: usize = 8;

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Action<'a>(#[serde(borrow)] List<Part<'a>>);

#[derive(Serialize, Deserialize)]
enum Part<'a> {
    #[serde(borrow)]
    Command(Command<'a>),
    #[serde(borrow)]
    Http(Box<Http<'a>>),
    /// So many of the actions that follow belong to it.
    Steps(usize),
    /// What [`Http`] has no words for.
    #[serde(borrow)]
    Request(Box<Request<'a>>),
}

#[derive(Serialize, Deserialize)]
struct Command<'a> {
    line: &'a str,
    #[serde(borrow)]
    files: List<Attachment<'a>>,
}

/// A request whose body is a file, if it has one, and that is the same everywhere.
#[derive(Serialize, Deserialize)]
struct Http<'a> {
    #[serde(borrow)]
    service: Text<'a, ServiceName>,
    method: &'a str,
    target: &'a str,
    #[serde(borrow)]
    headers: List<(&'a str, &'a str)>,
    #[serde(borrow)]
    body: Option<Attachment<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    service: Text<'a, ServiceName>,
    method: &'a str,
    target: &'a str,
    #[serde(borrow)]
    headers: List<(&'a str, &'a str)>,
    #[serde(borrow)]
    body: Body<'a>,
    #[serde(borrow)]
    names: Named<'a>,
}

/// The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Body<'a> {
    None,
    #[serde(borrow)]
    Inline(&'a [u8]),
    #[serde(borrow)]
    File(Attachment<'a>),
}

/// Which ids differ from site to site. The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Named<'a> {
    Nothing,
    Makes(&'a str),
    Uses(&'a str),
}

#[derive(Serialize, Deserialize)]
struct Attachment<'a> {
    name: &'a str,
    content: [u8; 32],
    length: u64,
}

impl<'a> Twin<'a> for Action<'a> {
    type Value = operation::Action;

    fn of(value: &'a operation::Action) -> Result<Self, WireError> {
        let mut parts = Vec::with_capacity(1);
        flatten(value, 0, &mut parts)?;
        Ok(Self(List::new(parts)?))
    }

    fn read(self, names: &mut Names) -> Result<operation::Action, WireError> {
        let mut parts = self.0.items()?.into_iter().enumerate();
        let action = build(&mut parts, 0, names)?;
        match parts.next() {
            None => Ok(action),
            Some((n, _)) => Err(Problem::StepsLeft).at_item(n),
        }
    }
}

fn flatten<'a>(
    action: &'a operation::Action,
    depth: usize,
    parts: &mut Vec<Part<'a>>,
) -> Result<(), WireError> {
    let here = parts.len();
    match action {
        operation::Action::Command { line, files } => {
            let files = List::of(files).at("files").at_item(here)?;
            parts.push(Part::Command(Command { line, files }));
        }
        operation::Action::Http(request) => {
            parts.push(match Http::of(request).at_item(here)? {
                Some(http) => Part::Http(Box::new(http)),
                None => Part::Request(Box::new(Request::of(request).at_item(here)?)),
            });
        }
        operation::Action::Steps(_) if depth == MAX_DEPTH => {
            return Err(Problem::TooDeep).at_item(here);
        }
        operation::Action::Steps(steps) => {
            parts.push(Part::Steps(steps.len()));
            for step in steps {
                flatten(step, depth + 1, parts)?;
            }
        }
    }
    Ok(())
}

/// The action that begins with the next part.
fn build<'a>(
    parts: &mut Enumerate<impl Iterator<Item = Part<'a>>>,
    depth: usize,
    names: &mut Names,
) -> Result<operation::Action, WireError> {
    let Some((n, part)) = parts.next() else { return Err(Problem::StepMissing.into()) };
    Ok(match part {
        Part::Command(Command { line, files }) => operation::Action::Command {
            line: line.into(),
            files: files.read(names).at("files").at_item(n)?,
        },
        Part::Http(http) => operation::Action::Http(Box::new(http.read(names).at_item(n)?)),
        Part::Request(request) => {
            operation::Action::Http(Box::new(request.read(names).at_item(n)?))
        }
        Part::Steps(_) if depth == MAX_DEPTH => return Err(Problem::TooDeep).at_item(n),
        // The number is only claimed; what is not there ends it.
        Part::Steps(count) => operation::Action::Steps(
            (0..count).map(|_| build(parts, depth + 1, names)).collect::<Result<_, _>>()?,
        ),
    })
}

impl<'a> Http<'a> {
    /// Nothing, if it takes a [`Request`] to say it.
    fn of(value: &'a HttpRequest) -> Result<Option<Self>, WireError> {
        let body = match (&value.body, &value.names) {
            (HttpBody::None, operation::Names::Nothing) => None,
            (HttpBody::File(file), operation::Names::Nothing) => Some(Attachment::of(file)?),
            _ => return Ok(None),
        };
        Ok(Some(Self {
            service: Text::of(&value.service)?,
            method: &value.method,
            target: &value.target,
            headers: List::of(&value.headers).at("headers")?,
            body,
        }))
    }

    fn read(self, names: &mut Names) -> Result<HttpRequest, WireError> {
        Ok(HttpRequest {
            service: self.service.read(names).at("service")?,
            method: self.method.into(),
            target: self.target.into(),
            headers: self.headers.read(names).at("headers")?,
            body: self.body.read(names)?.map_or(HttpBody::None, HttpBody::File),
            names: operation::Names::Nothing,
        })
    }
}

impl<'a> Twin<'a> for Request<'a> {
    type Value = HttpRequest;

    fn of(value: &'a HttpRequest) -> Result<Self, WireError> {
        Ok(Self {
            service: Text::of(&value.service)?,
            method: &value.method,
            target: &value.target,
            headers: List::of(&value.headers).at("headers")?,
            body: match &value.body {
                HttpBody::None => Body::None,
                HttpBody::Inline(bytes) => Body::Inline(bytes),
                HttpBody::File(file) => Body::File(Attachment::of(file)?),
            },
            names: match &value.names {
                operation::Names::Nothing => Named::Nothing,
                operation::Names::Makes(meta) => Named::Makes(meta),
                operation::Names::Uses(meta) => Named::Uses(meta),
            },
        })
    }

    fn read(self, names: &mut Names) -> Result<HttpRequest, WireError> {
        Ok(HttpRequest {
            service: self.service.read(names).at("service")?,
            method: self.method.into(),
            target: self.target.into(),
            headers: self.headers.read(names).at("headers")?,
            body: match self.body {
                Body::None => HttpBody::None,
                Body::Inline(bytes) => HttpBody::Inline(bytes.into()),
                Body::File(file) => HttpBody::File(file.read(names)?),
            },
            names: match self.names {
                Named::Nothing => operation::Names::Nothing,
                Named::Makes(meta) => operation::Names::Makes(meta.into()),
                Named::Uses(meta) => operation::Names::Uses(meta.into()),
            },
        })
    }
}

impl<'a> Twin<'a> for Attachment<'a> {
    type Value = operation::Attachment;

    fn of(value: &'a operation::Attachment) -> Result<Self, WireError> {
        Ok(Self { name: &value.name, content: value.content, length: value.length })
    }

    fn read(self, _: &mut Names) -> Result<operation::Attachment, WireError> {
        let Self { name, content, length } = self;
        Ok(operation::Attachment { name: name.into(), content, length })
    }
}
