//! Metrics of the messages to clients.

use std::sync::LazyLock;

use metrics::{counter, describe_counter};

use service::rate_limit::RateLimiter;

const MESSAGES_SENT: &str = "cloud_connector_messages_sent_total";
const UNEXPECTED_RESPONSES: &str = "cloud_connector_unexpected_responses_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(MESSAGES_SENT, "Messages sent to clients, by outcome");
    describe_counter!(
        UNEXPECTED_RESPONSES,
        "Messages that clients sent during a request to them and that are no response to it, by action"
    );
}

/// Counts a message to a client, by the outcome of sending the message.
pub fn count_message_to_client(outcome: &'static str) {
    counter!(MESSAGES_SENT, "outcome" => outcome).increment(1);
}

/// Counts a message that is not an awaited response, by the action that follows. Logs at most one line
/// per minute for each client that exceeds its budget.
pub fn count_unexpected_response(action: &'static str, client: &str) {
    static CLIENT_LOG_LIMIT: LazyLock<RateLimiter<String>> =
        LazyLock::new(|| RateLimiter::new(1, 1.0 / 60.0));
    counter!(UNEXPECTED_RESPONSES, "action" => action).increment(1);
    if action == "unsubscribed" && CLIENT_LOG_LIMIT.take_token(client).is_ok() {
        tracing::warn!(
            client_id = client,
            "client exceeded its budget during a request; no longer waiting for its response"
        );
    }
}
