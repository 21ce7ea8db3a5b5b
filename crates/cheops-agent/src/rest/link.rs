//! Links in answers, and what they lead to.

/// The target that a link leads to, in an answer about another target (RFC 3986, 5.2): path and query.
/// Whose address it names makes no difference, as it is the one of whoever has answered. Nothing, if it
/// leads nowhere else.
pub fn resolve(about: &str, link: &str) -> Option<String> {
    let link = link.split('#').next().unwrap_or_default();
    if link.is_empty() {
        return None;
    }
    let base = about.split(['?', '#']).next().unwrap_or_default();
    let (link, rooted) = match after_authority(link) {
        Some(rest) => (rest, true),
        None => (link, link.starts_with('/')),
    };
    let (path, query) = match link.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (link, None),
    };
    let path = if rooted {
        without_dots(path)
    } else if path.is_empty() {
        base.to_owned()
    } else {
        let directory = base.rsplit_once('/').map_or("", |(directory, _)| directory);
        without_dots(&format!("{directory}/{path}"))
    };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    Some(query.map_or_else(|| path.clone(), |query| format!("{path}?{query}")))
}

/// What follows the scheme and the authority, if the link has them.
fn after_authority(link: &str) -> Option<&str> {
    let scheme = |text: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(plain)
    };
    let rest = match link.split_once("://") {
        Some((name, rest)) if scheme(name) => rest,
        _ => link.strip_prefix("//")?,
    };
    Some(&rest[rest.find(['/', '?']).unwrap_or(rest.len())..])
}

/// The path without its `.` and `..` segments.
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let count = path.split('/').count();
    for (n, segment) in path.split('/').enumerate() {
        let last = n + 1 == count;
        match segment {
            // Above the root there is nothing.
            ".." => segments.truncate(segments.len().saturating_sub(1).max(1)),
            "." => {}
            _ => {
                segments.push(segment);
                continue;
            }
        }
        if last {
            segments.push("");
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_where_the_rfc_says() {
        let about = "/v2/things/list?page=1";
        for (link, expected) in [
            ("?page=2", Some("/v2/things/list?page=2")),
            ("list?page=2", Some("/v2/things/list?page=2")),
            ("./list?page=2#x", Some("/v2/things/list?page=2")),
            ("../other/x?a=/../b", Some("/v2/other/x?a=/../b")),
            ("../../../x", Some("/x")),
            ("..", Some("/v2/")),
            (".", Some("/v2/things/")),
            ("/things?page=2", Some("/things?page=2")),
            ("/a/./b/../c", Some("/a/c")),
            ("http://host:1/things?page=2", Some("/things?page=2")),
            ("https://host?page=2", Some("/?page=2")),
            ("http://host", Some("/")),
            ("//host/things", Some("/things")),
            ("things?u=http://x/y", Some("/v2/things/things?u=http://x/y")),
            ("", None),
            ("#top", None),
        ] {
            assert_eq!(resolve(about, link).as_deref(), expected, "{link}");
        }
        assert_eq!(resolve("/", "x").as_deref(), Some("/x"));
    }
}
