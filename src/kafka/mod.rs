//! Kafka producer, consumer and topic administration. Only this module uses the `rdkafka` crate.

mod client_config;
mod consumer;
mod producer;
mod topics;

pub use client_config::KafkaError;
pub use consumer::{Consumer, ConsumerEvent, ConsumerHealthCheck, KafkaMessage};
pub use producer::{DeliveryHandle, ProduceError, Producer};
pub use topics::{TopicCreation, create_topics, probe};

/// Names of Kafka record headers.
pub mod header {
    /// The MQTT topic.
    pub const TOPIC: &str = "topic";
    /// The MQTT packet id, in decimal.
    pub const PACKET_ID: &str = "mqtt_message_id";
    /// When the service received the message: RFC 3339 with nanoseconds, in UTC.
    pub const RECEIVED_AT: &str = "date_received";
    /// `true` if the broker replayed a retained message.
    pub const RETAIN: &str = "mqtt_retain";
    /// `true` if an operator replays a dead letter.
    pub const OPERATOR_REPLAY: &str = "operator_replay";
    /// Size of the complete payload in bytes. Present only if the payload was truncated.
    pub const TRUNCATED_FROM: &str = "truncated_from";
    /// SHA-256 of the complete payload, in hexadecimal. Present only if the payload was truncated.
    pub const TRUNCATED_SHA256: &str = "truncated_sha256";

    /// Header names that version 0.1.0 wrote. Producers no longer write them; the reader accepts
    /// them for one release, because topics may still contain such records.
    pub mod deprecated {
        /// Former name of [`OPERATOR_REPLAY`](super::OPERATOR_REPLAY).
        pub const OPERATOR_REPLAY: &str = "again";
        /// Former name of [`TRUNCATED_FROM`](super::TRUNCATED_FROM).
        pub const TRUNCATED_FROM: &str = "cut_from";
        /// Former name of [`TRUNCATED_SHA256`](super::TRUNCATED_SHA256).
        pub const TRUNCATED_SHA256: &str = "cut_sha256";
    }
}
