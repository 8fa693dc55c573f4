//! Measures the latency from a client's publish until the API returns the new state, at a constant
//! rate. The baseline measures the latency from a publish until a SELECT returns the inserted row.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;

use super::baseline::Baseline;
use super::client::MqttClient;
use super::embedded::EmbeddedConnector;
use super::pipeline::distributed_env_vars;
use super::process::{ConnectorProcess, eventually, run_command};
use super::support::report::{Measurement, Target, median, quantile};
use super::support::{Services, env_vars};
use super::{ORG_ID, RUNS, rows};

/// Time between two messages to the connector, and between two messages to the baseline.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(10);
/// Messages to the baseline are published halfway between messages to the connector. A short stall
/// of the machine then affects both.
const BASELINE_DELAY: Duration = Duration::from_millis(5);
const CLIENTS: usize = 500;
const MESSAGES_PER_RUN: u16 = 1000;
const WARM_UP_MESSAGES: u16 = 300;

/// Time between two polls for the result of a message. Polling more often, or earlier than
/// `Probe::first_poll_after`, would cause most of the load.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// `Probe::first_poll_after` as a share of the latency that [`warm_up`] returns.
const FIRST_POLL_SHARE: f64 = 0.6;
/// After this time, polls for a message are [`SLOW_POLL_INTERVAL`] apart. Frequent polls would slow
/// down an overloaded machine even more.
const SLOW_POLL_AFTER: Duration = Duration::from_millis(30);
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(8);

/// Key of the API caller `bench`.
const API_KEY: &str = "0123456789abcdef0123";

pub async fn measure(services: &Services) -> Result<Vec<Measurement>> {
    let mut measurements = measure_embedded().await?;
    measurements.extend(measure_distributed(services).await?);
    Ok(measurements)
}

async fn measure_embedded() -> Result<Vec<Measurement>> {
    let connector = EmbeddedConnector::start().await?;
    let api = Api {
        http: reqwest::Client::new(),
        base_url: connector.process.http_url.clone(),
        caller: "local",
        key: connector.api_key.clone(),
    };
    let mqtt_address = connector.process.mqtt_address.clone();
    let baseline = Baseline::with_sqlite().await?;
    compare(
        "embedded",
        10.0,
        System::Connector { api, mqtt_address },
        System::Baseline(baseline),
    )
    .await
}

async fn measure_distributed(services: &Services) -> Result<Vec<Measurement>> {
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let database = services.create_database().await?;
    let mut env = distributed_env_vars(services, &suffix);
    env.extend(services.postgres_env_vars(&database));
    env.extend(env_vars(&[
        ("kafka.group", &format!("group-{suffix}")),
        ("kafka.answers_group", &format!("answers-{suffix}")),
        ("api.keys.bench", API_KEY),
    ]));
    run_command(&["migrate", "--create-topics"], &env).await?;
    let mut processes = Vec::new();
    for role in ["ingest", "record", "api"] {
        processes.push(ConnectorProcess::start(&["--role", role], &env).await?);
    }
    for process in &processes {
        process.wait_ready().await?;
    }
    let api_process = processes.last().context("no process was started")?;
    let api = Api {
        http: reqwest::Client::new(),
        base_url: api_process.http_url.clone(),
        caller: "bench",
        key: API_KEY.to_owned(),
    };
    let mqtt_address = format!("127.0.0.1:{}", services.mosquitto_port);
    let baseline = Baseline::with_postgres(services, &database).await?;
    let measurements = compare(
        "distributed",
        25.0,
        System::Connector { api, mqtt_address },
        System::Baseline(baseline),
    )
    .await?;
    for process in processes {
        process.kill().await?;
    }
    MqttClient::delete_session(services.mosquitto_port, &format!("ingest-{suffix}")).await?;
    Ok(measurements)
}

async fn compare(
    mode: &str,
    max_p50_ms: f64,
    connector: System,
    baseline: System,
) -> Result<Vec<Measurement>> {
    let connector = Probe::new(connector).await?;
    let baseline = Probe::new(baseline).await?;
    let mut connector_runs = RunQuantiles::default();
    let mut baseline_runs = RunQuantiles::default();
    for run in 0..RUNS {
        let start = tokio::time::Instant::now() + MESSAGE_INTERVAL;
        let (connector_latencies, baseline_latencies) = tokio::try_join!(
            connector.measure_run(run, start),
            baseline.measure_run(run, start + BASELINE_DELAY),
        )?;
        connector_runs.add(&connector_latencies);
        baseline_runs.add(&baseline_latencies);
    }
    let (p50, p99) = connector_runs.medians();
    let (baseline_p50, baseline_p99) = baseline_runs.medians();
    Ok(vec![
        Measurement {
            name: format!("{mode}, publish to API at 100/s, p50"),
            measured: format!("baseline {baseline_p50:.1} ms"),
            value: p50,
            unit: "ms",
            target: Target::AtMost(max_p50_ms),
        },
        Measurement {
            name: format!("{mode}, publish to API at 100/s, p99"),
            measured: format!("{p99:.1} ms ÷ {baseline_p99:.1} ms of the baseline"),
            value: p99 / baseline_p99,
            unit: "",
            target: Target::AtMost(3.0),
        },
    ])
}

/// Quantiles of each run, in milliseconds.
#[derive(Default)]
struct RunQuantiles {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl RunQuantiles {
    fn add(&mut self, latencies_ms: &[f64]) {
        self.p50.push(quantile(latencies_ms, 0.5));
        self.p99.push(quantile(latencies_ms, 0.99));
    }

    fn medians(&self) -> (f64, f64) {
        (median(&self.p50), median(&self.p99))
    }
}

/// A measured system.
enum System {
    Connector { api: Api, mqtt_address: String },
    Baseline(Baseline),
}

impl System {
    fn mqtt_address(&self) -> &str {
        match self {
            Self::Connector { mqtt_address, .. } => mqtt_address,
            Self::Baseline(baseline) => baseline.mqtt_address(),
        }
    }

    /// Returns whether a reader sees the message with this revision.
    async fn is_visible(&self, client_id: &str, revision: &str) -> Result<bool> {
        match self {
            Self::Connector { api, .. } => api.is_visible(client_id, revision).await,
            Self::Baseline(baseline) => Ok(baseline.is_visible(client_id, revision)),
        }
    }
}

/// Sends messages one after the other. Afterwards, consumer groups have their partitions,
/// connections are open, and Kafka's JVM has compiled its code. Returns the 10th percentile of the
/// latencies.
async fn warm_up(system: &System) -> Result<Duration> {
    let client_id = uuid::Uuid::new_v4().to_string();
    let mut client = MqttClient::connect(system.mqtt_address(), &client_id).await?;
    let mut latencies = Vec::new();
    for n in 1..=WARM_UP_MESSAGES {
        let payload = rows::online_message(&client_id, n.into());
        let started = Instant::now();
        client.publish(n, payload.as_bytes()).await?;
        let revision = n.to_string();
        eventually("a warm-up message", POLL_INTERVAL, || async {
            let is_visible = system.is_visible(&client_id, &revision).await?;
            Ok(is_visible.then_some(()))
        })
        .await?;
        latencies.push(started.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(quantile(&latencies, 0.1)))
}

/// Measures the latency of one system.
struct Probe {
    system: System,
    clients: Vec<(String, Mutex<MqttClient>)>,
    /// Time between a publish and the first poll for its result.
    first_poll_after: Duration,
}

impl Probe {
    async fn new(system: System) -> Result<Self> {
        let first_poll_after = warm_up(&system).await?.mul_f64(FIRST_POLL_SHARE);
        let mut clients = Vec::new();
        for client_id in rows::client_ids(CLIENTS) {
            let client = MqttClient::connect(system.mqtt_address(), &client_id).await?;
            clients.push((client_id, Mutex::new(client)));
        }
        Ok(Self {
            system,
            clients,
            first_poll_after,
        })
    }

    /// Publishes one message per [`MESSAGE_INTERVAL`]. Returns the latencies in milliseconds.
    async fn measure_run(&self, run: usize, start: tokio::time::Instant) -> Result<Vec<f64>> {
        let latencies = (0..MESSAGES_PER_RUN).map(|n| async move {
            tokio::time::sleep_until(start + MESSAGE_INTERVAL * u32::from(n)).await;
            let message_number = run * usize::from(MESSAGES_PER_RUN) + usize::from(n);
            self.measure_message(message_number).await
        });
        futures::future::try_join_all(latencies).await
    }

    async fn measure_message(&self, message_number: usize) -> Result<f64> {
        let (client_id, client) = &self.clients[message_number % CLIENTS];
        let payload = rows::online_message(client_id, message_number);
        let revision = message_number.to_string();
        let packet_id = u16::try_from(message_number + 1)?;
        let mut client = client.lock().await;
        let started = Instant::now();
        client.send(packet_id, payload.as_bytes()).await?;
        tokio::time::sleep(self.first_poll_after).await;
        let mut poll_interval = POLL_INTERVAL;
        while !self.system.is_visible(client_id, &revision).await? {
            tokio::time::sleep(poll_interval).await;
            if started.elapsed() > SLOW_POLL_AFTER {
                poll_interval = SLOW_POLL_INTERVAL;
            }
        }
        let latency_ms = started.elapsed().as_secs_f64() * 1000.0;
        client.wait_for_puback().await?;
        Ok(latency_ms)
    }
}

/// The connector's REST API.
struct Api {
    http: reqwest::Client,
    base_url: String,
    caller: &'static str,
    key: String,
}

impl Api {
    /// Returns whether the client's status has the tag of this revision.
    async fn is_visible(&self, client_id: &str, revision: &str) -> Result<bool> {
        let url = format!(
            "{}/api/cloud-connector/v2/connections/{client_id}/status",
            self.base_url
        );
        let response = self
            .http
            .get(url)
            .header("x-rh-cloud-connector-client-id", self.caller)
            .header("x-rh-cloud-connector-psk", &self.key)
            .header("x-rh-cloud-connector-org-id", ORG_ID)
            .send()
            .await?;
        let status: serde_json::Value = response.json().await?;
        Ok(status["tags"]["revision"] == revision)
    }
}
