//! Metrics of the messages to clients.

use metrics::{counter, describe_counter};

const MESSAGES_SENT: &str = "cloud_connector_messages_sent_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(MESSAGES_SENT, "Messages sent to clients, by outcome");
}

/// Counts a message to a client, by the outcome of sending the message.
pub fn count_message_to_client(outcome: &'static str) {
    counter!(MESSAGES_SENT, "outcome" => outcome).increment(1);
}
