//! Where messages of an outside broker go: into the queue, or straight to the recorder.

use sha2::{Digest as _, Sha256};

use crate::broker::Taken;
use crate::domain::ClientId;
use crate::kafka::{Producer, SendError, header};
use crate::protocol::{Channel, ClientTopic, Direction, Received, Rejected, Topics};
use crate::record::{Event, Recorder};
use crate::telemetry::metrics;

/// What is kept of a message that is too large to queue.
const CUT_TO: usize = 64 * 1024;

/// The next stage.
#[derive(Clone)]
pub enum Destination {
    /// Kafka.
    Queue {
        /// Puts it there.
        producer: Producer,
        /// Presence.
        ingress: String,
        /// Answers and signs of life.
        answers: String,
    },
    /// The recorder in this process.
    Recorder(Recorder),
}

impl Destination {
    /// Takes a message in, in the order of the calls. What it returns resolves when the next stage
    /// has it.
    pub async fn take(&self, topics: &Topics, message: Received, packet_id: u16) -> Taken {
        let Some(topic) = from_client(topics, &message) else {
            return Taken::at_once();
        };
        let is_control = topic.channel == Channel::Control;
        metrics::received(if is_control { "control" } else { "data" });
        if is_control && message.payload.is_empty() {
            // Never registers and never removes anything.
            return Taken::at_once();
        }
        match self {
            Self::Recorder(recorder) if is_control => {
                let client = topic.client;
                let receipt = recorder.submit(Event::Message { client, message });
                Taken::when(async move { receipt.durable().await.is_ok() })
            }
            Self::Recorder(_) => Taken::at_once(),
            Self::Queue {
                producer,
                ingress,
                answers,
            } => {
                let to = if is_control { ingress } else { answers };
                queue(producer, to, &topic.client, &message, packet_id).await
            }
        }
    }
}

fn from_client(topics: &Topics, message: &Received) -> Option<ClientTopic> {
    let topic = topics
        .parse(&message.topic)
        .filter(|topic| topic.direction == Direction::Out);
    if topic.is_none() {
        // Nobody's, so nobody waits for it; taken, or it would come again for ever.
        let rejected = Rejected::new("unknown_topic", "no client has this topic");
        metrics::rejected(&message.topic, &rejected);
    }
    topic
}

async fn queue(
    producer: &Producer,
    to: &str,
    client: &ClientId,
    message: &Received,
    packet_id: u16,
) -> Taken {
    let headers = headers(message, packet_id);
    let sent = producer
        .send(to, client.as_str(), &message.payload, &headers)
        .await;
    let (producer, to, client) = (producer.clone(), to.to_owned(), client.clone());
    let message = message.clone();
    Taken::when(async move {
        let outcome = match sent {
            Ok(sent) => sent.durable().await,
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Err(SendError::TooLarge) => {
                send_cut(&producer, &to, &client, &message, packet_id).await
            }
            outcome => outcome,
        };
        if let Err(error) = &outcome {
            tracing::error!(client_id = %client, %error, "the queue does not take a message");
        }
        outcome.is_ok()
    })
}

/// Its beginning, its size and its hash: enough to see what it was, and whose.
async fn send_cut(
    producer: &Producer,
    to: &str,
    client: &ClientId,
    message: &Received,
    packet_id: u16,
) -> Result<(), SendError> {
    let payload = &message.payload;
    let mut headers = headers(message, packet_id);
    headers.push((header::CUT_FROM, payload.len().to_string()));
    headers.push((header::CUT_HASH, format!("{:x}", Sha256::digest(payload))));
    let beginning = &payload[..payload.len().min(CUT_TO)];
    let sent = producer
        .send(to, client.as_str(), beginning, &headers)
        .await?;
    sent.durable().await
}

fn headers(message: &Received, packet_id: u16) -> Vec<(&'static str, String)> {
    vec![
        (header::TOPIC, message.topic.clone()),
        (header::PACKET_ID, packet_id.to_string()),
        // Nine digits, as the Go implementation writes and reads them.
        (header::RECEIVED, format!("{:.9}", message.received)),
        (header::RETAIN, message.retain.to_string()),
    ]
}
