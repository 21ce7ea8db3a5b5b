//! The agent of a site: it owns the disk, the sockets, the clock and the child processes, and
//! carries out what the core decides.

mod agent;
pub mod api;
mod arrivals;
pub mod audit;
pub mod config;
mod contended;
pub mod engine;
mod entrances;
mod expiry;
mod farewell;
pub mod federation;
pub mod files;
mod framing;
pub mod hooks;
mod hop;
pub mod limits;
pub mod mesh;
pub mod metrics;
pub mod node;
pub mod open_files;
pub mod peers;
mod pipe;
pub mod policy;
mod private;
pub mod problems;
pub mod replicants;
mod replication;
pub mod rest;
pub mod run;
pub mod shell;
mod socket;
mod standby;
pub mod trust;
pub mod wire;

pub use self::{
    agent::{Agent, StartError, copy_engine},
    entrances::SOCKET,
};
