//! Real PostgreSQL, Kafka and Mosquitto servers for tests. A test that stops or configures
//! a server starts a private server with `dev/service`. Each private server has its own directory
//! and ports. All other tests share the servers that `make test` starts.

mod topic_messages;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use service::settings::SecretString;
use sqlx::Connection as _;
use store_postgres::{PostgresSettings, PostgresTls};
use tokio::process::Command;
use tokio::sync::OnceCell;

pub use topic_messages::{TopicMessage, read_topic, read_topic_messages};

static NEXT_PORT_OFFSET: AtomicU16 = AtomicU16::new(0);

/// Returns a free port below the ephemeral port range. The kernel does not assign such a port to
/// outgoing connections, so the port stays free until the service listens on it.
pub fn free_port() -> u16 {
    // Test processes that run in parallel start their search at different ports.
    let process_offset = u16::try_from(std::process::id() % 70).unwrap() * 100;
    loop {
        let port = 12_000 + process_offset + NEXT_PORT_OFFSET.fetch_add(1, Ordering::Relaxed);
        assert!(port < 19_999, "no free port left");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A private server of one external service. Dropping the value kills the server and deletes its
/// directory.
pub struct Service {
    /// Name of the service, for the command line of the script `dev/service`.
    service_name: &'static str,
    dir: PathBuf,
    pub port: u16,
    extra_args: Vec<String>,
    env_vars: Vec<(String, String)>,
}

/// The ports of Mosquitto that require client certificates.
#[derive(Clone, Copy)]
pub struct MosquittoTlsPorts {
    /// MQTT over TLS, for clients.
    pub clients: u16,
    /// MQTT over TLS, for the connector.
    pub connector: u16,
    /// MQTT over WebSocket with TLS (`wss`), for clients.
    pub websocket_clients: u16,
}

impl Service {
    pub async fn start_postgres() -> Self {
        Self::start("postgres", vec![], vec![]).await
    }

    pub async fn start_kafka() -> Self {
        Self::start("kafka", vec![], vec![]).await
    }

    /// Starts Kafka with a second listener that requires SASL. Returns the server and the port of
    /// that listener.
    pub async fn start_kafka_with_sasl() -> (Self, u16) {
        let port = free_port();
        let env_vars = vec![("KAFKA_SASL_PORT".to_owned(), port.to_string())];
        (Self::start("kafka", vec![], env_vars).await, port)
    }

    /// Starts Kafka with a second listener that requires SASL over TLS. Returns the server and the
    /// port of that listener.
    pub async fn start_kafka_with_tls(certs_dir: &Path) -> (Self, u16) {
        let port = free_port();
        let env_vars = vec![
            ("KAFKA_TLS_PORT".to_owned(), port.to_string()),
            (
                "KAFKA_CERTS_DIR".to_owned(),
                certs_dir.display().to_string(),
            ),
        ];
        (Self::start("kafka", vec![], env_vars).await, port)
    }

    pub async fn start_mosquitto() -> Self {
        Self::start("mosquitto", vec![], vec![]).await
    }

    /// Starts Mosquitto with three further listeners that require client certificates. Returns the
    /// server and the ports.
    pub async fn start_mosquitto_with_tls(certs_dir: &Path) -> (Self, MosquittoTlsPorts) {
        let ports = MosquittoTlsPorts {
            clients: free_port(),
            connector: free_port(),
            websocket_clients: free_port(),
        };
        let extra_args = vec![
            ports.clients.to_string(),
            certs_dir.display().to_string(),
            ports.connector.to_string(),
            ports.websocket_clients.to_string(),
        ];
        let service = Self::start("mosquitto", extra_args, vec![]).await;
        (service, ports)
    }

    async fn start(
        service_name: &'static str,
        extra_args: Vec<String>,
        env_vars: Vec<(String, String)>,
    ) -> Self {
        let directory_name = uuid::Uuid::new_v4().simple().to_string();
        let service = Self {
            service_name,
            dir: repository_root()
                .join("target/t")
                .join(&directory_name[..8]),
            port: free_port(),
            extra_args,
            env_vars,
        };
        service.start_process().await;
        service
    }

    /// Starts the server process. A process that is started after [`stop`](Self::stop) or
    /// [`kill`](Self::kill) uses the same port and the same data.
    pub async fn start_process(&self) {
        let mut args = vec![self.port.to_string()];
        args.extend(self.extra_args.clone());
        self.run_script("start", &args).await;
    }

    pub async fn stop(&self) {
        self.run_script("stop", &[]).await;
    }

    /// Kills the server process with SIGKILL, to simulate a crash.
    #[allow(dead_code, reason = "only the chaos test calls this function")]
    pub async fn kill(&self) {
        self.run_script("kill", &[]).await;
    }

    /// Returns the path of a file in the server's directory.
    pub fn file_path(&self, file_name: &str) -> PathBuf {
        self.dir.join(file_name)
    }

    async fn run_script(&self, action: &str, extra_args: &[String]) {
        let output = Command::new(repository_root().join("dev/service"))
            .args([self.service_name, action])
            .arg(&self.dir)
            .args(extra_args)
            .envs(self.env_vars.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        assert!(
            output.status.success(),
            "dev/service {} {action}: {}{}",
            self.service_name,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::process::Command::new(repository_root().join("dev/service"))
            .args([self.service_name, "kill"])
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn repository_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Ports of the PostgreSQL and Kafka servers that all tests share.
pub struct SharedServices {
    pub postgres_port: u16,
    pub kafka_port: u16,
}

/// Returns the ports of the shared servers. Reads the ports from the file that `dev/service all
/// start` writes.
pub async fn shared_services() -> &'static SharedServices {
    static SHARED_SERVICES: OnceCell<SharedServices> = OnceCell::const_new();
    SHARED_SERVICES
        .get_or_init(|| async {
            let file = repository_root().join("target/services/env");
            let text = std::fs::read_to_string(&file).unwrap_or_else(|_| {
                panic!(
                    "{} is missing; run `make test`, or start the services with \
                     `dev/service all start target/services`",
                    file.display()
                )
            });
            let read_port = |variable: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))
                    .and_then(|port| port.parse().ok())
                    .unwrap_or_else(|| panic!("no {variable} in {}", file.display()))
            };
            SharedServices {
                postgres_port: read_port("POSTGRES_PORT"),
                kafka_port: read_port("KAFKA_PORT"),
            }
        })
        .await
}

/// Returns a configuration section `postgres` that selects the database `database_name` on the
/// PostgreSQL server that listens on `port`.
pub fn postgres_config(port: u16, database_name: &str) -> PostgresSettings {
    PostgresSettings {
        host: "127.0.0.1".to_owned(),
        port,
        database: database_name.to_owned(),
        user: "cc".to_owned(),
        password: SecretString::from("cc-secret"),
        tls: PostgresTls::Disable,
        ca: None,
        max_connections: 10,
        acquire_timeout: Duration::from_secs(3).into(),
        statement_timeout: Duration::from_secs(10).into(),
        response_timeout: Duration::from_secs(15).into(),
    }
}

/// Creates an empty database on the PostgreSQL server that listens on `port`, for tests of the
/// migrations. Returns the name of the database.
pub async fn create_database(port: u16) -> String {
    let database_name = unique_database_name();
    let mut connection = connect_as_administrator(port).await;
    execute(&mut connection, format!("CREATE DATABASE {database_name}")).await;
    database_name
}

/// Creates a database with the current schema on the PostgreSQL server that all tests share.
/// Returns the name of the database.
///
/// Copies a template database, because that is several times faster than all migrations.
pub async fn create_migrated_database() -> String {
    static TEMPLATE_NAME: OnceCell<String> = OnceCell::const_new();
    let port = shared_services().await.postgres_port;
    let template_name = TEMPLATE_NAME
        .get_or_init(|| create_template_database(port))
        .await;
    let database_name = unique_database_name();
    let mut connection = connect_as_administrator(port).await;
    // The default strategy copies through the write-ahead log. For a small database, this is faster
    // than `STRATEGY file_copy`, which needs two checkpoints.
    let statement = format!("CREATE DATABASE {database_name} TEMPLATE {template_name}");
    execute(&mut connection, statement).await;
    database_name
}

/// Creates the template database unless another test process has created it. Returns its name.
async fn create_template_database(port: u16) -> String {
    /// Key of the advisory lock that a test process holds while it creates the template.
    const LOCK_KEY: i64 = 0x7465_6d70_6c61_7465;
    // The name contains a checksum of the migrations. If services continue to run while a migration
    // changes, the tests create another template.
    let template_name = format!("template_{:016x}", migrations_checksum());
    let mut connection = connect_as_administrator(port).await;
    sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(LOCK_KEY)
        .execute(&mut connection)
        .await
        .unwrap();
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&template_name)
            .fetch_one(&mut connection)
            .await
            .unwrap();
    if !exists {
        // The database gets its name only after the migrations. Therefore a test process that is
        // killed during the migrations leaves no incomplete template.
        let new_database = create_database(port).await;
        let settings = postgres_config(port, &new_database);
        // `migrate` runs on another thread, because its future is not `Send`. The future of this
        // function must be `Send`.
        let runtime = tokio::runtime::Handle::current();
        let migrate = move || runtime.block_on(store_postgres::migrate(&settings));
        tokio::task::spawn_blocking(migrate).await.unwrap().unwrap();
        let statement = format!("ALTER DATABASE {new_database} RENAME TO {template_name}");
        execute(&mut connection, statement).await;
    }
    // The end of the connection releases the lock.
    connection.close().await.unwrap();
    template_name
}

/// Returns a checksum of all files that contain migrations.
fn migrations_checksum() -> u64 {
    let directory = repository_root().join("crates/store-postgres/migrations");
    let entries = std::fs::read_dir(&directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{} is empty", directory.display());
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.file_name().hash(&mut hasher);
        std::fs::read(&file).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}

fn unique_database_name() -> String {
    format!("t_{}", uuid::Uuid::new_v4().simple())
}

async fn connect_as_administrator(port: u16) -> sqlx::PgConnection {
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/cc?sslmode=disable");
    sqlx::PgConnection::connect(&url).await.unwrap()
}

async fn execute(connection: &mut sqlx::PgConnection, statement: String) {
    let query = sqlx::query(sqlx::AssertSqlSafe(statement));
    query.execute(connection).await.unwrap();
}

const KAFKA_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a message, as in the topics that `cloud-connector migrate --topics` creates.
const MAX_KAFKA_MESSAGE_BYTES: &str = "2097152";

/// Creates topics on the Kafka server that all tests share. `cloud-connector migrate --topics`
/// creates the same topics, but needs a process and new connections.
pub async fn create_topics(topics: &[String], partitions: i32) {
    use rdkafka::ClientConfig;
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    use rdkafka::client::DefaultClientContext;
    static ADMIN_CLIENT: OnceCell<AdminClient<DefaultClientContext>> = OnceCell::const_new();
    let kafka_port = shared_services().await.kafka_port;
    let create_client = || async {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", format!("127.0.0.1:{kafka_port}"));
        config.create().unwrap()
    };
    let admin_client = ADMIN_CLIENT.get_or_init(create_client).await;
    let mut new_topics = Vec::new();
    for topic in topics {
        let new_topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        new_topics.push(new_topic.set("max.message.bytes", MAX_KAFKA_MESSAGE_BYTES));
    }
    let options = AdminOptions::new()
        .request_timeout(Some(KAFKA_REQUEST_TIMEOUT))
        .operation_timeout(Some(KAFKA_REQUEST_TIMEOUT));
    let results = admin_client.create_topics(&new_topics, &options).await;
    for result in results.unwrap() {
        result.unwrap();
    }
}
