//! Presence state machine. Decides from a client's stored state and its new messages whether the
//! client is connected, and returns the changes to write. No I/O and no clock.
//!
//! Terms:
//! - A *presence message* is an online or an offline message. A handshake is an online message. A
//!   published last will and a closed connection of the embedded broker are offline messages.
//! - A *heartbeat* is any other message that proves that the client is connected.
//! - The *last presence message* is the latest presence message that was applied, in this batch or
//!   in an earlier one.
//! - The *receive time* is when this service received the message from the broker.
//! - The *queue position* is the message's partition and offset in the Kafka ingress topic. A
//!   message that came directly from a broker has none.
//!
//! Rules for presence messages:
//! 1. Presence messages are applied in the order in which the broker delivered them.
//! 2. A message is ignored as redelivered if the last presence message has the same partition, an
//!    equal or higher offset, and an equal or later receive time. Both comparisons are necessary:
//!    offsets restart when a topic is recreated, and the clocks of ingest hosts differ.
//! 3. An offline message ends the connection, unless a later heartbeat keeps it (rule 9). The
//!    `sent` and `message_id` of an offline message are not compared, because clients build their
//!    last will once, at process start.
//! 4. An online message without `sent`, or with a `sent` after its receive time, is treated as sent
//!    at its receive time.
//! 5. If the last presence message is an offline message, an online message connects the client.
//!    Exception: a retained handshake is ignored if it has the `message_id` of the handshake that
//!    the offline message ended.
//! 6. If the last presence message is an online message, an online message with the same
//!    `message_id` is ignored as a duplicate. A missing `message_id` is never a duplicate.
//! 7. If the last presence message is an online message, an online message is ignored as stale if
//!    its `sent` is earlier by at most the stale-online window. If its `sent` is earlier by more
//!    than the window, the client's clock was set back, and the message is applied.
//! 8. An online message that an operator replays from the dead letters is ignored as stale if the
//!    last presence message has an equal or later receive time.
//!
//! Rules for heartbeats:
//! 9. A client is connected if its last presence message is an online message, or if its latest
//!    heartbeat has a later receive time than its last presence message. A heartbeat therefore
//!    reconnects a disconnected client.
//! 10. A heartbeat of an unknown client is ignored, because a heartbeat carries no client data.
//! 11. Heartbeats have a separate Kafka topic, so a heartbeat and a presence message may be
//!     processed in a different order than the client sent them. Rule 9 compares receive times, so
//!     the processing order does not change the result.
//!
//! Rule for messages that came directly from a broker:
//! 12. They arrive in the order in which the client sent them. If this host's clock was set back,
//!     their receive time is raised to keep that order.

use std::time::Duration;

use crate::domain::{Dialect, MessageId, Timestamp};
use crate::protocol::Online;
use crate::store::{ReceivedAt, StoredState};

/// A decoded message of one client.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PresenceSignal {
    Online {
        online: Box<Online>,
        dialect: Dialect,
        topic_prefix: String,
        received: ReceivedAt,
        replay: ReplayKind,
        /// Index of the message in the batch's inputs.
        input_index: usize,
    },
    Offline {
        received: ReceivedAt,
    },
    /// The embedded broker closed the client's last connection.
    ConnectionClosed {
        at: Timestamp,
    },
    Heartbeat {
        received_at: Timestamp,
        /// Whether the heartbeat came through the answers topic, so it may be out of order with
        /// presence messages.
        unordered: bool,
    },
}

/// Whether an online message is a replay, and of which kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayKind {
    NotReplayed,
    /// The broker delivered a retained message because this service subscribed.
    RetainedByBroker,
    /// An operator replayed a dead letter.
    RequestedByOperator,
}

/// The database changes that result from one client's messages in a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PresenceChange {
    /// The last online message that was applied.
    pub upsert: Option<Box<ResolvedOnline>>,
    /// Receive time of the heartbeat that keeps the client connected or reconnects it. `None` if
    /// `upsert` contains the heartbeat.
    pub heartbeat: Option<Timestamp>,
    /// The offline message, if it is the client's last presence message.
    pub end: Option<ReceivedAt>,
    /// Whether to look up the tenant: the client is connected after the batch and either was not
    /// connected before or sent an online message.
    pub needs_tenant_lookup: bool,
}

/// An online message that was applied.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResolvedOnline {
    pub online: Online,
    pub dialect: Dialect,
    pub topic_prefix: String,
    /// The message's `sent`, corrected by rule 4.
    pub sent: Timestamp,
    pub received: ReceivedAt,
    /// The latest heartbeat, if its receive time is after that of the last presence message.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Index of the message in the batch's inputs.
    pub input_index: usize,
}

/// Reason why a message was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ignored {
    /// An online message with the `message_id` of the last online message (rule 6).
    Duplicate,
    /// An online message that is older than the last presence message (rules 7 and 8).
    Stale,
    /// A presence message that Kafka delivered again (rule 2).
    Redelivered,
    /// An offline message with a later heartbeat, or a heartbeat with a later presence message
    /// (rule 9).
    Superseded,
    /// A retained handshake that an offline message ended (rule 5).
    ReplayOfEndedHandshake,
    /// An offline message of a client that is not connected, or a heartbeat of an unknown client.
    NotConnected,
    /// An ordered heartbeat of a connected client.
    AlreadyConnected,
}

impl Ignored {
    /// Returns the value of the metric label `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Redelivered => "redelivered",
            Self::Superseded => "superseded",
            Self::ReplayOfEndedHandshake => "replay_of_ended_handshake",
            Self::NotConnected => "not_connected",
            Self::AlreadyConnected => "already_connected",
        }
    }
}

/// Applies a client's messages to its stored state. Calls `on_ignored` for each ignored message.
pub(super) fn apply(
    stored: Option<&StoredState>,
    signals: Vec<PresenceSignal>,
    stale_online_window: Duration,
    mut on_ignored: impl FnMut(Ignored),
) -> PresenceChange {
    let mut state = PresenceState::new(stored, stale_online_window);
    for signal in signals {
        if let Err(reason) = state.on_signal(signal) {
            on_ignored(reason);
        }
    }
    state.into_change()
}

/// The fields of an online message that later online messages are compared with.
#[derive(Clone)]
struct OnlineRef {
    id: Option<MessageId>,
    sent: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastSignal {
    Online,
    Offline,
}

/// A client's state between two messages. Presence messages and heartbeats are stored in separate
/// fields, so their processing order does not matter (rule 11).
struct PresenceState {
    /// The client's latest online message.
    last_online: Option<OnlineRef>,
    /// When the last presence message was received. `None` for an unknown client.
    last_received: Option<ReceivedAt>,
    /// Kind of the last presence message.
    last_signal: LastSignal,
    last_heartbeat_at: Option<Timestamp>,
    /// Whether the client was connected before the batch.
    was_connected: bool,
    stale_online_window: Duration,
    upsert: Option<Box<ResolvedOnline>>,
    /// Whether the last presence message is an offline message of this batch.
    has_new_offline: bool,
    has_new_heartbeat: bool,
}

impl PresenceState {
    fn new(stored: Option<&StoredState>, stale_online_window: Duration) -> Self {
        let connection = stored.and_then(|stored| stored.connection.as_ref());
        let disconnect = stored.and_then(|stored| stored.disconnect.as_ref());
        let online_ref = |id: &Option<MessageId>, sent| OnlineRef {
            id: id.clone(),
            sent,
        };
        Self {
            last_online: connection
                .map(|row| online_ref(&row.message_id, row.message_sent))
                .or_else(|| disconnect.map(|row| online_ref(&row.message_id, row.message_sent))),
            last_received: connection
                .map(|row| row.received)
                .or_else(|| disconnect.map(|row| row.received)),
            last_signal: match connection {
                Some(row) if !row.offline_overruled => LastSignal::Online,
                _ => LastSignal::Offline,
            },
            last_heartbeat_at: connection.and_then(|row| row.last_heartbeat_at),
            was_connected: connection.is_some(),
            stale_online_window,
            upsert: None,
            has_new_offline: false,
            has_new_heartbeat: false,
        }
    }

    fn is_connected(&self) -> bool {
        let last_presence_at = self.last_received.map(|received| received.time);
        self.last_signal == LastSignal::Online
            || (self.last_heartbeat_at.is_some() && self.last_heartbeat_at > last_presence_at)
    }

    fn on_signal(&mut self, signal: PresenceSignal) -> Result<(), Ignored> {
        match signal {
            PresenceSignal::Online {
                online,
                dialect,
                topic_prefix,
                received,
                replay,
                input_index,
            } => {
                if replay == ReplayKind::RequestedByOperator {
                    self.check_operator_replay(received)?;
                }
                let received = self.enforce_order(received);
                let sent = online.sent.unwrap_or(received.time).min(received.time);
                self.check_online(&online, sent, received, replay)?;
                self.last_online = Some(OnlineRef {
                    id: online.message_id.clone(),
                    sent,
                });
                self.last_received = Some(received);
                self.last_signal = LastSignal::Online;
                self.has_new_offline = false;
                self.upsert = Some(Box::new(ResolvedOnline {
                    online: *online,
                    dialect,
                    topic_prefix,
                    sent,
                    received,
                    last_heartbeat_at: None,
                    input_index,
                }));
                Ok(())
            }
            PresenceSignal::Offline { received } => {
                self.check_not_redelivered(received)?;
                self.on_offline(received)
            }
            PresenceSignal::ConnectionClosed { at } => self.on_offline(ReceivedAt {
                time: at,
                position: None,
            }),
            PresenceSignal::Heartbeat {
                received_at,
                unordered,
            } => self.on_heartbeat(received_at, unordered),
        }
    }

    fn check_online(
        &self,
        online: &Online,
        sent: Timestamp,
        received: ReceivedAt,
        replay: ReplayKind,
    ) -> Result<(), Ignored> {
        self.check_not_redelivered(received)?;
        let Some(last_online) = &self.last_online else {
            return Ok(());
        };
        let is_same_message = online.message_id.is_some() && online.message_id == last_online.id;
        if self.last_signal == LastSignal::Offline {
            return if replay == ReplayKind::RetainedByBroker && is_same_message {
                Err(Ignored::ReplayOfEndedHandshake)
            } else {
                Ok(())
            };
        }
        if is_same_message {
            return Err(Ignored::Duplicate);
        }
        let sent_earlier_by = last_online.sent.duration_since(sent);
        if sent_earlier_by.is_positive()
            && sent_earlier_by.unsigned_abs() <= self.stale_online_window
        {
            return Err(Ignored::Stale);
        }
        Ok(())
    }

    /// Checks rule 8 (operator replay).
    fn check_operator_replay(&self, received: ReceivedAt) -> Result<(), Ignored> {
        match self.last_received {
            Some(last) if last.time >= received.time => Err(Ignored::Stale),
            _ => Ok(()),
        }
    }

    /// Checks rule 2 (redelivery).
    fn check_not_redelivered(&self, received: ReceivedAt) -> Result<(), Ignored> {
        let Some(last) = self.last_received else {
            return Ok(());
        };
        match (received.position, last.position) {
            (Some(position), Some(last_position))
                if position.partition == last_position.partition
                    && position.offset <= last_position.offset
                    && received.time <= last.time =>
            {
                Err(Ignored::Redelivered)
            }
            _ => Ok(()),
        }
    }

    /// Applies rule 12: raises the receive time of a message without a queue position. The result
    /// is after the last presence message and not before the latest heartbeat.
    fn enforce_order(&self, mut received: ReceivedAt) -> ReceivedAt {
        if received.position.is_none() {
            let after_last = self.last_received.map(|last| next_microsecond(last.time));
            let earliest = after_last.max(self.last_heartbeat_at);
            received.time = earliest.map_or(received.time, |earliest| earliest.max(received.time));
        }
        received
    }

    fn on_offline(&mut self, mut received: ReceivedAt) -> Result<(), Ignored> {
        if self.last_received.is_none() {
            return Err(Ignored::NotConnected);
        }
        // With a queue position, the offline message is stored even if the client is already
        // disconnected: a delayed heartbeat must be compared with the latest offline message.
        if received.position.is_none() {
            if !self.is_connected() {
                return Err(Ignored::NotConnected);
            }
            received = self.enforce_order(received);
        }
        self.last_signal = LastSignal::Offline;
        self.last_received = Some(received);
        self.has_new_offline = true;
        if self.is_connected() {
            // The offline message is stored, but a later heartbeat keeps the client connected.
            return Err(Ignored::Superseded);
        }
        Ok(())
    }

    fn on_heartbeat(&mut self, received_at: Timestamp, unordered: bool) -> Result<(), Ignored> {
        let Some(last) = self.last_received else {
            return Err(Ignored::NotConnected);
        };
        // An unordered heartbeat is stored even if the client is connected: an offline message with
        // an earlier receive time may still follow.
        if !unordered && self.is_connected() {
            return Err(Ignored::AlreadyConnected);
        }
        let received_at = if unordered {
            received_at
        } else {
            received_at.max(next_microsecond(last.time))
        };
        if received_at <= last.time {
            return Err(Ignored::Superseded);
        }
        self.last_heartbeat_at = self.last_heartbeat_at.max(Some(received_at));
        self.has_new_heartbeat = true;
        Ok(())
    }

    fn into_change(self) -> PresenceChange {
        let is_connected = self.is_connected();
        let last_presence_at = self.last_received.map(|received| received.time);
        let last_heartbeat_at = self
            .last_heartbeat_at
            .filter(|heartbeat_at| Some(*heartbeat_at) > last_presence_at);
        let has_upsert = self.upsert.is_some();
        let mut upsert = self.upsert;
        if let Some(resolved) = &mut upsert {
            resolved.last_heartbeat_at = last_heartbeat_at;
        }
        PresenceChange {
            needs_tenant_lookup: is_connected && (has_upsert || !self.was_connected),
            heartbeat: last_heartbeat_at
                .filter(|_| self.has_new_heartbeat && is_connected && !has_upsert),
            end: self.last_received.filter(|_| self.has_new_offline),
            upsert,
        }
    }
}

/// Returns the next time that the database can store. Its resolution is one microsecond.
fn next_microsecond(time: Timestamp) -> Timestamp {
    time.saturating_add(Duration::from_micros(1))
        .unwrap_or(time)
}

#[cfg(test)]
mod tests;
