//! The barest way from a publish to a query: a broker, a subscriber, a table of two columns.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use sqlx::{PgPool, SqlitePool};

use super::client::Client;
use super::support::{Services, root};

type Shown = Arc<Mutex<HashSet<(String, String)>>>;

/// Mosquitto, a subscriber, a table of two columns.
pub struct Bare {
    /// A Mosquitto of its own: on a shared one, each way would hear the other's messages.
    broker: Broker,
    /// Client and round of what a SELECT has shown.
    shown: Shown,
    subscriber: tokio::task::JoinHandle<()>,
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.subscriber.abort();
    }
}

impl Bare {
    pub async fn sqlite() -> Result<Self> {
        let folder = root().join("target/bench");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{}.db", uuid::Uuid::new_v4().simple()));
        let url = format!("sqlite://{}?mode=rwc", file.display());
        let pool = SqlitePool::connect(&url).await?;
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&pool)
            .await?;
        sqlx::query("PRAGMA synchronous = FULL")
            .execute(&pool)
            .await?;
        Self::start(Database::Sqlite(pool, file)).await
    }

    pub async fn postgres(services: &Services, database: &str) -> Result<Self> {
        let pool = PgPool::connect(&services.database_url(database)).await?;
        Self::start(Database::Postgres(pool)).await
    }

    async fn start(database: Database) -> Result<Self> {
        let database = Arc::new(database);
        database.make().await?;
        let broker = Broker::start()?;
        let mut subscriber =
            Client::subscribe(&broker.address, "redhat/insights/+/control/out").await?;
        let (shown, into) = (Shown::default(), database.clone());
        let waiting = shown.clone();
        let subscriber = tokio::spawn(async move {
            while let Ok((topic, payload)) = subscriber.message().await {
                let (into, waiting) = (into.clone(), waiting.clone());
                tokio::spawn(async move {
                    let client = topic.split('/').nth(2).unwrap_or_default();
                    let message: serde_json::Value =
                        serde_json::from_slice(&payload).unwrap_or_default();
                    let round = message["content"]["tags"]["round"].as_str();
                    let key = (client.to_owned(), round.unwrap_or_default().to_owned());
                    let written = into.insert(&key.0, &key.1).await;
                    if written.is_ok() && into.shows(&key.0, &key.1).await.unwrap_or(false) {
                        waiting.lock().insert(key);
                    }
                });
            }
        });
        Ok(Self {
            broker,
            shown,
            subscriber,
        })
    }
}

impl Bare {
    pub fn mqtt(&self) -> &str {
        &self.broker.address
    }

    /// Costs nothing: whoever inserted it has looked.
    pub fn shows(&self, client: &str, round: &str) -> bool {
        let key = (client.to_owned(), round.to_owned());
        self.shown.lock().contains(&key)
    }
}

/// Ended when dropped; `dev/with-services` ends it if we cannot.
struct Broker {
    address: String,
    folder: PathBuf,
}

impl Broker {
    fn start() -> Result<Self> {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let folder = root().join("target/t").join(&name[..8]);
        let port = (19_000..20_000)
            .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
            .context("no port is free")?;
        let broker = Self {
            address: format!("127.0.0.1:{port}"),
            folder,
        };
        let started = broker.service("start").arg(port.to_string()).status()?;
        ensure!(started.success(), "Mosquitto does not start");
        Ok(broker)
    }

    fn service(&self, verb: &str) -> Command {
        let mut command = Command::new(root().join("dev/service"));
        command
            .args(["mosquitto", verb])
            .arg(&self.folder)
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.service("kill").status();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

enum Database {
    Sqlite(SqlitePool, std::path::PathBuf),
    Postgres(PgPool),
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Self::Sqlite(_, file) = self {
            for ending in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{ending}", file.display()));
            }
        }
    }
}

impl Database {
    async fn make(&self) -> Result<()> {
        let sql = "CREATE TABLE bare (client text, round text, PRIMARY KEY (client, round))";
        match self {
            Self::Sqlite(pool, _) => sqlx::query(sql).execute(pool).await.map(|_| ())?,
            Self::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn insert(&self, client: &str, round: &str) -> Result<()> {
        let sql = "INSERT INTO bare (client, round) VALUES ($1, $2)";
        match self {
            Self::Sqlite(pool, _) => {
                let insert = sqlx::query(sql).bind(client).bind(round);
                insert.execute(pool).await?;
            }
            Self::Postgres(pool) => {
                let insert = sqlx::query(sql).bind(client).bind(round);
                insert.execute(pool).await?;
            }
        }
        Ok(())
    }

    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        let sql = "SELECT count(*) FROM bare WHERE client = $1 AND round = $2";
        let count: i64 = match self {
            Self::Sqlite(pool, _) => {
                let select = sqlx::query_scalar(sql).bind(client).bind(round);
                select.fetch_one(pool).await?
            }
            Self::Postgres(pool) => {
                let select = sqlx::query_scalar(sql).bind(client).bind(round);
                select.fetch_one(pool).await?
            }
        };
        Ok(count > 0)
    }
}
