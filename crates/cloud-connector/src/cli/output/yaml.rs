//! Writes JSON values as YAML.
//!
//! Strings that a YAML parser could read as another type are quoted, and characters that control a
//! terminal are escaped. The crates that write YAML print some of these characters unchanged.

use serde_json::Value;

use super::escape_json;

/// Texts that YAML 1.1 or 1.2 does not read as strings.
const RESERVED_TEXTS: [&str; 12] = [
    "true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "none",
];
const INDENT: usize = 2;

/// Returns the YAML text of a value, with a line break at the end.
pub(super) fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    push_value(&mut text, value, 0);
    text
}

/// Appends a value that begins at the current position. Its further lines are indented.
fn push_value(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                push_indent(text, if i == 0 { 0 } else { indent });
                text.push_str("- ");
                push_value(text, item, indent + INDENT);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (i, (name, field)) in fields.iter().enumerate() {
                push_indent(text, if i == 0 { 0 } else { indent });
                text.push_str(&scalar(name));
                text.push(':');
                if is_block(field) {
                    text.push('\n');
                    push_indent(text, indent + INDENT);
                    push_value(text, field, indent + INDENT);
                } else {
                    text.push(' ');
                    push_value(text, field, indent);
                }
            }
        }
        Value::String(string) => {
            text.push_str(&scalar(string));
            text.push('\n');
        }
        other => {
            text.push_str(&other.to_string());
            text.push('\n');
        }
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

fn push_indent(text: &mut String, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
}

/// Returns a string with quotation marks if it needs them. A JSON string is a valid YAML string.
fn scalar(string: &str) -> String {
    let begins_with_letter = string.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let lowercase = string.to_ascii_lowercase();
    if begins_with_letter
        && string.chars().all(is_plain)
        && !RESERVED_TEXTS.contains(&lowercase.as_str())
    {
        return string.to_owned();
    }
    escape_json(&Value::from(string).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::is_unsafe_for_terminal;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn maps_and_lists_are_indented() {
        let value = json!({
            "a": [{"b": 1, "c": {"d": "x y", "e": {}}}, [1, ["z"]], []],
            "f": "no", "g": null, "h": "", "i j": "2026-01-31", "k": true,
        });
        insta::assert_snapshot!(to_yaml(&value), @r#"
        a:
          - b: 1
            c:
              d: "x y"
              e: {}
          - - 1
            - - z
          - []
        f: "no"
        g: null
        h: ""
        "i j": "2026-01-31"
        k: true
        "#);
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            any::<String>(),
            "[a-z0-9 :#.+-]{0,8}",
            proptest::sample::select(
                &[
                    "true",
                    "No",
                    "~",
                    "1e3",
                    "0x1f",
                    "12:30",
                    "-",
                    "---",
                    "\u{85}\u{9b}"
                ][..]
            )
            .prop_map(str::to_owned),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec((text.clone(), inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_yaml_parser_reads_the_same_value(value in json_value()) {
            let yaml = to_yaml(&value);
            prop_assert!(yaml.chars().all(|c| c == '\n' || !is_unsafe_for_terminal(c)), "{}", yaml);
            let parsed: Value = serde_norway::from_str(&yaml).unwrap();
            prop_assert_eq!(parsed, value, "{}", yaml);
        }
    }
}
