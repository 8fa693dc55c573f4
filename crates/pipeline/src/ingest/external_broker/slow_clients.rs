//! The clients whose messages go through the slow topic.
//!
//! A client becomes slow when a message exceeds its budget. It then stays slow until everything that it
//! has in the slow topic is recorded. So its messages are never in the slow topic and in a normal topic
//! at the same time, and keep their order (docs/decisions/025-slow-topic.md):
//!
//! - Before the first message of a client goes to the slow topic, all earlier messages of the connection
//!   must be in Kafka. Until then, the messages of the client are held.
//! - The first message is marked, so that the recorder processes the ingress topic first.
//! - The client returns when the consumer group of the slow topic has committed the offset of its last
//!   message.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};

use kafka::{DeliveredAt, PartitionProgress, UnprocessedScan};

/// Maximum number of slow clients. At the limit, further clients stay on the normal topics.
pub(super) const MAX_SLOW_CLIENTS: usize = 262_144;

/// Identifies a client by the hash of its Kafka key. Two clients with the same hash are slow together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SlowKey(u64);

/// The route of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The ingress topic or the answers topic.
    Normal,
    /// The slow topic.
    Slow {
        /// Whether the message must be recorded after the messages of the ingress topic.
        after_ingress: bool,
    },
    /// The slow topic, after the first `durable_before` messages of the connection are in Kafka.
    Held {
        durable_before: u64,
        /// Whether the message must be recorded after the messages of the ingress topic.
        after_ingress: bool,
    },
}

/// Counts the messages of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MessageCounts {
    /// Number of messages that were passed on, to any topic.
    pub forwarded: u64,
    /// Number of first messages that are all in Kafka.
    pub durable: u64,
}

/// The keys in the unprocessed part of the slow topic, each with its last position.
#[derive(Default)]
pub(super) struct ScannedClients {
    last_positions: HashMap<SlowKey, DeliveredAt>,
    has_overflowed: bool,
}

/// The clients whose messages go through the slow topic.
#[derive(Default)]
pub(super) struct SlowClients {
    clients: HashMap<SlowKey, SlowClient>,
    /// The end of the slow topic at the start of the connection, if its messages could not all be read.
    /// Until everything before it is recorded, every client is slow.
    unknown_before: Option<BTreeMap<i32, i64>>,
    /// Number of checks of the progress in the slow topic that were started.
    check_count: u64,
}

struct SlowClient {
    /// Number of messages that are not in the slow topic yet.
    pending_count: usize,
    /// Number of held messages, and the required number of durable messages.
    held: Option<HeldMessages>,
    /// Position of the last message in the slow topic. `None` before the first delivery.
    last_position: Option<DeliveredAt>,
    /// The value of `check_count` at the last delivery. Only a later check has a progress that includes
    /// the message.
    delivered_at_check: u64,
    /// Whether the next message is the first one of this connection in the slow topic.
    is_next_first: bool,
}

struct HeldMessages {
    count: usize,
    durable_before: u64,
}

/// Creates the keys of slow clients.
#[derive(Clone, Default)]
pub(super) struct SlowKeyHasher(RandomState);

impl SlowKeyHasher {
    pub fn key(&self, kafka_key: &[u8]) -> SlowKey {
        SlowKey(self.0.hash_one(kafka_key))
    }
}

impl ScannedClients {
    /// Adds a message of the slow topic.
    pub fn add(&mut self, client: SlowKey, position: DeliveredAt) {
        if self.last_positions.len() < MAX_SLOW_CLIENTS || self.last_positions.contains_key(&client)
        {
            self.last_positions.insert(client, position);
        } else {
            self.has_overflowed = true;
        }
    }
}

impl SlowClients {
    /// Creates the state of a new connection from the unprocessed messages of the slow topic.
    pub fn from_scan(scan: UnprocessedScan<ScannedClients>) -> Self {
        let UnprocessedScan {
            collected,
            progress,
            is_incomplete,
        } = scan;
        let is_unknown = is_incomplete || collected.has_overflowed;
        let to_slow_client = |(client, position)| {
            let slow_client = SlowClient {
                pending_count: 0,
                held: None,
                last_position: Some(position),
                delivered_at_check: 0,
                is_next_first: true,
            };
            (client, slow_client)
        };
        Self {
            clients: collected
                .last_positions
                .into_iter()
                .map(to_slow_client)
                .collect(),
            unknown_before: is_unknown.then(|| {
                let ends = progress.iter();
                ends.map(|(partition, progress)| (*partition, progress.end_offset))
                    .collect()
            }),
            check_count: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns whether every client uses the normal topics.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.unknown_before.is_none()
    }

    /// Selects the route of the next message of the connection. Returns whether the client became slow,
    /// too.
    pub fn select_route(
        &mut self,
        client: SlowKey,
        is_over_budget: bool,
        counts: MessageCounts,
    ) -> (Route, bool) {
        if let Some(slow_client) = self.clients.get_mut(&client) {
            return (slow_client.next_route(), false);
        }
        let is_unknown = self.unknown_before.is_some();
        let has_space = is_unknown || self.clients.len() < MAX_SLOW_CLIENTS;
        if !(is_unknown || is_over_budget) || !has_space {
            return (Route::Normal, false);
        }
        let must_hold = counts.durable < counts.forwarded;
        let slow_client = self.clients.entry(client).or_insert(SlowClient {
            pending_count: 0,
            held: must_hold.then_some(HeldMessages {
                count: 0,
                durable_before: counts.forwarded,
            }),
            last_position: None,
            delivered_at_check: 0,
            is_next_first: true,
        });
        (slow_client.next_route(), true)
    }

    /// Notes that a held message is passed to the producer.
    pub fn on_released(&mut self, client: SlowKey) {
        if let Some(slow_client) = self.clients.get_mut(&client)
            && let Some(held) = &mut slow_client.held
        {
            held.count -= 1;
            if held.count == 0 {
                slow_client.held = None;
            }
        }
    }

    /// Notes that a message is in the slow topic. The messages of a client are delivered in order.
    pub fn on_delivered(&mut self, client: SlowKey, position: DeliveredAt) {
        if let Some(slow_client) = self.clients.get_mut(&client) {
            slow_client.pending_count -= 1;
            slow_client.last_position = Some(position);
            slow_client.delivered_at_check = self.check_count;
        }
    }

    /// Notes that a check of the progress starts.
    pub fn on_check_started(&mut self) {
        self.check_count += 1;
    }

    /// Lets the clients return whose messages in the slow topic are all recorded. `progress` is the
    /// result of the last check that was started.
    pub fn remove_recorded(&mut self, progress: &BTreeMap<i32, PartitionProgress>) {
        let check_count = self.check_count;
        self.clients.retain(|_, client| {
            let is_recorded = client
                .last_position
                .is_some_and(|last| is_recorded(progress, last.partition, last.offset + 1));
            client.pending_count > 0 || client.delivered_at_check >= check_count || !is_recorded
        });
        self.unknown_before.take_if(|ends| {
            ends.iter()
                .all(|(partition, end)| is_recorded(progress, *partition, *end))
        });
        // After an attack with many clients, the memory is freed.
        self.clients.shrink_to(self.clients.len() * 2);
    }
}

impl SlowClient {
    fn next_route(&mut self) -> Route {
        self.pending_count += 1;
        let after_ingress = std::mem::take(&mut self.is_next_first);
        match &mut self.held {
            Some(held) => {
                held.count += 1;
                Route::Held {
                    durable_before: held.durable_before,
                    after_ingress,
                }
            }
            None => Route::Slow { after_ingress },
        }
    }
}

/// Returns whether all messages before the offset `end` are recorded. If the topic was recreated, the
/// partition may end before this offset, and the old messages no longer exist.
fn is_recorded(progress: &BTreeMap<i32, PartitionProgress>, partition: i32, end: i64) -> bool {
    progress
        .get(&partition)
        .is_none_or(|progress| progress.next_offset >= end || progress.end_offset < end)
}
