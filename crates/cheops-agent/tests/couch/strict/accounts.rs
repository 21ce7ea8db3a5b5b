//! Who may do what at a server.
//!
//! - CouchDB 3 has no server without an admin, so every request needs a name and a password.
//! - **Lockout.** Five failed logins lock a user for an address (403), even with the right password: a password that
//!   is tried again and again must not be guessed. All clients of the stand-in have one address.
//! - **Server admins.** To make and delete databases, to purge and to make jobs takes a server admin. An admin of a
//!   database gets 401 for it, as someone with a wrong password does, but with another reason.

use std::collections::BTreeMap;

use super::http::{Request, Response};

/// How many failed logins lock a user.
const THRESHOLD: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    DatabaseAdmin,
    ServerAdmin,
}

/// A user and a password.
pub(crate) type Login = (&'static str, &'static str);
pub(crate) const SERVER_ADMIN: Login = ("root", "relax");
pub(crate) const DATABASE_ADMIN: Login = ("keeper", "couch");

/// The users, and how often each has failed to log in.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    failed: BTreeMap<String, u32>,
}

impl Accounts {
    /// The role of the user that sent a request, or the refusal.
    pub(super) fn role(&mut self, request: &Request) -> Result<Role, Response> {
        let Some((user, password)) = request.authorization.as_deref().and_then(login) else {
            return Err(Response::refusal(401, "unauthorized", "Authentication required."));
        };
        if self.failed.get(&user).is_some_and(|failed| *failed >= THRESHOLD) {
            let reason = "Account is temporarily locked due to multiple authentication failures";
            return Err(Response::refusal(403, "forbidden", reason));
        }
        let is = |known: Login| (user.as_str(), password.as_str()) == known;
        if is(SERVER_ADMIN) {
            return Ok(Role::ServerAdmin);
        }
        if is(DATABASE_ADMIN) {
            return Ok(Role::DatabaseAdmin);
        }
        *self.failed.entry(user).or_default() += 1;
        Err(Response::refusal(401, "unauthorized", "Name or password is incorrect."))
    }

    /// Locks a user, as that many failed logins do.
    pub(super) fn lock(&mut self, user: &str) {
        self.failed.insert(user.to_owned(), THRESHOLD);
    }

    /// Lets all users in again, as time does.
    pub(super) fn unlock(&mut self) {
        self.failed.clear();
    }
}

/// The name and the password of a header.
fn login(header: &str) -> Option<(String, String)> {
    let text = String::from_utf8(from_base64(header.strip_prefix("Basic ")?)?).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Reads base64: not every crate that shares this file depends on the one for that.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = DIGITS.iter().position(|digit| *digit == byte)?;
        bits = (bits << 6 | u32::try_from(digit).ok()?) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// The refusal of what only a server admin may do.
pub(super) fn not_admin() -> Response {
    Response::refusal(401, "unauthorized", "You are not a server admin.")
}

/// Whether it takes a server admin to do that: by method, and the parts of the path.
pub(super) fn needs_admin(method: &str, parts: &[&str]) -> bool {
    match parts {
        [_] => matches!(method, "PUT" | "DELETE"),
        ["_replicator", ..] | [_, "_purge"] => true,
        _ => false,
    }
}
