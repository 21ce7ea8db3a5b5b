//! What others write is shown, and nothing but shown: names, commands, outputs, errors, addresses, whatever
//! a person, an application or another site can say, and what is typed.

use std::{fs, thread};

use cheops_agent::api::model::{File, Stored, Submit};
use serde_json::{Value, json};

use super::{
    asked, complaints,
    fake::{Fake, Mood, Words},
    settle,
};
use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, submit},
};

/// What is made of a page: its elements and their attributes, in order. What comes and goes with a request
/// is left out.
const SKELETON: &str = "const passing = ['class', 'disabled', 'data-disabled-by-htmx', 'style'];
    const names = (e) => e.getAttributeNames().filter((name) => !passing.includes(name)).sort();
    return [...document.querySelectorAll('*')].map((e) => `${e.tagName} ${names(e)}`);";

/// What no page of ours has, and what texts would make.
const FOREIGN: &str = "return [...document.querySelectorAll(`main img, iframe, base, meta[http-equiv], style,
    link:not([href^='/assets/']), script:not([src^='/assets/']), i, u, [onload], [onerror], [onfocus],
    [onmouseover], [srcdoc], [href^='javascript'], [href^='data:'], [hx-get^='/evil'], [data-hx-get], [sse-swap],
    [tabindex='1']`)].map((e) => e.outerHTML)";

/// Uses all that can be used: unfolds, types, ticks, presses every button, and has all parts fetched again.
const USE: &str = "const [typed, done] = arguments;
    const wait = (span) => new Promise((go) => setTimeout(go, span));
    const settle = async () => {
        for (let calm = 0; calm < 3; await wait(10)) {
            calm = document.querySelector('.htmx-request, .htmx-settling') ? 0 : calm + 1;
        }
    };
    const unfold = () => document.querySelectorAll('details').forEach((fold) => { fold.open = true; });
    const again = () => document.querySelectorAll('[hx-trigger*=\"sse:\"]')
        .forEach((part) => htmx.trigger(part, 'sse:connected'));
    const type = async (css, text) => {
        const fields = document.querySelectorAll(css);
        for (const field of fields) {
            field.value = text;
            field.dispatchEvent(new Event('input', { bubbles: true }));
        }
        if (fields.length > 0) await wait(350);
        await settle();
    };
    (async () => {
        unfold();
        again();
        for (const box of document.querySelectorAll('main [type=checkbox]')) box.checked = true;
        await type('main textarea, main input:not([type=hidden], [type=file], [type=checkbox])', typed);
        // What has to be right for anything to be sent.
        for (const field of document.querySelectorAll('#id')) field.value = 'missing';
        await type('#config', JSON.stringify({ Show: typed }));
        for (const button of document.querySelectorAll('main button:not([data-copy])')) {
            if (button.isConnected) button.click();
            await settle();
        }
        unfold();
        again();
        // A part may wait a moment for more to happen.
        await wait(200);
        await settle();
        done();
    })();";

/// A screen, by the word of what it is about, and words of texts that it shows.
struct Screen {
    path: &'static str,
    word: &'static str,
    shows: &'static [&'static str],
}

const SCREENS: [Screen; 10] = [
    Screen { path: "/", word: "", shows: &["site2", "site3", "site4", "error"] },
    Screen {
        path: "/sites/",
        word: "site2",
        shows: &["site2", "web~1", "error", "submitted", "printed", "superseded"],
    },
    Screen {
        path: "/sites/site1",
        word: "",
        shows: &["hook", "way", "to", "mode", "on", "last", "untold"],
    },
    Screen { path: "/sites/", word: "site3", shows: &["site3", "detail", "mail"] },
    Screen {
        path: "/resources?state=settled&find=",
        word: "sought",
        shows: &["site2", "web~1", "teller", "seen", "why"],
    },
    Screen {
        path: "/resources/",
        word: "mail",
        shows: &[
            "mail",
            "site1:1",
            "site2:2",
            "kind",
            "author",
            "command",
            "file",
            "because",
            "printed",
            "output",
            "show",
            "detail",
            "one",
            "two",
            "broken",
            "status",
            "submitted",
            "superseded",
            "rehearsed",
            "planned",
            "before",
            "dropped",
        ],
    },
    Screen { path: "/resources/", word: "web~1", shows: &["service", "path", "local", "failed"] },
    Screen { path: "/resources/", word: "missing", shows: &["detail", "hint"] },
    Screen { path: "/problems?site=", word: "site2", shows: &["web~1", "text", "next"] },
    Screen { path: "/scope?scope=", word: "image: ", shows: &[] },
];

/// What screens are made of, after all of them was used.
fn used(browser: &Browser, fake: &Fake, refuses: bool) -> Vec<Vec<String>> {
    fake.is(if refuses { Mood::Refuses } else { Mood::Willing });
    // What can be refused is on these.
    let matters = |screen: &&Screen| {
        !refuses
            || [("/sites/", "site2"), ("/resources/", "mail")].contains(&(screen.path, screen.word))
    };
    SCREENS.iter().filter(matters).map(|screen| use_of(browser, fake, screen, refuses)).collect()
}

fn use_of(browser: &Browser, fake: &Fake, screen: &Screen, refuses: bool) -> Vec<String> {
    let url = match screen.word {
        "" => format!("{}{}", fake.url, screen.path),
        word => fake.about(screen.path, word),
    };
    browser.open(&url);
    browser.wait_for("#live", |text| text == "live");
    browser.script_until_done(USE, vec![json!(fake.words.text("typed"))]);
    let words = if refuses { &["detail"][..] } else { screen.shows };
    let texts = words.iter().map(|word| fake.words.text(word));
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let all: Vec<String> = texts.flat_map(lines).collect();
    let lacks = "return arguments[0].filter((line) => !document.body.textContent.includes(line))";
    assert_eq!(
        browser.script(lacks, vec![json!(all)]),
        json!([]),
        "{url} does not show it as it is"
    );
    let ours = "return [window.ran ?? 0, document.title.endsWith(' · site1 · Cheops')]";
    assert_eq!(browser.script(ours, Vec::new()), json!([0, true]), "{url}");
    assert_eq!(browser.script(FOREIGN, Vec::new()), json!([]), "{url}");
    serde_json::from_value(browser.script(SKELETON, Vec::new())).unwrap()
}

/// Uses all screens of a page whose texts are such, and gives what they are made of.
fn toured(words: Words) -> Vec<Vec<String>> {
    let fake = Fake::start(words, true);
    let browser = Browser::new();
    // The payloads do what they are meant to, where nothing keeps them from it.
    browser.open(&format!("{}/raw", fake.url));
    eventually("they run", || browser.script("return window.ran", Vec::new()) == 1);
    asked(&browser);
    complaints(&browser);
    let screens = [used(&browser, &fake, false), used(&browser, &fake, true)].concat();
    // The policy had nothing to forbid: texts are kept from harm before it has to.
    assert_eq!(complaints(&browser), Vec::<String>::new());
    assert_eq!(asked(&browser).into_iter().collect::<Vec<_>>(), [fake.url]);
    screens
}

#[test]
fn texts_change_nothing_of_a_page_but_its_text() {
    let (plain, hostile) = thread::scope(|scope| {
        let plain = scope.spawn(|| toured(Words::Plain));
        let hostile = toured(Words::Hostile);
        (plain.join().unwrap(), hostile)
    });
    assert_eq!(plain.len(), hostile.len());
    for (n, (plain, hostile)) in plain.iter().zip(&hostile).enumerate() {
        let apart = plain.iter().zip(hostile).position(|(plain, hostile)| plain != hostile);
        let around = apart.map(|at| at.saturating_sub(3)..=at);
        let around = around.map(|range| (&plain[range.clone()], &hostile[range]));
        assert_eq!(around, None, "screen {n}");
        assert_eq!(plain.len(), hostile.len(), "screen {n}");
    }
}

/// What would show that it is run, if it were.
const MARKUP: &str = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script>'\"><b hx-get=/evil hx-trigger=load>";

#[test]
fn what_real_agents_were_told_is_shown_and_never_run() {
    let field = Field::with_each(3, |n, _| {
        // A hook whose way to tell says this whenever it fails.
        let hook = format!(
            "[[hook]]\nname = 'loud'\ncommand = '''echo '{}' >&2; false'''\n",
            MARKUP.replace('\'', "")
        );
        if n == 0 { LINKS.to_owned() + &hook } else { LINKS.to_owned() }
    });
    let browser = Browser::new();
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    fs::write(field.directory(1).join("markup"), MARKUP).unwrap();
    let (status, stored) = field.sites[0].post("/api/v1/files", &MARKUP).unwrap();
    assert_eq!(status, 201, "{stored}");
    let stored: Stored = serde_json::from_str(&stored).unwrap();
    let print = format!("cat <<'E'\n{MARKUP}\nE\n");
    let file = File { name: "<b>".to_owned(), content: stored.content, length: stored.length };
    let request = Submit {
        sites: Some("site1 & site2".to_owned()),
        author: Some(MARKUP.to_owned()),
        kind: Some(MARKUP.to_owned()),
        key: Some(MARKUP.to_owned()),
        config: Some(json!({ "Show": print, "Reset": print })),
        files: vec![file],
        // It fails at one of the sites.
        ..submit(&format!("{print}cat {{<b>}}; test ! -e ../markup"), "set")
    };
    field.sites[0].exec("loud", &request);
    let parts = ["command", "kind", "author", "output", "Show"];
    browser.open(&url("/resources/loud"));
    browser.wait_for("#live", |text| text == "live");
    browser.wait_for("#seen", |text| text.contains("diverged"));
    browser.script(
        "for (const fold of document.querySelectorAll('details')) fold.open = true",
        vec![],
    );
    settle(&browser);
    browser.click("#show ~ form button");
    browser.wait_for("#show-answer", |text| text.contains(MARKUP));
    let count = browser.script(
        "return document.body.textContent.split(arguments[0]).length - 1",
        vec![json!(MARKUP)],
    );
    assert!(count.as_u64().unwrap() > parts.len() as u64, "{count}");
    for (path, shows) in [
        ("/problems", MARKUP),
        ("/sites/site1", "loud"),
        ("/sites/site2", "loud"),
        ("/resources?find=%3Cscript%3E", "No resource is like that"),
        ("/resources?site=%3Cscript%3E", "<script>"),
        ("/scope?scope=%3Cscript%3E", "<script>"),
        ("/resources/%3Cscript%3E", "<script>"),
    ] {
        browser.open(&url(path));
        browser.wait_for("body", |text| text.contains(shows));
    }
    let ran = browser.script("return [window.ran ?? 0, document.querySelectorAll('main img, main [hx-get*=evil]').length]", vec![]);
    assert_eq!(ran, json!([0, 0]));
    assert_eq!(complaints(&browser), Vec::<String>::new());
    assert_eq!(asked(&browser).into_iter().collect::<Vec<_>>(), [url("")]);
    let unread: Value = field.sites[0].try_get("/api/v1/problems").unwrap();
    assert!(unread["problems"].as_array().unwrap().len() > 1, "{unread}");
}
