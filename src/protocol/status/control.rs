//! Control messages from clients: presence and answers to commands.
//!
//! Lenient where real clients are odd (fields absent, null or empty), strict where a wrong shape
//! would end up in the store.

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::clock::to_micros;
use crate::domain::{InvalidId, MessageId, Reported, Timestamp};
use crate::protocol::Rejected;

/// Largest control message that is read. Real ones are a few kilobytes; a parsed one takes many
/// times its size.
pub const CONTROL_MAX_BYTES: usize = 128 * 1024;

/// Longest name or version of a client program, in characters.
const PROGRAM_MAX_CHARS: usize = 255;

/// What a client said on its control topic.
#[derive(Debug, Clone, PartialEq)]
pub enum Control {
    /// It is there, and this is what it is.
    Online(Box<Online>),
    /// It is gone. Carries nothing: a will is built once at the client's start, so neither its
    /// `sent` nor its `message_id` says anything about when it left.
    Offline,
    /// The answer to a ping.
    Pong {
        /// The command that it answers.
        response_to: Option<MessageId>,
    },
    /// A type or event that we do not know, or an empty payload: no effect, by design.
    Ignored,
}

/// An online message.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    /// The sender's id of it, if it gave one.
    pub message_id: Option<MessageId>,
    /// The sender's clock, if it could be read. Not to be trusted: see `record::fold`.
    pub sent: Option<Timestamp>,
    /// What it says of itself.
    pub reported: Reported,
}

/// Reads a control message.
///
/// # Errors
/// [`Rejected`] when it can never be processed.
pub fn parse_control(payload: &[u8]) -> Result<Control, Rejected> {
    if payload.is_empty() {
        return Ok(Control::Ignored);
    }
    if payload.len() > CONTROL_MAX_BYTES {
        return Err(Rejected::new(
            "too_large",
            format!("{} bytes, over {CONTROL_MAX_BYTES}", payload.len()),
        ));
    }
    let value: Value = serde_json::from_slice(payload).map_err(|e| not_json(&e))?;
    let Value::Object(envelope) = value else {
        return Err(wrong_shape("the message is not an object"));
    };
    match envelope.get("type") {
        Some(Value::String(kind)) => match kind.as_str() {
            "connection-status" => connection_status(envelope),
            "event" => event(envelope),
            _ => Ok(Control::Ignored),
        },
        _ => Err(wrong_shape("type is not a string")),
    }
}

fn connection_status(mut envelope: Map<String, Value>) -> Result<Control, Rejected> {
    let Some(Value::Object(mut content)) = envelope.remove("content") else {
        return Err(wrong_shape("content is not an object"));
    };
    match content.get("state").and_then(Value::as_str) {
        Some("offline") => Ok(Control::Offline),
        Some("online") => Ok(Control::Online(Box::new(Online {
            message_id: take_message_id(&mut envelope, "message_id")?,
            sent: read_time(envelope.get("sent")),
            reported: reported(&mut content)?,
        }))),
        _ => Err(wrong_shape("content.state is neither online nor offline")),
    }
}

fn event(mut envelope: Map<String, Value>) -> Result<Control, Rejected> {
    let response_to = take_message_id(&mut envelope, "response_to")?;
    match envelope.get("content").and_then(Value::as_str) {
        Some("disconnect") => Ok(Control::Offline),
        Some("pong") => Ok(Control::Pong { response_to }),
        Some(_) => Ok(Control::Ignored),
        None => Err(wrong_shape("content of an event is not a string")),
    }
}

fn reported(content: &mut Map<String, Value>) -> Result<Reported, Rejected> {
    let canonical_facts = match content.remove("canonical_facts") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(empty)) if empty.is_empty() => Value::Object(Map::new()),
        Some(Value::Object(mut facts)) => {
            if facts.get("insights_id").is_some_and(|id| !is_uuid(id)) {
                facts.remove("insights_id");
            }
            Value::Object(facts)
        }
        Some(_) => return Err(wrong_shape("canonical_facts is not an object")),
    };
    let reported = Reported {
        canonical_facts,
        dispatchers: object_or_null(content, "dispatchers")?,
        tags: object_or_null(content, "tags")?,
        client_name: program(content, "client_name")?,
        client_version: program(content, "client_version")?,
    };
    for value in [
        &reported.canonical_facts,
        &reported.dispatchers,
        &reported.tags,
    ] {
        if holds_nul(value) {
            return Err(Rejected::new("characters", "a string holds NUL"));
        }
    }
    Ok(reported)
}

fn object_or_null(content: &mut Map<String, Value>, key: &str) -> Result<Value, Rejected> {
    match content.remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(object @ Value::Object(_)) => Ok(object),
        Some(_) => Err(wrong_shape(format!("{key} is not an object"))),
    }
}

fn program(content: &mut Map<String, Value>, key: &str) -> Result<String, Rejected> {
    match content.remove(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) if text.contains('\0') => {
            Err(Rejected::new("characters", format!("{key} holds NUL")))
        }
        Some(Value::String(text)) if text.chars().count() > PROGRAM_MAX_CHARS => Err(
            Rejected::new("too_long", format!("{key} is over {PROGRAM_MAX_CHARS}")),
        ),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(wrong_shape(format!("{key} is not a string"))),
    }
}

fn take_message_id(
    envelope: &mut Map<String, Value>,
    key: &str,
) -> Result<Option<MessageId>, Rejected> {
    match envelope.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => match MessageId::new(&id) {
            Ok(id) => Ok(Some(id)),
            Err(InvalidId::Empty) => Ok(None),
            Err(InvalidId::TooLong(most)) => {
                Err(Rejected::new("too_long", format!("{key} is over {most}")))
            }
            Err(InvalidId::Character(_)) => {
                Err(Rejected::new("characters", format!("{key} holds NUL")))
            }
        },
        Some(_) => Err(wrong_shape(format!("{key} is not a string"))),
    }
}

fn read_time(sent: Option<&Value>) -> Option<Timestamp> {
    sent?.as_str()?.parse().ok().map(to_micros)
}

fn is_uuid(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| Uuid::try_parse(text).is_ok())
}

/// Both databases must agree on what they take, and PostgreSQL takes no NUL in text or JSON.
/// The parser has bounded the depth already.
fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(map) => map
            .iter()
            .any(|(key, value)| key.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn not_json(error: &serde_json::Error) -> Rejected {
    Rejected::new(
        "not_json",
        format!(
            "the payload is not JSON at line {} column {}",
            error.line(),
            error.column()
        ),
    )
}

fn wrong_shape(detail: impl Into<String>) -> Rejected {
    Rejected::new("wrong_shape", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<Control, Rejected> {
        parse_control(&serde_json::to_vec(value).unwrap())
    }

    fn online(value: &Value) -> Online {
        match parse(value) {
            Ok(Control::Online(online)) => *online,
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
        assert_eq!(parse(&will), Ok(Control::Offline));
        // What an offline says of itself means nothing, so nothing of it can be wrong.
        let odd = json!({"type": "connection-status", "message_id": 7, "sent": [], "content": {
            "state": "offline", "dispatchers": "x", "canonical_facts": 3}});
        assert_eq!(parse(&odd), Ok(Control::Offline));
        let event = json!({"type": "event", "content": "disconnect"});
        assert_eq!(parse(&event), Ok(Control::Offline));
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
            Ok(Control::Pong {
                response_to: Some(MessageId::new("c1").unwrap())
            })
        );
    }

    #[test]
    fn what_is_unknown_or_empty_has_no_effect() {
        assert_eq!(parse_control(b""), Ok(Control::Ignored));
        assert_eq!(parse(&json!({"type": "news"})), Ok(Control::Ignored));
        assert_eq!(
            parse(&json!({"type": "event", "content": "party"})),
            Ok(Control::Ignored)
        );
    }

    #[test]
    fn what_can_never_be_processed_is_rejected_with_a_reason() {
        let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(60_000));
        let large = format!("\"{}\"", "x".repeat(CONTROL_MAX_BYTES));
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
            match parse_control(payload) {
                Err(rejected) => assert_eq!(rejected.reason, reason, "{text}"),
                Ok(control) => panic!("{text} was taken as {control:?}"),
            }
        }
    }
}
