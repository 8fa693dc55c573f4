//! The online messages of a simulated client: one correct message, or the messages that
//! `--misbehave` requests.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::Misbehavior;
use super::dialect::{Delivery, Dialect, OutgoingMessage};
use crate::domain::{ClientInfo, Timestamp};

/// Order in which the five messages of a burst are published. Message 0 has the oldest `sent` time,
/// message 4 has the newest.
const BURST_ORDER: [u64; 5] = [0, 2, 1, 4, 3];
const CLOCK_SKEW: Duration = Duration::from_hours(5 * 365 * 24);
const LONG_STRING_BYTES: usize = 100_000;
const NESTING_DEPTH: usize = 10_000;

#[derive(Debug, Clone, Default)]
pub(super) struct Misbehaviors(Vec<Misbehavior>);

impl Misbehaviors {
    pub fn new(kinds: &[Misbehavior]) -> Self {
        Self(kinds.to_vec())
    }

    pub fn has(&self, kind: Misbehavior) -> bool {
        self.0.contains(&kind)
    }

    /// Returns rounds of messages. The caller publishes the rounds one after the other, and the
    /// messages of one round concurrently. The last round contains only valid messages.
    ///
    /// `is_first` is true for the first online message on a connection, and false for an update.
    /// `sequence` is the number of earlier calls for this client.
    pub fn online_rounds(
        &self,
        dialect: Dialect,
        now: Timestamp,
        info: &ClientInfo,
        is_first: bool,
        sequence: u64,
    ) -> Vec<Vec<OutgoingMessage>> {
        let mut rounds = Vec::new();
        if self.has(Misbehavior::Garbage) {
            rounds.push(vec![
                invalid_message(dialect, sequence),
                invalid_message(dialect, sequence + 1),
            ]);
        }
        let now = self.simulated_client_time(now, sequence);
        let mut valid: Vec<OutgoingMessage> = if is_first && self.has(Misbehavior::Burst) {
            let sent = |number| now - Duration::from_millis(5 - number);
            BURST_ORDER
                .map(|number| dialect.online(sent(number), info))
                .into()
        } else {
            vec![dialect.online(now, info)]
        };
        if self.has(Misbehavior::Duplicate) {
            valid = valid
                .into_iter()
                .flat_map(|message| [message.clone(), message])
                .collect();
        }
        rounds.push(valid);
        rounds
    }

    fn simulated_client_time(&self, now: Timestamp, sequence: u64) -> Timestamp {
        if !self.has(Misbehavior::ClockSkew) {
            return now;
        }
        let skewed = if sequence.is_multiple_of(2) {
            now.checked_add(CLOCK_SKEW)
        } else {
            now.checked_sub(CLOCK_SKEW)
        };
        skewed.unwrap_or(now)
    }
}

/// Returns a message with one of ten payloads that the service must reject or ignore. No payload
/// may register or remove a client.
fn invalid_message(dialect: Dialect, sequence: u64) -> OutgoingMessage {
    let payloads: [fn(Dialect) -> Vec<u8>; 10] = [
        |_| b"this is not JSON".to_vec(),
        |_| br#"{"type":"connection-status","message_id":""#.to_vec(),
        |_| vec![0xff, 0xfe, 0x00, 0x80],
        payload_with_invalid_schema,
        |_| b"[".repeat(NESTING_DEPTH),
        |_| br#"{"type":"no-such-type","message_id":"x","version":1}"#.to_vec(),
        |_| br#"{"type":"\u0000","message_id":"\u0000","content":{"state":"\u0000"}}"#.to_vec(),
        |_| {
            json!({"type": "x".repeat(LONG_STRING_BYTES)})
                .to_string()
                .into_bytes()
        },
        |_| b"null".to_vec(),
        |_| b"[1, 2, 3]".to_vec(),
    ];
    let index = usize::try_from(sequence).unwrap_or_default() % payloads.len();
    OutgoingMessage {
        channel: dialect.presence_channel(),
        payload: payloads[index](dialect),
        delivery: Delivery::Acknowledged,
    }
}

/// Returns the payload of an online message in which a string replaces an object.
fn payload_with_invalid_schema(dialect: Dialect) -> Vec<u8> {
    let message = match dialect {
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
    use crate::cli::simulate::dialect::new_client_info;
    use crate::domain::{ClientId, ClientKind};
    use crate::protocol::ClientMessage;
    use crate::protocol::{handshake, status};

    const DIALECTS: [Dialect; 2] = [Dialect::Status, Dialect::Handshake(ClientKind::Host)];

    fn online_rounds(
        kinds: &[Misbehavior],
        dialect: Dialect,
        sequence: u64,
    ) -> Vec<Vec<OutgoingMessage>> {
        let info = new_client_info(&ClientId::new("c1").unwrap());
        let now = Timestamp::from_second(2_000_000_000).unwrap();
        Misbehaviors::new(kinds).online_rounds(dialect, now, &info, true, sequence)
    }

    fn sent_time(message: &OutgoingMessage) -> Timestamp {
        match status::decode_control(&message.payload).unwrap() {
            ClientMessage::Online(online) => online.sent.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn invalid_messages_neither_register_nor_remove_a_client() {
        for dialect in DIALECTS {
            for sequence in 0..10 {
                let payload = invalid_message(dialect, sequence).payload;
                let decoded = match dialect {
                    Dialect::Status => status::decode_control(&payload),
                    Dialect::Handshake(_) => handshake::decode(&payload),
                };
                let changes_presence = matches!(
                    decoded,
                    Ok(ClientMessage::Online(_) | ClientMessage::Offline)
                );
                let payload_text = String::from_utf8_lossy(&payload);
                assert!(!changes_presence, "{dialect:?}: {payload_text}");
            }
        }
    }

    #[test]
    fn by_default_one_message_is_published_and_after_garbage_a_valid_message() {
        for dialect in DIALECTS {
            let default = online_rounds(&[], dialect, 0);
            assert_eq!((default.len(), default[0].len()), (1, 1));
            let garbage = online_rounds(&[Misbehavior::Garbage], dialect, 3);
            let last = garbage.last().unwrap();
            assert_eq!((last.len(), last[0].delivery), (1, default[0][0].delivery));
        }
    }

    #[test]
    fn burst_messages_are_out_of_order_and_duplicate_messages_are_equal() {
        let burst = online_rounds(&[Misbehavior::Burst], Dialect::Status, 0);
        let times: Vec<_> = burst[0].iter().map(sent_time).collect();
        assert_eq!(times.len(), 5);
        assert!(!times.is_sorted(), "{times:?}");
        let duplicate = online_rounds(&[Misbehavior::Duplicate], Dialect::Status, 0);
        assert_eq!(duplicate[0].len(), 2);
        assert_eq!(duplicate[0][0], duplicate[0][1]);
    }

    #[test]
    fn clock_skew_alternates_between_future_and_past() {
        let sent_second = |sequence| {
            let rounds = online_rounds(&[Misbehavior::ClockSkew], Dialect::Status, sequence);
            sent_time(&rounds[0][0]).as_second()
        };
        assert!(sent_second(0) > 2_100_000_000 && sent_second(1) < 1_900_000_000);
    }
}
