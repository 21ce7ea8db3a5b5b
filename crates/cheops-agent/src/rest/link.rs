//! Links in answers, in documents and in `Link` headers (RFC 8288), and what they lead to.

/// The link to the next page that the lines of a `Link` header have. One that is about another document
/// than the answer (`anchor`) is not it.
pub fn next<'h>(lines: impl IntoIterator<Item = &'h str>) -> Option<&'h str> {
    lines.into_iter().find_map(|line| {
        let mut rest = line;
        while let Some(start) = rest.find('<') {
            let (link, after) = rest[start + 1..].split_once('>')?;
            let is_next;
            (is_next, rest) = parameters(after);
            if is_next {
                return Some(link.trim());
            }
        }
        None
    })
}

/// Whether the parameters of a link say that it leads to the next page, and what follows them.
fn parameters(text: &str) -> (bool, &str) {
    let (mut rel, mut is_about_another) = (None, false);
    let mut rest = text.trim_start();
    while let Some(after) = rest.strip_prefix(';') {
        let end = after.find(['=', ';', ',']).unwrap_or(after.len());
        let (name, value) = (after[..end].trim(), &after[end..]);
        let (value, after) = match value.strip_prefix('=') {
            Some(value) => parameter(value.trim_start()),
            None => (String::new(), value),
        };
        rest = after.trim_start();
        // Of several, the first counts.
        if name.eq_ignore_ascii_case("rel") && rel.is_none() {
            rel = Some(value);
        } else if name.eq_ignore_ascii_case("anchor") {
            is_about_another = true;
        }
    }
    let rel = rel.unwrap_or_default();
    let is_next = rel.split_ascii_whitespace().any(|word| word.eq_ignore_ascii_case("next"));
    (is_next && !is_about_another, rest)
}

/// The value that a text begins with, in quotes or not, and what follows it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',']).unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// Whether a link leads to a host, as `Host` names it: by its name, or because it names none.
pub fn is_at(link: &str, host: &str) -> bool {
    let plain = |host: &str| {
        let host = host.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
        let port = [":80", ":443"].iter().find_map(|port| host.strip_suffix(port));
        port.map_or(host.clone(), str::to_owned)
    };
    authority(link).is_none_or(|named| plain(named) == plain(host))
}

/// The host that a link names, as it stands there.
pub fn authority(link: &str) -> Option<&str> {
    let rest = with_authority(link)?;
    Some(&rest[..rest.len() - past(rest).len()])
}

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
    with_authority(link).map(past)
}

/// What follows an authority.
fn past(text: &str) -> &str {
    &text[text.find(['/', '?', '#']).unwrap_or(text.len())..]
}

/// The link from its authority on, if it has one.
fn with_authority(link: &str) -> Option<&str> {
    let scheme = |text: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(plain)
    };
    match link.split_once("://") {
        Some((name, rest)) if scheme(name) => Some(rest),
        _ => link.strip_prefix("//"),
    }
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
    fn the_next_page_is_found_in_a_header() {
        for (lines, expected) in [
            (&[r#"</a?page=2>; rel="next""#][..], Some("/a?page=2")),
            (&["</a?page=2>;rel=next"], Some("/a?page=2")),
            (&["</1>; rel=first, < /2 > ; title=\"x, <y>; rel=next\" ; REL = NEXT"], Some("/2")),
            (&[r#"</1>; rel="prev", </2>; rel="last next""#], Some("/2")),
            (&["</1>; rel=prev", "</2>; rel=next"], Some("/2")),
            (&[r#"</1>; title="a \" , </x>; rel=next"; rel=up, </2>; rel=next"#], Some("/2")),
            (&["</a,b;c>; rel=next"], Some("/a,b;c")),
            (&["</1>; rel=prev; rel=next"], None),
            (&[r#"</1>; rel=next; anchor="/other""#], None),
            (&["</1>; rel=nextish", "</2>", "rel=next", "", "</1; rel=next"], None),
            (&[r#"</1>; rel="next"#], Some("/1")),
            (&["</1>; rel", "</2>; ;; rel=next"], Some("/2")),
        ] {
            assert_eq!(next(lines.iter().copied()), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_link_leads_to_the_same_host_or_to_another() {
        for (link, host, expected) in [
            ("/a", "app:9292", true),
            ("?page=2", "app", true),
            ("http://app:9292/a", "app:9292", true),
            ("http://APP/a", "app:80", true),
            ("https://u:p@app:443?x", "app", true),
            ("//app:9292", "app:9292", true),
            ("http://app:9293/a", "app:9292", false),
            ("http://other/a", "app", false),
            ("http://app.other/a", "app", false),
            ("http://app#other/a", "app", true),
        ] {
            assert_eq!(is_at(link, host), expected, "{link} {host}");
        }
    }

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
