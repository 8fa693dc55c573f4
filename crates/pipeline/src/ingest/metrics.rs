//! Metrics of the message sources.

use std::sync::{Arc, LazyLock};

use metrics::{Counter, counter, describe_counter, describe_gauge, gauge};

use protocol::{Channel, TopicScheme};
use service::LogThrottle;
use service::rate_limit::RateLimiter;

const MESSAGES_RECEIVED: &str = "cloud_connector_messages_received_total";
const QOS0_DROPPED: &str = "cloud_connector_ingest_qos0_dropped_total";
const SLOW_MESSAGES: &str = "cloud_connector_ingest_slow_messages_total";
const SLOW_CLIENTS: &str = "cloud_connector_ingest_slow_clients";
const WAITING_FOR_INGRESS: &str = "cloud_connector_record_slow_messages_waiting";
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
        WAITING_FOR_INGRESS,
        "Messages of the slow topic that wait until the ingress topic is recorded"
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

/// Counters of the messages of an external broker. They are registered once, because a flood of messages
/// must be counted quickly.
#[derive(Clone)]
pub struct ReceiveCounters {
    /// The name and the counter of each channel.
    received: Arc<[(&'static str, Counter)]>,
    received_on_unknown_topic: Counter,
    dropped_over_budget: Counter,
    dropped_for_later_heartbeat: Counter,
    dropped_buffer_full: Counter,
}

impl ReceiveCounters {
    /// Registers the counters.
    #[must_use]
    pub fn new(topics: &TopicScheme) -> Self {
        let received = |name| counter!(MESSAGES_RECEIVED, "channel" => name);
        let dropped = |reason: DropReason| counter!(QOS0_DROPPED, "reason" => reason.as_str());
        Self {
            received: topics
                .inbound_channels()
                .map(|channel| (channel.name(), received(channel.name())))
                .collect(),
            received_on_unknown_topic: received("unknown"),
            dropped_over_budget: dropped(DropReason::OverBudget),
            dropped_for_later_heartbeat: dropped(DropReason::LaterHeartbeat),
            dropped_buffer_full: dropped(DropReason::BufferFull),
        }
    }

    /// Counts a message received from the MQTT broker. `channel` is `None` if the topic is unknown.
    pub fn count_received(&self, channel: Option<Channel>) {
        let mut counters = self.received.iter();
        let counter = counters
            .find(|(name, _)| channel.is_some_and(|channel| channel.name() == *name))
            .map_or(&self.received_on_unknown_topic, |(_, counter)| counter);
        counter.increment(1);
    }

    /// Counts a QoS 0 message that was dropped. Logs at most one line per second, and about clients that
    /// exceeded their budget at most one line per client and minute.
    pub fn count_dropped(&self, reason: DropReason, client: &str) {
        static BUFFER_LOG_THROTTLE: LogThrottle = LogThrottle::new();
        static BUDGET_LOG_THROTTLE: LogThrottle = LogThrottle::new();
        match reason {
            DropReason::OverBudget => {
                self.dropped_over_budget.increment(1);
                // The throttle is checked first, because it is faster.
                if BUDGET_LOG_THROTTLE.should_log() && may_log_client(client) {
                    tracing::warn!(
                        client_id = client,
                        "client exceeded its budget; dropping its QoS 0 messages"
                    );
                }
            }
            DropReason::LaterHeartbeat => self.dropped_for_later_heartbeat.increment(1),
            DropReason::BufferFull => {
                self.dropped_buffer_full.increment(1);
                if BUFFER_LOG_THROTTLE.should_log() {
                    tracing::warn!("QoS 0 messages dropped: buffer full");
                }
            }
        }
    }
}

/// Returns true at most once per minute for each client.
fn may_log_client(client: &str) -> bool {
    static CLIENT_LOG_LIMIT: LazyLock<RateLimiter<String>> =
        LazyLock::new(|| RateLimiter::new(1, 1.0 / 60.0));
    CLIENT_LOG_LIMIT.take_token(client).is_ok()
}

/// Counts a message that is forwarded to the slow topic.
pub fn count_slow_message() {
    counter!(SLOW_MESSAGES).increment(1);
}

/// Sets the number of clients whose messages are forwarded to the slow topic.
pub fn set_slow_clients(count: usize) {
    gauge!(SLOW_CLIENTS).set(count as f64);
}

/// Sets the number of messages of the slow topic that wait until the ingress topic is recorded.
pub fn set_waiting_for_ingress(count: usize) {
    gauge!(WAITING_FOR_INGRESS).set(count as f64);
}

/// Logs that the messages of a client are forwarded to the slow topic, at most once per minute for each
/// client.
pub fn log_slow_client(client: &str) {
    if may_log_client(client) {
        tracing::warn!(
            client_id = client,
            "client exceeded its budget; forwarding its messages to the slow topic until they are \
             recorded"
        );
    }
}
