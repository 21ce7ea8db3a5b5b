//! The files that the browser needs besides the pages. They are part of the program.

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use xxhash_rust::xxh3::xxh3_64;

/// By name: what it is, and what is in it.
const ALL: [(&str, &str, &[u8]); 5] = [
    ("htmx.js", "text/javascript; charset=utf-8", include_bytes!("../assets/htmx.min.js")),
    ("sse.js", "text/javascript; charset=utf-8", include_bytes!("../assets/sse.min.js")),
    ("page.js", "text/javascript; charset=utf-8", include_bytes!("../assets/page.js")),
    ("page.css", "text/css; charset=utf-8", include_bytes!("../assets/page.css")),
    ("mark.svg", "image/svg+xml", include_bytes!("../assets/mark.svg")),
];

/// The address of a file, which changes with its content, so that browsers can keep it for ever.
pub(crate) fn address(name: &str) -> String {
    let content =
        ALL.iter().find(|(other, ..)| *other == name).map_or(&[][..], |(.., bytes)| bytes);
    format!("/assets/{name}?{:016x}", xxh3_64(content))
}

pub(crate) async fn get(Path(name): Path<String>) -> Response {
    match ALL.iter().find(|(other, ..)| *other == name) {
        Some((_, sort, bytes)) => {
            let kept = "public, max-age=31536000, immutable";
            ([(header::CONTENT_TYPE, *sort), (header::CACHE_CONTROL, kept)], *bytes).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_the_style_ends() {
        let (_, _, style) = ALL.iter().find(|(name, ..)| *name == "page.css").unwrap();
        let style = std::str::from_utf8(style).unwrap();
        assert_eq!(style.matches('{').count(), style.matches('}').count());
    }

    #[test]
    fn an_address_changes_with_the_content() {
        let addresses: std::collections::BTreeSet<String> = ALL
            .iter()
            .map(|(name, ..)| address(name).split('?').next_back().unwrap().into())
            .collect();
        assert_eq!(addresses.len(), ALL.len());
    }
}
