//! Tests of third-party MQTT clients with the embedded broker: paho from PyPI and the Mosquitto
//! clients from Debian. `dev/prepare test` installs these clients.

use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use crate::paho::{PahoClient, PahoOptions};
use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{control_out_topic, data_in_topic, offline_message, online_message};
use test_support::{CONDITION_TIMEOUT, Certs, Connector, unique_id};

/// Sends a message to the client, checks that forbidden actions are rejected, and lets the client
/// exit without DISCONNECT.
async fn run_paho_lifecycle(
    connector: &Connector,
    mut paho: PahoClient,
    client_id: &str,
    is_v5: bool,
) {
    paho.wait_for_event("connected").await;
    paho.wait_for_event("online-acknowledged").await;
    assert!(
        connector
            .list_client_ids(DEFAULT_ORG_ID)
            .await
            .contains(&client_id.to_owned())
    );
    let (status, sent) = connector
        .send_message(
            client_id,
            json!({"directive": "echo", "metadata": {"a": "b"}, "payload": "hello"}),
        )
        .await;
    assert_eq!(status, 201);
    let message = paho.wait_for_event("message").await;
    assert_eq!(message["topic"], data_in_topic(client_id));
    assert_eq!(message["payload"]["message_id"], sent["id"]);
    assert_eq!(message["payload"]["content"], "hello");

    // paho reports the rejection of a forbidden publish and of a forbidden subscription.
    let forged_message = offline_message().to_string();
    let topic = control_out_topic("another");
    paho.send_command(
        json!({"do": "publish", "topic": topic, "payload": forged_message, "qos": 1}),
    )
    .await;
    let publish_code = paho.wait_for_event("published").await["reason_code"]
        .as_u64()
        .unwrap();
    assert_eq!(publish_code, if is_v5 { 0x87 } else { 0 });
    paho.send_command(json!({"do": "subscribe", "topic": "redhat/insights/+/data/in"}))
        .await;
    let subscribed_event = paho.wait_for_event("subscribed").await;
    assert!(
        subscribed_event["reason_codes"][0].as_u64().unwrap() >= 128,
        "{subscribed_event}"
    );
    // The rejections did not close the connection. The client can publish to its own topic.
    let online = online_message().to_string();
    let topic = control_out_topic(client_id);
    paho.send_command(json!({"do": "publish", "topic": topic, "payload": online, "qos": 1}))
        .await;
    assert_eq!(paho.wait_for_event("published").await["reason_code"], 0);

    // The process exits without DISCONNECT, so the broker publishes the last will.
    paho.exit_without_disconnect().await;
    connector.wait_until_disconnected(client_id).await;
}

/// Runs the lifecycle with each MQTT version, over TCP or WebSocket.
async fn run_with_each_version(connector: &Connector, options: PahoOptions<'_>) {
    for protocol in ["3.1", "3.1.1", "5"] {
        let client_id = unique_id("paho");
        if let Some(certs) = options.certs {
            certs.issue_client_certificate(&client_id).await;
        }
        let options = PahoOptions {
            protocol,
            ..options
        };
        let paho = PahoClient::start(&client_id, options);
        run_paho_lifecycle(connector, paho, &client_id, protocol == "5").await;
    }
}

#[tokio::test]
async fn paho_client_works_over_tcp_and_websocket_with_each_mqtt_version() {
    let connector = Connector::builder()
        .set("broker.websocket.listen", "127.0.0.1:0")
        .start()
        .await;
    let ws_address = connector.ws_address.clone().unwrap();
    for (address, transport) in [
        (&connector.mqtt_address, "tcp"),
        (&connector.mqtt_address, "websockets"),
        (&ws_address, "websockets"),
    ] {
        let options = PahoOptions {
            address,
            protocol: "",
            transport,
            certs: None,
        };
        run_with_each_version(&connector, options).await;
    }
}

#[tokio::test]
async fn paho_client_works_over_mtls_and_wss_with_each_mqtt_version() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder
        .set("broker.tls.websocket_listen", "127.0.0.1:0")
        .start()
        .await;
    let mqtts_address = connector.mqtts_address.clone().unwrap();
    let wss_address = connector.wss_address.clone().unwrap();
    for (address, transport) in [(&mqtts_address, "tcp"), (&wss_address, "websockets")] {
        let options = PahoOptions {
            address,
            protocol: "",
            transport,
            certs: Some(&certs),
        };
        run_with_each_version(&connector, options).await;
    }
}

#[tokio::test]
async fn paho_client_learns_why_it_is_rejected() {
    let connector = Connector::start().await;
    for (protocol, expected_reason) in [
        ("3.1", "Client identifier not valid"),
        ("3.1.1", "Client identifier not valid"),
        ("5", "Client identifier not valid"),
    ] {
        for transport in ["tcp", "websockets"] {
            let options = PahoOptions {
                address: &connector.mqtt_address,
                protocol,
                transport,
                certs: None,
            };
            let mut paho = PahoClient::start("invalid+id", options);
            let refused = paho.wait_for_event("refused").await;
            assert_eq!(refused["reason"], expected_reason, "{protocol} {transport}");
        }
    }
}

/// Returns the command line of a Mosquitto client that has an offline message as its last will.
fn mosquitto_command(program: &str, address: &str, client_id: &str, version: &str) -> Command {
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command
        .args([
            "-h", host, "-p", port, "-V", version, "-i", client_id, "-q", "1", "-d",
        ])
        .args([
            "--will-topic",
            &control_out_topic(client_id),
            "--will-qos",
            "1",
        ])
        .args(["--will-payload", &offline_message().to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

#[tokio::test]
async fn mosquitto_clients_work_with_each_mqtt_version() {
    let connector = Connector::start().await;
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        // mosquitto_rr subscribes, publishes an online message, and prints the first message that
        // it receives.
        let client_id = unique_id("mosquitto");
        let mut mosquitto_rr =
            mosquitto_command("mosquitto_rr", &connector.mqtt_address, &client_id, version);
        mosquitto_rr.args([
            "-t",
            &control_out_topic(&client_id),
            "-e",
            &data_in_topic(&client_id),
        ]);
        mosquitto_rr.args(["-m", &online_message().to_string()]);
        let mosquitto_rr = mosquitto_rr
            .spawn()
            .expect("mosquitto-clients are missing; run `dev/prepare test`");
        connector.wait_until_connected(&client_id).await;
        let (status, sent) = connector
            .send_message(&client_id, json!({"directive": "echo"}))
            .await;
        assert_eq!(status, 201);
        let result = timeout(CONDITION_TIMEOUT, mosquitto_rr.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let output = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(output.contains(sent["id"].as_str().unwrap()), "{output}");
        connector.wait_until_disconnected(&client_id).await;

        // The broker discards an online message that a client publishes for another client.
        let victim_id = unique_id("victim");
        let mut forging_client = mosquitto_command(
            "mosquitto_pub",
            &connector.mqtt_address,
            &client_id,
            version,
        );
        forging_client.args([
            "-t",
            &control_out_topic(&victim_id),
            "-m",
            &online_message().to_string(),
        ]);
        let result = timeout(CONDITION_TIMEOUT, forging_client.output())
            .await
            .unwrap()
            .unwrap();
        let output = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(output.contains("PUBACK"), "{output}");
        assert!(
            connector.list_client_ids(DEFAULT_ORG_ID).await.is_empty(),
            "the forged online message was recorded"
        );

        // mosquitto_sub -E exits when the subscription is acknowledged.
        let mut subscriber = mosquitto_command(
            "mosquitto_sub",
            &connector.mqtt_address,
            &client_id,
            version,
        );
        subscriber.args(["-E", "-t", &data_in_topic(&client_id)]);
        let result = timeout(CONDITION_TIMEOUT, subscriber.output())
            .await
            .unwrap()
            .unwrap();
        let output = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(
            result.status.success() && output.contains("SUBACK"),
            "{output}"
        );
    }
}
