//! One event as a line of text or JSON.

use serde_json::{Map, Value};

use crate::cli::escape_for_terminal;
use crate::cli::terminal::{Color, Colors};

/// Width of the column of event types. The longest type is `message.acknowledged`.
const TYPE_WIDTH: usize = 20;
/// Maximum length of each detail in text. JSON output contains the complete values.
const MAX_DETAIL_CHARS: usize = 60;
/// Fields that are not details: they have columns, or are the same in each event.
const COLUMN_FIELDS: [&str; 6] = ["id", "type", "time", "org_id", "account", "client_id"];

/// An event of the stream.
pub(super) struct EventLine {
    /// Position of the event in the stream.
    position: Option<String>,
    event_type: String,
    fields: Map<String, Value>,
}

impl EventLine {
    /// Creates an event. `data` should be a JSON object. Other data becomes the field `data`.
    pub(super) fn new(position: Option<&str>, event_type: &str, data: &str) -> Self {
        let fields = serde_json::from_str(data).unwrap_or_else(|_| {
            let data = Value::String(data.to_owned());
            Map::from_iter([("data".to_owned(), data)])
        });
        Self {
            position: position.map(str::to_owned),
            event_type: event_type.to_owned(),
            fields,
        }
    }

    /// Returns a JSON object in one line: the fields of the event, and its position.
    pub(super) fn to_json(&self) -> String {
        let mut fields = self.fields.clone();
        let mut add = |name: &str, value: &str| {
            let value = Value::String(value.to_owned());
            fields.entry(name).or_insert(value);
        };
        add("type", &self.event_type);
        if let Some(position) = &self.position {
            add("position", position);
        }
        Value::Object(fields).to_string()
    }

    /// Returns the time, type, client and details in one line.
    pub(super) fn to_text(&self, colors: Colors) -> String {
        let event_type = format!("{:TYPE_WIDTH$}", escape_for_terminal(&self.event_type));
        let event_type = match self.event_type.as_str() {
            "connection.online" | "message.answered" => colors.paint(Color::Green, &event_type),
            "connection.offline" | "message.failed" | "message.rejected" => {
                colors.paint(Color::Red, &event_type)
            }
            "message.expired" => colors.paint(Color::Yellow, &event_type),
            _ => event_type,
        };
        let client_id = escape_for_terminal(self.text_field("client_id"));
        let columns = format!("{:20}  {event_type}  {client_id}", self.time());
        let details = self.fields.iter();
        let details = details.filter(|(name, _)| !COLUMN_FIELDS.contains(&name.as_str()));
        let details = details
            .map(|(name, value)| format!("{}={}", escape_for_terminal(name), detail_text(value)));
        let parts: Vec<String> = [columns].into_iter().chain(details).collect();
        parts.join("  ")
    }

    fn text_field(&self, name: &str) -> &str {
        let value = self.fields.get(name).and_then(Value::as_str);
        value.unwrap_or_default()
    }

    /// Returns the time in UTC with seconds.
    fn time(&self) -> String {
        let text = self.text_field("time");
        let time = text.parse::<jiff::Timestamp>();
        time.map_or_else(|_| escape_for_terminal(text), |time| format!("{time:.0}"))
    }
}

fn detail_text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_too_long = text.chars().nth(MAX_DETAIL_CHARS).is_some();
    let text: String = text.chars().take(MAX_DETAIL_CHARS).collect();
    let text = escape_for_terminal(&text);
    if is_too_long {
        format!("{text}…")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    const OFFLINE: &str = r#"{"id":"9","type":"connection.offline","time":"2026-01-31T12:00:00.5Z",
        "org_id":"10000","account":"111000","client_id":"web-1","reason":"will",
        "connected_for":3600,"dispatchers":{"rhc-worker-playbook":{}}}"#;

    #[test]
    fn text_has_columns_and_details() {
        let line = EventLine::new(Some("17"), "connection.offline", OFFLINE);
        assert_snapshot!(line.to_text(Colors::OFF), @r#"2026-01-31T12:00:00Z  connection.offline    web-1  connected_for=3600  dispatchers={"rhc-worker-playbook":{}}  reason=will"#);
    }

    #[test]
    fn json_is_one_line_with_all_fields_and_the_position() {
        let line = EventLine::new(Some("17"), "connection.offline", OFFLINE).to_json();
        assert!(!line.contains('\n'), "{line}");
        let json: Value = serde_json::from_str(&line).unwrap();
        let mut expected: Value = serde_json::from_str(OFFLINE).unwrap();
        expected["position"] = "17".into();
        assert_eq!(json, expected);
    }

    #[test]
    fn data_that_is_not_an_object_is_printed() {
        let line = EventLine::new(None, "note", "plain\ntext");
        assert_eq!(line.to_json(), r#"{"data":"plain\ntext","type":"note"}"#);
        let text = line.to_text(Colors::OFF);
        assert!(text.ends_with("data=plain\\u{a}text"), "{text}");
    }

    #[test]
    fn long_and_hostile_details_do_not_control_the_terminal() {
        let data = serde_json::json!({"client_id": "a\u{1b}[2J", "reason": "x".repeat(99)});
        let text = EventLine::new(None, "t\u{9b}", &data.to_string()).to_text(Colors::OFF);
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text}");
        let expected = format!("reason={}…", "x".repeat(60));
        assert!(text.ends_with(&expected), "{text}");
    }
}
