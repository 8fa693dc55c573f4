//! Checks the invariants of message decoding, for any payload.

use bytes::Bytes;
use serde_json::Value;
use uuid::Uuid;

use domain::{ClientKind, MessageId, RejectReason, Timestamp};
use protocol::{
    Channel, ClientMessage, ClientResponse, Direction, InboundMessage, MAX_PRESENCE_BYTES,
    MAX_RESPONSE_BYTES, OnlineMessage, OriginalPayload, Rejection, decode, handshake,
    is_response_or_heartbeat, status,
};

/// Maximum nesting depth of facts, dispatchers and tags.
const MAX_NESTING_DEPTH: usize = 32;

/// Decodes the payload, checks the invariants of decoding, and returns the decoded message.
///
/// # Panics
/// If an invariant is violated.
pub fn check_decoding(channel: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection> {
    let message = inbound_message(payload);
    let result = decode(channel, &message);
    match &result {
        Ok(decoded) => check_message(channel, payload, decoded),
        Err(rejection) => check_rejection(payload, rejection),
    }
    check_offline_decoding(channel, payload, &result);
    if is_response_or_heartbeat(channel, payload) {
        let is_presence = matches!(
            result,
            Ok(ClientMessage::Online(_)
                | ClientMessage::Offline { .. }
                | ClientMessage::InvalidHandshake(_))
        );
        assert!(
            !is_presence,
            "is_response_or_heartbeat is true for {result:?}"
        );
    }
    check_wrong_direction_and_truncation_are_rejected(channel, message);
    result
}

fn inbound_message(payload: &[u8]) -> InboundMessage {
    InboundMessage {
        topic: "redhat/insights/me/control/out".to_owned(),
        payload: Bytes::copy_from_slice(payload),
        is_operator_replay: false,
        is_last_will: Some(false),
        is_takeover: false,
        retained: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    }
}

/// Checks that every message on a topic for messages to clients is rejected, and that every
/// truncated message is rejected.
fn check_wrong_direction_and_truncation_are_rejected(
    channel: Channel,
    mut message: InboundMessage,
) {
    let channel_to_client = channel.with_direction(Direction::ToClient);
    let rejection = decode(channel_to_client, &message).unwrap_err();
    assert_eq!(rejection.reason, RejectReason::UnknownTopic);
    message.truncated_from = Some(OriginalPayload {
        size_bytes: 1 << 40,
        sha256: String::new(),
    });
    let rejection = decode(channel, &message).unwrap_err();
    assert_eq!(rejection.reason, RejectReason::PayloadTooLarge);
}

fn check_rejection(payload: &[u8], rejection: &Rejection) {
    // Only the recorder uses the reason `RejectedByDatabase`. The decoder never uses this reason.
    assert_ne!(rejection.reason, RejectReason::RejectedByDatabase);
    let detail_length = rejection.detail.len();
    assert!(0 < detail_length && detail_length < 200, "{rejection:?}");
    assert!(
        !payload.is_empty(),
        "an empty payload was rejected: {rejection:?}"
    );
}

fn check_message(channel: Channel, payload: &[u8], message: &ClientMessage) {
    let is_control = channel == status::CONTROL_FROM_CLIENT;
    let is_data = channel == status::DATA_FROM_CLIENT;
    match message {
        ClientMessage::Online(online) => {
            assert!(!is_data, "online message on the data topic");
            assert!(payload.len() <= MAX_PRESENCE_BYTES);
            assert!(!is_control || online.kind == ClientKind::Host);
            assert!(
                is_control || online.message_id.is_some(),
                "handshake without message_id"
            );
            check_online_message(online);
        }
        ClientMessage::Offline { .. } => {
            assert!(!is_data, "offline message on the data topic");
            assert!(payload.len() <= MAX_PRESENCE_BYTES);
        }
        ClientMessage::Heartbeat => assert!(is_data && payload.is_empty()),
        ClientMessage::Response(response) => {
            assert!(payload.len() <= MAX_RESPONSE_BYTES);
            check_response(response);
        }
        ClientMessage::InvalidHandshake(error) => {
            assert!(!is_control && !is_data, "handshake in the status dialect");
            check_rejection(payload, &error.rejection);
            error.in_response_to.iter().for_each(check_message_id);
        }
        ClientMessage::Ignored => {}
    }
}

fn check_online_message(online: &OnlineMessage) {
    online.message_id.iter().for_each(check_message_id);
    if let Some(sent) = online.sent {
        let text = sent.to_string();
        let has_four_digit_year = text.as_bytes()[..4].iter().all(u8::is_ascii_digit);
        assert!(has_four_digit_year, "not RFC 3339: {text}");
        let is_truncated = sent.as_nanosecond() % 1000 == 0;
        assert!(is_truncated, "not truncated to microseconds: {text}");
    }
    let info = &online.info;
    check_value_is_storable(&info.canonical_facts);
    check_value_is_storable(&info.catalog_service_facts);
    check_value_is_storable(&info.dispatchers);
    check_value_is_storable(&info.tags);
    check_short_text(&info.client_name);
    check_short_text(&info.client_version);
    let facts = info.canonical_facts.as_object();
    let facts = facts.expect("canonical_facts is an object");
    if let Some(id) = facts.get("insights_id") {
        let is_uuid = id.as_str().is_some_and(|id| Uuid::try_parse(id).is_ok());
        assert!(is_uuid, "insights_id {id}");
    }
    for value in [&info.dispatchers, &info.tags] {
        assert!(value.is_null() || value.is_object(), "{value}");
    }
    match online.kind {
        ClientKind::Host => assert!(info.catalog_service_facts.is_null()),
        ClientKind::Proxy => {
            for key in ["source_type", "application_type"] {
                assert!(info.catalog_service_facts[key].is_string(), "{key}");
            }
        }
    }
}

fn check_response(response: &ClientResponse) {
    let response_to = match response {
        ClientResponse::Pong { response_to } => response_to,
        ClientResponse::Data {
            response_to,
            directive,
        } => {
            check_short_text(directive);
            response_to
        }
        ClientResponse::Error {
            response_to,
            details,
        } => {
            assert!(details.chars().count() <= 1000);
            response_to
        }
    };
    response_to.iter().for_each(check_message_id);
}

fn check_message_id(id: &MessageId) {
    let id = id.as_str();
    assert!(!id.is_empty() && id.chars().count() <= 255 && !id.contains('\0'));
}

fn check_short_text(text: &str) {
    assert!(text.chars().count() <= 255 && !text.contains('\0'));
}

/// Checks that both databases can store the value, and that an API caller's JSON parser can parse a
/// list that contains the value.
fn check_value_is_storable(value: &Value) {
    assert!(nesting_depth(value) <= MAX_NESTING_DEPTH);
    let text = value.to_string();
    // An escaped backslash followed by `u0000` is not a NUL.
    assert!(!text.replace("\\\\", "").contains("\\u0000"), "{text}");
    serde_json::from_str::<Value>(&text).expect("the text that SQLite stores is valid JSON");
    check_numbers_are_parsable(value);
}

fn nesting_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting_depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(nesting_depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Checks that the service can parse the numbers that PostgreSQL returns. PostgreSQL returns all
/// digits of a JSON number. If the service could not parse a number, every list with this row would
/// fail.
fn check_numbers_are_parsable(value: &Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let digits = format!("{}", number.as_f64().expect("a double"));
            let parsed = serde_json::from_str::<Value>(&digits);
            assert!(parsed.is_ok(), "cannot parse {digits}");
        }
        Value::Array(items) => items.iter().for_each(check_numbers_are_parsable),
        Value::Object(map) => map.values().for_each(check_numbers_are_parsable),
        _ => {}
    }
}

/// Checks that a message is decoded as an offline message if and only if its type and state are
/// those of an offline message. All other fields must have no effect. The expected result is
/// computed without the decoder.
fn check_offline_decoding(
    channel: Channel,
    payload: &[u8],
    result: &Result<ClientMessage, Rejection>,
) {
    if payload.len() > MAX_PRESENCE_BYTES {
        return;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(payload) else {
        return;
    };
    let is_control = channel == status::CONTROL_FROM_CLIENT;
    let is_handshake = channel.dialect().name() == handshake::NAME;
    let is_offline = match value["type"].as_str() {
        Some("connection-status") if is_control => value["content"]["state"] == "offline",
        Some("event") if is_control => value["content"] == "disconnect",
        Some("offline") => is_handshake,
        _ => false,
    };
    let is_decoded_as_offline = matches!(result, Ok(ClientMessage::Offline { .. }));
    assert_eq!(is_offline, is_decoded_as_offline, "{value}");

    // An offline message is created from the payload: only the type and the state are changed. The
    // decoder must ignore all other fields.
    if value.get("type").is_none() {
        return;
    }
    if is_control && value["content"].is_object() {
        value["type"] = "connection-status".into();
        value["content"]["state"] = "offline".into();
    } else if is_handshake {
        value["type"] = "offline".into();
    } else {
        return;
    }
    let payload = value.to_string().into_bytes();
    if payload.len() <= MAX_PRESENCE_BYTES {
        let result = decode(channel, &inbound_message(&payload));
        let is_offline = matches!(result, Ok(ClientMessage::Offline { .. }));
        assert!(is_offline, "{value}");
    }
}
