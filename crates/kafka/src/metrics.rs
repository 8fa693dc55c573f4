//! Metrics of the Kafka consumer.

use metrics::{describe_gauge, gauge};

const CONSUMER_LAG: &str = "cloud_connector_kafka_consumer_lag_messages";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_gauge!(
        CONSUMER_LAG,
        "Messages not yet consumed in the partitions assigned to this process, by topic"
    );
}

/// Sets the consumer lag of a Kafka topic. `topic` is `ingress`, `answers` or `slow`, not the
/// configured topic name.
pub fn set_consumer_lag(topic: &'static str, message_count: i64) {
    gauge!(CONSUMER_LAG, "topic" => topic).set(message_count as f64);
}
