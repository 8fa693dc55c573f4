//! A connector in embedded mode: one process with its own ports and its own data folder.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{CONDITION_TIMEOUT, env_var_name, eventually};

/// Default value of the setting `tenant.default_org_id`. The connector assigns this organization to
/// a client if the test configures no other organization for the client.
pub const DEFAULT_ORG_ID: &str = "10000";

/// Returns the path of the binary under test. Cargo builds the binary into the parent folder of the
/// folder that contains the test executables.
pub fn connector_program() -> PathBuf {
    let test_executable = std::env::current_exe().unwrap();
    let build_dir = test_executable.ancestors().nth(2).unwrap();
    let program = build_dir.join("cloud-connector");
    assert!(
        program.exists(),
        "{} is missing; build it with `cargo build`",
        program.display()
    );
    program
}

/// Returns a command that runs the binary under test. The command does not inherit the
/// environment variables that configure a connector.
#[expect(
    clippy::disallowed_methods,
    reason = "the child must not inherit the configuration"
)]
pub fn connector_command() -> Command {
    let mut command = Command::new(connector_program());
    for (name, _) in std::env::vars() {
        if name.starts_with("CLOUD_CONNECTOR") {
            command.env_remove(name);
        }
    }
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Settings of a connector that has not been started yet.
pub struct ConnectorBuilder {
    env_vars: Vec<(String, String)>,
    temp_dir: TempDir,
}

impl ConnectorBuilder {
    pub fn new() -> Self {
        Self {
            env_vars: Vec::new(),
            temp_dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Sets a configuration key, for example `http.listen`.
    pub fn set(mut self, config_key: &str, value: impl std::fmt::Display) -> Self {
        self.env_vars
            .push((env_var_name(config_key), value.to_string()));
        self
    }

    /// Returns the temporary folder of the test, which contains the data folder. The temporary
    /// folder is deleted when the connector is dropped.
    pub fn temp_dir(&self) -> &Path {
        self.temp_dir.path()
    }

    pub async fn start(self) -> Connector {
        let mut connector = Connector {
            child: None,
            builder: self,
            http_url: String::new(),
            mqtt_address: String::new(),
            mqtts_address: None,
            ws_address: None,
            wss_address: None,
            api_key: String::new(),
            http_client: crate::http_client(),
            log_lines: Arc::default(),
        };
        connector.start_process().await;
        connector
    }
}

/// A running connector. Dropping the value kills the process.
pub struct Connector {
    child: Option<Child>,
    builder: ConnectorBuilder,
    /// Base URL of the HTTP listener, without a path.
    pub http_url: String,
    pub mqtt_address: String,
    /// Address of the MQTT listener with TLS. `None` if no such listener is configured.
    pub mqtts_address: Option<String>,
    /// Address of the WebSocket listener without TLS. `None` if no such listener is configured.
    pub ws_address: Option<String>,
    /// Address of the WebSocket listener with TLS. `None` if no such listener is configured.
    pub wss_address: Option<String>,
    /// API key of the caller `local`.
    pub api_key: String,
    http_client: reqwest::Client,
    /// Log lines that the connector has written so far.
    pub log_lines: Arc<Mutex<Vec<String>>>,
}

impl Connector {
    pub fn builder() -> ConnectorBuilder {
        ConnectorBuilder::new()
    }

    pub async fn start() -> Self {
        ConnectorBuilder::new().start().await
    }

    /// Starts the process, and waits until the process has printed its startup banner. A process
    /// that is started after [`kill`](Self::kill) uses the same data folder and new ports.
    pub async fn start_process(&mut self) {
        let mut command = self.connector_command();
        command
            .args(["run", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout_lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut banner: Vec<String> = Vec::new();
        let read_banner = async {
            while let Some(line) = stdout_lines.next_line().await.unwrap() {
                banner.push(line);
                if banner.last().is_some_and(|line| is_last_banner_line(line)) {
                    return;
                }
            }
        };
        timeout(CONDITION_TIMEOUT, read_banner)
            .await
            .expect("timed out waiting for the startup banner");
        if !banner.last().is_some_and(|line| is_last_banner_line(line)) {
            let mut error = String::new();
            let mut stderr = child.stderr.take().unwrap();
            stderr.read_to_string(&mut error).await.unwrap();
            panic!("the connector did not start: {error}");
        }
        // The test must read stdout and stderr. Otherwise the connector blocks when a pipe is full.
        let (stderr, log_lines) = (child.stderr.take().unwrap(), self.log_lines.clone());
        tokio::spawn(async move {
            let mut stderr_lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = stderr_lines.next_line().await {
                eprintln!("connector: {line}");
                log_lines.lock().push(line);
            }
        });
        tokio::spawn(async move { while let Ok(Some(_)) = stdout_lines.next_line().await {} });
        // A banner line consists of a label, an address and a remark, for example
        // `MQTT  127.0.0.1:1883 (this machine only, no TLS)`.
        let banner_address = |label: &str, remark: &str| {
            banner
                .iter()
                .find(|line| line.trim_start().starts_with(label) && line.contains(remark))
                .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
        };
        let rest_url = banner_address("REST", "").unwrap();
        rest_url
            .split("/api")
            .next()
            .unwrap()
            .clone_into(&mut self.http_url);
        self.mqtt_address = banner_address("MQTT", "this machine only").unwrap();
        self.mqtts_address = banner_address("MQTT", "TLS, client");
        let websocket_address = |scheme: &str| {
            let url = banner_address("MQTT", scheme)?;
            url.strip_prefix(scheme).map(str::to_owned)
        };
        self.ws_address = websocket_address("ws://");
        self.wss_address = websocket_address("wss://");
        let api_key = std::fs::read_to_string(self.data_dir().join("local.key")).unwrap();
        api_key.trim().clone_into(&mut self.api_key);
        self.child = Some(child);
    }

    /// Returns a command that runs the binary with this connector's settings.
    pub fn connector_command(&self) -> Command {
        let mut command = connector_command();
        command
            .env("CLOUD_CONNECTOR__DATA__DIR", self.data_dir())
            .envs(self.builder.env_vars.iter().map(|(k, v)| (k, v)));
        command
    }

    pub fn data_dir(&self) -> PathBuf {
        self.builder.temp_dir.path().join("data")
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("the connector is not running");
        i32::try_from(child.id().unwrap()).unwrap()
    }

    /// Sends a signal to the process, for example `TERM`.
    pub fn send_signal(&self, signal_name: &str) {
        send_signal(self.pid(), signal_name);
    }

    /// Waits until the process exits.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        timeout(CONDITION_TIMEOUT, child.wait())
            .await
            .expect("timed out waiting for the connector to exit")
            .unwrap()
    }

    pub async fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().await.unwrap();
    }

    /// Blocks all writes to the connector's database until the returned connection is closed.
    pub async fn block_writes(&self) -> sqlx::SqliteConnection {
        use sqlx::Connection as _;
        let path = self.data_dir().join("cloud-connector.db");
        let url = format!("sqlite://{}", path.display());
        let mut blocker = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query("BEGIN EXCLUSIVE")
            .execute(&mut blocker)
            .await
            .unwrap();
        blocker
    }

    /// Returns a REST request of the API caller `local` for the default organization. `path` is the
    /// part after `/api/cloud-connector`.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.request_for(DEFAULT_ORG_ID, method, path)
    }

    /// Returns a REST request of the API caller `local` for the organization `org_id`. `path` is
    /// the part after `/api/cloud-connector`.
    pub fn request_for(&self, org_id: &str, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.unauthenticated_request(method, &format!("/api/cloud-connector{path}"))
            .header("x-rh-cloud-connector-client-id", "local")
            .header("x-rh-cloud-connector-psk", &self.api_key)
            .header("x-rh-cloud-connector-org-id", org_id)
    }

    /// Returns a request without credentials. `path` is the complete path of the URL.
    pub fn unauthenticated_request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().unwrap();
        let url = format!("{}{path}", self.http_url);
        self.http_client.request(method, url)
    }

    /// Returns the client ids that `GET /v2/connections` lists for the organization `org_id`.
    pub async fn list_client_ids(&self, org_id: &str) -> Vec<String> {
        let response = self
            .request_for(org_id, "GET", "/v2/connections")
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        let body: Value = response.json().await.unwrap();
        let rows = body["data"].as_array().unwrap();
        rows.iter()
            .map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until the API lists the client.
    pub async fn wait_until_connected(&self, client_id: &str) {
        eventually(&format!("{client_id} to be listed"), || async {
            self.is_listed(client_id).await.then_some(())
        })
        .await;
    }

    /// Waits until the API no longer lists the client.
    pub async fn wait_until_disconnected(&self, client_id: &str) {
        eventually(&format!("{client_id} not to be listed"), || async {
            (!self.is_listed(client_id).await).then_some(())
        })
        .await;
    }

    async fn is_listed(&self, client_id: &str) -> bool {
        let client_ids = self.list_client_ids(DEFAULT_ORG_ID).await;
        client_ids.iter().any(|id| id == client_id)
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

    /// Requests `/readiness`. Returns the HTTP status and the body of the response.
    pub async fn readiness(&self) -> (u16, Value) {
        let request = self.unauthenticated_request("GET", "/readiness");
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

/// Returns whether `line` is the last line of the startup banner. The last line explains how to
/// stop the connector.
pub fn is_last_banner_line(line: &str) -> bool {
    line.starts_with("Ctrl-C")
}

/// Returns the sum of the metric's values on a Prometheus page. The sum includes only the time
/// series whose labels contain the text `label`.
pub fn sum_metric(metrics_page: &str, metric_name: &str, label: &str) -> f64 {
    metrics_page
        .lines()
        .filter(|line| line.starts_with(metric_name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Sends a signal to a process, for example `TERM`.
pub fn send_signal(pid: i32, signal_name: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal_name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}
