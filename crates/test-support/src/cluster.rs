//! A connector in distributed mode. A cluster consists of the external services and of connector
//! processes. Each process runs one or more roles.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub use super::connector::DEFAULT_ORG_ID;
use super::connector::{is_last_banner_line, send_signal, sum_metric};
use super::services::{self, Service};
use super::{CONDITION_TIMEOUT, ClockOffset, connector_command, env_var_name, eventually};

/// API key of the caller `tester`.
pub const API_KEY: &str = "0123456789abcdef0123";

/// Number of partitions of each topic.
const PARTITIONS: i32 = 4;

/// The external services, and the settings of all connector processes that use these services.
pub struct Cluster {
    pub mosquitto: Service,
    /// A private PostgreSQL server, for tests that stop the server. `None` if the cluster uses the
    /// shared server.
    pub postgres: Option<Service>,
    /// A private Kafka server, for tests that stop the server. `None` if the cluster uses the
    /// shared server.
    pub kafka: Option<Service>,
    env_vars: Vec<(String, String)>,
    http_client: reqwest::Client,
}

impl Cluster {
    /// Creates a cluster with a private Mosquitto. The cluster has its own database on the shared
    /// PostgreSQL server, and its own topics on the shared Kafka server.
    pub async fn new() -> Self {
        let unique_suffix = uuid::Uuid::new_v4().simple().to_string();
        let (mosquitto, database) = tokio::join!(
            Service::start_mosquitto(),
            create_database_and_topics(&unique_suffix)
        );
        Self::with_settings(mosquitto, None, None, &database, &unique_suffix).await
    }

    /// Creates a cluster that uses these services, with a current database schema and with the
    /// Kafka topics. For PostgreSQL and Kafka, `None` selects the server that all tests share.
    pub async fn with_services(
        mosquitto: Service,
        postgres: Option<Service>,
        kafka: Option<Service>,
    ) -> Self {
        let unique_suffix = uuid::Uuid::new_v4().simple().to_string();
        if postgres.is_none() && kafka.is_none() {
            let database = create_database_and_topics(&unique_suffix).await;
            return Self::with_settings(mosquitto, None, None, &database, &unique_suffix).await;
        }
        let postgres_port = match &postgres {
            Some(service) => service.port,
            None => services::shared_services().await.postgres_port,
        };
        let database = services::create_database(postgres_port).await;
        let cluster =
            Self::with_settings(mosquitto, postgres, kafka, &database, &unique_suffix).await;
        let (code, output) = cluster.run_command(&["migrate", "--topics"]).await;
        assert_eq!(code, Some(0), "{output}");
        cluster
    }

    async fn with_settings(
        mosquitto: Service,
        postgres: Option<Service>,
        kafka: Option<Service>,
        database: &str,
        unique_suffix: &str,
    ) -> Self {
        let postgres_port = match &postgres {
            Some(service) => service.port,
            None => services::shared_services().await.postgres_port,
        };
        let kafka_port = match &kafka {
            Some(service) => service.port,
            None => services::shared_services().await.kafka_port,
        };
        let cluster = Self {
            http_client: crate::http_client(),
            env_vars: Vec::new(),
            postgres,
            kafka,
            mosquitto,
        };
        let mqtt_url = format!("mqtt://127.0.0.1:{}", cluster.mosquitto.port);
        let [
            ingress_topic,
            answers_topic,
            slow_topic,
            inventory_topic,
            events_topic,
        ] = topic_names(unique_suffix);
        cluster
            .set("mqtt.url", mqtt_url)
            .set("mqtt.username", "cloud-connector")
            .set("mqtt.password", "cc-secret")
            .set("kafka.brokers", format!("127.0.0.1:{kafka_port}"))
            .set("kafka.ingress_topic", ingress_topic)
            .set("kafka.answers_topic", answers_topic)
            .set("kafka.slow_topic", slow_topic)
            .set("inventory.topic", inventory_topic)
            .set("events.kafka_topic", events_topic)
            .set("kafka.group", format!("group-{unique_suffix}"))
            .set(
                "kafka.answers_group",
                format!("answers-group-{unique_suffix}"),
            )
            .set("kafka.slow_group", format!("slow-group-{unique_suffix}"))
            .set("kafka.session_timeout", "6s")
            .set("kafka.partitions", PARTITIONS)
            .set("kafka.replication", 1)
            .set("postgres.host", "127.0.0.1")
            .set("postgres.port", postgres_port)
            .set("postgres.database", database)
            .set("postgres.user", "cc")
            .set("postgres.password", "cc-secret")
            .set("postgres.tls", "require")
            .set("postgres.acquire_timeout", "3s")
            .set("api.keys.tester", API_KEY)
            .set("http.listen", "127.0.0.1:0")
    }

    /// Sets a configuration key for the processes that the test starts later.
    pub fn set(mut self, config_key: &str, value: impl std::fmt::Display) -> Self {
        let variable = env_var_name(config_key);
        self.env_vars.retain(|(existing, _)| *existing != variable);
        self.env_vars.push((variable, value.to_string()));
        self
    }

    /// Returns the value of a configuration key. Panics if the test did not set the key.
    #[must_use]
    pub fn setting(&self, config_key: &str) -> &str {
        let variable = env_var_name(config_key);
        let entry = self
            .env_vars
            .iter()
            .find(|(existing, _)| *existing == variable);
        &entry.unwrap_or_else(|| panic!("{config_key} is not set")).1
    }

    /// Returns the environment variables that set the cluster's settings.
    #[must_use]
    pub fn env_vars(&self) -> &[(String, String)] {
        &self.env_vars
    }

    /// Opens a connection to the cluster's database.
    pub async fn connect_to_database(&self) -> sqlx::PgConnection {
        use sqlx::Connection as _;
        let port = self.setting("postgres.port");
        let database = self.setting("postgres.database");
        let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
        sqlx::PgConnection::connect(&url).await.unwrap()
    }

    /// Returns a command that runs the binary with the cluster's settings.
    pub fn connector_command(&self) -> Command {
        let mut command = connector_command();
        command.envs(self.env_vars.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Runs a CLI command, and waits until the command exits. Returns the exit code, and stdout
    /// followed by stderr.
    pub async fn run_command(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.connector_command().args(args).output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// Starts a process with these roles, or with all roles if `roles` is empty. Waits until the
    /// process is ready.
    pub async fn start(&self, roles: &[&str]) -> ConnectorProcess {
        self.start_with_clock(roles, ClockOffset::NONE).await
    }

    /// Like [`start`](Self::start), but the clock of the process differs from the machine's clock.
    pub async fn start_with_clock(
        &self,
        roles: &[&str],
        clock_offset: ClockOffset,
    ) -> ConnectorProcess {
        let process = self.spawn_process(roles, clock_offset).await;
        process.wait_until_ready().await;
        process
    }

    /// Starts a process with these roles, or with all roles if `roles` is empty. Waits only until
    /// the process has printed the startup banner.
    pub async fn start_without_waiting(&self, roles: &[&str]) -> ConnectorProcess {
        self.spawn_process(roles, ClockOffset::NONE).await
    }

    async fn spawn_process(&self, roles: &[&str], clock_offset: ClockOffset) -> ConnectorProcess {
        let mut command = self.connector_command();
        clock_offset.apply_to(&mut command);
        command
            .arg("run")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for role in roles {
            command.args(["--role", role]);
        }
        let mut child = command.spawn().unwrap();
        let process_name = if roles.is_empty() {
            "all".to_owned()
        } else {
            roles.join("+")
        };
        let stderr = child.stderr.take().unwrap();
        let log_prefix = process_name.clone();
        let log_lines = Arc::<Mutex<Vec<String>>>::default();
        let collected_lines = log_lines.clone();
        tokio::spawn(async move {
            let mut stderr_lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = stderr_lines.next_line().await {
                eprintln!("{log_prefix}: {line}");
                collected_lines.lock().push(line);
            }
        });
        let mut stdout_lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let read_banner = async {
            let mut http_url = None;
            while let Some(line) = stdout_lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.trim().split_once("http://") {
                    let address = rest.split('/').next().unwrap();
                    http_url = http_url.or(Some(format!("http://{address}")));
                }
                if is_last_banner_line(&line) {
                    return http_url;
                }
            }
            None
        };
        let http_url = timeout(CONDITION_TIMEOUT, read_banner)
            .await
            .expect("timed out waiting for the startup banner")
            .unwrap_or_else(|| panic!("process {process_name} did not start"));
        // The test must read stdout. Otherwise the process blocks when the pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = stdout_lines.next_line().await {} });
        ConnectorProcess {
            child,
            http_url,
            http_client: self.http_client.clone(),
            log_lines,
        }
    }
}

/// Returns the names of the ingress topic, the answers topic, the slow topic, the inventory topic and the
/// topic of events of a cluster.
fn topic_names(unique_suffix: &str) -> [String; 5] {
    ["ingress", "answers", "slow", "inventory", "events"]
        .map(|kind| format!("{kind}-{unique_suffix}"))
}

/// Creates a database with the current schema and the topics of a cluster on the shared servers.
/// Returns the name of the database.
async fn create_database_and_topics(unique_suffix: &str) -> String {
    let topics = topic_names(unique_suffix);
    let (database, ()) = tokio::join!(
        services::create_migrated_database(),
        services::create_topics(&topics, PARTITIONS)
    );
    database
}

/// A connector process of a cluster. Dropping the value kills the process.
pub struct ConnectorProcess {
    child: Child,
    /// Base URL of the HTTP listener, without a path.
    pub http_url: String,
    http_client: reqwest::Client,
    /// Log lines that the process has written so far.
    pub log_lines: Arc<Mutex<Vec<String>>>,
}

impl ConnectorProcess {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id().unwrap()).unwrap()
    }

    /// Sends a signal to the process, for example `TERM`.
    pub fn send_signal(&self, signal_name: &str) {
        send_signal(self.pid(), signal_name);
    }

    /// Waits until the process exits.
    pub async fn wait_for_exit(mut self) -> ExitStatus {
        timeout(CONDITION_TIMEOUT, self.child.wait())
            .await
            .expect("timed out waiting for the process to exit")
            .unwrap()
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Requests `/readiness`. Returns the HTTP status and the body of the response.
    pub async fn readiness(&self) -> (u16, Value) {
        let request = self.unauthenticated_request("GET", "/readiness");
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Waits until the readiness probe succeeds. Returns the body of the response.
    pub async fn wait_until_ready(&self) -> Value {
        self.wait_for_readiness(true).await
    }

    /// Waits until the readiness probe fails. Returns the body of the response.
    pub async fn wait_until_not_ready(&self) -> Value {
        self.wait_for_readiness(false).await
    }

    async fn wait_for_readiness(&self, should_be_ready: bool) -> Value {
        let deadline = Instant::now() + CONDITION_TIMEOUT;
        loop {
            let (status, body) = self.readiness().await;
            if (status == 200) == should_be_ready {
                return body;
            }
            assert!(
                Instant::now() < deadline,
                "timed out waiting for readiness to be {should_be_ready}: {body}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns a request without credentials. `path` is the complete path of the URL.
    pub fn unauthenticated_request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.http_url);
        self.http_client.request(method.parse().unwrap(), url)
    }

    /// Returns a REST request of the API caller `tester` for the default organization. `path` is
    /// the part after `/api/cloud-connector`.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.unauthenticated_request(method, &format!("/api/cloud-connector{path}"))
            .header("x-rh-cloud-connector-client-id", "tester")
            .header("x-rh-cloud-connector-psk", API_KEY)
            .header("x-rh-cloud-connector-org-id", DEFAULT_ORG_ID)
    }

    /// Returns the client ids that `GET /v2/connections` lists. If the API responds with an error,
    /// returns the HTTP status of the error.
    pub async fn list_client_ids(&self) -> Result<Vec<String>, u16> {
        let request = self.request("GET", "/v2/connections");
        let response = request.send().await.unwrap();
        if response.status() != 200 {
            return Err(response.status().as_u16());
        }
        let body: Value = response.json().await.unwrap();
        let rows = body["data"].as_array().unwrap().iter();
        Ok(rows
            .map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect())
    }

    /// Waits until the API lists the client.
    pub async fn wait_until_connected(&self, client_id: &str) {
        eventually(&format!("{client_id} to be listed"), || async {
            let client_ids = self.list_client_ids().await.ok()?;
            client_ids.iter().any(|id| id == client_id).then_some(())
        })
        .await;
    }

    /// Waits until the API no longer lists the client.
    pub async fn wait_until_disconnected(&self, client_id: &str) {
        eventually(&format!("{client_id} not to be listed"), || async {
            let client_ids = self.list_client_ids().await.ok()?;
            client_ids.iter().all(|id| id != client_id).then_some(())
        })
        .await;
    }

    /// Sends a message to the client through the API. Returns the HTTP status and the body of the
    /// response.
    pub async fn send_message(&self, client_id: &str, body: Value) -> (u16, Value) {
        let path = format!("/v2/connections/{client_id}/message");
        let response = self
            .request("POST", &path)
            .json(&body)
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Returns the sum of the metric's values. The sum includes only the time series whose labels
    /// contain the text `label`.
    pub async fn read_metric(&self, metric_name: &str, label: &str) -> f64 {
        let request = self.unauthenticated_request("GET", "/metrics");
        let metrics_page = request.send().await.unwrap().text().await.unwrap();
        sum_metric(&metrics_page, metric_name, label)
    }
}
