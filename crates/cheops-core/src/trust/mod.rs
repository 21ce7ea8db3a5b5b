//! Whom a site believes.
//!
//! A site is known by its public key, whatever it calls itself and wherever it is reached. What must
//! stay true: nothing in here makes or checks a signature; that needs secrets and time, which the core
//! does not have. What it is given was checked.

mod key;
pub mod people;
mod roster;
mod seal;

pub use self::{
    key::{KeyError, PublicKey},
    roster::{Claim, Fence, Member, Roster, Standing, Statement},
    seal::Seal,
};
