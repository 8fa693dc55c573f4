//! What clients say: handshakes, farewells, complaints.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::domain::{ClientInfo, ClientKind, MessageId};
use crate::protocol::json_fields::{self, Fields};
use crate::protocol::{ANSWER_MAX_BYTES, ClientResponse, Online, PRESENCE_MAX_BYTES};
use crate::protocol::{ClientMessage, HandshakeError, Rejection};

/// Longest complaint that is kept, in characters.
const DETAILS_MAX_CHARS: usize = 1000;

/// Reads a message of `in` or `status`.
///
/// # Errors
/// [`Rejection`] when it can never be processed.
pub fn read(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        // What removing a retained message looks like.
        return Ok(ClientMessage::Ignored);
    }
    // An application's answer may be larger than anything that registers somebody.
    let most = if is_response(payload) {
        ANSWER_MAX_BYTES
    } else {
        PRESENCE_MAX_BYTES
    };
    let (kind, mut fields) = json_fields::envelope(payload, most)?;
    match kind.as_str() {
        "host-handshake" => Ok(handshake(ClientKind::Host, fields)),
        "proxy-handshake" => Ok(handshake(ClientKind::Proxy, fields)),
        "offline" => Ok(ClientMessage::Offline),
        "message-error" => Ok(ClientMessage::Response(ClientResponse::Error {
            to: json_fields::message_id(&mut fields, "in_response_to")?,
            details: details(&fields),
        })),
        "message" => Ok(ClientMessage::Response(ClientResponse::Data {
            to: json_fields::message_id(&mut fields, "in_response_to")?,
            directive: json_fields::short_text(&mut fields, "directive")?,
        })),
        _ => Ok(ClientMessage::Ignored),
    }
}

/// Whether a message is an answer, by its type alone. What has no readable type is not.
#[must_use]
pub fn is_response(payload: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
    }
    // An array would be read as the fields in order.
    payload.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice::<Typed<'_>>(payload)
            .is_ok_and(|typed| matches!(&*typed.r#type, "message-error" | "message"))
}

/// The envelope has parsed and names a handshake: whatever is wrong now, the client is told.
fn handshake(kind: ClientKind, mut fields: Fields) -> ClientMessage {
    let id = match json_fields::message_id(&mut fields, "message_id") {
        Ok(Some(id)) => id,
        Ok(None) => return refused(None, Rejection::wrong_shape("message_id is missing")),
        Err(why) => return refused(None, why),
    };
    match reported(kind, &mut fields) {
        Ok(reported) => ClientMessage::Online(Box::new(Online {
            kind,
            message_id: Some(id),
            sent: json_fields::time(&fields, "sent"),
            reported,
        })),
        Err(why) => refused(Some(id), why),
    }
}

fn refused(in_response_to: Option<MessageId>, why: Rejection) -> ClientMessage {
    ClientMessage::InvalidHandshake(HandshakeError {
        in_response_to,
        why,
    })
}

fn reported(kind: ClientKind, fields: &mut Fields) -> Result<ClientInfo, Rejection> {
    let Some(Value::Object(mut payload)) = fields.remove("payload") else {
        return Err(Rejection::wrong_shape("payload is not an object"));
    };
    let mut facts = |key: &str| match payload.remove(key) {
        Some(Value::Object(facts)) => Ok(facts),
        _ => Err(Rejection::wrong_shape(format!(
            "payload.{key} is not an object"
        ))),
    };
    let mut reported = ClientInfo {
        canonical_facts: Value::Object(Map::new()),
        catalog_service_facts: Value::Null,
        dispatchers: Value::Null,
        tags: Value::Null,
        client_name: String::new(),
        client_version: String::new(),
    };
    match kind {
        ClientKind::Host => {
            reported.canonical_facts = json_fields::facts(facts("canonical_facts")?)?
        }
        ClientKind::Proxy => {
            let facts = facts("catalog_service_facts")?;
            for key in ["source_type", "application_type"] {
                if !facts.get(key).is_some_and(Value::is_string) {
                    return Err(Rejection::wrong_shape(format!(
                        "payload.catalog_service_facts.{key} is not a string"
                    )));
                }
            }
            reported.catalog_service_facts =
                json_fields::check_storable("catalog_service_facts", Value::Object(facts))?;
        }
    }
    Ok(reported)
}

/// A complaint in the client's words, whatever shape they have.
fn details(fields: &Fields) -> String {
    let text = match fields
        .get("payload")
        .and_then(|payload| payload.get("details"))
    {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    text.chars()
        .filter(|c| *c != '\0')
        .take(DETAILS_MAX_CHARS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<ClientMessage, Rejection> {
        read(&serde_json::to_vec(value).unwrap())
    }

    fn online(value: &Value) -> Online {
        match parse(value) {
            Ok(ClientMessage::Online(online)) => *online,
            other => panic!("not a handshake: {other:?}"),
        }
    }

    fn refusal(value: &Value) -> HandshakeError {
        match parse(value) {
            Ok(ClientMessage::InvalidHandshake(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_host_handshake_registers_a_host_with_its_facts() {
        let online = online(&json!({
            "type": "host-handshake", "message_id": "h1", "version": 1,
            "sent": "2020-12-04T17:22:24+00:00",
            "payload": {"canonical_facts": {"insights_id": "nope", "fqdn": "a.example"}}
        }));
        assert_eq!(online.kind, ClientKind::Host);
        assert_eq!(online.message_id.unwrap().as_str(), "h1");
        assert_eq!(online.sent.unwrap().to_string(), "2020-12-04T17:22:24Z");
        assert_eq!(
            online.reported.canonical_facts,
            json!({"fqdn": "a.example"})
        );
        assert_eq!(online.reported.catalog_service_facts, Value::Null);
    }

    #[test]
    fn a_proxy_handshake_registers_a_proxy_with_its_facts() {
        let facts = json!({"source_type": "satellite", "application_type": "catalog", "more": 1});
        let online = online(&json!({
            "type": "proxy-handshake", "message_id": "h2",
            "payload": {"catalog_service_facts": facts}
        }));
        assert_eq!(online.kind, ClientKind::Proxy);
        assert_eq!(online.sent, None);
        assert_eq!(online.reported.catalog_service_facts, facts);
        assert_eq!(online.reported.canonical_facts, json!({}));
    }

    #[test]
    fn a_handshake_without_an_id_is_refused_in_response_to_nothing() {
        for id in [json!(null), json!(""), json!(7), json!("x".repeat(256))] {
            let refusal = refusal(&json!({
                "type": "host-handshake", "message_id": id, "payload": {"canonical_facts": {}}
            }));
            assert_eq!(refusal.in_response_to, None, "{id}");
        }
    }

    #[test]
    fn facts_of_the_wrong_shape_are_refused_in_response_to_the_handshake() {
        let host = |payload: Value| json!({"type": "host-handshake", "message_id": "h", "payload": payload});
        let proxy = |payload: Value| json!({"type": "proxy-handshake", "message_id": "h", "payload": payload});
        for (handshake, reason) in [
            (host(json!(null)), "wrong_shape"),
            (host(json!([])), "wrong_shape"),
            (host(json!({})), "wrong_shape"),
            (host(json!({"canonical_facts": null})), "wrong_shape"),
            (host(json!({"canonical_facts": []})), "wrong_shape"),
            (
                host(json!({"canonical_facts": {"fqdn": "\0"}})),
                "characters",
            ),
            (proxy(json!({"catalog_service_facts": "x"})), "wrong_shape"),
            (proxy(json!({"catalog_service_facts": {}})), "wrong_shape"),
            (
                proxy(json!({"catalog_service_facts": {"source_type": 1, "application_type": ""}})),
                "wrong_shape",
            ),
        ] {
            let refusal = refusal(&handshake);
            assert_eq!(refusal.why.reason, reason, "{handshake}");
            assert_eq!(refusal.in_response_to.unwrap().as_str(), "h");
        }
    }

    #[test]
    fn an_offline_carries_nothing_and_nothing_of_it_can_be_wrong() {
        for offline in [
            json!({"type": "offline"}),
            json!({"type": "offline", "message_id": "x", "version": 1}),
            json!({"type": "offline", "message_id": [], "sent": 9, "payload": "?"}),
        ] {
            assert_eq!(parse(&offline), Ok(ClientMessage::Offline));
        }
    }

    #[test]
    fn a_complaint_names_the_message_and_says_why() {
        let complaint = json!({
            "type": "message-error", "message_id": "e", "in_response_to": "m",
            "payload": {"details": "cannot dispatch"}
        });
        assert_eq!(
            parse(&complaint),
            Ok(ClientMessage::Response(ClientResponse::Error {
                to: MessageId::new("m").ok(),
                details: "cannot dispatch".into()
            }))
        );
        for odd in [
            json!({"type": "message-error"}),
            json!({"type": "message-error", "payload": {"details": {"a": "x".repeat(5000)}}}),
        ] {
            let Ok(ClientMessage::Response(ClientResponse::Error { details, .. })) = parse(&odd)
            else {
                panic!("{odd}");
            };
            assert!(details.len() <= DETAILS_MAX_CHARS);
        }
    }

    #[test]
    fn what_is_unknown_or_empty_has_no_effect() {
        assert_eq!(read(b""), Ok(ClientMessage::Ignored));
        assert_eq!(parse(&json!({"type": "news"})), Ok(ClientMessage::Ignored));
    }

    #[test]
    fn what_does_not_parse_is_rejected_and_answered_by_nobody() {
        let large = format!(
            r#"{{"type":"host-handshake","a":"{}"}}"#,
            "x".repeat(PRESENCE_MAX_BYTES)
        );
        for (payload, reason) in [
            (&b"\xff"[..], "not_json"),
            (b"{", "not_json"),
            (b"[]", "wrong_shape"),
            (br#"{"type":1}"#, "wrong_shape"),
            (
                br#"{"type":"message-error","in_response_to":1}"#,
                "wrong_shape",
            ),
            (large.as_bytes(), "too_large"),
        ] {
            assert_eq!(read(payload).unwrap_err().reason, reason);
        }
    }

    #[test]
    fn answers_are_told_by_their_type_and_may_be_large() {
        let large = format!(
            r#"{{"payload":"{}","type":"message"}}"#,
            "x".repeat(500_000)
        );
        assert!(is_response(large.as_bytes()));
        assert!(matches!(
            read(large.as_bytes()),
            Ok(ClientMessage::Response(_))
        ));
        assert!(is_response(br#"{"type":"message-error"}"#));
        for other in [
            &br#"{"type":"offline"}"#[..],
            br#"{"type":7}"#,
            br#"["message"]"#,
            b"",
            b"[",
            b"7",
        ] {
            assert!(!is_response(other));
        }
    }
}
