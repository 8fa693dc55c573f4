//! Fields of messages: read leniently where real clients are odd, strictly where a wrong shape
//! would end up in the store.

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::clock::truncate_to_micros;
use crate::domain::{InvalidId, MessageId, Timestamp};
use crate::protocol::Rejection;

pub(super) type Fields = Map<String, Value>;

/// How deep facts, dispatchers and tags may be nested. Real ones have two or three levels.
const DEPTH_MAX: usize = 32;
/// Longest name, version or type, in characters.
const WORD_MAX_CHARS: usize = 255;

/// The message's fields and its type.
pub(super) fn envelope(payload: &[u8], most: usize) -> Result<(String, Fields), Rejection> {
    if payload.len() > most {
        return Err(Rejection::too_large(payload.len() as u64, most));
    }
    let value: Value = serde_json::from_slice(payload).map_err(|e| not_json(&e))?;
    let Value::Object(mut fields) = value else {
        return Err(Rejection::wrong_shape("the message is not an object"));
    };
    match fields.remove("type") {
        Some(Value::String(kind)) => Ok((kind, fields)),
        _ => Err(Rejection::wrong_shape("type is not a string")),
    }
}

/// An id: absent, null and empty are none.
pub(super) fn message_id(fields: &mut Fields, key: &str) -> Result<Option<MessageId>, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => match MessageId::new(&id) {
            Ok(id) => Ok(Some(id)),
            Err(InvalidId::Empty) => Ok(None),
            Err(InvalidId::TooLong(most)) => {
                Err(Rejection::new("too_long", format!("{key} is over {most}")))
            }
            Err(InvalidId::Character(_)) => {
                Err(Rejection::new("characters", format!("{key} holds NUL")))
            }
        },
        Some(_) => Err(Rejection::wrong_shape(format!("{key} is not a string"))),
    }
}

/// A short text: absent and null are empty.
pub(super) fn short_text(fields: &mut Fields, key: &str) -> Result<String, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) if text.contains('\0') => {
            Err(Rejection::new("characters", format!("{key} holds NUL")))
        }
        Some(Value::String(text)) if text.chars().count() > WORD_MAX_CHARS => Err(Rejection::new(
            "too_long",
            format!("{key} is over {WORD_MAX_CHARS}"),
        )),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Rejection::wrong_shape(format!("{key} is not a string"))),
    }
}

pub(super) fn object_or_null(fields: &mut Fields, key: &str) -> Result<Value, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(object @ Value::Object(_)) => check_storable(key, object),
        Some(_) => Err(Rejection::wrong_shape(format!("{key} is not an object"))),
    }
}

/// Facts as they are stored: an `insights_id` that is no UUID is dropped.
pub(super) fn facts(mut facts: Fields) -> Result<Value, Rejection> {
    if facts.get("insights_id").is_some_and(|id| !is_uuid(id)) {
        facts.remove("insights_id");
    }
    check_storable("canonical_facts", Value::Object(facts))
}

/// The sender's clock. A date before the year 0 is none that RFC 3339 can write.
pub(super) fn time(fields: &Fields, key: &str) -> Option<Timestamp> {
    const YEAR_0: Timestamp = Timestamp::constant(-62_167_219_200, 0);
    let at: Timestamp = fields.get(key)?.as_str()?.parse().ok()?;
    (at >= YEAR_0).then(|| truncate_to_micros(at))
}

/// With dashes or without; not in the braces or behind the `urn:` that the crate takes, too.
fn is_uuid(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| matches!(text.len(), 32 | 36) && Uuid::try_parse(text).is_ok())
}

/// Both databases must agree on what they take, and PostgreSQL takes no NUL in text or JSON. Callers
/// are shown it inside of a list: what is nested deeper than their parsers go would take everybody
/// else's rows from them.
pub(super) fn check_storable(key: &str, value: Value) -> Result<Value, Rejection> {
    if is_deeper_than(&value, DEPTH_MAX) {
        let detail = format!("{key} is nested deeper than {DEPTH_MAX} levels");
        return Err(Rejection::wrong_shape(detail));
    }
    if holds_nul(&value) {
        let detail = format!("a string in {key} holds NUL");
        return Err(Rejection::new("characters", detail));
    }
    Ok(value)
}

fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return value.is_array() || value.is_object();
    };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper_than(item, below)),
        Value::Object(map) => map.values().any(|item| is_deeper_than(item, below)),
        _ => false,
    }
}

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

fn not_json(error: &serde_json::Error) -> Rejection {
    Rejection::new(
        "not_json",
        format!(
            "the payload is not JSON at line {} column {}",
            error.line(),
            error.column()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_in_levels() {
        let nested = |levels: usize| {
            let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert!(check_storable("x", nested(DEPTH_MAX)).is_ok());
        let over = check_storable("x", nested(DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(over.reason, "wrong_shape");
        assert!(check_storable("x", Value::Bool(true)).is_ok());
    }
}
