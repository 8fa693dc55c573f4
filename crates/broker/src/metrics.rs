//! Metrics of the embedded broker. Some functions also write a log line.
//!
//! These log lines have level debug, because clients can cause the events at a high rate.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use domain::ClientId;

const BROKER_CONNECTIONS: &str = "cloud_connector_broker_connections";
const BROKER_REJECTIONS: &str = "cloud_connector_broker_rejections_total";
const CONNECTIONS_ABORTED: &str = "cloud_connector_broker_connections_aborted_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_gauge!(
        BROKER_CONNECTIONS,
        "Clients connected to the embedded broker"
    );
    describe_counter!(
        BROKER_REJECTIONS,
        "MQTT connections, publishes and subscriptions rejected by the embedded broker, by reason"
    );
    describe_counter!(
        CONNECTIONS_ABORTED,
        "MQTT connections closed because a message was not stored within broker.ack_timeout"
    );
}

/// Sets the number of clients connected to the embedded broker.
pub fn set_broker_connections(count: usize) {
    gauge!(BROKER_CONNECTIONS).set(count as f64);
}

/// Counts a rejected MQTT connection, publish or subscription. `peer` is the client id. Before the
/// client is authenticated, `peer` is the socket address.
///
/// The log line has level debug. Otherwise many clients that reconnect at once could fill the disk
/// with log lines.
pub fn count_broker_rejection(reason: &'static str, peer: &dyn std::fmt::Display) {
    counter!(BROKER_REJECTIONS, "reason" => reason).increment(1);
    tracing::debug!(reason, %peer, "rejected by the broker");
}

/// Counts an aborted MQTT connection: the broker closed the connection, because a message was not
/// stored in time.
pub fn count_aborted_connection(client: &ClientId) {
    counter!(CONNECTIONS_ABORTED).increment(1);
    tracing::debug!(
        client_id = %client,
        "connection closed: message not stored within broker.ack_timeout"
    );
}
