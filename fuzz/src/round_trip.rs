//! What the service sends, a client reads back as the same; and the other way round.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Number, Value};
use uuid::Uuid;

use crate::domain::clock::truncate_to_micros;
use crate::domain::{Dialect, ClientKind, MessageId, OutgoingMessage, ClientInfo, Timestamp};
use crate::protocol::handshake::client_side as handshake_client;
use crate::protocol::status::client_side as status_client;
use crate::protocol::{
    ClientResponse, Command, HandshakeError, Rejection, ClientMessage, encode_command, encode_message, handshake,
    is_valid_metadata, status,
};

/// First second of the year 0, and the last second that a time can have.
const SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_207_199;

/// Splits the bytes into fields, and sends them both ways in both dialects.
///
/// # Errors
/// When the bytes do not suffice.
pub fn check(bytes: &[u8]) -> Result<()> {
    let mut bytes = Unstructured::new(bytes);
    let id = Uuid::from_bytes(bytes.arbitrary()?);
    let now = moment(&mut bytes)?;
    match bytes.int_in_range(0..=4)? {
        0 => check_message(&OutgoingMessage {
            id,
            sent: now,
            directive: bytes.arbitrary()?,
            metadata: metadata(&mut bytes)?,
            payload: value(&mut bytes, 6)?,
        }),
        1 => check_command(&command(&mut bytes)?, id, now),
        2 => check_refusal(bytes.arbitrary()?, bytes.arbitrary()?, id, now),
        3 => check_online(now, &reported(&mut bytes)?),
        _ => check_answers(
            now,
            bytes.arbitrary()?,
            bytes.arbitrary()?,
            &value(&mut bytes, 4)?,
        ),
    }
    Ok(())
}

fn moment(bytes: &mut Unstructured<'_>) -> Result<Timestamp> {
    let second = bytes.int_in_range(SECONDS)?;
    let nanosecond = bytes.int_in_range(0..=999_999_999)?;
    Ok(Timestamp::new(second, nanosecond).expect("within range"))
}

fn metadata(bytes: &mut Unstructured<'_>) -> Result<Value> {
    if bytes.arbitrary()? {
        return Ok(Value::Null);
    }
    let map: Vec<(String, String)> = bytes.arbitrary()?;
    Ok(map
        .into_iter()
        .map(|(key, value)| (key, Value::String(value)))
        .collect())
}

fn value(bytes: &mut Unstructured<'_>, depth: u8) -> Result<Value> {
    let most = if depth == 0 { 5 } else { 7 };
    Ok(match bytes.int_in_range(0..=most)? {
        0 => Value::Null,
        1 => Value::Bool(bytes.arbitrary()?),
        2 => bytes.arbitrary::<i64>()?.into(),
        3 => bytes.arbitrary::<u64>()?.into(),
        4 => Number::from_f64(bytes.arbitrary()?).map_or(Value::Null, Value::Number),
        5 => Value::String(bytes.arbitrary()?),
        6 => {
            let mut items = Vec::new();
            for _ in 0..bytes.int_in_range(0..=4)? {
                items.push(value(bytes, depth - 1)?);
            }
            Value::Array(items)
        }
        _ => Value::Object(object(bytes, depth - 1)?),
    })
}

fn object(bytes: &mut Unstructured<'_>, depth: u8) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    for _ in 0..bytes.int_in_range(0..=4)? {
        map.insert(bytes.arbitrary()?, value(bytes, depth)?);
    }
    Ok(map)
}

fn command(bytes: &mut Unstructured<'_>) -> Result<Command> {
    Ok(match bytes.int_in_range(0..=2)? {
        0 => Command::Ping,
        1 => Command::Reconnect {
            delay_seconds: bytes.arbitrary()?,
            message: bytes.arbitrary()?,
        },
        _ => Command::Disconnect {
            message: bytes.arbitrary()?,
        },
    })
}

fn reported(bytes: &mut Unstructured<'_>) -> Result<ClientInfo> {
    let mut facts = object(bytes, 3)?;
    // Dropped unless it is a UUID: a rule of its own, which is held elsewhere.
    facts.remove("insights_id");
    let mut catalog = object(bytes, 3)?;
    for key in ["source_type", "application_type"] {
        catalog.insert(key.to_owned(), Value::String(bytes.arbitrary()?));
    }
    let mut object_or_null = || match bytes.arbitrary()? {
        true => Ok(Value::Null),
        false => object(bytes, 3).map(Value::Object),
    };
    let (dispatchers, tags) = (object_or_null()?, object_or_null()?);
    Ok(ClientInfo {
        canonical_facts: Value::Object(facts),
        catalog_service_facts: Value::Object(catalog),
        dispatchers,
        tags,
        client_name: bytes.arbitrary()?,
        client_version: bytes.arbitrary()?,
    })
}

fn fields(bytes: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("not an object: {other:?}"),
    }
}

fn assert_keys(fields: &Map<String, Value>, keys: &[&str]) {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    let mut found: Vec<&str> = fields.keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, keys);
}

fn assert_envelope(fields: &Map<String, Value>, kind: &str, id: Uuid, sent: Timestamp) {
    assert_eq!(fields["type"], kind);
    assert_eq!(fields["message_id"], id.to_string());
    assert_eq!(fields["version"], 1);
    let text = fields["sent"].as_str().expect("sent is a string");
    assert_eq!(text.parse().ok(), Some(sent), "{text}");
    // RFC 3339 has four digits for the year and a T.
    let bytes = text.as_bytes();
    assert!(bytes[..4].iter().all(u8::is_ascii_digit) && bytes[10] == b'T' && text.ends_with('Z'));
}

fn check_message(message: &OutgoingMessage) {
    assert!(is_valid_metadata(&message.metadata));
    let payload = message.payload.clone();
    let message_id = message.id.to_string();

    let (_, bytes) = encode_message(Dialect::Status, message);
    let sent = fields(&bytes);
    assert_envelope(&sent, "data", message.id, message.sent);
    assert_keys(
        &sent,
        &[
            "type",
            "message_id",
            "response_to",
            "version",
            "sent",
            "directive",
            "metadata",
            "content",
        ],
    );
    assert_eq!(sent["response_to"], "");
    assert_eq!(sent["metadata"], message.metadata);
    let heard = status_client::ServerMessage::Data {
        message_id: message_id.clone(),
        directive: message.directive.clone(),
        content: payload.clone(),
    };
    assert_eq!(status_client::decode(&bytes), Some(heard));

    let (_, bytes) = encode_message(Dialect::Handshake, message);
    let sent = fields(&bytes);
    assert_envelope(&sent, "message", message.id, message.sent);
    let mut keys = vec![
        "type",
        "message_id",
        "version",
        "sent",
        "directive",
        "payload",
    ];
    if !message.metadata.is_null() {
        keys.push("metadata");
        assert_eq!(sent["metadata"], message.metadata);
    }
    assert_keys(&sent, &keys);
    let heard = handshake_client::ServerMessage::Message {
        message_id,
        directive: message.directive.clone(),
        payload,
    };
    assert_eq!(handshake_client::decode(&bytes), Some(heard));
}

fn check_command(command: &Command, id: Uuid, now: Timestamp) {
    let (short_text, delay, message) = match command {
        Command::Ping => ("ping", None, ""),
        Command::Reconnect {
            delay_seconds,
            message,
        } => ("reconnect", Some(*delay_seconds), message.as_str()),
        Command::Disconnect { message } => ("disconnect", None, message.as_str()),
    };

    let (_, bytes) = encode_command(Dialect::Status, command, id, now).expect("it has them all");
    let sent = fields(&bytes);
    assert_envelope(&sent, "command", id, now);
    let keys = [
        "type",
        "message_id",
        "response_to",
        "version",
        "sent",
        "content",
    ];
    assert_keys(&sent, &keys);
    assert_eq!(sent["content"]["message"], message);
    let arguments = &sent["content"]["arguments"];
    assert!(is_valid_metadata(arguments), "clients want strings: {arguments}");
    assert_eq!(arguments.is_null(), delay.is_none());
    let heard = status_client::ServerMessage::Command {
        message_id: id.to_string(),
        command: short_text.to_owned(),
        delay_seconds: delay,
    };
    assert_eq!(status_client::decode(&bytes), Some(heard));

    let Some((_, bytes)) = encode_command(Dialect::Handshake, command, id, now) else {
        assert_eq!(*command, Command::Ping, "only a ping has no message");
        return;
    };
    let sent = fields(&bytes);
    assert_envelope(&sent, "force-disconnect", id, now);
    assert_eq!(sent["reconnect_after"] == "never", delay.is_none());
    assert_eq!(sent.contains_key("payload"), !message.is_empty());
    if let Some(payload) = sent.get("payload") {
        assert_eq!(payload["details"], message);
    }
    let heard = handshake_client::decode(&bytes);
    let Some(handshake_client::ServerMessage::ForceDisconnect { reconnect_after }) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(reconnect_after.is_some(), delay.is_some());
    if let (Some(at), Some(delay)) = (reconnect_after, delay) {
        assert!(at >= now, "back before it left");
        let wait = u64::try_from(at.duration_since(now).as_secs()).expect("not negative");
        assert!(wait == delay || (wait < delay && at.as_second() >= *SECONDS.end()));
    }
}

fn check_refusal(id: &str, detail: &str, message_id: Uuid, now: Timestamp) {
    let in_response_to = MessageId::new(id).ok();
    let refusal = HandshakeError {
        in_response_to: in_response_to.clone(),
        why: Rejection::wrong_shape(detail),
    };
    let bytes = handshake::encode_refusal(&refusal, message_id, now);
    let sent = fields(&bytes);
    assert_envelope(&sent, "handshake-error", message_id, now);
    assert_keys(
        &sent,
        &[
            "type",
            "message_id",
            "in_response_to",
            "version",
            "sent",
            "payload",
        ],
    );
    let named = in_response_to.map_or(Value::Null, |id| id.as_str().into());
    assert_eq!(sent["in_response_to"], named);
    let heard = handshake_client::ServerMessage::HandshakeError {
        details: detail.to_owned(),
    };
    assert_eq!(handshake_client::decode(&bytes), Some(heard));
}

fn check_online(now: Timestamp, reported: &ClientInfo) {
    let text = |value: &Value| value.to_string().replace("\\\\", "");
    let holds_nul = |value: &Value| text(value).contains("\\u0000");
    let is_word = |short_text: &str| !short_text.contains('\0') && short_text.chars().count() <= 255;

    let bytes = status_client::online(now, reported);
    let good = ![
        &reported.canonical_facts,
        &reported.dispatchers,
        &reported.tags,
    ]
    .into_iter()
    .any(holds_nul)
        && is_word(&reported.client_name)
        && is_word(&reported.client_version);
    let expected = ClientInfo {
        canonical_facts: reported.canonical_facts.clone(),
        catalog_service_facts: Value::Null,
        dispatchers: reported.dispatchers.clone(),
        tags: reported.tags.clone(),
        ..reported.clone()
    };
    expect_online(
        status::decode_control(&bytes),
        good,
        ClientKind::Host,
        now,
        &expected,
    );
    assert_eq!(
        status::decode_control(&status_client::offline(now)),
        Ok(ClientMessage::Offline)
    );

    let nothing_else = ClientInfo {
        canonical_facts: Value::Object(Map::new()),
        catalog_service_facts: Value::Null,
        dispatchers: Value::Null,
        tags: Value::Null,
        client_name: String::new(),
        client_version: String::new(),
    };
    for kind in [ClientKind::Host, ClientKind::Proxy] {
        let (facts, expected) = match kind {
            ClientKind::Host => {
                let facts = &reported.canonical_facts;
                let canonical_facts = facts.clone();
                (
                    facts,
                    ClientInfo {
                        canonical_facts,
                        ..nothing_else.clone()
                    },
                )
            }
            ClientKind::Proxy => {
                let facts = &reported.catalog_service_facts;
                let catalog_service_facts = facts.clone();
                (
                    facts,
                    ClientInfo {
                        catalog_service_facts,
                        ..nothing_else.clone()
                    },
                )
            }
        };
        let bytes = handshake_client::handshake(now, kind, reported);
        expect_online(
            handshake::read(&bytes),
            !holds_nul(facts),
            kind,
            now,
            &expected,
        );
    }
    assert_eq!(
        handshake::read(&handshake_client::offline()),
        Ok(ClientMessage::Offline)
    );
}

fn expect_online(
    result: std::result::Result<ClientMessage, Rejection>,
    good: bool,
    kind: ClientKind,
    now: Timestamp,
    expected: &ClientInfo,
) {
    match result {
        Ok(ClientMessage::Online(online)) => {
            assert!(good, "it was to be refused");
            assert_eq!(online.kind, kind);
            assert_eq!(online.sent, Some(truncate_to_micros(now)));
            assert_eq!(online.reported, *expected);
        }
        Ok(ClientMessage::InvalidHandshake(refusal)) => assert!(!good, "{:?}", refusal.why),
        Err(rejected) => assert!(!good, "{rejected:?}"),
        Ok(other) => panic!("{other:?}"),
    }
}

fn check_answers(now: Timestamp, to: &str, directive: &str, content: &Value) {
    // Absent and empty are the same, and allowed.
    let id = MessageId::new(to);
    let good_id = id.is_ok() || to.is_empty();
    let good = good_id && !directive.contains('\0') && directive.chars().count() <= 255;

    let pong = status::decode_control(&status_client::pong(now, to));
    match pong {
        Ok(ClientMessage::Response(ClientResponse::Pong { to })) => assert_eq!(to, id.clone().ok()),
        other => assert!(!good_id && other.is_err(), "{other:?}"),
    }
    for answer in [
        status::decode_data(&status_client::answer(now, to, directive, content)),
        handshake::read(&handshake_client::answer(now, to, directive, content)),
    ] {
        match answer {
            Ok(ClientMessage::Response(ClientResponse::Data {
                to,
                directive: heard,
            })) => {
                assert!(good);
                assert_eq!((to, heard.as_str()), (id.clone().ok(), directive));
            }
            other => assert!(!good && other.is_err(), "{other:?}"),
        }
    }
    let bytes = handshake_client::message_error(now, to, directive);
    assert!(handshake::is_response(&bytes));
    match handshake::read(&bytes) {
        Ok(ClientMessage::Response(ClientResponse::Error { to, details })) => {
            assert_eq!(to, id.ok());
            // NUL is left out: no database of ours would take it.
            assert!(directive.replace('\0', "").starts_with(&details));
        }
        other => assert!(!good_id && other.is_err(), "{other:?}"),
    }
}
