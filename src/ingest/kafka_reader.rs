//! Reads a Kafka topic and submits its messages to the recorder in chunks per partition. The offset
//! of a chunk is stored after the recorder has committed the chunk.
//!
//! Backpressure: while too many messages are in flight, the reader does not poll. If that lasts
//! longer than `PAUSE_DELAY`, for example because the database is down, the reader pauses its
//! partitions and polls again, which keeps it in the consumer group. It does not pause earlier,
//! because pausing discards prefetched messages.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::next_stage::from_client;
use crate::kafka::header::{self, deprecated};
use crate::kafka::{Consumer, ConsumerEvent, KafkaMessage};
use crate::protocol::{InboundMessage, TopicScheme, Truncated};
use crate::record::{PartitionLease, QueuePosition, QueueTopic, Recorder, RecorderInput};
use crate::shutdown::TaskGroup;

/// Maximum number of messages that are submitted together.
const MAX_CHUNK_MESSAGES: usize = 500;
/// The reader stops polling at this number of messages in flight.
const MAX_IN_FLIGHT_MESSAGES: usize = 5_000;
/// After a stop, the reader polls again when the messages in flight have dropped to this number.
const RESUME_IN_FLIGHT_MESSAGES: usize = 2_500;
const ACQUIRE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the reader stops polling before it pauses its partitions.
const PAUSE_DELAY: Duration = Duration::from_secs(2);

/// Result of a chunk that was submitted to the recorder.
#[derive(Clone, Copy)]
struct ChunkOutcome {
    lease: PartitionLease,
    first_offset: i64,
    last_offset: i64,
    messages: usize,
    is_durable: bool,
}

/// Reads one Kafka topic for the recorder.
pub struct KafkaReader {
    topic: QueueTopic,
    consumer: Consumer,
    recorder: Recorder,
    topic_scheme: TopicScheme,
    /// Name of this process in the table of partition owners, for diagnosis.
    owner: String,
    /// Partitions that Kafka assigned to this process. The lease is `None` until it is acquired.
    assigned: BTreeMap<i32, Option<PartitionLease>>,
    /// Messages of partitions without a lease.
    awaiting_lease: Vec<KafkaMessage>,
    /// The running request for missing leases.
    acquiring: Option<BoxFuture<'static, Vec<PartitionLease>>>,
    in_flight: FuturesUnordered<BoxFuture<'static, ChunkOutcome>>,
    in_flight_messages: usize,
    /// Partition and first offset of each chunk in flight.
    chunk_starts: BTreeSet<(i32, i64)>,
    /// When the reader stopped polling because of backpressure.
    backpressure_since: Option<Instant>,
    is_paused: bool,
    is_stopping: bool,
    /// The highest durable offset of each partition.
    durable_offsets: HashMap<i32, i64>,
}

impl KafkaReader {
    /// Creates a reader. `consumer` must be subscribed to `topic`.
    #[must_use]
    pub fn new(
        topic: QueueTopic,
        consumer: Consumer,
        recorder: Recorder,
        topic_scheme: TopicScheme,
        owner: String,
    ) -> Self {
        Self {
            topic,
            consumer,
            recorder,
            topic_scheme,
            owner,
            assigned: BTreeMap::new(),
            awaiting_lease: Vec::new(),
            acquiring: None,
            in_flight: FuturesUnordered::new(),
            in_flight_messages: 0,
            chunk_starts: BTreeSet::new(),
            backpressure_since: None,
            is_paused: false,
            is_stopping: false,
            durable_offsets: HashMap::new(),
        }
    }

    /// Reads until `tasks` is cancelled, then waits for the chunks in flight and commits offsets.
    pub async fn run(mut self, tasks: TaskGroup) {
        loop {
            let is_polling = self.backpressure_since.is_none() || self.is_paused;
            let pause_at = self.backpressure_since.unwrap_or_else(Instant::now) + PAUSE_DELAY;
            tokio::select! {
                event = self.consumer.next(), if is_polling => self.on_event(event),
                () = sleep_until(pause_at), if !is_polling => self.pause(),
                Some(outcome) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    self.on_chunk_finished(outcome);
                }
                leases = wait_for(&mut self.acquiring) => self.on_acquired(leases),
                () = tasks.cancelled() => break,
            }
        }
        self.is_stopping = true;
        while let Some(outcome) = self.in_flight.next().await {
            self.on_chunk_finished(outcome);
        }
        let closing = tokio::task::spawn_blocking(move || self.consumer.close());
        let _ = closing.await;
    }

    /// Handles an event and all further events that are ready, so that chunks are large under load.
    fn on_event(&mut self, first: ConsumerEvent) {
        let mut by_partition: BTreeMap<i32, Vec<KafkaMessage>> = BTreeMap::new();
        let mut next = Some(first);
        let mut messages = 0;
        while let Some(event) = next.take() {
            match event {
                ConsumerEvent::Message(message) => {
                    messages += 1;
                    by_partition
                        .entry(message.partition)
                        .or_default()
                        .push(message);
                }
                other => {
                    self.submit_or_wait(std::mem::take(&mut by_partition));
                    self.on_rebalance_or_error(other);
                }
            }
            if messages < MAX_CHUNK_MESSAGES {
                next = self.consumer.next().now_or_never();
            }
        }
        self.submit_or_wait(by_partition);
    }

    fn on_rebalance_or_error(&mut self, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Assigned(partitions) => {
                tracing::info!(?partitions, "partitions assigned");
                self.discard_state(&partitions);
                // rdkafka keeps the paused state of a partition over a rebalance, and a newly
                // assigned partition is not paused. So the state is set for all of them.
                if self.is_paused {
                    self.consumer.pause(&partitions);
                } else {
                    self.consumer.resume(&partitions);
                }
                for partition in partitions {
                    self.assigned.insert(partition, None);
                }
                self.acquire_missing();
            }
            ConsumerEvent::Revoked(partitions) => {
                tracing::info!(?partitions, "partitions revoked");
                self.discard_state(&partitions);
                for partition in partitions {
                    self.assigned.remove(&partition);
                }
                self.acquire_missing();
            }
            ConsumerEvent::Error(error) => {
                tracing::debug!(error, "Kafka error");
            }
            ConsumerEvent::Message(_) => {}
        }
    }

    fn discard_state(&mut self, partitions: &[i32]) {
        self.awaiting_lease
            .retain(|message| !partitions.contains(&message.partition));
        for partition in partitions {
            self.durable_offsets.remove(partition);
        }
    }

    /// Starts to acquire leases for the partitions that have none, with retries. Replaces a request
    /// that is already running.
    fn acquire_missing(&mut self) {
        let missing: Vec<i32> = self
            .assigned
            .iter()
            .filter(|(_, lease)| lease.is_none())
            .map(|(partition, _)| *partition)
            .collect();
        if missing.is_empty() {
            self.acquiring = None;
            return;
        }
        let (recorder, owner) = (self.recorder.clone(), self.owner.clone());
        let topic = self.topic;
        let acquiring = async move {
            loop {
                match recorder.acquire_partitions(topic, &missing, &owner).await {
                    Ok(leases) => return leases,
                    Err(error) => {
                        tracing::warn!(%error, "failed to acquire partitions; retrying");
                        tokio::time::sleep(ACQUIRE_RETRY_INTERVAL).await;
                    }
                }
            }
        };
        self.acquiring = Some(acquiring.boxed());
    }

    fn on_acquired(&mut self, leases: Vec<PartitionLease>) {
        self.acquiring = None;
        for lease in leases {
            if let Some(assigned) = self.assigned.get_mut(&lease.partition) {
                *assigned = Some(lease);
            }
        }
        let mut by_partition: BTreeMap<i32, Vec<KafkaMessage>> = BTreeMap::new();
        for message in std::mem::take(&mut self.awaiting_lease) {
            by_partition
                .entry(message.partition)
                .or_default()
                .push(message);
        }
        self.submit_or_wait(by_partition);
    }

    /// Submits messages of partitions that have a lease. Keeps other messages in memory until the
    /// lease is acquired.
    fn submit_or_wait(&mut self, by_partition: BTreeMap<i32, Vec<KafkaMessage>>) {
        for (partition, mut messages) in by_partition {
            match self.assigned.get(&partition) {
                Some(Some(lease)) => {
                    let lease = *lease;
                    while !messages.is_empty() {
                        let rest = messages.split_off(messages.len().min(MAX_CHUNK_MESSAGES));
                        self.submit(lease, &messages);
                        messages = rest;
                    }
                }
                Some(None) => self.awaiting_lease.append(&mut messages),
                // The partition was revoked. Its new owner reads these messages.
                None => {}
            }
        }
        self.apply_backpressure();
    }

    /// Stops or resumes polling, depending on the number of messages in flight or without a lease.
    fn apply_backpressure(&mut self) {
        let messages = self.in_flight_messages + self.awaiting_lease.len();
        if self.backpressure_since.is_none() && messages >= MAX_IN_FLIGHT_MESSAGES {
            self.backpressure_since = Some(Instant::now());
        } else if self.backpressure_since.is_some() && messages <= RESUME_IN_FLIGHT_MESSAGES {
            self.backpressure_since = None;
            if std::mem::take(&mut self.is_paused) {
                self.consumer.resume(&self.assigned_partitions());
            }
        }
    }

    fn pause(&mut self) {
        self.is_paused = true;
        self.consumer.pause(&self.assigned_partitions());
    }

    fn assigned_partitions(&self) -> Vec<i32> {
        self.assigned.keys().copied().collect()
    }

    fn submit(&mut self, lease: PartitionLease, messages: &[KafkaMessage]) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
            return;
        };
        let (first_offset, last_offset) = (first.offset, last.offset);
        let inputs = messages
            .iter()
            .map(|message| to_input(self.topic, &self.topic_scheme, message))
            .collect();
        let messages = messages.len();
        let receipt = self.recorder.submit_partition(lease, inputs);
        self.in_flight_messages += messages;
        self.chunk_starts.insert((lease.partition, first_offset));
        let outcome = async move {
            ChunkOutcome {
                lease,
                first_offset,
                last_offset,
                messages,
                is_durable: receipt.durable().await.is_ok(),
            }
        };
        self.in_flight.push(outcome.boxed());
    }

    /// Stores the offset of a durable chunk. Rereads a chunk that was fenced although the partition
    /// is still assigned to this process.
    fn on_chunk_finished(&mut self, outcome: ChunkOutcome) {
        let ChunkOutcome {
            lease,
            first_offset,
            last_offset,
            messages,
            is_durable,
        } = outcome;
        let partition = lease.partition;
        self.in_flight_messages -= messages;
        // The recorder commits the chunks of a partition in order, but their outcomes can arrive
        // here in any order. So a reread starts at the earliest chunk in flight, and the stored
        // offset never decreases.
        let reread_from = self
            .chunk_starts
            .range((partition, i64::MIN)..)
            .next()
            .filter(|(chunk_partition, _)| *chunk_partition == partition)
            .map_or(first_offset, |(_, start)| first_offset.min(*start));
        self.chunk_starts.remove(&(partition, first_offset));
        let has_lease = self.assigned.get(&partition) == Some(&Some(lease));
        if is_durable && has_lease {
            let durable_offset = self.durable_offsets.entry(partition).or_insert(last_offset);
            *durable_offset = last_offset.max(*durable_offset);
            self.consumer.store_offset(partition, *durable_offset);
        } else if has_lease && !self.is_stopping {
            self.reacquire_and_rewind(partition, reread_from);
        }
        self.apply_backpressure();
    }

    /// Recovers from a lost lease of a partition that is still assigned to this process. The cause
    /// is an acquire request of a previous owner that reached the database late.
    fn reacquire_and_rewind(&mut self, partition: i32, offset: i64) {
        tracing::warn!(partition, "partition epoch lost; reacquiring");
        self.discard_state(&[partition]);
        self.assigned.insert(partition, None);
        self.consumer.seek(partition, offset);
        self.acquire_missing();
    }
}

/// Waits for the running request, or forever if there is none.
async fn wait_for(
    acquiring: &mut Option<BoxFuture<'static, Vec<PartitionLease>>>,
) -> Vec<PartitionLease> {
    match acquiring {
        Some(acquiring) => acquiring.await,
        None => std::future::pending().await,
    }
}

fn to_input(
    queue_topic: QueueTopic,
    topic_scheme: &TopicScheme,
    kafka_message: &KafkaMessage,
) -> RecorderInput {
    let header = |name| kafka_message.headers.get(name).map_or("", String::as_str);
    let renamed_header = |name, deprecated_name| match header(name) {
        "" => header(deprecated_name),
        value => value,
    };
    let received_at = header(header::RECEIVED_AT)
        .parse()
        .ok()
        .or(kafka_message.timestamp)
        .map(crate::domain::clock::truncate_to_micros)
        .unwrap_or_default();
    let size = renamed_header(header::TRUNCATED_FROM, deprecated::TRUNCATED_FROM);
    let sha256 = renamed_header(header::TRUNCATED_SHA256, deprecated::TRUNCATED_SHA256);
    let truncated = size.parse().ok().map(|size| Truncated {
        size,
        sha256: sha256.to_owned(),
    });
    let operator_replay = renamed_header(header::OPERATOR_REPLAY, deprecated::OPERATOR_REPLAY);
    let message = InboundMessage {
        topic: header(header::TOPIC).to_owned(),
        payload: kafka_message.payload.clone(),
        retained: header(header::RETAIN) == "true",
        operator_replay: operator_replay == "true",
        received_at,
        truncated,
    };
    let Some(topic) = from_client(topic_scheme, &message.topic) else {
        return RecorderInput::UnknownTopic { message };
    };
    match queue_topic {
        QueueTopic::Ingress => RecorderInput::Message {
            topic,
            message,
            position: Some(QueuePosition {
                partition: kafka_message.partition,
                offset: kafka_message.offset,
            }),
            unordered: false,
        },
        QueueTopic::Answers => RecorderInput::Message {
            topic,
            message,
            position: None,
            unordered: true,
        },
    }
}
