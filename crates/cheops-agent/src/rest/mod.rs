//! REST resources: what Cheops reads in requests and answers of the application, and writes into
//! them. All of it is pure: no I/O, no clock, and chance comes in as an argument.
//!
//! | module | question it answers |
//! |---|---|
//! | [`ids`] | what is a resource called, by a site and by Cheops? |
//! | [`rewrite`] | how does one id take the place of another, in a target, a header or a body? |
//! | [`divide`] | what is a site's part of what is divided? |
//! | [`gather`] | how do answers of several sites become one? |
//! | [`same`] | which items of several sites are one? |
//! | [`link`] | where does a link in an answer lead? |
//! | [`kinds`] | what kind of operation is a request, and how do two of them meet? |
//! | `pointer` | what is at a place in a JSON document? |
//!
//! What must stay true: whatever an application answers, nothing here fails or panics for it; what
//! is not understood passes as it came.

pub mod divide;
pub mod gather;
pub mod ids;
pub mod kinds;
pub mod link;
mod pointer;
pub mod rewrite;
pub mod same;
