//! From the queue to the recorder: in chunks, fenced by partition, offsets stored after the commit.
//!
//! While too much is under way, or the database is away, partitions are paused and polling goes on,
//! so that the group does not take us for dead.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};

use crate::kafka::{Consumer, Happening, QueuedMessage, header};
use crate::protocol::{Direction, Received, Rejected, Topics};
use crate::record::{Event, Fence, Recorder};
use crate::shutdown::Stopper;
use crate::telemetry::metrics;

/// Most messages of one partition that are handed over at once.
const CHUNK: usize = 500;
/// With this many messages under way no more are taken; with this few, again.
const UNDER_WAY_MOST: usize = 5_000;
const UNDER_WAY_FEW: usize = 2_500;
const TAKE_AGAIN: Duration = Duration::from_secs(1);

/// What became of a chunk.
#[derive(Clone, Copy)]
struct Outcome {
    fence: Fence,
    /// Its first and last offset.
    first: i64,
    last: i64,
    /// How many messages it was.
    count: usize,
    durable: bool,
}

/// Reads the queue for the recorder.
pub struct QueueReader {
    consumer: Consumer,
    recorder: Recorder,
    topics: Topics,
    /// This process, for people who look at the table of owners.
    owner: String,
    /// Partitions that are ours, and the right to write for them once we have it.
    assigned: BTreeMap<i32, Option<Fence>>,
    /// Messages of partitions whose right we do not have yet.
    waiting: Vec<QueuedMessage>,
    taking: Option<BoxFuture<'static, Vec<Fence>>>,
    under_way: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// Messages under way, and whether partitions are paused for their number.
    messages: usize,
    is_paused: bool,
    is_stopping: bool,
    /// The furthest offset that is durable, by partition.
    done: HashMap<i32, i64>,
}

impl QueueReader {
    /// Reads with this consumer.
    #[must_use]
    pub fn new(consumer: Consumer, recorder: Recorder, topics: Topics, owner: String) -> Self {
        Self {
            consumer,
            recorder,
            topics,
            owner,
            assigned: BTreeMap::new(),
            waiting: Vec::new(),
            taking: None,
            under_way: FuturesUnordered::new(),
            messages: 0,
            is_paused: false,
            is_stopping: false,
            done: HashMap::new(),
        }
    }

    /// Reads until `stopper` asks; then what is under way is finished and its offsets committed.
    pub async fn run(mut self, stopper: Stopper) {
        loop {
            tokio::select! {
                happening = self.consumer.next() => self.happened(happening),
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

    fn happened(&mut self, first: Happening) {
        // What is there already is taken along: full batches in a storm.
        let mut gathered: BTreeMap<i32, Vec<QueuedMessage>> = BTreeMap::new();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(happening) = next.take() {
            match happening {
                Happening::Message(message) => {
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

    fn changed(&mut self, change: Happening) {
        match change {
            Happening::Assigned(partitions) => {
                tracing::info!(?partitions, "partitions are ours");
                self.forget(&partitions);
                for partition in partitions {
                    self.assigned.insert(partition, None);
                }
                self.take_missing();
            }
            Happening::Revoked(partitions) => {
                tracing::info!(?partitions, "partitions are no longer ours");
                self.forget(&partitions);
                for partition in partitions {
                    self.assigned.remove(&partition);
                }
                self.take_missing();
            }
            Happening::Trouble(error) => {
                tracing::debug!(error, "the queue is in trouble");
            }
            Happening::Message(_) => {}
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
    fn take_missing(&mut self) {
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
        let taking = async move {
            loop {
                match recorder.take_partitions(&missing, &owner).await {
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

    fn taken(&mut self, fences: Vec<Fence>) {
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
        self.mind_the_load();
    }

    /// Pauses everything while too much is here, under way or waiting for its right.
    fn mind_the_load(&mut self) {
        let here = self.messages + self.waiting.len();
        let ours: Vec<i32> = self.assigned.keys().copied().collect();
        if !self.is_paused && here >= UNDER_WAY_MOST {
            self.is_paused = true;
            self.consumer.pause(&ours);
        } else if self.is_paused && here <= UNDER_WAY_FEW {
            self.is_paused = false;
            self.consumer.resume(&ours);
        }
    }

    fn submit(&mut self, fence: Fence, messages: &[QueuedMessage]) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
            return;
        };
        let count = messages.len();
        let events = messages
            .iter()
            .filter_map(|message| event(&self.topics, message))
            .collect();
        let (first, last) = (first.offset, last.offset);
        // Also without a single event: the offset takes its turn behind those before it.
        let receipt = self.recorder.submit_from(fence, events);
        self.messages += count;
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
        let is_ours = self.assigned.get(&fence.partition) == Some(&Some(fence));
        if durable && is_ours {
            // Chunks of a partition are recorded in order; the news of it may come out of order.
            let done = self.done.entry(fence.partition).or_insert(offset);
            *done = offset.max(*done);
            self.consumer.done(fence.partition, *done);
        } else if is_ours && !self.is_stopping {
            self.start_over(fence.partition, first);
        }
        self.mind_the_load();
    }

    /// A chunk was fenced although the partition is ours: its epoch was raised behind our back, by a
    /// takeover of before that came late. The right is taken again, and the chunk read again.
    fn start_over(&mut self, partition: i32, first: i64) {
        tracing::warn!(
            partition,
            "the right to a partition was lost; taking it again"
        );
        self.forget(&[partition]);
        self.assigned.insert(partition, None);
        self.consumer.read_again(partition, first);
        self.take_missing();
    }
}

async fn wait_for(taking: &mut Option<BoxFuture<'static, Vec<Fence>>>) -> Vec<Fence> {
    match taking {
        Some(taking) => taking.await,
        None => std::future::pending().await,
    }
}

/// The event that a message is; none if it can never be one.
fn event(topics: &Topics, message: &QueuedMessage) -> Option<Event> {
    let named = message
        .headers
        .get(header::TOPIC)
        .map_or("", String::as_str);
    let topic = topics
        .parse(named)
        .filter(|topic| topic.direction == Direction::Out);
    let Some(topic) = topic else {
        let rejected = Rejected::new("unknown_topic", "no client has this topic");
        metrics::rejected(named, &rejected);
        return None;
    };
    if let Some(size) = message.headers.get(header::CUT_FROM) {
        let rejected = Rejected::new("too_large", format!("{size} bytes, cut for the queue"));
        metrics::rejected(named, &rejected);
        return None;
    }
    let received = message
        .headers
        .get(header::RECEIVED)
        .and_then(|text| text.parse().ok())
        .or(message.queued)
        .map(crate::domain::clock::to_micros)
        .unwrap_or_default();
    Some(Event::Message {
        client: topic.client,
        message: Received {
            topic: named.to_owned(),
            payload: message.payload.clone(),
            retain: message
                .headers
                .get(header::RETAIN)
                .is_some_and(|flag| flag == "true"),
            received,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(headers: &[(&str, &str)]) -> QueuedMessage {
        QueuedMessage {
            partition: 0,
            offset: 0,
            payload: Bytes::from_static(b"{}"),
            headers: headers
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            queued: "2026-01-01T00:00:00Z".parse().ok(),
        }
    }

    #[test]
    fn headers_say_whose_it_is_and_when_it_came() {
        let topics = Topics::new(vec!["redhat/insights".into()]);
        let topic = "redhat/insights/me/control/out";
        let full = message(&[
            ("topic", topic),
            ("date_received", "2026-01-02T03:04:05.123456789Z"),
            ("mqtt_retain", "true"),
        ]);
        let Some(Event::Message {
            client,
            message: got,
        }) = event(&topics, &full)
        else {
            panic!("no event");
        };
        assert_eq!(client.as_str(), "me");
        assert_eq!(got.received.to_string(), "2026-01-02T03:04:05.123456Z");
        assert!(got.retain);
        // The Go implementation sends no retain flag; a broken date falls back to the queue's.
        let bare = message(&[("topic", topic), ("date_received", "yesterday")]);
        let Some(Event::Message { message: got, .. }) = event(&topics, &bare) else {
            panic!("no event");
        };
        assert_eq!(got.received.to_string(), "2026-01-01T00:00:00Z");
        assert!(!got.retain);
        assert!(event(&topics, &message(&[("topic", "elsewhere")])).is_none());
        assert!(event(&topics, &message(&[])).is_none());
        let cut = message(&[("topic", topic), ("cut_from", "3000000")]);
        assert!(event(&topics, &cut).is_none());
    }
}
