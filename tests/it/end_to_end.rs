//! The slice: a client comes online, is listed with its tenant, is sent a message, dies, is gone.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::connector::ORG;
use crate::support::{Certs, Connector, TIMEOUT, program, unique};

/// A `simulate` process and what it prints.
pub struct Simulated {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Simulated {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// The next line that contains this.
    pub async fn line(&mut self, part: &str) -> String {
        let read = async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                let line = line.expect("the client ended");
                if line.contains(part) {
                    return line;
                }
            }
        };
        timeout(TIMEOUT, read)
            .await
            .expect("the client says nothing")
    }
}

async fn slice(connector: &Connector, client: &str, simulate: Command) {
    let mut simulated = Simulated::start(simulate);
    simulated.line("online").await;

    // Acknowledged is recorded: no waiting.
    let answer = connector
        .request("GET", "/v2/connections")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(kind, "application/json; charset=UTF-8");
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["meta"]["count"], 1);
    let row = &body["data"][0];
    assert_eq!(row["client_id"], client);
    assert_eq!(row["org_id"], ORG);
    assert_eq!(row["account"], "111000");
    assert_eq!(row["tags"], json!({"simulated": "true"}));

    let (status, sent) = connector
        .send(
            client,
            json!({"directive": "echo", "payload": {"a": [1, "<&>"]}}),
        )
        .await;
    assert_eq!(status, 201, "{sent}");
    let line = simulated.line("received on").await;
    let topic = format!("redhat/insights/{client}/data/in: ");
    let (_, payload) = line.split_once(&topic).expect("another topic");
    let message: Value = serde_json::from_str(payload).unwrap();
    assert_eq!(message["type"], "data");
    assert_eq!(message["message_id"], sent["id"]);
    assert_eq!(message["directive"], "echo");
    assert_eq!(message["metadata"], Value::Null);
    assert_eq!(message["content"], json!({"a": [1, "<&>"]}));

    simulated.child.kill().await.unwrap();
    connector.wait_for(client, false).await;
    let (status, body) = connector.send(client, json!({"directive": "echo"})).await;
    assert_eq!(
        (status, &body["title"]),
        (404, &json!("No connection to the rhc client"))
    );
}

#[tokio::test]
async fn embedded_end_to_end() {
    let connector = Connector::start().await;
    let client = unique("plain");
    let mut simulate = program();
    simulate.args(["simulate", "--mqtt", &connector.mqtt, "--id", &client]);
    slice(&connector, &client, simulate).await;
}

#[tokio::test]
async fn embedded_end_to_end_mtls() {
    let (certs, setup) = Certs::setup().await;
    let connector = setup.start().await;
    let client = unique("mtls");
    certs.issue(&client).await;
    let address = connector.mqtts.as_ref().unwrap();
    let address = address.replace("127.0.0.1", "localhost");
    let mut simulate = program();
    simulate
        .args(["simulate", "--mqtt", &address, "--id", &client, "--ca"])
        .arg(certs.file("ca.pem"))
        .arg("--cert")
        .arg(certs.file(&format!("{client}.pem")))
        .arg("--key")
        .arg(certs.file(&format!("{client}.key")));
    slice(&connector, &client, simulate).await;
}

#[tokio::test]
async fn tenants_come_from_the_static_map_and_nobody_elses_client_is_shown() {
    let setup = Connector::setup();
    let map = setup.folder().join("tenants.json");
    std::fs::write(
        &map,
        r#"{"map-a": {"accountId": "1", "orgId": "org-a"}, "map-none": {"error": "revoked"}}"#,
    )
    .unwrap();
    let connector = setup.set("tenant.static_file", map.display()).start().await;
    let mut clients = Vec::new();
    for id in ["map-a", "map-none", "map-default"] {
        let mut simulate = program();
        simulate.args(["simulate", "--mqtt", &connector.mqtt, "--id", id]);
        let mut simulated = Simulated::start(simulate);
        simulated.line("online").await;
        clients.push(simulated);
    }
    assert_eq!(connector.listed("org-a").await, ["map-a"]);
    assert_eq!(connector.listed(ORG).await, ["map-default"]);
    assert!(connector.listed("nobody").await.is_empty());
    for org in ["org-a", ORG] {
        // The tenantless one is nobody's, by any way of asking.
        let status = connector
            .request_for(org, "GET", "/v2/connections/map-none/status")
            .send()
            .await
            .unwrap();
        let status: Value = status.json().await.unwrap();
        assert_eq!(status, json!({"status": "disconnected"}));
        let sent = connector
            .request_for(org, "POST", "/v2/connections/map-none/message")
            .json(&json!({"directive": "echo"}))
            .send()
            .await
            .unwrap();
        assert_eq!(sent.status(), 404);
    }
    let foreign = connector
        .request_for(ORG, "POST", "/v2/connections/map-a/message")
        .json(&json!({"directive": "echo"}))
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 404);
}

#[tokio::test]
async fn a_client_that_leaves_cleanly_is_gone_too() {
    let connector = Connector::start().await;
    let client = unique("leaver");
    let mut simulate = program();
    simulate.args(["simulate", "--mqtt", &connector.mqtt, "--id", &client]);
    let mut simulated = Simulated::start(simulate);
    simulated.line("online").await;
    let pid = i32::try_from(simulated.child.id().unwrap()).unwrap();
    crate::support::connector::send_signal(pid, "INT");
    simulated.line("offline").await;
    assert!(simulated.child.wait().await.unwrap().success());
    connector.wait_for(&client, false).await;
}
