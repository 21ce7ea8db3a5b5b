//! What several verbs take from the command line in the same way: ids, places, lengths of time.
//!
//! What must stay true: a word that can't be right is refused here, before an agent is asked.

use std::{env, time::Duration};

use cheops_core::{
    duration,
    id::{Author, ResourceId},
    scope,
};

use crate::{client::Path, report::Failure};

/// What `-o name` puts before the id of a resource, which holds no slash.
const KINDS: [&str; 2] = ["resource/", "replicant/"];

/// The id of a resource, as it is or as `-o name` writes it.
pub(crate) fn resource(text: &str) -> Result<ResourceId, Failure> {
    let id = KINDS.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
    id.parse().map_err(|error| {
        Failure::input("invalid id of a resource").at(text, 0..text.len()).caused_by(error)
    })
}

/// The path of a resource in the API.
pub(crate) fn resource_path(id: &ResourceId) -> Path {
    Path::api("resources").then(id.as_str())
}

/// A place of the scope language.
pub(crate) fn place(text: &str) -> Result<(), Failure> {
    let place = scope::parse_place(text).and_then(|place| scope::check(&place));
    place.map_err(|error| {
        Failure::input("invalid sites")
            .at(text, error.span.range())
            .caused_by(&error)
            .hint(error.hint())
    })
}

/// A length of time.
pub(crate) fn duration(option: &str, text: &str) -> Result<Duration, Failure> {
    duration::parse(text).map_err(|error| {
        Failure::input(format!("invalid duration for `{option}`"))
            .at(text, error.at.clone())
            .caused_by(&error)
            .hint(duration::HINT)
    })
}

/// Who asks: as the command line says, or the environment, or the system.
pub(crate) fn author(option: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(text) = option {
        let author: Author = text.parse().map_err(|error| {
            Failure::input("invalid author").at(text, 0..text.len()).caused_by(error)
        })?;
        return Ok(Some(author.to_string()));
    }
    let names = ["CHEOPS_AUTHOR", "USER", "LOGNAME"];
    let values = names.into_iter().filter_map(|name| env::var(name).ok());
    Ok(values
        .filter_map(|name| name.parse::<Author>().ok())
        .map(|author| author.to_string())
        .next())
}
