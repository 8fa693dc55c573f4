//! The embedded broker acknowledges a message only after it is stored in the database.

use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use crate::support::mqtt::{Connect, control_out, offline, online};
use crate::support::{Connector, RawClient, eventually, unique_id};

/// Blocks all writes to the connector's database until the returned connection is closed.
async fn block_writes(connector: &Connector) -> SqliteConnection {
    let path = connector.data_dir().join("cloud-connector.db");
    let url = format!("sqlite://{}", path.display());
    let mut blocker = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE")
        .execute(&mut blocker)
        .await
        .unwrap();
    blocker
}

#[tokio::test]
async fn a_blocked_database_delays_acknowledgments_and_fails_readiness() {
    let connector = Connector::start().await;
    let client_id = unique_id("delayed");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    assert_eq!(connector.readiness().await.0, 200);

    let blocker = block_writes(&connector).await;
    let payload = online().to_string();
    let publishing = tokio::spawn(async move {
        let puback = client
            .publish(&control_out(&client_id), payload.as_bytes())
            .await;
        (client, puback)
    });
    let body = eventually("the readiness probe to fail", || async {
        let (status, body) = connector.readiness().await;
        (status == 503).then_some(body)
    })
    .await;
    let recorder = body["components"]["recorder"].as_str().unwrap();
    assert!(recorder.contains("batch write failed"), "{body}");
    assert!(
        !publishing.is_finished(),
        "the broker acknowledged a message that is not stored"
    );
    let liveness = connector.unauthenticated_request("GET", "/liveness");
    assert_eq!(liveness.send().await.unwrap().status(), 200);

    blocker.close().await.unwrap();
    let (_client, puback) = publishing.await.unwrap();
    assert!(puback.is_some(), "the broker closed the connection");
    assert_eq!(connector.list_client_ids("10000").await.len(), 1);
    eventually("the readiness probe to succeed", || async {
        (connector.readiness().await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ack_timeout_closes_the_connection_without_an_acknowledgment() {
    let connector = Connector::builder()
        .set("broker.ack_timeout", "300ms")
        .start()
        .await;
    let client_id = unique_id("ack-timeout");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    let blocker = block_writes(&connector).await;
    let payload = online().to_string();
    let puback = client
        .publish(&control_out(&client_id), payload.as_bytes())
        .await;
    assert_eq!(
        puback, None,
        "the broker acknowledged a message that is not stored"
    );
    blocker.close().await.unwrap();
    // After a reconnect the message is recorded.
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out(&client_id), &online())
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
            .publish(&control_out(&invalid_id), payload)
            .await;
        assert!(puback.is_some(), "the broker closed the connection");
        valid_client
            .must_publish(&control_out(&valid_id), &online())
            .await;
    }
    assert_eq!(connector.list_client_ids("10000").await, [valid_id]);
    let dead_letters = connector
        .metric("cloud_connector_dead_letters_total", "")
        .await;
    assert!(
        (dead_letters - 7.0).abs() < 0.5,
        "expected a dead letter for each payload except the empty one, got {dead_letters}"
    );
}

#[tokio::test]
async fn the_status_shows_the_latest_online() {
    let connector = Connector::start().await;
    let client_id = unique_id("changing");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    let mut changed = online();
    changed["content"]["tags"] = json!({"make": "new"});
    changed["content"]["dispatchers"] = json!({"echo": {"version": "2"}});
    client
        .must_publish(&control_out(&client_id), &changed)
        .await;
    // A message with the recorded message id is a duplicate, even if its content differs.
    changed["content"]["tags"] = json!({"make": "duplicate"});
    client
        .must_publish(&control_out(&client_id), &changed)
        .await;
    let path = format!("/v2/connections/{client_id}/status");
    let status = connector.request("GET", &path).send().await.unwrap();
    let status: serde_json::Value = status.json().await.unwrap();
    assert_eq!(status["status"], "connected");
    assert_eq!(status["tags"], json!({"make": "new"}));
    assert_eq!(status["dispatchers"], json!({"echo": {"version": "2"}}));

    client
        .must_publish(&control_out(&client_id), &offline())
        .await;
    assert!(connector.list_client_ids("10000").await.is_empty());
    client
        .must_publish(&control_out(&client_id), &online())
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
                    .must_publish(&control_out(&client_id), &online())
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
    let mut large = online();
    large["content"]["tags"] = json!({"a": "x".repeat(200_000)});
    client.must_publish(&control_out(&client_id), &large).await;
    assert!(connector.list_client_ids("10000").await.is_empty());
    let dead_letters = connector.metric("cloud_connector_dead_letters_total", "payload_too_large");
    assert!(dead_letters.await > 0.0);
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}
