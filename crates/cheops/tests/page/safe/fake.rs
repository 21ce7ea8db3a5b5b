//! An agent's API that says whatever we like, and the real page on top of it.
//!
//! What an agent says comes from people, from applications and from other sites, and a site can be in
//! wrong hands. What must stay true: every text that the API can say is one of [`Words`].

use std::sync::{Arc, Mutex};

use axum::{response::Html, routing::get};

use super::{Server, says::Says};

/// What would be run, asked for or made part of a page, if it were not only text.
const PAYLOADS: [&str; 16] = [
    "<img src=x onerror=window.ran=1>",
    "<script>window.ran=1</script>",
    "<svg onload=window.ran=1></svg>",
    "\" autofocus tabindex=1 onfocus=\"window.ran=1\" x=\"",
    "' onmouseover='window.ran=1' x='",
    "</textarea></title></style></script><iframe srcdoc=\"<script>parent.ran=1</script>\"></iframe>",
    "<div hx-get=/evil hx-trigger=load hx-on:htmx:load=window.ran=1></div>",
    "<div data-hx-get=/evil data-hx-trigger=load></div>",
    "<b sse-connect=/evil sse-swap=message></b>",
    "{{7*7}}${7*7}",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=\"0;url=http://evil.example/\">",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<a href=javascript:window.ran=1>x</a>",
    "&lt;i&gt;&#60;u&#62;<!-- <![CDATA[",
    "\r\nevent: connected\r\ndata: x\r\n\r\n",
];

/// How texts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// As somebody would write them who means harm.
    Hostile,
    /// As long as those, with breaks at the same places, and without any sign that could mean something.
    Plain,
    /// As somebody would write them who likes long names, with times that are times.
    Long,
}

impl Words {
    /// A text that begins with a word, always the same.
    pub(super) fn text(self, word: &str) -> String {
        let first = word.bytes().map(usize::from).sum::<usize>() % PAYLOADS.len();
        let hostile = || {
            let all = PAYLOADS.iter().cycle().skip(first).take(PAYLOADS.len());
            all.fold(word.to_owned(), |text, payload| text + payload)
        };
        let plain = |c: char| {
            if c.is_alphanumeric() || c.is_whitespace() || ":~".contains(c) { c } else { 'x' }
        };
        match self {
            Self::Hostile => hostile(),
            Self::Plain => hostile().chars().map(plain).collect(),
            Self::Long => format!("{word}-{}", "of-a-very-long-name".repeat(8)),
        }
    }

    pub(super) fn texts(self, words: &[&str]) -> Vec<String> {
        words.iter().map(|word| self.text(word)).collect()
    }

    pub(super) fn time(self, word: &str) -> String {
        let second = fastrand::u8(10..60);
        match self {
            Self::Long => format!("2026-11-15T08:00:{second}Z"),
            Self::Hostile | Self::Plain => self.text(word),
        }
    }
}

/// What it does when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Willing,
    /// It refuses whatever would change something.
    Refuses,
    /// It fails to answer anything, but says what happens.
    Fails,
}

/// An agent that says such words.
pub(super) struct Fake {
    pub(super) url: String,
    pub(super) words: Words,
    mood: Arc<Mutex<Mood>>,
    _server: Server,
}

impl Fake {
    /// One that has much to show, or nothing at all.
    pub(super) fn start(words: Words, full: bool) -> Self {
        let mood = Arc::new(Mutex::new(Mood::Willing));
        let says = Says::new(words, full);
        let page = chephren::page(says.api(mood.clone()));
        // What the payloads do where they are not only text.
        let raw = move || async move {
            let own = |payload: &&&str| !payload.contains("evil.example");
            let text: String = PAYLOADS.iter().filter(own).copied().collect();
            Html(format!("<title>raw</title><input value=\"{text}\">{text}"))
        };
        let server = Server::start(page.route("/raw", get(raw)));
        Self { url: format!("http://{}", server.address), words, mood, _server: server }
    }

    /// How it is from now on.
    pub(super) fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// The address of a page about something, by its word.
    pub(super) fn about(&self, path: &str, word: &str) -> String {
        let encoded = |byte: u8| format!("%{byte:02x}");
        let text: String = self.words.text(word).bytes().map(encoded).collect();
        format!("{}{path}{text}", self.url)
    }
}
