//! Decodes messages of the handshake dialect from clients: handshakes, offline messages and
//! responses.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::json_fields::{self, Fields};
use crate::{ClientMessage, ClientResponse, HandshakeError, OnlineMessage, Rejection};
use domain::{ClientInfo, ClientKind, MessageId};

/// Maximum length of the details of a `message-error`, in characters. Longer details are truncated.
const MAX_DETAILS_CHARS: usize = 1000;

/// Decodes a message that a client published on its `in` or `status` topic.
///
/// # Errors
/// [`Rejection`] if the message can never be processed.
pub fn decode(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        // A message with an empty payload clears a retained message.
        return Ok(ClientMessage::Ignored);
    }
    let (message_type, mut fields) = json_fields::parse_envelope(payload)?;
    match message_type.as_str() {
        "host-handshake" => Ok(decode_handshake(ClientKind::Host, fields)),
        "proxy-handshake" => Ok(decode_handshake(ClientKind::Proxy, fields)),
        "offline" => Ok(ClientMessage::Offline {
            sent: json_fields::read_timestamp(&fields, "sent"),
        }),
        "message-error" => Ok(ClientMessage::Response(ClientResponse::Error {
            response_to: json_fields::take_message_id(&mut fields, "in_response_to")?,
            details: error_details(&fields),
        })),
        "message" => Ok(ClientMessage::Response(ClientResponse::Data {
            response_to: json_fields::take_message_id(&mut fields, "in_response_to")?,
            directive: json_fields::take_short_text(&mut fields, "directive")?,
        })),
        _ => Ok(ClientMessage::Ignored),
    }
}

/// Returns whether the message type is that of a response. Returns false if the message type cannot
/// be decoded.
#[must_use]
pub fn is_response(payload: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct TypeField<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
    }
    // The first character is checked, because serde would also deserialize the struct from an
    // array.
    payload.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice::<TypeField<'_>>(payload)
            .is_ok_and(|field| matches!(&*field.r#type, "message-error" | "message"))
}

/// Decodes a handshake. An invalid handshake becomes [`ClientMessage::InvalidHandshake`], because
/// the service reports the error to the client.
fn decode_handshake(kind: ClientKind, mut fields: Fields) -> ClientMessage {
    let message_id = match json_fields::take_message_id(&mut fields, "message_id") {
        Ok(Some(message_id)) => message_id,
        Ok(None) => {
            let rejection = Rejection::invalid_schema("message_id is missing");
            return invalid_handshake(None, rejection);
        }
        Err(rejection) => return invalid_handshake(None, rejection),
    };
    match decode_client_info(kind, &mut fields) {
        Ok(info) => ClientMessage::Online(Box::new(OnlineMessage {
            kind,
            message_id: Some(message_id),
            sent: json_fields::read_timestamp(&fields, "sent"),
            info,
        })),
        Err(rejection) => invalid_handshake(Some(message_id), rejection),
    }
}

fn invalid_handshake(in_response_to: Option<MessageId>, rejection: Rejection) -> ClientMessage {
    ClientMessage::InvalidHandshake(HandshakeError {
        in_response_to,
        rejection,
    })
}

fn decode_client_info(kind: ClientKind, fields: &mut Fields) -> Result<ClientInfo, Rejection> {
    let Some(Value::Object(mut payload)) = fields.remove("payload") else {
        return Err(Rejection::invalid_schema("payload is not an object"));
    };
    let mut take_facts = |field_name: &str| match payload.remove(field_name) {
        Some(Value::Object(facts)) => Ok(facts),
        _ => Err(Rejection::invalid_schema(format!(
            "payload.{field_name} is not an object"
        ))),
    };
    let mut info = ClientInfo::default();
    match kind {
        ClientKind::Host => {
            info.canonical_facts = json_fields::sanitize_facts(take_facts("canonical_facts")?)?;
        }
        ClientKind::Proxy => {
            let facts = take_facts("catalog_service_facts")?;
            for field_name in ["source_type", "application_type"] {
                if !facts.get(field_name).is_some_and(Value::is_string) {
                    return Err(Rejection::invalid_schema(format!(
                        "payload.catalog_service_facts.{field_name} is not a string"
                    )));
                }
            }
            info.catalog_service_facts =
                json_fields::check_storable("catalog_service_facts", Value::Object(facts))?;
        }
    }
    Ok(info)
}

/// Returns the error details as text. Details that are not a string are formatted as JSON.
fn error_details(fields: &Fields) -> String {
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
        .take(MAX_DETAILS_CHARS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::RejectReason::{InvalidCharacters, InvalidJson, InvalidSchema};
    use serde_json::json;

    fn decode_json(message: &Value) -> Result<ClientMessage, Rejection> {
        decode(&serde_json::to_vec(message).unwrap())
    }

    fn decode_online(message: &Value) -> OnlineMessage {
        match decode_json(message) {
            Ok(ClientMessage::Online(online)) => *online,
            other => panic!("not a handshake: {other:?}"),
        }
    }

    fn decode_handshake_error(message: &Value) -> HandshakeError {
        match decode_json(message) {
            Ok(ClientMessage::InvalidHandshake(error)) => error,
            other => panic!("not an invalid handshake: {other:?}"),
        }
    }

    #[test]
    fn host_handshake_contains_canonical_facts() {
        let online = decode_online(&json!({
            "type": "host-handshake", "message_id": "h1", "version": 1,
            "sent": "2020-12-04T17:22:24+00:00",
            "payload": {"canonical_facts": {"insights_id": "nope", "fqdn": "a.example"}}
        }));
        assert_eq!(online.kind, ClientKind::Host);
        assert_eq!(online.message_id.unwrap().as_str(), "h1");
        assert_eq!(online.sent.unwrap().to_string(), "2020-12-04T17:22:24Z");
        assert_eq!(online.info.canonical_facts, json!({"fqdn": "a.example"}));
        assert_eq!(online.info.catalog_service_facts, Value::Null);
    }

    #[test]
    fn proxy_handshake_contains_catalog_service_facts() {
        let facts = json!({"source_type": "satellite", "application_type": "catalog", "more": 1});
        let online = decode_online(&json!({
            "type": "proxy-handshake", "message_id": "h2",
            "payload": {"catalog_service_facts": facts}
        }));
        assert_eq!(online.kind, ClientKind::Proxy);
        assert_eq!(online.sent, None);
        assert_eq!(online.info.catalog_service_facts, facts);
        assert_eq!(online.info.canonical_facts, json!({}));
    }

    #[test]
    fn handshake_error_has_no_message_id_if_the_id_of_the_handshake_is_invalid() {
        for id in [json!(null), json!(""), json!(7), json!("x".repeat(256))] {
            let error = decode_handshake_error(&json!({
                "type": "host-handshake", "message_id": id, "payload": {"canonical_facts": {}}
            }));
            assert_eq!(error.in_response_to, None, "{id}");
        }
    }

    #[test]
    fn invalid_facts_cause_a_handshake_error_with_the_id_of_the_handshake() {
        let host_handshake = |payload: Value| json!({"type": "host-handshake", "message_id": "h", "payload": payload});
        let proxy_handshake = |payload: Value| json!({"type": "proxy-handshake", "message_id": "h", "payload": payload});
        for (handshake, reason) in [
            (host_handshake(json!(null)), InvalidSchema),
            (host_handshake(json!([])), InvalidSchema),
            (host_handshake(json!({})), InvalidSchema),
            (
                host_handshake(json!({"canonical_facts": null})),
                InvalidSchema,
            ),
            (
                host_handshake(json!({"canonical_facts": []})),
                InvalidSchema,
            ),
            (
                host_handshake(json!({"canonical_facts": {"fqdn": "\0"}})),
                InvalidCharacters,
            ),
            (
                proxy_handshake(json!({"catalog_service_facts": "x"})),
                InvalidSchema,
            ),
            (
                proxy_handshake(json!({"catalog_service_facts": {}})),
                InvalidSchema,
            ),
            (
                proxy_handshake(
                    json!({"catalog_service_facts": {"source_type": 1, "application_type": ""}}),
                ),
                InvalidSchema,
            ),
        ] {
            let error = decode_handshake_error(&handshake);
            assert_eq!(error.rejection.reason, reason, "{handshake}");
            assert_eq!(error.in_response_to.unwrap().as_str(), "h");
        }
    }

    #[test]
    fn all_fields_of_an_offline_message_except_the_type_are_ignored() {
        for offline in [
            json!({"type": "offline"}),
            json!({"type": "offline", "message_id": "x", "version": 1}),
            json!({"type": "offline", "message_id": [], "sent": 9, "payload": "?"}),
        ] {
            assert_eq!(
                decode_json(&offline),
                Ok(ClientMessage::Offline { sent: None })
            );
        }
    }

    #[test]
    fn message_error_is_decoded_with_the_message_id_and_the_details() {
        let message_error = json!({
            "type": "message-error", "message_id": "e", "in_response_to": "m",
            "payload": {"details": "cannot dispatch"}
        });
        assert_eq!(
            decode_json(&message_error),
            Ok(ClientMessage::Response(ClientResponse::Error {
                response_to: MessageId::new("m").ok(),
                details: "cannot dispatch".into()
            }))
        );
        for unusual in [
            json!({"type": "message-error"}),
            json!({"type": "message-error", "payload": {"details": {"a": "x".repeat(5000)}}}),
        ] {
            let Ok(ClientMessage::Response(ClientResponse::Error { details, .. })) =
                decode_json(&unusual)
            else {
                panic!("{unusual}");
            };
            assert!(details.len() <= MAX_DETAILS_CHARS);
        }
    }

    #[test]
    fn unknown_message_types_and_empty_payloads_are_ignored() {
        assert_eq!(decode(b""), Ok(ClientMessage::Ignored));
        assert_eq!(
            decode_json(&json!({"type": "news"})),
            Ok(ClientMessage::Ignored)
        );
    }

    #[test]
    fn invalid_envelopes_are_rejected_without_a_handshake_error() {
        for (payload, reason) in [
            (&b"\xff"[..], InvalidJson),
            (b"{", InvalidJson),
            (b"[]", InvalidSchema),
            (br#"{"type":1}"#, InvalidSchema),
            (
                br#"{"type":"message-error","in_response_to":1}"#,
                InvalidSchema,
            ),
        ] {
            assert_eq!(decode(payload).unwrap_err().reason, reason);
        }
    }

    #[test]
    fn responses_are_recognized_by_type() {
        assert!(is_response(br#"{"payload":"x","type":"message"}"#));
        assert!(is_response(br#"{"type":"message-error"}"#));
        for not_response in [
            &br#"{"type":"offline"}"#[..],
            br#"{"type":7}"#,
            br#"["message"]"#,
            b"",
            b"[",
            b"7",
        ] {
            assert!(!is_response(not_response));
        }
    }
}
