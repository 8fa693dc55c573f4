//! Functions that read fields of JSON messages.
//!
//! The functions accept the irregular values that real clients send, such as null instead of an
//! absent field. The functions reject values that the databases cannot store.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Rejection;
use domain::clock::truncate_to_micros;
use domain::{InvalidId, MessageId, RejectReason, Timestamp};

/// The fields of a JSON object.
pub(super) type Fields = Map<String, Value>;

/// Maximum nesting depth of facts, dispatchers and tags. The values that real clients send have two
/// or three levels.
const MAX_NESTING_DEPTH: usize = 32;
/// Maximum length of a short text, such as a name, version or directive, in characters.
const MAX_SHORT_TEXT_CHARS: usize = 255;

/// Parses the payload of a message. Returns the message type and all other fields.
pub(super) fn parse_envelope(payload: &[u8]) -> Result<(String, Fields), Rejection> {
    let value: Value = serde_json::from_slice(payload).map_err(|e| invalid_json_rejection(&e))?;
    let Value::Object(mut fields) = value else {
        return Err(Rejection::invalid_schema("the message is not an object"));
    };
    match fields.remove("type") {
        Some(Value::String(message_type)) => Ok((message_type, fields)),
        _ => Err(Rejection::invalid_schema("type is not a string")),
    }
}

/// Parses the payload of a response. Returns the message type and the string fields in `field_names`.
/// Ignores all other fields.
///
/// A response can be large. Its content is not kept, because a parsed JSON value can need almost a
/// hundred times as much memory as its text. A field that is not a string becomes `true`, which the
/// functions of this module reject.
pub(super) fn parse_response_envelope(
    payload: &[u8],
    field_names: &[&str],
) -> Result<(String, Fields), Rejection> {
    let payload = std::str::from_utf8(payload)
        .map_err(|error| Rejection::new(RejectReason::InvalidJson, error.to_string()))?;
    let mut deserializer = serde_json::Deserializer::from_str(payload);
    let fields = TextFields { field_names }
        .deserialize(&mut deserializer)
        .and_then(|fields| deserializer.end().map(|()| fields))
        .map_err(|error| invalid_json_rejection(&error))?;
    let Some(mut fields) = fields else {
        return Err(Rejection::invalid_schema("the message is not an object"));
    };
    match fields.remove("type") {
        Some(Value::String(message_type)) => Ok((message_type, fields)),
        _ => Err(Rejection::invalid_schema("type is not a string")),
    }
}

/// Deserializes `type` and the fields in `field_names` of an object. Returns `None` if the value is
/// not an object.
struct TextFields<'a> {
    field_names: &'a [&'a str],
}

/// Deserializes a string. Any other value except null becomes `true`.
struct StringOrNull;

/// Implements the methods of [`Visitor`] for values whose content is ignored.
macro_rules! visit_other_values {
    ($lifetime:lifetime, $result:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_seq<A: SeqAccess<$lifetime>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<Skipped>()?.is_some() {}
            Ok($result)
        }
    };
}

/// A value that is checked but not kept. `serde::de::IgnoredAny` would accept values that are
/// invalid in a [`Value`]: numbers out of range, lone surrogates, and too many levels.
struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(Self)
    }

    visit_other_values!('de, Self);
}

impl<'de> DeserializeSeed<'de> for TextFields<'_> {
    type Value = Option<Fields>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextFields<'_> {
    type Value = Option<Fields>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::new();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == "type" || self.field_names.contains(&&*name) {
                fields.insert(name.into_owned(), map.next_value_seed(StringOrNull)?);
            } else {
                map.next_value::<Skipped>()?;
            }
        }
        Ok(Some(fields))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    visit_other_values!('de, None);
}

impl<'de> DeserializeSeed<'de> for StringOrNull {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringOrNull {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        while map.next_entry::<Skipped, Skipped>()?.is_some() {}
        Ok(Value::Bool(true))
    }

    visit_other_values!('de, Value::Bool(true));
}

/// Removes a message id from `fields` and returns it. Returns `None` if the message id is absent,
/// null or empty.
pub(super) fn take_message_id(
    fields: &mut Fields,
    field_name: &str,
) -> Result<Option<MessageId>, Rejection> {
    match fields.remove(field_name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => match MessageId::new(&id) {
            Ok(id) => Ok(Some(id)),
            Err(InvalidId::Empty) => Ok(None),
            Err(InvalidId::TooLong(max_chars)) => Err(too_long_rejection(field_name, max_chars)),
            Err(InvalidId::ForbiddenChar(_)) => Err(nul_rejection(field_name)),
        },
        Some(_) => Err(Rejection::invalid_schema(format!(
            "{field_name} is not a string"
        ))),
    }
}

/// Removes a short text from `fields` and returns it. Returns an empty text if the field is absent
/// or null.
pub(super) fn take_short_text(fields: &mut Fields, field_name: &str) -> Result<String, Rejection> {
    match fields.remove(field_name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) if text.contains('\0') => Err(nul_rejection(field_name)),
        Some(Value::String(text)) if text.chars().count() > MAX_SHORT_TEXT_CHARS => {
            Err(too_long_rejection(field_name, MAX_SHORT_TEXT_CHARS))
        }
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Rejection::invalid_schema(format!(
            "{field_name} is not a string"
        ))),
    }
}

/// Removes an object from `fields` and returns it. Returns null if the field is absent or null.
pub(super) fn take_object_or_null(
    fields: &mut Fields,
    field_name: &str,
) -> Result<Value, Rejection> {
    match fields.remove(field_name) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(object @ Value::Object(_)) => check_storable(field_name, object),
        Some(_) => Err(Rejection::invalid_schema(format!(
            "{field_name} is not an object"
        ))),
    }
}

/// Checks that the databases can store the canonical facts. Removes an `insights_id` that is not a
/// UUID.
pub(super) fn sanitize_facts(mut facts: Fields) -> Result<Value, Rejection> {
    if facts.get("insights_id").is_some_and(|id| !is_uuid(id)) {
        facts.remove("insights_id");
    }
    check_storable("canonical_facts", Value::Object(facts))
}

/// Returns the timestamp in a field. Returns `None` if the field is absent or is not a valid RFC
/// 3339 time.
pub(super) fn read_timestamp(fields: &Fields, field_name: &str) -> Option<Timestamp> {
    // jiff also parses negative years, which RFC 3339 does not allow.
    const YEAR_0: Timestamp = Timestamp::constant(-62_167_219_200, 0);
    let time: Timestamp = fields.get(field_name)?.as_str()?.parse().ok()?;
    (time >= YEAR_0).then(|| truncate_to_micros(time))
}

/// Returns whether the value is a UUID, with or without dashes. `Uuid::try_parse` also accepts UUIDs
/// with braces or the prefix `urn:uuid:`. The length check excludes these forms.
fn is_uuid(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| matches!(text.len(), 32 | 36) && Uuid::try_parse(text).is_ok())
}

/// Rejects JSON that contains NUL or is nested too deeply.
///
/// NUL is rejected for both databases, because PostgreSQL cannot store NUL in text or JSON. A
/// deeply nested value is rejected, because it could exceed the limit of an API caller's JSON
/// parser. The caller could then not parse any list that contains the value.
pub(super) fn check_storable(field_name: &str, value: Value) -> Result<Value, Rejection> {
    if is_deeper_than(&value, MAX_NESTING_DEPTH) {
        let detail = format!("{field_name} is nested deeper than {MAX_NESTING_DEPTH} levels");
        return Err(Rejection::invalid_schema(detail));
    }
    if has_nul(&value) {
        return Err(nul_rejection(&format!("a string in {field_name}")));
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

/// Returns whether a string or a key in the JSON value contains NUL. The recursion is bounded,
/// because the caller has checked the nesting depth.
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

fn too_long_rejection(field_name: &str, max_chars: usize) -> Rejection {
    let detail = format!("{field_name} is longer than {max_chars} characters");
    Rejection::new(RejectReason::ValueTooLong, detail)
}

fn nul_rejection(subject: &str) -> Rejection {
    let detail = format!("{subject} contains NUL");
    Rejection::new(RejectReason::InvalidCharacters, detail)
}

fn invalid_json_rejection(error: &serde_json::Error) -> Rejection {
    let (line, column) = (error.line(), error.column());
    let detail = format!("the payload is not valid JSON at line {line} column {column}");
    Rejection::new(RejectReason::InvalidJson, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_is_nested_too_deeply_is_rejected() {
        let nested_array = |levels: usize| {
            let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert!(check_storable("x", nested_array(MAX_NESTING_DEPTH)).is_ok());
        let rejection = check_storable("x", nested_array(MAX_NESTING_DEPTH + 1)).unwrap_err();
        assert_eq!(rejection.reason, RejectReason::InvalidSchema);
        assert!(check_storable("x", Value::Bool(true)).is_ok());
    }
}
