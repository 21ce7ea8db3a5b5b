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
    /// For how long it is good: `2h`, `7d`; `10m` without this, a week at most
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
        let [token, expires, site, address] =
            [&self.token, &self.expires, &self.site, &self.address].map(|text| clean(text));
        format!(
            "{token}\n\nAt the site that is to join, before {expires}:\n  cheops join {token}\nIt will ask `{site}` at {address}.\n"
        )
    }

    fn names(&self) -> Vec<String> {
        vec![self.token.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_token_and_nothing_else() {
        let made = TokenMade {
            token: "cheops-join-abc".to_owned(),
            site: "site1\u{1b}[2J".to_owned(),
            address: "10.0.0.1:8078\nhint: no".to_owned(),
            expires: "2026-01-31T12:00:00Z".to_owned(),
        };
        let text = made.text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], made.token);
        assert_eq!(lines[3], "  cheops join cheops-join-abc");
        assert_eq!(lines.len(), 5);
        assert!(!text.contains('\u{1b}'));
    }
}
