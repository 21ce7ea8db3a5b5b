//! Chephren: the web page of Cheops, served by every agent from its own program.
//!
//! It is a client of the agent's API like any other, in the same process: whatever it shows, a script can
//! have, and whatever it does, `cheops` can do. Pages are made here, as HTML; the browser fetches parts of
//! them again when the change feed says that they may have changed.
//!
//! | module | question it answers |
//! |---|---|
//! | `api` | what does the agent say? |
//! | `layout` | what do all pages have in common? |
//! | `refuse` | how is a refusal shown, and to whom? |
//! | `form` | what was filled in, and which files come with it? |
//! | `login` | who looks at the pages? |
//! | `live` | when is a part of a page out of date? |
//! | `news` | what has happened that a page was not told of yet? |
//! | `assets` | which files does the browser need besides? |
//! | `words` | how are states, times and amounts written? |
//! | `sites` | who is there, and how well do they reach each other? |
//! | `drawing` | how does that look? |
//! | `resource` | what became of each operation of a resource, at each site? |
//! | `graph` | which operation knew of which, as a drawing? |
//! | `site` | which resources does a site have? |
//! | `hooks` | how does this site tell people, and does it work? |
//! | `create` | how is a resource created? |
//! | `grid` | in which state is each resource at each site? |
//! | `problems` | what needs a person? |
//! | `scope` | where would a request go, now and during a cut? |
//! | `find` | which resources are looked for? |
//! | `fresh` | has a list changed? |
//! | `address` | how does text get into an address, or into the name of a part of a page? |
//!
//! What must stay true:
//! - text that comes from outside is shown, never run: all HTML is made by `maud`, which escapes it;
//! - a page asks nobody but the agent that it came from, and runs no script but ours
//!   (`POLICY` in `layout`);
//! - what changes something is a `POST` that comes from one of our own pages;
//! - whoever has to say who it is sees the login, and nothing else;
//! - a page says how old its knowledge is, and whom it could not ask.

mod address;
mod api;
mod assets;
mod create;
mod drawing;
mod find;
mod form;
mod fresh;
mod graph;
mod grid;
mod hooks;
mod layout;
mod live;
mod login;
mod news;
mod problems;
mod refuse;
mod resource;
mod scope;
mod site;
mod sites;
mod words;

use axum::{Router, middleware, routing::get};

use self::api::Api;

/// The pages, for the agent whose API this is. What is not theirs is the API's.
pub fn page(api: Router) -> Router {
    let asked = Api::new(api.clone());
    let lost = middleware::from_fn_with_state(asked.clone(), refuse::lost);
    let pages = Router::new()
        .merge(sites::routes())
        .merge(resource::routes())
        .merge(site::routes())
        .merge(hooks::routes())
        .merge(create::routes())
        .merge(grid::routes())
        .merge(problems::routes())
        .merge(scope::routes())
        .merge(login::routes())
        .route("/live", get(live::follow))
        .route("/assets/{name}", get(assets::get))
        .layer(middleware::from_fn_with_state(asked.clone(), refuse::show))
        .with_state(asked);
    // The API's answers hold what others wrote, too.
    pages
        .fallback_service(Router::new().fallback_service(api).layer(lost))
        .layer(middleware::map_response(layout::protect))
}
