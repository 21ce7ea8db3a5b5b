//! Who this site is, and how it knows the others.
//!
//! A site has a key pair, made when its agent first starts. The public key is its identity: agents
//! recognise each other by it, over TLS in which both prove that they have the private one (`tls`). There are no
//! certificates to issue or to renew.
//!
//! An operator who has a PKI can use that: `pki` is such a site's end of connections, `authority` says which
//! certificates count, `voucher` is what ties the key of a site to its certificate, `introduced` keeps what was learned by
//! that. `followed` reads files again when they change, for those and for the certificate of the API.
//!
//! Each record is signed by the site that made it, in batches (`seal`): `sealer` does that for this site,
//! `inspect` looks at what others bring, `signers` says whose key counts for what.
//!
//! What must stay true:
//! - the private key never leaves its file and this process, and nobody else may read that file;
//! - a connection belongs to the site whose key was proved on it, whatever is said on it;
//! - a record counts as the word of a site if it is signed with that site's key, whoever brings it;
//! - a key that is not known is refused before anything else is read from it, but for a token or a
//!   statement: those are believed for what is in them, whoever brings them.

pub mod authority;
pub mod certificate;
pub(crate) mod followed;
mod identity;
mod inspect;
mod introduced;
pub mod kept;
pub mod ledger;
mod members;
pub mod people;
pub mod pki;
pub(crate) mod roots;
pub mod seal;
mod sealer;
pub mod sessions;
mod signers;
pub(crate) mod tls;
pub mod token;
mod voucher;
pub mod word;

pub use self::{
    identity::{FILE, Identity, IdentityError},
    inspect::{Doubt, Inspector},
    ledger::{Ledger, LedgerError},
    members::{Members, Own},
    sealer::Sealer,
    signers::Signers,
    tls::{Arrived, Expected, Known, Reached, Tls},
    voucher::Voucher,
};
