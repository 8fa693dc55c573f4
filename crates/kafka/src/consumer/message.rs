//! The events that a consumer returns.

use std::collections::HashMap;

use bytes::Bytes;
use rdkafka::Timestamp as KafkaTimestamp;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};

use crate::topic_identity::TopicId;
use domain::Timestamp;

/// A message read from Kafka.
#[derive(Debug, Clone)]
pub struct KafkaMessage {
    /// The first 64 bits of the topic id. `None` if the cluster does not support topic ids.
    pub topic: Option<i64>,
    /// Partition number.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Payload of the message.
    pub payload: Bytes,
    /// Headers of the message. In values that are not valid UTF-8, invalid bytes are replaced.
    pub headers: HashMap<String, String>,
    /// Kafka's timestamp of the message: the time at which the message was produced or appended.
    pub timestamp: Option<Timestamp>,
}

/// A message or a rebalance.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// A message was received.
    Message(KafkaMessage),
    /// These partitions were assigned to this consumer. The caller must discard unprocessed
    /// messages that it received from these partitions before this event.
    Assigned(Vec<i32>),
    /// These partitions were revoked from this consumer.
    Revoked(Vec<i32>),
}

pub(super) fn to_owned_message(
    message: &BorrowedMessage<'_>,
    topic_id: Option<&TopicId>,
) -> KafkaMessage {
    let mut headers = HashMap::new();
    if let Some(borrowed_headers) = message.headers() {
        for header in borrowed_headers.iter() {
            if let Some(value) = header.value {
                let value = String::from_utf8_lossy(value).into_owned();
                headers.insert(header.key.to_owned(), value);
            }
        }
    }
    let timestamp = match message.timestamp() {
        KafkaTimestamp::CreateTime(millis) | KafkaTimestamp::LogAppendTime(millis) => {
            Timestamp::from_millisecond(millis).ok()
        }
        KafkaTimestamp::NotAvailable => None,
    };
    KafkaMessage {
        topic: topic_id.and_then(TopicId::first_bits),
        partition: message.partition(),
        offset: message.offset(),
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers,
        timestamp,
    }
}
