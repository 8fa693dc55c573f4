//! Real PostgreSQL, Kafka and Mosquitto servers for tests. A test that stops or configures
//! a server starts a private server with `dev/service`. Each private server has its own directory
//! and ports. All other tests share the servers that `make test` starts.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use service::settings::Secret;
use store_postgres::{PostgresSettings, PostgresTls};
use tokio::process::Command;
use tokio::sync::OnceCell;

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

    /// Starts Mosquitto with two listeners that require client certificates. Returns the server,
    /// the port for clients, and the port for the connector.
    pub async fn start_mosquitto_with_tls(certs_dir: &Path) -> (Self, u16, u16) {
        let (client_port, connector_port) = (free_port(), free_port());
        let extra_args = vec![
            client_port.to_string(),
            certs_dir.display().to_string(),
            connector_port.to_string(),
        ];
        let service = Self::start("mosquitto", extra_args, vec![]).await;
        (service, client_port, connector_port)
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

fn repository_root() -> &'static Path {
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
        password: Secret::new("cc-secret"),
        tls: PostgresTls::Disable,
        ca: None,
        max_connections: 10,
        acquire_timeout: Duration::from_secs(3).into(),
        statement_timeout: Duration::from_secs(10).into(),
    }
}

/// Creates an empty database on the PostgreSQL server that listens on `port`. Returns the name of
/// the database.
pub async fn create_database(port: u16) -> String {
    use sqlx::Connection as _;
    let database_name = format!("t_{}", uuid::Uuid::new_v4().simple());
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/cc?sslmode=disable");
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE {database_name}"));
    sqlx::query(statement)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    database_name
}

const KAFKA_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the payloads of all messages that the topic contains now.
pub fn read_topic(brokers: &str, topic: &str) -> Vec<Vec<u8>> {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer
        .fetch_metadata(Some(topic), KAFKA_REQUEST_TIMEOUT)
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    let mut remaining_messages = 0;
    for partition in metadata.topics()[0].partitions() {
        let watermarks = consumer.fetch_watermarks(topic, partition.id(), KAFKA_REQUEST_TIMEOUT);
        let (low, high) = watermarks.unwrap();
        remaining_messages += high - low;
        assignment
            .add_partition_offset(topic, partition.id(), Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut payloads = Vec::new();
    while remaining_messages > 0 {
        let message = consumer
            .poll(KAFKA_REQUEST_TIMEOUT)
            .expect("timed out waiting for a message of the topic")
            .unwrap();
        payloads.push(message.payload().unwrap_or_default().to_vec());
        remaining_messages -= 1;
    }
    payloads
}
