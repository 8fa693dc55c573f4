//! From the queue to the recorder: in chunks, fenced by partition, offsets stored after the commit.
//!
//! While too much is under way nothing is taken. If that lasts, as when the database is away,
//! partitions are paused and polling goes on, so that the group does not take us for dead. Not
//! sooner: pausing throws away what was read ahead.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::next_stage::from_client;
use crate::kafka::{Consumer, ConsumerEvent, QueuedMessage, header};
use crate::protocol::{InboundMessage, TopicScheme, Truncated};
use crate::record::{PartitionLease, QueuePosition, QueueTopic, Recorder, RecorderInput};
use crate::shutdown::TaskGroup;

/// Most messages of one partition that are handed over at once.
const CHUNK: usize = 500;
/// With this many messages under way no more are taken; with this few, again.
const UNDER_WAY_MOST: usize = 5_000;
const UNDER_WAY_FEW: usize = 2_500;
const TAKE_AGAIN: Duration = Duration::from_secs(1);
/// How long nothing is taken before partitions are paused.
const PAUSE_AFTER: Duration = Duration::from_secs(2);

/// What became of a chunk.
#[derive(Clone, Copy)]
struct Outcome {
    fence: PartitionLease,
    /// Its first and last offset.
    first: i64,
    last: i64,
    /// How many messages it was.
    count: usize,
    durable: bool,
}

/// Reads a queue for the recorder.
pub struct KafkaReader {
    queue: QueueTopic,
    consumer: Consumer,
    recorder: Recorder,
    topics: TopicScheme,
    /// This process, for people who look at the table of owners.
    owner: String,
    /// Partitions that are ours, and the right to write for them once we have it.
    assigned: BTreeMap<i32, Option<PartitionLease>>,
    /// Messages of partitions whose right we do not have yet.
    waiting: Vec<QueuedMessage>,
    taking: Option<BoxFuture<'static, Vec<PartitionLease>>>,
    under_way: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// Where the chunks under way begin, by partition.
    beginnings: BTreeSet<(i32, i64)>,
    /// Messages under way, since when they are too many, and whether partitions are paused for it.
    messages: usize,
    full_since: Option<Instant>,
    is_paused: bool,
    is_stopping: bool,
    /// The furthest offset that is durable, by partition.
    done: HashMap<i32, i64>,
}

impl KafkaReader {
    /// Reads with this consumer.
    #[must_use]
    pub fn new(
        queue: QueueTopic,
        consumer: Consumer,
        recorder: Recorder,
        topics: TopicScheme,
        owner: String,
    ) -> Self {
        Self {
            queue,
            consumer,
            recorder,
            topics,
            owner,
            assigned: BTreeMap::new(),
            waiting: Vec::new(),
            taking: None,
            under_way: FuturesUnordered::new(),
            beginnings: BTreeSet::new(),
            messages: 0,
            full_since: None,
            is_paused: false,
            is_stopping: false,
            done: HashMap::new(),
        }
    }

    /// Reads until `stopper` asks; then what is under way is finished and its offsets committed.
    pub async fn run(mut self, stopper: TaskGroup) {
        loop {
            let takes = self.full_since.is_none() || self.is_paused;
            let pause_at = self.full_since.unwrap_or_else(Instant::now) + PAUSE_AFTER;
            tokio::select! {
                happening = self.consumer.next(), if takes => self.on_event(happening),
                () = sleep_until(pause_at), if !takes => self.pause(),
                Some(outcome) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.finished(outcome);
                }
                fences = wait_for(&mut self.taking) => self.taken(fences),
                () = stopper.asked() => break,
            }
        }
        self.is_stopping = true;
        while let Some(outcome) = self.under_way.next().await {
            self.finished(outcome);
        }
        let leaving = tokio::task::spawn_blocking(move || self.consumer.leave());
        let _ = leaving.await;
    }

    fn on_event(&mut self, first: ConsumerEvent) {
        // What is there already is taken along: full batches in a storm.
        let mut gathered: BTreeMap<i32, Vec<QueuedMessage>> = BTreeMap::new();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(happening) = next.take() {
            match happening {
                ConsumerEvent::Message(message) => {
                    count += 1;
                    gathered.entry(message.partition).or_default().push(message);
                }
                change => {
                    self.hand_over(std::mem::take(&mut gathered));
                    self.changed(change);
                }
            }
            if count < CHUNK {
                next = self.consumer.next().now_or_never();
            }
        }
        self.hand_over(gathered);
    }

    fn changed(&mut self, change: ConsumerEvent) {
        match change {
            ConsumerEvent::Assigned(partitions) => {
                tracing::info!(?partitions, "partitions are ours");
                self.forget(&partitions);
                // The crate keeps a partition paused over a rebalance, and one that is new here is
                // not: each is set as all of ours are.
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
                tracing::info!(?partitions, "partitions are no longer ours");
                self.forget(&partitions);
                for partition in partitions {
                    self.assigned.remove(&partition);
                }
                self.acquire_missing();
            }
            ConsumerEvent::Error(error) => {
                tracing::debug!(error, "the queue is in trouble");
            }
            ConsumerEvent::Message(_) => {}
        }
    }

    fn forget(&mut self, partitions: &[i32]) {
        self.waiting
            .retain(|message| !partitions.contains(&message.partition));
        for partition in partitions {
            self.done.remove(partition);
        }
    }

    /// Raises the epoch of partitions that we have no right for yet, however long it takes.
    fn acquire_missing(&mut self) {
        let missing: Vec<i32> = self
            .assigned
            .iter()
            .filter(|(_, fence)| fence.is_none())
            .map(|(partition, _)| *partition)
            .collect();
        if missing.is_empty() {
            self.taking = None;
            return;
        }
        let (recorder, owner) = (self.recorder.clone(), self.owner.clone());
        let queue = self.queue;
        let taking = async move {
            loop {
                match recorder.acquire_partitions(queue, &missing, &owner).await {
                    Ok(fences) => return fences,
                    Err(error) => {
                        tracing::warn!(%error, "cannot take partitions over; trying again");
                        tokio::time::sleep(TAKE_AGAIN).await;
                    }
                }
            }
        };
        self.taking = Some(taking.boxed());
    }

    fn taken(&mut self, fences: Vec<PartitionLease>) {
        self.taking = None;
        for fence in fences {
            if let Some(place) = self.assigned.get_mut(&fence.partition) {
                *place = Some(fence);
            }
        }
        let mut gathered: BTreeMap<i32, Vec<QueuedMessage>> = BTreeMap::new();
        for message in std::mem::take(&mut self.waiting) {
            gathered.entry(message.partition).or_default().push(message);
        }
        self.hand_over(gathered);
    }

    fn hand_over(&mut self, gathered: BTreeMap<i32, Vec<QueuedMessage>>) {
        for (partition, mut messages) in gathered {
            match self.assigned.get(&partition) {
                Some(Some(fence)) => {
                    let fence = *fence;
                    while !messages.is_empty() {
                        let rest = messages.split_off(messages.len().min(CHUNK));
                        self.submit(fence, &messages);
                        messages = rest;
                    }
                }
                Some(None) => self.waiting.append(&mut messages),
                // Not ours any more: whoever owns it reads it.
                None => {}
            }
        }
        self.apply_backpressure();
    }

    /// Takes nothing more while too much is here, under way or waiting for its right.
    fn apply_backpressure(&mut self) {
        let here = self.messages + self.waiting.len();
        if self.full_since.is_none() && here >= UNDER_WAY_MOST {
            self.full_since = Some(Instant::now());
        } else if self.full_since.is_some() && here <= UNDER_WAY_FEW {
            self.full_since = None;
            if std::mem::take(&mut self.is_paused) {
                self.consumer.resume(&self.ours());
            }
        }
    }

    fn pause(&mut self) {
        self.is_paused = true;
        self.consumer.pause(&self.ours());
    }

    fn ours(&self) -> Vec<i32> {
        self.assigned.keys().copied().collect()
    }

    fn submit(&mut self, fence: PartitionLease, messages: &[QueuedMessage]) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
            return;
        };
        let count = messages.len();
        let events = messages
            .iter()
            .map(|message| event(self.queue, &self.topics, message))
            .collect();
        let (first, last) = (first.offset, last.offset);
        let receipt = self.recorder.submit_partition(fence, events);
        self.messages += count;
        self.beginnings.insert((fence.partition, first));
        let outcome = async move {
            Outcome {
                fence,
                first,
                last,
                count,
                durable: receipt.durable().await.is_ok(),
            }
        };
        self.under_way.push(outcome.boxed());
    }

    fn finished(&mut self, outcome: Outcome) {
        let Outcome {
            fence,
            first,
            last: offset,
            count,
            durable,
        } = outcome;
        self.messages -= count;
        // News of chunks may come out of order: the first of those under way is where to begin.
        let earliest = self.beginnings.range((fence.partition, i64::MIN)..).next();
        let earliest = earliest.filter(|(partition, _)| *partition == fence.partition);
        let earliest = earliest.map_or(first, |(_, earliest)| first.min(*earliest));
        self.beginnings.remove(&(fence.partition, first));
        let is_ours = self.assigned.get(&fence.partition) == Some(&Some(fence));
        if durable && is_ours {
            // Chunks of a partition are recorded in order; the news of it may come out of order.
            let done = self.done.entry(fence.partition).or_insert(offset);
            *done = offset.max(*done);
            self.consumer.done(fence.partition, *done);
        } else if is_ours && !self.is_stopping {
            self.reacquire_and_rewind(fence.partition, earliest);
        }
        self.apply_backpressure();
    }

    /// A chunk was fenced although the partition is ours: its epoch was raised behind our back, by a
    /// takeover of before that came late. The right is taken again, and the chunk read again.
    fn reacquire_and_rewind(&mut self, partition: i32, first: i64) {
        tracing::warn!(
            partition,
            "the right to a partition was lost; taking it again"
        );
        self.forget(&[partition]);
        self.assigned.insert(partition, None);
        self.consumer.seek(partition, first);
        self.acquire_missing();
    }
}

async fn wait_for(
    taking: &mut Option<BoxFuture<'static, Vec<PartitionLease>>>,
) -> Vec<PartitionLease> {
    match taking {
        Some(taking) => taking.await,
        None => std::future::pending().await,
    }
}

/// The event that a message is.
fn event(queue: QueueTopic, topics: &TopicScheme, message: &QueuedMessage) -> RecorderInput {
    let header = |name| message.headers.get(name).map_or("", String::as_str);
    let received = header(header::RECEIVED)
        .parse()
        .ok()
        .or(message.queued)
        .map(crate::domain::clock::truncate_to_micros)
        .unwrap_or_default();
    let cut = header(header::TRUNCATED_FROM)
        .parse()
        .ok()
        .map(|size| Truncated {
            size,
            sha256: header(header::TRUNCATED_SHA256).to_owned(),
        });
    let received = InboundMessage {
        topic: header(header::TOPIC).to_owned(),
        payload: message.payload.clone(),
        replayed: header(header::RETAIN) == "true",
        again: header(header::OPERATOR_REPLAY) == "true",
        received,
        cut,
    };
    let Some(topic) = from_client(topics, &received.topic) else {
        return RecorderInput::UnknownTopic { message: received };
    };
    match queue {
        QueueTopic::Ingress => RecorderInput::Message {
            topic,
            message: received,
            place: Some(QueuePosition {
                partition: message.partition,
                offset: message.offset,
            }),
            late: false,
        },
        QueueTopic::Answers => RecorderInput::Message {
            topic,
            message: received,
            place: None,
            late: true,
        },
    }
}
