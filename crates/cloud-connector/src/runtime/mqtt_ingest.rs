//! Ingest from an external MQTT broker (role `ingest`).

use anyhow::Result;
use futures::FutureExt as _;

use super::build_context::BuildContext;
use crate::config::Config;
use kafka::{GroupProgress, Producer};
use mqtt::{ConnectOptions, IngestMessages, MqttSettings, SessionKind};
use pipeline::ingest::ForwardDestination;
use pipeline::ingest::epoch::EpochSource;
use pipeline::ingest::external_broker::{ExternalIngest, IngestDeps, SlowTopic};
use pipeline::ingest::session_lease::SessionLease;
use pipeline::record::Recorder;
use service::{ClientBudgets, Health};

/// Name of the connection to the external broker in the response of `/readiness`.
const MQTT_COMPONENT: &str = "mqtt_ingest";
/// Name of the Kafka producer in the response of `/readiness`.
const PRODUCER_COMPONENT: &str = "kafka_producer";

/// Ingest from an external broker, and its Kafka producer.
pub(super) struct MqttIngest {
    pub ingest: ExternalIngest,
    /// The producer and the topics to which it writes. `None` without Kafka.
    producer: Option<(Producer, Vec<String>)>,
}

impl MqttIngest {
    /// Creates the ingest. Without Kafka, the ingest forwards messages to `recorder`.
    pub fn new(context: &BuildContext<'_>, recorder: Option<&Recorder>) -> Result<Self> {
        let config = context.config;
        let uses_kafka = config.kafka.brokers.is_some();
        let recorder = recorder.filter(|_| !uses_kafka);
        let mqtt = &config.mqtt;
        let (forward_destination, slow_topic, producer) = if let Some(recorder) = recorder {
            let destination = ForwardDestination::Recorder(recorder.clone());
            (destination, None, None)
        } else {
            let producer = Producer::new(&config.kafka)?;
            let mut topics = vec![config.kafka.ingress_topic.clone()];
            let slow_topic = if mqtt.shared_subscription_group.is_none() {
                topics.push(config.kafka.slow_topic.clone());
                Some(slow_topic(config, producer.clone())?)
            } else {
                None
            };
            let destination = kafka_destination(config, producer.clone());
            (destination, slow_topic, Some((producer, topics)))
        };
        let client_id = session_client_id(mqtt);
        let epoch_source = epoch_source(context, &client_id);
        let session_lease = epoch_source.clone().map(|source| SessionLease {
            source,
            holder: process_name(config),
        });
        let ingest = ExternalIngest::new(IngestDeps {
            connect_options: ConnectOptions::from_config(mqtt, &client_id, SessionKind::Persistent),
            topics: context.topics.clone(),
            messages: mqtt.ingest_messages,
            shared_subscription_group: mqtt.shared_subscription_group.clone(),
            forward_destination,
            slow_topic,
            client_budgets: ClientBudgets::new(config.client_budget),
            epoch_source,
            session_lease,
            clock: context.clock.clone(),
            last_received_at: parking_lot::Mutex::default(),
            message_budget: context.message_budget.clone(),
        })?;
        Ok(Self { ingest, producer })
    }

    pub fn add_health_checks(&self, health: &Health) {
        let ingest = self.ingest.clone();
        health.add_check(MQTT_COMPONENT, move || {
            let ingest_health = ingest.health();
            async move { ingest_health }.boxed()
        });
        let ingest = self.ingest.clone();
        health.set_healthy_text(MQTT_COMPONENT, move || {
            if ingest.is_standby() { "standby" } else { "ok" }
        });
        if let Some((producer, topics)) = self.producer.clone() {
            health.add_check(PRODUCER_COMPONENT, move || {
                let (producer, topics) = (producer.clone(), topics.clone());
                async move {
                    let checks = topics.iter().map(|topic| producer.check_topic(topic));
                    futures::future::try_join_all(checks).await.map(drop)
                }
                .boxed()
            });
        }
    }
}

/// Returns the source of epochs. The database may be unavailable: `ingest` neither needs an epoch to
/// start nor to forward messages.
fn epoch_source(context: &BuildContext<'_>, client_id: &str) -> Option<EpochSource> {
    let mqtt = &context.config.mqtt;
    let needs_stamps =
        context.config.kafka.brokers.is_some() && mqtt.shared_subscription_group.is_none();
    let url = mqtt.url.as_deref().filter(|_| needs_stamps)?;
    Some(EpochSource {
        repository: context.repositories.ingest_epochs.clone(),
        session_name: session_name(client_id, url),
    })
}

/// Returns the client id of the session at the broker. A process that forwards only responses has a
/// session of its own. The other process keeps the session that it had when it forwarded all messages.
fn session_client_id(mqtt: &MqttSettings) -> String {
    match mqtt.ingest_messages {
        IngestMessages::All | IngestMessages::Presence => mqtt.client_id.clone(),
        IngestMessages::Responses => format!("{}-responses", mqtt.client_id),
    }
}

/// Returns a name that a process keeps when it restarts, and that differs from the names of other
/// processes: the name of the host and the HTTP address. If the operating system selects the port,
/// the process id replaces it.
pub(super) fn process_name(config: &Config) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, address) = (host.trim(), config.http.listen);
    match address.port() {
        0 => format!("{host} process {}", std::process::id()),
        _ => format!("{host} {address}"),
    }
}

/// Returns the name of a session at a broker. Two brokers can have sessions with the same client
/// id. The name does not contain the user information of the URL, which may be secret.
fn session_name(client_id: &str, broker_url: &str) -> String {
    let (scheme, address) = broker_url.split_once("://").unwrap_or(("", broker_url));
    let (authority, path) = match address.find('/') {
        Some(index) => address.split_at(index),
        None => (address, ""),
    };
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{client_id} at {scheme}://{host}{path}")
}

fn kafka_destination(config: &Config, producer: Producer) -> ForwardDestination {
    ForwardDestination::Kafka {
        producer,
        ingress_topic: config.kafka.ingress_topic.as_str().into(),
        answers_topic: config.kafka.answers_topic.as_str().into(),
    }
}

fn slow_topic(config: &Config, producer: Producer) -> Result<SlowTopic> {
    let kafka = &config.kafka;
    Ok(SlowTopic {
        producer,
        name: kafka.slow_topic.as_str().into(),
        progress: GroupProgress::new(kafka, &kafka.slow_topic, &kafka.slow_group)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_name_has_the_client_id_and_the_broker_but_no_credentials() {
        let name = |url| session_name("ingest", url);
        assert_eq!(name("mqtt://broker:1883"), "ingest at mqtt://broker:1883");
        assert_eq!(name("wss://u:p@broker/a@b"), "ingest at wss://broker/a@b");
    }
}
