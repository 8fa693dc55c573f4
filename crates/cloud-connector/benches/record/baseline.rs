//! Baseline for the latency from a publish to the API. It consists of Mosquitto, one subscriber,
//! and a table with two columns. The subscriber inserts each message and then reads it with a
//! SELECT.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use sqlx::{PgPool, SqlitePool};

use super::CONTROL_TOPIC_FILTER;
use super::client::MqttClient;
use super::support::{Services, repository_root};

/// Client id and revision of each message that a SELECT has returned.
type VisibleMessages = Arc<Mutex<HashSet<(String, String)>>>;

/// The running baseline. Dropping it stops the subscriber and the broker.
pub struct Baseline {
    /// The broker of the baseline. The connector uses another broker. With a common broker, the
    /// connector and the baseline would receive each other's messages.
    broker: Mosquitto,
    visible_messages: VisibleMessages,
    subscriber_task: tokio::task::JoinHandle<()>,
}

impl Drop for Baseline {
    fn drop(&mut self) {
        self.subscriber_task.abort();
    }
}

impl Baseline {
    pub async fn start_with_sqlite() -> Result<Self> {
        let folder = repository_root().join("target/bench");
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

    pub async fn start_with_postgres(services: &Services, database: &str) -> Result<Self> {
        let pool = PgPool::connect(&services.database_url(database)).await?;
        Self::start(Database::Postgres(pool)).await
    }

    async fn start(database: Database) -> Result<Self> {
        let database = Arc::new(database);
        database.create_table().await?;
        let broker = Mosquitto::start()?;
        let mut client = MqttClient::subscribe(&broker.address, CONTROL_TOPIC_FILTER).await?;
        let visible_messages = VisibleMessages::default();
        let shared_messages = visible_messages.clone();
        let subscriber_task = tokio::spawn(async move {
            while let Ok((topic, payload)) = client.next_message().await {
                let (database, visible_messages) = (database.clone(), shared_messages.clone());
                tokio::spawn(async move {
                    let client_id = topic.split('/').nth(2).unwrap_or_default();
                    let message: serde_json::Value =
                        serde_json::from_slice(&payload).unwrap_or_default();
                    let revision = message["content"]["tags"]["revision"].as_str();
                    let revision = revision.unwrap_or_default();
                    let insert_result = database.insert(client_id, revision).await;
                    if insert_result.is_ok()
                        && database
                            .contains(client_id, revision)
                            .await
                            .unwrap_or(false)
                    {
                        let message_key = (client_id.to_owned(), revision.to_owned());
                        visible_messages.lock().insert(message_key);
                    }
                });
            }
        });
        Ok(Self {
            broker,
            visible_messages,
            subscriber_task,
        })
    }

    pub fn mqtt_address(&self) -> &str {
        &self.broker.address
    }

    /// Returns whether a SELECT of the subscriber has returned the message. This method itself does
    /// not query the database.
    pub fn is_visible(&self, client_id: &str, revision: &str) -> bool {
        let message_key = (client_id.to_owned(), revision.to_owned());
        self.visible_messages.lock().contains(&message_key)
    }
}

/// A Mosquitto process that only the baseline uses. Dropping this value kills the process. If the
/// benchmark is interrupted, `dev/with-services` kills the process.
struct Mosquitto {
    address: String,
    /// Folder with the files of the process.
    folder: PathBuf,
}

impl Mosquitto {
    fn start() -> Result<Self> {
        let folder_name = uuid::Uuid::new_v4().simple().to_string();
        let folder = repository_root().join("target/t").join(&folder_name[..8]);
        let port = (19_000..20_000)
            .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
            .context("no free port between 19000 and 20000")?;
        let mosquitto = Self {
            address: format!("127.0.0.1:{port}"),
            folder,
        };
        let status = mosquitto
            .service_command("start")
            .arg(port.to_string())
            .status()?;
        ensure!(status.success(), "Mosquitto did not start");
        Ok(mosquitto)
    }

    /// Returns a command that runs `dev/service` for this process. `action` is `start` or `kill`.
    fn service_command(&self, action: &str) -> Command {
        let mut command = Command::new(repository_root().join("dev/service"));
        command
            .args(["mosquitto", action])
            .arg(&self.folder)
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.service_command("kill").status();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Database of the baseline.
enum Database {
    /// Connection pool and database file. Dropping this value deletes the file.
    Sqlite(SqlitePool, PathBuf),
    Postgres(PgPool),
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Self::Sqlite(_, file) = self {
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
            }
        }
    }
}

impl Database {
    async fn create_table(&self) -> Result<()> {
        let sql = "CREATE TABLE baseline
                     (client_id text, revision text, PRIMARY KEY (client_id, revision))";
        match self {
            Self::Sqlite(pool, _) => sqlx::query(sql).execute(pool).await.map(drop)?,
            Self::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop)?,
        }
        Ok(())
    }

    async fn insert(&self, client_id: &str, revision: &str) -> Result<()> {
        let sql = "INSERT INTO baseline (client_id, revision) VALUES ($1, $2)";
        match self {
            Self::Sqlite(pool, _) => {
                let insert = sqlx::query(sql).bind(client_id).bind(revision);
                insert.execute(pool).await?;
            }
            Self::Postgres(pool) => {
                let insert = sqlx::query(sql).bind(client_id).bind(revision);
                insert.execute(pool).await?;
            }
        }
        Ok(())
    }

    async fn contains(&self, client_id: &str, revision: &str) -> Result<bool> {
        let sql = "SELECT count(*) FROM baseline WHERE client_id = $1 AND revision = $2";
        let count: i64 = match self {
            Self::Sqlite(pool, _) => {
                let select = sqlx::query_scalar(sql).bind(client_id).bind(revision);
                select.fetch_one(pool).await?
            }
            Self::Postgres(pool) => {
                let select = sqlx::query_scalar(sql).bind(client_id).bind(revision);
                select.fetch_one(pool).await?
            }
        };
        Ok(count > 0)
    }
}
