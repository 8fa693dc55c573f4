//! Reads the content of a client's response as JSON text, up to a maximum size.
//!
//! The text is copied while the payload is parsed. A parsed JSON value could need almost a hundred times as
//! much memory as its text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::json;

/// The content of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseContent {
    /// JSON text without unnecessary white space.
    pub json: String,
    /// Whether `json` is only the start of the text.
    pub is_truncated: bool,
}

/// Returns the value of the field `field_name` of the JSON object `payload`, with at most `max_bytes`.
/// Returns the content `null` if the field is missing or the payload is not an object.
pub(crate) fn read(payload: &[u8], field_name: &str, max_bytes: usize) -> ResponseContent {
    let mut content = JsonWriter {
        json: String::new(),
        max_bytes,
        is_truncated: false,
    };
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let field = Field {
        field_name,
        content: &mut content,
    };
    // The payload is decoded before, so it is valid.
    let is_found = deserializer.deserialize_any(field).unwrap_or(false);
    if !is_found {
        "null".clone_into(&mut content.json);
        content.is_truncated = false;
    }
    ResponseContent {
        json: content.json,
        is_truncated: content.is_truncated,
    }
}

/// JSON text that is built from left to right.
struct JsonWriter {
    json: String,
    max_bytes: usize,
    is_truncated: bool,
}

impl JsonWriter {
    /// Appends text. Appends only a part of it, and nothing later, if the maximum size is exceeded.
    fn push(&mut self, text: &str) {
        if self.is_truncated {
            return;
        }
        let free_bytes = self.max_bytes - self.json.len();
        if text.len() <= free_bytes {
            self.json.push_str(text);
            return;
        }
        self.is_truncated = true;
        self.json
            .push_str(&text[..text.floor_char_boundary(free_bytes)]);
    }
}

/// Implements the methods of [`Visitor`] for all values except objects, lists and strings.
macro_rules! visit_simple_values {
    (|$self:ident, $value:ident| $result:expr) => {
        fn visit_bool<E>($self, $value: bool) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_i64<E>($self, $value: i64) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_u64<E>($self, $value: u64) -> Result<Self::Value, E> {
            Ok($result)
        }

        fn visit_f64<E>($self, $value: f64) -> Result<Self::Value, E> {
            Ok($result)
        }
    };
}

/// Finds a field of an object, and writes its value. Returns whether the object has the field.
struct Field<'a> {
    field_name: &'a str,
    content: &'a mut JsonWriter,
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a response")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut is_found = false;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == self.field_name {
                is_found = true;
                self.content.json.clear();
                self.content.is_truncated = false;
                map.next_value_seed(Copied(self.content))?;
            } else {
                map.next_value::<serde::de::IgnoredAny>()?;
            }
        }
        Ok(is_found)
    }
}

/// Copies a value of any kind.
struct Copied<'a>(&'a mut JsonWriter);

impl<'de> DeserializeSeed<'de> for Copied<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Copied<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if !self.0.is_truncated {
            self.0.push(&json!(text).to_string());
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.push("null");
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut separator = "[";
        loop {
            // The separator must be written before the element, but only if there is an element.
            let length = self.0.json.len();
            let was_truncated = self.0.is_truncated;
            self.0.push(separator);
            if seq.next_element_seed(Copied(self.0))?.is_none() {
                if !was_truncated {
                    self.0.json.truncate(length);
                    self.0.is_truncated = false;
                }
                break;
            }
            separator = ",";
        }
        if separator == "[" {
            self.0.push("[");
        }
        self.0.push("]");
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut separator = "{";
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            self.0.push(separator);
            separator = ",";
            if !self.0.is_truncated {
                self.0.push(&json!(name).to_string());
            }
            self.0.push(":");
            map.next_value_seed(Copied(self.0))?;
        }
        if separator == "{" {
            self.0.push("{");
        }
        self.0.push("}");
        Ok(())
    }

    visit_simple_values!(|self, value| self.0.push(&json!(value).to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn content(payload: &str, max_bytes: usize) -> (String, bool) {
        let content = read(payload.as_bytes(), "content", max_bytes);
        (content.json, content.is_truncated)
    }

    #[test]
    fn content_of_any_kind_is_copied() {
        for json in [
            "null",
            "true",
            "-7",
            "18446744073709551615",
            "1.5",
            r#""a \"quoted\" text\u0000""#,
            "[]",
            "{}",
            r#"[[],{},[1,[2]],"x"]"#,
            r#"{"a":{"b":[1,{"c":null}]},"d":"e"}"#,
        ] {
            let payload = format!(r#"{{"type": "data", "content": {json}, "directive": "x"}}"#);
            assert_eq!(content(&payload, 1000), (json.to_owned(), false));
            let length = json.len();
            assert_eq!(content(&payload, length), (json.to_owned(), false));
            assert_eq!(
                content(&payload, length - 1),
                (json[..length - 1].to_owned(), true)
            );
        }
    }

    #[test]
    fn truncated_text_is_a_prefix_of_the_complete_text_at_every_size() {
        let payload = r#"{"content": [1, "é\n", {"ä": [], "b": {}}, [true, null], 2.25]}"#;
        let (complete, _) = content(payload, 1000);
        serde_json::from_str::<Value>(&complete).unwrap();
        for max_bytes in 0..complete.len() {
            let (text, is_truncated) = content(payload, max_bytes);
            assert!(is_truncated, "{max_bytes}");
            assert!(complete.starts_with(&text), "{max_bytes}: {text}");
            assert!(text.len() <= max_bytes && text.len() + 2 > max_bytes);
        }
    }

    #[test]
    fn missing_content_is_null() {
        for payload in [r#"{"type": "data"}"#, "[]", "7", "", "{"] {
            assert_eq!(content(payload, 1000), ("null".to_owned(), false));
        }
    }
}
