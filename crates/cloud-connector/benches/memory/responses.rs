//! Clients publish many large responses. The responses pass through Mosquitto and Kafka to the role
//! `record`.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::services::Service;
use test_support::unique_id;

use super::sampling::{self, MeasuredProcess};
use super::support::report::Measurement;

/// Number of responses that all clients together publish.
const RESPONSE_COUNT: usize = 6_000;
const RESPONSE_BYTES: usize = 1_000_000;
/// Number of clients that publish at the same time.
const CLIENT_COUNT: usize = 12;
/// Time for which `record` holds as much data as it may, before the database starts again.
const OUTAGE_AFTER_LAST_RESPONSE: Duration = Duration::from_secs(20);

/// Measures all roles while the database is available.
pub async fn measure_with_database() -> Result<Vec<Measurement>> {
    let cluster = Cluster::with_services(
        Service::start_mosquitto().await,
        Some(Service::start_postgres().await),
        None,
    )
    .await;
    let roles = Roles::start(&cluster).await;
    publish_responses(&cluster).await;
    roles.wait_until_recorded(&cluster).await;
    sampling::measure("6,000 responses of 1 MB", &roles.measured_processes()).await
}

/// Measures all roles while the database is down. The database starts again after the last
/// response.
pub async fn measure_during_database_outage() -> Result<Vec<Measurement>> {
    let cluster = Cluster::with_services(
        Service::start_mosquitto().await,
        Some(Service::start_postgres().await),
        None,
    )
    .await;
    let roles = Roles::start(&cluster).await;
    let postgres = cluster.postgres.as_ref().expect("the cluster has its own");
    postgres.stop().await;
    publish_responses(&cluster).await;
    tokio::time::sleep(OUTAGE_AFTER_LAST_RESPONSE).await;
    postgres.start_process().await;
    roles.wait_until_recorded(&cluster).await;
    sampling::measure("the same without database", &roles.measured_processes()).await
}

/// One process for each role that handles messages.
struct Roles {
    ingest: ConnectorProcess,
    record: ConnectorProcess,
    api: ConnectorProcess,
}

impl Roles {
    async fn start(cluster: &Cluster) -> Self {
        Self {
            ingest: cluster.start(&["ingest"]).await,
            record: cluster.start(&["record"]).await,
            api: cluster.start(&["api"]).await,
        }
    }

    /// Waits until `record` has processed everything that was published before.
    async fn wait_until_recorded(&self, cluster: &Cluster) {
        let client_id = unique_id("last");
        let mut client = connect_client(cluster, &client_id).await;
        let heartbeat_topic = data_out_topic(&client_id);
        client.publish_heartbeat(&heartbeat_topic).await;
        self.api.wait_until_connected(&client_id).await;
        test_support::eventually("an empty Kafka queue", || async {
            let lag = self
                .record
                .read_metric("cloud_connector_kafka_consumer_lag_messages", "")
                .await;
            (lag == 0.0).then_some(())
        })
        .await;
    }

    fn measured_processes(&self) -> Vec<MeasuredProcess> {
        [
            ("ingest", &self.ingest),
            ("record", &self.record),
            ("api", &self.api),
        ]
        .map(|(name, process)| MeasuredProcess {
            name,
            pid: process.pid(),
        })
        .into()
    }
}

async fn connect_client(cluster: &Cluster, client_id: &str) -> RawClient {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(client_id)).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    client
}

/// Publishes the responses with QoS 1. Each client waits for the acknowledgement of its response
/// before it publishes the next one.
async fn publish_responses(cluster: &Cluster) {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENT_COUNT {
        let client_id = unique_id("sender");
        let mut client = connect_client(cluster, &client_id).await;
        clients.spawn(async move {
            let response = response(&client_id);
            for _ in 0..RESPONSE_COUNT / CLIENT_COUNT {
                let puback = client.publish(&data_out_topic(&client_id), &response).await;
                puback.expect("Mosquitto closed the connection");
            }
        });
    }
    clients.join_all().await;
}

/// Creates a response whose content cannot be compressed.
fn response(client_id: &str) -> Vec<u8> {
    let random_text = || uuid::Uuid::new_v4().simple().to_string();
    let content: String = std::iter::repeat_with(random_text)
        .take(RESPONSE_BYTES / 32)
        .collect();
    let message = json!({
        "type": "data",
        "message_id": uuid::Uuid::new_v4(),
        "response_to": uuid::Uuid::new_v4(),
        "version": 1,
        "sent": "2026-01-01T00:00:00Z",
        "directive": client_id,
        "metadata": {},
        "content": content,
    });
    message.to_string().into_bytes()
}
