//! An e-mail: one event, one message.
//!
//! Its `Message-ID` is made of the event's id, so that mail programs drop doubles. What the server says
//! about one message for good counts as a refusal of that event.

use std::path::Path;

use lettre::{
    AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue},
    },
    transport::smtp::{
        authentication::Credentials,
        client::{Certificate, CertificateStore, Tls as Protect, TlsParameters},
    },
};

use super::aside;
use crate::{
    api::model::HookEvent,
    config::{Mail, Tls},
    hooks::retry::Failure,
};

/// The longest subject, in characters.
const SUBJECT: usize = 120;

pub(super) async fn send(mail: &Mail, event: &HookEvent) -> Result<(), Failure> {
    let message = message(mail, event)?;
    let here = mail.clone();
    let transport = aside(move || transport(&here)).await?;
    transport.send(message).await.map(drop).map_err(|error| {
        let mut text = format!("{} did not take it: {error}", mail.server);
        let mut cause = std::error::Error::source(&error);
        while let Some(deeper) = cause {
            text = format!("{text}: {deeper}");
            cause = deeper.source();
        }
        if error.is_permanent() { Failure::Refused(text) } else { Failure::Unavailable(text) }
    })
}

fn transport(mail: &Mail) -> Result<AsyncSmtpTransport<Tokio1Executor>, String> {
    let host = mail.server.host.clone();
    let protect = match mail.tls {
        Tls::None => Protect::None,
        Tls::StartTls => Protect::Required(trusting(&host, mail.ca.as_deref())?),
        Tls::Wrapped => Protect::Wrapper(trusting(&host, mail.ca.as_deref())?),
    };
    let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
        .port(mail.server.port)
        .tls(protect);
    if let Some((user, password)) = &mail.login {
        builder = builder.credentials(Credentials::new(user.clone(), password.read()?));
    }
    Ok(builder.build())
}

fn trusting(host: &str, ca: Option<&Path>) -> Result<TlsParameters, String> {
    let mut builder = TlsParameters::builder(host.to_owned());
    if let Some(path) = ca {
        let failed =
            |error: &dyn std::fmt::Display| format!("{} can't be used: {error}", path.display());
        let pem = std::fs::read(path).map_err(|error| failed(&error))?;
        let certificate = Certificate::from_pem(&pem).map_err(|error| failed(&error))?;
        builder =
            builder.certificate_store(CertificateStore::None).add_root_certificate(certificate);
    }
    builder.build_rustls().map_err(|error| error.to_string())
}

fn message(mail: &Mail, event: &HookEvent) -> Result<Message, Failure> {
    // These were read when the configuration was.
    let wrong = |error: &dyn std::fmt::Display| Failure::Refused(error.to_string());
    let mailbox = |text: &String| text.parse::<Mailbox>().map_err(|error| wrong(&error));
    let domain = mailbox(&mail.from)?.email.domain().to_owned();
    let subject: String = format!("[cheops] {}", event.text).chars().take(SUBJECT).collect();
    let mut builder = Message::builder()
        .from(mailbox(&mail.from)?)
        .subject(subject)
        .message_id(Some(format!("<{}.cheops@{domain}>", event.id)))
        .header(ContentType::TEXT_PLAIN);
    for to in &mail.to {
        builder = builder.to(mailbox(to)?);
    }
    let mut message = builder.body(body(event)).map_err(|error| wrong(&error))?;
    for (name, value) in [("X-Cheops-Event", &event.event), ("X-Cheops-Id", &event.id)] {
        let name = HeaderName::new_from_ascii_str(name);
        message.headers_mut().insert_raw(HeaderValue::new(name, value.clone()));
    }
    Ok(message)
}

fn body(event: &HookEvent) -> String {
    let mut text = format!("{}\n", event.text);
    if let Some(next) = &event.next {
        text = format!("{text}\nNext: {next}\n");
    }
    if let Some(command) = &event.command {
        text = format!("{text}\nCommand: {command}\n");
    }
    for run in &event.runs {
        let status = serde_json::to_value(run.status).unwrap_or_default();
        let status = status.as_str().unwrap_or_default();
        text = format!("{text}\n{}: {status}\n", run.site);
        for line in run.output.as_deref().unwrap_or_default().lines() {
            text = format!("{text}  {line}\n");
        }
    }
    let (name, at, told_by, id) = (&event.event, &event.at, &event.told_by, &event.id);
    format!("{text}\n-- \n{name} at {at}, told by {told_by}, id {id}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::tests::sample;

    #[test]
    fn nothing_in_an_event_becomes_a_header() {
        let mail = Mail {
            server: crate::config::Server { host: "h".into(), port: 25 },
            tls: Tls::None,
            from: "Cheops <cheops@example.org>".into(),
            to: vec!["ops@example.org".into(), "b@example.org".into()],
            login: None,
            ca: None,
        };
        let mut event = sample("abc");
        event.text = "x\r\nBcc: evil@example.org\r\n\r\nbody".into();
        let text = String::from_utf8(message(&mail, &event).unwrap().formatted()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(head.contains("Message-ID: <abc.cheops@example.org>"), "{head}");
        assert!(head.contains("X-Cheops-Event: operation.ran"), "{head}");
        assert!(body.contains("told by site1, id abc"), "{body}");
    }
}
