//! `cheops agent`: the agent of a site, until it is stopped.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use cheops_agent::{Agent, config::Config, open_files};
use cheops_core::{id::SiteId, trust::PublicKey};
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Outcome;
use crate::report::{Exit, Failure};

/// Where an agent keeps its data if nobody says so.
const DATA: &str = "cheops-data";

/// The variable that names the site, as in the original program.
const SITE: &str = "MYFQDN";

/// What is logged if nobody says so.
const LOGGED: &str = "info";
/// How long what still waits for something may take when the agent has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// Run the agent of this site
///
/// A configuration file, options, or both: options win. The site's name is that of `--site`, of the
/// file, of MYFQDN, or the host's. What is logged is set with `CHEOPS_LOG` or `RUST_LOG` (`debug`,
/// `cheops_agent=trace`).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The site's configuration, in TOML
    #[arg(long, value_name = "SITE.toml")]
    config: Option<PathBuf>,
    /// The site's name
    #[arg(long)]
    site: Option<String>,
    /// Where to keep what must not be lost
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where commands run
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the API listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    api: Option<SocketAddr>,
    /// Where people reach this site's page, if not where the API listens; the pages of other sites link to it
    #[arg(long, value_name = "URL")]
    page: Option<String>,
    /// Where to listen for other agents
    #[arg(long, value_name = "ADDRESS:PORT")]
    peers: Option<SocketAddr>,
    /// Another site, its key (see `cheops site key`), and where its agent listens for others; may be
    /// given more than once. With `[trust]` in the configuration, NAME=HOST:PORT is enough
    #[arg(long = "peer", value_name = "NAME=KEY@HOST:PORT")]
    others: Vec<String>,
    /// Let anyone who may ask for operations run any shell command here, as this agent's user: the line
    /// `allow_any_shell_command = true` of `[policy]`
    #[arg(long)]
    allow_any_shell_command: bool,
    /// How to write the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Stop when the process that started this one ends
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// For programs: a JSON object a line
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Failure> {
    let mut config = configuration(arguments, |name| env::var(name).ok(), host_name)?;
    if arguments.end_with_parent {
        end_with_parent()?;
    }
    log_to_stderr(arguments.log_format)?;
    match open_files::raise() {
        Ok(before) => config.runs.open_files = before,
        Err(error) => tracing::warn!("the limit of open files can't be raised: {error}"),
    }
    serve(&config)?;
    Ok(Outcome::silent(Exit::Fine))
}

/// Runs the agent until it is told to stop.
fn serve(config: &Config) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::input(format!("cannot run the agent of {}", config.site)).caused_by(why)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    let served = runtime.block_on(async {
        let mut end = signal(SignalKind::terminate()).map_err(|error| failed(error.to_string()))?;
        let agent = tokio::select! {
            agent = Agent::start_with(config.clone(), chephren::page) => agent,
            // An agent that stands by has nothing to bring to an end.
            _ = end.recv() => return Ok(()),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let mut agent = agent.map_err(|error| failed(error.to_string()))?;
        tracing::info!("its page is at {}", page(config, agent.api()));
        tokio::select! {
            _ = end.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
            () = agent.ended() => return Err(failed("it met a fault; see its log".to_owned())),
        }
        tracing::info!("stopping; commands that run go on");
        tokio::select! {
            () = agent.stop() => {}
            // Whoever asks twice does not want to wait.
            _ = end.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        Ok(())
    });
    // A server or a disk that hangs is not waited for.
    runtime.shutdown_timeout(FAREWELL);
    served
}

/// Where the page can be opened: as the configuration says, or where the API listens. What listens on all
/// addresses listens on loopback, too.
fn page(config: &Config, api: SocketAddr) -> String {
    let ip = match api.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if config.entry.certificate.is_some() { "https" } else { "http" };
    let here = || format!("{scheme}://{}", SocketAddr::new(ip, api.port()));
    Config { api, ..config.clone() }.page().unwrap_or_else(here)
}

/// What the file, the options and the environment amount to.
fn configuration(
    arguments: &Arguments,
    variable: impl Fn(&str) -> Option<String>,
    host_name: impl Fn() -> Option<String>,
) -> Result<Config, Failure> {
    let mut config = match &arguments.config {
        Some(path) => Config::read(path).map_err(|error| {
            Failure::input(format!("invalid configuration `{}`", path.display()))
                .caused_by(error.problem)
                .hint("a name is enough: site = 'site1'")
        })?,
        None => Config::new(site_name(arguments, variable, host_name)?, DATA),
    };
    if let Some(site) = &arguments.site {
        config.site = site_of(site, "--site")?;
    }
    if let Some(data) = &arguments.data {
        let default_work = config.work == config.data.join("work");
        config.data.clone_from(data);
        if default_work {
            config.work = data.join("work");
        }
    }
    if let Some(work) = &arguments.work {
        config.work.clone_from(work);
    }
    config.api = arguments.api.unwrap_or(config.api);
    config.peers = arguments.peers.unwrap_or(config.peers);
    if arguments.page.is_some() {
        config.serve.page.clone_from(&arguments.page);
    }
    if arguments.allow_any_shell_command {
        config.policy.any_shell = Some(true);
    }
    for text in &arguments.others {
        let invalid = || {
            Failure::input("invalid peer").at(text, 0..text.len()).hint(
                "for example --peer site2=KEY@10.0.0.2:8078; `cheops site key` at site2 prints KEY",
            )
        };
        let (name, rest) =
            text.split_once('=').ok_or_else(|| invalid().caused_by("there is no `=`"))?;
        let (key, address) = match rest.split_once('@') {
            Some((key, address)) => (Some(key), address),
            // Its certificate says who it is.
            None if config.pki.is_some() => (None, rest),
            None => return Err(invalid().caused_by("there is no `@`")),
        };
        let name: SiteId = name.parse().map_err(|error| invalid().caused_by(error))?;
        let key = key.map(str::parse::<PublicKey>).transpose();
        let key = key.map_err(|error| invalid().caused_by(error))?;
        // An option wins over the file, and is still an error if it is given twice.
        let is_first = !arguments.others.iter().any(|other| {
            !std::ptr::eq(other, text)
                && other.split_once('=').is_some_and(|(other, _)| other == name.as_str())
        });
        if is_first {
            config.sites.remove(&name);
        }
        config.add_site(name, address.to_owned(), key).map_err(|why| invalid().caused_by(why))?;
    }
    if config.sites.contains_key(&config.site) {
        return Err(Failure::input(format!("the site `{}` is its own peer", config.site))
            .hint("name this site with --site, and only the others as peers"));
    }
    config.check().map_err(|why| Failure::input("invalid configuration").caused_by(why))?;
    Ok(config)
}

fn site_name(
    arguments: &Arguments,
    variable: impl Fn(&str) -> Option<String>,
    host_name: impl Fn() -> Option<String>,
) -> Result<SiteId, Failure> {
    if let Some(site) = &arguments.site {
        return site_of(site, "--site");
    }
    if let Some(site) = variable(SITE).filter(|site| !site.is_empty()) {
        return site_of(&site, SITE);
    }
    match host_name() {
        Some(host) => site_of(&host, "the host's name"),
        None => Err(Failure::input("this site has no name").hint("name it with --site")),
    }
}

fn site_of(text: &str, origin: &str) -> Result<SiteId, Failure> {
    text.parse().map_err(|error| {
        Failure::input(format!("invalid name of a site in {origin}"))
            .at(text, 0..text.len())
            .caused_by(error)
            .hint("name the site with --site")
    })
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let file = || fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned());
    Some(name).filter(|name| !name.is_empty()).or_else(file).filter(|name| !name.is_empty())
}

/// Asks the system to stop this process when its parent ends, however that ends.
fn end_with_parent() -> Result<(), Failure> {
    let term = rustix::process::Signal::TERM;
    rustix::process::set_parent_process_death_signal(Some(term)).map_err(|error| {
        Failure::new(Exit::Wrong, "cannot follow the parent process").caused_by(error)
    })
}

/// Standard error for a log. What can't be written is dropped: a full disk, or a reader that is gone,
/// is no reason for the agent to stop.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error, because standard output is for results.
fn log_to_stderr(format: LogFormat) -> Result<(), Failure> {
    let variable =
        ["CHEOPS_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, env::var(name).ok()?)));
    let (name, directives) = variable.unwrap_or(("the default", LOGGED.to_owned()));
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        Failure::input(format!("invalid filter for the log in {name}"))
            .at(&directives, 0..directives.len())
            .caused_by(error)
            .hint("for example `debug`, or `info,cheops_agent=trace`")
    })?;
    // What goes wrong inside would be written where nothing can be, and that panics.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Log)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn configured(line: &[&str], site: Option<&str>, host: Option<&str>) -> Result<Config, String> {
        let line =
            Line::try_parse_from([&["agent"], line].concat()).map_err(|error| error.to_string())?;
        let variable = |name: &str| site.filter(|_| name == "MYFQDN").map(str::to_owned);
        configuration(&line.arguments, variable, || host.map(str::to_owned))
            .map_err(|failure| failure.line())
    }

    #[test]
    fn a_site_has_a_name_from_somewhere() {
        let name = |line, variable, host| {
            configured(line, variable, host).map(|config| config.site.to_string())
        };
        assert_eq!(name(&["--site", "a"], Some("b"), Some("c")), Ok("a".to_owned()));
        assert_eq!(name(&[], Some("b"), Some("c")), Ok("b".to_owned()));
        assert_eq!(name(&[], Some(""), Some("c")), Ok("c".to_owned()));
        assert_eq!(name(&[], None, None), Err("this site has no name".to_owned()));
    }

    #[test]
    fn the_page_is_where_it_can_be_opened() {
        let mut config = configured(&["--site", "a"], None, None).unwrap();
        for (api, expected) in [
            ("127.0.0.1:8079", "http://127.0.0.1:8079"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
            ("0.0.0.0:8079", "http://127.0.0.1:8079"),
            ("[::]:8079", "http://[::1]:8079"),
        ] {
            assert_eq!(page(&config, api.parse().unwrap()), expected);
        }
        config.serve.page = Some("https://a.example".to_owned());
        assert_eq!(page(&config, "0.0.0.0:1".parse().unwrap()), "https://a.example");
    }

    #[test]
    fn options_win_over_the_file() {
        let key = PublicKey::from_bytes([1; 32]);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("site.toml");
        fs::write(
            &file,
            format!("site = 'a'\n[listen]\napi = '127.0.0.1:1'\n[api]\npage = 'http://a.example'\n[[peer]]\nname = 'b'\naddress = 'h:1'\nkey = '{key}'"),
        )
        .unwrap();
        let file = file.to_str().unwrap();

        let config = configured(&["--config", file], None, None).unwrap();
        assert_eq!(config, Config::read(Path::new(file)).unwrap());

        let line = [
            "--config",
            file,
            "--site",
            "c",
            "--api",
            "127.0.0.1:2",
            "--page",
            "https://c.example",
            "--peer",
            &format!("b={key}@h:2"),
            "--data",
            "/d",
        ];
        let config = configured(&line, None, None).unwrap();
        assert_eq!((config.site.as_str(), config.api.port()), ("c", 2));
        assert_eq!(config.page().as_deref(), Some("https://c.example"));
        assert_eq!(config.sites[&"b".parse().unwrap()].address, "h:2");
        assert_eq!(
            (config.data.as_path(), config.work.as_path()),
            (Path::new("/d"), Path::new("/d/work"))
        );
    }

    #[test]
    fn what_can_not_be_used_is_said() {
        let key = PublicKey::from_bytes([1; 32]);
        let peer = |name: &str, address: &str| format!("{name}={key}@{address}");
        for (line, expected) in [
            (&["--site", "a&b"][..], "is not a site name"),
            (&["--site", "a", "--peer", "b"], "there is no `=`"),
            (&["--site", "a", "--peer", "b=h:1"], "there is no `@`"),
            (&["--site", "a", "--peer", "b=abc@h:1"], "a key has 56 letters"),
            (&["--site", "a", "--peer", &peer("b", "h")], "is not HOST:PORT"),
            (&["--site", "a", "--peer", &peer("a", "h:1")], "is this site itself"),
            (
                &["--site", "a", "--peer", &peer("b", "h:1"), "--peer", &peer("b", "h:2")],
                "named twice",
            ),
            (&["--config", "/is/not/there"], "No such file"),
            (&["--api", "here"], "invalid socket address"),
            (&["--page", "here"], "write it like http://site1.example:8079"),
        ] {
            let error = configured(line, None, Some("host")).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }
}
