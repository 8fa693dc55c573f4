//! The state that the database must have at the end, according to the rules of the specification.
//!
//! The model applies each message in the log exactly once, in the order of the log. It knows nothing
//! of batches, retries, crashes, redeliveries and reassigned partitions, because none of them may
//! change the end state.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::messages::{Content, Online, Received};
use domain::{IngestStamp, Timestamp};

/// An online message is stale if its `sent` is earlier than the recorded one by at most this time.
pub const STALE_ONLINE_WINDOW: Duration = Duration::from_mins(10);

/// When the connector received a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveOrder {
    pub time: Timestamp,
    pub stamp: Option<IngestStamp>,
}

impl ReceiveOrder {
    fn of(received: &Received) -> Self {
        Self {
            time: received.received_at,
            stamp: received.stamp,
        }
    }

    /// Returns whether the broker delivered this message after `other`. The stamps decide if both
    /// have one, otherwise the receive times.
    fn is_after(self, other: Self) -> bool {
        match (self.stamp, other.stamp) {
            (Some(stamp), Some(other)) => {
                (stamp.epoch, stamp.sequence) > (other.epoch, other.sequence)
            }
            _ => self.time > other.time,
        }
    }

    /// Returns whether the broker certainly delivered this message before `other`: the stamps and
    /// the receive times agree. Such a message reached Kafka late, and was redelivered.
    fn is_certainly_not_after(self, other: Self) -> bool {
        self.stamp.is_some()
            && other.stamp.is_some()
            && !self.is_after(other)
            && self.time <= other.time
    }
}

/// The online message whose content the client's row has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedOnline {
    pub online: Online,
    /// `sent`, or the receive time if `sent` is missing or later.
    pub sent: Timestamp,
}

/// The latest presence message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastPresence {
    is_online: bool,
    order: ReceiveOrder,
    /// Partition and offset.
    position: Option<(i32, i64)>,
}

/// A heartbeat that can keep a client connected.
#[derive(Debug, Clone, Copy)]
struct Heartbeat {
    order: ReceiveOrder,
    publication_number: u64,
    /// Whether the connector certainly knew the client when it processed the heartbeat. A heartbeat
    /// of an unknown client is ignored.
    is_certain: bool,
}

/// The expected state of one client.
#[derive(Debug, Clone, Default)]
pub struct ClientModel {
    latest_online: Option<AppliedOnline>,
    last_presence: Option<LastPresence>,
    heartbeats: Vec<Heartbeat>,
    /// Topic and SHA-256 of the messages that must be dead letters.
    pub dead_letters: BTreeSet<(String, String)>,
}

/// Whether a client must be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connectivity {
    Connected,
    Disconnected,
    /// A heartbeat decides that the connector may have processed before it knew the client.
    Either,
}

impl ClientModel {
    /// Applies a message of the ingress topic, or of a broker without Kafka.
    pub fn apply(&mut self, received: &Received, position: Option<(i32, i64)>) {
        let order = ReceiveOrder::of(received);
        match &received.publication.content {
            Content::Online(online) => self.apply_online(received, online, order, position),
            Content::Offline if !received.is_operator_replay => {
                self.apply_offline(order, position);
            }
            Content::Invalid => {
                let publication = &received.publication;
                let dead_letter = (publication.topic.clone(), publication.sha256());
                self.dead_letters.insert(dead_letter);
            }
            Content::Offline | Content::Heartbeat | Content::ClearsRetained => {}
        }
    }

    fn apply_online(
        &mut self,
        received: &Received,
        online: &Online,
        order: ReceiveOrder,
        position: Option<(i32, i64)>,
    ) {
        let client_time = online.sent.filter(|sent| *sent <= order.time);
        if let (Some(last), Some(latest)) = (&self.last_presence, &self.latest_online) {
            let is_replay_of_older_message =
                received.is_operator_replay && last.order.time >= order.time;
            if is_replay_of_older_message || order.is_certainly_not_after(last.order) {
                return;
            }
            let is_same_message =
                online.message_id.is_some() && online.message_id == latest.online.message_id;
            let is_stale = client_time.is_some_and(|sent| {
                let earlier_by = latest.sent.duration_since(sent);
                earlier_by.is_positive() && earlier_by.unsigned_abs() <= STALE_ONLINE_WINDOW
            });
            let is_ignored = if last.is_online {
                is_same_message || is_stale
            } else {
                received.is_retained_replay && is_same_message
            };
            if is_ignored {
                return;
            }
        }
        self.latest_online = Some(AppliedOnline {
            online: online.clone(),
            sent: client_time.unwrap_or(order.time),
        });
        self.last_presence = Some(LastPresence {
            is_online: true,
            order,
            position,
        });
    }

    fn apply_offline(&mut self, order: ReceiveOrder, position: Option<(i32, i64)>) {
        if let Some(last) = &mut self.last_presence
            && !order.is_certainly_not_after(last.order)
        {
            *last = LastPresence {
                is_online: false,
                order,
                position,
            };
        }
    }

    /// Adds a heartbeat or a response. Its place in the order of the presence messages is decided at
    /// the end.
    pub fn add_heartbeat(&mut self, received: &Received, is_certain: bool) {
        if !received.is_retained_replay && !received.is_operator_replay {
            self.heartbeats.push(Heartbeat {
                order: ReceiveOrder::of(received),
                publication_number: received.publication_number,
                is_certain,
            });
        }
    }

    /// Returns the content of the client's row. Returns `None` if the client must be unknown.
    pub fn latest_online(&self) -> Option<&AppliedOnline> {
        self.latest_online.as_ref()
    }

    /// Returns partition and offset of the latest presence message.
    pub fn position(&self) -> Option<(i32, i64)> {
        self.last_presence.and_then(|last| last.position)
    }

    pub fn connectivity(&self) -> Connectivity {
        let Some(last) = self.last_presence else {
            return Connectivity::Disconnected;
        };
        if last.is_online {
            return Connectivity::Connected;
        }
        let mut later = self
            .heartbeats
            .iter()
            .filter(|heartbeat| heartbeat.order.is_after(last.order))
            .peekable();
        if later.peek().is_none() {
            Connectivity::Disconnected
        } else if later.any(|heartbeat| heartbeat.is_certain) {
            Connectivity::Connected
        } else {
            Connectivity::Either
        }
    }

    /// Returns the number of the latest published heartbeat that was received.
    pub fn latest_heartbeat_publication(&self) -> Option<u64> {
        let numbers = self.heartbeats.iter();
        numbers.map(|heartbeat| heartbeat.publication_number).max()
    }
}
