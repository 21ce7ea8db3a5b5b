//! The agent of a site: it owns the disk, the sockets, the clock and the child processes, and
//! carries out what the core decides.

pub mod api;
pub mod config;
pub mod engine;
pub mod files;
pub mod node;
pub mod run;
pub mod wire;
