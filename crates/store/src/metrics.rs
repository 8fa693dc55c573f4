//! Metrics of tracked messages. They are counted after the commit of the change, wherever the change
//! comes from.

use domain::MessageState;
use metrics::{counter, describe_counter};

const TRACKED_MESSAGES: &str = "cloud_connector_tracked_messages_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        TRACKED_MESSAGES,
        "Tracked messages that changed to a state, by state and reason. reason is empty except for failed"
    );
}

/// Counts a message that changed to a state.
pub(crate) fn count_message(state: MessageState, reason: &'static str) {
    counter!(TRACKED_MESSAGES, "state" => state.as_str(), "reason" => reason).increment(1);
}
