//! Real events and real responses are validated against the AsyncAPI document and the OpenAPI document, with
//! a validator of JSON Schema.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::events::{Event, EventReader, run_client, wait_for_topic_messages};
use crate::tracked_messages::Receiver;
use test_support::mqtt::{Connect, control_out_topic, data_out_topic, offline_message};
use test_support::{Deployment, DeploymentMode, RawClient, each_deployment, eventually, unique_id};

each_deployment!(
    events_match_the_asyncapi_document,
    responses_about_clients_match_the_openapi_document,
);

const SECRET: &str = "document-secret-document-secret";

/// Values to validate, each with a document and the JSON pointer of its schema.
struct Validation {
    documents: Value,
    values: Vec<Value>,
}

impl Validation {
    async fn new(deployment: &Deployment) -> Self {
        let mut documents = json!({});
        for name in ["asyncapi", "openapi"] {
            let request = deployment.unauthenticated_request("GET", &format!("/{name}.json"));
            let document: Value = request.send().await.unwrap().json().await.unwrap();
            documents[name] = document;
        }
        Self {
            documents,
            values: Vec::new(),
        }
    }

    /// Adds a value. Its schema must exist in the document.
    fn add(&mut self, document: &str, schema: &str, value: &Value) {
        let found = self.documents[document].pointer(schema);
        assert!(found.is_some_and(Value::is_object), "no schema at {schema}");
        self.values
            .push(json!({"document": document, "schema": schema, "value": value}));
    }

    /// Adds a response with status 200. `path` is the path in the OpenAPI document.
    async fn add_response(&mut self, path: &str, request: RequestBuilder) -> Value {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let body: Value = response.json().await.unwrap();
        let path = path.replace('~', "~0").replace('/', "~1");
        let schema = format!("/paths/{path}/get/responses/200/content/application~1json/schema");
        self.add("openapi", &schema, &body);
        body
    }

    /// Validates all values.
    async fn run(self) {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut process = tokio::process::Command::new(root.join("target/venv/bin/python"))
            .arg(root.join("crates/cloud-connector/tests/clients/check_schemas.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let task = json!({"documents": self.documents, "values": self.values}).to_string();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(task.as_bytes()).await.unwrap();
        drop(stdin);
        let output = process.wait_with_output().await.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stdout}{stderr}");
        let expected_line = format!("{} values checked", self.values.len());
        assert!(stdout.contains(&expected_line), "{stdout}");
    }
}

/// Events of messages that this test does not cause. They have the same fields as the other events of
/// messages.
const OTHER_MESSAGE_EVENTS: [&str; 5] = [
    "message.queued",
    "message.rejected",
    "message.failed",
    "message.expired",
    "message.cancelled",
];

/// Sends a tracked message, which the client answers. Returns the events of the message.
async fn message_events(deployment: &Deployment, reader: &mut EventReader) -> Vec<Event> {
    let mut receiver = Receiver::connect(deployment).await;
    let id = receiver.send_tracked(deployment).await;
    receiver.answer(&id, &json!("done")).await;
    let mut events = Vec::new();
    while events.len() < 3 {
        let event = reader.next_event().await;
        if event.event_type.starts_with("message.") {
            events.push(event);
        }
    }
    events
}

/// Returns the types of events in the AsyncAPI document.
fn documented_types(document: &Value) -> BTreeSet<String> {
    let messages = &document["channels"]["stream"]["messages"];
    messages.as_object().unwrap().keys().cloned().collect()
}

async fn events_match_the_asyncapi_document(deployment: Deployment) {
    let mut validation = Validation::new(&deployment).await;
    let mut reader = EventReader::open(&deployment, "").await;
    let client_id = unique_id("document");
    run_client(&deployment, &client_id).await;
    // A heartbeat makes a disconnected client visible again.
    let connect = Connect::new(&client_id).offline_will();
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    client.publish_heartbeat(&data_out_topic(&client_id)).await;
    deployment.wait_until_connected(&client_id).await;
    drop(client);
    let mut events = reader.next_events(5).await;
    events.extend(message_events(&deployment, &mut reader).await);
    let causes: Vec<&Value> = events.iter().map(|event| &event.data["cause"]).collect();
    assert_eq!(causes[3], "heartbeat", "{events:?}");
    let mut resumed = EventReader::resume(&deployment, "unknown").await;
    events.push(resumed.next_event().await);

    let mut types: BTreeSet<String> = events.iter().map(|it| it.event_type.clone()).collect();
    types.extend(OTHER_MESSAGE_EVENTS.map(str::to_owned));
    assert_eq!(types, documented_types(&validation.documents["asyncapi"]));
    for event in &events {
        let schema = format!("/components/schemas/{}", event.event_type);
        let described = &validation.documents["asyncapi"].pointer(&schema).unwrap()["properties"];
        for field in event.data.as_object().unwrap().keys() {
            assert!(described[field].is_object(), "{field} is not described");
        }
        validation.add("asyncapi", &schema, &event.data);
    }
    if deployment.has_external_broker() {
        events.pop();
        for message in wait_for_topic_messages(&deployment, events.len()).await {
            let payload: Value = serde_json::from_slice(&message.payload).unwrap();
            let event_type = payload["type"].as_str().unwrap();
            let name = format!("{event_type}.kafka");
            let topic_messages = &validation.documents["asyncapi"]["channels"]["topic"]["messages"];
            assert!(
                topic_messages[&name].is_object(),
                "{name} is not a message of the topic"
            );
            let headers = message.headers.iter().cloned();
            let headers: serde_json::Map<String, Value> =
                headers.map(|(name, value)| (name, value.into())).collect();
            let schema = format!("/components/schemas/{event_type}");
            let component = format!("/components/messages/{name}");
            validation.add("asyncapi", &schema, &payload);
            validation.add("asyncapi", &format!("{component}/headers"), &headers.into());
            let key = format!("{component}/bindings/kafka/key");
            validation.add("asyncapi", &key, &message.key.into());
        }
    }
    validation.run().await;
}

async fn responses_about_clients_match_the_openapi_document(mode: DeploymentMode) {
    let key = format!(r#"{{ secrets = ["{SECRET}"], scopes = ["tenant", "management"] }}"#);
    let deployment = mode.start(&[("api.keys.documents", key.as_str())]).await;
    let request = |path: &str| {
        deployment
            .unauthenticated_request("GET", path)
            .header("x-rh-cloud-connector-client-id", "documents")
            .header("x-rh-cloud-connector-psk", SECRET)
            .header("x-rh-cloud-connector-org-id", "10000")
    };
    let mut validation = Validation::new(&deployment).await;
    let client_id = unique_id("document");
    let connect = Connect::new(&client_id).without_keep_alive();
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(&topic, &test_support::mqtt::online_message())
        .await;
    deployment.wait_until_connected(&client_id).await;
    client.publish(&topic, b"not json").await.unwrap();
    let diagnosis_path = format!("/v2/clients/{client_id}/diagnosis");
    eventually("the dead letter", || async {
        let response = request(&diagnosis_path).send().await.unwrap();
        let diagnosis: Value = response.json().await.unwrap();
        let dead_letters = diagnosis["dead_letters"].as_array().unwrap();
        (!dead_letters.is_empty()).then_some(())
    })
    .await;
    for status in ["connected", "disconnected"] {
        if status == "disconnected" {
            client.must_publish(&topic, &offline_message()).await;
            deployment.wait_until_disconnected(&client_id).await;
        }
        let connection = format!("/v2/connections/{client_id}");
        let path = "/v2/connections/{client_id}";
        let details = validation.add_response(path, request(&connection)).await;
        assert_eq!(details["status"], status);
        for (path, actual_path) in [
            (
                "/v2/connections/{client_id}/history",
                format!("{connection}/history?limit=1"),
            ),
            (
                "/v2/connections/{client_id}/status",
                format!("{connection}/status"),
            ),
            ("/v2/clients/{client_id}/diagnosis", diagnosis_path.clone()),
            (
                "/v2/clients/{client_id}/diagnosis",
                "/v2/clients/unknown/diagnosis".to_owned(),
            ),
            ("/v2/clients", format!("/v2/clients?search={client_id}")),
            (
                "/v2/connections",
                "/v2/connections?seen_after=2020-01-01T00:00:00Z".to_owned(),
            ),
        ] {
            validation.add_response(path, request(&actual_path)).await;
        }
    }
    validation.run().await;
}
