//! The client's end of the status dialect: what the simulator says and understands.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::{ClientInfo, Timestamp};

/// What a client hears on its `in` topics.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// A command of the service.
    Command {
        /// Its id, which an answer names.
        message_id: String,
        /// `ping`, `reconnect`, `disconnect`.
        command: String,
        /// How long to stay away; none stays away for good.
        delay_seconds: Option<u64>,
    },
    /// A message of an application.
    Data {
        /// Its id, which an answer names.
        message_id: String,
        /// What the application goes by.
        directive: String,
        /// The application's own.
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

/// Reads a message of the service; none if it is not one that a client knows.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<ServerMessage> {
    let envelope: Envelope = serde_json::from_slice(payload).ok()?;
    match envelope.r#type.as_str() {
        "command" => {
            let arguments = arguments(&envelope.content)?;
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

/// Real clients read a map of strings and nothing else: a command with a number in it is none.
fn arguments(content: &Value) -> Option<HashMap<String, String>> {
    match content.get("arguments") {
        None | Some(Value::Null) => Some(HashMap::new()),
        Some(arguments) => HashMap::deserialize(arguments).ok(),
    }
}

/// "I am here, and this is what I am."
#[must_use]
pub fn online(now: Timestamp, reported: &ClientInfo) -> Vec<u8> {
    control(
        "connection-status",
        "",
        now,
        &json!({
            "state": "online",
            "canonical_facts": reported.canonical_facts,
            "dispatchers": reported.dispatchers,
            "tags": reported.tags,
            "client_name": reported.client_name,
            "client_version": reported.client_version,
        }),
    )
}

/// "I am gone": the last will, and the farewell of a clean leave.
#[must_use]
pub fn offline(now: Timestamp) -> Vec<u8> {
    let content = json!({"state": "offline", "dispatchers": null, "canonical_facts": null});
    control("connection-status", "", now, &content)
}

/// The answer to a ping.
#[must_use]
pub fn pong(now: Timestamp, response_to: &str) -> Vec<u8> {
    control("event", response_to, now, &json!("pong"))
}

/// The answer to a data message: its content sent back.
#[must_use]
pub fn answer(now: Timestamp, response_to: &str, directive: &str, content: &Value) -> Vec<u8> {
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

fn control(kind: &str, response_to: &str, now: Timestamp, content: &Value) -> Vec<u8> {
    json!({
        "type": kind,
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
    use crate::protocol::status::{decode_control, encode_command};
    use crate::protocol::{ClientMessage, ClientResponse, Command};

    #[test]
    fn the_service_understands_its_own_simulator() {
        let now = Timestamp::UNIX_EPOCH;
        let reported = ClientInfo {
            canonical_facts: json!({"fqdn": "a"}),
            catalog_service_facts: Value::Null,
            dispatchers: json!({"echo": {}}),
            tags: Value::Null,
            client_name: "simulate".into(),
            client_version: "1".into(),
        };
        match decode_control(&online(now, &reported)).unwrap() {
            ClientMessage::Online(online) => assert_eq!(online.reported, reported),
            other => panic!("{other:?}"),
        }
        assert_eq!(decode_control(&offline(now)), Ok(ClientMessage::Offline));
        assert!(matches!(
            decode_control(&pong(now, "x")),
            Ok(ClientMessage::Response(ClientResponse::Pong {
                to: Some(_)
            }))
        ));
    }

    #[test]
    fn the_simulator_understands_the_service() {
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
        let heard = |arguments: &str| {
            let text = format!(
                r#"{{"type":"command","message_id":"x","content":{{"command":"reconnect","arguments":{arguments}}}}}"#
            );
            decode(text.as_bytes())
        };
        // A map that is not of strings is not understood at all, as by real clients.
        assert_eq!(heard(r#"{"delay":60}"#), None);
        for no_delay in ["null", "{}", r#"{"delay":"soon"}"#] {
            let heard = heard(no_delay);
            let Some(ServerMessage::Command { delay_seconds, .. }) = heard else {
                panic!("{no_delay}: {heard:?}");
            };
            assert_eq!(delay_seconds, None, "{no_delay}");
        }
    }
}
