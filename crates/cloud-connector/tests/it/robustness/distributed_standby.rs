//! Two `ingest` processes with the same MQTT client id. One is active, the other is on standby.

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{eventually, unique_id};

/// Returns the text of the component `mqtt_ingest` in the readiness response.
async fn ingest_state(process: &ConnectorProcess) -> String {
    let (_, body) = process.readiness().await;
    body["components"]["mqtt_ingest"].to_string()
}

async fn wait_for_state(process: &ConnectorProcess, expected: &str) {
    eventually(&format!("the state {expected}"), || async {
        (ingest_state(process).await == format!("\"{expected}\"")).then_some(())
    })
    .await;
}

async fn connect_client(cluster: &Cluster, api: &ConnectorProcess) {
    let client_id = unique_id("standby");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;
}

#[tokio::test]
async fn a_second_ingest_is_ready_on_standby_and_takes_over_when_the_first_one_stops_or_crashes() {
    let cluster = Cluster::new().await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let first = cluster.start(&["ingest"]).await;
    wait_for_state(&first, "ok").await;

    // `start` returns when the process is ready.
    let second = cluster.start(&["ingest"]).await;
    assert_eq!(ingest_state(&second).await, "\"standby\"");
    connect_client(&cluster, &api).await;
    assert_eq!(ingest_state(&first).await, "\"ok\"");
    assert_eq!(ingest_state(&second).await, "\"standby\"");

    first.send_signal("TERM");
    assert!(first.wait_for_exit().await.success());
    wait_for_state(&second, "ok").await;
    connect_client(&cluster, &api).await;

    let third = cluster.start(&["ingest"]).await;
    assert_eq!(ingest_state(&third).await, "\"standby\"");
    second.kill().await;
    wait_for_state(&third, "ok").await;
    connect_client(&cluster, &api).await;
}
