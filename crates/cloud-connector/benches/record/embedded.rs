//! Measures the publish rate in embedded mode. The connector commits each message to its database
//! before it sends the PUBACK. The baseline is Mosquitto, which delivers the same messages to one
//! subscriber.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

use super::client::MqttClient;
use super::process::ConnectorProcess;
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, env_vars, repository_root};
use super::{CONTROL_TOPIC_FILTER, ORG_ID, RUN_COUNT, rows};

/// Number of clients that publish in parallel.
const CLIENT_COUNT: usize = 1000;
/// Duration of one run.
const RUN_DURATION: Duration = Duration::from_secs(5);

/// A connector in embedded mode. Dropping this value kills the process and deletes its data.
pub struct EmbeddedConnector {
    pub process: ConnectorProcess,
    /// Secret of the API key `local`.
    pub api_key_secret: String,
    /// Folder that contains the data folder.
    folder: PathBuf,
}

impl EmbeddedConnector {
    pub async fn start() -> Result<Self> {
        let folder_name = uuid::Uuid::new_v4().simple().to_string();
        // A temporary directory is not suitable, because it could be in memory instead of on disk.
        let folder = repository_root().join("target/bench").join(folder_name);
        let data_dir = folder.join("data");
        let env_vars = env_vars(&[
            // All clients connect at the same time and from the same address. The default limits
            // would reject most of the clients.
            ("broker.connect_limit.burst", "100000"),
            ("broker.max_connections_per_address", "20000"),
            ("broker.max_connections", "20000"),
            // Each client publishes as fast as the connector acknowledges.
            ("client_budget.messages_per_second", "1000000"),
            ("client_budget.message_burst", "1000000"),
            ("client_budget.bytes_per_second", "1000000000"),
            ("client_budget.byte_burst", "1000000000"),
            ("data.dir", &data_dir.display().to_string()),
        ]);
        let args = ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"];
        let process = ConnectorProcess::start(&args, &env_vars).await?;
        let api_key_secret = std::fs::read_to_string(data_dir.join("local.key"))?;
        Ok(Self {
            process,
            api_key_secret: api_key_secret.trim().to_owned(),
            folder,
        })
    }

    /// Returns the number of connected clients, according to the API.
    pub async fn count_connections(&self, http_client: &reqwest::Client) -> Result<u64> {
        let url = format!(
            "{}/api/cloud-connector/v2/connections?limit=1",
            self.process.http_url
        );
        let response = http_client
            .get(url)
            .header("x-rh-cloud-connector-client-id", "local")
            .header("x-rh-cloud-connector-psk", &self.api_key_secret)
            .header("x-rh-cloud-connector-org-id", ORG_ID)
            .send()
            .await?;
        let page: serde_json::Value = response.json().await?;
        page["meta"]["count"]
            .as_u64()
            .context("the response has no meta.count")
    }
}

impl Drop for EmbeddedConnector {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub async fn measure_publish_rate(services: &Services) -> Result<Vec<Measurement>> {
    let mosquitto_address = format!("127.0.0.1:{}", services.mosquitto_port);
    let (mut connector_rates, mut mosquitto_rates) = (vec![], vec![]);
    for _ in 0..RUN_COUNT {
        let connector = EmbeddedConnector::start().await?;
        let (rate, clients) = publish_with_all_clients(&connector.process.mqtt_address).await?;
        connector_rates.push(rate);
        let count = connector.count_connections(&reqwest::Client::new()).await?;
        ensure!(
            count == CLIENT_COUNT as u64,
            "{count} of {CLIENT_COUNT} clients are recorded"
        );
        drop(clients);
        drop(connector);
        let subscriber = start_subscriber(services.mosquitto_port)?;
        let (rate, _) = publish_with_all_clients(&mosquitto_address).await?;
        mosquitto_rates.push(rate);
        drop(subscriber);
    }
    let connector_rate = median(&connector_rates);
    let mosquitto_rate = median(&mosquitto_rates);
    Ok(vec![Measurement {
        name: "embedded, 1,000 clients, commit before PUBACK".to_owned(),
        details: format!(
            "{connector_rate:.0} messages/s ÷ {mosquitto_rate:.0} into Mosquitto with a \
             mosquitto_sub"
        ),
        value: connector_rate / mosquitto_rate,
        unit: "",
        goal: Goal::AtLeast(0.5),
    }])
}

/// Publishes with all clients for [`RUN_DURATION`]. Each client has one message in flight. Returns
/// the number of acknowledged messages per second, and the clients. The clients are still
/// connected.
async fn publish_with_all_clients(address: &str) -> Result<(f64, Vec<MqttClient>)> {
    let mut clients = Vec::new();
    for client_id in rows::random_client_ids(CLIENT_COUNT) {
        clients.push((MqttClient::connect(address, &client_id).await?, client_id));
    }
    let acknowledged_count = Arc::new(AtomicU64::new(0));
    let is_finished = Arc::new(AtomicBool::new(false));
    let started_at = Instant::now();
    let publishers: Vec<_> = clients
        .into_iter()
        .map(|(mut client, client_id)| {
            let (acknowledged_count, is_finished) =
                (acknowledged_count.clone(), is_finished.clone());
            tokio::spawn(async move {
                let mut revision = 0;
                while !is_finished.load(Ordering::Relaxed) {
                    revision += 1;
                    let payload = rows::online_message(&client_id, revision);
                    let packet_id = u16::try_from(revision % 60_000)? + 1;
                    client.publish(packet_id, payload.as_bytes()).await?;
                    acknowledged_count.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>(client)
            })
        })
        .collect();
    tokio::time::sleep(RUN_DURATION).await;
    let rate =
        acknowledged_count.load(Ordering::Relaxed) as f64 / started_at.elapsed().as_secs_f64();
    is_finished.store(true, Ordering::Relaxed);
    let mut clients = Vec::new();
    for publisher in publishers {
        clients.push(publisher.await??);
    }
    Ok((rate, clients))
}

/// Starts a `mosquitto_sub` process that receives the messages of all clients.
fn start_subscriber(port: u16) -> Result<Child> {
    Command::new("mosquitto_sub")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(["-u", "cloud-connector", "-P", "cc-secret", "-q", "1"])
        .args(["-i", &uuid::Uuid::new_v4().to_string()])
        .args(["-t", CONTROL_TOPIC_FILTER])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("mosquitto_sub")
}
