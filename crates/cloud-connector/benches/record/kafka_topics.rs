//! Creates Kafka topics, fills the ingress topic, and counts the messages of a topic.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cloud_connector::config::Config;
use domain::Timestamp;
use kafka::{self, Producer};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::rows;

/// Timeout of each request to Kafka.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of unacknowledged messages while the ingress topic is filled.
const MAX_IN_FLIGHT_MESSAGES: usize = 5_000;

/// Creates all Kafka topics that the configuration contains.
pub async fn create_topics(config: &Config) -> Result<()> {
    kafka::create_topics(&config.kafka, &config.kafka_topics()).await?;
    Ok(())
}

/// Produces one online message per client to the ingress topic, in the same format as the role
/// `ingest`.
pub async fn fill_ingress_topic(config: &Config, client_ids: &[String]) -> Result<()> {
    let producer = Producer::new(&config.kafka)?;
    for chunk in client_ids.chunks(MAX_IN_FLIGHT_MESSAGES) {
        let mut deliveries = Vec::with_capacity(chunk.len());
        for client_id in chunk {
            let payload = rows::online_message(client_id, 0);
            let headers = [
                (
                    "topic",
                    format!("redhat/insights/{client_id}/control/out").into(),
                ),
                ("mqtt_message_id", "1".into()),
                ("date_received", format!("{:.9}", Timestamp::now()).into()),
                ("mqtt_retain", "false".into()),
            ];
            let topic = &config.kafka.ingress_topic;
            let delivery = producer.send(topic, client_id, payload.as_bytes(), &headers);
            deliveries.push(delivery.await?);
        }
        for delivery in deliveries {
            delivery.wait_until_durable().await?;
        }
    }
    Ok(())
}

/// Counts the messages of a topic.
pub struct MessageCounter {
    consumer: BaseConsumer,
    topic: String,
    partitions: Vec<i32>,
}

impl MessageCounter {
    pub fn new(config: &Config, topic: &str) -> Result<Self> {
        let brokers = config.kafka.brokers.as_deref();
        let brokers = brokers.context("kafka.brokers is not set")?;
        let consumer: BaseConsumer = rdkafka::ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .create()?;
        let metadata = consumer.fetch_metadata(Some(topic), KAFKA_TIMEOUT)?;
        let topic_metadata = metadata.topics().first();
        let partitions = topic_metadata
            .with_context(|| format!("topic {topic} does not exist"))?
            .partitions()
            .iter()
            .map(rdkafka::metadata::MetadataPartition::id)
            .collect();
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
            partitions,
        })
    }

    /// Returns the number of messages that were ever produced to the topic.
    pub fn count(&self) -> Result<usize> {
        let mut count = 0;
        for partition in &self.partitions {
            let (_, next_offset) =
                self.consumer
                    .fetch_watermarks(&self.topic, *partition, KAFKA_TIMEOUT)?;
            count += usize::try_from(next_offset)?;
        }
        Ok(count)
    }
}
