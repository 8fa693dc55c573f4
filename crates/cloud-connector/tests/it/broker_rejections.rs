//! Clients that the embedded broker rejects: what the client learns, and what operators see.

use std::time::Instant;

use serde_json::Value;

use test_support::mqtt::{
    CLOSED_WITHOUT_REASON, CONNACK, Connect, control_out_topic, data_in_topic, online_message,
};
use test_support::{Certs, Connector, RawClient, eventually, unique_id};

// Return codes of MQTT 3.1 and 3.1.1.
const UNACCEPTABLE_PROTOCOL_VERSION: u8 = 1;
const IDENTIFIER_REJECTED: u8 = 2;
const SERVER_UNAVAILABLE: u8 = 3;
const NOT_AUTHORIZED: u8 = 5;
// Reason codes of MQTT 5.
const CLIENT_ID_NOT_VALID_V5: u8 = 0x85;
const NOT_AUTHORIZED_V5: u8 = 0x87;
const CONNECTION_RATE_EXCEEDED_V5: u8 = 0x9f;

const TAKEOVERS_METRIC: &str = "cloud_connector_broker_repeated_takeovers_total";

/// Returns the log lines about rejections with this reason.
fn rejection_log_lines(connector: &Connector, reason: &str) -> Vec<Value> {
    let lines = connector.log_lines.lock();
    lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["message"] == "rejected by the broker" && line["reason"] == reason)
        .collect()
}

async fn wait_for_rejection_log_line(connector: &Connector, reason: &str) -> Value {
    eventually(&format!("a log line with the reason {reason}"), || async {
        rejection_log_lines(connector, reason).pop()
    })
    .await
}

/// Sends CONNECT with this protocol level. Returns the code of the CONNACK.
async fn connack_code(connector: &Connector, client_id: &str, protocol_level: u8) -> u8 {
    let mut connect = Connect::new(client_id);
    connect.protocol_level = protocol_level;
    let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
    client.send_connect(&connect).await
}

#[tokio::test]
async fn unsupported_protocol_levels_are_answered_in_the_format_of_mqtt_3_1_1() {
    let connector = Connector::start().await;
    for protocol_level in [0, 2, 6, 7, 0x84] {
        let mut connect = Connect::new(&unique_id("level"));
        connect.protocol_level = protocol_level;
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        client.write(&connect.encode()).await;
        let connack = client.read_packet().await.unwrap();
        assert_eq!(connack.packet_type(), CONNACK);
        assert_eq!(
            connack.body,
            [0, UNACCEPTABLE_PROTOCOL_VERSION],
            "level {protocol_level}"
        );
        assert_eq!(client.read_packet().await, None);
    }
    let line = wait_for_rejection_log_line(&connector, "unsupported_protocol_version").await;
    assert_eq!(line["level"], "INFO");
}

#[tokio::test]
async fn mqtt_3_1_clients_are_accepted() {
    let connector = Connector::start().await;
    let client_id = unique_id("v31");
    let mut connect = Connect::new(&client_id).offline_will();
    connect.protocol_level = 3;
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let body = serde_json::json!({"directive": "x"});
    assert_eq!(connector.send_message(&client_id, body).await.0, 201);
    client.next_message().await;
    drop(client);
    connector.wait_until_disconnected(&client_id).await;
}

#[tokio::test]
async fn invalid_client_ids_get_the_code_of_their_mqtt_version() {
    let connector = Connector::start().await;
    for client_id in ["", "a/b", "a+b", "..", "cert:x", &"x".repeat(200)] {
        for (protocol_level, code) in [
            (3, IDENTIFIER_REJECTED),
            (4, IDENTIFIER_REJECTED),
            (5, CLIENT_ID_NOT_VALID_V5),
        ] {
            assert_eq!(
                connack_code(&connector, client_id, protocol_level).await,
                code,
                "{client_id:?}, level {protocol_level}"
            );
        }
    }
    // The broker counts a rejection after it has sent the response.
    let rejections = eventually("the number of rejections", || async {
        let metric = "cloud_connector_broker_rejections_total";
        let rejections = connector.read_metric(metric, "invalid_client_id").await;
        (rejections > 17.5).then_some(rejections)
    })
    .await;
    assert!((rejections - 18.0).abs() < 0.1, "{rejections}");
}

#[tokio::test]
async fn rate_limited_clients_get_the_code_of_their_mqtt_version() {
    let connector = Connector::builder()
        .set("broker.connect_limit.burst", 1)
        .set("broker.connect_limit.per_second", 0.01)
        .start()
        .await;
    let client_id = unique_id("limited");
    assert_eq!(connack_code(&connector, &client_id, 4).await, 0);
    for (protocol_level, code) in [
        (3, SERVER_UNAVAILABLE),
        (4, SERVER_UNAVAILABLE),
        (5, CONNECTION_RATE_EXCEEDED_V5),
    ] {
        let received = connack_code(&connector, &client_id, protocol_level).await;
        assert_eq!(received, code, "level {protocol_level}");
    }
}

#[tokio::test]
async fn certificate_mismatch_is_reported_to_the_client_and_to_operators() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    let (client_id, claimed_id) = (unique_id("certified"), unique_id("claimed"));
    certs.issue_client_certificate(&client_id).await;
    for (protocol_level, code) in [
        (3, NOT_AUTHORIZED),
        (4, NOT_AUTHORIZED),
        (5, NOT_AUTHORIZED_V5),
    ] {
        let mut connect = Connect::new(&claimed_id);
        connect.protocol_level = protocol_level;
        let config = certs.client_tls_config(Some(&client_id));
        let mut client = RawClient::connect_tls(&address, config).await.unwrap();
        client.write(&connect.encode()).await;
        let connack = client.read_packet().await.unwrap();
        assert_eq!(connack.body[1], code, "level {protocol_level}");
        if protocol_level == 5 {
            let text = String::from_utf8_lossy(&connack.body[6..]).into_owned();
            assert_eq!(
                text,
                "the client id must be the common name of the client certificate"
            );
        }
    }
    let line = wait_for_rejection_log_line(&connector, "cn_mismatch").await;
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["client_id"], claimed_id);
    assert_eq!(line["certificate_cn"], client_id);
    assert!(
        line["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );
}

#[tokio::test]
async fn tls_failures_are_logged_with_their_cause() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    if let Ok(mut client) = RawClient::connect_tls(&address, certs.client_tls_config(None)).await {
        let code = client.send_connect(&Connect::new("x")).await;
        assert_eq!(code, CLOSED_WITHOUT_REASON);
    }
    let line = wait_for_rejection_log_line(&connector, "tls_handshake_failed").await;
    let detail = line["detail"].as_str().unwrap();
    assert!(detail.contains("certificate"), "{line}");
}

#[tokio::test]
async fn rejections_are_logged_at_most_once_per_second_and_reason() {
    let connector = Connector::start().await;
    let started_at = Instant::now();
    // A hostile client id: control characters and a line break.
    let client_id = "a+b\n{\"forged\": \"line\"}\u{1b}[31m";
    let mut rejections = 0;
    while started_at.elapsed().as_millis() < 2500 {
        assert_eq!(
            connack_code(&connector, client_id, 4).await,
            IDENTIFIER_REJECTED
        );
        rejections += 1;
    }
    let lines = rejection_log_lines(&connector, "invalid_client_id");
    assert!((2..=4).contains(&lines.len()), "{lines:?}");
    assert!(lines.iter().all(|line| line["client_id"] == client_id));
    let suppressed: u64 = lines
        .iter()
        .map(|line| line["suppressed_lines"].as_u64().unwrap())
        .sum();
    assert!(suppressed > 0);
    assert!(suppressed + lines.len() as u64 <= rejections);
    let log_lines = connector.log_lines.lock();
    assert!(
        log_lines
            .iter()
            .all(|line| !line.starts_with("{\"forged\""))
    );
}

/// Connects, and sends a packet, so that the connection is in use.
async fn connect_and_use(connector: &Connector, client_id: &str) -> RawClient {
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(client_id)).await;
    assert_eq!(client.subscribe(&data_in_topic(client_id)).await, 1);
    client
}

fn takeover_log_lines(connector: &Connector) -> Vec<Value> {
    let lines = connector.log_lines.lock();
    lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["previous_peer"].is_string())
        .collect()
}

#[tokio::test]
async fn two_machines_with_the_same_client_id_are_reported() {
    let connector = Connector::start().await;
    let client_id = unique_id("cloned");
    let mut current = connect_and_use(&connector, &client_id).await;
    for _ in 0..5 {
        // The other machine connects. The broker closes the connection of the first machine, which
        // then connects again.
        let other = connect_and_use(&connector, &client_id).await;
        current.wait_for_close().await;
        current = other;
    }
    let takeovers = connector.read_metric(TAKEOVERS_METRIC, "").await;
    assert!((takeovers - 3.0).abs() < 0.1, "{takeovers}");
    let lines = takeover_log_lines(&connector);
    let [line] = &lines[..] else {
        panic!("expected one log line: {lines:?}");
    };
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["client_id"], client_id);
    assert_ne!(line["peer"], line["previous_peer"]);
}

#[tokio::test]
async fn reconnects_of_one_machine_are_not_reported() {
    let connector = Connector::start().await;
    // After a network failure, the client reconnects before the broker has noticed the end of the
    // previous connection.
    let client_id = unique_id("reconnecting");
    let mut connections = vec![connect_and_use(&connector, &client_id).await];
    connections.push(connect_and_use(&connector, &client_id).await);
    // The network loses the packets from the broker: the client never receives a CONNACK.
    let deaf_id = unique_id("deaf");
    for _ in 0..5 {
        let connect = Connect::new(&deaf_id);
        connections.push(RawClient::connect(&connector.mqtt_address, &connect).await);
    }
    // The client closes each connection before it connects again.
    let restarting_id = unique_id("restarting");
    for _ in 0..5 {
        connect_and_use(&connector, &restarting_id)
            .await
            .disconnect()
            .await;
    }
    assert!(connector.read_metric(TAKEOVERS_METRIC, "").await < 0.1);
    assert!(takeover_log_lines(&connector).is_empty());
}
