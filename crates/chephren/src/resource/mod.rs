//! A resource: its operations as every site sees them, what became of each and why, what each site holds,
//! and what can be done about it.
//!
//! | module | question it answers |
//! |---|---|
//! | `seen` | what does each site say? |
//! | `columns` | which site knows which operation, and which is missing where? |
//! | `screen` | how is that shown, and kept up to date? |
//! | `operations` | how are operations, the block and what was dropped written? |
//! | `actions` | what can be done: run, rehearse, repair, send again, delete? |
//! | `show` | what does each site hold, and where do they differ? |
//! | `words` | how are runs, fates and receipts written? |
//!
//! What must stay true: a part that is fetched again closes nothing that the reader has opened, and loses
//! nothing that was typed or answered.

mod actions;
mod columns;
mod operations;
mod screen;
mod seen;
mod show;
mod words;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};

pub(crate) use self::{
    operations::first,
    words::{run as run_word, site_of},
};
use crate::api::Api;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/resources/{id}", get(screen::screen))
        .route("/part/resources/{id}", get(screen::part))
        .route("/part/resources/{id}/operations/{operation}/output", get(operations::output))
        .route("/part/resources/{id}/operations/{operation}/command", get(operations::whole))
        .route("/resources/{id}/run", post(actions::run).layer(DefaultBodyLimit::disable()))
        .route(
            "/resources/{id}/rehearse",
            post(actions::rehearse).layer(DefaultBodyLimit::disable()),
        )
        .route("/resources/{id}/operations/{operation}/again", post(actions::again))
        .route("/resources/{id}/delete", post(actions::delete))
        .route("/resources/{id}/show", post(show::show))
}
