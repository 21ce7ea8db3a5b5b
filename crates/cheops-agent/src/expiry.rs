//! What ends by itself, and when to say so: the certificates of the API and of links.
//!
//! What must stay true: people hear of it while there is time to renew, and not all the time where certificates are
//! made for a few days only.

use std::time::{Duration, SystemTime};

use crate::{
    api::{
        Context,
        model::{Trouble, Urgency},
    },
    problems::trouble,
    trust::{
        authority::{Refusal, moment},
        certificate::Validity,
    },
};

const DAY: Duration = Duration::from_hours(24);
/// How long before its end a certificate is a problem, and an urgent one; of those that are made for less, a third and
/// a tenth of their time.
const NEAR: Duration = Duration::from_hours(30 * 24);
const VERY_NEAR: Duration = Duration::from_hours(7 * 24);

/// How near an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Far,
    Near(Duration),
    VeryNear(Duration),
    Over,
}

fn end(valid: Validity, now: SystemTime) -> End {
    let whole = valid.until.duration_since(valid.from).unwrap_or_default();
    match valid.until.duration_since(now) {
        Err(_) => End::Over,
        Ok(left) if left < VERY_NEAR.min(whole / 10) => End::VeryNear(left),
        Ok(left) if left < NEAR.min(whole / 3) => End::Near(left),
        Ok(_) => End::Far,
    }
}

/// How long something is away, for people.
fn within(left: Duration) -> String {
    match left.as_secs() / DAY.as_secs() {
        days @ 2.. => format!("{days} days"),
        _ => format!("{} hours", left.as_secs() / 3_600),
    }
}

/// What is to be said about the certificates of this site.
pub(crate) fn troubles(context: &Context) -> Vec<Trouble> {
    let (site, now) = (context.here(), SystemTime::now());
    let mut all = Vec::new();
    let mut add = |urgency, text: String, next: &str| {
        all.push(trouble(urgency, site, None, "certificate", text, next));
    };
    let renew = "put a new certificate and its key in the place of the old; no restart is needed";
    let together = "put files there that belong together";
    if let Some(certificate) = &context.certificate {
        match end(certificate.valid(), now) {
            End::Over => {
                let text = "the certificate of the API has expired: clients refuse it".to_owned();
                add(Urgency::High, text, renew);
            }
            End::VeryNear(left) | End::Near(left) => {
                let text = format!("the certificate of the API expires in {}", within(left));
                add(urgency(end(certificate.valid(), now)), text, renew);
            }
            End::Far => {}
        }
        if let Some(why) = certificate.failure() {
            let text = format!("the new certificate of the API is not used: {why}");
            add(Urgency::High, text, together);
        }
    }
    let Some(pki) = context.peers.pki() else { return all };
    match (pki.fault(now), end(pki.valid(), now)) {
        (Some(fault), _) => {
            let text = format!("{}: the other sites refuse it", fault.says(&format!("`{site}`")));
            let next = if fault == Refusal::Revoked { "give this site another one" } else { renew };
            add(Urgency::High, text, next);
        }
        (None, near @ (End::VeryNear(left) | End::Near(left))) => {
            let (left, at) = (within(left), moment(pki.valid().until));
            let text = format!("the certificate of `{site}` for links expires in {left}, at {at}");
            add(urgency(near), text, renew);
        }
        (None, End::Far | End::Over) => {}
    }
    if let Some(why) = pki.failure() {
        let text = format!("the new files of `[trust]` are not used: {why}");
        add(Urgency::High, text, together);
    }
    if let Some(since) = pki.stale(now) {
        let text = format!(
            "the list of revoked certificates should have been renewed at {}: what was revoked since is not known here",
            moment(since)
        );
        add(Urgency::Medium, text, "let the CA write a new one, to `trust.revoked`");
    }
    all
}

fn urgency(end: End) -> Urgency {
    match end {
        End::VeryNear(_) | End::Over => Urgency::High,
        End::Near(_) | End::Far => Urgency::Medium,
    }
}

/// In how many seconds something ends; below zero if it has.
pub(crate) fn seconds_until(end: SystemTime, now: SystemTime) -> i64 {
    let whole = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    match end.duration_since(now) {
        Ok(left) => whole(left),
        Err(ago) => -whole(ago.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_near_by_its_days_or_by_its_share_of_the_whole() {
        let from = SystemTime::UNIX_EPOCH;
        for (whole, left, expected) in [
            (365 * DAY, 40 * DAY, End::Far),
            (365 * DAY, 29 * DAY, End::Near(29 * DAY)),
            (365 * DAY, 6 * DAY, End::VeryNear(6 * DAY)),
            (30 * DAY, 20 * DAY, End::Far),
            (30 * DAY, 9 * DAY, End::Near(9 * DAY)),
            (30 * DAY, 2 * DAY, End::VeryNear(2 * DAY)),
            (DAY, DAY / 2, End::Far),
        ] {
            let valid = Validity { from, until: from + whole };
            assert_eq!(end(valid, valid.until - left), expected, "{whole:?}, {left:?}");
        }
        let valid = Validity { from, until: from + DAY };
        assert_eq!(end(valid, valid.until + DAY), End::Over);
        assert_eq!(seconds_until(valid.until, from), 86_400);
        assert_eq!(seconds_until(from, valid.until), -86_400);
        assert_eq!((within(3 * DAY), within(DAY)), ("3 days".to_owned(), "24 hours".to_owned()));
    }
}
