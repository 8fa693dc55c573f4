//! Destinations of inventory messages: a Kafka topic or a local file.

mod file;
mod kafka;

use async_trait::async_trait;
use tokio::time::Instant;

use super::message::InventoryMessage;

pub use file::FileSink;
pub use kafka::KafkaSink;

/// A destination of inventory messages.
#[async_trait]
pub trait InventorySink: Send + Sync + 'static {
    /// Sends the messages. Returns for each message whether its delivery was confirmed by the
    /// deadline. An unconfirmed message can still arrive. The caller can send the message again,
    /// because inventory accepts duplicates.
    async fn send(&self, messages: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool>;
}
