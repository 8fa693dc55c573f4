//! Producing messages durably and in order.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};

use super::client_config::{self, ErrorLogger, KafkaError, MAX_MESSAGE_BYTES};
use crate::config::Kafka;

/// Delay before a retry when the local queue of librdkafka is full.
const QUEUE_FULL_RETRY_DELAY: Duration = Duration::from_millis(10);

/// A Kafka producer. All clones share one connection.
#[derive(Clone)]
pub struct Producer {
    inner: FutureProducer<ErrorLogger>,
}

/// Kafka did not accept a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The message exceeds the maximum size. A retry would fail as well.
    #[error("the message is too large for Kafka")]
    TooLarge {
        /// Key of the message.
        key: String,
        /// Payload of the message.
        payload: Bytes,
    },
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// A message that was queued for delivery.
pub struct DeliveryHandle(DeliveryFuture);

impl Producer {
    /// Creates a producer that never gives up on a message. Connects in the background and
    /// reconnects forever.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(kafka: &Kafka) -> Result<Self, KafkaError> {
        // No message timeout: if a message expired and were sent again, it would follow later
        // messages of the same client. The number of messages in flight on the MQTT side bounds the
        // queue. The Go implementation uses the same partitioner, so both choose the same partition
        // for a client.
        Self::with_settings(kafka, "0", "fnv1a")
    }

    /// Creates a producer for messages to other services. It gives up on a message after 10
    /// seconds, because its callers send the same data again later. It uses the partitioner that
    /// these services expect.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn best_effort(kafka: &Kafka) -> Result<Self, KafkaError> {
        Self::with_settings(kafka, "10000", "consistent")
    }

    fn with_settings(
        kafka: &Kafka,
        message_timeout_ms: &str,
        partitioner: &str,
    ) -> Result<Self, KafkaError> {
        let inner = client_config::common(kafka)?
            // All in-sync replicas must have the message. Idempotence prevents duplicates and
            // reordering when librdkafka retries.
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", message_timeout_ms)
            .set("message.max.bytes", MAX_MESSAGE_BYTES)
            .set("compression.type", "lz4")
            // Under load, messages form batches while earlier requests are in flight. A longer
            // linger would only delay messages when there is little traffic.
            .set("linger.ms", "0.5")
            .set("queue.buffering.max.kbytes", "65536")
            .set("partitioner", partitioner)
            .create_with_context(ErrorLogger)
            .map_err(|error| client_config::rejected_settings(&error))?;
        Ok(Self { inner })
    }

    /// Queues a message for delivery. Messages with the same key are delivered in the order of
    /// these calls. Waits while the local queue is full.
    ///
    /// # Errors
    /// When the message cannot be queued.
    pub async fn send(
        &self,
        topic: &str,
        key: &str,
        payload: &[u8],
        headers: &[(&str, Cow<'_, str>)],
    ) -> Result<DeliveryHandle, ProduceError> {
        let mut owned_headers = OwnedHeaders::new_with_capacity(headers.len());
        for (name, value) in headers {
            owned_headers = owned_headers.insert(Header {
                key: name,
                value: Some(value.as_ref()),
            });
        }
        let mut record = FutureRecord::to(topic)
            .key(key)
            .payload(payload)
            .headers(owned_headers);
        loop {
            match self.inner.send_result(record) {
                Ok(delivery) => return Ok(DeliveryHandle(delivery)),
                Err((error, unsent))
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) =>
                {
                    record = unsent;
                    tokio::time::sleep(QUEUE_FULL_RETRY_DELAY).await;
                }
                Err((error, _)) => return Err(produce_error(&error, key.as_bytes(), payload)),
            }
        }
    }

    /// Checks that the topic exists and each partition has a leader.
    ///
    /// # Errors
    /// When the topic cannot be written to, with the reason.
    pub async fn check(&self, topic: &str) -> Result<(), String> {
        let (inner, topic) = (self.inner.clone(), topic.to_owned());
        let check =
            tokio::task::spawn_blocking(move || super::topics::check(inner.client(), &topic));
        check
            .await
            .unwrap_or_else(|_| Err("the health check failed to run".to_owned()))
    }
}

impl DeliveryHandle {
    /// Waits until all in-sync replicas have the message.
    ///
    /// # Errors
    /// When the delivery failed.
    pub async fn durable(self) -> Result<(), ProduceError> {
        match self.0.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((error, message))) => {
                let key = message.key().unwrap_or_default();
                let payload = message.payload().unwrap_or_default();
                Err(produce_error(&error, key, payload))
            }
            Err(_) => Err(ProduceError::Failed(
                "the Kafka producer was closed".to_owned(),
            )),
        }
    }
}

fn produce_error(error: &ClientError, key: &[u8], payload: &[u8]) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize) => {
            ProduceError::TooLarge {
                key: String::from_utf8_lossy(key).into_owned(),
                payload: Bytes::copy_from_slice(payload),
            }
        }
        _ => ProduceError::Failed(error.to_string()),
    }
}
