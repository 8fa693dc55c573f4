//! Tests of the lifecycle of a client on an embedded connector. The client comes online, is listed
//! with its tenant, receives a message, is killed, and is no longer listed.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::{CONDITION_TIMEOUT, Certs, Connector, connector_command, unique_id};

/// A running `cloud-connector simulate` process.
pub struct SimulatedClient {
    child: Child,
    stdout_lines: Lines<BufReader<ChildStdout>>,
}

impl SimulatedClient {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout_lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            stdout_lines,
        }
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Reads stdout until a line contains `text`. Returns the line.
    pub async fn wait_for_line(&mut self, text: &str) -> String {
        let read_lines = async {
            loop {
                let line = self.stdout_lines.next_line().await.unwrap();
                let line = line.expect("the simulated client exited");
                if line.contains(text) {
                    return line;
                }
            }
        };
        timeout(CONDITION_TIMEOUT, read_lines)
            .await
            .unwrap_or_else(|_| panic!("timed out waiting for a line with {text:?}"))
    }
}

/// Starts a client with the command `simulate`, sends a message to it, and kills it. Checks each
/// response of the API.
async fn run_client_lifecycle(connector: &Connector, client_id: &str, simulate: Command) {
    let mut simulated_client = SimulatedClient::start(simulate);
    simulated_client.wait_for_line("online").await;

    // The connector recorded the online message before the acknowledgment, so the client is listed.
    let response = connector
        .request("GET", "/v2/connections")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(content_type, "application/json; charset=UTF-8");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["meta"]["count"], 1);
    let row = &body["data"][0];
    assert_eq!(row["client_id"], client_id);
    assert_eq!(row["org_id"], DEFAULT_ORG_ID);
    assert_eq!(row["account"], "111000");
    assert_eq!(row["tags"], json!({"simulated": "true"}));

    let (status, sent) = connector
        .send_message(
            client_id,
            json!({"directive": "echo", "payload": {"a": [1, "<&>"]}}),
        )
        .await;
    assert_eq!(status, 201, "{sent}");
    let line = simulated_client.wait_for_line("received on").await;
    let topic = format!("redhat/insights/{client_id}/data/in: ");
    let (_, payload) = line.split_once(&topic).expect("unexpected topic");
    let message: Value = serde_json::from_str(payload).unwrap();
    assert_eq!(message["type"], "data");
    assert_eq!(message["message_id"], sent["id"]);
    assert_eq!(message["directive"], "echo");
    assert_eq!(message["metadata"], Value::Null);
    assert_eq!(message["content"], json!({"a": [1, "<&>"]}));

    simulated_client.child.kill().await.unwrap();
    connector.wait_until_disconnected(client_id).await;
    let (status, body) = connector
        .send_message(client_id, json!({"directive": "echo"}))
        .await;
    assert_eq!(
        (status, &body["title"]),
        (404, &json!("No connection to the rhc client"))
    );
}

#[tokio::test]
async fn client_connects_receives_a_message_and_disconnects_without_tls() {
    let connector = Connector::start().await;
    let client_id = unique_id("plain");
    let mut simulate = connector_command();
    simulate.args([
        "simulate",
        "--mqtt",
        &connector.mqtt_address,
        "--id",
        &client_id,
    ]);
    run_client_lifecycle(&connector, &client_id, simulate).await;
}

#[tokio::test]
async fn client_connects_receives_a_message_and_disconnects_over_mtls() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let client_id = unique_id("mtls");
    certs.issue_client_certificate(&client_id).await;
    let address = connector.mqtts_address.as_ref().unwrap();
    let address = address.replace("127.0.0.1", "localhost");
    let mut simulate = connector_command();
    simulate
        .args(["simulate", "--mqtt", &address, "--id", &client_id, "--ca"])
        .arg(certs.file_path("ca.pem"))
        .arg("--cert")
        .arg(certs.file_path(&format!("{client_id}.pem")))
        .arg("--key")
        .arg(certs.file_path(&format!("{client_id}.key")));
    run_client_lifecycle(&connector, &client_id, simulate).await;
}

#[tokio::test]
async fn static_file_assigns_tenants_and_other_organizations_cannot_list_or_message_the_clients() {
    let builder = Connector::builder();
    let tenants_file = builder.temp_dir().join("tenants.json");
    std::fs::write(
        &tenants_file,
        r#"{"map-a": {"accountId": "1", "orgId": "org-a"}, "map-none": {"error": "revoked"}}"#,
    )
    .unwrap();
    let connector = builder
        .set("tenant.static_file", tenants_file.display())
        .start()
        .await;
    let mut clients = Vec::new();
    for client_id in ["map-a", "map-none", "map-default"] {
        let mut simulate = connector_command();
        simulate.args([
            "simulate",
            "--mqtt",
            &connector.mqtt_address,
            "--id",
            client_id,
        ]);
        let mut simulated_client = SimulatedClient::start(simulate);
        simulated_client.wait_for_line("online").await;
        clients.push(simulated_client);
    }
    assert_eq!(connector.list_client_ids("org-a").await, ["map-a"]);
    assert_eq!(
        connector.list_client_ids(DEFAULT_ORG_ID).await,
        ["map-default"]
    );
    assert!(connector.list_client_ids("other-org").await.is_empty());
    for org in ["org-a", DEFAULT_ORG_ID] {
        // No organization can query the client without a tenant or send messages to it.
        let status = connector
            .request_for(org, "GET", "/v2/connections/map-none/status")
            .send()
            .await
            .unwrap();
        let status: Value = status.json().await.unwrap();
        assert_eq!(status, json!({"status": "disconnected"}));
        let response = connector
            .request_for(org, "POST", "/v2/connections/map-none/message")
            .json(&json!({"directive": "echo"}))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 404);
    }
    let response = connector
        .request_for(DEFAULT_ORG_ID, "POST", "/v2/connections/map-a/message")
        .json(&json!({"directive": "echo"}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 404);
}

#[tokio::test]
async fn client_that_exits_gracefully_is_disconnected() {
    let connector = Connector::start().await;
    let client_id = unique_id("graceful");
    let mut simulate = connector_command();
    simulate.args([
        "simulate",
        "--mqtt",
        &connector.mqtt_address,
        "--id",
        &client_id,
    ]);
    let mut simulated_client = SimulatedClient::start(simulate);
    simulated_client.wait_for_line("online").await;
    let pid = i32::try_from(simulated_client.child.id().unwrap()).unwrap();
    test_support::connector::send_signal(pid, "INT");
    simulated_client.wait_for_line("offline").await;
    assert!(simulated_client.child.wait().await.unwrap().success());
    connector.wait_until_disconnected(&client_id).await;
}
