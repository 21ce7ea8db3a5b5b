//! Real `OpenStack`: two sites with a Glance each that knows nothing of the other, the real `openstack`
//! client with the `--scope` of `clients/openstack`, and curl.
//!
//! `make test-openstack` installs what this needs, and runs it. The commands are those of the paper
//! that Cheops comes from, for images: nothing said, one site said, another site's image, and an image
//! at both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use field::{
    Field,
    application::{quiet, text},
    eventually,
    http::{Call, Client},
};

const LINKS: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'\n";
const BOTH: &str = "image: site1 & site2";
const PATCH: &str = "application/openstack-images-v2.1-json-patch";

/// Two sites, each with an agent and a Glance.
struct Clouds {
    field: Field,
    client: Client,
    files: tempfile::TempDir,
}

/// Where `make test-openstack` has installed OpenStack.
fn tools() -> PathBuf {
    let place = std::env::var_os("CHEOPS_OPENSTACK");
    PathBuf::from(place.unwrap_or_else(|| panic!("run this with `make test-openstack`")))
}

/// What one Glance needs to know: no authentication, a database in a file, images as files.
fn configure(directory: &Path) {
    for below in ["etc", "images", "staging", "tasks", "lock"] {
        fs::create_dir_all(directory.join(below)).unwrap();
    }
    let root = directory.display();
    let paste = tools().join("etc/glance/glance-api-paste.ini");
    fs::copy(&paste, directory.join("etc/glance-api-paste.ini")).unwrap();
    fs::write(directory.join("etc/policy.yaml"), "{}\n").unwrap();
    let config = format!(
        "[DEFAULT]\nenabled_backends = files:file\nlog_file = {root}/glance.log\nuse_stderr = false\n\
         [database]\nconnection = sqlite:///{root}/glance.db\n\
         [glance_store]\ndefault_backend = files\n\
         [files]\nfilesystem_store_datadir = {root}/images\n\
         [os_glance_staging_store]\nfilesystem_store_datadir = {root}/staging\n\
         [os_glance_tasks_store]\nfilesystem_store_datadir = {root}/tasks\n\
         [paste_deploy]\nconfig_file = {root}/etc/glance-api-paste.ini\n\
         [oslo_concurrency]\nlock_path = {root}/lock\n\
         [oslo_policy]\npolicy_file = {root}/etc/policy.yaml\nenforce_scope = false\n\
         enforce_new_defaults = false\n"
    );
    fs::write(directory.join("etc/glance-api.conf"), config).unwrap();
    let made = Command::new(tools().join("bin/glance-manage"))
        .arg("--config-file")
        .arg(directory.join("etc/glance-api.conf"))
        .arg("db_sync")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Clouds {
    fn start() -> Self {
        let field = Field::with_each(2, |_, ip| {
            format!(
                "[[service]]\nname = 'image'\nlisten = '{ip}:9292'\naddress = '127.0.0.1:19292'\n\
                 [mesh]\noutbound = '127.0.0.1:8077'\n{LINKS}"
            )
        });
        let client = Client::new();
        let places = [0, 1].map(|n| field.directory(n).join("glance"));
        thread::scope(|both| {
            for place in &places {
                both.spawn(|| configure(place));
            }
        });
        for (n, directory) in places.iter().enumerate() {
            let mut command = field.sites[n].command("env");
            command.arg(format!("OS_GLANCE_CONFIG_DIR={}", directory.join("etc").display()));
            command.arg(tools().join("bin/gunicorn"));
            // One request at a time: its database is a file, which it finds locked otherwise.
            command.args(["-w", "1", "--threads", "1", "-b", "0.0.0.0:19292"]);
            command.arg("glance.wsgi.api:application");
            // It ends with its site.
            drop(quiet(command));
        }
        let clouds = Self { field, client, files: tempfile::tempdir().unwrap() };
        for n in 0..2 {
            let url = clouds.glance(n, "/");
            let client = Client::patient(Duration::from_secs(2));
            eventually("Glance answers", || client.get(&url).try_send().is_some());
        }
        clouds
    }

    /// An address at an agent.
    fn agent(&self, n: usize, path: &str) -> String {
        format!("http://{}:9292{path}", self.field.net.ip(n))
    }

    /// An address at a Glance, past all agents.
    fn glance(&self, n: usize, path: &str) -> String {
        format!("http://{}:19292{path}", self.field.net.ip(n))
    }

    /// What the client prints as JSON when it is asked something at a site.
    fn openstack(&self, n: usize, scope: Option<&str>, arguments: &[&str]) -> Value {
        let (done, output, error) = self.try_openstack(n, scope, arguments);
        assert!(done, "openstack {arguments:?}: {error}");
        serde_json::from_str(&output).unwrap_or(Value::Null)
    }

    fn try_openstack(
        &self,
        n: usize,
        scope: Option<&str>,
        arguments: &[&str],
    ) -> (bool, String, String) {
        let mut command = Command::new(tools().join("bin/openstack"));
        command.args(["--os-auth-type", "none", "--os-endpoint", &self.agent(n, "")]);
        command.args(scope.map(|scope| ["--scope", scope]).iter().flatten());
        let output = command.args(arguments).output().unwrap();
        let [out, error] =
            [&output.stdout, &output.stderr].map(|t| String::from_utf8_lossy(t).into_owned());
        (output.status.success(), out, error)
    }

    /// Creates an image with the client, with data. Gives what the client was told.
    fn create(&self, n: usize, scope: Option<&str>, name: &str, data: &str) -> Value {
        let file = self.files.path().join(name);
        fs::write(&file, data).unwrap();
        let file = file.display().to_string();
        let create = ["image", "create", "--disk-format", "raw", "--container-format", "bare"];
        let rest = ["--file", &file, name, "-f", "json"];
        self.openstack(n, scope, &[&create[..], &rest].concat())
    }

    /// The names of the images that a site lists, with their ids.
    fn list(&self, n: usize, scope: Option<&str>) -> Vec<(String, String)> {
        let list = self.openstack(n, scope, &["image", "list", "-f", "json"]);
        let line = |image: &Value| (text(&image["Name"]), text(&image["ID"]));
        list.as_array().unwrap().iter().map(line).collect()
    }

    /// What a Glance itself has of a name.
    fn has(&self, n: usize, name: &str) -> Option<Value> {
        let url = self.glance(n, &format!("/v2/images?name={name}"));
        let list = self.client.get(&url).send().expect(200).json();
        let images = list["images"].as_array().unwrap();
        assert!(images.len() <= 1, "it was created twice: {images:?}");
        images.first().cloned()
    }

    /// Waits until both have an image that is as it should be. Gives what each has.
    fn settled(&self, name: &str, is: impl Fn(&Value) -> bool) -> [Value; 2] {
        let mut last = [Value::Null, Value::Null];
        let start = Instant::now();
        while !last.iter().all(&is) {
            assert!(start.elapsed() < field::SOON, "`{name}`: {last:#?}\n{}", self.told());
            last = [0, 1].map(|n| self.has(n, name).unwrap_or(Value::Null));
            thread::sleep(Duration::from_millis(20));
        }
        last
    }

    /// What went wrong at the Glances, and what the agents know of all images at several sites.
    fn told(&self) -> String {
        let mut told = String::new();
        for (n, site) in self.field.sites.iter().enumerate() {
            let log = field::read(&self.field.directory(n).join("glance/glance.log"));
            let errors = log.unwrap_or_default();
            let errors = errors.lines().filter(|line| line.contains("ERROR")).take(20);
            told += &errors.collect::<Vec<_>>().join("\n");
            let all: Value = site.try_get("/api/v1/replicants").unwrap_or_default();
            for replicant in all["replicants"].as_array().into_iter().flatten() {
                let resource = text(&replicant["resource"]);
                let known = site.resource(&resource);
                let _ = writeln!(told, "{}: {replicant}\n{known:#?}", site.name);
            }
        }
        told
    }

    fn curl(&self, method: &str, n: usize, path: &str) -> Call {
        self.client.call(method, &self.agent(n, path))
    }
}

/// What Glance says of data that it holds.
fn md5(data: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), data).unwrap();
    let output = Command::new("md5sum").arg(file.path()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap().to_owned()
}

/// Answers each request of a connection as a Glance without images, and hands on the value of `X-Scope`.
fn answer_as_glance(stream: TcpStream, address: &str, scopes: &mpsc::Sender<Option<String>>) {
    let versions = json!([{
        "id": "v2.9", "status": "CURRENT",
        "links": [{ "rel": "self", "href": format!("http://{address}/v2/") }],
    }]);
    let body = json!({ "images": [], "versions": versions }).to_string();
    let mut writer = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        let fields: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let scope = fields.iter().find_map(|field| field.strip_prefix("X-Scope: "));
        scopes.send(scope.map(str::to_owned)).unwrap();
        let status = if request.starts_with("GET / ") { 300 } else { 200 };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        writer.write_all((head + &body).as_bytes()).unwrap();
    }
}

/// The papers print scopes in braces. The client's library formats every option and every `OS_` variable
/// that it sees, and braces mean something there.
#[test]
#[ignore = "needs OpenStack: make test-openstack"]
fn the_client_sends_a_scope_as_it_is_written() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (to_scopes, scopes) = mpsc::channel();
    let at = address.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (at, to_scopes) = (at.clone(), to_scopes.clone());
            thread::spawn(move || answer_as_glance(stream.unwrap(), &at, &to_scopes));
        }
    });
    for (scope, expected) in [
        "image: site1 & site2",
        "{ image: site1 & site2 }",
        "{image: site1, compute: site2}",
        r#"{"image": "site1 & site2"}"#,
        "{}",
        "{image",
        "image: Évry",
    ]
    .map(|scope| (scope, scope))
    .into_iter()
    .chain([("{\n  \"image\": \"site1\"\n}\n", r#"{ "image": "site1" }"#)])
    {
        for by_option in [true, false] {
            let mut command = Command::new(tools().join("bin/openstack"));
            command.args(["--os-auth-type", "none", "--os-endpoint", &format!("http://{address}")]);
            if by_option {
                // The option counts where both are there.
                command.env("OS_SCOPE", "{ image: other }").args(["--scope", scope]);
            } else {
                command.env("OS_SCOPE", scope);
            }
            let output = command.args(["image", "list", "-f", "json"]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{scope} {by_option}: {error}");
            let sent: Vec<Option<String>> = scopes.try_iter().collect();
            assert!(!sent.is_empty(), "{scope}: nothing was asked for");
            assert!(sent.iter().all(|sent| sent.as_deref() == Some(expected)), "{scope}: {sent:?}");
        }
    }
}

#[test]
#[ignore = "needs OpenStack: make test-openstack"]
fn images_are_local_shared_and_at_both_sites_as_the_papers_commands_say() {
    let clouds = Clouds::start();

    // Command 1: nothing said. The site is an OpenStack like any other.
    let made = clouds.create(0, None, "vanilla", "data of site1");
    let vanilla = text(&made["id"]);
    assert_eq!(
        (&made["status"], &made["checksum"]),
        (&json!("active"), &json!(md5("data of site1")))
    );
    assert_eq!(clouds.list(0, None), [("vanilla".to_owned(), vanilla.clone())]);
    assert_eq!(clouds.list(1, None), []);
    assert_eq!(clouds.has(0, "vanilla").unwrap()["id"], vanilla.as_str());

    // Command 2: this site said. It needs no other, even when there is none.
    clouds.field.cut();
    let local = clouds.create(0, Some("{ image: site1 }"), "local", "more of site1");
    assert_eq!(clouds.list(0, Some("image: site1")).len(), 2);
    let shown = clouds.openstack(0, None, &["image", "show", "local", "-f", "json"]);
    assert_eq!(shown["id"], local["id"]);
    let (done, _, error) = clouds.try_openstack(0, Some("image: site2"), &["image", "list"]);
    assert!(!done, "site2 is cut off: {error}");
    clouds.field.heal();

    // Command 3: an image of site2, used from site1.
    let far = clouds.create(1, None, "far", "data of site2");
    let from_afar =
        clouds.openstack(0, Some("image: site2"), &["image", "show", "far", "-f", "json"]);
    assert_eq!(
        (&from_afar["id"], &from_afar["checksum"]),
        (&far["id"], &json!(md5("data of site2")))
    );
    let file = clouds.files.path().join("saved").display().to_string();
    clouds.openstack(0, Some("image: site2"), &["image", "save", "far", "--file", &file]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "data of site2");
    let (done, ..) = clouds.try_openstack(0, None, &["image", "show", "far"]);
    assert!(!done, "site1 itself does not have it");
    assert!(clouds.has(0, "far").is_none());

    // Command 4: an image at both.
    let data = "0123456789abcdef".repeat(40_000);
    let both = clouds.create(0, Some(r#"{"image": "site1 & site2"}"#), "both", &data);
    let meta = text(&both["id"]);
    assert_eq!(
        (&both["status"], &both["checksum"]),
        (&json!("active"), &json!(md5(&data))),
        "{both}"
    );
    let own = clouds.settled("both", |image| image["checksum"] == md5(&data));
    assert!(own.iter().all(|image| image["id"] != meta.as_str()) && own[0]["id"] != own[1]["id"]);
    for n in 0..2 {
        let shown = clouds.openstack(n, None, &["image", "show", &meta, "-f", "json"]);
        assert_eq!((&shown["id"], &shown["name"]), (&json!(meta), &json!("both")));
        assert!(clouds.list(n, None).contains(&("both".to_owned(), meta.clone())));
        let read = clouds.curl("GET", n, &format!("/v2/images/{meta}/file")).send().expect(200);
        assert!(read.text() == data, "site{}", n + 1);
        assert_eq!(read.site(), format!("site{}", n + 1));
    }
}

#[test]
#[ignore = "needs OpenStack: make test-openstack"]
fn an_image_at_both_sites_is_changed_and_deleted_at_both_during_a_cut_and_after() {
    let clouds = Clouds::start();
    let meta = text(&clouds.create(0, Some(BOTH), "debian", "first")["id"]);
    clouds.settled("debian", |image| image["status"] == "active");
    let path = format!("/v2/images/{meta}");
    eventually("site2 knows it", || clouds.curl("GET", 1, &path).send().status == 200);
    // With the client at one site, with curl at the other.
    clouds.openstack(1, None, &["image", "set", &meta, "--property", "color=red"]);
    let set = |n: usize, name: &str, value: &str| {
        let change = json!([{ "op": "add", "path": format!("/{name}"), "value": value }]);
        let call = clouds.curl("PATCH", n, &path).header("Content-Type", PATCH);
        let changed = call.body(change.to_string()).send().expect(200).json();
        assert_eq!((&changed["id"], &changed[name]), (&json!(meta), &json!(value)), "{changed}");
    };
    set(0, "shape", "round");
    clouds.settled("debian", |image| image["color"] == "red" && image["shape"] == "round");

    // During a cut both sides go on.
    clouds.field.cut();
    set(0, "one", "1");
    clouds.openstack(1, None, &["image", "set", &meta, "--property", "two=2", "--min-ram", "64"]);
    let during = clouds.create(0, Some(BOTH), "during", "data of the cut");
    let second = text(&during["id"]);
    assert_eq!(during["status"], "active", "{during}");
    assert!(clouds.has(1, "during").is_none());
    let seen = |n: usize| clouds.openstack(n, None, &["image", "show", &meta, "-f", "json"]);
    assert_eq!(seen(0)["properties"]["one"], "1");
    assert_eq!(seen(1)["properties"]["two"], "2");
    assert!(seen(0)["properties"]["two"].is_null());

    // After it, both have all of it.
    clouds.field.heal();
    clouds.settled("debian", |image| {
        image["one"] == "1" && image["two"] == "2" && image["min_ram"] == 64
    });
    let own = clouds.settled("during", |image| image["status"] == "active");
    for (n, own) in own.iter().enumerate() {
        assert_eq!(own["checksum"], md5("data of the cut"));
        assert!(clouds.list(n, None).contains(&("during".to_owned(), second.clone())));
    }
    for site in &clouds.field.sites {
        let states = || {
            let all: Value = site.try_get("/api/v1/replicants").unwrap();
            let states = all["replicants"].as_array().unwrap().iter();
            states.map(|one| text(&one["state"])).collect::<Vec<_>>()
        };
        eventually("nothing is left to do", || !states().contains(&"pending".to_owned()));
        assert_eq!(states(), ["settled", "settled"], "{}", clouds.told());
    }
    // Deleted on one side of a cut, and on both after it.
    clouds.field.cut();
    clouds.openstack(1, None, &["image", "delete", &meta]);
    assert!(clouds.has(1, "debian").is_none() && clouds.has(0, "debian").is_some());
    clouds.field.heal();
    eventually("both are gone", || (0..2).all(|n| clouds.has(n, "debian").is_none()));
    clouds.curl("DELETE", 0, &format!("/v2/images/{second}")).send().expect(204);
    eventually("both are gone", || (0..2).all(|n| clouds.has(n, "during").is_none()));
    for n in 0..2 {
        eventually("nothing is left", || clouds.list(n, None).is_empty());
    }
}
