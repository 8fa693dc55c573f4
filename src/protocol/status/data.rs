//! Data messages to clients.

use serde::Serialize;
use serde_json::Value;

use crate::domain::OutgoingMessage;

/// Every field is always there: clients differ in which ones they need.
#[derive(Serialize)]
struct Envelope<'a> {
    r#type: &'static str,
    message_id: String,
    response_to: &'static str,
    version: u8,
    sent: String,
    directive: &'a str,
    metadata: &'a Value,
    content: &'a Value,
}

/// The bytes of a message to a client's `data/in`.
#[must_use]
pub fn encode_message(message: &OutgoingMessage) -> Vec<u8> {
    let envelope = Envelope {
        r#type: "data",
        message_id: message.id.to_string(),
        response_to: "",
        version: 1,
        sent: message.sent.to_string(),
        directive: &message.directive,
        metadata: &message.metadata,
        content: &message.payload,
    };
    // Serialising strings, an integer and JSON values into memory has nothing to fail at.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_data_message_has_every_field_and_escapes_nothing_but_what_json_must() {
        let message = OutgoingMessage {
            id: "3a57b1ad-5163-47ee-9e57-3bb6d90bdfff".parse().unwrap(),
            sent: "2026-01-02T15:04:05.5Z".parse().unwrap(),
            directive: "rhc:work".into(),
            metadata: Value::Null,
            payload: json!("<a href=\"x\">&</a>"),
        };
        assert_eq!(
            String::from_utf8(encode_message(&message)).unwrap(),
            concat!(
                r#"{"type":"data","message_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","#,
                r#""response_to":"","version":1,"sent":"2026-01-02T15:04:05.5Z","#,
                r#""directive":"rhc:work","metadata":null,"content":"<a href=\"x\">&</a>"}"#
            )
        );
    }
}
