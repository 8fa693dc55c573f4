//! Reads a Kafka topic and submits its messages to the recorder in chunks per partition. The offset
//! of a chunk is stored after the recorder has committed the chunk.
//!
//! Backpressure: while too many messages or bytes are in flight, the reader does not poll. If polling stops
//! for longer than `MAX_TIME_WITHOUT_POLL`, for example because the database is down, the reader
//! pauses its partitions and polls again. Polling keeps the reader in the consumer group. The
//! reader does not pause partitions earlier, because pausing discards prefetched messages.
//!
//! The reader of the slow topic has low limits, so that the clients that are over their budget have a
//! small share of the database. It waits for the ingress topic where the order of a client's messages
//! requires it (`ingress_barrier`).

mod ingress_barrier;
mod limits;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

pub use self::ingress_barrier::IngressBarrier;
use self::limits::ReaderLimits;
use super::forward::parse_topic_from_client;
use super::queue_consumer::QueueConsumer;
use crate::record::{
    PartitionLease, PreparedInput, QueuePosition, QueueTopic, Recorder, RecorderInput,
};
use kafka::header::{self, deprecated};
use kafka::{CONSUMER_BUFFER_BYTES, Consumer, ConsumerEvent, KafkaMessage};
use protocol::{InboundMessage, OriginalPayload, TopicScheme};
use service::{ByteReservation, TaskGroup};

const LEASE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// If backpressure stops polling for this time, the reader pauses its partitions and polls again.
const MAX_TIME_WITHOUT_POLL: Duration = Duration::from_secs(2);

/// Result of a chunk that was submitted to the recorder.
#[derive(Clone, Copy)]
struct ChunkOutcome {
    lease: PartitionLease,
    first_offset: i64,
    last_offset: i64,
    message_count: usize,
    byte_count: usize,
    is_durable: bool,
}

/// A message that is not submitted yet, without the parts that the recorder does not need.
struct PreparedMessage {
    partition: i32,
    offset: i64,
    input: PreparedInput,
    /// Whether the message must be recorded after the messages of the ingress topic.
    after_ingress: bool,
}

/// Reads one Kafka topic for the recorder.
pub struct KafkaReader<C = Consumer> {
    queue_topic: QueueTopic,
    limits: ReaderLimits,
    /// `None` if the reader does not wait for the ingress topic.
    ingress_barrier: Option<IngressBarrier>,
    consumer: C,
    recorder: Recorder,
    topic_scheme: TopicScheme,
    /// Name of this process in the database table of partition owners. Used only for diagnosis.
    owner_name: String,
    /// The partitions that Kafka assigned to this process, each with its lease. The lease is `None`
    /// until the lease is acquired.
    partition_leases: BTreeMap<i32, Option<PartitionLease>>,
    /// Messages of assigned partitions whose lease is not acquired yet.
    messages_awaiting_lease: Vec<PreparedMessage>,
    /// The running request for missing leases. `None` if no request is running.
    acquire_request: Option<BoxFuture<'static, Vec<PartitionLease>>>,
    chunks_in_flight: FuturesUnordered<BoxFuture<'static, ChunkOutcome>>,
    in_flight_messages: usize,
    in_flight_bytes: usize,
    /// Partition and first offset of each chunk in flight that was submitted with the partition's
    /// current lease.
    chunk_starts: BTreeSet<(i32, i64)>,
    /// Time at which the reader stopped polling because of backpressure. `None` if no backpressure
    /// is active.
    backpressure_since: Option<Instant>,
    /// Whether the assigned partitions are paused.
    is_paused: bool,
    is_stopping: bool,
    /// The highest durable offset of each partition.
    durable_offsets: HashMap<i32, i64>,
    /// Reserves the memory of the messages that the consumer prefetches.
    _consumer_buffer: ByteReservation,
}

impl<C: QueueConsumer> KafkaReader<C> {
    /// Creates a reader. `consumer` must be subscribed to `queue_topic`.
    #[must_use]
    pub fn new(
        queue_topic: QueueTopic,
        consumer: C,
        recorder: Recorder,
        topic_scheme: TopicScheme,
        owner_name: String,
    ) -> Self {
        Self {
            _consumer_buffer: recorder.message_budget().reserve(CONSUMER_BUFFER_BYTES),
            limits: ReaderLimits::new(queue_topic),
            ingress_barrier: None,
            queue_topic,
            consumer,
            recorder,
            topic_scheme,
            owner_name,
            partition_leases: BTreeMap::new(),
            messages_awaiting_lease: Vec::new(),
            acquire_request: None,
            chunks_in_flight: FuturesUnordered::new(),
            in_flight_messages: 0,
            in_flight_bytes: 0,
            chunk_starts: BTreeSet::new(),
            backpressure_since: None,
            is_paused: false,
            is_stopping: false,
            durable_offsets: HashMap::new(),
        }
    }

    /// Makes the reader wait for the ingress topic where the order of messages requires it.
    #[must_use]
    pub fn with_ingress_barrier(mut self, ingress_barrier: IngressBarrier) -> Self {
        self.ingress_barrier = Some(ingress_barrier);
        self
    }

    /// Reads until `tasks` is cancelled, then waits for the chunks in flight and commits offsets.
    pub async fn run(mut self, tasks: TaskGroup) {
        loop {
            let is_polling = self.backpressure_since.is_none() || self.is_paused;
            let pause_at =
                self.backpressure_since.unwrap_or_else(Instant::now) + MAX_TIME_WITHOUT_POLL;
            tokio::select! {
                event = self.consumer.next(), if is_polling => self.on_event(event),
                () = sleep_until(pause_at), if !is_polling => self.pause_partitions(),
                Some(outcome) = self.chunks_in_flight.next(),
                    if !self.chunks_in_flight.is_empty() =>
                {
                    self.on_chunk_finished(outcome);
                }
                leases = wait_for_leases(&mut self.acquire_request) => {
                    self.on_leases_acquired(leases);
                }
                progress = ingress_barrier::next_check(&mut self.ingress_barrier) => {
                    self.on_ingress_checked(progress);
                }
                () = tasks.cancelled() => break,
            }
        }
        self.is_stopping = true;
        while let Some(outcome) = self.chunks_in_flight.next().await {
            self.on_chunk_finished(outcome);
        }
        self.consumer.close().await;
    }

    /// Handles an event and all further events that are already available. Chunks are therefore
    /// large under high load.
    fn on_event(&mut self, first_event: ConsumerEvent) {
        let mut messages_by_partition: BTreeMap<i32, Vec<PreparedMessage>> = BTreeMap::new();
        let mut next_event = Some(first_event);
        let (mut messages, mut payload_bytes) = (0, 0);
        while let Some(event) = next_event.take() {
            match event {
                ConsumerEvent::Message(message) => {
                    messages += 1;
                    payload_bytes += message.payload.len();
                    messages_by_partition
                        .entry(message.partition)
                        .or_default()
                        .push(self.prepare(&message));
                }
                other => {
                    self.on_messages(std::mem::take(&mut messages_by_partition));
                    self.on_rebalance(other);
                }
            }
            if messages < self.limits.max_chunk_messages
                && payload_bytes < self.limits.max_chunk_bytes
            {
                next_event = self.consumer.next().now_or_never();
            }
        }
        self.on_messages(messages_by_partition);
    }

    /// Submits messages, or keeps them until the ingress topic is processed.
    fn on_messages(&mut self, messages_by_partition: BTreeMap<i32, Vec<PreparedMessage>>) {
        match &mut self.ingress_barrier {
            Some(barrier) if barrier.must_keep(&messages_by_partition) => {
                barrier.keep(messages_by_partition);
                self.apply_backpressure();
            }
            _ => self.submit_or_keep_messages(messages_by_partition),
        }
    }

    fn on_ingress_checked(&mut self, progress: ingress_barrier::CheckResult) {
        let Some(barrier) = &mut self.ingress_barrier else {
            return;
        };
        if progress.is_ok() {
            // The messages wait for the ingress topic, whose own reader reports a problem.
            self.consumer.reset_stall_timer();
        }
        let released_messages = barrier.on_checked(progress);
        self.submit_or_keep_messages(group_by_partition(released_messages));
    }

    fn on_rebalance(&mut self, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Assigned(partitions) => {
                tracing::info!(?partitions, "partitions assigned");
                self.discard_partition_state(&partitions);
                // rdkafka keeps the paused state of a partition during a rebalance, but a newly
                // assigned partition is not paused. So the state is set for all partitions.
                if self.is_paused {
                    self.consumer.pause(&partitions);
                } else {
                    self.consumer.resume(&partitions);
                }
                for partition in partitions {
                    self.partition_leases.insert(partition, None);
                }
                self.acquire_missing_leases();
            }
            ConsumerEvent::Revoked(partitions) => {
                tracing::info!(?partitions, "partitions revoked");
                self.discard_partition_state(&partitions);
                for partition in partitions {
                    self.partition_leases.remove(&partition);
                }
                self.acquire_missing_leases();
            }
            ConsumerEvent::Message(_) => {}
        }
    }

    fn discard_partition_state(&mut self, partitions: &[i32]) {
        self.messages_awaiting_lease
            .retain(|message| !partitions.contains(&message.partition));
        if let Some(barrier) = &mut self.ingress_barrier {
            barrier.discard_messages(partitions);
        }
        // The chunks in flight keep their old lease, so their outcomes are ignored.
        self.chunk_starts
            .retain(|(partition, _)| !partitions.contains(partition));
        for partition in partitions {
            self.durable_offsets.remove(partition);
        }
    }

    /// Starts a request for the leases of all assigned partitions without a lease. The request
    /// retries until it succeeds. The new request replaces a running request.
    fn acquire_missing_leases(&mut self) {
        let partitions_without_lease: Vec<i32> = self
            .partition_leases
            .iter()
            .filter(|(_, lease)| lease.is_none())
            .map(|(partition, _)| *partition)
            .collect();
        if partitions_without_lease.is_empty() {
            self.acquire_request = None;
            return;
        }
        let (recorder, owner_name) = (self.recorder.clone(), self.owner_name.clone());
        let topic = self.queue_topic;
        let acquire_request = async move {
            loop {
                match recorder
                    .acquire_partitions(topic, &partitions_without_lease, &owner_name)
                    .await
                {
                    Ok(leases) => return leases,
                    Err(error) => {
                        tracing::warn!(%error, "failed to acquire partitions; retrying");
                        tokio::time::sleep(LEASE_RETRY_INTERVAL).await;
                    }
                }
            }
        };
        self.acquire_request = Some(acquire_request.boxed());
    }

    fn on_leases_acquired(&mut self, leases: Vec<PartitionLease>) {
        self.acquire_request = None;
        for lease in leases {
            if let Some(assigned) = self.partition_leases.get_mut(&lease.partition) {
                *assigned = Some(lease);
            }
        }
        let messages = std::mem::take(&mut self.messages_awaiting_lease);
        self.submit_or_keep_messages(group_by_partition(messages));
    }

    /// Submits the messages of partitions that have a lease. Keeps the messages of other assigned
    /// partitions in memory until the lease is acquired.
    fn submit_or_keep_messages(
        &mut self,
        messages_by_partition: BTreeMap<i32, Vec<PreparedMessage>>,
    ) {
        for (partition, mut messages) in messages_by_partition {
            match self.partition_leases.get(&partition) {
                Some(Some(lease)) => {
                    let lease = *lease;
                    while !messages.is_empty() {
                        let length = chunk_length(&messages, &self.limits);
                        let remaining_messages = messages.split_off(length);
                        self.submit_chunk(lease, messages);
                        messages = remaining_messages;
                    }
                }
                Some(None) => self.messages_awaiting_lease.append(&mut messages),
                // The partition was revoked. The partition's new owner reads these messages.
                None => {}
            }
        }
        self.apply_backpressure();
    }

    /// Stops or resumes polling, depending on the messages that are in flight, wait for a lease, or
    /// wait for the ingress topic.
    fn apply_backpressure(&mut self) {
        let messages = self.in_flight_messages + self.messages_awaiting_lease.len();
        let waiting_bytes = self.messages_awaiting_lease.iter().map(size_bytes);
        let bytes = self.in_flight_bytes + waiting_bytes.sum::<usize>();
        let waits_for_ingress = self
            .ingress_barrier
            .as_ref()
            .is_some_and(IngressBarrier::is_waiting);
        let budget = self.recorder.message_budget();
        let is_full = waits_for_ingress || self.limits.is_full(messages, bytes, budget);
        let has_capacity = !waits_for_ingress && self.limits.has_capacity(messages, bytes, budget);
        if self.backpressure_since.is_none() && is_full {
            self.backpressure_since = Some(Instant::now());
        } else if self.backpressure_since.is_some() && has_capacity {
            self.backpressure_since = None;
            if std::mem::take(&mut self.is_paused) {
                self.consumer.resume(&self.assigned_partitions());
            }
        }
    }

    fn prepare(&self, message: &KafkaMessage) -> PreparedMessage {
        let input = to_recorder_input(self.queue_topic, &self.topic_scheme, message);
        PreparedMessage {
            partition: message.partition,
            offset: message.offset,
            input: self.recorder.prepare(input),
            after_ingress: message
                .headers
                .get(header::AFTER_INGRESS)
                .is_some_and(|value| value == "true"),
        }
    }

    fn pause_partitions(&mut self) {
        self.is_paused = true;
        self.consumer.pause(&self.assigned_partitions());
    }

    fn assigned_partitions(&self) -> Vec<i32> {
        self.partition_leases.keys().copied().collect()
    }

    fn submit_chunk(&mut self, lease: PartitionLease, messages: Vec<PreparedMessage>) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
            return;
        };
        let (first_offset, last_offset) = (first.offset, last.offset);
        let message_count = messages.len();
        let byte_count = messages.iter().map(size_bytes).sum();
        let inputs = messages.into_iter().map(|message| message.input).collect();
        let receipt = self.recorder.submit_from_partition(lease, inputs);
        self.in_flight_messages += message_count;
        self.in_flight_bytes += byte_count;
        self.chunk_starts.insert((lease.partition, first_offset));
        let pauses = self.limits.pauses_after_chunks;
        let outcome = async move {
            ChunkOutcome {
                lease,
                first_offset,
                last_offset,
                message_count,
                byte_count,
                is_durable: limits::run_with_pause(pauses, receipt.wait_until_durable())
                    .await
                    .is_ok(),
            }
        };
        self.chunks_in_flight.push(outcome.boxed());
    }

    /// Stores the offset of a durable chunk. If a chunk was fenced although the partition is still
    /// assigned to this process, acquires the lease again and rereads the chunk.
    fn on_chunk_finished(&mut self, outcome: ChunkOutcome) {
        let ChunkOutcome {
            lease,
            first_offset,
            last_offset,
            message_count,
            byte_count,
            is_durable,
        } = outcome;
        let partition = lease.partition;
        self.in_flight_messages -= message_count;
        self.in_flight_bytes -= byte_count;
        // The recorder commits the chunks of a partition in order, but the outcomes of the chunks
        // can arrive here in any order. So a reread starts at the earliest chunk in flight, and the
        // stored offset never decreases.
        let reread_from = self
            .chunk_starts
            .range((partition, i64::MIN)..)
            .next()
            .filter(|(chunk_partition, _)| *chunk_partition == partition)
            .map_or(first_offset, |(_, start)| first_offset.min(*start));
        let has_lease = self.partition_leases.get(&partition) == Some(&Some(lease));
        if has_lease {
            self.chunk_starts.remove(&(partition, first_offset));
        }
        if is_durable && has_lease {
            let durable_offset = self.durable_offsets.entry(partition).or_insert(last_offset);
            *durable_offset = last_offset.max(*durable_offset);
            self.consumer.store_offset(partition, *durable_offset);
        } else if has_lease && !self.is_stopping {
            self.reacquire_lease_and_reread(partition, reread_from);
        }
        self.apply_backpressure();
    }

    /// Acquires the lease of an assigned partition again and rereads the partition from `offset`.
    ///
    /// This is necessary if a request of the previous owner reached the database late. The previous
    /// owner then acquired the lease after this process.
    fn reacquire_lease_and_reread(&mut self, partition: i32, offset: i64) {
        tracing::warn!(partition, "partition epoch lost; reacquiring");
        self.discard_partition_state(&[partition]);
        self.partition_leases.insert(partition, None);
        self.consumer.reread(partition, offset);
        self.acquire_missing_leases();
    }
}

fn size_bytes(message: &PreparedMessage) -> usize {
    message.input.size_bytes()
}

fn group_by_partition(messages: Vec<PreparedMessage>) -> BTreeMap<i32, Vec<PreparedMessage>> {
    let mut messages_by_partition: BTreeMap<i32, Vec<PreparedMessage>> = BTreeMap::new();
    for message in messages {
        messages_by_partition
            .entry(message.partition)
            .or_default()
            .push(message);
    }
    messages_by_partition
}

/// Returns the number of messages in the next chunk: at least one message.
fn chunk_length(messages: &[PreparedMessage], limits: &ReaderLimits) -> usize {
    let mut bytes = 0;
    let fitting = messages.iter().take_while(|message| {
        bytes += size_bytes(message);
        bytes <= limits.max_chunk_bytes
    });
    fitting.count().clamp(1, limits.max_chunk_messages)
}

/// Waits for the running request for leases. Waits forever if no request is running.
async fn wait_for_leases(
    acquire_request: &mut Option<BoxFuture<'static, Vec<PartitionLease>>>,
) -> Vec<PartitionLease> {
    match acquire_request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

fn to_recorder_input(
    queue_topic: QueueTopic,
    topic_scheme: &TopicScheme,
    kafka_message: &KafkaMessage,
) -> RecorderInput {
    let header_value = |name| kafka_message.headers.get(name).map_or("", String::as_str);
    let header_value_or_deprecated = |name, deprecated_name| match header_value(name) {
        "" => header_value(deprecated_name),
        value => value,
    };
    let received_at = header_value(header::RECEIVED_AT)
        .parse()
        .ok()
        .or(kafka_message.timestamp)
        .map(domain::clock::truncate_to_micros)
        .unwrap_or_default();
    let original_size = header_value_or_deprecated(header::TRUNCATED_FROM, deprecated::CUT_FROM);
    let original_sha256 =
        header_value_or_deprecated(header::TRUNCATED_SHA256, deprecated::CUT_SHA256);
    let truncated_from = original_size
        .parse()
        .ok()
        .map(|size_bytes| OriginalPayload {
            size_bytes,
            sha256: original_sha256.to_owned(),
        });
    let operator_replay_header =
        header_value_or_deprecated(header::OPERATOR_REPLAY, deprecated::AGAIN);
    let message = InboundMessage {
        topic: header_value(header::TOPIC).to_owned(),
        payload: kafka_message.payload.clone(),
        retained: header_value(header::RETAIN) == "true",
        is_operator_replay: operator_replay_header == "true",
        is_last_will: None,
        is_takeover: false,
        received_at,
        ingest_stamp: header_value(header::INGEST_STAMP).parse().ok(),
        truncated_from,
    };
    let Some(topic) = parse_topic_from_client(topic_scheme, &message.topic) else {
        return RecorderInput::UnknownTopic { message };
    };
    // The slow topic has the messages of both other topics.
    let from_answers_topic = match queue_topic {
        QueueTopic::Ingress => false,
        QueueTopic::Answers => true,
        QueueTopic::Slow => protocol::is_response_or_heartbeat(topic.channel, &message.payload),
    };
    let position = QueuePosition {
        topic: kafka_message.topic,
        partition: kafka_message.partition,
        offset: kafka_message.offset,
    };
    RecorderInput::Message {
        topic,
        message,
        position: (!from_answers_topic).then_some(position),
        from_answers_topic,
    }
}
