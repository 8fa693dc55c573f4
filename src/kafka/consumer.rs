//! Taking messages from the queue. Offsets are stored by the caller, after the database has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use rdkafka::{ClientContext, Statistics, Timestamp as QueueTime};
use tokio::sync::mpsc;

use super::client_config::{self, ErrorLogger, KafkaError};
use crate::config::Kafka;
use crate::domain::Timestamp;

const SEEK_WITHIN: Duration = Duration::from_secs(1);

/// How often the crate tells how far behind we are.
const STATISTICS_MS: &str = "5000";

/// A consumer of one topic, in a group of all `record` processes.
pub struct Consumer {
    inner: Arc<StreamConsumer<Context>>,
    rebalances: mpsc::UnboundedReceiver<Change>,
    /// Taken from the crate before a change of partitions that must be told first was seen.
    held: Option<QueuedMessage>,
    topic: String,
}

/// A message of the queue.
#[derive(Debug, Clone)]
pub struct QueuedMessage {
    /// Where it stood.
    pub partition: i32,
    /// And at which place.
    pub offset: i64,
    /// Its bytes.
    pub payload: Bytes,
    /// What travelled with it.
    pub headers: HashMap<String, String>,
    /// When it was put there.
    pub queued: Option<Timestamp>,
}

/// Something that happened.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// A message came.
    Message(QueuedMessage),
    /// These partitions are ours from here on; messages of theirs that came before count no more.
    Assigned(Vec<i32>),
    /// These are no longer ours.
    Revoked(Vec<i32>),
    /// The cluster is in trouble; the crate goes on trying.
    Error(String),
}

enum Change {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

struct Context {
    changes: mpsc::UnboundedSender<Change>,
    /// Told how many messages wait in partitions that are ours.
    lag: fn(i64),
}

impl ClientContext for Context {
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
        // Below 0 where it is not known, as for partitions of others.
        let lag = partitions.map(|(_, partition)| partition.consumer_lag_stored.max(0));
        (self.lag)(lag.sum());
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let _ = self.changes.send(Change::Revoked(partitions(list)));
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            let _ = self.changes.send(Change::Assigned(partitions(list)));
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<i32> {
    list.elements()
        .iter()
        .map(TopicPartitionListElem::partition)
        .collect()
}

impl Consumer {
    /// Joins the group. Connects by itself, again and again.
    ///
    /// # Errors
    /// When a setting cannot work.
    pub fn new(kafka: &Kafka, topic: &str, group: &str, lag: fn(i64)) -> Result<Self, KafkaError> {
        let (changes, rebalances) = mpsc::unbounded_channel();
        let session = kafka.session_timeout.get();
        let inner: StreamConsumer<Context> = client_config::common(kafka)?
            .set("group.id", group)
            .set("statistics.interval.ms", STATISTICS_MS)
            .set("session.timeout.ms", session.as_millis().to_string())
            .set(
                "heartbeat.interval.ms",
                (session / 5).as_millis().to_string(),
            )
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "true")
            .set("auto.commit.interval.ms", "1000")
            .set("enable.auto.offset.store", "false")
            // What is read ahead is memory: a backlog stays in the queue.
            .set("queued.min.messages", "2000")
            .set("queued.max.messages.kbytes", "8192")
            .set("fetch.message.max.bytes", "2097152")
            // By default a partition with enough read ahead is not fetched from for a second,
            // however soon that is used up.
            .set("fetch.queue.backoff.ms", "10")
            .create_with_context(Context { changes, lag })
            .map_err(|error| client_config::unusable(&error))?;
        inner
            .subscribe(&[topic])
            .map_err(|error| client_config::unusable(&error))?;
        Ok(Self {
            inner: Arc::new(inner),
            rebalances,
            held: None,
            topic: topic.to_owned(),
        })
    }

    /// Waits for the next thing to happen. A change of partitions is told before any message that
    /// came after it. May be dropped and called again: nothing is lost.
    pub async fn next(&mut self) -> ConsumerEvent {
        loop {
            if let Ok(change) = self.rebalances.try_recv() {
                return self.changed(change);
            }
            if let Some(message) = self.held.take() {
                return ConsumerEvent::Message(message);
            }
            tokio::select! {
                biased;
                received = self.inner.recv() => match received {
                    // Looked at again above, after the changes that came with it.
                    Ok(message) => self.held = Some(owned(&message)),
                    Err(error) => return ConsumerEvent::Error(error.to_string()),
                },
                Some(change) = self.rebalances.recv() => return self.changed(change),
            }
        }
    }

    fn changed(&mut self, change: Change) -> ConsumerEvent {
        match change {
            Change::Assigned(partitions) => ConsumerEvent::Assigned(partitions),
            Change::Revoked(partitions) => {
                self.held = None;
                ConsumerEvent::Revoked(partitions)
            }
        }
    }

    /// Takes note that everything up to this message is dealt with; committed to the group in the
    /// background. For a partition that is no longer ours it does nothing.
    pub fn done(&self, partition: i32, offset: i64) {
        // The crate stores offset + 1 here: the next one to read.
        let _ = self.inner.store_offset(&self.topic, partition, offset);
    }

    /// Reads a partition again from this message on.
    pub fn seek(&self, partition: i32, offset: i64) {
        let to = Offset::Offset(offset);
        if let Err(error) = self.inner.seek(&self.topic, partition, to, SEEK_WITHIN) {
            tracing::warn!(partition, %error, "cannot read a partition again");
        }
    }

    /// Stops taking messages of these partitions, and stays in the group.
    pub fn pause(&self, partitions: &[i32]) {
        if let Err(error) = self.inner.pause(&self.list(partitions)) {
            tracing::warn!(%error, "cannot pause partitions");
        }
    }

    /// Takes messages of these partitions again.
    pub fn resume(&self, partitions: &[i32]) {
        if let Err(error) = self.inner.resume(&self.list(partitions)) {
            tracing::warn!(%error, "cannot resume partitions");
        }
    }

    /// Asks whether the topic can be read, from anywhere and at any time.
    #[must_use]
    pub fn checker(&self) -> Checker {
        Checker {
            inner: self.inner.clone(),
            topic: self.topic.clone(),
        }
    }

    /// Commits what is done, and leaves the group.
    pub fn leave(self) {
        if let Err(error) = self
            .inner
            .commit_consumer_state(rdkafka::consumer::CommitMode::Sync)
        {
            tracing::debug!(%error, "nothing to commit at the end");
        }
        self.inner.unsubscribe();
    }

    fn list(&self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            // The offset plays no part in pausing.
            let _ = list.add_partition_offset(&self.topic, *partition, Offset::Invalid);
        }
        list
    }
}

/// Knows whether the topic can be read.
#[derive(Clone)]
pub struct Checker {
    inner: Arc<StreamConsumer<Context>>,
    topic: String,
}

impl Checker {
    /// Whether the topic can be read now.
    ///
    /// # Errors
    /// When it cannot, with why.
    pub async fn check(self) -> Result<(), String> {
        let asked = tokio::task::spawn_blocking(move || {
            super::topics::check(self.inner.client(), &self.topic)
        });
        asked.await.unwrap_or_else(|_| Err("not asked".to_owned()))
    }
}

fn owned(message: &rdkafka::message::BorrowedMessage<'_>) -> QueuedMessage {
    let mut headers = HashMap::new();
    if let Some(found) = message.headers() {
        for header in found.iter() {
            if let Some(value) = header.value {
                let value = String::from_utf8_lossy(value).into_owned();
                headers.insert(header.key.to_owned(), value);
            }
        }
    }
    let queued = match message.timestamp() {
        QueueTime::CreateTime(millis) | QueueTime::LogAppendTime(millis) => {
            Timestamp::from_millisecond(millis).ok()
        }
        QueueTime::NotAvailable => None,
    };
    QueuedMessage {
        partition: message.partition(),
        offset: message.offset(),
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers,
        queued,
    }
}
