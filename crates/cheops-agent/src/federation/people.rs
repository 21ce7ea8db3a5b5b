//! Who may do what: what is to be done so that this site and the others know the same about that.
//!
//! What must stay true:
//! - what was taken back elsewhere is taken back here before anything else is done;
//! - a token that was taken back is never taken in, not for a moment;
//! - what can't be written down keeps nothing else from being done.

use std::collections::BTreeMap;

use cheops_core::{
    time::Millis,
    trust::{
        Claim,
        people::{Digest, Grant, Invalid, People},
    },
};

use super::FederationError;
use crate::trust::people::Grants;

/// What is to be done, in this order.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Tokens that others have taken back, and that still count here.
    revoke: Vec<(Digest, Millis)>,
    /// What the others do not know yet: first what was taken back.
    say: Vec<Claim>,
    /// What this site does not know yet.
    grant: Vec<Grant>,
}

impl Plan {
    /// From what this site knows, with when each was taken back, and what all have said.
    fn of(known: &[(Grant, Option<Millis>)], said: &People, now: Millis) -> Self {
        let mut plan = Self::default();
        let mut news = Vec::new();
        for (grant, revoked) in known {
            match (said.find(&grant.digest, now), *revoked) {
                (Ok(_), Some(at)) => plan.say.push(Claim::Revoke { digest: grant.digest, at }),
                (Err(Invalid::Unknown), None) if grant.holds_at(now) => {
                    news.push(Claim::Grant(Box::new(grant.clone())));
                }
                _ => {}
            }
        }
        plan.say.append(&mut news);
        let here: BTreeMap<&Digest, bool> = known
            .iter()
            .map(|(grant, revoked)| (&grant.digest, revoked.is_none() && grant.holds_at(now)))
            .collect();
        for (digest, at) in said.revoked() {
            if here.get(digest) == Some(&true) {
                plan.revoke.push((*digest, at));
            }
        }
        let counts = said.all().map(|(grant, _)| grant);
        let counts = counts.filter(|grant| said.find(&grant.digest, now).is_ok());
        plan.grant = counts.filter(|grant| !here.contains_key(&grant.digest)).cloned().collect();
        plan
    }
}

/// Brings together what this site knows and what all have said. Of what can't be done, the first is told.
pub(super) async fn share(
    grants: &dyn Grants,
    said: &People,
    now: Millis,
    say: impl Fn(Claim) -> Result<(), FederationError>,
) -> Result<(), FederationError> {
    let plan = Plan::of(&grants.all(), said, now);
    let mut all = Ok(());
    let mut done = |result: Result<(), FederationError>| {
        if all.is_ok() {
            all = result;
        }
    };
    for (digest, at) in plan.revoke {
        done(grants.revoke(digest, at).await.map_err(Into::into));
    }
    for claim in plan.say {
        done(say(claim));
    }
    for grant in plan.grant {
        done(grants.grant(grant).await.map_err(Into::into));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, PoisonError},
    };

    use cheops_core::trust::people::Role;
    use futures_util::future::BoxFuture;

    use super::*;
    use crate::trust::people::GrantsError;

    const NOW: Millis = Millis(50);

    fn grant(byte: u8, expires: u64) -> Grant {
        Grant {
            name: format!("name{byte}").parse().unwrap(),
            digest: [byte; 32],
            role: Role::Admin,
            issued: Millis(1),
            expires: Millis(expires),
        }
    }

    /// A list on a disk that takes nothing about one token, and what it was asked to write.
    #[derive(Default)]
    struct Failing {
        people: Mutex<People>,
        asked: Mutex<Vec<(&'static str, u8)>>,
        refuses: Option<u8>,
    }

    impl Failing {
        fn write(&self, what: &'static str, digest: &Digest) -> Result<(), GrantsError> {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((what, digest[0]));
            if self.refuses == Some(digest[0]) {
                return Err(io::Error::from(io::ErrorKind::StorageFull).into());
            }
            Ok(())
        }
    }

    impl Grants for Failing {
        fn find(&self, digest: &Digest, now: Millis) -> Result<Grant, Invalid> {
            self.people.lock().unwrap().find(digest, now).cloned()
        }

        fn all(&self) -> Vec<(Grant, Option<Millis>)> {
            let people = self.people.lock().unwrap();
            people.all().map(|(grant, revoked)| (grant.clone(), revoked)).collect()
        }

        fn grant(&self, grant: Grant) -> BoxFuture<'_, Result<(), GrantsError>> {
            let written = self.write("grant", &grant.digest);
            if written.is_ok() {
                self.people.lock().unwrap().grant(grant);
            }
            Box::pin(async { written })
        }

        fn revoke(&self, digest: Digest, at: Millis) -> BoxFuture<'_, Result<(), GrantsError>> {
            let written = self.write("revoke", &digest);
            if written.is_ok() {
                self.people.lock().unwrap().revoke(digest, at);
            }
            Box::pin(async { written })
        }
    }

    #[test]
    fn each_side_is_told_what_it_lacks_and_what_was_taken_back_is_never_given() {
        let (one, old) = (grant(1, 100), grant(1, 40));
        let known = |revoked| vec![(one.clone(), revoked)];
        let said = |grants: &[&Grant], revoked: &[u8]| {
            let mut people = People::default();
            for &grant in grants {
                people.grant(grant.clone());
            }
            for byte in revoked {
                people.revoke([*byte; 32], Millis(9));
            }
            people
        };
        let (at, digest) = (Millis(9), [1; 32]);
        for (known, said, expected) in [
            (known(None), said(&[&one], &[]), Plan::default()),
            (known(Some(at)), said(&[&one], &[1]), Plan::default()),
            (
                known(None),
                said(&[], &[]),
                Plan { say: vec![Claim::Grant(Box::new(one.clone()))], ..Plan::default() },
            ),
            (
                known(Some(at)),
                said(&[&one], &[]),
                Plan { say: vec![Claim::Revoke { digest, at }], ..Plan::default() },
            ),
            // What nobody else has heard of need not be taken back there.
            (known(Some(at)), said(&[], &[]), Plan::default()),
            (
                known(None),
                said(&[&one], &[1]),
                Plan { revoke: vec![(digest, at)], ..Plan::default() },
            ),
            (known(None), said(&[], &[1]), Plan { revoke: vec![(digest, at)], ..Plan::default() }),
            (vec![], said(&[&one], &[]), Plan { grant: vec![one.clone()], ..Plan::default() }),
            (vec![], said(&[&one], &[1]), Plan::default()),
            (vec![], said(&[&old], &[]), Plan::default()),
            (vec![(old.clone(), None)], said(&[], &[1]), Plan::default()),
        ] {
            assert_eq!(Plan::of(&known, &said, NOW), expected, "{known:?} {said:?}");
        }
    }

    #[tokio::test]
    async fn what_can_not_be_written_keeps_nothing_else_from_being_done() {
        // 1 and 2 were taken back elsewhere, 3 and 4 are new here, 5 was taken back here.
        let mut said = People::default();
        for byte in 1..=5 {
            said.grant(grant(byte, 100));
        }
        for byte in 1..=2 {
            said.revoke([byte; 32], Millis(9));
        }
        for refuses in [None, Some(1), Some(3), Some(5)] {
            let list = Failing { refuses, ..Failing::default() };
            for byte in [1, 2, 5] {
                list.people.lock().unwrap().grant(grant(byte, 100));
            }
            list.people.lock().unwrap().revoke([5; 32], Millis(9));
            let told = Mutex::new(0);
            let shared = share(&list, &said, NOW, |_| {
                *told.lock().unwrap() += 1;
                list.write("say", &[5; 32]).map_err(Into::into)
            });
            assert_eq!(shared.await.is_ok(), refuses.is_none(), "{refuses:?}");
            let asked = list.asked.lock().unwrap().clone();
            let order = [("revoke", 1), ("revoke", 2), ("say", 5), ("grant", 3), ("grant", 4)];
            assert_eq!(asked, order, "{refuses:?}");
        }
    }
}
