//! What a client's messages, taken in order, end in.
//!
//! Clocks lie, wills are built at a client's start, and delivery repeats. So:
//! - an offline always takes effect, in the order in which the broker delivered it;
//! - an online with the id already recorded is a duplicate; one sent a little before the recorded
//!   one is old; one sent long before it means that the clock was set, and the order decides;
//! - a `sent` in the future counts as the time of receipt, so that no client locks itself out;
//! - the broker's replay of the very handshake that an offline ended does not register again;
//! - a sign of life brings back who left, and registers nobody else. Through the queue it may
//!   overtake other messages, so there the times of receipt decide which was first;
//! - what stood in the queue before the recorded message is a repetition, whatever it says.

use std::time::Duration;

use crate::domain::{Dialect, MessageId, Timestamp};
use crate::protocol::Online;
use crate::store::{ReceivedAt, StoredState};

/// One message of a client, parsed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PresenceSignal {
    Online {
        online: Box<Online>,
        dialect: Dialect,
        prefix: String,
        heard: ReceivedAt,
        /// Whether it was said now.
        voice: ReplayKind,
        /// Which event of the batch it is.
        event: usize,
    },
    Offline {
        heard: ReceivedAt,
    },
    /// The embedded broker knows that nothing of the client is left.
    ConnectionClosed {
        at: Timestamp,
    },
    Alive {
        at: Timestamp,
        /// It came by a way of its own.
        late: bool,
    },
}

/// Whether something was said now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayKind {
    /// It was.
    Now,
    /// The broker had kept it.
    RetainedByBroker,
    /// An operator wants it processed again.
    RequestedByOperator,
}

/// What is to be written so that the client is as its messages say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PresenceChange {
    /// The latest online that took effect.
    pub arrival: Option<Box<ResolvedOnline>>,
    /// It showed life, and that holds it or brings it back.
    pub sighting: Option<Timestamp>,
    /// Its last word was a farewell.
    pub departure: Option<ReceivedAt>,
    /// In the end it is connected, and was not before or said anew what it is.
    pub comes: bool,
}

/// The online message that a client ends up with, its clock mended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResolvedOnline {
    pub online: Online,
    pub dialect: Dialect,
    pub prefix: String,
    pub sent: Timestamp,
    pub heard: ReceivedAt,
    pub last_heartbeat_at: Option<Timestamp>,
    pub event: usize,
}

/// Why a message has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ignored {
    /// Its id is the recorded one's.
    Duplicate,
    /// It was sent before the recorded one.
    Old,
    /// It was taken from the queue before.
    Redelivered,
    /// A sign of life that came later was seen before it.
    Superseded,
    /// The broker's replay of a handshake that an offline has ended.
    ReplayOfEndedHandshake,
    /// Nobody to leave, or to bring back.
    NotConnected,
    /// A sign of life of who is connected anyway.
    AlreadyConnected,
}

impl Ignored {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Old => "old",
            Self::Redelivered => "repetition",
            Self::Superseded => "overtaken",
            Self::ReplayOfEndedHandshake => "ended_replay",
            Self::NotConnected => "not_connected",
            Self::AlreadyConnected => "already_connected",
        }
    }
}

/// Folds a client's steps over what is known of it. `skipped` is told of each without effect.
pub(super) fn apply(
    known: Option<&StoredState>,
    steps: Vec<PresenceSignal>,
    stale_online_window: Duration,
    mut skipped: impl FnMut(Ignored),
) -> PresenceChange {
    let mut client = PresenceState::new(known, stale_online_window);
    for step in steps {
        if let Err(why) = client.take(step) {
            skipped(why);
        }
    }
    client.fate()
}

/// The online that a client is, or was, connected by.
#[derive(Clone)]
struct OnlineRef {
    id: Option<MessageId>,
    sent: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastSignal {
    Online,
    Farewell,
}

/// A client while its messages are gone through. What it says of its presence and its signs of life
/// are kept apart: so they come to the same, whichever overtakes the other.
struct PresenceState {
    word: Option<OnlineRef>,
    /// When its last word about presence was heard, and what it was.
    heard: Option<ReceivedAt>,
    last: LastSignal,
    last_heartbeat_at: Option<Timestamp>,
    was_here: bool,
    stale_online_window: Duration,
    arrival: Option<Box<ResolvedOnline>>,
    departs: bool,
    is_seen: bool,
}

impl PresenceState {
    fn new(known: Option<&StoredState>, stale_online_window: Duration) -> Self {
        let row = known.and_then(|known| known.connected.as_ref());
        let left = known.and_then(|known| known.departed.as_ref());
        let word = |id: &Option<MessageId>, sent| OnlineRef {
            id: id.clone(),
            sent,
        };
        Self {
            word: row
                .map(|row| word(&row.message_id, row.message_sent))
                .or_else(|| left.map(|left| word(&left.message_id, left.message_sent))),
            heard: row
                .map(|row| row.heard)
                .or_else(|| left.map(|left| left.heard)),
            last: match row {
                Some(row) if !row.has_left => LastSignal::Online,
                _ => LastSignal::Farewell,
            },
            last_heartbeat_at: row.and_then(|row| row.last_heartbeat_at),
            was_here: row.is_some(),
            stale_online_window,
            arrival: None,
            departs: false,
            is_seen: false,
        }
    }

    fn is_connected(&self) -> bool {
        let said = self.heard.map(|heard| heard.at);
        self.last == LastSignal::Online
            || (self.last_heartbeat_at.is_some() && self.last_heartbeat_at > said)
    }

    fn take(&mut self, step: PresenceSignal) -> Result<(), Ignored> {
        match step {
            PresenceSignal::Online {
                online,
                dialect,
                prefix,
                heard,
                voice,
                event,
            } => {
                if voice == ReplayKind::RequestedByOperator {
                    self.check_not_superseded(heard)?;
                }
                let heard = self.enforce_order(heard);
                let sent = online.sent.unwrap_or(heard.at).min(heard.at);
                self.check_online(&online, sent, heard, voice)?;
                self.word = Some(OnlineRef {
                    id: online.message_id.clone(),
                    sent,
                });
                self.heard = Some(heard);
                self.last = LastSignal::Online;
                self.departs = false;
                self.arrival = Some(Box::new(ResolvedOnline {
                    online: *online,
                    dialect,
                    prefix,
                    sent,
                    heard,
                    last_heartbeat_at: None,
                    event,
                }));
                Ok(())
            }
            PresenceSignal::Offline { heard } => {
                self.check_repetition(heard)?;
                self.leave(heard)
            }
            PresenceSignal::ConnectionClosed { at } => self.leave(ReceivedAt { at, place: None }),
            PresenceSignal::Alive { at, late } => self.on_heartbeat(at, late),
        }
    }

    fn check_online(
        &self,
        online: &Online,
        sent: Timestamp,
        heard: ReceivedAt,
        voice: ReplayKind,
    ) -> Result<(), Ignored> {
        self.check_repetition(heard)?;
        let Some(word) = &self.word else {
            return Ok(());
        };
        let is_same = online.message_id.is_some() && online.message_id == word.id;
        if self.last == LastSignal::Farewell {
            // After an offline everything registers, but for this.
            return if voice == ReplayKind::RetainedByBroker && is_same {
                Err(Ignored::ReplayOfEndedHandshake)
            } else {
                Ok(())
            };
        }
        if is_same {
            return Err(Ignored::Duplicate);
        }
        let back = word.sent.duration_since(sent);
        if back.is_positive() && back.unsigned_abs() <= self.stale_online_window {
            return Err(Ignored::Old);
        }
        Ok(())
    }

    /// An operator's replay must not undo what the client has said since.
    fn check_not_superseded(&self, heard: ReceivedAt) -> Result<(), Ignored> {
        let has_spoken = self.heard.is_some_and(|last| last.at >= heard.at);
        if has_spoken {
            return Err(Ignored::Old);
        }
        Ok(())
    }

    /// Both must say so: offsets start over with a topic that is made anew, and clocks of machines
    /// differ.
    fn check_repetition(&self, heard: ReceivedAt) -> Result<(), Ignored> {
        let Some(last) = self.heard else {
            return Ok(());
        };
        match (heard.place, last.place) {
            (Some(place), Some(last_place))
                if place.partition == last_place.partition
                    && place.offset <= last_place.offset
                    && heard.at <= last.at =>
            {
                Err(Ignored::Redelivered)
            }
            _ => Ok(()),
        }
    }

    /// Straight from a broker nothing overtakes anything: whatever the clock says, this is later than
    /// everything before it.
    fn enforce_order(&self, mut heard: ReceivedAt) -> ReceivedAt {
        if heard.place.is_none() {
            let before = self.heard.map(|before| next_microsecond(before.at));
            let latest = before.max(self.last_heartbeat_at);
            heard.at = latest.map_or(heard.at, |latest| latest.max(heard.at));
        }
        heard
    }

    fn leave(&mut self, mut heard: ReceivedAt) -> Result<(), Ignored> {
        if self.heard.is_none() {
            return Err(Ignored::NotConnected);
        }
        if heard.place.is_none() {
            if !self.is_connected() {
                return Err(Ignored::NotConnected);
            }
            heard = self.enforce_order(heard);
        }
        self.last = LastSignal::Farewell;
        self.heard = Some(heard);
        self.departs = true;
        if self.is_connected() {
            return Err(Ignored::Superseded);
        }
        Ok(())
    }

    fn on_heartbeat(&mut self, at: Timestamp, late: bool) -> Result<(), Ignored> {
        let Some(heard) = self.heard else {
            return Err(Ignored::NotConnected);
        };
        if !late && self.is_connected() {
            return Err(Ignored::AlreadyConnected);
        }
        let at = if late {
            at
        } else {
            at.max(next_microsecond(heard.at))
        };
        if at <= heard.at {
            return Err(Ignored::Superseded);
        }
        self.last_heartbeat_at = self.last_heartbeat_at.max(Some(at));
        self.is_seen = true;
        Ok(())
    }

    fn fate(self) -> PresenceChange {
        let is_connected = self.is_connected();
        let said = self.heard.map(|heard| heard.at);
        let last_heartbeat_at = self.last_heartbeat_at.filter(|alive| Some(*alive) > said);
        let has_arrived = self.arrival.is_some();
        let mut arrival = self.arrival;
        if let Some(settled) = &mut arrival {
            settled.last_heartbeat_at = last_heartbeat_at;
        }
        PresenceChange {
            comes: is_connected && (has_arrived || !self.was_here),
            // An arrival carries it; who is gone in the end needs none.
            sighting: last_heartbeat_at.filter(|_| self.is_seen && is_connected && !has_arrived),
            departure: self.heard.filter(|_| self.departs),
            arrival,
        }
    }
}

fn next_microsecond(at: Timestamp) -> Timestamp {
    at.saturating_add(Duration::from_micros(1)).unwrap_or(at)
}

#[cfg(test)]
mod tests;
