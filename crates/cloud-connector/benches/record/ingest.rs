//! Measures how fast the role `ingest` moves a backlog from Mosquitto to Kafka. The baseline is
//! `mosquitto_sub`, which reads the same backlog. Also measures the peak memory of `ingest`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::client::MqttClient;
use super::kafka_topics::{self, MessageCounter};
use super::pipeline::{MAX_PEAK_MEMORY_MIB, backlog_size, distributed_env_vars};
use super::process::{ConnectorProcess, eventually};
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, load_config};
use super::{CONTROL_TOPIC_FILTER, RUN_COUNT, rows};

/// Number of clients that publish the backlog in parallel.
const PUBLISHER_COUNT: usize = 40;
/// Maximum number of unacknowledged messages of each publishing client.
const MAX_IN_FLIGHT_PER_PUBLISHER: usize = 100;
/// Time between two polls for the number of messages in Kafka. Each poll sends one request per
/// partition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time to wait until the last PUBACKs have reached the broker.
const PUBACK_WAIT: Duration = Duration::from_secs(2);

pub async fn measure_ingest_role(services: &Services) -> Result<Vec<Measurement>> {
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let database = services.create_database().await?;
    let mut env_vars = distributed_env_vars(services, &suffix);
    env_vars.extend(services.postgres_env_vars(&database));
    let config = load_config(env_vars.clone())?;
    kafka_topics::create_topics(&config).await?;
    let counter = MessageCounter::new(&config, &config.kafka.ingress_topic)?;
    let mosquitto_sub = MosquittoSub {
        port: services.mosquitto_port,
        client_id: format!("mosquitto-sub-{suffix}"),
    };
    // Create both persistent sessions before the first publish, so that the broker queues all
    // messages for `ingest` and for `mosquitto_sub`.
    create_ingest_session(&env_vars).await?;
    mosquitto_sub.create_session().await?;

    let backlog = backlog_size()?;
    let (mut ingest_rates, mut baseline_rates, mut peak_memory_mib) = (vec![], vec![], vec![]);
    for run in 0..RUN_COUNT {
        publish_messages(services.mosquitto_port, backlog).await?;
        // `mosquitto_sub` reads first in even runs, and `ingest` reads first in odd runs, because
        // the second reader may benefit from warm caches.
        if run % 2 == 0 {
            baseline_rates.push(mosquitto_sub.read_backlog(backlog).await?);
        }
        let (rate, peak_mib) = ingest_backlog(&env_vars, &counter, backlog).await?;
        ingest_rates.push(rate);
        peak_memory_mib.push(peak_mib);
        if run % 2 == 1 {
            baseline_rates.push(mosquitto_sub.read_backlog(backlog).await?);
        }
    }
    publish_messages(services.mosquitto_port, 2 * backlog).await?;
    let (_, double_backlog_mib) = ingest_backlog(&env_vars, &counter, 2 * backlog).await?;
    mosquitto_sub.read_backlog(2 * backlog).await?;

    MqttClient::delete_session(services.mosquitto_port, &format!("ingest-{suffix}")).await?;
    MqttClient::delete_session(services.mosquitto_port, &mosquitto_sub.client_id).await?;
    services.drop_database(&database).await?;

    let (rate, baseline_rate) = (median(&ingest_rates), median(&baseline_rates));
    Ok(vec![
        Measurement {
            name: "broker to Kafka, 200,000 messages in Mosquitto".to_owned(),
            details: format!("{rate:.0} messages/s ÷ {baseline_rate:.0} by mosquitto_sub"),
            value: rate / baseline_rate,
            unit: "",
            goal: Goal::AtLeast(0.7),
        },
        Measurement::peak_memory(
            "ingest, peak memory, backlog of 200,000",
            median(&peak_memory_mib),
            MAX_PEAK_MEMORY_MIB,
        ),
        Measurement::peak_memory(
            "ingest, peak memory, backlog of 400,000",
            double_backlog_mib,
            MAX_PEAK_MEMORY_MIB,
        ),
    ])
}

/// Starts `ingest`, waits until `ingest` is ready, and stops `ingest`. Afterwards, the persistent
/// session of `ingest` exists in the broker.
async fn create_ingest_session(env_vars: &[(String, String)]) -> Result<()> {
    let process = ConnectorProcess::start(&["--role", "ingest"], env_vars).await?;
    process.wait_until_ready().await?;
    process.stop().await
}

/// Starts `ingest` and waits until the whole backlog is in Kafka. Returns the messages per second
/// since the start of the process, and the peak memory of the process in MiB.
async fn ingest_backlog(
    env_vars: &[(String, String)],
    counter: &MessageCounter,
    backlog: usize,
) -> Result<(f64, f64)> {
    let count_before = counter.count()?;
    let started_at = Instant::now();
    let process = ConnectorProcess::start(&["--role", "ingest"], env_vars).await?;
    let duration = eventually("the backlog in Kafka", POLL_INTERVAL, || {
        let count = counter.count();
        async { Ok((count? >= count_before + backlog).then(|| started_at.elapsed())) }
    })
    .await?;
    let peak_mib = process.peak_memory_mib()?;
    // Wait until the broker has received the last PUBACKs. Otherwise the broker would redeliver the
    // unacknowledged messages in the next run.
    tokio::time::sleep(PUBACK_WAIT).await;
    process.stop().await?;
    let produced_count = counter.count()? - count_before;
    ensure!(
        produced_count == backlog,
        "ingest produced {produced_count} messages, expected {backlog}"
    );
    Ok((backlog as f64 / duration.as_secs_f64(), peak_mib))
}

/// The command `mosquitto_sub` with a persistent session.
struct MosquittoSub {
    port: u16,
    client_id: String,
}

impl MosquittoSub {
    fn subscribe_command(&self) -> Command {
        let mut command = Command::new("mosquitto_sub");
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-u", "cloud-connector", "-P", "cc-secret"])
            .args(["-c", "-i", &self.client_id, "-q", "1"])
            .args(["-t", CONTROL_TOPIC_FILTER])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Subscribes and disconnects (`-E`). Afterwards, the persistent session exists in the broker.
    async fn create_session(&self) -> Result<()> {
        let status = self.subscribe_command().arg("-E").status().await;
        let status = status.context("mosquitto_sub")?;
        ensure!(status.success(), "mosquitto_sub failed to subscribe");
        Ok(())
    }

    /// Reads the backlog. Returns the messages per second.
    async fn read_backlog(&self, backlog: usize) -> Result<f64> {
        let output_path = std::env::temp_dir().join(format!("{}.lines", self.client_id));
        let output_file = std::fs::File::create(&output_path)?;
        let started_at = Instant::now();
        let status = self
            .subscribe_command()
            .args(["-C", &backlog.to_string()])
            .stdout(output_file)
            .status()
            .await?;
        let duration = started_at.elapsed();
        ensure!(status.success(), "mosquitto_sub failed: {status}");
        let text = std::fs::read_to_string(&output_path)?;
        std::fs::remove_file(&output_path)?;
        let count = text.lines().count();
        ensure!(
            count == backlog,
            "mosquitto_sub read {count} of {backlog} messages"
        );
        Ok(backlog as f64 / duration.as_secs_f64())
    }
}

/// Publishes messages with QoS 1. Returns when the broker has acknowledged all messages.
async fn publish_messages(port: u16, count: usize) -> Result<()> {
    let address = format!("127.0.0.1:{port}");
    let publishers = rows::random_client_ids(PUBLISHER_COUNT)
        .into_iter()
        .map(|client_id| {
            let address = address.clone();
            tokio::spawn(async move {
                let mut client = MqttClient::connect(&address, &client_id).await?;
                let mut remaining = count / PUBLISHER_COUNT;
                while remaining > 0 {
                    let in_flight = remaining.min(MAX_IN_FLIGHT_PER_PUBLISHER);
                    for n in 0..in_flight {
                        let packet_id = u16::try_from(n + 1)?;
                        let payload = rows::online_message(&client_id, n);
                        client.send_publish(packet_id, payload.as_bytes()).await?;
                    }
                    for _ in 0..in_flight {
                        client.wait_for_puback().await?;
                    }
                    remaining -= in_flight;
                }
                Ok::<_, anyhow::Error>(())
            })
        });
    for result in futures::future::join_all(publishers).await {
        result??;
    }
    Ok(())
}
