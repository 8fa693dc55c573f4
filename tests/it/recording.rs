//! What is acknowledged is durable, and what is not durable is not acknowledged.

use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use crate::support::mqtt::{Connect, control_out, offline, online};
use crate::support::{Connector, RawClient, eventually, unique};

/// Keeps everybody else from writing to the connector's database.
async fn stall(connector: &Connector) -> SqliteConnection {
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
async fn while_the_database_stalls_nothing_is_acknowledged_and_readiness_says_so() {
    let connector = Connector::start().await;
    let me = unique("patient");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    assert_eq!(connector.readiness().await.0, 200);

    let blocker = stall(&connector).await;
    let payload = online().to_string();
    let waiting = tokio::spawn(async move {
        let answer = client.publish(&control_out(&me), payload.as_bytes()).await;
        (client, answer)
    });
    let (_, told) = eventually("readiness that tells", || async {
        let (status, body) = connector.readiness().await;
        (status == 503).then_some((status, body))
    })
    .await;
    assert!(
        told["parts"]["record"]
            .as_str()
            .unwrap()
            .contains("holding"),
        "{told}"
    );
    assert!(!waiting.is_finished(), "acknowledged before it was durable");
    assert_eq!(
        connector
            .bare("GET", "/liveness")
            .send()
            .await
            .unwrap()
            .status(),
        200
    );

    blocker.close().await.unwrap();
    let (_client, answer) = waiting.await.unwrap();
    assert!(answer.is_some(), "the broker hung up");
    assert_eq!(connector.listed("10000").await.len(), 1);
    eventually("readiness", || async {
        (connector.readiness().await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_wait_that_is_too_long_closes_the_connection_unacknowledged() {
    let connector = Connector::setup()
        .set("broker.ack_timeout", "300ms")
        .start()
        .await;
    let me = unique("cut-off");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    let blocker = stall(&connector).await;
    let payload = online().to_string();
    let answer = client.publish(&control_out(&me), payload.as_bytes()).await;
    assert_eq!(answer, None, "acknowledged what is not stored");
    blocker.close().await.unwrap();
    // It comes again, and is recorded.
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &online()).await;
    assert_eq!(connector.listed("10000").await, [me]);
}

#[tokio::test]
async fn bad_messages_between_good_ones_stop_nobody() {
    let connector = Connector::start().await;
    let (good, bad) = (unique("good"), unique("bad"));
    let mut one = RawClient::connect(&connector.mqtt, &Connect::new(&good)).await;
    let mut other = RawClient::connect(&connector.mqtt, &Connect::new(&bad)).await;
    let deep = "[".repeat(100_000);
    let hostile: &[&[u8]] = &[
        b"",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"{\"type\":7}",
        b"{\"type\":\"connection-status\",\"content\":{\"state\":\"online\",\"tags\":{\"a\":\"\\u0000\"}}}",
        b"{\"type\":\"connection-status\",\"content\":{\"state\":\"online\",\"dispatchers\":[]}}",
        deep.as_bytes(),
    ];
    for payload in hostile {
        assert!(other.publish(&control_out(&bad), payload).await.is_some());
        one.must_publish(&control_out(&good), &online()).await;
    }
    assert_eq!(connector.listed("10000").await, [good]);
    let rejected = connector
        .metric("cloud_connector_dead_letters_total", "")
        .await;
    assert!(
        (rejected - 7.0).abs() < 0.5,
        "{rejected}: all but the empty one"
    );
}

#[tokio::test]
async fn the_latest_online_is_what_is_shown() {
    let connector = Connector::start().await;
    let me = unique("changing");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &online()).await;
    let mut changed = online();
    changed["content"]["tags"] = json!({"make": "new"});
    changed["content"]["dispatchers"] = json!({"echo": {"version": "2"}});
    client.must_publish(&control_out(&me), &changed).await;
    // The same message again has no effect, whatever it says now.
    changed["content"]["tags"] = json!({"make": "forged"});
    client.must_publish(&control_out(&me), &changed).await;
    let path = format!("/v2/connections/{me}/status");
    let status = connector.request("GET", &path).send().await.unwrap();
    let status: serde_json::Value = status.json().await.unwrap();
    assert_eq!(status["status"], "connected");
    assert_eq!(status["tags"], json!({"make": "new"}));
    assert_eq!(status["dispatchers"], json!({"echo": {"version": "2"}}));

    client.must_publish(&control_out(&me), &offline()).await;
    assert!(connector.listed("10000").await.is_empty());
    client.must_publish(&control_out(&me), &online()).await;
    assert_eq!(connector.listed("10000").await, [me]);
}

#[tokio::test]
async fn a_storm_of_clients_is_recorded_whole() {
    let connector = Connector::start().await;
    let storm = (0..200).map(|n| {
        let address = connector.mqtt.clone();
        tokio::spawn(async move {
            let me = format!("storm-{n:03}");
            let mut client = RawClient::connect(&address, &Connect::new(&me).offline_will()).await;
            for _ in 0..5 {
                client.must_publish(&control_out(&me), &online()).await;
            }
            client
        })
    });
    let mut clients = Vec::new();
    for client in storm.collect::<Vec<_>>() {
        clients.push(client.await.unwrap());
    }
    assert_eq!(connector.listed("10000").await.len(), 200);
    drop(clients);
    eventually("all gone", || async {
        connector.listed("10000").await.is_empty().then_some(())
    })
    .await;
    assert_eq!(connector.readiness().await.0, 200);
}

#[tokio::test]
async fn a_message_that_is_too_large_to_be_honest_is_refused_and_stops_nobody() {
    let connector = Connector::start().await;
    let me = unique("large");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    let mut large = online();
    large["content"]["tags"] = json!({"a": "x".repeat(200_000)});
    client.must_publish(&control_out(&me), &large).await;
    assert!(connector.listed("10000").await.is_empty());
    let rejected = connector.metric("cloud_connector_dead_letters_total", "too_large");
    assert!(rejected.await > 0.0);
    client.must_publish(&control_out(&me), &online()).await;
    assert_eq!(connector.listed("10000").await, [me]);
}
