//! A connector under test, in embedded mode or in distributed mode. With [`Deployment`], one test
//! function can run in both modes.

mod mode;
mod rows;

use serde_json::Value;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::cluster::{Cluster, ConnectorProcess};
use super::connector::{Connector, ConnectorBuilder};
use super::eventually;
use super::mqtt::{RawClient, control_out_topic, data_out_topic};

use rows::open_sqlite;

pub use mode::{DeploymentMode, TestArgument, run_test};
pub use rows::{ConnectionRow, read_postgres_row, read_sqlite_row};

/// A running connector in one of the two deployment modes.
pub enum Deployment {
    /// Embedded mode: broker and SQLite database inside the connector process.
    Embedded(Box<Connector>),
    /// Distributed mode: external Mosquitto, Kafka and PostgreSQL.
    Distributed(Box<DistributedDeployment>),
}

/// The external services, and one connector process that runs all roles.
pub struct DistributedDeployment {
    pub cluster: Cluster,
    pub process: ConnectorProcess,
    /// Connection to the database. `None` before the first use.
    database: Mutex<Option<sqlx::PgConnection>>,
}

impl DistributedDeployment {
    /// Returns a connection to the cluster's database. Reuses the connection if it still works,
    /// because authentication takes longer than most queries, and tests repeat queries until a
    /// condition is met.
    async fn database(&self) -> MappedMutexGuard<'_, sqlx::PgConnection> {
        use sqlx::Connection as _;
        let mut database = self.database.lock().await;
        let is_usable = match database.as_mut() {
            Some(connection) => connection.ping().await.is_ok(),
            None => false,
        };
        if !is_usable {
            *database = Some(self.cluster.connect_to_database().await);
        }
        MutexGuard::map(database, |connection| connection.as_mut().unwrap())
    }
}

/// Configuration keys and their values.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

impl Deployment {
    pub async fn embedded(settings: Settings<'_>) -> Self {
        let mut builder = ConnectorBuilder::new();
        for (key, value) in settings {
            builder = builder.set(key, value);
        }
        Self::Embedded(Box::new(builder.start().await))
    }

    pub async fn distributed(settings: Settings<'_>) -> Self {
        Self::start_distributed(Cluster::new().await, settings).await
    }

    /// Starts distributed mode with a private PostgreSQL server, for tests that stop the server.
    pub async fn distributed_with_private_postgres(settings: Settings<'_>) -> Self {
        use super::services::Service;
        let (mosquitto, postgres) =
            tokio::join!(Service::start_mosquitto(), Service::start_postgres());
        let cluster = Cluster::with_services(mosquitto, Some(postgres), None).await;
        Self::start_distributed(cluster, settings).await
    }

    async fn start_distributed(mut cluster: Cluster, settings: Settings<'_>) -> Self {
        for (key, value) in settings {
            cluster = cluster.set(key, value);
        }
        let process = cluster.start(&[]).await;
        Self::Distributed(Box::new(DistributedDeployment {
            cluster,
            process,
            database: Mutex::default(),
        }))
    }

    /// Returns the address of the MQTT listener for clients.
    pub fn mqtt_address(&self) -> String {
        match self {
            Self::Embedded(connector) => connector.mqtt_address.clone(),
            Self::Distributed(distributed) => {
                format!("127.0.0.1:{}", distributed.cluster.mosquitto.port)
            }
        }
    }

    /// Returns whether clients connect to an external broker. An external broker stores retained
    /// messages. The embedded broker does not.
    pub fn has_external_broker(&self) -> bool {
        !matches!(self, Self::Embedded(_))
    }

    /// Returns a REST request of a caller. `path` is the part after `/api/cloud-connector`.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        match self {
            Self::Embedded(connector) => connector.request(method, path),
            Self::Distributed(distributed) => distributed.process.request(method, path),
        }
    }

    /// Returns a REST request without credentials. `path` is the part after `/api/cloud-connector`.
    pub fn unauthenticated_request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let path = format!("/api/cloud-connector{path}");
        match self {
            Self::Embedded(connector) => connector.unauthenticated_request(method, &path),
            Self::Distributed(distributed) => {
                distributed.process.unauthenticated_request(method, &path)
            }
        }
    }

    /// Requests the client's status from the API. Returns the body of the response.
    pub async fn client_status(&self, client_id: &str) -> Value {
        let path = format!("/v2/connections/{client_id}/status");
        self.get_json(&path).await
    }

    /// Sends a GET request, which must succeed. Retries the request while the API responds with
    /// status 503, which means that the database is busy. Returns the body of the response.
    async fn get_json(&self, path: &str) -> Value {
        eventually("a response without status 503", || async {
            let response = self.request("GET", path).send().await.unwrap();
            match response.status().as_u16() {
                200 => Some(response.json().await.unwrap()),
                503 => None,
                status => panic!("unexpected status {status}"),
            }
        })
        .await
    }

    /// Waits until the API reports that the client is connected. Returns the client's status.
    pub async fn wait_until_connected(&self, client_id: &str) -> Value {
        self.wait_for_status(client_id, |status| status["status"] == "connected")
            .await
    }

    /// Waits until the API reports that the client is disconnected. Returns the client's status.
    pub async fn wait_until_disconnected(&self, client_id: &str) -> Value {
        self.wait_for_status(client_id, |status| status["status"] != "connected")
            .await
    }

    /// Waits until the client's status satisfies the condition. Returns the status.
    pub async fn wait_for_status(
        &self,
        client_id: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually(&format!("the status of {client_id}"), || async {
            let status = self.client_status(client_id).await;
            condition(&status).then_some(status)
        })
        .await
    }

    /// Returns the client ids of all connected clients.
    pub async fn list_client_ids(&self) -> std::collections::HashSet<String> {
        let body = self.get_json("/v2/connections?limit=100000").await;
        let rows = body["data"].as_array().unwrap().iter();
        rows.map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub async fn is_ready(&self) -> bool {
        self.readiness().await.0 == 200
    }

    /// Requests `/readiness`. Returns the HTTP status and the body of the response.
    pub async fn readiness(&self) -> (u16, Value) {
        match self {
            Self::Embedded(connector) => connector.readiness().await,
            Self::Distributed(distributed) => distributed.process.readiness().await,
        }
    }

    /// Returns the log lines that the connector has written so far.
    pub fn log_lines(&self) -> Vec<String> {
        let log_lines = match self {
            Self::Embedded(connector) => &connector.log_lines,
            Self::Distributed(distributed) => &distributed.process.log_lines,
        };
        log_lines.lock().clone()
    }

    /// Waits for a JSON log line that satisfies the condition. Returns the line.
    pub async fn wait_for_log_line(
        &self,
        description: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually(description, || async {
            let lines = self.log_lines();
            let mut lines = lines
                .iter()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines.find(&condition)
        })
        .await
    }

    /// Sends a message to the client through the API. Returns the HTTP status and the body of the
    /// response.
    pub async fn send_message(&self, client_id: &str, body: Value) -> (u16, Value) {
        match self {
            Self::Embedded(connector) => connector.send_message(client_id, body).await,
            Self::Distributed(distributed) => {
                distributed.process.send_message(client_id, body).await
            }
        }
    }

    /// Returns the sum of the metric's values. The sum includes only the time series whose labels
    /// contain the text `label`.
    pub async fn read_metric(&self, metric_name: &str, label: &str) -> f64 {
        match self {
            Self::Embedded(connector) => connector.read_metric(metric_name, label).await,
            Self::Distributed(distributed) => {
                distributed.process.read_metric(metric_name, label).await
            }
        }
    }

    /// Returns the resident memory of the connector process, in MiB.
    pub fn resident_memory_mib(&self) -> u64 {
        let pid = match self {
            Self::Embedded(connector) => connector.pid(),
            Self::Distributed(distributed) => distributed.process.pid(),
        };
        crate::resident_memory_mib(pid)
    }

    /// Reads the client's row directly from the database.
    pub async fn row(&self, client_id: &str) -> Option<ConnectionRow> {
        match self {
            Self::Embedded(connector) => read_sqlite_row(&sqlite_path(connector), client_id).await,
            Self::Distributed(distributed) => {
                let mut database = distributed.database().await;
                read_postgres_row(&mut database, client_id).await
            }
        }
    }

    /// Waits until the client's row contains the time of a delivered report to inventory.
    pub async fn wait_until_reported_to_inventory(&self, client_id: &str) {
        let description = format!("the delivered inventory report of {client_id}");
        eventually(&description, || async {
            let row = self.row(client_id).await?;
            (row.stale_timestamp > 0).then_some(())
        })
        .await;
    }

    /// Runs a `SELECT count(*)` query directly on the database. Returns the count.
    pub async fn count_rows(&self, sql: &'static str) -> i64 {
        match self {
            Self::Embedded(connector) => {
                let mut database = open_sqlite(&sqlite_path(connector)).await;
                let count = sqlx::query_scalar(sql).fetch_one(&mut database).await;
                count.unwrap()
            }
            Self::Distributed(distributed) => {
                let mut database = distributed.database().await;
                let count = sqlx::query_scalar(sql).fetch_one(&mut *database).await;
                count.unwrap()
            }
        }
    }

    /// Runs a statement directly on the database.
    pub async fn execute(&self, sql: &'static str) {
        match self {
            Self::Embedded(connector) => {
                let mut database = open_sqlite(&sqlite_path(connector)).await;
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
            Self::Distributed(distributed) => {
                let mut database = distributed.database().await;
                sqlx::query(sql).execute(&mut *database).await.unwrap();
            }
        }
    }

    /// Returns all inventory messages that the connector has sent so far. The connector writes
    /// these messages to a file in embedded mode, and to Kafka in distributed mode.
    pub async fn inventory_messages(&self) -> Vec<Value> {
        let payloads: Vec<Vec<u8>> = match self {
            Self::Embedded(connector) => {
                let file = connector.data_dir().join("inventory.ndjson");
                let text = std::fs::read_to_string(file).unwrap_or_default();
                text.lines().map(|line| line.as_bytes().to_vec()).collect()
            }
            Self::Distributed(distributed) => {
                let brokers = distributed.cluster.setting("kafka.brokers").to_owned();
                let topic = distributed.cluster.setting("inventory.topic").to_owned();
                let read = move || super::services::read_topic(&brokers, &topic);
                tokio::task::spawn_blocking(read).await.unwrap()
            }
        };
        let parse = |payload: &Vec<u8>| serde_json::from_slice(payload).unwrap();
        payloads.iter().map(parse).collect()
    }

    /// Kills the connector and starts a new process. The new process subscribes again, so an
    /// external broker resends all retained messages.
    pub async fn restart(&mut self) {
        match self {
            Self::Embedded(connector) => {
                connector.kill().await;
                connector.start_process().await;
            }
            Self::Distributed(distributed) => {
                distributed.process.send_signal("KILL");
                distributed.process = distributed.cluster.start(&[]).await;
            }
        }
    }

    /// Runs a CLI command with the connector's settings, and waits until the command exits. Returns
    /// the exit code, and stdout followed by stderr.
    pub async fn run_command(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = match self {
            Self::Embedded(connector) => connector.connector_command(),
            Self::Distributed(distributed) => distributed.cluster.connector_command(),
        };
        let output = command.args(args).output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// Returns all dead letters that the command `dead-letters list` prints.
    pub async fn dead_letters(&self) -> Vec<Value> {
        let args = [
            "dead-letters",
            "list",
            "--output",
            "json",
            "--limit",
            "100000",
        ];
        let (code, output) = self.run_command(&args).await;
        assert_eq!(code, Some(0), "{output}");
        serde_json::from_str(output.trim()).unwrap_or_else(|_| panic!("{output}"))
    }

    /// Returns whether the database contains a dead letter of the client with this payload.
    async fn has_dead_letter(&self, client_id: &str, payload: &[u8]) -> bool {
        let count: i64 = match self {
            Self::Embedded(connector) => {
                let sql = "SELECT count(*) FROM dead_letters WHERE client_id = ? AND payload = ?";
                let mut database = open_sqlite(&sqlite_path(connector)).await;
                let query = sqlx::query_scalar(sql).bind(client_id).bind(payload);
                query.fetch_one(&mut database).await.unwrap()
            }
            Self::Distributed(distributed) => {
                let sql = "SELECT count(*) FROM dead_letters WHERE client_id = $1 AND payload = $2";
                let mut database = distributed.database().await;
                let query = sqlx::query_scalar(sql).bind(client_id).bind(payload);
                query.fetch_one(&mut *database).await.unwrap()
            }
        };
        count > 0
    }

    /// Waits until the connector has processed all earlier messages of the client. Tests call this
    /// function before they check that an earlier message had no effect.
    ///
    /// The client publishes two undecodable messages, and the function waits until both messages
    /// are dead letters. In distributed mode, messages of one client have the same Kafka partition
    /// number and are recorded in order. There are two messages, because presence messages and
    /// responses pass through different Kafka topics. A message of another client would not
    /// be sufficient: it can be in another partition, and partitions are not ordered.
    pub async fn wait_until_processed(&self, client_id: &str, client: &mut RawClient) {
        for topic in [control_out_topic(client_id), data_out_topic(client_id)] {
            let payload = super::unique_id("undecodable");
            let puback = client.publish(&topic, payload.as_bytes()).await;
            puback.expect("the broker closed the connection");
            eventually("the dead letter of the last message", || async {
                let is_stored = self.has_dead_letter(client_id, payload.as_bytes()).await;
                is_stored.then_some(())
            })
            .await;
        }
    }

    /// Waits until exactly `count` dead letters of the client are stored. Returns these dead
    /// letters.
    pub async fn wait_for_dead_letters(&self, client_id: &str, count: usize) -> Vec<Value> {
        let description = format!("{count} dead letters of {client_id}");
        eventually(&description, || async {
            let mut dead_letters = self.dead_letters().await;
            dead_letters.retain(|dead_letter| dead_letter["client_id"] == client_id);
            (dead_letters.len() == count).then_some(dead_letters)
        })
        .await
    }
}

fn sqlite_path(connector: &Connector) -> std::path::PathBuf {
    connector.data_dir().join("cloud-connector.db")
}
