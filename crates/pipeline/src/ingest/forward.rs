//! Forwards messages of an external broker: to Kafka if Kafka is configured, otherwise to the
//! recorder in this process.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::record::{PreparedInput, Recorder, RecorderInput};
use broker::PendingWrite;
use kafka::{DeliveredAt, ProduceError, Producer, header};
use protocol::{self, Channel, ClientTopic, Direction, InboundMessage, TopicScheme};

/// The destination to which ingest forwards messages.
#[derive(Clone)]
pub enum ForwardDestination {
    /// Messages are written to Kafka.
    Kafka {
        /// Writes messages to Kafka.
        producer: Producer,
        /// Name of the Kafka topic for presence messages.
        ingress_topic: Arc<str>,
        /// Name of the Kafka topic for responses and heartbeats.
        answers_topic: Arc<str>,
    },
    /// Messages are submitted to the recorder in this process.
    Recorder(Recorder),
}

impl ForwardDestination {
    /// Returns whether the destination reserves the memory of forwarded messages in the message
    /// budget.
    pub(super) fn reserves_memory(&self) -> bool {
        matches!(self, Self::Recorder(_))
    }

    /// Forwards a message. Messages are forwarded in the order of the calls. The returned write
    /// completes when Kafka or the recorder has stored the message. `topic` is the parsed topic of the
    /// message, or `None` if clients do not publish on this topic.
    pub async fn forward(
        &self,
        topic: Option<ClientTopic>,
        message: InboundMessage,
        packet_id: u16,
    ) -> PendingWrite {
        match self {
            Self::Recorder(recorder) => {
                let input = prepare_for_recorder(recorder, topic, message);
                submit_to_recorder(recorder, input)
            }
            Self::Kafka {
                producer,
                ingress_topic,
                answers_topic,
            } => {
                let is_response_or_heartbeat = topic.as_ref().is_some_and(|topic| {
                    protocol::is_response_or_heartbeat(topic.channel, &message.payload)
                });
                let kafka_topic = if is_response_or_heartbeat {
                    answers_topic
                } else {
                    ingress_topic
                };
                let key = message_key(topic.as_ref(), &message).to_owned();
                let headers = OwnHeaders {
                    packet_id,
                    after_ingress: false,
                };
                let delivery = produce(producer, kafka_topic, &key, message, headers).await;
                PendingWrite::new(async move { delivery.await.is_some() })
            }
        }
    }
}

/// Parses the topic of a message and forwards the message. The write completes when Kafka or the
/// recorder has stored the message.
pub async fn forward_replayed_message(
    destination: &ForwardDestination,
    topics: &TopicScheme,
    message: InboundMessage,
) -> PendingWrite {
    let topic = parse_topic_from_client(topics, &message.topic);
    if topic
        .as_ref()
        .is_some_and(|topic| clears_retained_message(topic.channel, &message))
    {
        return PendingWrite::completed();
    }
    destination.forward(topic, message, 0).await
}

/// The headers of a Kafka message that are not part of the [`InboundMessage`].
#[derive(Clone, Copy)]
pub(super) struct OwnHeaders {
    /// Packet id of the MQTT message.
    pub packet_id: u16,
    /// Whether the message must be recorded after the messages of the ingress topic.
    pub after_ingress: bool,
}

/// Returns the Kafka key of a message: the client id, so that all messages of a client are in one
/// partition. If the message has no client, the key is the MQTT topic.
pub(super) fn message_key<'a>(
    topic: Option<&'a ClientTopic>,
    message: &'a InboundMessage,
) -> &'a str {
    topic.map_or(message.topic.as_str(), |topic| topic.client.as_str())
}

/// Parses an MQTT topic. Returns `None` if clients do not publish on this topic.
pub(super) fn parse_topic_from_client(topics: &TopicScheme, topic: &str) -> Option<ClientTopic> {
    topics
        .parse(topic)
        .filter(|topic| topic.channel.direction() == Direction::FromClient)
}

/// Returns whether the message only clears a retained message. Such a message does not change
/// presence.
///
/// True if the payload is empty and is not a heartbeat. On the data channel of the status dialect, a
/// message with an empty payload is a heartbeat.
pub(super) fn clears_retained_message(channel: Channel, message: &InboundMessage) -> bool {
    message.payload.is_empty() && !protocol::is_response_or_heartbeat(channel, &message.payload)
}

/// Prepares a message for the recorder. Truncates a message that the recorder would reject because of
/// its size. This saves memory while the message is queued.
pub(super) fn prepare_for_recorder(
    recorder: &Recorder,
    topic: Option<ClientTopic>,
    message: InboundMessage,
) -> PreparedInput {
    let input = match topic {
        Some(topic) => {
            let is_accepted = message.payload.len() <= protocol::MAX_PRESENCE_BYTES
                || protocol::is_response_or_heartbeat(topic.channel, &message.payload);
            let message = if is_accepted {
                message
            } else {
                message.with_truncated_payload()
            };
            RecorderInput::non_kafka_message(topic, message)
        }
        None => RecorderInput::UnknownTopic {
            message: message.with_truncated_payload(),
        },
    };
    recorder.prepare(input)
}

/// Submits a prepared message to the recorder.
pub(super) fn submit_to_recorder(recorder: &Recorder, input: PreparedInput) -> PendingWrite {
    let receipt = recorder.submit_prepared(input);
    PendingWrite::new(async move { receipt.wait_until_durable().await.is_ok() })
}

/// A message on the way to Kafka. The result is the position of the message, or `None` if Kafka did
/// not store the message.
pub(super) type Delivery = BoxFuture<'static, Option<DeliveredAt>>;

/// Produces a message to Kafka. Waits while the producer's queue is full.
pub(super) async fn produce(
    producer: &Producer,
    kafka_topic: &Arc<str>,
    key: &str,
    mut message: InboundMessage,
    own_headers: OwnHeaders,
) -> Delivery {
    let headers = kafka_headers(&message, own_headers);
    let delivery = producer
        .send(kafka_topic, key, &message.payload, &headers)
        .await;
    // Free the payload, because the producer has its own copy and tens of thousands of messages may
    // be in flight.
    message.payload = Bytes::new();
    let (producer, kafka_topic) = (producer.clone(), kafka_topic.clone());
    let delivery = async move {
        let result = match delivery {
            Ok(delivery) => delivery.wait_for_position().await,
            Err(error) => Err(error),
        };
        let result = match result {
            Err(ProduceError::TooLarge {
                message_key,
                payload,
            }) => {
                let message = InboundMessage {
                    payload,
                    ..message.clone()
                };
                produce_truncated(&producer, &kafka_topic, &message_key, message, own_headers).await
            }
            result => result,
        };
        if let Err(error) = &result {
            let topic = message.topic;
            tracing::error!(topic, %error, "failed to produce to Kafka");
        }
        result.ok()
    };
    delivery.boxed()
}

/// Produces a message whose payload is too large for Kafka. Writes only the first bytes of the
/// payload. The headers contain the size and hash of the complete payload. The recorder stores the
/// message as a dead letter.
async fn produce_truncated(
    producer: &Producer,
    kafka_topic: &str,
    message_key: &str,
    message: InboundMessage,
    own_headers: OwnHeaders,
) -> Result<DeliveredAt, ProduceError> {
    let message = message.with_truncated_payload();
    let mut headers = kafka_headers(&message, own_headers);
    if let Some(original) = &message.truncated_from {
        headers.push((
            header::TRUNCATED_FROM,
            original.size_bytes.to_string().into(),
        ));
        headers.push((header::TRUNCATED_SHA256, original.sha256.as_str().into()));
    }
    let delivery = producer
        .send(kafka_topic, message_key, &message.payload, &headers)
        .await?;
    delivery.wait_for_position().await
}

fn kafka_headers(
    message: &InboundMessage,
    own_headers: OwnHeaders,
) -> Vec<(&'static str, Cow<'_, str>)> {
    // This function adds at most seven headers, and `produce_truncated` adds two headers.
    let mut headers = Vec::with_capacity(9);
    headers.extend([
        (header::TOPIC, message.topic.as_str().into()),
        (header::PACKET_ID, own_headers.packet_id.to_string().into()),
        // The Go implementation writes and reads nine fractional digits.
        (
            header::RECEIVED_AT,
            format!("{:.9}", message.received_at).into(),
        ),
        (header::RETAIN, bool_text(message.retained)),
    ]);
    if let Some(stamp) = &message.ingest_stamp {
        headers.push((header::INGEST_STAMP, stamp.to_string().into()));
    }
    if message.is_operator_replay {
        headers.push((header::OPERATOR_REPLAY, bool_text(true)));
    }
    if own_headers.after_ingress {
        headers.push((header::AFTER_INGRESS, bool_text(true)));
    }
    headers
}

fn bool_text(flag: bool) -> Cow<'static, str> {
    if flag { "true" } else { "false" }.into()
}
