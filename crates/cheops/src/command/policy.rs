//! `cheops policy`: what may run at a site.

use std::{fmt::Write, path::PathBuf};

use cheops_agent::{
    api::model::{PolicyLimits, PolicyQuestion, PolicyStep, PolicyVerdict},
    config::Config,
    policy::{Here, question},
};
use clap::{Args, Subcommand};
use hyper::Method;
use serde::Serialize;

use super::{Context, Outcome, View};
use crate::{
    client::{Ask, Path},
    report::{Exit, Failure, clean},
    shell,
};

/// Look at what may run at a site
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Say what a site would do with an operation, by which rule, and how it would run
    ///
    /// The policy is that of the agent, or, with `--config`, the one in a file, which need not be in use
    /// yet. Nothing is run. The exit status is 1 if it would be denied.
    Test(Test),
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// The site's configuration, in TOML; without it the agent is asked
    #[arg(long, value_name = "SITE.toml")]
    config: Option<PathBuf>,
    /// With --config: as if there were other sites, though the file names none
    #[arg(long, requires = "config")]
    joined: bool,
    /// The resource
    #[arg(long, value_name = "RESOURCE")]
    id: String,
    /// An operation of the resource that the agent knows: site1:7
    #[arg(long, value_name = "SITE:NUMBER", conflicts_with_all = ["config", "command", "service"])]
    operation: Option<String>,
    /// Who asks; `anonymous` without it
    #[arg(long)]
    author: Option<String>,
    /// The site that receives it; without it rules that ask for one do not match
    #[arg(long, value_name = "SITE")]
    origin: Option<String>,
    /// The kind; `exec` without it. @show, @reset and @check are the commands of the resource itself
    #[arg(long = "type", visible_alias = "kind", value_name = "KIND")]
    kind: Option<String>,
    /// A command line
    #[arg(long, value_name = "COMMAND", required_unless_present_any = ["service", "operation"])]
    command: Option<String>,
    /// The name of a file that is attached to the command; may be given more than once
    #[arg(long = "file", value_name = "NAME")]
    files: Vec<String>,
    /// A request to this service, in place of a command
    #[arg(long, conflicts_with = "command")]
    service: Option<String>,
    /// Its method
    #[arg(long, requires = "service")]
    method: Option<String>,
    /// Its path
    #[arg(long, requires = "service")]
    path: Option<String>,
}

impl Test {
    fn question(&self) -> PolicyQuestion {
        PolicyQuestion {
            resource: Some(self.id.clone()),
            operation: self.operation.clone(),
            author: self.author.clone(),
            origin: self.origin.clone(),
            kind: self.kind.clone(),
            command: self.command.clone(),
            files: self.files.clone(),
            service: self.service.clone(),
            method: self.method.clone(),
            path: self.path.clone(),
        }
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let Arguments::Test(test) = arguments;
    let question = test.question();
    let verdict = if let Some(file) = &test.config {
        in_file(file, &question, test.joined)?
    } else {
        let path = Path::api("policy").then("test");
        context.client()?.ask(Ask::new(Method::POST, &path).json(&question)?)?
    };
    let exit = if verdict.allowed { Exit::Fine } else { Exit::Wrong };
    Ok(Outcome { text: context.output.write(&Tested(verdict))?, exit })
}

/// What the policy in a file says. What only the system of the site knows (its users, its kernel) is not
/// asked.
fn in_file(
    file: &std::path::Path,
    asked: &PolicyQuestion,
    joined: bool,
) -> Result<PolicyVerdict, Failure> {
    let config = Config::read(file).map_err(|error| {
        Failure::input(format!("invalid configuration `{}`", file.display()))
            .caused_by(error.problem)
            .hint("see docs/policy.md")
    })?;
    let Config { site, file, sites, policy, runs, .. } = config;
    let here = Here { site, file, joined: joined || !sites.is_empty() };
    let verdict = question::answer(asked, &runs.environment, |asked| policy.decide(asked, &here));
    let verdict = verdict.map_err(Failure::input)?;
    Ok(PolicyVerdict { site: here.site.to_string(), ..verdict })
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Tested(PolicyVerdict);

impl View for Tested {
    fn text(&self, _wide: bool) -> String {
        let PolicyVerdict { site, allowed, rule, why, steps } = &self.0;
        let word = if *allowed { "allowed" } else { "DENIED" };
        let mut text = format!("{word} at {} by rule `{}`\n", clean(site), clean(rule));
        if let Some(why) = why {
            let _ = writeln!(text, "{}", clean(why));
        }
        for (n, step) in steps.iter().enumerate().filter(|_| *allowed) {
            if steps.len() > 1 {
                let _ = writeln!(text, "step {} (rule `{}`)", n + 1, clean(&step.rule));
            }
            for (what, how) in lines(step) {
                let _ = writeln!(text, "  {what:<12}{}", clean(&how));
            }
        }
        text
    }

    fn names(&self) -> Vec<String> {
        vec![format!("rule/{}", self.0.rule)]
    }
}

/// How a step would run, a line for each thing that is worth one.
fn lines(step: &PolicyStep) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match step.how.as_str() {
        "program" => {
            let program = step.program.clone().unwrap_or_default();
            lines.push(("program", format!("{program} (without a shell)")));
            let words: Vec<String> = step.arguments.iter().map(|word| shell::word(word)).collect();
            if !words.is_empty() {
                lines.push(("arguments", words.join(" ")));
            }
        }
        "shell" => lines.push(("program", "the shell, with any command line".to_owned())),
        _ => {
            lines.push(("request", "sent to the application".to_owned()));
            return lines;
        }
    }
    lines.push(("user", step.user.clone().unwrap_or_else(|| "that of the agent".to_owned())));
    let kept = match &step.keeps {
        None => "all of the agent's".to_owned(),
        Some(kept) if kept.is_empty() => "none of the agent's".to_owned(),
        Some(kept) => kept.join(" "),
    };
    let set = if step.sets.is_empty() {
        String::new()
    } else {
        format!("; sets {}", step.sets.join(" "))
    };
    lines.push(("variables", kept + &set));
    let PolicyLimits { cpu_seconds, memory, processes, file_size, open_files } = step.limits;
    let limits: Vec<String> = [
        ("CPU seconds", cpu_seconds),
        ("bytes of memory", memory),
        ("processes", processes),
        ("bytes a file", file_size),
        ("open files", open_files),
    ]
    .into_iter()
    .filter_map(|(what, most)| Some(format!("{} {what}", most?)))
    .collect();
    let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
    lines.push(("limits", limits));
    if let Some(paths) = &step.landlock {
        lines.push(("reads", paths.read.join(" ")));
        lines.push(("writes", paths.write.join(" ")));
    } else {
        lines.push(("paths", "all that its user may touch".to_owned()));
    }
    lines
}
