//! A real browser, driven as a person would.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fantoccini::{
    Client, ClientBuilder, Locator,
    actions::{InputSource as _, KeyAction, KeyActions},
    elements::Element,
    error::CmdError,
};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// Where `make axe` puts the program that knows what keeps people from using a page.
const AXE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../target/tools/axe/files/axe_playwright_python/axe.min.js"
);

/// How long a page may take to show what it should.
const PATIENCE: Duration = Duration::from_secs(20);

/// Started programs that a browser needs, and the way to it.
pub(crate) struct Browser {
    runtime: Runtime,
    client: Client,
    driver: Child,
    /// Where the driver takes commands for this browser.
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn new() -> Self {
        let address: SocketAddr = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        };
        let mut driver = Command::new("chromedriver");
        driver
            .arg(format!("--port={}", address.port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver = driver.spawn().unwrap();
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "chromedriver does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let profile = tempfile::tempdir().unwrap();
        let options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1200,900",
            // As whoever rules a name can have it stand for any address.
            "--host-resolver-rules=MAP *.example 127.0.0.1",
        ];
        let own = format!("--user-data-dir={}", profile.path().display());
        let options: Vec<&str> = options.into_iter().chain([own.as_str()]).collect();
        let capabilities = json!({
            "goog:chromeOptions": { "args": options },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { panic!("it is an object") };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities);
            builder.connect(&format!("http://{address}")).await.unwrap()
        });
        let session = runtime.block_on(client.session_id()).unwrap().unwrap();
        let session = format!("http://{address}/session/{session}");
        Self { runtime, client, driver, session, _profile: profile }
    }

    /// Asks the driver for what only drivers of this browser can do.
    pub(crate) fn ask(&self, what: &str, body: &Value) -> Value {
        let answer = ureq::post(format!("{}/{what}", self.session))
            .content_type("application/json")
            .send(&serde_json::to_vec(body).unwrap()[..]);
        let text = answer.unwrap().body_mut().with_config().limit(1 << 30).read_to_string();
        let mut answer: Value = serde_json::from_str(&text.unwrap()).unwrap();
        answer["value"].take()
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let mut actions = KeyActions::new("keyboard".to_owned());
        for value in keys.chars() {
            actions = actions.then(KeyAction::Down { value }).then(KeyAction::Up { value });
        }
        self.runtime.block_on(self.client.perform_actions(actions)).unwrap();
    }

    pub(crate) fn open(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).unwrap();
    }

    /// Goes to a new tab.
    pub(crate) fn new_tab(&self) {
        let tab = self.runtime.block_on(self.client.new_window(true)).unwrap();
        self.runtime.block_on(self.client.switch_to_window(tab.handle)).unwrap();
    }

    /// Goes to the tab that was opened first.
    pub(crate) fn first_tab(&self) {
        let tabs = self.runtime.block_on(self.client.windows()).unwrap();
        self.runtime.block_on(self.client.switch_to_window(tabs[0].clone())).unwrap();
    }

    /// Runs a script in the page, and gives what it returns.
    pub(crate) fn script(&self, script: &str, arguments: Vec<Value>) -> Value {
        self.runtime.block_on(self.client.execute(script, arguments)).unwrap()
    }

    /// The text of the first element that is found, if it is there.
    pub(crate) fn text(&self, css: &str) -> Option<String> {
        self.with(css, &async |element: &Element| element.text().await)
    }

    pub(crate) fn click(&self, css: &str) {
        self.insist(css, &async |element: &Element| element.click().await);
    }

    /// Writes into a field, instead of what is there.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        self.insist(css, &async |element: &Element| {
            element.clear().await?;
            // A page does not hear of what is only cleared: something is typed and taken back.
            element.send_keys(if text.is_empty() { "x\u{e003}" } else { text }).await
        });
    }

    /// Chooses one of the values of a field.
    pub(crate) fn choose(&self, css: &str, value: &str) {
        self.insist(css, &async |element: &Element| element.select_by_value(value).await);
    }

    /// Adds a file to a field.
    pub(crate) fn attach(&self, css: &str, file: &Path) {
        self.insist(css, &async |element: &Element| {
            element.send_keys(file.to_str().unwrap_or_default()).await
        });
    }

    /// Where the browser is.
    pub(crate) fn address(&self) -> String {
        self.runtime.block_on(self.client.current_url()).unwrap().to_string()
    }

    /// How many elements are like that now.
    pub(crate) fn count(&self, css: &str) -> usize {
        let script = "return document.querySelectorAll(arguments[0]).length";
        serde_json::from_value(self.script(script, vec![json!(css)])).unwrap()
    }

    /// Waits until so many elements are like that.
    pub(crate) fn wait_for_count(&self, css: &str, expected: usize) {
        let start = Instant::now();
        while self.count(css) != expected {
            if start.elapsed() > PATIENCE {
                self.shot("failed");
                panic!("there are {} of {css}, not {expected}", self.count(css));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the page is live. Whatever is seen from now on is seen without loading it again, or
    /// [`Browser::is_still_there`] says so.
    pub(crate) fn stay(&self) {
        self.wait_for("#live", |text| text == "live");
        self.script("window.sameAsBefore = true", Vec::new());
    }

    /// Whether the page is the one that was live.
    pub(crate) fn is_still_there(&self) -> bool {
        self.script("return window.sameAsBefore === true", Vec::new()) == true
    }

    /// Waits until the text of an element is as it should be.
    pub(crate) fn wait_for(&self, css: &str, is: impl Fn(&str) -> bool) -> String {
        let (start, mut last) = (Instant::now(), None);
        while start.elapsed() < PATIENCE {
            last = self.text(css);
            if let Some(text) = last.as_deref().filter(|text| is(text)) {
                return text.to_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.shot("failed");
        panic!("{css} is not as it should be: {last:?}");
    }

    /// A picture of the page, in the folder of pictures.
    pub(crate) fn shot(&self, name: &str) {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&folder).unwrap();
        let picture = self.runtime.block_on(self.client.screenshot()).unwrap();
        fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }

    /// Makes sure that everybody can use the page as it is now, whatever they see, hear or move with.
    pub(crate) fn is_accessible(&self) {
        assert_eq!(self.barriers(&json!({})), Vec::<String>::new());
    }

    /// What keeps somebody from using the page as it is now, as far as these options look.
    pub(crate) fn barriers(&self, options: &Value) -> Vec<String> {
        if self.script("return typeof axe", Vec::new()) == "undefined" {
            let axe = std::env::var("CHEOPS_AXE").unwrap_or_else(|_| AXE.to_owned());
            let Ok(axe) = fs::read_to_string(&axe) else { panic!("{axe} is missing: `make axe`") };
            self.script(&axe, Vec::new());
        }
        let script = "const [options, done] = arguments;
            const matters = (v) => ['serious', 'critical'].includes(v.impact);
            const said = (v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | ');
            axe.run({ resultTypes: ['violations'], ...options }).then((r) => done(r.violations.filter(matters).map(said)));";
        serde_json::from_value(self.script_until_done(script, vec![options.clone()])).unwrap()
    }

    /// Runs a script in the page that gets a function to call with what it gives.
    pub(crate) fn script_until_done(&self, script: &str, arguments: Vec<Value>) -> Value {
        self.runtime.block_on(self.client.execute_async(script, arguments)).unwrap()
    }

    /// Does something with an element, if it is there and stays so.
    fn with<T>(
        &self,
        css: &str,
        does: &impl AsyncFn(&Element) -> Result<T, CmdError>,
    ) -> Option<T> {
        self.runtime.block_on(async {
            let element = self.client.find(Locator::Css(css)).await.ok()?;
            does(&element).await.ok()
        })
    }

    /// Does it, as soon as it can be done: parts of a page come and go.
    fn insist<T>(&self, css: &str, does: &impl AsyncFn(&Element) -> Result<T, CmdError>) {
        let start = Instant::now();
        while self.with(css, does).is_none() {
            if start.elapsed() > PATIENCE {
                self.shot("failed");
                panic!("there is no {css} that can be used");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.runtime.block_on(self.client.clone().close());
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
