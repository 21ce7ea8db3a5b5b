//! The policy of this site at work: with what only the system knows.
//!
//! What must stay true: what a rule asks for and this system can't give is found when the agent starts,
//! or denied.

use std::{fmt, sync::Arc};

use cheops_core::{
    id::{Author, ResourceId, SiteId},
    matrix::Share,
    operation::{Action, Operation},
};

use super::{
    Asked, Confine, Denial, Environment, Here, Kind, Landlock, Permit, Policy, Rule, Step, Way,
    confine::{User, user_here},
};
use crate::{config::Config, run::confine::has_landlock};

/// The author of what clients of the application ask for.
pub const MESH: &str = "mesh";

/// Decides what runs here. All clones are one.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    policy: Policy,
    /// The variables of commands whose rule names none.
    environment: Environment,
    here: Here,
    joined: Box<dyn Fn() -> bool + Send + Sync>,
    landlock: bool,
    root: bool,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.0.policy).finish()
    }
}

/// A command that may run, with all that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// How.
    pub way: Way,
    /// The variables, besides those about itself; nothing if it has those that all commands have.
    pub variables: Option<Vec<(String, String)>>,
    /// What the process takes upon itself.
    pub confine: Option<Confine>,
}

impl Allowed {
    /// By the shell, as the agent's user, without limits.
    pub fn shell() -> Self {
        Self { way: Way::Shell, variables: None, confine: None }
    }
}

/// Whoever put his name to a command that is not an operation, as far as that is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asker {
    /// Who asked for it, or put it into the configuration of the resource.
    pub author: Option<Author>,
    /// The site that received it.
    pub origin: Option<SiteId>,
}

/// A rule that this system can't keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule `{rule}` of the policy can't be used here: {why}")]
pub struct Unusable {
    /// The rule.
    pub rule: String,
    /// Why, and what to do.
    pub why: String,
}

impl Gate {
    /// The gate of a site. `joined` says whether there are other sites, which may ask for something.
    pub fn new(config: &Config, joined: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        // Whoever is told of it may be elsewhere.
        let file = config.file.clone().map(|file| std::path::absolute(&file).unwrap_or(file));
        Self(Arc::new(Inner {
            policy: config.policy.clone(),
            environment: config.runs.environment.clone(),
            here: Here { site: config.site.clone(), file, joined: false },
            joined: Box::new(joined),
            landlock: has_landlock(),
            root: rustix::process::geteuid().is_root(),
        }))
    }

    /// The gate of a site that has no policy and is alone.
    pub fn open(site: SiteId) -> Self {
        Self::new(&Config::new(site, ""), || false)
    }

    /// The variables of commands whose rule names none.
    pub fn environment(&self) -> &Environment {
        &self.0.environment
    }

    fn here(&self) -> Here {
        Here { joined: (self.0.joined)(), ..self.0.here.clone() }
    }

    /// Whether other sites may ask for something.
    pub fn is_joined(&self) -> bool {
        (self.0.joined)()
    }

    /// Decides about one step.
    pub fn decide(&self, asked: &Asked<'_>) -> Result<Permit, Denial> {
        let permit = self.0.policy.decide(asked, &self.here())?;
        let needs = permit.terms.paths.is_some() && !self.0.landlock;
        if needs && self.0.policy.landlock == Landlock::Required {
            let why = "it is to be kept to certain paths, and the kernel of this site has no Landlock; have one that has it, or write `landlock = 'best-effort'` under `[policy]`";
            return Err(Denial { rule: permit.rule, why: why.to_owned() });
        }
        Ok(permit)
    }

    /// Decides about all steps of an operation: how each command of it runs, in their order.
    pub fn operation(&self, op: &Operation, share: Option<Share>) -> Result<Vec<Allowed>, Denial> {
        let asked = Asked {
            author: Some(op.author.as_str()),
            origin: Some(op.id.site.as_str()),
            kind: Kind::Operation(op.kind.as_str()),
            resource: op.resource.as_str(),
            share,
            step: Step::Command { line: "true", files: &[] },
        };
        self.action(asked, &op.action)
    }

    /// The same for an action; the step of what is asked does not matter.
    pub fn action(&self, asked: Asked<'_>, action: &Action) -> Result<Vec<Allowed>, Denial> {
        let mut allowed = Vec::new();
        self.walk(asked, action, &mut allowed)?;
        Ok(allowed)
    }

    fn walk(
        &self,
        asked: Asked<'_>,
        action: &Action,
        allowed: &mut Vec<Allowed>,
    ) -> Result<(), Denial> {
        match action {
            Action::Command { line, files } => {
                let files: Vec<&str> = files.iter().map(|file| &*file.name).collect();
                let step = Step::Command { line, files: &files };
                let permit = self.decide(&Asked { step, ..asked })?;
                allowed.push(self.allow(permit)?);
            }
            Action::Http(request) => {
                let (service, method) = (request.service.as_str(), &*request.method);
                let step = Step::Request { service, method, target: &request.target };
                self.decide(&Asked { step, ..asked })?;
            }
            Action::Steps(steps) => {
                steps.iter().try_for_each(|step| self.walk(asked, step, allowed))?;
            }
        }
        Ok(())
    }

    /// Decides about a request that another site forwards to the instance here, on behalf of a client of
    /// the application. It is for no resource that is known.
    pub fn forwarded(
        &self,
        origin: &SiteId,
        (service, method, target): (&str, &str, &str),
    ) -> Result<(), Denial> {
        // What passes most of all is not asked about where there is nothing to say.
        if self.0.policy.rules.is_empty() {
            return Ok(());
        }
        let asked = Asked {
            author: Some(MESH),
            origin: Some(origin.as_str()),
            kind: Kind::Operation(&method.to_ascii_lowercase()),
            resource: "",
            share: None,
            step: Step::Request { service, method, target },
        };
        self.decide(&asked).map(drop)
    }

    /// Decides about a command that is not an operation.
    pub fn command(
        &self,
        by: &Asker,
        kind: Kind<'_>,
        resource: &ResourceId,
        line: &str,
        share: Option<Share>,
    ) -> Result<Allowed, Denial> {
        let asked = Asked {
            author: by.author.as_ref().map(Author::as_str),
            origin: by.origin.as_ref().map(SiteId::as_str),
            kind,
            resource: resource.as_str(),
            share,
            step: Step::Command { line, files: &[] },
        };
        self.allow(self.decide(&asked)?)
    }

    fn allow(&self, permit: Permit) -> Result<Allowed, Denial> {
        let Permit { rule, way, terms } = permit;
        let user = match &terms.user {
            None => None,
            Some(name) => Some(self.user(name).map_err(|why| Denial { rule: rule.clone(), why })?),
        };
        let all = std::iter::once_with(std::env::vars_os).flatten();
        let agent = all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let variables = terms.variables(&self.0.environment, agent, user.as_ref());
        let confine = terms.confines().then(|| Confine {
            rule,
            user: user.map(|user| user.identity),
            limits: terms.limits,
            paths: terms.paths,
            landlock: self.0.policy.landlock,
        });
        Ok(Allowed { way, variables, confine })
    }

    fn user(&self, name: &str) -> Result<User, String> {
        let user = user_here(name).ok_or_else(|| {
            format!("there is no user `{name}` in /etc/passwd of this site; write its numbers (UID:GID) if it comes from elsewhere")
        })?;
        let ours = rustix::process::geteuid().as_raw() == user.identity.uid;
        if !self.0.root && !ours {
            return Err(format!(
                "the agent does not run as root, and can't become `{name}`; run it as root, or as `{name}`"
            ));
        }
        Ok(user)
    }

    /// Finds a rule that can't be kept here.
    pub fn check(&self) -> Result<(), Unusable> {
        self.0.policy.rules.iter().try_for_each(|rule| {
            let failed = |why| Unusable { rule: rule.name.clone(), why };
            let user = rule.terms.user.as_deref();
            let user = user.map(|name| self.user(name)).transpose().map_err(failed)?;
            let as_root = user.map_or(self.0.root, |user| user.identity.uid == 0);
            if as_root && rule.terms.limits.processes.is_some() {
                let why = "`limits.processes` does not bind root; name a `user`";
                return Err(failed(why.to_owned()));
            }
            Ok(())
        })
    }

    /// The rules whose paths the kernel can't keep, and what becomes of their commands.
    pub fn unkept(&self) -> Option<(Vec<&str>, Landlock)> {
        let with_paths = |rule: &&Rule| rule.terms.paths.is_some() && !self.0.landlock;
        let rules = self.0.policy.rules.iter().filter(with_paths);
        let names: Vec<&str> = rules.map(|rule| rule.name.as_str()).collect();
        (!names.is_empty()).then_some((names, self.0.policy.landlock))
    }

    /// Whether commands are denied for the one reason that nobody has said anything about them.
    pub fn is_silent(&self) -> bool {
        let Policy { any_shell, rules, .. } = &self.0.policy;
        any_shell.is_none() && rules.is_empty() && self.is_joined()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn gate(text: &str, landlock: bool, root: bool) -> Gate {
        let text = format!("site = 'a'\n{text}");
        let config = Config::from_toml(&text, Path::new("/")).unwrap();
        Gate(Arc::new(Inner {
            policy: config.policy,
            environment: config.runs.environment,
            here: Here { site: config.site, file: None, joined: false },
            joined: Box::new(|| true),
            landlock,
            root,
        }))
    }

    fn rule(terms: &str) -> String {
        format!(
            "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nallow_any_shell_command = true\n{terms}\n"
        )
    }

    #[test]
    fn what_the_kernel_can_not_keep_is_denied_unless_the_policy_says_otherwise() {
        let paths = rule("landlock = { read = ['/usr'] }");
        let relaxed = format!("[policy]\nlandlock = 'best-effort'\n{paths}");
        let bare = rule("");
        for (policy, landlock, allowed, unkept) in [
            (&paths, true, true, None),
            (&paths, false, false, Some(Landlock::Required)),
            (&relaxed, true, true, None),
            (&relaxed, false, true, Some(Landlock::BestEffort)),
            (&bare, false, true, None),
        ] {
            let gate = gate(policy, landlock, false);
            let decided =
                gate.command(&Asker::default(), Kind::Show, &"x".parse().unwrap(), "true", None);
            assert_eq!(decided.is_ok(), allowed, "{policy} {landlock}");
            if let Err(denial) = decided {
                assert!(denial.to_string().starts_with("denied by rule `r`"), "{denial}");
                assert!(denial.why.contains("no Landlock"), "{denial}");
            }
            let found = gate.unkept();
            assert_eq!(found, unkept.map(|level| (vec!["r"], level)), "{policy} {landlock}");
        }
    }

    #[test]
    fn what_this_system_can_not_give_is_found_at_the_start() {
        for (terms, root, expected) in [
            ("", false, None),
            ("user = 'no such user'", true, Some("there is no user")),
            ("user = '54321:54321'", true, None),
            ("user = '54321:54321'", false, Some("does not run as root")),
            ("limits = { processes = 5 }", true, Some("does not bind root")),
            ("limits = { processes = 5 }", false, None),
            ("user = '0:0'\nlimits = { processes = 5 }", true, Some("does not bind root")),
            ("user = '54321:54321'\nlimits = { processes = 5 }", true, None),
        ] {
            let checked = gate(&rule(terms), true, root).check();
            match expected {
                None => assert_eq!(checked, Ok(()), "{terms} {root}"),
                Some(why) => {
                    let error = checked.unwrap_err().to_string();
                    assert!(error.contains(why), "{terms} {root}: {error}");
                }
            }
        }
    }
}
