//! The rows of the search index, as the recorder computes them.
//!
//! The SQL functions `search_terms`, `search_fqdn`, `search_identifier` and `search_entry_hash` compute the
//! same values for other writers. A contract test compares both.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use crate::text_hash::hash_text;
use domain::ClientInfo;

/// Maximum number of terms of a connection.
const MAX_TERMS: usize = 256;
/// Maximum number of characters of an identifier in the index. PostgreSQL rejects rows with large index
/// entries.
const MAX_IDENTIFIER_CHARS: usize = 255;
/// Separates the parts of a term.
const SEPARATOR: char = '\u{1f}';

/// The search index rows of a batch, one array for each parameter of the statement. The arrays contain only
/// the rows that can differ from the stored rows.
#[derive(Debug, Default)]
pub struct SearchColumns<'a> {
    pub client_ids: Vec<&'a str>,
    pub org_ids: Vec<&'a str>,
    pub content_hashes: Vec<i64>,
    pub fqdns: Vec<Option<String>>,
    pub insights_ids: Vec<Option<String>>,
    pub subscription_manager_ids: Vec<Option<String>>,
    /// The hashes of all rows, one row after the other.
    pub term_hashes: Vec<i64>,
    /// Position of the first hash of each row in `term_hashes`. The first position is 1.
    pub first_terms: Vec<i32>,
    /// Position of the last hash of each row. It is lower than the first position if a row has none.
    pub last_terms: Vec<i32>,
}

impl<'a> SearchColumns<'a> {
    /// Adds a connection, and returns its content hash. `stored_hash` is the content hash of the stored
    /// row, if it is known. The row of a tenantless client has no terms, so no filter of an
    /// organization finds it.
    pub fn add(
        &mut self,
        client_id: &'a str,
        org_id: &'a str,
        info: &ClientInfo,
        stored_hash: Option<i64>,
    ) -> i64 {
        let first = self.term_hashes.len();
        let fqdn = identifier(&info.canonical_facts, "fqdn").map(|it| it.to_ascii_lowercase());
        let insights_id = identifier(&info.canonical_facts, "insights_id");
        let subscription_manager_id = identifier(&info.canonical_facts, "subscription_manager_id");
        if !org_id.is_empty() {
            TermHasher::new(org_id, &mut self.term_hashes).add_all(info);
        }
        let identifiers = [&fqdn, &insights_id, &subscription_manager_id].map(Option::as_deref);
        let content_hash = entry_hash(org_id, identifiers, &self.term_hashes[first..]);
        if stored_hash == Some(content_hash) {
            self.term_hashes.truncate(first);
            return content_hash;
        }
        self.client_ids.push(client_id);
        self.org_ids.push(org_id);
        self.content_hashes.push(content_hash);
        self.fqdns.push(fqdn);
        self.insights_ids.push(insights_id);
        self.subscription_manager_ids.push(subscription_manager_id);
        let position = |index: usize| i32::try_from(index).unwrap_or(i32::MAX);
        self.first_terms.push(position(first + 1));
        self.last_terms.push(position(self.term_hashes.len()));
        content_hash
    }
}

/// Computes and collects the hashes of the terms of one connection.
struct TermHasher<'a> {
    /// The organization id and the separator, followed by the current term.
    buffer: String,
    prefix_length: usize,
    hashes: &'a mut Vec<i64>,
    max_hashes: usize,
}

impl<'a> TermHasher<'a> {
    fn new(org_id: &str, hashes: &'a mut Vec<i64>) -> Self {
        let buffer = format!("{org_id}{SEPARATOR}");
        Self {
            prefix_length: buffer.len(),
            buffer,
            max_hashes: hashes.len() + MAX_TERMS,
            hashes,
        }
    }

    /// Adds a term for each fact, tag and dispatcher. The order decides which terms are omitted if there
    /// are too many.
    fn add_all(&mut self, info: &ClientInfo) {
        self.add_values("fact:", &info.canonical_facts, normalize_fact);
        for name in sorted_keys(&info.dispatchers) {
            self.add(&["dispatcher:", &name.replace('_', "-")]);
        }
        self.add_values("tag:", &info.tags, |value| value);
    }

    /// Adds a term for each member of an object, and for each element of a member that is a list.
    fn add_values(&mut self, kind: &str, object: &Value, normalize: fn(Cow<str>) -> Cow<str>) {
        let Value::Object(members) = object else {
            return;
        };
        let mut separator = [0; 1];
        let separator = &*SEPARATOR.encode_utf8(&mut separator);
        let members = sorted_members(members);
        for (key, value) in &members {
            if matches!(value, Value::Array(_) | Value::Object(_)) {
                continue;
            }
            if let Some(text) = text_of(value) {
                self.add(&[kind, key, separator, &normalize(text)]);
            }
        }
        for (key, value) in &members {
            let elements = value.as_array().map_or(&[][..], Vec::as_slice);
            for text in elements.iter().filter_map(text_of) {
                self.add(&[kind, key, separator, &normalize(text)]);
            }
        }
    }

    fn add(&mut self, parts: &[&str]) {
        if self.hashes.len() >= self.max_hashes {
            return;
        }
        self.buffer.truncate(self.prefix_length);
        for part in parts {
            self.buffer.push_str(part);
        }
        self.hashes.push(hash_text(self.buffer.as_bytes()));
    }
}

/// Returns a hash of everything that the search index stores about a connection.
fn entry_hash(org_id: &str, identifiers: [Option<&str>; 3], term_hashes: &[i64]) -> i64 {
    let mut text = format!("{org_id}{SEPARATOR}");
    for identifier in identifiers {
        text.push_str(identifier.unwrap_or_default());
        text.push(SEPARATOR);
    }
    for (index, hash) in term_hashes.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{hash}");
    }
    hash_text(text.as_bytes())
}

/// Returns the start of the text of a fact.
fn identifier(facts: &Value, fact: &str) -> Option<String> {
    let text = text_of(facts.as_object()?.get(fact)?)?;
    Some(text.chars().take(MAX_IDENTIFIER_CHARS).collect())
}

/// Returns a fact in lower case. A UUID has no dashes.
fn normalize_fact(value: Cow<str>) -> Cow<str> {
    let mut value = value;
    if value.bytes().any(|byte| byte.is_ascii_uppercase()) {
        value = Cow::Owned(value.to_ascii_lowercase());
    }
    // A UUID has only ASCII characters, so its number of bytes is its number of characters.
    if !matches!(value.len(), 32 | 36) {
        return value;
    }
    let without_dashes = value.replace('-', "");
    let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    if without_dashes.len() == 32 && without_dashes.bytes().all(is_hexadecimal) {
        return Cow::Owned(without_dashes);
    }
    value
}

fn sorted_keys(object: &Value) -> Vec<&str> {
    let members = object.as_object().map(sorted_members).unwrap_or_default();
    members.into_iter().map(|(key, _)| key).collect()
}

/// Returns the members in the order of `jsonb`: shorter keys first, and then by bytes.
fn sorted_members(object: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let members = object.iter().map(|(key, value)| (key.as_str(), value));
    let mut members: Vec<(&str, &Value)> = members.collect();
    members.sort_unstable_by_key(|(key, _)| (key.len(), *key));
    members
}

/// Returns the text that PostgreSQL returns for `value #>> '{}'`. Returns `None` for JSON null.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::Null => return None,
        Value::String(text) => Cow::Borrowed(text),
        Value::Bool(true) => Cow::Borrowed("true"),
        Value::Bool(false) => Cow::Borrowed("false"),
        Value::Number(number) => Cow::Owned(numeric_text(number)),
        Value::Array(_) | Value::Object(_) => {
            let mut text = String::new();
            write_jsonb(&mut text, value);
            Cow::Owned(text)
        }
    })
}

/// Writes a value as PostgreSQL converts `jsonb` to text.
fn write_jsonb(text: &mut String, value: &Value) {
    match value {
        Value::Array(elements) => {
            text.push('[');
            for (index, element) in elements.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_jsonb(text, element);
            }
            text.push(']');
        }
        Value::Object(members) => {
            text.push('{');
            for (index, (key, member)) in sorted_members(members).into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                text.push_str(&Value::from(key).to_string());
                text.push_str(": ");
                write_jsonb(text, member);
            }
            text.push('}');
        }
        Value::Number(number) => text.push_str(&numeric_text(number)),
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

/// Returns a number as PostgreSQL converts `numeric` to text: without an exponent.
fn numeric_text(number: &Number) -> String {
    let text = number.to_string();
    if !text.contains(['e', 'E', '.', '-']) {
        return text;
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let (sign, digits) = match mantissa.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", mantissa),
    };
    let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut integer = integer.to_owned();
    let mut fraction = fraction.to_owned();
    for _ in 0..exponent.max(0) {
        integer.push(if fraction.is_empty() {
            '0'
        } else {
            fraction.remove(0)
        });
    }
    for _ in exponent..0 {
        fraction.insert(0, integer.pop().unwrap_or('0'));
    }
    let integer = integer.trim_start_matches('0');
    let integer = if integer.is_empty() { "0" } else { integer };
    let is_zero = integer == "0" && fraction.bytes().all(|digit| digit == b'0');
    let sign = if is_zero { "" } else { sign };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{integer}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_exponent() {
        for (json, expected) in [
            ("12", "12"),
            ("-7", "-7"),
            ("1.50", "1.5"),
            ("-0", "0.0"),
            ("-0.0", "0.0"),
            ("1e3", "1000.0"),
            ("1.5e-7", "0.00000015"),
            ("1e21", "1000000000000000000000"),
            ("-1.25e22", "-12500000000000000000000"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            let Value::Number(number) = serde_json::from_str(json).unwrap() else {
                panic!("{json}");
            };
            assert_eq!(numeric_text(&number), expected, "{json}");
        }
    }

    #[test]
    fn nested_values_have_the_text_of_jsonb() {
        let value = serde_json::json!([1, {"bb": "x\n\"", "a": null, "b": [true, 1.0]}]);
        let expected = r#"[1, {"a": null, "b": [true, 1.0], "bb": "x\n\""}]"#;
        assert_eq!(text_of(&value).unwrap(), expected);
    }

    #[test]
    fn uuids_are_normalized() {
        let normalize = |text| normalize_fact(Cow::Borrowed(text)).into_owned();
        let uuid = "CABB61B6-E61D-4D70-B475-01F5C009E93C";
        assert_eq!(normalize(uuid), "cabb61b6e61d4d70b47501f5c009e93c");
        assert_eq!(normalize("Host-1.EXAMPLE"), "host-1.example");
    }
}
