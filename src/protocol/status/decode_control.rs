//! Control messages from clients: presence and answers to commands.

use serde_json::{Map, Value};

use crate::domain::{ClientInfo, ClientKind};
use crate::protocol::json_fields::{self, Fields};
use crate::protocol::{ClientMessage, ClientResponse, Online, PRESENCE_MAX_BYTES, Rejection};

/// Reads a control message.
///
/// # Errors
/// [`Rejection`] when it can never be processed.
pub fn decode_control(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        // What removing a retained message looks like.
        return Ok(ClientMessage::Ignored);
    }
    let (kind, fields) = json_fields::envelope(payload, PRESENCE_MAX_BYTES)?;
    match kind.as_str() {
        "connection-status" => connection_status(fields),
        "event" => event(fields),
        _ => Ok(ClientMessage::Ignored),
    }
}

fn connection_status(mut fields: Fields) -> Result<ClientMessage, Rejection> {
    let Some(Value::Object(mut content)) = fields.remove("content") else {
        return Err(Rejection::wrong_shape("content is not an object"));
    };
    match content.get("state").and_then(Value::as_str) {
        Some("offline") => Ok(ClientMessage::Offline),
        Some("online") => Ok(ClientMessage::Online(Box::new(Online {
            kind: ClientKind::Host,
            message_id: json_fields::message_id(&mut fields, "message_id")?,
            sent: json_fields::time(&fields, "sent"),
            reported: reported(&mut content)?,
        }))),
        _ => Err(Rejection::wrong_shape(
            "content.state is neither online nor offline",
        )),
    }
}

fn event(mut fields: Fields) -> Result<ClientMessage, Rejection> {
    match fields.get("content").and_then(Value::as_str) {
        Some("disconnect") => Ok(ClientMessage::Offline),
        Some("pong") => Ok(ClientMessage::Response(ClientResponse::Pong {
            to: json_fields::message_id(&mut fields, "response_to")?,
        })),
        Some(_) => Ok(ClientMessage::Ignored),
        None => Err(Rejection::wrong_shape(
            "content of an event is not a string",
        )),
    }
}

fn reported(content: &mut Fields) -> Result<ClientInfo, Rejection> {
    let canonical_facts = match content.remove("canonical_facts") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(empty)) if empty.is_empty() => Value::Object(Map::new()),
        Some(Value::Object(facts)) => json_fields::facts(facts)?,
        Some(_) => return Err(Rejection::wrong_shape("canonical_facts is not an object")),
    };
    Ok(ClientInfo {
        canonical_facts,
        catalog_service_facts: Value::Null,
        dispatchers: json_fields::object_or_null(content, "dispatchers")?,
        tags: json_fields::object_or_null(content, "tags")?,
        client_name: json_fields::short_text(content, "client_name")?,
        client_version: json_fields::short_text(content, "client_version")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::MessageId;
    use serde_json::json;

    fn parse(value: &Value) -> Result<ClientMessage, Rejection> {
        decode_control(&serde_json::to_vec(value).unwrap())
    }

    fn online(value: &Value) -> Online {
        match parse(value) {
            Ok(ClientMessage::Online(online)) => *online,
            other => panic!("not an online: {other:?}"),
        }
    }

    #[test]
    fn an_online_is_read_with_all_it_says() {
        let online = online(&json!({
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
        assert_eq!(online.reported.dispatchers["worker"], Value::Null);
        assert_eq!(
            online.reported.canonical_facts["insights_id"],
            "cabb61b6e61d4d70b47501f5c009e93c"
        );
        assert_eq!(online.reported.client_name, "rhcd");
    }

    #[test]
    fn envelope_fields_may_be_absent_null_or_empty() {
        for envelope in [
            json!({"type": "connection-status", "content": {"state": "online"}}),
            json!({"type": "connection-status", "message_id": null, "sent": null, "version": null, "content": {"state": "online", "canonical_facts": null, "dispatchers": null}}),
            json!({"type": "connection-status", "message_id": "", "sent": "yesterday", "content": {"state": "online", "canonical_facts": ""}}),
        ] {
            let online = online(&envelope);
            assert_eq!(online.message_id, None);
            assert_eq!(online.sent, None);
            assert_eq!(online.reported.canonical_facts, json!({}));
            assert_eq!(online.reported.dispatchers, Value::Null);
        }
    }

    #[test]
    fn a_will_is_an_offline_whatever_else_it_holds() {
        let will = json!({"type": "connection-status", "content": {
            "state": "offline", "dispatchers": null, "canonical_facts": {"insights_id": ""}}});
        assert_eq!(parse(&will), Ok(ClientMessage::Offline));
        // What an offline says of itself means nothing, so nothing of it can be wrong.
        let odd = json!({"type": "connection-status", "message_id": 7, "sent": [], "content": {
            "state": "offline", "dispatchers": "x", "canonical_facts": 3}});
        assert_eq!(parse(&odd), Ok(ClientMessage::Offline));
        let event = json!({"type": "event", "content": "disconnect"});
        assert_eq!(parse(&event), Ok(ClientMessage::Offline));
    }

    #[test]
    fn an_insights_id_that_is_no_uuid_is_dropped() {
        let online = online(&json!({"type": "connection-status", "content": {
            "state": "online", "canonical_facts": {"insights_id": "nope", "fqdn": "x"}}}));
        assert_eq!(online.reported.canonical_facts, json!({"fqdn": "x"}));
    }

    #[test]
    fn a_pong_names_the_command_it_answers() {
        let pong = json!({"type": "event", "response_to": "c1", "content": "pong"});
        assert_eq!(
            parse(&pong),
            Ok(ClientMessage::Response(ClientResponse::Pong {
                to: Some(MessageId::new("c1").unwrap())
            }))
        );
    }

    #[test]
    fn what_is_unknown_or_empty_has_no_effect() {
        assert_eq!(decode_control(b""), Ok(ClientMessage::Ignored));
        assert_eq!(parse(&json!({"type": "news"})), Ok(ClientMessage::Ignored));
        assert_eq!(
            parse(&json!({"type": "event", "content": "party"})),
            Ok(ClientMessage::Ignored)
        );
    }

    #[test]
    fn what_can_never_be_processed_is_rejected_with_a_reason() {
        let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(60_000));
        let large = format!("\"{}\"", "x".repeat(PRESENCE_MAX_BYTES));
        let long = json!({"type": "connection-status", "message_id": "x".repeat(256), "content": {"state": "online"}}).to_string();
        for (payload, reason) in [
            (&b"\xff\xfe"[..], "not_json"),
            (b"{", "not_json"),
            (deep.as_bytes(), "not_json"),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":1e400}}}"#, "not_json"),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":"\ud800"}}}"#, "not_json"),
            (b"null", "wrong_shape"),
            (b"[1]", "wrong_shape"),
            (br#"{"type":7}"#, "wrong_shape"),
            (br#"{"type":"connection-status"}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":[]}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":{"state":"asleep"}}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":{"state":"online","canonical_facts":[]}}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":{"state":"online","dispatchers":"x"}}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":{"state":"online","client_name":7}}"#, "wrong_shape"),
            (br#"{"type":"connection-status","message_id":7,"content":{"state":"online"}}"#, "wrong_shape"),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"a":"\u0000"}}}"#, "characters"),
            (br#"{"type":"connection-status","content":{"state":"online","tags":{"\u0000":1}}}"#, "characters"),
            (long.as_bytes(), "too_long"),
            (large.as_bytes(), "too_large"),
        ] {
            let text = String::from_utf8_lossy(&payload[..payload.len().min(90)]).into_owned();
            match decode_control(payload) {
                Err(rejected) => assert_eq!(rejected.reason, reason, "{text}"),
                Ok(control) => panic!("{text} was taken as {control:?}"),
            }
        }
    }
}
