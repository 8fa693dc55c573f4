//! Produces messages durably and in order.
//!
//! After a fatal error, a librdkafka producer rejects all messages. The producer then replaces its
//! librdkafka client. The messages that were not delivered fail, and the caller sends them again.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};

use super::KafkaSettings;
use super::client_config::{self, ErrorLogger, KafkaError, MAX_MESSAGE_BYTES};

/// Delay before a retry when the local queue of librdkafka is full.
const QUEUE_FULL_RETRY_DELAY: Duration = Duration::from_millis(10);
/// Interval at which [`Producer::wait_until_idle`] checks whether messages are in flight.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum size of the messages in the local queue. The memory of these messages is part of the
/// message budget, which ingest limits.
const MAX_QUEUED_KBYTES: &str = "65536";
/// Maximum size of the messages to other services in the local queue.
const MAX_QUEUED_BEST_EFFORT_KBYTES: &str = "8192";
/// Minimum time between two replacements of the client. If the cause of a fatal error persists, for
/// example a missing permission, each new client fails as well.
const MIN_TIME_BETWEEN_REPLACEMENTS: Duration = Duration::from_secs(1);
/// The producer is unhealthy for this time after a fatal error, or until the next delivery.
const UNHEALTHY_TIME_AFTER_FATAL_ERROR: Duration = Duration::from_secs(10);

type Client = FutureProducer<ErrorLogger>;

/// A Kafka producer. All clones use the same connection.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<ProducerInner>,
}

struct ProducerInner {
    config: ClientConfig,
    client: RwLock<Client>,
    /// The latest fatal error. `None` after the next delivery.
    fatal_error: Mutex<Option<FatalError>>,
}

#[derive(Clone)]
struct FatalError {
    occurred_at: Instant,
    reason: String,
}

/// Kafka did not accept a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The message is larger than the maximum size. A retry would also fail.
    #[error("the message is too large for Kafka")]
    TooLarge {
        /// Kafka key of the message.
        message_key: String,
        /// Payload of the message.
        payload: Bytes,
    },
    /// The message could not be produced for another reason. Contains the reason.
    #[error("{0}")]
    Failed(String),
}

/// The position of a delivered message in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredAt {
    /// Partition number.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
}

/// Handle of a queued message. The caller uses it to wait for the delivery.
pub struct DeliveryHandle {
    delivery: DeliveryFuture,
    producer: Producer,
}

impl Producer {
    /// Creates a producer that retries the delivery of a message without a time limit. Connects in
    /// the background, and reconnects after each lost connection.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(kafka: &KafkaSettings) -> Result<Self, KafkaError> {
        // There is no message timeout. Otherwise a message could expire and be sent again after
        // later messages of the same client. The queue cannot become too long, because the number
        // and size of MQTT messages in flight are limited. The partitioner is the same as in the Go
        // implementation, so that both choose the same partition for a client.
        Self::with_settings(kafka, "0", "fnv1a", MAX_QUEUED_KBYTES)
    }

    /// Creates a producer for messages to other services. The delivery of a message fails after 10
    /// seconds. A longer timeout is not needed, because the callers send the same data again later.
    /// The producer uses the partitioner that the other services expect.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new_best_effort(kafka: &KafkaSettings) -> Result<Self, KafkaError> {
        Self::with_settings(kafka, "10000", "consistent", MAX_QUEUED_BEST_EFFORT_KBYTES)
    }

    fn with_settings(
        kafka: &KafkaSettings,
        message_timeout_ms: &str,
        partitioner: &str,
        max_queued_kbytes: &str,
    ) -> Result<Self, KafkaError> {
        let mut config = client_config::common_config(kafka)?;
        config
            // A message is delivered when all in-sync replicas have stored it. Without idempotence,
            // retries of librdkafka could duplicate or reorder messages.
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", message_timeout_ms)
            .set("message.max.bytes", MAX_MESSAGE_BYTES)
            .set("compression.type", "lz4")
            // With high traffic, librdkafka collects messages into batches while earlier requests
            // are in flight. With low traffic, a longer linger time would only delay messages.
            .set("linger.ms", "0")
            .set("queue.buffering.max.kbytes", max_queued_kbytes)
            .set("partitioner", partitioner);
        let client = config
            .create_with_context(ErrorLogger)
            .map_err(|error| client_config::rejected_settings_error(&error))?;
        Ok(Self {
            inner: Arc::new(ProducerInner {
                config,
                client: RwLock::new(client),
                fatal_error: Mutex::default(),
            }),
        })
    }

    fn client(&self) -> Client {
        self.inner.client.read().clone()
    }

    /// Replaces the client if it has reported a fatal error.
    fn replace_client_after_fatal_error(&self) {
        let mut client = self.inner.client.write();
        let Some((code, reason)) = client.client().fatal_error() else {
            return;
        };
        let mut fatal_error = self.inner.fatal_error.lock();
        let is_repeated = fatal_error
            .as_ref()
            .is_some_and(|previous| previous.occurred_at.elapsed() < MIN_TIME_BETWEEN_REPLACEMENTS);
        if is_repeated {
            return;
        }
        tracing::error!(%code, reason, "fatal error of the Kafka producer; replacing the producer");
        *fatal_error = Some(FatalError {
            occurred_at: Instant::now(),
            reason: format!("{code}: {reason}"),
        });
        match self.inner.config.create_with_context(ErrorLogger) {
            Ok(new_client) => {
                let old_client = std::mem::replace(&mut *client, new_client);
                // Dropping the client waits for its thread.
                tokio::task::spawn_blocking(move || drop(old_client));
            }
            Err(error) => tracing::error!(%error, "failed to create a Kafka producer"),
        }
    }

    /// Returns the problem after a fatal error.
    fn check_fatal_error(&self) -> Result<(), String> {
        match &*self.inner.fatal_error.lock() {
            Some(FatalError {
                occurred_at,
                reason,
            }) if occurred_at.elapsed() < UNHEALTHY_TIME_AFTER_FATAL_ERROR => Err(format!(
                "fatal error of the Kafka producer ({reason}); the messages are sent again. If this \
                 persists, check the permissions of the Kafka user"
            )),
            _ => Ok(()),
        }
    }

    /// Queues a message for delivery. Waits while the local queue of librdkafka is full. Messages
    /// with the same key are delivered in the order in which they were queued.
    ///
    /// # Errors
    /// When the message cannot be queued.
    pub async fn send(
        &self,
        topic: &str,
        message_key: &str,
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
            .key(message_key)
            .payload(payload)
            .headers(owned_headers);
        loop {
            match self.client().send_result(record) {
                Ok(delivery) => {
                    return Ok(DeliveryHandle {
                        delivery,
                        producer: self.clone(),
                    });
                }
                Err((error, unsent))
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) =>
                {
                    record = unsent;
                    tokio::time::sleep(QUEUE_FULL_RETRY_DELAY).await;
                }
                Err((error, _)) => {
                    self.replace_client_after_fatal_error();
                    return Err(produce_error(&error, message_key.as_bytes(), payload));
                }
            }
        }
    }

    /// Waits until no message is in flight: each queued message is delivered or has failed.
    pub async fn wait_until_idle(&self) {
        while self.client().in_flight_count() > 0 {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        }
    }

    /// Checks that the topic exists, that each partition has a leader, and that no fatal error
    /// occurred recently.
    ///
    /// # Errors
    /// When messages cannot be produced to the topic. The error contains the reason.
    pub async fn check_topic(&self, topic: &str) -> Result<(), String> {
        self.check_fatal_error()?;
        let (client, topic) = (self.client(), topic.to_owned());
        let check = tokio::task::spawn_blocking(move || {
            super::topics::check_topic(client.client(), &topic)
        });
        check
            .await
            .unwrap_or_else(|_| Err("the health check failed to run".to_owned()))
    }
}

impl DeliveryHandle {
    /// Waits until all in-sync replicas have stored the message.
    ///
    /// # Errors
    /// When the delivery failed.
    pub async fn wait_until_durable(self) -> Result<(), ProduceError> {
        self.wait_for_position().await.map(drop)
    }

    /// Waits until all in-sync replicas have stored the message, and returns its position.
    ///
    /// # Errors
    /// When the delivery failed.
    pub async fn wait_for_position(self) -> Result<DeliveredAt, ProduceError> {
        match self.delivery.await {
            // librdkafka reports a message as delivered, without an offset, if Kafka has accepted a
            // later message of the partition. In a recreated topic, this is wrong: the new partition
            // accepts any sequence number, so it may accept a message that was sent after a message
            // that failed. The caller must send the message again.
            Ok(Ok(delivery)) if delivery.offset < 0 => Err(ProduceError::Failed(
                "Kafka did not confirm the message".to_owned(),
            )),
            Ok(Ok(delivery)) => {
                let mut fatal_error = self.producer.inner.fatal_error.lock();
                *fatal_error = None;
                Ok(DeliveredAt {
                    partition: delivery.partition,
                    offset: delivery.offset,
                })
            }
            Ok(Err((error, message))) => {
                self.producer.replace_client_after_fatal_error();
                let message_key = message.key().unwrap_or_default();
                let payload = message.payload().unwrap_or_default();
                Err(produce_error(&error, message_key, payload))
            }
            Err(_) => Err(ProduceError::Failed(
                "the Kafka producer was closed".to_owned(),
            )),
        }
    }
}

fn produce_error(error: &ClientError, message_key: &[u8], payload: &[u8]) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize) => {
            ProduceError::TooLarge {
                message_key: String::from_utf8_lossy(message_key).into_owned(),
                payload: Bytes::copy_from_slice(payload),
            }
        }
        _ => ProduceError::Failed(error.to_string()),
    }
}
