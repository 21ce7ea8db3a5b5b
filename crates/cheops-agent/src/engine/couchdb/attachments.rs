//! Attached files, as attachments of documents: one for each content, however many operations name it.
//!
//! What must stay true: a document has the hash of the content in its id, and one attachment; a document without it is
//! one that is being made; they say nothing of where they belong, so replication leaves them alone, and each site gets
//! the files that it needs over the links.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{TryStreamExt as _, future::BoxFuture, stream::BoxStream};
use http_body_util::BodyDataStream;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::{
    sync::OnceCell,
    time::{sleep, timeout},
};

use super::server::{Server, Trouble, encoded, is_clustered, lasting, read, refused};
use crate::{
    config::CouchDb,
    files::{Content, Depot},
};

/// What the ids of these documents begin with, and what they all end before.
const PREFIX: &str = "file:";
/// `;` separates parameters in a query: a key is always encoded.
const END: &str = "file;";
/// How often and for how long it is looked whether another has kept the same file.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30);
/// How many bytes of a file have to go in a second at least.
const SLOWEST: u64 = 100 << 10;
/// For how long it need not be noted again that a file was kept.
const RECENT: Duration = Duration::from_mins(1);
/// The name of the attachment.
const NAME: &str = "content";

/// The attached files of a site in its database.
#[derive(Clone)]
pub(crate) struct Attachments(Arc<Place>);

struct Place {
    server: Server,
    database: String,
    /// What is accepted while the server is away waits for it.
    may_be_away: bool,
    /// Whether a file is lasting only once several nodes have stored it, once that is known.
    clustered: OnceCell<bool>,
}

/// What is there of a file.
#[derive(Debug, Serialize, Deserialize)]
struct There {
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "_rev")]
    revision: String,
    #[serde(rename = "Time", default)]
    time: u64,
    #[serde(rename = "_attachments", default)]
    attachments: Value,
    /// What else it says.
    #[serde(flatten)]
    about: Map<String, Value>,
}

impl There {
    fn length(&self) -> Option<u64> {
        self.attachments[NAME]["length"].as_u64()
    }

    /// The content that it is of, if its id says that.
    fn content(&self) -> Option<Content> {
        let hash = self.id.strip_prefix(PREFIX)?;
        blake3::Hash::from_hex(hash).ok().map(|hash| *hash.as_bytes())
    }
}

impl Attachments {
    /// Those in the database that a configuration names. Reads files.
    pub(crate) fn new(config: &CouchDb) -> Result<Self, String> {
        let database = format!("/{}", config.database);
        let (server, may_be_away) = (Server::new(config)?, config.local_journal.is_some());
        let clustered = OnceCell::new();
        Ok(Self(Arc::new(Place { server, database, may_be_away, clustered })))
    }
}

impl Depot for Attachments {
    fn may_be_away(&self) -> bool {
        self.0.may_be_away
    }

    fn keep(
        &self,
        content: Content,
        path: PathBuf,
        length: u64,
    ) -> BoxFuture<'static, io::Result<()>> {
        let place = self.0.clone();
        Box::pin(async move { place.keep(&content, path, length).await.map_err(io::Error::other) })
    }

    fn open(
        &self,
        content: Content,
    ) -> BoxFuture<'static, io::Result<Option<BoxStream<'static, io::Result<Bytes>>>>> {
        let place = self.0.clone();
        Box::pin(async move { place.open(&content).await.map_err(io::Error::other) })
    }

    fn keep_only(
        &self,
        in_use: BTreeSet<Content>,
        older_than: Duration,
    ) -> BoxFuture<'static, io::Result<BTreeSet<Content>>> {
        let place = self.0.clone();
        let kept = async move { place.keep_only(&in_use, older_than).await };
        Box::pin(async move { kept.await.map_err(io::Error::other) })
    }
}

impl Place {
    fn path(&self, content: &Content) -> String {
        format!("{}/{PREFIX}{}", self.database, blake3::Hash::from_bytes(*content).to_hex())
    }

    async fn find(&self, content: &Content) -> Result<Option<There>, Trouble> {
        let path = self.path(content);
        match self.server.answer(&Method::GET, &path, Bytes::new()).await? {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, bytes) => read(status, &bytes).map(Some),
        }
    }

    /// Keeps a file. Another may be about to keep the same one: then it is looked at again.
    async fn keep(&self, content: &Content, file: PathBuf, length: u64) -> Result<(), Trouble> {
        let start = Instant::now();
        loop {
            match self.try_keep(content, &file, length).await {
                Err(Trouble::Refused { status: StatusCode::CONFLICT, .. })
                    if start.elapsed() < PATIENCE => {}
                kept => return kept,
            }
            sleep(PAUSE).await;
        }
    }

    async fn try_keep(&self, content: &Content, file: &Path, length: u64) -> Result<(), Trouble> {
        #[derive(Deserialize)]
        struct Made {
            rev: String,
        }
        let path = self.path(content);
        let revision = match self.find(content).await? {
            Some(there) if there.length() == Some(length) => return self.renew(there).await,
            Some(there) => there.revision,
            None => {
                let about = json!({"Type": "FILE", "Length": length, "Time": now()}).to_string();
                let answer = self.server.answer(&Method::PUT, &path, about.into()).await?;
                lasting::<Made>(answer)?.rev
            }
        };
        let file = tokio::fs::File::open(file).await;
        let file = file.map_err(|error| Trouble::Odd(error.to_string()))?;
        let path = format!("{path}/{NAME}?rev={revision}");
        let slow = Duration::from_secs(length / SLOWEST);
        let uploaded = timeout(PATIENCE + slow, self.server.upload(&path, file, length)).await;
        let late = |_| Trouble::Silent("it does not take an attached file".to_owned());
        lasting::<Value>(uploaded.map_err(late)??).map(drop)
    }

    /// Whether a file is lasting only once several nodes have stored it.
    async fn is_clustered(&self) -> Result<bool, Trouble> {
        let learn = async || {
            let info: Value = self.server.ask(&Method::GET, &self.database, Bytes::new()).await?;
            Ok(is_clustered(&info))
        };
        self.clustered.get_or_try_init(learn).await.copied()
    }

    /// Takes note that a file was kept again, so that it is not dropped before an operation names it. In a cluster that is
    /// always written: only a write tells whether enough nodes have the file.
    async fn renew(&self, there: There) -> Result<(), Trouble> {
        let age = Duration::from_millis(now().saturating_sub(there.time));
        if age < RECENT && !self.is_clustered().await? {
            return Ok(());
        }
        let path = format!("{}/{}", self.database, there.id);
        let again = There { time: now(), ..there };
        let answer = self.server.answer(&Method::PUT, &path, json!(again).to_string().into());
        lasting::<Value>(answer.await?).map(drop)
    }

    async fn open(
        &self,
        content: &Content,
    ) -> Result<Option<BoxStream<'static, io::Result<Bytes>>>, Trouble> {
        let response = self.server.listen(&format!("{}/{NAME}", self.path(content))).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::OK => {
                let parts = BodyDataStream::new(response.into_body());
                Ok(Some(Box::pin(parts.map_err(io::Error::other))))
            }
            status => Err(refused(status, b"")),
        }
    }

    async fn keep_only(
        &self,
        in_use: &BTreeSet<Content>,
        older_than: Duration,
    ) -> Result<BTreeSet<Content>, Trouble> {
        #[derive(Deserialize)]
        struct Rows {
            rows: Vec<Row>,
        }
        #[derive(Deserialize)]
        struct Row {
            doc: Option<There>,
        }
        let [first, end] = [PREFIX, END].map(|key| encoded(&json!(key).to_string()));
        let range = format!("startkey={first}&endkey={end}");
        let path = format!("{}/_all_docs?include_docs=true&{range}", self.database);
        let found: Rows = self.server.ask(&Method::GET, &path, Bytes::new()).await?;
        let there: Vec<There> = found.rows.into_iter().filter_map(|row| row.doc).collect();
        let whole = there.iter().filter(|there| there.length().is_some());
        let whole: BTreeSet<Content> = whole.filter_map(There::content).collect();
        let span = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
        let old = |there: &&There| there.time.saturating_add(span) <= now();
        let unused = |there: &&There| there.content().is_none_or(|c| !in_use.contains(&c));
        let gone = there.iter().filter(old).filter(unused);
        let gone = gone.map(|t| json!({"_id": t.id, "_rev": t.revision, "_deleted": true}));
        let gone: Vec<Value> = gone.collect();
        if !gone.is_empty() {
            let path = format!("{}/_bulk_docs", self.database);
            let body = json!({"docs": gone}).to_string();
            self.server.ask::<Value>(&Method::POST, &path, body).await?;
        }
        Ok(in_use.difference(&whole).copied().collect())
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
