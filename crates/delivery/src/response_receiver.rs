//! Receives the messages of the clients to which requests were sent, and limits each client.
//!
//! All responses share one MQTT connection. A client can send any number of messages while a request
//! to it is pending. A message that is not an awaited response is charged to the client's budget. When the
//! client exceeds its budget, the connection unsubscribes from the topic, so that the responses of other
//! clients are not delayed for long.

use std::sync::Arc;

use super::PendingResponses;
use super::metrics;
use domain::Clock;
use mqtt::{IncomingMessage, MessageReaction};
use protocol::{InboundMessage, TopicScheme};
use service::{ClientBudgetSettings, ClientBudgets};

/// A message up to this size is decoded even if its client has exceeded its budget, because decoding
/// takes little time.
const MAX_SMALL_MESSAGE_BYTES: usize = 16 * 1024;

/// Receives messages from the connection for responses.
pub struct ResponseReceiver {
    pending_responses: PendingResponses,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    budgets: ClientBudgets,
}

impl ResponseReceiver {
    /// Creates a receiver that completes the requests in `pending_responses`.
    #[must_use]
    pub fn new(
        pending_responses: PendingResponses,
        topics: TopicScheme,
        clock: Arc<dyn Clock>,
        budget_settings: ClientBudgetSettings,
    ) -> Self {
        Self {
            pending_responses,
            topics,
            clock,
            budgets: ClientBudgets::new(budget_settings),
        }
    }

    /// Completes the request to which the message responds. Any other message is charged to the budget
    /// of its client.
    pub fn on_message(&self, message: IncomingMessage) -> MessageReaction {
        let Some(topic) = self.topics.parse(&message.topic) else {
            return MessageReaction::Continue;
        };
        let client = topic.client.as_str();
        let size_bytes = message.payload.len();
        let is_within_budget = self.budgets.is_within(client);
        let may_decode = size_bytes <= MAX_SMALL_MESSAGE_BYTES || is_within_budget;
        let is_response = may_decode
            && self.pending_responses.on_message(&InboundMessage {
                topic: message.topic,
                payload: message.payload,
                retained: message.retain,
                is_operator_replay: false,
                is_last_will: None,
                is_takeover: false,
                received_at: self.clock.now(),
                ingest_stamp: None,
                truncated_from: None,
            });
        if is_response {
            return MessageReaction::Continue;
        }
        // Once the client is over its budget, further messages are not charged. Otherwise the client would
        // be over its budget for a long time after a flood.
        if is_within_budget && self.budgets.charge(client, size_bytes).is_zero() {
            metrics::count_unexpected_response("ignored", client);
            MessageReaction::Continue
        } else {
            metrics::count_unexpected_response("unsubscribed", client);
            MessageReaction::Unsubscribe
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;
    use domain::{ClientId, SystemClock};
    use protocol::DialectSettings;

    const BUDGET: ClientBudgetSettings = ClientBudgetSettings {
        messages_per_second: 1,
        message_burst: 3,
        bytes_per_second: 1,
        byte_burst: 100_000,
    };

    fn receiver() -> (ResponseReceiver, PendingResponses) {
        let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
        let pending = PendingResponses::new(topics.clone());
        let clock = Arc::new(SystemClock);
        let receiver = ResponseReceiver::new(pending.clone(), topics, clock, BUDGET);
        (receiver, pending)
    }

    fn message(client: &str, payload: impl Into<Bytes>) -> IncomingMessage {
        IncomingMessage {
            topic: format!("p/{client}/data/out"),
            payload: payload.into(),
            retain: false,
        }
    }

    fn response(client: &str, request_id: Uuid, size: usize) -> IncomingMessage {
        let content = "x".repeat(size);
        let payload =
            format!(r#"{{"type":"data","response_to":"{request_id}","content":"{content}"}}"#);
        message(client, payload)
    }

    #[tokio::test(start_paused = true)]
    async fn client_over_its_budget_is_unsubscribed_and_other_clients_are_not() {
        let (receiver, _pending) = receiver();
        for number in 0..100 {
            let expected = match number {
                0..3 => MessageReaction::Continue,
                _ => MessageReaction::Unsubscribe,
            };
            let reaction = receiver.on_message(message("a", "garbage"));
            assert_eq!(reaction, expected, "message {number}");
        }
        let other = receiver.on_message(message("b", "garbage"));
        assert_eq!(other, MessageReaction::Continue);
        // The client is within its budget again soon after the flood.
        tokio::time::advance(Duration::from_secs(2)).await;
        let later = receiver.on_message(message("a", "garbage"));
        assert_eq!(later, MessageReaction::Continue);
    }

    #[tokio::test(start_paused = true)]
    async fn awaited_response_is_not_charged() {
        let (receiver, pending) = receiver();
        let client = ClientId::new("a").unwrap();
        for _ in 0..10 {
            let request_id = Uuid::new_v4();
            let mut pending_response = pending.add_request(&client, request_id);
            let reaction = receiver.on_message(response("a", request_id, 90_000));
            assert_eq!(reaction, MessageReaction::Continue);
            assert!(pending_response.wait().now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_response_of_a_client_over_its_budget_is_not_decoded_but_a_small_one_is() {
        let (receiver, pending) = receiver();
        let client = ClientId::new("a").unwrap();
        let request_id = Uuid::new_v4();
        let mut pending_response = pending.add_request(&client, request_id);
        let flood = receiver.on_message(message("a", vec![b' '; 200_000]));
        assert_eq!(flood, MessageReaction::Unsubscribe);
        let large = receiver.on_message(response("a", request_id, 90_000));
        assert_eq!(large, MessageReaction::Unsubscribe);
        assert!(pending_response.wait().now_or_never().is_none());
        receiver.on_message(response("a", request_id, 10));
        assert!(pending_response.wait().now_or_never().is_some());
    }
}
