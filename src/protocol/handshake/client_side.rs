//! The client's end of the handshake dialect: what the simulator says and understands.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::{ClientInfo, ClientKind, Timestamp};

/// What a client hears on its `out` topic.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// A message of an application.
    Message {
        /// Its id, which an answer names.
        message_id: String,
        /// What the application goes by.
        directive: String,
        /// The application's own.
        payload: Value,
    },
    /// Its handshake was refused: leave, and try later.
    HandshakeError {
        /// Why.
        details: String,
    },
    /// Leave, and come back then; never, if there is no time.
    ForceDisconnect {
        /// When to come back.
        reconnect_after: Option<Timestamp>,
    },
}

#[derive(Deserialize)]
struct Envelope {
    r#type: String,
    message_id: String,
    #[serde(default)]
    directive: String,
    #[serde(default)]
    reconnect_after: String,
    #[serde(default)]
    payload: Value,
}

/// Reads a message of the service; none if it is not one that a client knows.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<ServerMessage> {
    let envelope: Envelope = serde_json::from_slice(payload).ok()?;
    match envelope.r#type.as_str() {
        "message" => Some(ServerMessage::Message {
            message_id: envelope.message_id,
            directive: envelope.directive,
            payload: envelope.payload,
        }),
        "handshake-error" => Some(ServerMessage::HandshakeError {
            details: envelope.payload["details"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        }),
        "force-disconnect" => Some(ServerMessage::ForceDisconnect {
            reconnect_after: envelope.reconnect_after.parse().ok(),
        }),
        _ => None,
    }
}

/// "Register me": to be published retained.
#[must_use]
pub fn handshake(now: Timestamp, kind: ClientKind, reported: &ClientInfo) -> Vec<u8> {
    let (r#type, payload) = match kind {
        ClientKind::Host => (
            "host-handshake",
            json!({"canonical_facts": reported.canonical_facts}),
        ),
        ClientKind::Proxy => (
            "proxy-handshake",
            json!({"catalog_service_facts": reported.catalog_service_facts}),
        ),
    };
    bytes(&json!({
        "type": r#type, "message_id": Uuid::new_v4(), "version": 1, "sent": now.to_string(),
        "payload": payload,
    }))
}

/// "I am gone": the last will, and the farewell of a clean leave.
#[must_use]
pub fn offline() -> Vec<u8> {
    bytes(&json!({"type": "offline", "message_id": Uuid::new_v4(), "version": 1}))
}

/// An application's answer: its payload sent back.
#[must_use]
pub fn answer(now: Timestamp, in_response_to: &str, directive: &str, payload: &Value) -> Vec<u8> {
    bytes(&json!({
        "type": "message", "message_id": Uuid::new_v4(), "in_response_to": in_response_to,
        "version": 1, "sent": now.to_string(), "directive": directive, "payload": payload,
    }))
}

/// "I cannot handle that message."
#[must_use]
pub fn message_error(now: Timestamp, in_response_to: &str, details: &str) -> Vec<u8> {
    bytes(&json!({
        "type": "message-error", "message_id": Uuid::new_v4(), "in_response_to": in_response_to,
        "version": 1, "sent": now.to_string(), "payload": {"details": details},
    }))
}

fn bytes(message: &Value) -> Vec<u8> {
    message.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handshake::{encode_command, encode_refusal, read};
    use crate::protocol::{ClientMessage, ClientResponse, Command, HandshakeError, Rejection};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn the_service_understands_its_own_simulator() {
        let reported = ClientInfo {
            canonical_facts: json!({"fqdn": "a"}),
            catalog_service_facts: json!({"source_type": "s", "application_type": "a"}),
            dispatchers: Value::Null,
            tags: Value::Null,
            client_name: String::new(),
            client_version: String::new(),
        };
        for kind in [ClientKind::Host, ClientKind::Proxy] {
            match read(&handshake(NOW, kind, &reported)).unwrap() {
                ClientMessage::Online(online) => assert_eq!(online.kind, kind),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read(&offline()), Ok(ClientMessage::Offline));
        for answer in [
            answer(NOW, "m", "echo", &json!(1)),
            message_error(NOW, "m", "no"),
        ] {
            match read(&answer).unwrap() {
                ClientMessage::Response(
                    ClientResponse::Data { to, .. } | ClientResponse::Error { to, .. },
                ) => {
                    assert_eq!(to.unwrap().as_str(), "m");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_simulator_understands_the_service() {
        let refusal = HandshakeError {
            in_response_to: None,
            why: Rejection::wrong_shape("bad"),
        };
        assert_eq!(
            decode(&encode_refusal(&refusal, Uuid::nil(), NOW)),
            Some(ServerMessage::HandshakeError {
                details: "bad".into()
            })
        );
        let heard = |command| decode(&encode_command(&command, Uuid::nil(), NOW).unwrap());
        let message = String::new();
        assert_eq!(
            heard(Command::Disconnect {
                message: message.clone()
            }),
            Some(ServerMessage::ForceDisconnect {
                reconnect_after: None
            })
        );
        let reconnect_after = Timestamp::from_second(5).ok();
        assert_eq!(
            heard(Command::Reconnect {
                delay_seconds: 5,
                message
            }),
            Some(ServerMessage::ForceDisconnect { reconnect_after })
        );
        assert_eq!(decode(b"{}"), None);
    }
}
