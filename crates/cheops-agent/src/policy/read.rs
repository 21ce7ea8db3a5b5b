//! `[policy]` of a site's configuration, made into a [`Policy`].
//!
//! What must stay true: what can't be meant is an error that says what to write; nothing that is
//! misspelt is left out.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use cheops_core::duration;
use serde::Deserialize;

use super::{
    Argument, Commands, DEFAULT, Decision, Environment, EnvironmentSection, Landlock, Limits,
    Paths, Policy, Program, Rule, Terms,
};
use crate::hooks::Pattern;

/// The setting that lets anyone run any shell command.
pub const LINE: &str = "allow_any_shell_command";
/// What stands for any further arguments.
const MORE: &str = "...";
/// How many rules a policy may have.
const MOST_RULES: usize = 1_000;
/// With less address space no program starts.
const LEAST_MEMORY: u64 = 16 << 20;

/// `[policy]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySection {
    allow_any_shell_command: Option<bool>,
    #[serde(default)]
    landlock: Landlock,
    #[serde(default, rename = "rule")]
    rules: Vec<RuleSection>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSection {
    name: String,
    decision: Option<DecisionWord>,
    #[serde(default)]
    authors: Vec<String>,
    #[serde(default)]
    origins: Vec<String>,
    #[serde(default)]
    kinds: Vec<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    services: Vec<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    allow_any_shell_command: Option<bool>,
    #[serde(default)]
    commands: Vec<ProgramSection>,
    user: Option<String>,
    environment: Option<EnvironmentSection>,
    #[serde(default)]
    limits: LimitsSection,
    landlock: Option<PathsSection>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DecisionWord {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramSection {
    program: String,
    #[serde(default)]
    arguments: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    cpu: Option<String>,
    memory: Option<u64>,
    processes: Option<u64>,
    file_size: Option<u64>,
    open_files: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathsSection {
    #[serde(default)]
    read: Vec<PathBuf>,
    #[serde(default)]
    write: Vec<PathBuf>,
}

impl Policy {
    /// What a section says; paths are relative to a directory.
    pub fn read(section: PolicySection, beside: &Path) -> Result<Self, String> {
        let PolicySection { allow_any_shell_command, landlock, rules } = section;
        if rules.len() > MOST_RULES {
            return Err(format!("the policy has more than {MOST_RULES} rules"));
        }
        let mut names = BTreeSet::new();
        let mut read = Vec::new();
        for section in rules {
            let name = section.name.clone();
            let wrong = |why: String| format!("the rule `{name}` of the policy: {why}");
            let is_name = !name.trim().is_empty()
                && name.len() <= 100
                && !name.contains(|c: char| c.is_control() || c == '`');
            if !is_name || [DEFAULT, LINE].contains(&name.as_str()) {
                return Err(wrong(format!(
                    "it needs a name of its own, up to 100 letters on one line, and not `{DEFAULT}` or `{LINE}`"
                )));
            }
            if !names.insert(name.clone()) {
                return Err(wrong("it is there twice; give each rule its own name".to_owned()));
            }
            read.push(rule(section, beside).map_err(wrong)?);
        }
        Ok(Self { any_shell: allow_any_shell_command, rules: read, landlock })
    }
}

fn rule(section: RuleSection, beside: &Path) -> Result<Rule, String> {
    let decision = match section.decision {
        Some(DecisionWord::Allow) => Decision::Allow,
        Some(DecisionWord::Deny) => Decision::Deny,
        None => return Err("write decision = 'allow' or decision = 'deny'".to_owned()),
    };
    let any_shell = section.allow_any_shell_command == Some(true);
    let commands = match (any_shell, section.commands.is_empty()) {
        (true, false) => {
            return Err(format!("`{LINE}` and `commands` are two things; write one of them"));
        }
        (true, true) => Commands::AnyShell,
        (false, true) => Commands::None,
        (false, false) => {
            let read = section.commands.iter().map(program).collect::<Result<_, _>>()?;
            Commands::These(read)
        }
    };
    let services = patterns(&section.services);
    if decision == Decision::Deny && commands != Commands::None {
        return Err(
            "a rule that denies can't name commands, since there is always a way around it (`sh -c …`); allow those that you want, and the rest is denied".to_owned(),
        );
    }
    if decision == Decision::Allow && commands == Commands::None && services.is_empty() {
        return Err(format!(
            "it does not say what it allows: name `commands`, `services`, or {LINE} = true"
        ));
    }
    if services.is_empty() && !(section.methods.is_empty() && section.paths.is_empty()) {
        return Err("`methods` and `paths` go with `services`; for all of them: ['*']".to_owned());
    }
    let is_method = |method: &String| method.bytes().all(|b| b.is_ascii_uppercase());
    if let Some(method) = section.methods.iter().find(|method| !is_method(method)) {
        return Err(format!("`{method}` is no method; they are written like GET"));
    }
    if let Some(path) = section.paths.iter().find(|path| !path.starts_with(['/', '*'])) {
        return Err(format!("`{path}` is no path of a request; it begins with `/`"));
    }
    let own = ["@show", "@reset", "@check"];
    let vain = |kind: &&String| {
        kind.starts_with('@') && !own.iter().any(|own| Pattern::new(kind.as_str()).matches(own))
    };
    if let Some(kind) = section.kinds.iter().find(vain) {
        return Err(format!("no command is called `{kind}`; there are @show, @reset and @check"));
    }
    let terms = Terms {
        user: section.user,
        environment: section.environment.map(Environment::read).transpose()?,
        limits: limits(&section.limits)?,
        paths: section.landlock.map(|section| paths(section, beside)).transpose()?,
    };
    if terms != Terms::default() && commands == Commands::None {
        return Err(
            "`user`, `environment`, `limits` and `landlock` are for commands, and it allows none"
                .to_owned(),
        );
    }
    Ok(Rule {
        name: section.name,
        decision,
        authors: patterns(&section.authors),
        origins: patterns(&section.origins),
        kinds: patterns(&section.kinds),
        resources: patterns(&section.resources),
        commands,
        services,
        methods: section.methods,
        paths: patterns(&section.paths),
        terms,
    })
}

fn patterns(texts: &[String]) -> Vec<Pattern> {
    texts.iter().map(Pattern::new).collect()
}

fn program(section: &ProgramSection) -> Result<Program, String> {
    let ProgramSection { program, arguments } = section;
    let relative = program.contains('/') && !program.starts_with('/');
    if program.is_empty() || program.contains(['*', '\0']) || relative {
        return Err(format!(
            "`{program}` is no program: write its whole path, or a name that is found in PATH"
        ));
    }
    let more = arguments.last().is_some_and(|last| last == MORE);
    let named = &arguments[..arguments.len() - usize::from(more)];
    if named.iter().any(|argument| argument == MORE) {
        return Err(format!("`{MORE}` stands for all further arguments, and comes last"));
    }
    let arguments = named.iter().map(|argument| Argument::new(argument)).collect();
    Ok(Program { program: program.clone(), arguments, more })
}

fn limits(section: &LimitsSection) -> Result<Limits, String> {
    let cpu = match &section.cpu {
        None => None,
        Some(text) => {
            let span = duration::parse(text).map_err(|error| format!("`limits.cpu`: {error}"))?;
            Some(span.as_secs())
        }
    };
    let limits = Limits {
        cpu,
        memory: section.memory,
        processes: section.processes,
        file_size: section.file_size,
        open_files: section.open_files,
    };
    if cpu == Some(0) {
        return Err("`limits.cpu` must be at least 1s".to_owned());
    }
    if limits.memory.is_some_and(|memory| memory < LEAST_MEMORY) {
        return Err(format!(
            "`limits.memory` must be at least {LEAST_MEMORY} bytes, or no program would start"
        ));
    }
    if limits.processes == Some(0) {
        return Err("`limits.processes` must be at least 1".to_owned());
    }
    if limits.open_files.is_some_and(|files| files < 8) {
        return Err("`limits.open_files` must be at least 8, or no program would start".to_owned());
    }
    Ok(limits)
}

fn paths(section: PathsSection, beside: &Path) -> Result<Paths, String> {
    let PathsSection { read, write } = section;
    if read.is_empty() && write.is_empty() {
        return Err(
            "`landlock` names no path, so that no program could start; at least /usr and /lib are needed to read".to_owned(),
        );
    }
    let place = |paths: Vec<PathBuf>| paths.iter().map(|path| beside.join(path)).collect();
    Ok(Paths { read: place(read), write: place(write) })
}
