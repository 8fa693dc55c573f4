//! Metrics of the message sources.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use service::LogThrottle;

const MESSAGES_RECEIVED: &str = "cloud_connector_messages_received_total";
const QOS0_DROPPED: &str = "cloud_connector_ingest_qos0_dropped_total";
const EPOCH: &str = "cloud_connector_ingest_epoch";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        MESSAGES_RECEIVED,
        "Messages received from the MQTT broker, by channel"
    );
    describe_counter!(
        QOS0_DROPPED,
        "QoS 0 messages dropped because the ingest buffer was full"
    );
    describe_gauge!(
        EPOCH,
        "Epoch of the connection to the MQTT broker, or 0 while the connection has no epoch"
    );
}

/// Counts a message received from the MQTT broker.
pub fn count_received_message(channel: &'static str) {
    counter!(MESSAGES_RECEIVED, "channel" => channel).increment(1);
}

/// Sets the epoch of the connection to the broker. 0 means that the connection has no epoch.
pub fn set_ingest_epoch(epoch: i64) {
    #[expect(
        clippy::cast_precision_loss,
        reason = "an epoch is a Unix time in seconds, which an f64 represents exactly"
    )]
    gauge!(EPOCH).set(epoch as f64);
}

/// Counts a QoS 0 message that was dropped because the ingest buffer was full. Logs at most one
/// line per second.
pub fn count_dropped_qos0_message() {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    counter!(QOS0_DROPPED).increment(1);
    if LOG_THROTTLE.should_log() {
        tracing::warn!("QoS 0 messages dropped: buffer full");
    }
}
