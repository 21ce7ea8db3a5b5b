//! Dials one site, for as long as it is known and there is no link with it.

use std::{io, sync::Arc};

use axum::body::Body;
use cheops_core::duration;
use hyper::{Request, StatusCode, body::Incoming, client::conn::http2::SendRequest};
use tokio::time::{sleep, timeout};

use super::{
    Shared, State, http,
    link::{self, End, Link, Reading, root},
    odds,
    pace::Backoff,
    slot::Slot,
    transport::{self, Dialled, Meter, Metered},
};
use crate::{
    config::Peer,
    pipe::{joined, pipe},
    trust::{
        Expected,
        authority::Use,
        tls::{self, WrongKey},
    },
};

/// Sees to it that there is a link with a site.
pub(super) async fn keep(shared: Arc<Shared>, slot: Arc<Slot>) {
    let mut backoff = Backoff::new(shared.links.retry);
    let mut state = slot.state();
    let mut other = slot.state();
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = slot.retired.cancelled() => return,
            _ = state.wait_for(|state| *state == State::Unreachable) => {}
        }
        if slot.take_fresh() {
            backoff.reset();
        } else {
            tokio::select! {
                () = shared.stop.cancelled() => return,
                () = slot.retired.cancelled() => return,
                _ = other.wait_for(|state| *state != State::Unreachable) => continue,
                () = slot.nudged.notified() => {}
                () = sleep(backoff.next(fastrand::f64())) => {}
            }
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = slot.retired.cancelled() => return,
            // Someone else was faster, or nobody may.
            _ = other.wait_for(|state| *state != State::Unreachable) => {}
            // In a box of its own: a handshake takes many times the room of what waits for the next one.
            tried = link::caught(&shared.here, Box::pin(attempt(&shared, &slot))) => {
                if let Err(end) = tried.flatten() {
                    slot.failed(&end);
                }
            }
        }
    }
}

/// Ends a connection that did not become a link.
struct Attempt(Arc<Link>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.0.site.borrow().is_none() {
            self.0.close(End::lost("it was given up"));
        }
    }
}

/// One attempt.
async fn attempt(shared: &Arc<Shared>, slot: &Arc<Slot>) -> Result<(), End> {
    let (site, Peer { address, .. }) = (&slot.site, &slot.place());
    let expected = Expected { site, key: shared.members.expected(site) };
    let patience = shared.links.silence;
    let unreachable = |error| End::lost(format!("`{site}` can't be reached at {address}: {error}"));
    let tcp = transport::connect(address, patience).await.map_err(unreachable)?;
    let Dialled { io, key, chain } =
        timeout(patience, transport::dialled(&shared.tls, tcp, expected))
            .await
            .map_err(|_| silent(shared, address))?
            .map_err(|error| {
                slot.set_strange(tls::is_unknown_there(&error));
                not_protected(shared, slot, &error)
            })?;

    let meter = Meter::new();
    let shown = chain.map(|chain| (chain, Use::Answering));
    let link = Link::new(true, (key, shown), meter, shared.links.queue);
    let attempt = Attempt(link.clone());
    let (mut requests, connection) = timeout(patience, http::client(Metered::new(io, &link)))
        .await
        .map_err(|_| silent(shared, address))?
        .map_err(|error| foreign(address, &root(&error)))?;
    let driving = (shared.here.clone(), link.clone());
    shared.tasks.spawn(async move {
        let (here, link) = driving;
        link::held(&here, &link, http::drive(connection, link.clone())).await;
    });

    link.control.push(shared.hello());
    let greeting = async {
        let body = open(&mut requests, http::LINK, Body::new(link.control.body())).await;
        let body = body.map_err(|error| foreign(address, &root(&*error)))?;
        link.hand_in_calls(requests.clone());
        link::greet(shared, &link, Reading::control(body), &slot.site).await
    };
    let greeted =
        timeout(patience, greeting).await.unwrap_or_else(|_| Err(silent(shared, address)));
    if let Err(end) = greeted {
        link.close(end.clone());
        return Err(end);
    }
    let serving = (shared.clone(), link.clone());
    shared.tasks.spawn(async move {
        let (shared, link) = serving;
        let work = open_streams(shared.clone(), link.clone(), requests);
        link::held(&shared.here, &link, work).await;
    });
    drop(attempt);
    Ok(())
}

/// Opens the other two streams of a link: for messages, and for calls the other way.
async fn open_streams(shared: Arc<Shared>, link: Arc<Link>, mut requests: SendRequest<Body>) {
    let open_both = async {
        let records = Body::new(link.outbox.body());
        let records = open(&mut requests, http::RECORDS, records).await.map_err(|e| root(&*e))?;
        if !link.hand_in_records(records) {
            return Err("the link was gone".to_owned());
        }
        let (reader, writer) = pipe();
        let calls = open(&mut requests, http::CALLS, reader).await.map_err(|e| root(&*e))?;
        Ok((calls, writer))
    };
    let opened = tokio::select! {
        opened = open_both => opened,
        () = link.left() => return,
    };
    match opened {
        Ok((calls, writer)) => http::answer(&shared, &link, joined(Body::new(calls), writer)).await,
        Err(why) => link.close(End::lost(format!("a stream of the link was refused: {why}"))),
    }
}

async fn open(
    requests: &mut SendRequest<Body>,
    path: &'static str,
    body: Body,
) -> Result<Incoming, Box<dyn std::error::Error + Send + Sync>> {
    let mut request = Request::post(http::uri(path)).body(body)?;
    *request.version_mut() = hyper::Version::HTTP_2;
    let response = requests.send_request(request).await?;
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        status => Err(format!("it answers {status}").into()),
    }
}

fn silent(shared: &Shared, address: &str) -> End {
    let span = duration::print(shared.links.silence);
    End::fault(format!(
        "{address} took the connection and did not answer within {span}: is there an agent, and does it run?"
    ))
}

/// What was wrong before the two could be sure of each other.
fn not_protected(shared: &Shared, slot: &Slot, error: &io::Error) -> End {
    let (here, site, address) = (&shared.here, &slot.site, &slot.place().address);
    let joined = shared.members.has_joined(site);
    if tls::is_unknown_there(error) && joined {
        return End::lost(format!(
            "`{site}` does not know the key of `{here}`: it has not heard of it yet, or `{here}` was removed from the federation; if it was and should come back, run `cheops token create` at `{site}` and `cheops join TOKEN` at `{here}`"
        ));
    }
    if tls::is_unknown_there(error) {
        let key = shared.tls.own();
        return End::lost(format!(
            "`{site}` does not know the key of `{here}`: let it join, or put it into the configuration of `{site}`, key = \"{key}\""
        ));
    }
    if let Some(why) = odds::dialled(shared, slot, error) {
        return End::lost(why);
    }
    let Some(WrongKey { expected, found }) = tls::why(error) else {
        return foreign(address, &root(error));
    };
    End::lost(match found.map(|found| (found, shared.tls.known(&found))) {
        Some((found, _)) if found == shared.tls.own() => format!(
            "the address that `{here}` has for `{site}`, {address}, leads back to `{here}` itself: correct it in its configuration"
        ),
        Some((_, Some(other))) => format!(
            "`{here}` looked for `{site}` at {address} and found `{other}`: correct the address in the configuration of `{here}`"
        ),
        Some((found, None)) if joined => format!(
            "{address} has not the key of `{site}`, {expected}, but {found}: is it another site, or was `{site}` set up again? If it was, run `cheops site remove {site}` and let it join; a key that it has renewed it tells by itself"
        ),
        Some((found, None)) => format!(
            "{address} has not the key of `{site}`, {expected}, but {found}: is it another site, or was `{site}` set up again? If that is its key now, put it into the configuration of `{here}`"
        ),
        None => format!("{address} has no key as sites have them: is there an agent?"),
    })
}

fn foreign(address: &str, why: &str) -> End {
    End::lost(format!(
        "{address} does not answer as an agent does ({why}): is it the port for other agents?"
    ))
}
