//! A consumer of the simulated Kafka cluster. It has the same promises as `kafka::Consumer`: it
//! commits stored offsets once per second and before it gives partitions up, and it returns no message
//! before a seek has finished.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::check::CommitChecker;
use crate::kafka_cluster::{GroupEvent, KafkaCluster, MemberId, Record, RemovedFromGroup};
use crate::options::Plant;
use crate::process::Process;
use kafka::{ConsumerEvent, KafkaMessage};
use pipeline::ingest::queue_consumer::QueueConsumer;
use store::QueueTopic;

const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Topic id of the simulated topics.
const TOPIC_ID: i64 = 1;

/// The position of a consumer in an assigned partition.
struct Position {
    /// Offset of the next message.
    next: i64,
    /// Offset after the last processed message.
    processed: i64,
    committed: Option<i64>,
    is_paused: bool,
}

/// What must finish before the next message is returned.
enum Operation {
    Assign {
        generation: u64,
        partitions: Vec<i32>,
    },
    Unassign {
        offsets: BTreeMap<i32, i64>,
    },
    Seek(BTreeMap<i32, i64>),
}

/// A consumer of one topic.
pub struct SimulatedConsumer {
    topic: QueueTopic,
    cluster: Arc<KafkaCluster>,
    checker: Arc<CommitChecker>,
    process: Arc<Process>,
    plant: Option<Plant>,
    member: Option<MemberId>,
    generation: u64,
    /// `pause` and `resume` have no exclusive access.
    positions: Mutex<BTreeMap<i32, Position>>,
    operation: Option<(Instant, Operation)>,
    pending_seeks: BTreeMap<i32, i64>,
    next_commit_at: Instant,
}

impl SimulatedConsumer {
    pub fn new(
        topic: QueueTopic,
        cluster: Arc<KafkaCluster>,
        checker: Arc<CommitChecker>,
        process: Arc<Process>,
        plant: Option<Plant>,
    ) -> Self {
        Self {
            topic,
            cluster,
            checker,
            process,
            plant,
            member: None,
            generation: 0,
            positions: Mutex::default(),
            operation: None,
            pending_seeks: BTreeMap::new(),
            next_commit_at: Instant::now(),
        }
    }

    fn start(&mut self, operation: Operation) {
        let done_at = Instant::now() + self.process.world.network_delay();
        self.operation = Some((done_at, operation));
    }

    /// Completes the running operation. Returns the event that follows from it.
    fn finish(&mut self, operation: Operation) -> Option<ConsumerEvent> {
        match operation {
            Operation::Assign {
                generation,
                partitions,
            } => {
                self.generation = generation;
                let cluster = &self.cluster;
                let topic = self.topic;
                let positions = partitions.iter().map(|partition| {
                    let start = cluster.committed(topic, *partition);
                    let position = Position {
                        next: start,
                        processed: start,
                        committed: None,
                        is_paused: false,
                    };
                    (*partition, position)
                });
                *self.positions.lock() = positions.collect();
                self.next_commit_at = Instant::now();
                Some(ConsumerEvent::Assigned(partitions))
            }
            Operation::Unassign { offsets } => {
                self.commit(&offsets);
                if let Some(member) = self.member {
                    self.cluster.rejoin(self.topic, member);
                }
                None
            }
            Operation::Seek(seeks) => {
                let mut positions = self.positions.lock();
                for (partition, offset) in seeks {
                    if let Some(position) = positions.get_mut(&partition) {
                        position.next = offset;
                    }
                }
                None
            }
        }
    }

    fn offsets_to_commit(&self) -> BTreeMap<i32, i64> {
        let positions = self.positions.lock();
        let uncommitted = positions
            .iter()
            .filter(|(_, position)| position.committed != Some(position.processed));
        uncommitted
            .map(|(partition, position)| (*partition, position.processed))
            .collect()
    }

    fn commit(&self, offsets: &BTreeMap<i32, i64>) {
        let Some(member) = self.member else {
            return;
        };
        for (partition, offset) in offsets {
            let commit =
                self.cluster
                    .commit(self.topic, member, self.generation, *partition, *offset);
            if let Some(position) = self.positions.lock().get_mut(partition) {
                position.committed = Some(*offset);
            }
            if let Some(commit) = commit {
                self.checker.check(&self.cluster, commit);
            }
        }
    }

    /// Handles the next event of the group. Returns the event for the caller.
    fn next_group_event(&mut self) -> Option<ConsumerEvent> {
        let cluster = &self.cluster;
        let member = *self
            .member
            .get_or_insert_with(|| cluster.join(self.topic, &self.process));
        match self.cluster.next_event(self.topic, member) {
            Ok(None) => None,
            Ok(Some(GroupEvent::Revoked)) => {
                let offsets = self.offsets_to_commit();
                let event = self.discard_assignment();
                self.start(Operation::Unassign { offsets });
                event
            }
            Ok(Some(GroupEvent::Assigned {
                generation,
                partitions,
            })) => {
                self.start(Operation::Assign {
                    generation,
                    partitions,
                });
                None
            }
            // Another member has the partitions, so nothing can be committed.
            Err(RemovedFromGroup) => {
                self.member = Some(self.cluster.join(self.topic, &self.process));
                self.discard_assignment()
            }
        }
    }

    fn discard_assignment(&mut self) -> Option<ConsumerEvent> {
        self.pending_seeks.clear();
        let positions = std::mem::take(&mut *self.positions.lock());
        let partitions: Vec<i32> = positions.into_keys().collect();
        (!partitions.is_empty()).then_some(ConsumerEvent::Revoked(partitions))
    }

    /// Returns the next available message, or the time at which a message becomes available.
    fn next_message(&self) -> Result<KafkaMessage, Option<Instant>> {
        let mut available_at = None;
        let mut positions = self.positions.lock();
        for (partition, position) in positions.iter_mut() {
            if position.is_paused {
                continue;
            }
            match self.cluster.fetch(self.topic, *partition, position.next) {
                Some(Ok(record)) => {
                    let message = to_message(*partition, position.next, record);
                    position.next += 1;
                    if self.plant == Some(Plant::EarlyAck) {
                        position.processed = position.next;
                    }
                    return Ok(message);
                }
                Some(Err(time)) => {
                    available_at =
                        Some(available_at.map_or(time, |earlier: Instant| earlier.min(time)));
                }
                None => {}
            }
        }
        Err(available_at)
    }
}

fn to_message(partition: i32, offset: i64, record: Record) -> KafkaMessage {
    let headers: HashMap<String, String> = record
        .headers
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    KafkaMessage {
        topic: Some(TOPIC_ID),
        partition,
        offset,
        payload: record.payload,
        headers,
        timestamp: None,
    }
}

impl QueueConsumer for SimulatedConsumer {
    async fn next(&mut self) -> ConsumerEvent {
        loop {
            self.process.fault_point().await;
            if self.operation.is_none() && !self.pending_seeks.is_empty() {
                let seeks = std::mem::take(&mut self.pending_seeks);
                self.start(Operation::Seek(seeks));
            }
            if let Some((done_at, _)) = &self.operation {
                sleep_until(*done_at).await;
                if let Some((_, operation)) = self.operation.take()
                    && let Some(event) = self.finish(operation)
                {
                    return event;
                }
                continue;
            }
            let mut changes = self.process.world.changes();
            if let Some(event) = self.next_group_event() {
                return event;
            }
            if self.operation.is_some() {
                continue;
            }
            let offsets = self.offsets_to_commit();
            if !offsets.is_empty() && Instant::now() >= self.next_commit_at {
                self.next_commit_at = Instant::now() + COMMIT_INTERVAL;
                self.commit(&offsets);
                continue;
            }
            let available_at = match self.next_message() {
                Ok(message) => return ConsumerEvent::Message(message),
                Err(available_at) => available_at,
            };
            let commit_at = (!offsets.is_empty()).then_some(self.next_commit_at);
            let wake_at = available_at.into_iter().chain(commit_at).min();
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until_if(wake_at) => {}
            }
        }
    }

    fn store_offset(&mut self, partition: i32, offset: i64) {
        if let Some(position) = self.positions.lock().get_mut(&partition) {
            position.processed = position.processed.max(offset + 1);
        }
    }

    fn reread(&mut self, partition: i32, offset: i64) {
        self.process.world.count("rereads after a lost epoch");
        let pending = self.pending_seeks.entry(partition).or_insert(offset);
        *pending = offset.min(*pending);
    }

    fn pause(&self, partitions: &[i32]) {
        self.set_paused(partitions, true);
    }

    fn resume(&self, partitions: &[i32]) {
        self.set_paused(partitions, false);
    }

    async fn close(self) {
        self.process.fault_point().await;
        self.commit(&self.offsets_to_commit());
        if let Some(member) = self.member {
            self.cluster.leave(self.topic, member);
        }
    }
}

impl SimulatedConsumer {
    fn set_paused(&self, partitions: &[i32], is_paused: bool) {
        let mut positions = self.positions.lock();
        for partition in partitions {
            if let Some(position) = positions.get_mut(partition) {
                position.is_paused = is_paused;
            }
        }
    }
}

/// Waits until this time. Waits forever without a time.
async fn sleep_until_if(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
