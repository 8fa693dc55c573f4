//! The client's side of the status dialect, for the simulator.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use domain::{ClientInfo, Timestamp};

/// A message from the service on one of the client's `in` topics.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// A command about the client's connection.
    Command {
        /// Message id. The client's response refers to this id.
        message_id: String,
        /// `ping`, `reconnect` or `disconnect`.
        command: String,
        /// Seconds to wait before reconnecting. `None` if the client must not reconnect.
        delay_seconds: Option<u64>,
    },
    /// A message to an application on the client.
    Data {
        /// Message id. The client's response refers to this id.
        message_id: String,
        /// Name of the application that receives the message.
        directive: String,
        /// The payload for the application.
        content: Value,
    },
}

#[derive(Deserialize)]
struct Envelope {
    r#type: String,
    message_id: String,
    #[serde(default)]
    directive: String,
    #[serde(default)]
    content: Value,
}

/// Decodes a message from the service. Returns `None` if the message is invalid or of unknown type.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<ServerMessage> {
    let envelope: Envelope = serde_json::from_slice(payload).ok()?;
    match envelope.r#type.as_str() {
        "command" => {
            let arguments = decode_arguments(&envelope.content)?;
            Some(ServerMessage::Command {
                message_id: envelope.message_id,
                command: envelope.content.get("command")?.as_str()?.to_owned(),
                delay_seconds: arguments.get("delay").and_then(|delay| delay.parse().ok()),
            })
        }
        "data" => Some(ServerMessage::Data {
            message_id: envelope.message_id,
            directive: envelope.directive,
            content: envelope.content,
        }),
        _ => None,
    }
}

/// Decodes the arguments of a command. Accepts only a map of string to string, as real clients do.
fn decode_arguments(content: &Value) -> Option<HashMap<String, String>> {
    match content.get("arguments") {
        None | Some(Value::Null) => Some(HashMap::new()),
        Some(arguments) => HashMap::deserialize(arguments).ok(),
    }
}

/// Encodes an online message.
#[must_use]
pub fn online_message(now: Timestamp, info: &ClientInfo) -> Vec<u8> {
    control_message(
        "connection-status",
        "",
        now,
        &json!({
            "state": "online",
            "canonical_facts": info.canonical_facts,
            "dispatchers": info.dispatchers,
            "tags": info.tags,
            "client_name": info.client_name,
            "client_version": info.client_version,
        }),
    )
}

/// Encodes an offline message. The client also uses this message as its last will.
#[must_use]
pub fn offline_message(now: Timestamp) -> Vec<u8> {
    let content = json!({"state": "offline", "dispatchers": null, "canonical_facts": null});
    control_message("connection-status", "", now, &content)
}

/// Encodes the response to a ping.
#[must_use]
pub fn pong_message(now: Timestamp, response_to: &str) -> Vec<u8> {
    control_message("event", response_to, now, &json!("pong"))
}

/// Encodes the response to a data message.
#[must_use]
pub fn response_message(
    now: Timestamp,
    response_to: &str,
    directive: &str,
    content: &Value,
) -> Vec<u8> {
    json!({
        "type": "data",
        "message_id": Uuid::new_v4(),
        "response_to": response_to,
        "version": 1,
        "sent": now.to_string(),
        "directive": directive,
        "metadata": {},
        "content": content,
    })
    .to_string()
    .into_bytes()
}

fn control_message(
    message_type: &str,
    response_to: &str,
    now: Timestamp,
    content: &Value,
) -> Vec<u8> {
    json!({
        "type": message_type,
        "message_id": Uuid::new_v4(),
        "response_to": response_to,
        "version": 1,
        "sent": now.to_string(),
        "content": content,
    })
    .to_string()
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{decode_control, encode_command};
    use crate::{ClientMessage, ClientResponse, Command};

    #[test]
    fn service_can_decode_the_messages_that_the_client_side_encodes() {
        let now = Timestamp::UNIX_EPOCH;
        let info = ClientInfo {
            canonical_facts: json!({"fqdn": "a"}),
            dispatchers: json!({"echo": {}}),
            client_name: "simulate".into(),
            client_version: "1".into(),
            ..ClientInfo::default()
        };
        match decode_control(&online_message(now, &info)).unwrap() {
            ClientMessage::Online(online) => assert_eq!(online.info, info),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            decode_control(&offline_message(now)),
            Ok(ClientMessage::Offline { sent: Some(now) })
        );
        assert!(matches!(
            decode_control(&pong_message(now, "x")),
            Ok(ClientMessage::Response(ClientResponse::Pong {
                response_to: Some(_)
            }))
        ));
    }

    #[test]
    fn client_side_can_decode_the_commands_that_the_service_encodes() {
        let reconnect = Command::Reconnect {
            delay_seconds: 60,
            message: "later".into(),
        };
        assert_eq!(
            decode(&encode_command(
                &reconnect,
                Uuid::nil(),
                Timestamp::UNIX_EPOCH
            )),
            Some(ServerMessage::Command {
                message_id: Uuid::nil().to_string(),
                command: "reconnect".into(),
                delay_seconds: Some(60)
            })
        );
        let decode_reconnect = |arguments: &str| {
            let text = format!(
                r#"{{"type":"command","message_id":"x","content":{{"command":"reconnect","arguments":{arguments}}}}}"#
            );
            decode(text.as_bytes())
        };
        // Real clients ignore a numeric delay.
        assert_eq!(decode_reconnect(r#"{"delay":60}"#), None);
        for arguments in ["null", "{}", r#"{"delay":"soon"}"#] {
            let decoded = decode_reconnect(arguments);
            let Some(ServerMessage::Command { delay_seconds, .. }) = decoded else {
                panic!("{arguments}: {decoded:?}");
            };
            assert_eq!(delay_seconds, None, "{arguments}");
        }
    }
}
