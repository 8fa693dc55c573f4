//! The slice, with a process per role.

use serde_json::{Value, json};

use crate::end_to_end::Simulated;
use crate::support::fleet::{Fleet, ORG, Process};
use crate::support::mqtt::{Connect, RawClient, control_out, offline, online};
use crate::support::services::Service;
use crate::support::{Certs, eventually, program, unique};

async fn slice(api: &Process, client: &str, mut simulated: Simulated) {
    simulated.line("online").await;
    api.wait_for(client, true).await;
    let path = format!("/v2/connections/{client}/status");
    let row: Value = api
        .request("GET", &path)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(row["status"], "connected");
    assert_eq!(row["org_id"], ORG);
    assert_eq!(row["tags"], json!({"simulated": "true"}));
    let (status, sent) = api
        .send(client, json!({"directive": "echo", "payload": {"a": 1}}))
        .await;
    assert_eq!(status, 201, "{sent}");
    let line = simulated.line("received on").await;
    let topic = format!("redhat/insights/{client}/data/in: ");
    let (_, payload) = line.split_once(&topic).expect("another topic");
    let message: Value = serde_json::from_str(payload).unwrap();
    assert_eq!(message["message_id"], sent["id"]);
    assert_eq!(message["content"], json!({"a": 1}));
    simulated.kill().await;
    api.wait_for(client, false).await;
    let (status, _) = api.send(client, json!({"directive": "echo"})).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn distributed_end_to_end() {
    let fleet = Fleet::new().await;
    let ingest = fleet.start(&["ingest"]).await;
    let record = fleet.start(&["record"]).await;
    let api = fleet.start(&["api"]).await;
    let updaters = fleet.start(&["updaters"]).await;
    let client = unique("dist");
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let mut simulate = program();
    simulate.args(["simulate", "--mqtt", &address, "--id", &client]);
    slice(&api, &client, Simulated::start(simulate)).await;
    assert!(
        ingest
            .metric("cloud_connector_messages_received_total", "control")
            .await
            >= 2.0
    );
    assert!(
        record
            .metric("cloud_connector_messages_applied_total", "online")
            .await
            >= 1.0
    );
    for process in [ingest, record, api, updaters] {
        process.signal("TERM");
        assert_eq!(process.ended().await.code(), Some(0));
    }
}

#[tokio::test]
async fn distributed_end_to_end_mtls() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let client = unique("dist-tls");
    certs.issue(&client).await;
    certs.issue("cloud-connector").await;
    let (mosquitto, clients, service) = Service::mosquitto_with_tls(&certs.file("")).await;
    let fleet = Fleet::with(mosquitto, None, None)
        .await
        .set("mqtt.url", format!("mqtts://localhost:{service}"))
        .set("mqtt.username", "")
        .set("mqtt.password", "")
        .set("mqtt.ca", certs.file("ca.pem").display())
        .set(
            "mqtt.certificate",
            certs.file("cloud-connector.pem").display(),
        )
        .set("mqtt.key", certs.file("cloud-connector.key").display());
    let _ingest = fleet.start(&["ingest"]).await;
    let _record = fleet.start(&["record"]).await;
    let api = fleet.start(&["api"]).await;
    let mut simulate = program();
    simulate
        .args([
            "simulate",
            "--mqtt",
            &format!("localhost:{clients}"),
            "--id",
            &client,
            "--ca",
        ])
        .arg(certs.file("ca.pem"))
        .arg("--cert")
        .arg(certs.file(&format!("{client}.pem")))
        .arg("--key")
        .arg(certs.file(&format!("{client}.key")));
    slice(&api, &client, Simulated::start(simulate)).await;
}

#[tokio::test]
async fn all_roles_together_with_outside_services_with_and_without_a_queue() {
    for queue in [true, false] {
        let mut fleet = Fleet::new().await;
        if !queue {
            fleet = fleet.set("kafka.brokers", "");
        }
        let process = fleet.start(&[]).await;
        let client = unique("all");
        let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
        let mut simulate = program();
        simulate.args(["simulate", "--mqtt", &address, "--id", &client]);
        slice(&process, &client, Simulated::start(simulate)).await;
    }
}

#[tokio::test]
async fn what_the_broker_holds_while_ingest_is_dead_is_recorded_when_it_is_back() {
    let fleet = Fleet::new().await;
    let ingest = fleet.start(&["ingest"]).await;
    let record = fleet.start(&["record"]).await;
    let api = fleet.start(&["api"]).await;
    ingest.kill().await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let mut clients = Vec::new();
    for n in 0..50 {
        let name = format!("backlog-{n:02}");
        let mut client = RawClient::connect(&address, &Connect::new(&name)).await;
        client.must_publish(&control_out(&name), &online()).await;
        if n % 2 == 0 {
            client.must_publish(&control_out(&name), &offline()).await;
        }
        clients.push(client);
    }
    // And record dies with messages unread, too.
    record.kill().await;
    let _ingest = fleet.start(&["ingest"]).await;
    let _record = fleet.start(&["record"]).await;
    let expected: Vec<String> = (0..50)
        .filter(|n| n % 2 == 1)
        .map(|n| format!("backlog-{n:02}"))
        .collect();
    eventually("the backlog", || async {
        (api.listed().await.ok()? == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn roles_that_share_something_in_one_process_are_refused_apart() {
    let apart = Fleet::new().await.set("kafka.brokers", "");
    let (code, said) = apart.command(&["run", "--role", "ingest"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("kafka.brokers"), "{said}");
    let apart = Fleet::new().await.set("postgres.host", "");
    let (code, said) = apart.command(&["run", "--role", "api"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("postgres.host"), "{said}");
}
