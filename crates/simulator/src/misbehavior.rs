//! The online messages of a simulated client: one correct message, or the messages that
//! `--misbehave` requests.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::Misbehavior;
use super::dialect::{Delivery, Dialect, OutgoingMessage};
use domain::{ClientInfo, Timestamp};

/// Order in which the five messages of a burst are published. Message 0 has the oldest `sent` time,
/// message 4 has the newest.
const BURST_ORDER: [u64; 5] = [0, 2, 1, 4, 3];
const CLOCK_SKEW: Duration = Duration::from_hours(5 * 365 * 24);
const LONG_STRING_BYTES: usize = 100_000;
const EXCESSIVE_NESTING_DEPTH: usize = 10_000;

#[derive(Debug, Clone, Default)]
pub(super) struct Misbehaviors(Vec<Misbehavior>);

impl Misbehaviors {
    pub fn new(kinds: &[Misbehavior]) -> Self {
        Self(kinds.to_vec())
    }

    pub fn has(&self, kind: Misbehavior) -> bool {
        self.0.contains(&kind)
    }

    /// Returns one online message, or the messages that the misbehaviors replace it with. The
    /// messages are grouped in rounds. The caller publishes the rounds one after the other, and the
    /// messages of one round concurrently. The last round contains only valid messages.
    ///
    /// `is_first_on_connection` is false for an update. `sequence_number` is the number of earlier
    /// calls for this client.
    pub fn online_message_rounds(
        &self,
        dialect: Dialect,
        now: Timestamp,
        info: &ClientInfo,
        is_first_on_connection: bool,
        sequence_number: u64,
    ) -> Vec<Vec<OutgoingMessage>> {
        let mut rounds = Vec::new();
        if self.has(Misbehavior::Garbage) {
            rounds.push(vec![
                invalid_message(dialect, sequence_number),
                invalid_message(dialect, sequence_number + 1),
            ]);
        }
        let now = self.simulated_client_time(now, sequence_number);
        let mut valid_messages: Vec<OutgoingMessage> =
            if is_first_on_connection && self.has(Misbehavior::Burst) {
                let sent_time = |number| now - Duration::from_millis(5 - number);
                BURST_ORDER
                    .map(|number| dialect.online_message(sent_time(number), info))
                    .into()
            } else {
                vec![dialect.online_message(now, info)]
            };
        if self.has(Misbehavior::Duplicate) {
            valid_messages = valid_messages
                .into_iter()
                .flat_map(|message| [message.clone(), message])
                .collect();
        }
        rounds.push(valid_messages);
        rounds
    }

    fn simulated_client_time(&self, now: Timestamp, sequence_number: u64) -> Timestamp {
        if !self.has(Misbehavior::ClockSkew) {
            return now;
        }
        let skewed_time = if sequence_number.is_multiple_of(2) {
            now.checked_add(CLOCK_SKEW)
        } else {
            now.checked_sub(CLOCK_SKEW)
        };
        skewed_time.unwrap_or(now)
    }
}

/// Returns a message with one of ten payloads that the service must reject or ignore. No payload
/// may register or remove a client.
fn invalid_message(dialect: Dialect, sequence_number: u64) -> OutgoingMessage {
    let payloads: [fn(Dialect) -> Vec<u8>; 10] = [
        |_| b"this is not JSON".to_vec(),
        |_| br#"{"type":"connection-status","message_id":""#.to_vec(),
        |_| vec![0xff, 0xfe, 0x00, 0x80],
        payload_with_invalid_schema,
        |_| b"[".repeat(EXCESSIVE_NESTING_DEPTH),
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
    let index = usize::try_from(sequence_number).unwrap_or_default() % payloads.len();
    OutgoingMessage {
        channel: dialect.presence_channel(),
        payload: payloads[index](dialect),
        delivery: Delivery::Acknowledged,
    }
}

/// Returns the payload of an online message with a string where the schema requires an object.
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
    use crate::dialect::new_client_info;
    use domain::{ClientId, ClientKind};
    use protocol::ClientMessage;
    use protocol::{handshake, status};

    const DIALECTS: [Dialect; 2] = [Dialect::Status, Dialect::Handshake(ClientKind::Host)];

    fn online_message_rounds(
        kinds: &[Misbehavior],
        dialect: Dialect,
        sequence_number: u64,
    ) -> Vec<Vec<OutgoingMessage>> {
        let info = new_client_info(&ClientId::new("c1").unwrap());
        let now = Timestamp::from_second(2_000_000_000).unwrap();
        Misbehaviors::new(kinds).online_message_rounds(dialect, now, &info, true, sequence_number)
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
            for sequence_number in 0..10 {
                let payload = invalid_message(dialect, sequence_number).payload;
                let decoded = match dialect {
                    Dialect::Status => status::decode_control(&payload),
                    Dialect::Handshake(_) => handshake::decode(&payload),
                };
                let changes_presence = matches!(
                    decoded,
                    Ok(ClientMessage::Online(_) | ClientMessage::Offline { .. })
                );
                let payload_text = String::from_utf8_lossy(&payload);
                assert!(!changes_presence, "{dialect:?}: {payload_text}");
            }
        }
    }

    #[test]
    fn one_message_is_published_by_default_and_invalid_messages_are_followed_by_a_valid_message() {
        for dialect in DIALECTS {
            let default_rounds = online_message_rounds(&[], dialect, 0);
            assert_eq!((default_rounds.len(), default_rounds[0].len()), (1, 1));
            let garbage_rounds = online_message_rounds(&[Misbehavior::Garbage], dialect, 3);
            let last_round = garbage_rounds.last().unwrap();
            assert_eq!(
                (last_round.len(), last_round[0].delivery),
                (1, default_rounds[0][0].delivery)
            );
        }
    }

    #[test]
    fn burst_messages_are_out_of_order_and_duplicate_messages_are_equal() {
        let burst_rounds = online_message_rounds(&[Misbehavior::Burst], Dialect::Status, 0);
        let sent_times: Vec<_> = burst_rounds[0].iter().map(sent_time).collect();
        assert_eq!(sent_times.len(), 5);
        assert!(!sent_times.is_sorted(), "{sent_times:?}");
        let duplicate_rounds = online_message_rounds(&[Misbehavior::Duplicate], Dialect::Status, 0);
        assert_eq!(duplicate_rounds[0].len(), 2);
        assert_eq!(duplicate_rounds[0][0], duplicate_rounds[0][1]);
    }

    #[test]
    fn clock_skew_alternates_between_future_and_past() {
        let sent_second = |sequence_number| {
            let rounds =
                online_message_rounds(&[Misbehavior::ClockSkew], Dialect::Status, sequence_number);
            sent_time(&rounds[0][0]).as_second()
        };
        assert!(sent_second(0) > 2_100_000_000 && sent_second(1) < 1_900_000_000);
    }
}
