//! Fields of JSON messages.
//!
//! These functions accept the irregular values that real clients send, such as null instead of an
//! absent field. They reject values that the databases cannot store.

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::clock::truncate_to_micros;
use crate::domain::{InvalidId, MessageId, RejectReason, Timestamp};
use crate::protocol::Rejection;

pub(super) type Fields = Map<String, Value>;

/// Maximum nesting depth of facts, dispatchers and tags. Real ones have two or three levels.
const MAX_DEPTH: usize = 32;
/// Maximum length of a short text, such as a name, version or directive, in characters.
const MAX_TEXT_CHARS: usize = 255;

/// Parses the payload. Returns the message type and the other fields of the envelope.
pub(super) fn envelope(payload: &[u8], max_bytes: usize) -> Result<(String, Fields), Rejection> {
    if payload.len() > max_bytes {
        return Err(Rejection::payload_too_large(
            payload.len() as u64,
            max_bytes,
        ));
    }
    let value: Value = serde_json::from_slice(payload).map_err(|e| invalid_json(&e))?;
    let Value::Object(mut fields) = value else {
        return Err(Rejection::invalid_schema("the message is not an object"));
    };
    match fields.remove("type") {
        Some(Value::String(kind)) => Ok((kind, fields)),
        _ => Err(Rejection::invalid_schema("type is not a string")),
    }
}

/// Removes a message id. Returns `None` if it is absent, null or empty.
pub(super) fn message_id(fields: &mut Fields, key: &str) -> Result<Option<MessageId>, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => match MessageId::new(&id) {
            Ok(id) => Ok(Some(id)),
            Err(InvalidId::Empty) => Ok(None),
            Err(InvalidId::TooLong(max_chars)) => Err(value_too_long(key, max_chars)),
            Err(InvalidId::ForbiddenChar(_)) => Err(contains_nul(key)),
        },
        Some(_) => Err(Rejection::invalid_schema(format!("{key} is not a string"))),
    }
}

/// Removes a short text. Returns an empty text if it is absent or null.
pub(super) fn short_text(fields: &mut Fields, key: &str) -> Result<String, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) if text.contains('\0') => Err(contains_nul(key)),
        Some(Value::String(text)) if text.chars().count() > MAX_TEXT_CHARS => {
            Err(value_too_long(key, MAX_TEXT_CHARS))
        }
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Rejection::invalid_schema(format!("{key} is not a string"))),
    }
}

/// Removes an object. Returns null if it is absent or null.
pub(super) fn object_or_null(fields: &mut Fields, key: &str) -> Result<Value, Rejection> {
    match fields.remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(object @ Value::Object(_)) => check_storable(key, object),
        Some(_) => Err(Rejection::invalid_schema(format!("{key} is not an object"))),
    }
}

/// Checks canonical facts, and removes an `insights_id` that is not a UUID.
pub(super) fn sanitize_facts(mut facts: Fields) -> Result<Value, Rejection> {
    if facts.get("insights_id").is_some_and(|id| !is_uuid(id)) {
        facts.remove("insights_id");
    }
    check_storable("canonical_facts", Value::Object(facts))
}

/// Returns a timestamp, or `None` if it is absent or not a valid RFC 3339 time.
pub(super) fn timestamp(fields: &Fields, key: &str) -> Option<Timestamp> {
    // jiff also parses negative years, which RFC 3339 does not allow.
    const YEAR_0: Timestamp = Timestamp::constant(-62_167_219_200, 0);
    let time: Timestamp = fields.get(key)?.as_str()?.parse().ok()?;
    (time >= YEAR_0).then(|| truncate_to_micros(time))
}

/// Accepts UUIDs with and without dashes. The length check excludes braces and the prefix
/// `urn:uuid:`, which `Uuid::try_parse` accepts.
fn is_uuid(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| matches!(text.len(), 32 | 36) && Uuid::try_parse(text).is_ok())
}

/// Rejects JSON that contains NUL or is nested too deeply.
///
/// PostgreSQL cannot store NUL in text or JSON, and both databases must accept the same values.
/// A deeply nested value could exceed the limit of an API caller's JSON parser, and the caller
/// would lose the complete list that contains it.
pub(super) fn check_storable(key: &str, value: Value) -> Result<Value, Rejection> {
    if is_deeper_than(&value, MAX_DEPTH) {
        let detail = format!("{key} is nested deeper than {MAX_DEPTH} levels");
        return Err(Rejection::invalid_schema(detail));
    }
    if has_nul(&value) {
        return Err(contains_nul(&format!("a string in {key}")));
    }
    Ok(value)
}

fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let Some(remaining) = levels.checked_sub(1) else {
        return value.is_array() || value.is_object();
    };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper_than(item, remaining)),
        Value::Object(map) => map.values().any(|item| is_deeper_than(item, remaining)),
        _ => false,
    }
}

/// The recursion is bounded, because the caller has checked the depth.
fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(map) => map
            .iter()
            .any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn value_too_long(key: &str, max_chars: usize) -> Rejection {
    let detail = format!("{key} is longer than {max_chars} characters");
    Rejection::new(RejectReason::ValueTooLong, detail)
}

fn contains_nul(subject: &str) -> Rejection {
    let detail = format!("{subject} contains NUL");
    Rejection::new(RejectReason::InvalidCharacters, detail)
}

fn invalid_json(error: &serde_json::Error) -> Rejection {
    let (line, column) = (error.line(), error.column());
    let detail = format!("the payload is not valid JSON at line {line} column {column}");
    Rejection::new(RejectReason::InvalidJson, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_limited_to_the_maximum_depth() {
        let nested = |levels: usize| {
            let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert!(check_storable("x", nested(MAX_DEPTH)).is_ok());
        let rejection = check_storable("x", nested(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(rejection.reason, RejectReason::InvalidSchema);
        assert!(check_storable("x", Value::Bool(true)).is_ok());
    }
}
