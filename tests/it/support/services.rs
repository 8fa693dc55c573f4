//! Real services for tests: private instances in folders of their own, by `dev/service`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::process::Command;
use tokio::sync::OnceCell;

/// Below the range from which the system takes ports for outgoing connections, so that one that is
/// free stays free.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

pub fn free_port() -> u16 {
    // Runs side by side begin at places of their own.
    let begin = u16::try_from(std::process::id() % 70).unwrap() * 100;
    loop {
        let port = 12_000 + begin + NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        assert!(port < 19_999, "no port is free");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An instance of a service. Killed, and its folder removed, when dropped.
pub struct Service {
    kind: &'static str,
    dir: PathBuf,
    pub port: u16,
    more: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Service {
    pub async fn postgres() -> Self {
        Self::start("postgres", vec![], vec![]).await
    }

    pub async fn kafka() -> Self {
        Self::start("kafka", vec![], vec![]).await
    }

    /// With a second listener that wants SASL, on the port it returns.
    pub async fn kafka_with_sasl() -> (Self, u16) {
        let port = free_port();
        let environment = vec![("KAFKA_SASL_PORT".to_owned(), port.to_string())];
        (Self::start("kafka", vec![], environment).await, port)
    }

    /// With a second listener that wants SASL over TLS, on the port it returns.
    pub async fn kafka_with_tls(certs: &Path) -> (Self, u16) {
        let port = free_port();
        let environment = vec![
            ("KAFKA_TLS_PORT".to_owned(), port.to_string()),
            ("KAFKA_CERTS_DIR".to_owned(), certs.display().to_string()),
        ];
        (Self::start("kafka", vec![], environment).await, port)
    }

    pub async fn mosquitto() -> Self {
        Self::start("mosquitto", vec![], vec![]).await
    }

    /// With listeners for clients and for the service that want certificates, on the ports it
    /// returns.
    pub async fn mosquitto_with_tls(certs: &Path) -> (Self, u16, u16) {
        let (clients, service) = (free_port(), free_port());
        let more = vec![
            clients.to_string(),
            certs.display().to_string(),
            service.to_string(),
        ];
        (
            Self::start("mosquitto", more, vec![]).await,
            clients,
            service,
        )
    }

    async fn start(
        kind: &'static str,
        more: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let service = Self {
            kind,
            dir: root().join("target/t").join(&name[..8]),
            port: free_port(),
            more,
            environment,
        };
        service.start_again().await;
        service
    }

    pub async fn start_again(&self) {
        let mut args = vec![self.port.to_string()];
        args.extend(self.more.clone());
        self.script("start", &args).await;
    }

    pub async fn stop(&self) {
        self.script("stop", &[]).await;
    }

    /// As a crash would end it.
    #[allow(dead_code, reason = "the chaos test uses it, in a program of its own")]
    pub async fn kill(&self) {
        self.script("kill", &[]).await;
    }

    /// A file of the instance.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    async fn script(&self, verb: &str, more: &[String]) {
        let done = Command::new(root().join("dev/service"))
            .args([self.kind, verb])
            .arg(&self.dir)
            .args(more)
            .envs(self.environment.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        assert!(
            done.status.success(),
            "{} {verb}: {}{}",
            self.kind,
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::process::Command::new(root().join("dev/service"))
            .args([self.kind, "kill"])
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Ports of the PostgreSQL and the Kafka that `make test` runs for all tests together.
pub struct Shared {
    pub postgres: u16,
    pub kafka: u16,
}

pub async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let file = root().join("target/services/env");
            let text = std::fs::read_to_string(&file).unwrap_or_else(|_| {
                panic!("{} is missing; `make test` starts the services, or `dev/service all start target/services`", file.display())
            });
            let port = |name: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                    .and_then(|port| port.parse().ok())
                    .unwrap_or_else(|| panic!("no {name} in {}", file.display()))
            };
            Shared {
                postgres: port("POSTGRES_PORT"),
                kafka: port("KAFKA_PORT"),
            }
        })
        .await
}

/// Settings to reach a database on that server with.
pub fn postgres_settings(port: u16, database: &str) -> cloud_connector::config::Postgres {
    use cloud_connector::config::{Overrides, load_with};
    let settings = [
        ("HOST", "127.0.0.1".to_owned()),
        ("PORT", port.to_string()),
        ("DATABASE", database.to_owned()),
        ("USER", "cc".to_owned()),
        ("PASSWORD", "cc-secret".to_owned()),
        ("TLS", "disable".to_owned()),
    ]
    .map(|(key, value)| (format!("CLOUD_CONNECTOR__POSTGRES__{key}"), value));
    load_with(&Overrides::default(), settings)
        .unwrap()
        .config
        .postgres
}

/// A database of a test's own on that server.
pub async fn database(port: u16) -> String {
    use sqlx::Connection as _;
    let name = format!("t_{}", uuid::Uuid::new_v4().simple());
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/cc?sslmode=disable");
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::query(statement)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    name
}

/// Everything that is in a topic now.
pub fn read_topic(brokers: &str, topic: &str) -> Vec<Vec<u8>> {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
    let within = std::time::Duration::from_secs(10);
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), within).unwrap();
    let mut all = TopicPartitionList::new();
    let mut left = 0;
    for partition in metadata.topics()[0].partitions() {
        let marks = consumer.fetch_watermarks(topic, partition.id(), within);
        let (first, next) = marks.unwrap();
        left += next - first;
        all.add_partition_offset(topic, partition.id(), Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&all).unwrap();
    let mut found = Vec::new();
    while left > 0 {
        let message = consumer
            .poll(within)
            .expect("the topic says nothing")
            .unwrap();
        found.push(message.payload().unwrap_or_default().to_vec());
        left -= 1;
    }
    found
}
