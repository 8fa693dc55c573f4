//! Metrics of the message sources.

use metrics::{counter, describe_counter};

use service::LogThrottle;

const MESSAGES_RECEIVED: &str = "cloud_connector_messages_received_total";
const QOS0_DROPPED: &str = "cloud_connector_ingest_qos0_dropped_total";

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
}

/// Counts a message received from the MQTT broker.
pub fn count_received_message(channel: &'static str) {
    counter!(MESSAGES_RECEIVED, "channel" => channel).increment(1);
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
