//! A connector in its distributed set-up: real services, a process per role.

use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::connector::send_signal;
use super::services::{self, Service};
use super::{TIMEOUT, eventually, program};

pub const KEY: &str = "0123456789abcdef0123";
pub const ORG: &str = "10000";

/// Services and settings that processes of one set-up share.
pub struct Fleet {
    pub mosquitto: Service,
    /// Private ones, where a test stops them.
    pub postgres: Option<Service>,
    pub kafka: Option<Service>,
    variables: Vec<(String, String)>,
    client: reqwest::Client,
}

impl Fleet {
    /// A Mosquitto of its own; a database and topics of its own on the shared services.
    pub async fn new() -> Self {
        Self::with(Service::mosquitto().await, None, None).await
    }

    pub async fn with(
        mosquitto: Service,
        postgres: Option<Service>,
        kafka: Option<Service>,
    ) -> Self {
        let postgres_port = match &postgres {
            Some(service) => service.port,
            None => services::shared().await.postgres,
        };
        let kafka_port = match &kafka {
            Some(service) => service.port,
            None => services::shared().await.kafka,
        };
        let database = services::database(postgres_port).await;
        let own = uuid::Uuid::new_v4().simple().to_string();
        let fleet = Self {
            client: crate::support::http(),
            variables: Vec::new(),
            postgres,
            kafka,
            mosquitto,
        };
        let url = format!("mqtt://127.0.0.1:{}", fleet.mosquitto.port);
        let fleet = fleet
            .set("mqtt.url", url)
            .set("mqtt.username", "cloud-connector")
            .set("mqtt.password", "cc-secret")
            .set("kafka.brokers", format!("127.0.0.1:{kafka_port}"))
            .set("kafka.ingress_topic", format!("ingress-{own}"))
            .set("kafka.answers_topic", format!("answers-{own}"))
            .set("inventory.topic", format!("inventory-{own}"))
            .set("kafka.group", format!("group-{own}"))
            .set("kafka.answers_group", format!("answers-group-{own}"))
            .set("kafka.session_timeout", "6s")
            .set("kafka.partitions", 4)
            .set("kafka.replication", 1)
            .set("postgres.host", "127.0.0.1")
            .set("postgres.port", postgres_port)
            .set("postgres.database", database)
            .set("postgres.user", "cc")
            .set("postgres.password", "cc-secret")
            .set("postgres.tls", "require")
            .set("postgres.acquire_timeout", "1s")
            .set("api.keys.tester", KEY)
            .set("http.listen", "127.0.0.1:0");
        let (code, said) = fleet.command(&["migrate", "--topics"]).await;
        assert_eq!(code, Some(0), "{said}");
        fleet
    }

    /// Sets a key for whatever is started from here on.
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let name = format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase());
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.to_string()));
        self
    }

    /// What a key is set to.
    #[must_use]
    pub fn value(&self, key: &str) -> &str {
        let name = format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase());
        let found = self.variables.iter().find(|(known, _)| *known == name);
        &found.expect("it is set").1
    }

    /// A connection to the set-up's database.
    pub async fn connect(&self) -> sqlx::PgConnection {
        use sqlx::Connection as _;
        let port = self.value("postgres.port");
        let database = self.value("postgres.database");
        let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
        sqlx::PgConnection::connect(&url).await.unwrap()
    }

    pub fn program(&self) -> Command {
        let mut command = program();
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Runs a command to its end: exit code, and what it said on both streams.
    pub async fn command(&self, args: &[&str]) -> (Option<i32>, String) {
        let done = self.program().args(args).output().await.unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(said).unwrap())
    }

    /// Starts a process with these roles; all of them if none is named.
    pub async fn start(&self, roles: &[&str]) -> Process {
        let mut command = self.program();
        command
            .arg("run")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for role in roles {
            command.args(["--role", role]);
        }
        let mut child = command.spawn().unwrap();
        let name = if roles.is_empty() {
            "all".to_owned()
        } else {
            roles.join("+")
        };
        let stderr = child.stderr.take().unwrap();
        let label = name.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{label}: {line}");
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let greeted = async {
            let mut http = None;
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(rest) = line.trim().split_once("http://") {
                    let address = rest.1.split('/').next().unwrap();
                    http = http.or(Some(format!("http://{address}")));
                }
                if line.starts_with("Ctrl-C") {
                    return http;
                }
            }
            None
        };
        let http = timeout(TIMEOUT, greeted).await.expect("no greeting");
        let http = http.unwrap_or_else(|| panic!("{name} did not start"));
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let process = Process {
            child,
            http,
            client: self.client.clone(),
        };
        process.wait_ready(true).await;
        process
    }
}

/// A process of the set-up. Killed when dropped.
pub struct Process {
    child: Child,
    pub http: String,
    client: reqwest::Client,
}

impl Process {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id().unwrap()).unwrap()
    }

    pub fn signal(&self, signal: &str) {
        send_signal(self.pid(), signal);
    }

    pub async fn ended(mut self) -> ExitStatus {
        timeout(TIMEOUT, self.child.wait())
            .await
            .expect("it does not end")
            .unwrap()
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub async fn readiness(&self) -> (u16, Value) {
        let asked = self.client.get(format!("{}/readiness", self.http));
        let answer = asked.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Waits until it says that it is ready, or that it is not; returns what it says.
    pub async fn wait_ready(&self, ready: bool) -> Value {
        let deadline = std::time::Instant::now() + TIMEOUT;
        loop {
            let (status, said) = self.readiness().await;
            if (status == 200) == ready {
                return said;
            }
            let late = std::time::Instant::now() > deadline;
            assert!(!late, "in vain waited for ready to be {ready}: {said}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// A request without credentials.
    pub fn bare(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.http);
        self.client.request(method.parse().unwrap(), url)
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.bare(method, &format!("/api/cloud-connector{path}"))
            .header("x-rh-cloud-connector-client-id", "tester")
            .header("x-rh-cloud-connector-psk", KEY)
            .header("x-rh-cloud-connector-org-id", ORG)
    }

    /// Client ids in the list, or the status that came instead.
    pub async fn listed(&self) -> Result<Vec<String>, u16> {
        let answer = self.request("GET", "/v2/connections").send().await.unwrap();
        if answer.status() != 200 {
            return Err(answer.status().as_u16());
        }
        let body: Value = answer.json().await.unwrap();
        let rows = body["data"].as_array().unwrap().iter();
        Ok(rows
            .map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect())
    }

    pub async fn wait_for(&self, client: &str, listed: bool) {
        let what = format!("{client} listed: {listed}");
        eventually(&what, || async {
            let there = self.listed().await.ok()?.iter().any(|id| id == client);
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

    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.client.get(format!("{}/metrics", self.http)).send();
        let page = page.await.unwrap().text().await.unwrap();
        page.lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}
