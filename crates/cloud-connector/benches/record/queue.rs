//! The Kafka part of the baseline for the latency: a producer and a consumer without any logic.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::support::Services;

/// Number of partitions, as in the default configuration of the connector.
const PARTITION_COUNT: i32 = 3;

/// A topic of its own, and the client that produces to it.
pub struct Queue {
    topic: String,
    producer: FutureProducer,
}

/// The client that consumes the topic.
pub struct QueueConsumer(StreamConsumer);

impl Queue {
    pub async fn create(services: &Services) -> Result<(Self, QueueConsumer)> {
        let topic = format!("baseline-{}", uuid::Uuid::new_v4().simple());
        let mut config = ClientConfig::new();
        config.set(
            "bootstrap.servers",
            format!("127.0.0.1:{}", services.kafka_port),
        );
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let new_topic = NewTopic::new(&topic, PARTITION_COUNT, TopicReplication::Fixed(1));
        let results = admin.create_topics([&new_topic], &AdminOptions::new());
        for result in results.await? {
            result.map_err(|(topic, error)| anyhow::anyhow!("{topic}: {error}"))?;
        }
        let consumer: StreamConsumer = config
            .clone()
            .set("group.id", &topic)
            .set("auto.offset.reset", "earliest")
            .create()?;
        consumer.subscribe(&[&topic])?;
        // The same guarantees as in the connector, and the lowest latency.
        let producer = config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .create()?;
        Ok((Self { topic, producer }, QueueConsumer(consumer)))
    }

    pub async fn produce(&self, client_id: &str, payload: &[u8]) -> Result<()> {
        let record = FutureRecord::to(&self.topic)
            .key(client_id)
            .payload(payload);
        let delivery = self.producer.send(record, Duration::from_secs(10)).await;
        delivery.map_err(|(error, _)| error)?;
        Ok(())
    }
}

impl QueueConsumer {
    /// Returns the client id and the payload of the next message.
    pub async fn next_message(&self) -> Result<(String, Vec<u8>)> {
        let message = self.0.recv().await?;
        let client_id = message.key().context("the message has no key")?;
        let client_id = String::from_utf8_lossy(client_id).into_owned();
        Ok((client_id, message.payload().unwrap_or_default().to_vec()))
    }
}
