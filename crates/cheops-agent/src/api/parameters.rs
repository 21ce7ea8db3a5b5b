//! Which query parameters each endpoint has.
//!
//! A parameter that an endpoint does not know is a mistake that would go unnoticed: a misspelt filter shows everything.
//! So each endpoint rejects it. What must stay true: the parameters that are accepted are those of `/openapi.json`, since
//! they are read from it.

use std::collections::HashMap;

use axum::{
    extract::MatchedPath,
    http::{Extensions, Method, Uri},
};
use percent_encoding::percent_decode_str;
use utoipa::openapi::{
    OpenApi, RefOr,
    path::{Operation, ParameterIn},
};

use super::error::{ApiError, ApiResult};

/// How many characters of a name are repeated in an error.
const SHOWN: usize = 64;

/// The query parameters of each endpoint, by path and method.
#[derive(Debug)]
pub(super) struct Parameters(HashMap<(String, Method), Vec<String>>);

impl Parameters {
    /// Those of a document, and of the document itself.
    pub(super) fn of(document: &OpenApi, own_path: &str) -> Self {
        let mut all = HashMap::from([((own_path.to_owned(), Method::GET), Vec::new())]);
        for (path, item) in &document.paths.paths {
            for (method, operation) in [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
                (Method::PATCH, &item.patch),
            ] {
                if let Some(operation) = operation {
                    all.insert((path.clone(), method), of_query(operation));
                }
            }
        }
        Self(all)
    }

    /// Checks the query of a request. Whether there is anything at its path is not decided here.
    pub(super) fn check(
        &self,
        method: &Method,
        uri: &Uri,
        extensions: &Extensions,
    ) -> ApiResult<()> {
        let Some(query) = uri.query() else { return Ok(()) };
        let Some(path) = extensions.get::<MatchedPath>() else { return Ok(()) };
        let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
        match self.0.get(&(path.as_str().to_owned(), method)) {
            Some(known) => unknown(query, known).map_or(Ok(()), |name| Err(rejected(&name, known))),
            None => Ok(()),
        }
    }
}

fn of_query(operation: &Operation) -> Vec<String> {
    let parameters =
        operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        });
    let of_query = parameters.filter(|parameter| parameter.parameter_in == ParameterIn::Query);
    of_query.map(|parameter| parameter.name.clone()).collect()
}

/// The first parameter of a query that is none of those that are known.
fn unknown(query: &str, known: &[String]) -> Option<String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let names = pairs.map(|pair| pair.split('=').next().unwrap_or_default().replace('+', " "));
    let mut names = names.map(|name| percent_decode_str(&name).decode_utf8_lossy().into_owned());
    names.find(|name| !known.contains(name))
}

fn rejected(name: &str, known: &[String]) -> ApiError {
    let mut shown: String = name.chars().take(SHOWN).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    let hint = if known.is_empty() {
        "leave it out: this endpoint has no query parameters".to_owned()
    } else {
        format!("this endpoint has the query parameters {}", known.join(", "))
    };
    ApiError::bad("bad-parameter", format!("there is no query parameter `{shown}` here"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_is_not_known_is_found() {
        let known = ["limit", "after"].map(str::to_owned);
        for (query, expected) in [
            ("", None),
            ("&&", None),
            ("limit=1&after=x", None),
            ("l%69mit=1", None),
            ("limit", None),
            ("limit=1&limt=2", Some("limt")),
            ("after=a&Limit=1", Some("Limit")),
            ("limit=1&=2", Some("")),
            ("a+b=1", Some("a b")),
            ("%ff=1", Some("\u{fffd}")),
            ("after=limt=1", None),
        ] {
            assert_eq!(unknown(query, &known).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn every_operation_documents_how_it_rejects_a_parameter() {
        let document = super::super::routes().split_for_parts().1;
        for (path, item) in &document.paths.paths {
            let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
            for operation in operations.into_iter().flatten() {
                let responses = &operation.responses.responses;
                let says = ["default", "400"].iter().any(|status| responses.contains_key(*status));
                assert!(says, "{path} does not document 400");
            }
        }
    }
}
