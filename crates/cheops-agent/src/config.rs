//! A site's configuration: a TOML file, or flags alone, made into one checked value.
//!
//! What must stay true: each setting has a default except the site's name; a setting that is
//! misspelt is an error, not a default; no other module reads the file or the environment.

mod couchdb;
mod guard;
mod hook;
mod scopes;
mod service;
mod trust;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use cheops_core::{duration, id::SiteId, trust::PublicKey};
use serde::Deserialize;
use toml_parser::lexer::TokenKind;

use self::couchdb::CouchDbSection;
pub use self::couchdb::{CouchDb, Engine};
pub use self::guard::{Audit, Rates};
use self::guard::{AuditSection, LimitsSection};
pub use self::hook::{
    Hook, HookSection, Irc, IrcSection, MOST_HOOKS, Mail, MailSection, Secret, Server, Tls, Trust,
    Way, Web,
};
pub use self::scopes::{Network, OtherScopes, Scopes, ScopesFrom};
pub use self::service::{Cross, Divide, Gather, Ids, Limits, Mesh, Meta, Service, Split};
use self::service::{MeshSection, ServiceSection};
pub use self::trust::Pki;
use self::trust::TrustSection;
use crate::policy::{Environment, EnvironmentSection, Policy, PolicySection};

/// Where the API listens, as the original program does.
pub const API_PORT: u16 = 8079;
/// Where an agent listens for other agents.
pub const PEERS_PORT: u16 = 8078;
/// The most bytes of an output that may go into a reply, so that one fits into a message and into
/// the store, with a lot of room to spare.
pub const MOST_OUTPUT: usize = 4 << 20;

/// The most connections that the API may be told to serve.
pub const MOST_CONNECTIONS: usize = 1 << 20;
/// How many bytes of headers a request may be allowed; with fewer, not even ordinary ones fit.
const HEADER_BYTES: RangeInclusive<usize> = 8 << 10..=1 << 20;

/// Everything that an agent is told when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The name of the site.
    pub site: SiteId,
    /// Where the agent keeps what it must not lose.
    pub data: PathBuf,
    /// What keeps the operations and all that is known of them.
    pub engine: Engine,
    /// What stands in `[couchdb]`, whether that is the engine or not.
    pub couchdb: Option<CouchDb>,
    /// Where commands run.
    pub work: PathBuf,
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where it listens besides, for users of this machine.
    pub socket: Socket,
    /// What who asks has to show.
    pub entry: Entry,
    /// Where the agent listens for other agents.
    pub peers: SocketAddr,
    /// Where other agents reach this one, if that is not where it listens.
    pub advertise: Option<String>,
    /// The other sites.
    pub sites: BTreeMap<SiteId, Peer>,
    /// How sites recognise each other, if not by their keys alone.
    pub pki: Option<Pki>,
    /// What clients of the API may take.
    pub serve: Serve,
    /// How commands are run.
    pub runs: Runs,
    /// How links are kept.
    pub links: Links,
    /// How much is stored.
    pub store: Store,
    /// How the application's own requests pass.
    pub mesh: Mesh,
    /// How people are told what happened.
    pub hooks: Vec<Hook>,
    /// How long a site waits for another to tell of an operation for all sites.
    pub takeover: Duration,
    /// What may run here.
    pub policy: Policy,
    /// The file that this is from, if it is from one.
    pub file: Option<PathBuf>,
    /// The record of who asked for what.
    pub audit: Audit,
    /// How often one who asks may do so.
    pub rates: Rates,
}

/// The Unix socket of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// In the data directory, if its path is short enough for the system.
    InData,
    /// At a path.
    At(PathBuf),
    /// None.
    Off,
}

/// What who asks has to show, and what the agent shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// Those on this machine need a token, too.
    pub tokens_required: bool,
    /// The files of the certificate that the agent shows, and of its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Those who come from elsewhere need nothing, and nothing is protected on the way.
    pub insecure: bool,
}

/// Another site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where its agent listens: `host:port`.
    pub address: String,
    /// What it is recognised by. None where its certificate says who it is: then it says its key itself.
    pub key: Option<PublicKey>,
}

/// What clients of the API may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serve {
    /// How many connections are served at the same time.
    pub connections: usize,
    /// How many follow the change feed at the same time.
    pub feeds: usize,
    /// How many requests of one connection are served at the same time (HTTP/2).
    pub streams: u32,
    /// How long the headers of a request may take to arrive.
    pub headers: Duration,
    /// How many bytes they may have.
    pub header_bytes: usize,
    /// How long a connection may be open without a request.
    pub idle: Duration,
    /// How long a client may take nothing of its answer, or send nothing of its body.
    pub stall: Duration,
    /// Where people reach the page, if it is not where the API listens.
    pub page: Option<String>,
    /// How long a disk that is slow may take to accept an operation, beyond the wait. A site that a
    /// request was passed on to has half as long again, for the way there and back. Not a setting of
    /// the file: clients count on it.
    pub accept: Duration,
}

/// How commands are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// How many commands run at the same time.
    pub parallel: usize,
    /// How long one may run, unless its resource says otherwise.
    pub timeout: Duration,
    /// How many bytes of its output go into the reply.
    pub output: usize,
    /// How many bytes of its output are kept in a file.
    pub output_file: u64,
    /// The shell: `SHELL -c COMMAND`.
    pub shell: PathBuf,
    /// How long a resource must be quiet before its `Show` command is run, so that sites can be
    /// compared; never if there is none.
    pub show_after: Option<Duration>,
    /// The variables that commands get, unless a rule of the policy says otherwise.
    pub environment: Environment,
    /// How many files a command may have open, if that is not as many as the agent may. Not a setting
    /// of the file: it is what the agent was started with.
    pub open_files: Option<u64>,
}

/// How links are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    /// How often a site is asked whether it is still there.
    pub heartbeat: Duration,
    /// How long a site may be silent before it counts as unreachable.
    pub silence: Duration,
    /// The longest pause between two attempts to reach a site.
    pub retry: Duration,
    /// How many bytes may wait to be sent to one site. What is over is dropped, and found by
    /// comparing.
    pub queue: usize,
}

/// How much is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// With less free space than this, no operation and no file is accepted.
    pub reserve: u64,
    /// The largest file that may be attached to an operation.
    pub file: u64,
}

/// Whether a text is HOST:PORT.
pub(crate) fn is_address(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    let printable = text.chars().all(|letter| !letter.is_whitespace() && !letter.is_control());
    printable && text.len() < 256 && matches!(port, Some((host, Ok(_))) if !host.is_empty())
}

/// How many brackets may be open at once. The reader of TOML goes as deep as there are, and ends the program if there
/// are too many; no setting needs more than three.
const DEEPEST: usize = 100;

/// How many brackets are open at once, at most. One that closes another kind of bracket than the last one closes
/// nothing: the reader of TOML goes on below it.
fn depth(text: &str) -> usize {
    let (mut open, mut most) = (Vec::new(), 0);
    for token in toml_parser::Source::new(text).lex() {
        match token.kind() {
            bracket @ (TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket) => {
                open.push(bracket);
                most = most.max(open.len());
            }
            TokenKind::RightSquareBracket => {
                open.pop_if(|last| *last == TokenKind::LeftSquareBracket);
            }
            TokenKind::RightCurlyBracket => {
                open.pop_if(|last| *last == TokenKind::LeftCurlyBracket);
            }
            _ => {}
        }
    }
    most
}

impl Config {
    /// A site with this name and nothing but defaults; its data is kept in `data`.
    pub fn new(site: SiteId, data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            site,
            engine: Engine::default(),
            couchdb: None,
            work: data.join("work"),
            data,
            api: SocketAddr::from(([127, 0, 0, 1], API_PORT)),
            socket: Socket::InData,
            entry: Entry::default(),
            peers: SocketAddr::from(([0, 0, 0, 0], PEERS_PORT)),
            advertise: None,
            sites: BTreeMap::new(),
            pki: None,
            serve: Serve {
                connections: 1_024,
                feeds: 128,
                page: None,
                streams: 128,
                headers: Duration::from_secs(10),
                header_bytes: 64 << 10,
                idle: Duration::from_secs(75),
                stall: Duration::from_secs(30),
                accept: Duration::from_secs(10),
            },
            runs: Runs {
                parallel: 8,
                timeout: Duration::from_mins(5),
                output: 64 << 10,
                output_file: 64 << 20,
                shell: PathBuf::from("/bin/sh"),
                show_after: Some(Duration::from_secs(1)),
                environment: Environment::default(),
                open_files: None,
            },
            links: Links {
                heartbeat: Duration::from_secs(3),
                silence: Duration::from_secs(9),
                retry: Duration::from_secs(5),
                queue: 16 << 20,
            },
            store: Store { reserve: 64 << 20, file: 64 << 30 },
            mesh: Mesh::default(),
            hooks: Vec::new(),
            takeover: Duration::from_mins(1),
            policy: Policy::default(),
            file: None,
            audit: Audit::default(),
            rates: Rates::default(),
        }
    }

    /// The configuration in a file. Paths in it are relative to its own directory.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |problem| ConfigError { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let beside = path.parent().unwrap_or(Path::new("."));
        let config = Self::from_toml(&text, beside).map_err(failed)?;
        Ok(Self { file: Some(path.to_owned()), ..config })
    }

    /// The configuration in a text; paths are relative to a directory.
    pub fn from_toml(text: &str, beside: &Path) -> Result<Self, String> {
        if depth(text) > DEEPEST {
            return Err(format!("more than {DEEPEST} brackets are open at once: close them"));
        }
        let file: File = toml::from_str(text).map_err(|error| worded(text, &error))?;
        Self::from_file(file, beside).map_err(|problem| placed(text, problem))
    }

    fn from_file(file: File, beside: &Path) -> Result<Self, String> {
        let site: SiteId = file.site.parse().map_err(|error| format!("`site`: {error}"))?;
        let mut config = Self::new(site, beside.join(file.data.unwrap_or("data".into())));
        if let Some(work) = file.work {
            config.work = beside.join(work);
        }
        let couchdb = file.couchdb.map(|section| CouchDb::read(section, beside)).transpose()?;
        config.engine = Engine::read(file.engine.as_deref(), couchdb.as_ref())?;
        config.couchdb = couchdb;
        set(&mut config.api, file.listen.api);
        set(&mut config.peers, file.listen.peers);
        if let Some(address) = file.listen.advertise.as_ref().filter(|text| !is_address(text)) {
            return Err(format!("`listen.advertise`: `{address}` is not HOST:PORT"));
        }
        config.advertise = file.listen.advertise;
        match file.listen.socket.as_deref() {
            None => {}
            Some("off") => config.socket = Socket::Off,
            Some(path) => config.socket = Socket::At(beside.join(path)),
        }
        config.policy = Policy::read(file.policy, beside)?;
        config.entry = Entry::read(&file.api, &config.policy, beside)?;
        let named = config.couchdb.as_ref().is_some_and(|couchdb| couchdb.relay_name.is_some());
        if named && config.entry.certificate.is_none() {
            return Err("`couchdb.relay_name` needs `api.certificate` and `api.key`: CouchDB is shown the same certificate".into());
        }
        config.pki = Pki::read(file.trust, beside)?;
        for peer in file.peers {
            let name = peer.name.parse().map_err(|error| format!("`peer.name`: {error}"))?;
            let key = peer.key.map(|key| key.parse()).transpose();
            let key = key.map_err(|error| format!("`peer.key` of `{name}`: {error}"))?;
            config.add_site(name, peer.address, key)?;
        }
        let Config { serve, runs, links, store, .. } = &mut config;
        set(&mut serve.connections, file.api.connections);
        set(&mut serve.feeds, file.api.feeds);
        set(&mut serve.streams, file.api.streams);
        set(&mut serve.headers, span("api.headers", file.api.headers)?);
        set(&mut serve.header_bytes, file.api.header_bytes);
        set(&mut serve.idle, span("api.idle", file.api.idle)?);
        set(&mut serve.stall, span("api.stall", file.api.stall)?);
        serve.page = file.api.page;
        set(&mut runs.parallel, file.runs.parallel);
        set(&mut runs.output, file.runs.output);
        set(&mut runs.output_file, file.runs.output_file);
        // A name alone is looked for in PATH.
        let in_place = |shell: PathBuf| {
            if shell.components().count() > 1 { beside.join(shell) } else { shell }
        };
        set(&mut runs.shell, file.runs.shell.map(in_place));
        if let Some(quiet) = span("runs.show_after", file.runs.show_after)? {
            runs.show_after = Some(quiet).filter(|quiet| !quiet.is_zero());
        }
        set(&mut runs.timeout, span("runs.timeout", file.runs.timeout)?);
        if let Some(section) = file.runs.environment {
            let environment = Environment::read(section);
            let environment = environment.map_err(|problem| within_runs(&problem))?;
            runs.environment = environment.with_basic();
        }
        set(&mut links.heartbeat, span("links.heartbeat", file.links.heartbeat)?);
        set(&mut links.silence, span("links.silence", file.links.silence)?);
        set(&mut links.retry, span("links.retry", file.links.retry)?);
        set(&mut links.queue, file.links.queue);
        set(&mut store.reserve, file.store.reserve);
        set(&mut store.file, file.store.file);
        config.mesh = Mesh::read(file.mesh, file.services)?;
        for section in file.hook {
            let hook = Hook::read(section, beside)?;
            if config.hooks.iter().any(|other| other.name == hook.name) {
                return Err(format!("the hook `{}` is named twice", hook.name));
            }
            config.hooks.push(hook);
        }
        set(&mut config.takeover, span("hooks.takeover", file.hooks.takeover)?);
        config.audit = Audit::read(file.audit)?;
        config.rates = Rates::read(&file.limits);
        config.check()?;
        Ok(config)
    }

    /// Adds another site.
    pub fn add_site(
        &mut self,
        name: SiteId,
        address: String,
        key: impl Into<Option<PublicKey>>,
    ) -> Result<(), String> {
        let key = key.into();
        if name == self.site {
            return Err(format!("`{name}` is this site itself; a peer is another one"));
        }
        if !is_address(&address) {
            return Err(format!(
                "`{address}`, the address of `{name}`, is not HOST:PORT; its agent listens on port {PEERS_PORT} by default"
            ));
        }
        if self.sites.contains_key(&name) {
            return Err(format!("the peer `{name}` is named twice"));
        }
        if key.is_none() && self.pki.is_none() {
            return Err(format!(
                "`{name}` has no `peer.key`: `cheops site key` at `{name}` prints it"
            ));
        }
        let same = |peer: &Peer| key.is_some() && peer.key == key;
        if let Some((other, _)) = self.sites.iter().find(|(_, peer)| same(peer)) {
            return Err(format!("`{name}` has the key of `{other}`: each site has its own"));
        }
        self.sites.insert(name, Peer { address, key });
        Ok(())
    }

    /// Whether others than users of this machine can reach the API.
    pub fn is_wide(&self) -> bool {
        !self.api.ip().is_loopback()
    }

    /// Where people reach the page of this site, as far as that is known: what listens on loopback only
    /// is reached by those alone who are there.
    pub fn page(&self) -> Option<String> {
        let ip = self.api.ip();
        let listens = !ip.is_loopback() && !ip.is_unspecified();
        let scheme = if self.entry.certificate.is_some() { "https" } else { "http" };
        self.serve.page.clone().or_else(|| listens.then(|| format!("{scheme}://{}", self.api)))
    }

    /// Whether the settings make sense together.
    pub fn check(&self) -> Result<(), String> {
        let Serve { connections, feeds, streams, headers, header_bytes, idle, stall, .. } =
            self.serve;
        if let Some(page) = self.serve.page.as_deref().filter(|page| !is_web_address(page)) {
            return Err(format!("`api.page` is `{page}`: write it like http://site1.example:8079"));
        }
        if connections == 0 || feeds == 0 || streams == 0 {
            return Err(
                "`api.connections`, `api.feeds` and `api.streams` must be at least 1".into()
            );
        }
        if connections > MOST_CONNECTIONS || feeds > MOST_CONNECTIONS {
            return Err(format!(
                "`api.connections` and `api.feeds` must be at most {MOST_CONNECTIONS}: each takes memory and a file of the system"
            ));
        }
        if headers.is_zero() || idle.is_zero() || stall.is_zero() {
            return Err("`api.headers`, `api.idle` and `api.stall` must be longer than 0s".into());
        }
        if !HEADER_BYTES.contains(&header_bytes) {
            let (least, most) = (HEADER_BYTES.start(), HEADER_BYTES.end());
            return Err(format!("`api.header_bytes` must be from {least} to {most}"));
        }
        if self.runs.parallel == 0 {
            return Err("`runs.parallel` must be at least 1, or nothing would ever run".into());
        }
        if self.runs.timeout.is_zero() {
            return Err("`runs.timeout` must be longer than 0s, or nothing could be run".into());
        }
        if self.runs.output > MOST_OUTPUT {
            return Err(format!(
                "`runs.output` must be at most {MOST_OUTPUT}: it goes into each reply, to all sites; `runs.output_file` can be longer"
            ));
        }
        if self.hooks.len() > MOST_HOOKS {
            return Err(format!("there are more than {MOST_HOOKS} hooks"));
        }
        if self.takeover.is_zero() {
            return Err("`hooks.takeover` must be longer than 0s".into());
        }
        if self.links.heartbeat.is_zero() || self.links.retry.is_zero() {
            return Err("`links.heartbeat` and `links.retry` must be longer than 0s".into());
        }
        if self.links.silence <= self.links.heartbeat {
            return Err("`links.silence` must be longer than `links.heartbeat`".into());
        }
        self.audit.check()?;
        self.rates.check()
    }
}

impl Entry {
    fn read(section: &ApiSection, policy: &Policy, beside: &Path) -> Result<Self, String> {
        let tokens_required = match section.tokens.as_deref() {
            // Otherwise a command that is shut in would be let out by whoever answers on loopback.
            None => policy.confines(),
            Some("optional") => false,
            Some("required") => true,
            Some(other) => {
                return Err(format!("`api.tokens` is `{other}`: write required or optional"));
            }
        };
        let certificate = match (&section.certificate, &section.key) {
            (Some(certificate), Some(key)) => Some((beside.join(certificate), beside.join(key))),
            (None, None) => None,
            (Some(_), None) => return Err("`api.certificate` needs an `api.key` beside it".into()),
            (None, Some(_)) => return Err("`api.key` needs an `api.certificate` beside it".into()),
        };
        let insecure = section.insecure_anyone_may_do_anything.unwrap_or_default();
        Ok(Self { tokens_required, certificate, insecure })
    }
}

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the configuration {path} can't be used: {problem}", path = path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// An error of the reader, on one line.
fn worded(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) if !text.is_empty() => {
            format!("line {}: {}", before.matches('\n').count() + 1, error.message())
        }
        _ => error.message().to_owned(),
    }
}

/// A problem with a setting that it begins with, and the line of that setting.
fn placed(text: &str, problem: String) -> String {
    if let Some(line) = of_rule(text, &problem) {
        return format!("line {line}: {problem}");
    }
    let setting = problem.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    let Some((setting, _)) = setting else { return problem };
    let (section, name) = setting.rsplit_once('.').unwrap_or(("", setting));
    let mut within = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            within = line.trim_matches(['[', ']']).trim();
        }
        let key = line.split_once('=').map(|(key, _)| key.trim());
        let whole = within.is_empty() && key == Some(setting);
        if whole || (within == section && key == Some(name)) {
            return format!("line {}: {problem}", number + 1);
        }
    }
    problem
}

/// The line of the rule of the policy that a problem begins with.
fn of_rule(text: &str, problem: &str) -> Option<usize> {
    let (name, _) = problem.strip_prefix("the rule `")?.split_once('`')?;
    let names = |line: &str| {
        let value = line.trim().strip_prefix("name")?.trim_start().strip_prefix('=')?.trim();
        Some(value.get(1..value.len().checked_sub(1)?)? == name)
    };
    let (mut of_policy, mut found) = (false, None);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("[[") {
            of_policy = line.contains("policy.rule");
        }
        // Of two with one name the second is the one too many.
        if of_policy && names(line) == Some(true) {
            found = Some(number + 1);
        }
    }
    found
}

/// A problem with a setting of `[runs]`, whose name it begins with.
fn within_runs(problem: &str) -> String {
    problem.replacen('`', "`runs.", 1)
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

fn span(name: &str, text: Option<String>) -> Result<Option<Duration>, String> {
    let parse = |text: String| duration::parse(&text).map_err(|error| format!("`{name}`: {error}"));
    text.map(parse).transpose()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    site: String,
    data: Option<PathBuf>,
    work: Option<PathBuf>,
    engine: Option<String>,
    couchdb: Option<CouchDbSection>,
    #[serde(default)]
    listen: ListenSection,
    #[serde(default, rename = "peer")]
    peers: Vec<PeerSection>,
    #[serde(default)]
    api: ApiSection,
    #[serde(default)]
    runs: RunsSection,
    #[serde(default)]
    links: LinksSection,
    #[serde(default)]
    store: StoreSection,
    #[serde(default)]
    mesh: MeshSection,
    #[serde(default, rename = "service")]
    services: Vec<ServiceSection>,
    #[serde(default)]
    hook: Vec<HookSection>,
    #[serde(default)]
    hooks: HooksSection,
    #[serde(default)]
    policy: PolicySection,
    #[serde(default)]
    audit: AuditSection,
    #[serde(default)]
    limits: LimitsSection,
    #[serde(default)]
    trust: TrustSection,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct HooksSection {
    takeover: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ListenSection {
    api: Option<SocketAddr>,
    socket: Option<String>,
    peers: Option<SocketAddr>,
    advertise: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerSection {
    name: String,
    address: String,
    key: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ApiSection {
    connections: Option<usize>,
    feeds: Option<usize>,
    streams: Option<u32>,
    headers: Option<String>,
    header_bytes: Option<usize>,
    idle: Option<String>,
    stall: Option<String>,
    page: Option<String>,
    tokens: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    insecure_anyone_may_do_anything: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RunsSection {
    parallel: Option<usize>,
    timeout: Option<String>,
    output: Option<usize>,
    output_file: Option<u64>,
    shell: Option<PathBuf>,
    show_after: Option<String>,
    environment: Option<EnvironmentSection>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LinksSection {
    heartbeat: Option<String>,
    silence: Option<String>,
    retry: Option<String>,
    queue: Option<usize>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct StoreSection {
    reserve: Option<u64>,
    file: Option<u64>,
}

/// Whether a browser can be sent there.
pub fn is_web_address(text: &str) -> bool {
    let address = text.parse::<hyper::Uri>().ok();
    address.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
    })
}

#[cfg(test)]
mod tests;
