//! Where the API listens: an address, and a Unix socket for users of this machine.
//!
//! What must stay true: an address that others can reach has TLS, unless the configuration says in so many words
//! that anyone may do anything; the socket is for its owner and its group from the moment that it has its name; a file
//! that is not a socket is never replaced.

use std::{
    fs::{self, Permissions},
    io,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::Router;
use tokio::{net::UnixListener, task::JoinHandle};

use crate::{
    agent::StartError,
    api::{self, Listener, Place, Shared},
    config::{Config, Serve, Socket},
    contended,
    trust::certificate::Certificate,
};

/// The Unix socket of the API, in the data directory.
pub const SOCKET: &str = "api.sock";
/// How many connections it has, besides those of the API, so that somebody can still ask what is wrong.
const BY_SOCKET: usize = 64;

/// What listens.
pub(crate) struct Entrances {
    pub(crate) api: SocketAddr,
    pub(crate) certificate: Option<Arc<Certificate>>,
    listener: Listener,
    socket: Option<(UnixSocket, UnixListener)>,
}

/// The Unix socket of an agent.
pub(crate) struct UnixSocket {
    path: PathBuf,
    /// What tells it from one that another agent has put in its place.
    inode: u64,
}

impl UnixSocket {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, if it is still there.
    pub(crate) fn remove(self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|about| about.ino() == self.inode) {
            let _ = fs::remove_file(self.path);
        }
    }
}

impl Entrances {
    /// Whether a configuration protects what others can reach.
    pub(crate) fn allow(config: &Config) -> Result<(), StartError> {
        let protected = config.entry.certificate.is_some() || config.entry.insecure;
        if config.is_wide() && !protected {
            return Err(StartError::TooWide(config.api));
        }
        Ok(())
    }

    /// Listens; nobody is served yet.
    pub(crate) async fn open(config: &Config) -> Result<Self, StartError> {
        let files = config.entry.certificate.as_ref();
        let certificate =
            files.map(|(certificate, key)| Certificate::open(certificate, key)).transpose()?;
        let failed = |error| StartError::Listen { address: config.api, what: "the API", error };
        let tcp = contended::listen(config.api).await.map_err(failed)?;
        let api = tcp.local_addr().unwrap_or(config.api);
        let listener = match &certificate {
            Some(certificate) => Listener::Tls(tcp, certificate.acceptor()?),
            None => Listener::Tcp(tcp),
        };
        Ok(Self { api, certificate, listener, socket: unix_socket(config).await? })
    }

    /// Serves whoever comes, until it is to stop. Gives what does, and the Unix socket if there is one.
    pub(crate) fn serve(
        self,
        router: &Router,
        context: &Shared,
    ) -> (Vec<JoinHandle<()>>, Option<UnixSocket>) {
        let (access, limits) = (&context.access, &context.config.serve);
        let Self { api, certificate, listener, socket } = self;
        let secure = certificate.is_some();
        let place = if api.ip().is_loopback() { Place::Loopback } else { Place::Wide { secure } };
        if access.insecure && place == (Place::Wide { secure: false }) {
            tracing::warn!(
                "`api.insecure_anyone_may_do_anything` is set: whoever reaches {api} may run commands at all sites"
            );
        }
        let few = Serve { connections: limits.connections.min(BY_SOCKET), ..limits.clone() };
        let (socket, unix) = socket.unzip();
        let unix = unix.map(|unix| (Listener::Unix(unix), Place::Socket, few));
        let entrances = [(listener, place, limits.clone())].into_iter().chain(unix);
        let served = entrances.map(|(listener, place, limits)| {
            let router = api::attended(router.clone(), Some(place), context);
            let counts = context.metrics.clone();
            tokio::spawn(api::serve(listener, router, limits, counts, context.stopping.clone()))
        });
        (served.collect(), socket)
    }
}

/// Listens on the Unix socket, if there is to be one.
async fn unix_socket(config: &Config) -> Result<Option<(UnixSocket, UnixListener)>, StartError> {
    // Whoever is at work from the data directory is the only one, or comes after one that hangs.
    let (path, needed, ours) = match &config.socket {
        Socket::Off => return Ok(None),
        Socket::At(path) => (path.clone(), true, false),
        Socket::InData => (config.data.join(SOCKET), false, true),
    };
    match contended::retry(|| bind(&path, ours)).await {
        Ok(bound) => Ok(Some(bound)),
        Err(error) if needed => Err(StartError::Socket { path, error }),
        // Most often its path is longer than the system allows.
        Err(error) => {
            tracing::warn!(
                "can't listen on {}: {error}; name a shorter path in `listen.socket`",
                path.display()
            );
            Ok(None)
        }
    }
}

/// Makes a socket for its owner and its group, in the place of one that an agent has left, or of one that is ours.
fn bind(path: &Path, ours: bool) -> io::Result<(UnixSocket, UnixListener)> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is another file"));
        }
        Ok(_) if !ours && UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
        }
        _ => {}
    }
    // It gets its name when it is for these only.
    let mut draft = path.to_owned().into_os_string();
    draft.push(".n");
    let draft = PathBuf::from(draft);
    let _ = fs::remove_file(&draft);
    let unix = UnixListener::bind(&draft)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o660))?;
    let inode = fs::symlink_metadata(&draft)?.ino();
    fs::rename(&draft, path)?;
    Ok((UnixSocket { path: path.to_owned(), inode }, unix))
}
