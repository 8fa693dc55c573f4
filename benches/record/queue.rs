//! The queue between the roles: filled before a measurement, and counted after it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cloud_connector::config::Config;
use cloud_connector::domain::Timestamp;
use cloud_connector::kafka::{self, Producer};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::rows;

const WITHIN: Duration = Duration::from_secs(10);
/// Messages that are waited for together while a topic is filled.
const CHUNK: usize = 5_000;

/// Makes the topics that a configuration names.
pub async fn make(config: &Config) -> Result<()> {
    kafka::create_topics(&config.kafka, &config.topics()).await?;
    Ok(())
}

/// Everybody's online message, as `ingest` puts it there.
pub async fn fill(config: &Config, clients: &[String]) -> Result<()> {
    let producer = Producer::new(&config.kafka)?;
    for chunk in clients.chunks(CHUNK) {
        let mut under_way = Vec::with_capacity(chunk.len());
        for client in chunk {
            let payload = rows::message(client, 0);
            let headers = [
                (
                    "topic",
                    format!("redhat/insights/{client}/control/out").into(),
                ),
                ("mqtt_message_id", "1".into()),
                ("date_received", format!("{:.9}", Timestamp::now()).into()),
                ("mqtt_retain", "false".into()),
            ];
            let topic = &config.kafka.ingress_topic;
            let sent = producer.send(topic, client, payload.as_bytes(), &headers);
            under_way.push(sent.await?);
        }
        for sent in under_way {
            sent.durable().await?;
        }
    }
    Ok(())
}

/// Counts the messages of a topic.
pub struct Counter {
    consumer: BaseConsumer,
    topic: String,
    partitions: Vec<i32>,
}

impl Counter {
    pub fn new(config: &Config, topic: &str) -> Result<Self> {
        let brokers = config.kafka.brokers.as_deref().context("no queue")?;
        let consumer: BaseConsumer = rdkafka::ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .create()?;
        let metadata = consumer.fetch_metadata(Some(topic), WITHIN)?;
        let found = metadata.topics().first().context("no such topic")?;
        let partitions = found
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

    pub fn count(&self) -> Result<usize> {
        let mut count = 0;
        for partition in &self.partitions {
            let (_, next) = self
                .consumer
                .fetch_watermarks(&self.topic, *partition, WITHIN)?;
            count += usize::try_from(next)?;
        }
        Ok(count)
    }
}
