//! Kafka: the only user of its crate.

mod consumer;
mod producer;
mod settings;
mod topics;

pub use consumer::{Checker, Consumer, Happening, QueuedMessage};
pub use producer::{Producer, SendError, Sent};
pub use settings::KafkaError;
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
    pub const AGAIN: &str = "again";
    /// Set where the payload was too large to queue and was cut: its whole size in bytes.
    pub const CUT_FROM: &str = "cut_from";
    /// Of a cut payload: SHA-256 of the whole, in hexadecimal.
    pub const CUT_HASH: &str = "cut_sha256";
}
