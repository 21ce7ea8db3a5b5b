//! That the page is safe to look at, for everybody to use, and honest.
//!
//! | module | question it answers |
//! |---|---|
//! | `fake` | how does a page look, whatever an agent says? |
//! | `says` | what can an agent say? |
//! | `text` | is what others write only shown? |
//! | `origin` | does a page ask nobody else, and can no other page ask for it? |
//! | `screens` | can everybody use each screen: light, dark, on a phone, with long names, with nothing to show? |
//! | `keyboard` | can it be used without a mouse, and without losing one's place? |
//! | `honest` | does a page say what it can't know now? |

mod fake;
mod honest;
mod keyboard;
mod origin;
mod says;
mod screens;
mod text;

use std::{collections::BTreeSet, net::SocketAddr};

use axum::Router;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

use crate::browser::Browser;

/// A web server in this process, that ends with this.
struct Server {
    address: SocketAddr,
    /// It is what serves.
    _runtime: Runtime,
}

impl Server {
    fn start(router: Router) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, router).await });
        Self { address, _runtime: runtime }
    }
}

/// Has the browser do what its own tools for developers can.
fn devtools(browser: &Browser, command: &str, parameters: &Value) -> Value {
    browser.ask("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
}

/// What the browser has noted since it was asked last.
fn noted(browser: &Browser, what: &str) -> Vec<Value> {
    let Value::Array(all) = browser.ask("se/log", &json!({ "type": what })) else {
        panic!("the log of the browser is a list")
    };
    all
}

/// What the network did for pages since it was asked last: events of the tools for developers.
fn traffic(browser: &Browser) -> Vec<Value> {
    let read = |entry: &Value| {
        let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
        let message = message["message"].clone();
        message["method"].as_str()?.starts_with("Network.").then_some(message)
    };
    noted(browser, "performance").iter().filter_map(read).collect()
}

/// Whom the browser has asked for anything, over all pages since the last time.
fn asked(browser: &Browser) -> BTreeSet<String> {
    let url = |event: &Value| {
        let (method, params) = (event["method"].as_str()?, &event["params"]);
        let url = match method {
            "Network.requestWillBeSent" => &params["request"]["url"],
            "Network.webSocketCreated" | "Network.webTransportCreated" => &params["url"],
            _ => return None,
        };
        url.as_str().map(str::to_owned)
    };
    let origin = |url: String| {
        let (scheme, rest) = url.split_once("://")?;
        // The browser's own pages come from nowhere.
        let host = rest.split('/').next().filter(|_| !scheme.starts_with("chrome"))?;
        Some(format!("{scheme}://{host}"))
    };
    traffic(browser).iter().filter_map(url).filter_map(origin).collect()
}

/// What went wrong in pages since the last time: what the policy had to forbid, and scripts that failed.
fn complaints(browser: &Browser) -> Vec<String> {
    let wrong =
        |entry: &&Value| matches!(entry["source"].as_str(), Some("security" | "javascript"));
    let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
    noted(browser, "browser").iter().filter(wrong).map(text).collect()
}

/// Shows pages as a phone does, or no more.
fn as_on_a_phone(browser: &Browser, phone: bool) {
    let (command, parameters) = if phone {
        let size = json!({ "width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": true });
        ("Emulation.setDeviceMetricsOverride", size)
    } else {
        ("Emulation.clearDeviceMetricsOverride", json!({}))
    };
    devtools(browser, command, &parameters);
}

/// Shows pages to somebody who prefers them dark, or light.
fn in_the_dark(browser: &Browser, dark: bool) {
    let value = if dark { "dark" } else { "light" };
    let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
    devtools(browser, "Emulation.setEmulatedMedia", &features);
}

/// Waits until a page does nothing more by itself for a moment.
fn settle(browser: &Browser) {
    let script = "const [done] = arguments;
        let calm = 0;
        const look = () => {
            calm = document.querySelector('.htmx-request, .htmx-settling') ? 0 : calm + 1;
            if (calm > 3) done(); else setTimeout(look, 25);
        };
        look();";
    browser.script_until_done(script, Vec::new());
}

/// Has the parts of a page that fetch themselves again do so, and waits until they have.
fn fetch_again(browser: &Browser) {
    // A part may wait a moment for more to happen, or take nothing in for a moment.
    let script = "const [done] = arguments;
        const parts = [...document.querySelectorAll('[hx-trigger*=\"sse:\"]')];
        const fetched = parts.map((part) => new Promise((go) => {
            const ask = () => part.isConnected ? htmx.trigger(part, 'sse:connected') : stop();
            const again = setInterval(ask, 250);
            const stop = () => { clearInterval(again); go(); };
            part.addEventListener('htmx:beforeRequest', stop, { once: true });
            ask();
        }));
        Promise.all(fetched).then(done);";
    browser.script_until_done(script, Vec::new());
    settle(browser);
}
