//! Where messages of an outside broker go: into the queue, or straight to the recorder.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::Receipt;
use crate::domain::ClientId;
use crate::kafka::{Producer, SendError, header};
use crate::protocol::{self, Channel, ClientTopic, Direction, InboundMessage, TopicScheme};
use crate::record::{Recorder, RecorderInput};
use crate::telemetry::metrics;

/// The next stage.
#[derive(Clone)]
pub enum NextStage {
    /// Kafka.
    Kafka {
        /// Puts it there.
        producer: Producer,
        /// Presence.
        ingress: Arc<str>,
        /// Answers and signs of life.
        answers: Arc<str>,
    },
    /// The recorder in this process.
    Recorder(Recorder),
}

impl NextStage {
    /// Takes a message in, in the order of the calls. What it returns resolves when the next stage
    /// has it.
    pub async fn take(
        &self,
        topics: &TopicScheme,
        message: InboundMessage,
        packet_id: u16,
    ) -> Receipt {
        let topic = from_client(topics, &message.topic);
        metrics::received(
            topic
                .as_ref()
                .map_or("unknown", |topic| topic.route.label()),
        );
        if let Some(topic) = &topic
            && is_removal(topic.route, &message)
        {
            return Receipt::at_once();
        }
        match self {
            Self::Recorder(recorder) => record(recorder, topic, message),
            Self::Kafka {
                producer,
                ingress,
                answers,
            } => {
                let is_answer = topic
                    .as_ref()
                    .is_some_and(|topic| protocol::is_response(topic.route, &message.payload));
                let to = if is_answer { answers } else { ingress };
                // One client's messages keep their order; what is nobody's goes anywhere.
                let client = topic.map(|topic| topic.client);
                let client = client.as_ref().map(ClientId::as_str);
                queue(producer, to, client, message, packet_id).await
            }
        }
    }
}

/// Whose message it is; none if no client publishes there.
pub(super) fn from_client(topics: &TopicScheme, topic: &str) -> Option<ClientTopic> {
    topics
        .parse(topic)
        .filter(|topic| topic.route.direction() == Direction::FromClient)
}

/// An empty payload is what removing a retained message looks like. It never registers or removes
/// anything; only on `data/out` it is a sign of life.
pub(super) fn is_removal(route: Channel, message: &InboundMessage) -> bool {
    message.payload.is_empty() && !matches!(route, Channel::Data(_))
}

/// Straight to the recorder. What it would refuse for its size is cut first: what waits there is
/// memory.
pub(super) fn record(
    recorder: &Recorder,
    topic: Option<ClientTopic>,
    message: InboundMessage,
) -> Receipt {
    let event = match topic {
        Some(topic) => {
            let is_answer = protocol::is_response(topic.route, &message.payload);
            let fits = is_answer || message.payload.len() <= protocol::PRESENCE_MAX_BYTES;
            let message = if fits { message } else { message.cut() };
            RecorderInput::message(topic, message)
        }
        None => RecorderInput::UnknownTopic {
            message: message.cut(),
        },
    };
    let receipt = recorder.submit(event);
    Receipt::when(async move { receipt.durable().await.is_ok() })
}

/// Of a message that waits here only the envelope is held: the producer has its payload, and there
/// may be tens of thousands.
async fn queue(
    producer: &Producer,
    to: &Arc<str>,
    client: Option<&str>,
    mut message: InboundMessage,
    packet_id: u16,
) -> Receipt {
    let key = client.unwrap_or(&message.topic);
    let headers = headers(&message, packet_id);
    let sent = producer.send(to, key, &message.payload, &headers).await;
    message.payload = Bytes::new();
    let (producer, to) = (producer.clone(), to.clone());
    Receipt::when(async move {
        let outcome = match sent {
            Ok(sent) => sent.durable().await,
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Err(SendError::TooLarge { key, payload }) => {
                let whole = InboundMessage {
                    payload,
                    ..message.clone()
                };
                send_cut(&producer, &to, &key, whole, packet_id).await
            }
            outcome => outcome,
        };
        if let Err(error) = &outcome {
            let topic = message.topic;
            tracing::error!(topic, %error, "the queue does not take a message");
        }
        outcome.is_ok()
    })
}

/// Its beginning, its size and its hash: enough to see what it was, and whose.
async fn send_cut(
    producer: &Producer,
    to: &str,
    key: &str,
    message: InboundMessage,
    packet_id: u16,
) -> Result<(), SendError> {
    let message = message.cut();
    let mut headers = headers(&message, packet_id);
    if let Some(cut) = &message.cut {
        headers.push((header::TRUNCATED_FROM, cut.size.to_string().into()));
        headers.push((header::TRUNCATED_SHA256, cut.sha256.as_str().into()));
    }
    let sent = producer.send(to, key, &message.payload, &headers).await?;
    sent.durable().await
}

fn headers(message: &InboundMessage, packet_id: u16) -> Vec<(&'static str, Cow<'_, str>)> {
    let mut headers = Vec::with_capacity(7);
    headers.extend([
        (header::TOPIC, message.topic.as_str().into()),
        (header::PACKET_ID, packet_id.to_string().into()),
        // Nine digits, as the Go implementation writes and reads them.
        (header::RECEIVED, format!("{:.9}", message.received).into()),
        (header::RETAIN, truth(message.replayed)),
    ]);
    if message.again {
        headers.push((header::OPERATOR_REPLAY, truth(true)));
    }
    headers
}

fn truth(is_so: bool) -> Cow<'static, str> {
    if is_so { "true" } else { "false" }.into()
}
