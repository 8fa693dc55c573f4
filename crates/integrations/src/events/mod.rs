//! Sends events to a Kafka topic, as CloudEvents 1.0 in binary mode: the attributes of an event are
//! headers, and the payload is its data.

use std::borrow::Cow;

use async_trait::async_trait;
use futures::future::join_all;

use domain::event::{CLOUD_EVENT_SOURCE, CLOUD_EVENT_TYPE_PREFIX};
use domain::{ClientId, Timestamp};
use kafka::{ProduceError, Producer};

/// Number of headers of an event.
const HEADER_COUNT: usize = 8;

/// An event to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingEvent {
    /// Position of the event. It is the id of the event.
    pub position: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Type of the event, for example `connection.online`.
    pub event_type: String,
    /// Client id. It is the Kafka key, so one partition contains all events of a client.
    pub client_id: ClientId,
    /// The event as a JSON object.
    pub json: Vec<u8>,
}

/// The result of sending one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendResult {
    /// The topic contains the event.
    Delivered,
    /// The event is too large for the topic. It would be rejected again.
    TooLarge,
    /// The event was not delivered in time. It can still arrive.
    Failed,
}

/// A destination of events.
#[async_trait]
pub trait EventSink: Send + Sync + 'static {
    /// Sends the events, which must be of different clients. Returns the result of each event.
    async fn send(&self, events: &[OutgoingEvent]) -> Vec<SendResult>;
}

/// Produces events to a Kafka topic.
pub struct KafkaEventSink {
    producer: Producer,
    topic: String,
}

impl KafkaEventSink {
    /// Creates a sink that produces to `topic`.
    #[must_use]
    pub fn new(producer: Producer, topic: String) -> Self {
        Self { producer, topic }
    }

    async fn produce(&self, event: &OutgoingEvent) -> SendResult {
        let key = event.client_id.as_str();
        let headers = headers(event);
        let queued = self.producer.send(&self.topic, key, &event.json, &headers);
        let result = match queued.await {
            Ok(delivery) => delivery.wait_until_durable().await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => SendResult::Delivered,
            Err(ProduceError::TooLarge { .. }) => SendResult::TooLarge,
            Err(error @ ProduceError::Failed(_)) => {
                tracing::debug!(%error, "failed to produce an event");
                SendResult::Failed
            }
        }
    }
}

#[async_trait]
impl EventSink for KafkaEventSink {
    async fn send(&self, events: &[OutgoingEvent]) -> Vec<SendResult> {
        join_all(events.iter().map(|event| self.produce(event))).await
    }
}

/// Returns the headers of an event: the attributes of CloudEvents 1.0, in the Kafka protocol binding.
fn headers(event: &OutgoingEvent) -> [(&'static str, Cow<'_, str>); HEADER_COUNT] {
    let position = event.position.to_string();
    [
        ("ce_specversion", "1.0".into()),
        ("ce_id", position.clone().into()),
        ("ce_source", CLOUD_EVENT_SOURCE.into()),
        (
            "ce_type",
            format!("{CLOUD_EVENT_TYPE_PREFIX}{}", event.event_type).into(),
        ),
        ("ce_subject", event.client_id.as_str().into()),
        ("ce_time", event.at.to_string().into()),
        ("ce_sequence", position.into()),
        ("content-type", "application/json".into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_the_attributes_of_a_cloud_event() {
        let event = OutgoingEvent {
            position: 42,
            at: "2026-01-02T15:04:05.123456Z".parse().unwrap(),
            event_type: "connection.online".to_owned(),
            client_id: ClientId::new("client").unwrap(),
            json: b"{}".to_vec(),
        };
        let headers = headers(&event);
        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "42"),
            ("ce_source", "urn:redhat:cloud-connector"),
            ("ce_type", "com.redhat.cloud-connector.connection.online"),
            ("ce_subject", "client"),
            ("ce_time", "2026-01-02T15:04:05.123456Z"),
            ("ce_sequence", "42"),
            ("content-type", "application/json"),
        ];
        let headers = headers.iter().map(|(name, value)| (*name, value.as_ref()));
        assert!(headers.eq(expected));
    }
}
