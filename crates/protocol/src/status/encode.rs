//! Encodes data messages and commands of the status dialect from the service to clients.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::{Command, to_bytes};
use domain::{OutgoingMessage, Timestamp};

/// A data message. Contains every field of the dialect, because clients require different fields.
#[derive(Serialize)]
struct DataEnvelope<'a> {
    r#type: &'static str,
    message_id: Uuid,
    response_to: &'static str,
    version: u8,
    sent: Timestamp,
    directive: &'a str,
    metadata: &'a Value,
    content: &'a Value,
}

#[derive(Serialize)]
struct ControlEnvelope<T> {
    r#type: &'static str,
    message_id: Uuid,
    response_to: &'static str,
    version: u8,
    sent: Timestamp,
    content: T,
}

#[derive(Serialize)]
struct CommandContent<'a> {
    command: &'static str,
    /// The delay of a reconnect command, as a string. `None` for other commands. Clients ignore a
    /// command with a numeric delay, and never reconnect if the delay is missing.
    arguments: Option<BTreeMap<&'static str, String>>,
    message: &'a str,
}

/// Encodes a message for the topic `data/in`.
#[must_use]
pub fn encode_message(message: &OutgoingMessage) -> Vec<u8> {
    to_bytes(&DataEnvelope {
        r#type: "data",
        message_id: message.message_id,
        response_to: "",
        version: 1,
        sent: message.sent,
        directive: &message.directive,
        metadata: &message.metadata,
        content: &message.payload,
    })
}

/// Encodes a command for the topic `control/in`.
#[must_use]
pub fn encode_command(command: &Command, message_id: Uuid, now: Timestamp) -> Vec<u8> {
    let content = match command {
        Command::Ping => CommandContent {
            command: "ping",
            arguments: None,
            message: "",
        },
        Command::Reconnect {
            delay_seconds,
            message,
        } => CommandContent {
            command: "reconnect",
            arguments: Some(BTreeMap::from([("delay", delay_seconds.to_string())])),
            message,
        },
        Command::Disconnect { message } => CommandContent {
            command: "disconnect",
            arguments: None,
            message,
        },
    };
    to_bytes(&ControlEnvelope {
        r#type: "command",
        message_id,
        response_to: "",
        version: 1,
        sent: now,
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use serde_json::json;

    const MESSAGE_ID: Uuid = uuid::uuid!("3a57b1ad-5163-47ee-9e57-3bb6d90bdfff");

    fn to_text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T15:04:05.5Z".parse().unwrap()
    }

    fn encoded_message(metadata: Value, payload: Value) -> String {
        to_text(encode_message(&OutgoingMessage {
            message_id: MESSAGE_ID,
            sent: now(),
            directive: "rhc:work".into(),
            metadata,
            payload,
        }))
    }

    fn encoded_command(command: &Command) -> String {
        to_text(encode_command(command, MESSAGE_ID, now()))
    }

    #[test]
    fn data_message_contains_every_field_and_no_html_escapes() {
        assert_snapshot!(
            encoded_message(Value::Null, json!("<a href=\"x\">&</a>")),
            @r#"{"type":"data","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","directive":"rhc:work","metadata":null,"content":"<a href=\"x\">&</a>"}"#
        );
        assert_snapshot!(
            encoded_message(json!({"return_url": "https://example.com?a=1&b=2"}), Value::Null),
            @r#"{"type":"data","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","directive":"rhc:work","metadata":{"return_url":"https://example.com?a=1&b=2"},"content":null}"#
        );
    }

    #[test]
    fn ping_and_disconnect_have_null_arguments() {
        assert_snapshot!(
            encoded_command(&Command::Ping),
            @r#"{"type":"command","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","content":{"command":"ping","arguments":null,"message":""}}"#
        );
        assert_snapshot!(
            encoded_command(&Command::Disconnect { message: "bye <&>".into() }),
            @r#"{"type":"command","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","content":{"command":"disconnect","arguments":null,"message":"bye <&>"}}"#
        );
    }

    #[test]
    fn reconnect_delay_is_a_string() {
        assert_snapshot!(
            encoded_command(&Command::Reconnect { delay_seconds: 60, message: String::new() }),
            @r#"{"type":"command","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","content":{"command":"reconnect","arguments":{"delay":"60"},"message":""}}"#
        );
    }
}
