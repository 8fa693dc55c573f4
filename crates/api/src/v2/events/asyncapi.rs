//! The AsyncAPI 3 document of the events: the stream of the API, and the Kafka topic.

use domain::event::{
    CLOUD_EVENT_SOURCE, CLOUD_EVENT_TYPE_PREFIX, COMMON_FIELDS, EVENT_TYPES, EventField, EventType,
    FieldKind,
};
use domain::{MessageState, OfflineReason, OnlineCause};
use serde_json::{Map, Value, json};

use super::rendered::ResetReason;

/// Name of the event `reset` and of its schema.
const RESET: &str = "reset";

/// Returns the AsyncAPI document as JSON. `kafka_topic` is the topic to which events are forwarded.
pub(crate) fn asyncapi_json(base_path: &str, kafka_topic: Option<&str>) -> String {
    let mut document = json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events of Cloud Connector",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Events about the connections of clients, and about tracked messages. Each event is delivered at least \
                once, and the events of each client are in their order. Two events with the same id \
                are the same event. Ignore unknown fields and unknown types of events.",
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "defaultContentType": "application/json",
        "channels": {"stream": {
            "address": format!("{base_path}/v2/events"),
            "title": "Event stream",
            "description": "The events of one organization, as server-sent events \
                (`text/event-stream`): the line `id` is the id of the event, the line `event` is its \
                type, and the line `data` is the payload. `openapi.json` describes the request.",
            "messages": references("messages", stream_messages().keys()),
        }},
        "operations": {"sendToStream": {
            "action": "send",
            "channel": {"$ref": "#/channels/stream"},
            "summary": "Sends each event of the organization to the callers of the stream.",
        }},
    });
    let mut messages = stream_messages();
    if let Some(topic) = kafka_topic {
        document["channels"]["topic"] = json!({
            "address": topic,
            "title": "Kafka topic",
            "description": "The events of all organizations, as CloudEvents 1.0 in binary mode. The \
                Kafka key is the client id, so one partition contains all events of a client.",
            "messages": references("messages", topic_messages().keys()),
        });
        document["operations"]["sendToTopic"] = json!({
            "action": "send",
            "channel": {"$ref": "#/channels/topic"},
            "summary": "Forwards each event of all organizations.",
        });
        messages.extend(topic_messages());
    }
    document["components"] = json!({"messages": messages, "schemas": schemas()});
    format!("{document:#}\n")
}

/// Returns a reference to each of the components with these names.
fn references<'a>(kind: &str, names: impl Iterator<Item = &'a String>) -> Value {
    let reference = |name: &String| json!({"$ref": format!("#/components/{kind}/{name}")});
    names
        .map(|name| (name.clone(), reference(name)))
        .collect::<Map<_, _>>()
        .into()
}

fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn stream_messages() -> Map<String, Value> {
    let message = |event_type: &EventType| {
        let message = json!({
            "name": event_type.name,
            "summary": event_type.description,
            "contentType": "application/json",
            "payload": schema_reference(event_type.name),
        });
        (event_type.name.to_owned(), message)
    };
    let mut messages: Map<String, Value> = EVENT_TYPES.iter().map(message).collect();
    let reset = json!({
        "name": RESET,
        "summary": "Events are missing: list the connections again. The stream continues after the id.",
        "contentType": "application/json",
        "payload": schema_reference(RESET),
    });
    messages.insert(RESET.to_owned(), reset);
    messages
}

fn topic_messages() -> Map<String, Value> {
    let message = |event_type: &EventType| {
        let message = json!({
            "name": event_type.name,
            "summary": event_type.description,
            "contentType": "application/json",
            "headers": cloud_event_headers(event_type),
            "payload": schema_reference(event_type.name),
            "bindings": {"kafka": {"key": {"type": "string", "description": "Client id."}}},
        });
        (format!("{}.kafka", event_type.name), message)
    };
    EVENT_TYPES.iter().map(message).collect()
}

fn cloud_event_headers(event_type: &EventType) -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let cloud_event_type = format!("{CLOUD_EVENT_TYPE_PREFIX}{}", event_type.name);
    let properties = json!({
        "ce_specversion": {"const": "1.0"},
        "ce_id": text("Id of the event."),
        "ce_source": {"const": CLOUD_EVENT_SOURCE},
        "ce_type": {"const": cloud_event_type},
        "ce_subject": text("Client id."),
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_sequence": text("Id of the event: a decimal number that increases with each event."),
        "content-type": {"const": "application/json"},
    });
    let required: Vec<&String> = properties
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn schemas() -> Map<String, Value> {
    let event_schema = |event_type: &EventType| {
        let fields = COMMON_FIELDS.iter().chain(event_type.fields);
        let mut schema = object_schema(fields);
        schema["description"] = event_type.description.into();
        schema["properties"]["type"]["const"] = event_type.name.into();
        (event_type.name.to_owned(), schema)
    };
    let mut schemas: Map<String, Value> = EVENT_TYPES.iter().map(event_schema).collect();
    let reasons = ResetReason::ALL.map(ResetReason::as_str);
    let reset = json!({
        "type": "object",
        "required": ["id", "type", "reason"],
        "properties": {
            "id": {"type": "string", "description": "The stream continues after this id."},
            "type": {"const": RESET},
            "reason": {"type": "string", "enum": reasons},
        },
    });
    schemas.insert(RESET.to_owned(), reset);
    schemas
}

fn object_schema<'a>(fields: impl Iterator<Item = &'a EventField> + Clone) -> Value {
    let required: Vec<&str> = fields.clone().map(|field| field.name).collect();
    let properties: Map<String, Value> = fields
        .map(|field| (field.name.to_owned(), field_schema(field)))
        .collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn field_schema(field: &EventField) -> Value {
    let mut schema = match field.kind {
        FieldKind::Object => json!({"type": "object"}),
        FieldKind::OptionalObject => json!({"type": ["object", "null"]}),
        FieldKind::Text => json!({"type": "string"}),
        FieldKind::OptionalText => json!({"type": ["string", "null"]}),
        FieldKind::Time => json!({"type": "string", "format": "date-time"}),
        FieldKind::TextList => json!({"type": "array", "items": {"type": "string"}}),
        FieldKind::Seconds => json!({"type": "integer", "minimum": 0}),
        FieldKind::OnlineCause => {
            let names: Vec<&str> = OnlineCause::ALL.iter().map(|it| it.as_str()).collect();
            json!({"type": "string", "enum": names})
        }
        FieldKind::OfflineReason => {
            let names: Vec<&str> = OfflineReason::ALL.iter().map(|it| it.as_str()).collect();
            json!({"type": "string", "enum": names})
        }
        FieldKind::MessageState => {
            let names: Vec<&str> = MessageState::ALL.iter().map(|it| it.as_str()).collect();
            json!({"type": "string", "enum": names})
        }
    };
    schema["description"] = field.description.into();
    schema
}

#[cfg(test)]
mod tests;
