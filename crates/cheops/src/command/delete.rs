//! `cheops delete`: a resource goes away, on all of its sites.

use std::cell::OnceCell;

use hyper::Method;

use super::{
    Context, Outcome, ask,
    exec::{answers::Asked, conclude, progress},
};
use crate::{client::Ask, interrupt::Interrupt, report::Failure};

/// Delete a resource on all of its sites
///
/// Deletion is an operation of the kind `delete`: what is concurrent with it meets it by the matrix.
/// The resource is forgotten once all sites have run it. One that is made of the application's own
/// requests is deleted by a DELETE to its service.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
    /// The command that removes it from the application, at each site
    #[arg(long, allow_hyphen_values = true)]
    command: Option<String>,
    /// Also what is made of the application's own requests: it is forgotten, and its copies stay
    #[arg(long)]
    force: bool,
    /// How long to wait for the replies of all sites; `0s` not at all
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    wait: String,
    /// A name for this request: the same again is the same operation
    #[arg(long)]
    key: Option<String>,
    /// Who asks; without it `CHEOPS_AUTHOR`, or the user's name
    #[arg(long)]
    author: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    let wait = ask::duration("--wait", &arguments.wait)?;
    let path = ask::resource_path(&id)
        .query("command", arguments.command.as_deref())
        .query("force", arguments.force.then_some(true))
        .query("wait", Some(&arguments.wait))
        .query("author", ask::author(arguments.author.as_deref())?)
        .query("key", arguments.key.as_deref());
    let client = context.client()?.until(Interrupt::ctrl_c()?);
    let accepted = OnceCell::new();
    let asked = Asked { id: &id, wait, keep_going: false, accepted: &accepted };
    let request = Ask::new(Method::DELETE, &path);
    conclude(progress::follow(&client, request, asked, context.output), asked)
}
