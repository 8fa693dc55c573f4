//! What must hold of everything that is read, whatever the bytes.

use bytes::Bytes;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{ClientKind, MessageId, Timestamp};
use crate::protocol::{
    ANSWER_MAX_BYTES, ClientResponse, Truncated, Direction, Online, PRESENCE_MAX_BYTES, InboundMessage, Rejection,
    Channel, ClientMessage, is_response, read,
};

/// The reasons are a metric's label, and documented.
const REASONS: [&str; 6] = [
    "not_json",
    "wrong_shape",
    "too_large",
    "too_long",
    "characters",
    "unknown_topic",
];

/// How deep facts, dispatchers and tags may be nested.
const STORED_MAX_DEPTH: usize = 32;
/// The second that a time can have at most.
const LAST_SECOND: i64 = 253_402_207_200;

/// Reads the payload on that route, checks what came of it, and returns it.
pub fn check(route: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection> {
    let message = received(payload);
    let result = read(route, &message);
    match &result {
        Ok(said) => check_said(route, payload, said),
        Err(rejected) => check_rejected(payload, rejected),
    }
    check_offline(route, payload, &result);
    if is_response(route, payload) {
        let presence = matches!(
            result,
            Ok(ClientMessage::Online(_) | ClientMessage::Offline | ClientMessage::InvalidHandshake(_))
        );
        assert!(!presence, "presence went the way of answers: {result:?}");
    }
    check_neighbours(route, message);
    result
}

fn received(payload: &[u8]) -> InboundMessage {
    InboundMessage {
        topic: "redhat/insights/me/control/out".to_owned(),
        payload: Bytes::copy_from_slice(payload),
        again: false,
        replayed: false,
        received: Timestamp::UNIX_EPOCH,
        cut: None,
    }
}

/// The same bytes where no client publishes, and the same message after it was cut.
fn check_neighbours(route: Channel, mut message: InboundMessage) {
    let back = match route {
        Channel::Control(_) => Channel::Control(Direction::ToClient),
        Channel::Data(_) => Channel::Data(Direction::ToClient),
        Channel::Handshake(_) | Channel::State => Channel::Handshake(Direction::ToClient),
    };
    assert_eq!(read(back, &message).unwrap_err().reason, "unknown_topic");
    message.cut = Some(Truncated {
        size: 1 << 40,
        sha256: String::new(),
    });
    assert_eq!(read(route, &message).unwrap_err().reason, "too_large");
}

fn check_rejected(payload: &[u8], rejected: &Rejection) {
    assert!(REASONS.contains(&rejected.reason), "{rejected:?}");
    assert!(
        !rejected.detail.is_empty() && rejected.detail.len() < 200,
        "{rejected:?}"
    );
    assert!(
        !payload.is_empty(),
        "an empty payload was rejected: {rejected:?}"
    );
}

fn check_said(route: Channel, payload: &[u8], said: &ClientMessage) {
    let (status, data) = (
        matches!(route, Channel::Control(_)),
        matches!(route, Channel::Data(_)),
    );
    match said {
        ClientMessage::Online(online) => {
            assert!(!data, "online on the data topic");
            assert!(payload.len() <= PRESENCE_MAX_BYTES);
            assert!(!status || online.kind == ClientKind::Host);
            assert!(
                status || online.message_id.is_some(),
                "a handshake without an id"
            );
            check_online(online);
        }
        ClientMessage::Offline => {
            assert!(!data, "offline on the data topic");
            assert!(payload.len() <= PRESENCE_MAX_BYTES);
        }
        ClientMessage::Heartbeat => assert!(data && payload.is_empty()),
        ClientMessage::Response(answer) => {
            assert!(payload.len() <= ANSWER_MAX_BYTES);
            check_answer(answer);
        }
        ClientMessage::InvalidHandshake(refusal) => {
            assert!(!status && !data, "the status dialect has no refusals");
            check_rejected(payload, &refusal.why);
            refusal.in_response_to.iter().for_each(check_id);
        }
        ClientMessage::Ignored => {}
    }
}

fn check_online(online: &Online) {
    online.message_id.iter().for_each(check_id);
    if let Some(sent) = online.sent {
        // Four digits: what RFC 3339 writes, and both databases and every caller read.
        let text = sent.to_string();
        assert!(
            text.as_bytes()[..4].iter().all(u8::is_ascii_digit),
            "{text}"
        );
        // The last second that there is cannot be cut; nothing is ever received after it.
        let is_cut = sent.as_nanosecond() % 1000 == 0 || sent.as_second() >= LAST_SECOND;
        assert!(is_cut, "finer than the stores: {text}");
    }
    let reported = &online.reported;
    check_stored(&reported.canonical_facts);
    check_stored(&reported.catalog_service_facts);
    check_stored(&reported.dispatchers);
    check_stored(&reported.tags);
    check_word(&reported.client_name);
    check_word(&reported.client_version);
    let facts = reported.canonical_facts.as_object();
    let facts = facts.expect("canonical facts are an object");
    if let Some(id) = facts.get("insights_id") {
        let is_uuid = id.as_str().is_some_and(|id| Uuid::try_parse(id).is_ok());
        assert!(is_uuid, "insights_id {id}");
    }
    for value in [&reported.dispatchers, &reported.tags] {
        assert!(value.is_null() || value.is_object(), "{value}");
    }
    match online.kind {
        ClientKind::Host => assert!(reported.catalog_service_facts.is_null()),
        ClientKind::Proxy => {
            for key in ["source_type", "application_type"] {
                assert!(reported.catalog_service_facts[key].is_string(), "{key}");
            }
        }
    }
}

fn check_answer(answer: &ClientResponse) {
    let to = match answer {
        ClientResponse::Pong { to } => to,
        ClientResponse::Data { to, directive } => {
            check_word(directive);
            to
        }
        ClientResponse::Error { to, details } => {
            assert!(details.chars().count() <= 1000);
            to
        }
    };
    to.iter().for_each(check_id);
}

fn check_id(id: &MessageId) {
    let id = id.as_str();
    assert!(!id.is_empty() && id.chars().count() <= 255 && !id.contains('\0'));
}

fn check_word(short_text: &str) {
    assert!(short_text.chars().count() <= 255 && !short_text.contains('\0'));
}

/// A stored value holds nothing that a database refuses, reads back from its text, and is not
/// nested deeper than the parser of whoever is shown it inside of a list.
fn check_stored(value: &Value) {
    assert!(depth(value) <= STORED_MAX_DEPTH);
    let text = value.to_string();
    // An escaped backslash before the letters is not a NUL.
    assert!(!text.replace("\\\\", "").contains("\\u0000"), "{text}");
    serde_json::from_str::<Value>(&text).expect("SQLite's text reads back");
    check_numbers(value);
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// PostgreSQL writes a number of JSON out with all its digits, and that must read back, too: a row
/// that does not is a list that nobody can ask for.
fn check_numbers(value: &Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = format!("{}", number.as_f64().expect("a double"));
            let read = serde_json::from_str::<Value>(&text);
            assert!(read.is_ok(), "{number} does not read back from {text}");
        }
        Value::Array(items) => items.iter().for_each(check_numbers),
        Value::Object(map) => map.values().for_each(check_numbers),
        _ => {}
    }
}

/// An offline is never rejected for its fields: told from the value alone, by other means than the
/// reader's own.
fn check_offline(route: Channel, payload: &[u8], result: &Result<ClientMessage, Rejection>) {
    if payload.len() > PRESENCE_MAX_BYTES {
        return;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(payload) else {
        return;
    };
    let says = |value: &Value| match (route, value["type"].as_str()) {
        (Channel::Control(_), Some("connection-status")) => value["content"]["state"] == "offline",
        (Channel::Control(_), Some("event")) => value["content"] == "disconnect",
        (Channel::Handshake(_) | Channel::State, Some("offline")) => true,
        _ => false,
    };
    assert_eq!(says(&value), *result == Ok(ClientMessage::Offline), "{value}");
    // Whatever a message holds, it is an offline as soon as it says so.
    let becomes = match (route, value.get("type").is_some()) {
        (Channel::Control(_), true) if value["content"].is_object() => {
            value["type"] = "connection-status".into();
            value["content"]["state"] = "offline".into();
            true
        }
        (Channel::Handshake(_) | Channel::State, true) => {
            value["type"] = "offline".into();
            true
        }
        _ => false,
    };
    if becomes {
        let bytes = value.to_string().into_bytes();
        if bytes.len() <= PRESENCE_MAX_BYTES {
            assert_eq!(read(route, &received(&bytes)), Ok(ClientMessage::Offline), "{value}");
        }
    }
}
