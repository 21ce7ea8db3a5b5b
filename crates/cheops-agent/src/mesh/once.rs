//! Writes that are sent to several sites once, and forgotten.

use std::sync::Arc;

use cheops_core::id::Sites;
use hyper::StatusCode;
use tokio::sync::mpsc;

use super::{
    Head, Service, Shared,
    answer::Problem,
    attempt::Came,
    body::{Body, reason},
    forward::{Attempt, Forwarded, Nothing},
    read::Named,
    serve::broken_body,
};

impl Shared {
    /// Sends a write to several sites, once, and gives the first good answer: nothing is recorded.
    pub(super) async fn once(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: Head,
        body: Body,
    ) -> Attempt {
        let kept = body.keep(self.config.buffer, service.config.limits.idle).await;
        let body = match kept {
            Ok(body) if body.again().is_some() => body,
            Ok(_) => {
                return Ok(self.refuse(&Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too-large",
                    format!(
                        "a body for several sites that is sent once can have {} bytes",
                        self.config.buffer
                    ),
                    "raise `mesh.buffer`, or leave `none(…)` out: then it is stored",
                )));
            }
            Err(error) => return Ok(self.refuse(&broken_body(&reason(&*error)))),
        };
        let (to_answers, mut answers) = mpsc::channel(sites.len().max(1));
        for site in self.nearest(sites.iter()) {
            let Some(body) = body.again() else { continue };
            let (shared, service, named) = (self.clone(), service.clone(), named.cloned());
            let (parts, to_answers) = (parts.clone(), to_answers.clone());
            // The others get it whether or not anybody waits for them.
            self.tasks.spawn(async move {
                let answer = if site == shared.here {
                    shared.local(&service, named.as_ref(), parts, body).await
                } else {
                    let (named, site) = (named.as_ref(), &site);
                    let forwarded = Forwarded { service: &service, named, site, place: None };
                    shared.forward(forwarded, parts, body).await
                };
                let _ = to_answers.send((site, answer)).await;
            });
        }
        drop(to_answers);
        let (mut worse, mut whys, mut came) = (None, Vec::new(), Came::NotThere);
        while let Some((site, answer)) = answers.recv().await {
            match answer {
                Ok(response) if response.status().as_u16() < 400 => return Ok(response),
                Ok(response) => worse = worse.or(Some(response)),
                Err(nothing) => {
                    whys.push(format!("{site}: {}", nothing.why));
                    // If it can have arrived at one of them, it can have arrived.
                    if !matches!(nothing.came, Came::NotThere | Came::Busy) {
                        came = Came::Silence;
                    }
                }
            }
        }
        worse.ok_or(Nothing { came, why: whys.join("; "), body: Some(body) })
    }
}
