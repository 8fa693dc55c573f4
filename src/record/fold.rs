//! What a client's messages, taken in order, end in.
//!
//! Clocks lie, wills are built at a client's start, and delivery repeats. So:
//! - an offline always takes effect, in the order in which the broker delivered it;
//! - an online with the id already recorded is a duplicate; one sent a little before the recorded
//!   one is old; one sent long before it means that the clock was set, and the order decides;
//! - a `sent` in the future counts as the time of receipt, so that no client locks itself out.

use std::time::Duration;

use crate::domain::{MessageId, Reported, Timestamp};
use crate::protocol::status::Online;
use crate::store::KnownConnection;

/// One message of a client, parsed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Online {
        online: Box<Online>,
        prefix: String,
        received: Timestamp,
    },
    Offline,
}

/// How a client ends up.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fate {
    /// As it was before.
    Unchanged,
    /// Connected, by this online.
    Connected(Box<Settled>),
    /// Not connected.
    Gone,
}

/// The online message that a client ends up with, its clock mended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settled {
    pub prefix: String,
    pub message_id: Option<MessageId>,
    pub sent: Timestamp,
    pub received: Timestamp,
    pub reported: Reported,
}

/// Why an online has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoEffect {
    Duplicate,
    Old,
}

impl NoEffect {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Old => "old",
        }
    }
}

/// Folds a client's steps over what is known of it. `skipped` is told of each without effect.
pub(super) fn fold(
    known: Option<&KnownConnection>,
    steps: &[Step],
    old_within: Duration,
    mut skipped: impl FnMut(NoEffect),
) -> Fate {
    let mut present = known.map(|row| (row.message_id.clone(), row.message_sent));
    let mut fate = Fate::Unchanged;
    for step in steps {
        match step {
            Step::Offline => {
                present = None;
                fate = Fate::Gone;
            }
            Step::Online {
                online,
                prefix,
                received,
            } => {
                let sent = online.sent.unwrap_or(*received).min(*received);
                if let Some((id, before)) = &present
                    && let Some(why) = no_effect(online, sent, id.as_ref(), *before, old_within)
                {
                    skipped(why);
                    continue;
                }
                present = Some((online.message_id.clone(), sent));
                fate = Fate::Connected(Box::new(Settled {
                    prefix: prefix.clone(),
                    message_id: online.message_id.clone(),
                    sent,
                    received: *received,
                    reported: online.reported.clone(),
                }));
            }
        }
    }
    fate
}

fn no_effect(
    online: &Online,
    sent: Timestamp,
    id: Option<&MessageId>,
    before: Timestamp,
    old_within: Duration,
) -> Option<NoEffect> {
    if online.message_id.is_some() && online.message_id.as_ref() == id {
        return Some(NoEffect::Duplicate);
    }
    let back = before.duration_since(sent);
    if back.is_positive() && back.unsigned_abs() <= old_within {
        return Some(NoEffect::Old);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const OLD: Duration = Duration::from_mins(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn reported(tag: &str) -> Reported {
        Reported {
            canonical_facts: json!({}),
            dispatchers: json!(null),
            tags: json!({ "tag": tag }),
            client_name: String::new(),
            client_version: String::new(),
        }
    }

    fn online(id: &str, sent: Option<i64>, received: i64) -> Step {
        Step::Online {
            online: Box::new(Online {
                message_id: MessageId::new(id).ok(),
                sent: sent.map(at),
                reported: reported(id),
            }),
            prefix: "p".into(),
            received: at(received),
        }
    }

    fn row(id: &str, sent: i64) -> KnownConnection {
        KnownConnection {
            message_id: MessageId::new(id).ok(),
            message_sent: at(sent),
            tenant: None,
        }
    }

    fn run(known: Option<&KnownConnection>, steps: &[Step]) -> (Fate, Vec<NoEffect>) {
        let mut skipped = Vec::new();
        let fate = fold(known, steps, OLD, |why| skipped.push(why));
        (fate, skipped)
    }

    fn connected_by(fate: &Fate) -> (&str, Timestamp) {
        match fate {
            Fate::Connected(settled) => (
                settled.message_id.as_ref().map_or("", MessageId::as_str),
                settled.sent,
            ),
            other => panic!("not connected: {other:?}"),
        }
    }

    #[test]
    fn the_last_of_a_burst_wins() {
        let (fate, skipped) = run(
            None,
            &[
                online("a", Some(1), 5),
                Step::Offline,
                online("b", Some(2), 6),
            ],
        );
        assert_eq!(connected_by(&fate), ("b", at(2)));
        assert!(skipped.is_empty());
    }

    #[test]
    fn an_online_with_the_recorded_id_is_a_duplicate() {
        let (fate, skipped) = run(Some(&row("a", 1)), &[online("a", Some(9), 9)]);
        assert_eq!(fate, Fate::Unchanged);
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
        assert_eq!(fate, Fate::Unchanged);
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
        let (fate, _) = run(Some(&row("a", 100)), &[Step::Offline]);
        assert_eq!(fate, Fate::Gone);
        let (fate, skipped) = run(
            Some(&row("a", 100)),
            &[Step::Offline, online("a", Some(99), 101)],
        );
        assert_eq!(connected_by(&fate), ("a", at(99)));
        assert!(skipped.is_empty());
    }

    #[test]
    fn a_repeated_suffix_ends_in_the_same_state() {
        let steps = [
            online("a", Some(1), 1),
            Step::Offline,
            online("b", Some(2), 2),
            online("c", Some(3), 3),
        ];
        let (once, _) = run(None, &steps);
        for cut in 0..steps.len() {
            let (again, _) = run(Some(&row("c", 3)), &steps[cut..]);
            match again {
                Fate::Unchanged => {}
                again => assert_eq!(again, once, "from {cut}"),
            }
        }
    }
}
