//! Putting messages into the queue, durably and in order.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};

use super::client_config::{self, ErrorLogger, KafkaError};
use crate::config::Kafka;

/// Larger than what the MQTT side lets through, so that what fits there fits here.
const MESSAGE_MAX: &str = "2097152";
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);

/// A producer. A clone is the same.
#[derive(Clone)]
pub struct Producer {
    inner: FutureProducer<ErrorLogger>,
}

/// The queue does not have the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It will never take one of this size, and gives it back.
    #[error("the message is too large for the queue")]
    TooLarge {
        /// What it was to be ordered by.
        key: String,
        /// Its bytes.
        payload: Bytes,
    },
    /// Another reason.
    #[error("{0}")]
    Failed(String),
}

/// Resolves when the queue holds the message durably, or never will.
pub struct DeliveryHandle(DeliveryFuture);

impl Producer {
    /// A producer for these brokers. Connects by itself, again and again.
    ///
    /// # Errors
    /// When a setting cannot work.
    pub fn new(kafka: &Kafka) -> Result<Self, KafkaError> {
        // Never given up: a message that was given up and came again would come after its
        // successors. What waits is bounded by what the broker has in flight to us. The partitioner
        // is the Go implementation's, so that both put a client into the same partition.
        Self::with(kafka, "0", "fnv1a")
    }

    /// A producer for what other services are told: given up after a while, because what was not
    /// heard is told again later; with the partitioner that they expect.
    ///
    /// # Errors
    /// When a setting cannot work.
    pub fn best_effort(kafka: &Kafka) -> Result<Self, KafkaError> {
        Self::with(kafka, "10000", "consistent")
    }

    fn with(kafka: &Kafka, timeout_ms: &str, partitioner: &str) -> Result<Self, KafkaError> {
        let inner = client_config::common(kafka)?
            // Every replica in sync has it, once, in the order of the calls.
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", timeout_ms)
            .set("message.max.bytes", MESSAGE_MAX)
            .set("compression.type", "lz4")
            // What waits to be sent gathers by itself when there is much; when there is little,
            // everybody would wait for nothing.
            .set("linger.ms", "0.5")
            .set("queue.buffering.max.kbytes", "65536")
            .set("partitioner", partitioner)
            .create_with_context(ErrorLogger)
            .map_err(|error| client_config::unusable(&error))?;
        Ok(Self { inner })
    }

    /// Hands a message over. Messages of one key keep the order of these calls.
    ///
    /// # Errors
    /// When it cannot be taken at all.
    pub async fn send(
        &self,
        topic: &str,
        key: &str,
        payload: &[u8],
        headers: &[(&str, Cow<'_, str>)],
    ) -> Result<DeliveryHandle, SendError> {
        let mut owned = OwnedHeaders::new_with_capacity(headers.len());
        for (name, value) in headers {
            owned = owned.insert(Header {
                key: name,
                value: Some(value.as_ref()),
            });
        }
        let mut record = FutureRecord::to(topic)
            .key(key)
            .payload(payload)
            .headers(owned);
        loop {
            match self.inner.send_result(record) {
                Ok(delivery) => return Ok(DeliveryHandle(delivery)),
                Err((error, back))
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) =>
                {
                    record = back;
                    tokio::time::sleep(QUEUE_FULL_PAUSE).await;
                }
                Err((error, _)) => return Err(sort(&error, key.as_bytes(), payload)),
            }
        }
    }

    /// Whether the topic can be written to now.
    ///
    /// # Errors
    /// When it cannot, with why.
    pub async fn check(&self, topic: &str) -> Result<(), String> {
        let (inner, topic) = (self.inner.clone(), topic.to_owned());
        let asked =
            tokio::task::spawn_blocking(move || super::topics::check(inner.client(), &topic));
        asked.await.unwrap_or_else(|_| Err("not asked".to_owned()))
    }
}

impl DeliveryHandle {
    /// Waits until the queue holds it durably.
    ///
    /// # Errors
    /// When it never will.
    pub async fn durable(self) -> Result<(), SendError> {
        match self.0.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((error, message))) => {
                let key = message.key().unwrap_or_default();
                Err(sort(&error, key, message.payload().unwrap_or_default()))
            }
            Err(_) => Err(SendError::Failed("the producer has stopped".to_owned())),
        }
    }
}

fn sort(error: &ClientError, key: &[u8], payload: &[u8]) -> SendError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize) => {
            SendError::TooLarge {
                key: String::from_utf8_lossy(key).into_owned(),
                payload: Bytes::copy_from_slice(payload),
            }
        }
        _ => SendError::Failed(error.to_string()),
    }
}
