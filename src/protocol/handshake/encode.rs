//! What the service sends.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{MessageId, OutgoingMessage, Timestamp};
use crate::protocol::{Command, HandshakeError, to_bytes};

#[derive(Serialize)]
struct ToApplication<'a> {
    r#type: &'static str,
    message_id: Uuid,
    version: u8,
    sent: Timestamp,
    directive: &'a str,
    /// Only where the caller gave some.
    #[serde(skip_serializing_if = "Value::is_null")]
    metadata: &'a Value,
    payload: &'a Value,
}

#[derive(Serialize)]
struct HandshakeErrorEnvelope<'a> {
    r#type: &'static str,
    message_id: Uuid,
    in_response_to: Option<&'a str>,
    version: u8,
    sent: Timestamp,
    payload: Details<'a>,
}

#[derive(Serialize)]
struct Details<'a> {
    details: &'a str,
}

#[derive(Serialize)]
struct ForceDisconnect<'a> {
    r#type: &'static str,
    message_id: Uuid,
    version: u8,
    sent: Timestamp,
    reconnect_after: String,
    /// Why, for people; only where there is something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Details<'a>>,
}

/// The bytes of a message to a client.
#[must_use]
pub fn encode_message(message: &OutgoingMessage) -> Vec<u8> {
    to_bytes(&ToApplication {
        r#type: "message",
        message_id: message.id,
        version: 1,
        sent: message.sent,
        directive: &message.directive,
        metadata: &message.metadata,
        payload: &message.payload,
    })
}

/// The bytes of the answer to a handshake that cannot be taken.
#[must_use]
pub fn encode_refusal(refusal: &HandshakeError, id: Uuid, now: Timestamp) -> Vec<u8> {
    to_bytes(&HandshakeErrorEnvelope {
        r#type: "handshake-error",
        message_id: id,
        in_response_to: refusal.in_response_to.as_ref().map(MessageId::as_str),
        version: 1,
        sent: now,
        payload: Details {
            details: &refusal.why.detail,
        },
    })
}

/// The bytes of a command; none for a ping, which has no message of its own here.
#[must_use]
pub fn encode_command(command: &Command, id: Uuid, now: Timestamp) -> Option<Vec<u8>> {
    let (reconnect_after, message) = match command {
        Command::Ping => return None,
        Command::Reconnect {
            delay_seconds,
            message,
        } => (after(now, *delay_seconds).to_string(), message),
        Command::Disconnect { message } => ("never".to_owned(), message),
    };
    let payload = (!message.is_empty()).then_some(Details { details: message });
    Some(to_bytes(&ForceDisconnect {
        r#type: "force-disconnect",
        message_id: id,
        version: 1,
        sent: now,
        reconnect_after,
        payload,
    }))
}

/// So many seconds from now, or the end of time.
fn after(now: Timestamp, seconds: u64) -> Timestamp {
    let span = std::time::Duration::from_secs(seconds);
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Rejection;
    use insta::assert_snapshot;
    use serde_json::json;

    const ID: Uuid = uuid::uuid!("33390934-7628-49f6-88ea-528ef740c774");

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T15:04:05Z".parse().unwrap()
    }

    fn message(metadata: Value) -> String {
        text(encode_message(&OutgoingMessage {
            id: ID,
            sent: now(),
            directive: "catalog:ping".into(),
            metadata,
            payload: json!({"a": "<&>"}),
        }))
    }

    fn command(command: &Command) -> String {
        text(encode_command(command, ID, now()).unwrap())
    }

    #[test]
    fn a_message_has_metadata_only_where_the_caller_gave_some() {
        assert_snapshot!(message(Value::Null), @r#"{"type":"message","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","directive":"catalog:ping","payload":{"a":"<&>"}}"#);
        assert_snapshot!(message(json!({"k": "v"})), @r#"{"type":"message","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","directive":"catalog:ping","metadata":{"k":"v"},"payload":{"a":"<&>"}}"#);
    }

    #[test]
    fn a_handshake_error_names_the_handshake_or_null() {
        let refusal = |id: &str| {
            let refusal = HandshakeError {
                in_response_to: MessageId::new(id).ok(),
                why: Rejection::wrong_shape("payload.canonical_facts is not an object"),
            };
            text(encode_refusal(&refusal, ID, now()))
        };
        assert_snapshot!(refusal("h1"), @r#"{"type":"handshake-error","message_id":"33390934-7628-49f6-88ea-528ef740c774","in_response_to":"h1","version":1,"sent":"2026-01-02T15:04:05Z","payload":{"details":"payload.canonical_facts is not an object"}}"#);
        assert_snapshot!(refusal(""), @r#"{"type":"handshake-error","message_id":"33390934-7628-49f6-88ea-528ef740c774","in_response_to":null,"version":1,"sent":"2026-01-02T15:04:05Z","payload":{"details":"payload.canonical_facts is not an object"}}"#);
    }

    #[test]
    fn a_reconnect_is_a_force_disconnect_until_then_and_a_disconnect_one_for_ever() {
        let reconnect = Command::Reconnect {
            delay_seconds: 90,
            message: String::new(),
        };
        assert_snapshot!(command(&reconnect), @r#"{"type":"force-disconnect","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","reconnect_after":"2026-01-02T15:05:35Z"}"#);
        let disconnect = Command::Disconnect {
            message: "moved <away>".into(),
        };
        assert_snapshot!(command(&disconnect), @r#"{"type":"force-disconnect","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","reconnect_after":"never","payload":{"details":"moved <away>"}}"#);
        assert_eq!(encode_command(&Command::Ping, ID, now()), None);
        let forever = Command::Reconnect {
            delay_seconds: u64::MAX,
            message: String::new(),
        };
        assert!(command(&forever).contains("\"reconnect_after\":\"9999-"));
    }
}
