//! Clients that send more messages than their budget in embedded mode.

use std::time::{Duration, Instant};

use serde_json::Value;

use test_support::connector::{ConnectorBuilder, DEFAULT_ORG_ID};
use test_support::mqtt::{
    Connect, control_out_topic, data_in_topic, data_out_topic, offline_message, online_message,
};
use test_support::{Connector, Deployment, RawClient, eventually, unique_id};

const EXCEEDED_METRIC: &str = "cloud_connector_client_budget_exceeded_total";

/// Returns the builder of a connector that allows five messages at once, and ten per second.
fn small_budget() -> ConnectorBuilder {
    Connector::builder()
        .set("client_budget.message_burst", 5)
        .set("client_budget.messages_per_second", 10)
}

async fn connect(connector: &Connector, client_id: &str) -> RawClient {
    let connect = Connect::new(client_id).offline_will();
    RawClient::connect(&connector.mqtt_address, &connect).await
}

/// Returns the log lines about clients that exceed their budget.
fn budget_log_lines(connector: &Connector) -> Vec<Value> {
    let lines = connector.log_lines.lock();
    lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("client exceeds its budget")
        })
        .collect()
}

#[tokio::test]
async fn excess_qos_1_messages_are_delayed_on_the_connection_of_their_client() {
    // The rate is so low that the budget, and not a busy machine, determines the time.
    let connector = small_budget()
        .set("client_budget.messages_per_second", 2)
        .start()
        .await;
    let (flooding_id, good_id) = (unique_id("flooding"), unique_id("good"));
    let mut flooding_client = connect(&connector, &flooding_id).await;
    let topic = control_out_topic(&flooding_id);
    let started_at = Instant::now();
    for _ in 0..20 {
        let payload = online_message().to_string();
        flooding_client
            .send_publish(&topic, payload.as_bytes(), false)
            .await;
    }
    // Another client is not delayed.
    let mut good_client = connect(&connector, &good_id).await;
    good_client
        .must_publish(&control_out_topic(&good_id), &online_message())
        .await;
    let good_time = started_at.elapsed();
    // All messages are acknowledged, at the rate of the budget.
    for _ in 0..20 {
        let packet = flooding_client.read_packet().await;
        assert_eq!(packet.unwrap().packet_type(), test_support::mqtt::PUBACK);
    }
    let flooding_time = started_at.elapsed();
    assert!(flooding_time > Duration::from_secs(6), "{flooding_time:?}");
    assert!(good_time < flooding_time / 2, "{good_time:?}");
    let delayed = connector.read_metric(EXCEEDED_METRIC, "delayed").await;
    assert!(delayed >= 5.0, "{delayed} delayed messages");
    let lines = budget_log_lines(&connector);
    let [line] = &lines[..] else {
        panic!("expected one log line: {lines:?}");
    };
    assert_eq!(line["client_id"], flooding_id);
    assert_eq!(line["level"], "INFO");
}

#[tokio::test]
async fn service_can_send_messages_to_a_client_whose_messages_are_delayed() {
    let connector = Connector::builder()
        .set("client_budget.message_burst", 5)
        .set("client_budget.messages_per_second", 1)
        .start()
        .await;
    let client_id = unique_id("delayed");
    let mut client = connect(&connector, &client_id).await;
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    for _ in 0..20 {
        client
            .send_publish(&control_out_topic(&client_id), b"garbage", false)
            .await;
    }
    eventually("a delayed message", || async {
        (connector.read_metric(EXCEEDED_METRIC, "delayed").await > 0.0).then_some(())
    })
    .await;
    let body = serde_json::json!({"directive": "x", "payload": 1});
    let (status, sent) = connector.send_message(&client_id, body).await;
    assert_eq!(status, 201);
    let started_at = Instant::now();
    let (_, message) = client.next_message().await;
    assert_eq!(message["message_id"], sent["id"]);
    // The delayed messages take 20 seconds.
    assert!(started_at.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn excess_qos_0_messages_are_dropped_but_the_latest_heartbeat_is_forwarded() {
    let connector = small_budget().start().await;
    let client_id = unique_id("flooding");
    let mut client = connect(&connector, &client_id).await;
    let (control, data) = (control_out_topic(&client_id), data_out_topic(&client_id));
    client.must_publish(&control, &online_message()).await;
    client.must_publish(&control, &offline_message()).await;
    assert!(connector.list_client_ids(DEFAULT_ORG_ID).await.is_empty());
    for n in 0..200 {
        client
            .publish_qos0(&data, format!("garbage {n}").as_bytes())
            .await;
    }
    // The client sends nothing more. Its heartbeat restores its connection.
    client.publish_heartbeat(&data).await;
    connector.wait_until_connected(&client_id).await;
    let dropped = connector.read_metric(EXCEEDED_METRIC, "dropped").await;
    assert!(dropped > 100.0, "{dropped} dropped messages");
    let deployment = Deployment::Embedded(Box::new(connector));
    let dead_letters = deployment.dead_letters().await;
    assert!(
        dead_letters.len() < 50,
        "{} dead letters",
        dead_letters.len()
    );
}

#[tokio::test]
async fn heartbeat_does_not_overtake_an_offline_message() {
    let connector = small_budget().start().await;
    let client_id = unique_id("ordered");
    let mut client = connect(&connector, &client_id).await;
    let (control, data) = (control_out_topic(&client_id), data_out_topic(&client_id));
    for _ in 0..10 {
        client
            .send_publish(&control, online_message().to_string().as_bytes(), false)
            .await;
    }
    for _ in 0..20 {
        client.publish_heartbeat(&data).await;
    }
    // The broker forwards the deferred heartbeat first, and then the offline message.
    client
        .must_publish_with_messages_in_flight(&control, &offline_message(), 10)
        .await;
    assert!(connector.list_client_ids(DEFAULT_ORG_ID).await.is_empty());
    // Messages of another client show that nothing of the first client follows.
    let other_id = unique_id("other");
    let mut other_client = connect(&connector, &other_id).await;
    for _ in 0..4 {
        other_client
            .must_publish(&control_out_topic(&other_id), &online_message())
            .await;
    }
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await, [other_id]);
}

#[tokio::test]
async fn delay_ends_with_the_connection_and_at_shutdown() {
    let mut connector = Connector::builder()
        .set("client_budget.message_burst", 1)
        .set("client_budget.messages_per_second", 1)
        .set("client_budget.byte_burst", 1000)
        .set("client_budget.bytes_per_second", 1)
        .start()
        .await;
    let mut clients = Vec::new();
    for n in 0..2 {
        let client_id = unique_id("delayed");
        let connect = Connect::new(&client_id).without_keep_alive().offline_will();
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        // The online message uses the budget of several minutes.
        let mut online = online_message();
        online["content"]["tags"] = serde_json::json!({"padding": "x".repeat(2000)});
        let topic = control_out_topic(&client_id);
        client.must_publish(&topic, &online).await;
        client.send_publish(&topic, b"delayed", false).await;
        eventually("a delayed message", || async {
            let delayed = connector.read_metric(EXCEEDED_METRIC, "delayed").await;
            (delayed > f64::from(n)).then_some(())
        })
        .await;
        clients.push((client_id, client));
    }
    let (closed_id, closed_client) = clients.pop().unwrap();
    drop(closed_client);
    connector.wait_until_disconnected(&closed_id).await;
    let started_at = Instant::now();
    connector.send_signal("TERM");
    clients[0].1.wait_for_close().await;
    assert_eq!(connector.wait_for_exit().await.code(), Some(0));
    assert!(started_at.elapsed() < Duration::from_secs(10));
}
