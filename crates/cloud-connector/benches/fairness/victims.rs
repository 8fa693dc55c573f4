//! Clients and a caller that behave well. Their latencies are measured.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use test_support::Deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_in_topic, online_message};
use tokio::sync::Mutex;

use super::support::report::quantile;

const CLIENT_COUNT: usize = 50;
/// Number of online messages in a measurement.
const ONLINE_MESSAGES: usize = 500;
const ONLINE_INTERVAL: Duration = Duration::from_millis(40);
/// Number of REST requests in a measurement, in the same time.
const CALLER_MESSAGES: usize = 200;
const CALLER_INTERVAL: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// A message that takes longer than this ends the benchmark.
const MAX_LATENCY: Duration = Duration::from_mins(2);
/// The attack has this long to take effect before the measurement begins.
const LEAD_TIME: Duration = Duration::from_secs(2);

/// Measured latencies.
pub struct Latencies {
    /// Time from the publish of an online message until the API shows its content.
    pub visible_p99_ms: f64,
    /// Duration of a caller's request that sends a message.
    pub message_p99_ms: f64,
    pub messages: usize,
    pub failed_messages: usize,
}

/// Connected clients that behave well.
pub struct Victims {
    clients: Vec<(String, Mutex<RawClient>)>,
}

impl Victims {
    pub async fn connect(deployment: &Deployment) -> Result<Self> {
        let mut clients = Vec::new();
        for number in 0..CLIENT_COUNT {
            let client_id = format!("victim-{number}");
            let connect = Connect::new(&client_id).without_keep_alive();
            let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
            client.subscribe(&data_in_topic(&client_id)).await;
            client
                .must_publish(&control_out_topic(&client_id), &online_message())
                .await;
            deployment.wait_until_connected(&client_id).await;
            clients.push((client_id, Mutex::new(client)));
        }
        Ok(Self { clients })
    }

    /// Measures clients and a caller at the same time.
    pub async fn measure(&self, deployment: &Deployment) -> Result<Latencies> {
        let start = tokio::time::Instant::now() + LEAD_TIME;
        let online_messages = (0..ONLINE_MESSAGES).map(|number| async move {
            tokio::time::sleep_until(start + ONLINE_INTERVAL * u32::try_from(number)?).await;
            self.measure_online_message(deployment, number).await
        });
        let caller_messages = (0..CALLER_MESSAGES).map(|number| async move {
            tokio::time::sleep_until(start + CALLER_INTERVAL * u32::try_from(number)?).await;
            Ok(self.measure_caller_message(deployment, number).await)
        });
        let (visible_ms, caller) = tokio::try_join!(
            futures::future::try_join_all(online_messages),
            futures::future::try_join_all(caller_messages),
        )?;
        let caller: Vec<(bool, f64)> = caller;
        let message_ms: Vec<f64> = caller.iter().map(|(_, latency_ms)| *latency_ms).collect();
        Ok(Latencies {
            visible_p99_ms: quantile(&visible_ms, 0.99),
            message_p99_ms: quantile(&message_ms, 0.99),
            messages: CALLER_MESSAGES,
            failed_messages: caller.iter().filter(|(is_sent, _)| !is_sent).count(),
        })
    }

    /// Publishes an online message with a new tag, and polls the API until it shows the tag. Returns
    /// the time in milliseconds.
    async fn measure_online_message(&self, deployment: &Deployment, number: usize) -> Result<f64> {
        let (client_id, client) = &self.clients[number % CLIENT_COUNT];
        let tag = uuid::Uuid::new_v4().to_string();
        let mut message = online_message();
        message["content"]["tags"] = json!({"revision": tag});
        // Inventory accepts this host, so the message is also reported.
        message["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}, "echo": {}});
        message["content"]["canonical_facts"]["insights_id"] = json!(uuid::Uuid::new_v4());
        let mut client = client.lock().await;
        let started_at = Instant::now();
        client
            .send_publish(
                &control_out_topic(client_id),
                message.to_string().as_bytes(),
                false,
            )
            .await;
        while deployment.client_status(client_id).await["tags"]["revision"] != tag.as_str() {
            ensure!(
                started_at.elapsed() < MAX_LATENCY,
                "{client_id} is not recorded"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(started_at.elapsed().as_secs_f64() * 1000.0)
    }

    /// Sends a message to a client. Returns whether the API accepted it, and the duration in
    /// milliseconds.
    async fn measure_caller_message(&self, deployment: &Deployment, number: usize) -> (bool, f64) {
        let (client_id, _) = &self.clients[number % CLIENT_COUNT];
        let started_at = Instant::now();
        let (status, _) = deployment
            .send_message(client_id, json!({"directive": "echo"}))
            .await;
        (status == 201, started_at.elapsed().as_secs_f64() * 1000.0)
    }
}
