//! Tests that the API conforms to its OpenAPI document. Schemathesis generates valid and invalid
//! requests from the document, and compares every response with the document.

mod documents;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::connect_client_with_options;
use test_support::each_deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::{Deployment, DeploymentMode};

each_deployment!(
    authenticated_requests_match_the_openapi_document,
    // Schemathesis accepts status 401 for each request, but not 429.
    unauthenticated_requests_match_the_openapi_document
        with &[("api.auth_failure_limit.burst", "1000000")],
);

/// Secret of the API key `schema-tester`.
const TESTER_SECRET: &str = "tester-secret-tester-secret";
/// Operation whose response does not end, so Schemathesis cannot test it.
const ENDLESS_OPERATION: &str = "v2.events.stream";
/// Client id in the examples of the OpenAPI document.
const EXAMPLE_CLIENT_ID: &str = "my-machine";

async fn authenticated_requests_match_the_openapi_document(mode: DeploymentMode) {
    let key = format!(r#"{{ secrets = ["{TESTER_SECRET}"], scopes = ["tenant", "management"] }}"#);
    let settings = [
        ("api.keys.schema-tester", key.as_str()),
        // Schemathesis also sends requests without credentials.
        ("api.auth_failure_limit.burst", "1000000"),
    ];
    let deployment = mode.start(&settings).await;
    let connect = Connect::new(EXAMPLE_CLIENT_ID).without_keep_alive();
    let client = connect_client_with_options(&deployment, &connect, "echo").await;
    let responder = tokio::spawn(respond_to_messages(client));
    let headers = [
        "x-rh-cloud-connector-client-id: schema-tester",
        &format!("x-rh-cloud-connector-psk: {TESTER_SECRET}"),
        "x-rh-cloud-connector-org-id: 10000",
        "x-rh-cloud-connector-account: 111000",
    ];
    tokio::select! {
        () = run_schemathesis(&deployment, &headers) => {}
        () = send_periodic_messages(&deployment) => {}
    }
    responder.abort();
}

async fn unauthenticated_requests_match_the_openapi_document(deployment: Deployment) {
    run_schemathesis(&deployment, &[]).await;
}

/// Runs schemathesis, which adds `headers` to each request. Fails if a response differs from the
/// document.
async fn run_schemathesis(deployment: &Deployment, headers: &[&str]) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let document = deployment
        .unauthenticated_request("GET", "/openapi.json")
        .build()
        .unwrap();
    let mut command = Command::new(root.join("target/venv/bin/schemathesis"));
    command
        .arg("--config-file")
        .arg(root.join("crates/cloud-connector/tests/clients/schemathesis.toml"))
        .args(["run", document.url().as_str(), "--checks", "all"])
        // A fixed seed and a single worker make failures reproducible.
        .args(["--seed", "1", "--max-examples", "20", "--workers", "1"])
        .args(["--phases", "examples,coverage,fuzzing", "--no-color"])
        .args(["--warnings", "off", "--request-timeout", "40"])
        .args(["--exclude-operation-id", ENDLESS_OPERATION])
        .args(headers.iter().flat_map(|header| ["-H", header]))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        // Schemathesis writes its findings to the working directory.
        .current_dir(std::env::temp_dir());
    let run = tokio::time::timeout(Duration::from_mins(8), command.output());
    let result = run.await.expect("schemathesis timed out").unwrap();
    let stdout = String::from_utf8_lossy(&result.stdout);
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{stdout}\n{stderr}");
    let operation_count = count_operations(deployment).await;
    let expected_line = format!("Tested: {operation_count}");
    assert!(
        stdout.lines().any(|line| line.trim() == expected_line),
        "not all {operation_count} operations of the document were tested: {stdout}"
    );
}

/// Returns the number of operations in the OpenAPI document that the connector serves, without the
/// operation that is not tested.
async fn count_operations(deployment: &Deployment) -> usize {
    const METHODS: [&str; 8] = [
        "get", "put", "post", "delete", "options", "head", "patch", "trace",
    ];
    let request = deployment.unauthenticated_request("GET", "/openapi.json");
    let document: Value = request.send().await.unwrap().json().await.unwrap();
    let path_items = document["paths"].as_object().unwrap().values();
    let methods = path_items.flat_map(|path_item| path_item.as_object().unwrap().keys());
    let operation_count = methods
        .filter(|key| METHODS.contains(&key.as_str()))
        .count();
    assert!(operation_count > 1, "the document has no operations");
    operation_count - 1
}

/// Sends a message to the client every five seconds. Without these messages,
/// [`RawClient::next_message`] could time out and panic.
async fn send_periodic_messages(deployment: &Deployment) {
    loop {
        deployment
            .send_message(EXAMPLE_CLIENT_ID, json!({"directive": "d"}))
            .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Responds to pings and messages. After a reconnect or disconnect command, publishes an online
/// message, so that the client is listed again.
async fn respond_to_messages(mut client: RawClient) {
    loop {
        let (_, message) = client.next_message().await;
        let message_id = &message["message_id"];
        let (topic, response) = match &message["content"]["command"] {
            Value::String(command) if command == "ping" => (
                control_out_topic(EXAMPLE_CLIENT_ID),
                json!({"type": "event", "message_id": message_id, "response_to": message_id, "version": 1,
                    "sent": "2026-01-02T15:04:05Z", "content": "pong"}),
            ),
            Value::String(_) => (control_out_topic(EXAMPLE_CLIENT_ID), online_message()),
            _ => (
                data_out_topic(EXAMPLE_CLIENT_ID),
                json!({"type": "data", "message_id": message_id, "response_to": message_id, "version": 1,
                    "sent": "2026-01-02T15:04:05Z", "directive": "d", "metadata": {},
                    "content": ""}),
            ),
        };
        client
            .send_publish(&topic, response.to_string().as_bytes(), false)
            .await;
    }
}
