//! What a line of the audit says.
//!
//! What must stay true: a line says who asked for what, from where, and what came of it; never a body,
//! a query, a header, a token or a password, but for a command that is in no operation. However long what was
//! asked is, a line is short.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest text of one field, in bytes.
const LONGEST: usize = 512;

/// A line of the audit. Its hash is in the line that follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Its number: the first is 1, and each is one more than the one before.
    pub n: u64,
    /// When it happened, in UTC.
    pub at: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
    /// The hash of the line before, of 64 zeros before the first.
    pub before: String,
}

/// What happened. Fields that don't fit to it are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its sort.
    pub what: What,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What this one may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// By which door it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door: Option<String>,
    /// From where: an address, or a site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The method of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path of a request, without what follows a `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The resource that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The operation that came of it, or that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// What was made or asked for, where the path does not say it: the name and the role of a token, the name
    /// of a hook, a command that is shown with, the site that wanted to join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The status of the answer; none if whoever asked was gone before there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it was refused, in a word for programs or in one for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many more there were that have no line of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
    /// Whether whoever may look may do it, again and again: of very many not each has a line.
    #[serde(skip)]
    pub looks: bool,
}

/// The sorts of what happens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The agent started, and goes on with the record from here.
    Started,
    /// A request to the API was answered, or refused.
    Request,
    /// One who wanted a link was turned away.
    Link,
    /// A site wanted to join the federation here, and was let in or refused.
    Join,
    /// What another site said of a resource was not taken in.
    Record,
    /// An operation was not run here, because of the policy of this site.
    Denied,
    /// Something at the end of the record could not be read, and was put aside.
    Repaired,
    /// Some lines could not be written.
    Lost,
    /// Something that a later version knows.
    #[default]
    #[serde(other)]
    Other,
}

impl Event {
    /// Something of a sort.
    pub fn of(what: What) -> Self {
        Self { what, ..Self::default() }
    }

    /// One who wanted a link was turned away.
    pub fn link(from: impl Into<String>, why: impl Into<String>) -> Self {
        Self { from: Some(from.into()), why: Some(why.into()), ..Self::of(What::Link) }
    }

    /// A site wanted to join the federation here; if it was refused, why.
    pub fn join(
        from: impl Into<String>,
        site: impl Into<String>,
        refused: Option<(u16, String)>,
    ) -> Self {
        let (status, why) = refused.map_or((200, None), |(status, why)| (status, Some(why)));
        Self {
            from: Some(from.into()),
            subject: Some(site.into()),
            status: Some(status),
            why,
            ..Self::of(What::Join)
        }
    }

    /// What a site said of a resource was not taken in.
    pub fn record(
        from: impl Into<String>,
        resource: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            from: Some(from.into()),
            resource: Some(resource.into()),
            why: Some(why.into()),
            ..Self::of(What::Record)
        }
    }

    /// An operation of somebody was not run here, because of a rule.
    pub fn denied(
        author: impl Into<String>,
        resource: impl Into<String>,
        operation: impl Into<String>,
        rule: impl Into<String>,
    ) -> Self {
        Self {
            author: Some(author.into()),
            resource: Some(resource.into()),
            operation: Some(operation.into()),
            why: Some(rule.into()),
            ..Self::of(What::Denied)
        }
    }

    /// Whether it tells of something that was not done.
    pub fn is_refusal(&self) -> bool {
        match self.what {
            What::Request | What::Join => self.status.is_some_and(|status| status >= 400),
            What::Link | What::Record | What::Denied => true,
            What::Started | What::Repaired | What::Lost | What::Other => false,
        }
    }

    /// The same, with no text longer than a line has room for.
    pub(super) fn shortened(mut self) -> Self {
        let Self {
            author, role, door, from, method, path, resource, operation, subject, why, ..
        } = &mut self;
        for text in [author, role, door, from, method, path, resource, operation, subject, why] {
            if let Some(text) = text.as_mut().filter(|text| text.len() > LONGEST) {
                text.truncate(text.floor_char_boundary(LONGEST));
                text.push('…');
                text.shrink_to_fit();
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_short_whatever_was_asked() {
        let event = Event { path: Some("é".repeat(100_000)), ..Event::of(What::Request) };
        let path = event.shortened().path.unwrap();
        assert!(path.len() <= LONGEST + '…'.len_utf8() && path.ends_with("é…"), "{path}");
    }

    #[test]
    fn what_a_later_version_writes_can_be_read() {
        let line = r#"{"n":3,"at":"t","what":"key-turned","colour":"blue","before":"00"}"#;
        let entry: Entry = serde_json::from_str(line).unwrap();
        assert_eq!((entry.n, entry.event.what), (3, What::Other));
    }
}
