//! `cheops access`: who may do what.

use cheops_agent::{
    api::model::{AccessGrant, AccessList, AccessMade, AccessRequest},
    trust::people::Rights,
};
use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use serde::Serialize;

use super::{Context, List, Outcome, View};
use crate::{
    client::{Ask, Path},
    report::{Failure, clean},
    table::{Cell, Table},
    words::{self, NONE},
};

/// Make tokens for people and programs, list them, and take them back
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Make a token, and print it once
    ///
    /// A viewer looks at everything. An operator asks for operations, too: those on the resources, of the
    /// kinds and at the sites that are named, or all. An admin may do everything.
    Create(Create),
    /// List the tokens, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Take a token back, for good
    Revoke(Revoke),
}

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Look at everything
    Viewer,
    /// Ask for operations, too
    Operator,
    /// Everything
    Admin,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Whom it is for; it stands as the author of what is asked for with it
    #[arg(value_name = "NAME")]
    name: String,
    /// What it allows
    #[arg(long, value_enum)]
    role: Role,
    /// An operator's resources, by a pattern: `web-*`; may be given more than once
    #[arg(long = "resource", value_name = "PATTERN")]
    resources: Vec<String>,
    /// The kinds of an operator's operations; may be given more than once
    #[arg(long = "kind", value_name = "PATTERN")]
    kinds: Vec<String>,
    /// An operator's sites: all sites of a resource have to be among them; may be given more than once
    #[arg(long = "site", value_name = "PATTERN")]
    sites: Vec<String>,
    /// For how long it is good: `12h`, `30d`; 30 days without this, and at most 366
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The name of the token, or its id
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let client = context.client()?;
    let path = Path::api("access");
    let text = match arguments {
        Arguments::Create(create) => {
            let made: AccessMade = client.post(&path, &request(create))?;
            context.output.write(&Made(made))?
        }
        Arguments::List => {
            let AccessList { tokens } = client.get(&path)?;
            context.output.write(&Listed { tokens })?
        }
        Arguments::Revoke(Revoke { name }) => {
            let path = path.then(name);
            let AccessList { tokens } = client.ask(Ask::new(Method::DELETE, &path))?;
            context.output.write(&Revoked { tokens })?
        }
    };
    Ok(Outcome::success(text))
}

fn request(create: &Create) -> AccessRequest {
    AccessRequest {
        name: create.name.clone(),
        role: match create.role {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
        .to_owned(),
        resources: create.resources.clone(),
        kinds: create.kinds.clone(),
        sites: create.sites.clone(),
        ttl: create.ttl.clone(),
    }
}

/// What a token allows, in words.
fn reach(rights: &Rights) -> String {
    let lists =
        [("resources", &rights.resources), ("kinds", &rights.kinds), ("sites", &rights.sites)];
    let given = lists.into_iter().filter(|(_, patterns)| !patterns.is_empty());
    let given: Vec<String> =
        given.map(|(what, patterns)| format!("{what} {}", patterns.join(", "))).collect();
    match (rights.role.as_str(), given.is_empty()) {
        ("operator", false) => given.join("; "),
        ("operator", true) => "all operations".to_owned(),
        _ => NONE.to_owned(),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Made(AccessMade);

impl View for Made {
    fn text(&self, _wide: bool) -> String {
        let AccessMade { token, about } = &self.0;
        let AccessGrant { name, rights, expires, .. } = about;
        let about = clean(&format!("{name} has the role {} until {expires}.", rights.role));
        format!(
            "{}\n\n{about} This is shown once. Keep it in a file that nobody else can\nread, and use it \
             with --token-file FILE, or in CHEOPS_TOKEN.\n",
            clean(token)
        )
    }

    fn names(&self) -> Vec<String> {
        vec![format!("token/{}", self.0.about.name)]
    }
}

#[derive(Debug, Serialize)]
struct Listed {
    tokens: Vec<AccessGrant>,
}

impl List for Listed {
    type Item = AccessGrant;

    fn items(&self) -> &[AccessGrant] {
        &self.tokens
    }

    fn name(token: &AccessGrant) -> String {
        format!("token/{}", token.name)
    }

    fn table(&self, _wide: bool) -> Table {
        let mut table = Table::new(["NAME", "ID", "ROLE", "MAY", "STATE", "MADE", "EXPIRES"]);
        for token in &self.tokens {
            let style = if token.state == "valid" { words::GOOD } else { words::BAD };
            table.row(vec![
                Cell::from(&token.name),
                token.id.as_str().into(),
                token.rights.role.as_str().into(),
                reach(&token.rights).as_str().into(),
                Cell::styled(&token.state, style),
                words::ago(&token.issued).as_str().into(),
                token.expires.as_str().into(),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        "There are no tokens. Make one: cheops access create NAME --role viewer".to_owned()
    }
}

#[derive(Debug, Serialize)]
struct Revoked {
    tokens: Vec<AccessGrant>,
}

impl View for Revoked {
    fn text(&self, _wide: bool) -> String {
        let line = |token: &AccessGrant| {
            clean(&format!("the token of {} ({}) is revoked", token.name, token.id)) + "\n"
        };
        self.tokens.iter().map(line).collect()
    }

    fn names(&self) -> Vec<String> {
        self.tokens.iter().map(Listed::name).collect()
    }
}
