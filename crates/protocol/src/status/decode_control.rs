//! Decodes control messages of the status dialect from clients: presence messages and pongs.

use serde_json::{Map, Value};

use crate::json_fields::{self, Fields};
use crate::{ClientMessage, ClientResponse, OnlineMessage, Rejection};
use domain::{ClientInfo, ClientKind};

/// Decodes a message that a client published on its topic `control/out`.
///
/// # Errors
/// [`Rejection`] if the message can never be processed.
pub fn decode_control(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        // A message with an empty payload clears a retained message.
        return Ok(ClientMessage::Ignored);
    }
    let (message_type, fields) = json_fields::parse_envelope(payload)?;
    match message_type.as_str() {
        "connection-status" => decode_connection_status(fields),
        "event" => decode_event(fields),
        _ => Ok(ClientMessage::Ignored),
    }
}

fn decode_connection_status(mut fields: Fields) -> Result<ClientMessage, Rejection> {
    let Some(Value::Object(mut content)) = fields.remove("content") else {
        return Err(Rejection::invalid_schema("content is not an object"));
    };
    match content.get("state").and_then(Value::as_str) {
        Some("offline") => Ok(ClientMessage::Offline {
            sent: json_fields::read_timestamp(&fields, "sent"),
        }),
        Some("online") => Ok(ClientMessage::Online(Box::new(OnlineMessage {
            kind: ClientKind::Host,
            message_id: json_fields::take_message_id(&mut fields, "message_id")?,
            sent: json_fields::read_timestamp(&fields, "sent"),
            info: decode_client_info(&mut content)?,
        }))),
        _ => Err(Rejection::invalid_schema(
            "content.state is neither online nor offline",
        )),
    }
}

fn decode_event(mut fields: Fields) -> Result<ClientMessage, Rejection> {
    match fields.get("content").and_then(Value::as_str) {
        Some("disconnect") => Ok(ClientMessage::Offline {
            sent: json_fields::read_timestamp(&fields, "sent"),
        }),
        Some("pong") => Ok(ClientMessage::Response(ClientResponse::Pong {
            response_to: json_fields::take_message_id(&mut fields, "response_to")?,
        })),
        Some(_) => Ok(ClientMessage::Ignored),
        None => Err(Rejection::invalid_schema(
            "content of an event is not a string",
        )),
    }
}

fn decode_client_info(content: &mut Fields) -> Result<ClientInfo, Rejection> {
    let canonical_facts = match content.remove("canonical_facts") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.is_empty() => Value::Object(Map::new()),
        Some(Value::Object(facts)) => json_fields::sanitize_facts(facts)?,
        Some(_) => {
            return Err(Rejection::invalid_schema(
                "canonical_facts is not an object",
            ));
        }
    };
    Ok(ClientInfo {
        canonical_facts,
        catalog_service_facts: Value::Null,
        dispatchers: json_fields::take_object_or_null(content, "dispatchers")?,
        tags: json_fields::take_object_or_null(content, "tags")?,
        client_name: json_fields::take_short_text(content, "client_name")?,
        client_version: json_fields::take_short_text(content, "client_version")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::MessageId;
    use domain::RejectReason::{InvalidCharacters, InvalidJson, InvalidSchema, ValueTooLong};
    use serde_json::json;

    fn decode_json(message: &Value) -> Result<ClientMessage, Rejection> {
        decode_control(&serde_json::to_vec(message).unwrap())
    }

    fn decode_online(message: &Value) -> OnlineMessage {
        match decode_json(message) {
            Ok(ClientMessage::Online(online)) => *online,
            other => panic!("not an online message: {other:?}"),
        }
    }

    #[test]
    fn all_fields_of_an_online_message_are_decoded() {
        let online = decode_online(&json!({
            "type": "connection-status", "message_id": "m1", "response_to": null, "version": 1,
            "sent": "2021-01-12T14:58:13.123456789+01:00",
            "content": {
                "state": "online",
                "canonical_facts": {"insights_id": "cabb61b6e61d4d70b47501f5c009e93c", "fqdn": "a.example"},
                "dispatchers": {"echo": {}, "worker": null},
                "tags": {"region": "us1"},
                "client_name": "rhcd", "client_version": "0.2"
            }
        }));
        assert_eq!(online.message_id.unwrap().as_str(), "m1");
        assert_eq!(
            online.sent.unwrap().to_string(),
            "2021-01-12T13:58:13.123456Z"
        );
        assert_eq!(online.info.dispatchers["worker"], Value::Null);
        assert_eq!(
            online.info.canonical_facts["insights_id"],
            "cabb61b6e61d4d70b47501f5c009e93c"
        );
        assert_eq!(online.info.client_name, "rhcd");
    }

    #[test]
    fn fields_of_an_online_message_may_be_absent_null_or_empty() {
        for message in [
            json!({"type": "connection-status", "content": {"state": "online"}}),
            json!({"type": "connection-status", "message_id": null, "sent": null, "version": null, "content": {"state": "online", "canonical_facts": null, "dispatchers": null}}),
            json!({"type": "connection-status", "message_id": "", "sent": "yesterday", "content": {"state": "online", "canonical_facts": ""}}),
        ] {
            let online = decode_online(&message);
            assert_eq!(online.message_id, None);
            assert_eq!(online.sent, None);
            assert_eq!(online.info.canonical_facts, json!({}));
            assert_eq!(online.info.dispatchers, Value::Null);
        }
    }

    #[test]
    fn all_fields_of_an_offline_message_except_the_state_are_ignored() {
        let last_will = json!({"type": "connection-status", "content": {
            "state": "offline", "dispatchers": null, "canonical_facts": {"insights_id": ""}}});
        assert_eq!(
            decode_json(&last_will),
            Ok(ClientMessage::Offline { sent: None })
        );
        let invalid_fields = json!({"type": "connection-status", "message_id": 7, "sent": [], "content": {
            "state": "offline", "dispatchers": "x", "canonical_facts": 3}});
        assert_eq!(
            decode_json(&invalid_fields),
            Ok(ClientMessage::Offline { sent: None })
        );
        let event = json!({"type": "event", "content": "disconnect"});
        assert_eq!(
            decode_json(&event),
            Ok(ClientMessage::Offline { sent: None })
        );
    }

    #[test]
    fn insights_id_that_is_not_a_uuid_is_removed() {
        let online = decode_online(&json!({"type": "connection-status", "content": {
            "state": "online", "canonical_facts": {"insights_id": "nope", "fqdn": "x"}}}));
        assert_eq!(online.info.canonical_facts, json!({"fqdn": "x"}));
    }

    #[test]
    fn pong_contains_the_message_id_of_the_ping() {
        let pong = json!({"type": "event", "response_to": "c1", "content": "pong"});
        assert_eq!(
            decode_json(&pong),
            Ok(ClientMessage::Response(ClientResponse::Pong {
                response_to: Some(MessageId::new("c1").unwrap())
            }))
        );
    }

    #[test]
    fn unknown_message_types_and_empty_payloads_are_ignored() {
        assert_eq!(decode_control(b""), Ok(ClientMessage::Ignored));
        assert_eq!(
            decode_json(&json!({"type": "news"})),
            Ok(ClientMessage::Ignored)
        );
        assert_eq!(
            decode_json(&json!({"type": "event", "content": "party"})),
            Ok(ClientMessage::Ignored)
        );
    }

    #[test]
    fn invalid_messages_are_rejected_with_a_reason() {
        let deeply_nested = format!("{}{}", "[".repeat(60_000), "]".repeat(60_000));
        let long_id = json!({"type": "connection-status", "message_id": "x".repeat(256), "content": {"state": "online"}}).to_string();
        for (payload, reason) in [
            (&b"\xff\xfe"[..], InvalidJson),
            (b"{", InvalidJson),
            (deeply_nested.as_bytes(), InvalidJson),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":1e400}}}"#, InvalidJson),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":"\ud800"}}}"#, InvalidJson),
            (b"null", InvalidSchema),
            (b"[1]", InvalidSchema),
            (br#"{"type":7}"#, InvalidSchema),
            (br#"{"type":"connection-status"}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":[]}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":{"state":"asleep"}}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":{"state":"online","canonical_facts":[]}}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":{"state":"online","dispatchers":"x"}}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":{"state":"online","client_name":7}}"#, InvalidSchema),
            (br#"{"type":"connection-status","message_id":7,"content":{"state":"online"}}"#, InvalidSchema),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":"\u0000"}}}"#, InvalidCharacters),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"\u0000":1}}}"#, InvalidCharacters),
            (long_id.as_bytes(), ValueTooLong),
        ] {
            let text = String::from_utf8_lossy(&payload[..payload.len().min(90)]).into_owned();
            match decode_control(payload) {
                Err(rejection) => assert_eq!(rejection.reason, reason, "{text}"),
                Ok(message) => panic!("{text} was decoded as {message:?}"),
            }
        }
    }
}
