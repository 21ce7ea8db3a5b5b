//! What a policy would do with an operation, put in the words of the API.
//!
//! Pure: whoever asks brings the decision with him. What must stay true: what is said here is what would
//! happen, since it is the same decision.

use cheops_core::operation::{Action, Operation};

use super::{Asked, Denial, Environment, Kind, Permit, Step, Way};
use crate::api::model::{PolicyLimits, PolicyPaths, PolicyQuestion, PolicyStep, PolicyVerdict};

/// Who asks, if nobody is named.
pub const AUTHOR: &str = "anonymous";
/// What an operation does, if nothing is said.
pub const KIND: &str = "exec";

/// Answers a question that holds what is to be run. `common` is what commands get whose rule names no variables.
pub fn answer(
    question: &PolicyQuestion,
    common: &Environment,
    decide: impl Fn(&Asked<'_>) -> Result<Permit, Denial>,
) -> Result<PolicyVerdict, String> {
    let kind = question.kind.as_deref().unwrap_or(KIND);
    let (author, origin) = (question.author.as_deref(), question.origin.as_deref());
    let (author, kind) = match kind {
        "@show" => (author, Kind::Show),
        "@reset" => (author, Kind::Reset),
        "@check" => (author, Kind::Check),
        kind => (Some(author.unwrap_or(AUTHOR)), Kind::Operation(kind)),
    };
    let resource = question.resource.as_deref().ok_or("a resource has to be named")?;
    let files: Vec<&str> = question.files.iter().map(String::as_str).collect();
    let step = match (&question.command, &question.service) {
        (Some(line), None) => Step::Command { line, files: &files },
        (None, Some(service)) => Step::Request {
            service,
            method: question.method.as_deref().unwrap_or("GET"),
            target: question.path.as_deref().unwrap_or("/"),
        },
        (Some(_), Some(_)) => return Err("it is a command or a request, not both".to_owned()),
        (None, None) => return Err("there is no command and no service".to_owned()),
    };
    let asked = Asked { author, origin, kind, resource, share: None, step };
    Ok(verdict(&[decide(&asked)], common))
}

/// Answers for an operation that is known.
pub fn answer_operation(
    op: &Operation,
    common: &Environment,
    decide: impl Fn(&Asked<'_>) -> Result<Permit, Denial>,
) -> PolicyVerdict {
    let asked = Asked {
        author: Some(op.author.as_str()),
        origin: Some(op.id.site.as_str()),
        kind: Kind::Operation(op.kind.as_str()),
        resource: op.resource.as_str(),
        share: None,
        step: Step::Command { line: "true", files: &[] },
    };
    let mut decided = Vec::new();
    walk(asked, &op.action, &decide, &mut decided);
    verdict(&decided, common)
}

fn walk(
    asked: Asked<'_>,
    action: &Action,
    decide: &impl Fn(&Asked<'_>) -> Result<Permit, Denial>,
    decided: &mut Vec<Result<Permit, Denial>>,
) {
    match action {
        Action::Command { line, files } => {
            let files: Vec<&str> = files.iter().map(|file| &*file.name).collect();
            let step = Step::Command { line, files: &files };
            decided.push(decide(&Asked { step, ..asked }));
        }
        Action::Http(request) => {
            let (service, method) = (request.service.as_str(), &*request.method);
            let step = Step::Request { service, method, target: &request.target };
            decided.push(decide(&Asked { step, ..asked }));
        }
        Action::Steps(steps) => {
            steps.iter().for_each(|step| walk(asked, step, decide, decided));
        }
    }
}

fn verdict(decided: &[Result<Permit, Denial>], common: &Environment) -> PolicyVerdict {
    let denied = decided.iter().find_map(|decided| decided.as_ref().err());
    let (rule, why) = match (denied, decided.first()) {
        (Some(denial), _) => (denial.rule.clone(), Some(denial.why.clone())),
        (None, Some(Ok(permit))) => (permit.rule.clone(), None),
        (None, _) => (super::DEFAULT.to_owned(), None),
    };
    PolicyVerdict {
        site: String::new(),
        allowed: denied.is_none(),
        rule,
        why,
        steps: decided.iter().flatten().map(|permit| step(permit, common)).collect(),
    }
}

fn step(permit: &Permit, common: &Environment) -> PolicyStep {
    let Permit { rule, way, terms } = permit;
    let environment = match way {
        Way::Request => None,
        Way::Shell | Way::Program { .. } => Some(terms.environment.as_ref().unwrap_or(common)),
    };
    let (how, program, arguments) = match way {
        Way::Request => ("request", None, Vec::new()),
        Way::Shell => ("shell", None, Vec::new()),
        Way::Program { program, arguments } => {
            let arguments = arguments.iter().map(ToString::to_string).collect();
            ("program", Some(program.clone()), arguments)
        }
    };
    let shown = |paths: &[std::path::PathBuf]| {
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
    };
    let limits = terms.limits;
    PolicyStep {
        rule: rule.clone(),
        how: how.to_owned(),
        program,
        arguments,
        user: terms.user.clone(),
        keeps: environment.map(|environment| {
            environment.keep.iter().map(|kept| kept.as_str().to_owned()).collect()
        }),
        // Their values may be secret.
        sets: environment.iter().flat_map(|e| e.set.keys().cloned()).collect(),
        limits: PolicyLimits {
            cpu_seconds: limits.cpu,
            memory: limits.memory,
            processes: limits.processes,
            file_size: limits.file_size,
            open_files: limits.open_files,
        },
        landlock: terms
            .paths
            .as_ref()
            .map(|paths| PolicyPaths { read: shown(&paths.read), write: shown(&paths.write) }),
    }
}
