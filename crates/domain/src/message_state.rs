//! States of tracked messages, and reasons of failures.

use crate::event;
use crate::presence::named_causes;

named_causes! {
    /// State of a tracked message.
    MessageState {
        /// Stored, and waiting for the client.
        Queued = "queued",
        /// Passed to the connection to the broker. The broker has not acknowledged the message.
        Sending = "sending",
        /// The broker acknowledged the message.
        Acknowledged = "acknowledged",
        /// The client answered.
        Answered = "answered",
        /// The client answered that it could not process the message.
        Rejected = "rejected",
        /// Not delivered, and not sent again.
        Failed = "failed",
        /// The time to live passed before the message was sent.
        Expired = "expired",
        /// Cancelled by the caller.
        Cancelled = "cancelled",
    }
}

impl MessageState {
    /// Returns the type of the event that reports the change to this state.
    #[must_use]
    pub const fn event_type(self) -> &'static str {
        match self {
            Self::Queued => event::MESSAGE_QUEUED,
            Self::Sending => event::MESSAGE_SENT,
            Self::Acknowledged => event::MESSAGE_ACKNOWLEDGED,
            Self::Answered => event::MESSAGE_ANSWERED,
            Self::Rejected => event::MESSAGE_REJECTED,
            Self::Failed => event::MESSAGE_FAILED,
            Self::Expired => event::MESSAGE_EXPIRED,
            Self::Cancelled => event::MESSAGE_CANCELLED,
        }
    }
}

named_causes! {
    /// Why a tracked message failed.
    MessageFailure {
        /// The broker was unavailable, or did not accept the message.
        BrokerUnavailable = "broker-unavailable",
        /// The broker did not acknowledge the message in time.
        BrokerTimeout = "broker-timeout",
        /// The client had no connection to the broker, or had not subscribed to its topic.
        NotConnected = "not-connected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_an_event_type_of_its_own() {
        let types: std::collections::BTreeSet<&str> =
            MessageState::ALL.iter().map(|it| it.event_type()).collect();
        assert_eq!(types.len(), MessageState::ALL.len());
        for event_type in types {
            let is_listed = event::EVENT_TYPES.iter().any(|it| it.name == event_type);
            assert!(is_listed, "{event_type}");
        }
    }
}
