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
use crate::store::{Heard, Known};

/// One message of a client, parsed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Online {
        online: Box<Online>,
        dialect: Dialect,
        prefix: String,
        heard: Heard,
        /// Whether it was said now.
        voice: Voice,
        /// Which event of the batch it is.
        event: usize,
    },
    Offline {
        heard: Heard,
    },
    /// The embedded broker knows that nothing of the client is left.
    LinkEnded {
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
pub(super) enum Voice {
    /// It was.
    Now,
    /// The broker had kept it.
    BrokersReplay,
    /// An operator wants it processed again.
    OperatorsReplay,
}

/// What is to be written so that the client is as its messages say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fate {
    /// The latest online that took effect.
    pub arrival: Option<Box<Settled>>,
    /// It showed life, and that holds it or brings it back.
    pub sighting: Option<Timestamp>,
    /// Its last word was a farewell.
    pub departure: Option<Heard>,
    /// In the end it is connected, and was not before or said anew what it is.
    pub comes: bool,
}

/// The online message that a client ends up with, its clock mended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settled {
    pub online: Online,
    pub dialect: Dialect,
    pub prefix: String,
    pub sent: Timestamp,
    pub heard: Heard,
    pub alive_at: Option<Timestamp>,
    pub event: usize,
}

/// Why a message has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoEffect {
    /// Its id is the recorded one's.
    Duplicate,
    /// It was sent before the recorded one.
    Old,
    /// It was taken from the queue before.
    Repetition,
    /// A sign of life that came later was seen before it.
    Overtaken,
    /// The broker's replay of a handshake that an offline has ended.
    EndedReplay,
    /// Nobody to leave, or to bring back.
    NotConnected,
    /// A sign of life of who is connected anyway.
    AlreadyConnected,
}

impl NoEffect {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Old => "old",
            Self::Repetition => "repetition",
            Self::Overtaken => "overtaken",
            Self::EndedReplay => "ended_replay",
            Self::NotConnected => "not_connected",
            Self::AlreadyConnected => "already_connected",
        }
    }
}

/// Folds a client's steps over what is known of it. `skipped` is told of each without effect.
pub(super) fn fold(
    known: Option<&Known>,
    steps: Vec<Step>,
    old_within: Duration,
    mut skipped: impl FnMut(NoEffect),
) -> Fate {
    let mut client = Client::new(known, old_within);
    for step in steps {
        if let Err(why) = client.take(step) {
            skipped(why);
        }
    }
    client.fate()
}

/// The online that a client is, or was, connected by.
#[derive(Clone)]
struct Word {
    id: Option<MessageId>,
    sent: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Online,
    Farewell,
}

/// A client while its messages are gone through. What it says of its presence and its signs of life
/// are kept apart: so they come to the same, whichever overtakes the other.
struct Client {
    word: Option<Word>,
    /// When its last word about presence was heard, and what it was.
    heard: Option<Heard>,
    last: Last,
    alive_at: Option<Timestamp>,
    was_here: bool,
    old_within: Duration,
    arrival: Option<Box<Settled>>,
    departs: bool,
    is_seen: bool,
}

impl Client {
    fn new(known: Option<&Known>, old_within: Duration) -> Self {
        let row = known.and_then(|known| known.connected.as_ref());
        let left = known.and_then(|known| known.departed.as_ref());
        let word = |id: &Option<MessageId>, sent| Word {
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
                Some(row) if !row.has_left => Last::Online,
                _ => Last::Farewell,
            },
            alive_at: row.and_then(|row| row.alive_at),
            was_here: row.is_some(),
            old_within,
            arrival: None,
            departs: false,
            is_seen: false,
        }
    }

    fn is_here(&self) -> bool {
        let said = self.heard.map(|heard| heard.at);
        self.last == Last::Online || (self.alive_at.is_some() && self.alive_at > said)
    }

    fn take(&mut self, step: Step) -> Result<(), NoEffect> {
        match step {
            Step::Online {
                online,
                dialect,
                prefix,
                heard,
                voice,
                event,
            } => {
                if voice == Voice::OperatorsReplay {
                    self.check_nothing_since(heard)?;
                }
                let heard = self.in_order(heard);
                let sent = online.sent.unwrap_or(heard.at).min(heard.at);
                self.check_online(&online, sent, heard, voice)?;
                self.word = Some(Word {
                    id: online.message_id.clone(),
                    sent,
                });
                self.heard = Some(heard);
                self.last = Last::Online;
                self.departs = false;
                self.arrival = Some(Box::new(Settled {
                    online: *online,
                    dialect,
                    prefix,
                    sent,
                    heard,
                    alive_at: None,
                    event,
                }));
                Ok(())
            }
            Step::Offline { heard } => {
                self.check_repetition(heard)?;
                self.leave(heard)
            }
            Step::LinkEnded { at } => self.leave(Heard { at, place: None }),
            Step::Alive { at, late } => self.show_life(at, late),
        }
    }

    fn check_online(
        &self,
        online: &Online,
        sent: Timestamp,
        heard: Heard,
        voice: Voice,
    ) -> Result<(), NoEffect> {
        self.check_repetition(heard)?;
        let Some(word) = &self.word else {
            return Ok(());
        };
        let is_same = online.message_id.is_some() && online.message_id == word.id;
        if self.last == Last::Farewell {
            // After an offline everything registers, but for this.
            return if voice == Voice::BrokersReplay && is_same {
                Err(NoEffect::EndedReplay)
            } else {
                Ok(())
            };
        }
        if is_same {
            return Err(NoEffect::Duplicate);
        }
        let back = word.sent.duration_since(sent);
        if back.is_positive() && back.unsigned_abs() <= self.old_within {
            return Err(NoEffect::Old);
        }
        Ok(())
    }

    /// An operator's replay must not undo what the client has said since.
    fn check_nothing_since(&self, heard: Heard) -> Result<(), NoEffect> {
        let has_spoken = self.heard.is_some_and(|last| last.at >= heard.at);
        if has_spoken {
            return Err(NoEffect::Old);
        }
        Ok(())
    }

    /// Both must say so: offsets start over with a topic that is made anew, and clocks of machines
    /// differ.
    fn check_repetition(&self, heard: Heard) -> Result<(), NoEffect> {
        let Some(last) = self.heard else {
            return Ok(());
        };
        match (heard.place, last.place) {
            (Some(place), Some(last_place))
                if place.partition == last_place.partition
                    && place.offset <= last_place.offset
                    && heard.at <= last.at =>
            {
                Err(NoEffect::Repetition)
            }
            _ => Ok(()),
        }
    }

    /// Straight from a broker nothing overtakes anything: whatever the clock says, this is later than
    /// everything before it.
    fn in_order(&self, mut heard: Heard) -> Heard {
        if heard.place.is_none() {
            let before = self.heard.map(|before| just_after(before.at));
            let latest = before.max(self.alive_at);
            heard.at = latest.map_or(heard.at, |latest| latest.max(heard.at));
        }
        heard
    }

    fn leave(&mut self, mut heard: Heard) -> Result<(), NoEffect> {
        if self.heard.is_none() {
            return Err(NoEffect::NotConnected);
        }
        if heard.place.is_none() {
            if !self.is_here() {
                return Err(NoEffect::NotConnected);
            }
            heard = self.in_order(heard);
        }
        self.last = Last::Farewell;
        self.heard = Some(heard);
        self.departs = true;
        if self.is_here() {
            return Err(NoEffect::Overtaken);
        }
        Ok(())
    }

    fn show_life(&mut self, at: Timestamp, late: bool) -> Result<(), NoEffect> {
        let Some(heard) = self.heard else {
            return Err(NoEffect::NotConnected);
        };
        if !late && self.is_here() {
            return Err(NoEffect::AlreadyConnected);
        }
        let at = if late {
            at
        } else {
            at.max(just_after(heard.at))
        };
        if at <= heard.at {
            return Err(NoEffect::Overtaken);
        }
        self.alive_at = self.alive_at.max(Some(at));
        self.is_seen = true;
        Ok(())
    }

    fn fate(self) -> Fate {
        let is_here = self.is_here();
        let said = self.heard.map(|heard| heard.at);
        let alive_at = self.alive_at.filter(|alive| Some(*alive) > said);
        let has_arrived = self.arrival.is_some();
        let mut arrival = self.arrival;
        if let Some(settled) = &mut arrival {
            settled.alive_at = alive_at;
        }
        Fate {
            comes: is_here && (has_arrived || !self.was_here),
            // An arrival carries it; who is gone in the end needs none.
            sighting: alive_at.filter(|_| self.is_seen && is_here && !has_arrived),
            departure: self.heard.filter(|_| self.departs),
            arrival,
        }
    }
}

fn just_after(at: Timestamp) -> Timestamp {
    at.saturating_add(Duration::from_micros(1)).unwrap_or(at)
}

#[cfg(test)]
mod tests;
