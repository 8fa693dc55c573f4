//! A connector in a process of its own, on free ports, in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{TIMEOUT, eventually};

pub const ORG: &str = "10000";

/// The program under test, with an environment that holds nothing of ours.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cloud-connector"));
    for (name, _) in std::env::vars() {
        if name.starts_with("CLOUD_CONNECTOR") {
            command.env_remove(name);
        }
    }
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

/// How to start one.
pub struct Setup {
    variables: Vec<(String, String)>,
    folder: TempDir,
}

impl Setup {
    pub fn new() -> Self {
        Self {
            variables: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Sets a key, as in `http.listen`.
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let name = format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase());
        self.variables.push((name, value.to_string()));
        self
    }

    /// A folder that lives as long as the connector, beside its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub async fn start(self) -> Connector {
        let mut connector = Connector {
            child: None,
            setup: self,
            http: String::new(),
            mqtt: String::new(),
            mqtts: None,
            key: String::new(),
            client: crate::support::http(),
            said: Arc::default(),
        };
        connector.start_again().await;
        connector
    }
}

/// A connector that runs. Killed when dropped.
pub struct Connector {
    child: Option<Child>,
    setup: Setup,
    /// Where REST is, without a path.
    pub http: String,
    pub mqtt: String,
    pub mqtts: Option<String>,
    pub key: String,
    client: reqwest::Client,
    /// Its log so far, a line each.
    pub said: Arc<Mutex<Vec<String>>>,
}

impl Connector {
    pub fn setup() -> Setup {
        Setup::new()
    }

    pub async fn start() -> Self {
        Setup::new().start().await
    }

    /// Starts the process, again on the same folder if it ran before.
    pub async fn start_again(&mut self) {
        let mut command = self.program();
        command
            .args(["run", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        let read = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                let last = line.starts_with("Ctrl-C");
                greeting.push(line);
                if last {
                    return;
                }
            }
        };
        timeout(TIMEOUT, read).await.expect("no greeting");
        let ready = greeting
            .last()
            .is_some_and(|line| line.starts_with("Ctrl-C"));
        if !ready {
            let mut said = String::new();
            let mut stderr = child.stderr.take().unwrap();
            stderr.read_to_string(&mut said).await.unwrap();
            panic!("the connector did not start: {said}");
        }
        // Somebody must read what it says, or it would wait for that.
        let (stderr, said) = (child.stderr.take().unwrap(), self.said.clone());
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("connector: {line}");
                said.lock().push(line);
            }
        });
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let field = |name: &str, of: &str| {
            greeting
                .iter()
                .find(|line| line.trim_start().starts_with(name) && line.contains(of))
                .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
        };
        let rest = field("REST", "").unwrap();
        rest.split("/api")
            .next()
            .unwrap()
            .clone_into(&mut self.http);
        self.mqtt = field("MQTT", "this machine only").unwrap();
        self.mqtts = field("MQTT", "TLS, client");
        let key = std::fs::read_to_string(self.data_dir().join("local.key")).unwrap();
        key.trim().clone_into(&mut self.key);
        self.child = Some(child);
    }

    /// The program with this connector's settings, for a command beside it.
    pub fn program(&self) -> Command {
        let mut command = program();
        command
            .env("CLOUD_CONNECTOR__DATA__DIR", self.data_dir())
            .envs(self.setup.variables.iter().map(|(k, v)| (k, v)));
        command
    }

    pub fn data_dir(&self) -> PathBuf {
        self.setup.folder.path().join("data")
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("it runs");
        i32::try_from(child.id().unwrap()).unwrap()
    }

    pub fn signal(&self, signal: &str) {
        send_signal(self.pid(), signal);
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        timeout(TIMEOUT, child.wait())
            .await
            .expect("it does not end")
            .unwrap()
    }

    pub async fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().await.unwrap();
    }

    /// A request to the REST interface, as the caller `local` for the default organisation.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.request_for(ORG, method, path)
    }

    pub fn request_for(&self, org: &str, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.bare(method, &format!("/api/cloud-connector{path}"))
            .header("x-rh-cloud-connector-client-id", "local")
            .header("x-rh-cloud-connector-psk", &self.key)
            .header("x-rh-cloud-connector-org-id", org)
    }

    /// A request without credentials.
    pub fn bare(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.http))
    }

    /// Client ids in the list of an organisation.
    pub async fn listed(&self, org: &str) -> Vec<String> {
        let answer = self
            .request_for(org, "GET", "/v2/connections")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        let body: Value = answer.json().await.unwrap();
        let data = body["data"].as_array().unwrap();
        data.iter()
            .map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until a client is in the list, or until it is not.
    pub async fn wait_for(&self, client: &str, listed: bool) {
        let what = format!("{client} listed: {listed}");
        eventually(&what, || async {
            let there = self.listed(ORG).await.iter().any(|id| id == client);
            (there == listed).then_some(())
        })
        .await;
    }

    pub async fn send(&self, client: &str, body: Value) -> (u16, Value) {
        let path = format!("/v2/connections/{client}/message");
        let answer = self
            .request("POST", &path)
            .json(&body)
            .send()
            .await
            .unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The sum of a metric over all its labels that contain `label`.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.bare("GET", "/metrics").send().await.unwrap();
        let page = page.text().await.unwrap();
        page.lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    pub async fn readiness(&self) -> (u16, Value) {
        let answer = self.bare("GET", "/readiness").send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

pub fn send_signal(pid: i32, signal: &str) {
    let done = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}
