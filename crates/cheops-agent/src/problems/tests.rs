//! What is said of what is wrong, and what to do then.

use cheops_core::{
    id::{OpId, Sites},
    matrix::Config,
    operation::{Declaration, HttpBody, HttpRequest, Names},
    plan::Outcome,
    replica::{Durable, Record, Reply, Settings, Version},
    time::{Millis, Timestamp},
};

use super::*;
use crate::rest::kinds;

const META: &str = "0a1b2c3d-ce05-8123-9abc-0123456789ab";

pub(crate) fn site(n: u64) -> SiteId {
    format!("site{n}").parse().unwrap()
}

#[test]
fn a_site_is_named_in_a_command_as_the_shell_reads_it() {
    let peer = crate::peers::Peer {
        site: "DC 2".parse().unwrap(),
        address: String::new(),
        key: None,
        certificate: None,
        state: Reach::Paused,
        paused_until: None,
        round_trip: None,
        last_seen: None,
        lag: None,
        clock_offset: None,
        queue: crate::peers::Queued::default(),
        is_doubled: false,
        error: None,
        dropped: 0,
        refused: 0,
        faults: 0,
        sent: crate::peers::Traffic::default(),
        received: crate::peers::Traffic::default(),
    };
    let next = link(&site(1), &peer, None).unwrap().next;
    assert!(next.ends_with("cheops site resume 'DC 2'"), "{next}");
}

/// A request that site1 has taken down, and what came of it at site1 and site2.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) makes: bool,
    pub(crate) method: &'static str,
    pub(crate) key: Option<&'static str>,
    /// The status of each answer; 0 if nobody knows.
    pub(crate) answers: Vec<u16>,
    /// What each site calls what it made.
    pub(crate) made: [Option<&'static str>; 2],
}

impl Sent {
    pub(crate) fn makes<const N: usize>(answers: [u16; N]) -> Self {
        Self { makes: true, ..Self::uses("POST", answers) }
    }

    pub(crate) fn uses<const N: usize>(method: &'static str, answers: [u16; N]) -> Self {
        let answers = answers.to_vec();
        Self { makes: false, method, key: None, answers, made: [None; 2] }
    }

    fn operation(&self, resource: &ResourceId, n: u64) -> Operation {
        let id = |n: u64| OpId { site: site(1), number: 2 * n - 1 };
        let declares = Declaration {
            sites: Sites::new([site(1), site(2)]).unwrap(),
            config: Config { matrix: kinds::made(), ..Config::default() }.into(),
            base: Version::new(),
        };
        let (target, names) = if self.makes {
            ("/v2/images".to_owned(), Names::Makes(META.into()))
        } else {
            (format!("/v2/images/{META}"), Names::Uses(META.into()))
        };
        Operation {
            id: id(n),
            parents: (n > 1).then(|| id(n - 1)).into_iter().collect(),
            at: Timestamp::at(Millis(1_000 * n)),
            resource: resource.clone(),
            kind: if self.makes { "create" } else { "merge" }.parse().unwrap(),
            author: "mesh".parse().unwrap(),
            action: Action::Http(Box::new(HttpRequest {
                service: "image".parse().unwrap(),
                method: self.method.into(),
                target: target.into(),
                headers: [].into(),
                body: HttpBody::None,
                names,
            })),
            keep_going: true,
            reset: false,
            key: self.key.map(|key| key.parse().unwrap()),
            declares: (n == 1).then(|| Box::new(declares)),
        }
    }

    fn replies(&self, op: &Operation, n: u64) -> Vec<Reply> {
        let reply = |(of, (&status, made)): (u64, (&u16, Option<&str>))| Reply {
            id: OpId { site: site(of), number: if of == 1 { 2 * n } else { n } },
            resource: op.resource.clone(),
            op: op.id.clone(),
            attempt: 1,
            outcome: match status {
                200..300 => Outcome::Ok,
                0 => Outcome::Unknown,
                _ => Outcome::Ko,
            },
            era: 1,
            took: Millis(1),
            output: format!("HTTP/1.1 {status} X\r\n\r\n").into(),
            made: made.map(Into::into),
        };
        (1..).zip(self.answers.iter().zip(self.made)).map(reply).collect()
    }
}

/// site1, with a replicant of which these requests were made.
pub(crate) fn replicant_after(requests: &[Sent]) -> (Replica, ResourceId) {
    let id: ResourceId = format!("image~{META}").parse().unwrap();
    let mut written = Vec::new();
    for (n, sent) in (1..).zip(requests) {
        let op = sent.operation(&id, n);
        let replies = sent.replies(&op, n).into_iter();
        written.push(Durable::Record(Record::Operation(Arc::new(op)), None));
        written.extend(replies.map(|reply| Durable::Record(Record::Reply(Arc::new(reply)), None)));
    }
    let replica = Replica::restore(site(1), Settings::default(), written);
    assert_eq!(replica.resource(&id).unwrap().log().len(), requests.len());
    (replica, id)
}

#[test]
fn what_to_do_about_a_resource_made_of_requests_is_a_request() {
    let (made, sent) = (Sent::makes, Sent::uses);
    let target = format!("/v2/images/{META}");
    let again = format!("then send DELETE {target} to the service `image`, and create it again");
    let put = format!("then send a PUT of the whole document to {target}");
    let table = [
        (vec![made([201, 201]), sent("PATCH", [422, 422]), sent("PATCH", [200, 200])], None),
        (
            vec![made([201, 201]), sent("PATCH", [422, 422])],
            Some(("failed", "has failed everywhere", "send a better one")),
        ),
        (
            vec![made([201, 201]), sent("PATCH", [200, 500])],
            Some(("diverged", "merge site1:3 failed at `site2` (answered 500)", put.as_str())),
        ),
        (vec![made([201, 201]), sent("PATCH", [200, 500]), sent("PUT", [200, 200])], None),
        (
            vec![made([201, 503])],
            Some(("diverged", "create site1:1 failed at `site2` (answered 503)", again.as_str())),
        ),
        (
            vec![made([201, 201]), sent("POST", [500, 200])],
            Some(("diverged", "failed at `site1`", "a POST is not sent again by itself")),
        ),
        (vec![made([201, 0])], Some(("unknown", "took effect at `site2`", again.as_str()))),
    ];
    for (requests, expected) in table {
        let (replica, id) = replicant_after(&requests);
        let found = of(&site(1), replica.resource(&id).unwrap());
        let Some((what, text, next)) = expected else {
            assert!(found.is_none(), "{requests:?}: {found:?}");
            continue;
        };
        let found = found.unwrap_or_else(|| panic!("{requests:?}"));
        assert_eq!(found.what, what, "{requests:?}");
        assert!(found.text.contains(text), "{}", found.text);
        assert!(found.next.contains(next), "{}", found.next);
        assert!(!found.next.contains("--force"), "{}", found.next);
    }
}
