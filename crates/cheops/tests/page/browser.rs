//! A real browser, driven as a person would.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fantoccini::{Client, ClientBuilder, Locator, elements::Element, error::CmdError};
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
        ];
        let own = format!("--user-data-dir={}", profile.path().display());
        let options: Vec<&str> = options.into_iter().chain([own.as_str()]).collect();
        let capabilities = json!({ "goog:chromeOptions": { "args": options } });
        let Value::Object(capabilities) = capabilities else { panic!("it is an object") };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities);
            builder.connect(&format!("http://{address}")).await.unwrap()
        });
        Self { runtime, client, driver, _profile: profile }
    }

    pub(crate) fn open(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).unwrap();
    }

    /// Runs a script in the page, and gives what it returns.
    pub(crate) fn script(&self, script: &str, arguments: Vec<Value>) -> Value {
        self.runtime.block_on(self.client.execute(script, arguments)).unwrap()
    }

    /// Runs a script in the page that calls its last argument when it is done, and gives what it says.
    pub(crate) fn wait_script(&self, script: &str) -> Value {
        self.runtime.block_on(self.client.execute_async(script, Vec::new())).unwrap()
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
            element.send_keys(text).await
        });
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

    /// Where the page has been from: the hosts of all that it has fetched.
    pub(crate) fn fetched(&self) -> Vec<String> {
        let all = self.script(
            "return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)",
            Vec::new(),
        );
        serde_json::from_value(all).unwrap()
    }

    /// Makes sure that everybody can use the page as it is now, whatever they see, hear or move with.
    pub(crate) fn is_accessible(&self) {
        let axe = std::env::var("CHEOPS_AXE").unwrap_or_else(|_| AXE.to_owned());
        let Ok(axe) = fs::read_to_string(&axe) else { panic!("{axe} is missing: `make axe`") };
        self.script(&axe, Vec::new());
        let script = "const done = arguments[0];
            const matters = (v) => ['serious', 'critical'].includes(v.impact);
            const said = (v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | ');
            axe.run().then((r) => done(r.violations.filter(matters).map(said)));";
        let found = self.runtime.block_on(self.client.execute_async(script, Vec::new())).unwrap();
        assert_eq!(found, json!([]));
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
