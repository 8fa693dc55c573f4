//! Tests that the embedded broker acknowledges a message only after the message is stored in the
//! database.

use serde_json::json;
use sqlx::Connection as _;

use test_support::mqtt::{Connect, control_out_topic, offline_message, online_message};
use test_support::{Connector, RawClient, eventually, unique_id};

#[tokio::test]
async fn a_blocked_database_delays_pubacks_and_fails_the_readiness_probe() {
    let connector = Connector::start().await;
    let client_id = unique_id("delayed");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    assert_eq!(connector.readiness().await.0, 200);

    let blocker = connector.block_writes().await;
    let payload = online_message().to_string();
    let publish_task = tokio::spawn(async move {
        let puback = client
            .publish(&control_out_topic(&client_id), payload.as_bytes())
            .await;
        (client, puback)
    });
    // A timeout, if the recorder waits for a job that waits for the lock.
    eventually("the readiness probe to fail", || async {
        let (status, body) = connector.readiness().await;
        let cause = body["components"]["recorder"].as_str().unwrap_or_default();
        (status == 503 && ["database locked", "timeout"].contains(&cause)).then_some(())
    })
    .await;
    assert!(
        !publish_task.is_finished(),
        "the broker acknowledged a message that is not stored"
    );
    let liveness = connector.unauthenticated_request("GET", "/liveness");
    assert_eq!(liveness.send().await.unwrap().status(), 200);

    blocker.close().await.unwrap();
    let (_client, puback) = publish_task.await.unwrap();
    assert!(puback.is_some(), "the broker closed the connection");
    assert_eq!(connector.list_client_ids("10000").await.len(), 1);
    eventually("the readiness probe to succeed", || async {
        (connector.readiness().await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_broker_closes_the_connection_without_puback_after_the_ack_timeout() {
    let connector = Connector::builder()
        .set("broker.ack_timeout", "300ms")
        .start()
        .await;
    let client_id = unique_id("ack-timeout");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    let blocker = connector.block_writes().await;
    let payload = online_message().to_string();
    let puback = client
        .publish(&control_out_topic(&client_id), payload.as_bytes())
        .await;
    assert_eq!(
        puback, None,
        "the broker acknowledged a message that is not stored"
    );
    blocker.close().await.unwrap();
    // After a reconnect, the client publishes again, and the message is recorded.
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}

#[tokio::test]
async fn invalid_messages_do_not_affect_other_messages() {
    let connector = Connector::start().await;
    let (valid_id, invalid_id) = (unique_id("valid"), unique_id("invalid"));
    let address = &connector.mqtt_address;
    let mut valid_client = RawClient::connect(address, &Connect::new(&valid_id)).await;
    let mut invalid_client = RawClient::connect(address, &Connect::new(&invalid_id)).await;
    let deeply_nested = "[".repeat(100_000);
    let payloads: &[&[u8]] = &[
        b"",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"{\"type\":7}",
        b"{\"type\":\"connection-status\",\"content\":{\"state\":\"online\",\"tags\":{\"a\":\"\\u0000\"}}}",
        b"{\"type\":\"connection-status\",\"content\":{\"state\":\"online\",\"dispatchers\":[]}}",
        deeply_nested.as_bytes(),
    ];
    for payload in payloads {
        let puback = invalid_client
            .publish(&control_out_topic(&invalid_id), payload)
            .await;
        assert!(puback.is_some(), "the broker closed the connection");
        valid_client
            .must_publish(&control_out_topic(&valid_id), &online_message())
            .await;
    }
    assert_eq!(connector.list_client_ids("10000").await, [valid_id]);
    let dead_letter_count = connector
        .read_metric("cloud_connector_dead_letters_total", "")
        .await;
    assert!(
        (dead_letter_count - 7.0).abs() < 0.5,
        "expected a dead letter for each payload except the empty one, got {dead_letter_count}"
    );
}

#[tokio::test]
async fn the_status_of_a_client_shows_its_latest_online_message() {
    let connector = Connector::start().await;
    let client_id = unique_id("changing");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let mut changed_online = online_message();
    changed_online["content"]["tags"] = json!({"make": "new"});
    changed_online["content"]["dispatchers"] = json!({"echo": {"version": "2"}});
    client
        .must_publish(&control_out_topic(&client_id), &changed_online)
        .await;
    // A message with the recorded message id is a duplicate, even if its content differs.
    changed_online["content"]["tags"] = json!({"make": "duplicate"});
    client
        .must_publish(&control_out_topic(&client_id), &changed_online)
        .await;
    let path = format!("/v2/connections/{client_id}/status");
    let status = connector.request("GET", &path).send().await.unwrap();
    let status: serde_json::Value = status.json().await.unwrap();
    assert_eq!(status["status"], "connected");
    assert_eq!(status["tags"], json!({"make": "new"}));
    assert_eq!(status["dispatchers"], json!({"echo": {"version": "2"}}));

    client
        .must_publish(&control_out_topic(&client_id), &offline_message())
        .await;
    assert!(connector.list_client_ids("10000").await.is_empty());
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}

#[tokio::test]
async fn all_clients_of_a_connection_storm_are_recorded() {
    let connector = Connector::start().await;
    let tasks = (0..200).map(|n| {
        let address = connector.mqtt_address.clone();
        tokio::spawn(async move {
            let client_id = format!("storm-{n:03}");
            let mut client =
                RawClient::connect(&address, &Connect::new(&client_id).offline_will()).await;
            for _ in 0..5 {
                client
                    .must_publish(&control_out_topic(&client_id), &online_message())
                    .await;
            }
            client
        })
    });
    let mut clients = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        clients.push(task.await.unwrap());
    }
    assert_eq!(connector.list_client_ids("10000").await.len(), 200);
    drop(clients);
    eventually("all clients to be disconnected", || async {
        connector
            .list_client_ids("10000")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
    assert_eq!(connector.readiness().await.0, 200);
}

#[tokio::test]
async fn a_too_large_message_becomes_a_dead_letter_and_the_connection_stays_open() {
    let connector = Connector::start().await;
    let client_id = unique_id("large");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    let mut large_online = online_message();
    large_online["content"]["tags"] = json!({"a": "x".repeat(200_000)});
    client
        .must_publish(&control_out_topic(&client_id), &large_online)
        .await;
    assert!(connector.list_client_ids("10000").await.is_empty());
    let dead_letters =
        connector.read_metric("cloud_connector_dead_letters_total", "payload_too_large");
    assert!(dead_letters.await > 0.0);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}
