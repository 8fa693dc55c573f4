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
            return Err(NoEffect::Duplicate);
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
mod tests {
    use super::*;
    use crate::domain::{Kind, Reported};
    use crate::store::{KnownConnection, KnownDeparture, Place};
    use serde_json::json;

    const OLD: Duration = Duration::from_mins(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn reported(tag: &str) -> Reported {
        Reported {
            canonical_facts: json!({}),
            catalog_service_facts: json!(null),
            dispatchers: json!(null),
            tags: json!({ "tag": tag }),
            client_name: String::new(),
            client_version: String::new(),
        }
    }

    fn heard(second: i64) -> Heard {
        Heard {
            at: at(second),
            place: None,
        }
    }

    fn online(id: &str, sent: Option<i64>, received: i64) -> Step {
        Step::Online {
            online: Box::new(Online {
                kind: Kind::Host,
                message_id: MessageId::new(id).ok(),
                sent: sent.map(at),
                reported: reported(id),
            }),
            dialect: Dialect::Status,
            prefix: "p".into(),
            heard: heard(received),
            voice: Voice::Now,
            event: 0,
        }
    }

    fn replay(step: Step) -> Step {
        said(step, Voice::BrokersReplay)
    }

    fn said(mut step: Step, by: Voice) -> Step {
        if let Step::Online { voice, .. } = &mut step {
            *voice = by;
        }
        step
    }

    /// At this place of the queue.
    fn placed(mut step: Step, offset: i64) -> Step {
        if let Step::Online { heard, .. } | Step::Offline { heard } = &mut step {
            heard.place = Some(Place {
                partition: 0,
                offset,
            });
        }
        step
    }

    fn offline(received: i64) -> Step {
        Step::Offline {
            heard: heard(received),
        }
    }

    fn alive(received: i64) -> Step {
        Step::Alive {
            at: at(received),
            late: false,
        }
    }

    fn late(received: i64) -> Step {
        Step::Alive {
            at: at(received),
            late: true,
        }
    }

    fn row(id: &str, sent: i64) -> Known {
        Known {
            connected: Some(KnownConnection {
                message_id: MessageId::new(id).ok(),
                message_sent: at(sent),
                tenant: None,
                heard: heard(sent),
                has_left: false,
                alive_at: None,
            }),
            departed: None,
        }
    }

    fn left(id: &str, sent: i64, when: i64) -> Known {
        Known {
            connected: None,
            departed: Some(KnownDeparture {
                message_id: MessageId::new(id).ok(),
                message_sent: at(sent),
                tenant: None,
                heard: heard(when),
            }),
        }
    }

    fn run(known: Option<&Known>, steps: &[Step]) -> (Fate, Vec<NoEffect>) {
        let mut skipped = Vec::new();
        let fate = fold(known, steps.to_vec(), OLD, |why| skipped.push(why));
        (fate, skipped)
    }

    fn connected_by(fate: &Fate) -> (&str, Timestamp) {
        match fate {
            Fate {
                arrival: Some(settled),
                departure: None,
                ..
            } => (
                settled
                    .online
                    .message_id
                    .as_ref()
                    .map_or("", MessageId::as_str),
                settled.sent,
            ),
            other => panic!("not connected: {other:?}"),
        }
    }

    #[test]
    fn the_last_of_a_burst_wins() {
        let (fate, skipped) = run(
            None,
            &[online("a", Some(1), 5), offline(5), online("b", Some(2), 6)],
        );
        assert_eq!(connected_by(&fate), ("b", at(2)));
        assert!(skipped.is_empty());
    }

    #[test]
    fn an_online_with_the_recorded_id_is_a_duplicate() {
        let (fate, skipped) = run(Some(&row("a", 1)), &[online("a", Some(9), 9)]);
        assert_eq!(fate, Fate::default());
        assert_eq!(skipped, [NoEffect::Duplicate]);
    }

    #[test]
    fn an_empty_id_never_makes_a_duplicate() {
        let (fate, _) = run(Some(&row("", 1)), &[online("", Some(9), 9)]);
        assert_eq!(connected_by(&fate), ("", at(9)));
    }

    #[test]
    fn an_online_sent_a_little_before_the_recorded_one_is_old() {
        let (fate, skipped) = run(Some(&row("b", 601)), &[online("a", Some(1), 700)]);
        assert_eq!(fate, Fate::default());
        assert_eq!(skipped, [NoEffect::Old]);
    }

    #[test]
    fn further_back_the_clock_was_set_and_the_order_decides() {
        let (fate, _) = run(Some(&row("b", 602)), &[online("a", Some(1), 700)]);
        assert_eq!(connected_by(&fate), ("a", at(1)));
    }

    #[test]
    fn a_clock_in_the_future_locks_nobody_out() {
        let (fate, _) = run(None, &[online("a", Some(9_000_000), 10)]);
        assert_eq!(connected_by(&fate), ("a", at(10)));
        let (fate, _) = run(Some(&row("a", 10)), &[online("b", Some(11), 12)]);
        assert_eq!(connected_by(&fate), ("b", at(11)));
    }

    #[test]
    fn a_missing_clock_is_the_time_of_receipt() {
        let (fate, _) = run(None, &[online("a", None, 10)]);
        assert_eq!(connected_by(&fate), ("a", at(10)));
    }

    #[test]
    fn an_offline_is_never_old_and_an_online_after_it_always_registers() {
        let (fate, _) = run(Some(&row("a", 100)), &[offline(101)]);
        assert_eq!(fate.departure, Some(heard(101)));
        let (fate, skipped) = run(
            Some(&row("a", 100)),
            &[offline(5), online("a", Some(99), 101)],
        );
        assert_eq!(connected_by(&fate), ("a", at(99)));
        assert!(skipped.is_empty());
    }

    #[test]
    fn a_repeated_suffix_ends_in_the_same_state() {
        let steps = [
            online("a", Some(1), 1),
            offline(5),
            online("b", Some(2), 2),
            online("c", Some(3), 3),
        ];
        let (once, _) = run(None, &steps);
        for cut in 0..steps.len() {
            let (again, _) = run(Some(&row("c", 3)), &steps[cut..]);
            if again != Fate::default() {
                assert_eq!(again, once, "from {cut}");
            }
        }
    }

    #[test]
    fn who_came_and_went_in_one_batch_is_remembered() {
        let (fate, _) = run(None, &[online("a", Some(1), 1), offline(2)]);
        assert!(fate.arrival.is_some());
        assert_eq!(fate.departure, Some(heard(2)));
    }

    #[test]
    fn a_replay_of_the_handshake_that_an_offline_ended_does_not_register_again() {
        let known = left("h1", 1, 5);
        let (fate, skipped) = run(Some(&known), &[replay(online("h1", Some(1), 9))]);
        assert_eq!(
            (fate, skipped),
            (Fate::default(), vec![NoEffect::EndedReplay])
        );
        // Said anew it does, and so does the replay of another one.
        let (fate, _) = run(Some(&known), &[online("h1", Some(1), 9)]);
        assert_eq!(connected_by(&fate).0, "h1");
        let (fate, _) = run(Some(&known), &[replay(online("h2", Some(1), 9))]);
        assert_eq!(connected_by(&fate).0, "h2");
        // Also within one batch.
        let (fate, skipped) = run(
            None,
            &[
                online("h1", Some(1), 1),
                offline(2),
                replay(online("h1", Some(1), 3)),
            ],
        );
        assert_eq!(fate.departure, Some(heard(2)));
        assert_eq!(skipped, [NoEffect::EndedReplay]);
    }

    #[test]
    fn an_operators_replay_undoes_nothing_that_was_said_since() {
        let again = |received| said(online("old", Some(1), received), Voice::OperatorsReplay);
        for known in [row("new", 100), left("new", 100, 100)] {
            let (fate, skipped) = run(Some(&known), &[again(100)]);
            assert_eq!((fate, skipped), (Fate::default(), vec![NoEffect::Old]));
        }
        assert_eq!(connected_by(&run(None, &[again(100)]).0).0, "old");
        let (fate, _) = run(Some(&left("a", 1, 99)), &[again(100)]);
        assert_eq!(connected_by(&fate).0, "old");
    }

    #[test]
    fn a_clock_that_was_set_back_costs_no_client_its_connection() {
        // Straight from a broker: the order is all that counts.
        let (fate, _) = run(Some(&row("a", 100)), &[offline(90), alive(91)]);
        let (left, seen) = (fate.departure.unwrap().at, fate.sighting.unwrap());
        assert!(at(100) < left && left < seen);
        let (fate, _) = run(Some(&row("a", 100)), &[online("b", None, 90), offline(80)]);
        assert!(fate.departure.unwrap().at > fate.arrival.unwrap().heard.at);
    }

    #[test]
    fn a_sign_of_life_brings_back_who_left_and_registers_nobody_else() {
        let (fate, _) = run(Some(&left("a", 1, 5)), &[alive(9)]);
        assert_eq!((fate.sighting, fate.comes), (Some(at(9)), true));
        assert_eq!(run(None, &[alive(9)]).0, Fate::default());
        assert_eq!(run(Some(&row("a", 1)), &[alive(9)]).0, Fate::default());
        // Also where the clock was set back meanwhile.
        let (fate, _) = run(Some(&left("a", 1, 5)), &[alive(2)]);
        assert!(fate.comes && fate.sighting > Some(at(5)));
        // Away and back in one batch: the farewell is known, the sign of life holds it.
        let (fate, _) = run(Some(&row("a", 1)), &[offline(5), alive(9)]);
        assert_eq!((fate.sighting, fate.comes), (Some(at(9)), false));
        assert_eq!(fate.departure, Some(heard(5)));
    }

    #[test]
    fn an_online_after_an_offline_registers_also_where_a_sign_of_life_came_between() {
        let mut known = row("a", 100);
        let row = known.connected.as_mut().unwrap();
        (row.has_left, row.alive_at) = (true, Some(at(110)));
        let (fate, skipped) = run(Some(&known), &[online("b", Some(99), 111)]);
        assert_eq!(connected_by(&fate).0, "b");
        assert!(skipped.is_empty());
    }

    #[test]
    fn straight_from_a_broker_an_offline_ends_what_a_sign_of_life_held() {
        let mut known = row("a", 100);
        let row = known.connected.as_mut().unwrap();
        (row.has_left, row.alive_at) = (true, Some(at(110)));
        // Whatever the clock says.
        let (fate, skipped) = run(Some(&known), &[offline(105)]);
        assert_eq!((fate.departure, fate.comes), (Some(heard(110)), false));
        assert!(skipped.is_empty());
        let (fate, _) = run(Some(&known), &[Step::LinkEnded { at: at(120) }]);
        assert_eq!(fate.departure, Some(heard(120)));
    }

    #[test]
    fn a_sign_of_life_and_a_farewell_come_to_the_same_whichever_overtakes_the_other() {
        let early = placed(offline(5), 5);
        let later = placed(offline(7), 7);
        // The sign was first: the farewell ends it.
        for steps in [[late(6), later.clone()], [later, late(6)]] {
            let (fate, _) = run(Some(&row("a", 1)), &steps);
            assert_eq!(fate.departure.unwrap().at, at(7));
            assert_eq!((fate.sighting, fate.comes), (None, false));
        }
        // The farewell was first: the sign holds the client.
        for steps in [[late(6), early.clone()], [early.clone(), late(6)]] {
            let (fate, _) = run(Some(&row("a", 1)), &steps);
            assert_eq!(fate.departure.unwrap().at, at(5));
            assert_eq!((fate.sighting, fate.comes), (Some(at(6)), false));
        }
        // A sign from before the recorded farewell or online says nothing.
        for known in [left("a", 1, 5), row("a", 5)] {
            let (fate, skipped) = run(Some(&known), &[late(5)]);
            assert_eq!(
                (fate, skipped),
                (Fate::default(), vec![NoEffect::Overtaken])
            );
        }
        // A second farewell is remembered, so that a sign from between the two says nothing.
        let (fate, _) = run(Some(&left("a", 1, 2)), &[early]);
        assert_eq!(fate.departure.unwrap().at, at(5));
    }

    #[test]
    fn what_stood_in_the_queue_before_is_a_repetition_whatever_it_says() {
        // The clock was set back between b and c: by what they say alone, b would count again and
        // c would be old.
        let steps = [
            placed(online("a", Some(1000), 2001), 1),
            placed(online("b", Some(500), 2002), 2),
            placed(online("c", Some(300), 2003), 3),
        ];
        let (fate, skipped) = run(None, &steps);
        assert_eq!(connected_by(&fate).0, "c");
        assert_eq!(skipped, [NoEffect::Old]);
        let settled = fate.arrival.unwrap();
        let mut known = row("c", 300);
        known.connected.as_mut().unwrap().heard = settled.heard;
        let (again, skipped) = run(Some(&known), &steps[1..]);
        assert_eq!(again, Fate::default());
        assert_eq!(skipped, [NoEffect::Repetition; 2]);
        // A queue made anew starts over, and locks nobody out.
        let (fate, _) = run(Some(&known), &[placed(online("d", Some(3000), 3000), 1)]);
        assert_eq!(connected_by(&fate).0, "d");
    }
}
