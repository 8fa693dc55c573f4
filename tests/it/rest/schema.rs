//! The running service against its own OpenAPI document: schemathesis makes requests from it, right and
//! wrong ones, and holds every answer to it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::arrive_as;
use crate::each_deployment;
use crate::support::Deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, data_out, online};

each_deployment!(
    callers_with_a_key_are_answered_as_the_document_says,
    callers_without_one_are_refused_as_the_document_says,
);

const SECRET: &str = "a-secret-of-the-tester";
/// The client that the document's examples name.
const EXAMPLE: &str = "my-machine";

async fn callers_with_a_key_are_answered_as_the_document_says(subject: Deployment) {
    let key = format!(r#"{{ secrets = ["{SECRET}"], scopes = ["tenant", "management"] }}"#);
    let subject = subject.anew(&[("api.keys.tester-of-all", &key)]).await;
    let connect = Connect::new(EXAMPLE).patient();
    let client = arrive_as(&subject, &connect, "echo").await;
    let client = tokio::spawn(be_there(client));
    let headers = [
        "x-rh-cloud-connector-client-id: tester-of-all",
        &format!("x-rh-cloud-connector-psk: {SECRET}"),
        "x-rh-cloud-connector-org-id: 10000",
        "x-rh-cloud-connector-account: 111000",
    ];
    tokio::select! {
        () = try_all(&subject, &headers) => {}
        () = keep_busy(&subject) => {}
    }
    client.abort();
}

async fn callers_without_one_are_refused_as_the_document_says(subject: Deployment) {
    try_all(&subject, &[]).await;
}

async fn try_all(subject: &Deployment, headers: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = subject.bare("GET", "/openapi.json").build().unwrap();
    let mut command = Command::new(root.join("target/venv/bin/schemathesis"));
    command
        .arg("--config-file")
        .arg(root.join("tests/clients/schemathesis.toml"))
        .args(["run", document.url().as_str(), "--checks", "all"])
        // The same requests each time: what fails once fails again.
        .args(["--seed", "1", "--max-examples", "20", "--workers", "1"])
        .args(["--phases", "examples,coverage,fuzzing", "--no-color"])
        .args(["--warnings", "off", "--request-timeout", "40"])
        .args(headers.iter().flat_map(|header| ["-H", header]))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        // It leaves its findings where it runs.
        .current_dir(std::env::temp_dir());
    let done = tokio::time::timeout(Duration::from_mins(8), command.output());
    let done = done.await.expect("it does not end").unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let complained = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{complained}");
    assert!(
        said.contains("Tested: 16"),
        "not every endpoint was tried: {said}"
    );
}

/// So that the client never hears nothing for so long that it gives up.
async fn keep_busy(subject: &Deployment) {
    loop {
        subject.send(EXAMPLE, json!({"directive": "d"})).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// A client that answers whatever it is asked, and is back whenever it was told to leave.
async fn be_there(mut client: RawClient) {
    loop {
        let (_, message) = client.message().await;
        let id = &message["message_id"];
        let (topic, answer) = match &message["content"]["command"] {
            Value::String(command) if command == "ping" => (
                control_out(EXAMPLE),
                json!({"type": "event", "message_id": id, "response_to": id, "version": 1,
                    "sent": "2026-01-02T15:04:05Z", "content": "pong"}),
            ),
            Value::String(_) => (control_out(EXAMPLE), online()),
            _ => (
                data_out(EXAMPLE),
                json!({"type": "data", "message_id": id, "response_to": id, "version": 1,
                    "sent": "2026-01-02T15:04:05Z", "directive": "d", "metadata": {},
                    "content": ""}),
            ),
        };
        client
            .publish_only(&topic, answer.to_string().as_bytes(), false)
            .await;
    }
}
