//! Presence state machine. Decides from a client's stored state and its new messages whether the
//! client is connected, and returns the database changes. The module does no I/O and reads no
//! clock.
//!
//! Terms:
//! - A *presence message* is an online or an offline message. A handshake is an online message. A
//!   published last will and a closed connection of the embedded broker are offline messages.
//! - A *heartbeat* is any other message that proves that the client is connected.
//! - The *last presence message* is the latest presence message that was applied, in this batch or
//!   in an earlier one.
//! - The *receive time* is when this service received the message from the broker.
//! - The *ingest stamp* is the position of a message in the sequence of all messages that one session
//!   at an external broker received. A message has no stamp if it did not pass through Kafka, if
//!   several `ingest` processes share a subscription, or if `ingest` had no epoch.
//! - A message is *received after* another message if its ingest stamp is higher. If one message has
//!   no stamp, or if the stamps belong to different sessions, the receive times decide
//!   (`ReceivedAt::is_after`).
//! - The *queue position* is the message's topic id, partition and offset in Kafka. A message that
//!   came directly from a broker has no queue position.
//!
//! Rules for presence messages:
//! 1. Presence messages are applied in the order in which the broker delivered them.
//! 2. A message is ignored as redelivered if the last presence message has the same topic id and
//!    partition, and an equal or higher offset. Offsets restart when a topic is recreated, and the
//!    new topic has another id. If a topic id is unknown, the message is redelivered only if it was
//!    also not received after the last presence message. A message is also ignored as redelivered if
//!    neither its ingest stamp nor its receive time is later than that of the last presence message:
//!    an `ingest` process that lost its session to another process can write its messages to Kafka
//!    late, and the broker has redelivered these messages to the other process.
//! 3. An offline message ends the connection, unless the client sent a later heartbeat (rule 9).
//!    The `sent` and `message_id` of an offline message are not compared, because clients build
//!    their last will once, at process start.
//! 4. An online message without `sent`, or with a `sent` after its receive time, is treated as sent
//!    at its receive time.
//! 5. If the last presence message is an offline message, an online message connects the client.
//!    Exception: a retained handshake is ignored if it has the `message_id` of the handshake that
//!    the offline message ended.
//! 6. If the last presence message is an online message, an online message with the same
//!    `message_id` is ignored as a duplicate. A message without `message_id` is never a duplicate.
//! 7. If the last presence message is an online message, the next online message is ignored as
//!    stale if its `sent` is earlier by at most the stale-online window. If its `sent` is earlier
//!    by more than the window, the message is applied, because the client's clock was set back.
//!    A message whose `sent` was replaced by its receive time (rule 4) is never stale, because the
//!    clocks of ingest hosts differ.
//! 8. An online message that an operator replays from the dead letters is ignored as stale if the
//!    last presence message has an equal or later receive time.
//!
//! Rules for heartbeats:
//! 9. A client is connected if its last presence message is an online message, or if its latest
//!    heartbeat was received after its last presence message. A heartbeat therefore reconnects a
//!    disconnected client.
//! 10. A heartbeat of an unknown client is ignored, because a heartbeat contains no client data.
//! 11. Heartbeats have a separate Kafka topic, so a heartbeat and a presence message may be
//!     processed in a different order than the client sent them. Rule 9 compares ingest stamps or
//!     receive times, so the processing order does not change the result. With stamps, the result
//!     does not depend on the clocks of ingest hosts either.
//!
//! Rule for messages that came directly from a broker:
//! 12. These messages arrive in the order in which the client sent them. If this host's clock was
//!     set back, the receive time of a message is raised to keep this order.

use std::time::Duration;

use domain::{DialectName, MessageId, OfflineReason, Timestamp};
use protocol::OnlineMessage;
use store::{ReceivedAt, StoredState};

/// A decoded message or a closed connection of one client.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PresenceSignal {
    Online {
        online: Box<OnlineMessage>,
        dialect: DialectName,
        topic_prefix: String,
        received_at: ReceivedAt,
        replay_kind: ReplayKind,
        /// Whether the embedded broker received the message on a connection that replaced another
        /// connection of the client.
        is_takeover: bool,
        /// Index of the online message in the batch's inputs.
        input_index: usize,
    },
    Offline {
        received_at: ReceivedAt,
        /// The `sent` of the message.
        sent: Option<Timestamp>,
        /// Whether the broker published the message as a last will. `None` if this is unknown.
        is_last_will: Option<bool>,
    },
    /// The embedded broker closed the client's last connection.
    ConnectionClosed {
        closed_at: Timestamp,
        /// How the connection ended.
        reason: OfflineReason,
    },
    Heartbeat {
        received_at: ReceivedAt,
        /// Whether the heartbeat was read from the Kafka answers topic. Such a heartbeat may be out
        /// of order with presence messages.
        from_answers_topic: bool,
    },
}

/// Whether an online message is a replay, and the kind of the replay.
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
    /// The last applied online message of the batch.
    pub upsert: Option<Box<AppliedOnlineMessage>>,
    /// Receive time of the heartbeat that keeps the client connected or reconnects the client.
    /// `None` if the batch contains no such heartbeat, or if `upsert` contains its receive time.
    pub heartbeat_received_at: Option<ReceivedAt>,
    /// The client's offline message. `None` if the client's last presence message is not an offline
    /// message of this batch.
    pub offline: Option<AppliedOfflineMessage>,
    /// Whether to look up the client's tenant. Only a client that is connected after the batch
    /// needs a lookup. The client must also have sent an online message in the batch, or have been
    /// disconnected before the batch.
    pub needs_tenant_lookup: bool,
    /// Receive time of the latest heartbeat of a client that was connected already, if the stored time
    /// at which the client was last seen is old enough to be replaced. `None` if another change of
    /// the row replaces the time.
    pub seen_at: Option<Timestamp>,
    /// Transitions of the client that precede the row in `upsert`.
    pub transitions: TransitionCounts,
}

/// Number of changes between connected and disconnected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TransitionCounts {
    /// Number of changes in both directions, and of takeovers.
    pub all: u64,
    /// Number of changes from disconnected to connected, and of takeovers.
    pub connects: u64,
    /// Number of online messages of a connected client whose connection replaced another one.
    pub takeovers: u64,
}

/// An offline message that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AppliedOfflineMessage {
    pub received_at: ReceivedAt,
    pub reason: OfflineReason,
}

/// An online message that was applied.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AppliedOnlineMessage {
    pub online: OnlineMessage,
    pub dialect: DialectName,
    pub topic_prefix: String,
    /// The `sent` of the online message, corrected by rule 4 in the module documentation.
    pub sent: Timestamp,
    pub received_at: ReceivedAt,
    /// Receive time of the latest heartbeat. `None` if no heartbeat was received after the last
    /// presence message.
    pub last_heartbeat_at: Option<ReceivedAt>,
    /// Index of the online message in the batch's inputs.
    pub input_index: usize,
}

/// Reason why a message was ignored. The rules are in the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IgnoreReason {
    /// An online message with the `message_id` of the last online message (rule 6 in the module
    /// documentation).
    Duplicate,
    /// An online message that is older than the last presence message (rules 7 and 8 in the module
    /// documentation).
    Stale,
    /// A presence message that Kafka or the broker delivered again (rule 2 in the module
    /// documentation).
    Redelivered,
    /// The message is an offline message and the client sent a later heartbeat, or the message is
    /// a heartbeat and the client sent a later presence message (rule 9 in the module
    /// documentation).
    Superseded,
    /// The broker delivered a retained handshake, but an offline message has ended the connection
    /// that this handshake started (rule 5 in the module documentation).
    ReplayOfEndedHandshake,
    /// An offline message of a client that is not connected, or a heartbeat of an unknown client.
    NotConnected,
    /// A heartbeat of a client that is already connected. A heartbeat from the Kafka answers topic
    /// is never ignored for this reason.
    AlreadyConnected,
}

impl IgnoreReason {
    /// Returns the value of the metric label `reason`.
    pub fn as_str(self) -> &'static str {
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

/// Settings of the presence rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct PresenceRules {
    /// See rule 7 in the module documentation.
    pub stale_online_window: Duration,
    /// Minimum time between two writes of the time at which a client was last seen, if nothing else
    /// changes.
    pub last_seen_interval: Duration,
}

/// Applies a client's messages to its stored state and returns the database changes. Calls
/// `on_ignored` with the index in `signals` and the reason for each ignored message.
pub(super) fn apply_signals(
    stored_state: Option<&StoredState>,
    signals: Vec<PresenceSignal>,
    settings: PresenceRules,
    mut on_ignored: impl FnMut(usize, IgnoreReason),
) -> PresenceChange {
    let mut state = PresenceState::new(stored_state, settings);
    for (index, signal) in signals.into_iter().enumerate() {
        let was_connected = state.is_connected();
        if let Err(reason) = state.on_signal(signal) {
            on_ignored(index, reason);
        }
        state.count_transition(was_connected);
    }
    state.into_change()
}

/// The fields of the last online message. The next online message is compared with these fields.
#[derive(Clone)]
struct LastOnlineMessage {
    message_id: Option<MessageId>,
    sent: Timestamp,
}

/// The kind of a presence message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PresenceKind {
    Online,
    Offline,
}

/// A client's state between two messages. Presence messages and heartbeats are stored in separate
/// fields, so their processing order does not matter (rule 11 in the module documentation).
struct PresenceState {
    /// The client's latest online message.
    last_online: Option<LastOnlineMessage>,
    /// Receive time of the last presence message. `None` for an unknown client.
    last_presence_received_at: Option<ReceivedAt>,
    /// Kind of the last presence message.
    last_presence_kind: PresenceKind,
    last_heartbeat_at: Option<ReceivedAt>,
    /// Whether the client was connected before the batch.
    was_connected: bool,
    /// Stored time at which the client was last seen.
    last_seen: Option<Timestamp>,
    /// Receive time of the latest heartbeat that was ignored, because the client is connected already.
    ignored_heartbeat_at: Option<Timestamp>,
    transitions: TransitionCounts,
    settings: PresenceRules,
    /// The last applied online message of this batch.
    upsert: Option<Box<AppliedOnlineMessage>>,
    /// Why the client is disconnected, if its last presence message is an offline message of this
    /// batch.
    new_offline_reason: Option<OfflineReason>,
    /// Whether a heartbeat of this batch was applied.
    has_new_heartbeat: bool,
}

impl PresenceState {
    fn new(stored_state: Option<&StoredState>, settings: PresenceRules) -> Self {
        let connection = stored_state.and_then(|stored_state| stored_state.connection.as_ref());
        let disconnect = stored_state.and_then(|stored_state| stored_state.disconnect.as_ref());
        let last_online = |message_id: &Option<MessageId>, sent| LastOnlineMessage {
            message_id: message_id.clone(),
            sent,
        };
        Self {
            last_online: connection
                .map(|row| last_online(&row.message_id, row.message_sent_at))
                .or_else(|| {
                    disconnect.map(|row| last_online(&row.message_id, row.message_sent_at))
                }),
            last_presence_received_at: connection
                .map(|row| row.received_at)
                .or_else(|| disconnect.map(|row| row.received_at)),
            last_presence_kind: match connection {
                Some(row) if !row.offline_message_overruled => PresenceKind::Online,
                _ => PresenceKind::Offline,
            },
            last_heartbeat_at: connection.and_then(|row| row.last_heartbeat_at),
            was_connected: connection.is_some(),
            last_seen: connection.and_then(|row| row.presence.last_seen),
            ignored_heartbeat_at: None,
            transitions: TransitionCounts::default(),
            settings,
            upsert: None,
            new_offline_reason: None,
            has_new_heartbeat: false,
        }
    }

    fn is_connected(&self) -> bool {
        self.last_presence_kind == PresenceKind::Online
            || self.heartbeat_after_last_presence().is_some()
    }

    /// Returns the latest heartbeat if it was received after the last presence message.
    fn heartbeat_after_last_presence(&self) -> Option<ReceivedAt> {
        self.last_heartbeat_at.filter(|heartbeat| {
            self.last_presence_received_at
                .is_none_or(|last| heartbeat.is_after(&last))
        })
    }

    fn on_signal(&mut self, signal: PresenceSignal) -> Result<(), IgnoreReason> {
        match signal {
            PresenceSignal::Online {
                online,
                dialect,
                topic_prefix,
                received_at,
                replay_kind,
                is_takeover,
                input_index,
            } => {
                if replay_kind == ReplayKind::RequestedByOperator {
                    self.check_operator_replay(received_at)?;
                }
                let received_at = self.enforce_order(received_at);
                // `None` if the time of this host replaces the time of the client.
                let client_time = online.sent.filter(|sent| *sent <= received_at.time);
                self.check_online_message(&online, client_time, received_at, replay_kind)?;
                let sent = client_time.unwrap_or(received_at.time);
                if is_takeover && self.is_connected() {
                    self.transitions.all += 1;
                    self.transitions.connects += 1;
                    self.transitions.takeovers += 1;
                }
                self.last_online = Some(LastOnlineMessage {
                    message_id: online.message_id.clone(),
                    sent,
                });
                self.last_presence_received_at = Some(received_at);
                self.last_presence_kind = PresenceKind::Online;
                self.new_offline_reason = None;
                self.upsert = Some(Box::new(AppliedOnlineMessage {
                    online: *online,
                    dialect,
                    topic_prefix,
                    sent,
                    received_at,
                    last_heartbeat_at: None,
                    input_index,
                }));
                Ok(())
            }
            PresenceSignal::Offline {
                received_at,
                sent,
                is_last_will,
            } => {
                self.check_not_redelivered(received_at)?;
                let reason = self.offline_reason(sent, is_last_will);
                self.on_offline(received_at, reason)
            }
            PresenceSignal::ConnectionClosed { closed_at, reason } => {
                self.on_offline(ReceivedAt::from_time(closed_at), reason)
            }
            PresenceSignal::Heartbeat {
                received_at,
                from_answers_topic,
            } => self.on_heartbeat(received_at, from_answers_topic),
        }
    }

    fn check_online_message(
        &self,
        online: &OnlineMessage,
        client_time: Option<Timestamp>,
        received_at: ReceivedAt,
        replay_kind: ReplayKind,
    ) -> Result<(), IgnoreReason> {
        self.check_not_redelivered(received_at)?;
        let Some(last_online) = &self.last_online else {
            return Ok(());
        };
        let is_same_message =
            online.message_id.is_some() && online.message_id == last_online.message_id;
        if self.last_presence_kind == PresenceKind::Offline {
            return if replay_kind == ReplayKind::RetainedByBroker && is_same_message {
                Err(IgnoreReason::ReplayOfEndedHandshake)
            } else {
                Ok(())
            };
        }
        if is_same_message {
            return Err(IgnoreReason::Duplicate);
        }
        let is_stale = client_time.is_some_and(|sent| {
            let earlier_by = last_online.sent.duration_since(sent);
            earlier_by.is_positive()
                && earlier_by.unsigned_abs() <= self.settings.stale_online_window
        });
        if is_stale {
            return Err(IgnoreReason::Stale);
        }
        Ok(())
    }

    /// Returns [`IgnoreReason::Stale`] if the replayed message is not newer than the last presence
    /// message (rule 8 in the module documentation).
    fn check_operator_replay(&self, received_at: ReceivedAt) -> Result<(), IgnoreReason> {
        match self.last_presence_received_at {
            Some(last) if last.time >= received_at.time => Err(IgnoreReason::Stale),
            _ => Ok(()),
        }
    }

    /// Returns [`IgnoreReason::Redelivered`] if Kafka or the broker delivered the message again (rule
    /// 2 in the module documentation).
    fn check_not_redelivered(&self, received_at: ReceivedAt) -> Result<(), IgnoreReason> {
        let Some(last) = self.last_presence_received_at else {
            return Ok(());
        };
        let is_after_by_stamp = received_at
            .stamp
            .zip(last.stamp)
            .and_then(|(stamp, last_stamp)| stamp.is_after(&last_stamp));
        // Both must agree: an `ingest` process that acquires its epoch too late gives its messages
        // higher stamps than the messages of its successor.
        if is_after_by_stamp == Some(false) && received_at.time <= last.time {
            return Err(IgnoreReason::Redelivered);
        }
        match (received_at.position, last.position) {
            (Some(position), Some(last_position))
                if position.partition == last_position.partition
                    && position.offset <= last_position.offset
                    && position
                        .has_topic_of(&last_position)
                        .unwrap_or_else(|| !received_at.is_after(&last)) =>
            {
                Err(IgnoreReason::Redelivered)
            }
            _ => Ok(()),
        }
    }

    /// Applies rule 12 in the module documentation to a message without a queue position. Raises
    /// the receive time of the message if necessary. The result is later than the last presence
    /// message and not earlier than the latest heartbeat.
    fn enforce_order(&self, mut received_at: ReceivedAt) -> ReceivedAt {
        if received_at.position.is_none() {
            let after_last_presence = self
                .last_presence_received_at
                .map(|last| next_microsecond(last.time));
            let earliest = after_last_presence.max(self.last_heartbeat_at.map(|last| last.time));
            received_at.time =
                earliest.map_or(received_at.time, |earliest| earliest.max(received_at.time));
        }
        received_at
    }

    /// Returns why the client is disconnected after an offline message. Only the embedded broker tells
    /// which message is a last will. A client builds its last will before it connects, so a last will
    /// from another broker was sent before the online message.
    fn offline_reason(&self, sent: Option<Timestamp>, is_last_will: Option<bool>) -> OfflineReason {
        let is_sent_before_online = || {
            let online_sent = self.last_online.as_ref().map(|online| online.sent);
            sent.is_some() && sent < online_sent
        };
        if is_last_will.unwrap_or_else(is_sent_before_online) {
            OfflineReason::Will
        } else {
            OfflineReason::Client
        }
    }

    fn on_offline(
        &mut self,
        mut received_at: ReceivedAt,
        reason: OfflineReason,
    ) -> Result<(), IgnoreReason> {
        if self.last_presence_received_at.is_none() {
            return Err(IgnoreReason::NotConnected);
        }
        // An offline message with a queue position is stored even if the client is already
        // disconnected, because a delayed heartbeat must be compared with the latest offline
        // message.
        if received_at.position.is_none() {
            if !self.is_connected() {
                return Err(IgnoreReason::NotConnected);
            }
            received_at = self.enforce_order(received_at);
        }
        self.last_presence_kind = PresenceKind::Offline;
        self.last_presence_received_at = Some(received_at);
        self.new_offline_reason = Some(reason);
        if self.is_connected() {
            // The offline message is stored, but a later heartbeat keeps the client connected.
            return Err(IgnoreReason::Superseded);
        }
        Ok(())
    }

    fn on_heartbeat(
        &mut self,
        mut received_at: ReceivedAt,
        from_answers_topic: bool,
    ) -> Result<(), IgnoreReason> {
        let Some(last) = self.last_presence_received_at else {
            return Err(IgnoreReason::NotConnected);
        };
        // A heartbeat from the answers topic is stored even if the client is connected. Kafka may
        // still deliver an offline message with an earlier receive time. The stored heartbeat then
        // keeps the client connected.
        if !from_answers_topic && self.is_connected() {
            self.ignored_heartbeat_at = self.ignored_heartbeat_at.max(Some(received_at.time));
            return Err(IgnoreReason::AlreadyConnected);
        }
        if !from_answers_topic {
            received_at.time = received_at.time.max(next_microsecond(last.time));
        }
        if !received_at.is_after(&last) {
            return Err(IgnoreReason::Superseded);
        }
        if self
            .last_heartbeat_at
            .is_none_or(|last_heartbeat| received_at.is_after(&last_heartbeat))
        {
            self.last_heartbeat_at = Some(received_at);
        }
        self.has_new_heartbeat = true;
        Ok(())
    }

    /// Counts a change between connected and disconnected.
    fn count_transition(&mut self, was_connected: bool) {
        let is_connected = self.is_connected();
        self.transitions.all += u64::from(is_connected != was_connected);
        self.transitions.connects += u64::from(is_connected && !was_connected);
    }

    /// Returns the time to store as the time at which the client was last seen.
    fn seen_at(&self) -> Option<Timestamp> {
        let seen_at = self.ignored_heartbeat_at?;
        let is_due = self.last_seen.is_none_or(|last_seen| {
            let age = seen_at.duration_since(last_seen);
            age.is_positive() && age.unsigned_abs() >= self.settings.last_seen_interval
        });
        let is_row_unchanged =
            self.upsert.is_none() && !self.has_new_heartbeat && self.new_offline_reason.is_none();
        (is_due && is_row_unchanged).then_some(seen_at)
    }

    fn into_change(self) -> PresenceChange {
        let is_connected = self.is_connected();
        let seen_at = self.seen_at();
        let offline = self.last_presence_received_at.zip(self.new_offline_reason);
        let mut transitions = self.transitions;
        if !is_connected && self.upsert.is_some() {
            // The statement that ends the connection counts the last transition.
            transitions.all = transitions.all.saturating_sub(1);
        }
        let last_heartbeat_at = self.heartbeat_after_last_presence();
        let has_upsert = self.upsert.is_some();
        let mut upsert = self.upsert;
        if let Some(applied) = &mut upsert {
            applied.last_heartbeat_at = last_heartbeat_at;
        }
        PresenceChange {
            needs_tenant_lookup: is_connected && (has_upsert || !self.was_connected),
            heartbeat_received_at: last_heartbeat_at
                .filter(|_| self.has_new_heartbeat && is_connected && !has_upsert),
            offline: offline.map(|(received_at, reason)| AppliedOfflineMessage {
                received_at,
                reason,
            }),
            upsert,
            seen_at,
            transitions,
        }
    }
}

/// Returns `time` plus one microsecond. The databases store timestamps in microseconds.
fn next_microsecond(time: Timestamp) -> Timestamp {
    time.saturating_add(Duration::from_micros(1))
        .unwrap_or(time)
}

#[cfg(test)]
mod tests;
