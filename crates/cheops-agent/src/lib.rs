//! What surrounds the core at a site.
//!
//! For now that is one thing, [`wire`]: how the values of [`cheops_core`] are written, between sites
//! and on disk. The parts of the agent that own sockets, disks, clocks and processes will use it,
//! and nothing else here serialises.

pub mod wire;
