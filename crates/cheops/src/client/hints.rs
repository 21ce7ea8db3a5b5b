//! What to do about a problem that an agent told, in the words of this program.
//!
//! An agent speaks to whoever uses its API; who uses this program is told the verb or the option
//! instead of a path. What must stay true: a hint that names no path stays as the agent put it,
//! unless it would have something made that may be there.

use cheops_agent::api::model::Problem;

use crate::shell;

/// Where the paths of resources begin.
const RESOURCES: &str = "/api/v1/resources/";

/// The hint of a problem, with a verb or an option of this program in the place of a path.
pub(super) fn hint(problem: &Problem) -> String {
    let names_a_path = ["/api/v1/", "/openapi.json"].iter().any(|path| problem.hint.contains(path));
    match problem.kind.as_str() {
        "unknown-resource" if problem.detail.contains("could not be asked") => {
            "ask again when they are linked: `cheops get sites`".to_owned()
        }
        "unknown-number" => {
            "leave --since out, or use `--since 0` for all that there is".to_owned()
        }
        "token-required" => {
            "put a token into CHEOPS_TOKEN, or name its file: --token-file FILE. Whoever looks after the \
             site makes one, at its Unix socket: `cheops --agent unix:DATA/api.sock access create`"
                .to_owned()
        }
        _ if !names_a_path => problem.hint.replace("idempotency key", "--key"),
        "unknown-site" => "see which sites are known: `cheops get sites`".to_owned(),
        "unknown-token" => "see those that there are: `cheops access list`".to_owned(),
        "unknown-hook" => "see those that there are: `cheops hooks list`".to_owned(),
        "unknown-replicant" => "see those that are known: `cheops get replicants`".to_owned(),
        "unknown-operation" => of_resource("see its operations", "get operations", &problem.hint),
        "no-output" => of_resource("see how each site is doing", "describe", &problem.hint),
        "unknown-file" | "bad-file" => {
            "send the same command again: the file is sent with it".to_owned()
        }
        "too-large" => "attach what is large as a file: --file PATH".to_owned(),
        _ => "is the agent of the same version as this program? See `cheops --version`".to_owned(),
    }
}

/// A verb for the resource that a hint names.
fn of_resource(what: &str, verb: &str, hint: &str) -> String {
    let id = hint.split_once(RESOURCES).map_or("", |(_, rest)| rest);
    let id = id.split([' ', '/', '?', '`']).next().unwrap_or_default();
    let id = if id.is_empty() { "ID".to_owned() } else { shell::last(id) };
    format!("{what}: `cheops {verb} {id}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_a_resource_is_asked_before_it_is_created() {
        let create = "create it by naming its sites: cheops exec …";
        let linked = "ask again when they are linked: `cheops get sites`";
        for (detail, expected) in [
            ("no resource `web` is known", create),
            ("no resource `web` is known; site2, site3 could not be asked", linked),
        ] {
            let problem = Problem {
                kind: "unknown-resource".into(),
                title: String::new(),
                status: 404,
                detail: detail.into(),
                hint: create.into(),
            };
            assert_eq!(hint(&problem), expected);
        }
    }

    #[test]
    fn paths_become_verbs() {
        for (kind, told, expected) in [
            ("unknown-site", "did you mean `site2`?", "did you mean `site2`?"),
            (
                "unknown-site",
                "see /api/v1/sites for the sites that are known",
                "see which sites are known: `cheops get sites`",
            ),
            (
                "unknown-operation",
                "see /api/v1/resources/~web for its operations",
                "see its operations: `cheops get operations '~web'`",
            ),
            (
                "unknown-replicant",
                "see /api/v1/replicants for those that are known here",
                "see those that are known: `cheops get replicants`",
            ),
            (
                "no-output",
                "see /api/v1/resources/web for the runs of each site",
                "see how each site is doing: `cheops describe web`",
            ),
            (
                "too-large",
                "attach what is large as a file: POST /api/v1/files, or a file part of /exec",
                "attach what is large as a file: --file PATH",
            ),
            (
                "not-confirmed",
                "send it again with the same idempotency key",
                "send it again with the same --key",
            ),
            (
                "unknown-number",
                "ask without `since`, or with since=0 for all that there is",
                "leave --since out, or use `--since 0` for all that there is",
            ),
        ] {
            let problem = Problem {
                kind: kind.into(),
                title: String::new(),
                status: 400,
                detail: String::new(),
                hint: told.into(),
            };
            assert_eq!(hint(&problem), expected);
        }
    }
}
