//! Selects the messages of one of two `ingest` processes.
//!
//! One process forwards presence messages and heartbeats, and another process forwards responses. Clients
//! publish heartbeats (empty payloads) and responses on the same topic, so both processes subscribe to
//! it. The presence process subscribes with QoS 0: the broker stores no responses for it, and it drops
//! them without an acknowledgement.
//!
//! All presence messages and heartbeats are in one session, so ingest stamps order them. A response is
//! also a sign that its client is connected, but it belongs to another session, so receive times order
//! it (`ReceivedAt::is_after`).

use mqtt::{IngestMessages, SubscriptionQos};
use protocol::Channel;

/// Returns the QoS of the subscription to a channel. Returns `None` if the process does not subscribe to
/// the channel.
pub(super) fn subscription_qos(
    messages: IngestMessages,
    channel: Channel,
) -> Option<SubscriptionQos> {
    match (messages, is_response_channel(channel)) {
        (IngestMessages::All, _)
        | (IngestMessages::Presence, false)
        | (IngestMessages::Responses, true) => Some(SubscriptionQos::AtLeastOnce),
        (IngestMessages::Presence, true) => Some(SubscriptionQos::AtMostOnce),
        (IngestMessages::Responses, false) => None,
    }
}

/// Returns whether the other process forwards a message with QoS 0.
///
/// A QoS 1 response is always forwarded: the presence process receives one only if the broker stored it
/// in the session before the session was limited to presence messages.
pub(super) fn is_for_other_process(
    messages: IngestMessages,
    channel: Option<Channel>,
    payload: &[u8],
) -> bool {
    let is_response_channel = channel.is_some_and(is_response_channel);
    match messages {
        IngestMessages::All => false,
        IngestMessages::Presence => is_response_channel && !payload.is_empty(),
        IngestMessages::Responses => is_response_channel && payload.is_empty(),
    }
}

/// Returns whether clients publish responses and heartbeats on this channel, and nothing else. An empty
/// payload is then a heartbeat.
fn is_response_channel(channel: Channel) -> bool {
    protocol::is_response_or_heartbeat(channel, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{handshake, status};

    #[test]
    fn each_message_is_forwarded_by_one_of_both_processes() {
        let heartbeat_or_response = Some(status::DATA_FROM_CLIENT);
        for (payload, is_presence) in [(&b""[..], true), (b"{}", false)] {
            let is_dropped =
                |messages| is_for_other_process(messages, heartbeat_or_response, payload);
            assert!(!is_dropped(IngestMessages::All));
            assert_eq!(is_dropped(IngestMessages::Presence), !is_presence);
            assert_eq!(is_dropped(IngestMessages::Responses), is_presence);
        }
        for channel in [status::CONTROL_FROM_CLIENT, handshake::FROM_CLIENT] {
            assert!(!is_for_other_process(
                IngestMessages::Presence,
                Some(channel),
                b""
            ));
            assert_eq!(subscription_qos(IngestMessages::Responses, channel), None);
        }
    }
}
