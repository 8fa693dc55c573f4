//! Consumes a topic. The caller stores the offset of a message after it has written the message to
//! the database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance, StreamConsumer,
};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use rdkafka::{ClientContext, Statistics, Timestamp as KafkaTimestamp};
use tokio::sync::mpsc;

use super::KafkaSettings;
use super::client_config::{self, ErrorLogger, KafkaError};
use domain::Timestamp;

const SEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which librdkafka reports statistics. The statistics contain the consumer lag.
const STATISTICS_INTERVAL_MS: &str = "5000";

/// Maximum size of the prefetched messages. librdkafka sends the next fetch request while the
/// prefetched messages are smaller.
const MAX_PREFETCHED_KBYTES: &str = "4096";
/// Maximum size of a response to a fetch request. Kafka sends a larger response only if the first
/// message batch is larger.
///
/// The limit is low, because it applies to compressed messages, and LZ4 compresses repetitive
/// messages by a factor of up to 255. librdkafka decompresses a whole response at once.
const MAX_FETCH_BYTES: &str = "131072";
/// Memory that a consumer typically needs for prefetched messages: the prefetched messages and one
/// decompressed response.
pub const CONSUMER_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// Consumes one topic as a member of a consumer group.
pub struct Consumer {
    inner: Arc<StreamConsumer<ConsumerCallbacks>>,
    rebalances: mpsc::UnboundedReceiver<RebalanceEvent>,
    /// A message that was received but not returned yet. Rebalance events are returned first.
    buffered_message: Option<KafkaMessage>,
    topic: String,
}

/// A message read from Kafka.
#[derive(Debug, Clone)]
pub struct KafkaMessage {
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

/// A message, a rebalance or an error.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// A message was received.
    Message(KafkaMessage),
    /// These partitions were assigned to this consumer. The caller must discard unprocessed
    /// messages that it received from these partitions before this event.
    Assigned(Vec<i32>),
    /// These partitions were revoked from this consumer.
    Revoked(Vec<i32>),
    /// The consumer reported an error. It retries in the background.
    Error(String),
}

enum RebalanceEvent {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

/// Callbacks that librdkafka invokes for the consumer.
struct ConsumerCallbacks {
    rebalances: mpsc::UnboundedSender<RebalanceEvent>,
    /// Called with the number of unprocessed messages in the assigned partitions.
    report_lag: fn(i64),
}

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        ErrorLogger.log(level, facility, message);
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        ErrorLogger.error(error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        let partitions = statistics
            .topics
            .values()
            .flat_map(|topic| &topic.partitions);
        // A negative lag means that the lag is unknown, for example because the partition is not
        // assigned to this consumer.
        let lag = partitions.map(|(_, partition)| partition.consumer_lag_stored.max(0));
        (self.report_lag)(lag.sum());
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let event = RebalanceEvent::Revoked(partition_numbers(list));
            let _ = self.rebalances.send(event);
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            let event = RebalanceEvent::Assigned(partition_numbers(list));
            let _ = self.rebalances.send(event);
        }
    }
}

fn partition_numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements()
        .iter()
        .map(TopicPartitionListElem::partition)
        .collect()
}

impl Consumer {
    /// Creates a consumer and joins the consumer group. Connects in the background, and reconnects
    /// after each lost connection.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(
        kafka: &KafkaSettings,
        topic: &str,
        group: &str,
        report_lag: fn(i64),
    ) -> Result<Self, KafkaError> {
        let (sender, rebalances) = mpsc::unbounded_channel();
        let session_timeout = kafka.session_timeout.get();
        let inner: StreamConsumer<ConsumerCallbacks> = client_config::common_config(kafka)?
            .set("group.id", group)
            .set("statistics.interval.ms", STATISTICS_INTERVAL_MS)
            .set(
                "session.timeout.ms",
                session_timeout.as_millis().to_string(),
            )
            .set(
                "heartbeat.interval.ms",
                (session_timeout / 5).as_millis().to_string(),
            )
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "true")
            .set("auto.commit.interval.ms", "1000")
            .set("enable.auto.offset.store", "false")
            // The next five settings limit the memory for prefetched messages. librdkafka requires
            // `fetch.max.bytes` to be at least `message.max.bytes`, which has no other effect on a
            // consumer. A consumer can also read messages that are larger than these settings.
            .set("queued.min.messages", "2000")
            .set("queued.max.messages.kbytes", MAX_PREFETCHED_KBYTES)
            .set("message.max.bytes", MAX_FETCH_BYTES)
            .set("fetch.max.bytes", MAX_FETCH_BYTES)
            .set("fetch.message.max.bytes", MAX_FETCH_BYTES)
            // When the prefetch buffer of a partition is full, librdkafka waits this long before
            // the next fetch. With the default of one second, the buffer would often be empty
            // before the next fetch.
            .set("fetch.queue.backoff.ms", "10")
            .create_with_context(ConsumerCallbacks {
                rebalances: sender,
                report_lag,
            })
            .map_err(|error| client_config::rejected_settings_error(&error))?;
        inner
            .subscribe(&[topic])
            .map_err(|error| client_config::rejected_settings_error(&error))?;
        Ok(Self {
            inner: Arc::new(inner),
            rebalances,
            buffered_message: None,
            topic: topic.to_owned(),
        })
    }

    /// Waits for the next event. Returns a rebalance before the messages that followed the
    /// rebalance. This function is cancel safe: if the future is dropped, no event is discarded.
    pub async fn next(&mut self) -> ConsumerEvent {
        loop {
            if let Ok(event) = self.rebalances.try_recv() {
                return self.on_rebalance(event);
            }
            if let Some(message) = self.buffered_message.take() {
                return ConsumerEvent::Message(message);
            }
            tokio::select! {
                biased;
                received = self.inner.recv() => match received {
                    // The next iterations return rebalances that happened in the meantime, and then
                    // this message.
                    Ok(message) => self.buffered_message = Some(to_owned_message(&message)),
                    Err(error) => return ConsumerEvent::Error(error.to_string()),
                },
                Some(event) = self.rebalances.recv() => return self.on_rebalance(event),
            }
        }
    }

    fn on_rebalance(&mut self, event: RebalanceEvent) -> ConsumerEvent {
        match event {
            RebalanceEvent::Assigned(partitions) => ConsumerEvent::Assigned(partitions),
            RebalanceEvent::Revoked(partitions) => {
                self.buffered_message = None;
                ConsumerEvent::Revoked(partitions)
            }
        }
    }

    /// Marks all messages of the partition up to this offset as processed. librdkafka commits the
    /// offset in the background. Nothing is stored if the partition is not assigned to this
    /// consumer.
    pub fn store_offset(&self, partition: i32, offset: i64) {
        // `rdkafka` adds 1, because Kafka expects the offset of the next message to read.
        let _ = self.inner.store_offset(&self.topic, partition, offset);
    }

    /// Sets the offset of the next message to read from a partition.
    pub fn seek(&self, partition: i32, offset: i64) {
        let position = Offset::Offset(offset);
        if let Err(error) = self
            .inner
            .seek(&self.topic, partition, position, SEEK_TIMEOUT)
        {
            tracing::warn!(partition, offset, %error, "seek failed");
        }
    }

    /// Pauses fetching from these partitions. The partitions stay assigned to this consumer.
    pub fn pause(&self, partitions: &[i32]) {
        if let Err(error) = self.inner.pause(&self.partition_list(partitions)) {
            tracing::warn!(?partitions, %error, "failed to pause partitions");
        }
    }

    /// Resumes fetching from these partitions.
    pub fn resume(&self, partitions: &[i32]) {
        if let Err(error) = self.inner.resume(&self.partition_list(partitions)) {
            tracing::warn!(?partitions, %error, "failed to resume partitions");
        }
    }

    /// Returns a health check. Another task can run it while this consumer waits for events.
    #[must_use]
    pub fn health_check(&self) -> ConsumerHealthCheck {
        ConsumerHealthCheck {
            inner: self.inner.clone(),
            topic: self.topic.clone(),
        }
    }

    /// Commits the stored offsets and leaves the consumer group. Blocks the thread.
    pub fn close(self) {
        if let Err(error) = self.inner.commit_consumer_state(CommitMode::Sync) {
            tracing::debug!(%error, "no offsets committed at shutdown");
        }
        self.inner.unsubscribe();
    }

    fn partition_list(&self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            // `pause` and `resume` ignore the offset.
            let _ = list.add_partition_offset(&self.topic, *partition, Offset::Invalid);
        }
        list
    }
}

/// Checks whether the topic of a consumer can be read.
#[derive(Clone)]
pub struct ConsumerHealthCheck {
    inner: Arc<StreamConsumer<ConsumerCallbacks>>,
    topic: String,
}

impl ConsumerHealthCheck {
    /// Checks that the topic exists and each partition has a leader.
    ///
    /// # Errors
    /// When the topic cannot be read. The error contains the reason.
    pub async fn run(self) -> Result<(), String> {
        let check = tokio::task::spawn_blocking(move || {
            super::topics::check_topic(self.inner.client(), &self.topic)
        });
        check
            .await
            .unwrap_or_else(|_| Err("the health check failed to run".to_owned()))
    }
}

fn to_owned_message(message: &BorrowedMessage<'_>) -> KafkaMessage {
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
        partition: message.partition(),
        offset: message.offset(),
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers,
        timestamp,
    }
}
