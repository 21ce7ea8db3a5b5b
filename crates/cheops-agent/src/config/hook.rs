//! Hooks, as a site's configuration and the API have them.
//!
//! What must stay true: a hook has one way to tell, and only settings of that way; a secret is never
//! printed; what is misspelt, or could never be told of, is an error.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper::Uri;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{set, span};
use crate::hooks::{Filter, Mode, Name, Pattern};

/// How many hooks a site has at most.
pub const MOST_HOOKS: usize = 64;
/// How many events may wait without a word, and at most.
const KEEP: usize = 10_000;
const MOST_KEPT: usize = 100_000;
/// The longest that one delivery may take.
const LONGEST: Duration = Duration::from_mins(10);

/// A way to tell people what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// Which events it tells of.
    pub filter: Filter,
    /// How it tells.
    pub way: Way,
    /// How long one delivery may take.
    pub timeout: Duration,
    /// The longest pause between two attempts.
    pub retry: Duration,
    /// How long an event may wait before it is given up.
    pub give_up: Duration,
    /// How many events may wait.
    pub keep: usize,
}

/// How a hook tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// By a request.
    Web(Web),
    /// By a command line of the shell.
    Command(String),
    /// By e-mail.
    Mail(Mail),
    /// In a channel of IRC.
    Irc(Irc),
}

/// A request to a web server.
#[derive(Clone, PartialEq, Eq)]
pub struct Web {
    /// Where.
    pub url: Uri,
    /// What the request is signed with.
    pub secret: Option<Secret>,
    /// Who vouches for the server, if not those whom the system trusts.
    pub ca: Option<PathBuf>,
}

impl fmt::Debug for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What comes after the host often holds a token.
        let host = self.url.host();
        let Self { secret, ca, .. } = self;
        f.debug_struct("Web").field("host", &host).field("secret", secret).field("ca", ca).finish()
    }
}

/// An e-mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// The server.
    pub server: Server,
    /// How the connection is protected.
    pub tls: Tls,
    /// From whom.
    pub from: String,
    /// To whom.
    pub to: Vec<String>,
    /// Who we are for the server, and what proves it.
    pub login: Option<(String, Secret)>,
    /// Who vouches for the server, if not those whom the system trusts.
    pub ca: Option<PathBuf>,
}

/// A channel of IRC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irc {
    /// The server.
    pub server: Server,
    /// Our name there.
    pub nick: String,
    /// Where to speak.
    pub channel: String,
    /// The password of the server.
    pub password: Option<Secret>,
    /// How the connection is protected, if it is.
    pub tls: Option<Trust>,
}

/// Whom to trust with a connection that is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// Who vouches for the server, if not those whom the system trusts.
    pub ca: Option<PathBuf>,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How a connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// It is not.
    None,
    /// It begins in the open, and must become protected.
    StartTls,
    /// From the beginning.
    Wrapped,
}

/// Something that nobody else may know.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The text itself.
    Text(String),
    /// It is in a file, and read each time, so that it can be changed.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("…"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl Secret {
    /// The text; without the end of the line, if it is in a file.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => match fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => {
                    Err(format!("the secret in {} can't be read: {error}", path.display()))
                }
            },
        }
    }
}

/// A text that is never printed, except where it is kept.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Hush(String);

impl fmt::Debug for Hush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A hook, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[serde(default)]
pub struct HookSection {
    /// Its name: letters, digits, `-` and `_`.
    #[schema(required = true)]
    pub name: String,
    /// Which events it tells of: `operation.failed`, `site.*`; all without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<Vec<String>>,
    /// Only of resources that match one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    /// Only of operations of these kinds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kinds: Vec<String>,
    /// Only of what happened at these sites; at its own without it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sites: Vec<String>,
    /// `each` or `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    /// How long one delivery may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    /// The longest pause between two attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<String>,
    /// How long an event may wait before it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    give_up: Option<String>,
    /// How many events may wait; with more, the oldest is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<usize>,
    /// Tell by a web request to this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    url: Option<Hush>,
    /// What the request is signed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    secret: Option<Hush>,
    /// The file that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    secret_file: Option<PathBuf>,
    /// A file of certificates to trust, instead of those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ca: Option<PathBuf>,
    /// Tell by a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    command: Option<Hush>,
    /// Tell by e-mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    mail: Option<MailSection>,
    /// Tell in a channel of IRC.
    #[serde(skip_serializing_if = "Option::is_none")]
    irc: Option<IrcSection>,
}

impl HookSection {
    /// Whether it tells by a command of the shell.
    pub fn runs_a_command(&self) -> bool {
        self.command.is_some()
    }
}

/// How to send e-mail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MailSection {
    /// `HOST` or `HOST:PORT`.
    server: String,
    /// From whom.
    from: String,
    /// To whom.
    to: Vec<String>,
    /// `starttls`, `tls` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<String>,
    /// Who we are for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// What proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    password: Option<Hush>,
    /// The file that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    password_file: Option<PathBuf>,
    /// A file of certificates to trust, instead of those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ca: Option<PathBuf>,
}

/// Where to speak in IRC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IrcSection {
    /// `HOST` or `HOST:PORT`.
    server: String,
    /// The channel: `#ops`.
    channel: String,
    /// Our name there; `cheops` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nick: Option<String>,
    /// The password of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    password: Option<Hush>,
    /// The file that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    password_file: Option<PathBuf>,
    /// Whether the connection is protected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<bool>,
    /// A file of certificates to trust, instead of those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ca: Option<PathBuf>,
}

impl Hook {
    /// Makes a hook of what was written; paths are relative to a directory.
    pub fn read(section: HookSection, beside: &Path) -> Result<Self, String> {
        let name = section.name.clone();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > 63 || !name.chars().all(plain) {
            return Err(format!(
                "a hook needs a `name` of at most 63 letters a to z, digits, `-` and `_`; `{name}` is none"
            ));
        }
        Self::of(section, beside).map_err(|problem| format!("the hook `{name}`: {problem}"))
    }

    fn of(section: HookSection, beside: &Path) -> Result<Self, String> {
        let patterns = |texts: &[String]| texts.iter().map(Pattern::new).collect::<Vec<_>>();
        let mode = match section.mode.as_deref() {
            None | Some("each") => Mode::Each,
            Some("summary") => Mode::Summary,
            Some(other) => {
                return Err(format!("`mode` is `each` or `summary`, and not `{other}`"));
            }
        };
        let mut filter = Filter {
            resources: patterns(&section.resources),
            kinds: patterns(&section.kinds),
            sites: patterns(&section.sites),
            mode,
            ..Filter::default()
        };
        set(&mut filter.on, section.on.as_deref().map(patterns));
        check_events(&filter)?;
        let mut hook = Self {
            name: section.name.clone(),
            filter,
            way: way(&section, beside)?,
            timeout: Duration::from_secs(10),
            retry: Duration::from_mins(5),
            give_up: Duration::from_hours(24),
            keep: section.keep.unwrap_or(KEEP),
        };
        set(&mut hook.timeout, span("timeout", section.timeout)?);
        set(&mut hook.retry, span("retry", section.retry)?);
        set(&mut hook.give_up, span("give_up", section.give_up)?);
        if hook.timeout.is_zero() || hook.timeout > LONGEST {
            return Err("`timeout` must be longer than 0s, and at most 10m".into());
        }
        if hook.retry.is_zero() || hook.give_up.is_zero() {
            return Err("`retry` and `give_up` must be longer than 0s".into());
        }
        if hook.keep == 0 || hook.keep > MOST_KEPT {
            return Err(format!("`keep` is between 1 and {MOST_KEPT}"));
        }
        Ok(hook)
    }
}

fn check_events(filter: &Filter) -> Result<(), String> {
    if filter.on.is_empty() {
        return Err(
            "`on` names no event, so nothing would ever be told; leave it out for all".into()
        );
    }
    let Some(vain) = filter.vain() else { return Ok(()) };
    Err(match filter.mode {
        Mode::Summary => format!(
            "`on`: a summary is `operation.settled`, `operation.failed` or `operation.superseded`; `{vain}` is none of them"
        ),
        Mode::Each => {
            let names: Vec<&str> = Name::ALL.iter().map(|name| name.as_str()).collect();
            format!("`on`: no event is called `{vain}`; there are {}", names.join(", "))
        }
    })
}

fn way(section: &HookSection, beside: &Path) -> Result<Way, String> {
    let HookSection { url, command, mail, irc, secret, secret_file, ca, .. } = section;
    if url.is_none() && (secret.is_some() || secret_file.is_some() || ca.is_some()) {
        return Err("`secret`, `secret_file` and `ca` go with `url`".into());
    }
    match (url, command, mail, irc) {
        (Some(Hush(url)), None, None, None) => Ok(Way::Web(Web {
            url: web(url)?,
            secret: either("secret", secret.as_ref(), secret_file.as_deref(), beside)?,
            ca: ca.as_ref().map(|path| beside.join(path)),
        })),
        (None, Some(Hush(command)), None, None) if command.trim().is_empty() => {
            Err("`command` is empty".into())
        }
        (None, Some(Hush(command)), None, None) => Ok(Way::Command(command.clone())),
        (None, None, Some(section), None) => mail_of(section, beside).map(Way::Mail),
        (None, None, None, Some(section)) => irc_of(section, beside).map(Way::Irc),
        (None, None, None, None) => {
            Err("it needs a way to tell: one of `url`, `command`, `mail` and `irc`".into())
        }
        _ => Err("it has several ways to tell; make a hook of each".into()),
    }
}

fn web(text: &str) -> Result<Uri, String> {
    // The address itself is not repeated: it may hold a token or a password.
    let wrong = |why: &str| format!("`url` {why}; it is like https://host/path");
    let url: Uri = text.parse().map_err(|_| wrong("is no address"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(wrong("begins with neither http:// nor https://"));
    }
    match url.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err("`url`: a password in an address is shown to whoever looks; use `secret`".into())
        }
        Some(authority) if !authority.host().is_empty() => Ok(url),
        _ => Err(wrong("names no host")),
    }
}

fn mail_of(section: &MailSection, beside: &Path) -> Result<Mail, String> {
    let tls = match section.tls.as_deref() {
        None | Some("starttls") => Tls::StartTls,
        Some("tls") => Tls::Wrapped,
        Some("none") => Tls::None,
        Some(other) => {
            return Err(format!("`mail.tls` is `starttls`, `tls` or `none`, and not `{other}`"));
        }
    };
    let port = match tls {
        Tls::None => 25,
        Tls::StartTls => 587,
        Tls::Wrapped => 465,
    };
    if section.to.is_empty() {
        return Err("`mail.to` names nobody".into());
    }
    for address in section.to.iter().chain([&section.from]) {
        if let Err(error) = address.parse::<lettre::message::Mailbox>() {
            return Err(format!("`mail`: `{address}` is no address of e-mail: {error}"));
        }
    }
    let (given, file) = (section.password.as_ref(), section.password_file.as_deref());
    let password = either("mail.password", given, file, beside)?;
    let login = match (&section.user, password) {
        (None, None) => None,
        (Some(user), Some(password)) => Some((user.clone(), password)),
        _ => return Err("`mail.user` and `mail.password` go together".into()),
    };
    if login.is_some() && tls == Tls::None {
        return Err("`mail.password` would be sent in the open with `tls = \"none\"`".into());
    }
    Ok(Mail {
        server: server("mail.server", &section.server, port)?,
        tls,
        from: section.from.clone(),
        to: section.to.clone(),
        login,
        ca: section.ca.as_ref().map(|path| beside.join(path)),
    })
}

fn irc_of(section: &IrcSection, beside: &Path) -> Result<Irc, String> {
    let nick = section.nick.clone().unwrap_or_else(|| "cheops".to_owned());
    let word = |text: &str| !text.contains(|c: char| c == ' ' || c == ',' || c.is_control());
    if nick.is_empty() || !word(&nick) || nick.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("`irc.nick`: `{nick}` can't be a name in IRC"));
    }
    let channel = section.channel.clone();
    if !channel.starts_with(['#', '&']) || !word(&channel) {
        return Err(format!("`irc.channel`: `{channel}` is no channel; it is like #ops"));
    }
    let (given, file) = (section.password.as_ref(), section.password_file.as_deref());
    let password = either("irc.password", given, file, beside)?;
    let tls = section.tls == Some(true);
    if section.ca.is_some() && !tls {
        return Err("`irc.ca` goes with `tls = true`".into());
    }
    let port = if tls { 6697 } else { 6667 };
    let ca = section.ca.as_ref().map(|path| beside.join(path));
    Ok(Irc {
        server: server("irc.server", &section.server, port)?,
        nick,
        channel,
        password,
        tls: tls.then_some(Trust { ca }),
    })
}

fn server(setting: &str, text: &str, port: u16) -> Result<Server, String> {
    let wrong = || format!("`{setting}`: `{text}` is not HOST or HOST:PORT");
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address in brackets may stand without a port.
        Some((host, number)) if !number.ends_with(']') => {
            (host, number.parse().map_err(|_| wrong())?)
        }
        _ => (text, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(Server { host: host.to_owned(), port })
}

fn either(
    setting: &str,
    text: Option<&Hush>,
    file: Option<&Path>,
    beside: &Path,
) -> Result<Option<Secret>, String> {
    match (text, file) {
        (None, None) => Ok(None),
        (Some(Hush(text)), None) if text.is_empty() => Err(format!("`{setting}` is empty")),
        (Some(Hush(text)), None) => Ok(Some(Secret::Text(text.clone()))),
        (None, Some(file)) => Ok(Some(Secret::File(beside.join(file)))),
        (Some(_), Some(_)) => {
            Err(format!("`{setting}` and `{setting}_file` are two secrets; name one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hook, String> {
        let section = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        Hook::read(section, Path::new("/etc/cheops"))
    }

    #[test]
    fn every_way() {
        let hook = read(
            "name = 'ops'\non = ['site.*']\nurl = 'https://example.org/h'\nsecret_file = 's'\ntimeout = '2s'",
        )
        .unwrap();
        let Way::Web(web) = &hook.way else { panic!("{hook:?}") };
        assert_eq!(web.secret, Some(Secret::File("/etc/cheops/s".into())));
        assert_eq!((hook.timeout, hook.filter.mode), (Duration::from_secs(2), Mode::Each));
        let hook = read("name = 'c'\nmode = 'summary'\ncommand = 'cat'").unwrap();
        assert_eq!((hook.way, hook.filter.mode), (Way::Command("cat".into()), Mode::Summary));
        let hook = read(
            "name = 'm'\n[mail]\nserver = 'h'\nfrom = 'a@b.c'\nto = ['Ops <d@e.f>']\nuser = 'u'\npassword = 'p'",
        )
        .unwrap();
        let Way::Mail(mail) = &hook.way else { panic!("{hook:?}") };
        assert_eq!((mail.server.to_string().as_str(), mail.tls), ("h:587", Tls::StartTls));
        let hook = read("name = 'i'\n[irc]\nserver = '[::1]'\nchannel = '#ops'").unwrap();
        let Way::Irc(irc) = &hook.way else { panic!("{hook:?}") };
        assert_eq!((irc.server.host.as_str(), irc.server.port), ("::1", 6667));
        assert_eq!((&irc.tls, hook.keep), (&None, KEEP));
        let hook = read(
            "name = 'i'\nkeep = 7\n[irc]\nserver = 'h'\nchannel = '#ops'\ntls = true\nca = 'c'",
        )
        .unwrap();
        let Way::Irc(irc) = &hook.way else { panic!("{hook:?}") };
        assert_eq!(irc.tls, Some(Trust { ca: Some("/etc/cheops/c".into()) }));
        assert_eq!((irc.server.port, hook.keep), (6697, 7));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("command = 'x'", "needs a `name`"),
            ("name = 'a b'\ncommand = 'x'", "needs a `name`"),
            ("name = '../x'\ncommand = 'x'", "needs a `name`"),
            ("name = 'a'", "the hook `a`: it needs a way to tell"),
            ("name = 'a'\ncommand = ' '", "`command` is empty"),
            ("name = 'a'\ncommand = 'x'\nurl = 'http://h'", "several ways"),
            ("name = 'a'\ncommand = 'x'\nsecret = 's'", "go with `url`"),
            ("name = 'a'\ncommand = 'x'\non = []", "names no event"),
            (
                "name = 'a'\ncommand = 'x'\non = ['operation.run']",
                "no event is called `operation.run`",
            ),
            ("name = 'a'\ncommand = 'x'\nmode = 'summary'\non = ['site.lost']", "a summary is"),
            ("name = 'a'\ncommand = 'x'\nmode = 'all'", "`mode` is `each` or `summary`"),
            ("name = 'a'\ncommand = 'x'\ntimeout = '0s'", "`timeout` must be"),
            ("name = 'a'\ncommand = 'x'\nretry = 'soon'", "`retry`"),
            ("name = 'a'\nurl = 'ftp://h'", "neither http:// nor https://"),
            ("name = 'a'\nurl = '/x'", "neither http:// nor https://"),
            ("name = 'a'\nurl = 'http://u:p@h/'", "use `secret`"),
            ("name = 'a'\nurl = 'http://h'\nsecret = 's'\nsecret_file = 'f'", "two secrets"),
            ("name = 'a'\nurll = 'http://h'", "unknown field `urll`"),
            ("name = 'a'\n[mail]\nserver = 'h'\nfrom = 'a'\nto = ['b@c']", "`a` is no address"),
            ("name = 'a'\n[mail]\nserver = 'h'\nfrom = 'a@b'\nto = []", "names nobody"),
            ("name = 'a'\n[mail]\nserver = 'h:x'\nfrom = 'a@b'\nto = ['c@d']", "HOST or HOST:PORT"),
            (
                "name = 'a'\n[mail]\nserver = 'h'\nfrom = 'a@b'\nto = ['c@d']\nuser = 'u'",
                "go together",
            ),
            (
                "name = 'a'\n[mail]\nserver = 'h'\nfrom = 'a@b'\nto = ['c@d']\nuser = 'u'\npassword = 'p'\ntls = 'none'",
                "in the open",
            ),
            ("name = 'a'\n[irc]\nserver = 'h'\nchannel = 'ops'", "is no channel"),
            ("name = 'a'\n[irc]\nserver = 'h'\nchannel = '#ops'\nca = 'c'", "`tls = true`"),
            ("name = 'a'\ncommand = 'x'\nkeep = 0", "`keep` is between 1 and 100000"),
            ("name = 'a'\n[irc]\nserver = 'h'\nchannel = '#ops'\nnick = 'a b'", "can't be a name"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        for text in [
            "url = 'https://h/hush?hush=hush'\nsecret = 'hush'",
            "url = 'htp://u:hush@h/hush'",
            "url = 'http://u:hush@h/'",
            "url = 'http:///hush'",
            "url = 'http://h hush/'",
            "url = '/hush'",
            "url = 'http://h/'\nsecret = 'hush'\nsecret_file = 'f'",
            "[mail]\nserver = 'h'\nfrom = 'a@b.c'\nto = ['d@e.f']\nuser = 'u'\npassword = 'hush'",
            "[mail]\nserver = 'h'\nfrom = 'a@b.c'\nto = ['d@e.f']\npassword = 'hush'",
            "[irc]\nserver = 'h'\nchannel = '#ops'\npassword = 'hush'",
        ] {
            let text = format!("name = 'a'\n{text}");
            let section: HookSection = toml::from_str(&text).unwrap();
            let hook = read(&text);
            assert!(!format!("{section:?} {hook:?}").contains("hush"), "{section:?} {hook:?}");
        }
    }
}
