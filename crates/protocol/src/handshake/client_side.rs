//! The client's side of the handshake dialect, for the simulator.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use domain::{ClientInfo, ClientKind, Timestamp};

/// A message from the service on the client's `out` topic.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// A message to an application on the client.
    Message {
        /// Message id. The client's response refers to this id.
        message_id: String,
        /// Name of the application that receives the message.
        directive: String,
        /// The payload for the application.
        payload: Value,
    },
    /// The handshake is invalid. The client disconnects and retries later.
    HandshakeError {
        /// The reason for which the handshake is invalid.
        details: String,
    },
    /// The client must disconnect.
    ForceDisconnect {
        /// Time at which the client must reconnect. `None` if the client must not reconnect.
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

/// Decodes a message from the service. Returns `None` if the message is invalid or of unknown type.
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

/// Encodes a handshake. Clients publish a handshake with the retain flag.
#[must_use]
pub fn handshake_message(now: Timestamp, kind: ClientKind, info: &ClientInfo) -> Vec<u8> {
    let (r#type, payload) = match kind {
        ClientKind::Host => (
            "host-handshake",
            json!({"canonical_facts": info.canonical_facts}),
        ),
        ClientKind::Proxy => (
            "proxy-handshake",
            json!({"catalog_service_facts": info.catalog_service_facts}),
        ),
    };
    to_bytes(&json!({
        "type": r#type, "message_id": Uuid::new_v4(), "version": 1, "sent": now.to_string(),
        "payload": payload,
    }))
}

/// Encodes an offline message. The client also uses this message as its last will.
#[must_use]
pub fn offline_message() -> Vec<u8> {
    to_bytes(&json!({"type": "offline", "message_id": Uuid::new_v4(), "version": 1}))
}

/// Encodes the response of an application to a message from the service.
#[must_use]
pub fn response_message(
    now: Timestamp,
    in_response_to: &str,
    directive: &str,
    payload: &Value,
) -> Vec<u8> {
    to_bytes(&json!({
        "type": "message", "message_id": Uuid::new_v4(), "in_response_to": in_response_to,
        "version": 1, "sent": now.to_string(), "directive": directive, "payload": payload,
    }))
}

/// Encodes the error message that a client sends if it cannot handle a message from the service.
#[must_use]
pub fn message_error(now: Timestamp, in_response_to: &str, details: &str) -> Vec<u8> {
    to_bytes(&json!({
        "type": "message-error", "message_id": Uuid::new_v4(), "in_response_to": in_response_to,
        "version": 1, "sent": now.to_string(), "payload": {"details": details},
    }))
}

fn to_bytes(message: &Value) -> Vec<u8> {
    message.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake;
    use crate::handshake::{encode_command, encode_handshake_error};
    use crate::{ClientMessage, ClientResponse, Command, HandshakeError, Rejection};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn service_can_decode_the_messages_that_the_client_side_encodes() {
        let info = ClientInfo {
            canonical_facts: json!({"fqdn": "a"}),
            catalog_service_facts: json!({"source_type": "s", "application_type": "a"}),
            ..ClientInfo::default()
        };
        for kind in [ClientKind::Host, ClientKind::Proxy] {
            match handshake::decode(&handshake_message(NOW, kind, &info)).unwrap() {
                ClientMessage::Online(online) => assert_eq!(online.kind, kind),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            handshake::decode(&offline_message()),
            Ok(ClientMessage::Offline { sent: None })
        );
        for response in [
            response_message(NOW, "m", "echo", &json!(1)),
            message_error(NOW, "m", "no"),
        ] {
            match handshake::decode(&response).unwrap() {
                ClientMessage::Response(
                    ClientResponse::Data { response_to, .. }
                    | ClientResponse::Error { response_to, .. },
                ) => {
                    assert_eq!(response_to.unwrap().as_str(), "m");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn client_side_can_decode_the_messages_that_the_service_encodes() {
        let error = HandshakeError {
            in_response_to: None,
            rejection: Rejection::invalid_schema("bad"),
        };
        assert_eq!(
            decode(&encode_handshake_error(&error, Uuid::nil(), NOW)),
            Some(ServerMessage::HandshakeError {
                details: "bad".into()
            })
        );
        let decode_command = |command| decode(&encode_command(&command, Uuid::nil(), NOW).unwrap());
        let message = String::new();
        assert_eq!(
            decode_command(Command::Disconnect {
                message: message.clone()
            }),
            Some(ServerMessage::ForceDisconnect {
                reconnect_after: None
            })
        );
        let reconnect_after = Timestamp::from_second(5).ok();
        assert_eq!(
            decode_command(Command::Reconnect {
                delay_seconds: 5,
                message
            }),
            Some(ServerMessage::ForceDisconnect { reconnect_after })
        );
        assert_eq!(decode(b"{}"), None);
    }
}
