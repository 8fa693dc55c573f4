//! Tests of paho behind Mosquitto with the configuration in `deploy/mosquitto`: over TCP, TLS, and
//! WebSocket with TLS.

use serde_json::json;

use test_support::cluster::Cluster;
use test_support::mqtt::{control_out_topic, data_in_topic, offline_message};
use test_support::services::Service;
use test_support::{Certs, unique_id};

use crate::paho::{PahoClient, PahoOptions};

#[tokio::test]
async fn paho_client_works_behind_mosquitto_over_tcp_tls_and_wss() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let (mosquitto, ports) = Service::start_mosquitto_with_tls(&certs.file_path("")).await;
    let plain_port = mosquitto.port;
    let cluster = Cluster::with_services(mosquitto, None, None).await;
    let process = cluster.start(&[]).await;
    for (port, transport, certs) in [
        (plain_port, "tcp", None),
        (ports.clients, "tcp", Some(&certs)),
        (ports.websocket_clients, "websockets", Some(&certs)),
    ] {
        for protocol in ["3.1.1", "5"] {
            let client_id = unique_id("paho");
            if let Some(certs) = certs {
                certs.issue_client_certificate(&client_id).await;
            }
            let options = PahoOptions {
                address: &format!("127.0.0.1:{port}"),
                protocol,
                transport,
                certs,
            };
            let mut paho = PahoClient::start(&client_id, options);
            paho.wait_for_event("online-acknowledged").await;
            process.wait_until_connected(&client_id).await;
            let (status, sent) = process
                .send_message(&client_id, json!({"directive": "echo", "payload": "hello"}))
                .await;
            assert_eq!(status, 201);
            let message = paho.wait_for_event("message").await;
            assert_eq!(message["topic"], data_in_topic(&client_id));
            assert_eq!(message["payload"]["message_id"], sent["id"]);

            // A forbidden message has no effect, and does not close the connection.
            let (topic, payload) = (control_out_topic("another"), offline_message().to_string());
            let forged = json!({"do": "publish", "topic": topic, "payload": payload, "qos": 0});
            paho.send_command(forged).await;
            paho.wait_for_event("published").await;
            let (status, _) = process
                .send_message(&client_id, json!({"directive": "echo"}))
                .await;
            assert_eq!(status, 201);
            paho.wait_for_event("message").await;

            paho.exit_without_disconnect().await;
            process.wait_until_disconnected(&client_id).await;
        }
    }
}
