//! Tests of the lifecycle of a client in distributed mode, with one process per role or with one
//! process for all roles.

use serde_json::{Value, json};

use crate::end_to_end::SimulatedClient;
use test_support::cluster::{Cluster, ConnectorProcess, DEFAULT_ORG_ID};
use test_support::mqtt::{Connect, RawClient, control_out_topic, offline_message, online_message};
use test_support::services::Service;
use test_support::{Certs, connector_command, eventually, unique_id};

/// Waits until the client is connected, sends a message to the client, and kills the client. Checks
/// each response of the API.
async fn run_client_lifecycle(
    api: &ConnectorProcess,
    client_id: &str,
    mut simulated_client: SimulatedClient,
) {
    simulated_client.wait_for_line("online").await;
    api.wait_until_connected(client_id).await;
    let path = format!("/v2/connections/{client_id}/status");
    let status_body: Value = api
        .request("GET", &path)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(status_body["status"], "connected");
    assert_eq!(status_body["org_id"], DEFAULT_ORG_ID);
    assert_eq!(status_body["tags"], json!({"simulated": "true"}));
    let (status, sent) = api
        .send_message(client_id, json!({"directive": "echo", "payload": {"a": 1}}))
        .await;
    assert_eq!(status, 201, "{sent}");
    let line = simulated_client.wait_for_line("received on").await;
    let topic = format!("redhat/insights/{client_id}/data/in: ");
    let (_, payload) = line.split_once(&topic).expect("unexpected topic");
    let message: Value = serde_json::from_str(payload).unwrap();
    assert_eq!(message["message_id"], sent["id"]);
    assert_eq!(message["content"], json!({"a": 1}));
    simulated_client.kill().await;
    api.wait_until_disconnected(client_id).await;
    let (status, _) = api
        .send_message(client_id, json!({"directive": "echo"}))
        .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn client_connects_receives_a_message_and_disconnects_with_one_process_per_role() {
    let cluster = Cluster::new().await;
    let ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let updaters = cluster.start(&["updaters"]).await;
    let client_id = unique_id("dist");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut simulate = connector_command();
    simulate.args(["simulate", "--mqtt", &address, "--id", &client_id]);
    run_client_lifecycle(&api, &client_id, SimulatedClient::start(simulate)).await;
    assert!(
        ingest
            .read_metric("cloud_connector_messages_received_total", "control")
            .await
            >= 2.0
    );
    assert!(
        record
            .read_metric("cloud_connector_messages_applied_total", "online")
            .await
            >= 1.0
    );
    for process in [ingest, record, api, updaters] {
        process.send_signal("TERM");
        assert_eq!(process.wait_for_exit().await.code(), Some(0));
    }
}

#[tokio::test]
async fn client_connects_receives_a_message_and_disconnects_over_mtls() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let client_id = unique_id("dist-tls");
    certs.issue_client_certificate(&client_id).await;
    certs.issue_client_certificate("cloud-connector").await;
    let (mosquitto, ports) = Service::start_mosquitto_with_tls(&certs.file_path("")).await;
    let cluster = Cluster::with_services(mosquitto, None, None)
        .await
        .set("mqtt.url", format!("mqtts://localhost:{}", ports.connector))
        .set("mqtt.username", "")
        .set("mqtt.password", "")
        .set("mqtt.ca", certs.file_path("ca.pem").display())
        .set(
            "mqtt.certificate",
            certs.file_path("cloud-connector.pem").display(),
        )
        .set("mqtt.key", certs.file_path("cloud-connector.key").display());
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let mut simulate = connector_command();
    simulate
        .args([
            "simulate",
            "--mqtt",
            &format!("localhost:{}", ports.clients),
            "--id",
            &client_id,
            "--ca",
        ])
        .arg(certs.file_path("ca.pem"))
        .arg("--cert")
        .arg(certs.file_path(&format!("{client_id}.pem")))
        .arg("--key")
        .arg(certs.file_path(&format!("{client_id}.key")));
    run_client_lifecycle(&api, &client_id, SimulatedClient::start(simulate)).await;
}

#[tokio::test]
async fn client_connects_receives_a_message_and_disconnects_with_and_without_kafka() {
    for with_kafka in [true, false] {
        let mut cluster = Cluster::new().await;
        if !with_kafka {
            cluster = cluster.set("kafka.brokers", "");
        }
        let process = cluster.start(&[]).await;
        let client_id = unique_id("all-roles");
        let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
        let mut simulate = connector_command();
        simulate.args(["simulate", "--mqtt", &address, "--id", &client_id]);
        run_client_lifecycle(&process, &client_id, SimulatedClient::start(simulate)).await;
    }
}

#[tokio::test]
async fn messages_queued_while_ingest_is_down_are_recorded() {
    let cluster = Cluster::new().await;
    let ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    ingest.kill().await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut clients = Vec::new();
    for n in 0..50 {
        let client_id = format!("backlog-{n:02}");
        let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        if n % 2 == 0 {
            client
                .must_publish(&control_out_topic(&client_id), &offline_message())
                .await;
        }
        clients.push(client);
    }
    // `ingest` was down, so `record` has not received the messages yet. The test kills the `record`
    // process, too.
    record.kill().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let expected: Vec<String> = (0..50)
        .filter(|n| n % 2 == 1)
        .map(|n| format!("backlog-{n:02}"))
        .collect();
    eventually("the expected list of clients", || async {
        (api.list_client_ids().await.ok()? == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn separate_roles_require_kafka_and_postgres() {
    let without_kafka = Cluster::new().await.set("kafka.brokers", "");
    let (code, output) = without_kafka
        .run_command(&["run", "--role", "ingest"])
        .await;
    assert_eq!(code, Some(1));
    assert!(output.contains("kafka.brokers"), "{output}");
    let without_postgres = Cluster::new().await.set("postgres.host", "");
    let (code, output) = without_postgres
        .run_command(&["run", "--role", "api"])
        .await;
    assert_eq!(code, Some(1));
    assert!(output.contains("postgres.host"), "{output}");
}
