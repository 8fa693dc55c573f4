//! Tests that Mosquitto, with the configuration in `deploy/mosquitto`, does not disconnect a client
//! because of a message that is forbidden or large. Real clients reconnect without a delay and send
//! the message again, without end.

use sqlx::Row as _;

use test_support::cluster::Cluster;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::services::Service;
use test_support::{Certs, eventually, unique_id};

/// Publishes to a topic that the access rules forbid, with QoS 0 and QoS 1. The client must stay
/// connected.
async fn publish_to_forbidden_topics(client: &mut RawClient, client_id: &str) {
    // The default prefix of yggdrasil, which the access rules do not contain.
    let topic = format!("yggdrasil/{client_id}/data/out");
    client.publish_heartbeat(&topic).await;
    let puback = client.publish(&topic, b"{}").await;
    puback.expect("the broker closed the connection because of a forbidden publish");
}

#[tokio::test]
async fn a_client_that_publishes_to_forbidden_topics_stays_connected() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let client_id = unique_id("forbidden");
    certs.issue_client_certificate(&client_id).await;
    let (mosquitto, ports) = Service::start_mosquitto_with_tls(&certs.file_path("")).await;

    let address = format!("127.0.0.1:{}", mosquitto.port);
    for connect in [
        Connect::new(&client_id),
        Connect::new(&client_id).with_mqtt_5(),
    ] {
        let mut client = RawClient::connect(&address, &connect).await;
        publish_to_forbidden_topics(&mut client, &client_id).await;
    }
    let config = certs.client_tls_config(Some(&client_id));
    let address = format!("127.0.0.1:{}", ports.clients);
    let mut client = RawClient::connect_tls(&address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
    publish_to_forbidden_topics(&mut client, &client_id).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_acknowledged_and_becomes_a_dead_letter() {
    let cluster = Cluster::new().await;
    let process = cluster.start(&[]).await;
    let client_id = unique_id("large");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    // Four times the default of http.max_body_bytes.
    let payload = vec![b'x'; 4 * 1024 * 1024];
    let puback = client.publish(&data_out_topic(&client_id), &payload).await;
    puback.expect("the broker closed the connection because of a large message");

    let rows = eventually("a dead letter", || async {
        let mut database = cluster.connect_to_database().await;
        let query = sqlx::query("SELECT reason, size FROM dead_letters WHERE client_id = $1");
        let rows = query.bind(&client_id).fetch_all(&mut database).await;
        Some(rows.unwrap()).filter(|rows| !rows.is_empty())
    })
    .await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<String, _>("reason"), "payload_too_large");
    assert_eq!(rows[0].get::<i64, _>("size"), 4 * 1024 * 1024);
    process.wait_until_connected(&client_id).await;
}

#[tokio::test]
async fn packet_filter_limits_the_bytes_of_a_connection_of_the_fleet() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let script = "ip link set lo up && nft -f deploy/mosquitto/rate-limits.nft && exec python3 \
                  crates/cloud-connector/tests/clients/flood.py 8883 443 8884";
    // A network namespace, so that the rules affect no other test.
    let output = tokio::process::Command::new("unshare")
        .args(["--map-root-user", "--net", "sh", "-c", script])
        .current_dir(root)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let received: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [clients, websocket_clients, connector] =
        ["8883", "443", "8884"].map(|port| received[port].as_u64().unwrap());
    // The burst is 2 MB. In 2 seconds, 256 KiB per second are added.
    for limited in [clients, websocket_clients] {
        assert!((1_000_000..4_000_000).contains(&limited), "{received}");
    }
    assert!(connector > 2 * clients, "{received}");
}
