//! The `cheops` program.
fn main() {}
