//! The HTTP API of an agent.

pub mod model;
