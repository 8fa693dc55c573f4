//! Baseline for the latency from a publish to the API: the least that must happen between them. It
//! consists of Mosquitto, one subscriber, Kafka in distributed mode, and a table with two columns.
//! Each message is upserted and then read with a SELECT.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use sqlx::{PgPool, SqlitePool};
use tokio::task::JoinSet;

use super::CONTROL_TOPIC_FILTER;
use super::client::MqttClient;
use super::queue::Queue;
use super::support::{Services, repository_root};

/// Client id and revision of each message that a SELECT has returned.
type VisibleMessages = Arc<Mutex<HashSet<(String, String)>>>;

/// The running baseline. Dropping it stops its tasks and the broker.
pub struct Baseline {
    /// The broker of the baseline. The connector uses another broker. With a common broker, the
    /// connector and the baseline would receive each other's messages.
    broker: Mosquitto,
    visible_messages: VisibleMessages,
    /// Dropping the set aborts the tasks.
    _tasks: JoinSet<()>,
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
        Self::start(Database::Sqlite(pool, file), None).await
    }

    pub async fn start_with_kafka_and_postgres(
        services: &Services,
        database: &str,
    ) -> Result<Self> {
        let pool = PgPool::connect(&services.database_url(database)).await?;
        Self::start(Database::Postgres(pool), Some(services)).await
    }

    /// Starts the baseline. With `kafka`, each message passes through Kafka.
    async fn start(database: Database, kafka: Option<&Services>) -> Result<Self> {
        database.create_table().await?;
        let broker = Mosquitto::start()?;
        let mut client = MqttClient::subscribe(&broker.address, CONTROL_TOPIC_FILTER).await?;
        let table = Table {
            database: Arc::new(database),
            visible_messages: VisibleMessages::default(),
        };
        let visible_messages = table.visible_messages.clone();
        let mut tasks = JoinSet::new();
        if let Some(services) = kafka {
            let (queue, consumer) = Queue::create(services).await?;
            let queue = Arc::new(queue);
            tasks.spawn(async move {
                while let Ok((topic, payload)) = client.next_message().await {
                    let queue = queue.clone();
                    tokio::spawn(async move {
                        let client_id = client_id(&topic);
                        queue.produce(client_id, &payload).await
                    });
                }
            });
            tasks.spawn(async move {
                while let Ok((client_id, payload)) = consumer.next_message().await {
                    tokio::spawn(table.clone().write(client_id, payload));
                }
            });
        } else {
            tasks.spawn(async move {
                while let Ok((topic, payload)) = client.next_message().await {
                    let client_id = client_id(&topic).to_owned();
                    tokio::spawn(table.clone().write(client_id, payload));
                }
            });
        }
        Ok(Self {
            broker,
            visible_messages,
            _tasks: tasks,
        })
    }

    pub fn mqtt_address(&self) -> &str {
        &self.broker.address
    }

    /// Returns whether a SELECT has returned the message. This method itself does
    /// not query the database.
    pub fn is_visible(&self, client_id: &str, revision: &str) -> bool {
        let message_key = (client_id.to_owned(), revision.to_owned());
        self.visible_messages.lock().contains(&message_key)
    }
}

/// Returns the client id in an MQTT topic.
fn client_id(topic: &str) -> &str {
    topic.split('/').nth(2).unwrap_or_default()
}

/// The table of the baseline, and the messages that are visible in it.
#[derive(Clone)]
struct Table {
    database: Arc<Database>,
    visible_messages: VisibleMessages,
}

impl Table {
    /// Upserts a message and reads it with a SELECT.
    async fn write(self, client_id: String, payload: impl AsRef<[u8]>) {
        let message: serde_json::Value =
            serde_json::from_slice(payload.as_ref()).unwrap_or_default();
        let revision = message["content"]["tags"]["revision"].as_str();
        let revision = revision.unwrap_or_default().to_owned();
        let upsert = self.database.upsert(&client_id, &revision).await;
        let is_visible = upsert.is_ok() && self.database.contains(&client_id, &revision).await;
        if is_visible {
            self.visible_messages.lock().insert((client_id, revision));
        }
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
                     (client_id text PRIMARY KEY, revision text)";
        match self {
            Self::Sqlite(pool, _) => sqlx::query(sql).execute(pool).await.map(drop)?,
            Self::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop)?,
        }
        Ok(())
    }

    async fn upsert(&self, client_id: &str, revision: &str) -> Result<()> {
        let sql = "INSERT INTO baseline (client_id, revision) VALUES ($1, $2)
                   ON CONFLICT (client_id) DO UPDATE SET revision = excluded.revision";
        match self {
            Self::Sqlite(pool, _) => {
                let upsert = sqlx::query(sql).bind(client_id).bind(revision);
                upsert.execute(pool).await?;
            }
            Self::Postgres(pool) => {
                let upsert = sqlx::query(sql).bind(client_id).bind(revision);
                upsert.execute(pool).await?;
            }
        }
        Ok(())
    }

    async fn contains(&self, client_id: &str, revision: &str) -> bool {
        let sql = "SELECT count(*) FROM baseline WHERE client_id = $1 AND revision = $2";
        let count: Result<i64, sqlx::Error> = match self {
            Self::Sqlite(pool, _) => {
                let select = sqlx::query_scalar(sql).bind(client_id).bind(revision);
                select.fetch_one(pool).await
            }
            Self::Postgres(pool) => {
                let select = sqlx::query_scalar(sql).bind(client_id).bind(revision);
                select.fetch_one(pool).await
            }
        };
        count.is_ok_and(|count| count > 0)
    }
}
