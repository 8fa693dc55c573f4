//! Kafka producer, consumer and topic administration. Only this module uses the `rdkafka` crate.

mod client_config;
mod consumer;
mod group_progress;
pub mod metrics;
mod producer;
mod settings;
mod topic_identity;
mod topics;

pub use client_config::KafkaError;
pub use consumer::{
    CONSUMER_BUFFER_BYTES, Consumer, ConsumerEvent, ConsumerHealthCheck, ConsumerProgress,
    KafkaMessage, TopicProgress,
};
pub use group_progress::{GroupProgress, PartitionProgress, UnprocessedScan};
pub use producer::{DeliveredAt, DeliveryHandle, ProduceError, Producer};
pub use settings::{KafkaSecurity, KafkaSettings, SaslMechanism};
pub use topics::{TopicCreation, create_topics, probe};

/// Names of Kafka record headers.
pub mod header {
    /// MQTT topic of the message.
    pub const TOPIC: &str = "topic";
    /// MQTT packet id of the message, in decimal.
    pub const PACKET_ID: &str = "mqtt_message_id";
    /// Time at which the service received the message, in UTC. The format is RFC 3339 with
    /// nanoseconds.
    pub const RECEIVED_AT: &str = "date_received";
    /// `true` if the MQTT broker sent a retained message because of a new subscription.
    pub const RETAIN: &str = "mqtt_retain";
    /// Position of the message in the session of `ingest` at the MQTT broker: session, epoch and
    /// sequence in decimal, separated by dots. Absent if `ingest` had no epoch.
    pub const INGEST_STAMP: &str = "ingest_stamp";
    /// `true` if the message is a dead letter that an operator replays.
    pub const OPERATOR_REPLAY: &str = "operator_replay";
    /// Size of the complete payload in bytes. Present only if the payload was truncated.
    pub const TRUNCATED_FROM: &str = "truncated_from";
    /// SHA-256 of the complete payload, in hexadecimal. Present only if the payload was truncated.
    pub const TRUNCATED_SHA256: &str = "truncated_sha256";

    /// `true` if the message must be recorded after all messages that are in the ingress topic when
    /// the message is read. Present only in the slow topic.
    pub const AFTER_INGRESS: &str = "after_ingress";

    /// Header names that older development versions wrote. Producers no longer write these headers.
    /// The consumer still accepts them, because topics may contain records of older versions.
    pub mod deprecated {
        /// Replaced by [`OPERATOR_REPLAY`](super::OPERATOR_REPLAY).
        pub const AGAIN: &str = "again";
        /// Replaced by [`TRUNCATED_FROM`](super::TRUNCATED_FROM).
        pub const CUT_FROM: &str = "cut_from";
        /// Replaced by [`TRUNCATED_SHA256`](super::TRUNCATED_SHA256).
        pub const CUT_SHA256: &str = "cut_sha256";
    }
}
