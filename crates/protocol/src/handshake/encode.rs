//! Encodes messages of the handshake dialect from the service to clients.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::{Command, HandshakeError, to_bytes};
use domain::{MessageId, OutgoingMessage, Timestamp};

#[derive(Serialize)]
struct MessageEnvelope<'a> {
    r#type: &'static str,
    message_id: Uuid,
    version: u8,
    sent: Timestamp,
    directive: &'a str,
    /// The metadata from the API caller's request. Omitted if the caller sent no metadata.
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
    payload: DetailsPayload<'a>,
}

#[derive(Serialize)]
struct DetailsPayload<'a> {
    details: &'a str,
}

#[derive(Serialize)]
struct ForceDisconnectEnvelope<'a> {
    r#type: &'static str,
    message_id: Uuid,
    version: u8,
    sent: Timestamp,
    reconnect_after: String,
    /// Human-readable reason for the disconnect. Omitted if the reason is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<DetailsPayload<'a>>,
}

/// Encodes a message to an application on the client.
#[must_use]
pub fn encode_message(message: &OutgoingMessage) -> Vec<u8> {
    to_bytes(&MessageEnvelope {
        r#type: "message",
        message_id: message.message_id,
        version: 1,
        sent: message.sent,
        directive: &message.directive,
        metadata: &message.metadata,
        payload: &message.payload,
    })
}

/// Encodes the reply to an invalid handshake.
#[must_use]
pub fn encode_handshake_error(error: &HandshakeError, message_id: Uuid, now: Timestamp) -> Vec<u8> {
    to_bytes(&HandshakeErrorEnvelope {
        r#type: "handshake-error",
        message_id,
        in_response_to: error.in_response_to.as_ref().map(MessageId::as_str),
        version: 1,
        sent: now,
        payload: DetailsPayload {
            details: &error.rejection.detail,
        },
    })
}

/// Encodes a command. Returns `None` for a ping, because this dialect has no ping.
#[must_use]
pub fn encode_command(command: &Command, message_id: Uuid, now: Timestamp) -> Option<Vec<u8>> {
    let (reconnect_after, message) = match command {
        Command::Ping => return None,
        Command::Reconnect {
            delay_seconds,
            message,
        } => (
            saturating_add_seconds(now, *delay_seconds).to_string(),
            message,
        ),
        Command::Disconnect { message } => ("never".to_owned(), message),
    };
    let payload = (!message.is_empty()).then_some(DetailsPayload { details: message });
    Some(to_bytes(&ForceDisconnectEnvelope {
        r#type: "force-disconnect",
        message_id,
        version: 1,
        sent: now,
        reconnect_after,
        payload,
    }))
}

/// Adds seconds to a time. Returns [`Timestamp::MAX`] if the sum would be later.
fn saturating_add_seconds(time: Timestamp, seconds: u64) -> Timestamp {
    let duration = std::time::Duration::from_secs(seconds);
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rejection;
    use insta::assert_snapshot;
    use serde_json::json;

    const MESSAGE_ID: Uuid = uuid::uuid!("33390934-7628-49f6-88ea-528ef740c774");

    fn to_text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T15:04:05Z".parse().unwrap()
    }

    fn encoded_message(metadata: Value) -> String {
        to_text(encode_message(&OutgoingMessage {
            message_id: MESSAGE_ID,
            sent: now(),
            directive: "catalog:ping".into(),
            metadata,
            payload: json!({"a": "<&>"}),
        }))
    }

    fn encoded_command(command: &Command) -> String {
        to_text(encode_command(command, MESSAGE_ID, now()).unwrap())
    }

    #[test]
    fn null_metadata_is_omitted() {
        assert_snapshot!(encoded_message(Value::Null), @r#"{"type":"message","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","directive":"catalog:ping","payload":{"a":"<&>"}}"#);
        assert_snapshot!(encoded_message(json!({"k": "v"})), @r#"{"type":"message","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","directive":"catalog:ping","metadata":{"k":"v"},"payload":{"a":"<&>"}}"#);
    }

    #[test]
    fn handshake_error_contains_the_handshake_id_or_null() {
        let encoded_handshake_error = |handshake_id: &str| {
            let error = HandshakeError {
                in_response_to: MessageId::new(handshake_id).ok(),
                rejection: Rejection::invalid_schema("payload.canonical_facts is not an object"),
            };
            to_text(encode_handshake_error(&error, MESSAGE_ID, now()))
        };
        assert_snapshot!(encoded_handshake_error("h1"), @r#"{"type":"handshake-error","message_id":"33390934-7628-49f6-88ea-528ef740c774","in_response_to":"h1","version":1,"sent":"2026-01-02T15:04:05Z","payload":{"details":"payload.canonical_facts is not an object"}}"#);
        assert_snapshot!(encoded_handshake_error(""), @r#"{"type":"handshake-error","message_id":"33390934-7628-49f6-88ea-528ef740c774","in_response_to":null,"version":1,"sent":"2026-01-02T15:04:05Z","payload":{"details":"payload.canonical_facts is not an object"}}"#);
    }

    #[test]
    fn reconnect_and_disconnect_are_encoded_as_force_disconnect() {
        let reconnect = Command::Reconnect {
            delay_seconds: 90,
            message: String::new(),
        };
        assert_snapshot!(encoded_command(&reconnect), @r#"{"type":"force-disconnect","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","reconnect_after":"2026-01-02T15:05:35Z"}"#);
        let disconnect = Command::Disconnect {
            message: "moved <away>".into(),
        };
        assert_snapshot!(encoded_command(&disconnect), @r#"{"type":"force-disconnect","message_id":"33390934-7628-49f6-88ea-528ef740c774","version":1,"sent":"2026-01-02T15:04:05Z","reconnect_after":"never","payload":{"details":"moved <away>"}}"#);
        assert_eq!(encode_command(&Command::Ping, MESSAGE_ID, now()), None);
        let longest_delay = Command::Reconnect {
            delay_seconds: u64::MAX,
            message: String::new(),
        };
        assert!(encoded_command(&longest_delay).contains("\"reconnect_after\":\"9999-"));
    }
}
