//! Round trips: the service and the client side encode messages and decode each other's messages.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Number, Value};
use uuid::Uuid;

use domain::clock::truncate_to_micros;
use domain::{ClientInfo, ClientKind, MessageId, OutgoingMessage, Timestamp};
use protocol::handshake::{HandshakeDialect, client_side as handshake_client};
use protocol::status::{StatusDialect, client_side as status_client};
use protocol::{
    ClientMessage, ClientResponse, Command, Dialect as _, HandshakeError, Rejection, handshake,
    is_valid_metadata, status,
};

/// Range of the generated times in Unix seconds. The range starts at the year 0 and ends one second
/// before the maximum of `Timestamp`.
const UNIX_SECONDS_RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_207_199;

/// Generates a message from the bytes, encodes the message in each dialect that has this message,
/// and checks the decoded message.
///
/// # Errors
/// If there are too few bytes for a message.
///
/// # Panics
/// If the decoded message differs from the generated message.
pub fn check_round_trip(bytes: &[u8]) -> Result<()> {
    let mut bytes = Unstructured::new(bytes);
    let message_id = Uuid::from_bytes(bytes.arbitrary()?);
    let now = generate_timestamp(&mut bytes)?;
    match bytes.int_in_range(0..=4)? {
        0 => check_message_round_trip(&OutgoingMessage {
            message_id,
            sent: now,
            directive: bytes.arbitrary()?,
            metadata: generate_metadata(&mut bytes)?,
            payload: generate_json_value(&mut bytes, 6)?,
        }),
        1 => check_command_round_trip(&generate_command(&mut bytes)?, message_id, now),
        2 => check_handshake_error_round_trip(
            bytes.arbitrary()?,
            bytes.arbitrary()?,
            message_id,
            now,
        ),
        3 => check_presence_round_trips(now, &generate_client_info(&mut bytes)?),
        _ => check_response_round_trips(
            now,
            bytes.arbitrary()?,
            bytes.arbitrary()?,
            &generate_json_value(&mut bytes, 4)?,
        ),
    }
    Ok(())
}

fn generate_timestamp(bytes: &mut Unstructured<'_>) -> Result<Timestamp> {
    let second = bytes.int_in_range(UNIX_SECONDS_RANGE)?;
    let nanosecond = bytes.int_in_range(0..=999_999_999)?;
    Ok(Timestamp::new(second, nanosecond).expect("the time is within the range"))
}

fn generate_metadata(bytes: &mut Unstructured<'_>) -> Result<Value> {
    if bytes.arbitrary()? {
        return Ok(Value::Null);
    }
    let map: Vec<(String, String)> = bytes.arbitrary()?;
    Ok(map
        .into_iter()
        .map(|(key, value)| (key, Value::String(value)))
        .collect())
}

fn generate_json_value(bytes: &mut Unstructured<'_>, max_depth: u8) -> Result<Value> {
    // If `max_depth` is 0, the value is neither an array nor an object. So the nesting ends.
    let last_variant = if max_depth == 0 { 5 } else { 7 };
    Ok(match bytes.int_in_range(0..=last_variant)? {
        0 => Value::Null,
        1 => Value::Bool(bytes.arbitrary()?),
        2 => bytes.arbitrary::<i64>()?.into(),
        3 => bytes.arbitrary::<u64>()?.into(),
        4 => Number::from_f64(bytes.arbitrary()?).map_or(Value::Null, Value::Number),
        5 => Value::String(bytes.arbitrary()?),
        6 => {
            let mut items = Vec::new();
            for _ in 0..bytes.int_in_range(0..=4)? {
                items.push(generate_json_value(bytes, max_depth - 1)?);
            }
            Value::Array(items)
        }
        _ => Value::Object(generate_json_object(bytes, max_depth - 1)?),
    })
}

fn generate_json_object(bytes: &mut Unstructured<'_>, max_depth: u8) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    for _ in 0..bytes.int_in_range(0..=4)? {
        map.insert(bytes.arbitrary()?, generate_json_value(bytes, max_depth)?);
    }
    Ok(map)
}

fn generate_command(bytes: &mut Unstructured<'_>) -> Result<Command> {
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

fn generate_client_info(bytes: &mut Unstructured<'_>) -> Result<ClientInfo> {
    let mut facts = generate_json_object(bytes, 3)?;
    // The decoder removes an `insights_id` that is not a UUID, so the decoded facts would differ.
    // The module `decode` checks the removal.
    facts.remove("insights_id");
    let mut catalog_service_facts = generate_json_object(bytes, 3)?;
    for key in ["source_type", "application_type"] {
        catalog_service_facts.insert(key.to_owned(), Value::String(bytes.arbitrary()?));
    }
    let mut generate_object_or_null = || match bytes.arbitrary()? {
        true => Ok(Value::Null),
        false => generate_json_object(bytes, 3).map(Value::Object),
    };
    let (dispatchers, tags) = (generate_object_or_null()?, generate_object_or_null()?);
    Ok(ClientInfo {
        canonical_facts: Value::Object(facts),
        catalog_service_facts: Value::Object(catalog_service_facts),
        dispatchers,
        tags,
        client_name: bytes.arbitrary()?,
        client_version: bytes.arbitrary()?,
    })
}

fn parse_object(bytes: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("not an object: {other:?}"),
    }
}

fn assert_keys(fields: &Map<String, Value>, keys: &[&str]) {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    let mut actual_keys: Vec<&str> = fields.keys().map(String::as_str).collect();
    actual_keys.sort_unstable();
    assert_eq!(actual_keys, keys);
}

fn assert_envelope(
    fields: &Map<String, Value>,
    message_type: &str,
    message_id: Uuid,
    sent: Timestamp,
) {
    assert_eq!(fields["type"], message_type);
    assert_eq!(fields["message_id"], message_id.to_string());
    assert_eq!(fields["version"], 1);
    let text = fields["sent"].as_str().expect("sent is a string");
    assert_eq!(text.parse().ok(), Some(sent), "{text}");
    let bytes = text.as_bytes();
    let has_four_digit_year = bytes[..4].iter().all(u8::is_ascii_digit);
    let is_rfc_3339 = has_four_digit_year && bytes[10] == b'T' && text.ends_with('Z');
    assert!(is_rfc_3339, "{text}");
}

fn check_message_round_trip(message: &OutgoingMessage) {
    assert!(is_valid_metadata(&message.metadata));
    let payload = message.payload.clone();
    let message_id = message.message_id.to_string();

    let bytes = StatusDialect.encode_message(message).payload;
    let encoded = parse_object(&bytes);
    assert_envelope(&encoded, "data", message.message_id, message.sent);
    assert_keys(
        &encoded,
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
    assert_eq!(encoded["response_to"], "");
    assert_eq!(encoded["metadata"], message.metadata);
    let expected = status_client::ServerMessage::Data {
        message_id: message_id.clone(),
        directive: message.directive.clone(),
        content: payload.clone(),
    };
    assert_eq!(status_client::decode(&bytes), Some(expected));

    let bytes = HandshakeDialect.encode_message(message).payload;
    let encoded = parse_object(&bytes);
    assert_envelope(&encoded, "message", message.message_id, message.sent);
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
        assert_eq!(encoded["metadata"], message.metadata);
    }
    assert_keys(&encoded, &keys);
    let expected = handshake_client::ServerMessage::Message {
        message_id,
        directive: message.directive.clone(),
        payload,
    };
    assert_eq!(handshake_client::decode(&bytes), Some(expected));
}

fn check_command_round_trip(command: &Command, message_id: Uuid, now: Timestamp) {
    let (name, delay, message) = match command {
        Command::Ping => ("ping", None, ""),
        Command::Reconnect {
            delay_seconds,
            message,
        } => ("reconnect", Some(*delay_seconds), message.as_str()),
        Command::Disconnect { message } => ("disconnect", None, message.as_str()),
    };

    let bytes = StatusDialect
        .encode_command(command, message_id, now)
        .expect("the status dialect has every command")
        .payload;
    let encoded = parse_object(&bytes);
    assert_envelope(&encoded, "command", message_id, now);
    let keys = [
        "type",
        "message_id",
        "response_to",
        "version",
        "sent",
        "content",
    ];
    assert_keys(&encoded, &keys);
    assert_eq!(encoded["content"]["message"], message);
    let arguments = &encoded["content"]["arguments"];
    assert!(
        is_valid_metadata(arguments),
        "not a map of string to string: {arguments}"
    );
    assert_eq!(arguments.is_null(), delay.is_none());
    let expected = status_client::ServerMessage::Command {
        message_id: message_id.to_string(),
        command: name.to_owned(),
        delay_seconds: delay,
    };
    assert_eq!(status_client::decode(&bytes), Some(expected));

    let Some(encoded_command) = HandshakeDialect.encode_command(command, message_id, now) else {
        assert_eq!(
            *command,
            Command::Ping,
            "only the ping has no handshake message"
        );
        return;
    };
    let bytes = encoded_command.payload;
    let encoded = parse_object(&bytes);
    assert_envelope(&encoded, "force-disconnect", message_id, now);
    assert_eq!(encoded["reconnect_after"] == "never", delay.is_none());
    assert_eq!(encoded.contains_key("payload"), !message.is_empty());
    if let Some(payload) = encoded.get("payload") {
        assert_eq!(payload["details"], message);
    }
    let decoded = handshake_client::decode(&bytes);
    let Some(handshake_client::ServerMessage::ForceDisconnect { reconnect_after }) = decoded else {
        panic!("{decoded:?}");
    };
    assert_eq!(reconnect_after.is_some(), delay.is_some());
    if let (Some(time), Some(delay)) = (reconnect_after, delay) {
        assert!(time >= now, "reconnect_after is in the past");
        let wait_seconds = u64::try_from(time.duration_since(now).as_secs()).expect("not negative");
        assert!(
            wait_seconds == delay
                || (wait_seconds < delay && time.as_second() >= *UNIX_SECONDS_RANGE.end())
        );
    }
}

fn check_handshake_error_round_trip(
    handshake_id: &str,
    detail: &str,
    message_id: Uuid,
    now: Timestamp,
) {
    let in_response_to = MessageId::new(handshake_id).ok();
    let error = HandshakeError {
        in_response_to: in_response_to.clone(),
        rejection: Rejection::invalid_schema(detail),
    };
    let bytes = HandshakeDialect
        .encode_handshake_error(&error, message_id, now)
        .expect("the handshake dialect has a handshake-error message")
        .payload;
    let encoded = parse_object(&bytes);
    assert_envelope(&encoded, "handshake-error", message_id, now);
    assert_keys(
        &encoded,
        &[
            "type",
            "message_id",
            "in_response_to",
            "version",
            "sent",
            "payload",
        ],
    );
    let expected_id = in_response_to.map_or(Value::Null, |id| id.as_str().into());
    assert_eq!(encoded["in_response_to"], expected_id);
    let expected = handshake_client::ServerMessage::HandshakeError {
        details: detail.to_owned(),
    };
    assert_eq!(handshake_client::decode(&bytes), Some(expected));
}

fn check_presence_round_trips(now: Timestamp, info: &ClientInfo) {
    // An escaped backslash followed by `u0000` is not a NUL.
    let has_nul = |value: &Value| {
        let text = value.to_string().replace("\\\\", "");
        text.contains("\\u0000")
    };
    let is_short_text = |text: &str| !text.contains('\0') && text.chars().count() <= 255;

    let bytes = status_client::online_message(now, info);
    let is_valid = ![&info.canonical_facts, &info.dispatchers, &info.tags]
        .into_iter()
        .any(has_nul)
        && is_short_text(&info.client_name)
        && is_short_text(&info.client_version);
    let expected = ClientInfo {
        canonical_facts: info.canonical_facts.clone(),
        dispatchers: info.dispatchers.clone(),
        tags: info.tags.clone(),
        ..info.clone()
    };
    check_online_result(
        status::decode_control(&bytes),
        is_valid,
        ClientKind::Host,
        now,
        &expected,
    );
    assert_eq!(
        status::decode_control(&status_client::offline_message(now)),
        Ok(ClientMessage::Offline { sent: Some(now) })
    );

    let empty_info = ClientInfo {
        ..ClientInfo::default()
    };
    for kind in [ClientKind::Host, ClientKind::Proxy] {
        let (facts, expected) = match kind {
            ClientKind::Host => {
                let facts = &info.canonical_facts;
                let canonical_facts = facts.clone();
                (
                    facts,
                    ClientInfo {
                        canonical_facts,
                        ..empty_info.clone()
                    },
                )
            }
            ClientKind::Proxy => {
                let facts = &info.catalog_service_facts;
                let catalog_service_facts = facts.clone();
                (
                    facts,
                    ClientInfo {
                        catalog_service_facts,
                        ..empty_info.clone()
                    },
                )
            }
        };
        let bytes = handshake_client::handshake_message(now, kind, info);
        check_online_result(
            handshake::decode(&bytes),
            !has_nul(facts),
            kind,
            now,
            &expected,
        );
    }
    assert_eq!(
        handshake::decode(&handshake_client::offline_message()),
        Ok(ClientMessage::Offline { sent: None })
    );
}

fn check_online_result(
    result: std::result::Result<ClientMessage, Rejection>,
    is_valid: bool,
    kind: ClientKind,
    now: Timestamp,
    expected: &ClientInfo,
) {
    match result {
        Ok(ClientMessage::Online(online)) => {
            assert!(is_valid, "an invalid message was accepted");
            assert_eq!(online.kind, kind);
            assert_eq!(online.sent, Some(truncate_to_micros(now)));
            assert_eq!(online.info, *expected);
        }
        Ok(ClientMessage::InvalidHandshake(error)) => assert!(!is_valid, "{:?}", error.rejection),
        Err(rejection) => assert!(!is_valid, "{rejection:?}"),
        Ok(other) => panic!("{other:?}"),
    }
}

fn check_response_round_trips(
    now: Timestamp,
    response_to_id: &str,
    directive: &str,
    content: &Value,
) {
    let expected_id = MessageId::new(response_to_id);
    // An empty id is also valid, because the decoder treats an empty id as absent.
    let is_valid_id = expected_id.is_ok() || response_to_id.is_empty();
    let expected_id = expected_id.ok();
    let is_valid = is_valid_id && !directive.contains('\0') && directive.chars().count() <= 255;

    let pong = status::decode_control(&status_client::pong_message(now, response_to_id));
    match pong {
        Ok(ClientMessage::Response(ClientResponse::Pong { response_to })) => {
            assert_eq!(response_to, expected_id);
        }
        other => assert!(!is_valid_id && other.is_err(), "{other:?}"),
    }
    for decoded in [
        status::decode_data(&status_client::response_message(
            now,
            response_to_id,
            directive,
            content,
        )),
        handshake::decode(&handshake_client::response_message(
            now,
            response_to_id,
            directive,
            content,
        )),
    ] {
        match decoded {
            Ok(ClientMessage::Response(ClientResponse::Data {
                response_to,
                directive: decoded_directive,
            })) => {
                assert!(is_valid);
                assert_eq!(response_to, expected_id);
                assert_eq!(decoded_directive, directive);
            }
            other => assert!(!is_valid && other.is_err(), "{other:?}"),
        }
    }
    // The directive is also used as the details of an error message.
    let bytes = handshake_client::message_error(now, response_to_id, directive);
    assert!(handshake::is_response(&bytes));
    match handshake::decode(&bytes) {
        Ok(ClientMessage::Response(ClientResponse::Error {
            response_to,
            details,
        })) => {
            assert_eq!(response_to, expected_id);
            // The decoder removes NUL and truncates long details.
            assert!(directive.replace('\0', "").starts_with(&details));
        }
        other => assert!(!is_valid_id && other.is_err(), "{other:?}"),
    }
}
