//! Two `ingest` processes that share the messages: one forwards presence messages and heartbeats, the
//! other forwards responses.

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_out_topic, offline_message, online_message,
};
use test_support::{eventually, unique_id};

use serde_json::json;

/// Messages that were received from the broker and are not dropped.
const RECEIVED: &str = "cloud_connector_messages_received_total";

async fn wait_for_metric(process: &ConnectorProcess, label: &str, expected: u32) {
    eventually(&format!("{expected} messages on {label}"), || async {
        let count = process.read_metric(RECEIVED, label).await;
        ((count - f64::from(expected)).abs() < 0.5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn presence_and_responses_are_forwarded_by_one_process_each() {
    let cluster = Cluster::new().await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let cluster = cluster.set("mqtt.ingest_messages", "presence");
    let presence = cluster.start(&["ingest"]).await;
    let cluster = cluster.set("mqtt.ingest_messages", "responses");
    let responses = cluster.start(&["ingest"]).await;

    let client_id = unique_id("split");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    let (control, data) = (control_out_topic(&client_id), data_out_topic(&client_id));
    client.must_publish(&control, &online_message()).await;
    api.wait_until_connected(&client_id).await;
    for _ in 0..3 {
        let response = json!({"type": "data", "message_id": unique_id("m"), "response_to": "x",
            "version": 1, "directive": "echo", "content": "done"});
        client.must_publish(&data, &response).await;
    }
    wait_for_metric(&responses, "\"data\"", 3).await;
    client.must_publish(&control, &offline_message()).await;
    api.wait_until_disconnected(&client_id).await;
    // A heartbeat restores the client. It is received after the responses on the same topic, so the
    // presence process has dropped them by then.
    client.publish_heartbeat(&data).await;
    api.wait_until_connected(&client_id).await;
    wait_for_metric(&presence, "\"data\"", 1).await;
    wait_for_metric(&presence, "\"control\"", 2).await;
    wait_for_metric(&responses, "\"data\"", 3).await;
    wait_for_metric(&responses, "\"control\"", 0).await;
}

#[tokio::test]
async fn both_parts_of_ingest_take_over_from_a_killed_process() {
    let cluster = Cluster::new().await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let cluster = cluster.set("mqtt.ingest_messages", "responses");
    let _responses = cluster.start(&["ingest"]).await;
    let cluster = cluster.set("mqtt.ingest_messages", "presence");
    let first = cluster.start(&["ingest"]).await;
    let second = cluster.start(&["ingest"]).await;
    let (_, body) = second.readiness().await;
    assert_eq!(body["components"]["mqtt_ingest"], "standby", "{body}");
    first.kill().await;
    let client_id = unique_id("split");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;
}
