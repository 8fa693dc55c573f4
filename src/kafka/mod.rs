//! Kafka: the only user of its crate.

mod client_config;
mod consumer;
mod producer;
mod topics;

pub use client_config::KafkaError;
pub use consumer::{Checker, Consumer, ConsumerEvent, QueuedMessage};
pub use producer::{DeliveryHandle, Producer, SendError};
pub use topics::{TopicState, create_topics, probe};

/// Names of the headers that travel with a message.
pub mod header {
    /// The MQTT topic.
    pub const TOPIC: &str = "topic";
    /// The MQTT packet id, in decimal.
    pub const PACKET_ID: &str = "mqtt_message_id";
    /// When the broker's message was taken in: RFC 3339 with nanoseconds, UTC.
    pub const RECEIVED: &str = "date_received";
    /// `true` where the broker replayed a retained message.
    pub const RETAIN: &str = "mqtt_retain";
    /// `true` where an operator put a dead letter back.
    pub const OPERATOR_REPLAY: &str = "again";
    /// Set where the payload was too large to queue and was cut: its whole size in bytes.
    pub const TRUNCATED_FROM: &str = "cut_from";
    /// Of a cut payload: SHA-256 of the whole, in hexadecimal.
    pub const TRUNCATED_SHA256: &str = "cut_sha256";
}
