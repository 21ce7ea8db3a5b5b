//! `cheops join`: makes the agent's site one of a federation.

use std::{io, io::Read as _, time::Duration};

use cheops_agent::api::model::{Federation, Join, MemberStanding};
use clap::Args;
use hyper::Method;

use super::{Context, Outcome, View};
use crate::{
    client::{Ask, Path},
    report::{Failure, clean},
};

/// How long the site that has made the token may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much is read of a token.
const LONGEST: u64 = 4_096;

/// Make the agent's site one of a federation
///
/// The token is what `cheops token create` prints at a site that belongs to it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The token; `-` reads it, so that it is not seen in the list of processes
    // Not `token`: that is who asks, an option of all verbs.
    #[arg(value_name = "TOKEN")]
    invitation: String,
    /// Where the others reach the agent of this site; where it asks from without this
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let token = match arguments.invitation.as_str() {
        "-" => read()?,
        token => token.to_owned(),
    };
    let join = Join { token: token.trim().to_owned(), address: arguments.address.clone() };
    let path = Path::api("federation").then("join");
    let ask = Ask::new(Method::POST, &path).json(&join)?.within(PATIENCE);
    let federation: Federation = context.client()?.ask(ask)?;
    Ok(Outcome::success(context.output.write(&Joined(federation))?))
}

fn read() -> Result<String, Failure> {
    let mut text = String::new();
    let read = io::stdin().take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| Failure::input("the token can't be read").caused_by(error))?;
    Ok(text)
}

#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
struct Joined(Federation);

impl View for Joined {
    fn text(&self, _wide: bool) -> String {
        let Self(Federation { site, members, .. }) = self;
        let others: Vec<&str> = members
            .iter()
            .filter(|member| member.standing == MemberStanding::Belongs && member.site != *site)
            .map(|member| member.site.as_str())
            .collect();
        clean(&format!(
            "`{site}` has joined {}; see them with: cheops site list",
            others.join(", ")
        )) + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![format!("site/{}", self.0.site)]
    }
}
