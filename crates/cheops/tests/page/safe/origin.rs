//! Whose page may do what: ours ask nobody but their agent, and nobody else's page gets anything from an
//! agent, has it do anything, or shows one of its pages as its own.

use std::{io::Write as _, net::TcpStream};

use axum::{Router, response::Html, routing::get};
use serde_json::{Value, json};

use super::{Server, traffic};
use crate::{
    browser::Browser,
    field::{agent::Agent, submit},
};

/// What the pages of others try, each with what may come of it.
const ATTEMPTS: &str = "const [home, done] = arguments;
    const send = (path, options) => fetch(home + path, options).then((a) => a.type, () => 'refused');
    const urlencoded = 'application/x-www-form-urlencoded';
    const operation = JSON.stringify({ command: 'touch foreign', sites: 'site1' });
    let frames = 0;
    const form = (path, enctype, fields) => new Promise((go) => {
        const frame = Object.assign(document.createElement('iframe'), { name: `frame${frames++}` });
        document.body.appendChild(frame);
        const form = document.body.appendChild(document.createElement('form'));
        Object.assign(form, { action: home + path, method: 'post', enctype, target: frame.name });
        for (const [name, value] of Object.entries(fields)) {
            form.appendChild(Object.assign(document.createElement('input'), { name, value }));
        }
        frame.onload = () => go('sent');
        setTimeout(go, 2000, 'silent');
        form.submit();
    });
    const load = (tag, path) => new Promise((go) => {
        const element = document.body.appendChild(document.createElement(tag));
        element.onload = () => go('loaded');
        element.onerror = () => go('refused');
        setTimeout(go, 2000, 'silent');
        element.src = home + path;
    });
    const follow = (path) => new Promise((go) => {
        const source = new EventSource(home + path);
        source.onopen = () => go('open');
        source.onerror = () => { source.close(); go('refused'); };
    });
    (async () => {
        const said = [];
        for (const headers of [{ 'content-type': urlencoded }, { 'content-type': 'text/plain' }]) {
            for (const mode of ['no-cors', 'cors']) {
                const options = { method: 'POST', headers, mode };
                said.push(await send('/resources/x/delete', { ...options, body: 'sure=on' }));
                said.push(await send('/resources/x/run', { ...options, body: 'command=touch+foreign' }));
                said.push(await send('/sites/site1/pause', { ...options, body: '' }));
                said.push(await send('/api/v1/resources/x/operations', { ...options, body: operation }));
                said.push(await send('/api/v1/sites/site1/pause', { ...options, body: '' }));
                said.push(await send('/api/v1/files', { ...options, body: 'foreign' }));
            }
        }
        said.push(await send('/api/v1/resources/x/operations',
            { method: 'POST', headers: { 'content-type': 'application/json' }, body: operation }));
        said.push(await send('/api/v1/resources/x', { method: 'DELETE' }));
        navigator.sendBeacon(home + '/resources/x/delete', new URLSearchParams({ sure: 'on' }));
        await form('/resources/x/delete', urlencoded, { sure: 'on' });
        await form('/api/v1/resources/x/operations', 'text/plain', { '{\"command\":\"touch foreign\",\"a': '\":1}' });
        await form('/exec/x', 'multipart/form-data', { command: 'touch foreign', sites: 'site1' });
        for (const path of ['/', '/api/v1/sites', '/part/sites']) {
            said.push(await send(path, { mode: 'cors' }), await send(path, { mode: 'no-cors' }));
        }
        said.push(await load('img', '/assets/mark.svg'), await load('script', '/api/v1/sites'));
        said.push(await follow('/live'), await follow('/api/v1/changes'));
        await load('iframe', '/');
        await load('iframe', '/resources/x');
        done(said);
    })();";

#[test]
fn pages_of_others_do_nothing_and_learn_nothing_here() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::alone(directory.path());
    let made = cheops_agent::api::model::Submit {
        sites: Some("site1".to_owned()),
        ..submit("true", "set")
    };
    agent.exec("x", &made);
    let before = agent.resource("x").unwrap();
    let page = "<!doctype html><title>other</title><body>";
    let others = Server::start(Router::new().fallback(get(move || async move { Html(page) })));
    let browser = Browser::new();
    let port = others.address.port();
    for other in [format!("http://127.0.0.1:{port}/"), format!("http://evil.example:{port}/")] {
        browser.open(&other);
        traffic(&browser);
        let said = browser.script_until_done(ATTEMPTS, vec![json!(agent.url)]);
        let said: Vec<String> = serde_json::from_value(said).unwrap();
        // What can be sent without asking is answered to nobody: `opaque` says nothing.
        assert!(said.iter().all(|said| said == "refused" || said == "opaque"), "{other}: {said:?}");
        let refused = statuses(&browser, &agent.url);
        assert!(refused.len() > 15 && refused.iter().all(|status| *status == 403), "{refused:?}");
    }
    // A form that takes its sender along.
    let leave = "const form = document.body.appendChild(document.createElement('form'));
        Object.assign(form, { method: 'post', action: arguments[0] + '/resources/x/delete?sure=on' });
        form.submit();";
    browser.script(leave, vec![json!(agent.url)]);
    browser.wait_for("body", |text| text.contains("foreign-origin"));
    let after = agent.resource("x").unwrap();
    assert_eq!((after.operations, after.summary.deleting), (before.operations, false));
    assert!(!agent.work().join("foreign").exists());
    // A name that stands for this host, but that its owner gave it.
    let address = agent.url.trim_start_matches("http://");
    let port = address.rsplit(':').next().unwrap();
    browser.open(&format!("http://evil.example:{port}/"));
    browser.wait_for("body", |text| text.contains("foreign-host"));
    // And a link, which can be followed from anywhere.
    browser.open(&format!("http://{}/", others.address));
    browser.script("location = arguments[0]", vec![json!(agent.url)]);
    browser.wait_for("h1", |text| text == "Sites");
}

/// The statuses with which an agent has answered since the last time.
fn statuses(browser: &Browser, url: &str) -> Vec<u64> {
    let status = |event: &Value| {
        let response = &event["params"]["response"];
        let is = event["method"] == "Network.responseReceived"
            && response["url"].as_str().is_some_and(|asked| asked.starts_with(url));
        is.then(|| response["status"].as_u64().unwrap_or_default())
    };
    traffic(browser).iter().filter_map(status).collect()
}

#[test]
fn every_answer_tells_the_browser_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::alone(directory.path());
    let made = cheops_agent::api::model::Submit {
        sites: Some("site1".to_owned()),
        ..submit("true", "set")
    };
    agent.exec("x", &made);
    let operation = "/part/resources/x/operations/site1%3A1/output?site=site1&attempt=1";
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/sites/site1"),
        ("GET", "/sites/nowhere"),
        ("GET", "/resources"),
        ("GET", "/resources?state=odd"),
        ("GET", "/resources/x"),
        ("GET", "/resources/nothing"),
        ("GET", "/problems"),
        ("GET", "/scope?scope=%26"),
        ("GET", "/part/sites"),
        ("GET", "/part/sites/site1"),
        ("GET", "/part/grid"),
        ("GET", "/part/problems"),
        ("GET", "/part/resources/x"),
        ("GET", operation),
        ("POST", "/resources/x/delete"),
        ("POST", "/create/matrix"),
        ("GET", "/assets/page.js"),
        ("GET", "/assets/page.css"),
        ("GET", "/assets/mark.svg"),
        ("GET", "/assets/none"),
        ("GET", "/live"),
        ("GET", "/nothing"),
        // What others wrote can be asked for by itself.
        ("GET", "/api/v1/resources/x/operations/site1:1/output?site=site1"),
        ("GET", "/api/v1/resources/x"),
        ("GET", "/metrics"),
    ] {
        let head = head(&agent, method, path);
        for rule in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "cache-control: ",
        ] {
            assert!(head.contains(rule), "{method} {path}: {rule} is not in {head}");
        }
    }
}

/// The head of an answer, which may have no end.
fn head(agent: &Agent, method: &str, path: &str) -> String {
    use std::io::{BufRead as _, BufReader};
    let address = agent.url.trim_start_matches("http://");
    let mut tcp = TcpStream::connect(address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n\r\n"
    );
    tcp.write_all(request.as_bytes()).unwrap();
    let lines = BufReader::new(tcp).lines().map(Result::unwrap).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n").to_lowercase()
}
