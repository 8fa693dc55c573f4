//! Delivery a client says that it is there: once and truly, or as it was told to misbehave.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::Misbehavior;
use super::dialect::{Delivery, Dialect, Outgoing};
use crate::domain::{ClientInfo, Timestamp};

/// The order in which a burst's messages come, by the time that they were made at.
const BURST: [u64; 5] = [0, 2, 1, 4, 3];
const FAR: Duration = Duration::from_hours(5 * 365 * 24);
const LARGE: usize = 100_000;
const DEEP: usize = 10_000;

#[derive(Debug, Clone, Default)]
pub(super) struct Misbehaviors(Vec<Misbehavior>);

impl Misbehaviors {
    pub fn new(kinds: &[Misbehavior]) -> Self {
        Self(kinds.to_vec())
    }

    pub fn has(&self, kind: Misbehavior) -> bool {
        self.0.contains(&kind)
    }

    /// What to publish so as to be online, in rounds: those of one round go out side by side. The
    /// last word is always a good one. `nth` counts the times that this client has said it.
    pub fn online(
        &self,
        voice: Dialect,
        now: Timestamp,
        reported: &ClientInfo,
        (arriving, nth): (bool, u64),
    ) -> Vec<Vec<Outgoing>> {
        let mut rounds = Vec::new();
        if self.has(Misbehavior::Garbage) {
            rounds.push(vec![hostile(voice, nth), hostile(voice, nth + 1)]);
        }
        let now = self.clock(now, nth);
        let mut good: Vec<Outgoing> = if arriving && self.has(Misbehavior::Burst) {
            let made = |back| now - Duration::from_millis(5 - back);
            BURST.map(|back| voice.online(made(back), reported)).into()
        } else {
            vec![voice.online(now, reported)]
        };
        if self.has(Misbehavior::Duplicate) {
            good = good
                .into_iter()
                .flat_map(|one| [one.clone(), one])
                .collect();
        }
        rounds.push(good);
        rounds
    }

    fn clock(&self, now: Timestamp, nth: u64) -> Timestamp {
        if !self.has(Misbehavior::LyingClock) {
            return now;
        }
        let lie = if nth.is_multiple_of(2) {
            now.checked_add(FAR)
        } else {
            now.checked_sub(FAR)
        };
        lie.unwrap_or(now)
    }
}

/// A payload that no service should stumble over, and that registers and removes nothing.
fn hostile(voice: Dialect, nth: u64) -> Outgoing {
    let kinds: [fn(Dialect) -> Vec<u8>; 10] = [
        |_| b"this is not JSON".to_vec(),
        |_| br#"{"type":"connection-status","message_id":""#.to_vec(),
        |_| vec![0xff, 0xfe, 0x00, 0x80],
        wrong_shape,
        |_| b"[".repeat(DEEP),
        |_| br#"{"type":"no-such-type","message_id":"x","version":1}"#.to_vec(),
        |_| br#"{"type":"\u0000","message_id":"\u0000","content":{"state":"\u0000"}}"#.to_vec(),
        |_| json!({"type": "x".repeat(LARGE)}).to_string().into_bytes(),
        |_| b"null".to_vec(),
        |_| b"[1, 2, 3]".to_vec(),
    ];
    let kind = usize::try_from(nth).unwrap_or_default() % kinds.len();
    Outgoing {
        route: voice.state_route(),
        payload: kinds[kind](voice),
        how: Delivery::Acknowledged,
    }
}

fn wrong_shape(voice: Dialect) -> Vec<u8> {
    let message = match voice {
        Dialect::Status => json!({
            "type": "connection-status", "message_id": Uuid::new_v4(), "content": "online",
        }),
        Dialect::Handshake(_) => json!({
            "type": "host-handshake", "message_id": Uuid::new_v4(),
            "payload": {"canonical_facts": "none"},
        }),
    };
    message.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::simulate::dialect::reported;
    use crate::domain::{ClientId, ClientKind};
    use crate::protocol::ClientMessage;
    use crate::protocol::{handshake, status};

    const VOICES: [Dialect; 2] = [Dialect::Status, Dialect::Handshake(ClientKind::Host)];

    fn onlines(kinds: &[Misbehavior], voice: Dialect, nth: u64) -> Vec<Vec<Outgoing>> {
        let reported = reported(&ClientId::new("me").unwrap());
        let now = Timestamp::from_second(2_000_000_000).unwrap();
        Misbehaviors::new(kinds).online(voice, now, &reported, (true, nth))
    }

    fn sent(saying: &Outgoing) -> Timestamp {
        match status::decode_control(&saying.payload).unwrap() {
            ClientMessage::Online(online) => online.sent.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_hostile_registers_or_removes_anything() {
        for voice in VOICES {
            for nth in 0..10 {
                let payload = hostile(voice, nth).payload;
                let said = match voice {
                    Dialect::Status => status::decode_control(&payload),
                    Dialect::Handshake(_) => handshake::read(&payload),
                };
                let taken = matches!(said, Ok(ClientMessage::Online(_) | ClientMessage::Offline));
                assert!(!taken, "{voice:?}: {}", String::from_utf8_lossy(&payload));
            }
        }
    }

    #[test]
    fn good_manners_are_one_message_and_garbage_leaves_it_the_last_word() {
        for voice in VOICES {
            let good = onlines(&[], voice, 0);
            assert_eq!((good.len(), good[0].len()), (1, 1));
            let last = onlines(&[Misbehavior::Garbage], voice, 3).pop().unwrap();
            assert_eq!((last.len(), last[0].how), (1, good[0][0].how));
        }
    }

    #[test]
    fn a_burst_is_out_of_order_and_a_duplicate_is_the_same_message() {
        let burst = onlines(&[Misbehavior::Burst], Dialect::Status, 0);
        let times: Vec<_> = burst[0].iter().map(sent).collect();
        assert_eq!(times.len(), 5);
        assert!(!times.is_sorted(), "{times:?}");
        let twice = onlines(&[Misbehavior::Duplicate], Dialect::Status, 0);
        assert_eq!(twice[0].len(), 2);
        assert_eq!(twice[0][0], twice[0][1]);
    }

    #[test]
    fn a_lying_clock_lies_both_ways() {
        let time = |nth| {
            sent(&onlines(&[Misbehavior::LyingClock], Dialect::Status, nth)[0][0]).as_second()
        };
        assert!(time(0) > 2_100_000_000 && time(1) < 1_900_000_000);
    }
}
