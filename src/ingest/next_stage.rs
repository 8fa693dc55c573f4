//! The stage after ingest: Kafka if it is configured, otherwise the recorder in this process.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::PendingWrite;
use crate::domain::ClientId;
use crate::kafka::{ProduceError, Producer, header};
use crate::protocol::{self, Channel, ClientTopic, Direction, InboundMessage, TopicScheme};
use crate::record::{Recorder, RecorderInput};
use crate::telemetry::metrics;

/// Where ingest forwards messages.
#[derive(Clone)]
pub enum NextStage {
    /// Kafka.
    Kafka {
        /// The producer.
        producer: Producer,
        /// Name of the topic for presence messages.
        ingress_topic: Arc<str>,
        /// Name of the topic for responses and heartbeats.
        answers_topic: Arc<str>,
    },
    /// The recorder in this process.
    Recorder(Recorder),
}

impl NextStage {
    /// Forwards a message. Messages keep the order of the calls. The returned write completes when
    /// the next stage has stored the message.
    pub async fn forward(
        &self,
        topics: &TopicScheme,
        message: InboundMessage,
        packet_id: u16,
    ) -> PendingWrite {
        let topic = from_client(topics, &message.topic);
        metrics::message_received(
            topic
                .as_ref()
                .map_or("unknown", |topic| topic.channel.label()),
        );
        if let Some(topic) = &topic
            && clears_retained_message(topic.channel, &message)
        {
            return PendingWrite::completed();
        }
        match self {
            Self::Recorder(recorder) => record(recorder, topic, message),
            Self::Kafka {
                producer,
                ingress_topic,
                answers_topic,
            } => {
                let is_response = topic
                    .as_ref()
                    .is_some_and(|topic| protocol::is_response(topic.channel, &message.payload));
                let kafka_topic = if is_response {
                    answers_topic
                } else {
                    ingress_topic
                };
                let client = topic.map(|topic| topic.client);
                let client = client.as_ref().map(ClientId::as_str);
                produce(producer, kafka_topic, client, message, packet_id).await
            }
        }
    }
}

/// Parses an MQTT topic. Returns `None` if clients do not publish on it.
pub(super) fn from_client(topics: &TopicScheme, topic: &str) -> Option<ClientTopic> {
    topics
        .parse(topic)
        .filter(|topic| topic.channel.direction() == Direction::FromClient)
}

/// Whether the message clears a retained message: its payload is empty. Such a message does not
/// change presence. On `data/out` an empty payload is a heartbeat instead.
pub(super) fn clears_retained_message(channel: Channel, message: &InboundMessage) -> bool {
    message.payload.is_empty() && !matches!(channel, Channel::Data(_))
}

/// Submits a message to the recorder. Truncates a message that the recorder would reject because of
/// its size, to save memory while it is queued.
pub(super) fn record(
    recorder: &Recorder,
    topic: Option<ClientTopic>,
    message: InboundMessage,
) -> PendingWrite {
    let input = match topic {
        Some(topic) => {
            let is_accepted = message.payload.len() <= protocol::MAX_PRESENCE_BYTES
                || protocol::is_response(topic.channel, &message.payload);
            let message = if is_accepted {
                message
            } else {
                message.with_truncated_payload()
            };
            RecorderInput::ordered_message(topic, message)
        }
        None => RecorderInput::UnknownTopic {
            message: message.with_truncated_payload(),
        },
    };
    let receipt = recorder.submit(input);
    PendingWrite::new(async move { receipt.durable().await.is_ok() })
}

/// Produces a message. The key is the client id, which keeps all messages of a client in one
/// partition. Without a client, the key is the MQTT topic.
async fn produce(
    producer: &Producer,
    kafka_topic: &Arc<str>,
    client: Option<&str>,
    mut message: InboundMessage,
    packet_id: u16,
) -> PendingWrite {
    let key = client.unwrap_or(&message.topic);
    let headers = headers(&message, packet_id);
    let delivery = producer
        .send(kafka_topic, key, &message.payload, &headers)
        .await;
    // The producer has a copy of the payload. Tens of thousands of messages may be in flight, so
    // this one is freed.
    message.payload = Bytes::new();
    let (producer, kafka_topic) = (producer.clone(), kafka_topic.clone());
    PendingWrite::new(async move {
        let result = match delivery {
            Ok(delivery) => delivery.durable().await,
            Err(error) => Err(error),
        };
        let result = match result {
            Err(ProduceError::TooLarge { key, payload }) => {
                let message = InboundMessage {
                    payload,
                    ..message.clone()
                };
                produce_truncated(&producer, &kafka_topic, &key, message, packet_id).await
            }
            result => result,
        };
        if let Err(error) = &result {
            let topic = message.topic;
            tracing::error!(topic, %error, "failed to produce to Kafka");
        }
        result.is_ok()
    })
}

/// Produces the start of a payload that is too large for Kafka, with the original size and hash.
/// The recorder stores the message as a dead letter.
async fn produce_truncated(
    producer: &Producer,
    kafka_topic: &str,
    key: &str,
    message: InboundMessage,
    packet_id: u16,
) -> Result<(), ProduceError> {
    let message = message.with_truncated_payload();
    let mut headers = headers(&message, packet_id);
    if let Some(truncated) = &message.truncated {
        headers.push((header::TRUNCATED_FROM, truncated.size.to_string().into()));
        headers.push((header::TRUNCATED_SHA256, truncated.sha256.as_str().into()));
    }
    let delivery = producer
        .send(kafka_topic, key, &message.payload, &headers)
        .await?;
    delivery.durable().await
}

fn headers(message: &InboundMessage, packet_id: u16) -> Vec<(&'static str, Cow<'_, str>)> {
    // Four here, at most one below, and two that `produce_truncated` adds.
    let mut headers = Vec::with_capacity(7);
    headers.extend([
        (header::TOPIC, message.topic.as_str().into()),
        (header::PACKET_ID, packet_id.to_string().into()),
        // The Go implementation writes and reads nine fractional digits.
        (
            header::RECEIVED_AT,
            format!("{:.9}", message.received_at).into(),
        ),
        (header::RETAIN, bool_text(message.retained)),
    ]);
    if message.operator_replay {
        headers.push((header::OPERATOR_REPLAY, bool_text(true)));
    }
    headers
}

fn bool_text(value: bool) -> Cow<'static, str> {
    if value { "true" } else { "false" }.into()
}
