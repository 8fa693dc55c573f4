//! Sends inventory messages to a Kafka topic.

use async_trait::async_trait;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::InventorySink;
use crate::inventory::message::InventoryMessage;
use crate::metrics;
use kafka::Producer;

/// A sink that produces inventory messages to a Kafka topic.
pub struct KafkaSink {
    producer: Producer,
    topic: String,
}

impl KafkaSink {
    /// Creates a sink that produces to `topic`.
    #[must_use]
    pub fn new(producer: Producer, topic: String) -> Self {
        Self { producer, topic }
    }

    /// Produces the message. Returns whether Kafka acknowledged the message.
    async fn produce(&self, message: &InventoryMessage) -> bool {
        let InventoryMessage { kafka_key, json } = message;
        let result = match self.producer.send(&self.topic, kafka_key, json, &[]).await {
            Ok(delivery) => delivery.wait_until_durable().await,
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            tracing::debug!(%error, "failed to produce an inventory message");
        }
        result.is_ok()
    }
}

#[async_trait]
impl InventorySink for KafkaSink {
    async fn send(&self, messages: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool> {
        let deliveries = messages.iter().map(|message| async move {
            let produce_result = timeout_at(deadline, self.produce(message)).await;
            produce_result.unwrap_or(false)
        });
        let delivery_results = join_all(deliveries).await;
        metrics::count_inventory_deliveries(&delivery_results);
        delivery_results
    }
}
