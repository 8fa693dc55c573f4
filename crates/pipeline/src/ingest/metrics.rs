//! Metrics of the message sources.

use std::sync::LazyLock;

use metrics::{counter, describe_counter, describe_gauge, gauge};

use service::LogThrottle;
use service::rate_limit::RateLimiter;

const MESSAGES_RECEIVED: &str = "cloud_connector_messages_received_total";
const QOS0_DROPPED: &str = "cloud_connector_ingest_qos0_dropped_total";
const SLOW_MESSAGES: &str = "cloud_connector_ingest_slow_messages_total";
const SLOW_CLIENTS: &str = "cloud_connector_ingest_slow_clients";
const EPOCH: &str = "cloud_connector_ingest_epoch";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        MESSAGES_RECEIVED,
        "Messages received from the MQTT broker, by channel"
    );
    describe_counter!(QOS0_DROPPED, "QoS 0 messages dropped by ingest, by reason");
    describe_counter!(
        SLOW_MESSAGES,
        "Messages that ingest forwarded to the slow topic, because their client exceeded its budget"
    );
    describe_gauge!(
        SLOW_CLIENTS,
        "Clients whose messages ingest forwards to the slow topic"
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

/// Why a QoS 0 message was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The client exceeded its budget.
    OverBudget,
    /// The client exceeded its budget, and sent a later heartbeat in the same window.
    LaterHeartbeat,
    /// The buffer for QoS 0 messages was full.
    BufferFull,
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::OverBudget => "over_budget",
            Self::LaterHeartbeat => "later_heartbeat",
            Self::BufferFull => "buffer_full",
        }
    }
}

/// Limits the log lines about each client that is over its budget.
static CLIENT_LOG_LIMIT: LazyLock<RateLimiter<String>> =
    LazyLock::new(|| RateLimiter::new(1, 1.0 / 60.0));

/// Counts a QoS 0 message that was dropped. Logs at most one line per minute for each client, and at
/// most one line per second if the buffer is full.
pub fn count_dropped_qos0_message(reason: DropReason, client: &str) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    counter!(QOS0_DROPPED, "reason" => reason.as_str()).increment(1);
    match reason {
        DropReason::BufferFull if LOG_THROTTLE.should_log() => {
            tracing::warn!("QoS 0 messages dropped: buffer full");
        }
        DropReason::OverBudget if CLIENT_LOG_LIMIT.take_token(client).is_ok() => {
            tracing::warn!(
                client_id = client,
                "client exceeded its budget; dropping its QoS 0 messages"
            );
        }
        _ => {}
    }
}

/// Counts a message that is forwarded to the slow topic.
pub fn count_slow_message() {
    counter!(SLOW_MESSAGES).increment(1);
}

/// Sets the number of clients whose messages are forwarded to the slow topic.
pub fn set_slow_clients(count: usize) {
    gauge!(SLOW_CLIENTS).set(count as f64);
}

/// Logs that the messages of a client are forwarded to the slow topic, at most once per minute for each
/// client.
pub fn log_slow_client(client: &str) {
    if CLIENT_LOG_LIMIT.take_token(client).is_ok() {
        tracing::warn!(
            client_id = client,
            "client exceeded its budget; forwarding its messages to the slow topic until they are \
             recorded"
        );
    }
}
