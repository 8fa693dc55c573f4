//! Metrics of the embedded broker.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use domain::ClientId;

const BROKER_CONNECTIONS: &str = "cloud_connector_broker_connections";
const BROKER_REJECTIONS: &str = "cloud_connector_broker_rejections_total";
const CONNECTIONS_ABORTED: &str = "cloud_connector_broker_connections_aborted_total";
const REPEATED_TAKEOVERS: &str = "cloud_connector_broker_repeated_takeovers_total";
const BUDGET_EXCEEDED: &str = "cloud_connector_client_budget_exceeded_total";

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
    describe_counter!(
        REPEATED_TAKEOVERS,
        "Sessions taken over by another connection with the same client id, if this happened at \
         least three times within a minute"
    );
    describe_counter!(
        BUDGET_EXCEEDED,
        "Messages of clients that exceed client_budget, by action"
    );
}

/// Sets the number of clients connected to the embedded broker.
pub fn set_broker_connections(count: usize) {
    gauge!(BROKER_CONNECTIONS).set(count as f64);
}

/// Counts a rejected MQTT connection, publish or subscription.
pub fn count_rejection(reason: &'static str) {
    counter!(BROKER_REJECTIONS, "reason" => reason).increment(1);
}

/// Counts a takeover of a session that is one of several within a short time.
pub fn count_repeated_takeover() {
    counter!(REPEATED_TAKEOVERS).increment(1);
}

/// Counts a message of a client that is over its budget. `action` is what the broker did with the
/// message.
pub fn count_budget_exceeded(action: &'static str) {
    counter!(BUDGET_EXCEEDED, "action" => action).increment(1);
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
