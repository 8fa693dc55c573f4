use domain::{ClientId, ClientInfo, OfflineReason, OnlineCause, OrgId, Tenant, Timestamp};
use store::{StoredEvent, event_data};

use super::super::rendered::reset_data;
use super::*;

/// Checks a value against a schema that has only the keywords that the document uses.
fn check_schema(schema: &Value, value: &Value, path: &str) {
    let type_names = match &schema["type"] {
        Value::Array(names) => names.clone(),
        Value::Null => Vec::new(),
        name => vec![name.clone()],
    };
    let actual_type = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let has_type = type_names.is_empty() || type_names.contains(&actual_type.into());
    assert!(has_type, "{path} is {actual_type}");
    if let Some(constant) = schema.get("const") {
        assert_eq!(value, constant, "{path}");
    }
    if let Some(names) = schema["enum"].as_array() {
        assert!(names.contains(value), "{path}: {value}");
    }
    if schema["format"] == "date-time" {
        assert!(value.as_str().unwrap().parse::<Timestamp>().is_ok());
    }
    for item in value.as_array().into_iter().flatten() {
        check_schema(&schema["items"], item, path);
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for name in schema["required"].as_array().unwrap() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{path}.{name}");
    }
    for (name, field) in value.as_object().unwrap() {
        let property = properties.get(name);
        let property = property.unwrap_or_else(|| panic!("{path}.{name} is not described"));
        check_schema(property, field, &format!("{path}.{name}"));
    }
}

fn event_json(event_type: &str, data: Value) -> Value {
    let event = StoredEvent {
        position: 7,
        at: Timestamp::UNIX_EPOCH,
        event_type: event_type.to_owned(),
        tenant: Tenant {
            org_id: OrgId::new("a").unwrap(),
            account: "42".to_owned(),
        },
        client_id: ClientId::new("client").unwrap(),
        data,
        previous_dispatchers: None,
    };
    event.to_json()
}

#[test]
fn event_of_each_type_matches_its_schema_in_the_asyncapi_document() {
    let document = asyncapi_json("/api/cloud-connector", Some("topic"));
    let document: Value = serde_json::from_str(&document).unwrap();
    // The recorder builds its events with the same functions.
    let info = ClientInfo {
        dispatchers: json!({"echo": {}}),
        canonical_facts: json!({"fqdn": "a"}),
        client_version: "1".to_owned(),
        ..ClientInfo::default()
    };
    let offline = event_data::offline(OfflineReason::Will, 5, &Value::Null);
    let mut events = vec![
        (
            event_data::ONLINE,
            event_data::online(&info, OnlineCause::Connected),
        ),
        (event_data::UPDATED, event_data::updated(&info, &["tags"])),
        (event_data::OFFLINE, offline),
    ];
    for state in MessageState::ALL {
        let reason = (*state == MessageState::Failed).then_some("broker-timeout");
        let data = event_data::message("m", "echo", *state, reason, None);
        events.push((state.event_type(), data));
    }
    assert_eq!(events.len(), EVENT_TYPES.len());
    for (event_type, data) in events {
        let schema = &document["components"]["schemas"][event_type];
        let event = event_json(event_type, data);
        check_schema(schema, &event, event_type);
        assert!(event.as_object().unwrap().len() > COMMON_FIELDS.len());
    }
    for reason in ResetReason::ALL {
        let schema = &document["components"]["schemas"]["reset"];
        check_schema(schema, &reset_data(1, reason), "reset");
    }
}

#[test]
fn every_reference_in_the_asyncapi_document_resolves() {
    for topic in [Some("events"), None] {
        let json = asyncapi_json("/base", topic);
        let document: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(document["asyncapi"], "3.0.0");
        assert_eq!(document["channels"]["stream"]["address"], "/base/v2/events");
        assert_eq!(document["channels"]["topic"]["address"], json!(topic));
        let references: Vec<&str> = json.split("\"$ref\": \"#").skip(1).collect();
        assert!(references.len() >= 8);
        for reference in references {
            let reference = reference.split('"').next().unwrap();
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }
}
