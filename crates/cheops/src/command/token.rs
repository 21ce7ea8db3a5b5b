//! `cheops token`: what lets another site join.

use cheops_agent::api::model::{TokenMade, TokenWanted};
use clap::{Args, Subcommand};

use super::{Context, Outcome, View, ask};
use crate::{
    client::Path,
    report::{Failure, clean},
};

/// Make tokens by which other sites join
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Make a token: one site can join with it, once
    ///
    /// The first token begins the federation of the agent's site. A token is a secret until it is used
    /// or has expired.
    Create(Create),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// For how long it is good: `10m` without this, a week at most
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Where the newcomer reaches the agent of this site; where it listens without this
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let Arguments::Create(Create { ttl, address }) = arguments;
    if let Some(ttl) = ttl {
        ask::duration("--ttl", ttl)?;
    }
    let wanted = TokenWanted { ttl: ttl.clone(), address: address.clone() };
    let path = Path::api("federation").then("tokens");
    let made: TokenMade = context.client()?.post(&path, &wanted)?;
    Ok(Outcome::success(context.output.write(&made)?))
}

impl View for TokenMade {
    fn text(&self, _wide: bool) -> String {
        clean(&format!(
            "{token}\n\nAt the site that is to join, before {expires}:\n  cheops join {token}\nIt will ask `{site}` at {address}.",
            token = self.token,
            expires = self.expires,
            site = self.site,
            address = self.address,
        )) + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![self.token.clone()]
    }
}
