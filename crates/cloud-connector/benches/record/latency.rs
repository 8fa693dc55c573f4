//! Measures the latency from a client's publish until the API returns the new state. The clients
//! publish at a constant rate. The baseline measures the latency from a publish until a SELECT
//! returns the inserted row.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;

use super::baseline::Baseline;
use super::client::MqttClient;
use super::embedded::EmbeddedConnector;
use super::pipeline::distributed_env_vars;
use super::process::{ConnectorProcess, eventually, run_command};
use super::support::report::{Goal, Measurement, median, quantile};
use super::support::{Services, env_vars};
use super::{ORG_ID, RUN_COUNT, rows};

/// Time between two messages to the connector, and between two messages to the baseline.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(20);
/// Time between a message to the connector and the next message to the baseline. Because the
/// messages alternate, a short stall of the machine affects both systems.
const BASELINE_DELAY: Duration = Duration::from_millis(10);
/// Number of clients that publish messages in turn.
const CLIENT_COUNT: usize = 500;
const MESSAGES_PER_RUN: u16 = 500;
const WARM_UP_MESSAGE_COUNT: u16 = 300;

/// Time between two polls for a published message. With a shorter interval, the polls would cause
/// most of the load.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The first poll for a message starts after this fraction of the latency that [`warm_up`] returns.
/// Earlier polls would usually find no message and would only cause load.
const FIRST_POLL_DELAY_TO_LATENCY_RATIO: f64 = 0.6;
/// If the latency of a message exceeds this value, the poll interval becomes
/// [`SLOW_POLL_INTERVAL`]. Frequent polls would slow down an overloaded machine even more.
const SLOW_POLL_THRESHOLD: Duration = Duration::from_millis(30);
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(8);

/// Secret of the API key `bench`.
const API_KEY_SECRET: &str = "0123456789abcdef0123";

pub async fn measure_latency(services: &Services) -> Result<Vec<Measurement>> {
    let mut measurements = measure_embedded().await?;
    measurements.extend(measure_distributed(services).await?);
    Ok(measurements)
}

async fn measure_embedded() -> Result<Vec<Measurement>> {
    let connector = EmbeddedConnector::start().await?;
    let api = Api {
        http_client: reqwest::Client::new(),
        base_url: connector.process.http_url.clone(),
        key_name: "local",
        key_secret: connector.api_key_secret.clone(),
    };
    let mqtt_address = connector.process.mqtt_address.clone();
    let baseline = Baseline::start_with_sqlite().await?;
    compare_with_baseline(
        "embedded",
        EMBEDDED_GOALS,
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
        ("api.keys.bench", API_KEY_SECRET),
    ]));
    run_command(&["migrate", "--topics"], &env).await?;
    let mut processes = Vec::new();
    for role in ["ingest", "record", "api"] {
        processes.push(ConnectorProcess::start(&["--role", role], &env).await?);
    }
    for process in &processes {
        process.wait_until_ready().await?;
    }
    let api_process = processes.last().context("no process was started")?;
    let api = Api {
        http_client: reqwest::Client::new(),
        base_url: api_process.http_url.clone(),
        key_name: "bench",
        key_secret: API_KEY_SECRET.to_owned(),
    };
    let mqtt_address = format!("127.0.0.1:{}", services.mosquitto_port);
    let baseline = Baseline::start_with_kafka_and_postgres(services, &database).await?;
    let measurements = compare_with_baseline(
        "distributed",
        DISTRIBUTED_GOALS,
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

/// Performance goals of a deployment mode.
struct LatencyGoals {
    p50_ms: Goal,
    p99_ms: Goal,
    /// Limits of the connector's latency divided by the baseline's latency.
    p50_ratio: Goal,
    p99_ratio: Goal,
}

const EMBEDDED_GOALS: LatencyGoals = LatencyGoals {
    p50_ms: Goal::AtMost(3.0),
    p99_ms: Goal::None,
    p50_ratio: Goal::None,
    p99_ratio: Goal::None,
};

const DISTRIBUTED_GOALS: LatencyGoals = LatencyGoals {
    p50_ms: Goal::AtMost(5.0),
    p99_ms: Goal::AtMost(10.0),
    p50_ratio: Goal::AtMost(1.5),
    p99_ratio: Goal::AtMost(2.0),
};

/// Measures the connector and the baseline at the same time.
async fn compare_with_baseline(
    deployment_mode: &str,
    goals: LatencyGoals,
    connector: System,
    baseline: System,
) -> Result<Vec<Measurement>> {
    let connector = LatencyProbe::new(connector).await?;
    let baseline = LatencyProbe::new(baseline).await?;
    let mut connector_runs = RunQuantiles::default();
    let mut baseline_runs = RunQuantiles::default();
    for run in 0..RUN_COUNT {
        let start = tokio::time::Instant::now() + MESSAGE_INTERVAL;
        let (connector_latencies, baseline_latencies) = tokio::try_join!(
            connector.measure_run(run, start),
            baseline.measure_run(run, start + BASELINE_DELAY),
        )?;
        connector_runs.add_run(&connector_latencies);
        baseline_runs.add_run(&baseline_latencies);
    }
    let connector = connector_runs.medians();
    let baseline = baseline_runs.medians();
    let measurements = [
        (
            "p50",
            connector.0,
            baseline.0,
            goals.p50_ms,
            goals.p50_ratio,
        ),
        (
            "p99",
            connector.1,
            baseline.1,
            goals.p99_ms,
            goals.p99_ratio,
        ),
    ];
    let measurements = measurements.map(|(quantile, value_ms, baseline_ms, goal, ratio_goal)| {
        let name = format!("{deployment_mode}, publish to API at 50/s, {quantile}");
        let ratio = Measurement {
            name: format!("{name} ÷ baseline"),
            details: format!("{value_ms:.1} ms ÷ {baseline_ms:.1} ms"),
            value: value_ms / baseline_ms,
            unit: "",
            goal: ratio_goal,
        };
        let value = Measurement {
            name,
            details: format!("baseline {baseline_ms:.1} ms"),
            value: value_ms,
            unit: "ms",
            goal,
        };
        [value, ratio]
    });
    Ok(measurements.into_iter().flatten().collect())
}

/// Latency quantiles of each run of one system, in milliseconds.
#[derive(Default)]
struct RunQuantiles {
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
}

impl RunQuantiles {
    fn add_run(&mut self, latencies_ms: &[f64]) {
        self.p50_ms.push(quantile(latencies_ms, 0.5));
        self.p99_ms.push(quantile(latencies_ms, 0.99));
    }

    /// Returns the median of the p50 values and the median of the p99 values.
    fn medians(&self) -> (f64, f64) {
        (median(&self.p50_ms), median(&self.p99_ms))
    }
}

/// A system whose latency is measured.
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

    /// Returns whether the client's message with this revision is already visible in the system.
    async fn is_visible(&self, client_id: &str, revision: &str) -> Result<bool> {
        match self {
            Self::Connector { api, .. } => api.is_visible(client_id, revision).await,
            Self::Baseline(baseline) => Ok(baseline.is_visible(client_id, revision)),
        }
    }
}

/// Sends messages one after the other. Afterwards, consumer groups have their partitions, network
/// connections are open, and Kafka's JVM has compiled its code. Returns the 10th percentile of the
/// messages' latencies.
async fn warm_up(system: &System) -> Result<Duration> {
    let client_id = uuid::Uuid::new_v4().to_string();
    let mut client = MqttClient::connect(system.mqtt_address(), &client_id).await?;
    let mut latencies = Vec::new();
    for n in 1..=WARM_UP_MESSAGE_COUNT {
        let payload = rows::online_message(&client_id, n.into());
        let started_at = Instant::now();
        client.publish(n, payload.as_bytes()).await?;
        let revision = n.to_string();
        eventually("a warm-up message", POLL_INTERVAL, || async {
            let is_visible = system.is_visible(&client_id, &revision).await?;
            Ok(is_visible.then_some(()))
        })
        .await?;
        latencies.push(started_at.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(quantile(&latencies, 0.1)))
}

/// Measures the latency of one system.
struct LatencyProbe {
    system: System,
    /// Each client id, and the MQTT client that uses this client id.
    clients: Vec<(String, Mutex<MqttClient>)>,
    /// Time between the publish of a message and the first poll for this message.
    first_poll_delay: Duration,
}

impl LatencyProbe {
    async fn new(system: System) -> Result<Self> {
        let first_poll_delay = warm_up(&system)
            .await?
            .mul_f64(FIRST_POLL_DELAY_TO_LATENCY_RATIO);
        let mut clients = Vec::new();
        for client_id in rows::random_client_ids(CLIENT_COUNT) {
            let client = MqttClient::connect(system.mqtt_address(), &client_id).await?;
            clients.push((client_id, Mutex::new(client)));
        }
        Ok(Self {
            system,
            clients,
            first_poll_delay,
        })
    }

    /// Publishes one message per [`MESSAGE_INTERVAL`]. Returns the latencies of the messages in
    /// milliseconds.
    async fn measure_run(&self, run: usize, start: tokio::time::Instant) -> Result<Vec<f64>> {
        let latencies = (0..MESSAGES_PER_RUN).map(|n| async move {
            tokio::time::sleep_until(start + MESSAGE_INTERVAL * u32::from(n)).await;
            let message_number = run * usize::from(MESSAGES_PER_RUN) + usize::from(n);
            self.measure_message(message_number).await
        });
        futures::future::try_join_all(latencies).await
    }

    /// Publishes a message and polls until the message is visible in the system. Returns the
    /// latency in milliseconds.
    async fn measure_message(&self, message_number: usize) -> Result<f64> {
        let (client_id, client) = &self.clients[message_number % CLIENT_COUNT];
        let payload = rows::online_message(client_id, message_number);
        let revision = message_number.to_string();
        let packet_id = u16::try_from(message_number + 1)?;
        let mut client = client.lock().await;
        let started_at = Instant::now();
        client.send_publish(packet_id, payload.as_bytes()).await?;
        tokio::time::sleep(self.first_poll_delay).await;
        let mut poll_interval = POLL_INTERVAL;
        while !self.system.is_visible(client_id, &revision).await? {
            tokio::time::sleep(poll_interval).await;
            if started_at.elapsed() > SLOW_POLL_THRESHOLD {
                poll_interval = SLOW_POLL_INTERVAL;
            }
        }
        let latency_ms = started_at.elapsed().as_secs_f64() * 1000.0;
        client.wait_for_puback().await?;
        Ok(latency_ms)
    }
}

/// Access to the connector's REST API with an API key.
struct Api {
    http_client: reqwest::Client,
    base_url: String,
    key_name: &'static str,
    key_secret: String,
}

impl Api {
    /// Returns whether the API's status of the client contains this revision.
    async fn is_visible(&self, client_id: &str, revision: &str) -> Result<bool> {
        let url = format!(
            "{}/api/cloud-connector/v2/connections/{client_id}/status",
            self.base_url
        );
        let response = self
            .http_client
            .get(url)
            .header("x-rh-cloud-connector-client-id", self.key_name)
            .header("x-rh-cloud-connector-psk", &self.key_secret)
            .header("x-rh-cloud-connector-org-id", ORG_ID)
            .send()
            .await?;
        let status: serde_json::Value = response.json().await?;
        Ok(status["tags"]["revision"] == revision)
    }
}
