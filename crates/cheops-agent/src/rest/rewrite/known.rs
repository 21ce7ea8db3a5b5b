//! Which ids a text holds, and what is to stand in their place.
//!
//! An id that is distinctive is one wherever it stands alone. One that is not, like `42`, must be
//! announced: by the name of the member whose value it is, or by the segment of the path before it.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use super::pieces::{Piece, Place, encoded, pieces};
use crate::{
    config::Ids,
    rest::{ids::is_distinctive, pointer},
};

/// What announces an id that is not distinctive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The names of members whose value is an id: `id`, `uuid`.
    pub fields: Vec<String>,
    /// The segments of paths below which an id stands: `images`.
    pub collections: Vec<String>,
}

impl Context {
    /// The fields are where the service's pointers lead, if they lead there past no name. `name` in
    /// `/metadata/name` is no such field: a name alone is said of too much.
    pub fn new(ids: &Ids, collections: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let plain = |at: &&String| {
            at.rsplit_once('/').is_some_and(|(way, _)| !way.contains(|c| c != '/' && c != '*'))
        };
        let fields = ids.pointers.iter().filter(plain).map(|at| pointer::last(at).into_owned());
        Self {
            fields: fields.collect::<BTreeSet<_>>().into_iter().collect(),
            collections: collections.into_iter().map(Into::into).collect(),
        }
    }
}

/// What takes the place of a part of a text.
pub(crate) type Edit = (Range<usize>, String);

/// The ids that are known, and how they are announced.
pub(super) struct Known<F> {
    pub(super) lookup: F,
    pub(super) context: Arc<Context>,
}

impl<F, T> Known<F>
where
    F: Fn(&str) -> Option<T>,
    T: AsRef<str>,
{
    /// What takes the place of a value that is an id as a whole.
    pub(super) fn whole(&self, value: &str, announced: bool) -> Option<T> {
        if announced || is_distinctive(value) { (self.lookup)(value) } else { None }
    }

    /// The ids in a path or URL.
    pub(super) fn in_path(&self, text: &str) -> Vec<Edit> {
        let collections = &self.context.collections;
        let edit = |piece: &Piece<'_>| {
            let id = piece.decoded().filter(|id| !id.is_empty())?;
            let announced = || match piece.place {
                Place::Segment { below } => collections.iter().any(|name| name == below),
                Place::Value { .. } => false,
            };
            let known = self.whole(&id, !is_distinctive(&id) && announced())?;
            Some((piece.at..piece.end(), encoded(known.as_ref()).to_string()))
        };
        let found = pieces(text).flat_map(|piece| piece.find(edit));
        found.map(|(_, edit)| edit).collect()
    }

    /// The ids in a text value of a document. `announced` says that the value is that of a field.
    pub(super) fn in_value(&self, text: &str, announced: bool) -> Vec<Edit> {
        match self.whole(text, announced) {
            Some(known) => vec![(0..text.len(), known.as_ref().to_owned())],
            None if looks_like_path(text) => self.in_path(text),
            None => Vec::new(),
        }
    }
}

/// A header that holds a URL, like `Location` and `Content-Location`, or URLs in angle brackets, like
/// `Link`, with ids replaced; nothing if it holds none.
pub fn header<F, T>(value: &str, lookup: F, context: &Arc<Context>) -> Option<String>
where
    F: Fn(&str) -> Option<T>,
    T: AsRef<str>,
{
    let known = Known { lookup, context: context.clone() };
    let mut edits = Vec::new();
    if value.trim_start().starts_with('<') {
        let mut from = 0;
        while let Some(start) = value[from..].find('<').map(|n| from + n + 1) {
            let end = value[start..].find('>').map_or(value.len(), |n| start + n);
            let shifted = |(at, id): Edit| (start + at.start..start + at.end, id);
            edits.extend(known.in_path(&value[start..end]).into_iter().map(shifted));
            from = end;
        }
    } else {
        edits = known.in_path(value);
    }
    (!edits.is_empty()).then(|| edited(value, &edits))
}

/// The text with these parts of it replaced. They are in order.
pub(crate) fn edited(text: &str, edits: &[Edit]) -> String {
    let mut result = String::with_capacity(text.len() + 40);
    let mut copied = 0;
    for (at, id) in edits {
        result.push_str(&text[copied..at.start]);
        result.push_str(id);
        copied = at.end;
    }
    result.push_str(&text[copied..]);
    result
}

fn looks_like_path(text: &str) -> bool {
    text.as_bytes().contains(&b'/')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Service;

    const LONG: &str = "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f";

    fn lookup(id: &str) -> Option<&'static str> {
        match id {
            LONG => Some("5c1de9a0-ce05-8123-8abc-0123456789ab"),
            "42" => Some("a b"),
            _ => None,
        }
    }

    #[test]
    fn fields_are_where_pointers_lead_past_no_name() {
        let listen = "127.0.0.1:1".parse().unwrap();
        let mut ids = Service::new("image".parse().unwrap(), listen, None).ids;
        ids.pointers.push("/*/*/key".into());
        let context = Context::new(&ids, ["images"]);
        assert_eq!(context.fields, ["id", "key", "uuid"]);
        assert_eq!(context.collections, ["images"]);
    }

    #[test]
    fn urls_in_headers_are_rewritten() {
        let table = [
            ("http://h/v2/images/ID", Some("http://h/v2/images/TO")),
            ("/v2/images/ID/file?x=ID&y=1", Some("/v2/images/TO/file?x=TO&y=1")),
            ("/v2/images?id=in:ID,y&limit=1", Some("/v2/images?id=in:TO,y&limit=1")),
            ("/v2/images/42", Some("/v2/images/a%20b")),
            ("/v2/volumes/42", None),
            ("/v2/images/43", None),
            ("/v2/images/42?id=42", Some("/v2/images/a%20b?id=42")),
            (
                r#"</images/ID>; rel="next"; title="ID", <http://h/images/42>;rel=x"#,
                Some(r#"</images/TO>; rel="next"; title="ID", <http://h/images/a%20b>;rel=x"#),
            ),
            ("<", None),
            ("<<ID>>", None),
            ("<ID", Some("<TO")),
            ("", None),
        ];
        let context = Context { fields: Vec::new(), collections: vec!["images".into()] };
        let context = Arc::new(context);
        for (before, after) in table {
            let before = before.replace("ID", LONG);
            let after = after.map(|text| {
                let title = format!("title=\"{LONG}\"");
                text.replace("title=\"ID\"", &title).replace("TO", lookup(LONG).unwrap())
            });
            assert_eq!(header(&before, lookup, &context), after, "{before}");
        }
    }
}
