//! Tests that Mosquitto, with the configuration in `deploy/mosquitto`, restricts a client to its
//! own topics. Mosquitto drops forbidden messages without an error, so these tests check which
//! messages arrive.

use serde_json::json;

use test_support::cluster::Cluster;
use test_support::mqtt::{
    CLOSED_WITHOUT_REASON, Connect, RawClient, control_out_topic, data_in_topic, offline_message,
    online_message,
};
use test_support::services::Service;
use test_support::{Certs, unique_id};

#[tokio::test]
async fn a_client_cannot_publish_to_topics_of_another_client() {
    let cluster = Cluster::new().await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (victim_id, attacker_id, last_client_id) = (
        unique_id("victim"),
        unique_id("attacker"),
        unique_id("later"),
    );
    let mut victim_client = RawClient::connect(&address, &Connect::new(&victim_id)).await;
    victim_client
        .must_publish(&control_out_topic(&victim_id), &online_message())
        .await;
    process.wait_until_connected(&victim_id).await;
    let offline_message = offline_message().to_string();
    let forged_will =
        Connect::new(&attacker_id).will(&control_out_topic(&victim_id), offline_message.as_bytes());
    let mut attacker_client = RawClient::connect(&address, &forged_will).await;
    let _ = attacker_client
        .publish(&control_out_topic(&victim_id), offline_message.as_bytes())
        .await;
    let _ = attacker_client
        .publish(
            &control_out_topic(&unique_id("forged")),
            online_message().to_string().as_bytes(),
        )
        .await;
    drop(attacker_client);
    // Another client publishes after the attacker. When the message of this client is recorded, the
    // connector would also have recorded each forged message that Mosquitto accepted.
    let mut client = RawClient::connect(&address, &Connect::new(&last_client_id)).await;
    client
        .must_publish(&control_out_topic(&last_client_id), &online_message())
        .await;
    process.wait_until_connected(&last_client_id).await;
    let mut listed_ids = process.list_client_ids().await.unwrap();
    listed_ids.sort();
    let mut expected = [victim_id, last_client_id];
    expected.sort();
    assert_eq!(listed_ids, expected);
}

#[tokio::test]
async fn a_client_cannot_receive_messages_of_another_client() {
    let cluster = Cluster::new().await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (victim_id, spy_id) = (unique_id("victim"), unique_id("spy"));
    let mut victim_client = RawClient::connect(&address, &Connect::new(&victim_id)).await;
    victim_client.subscribe(&data_in_topic(&victim_id)).await;
    victim_client
        .must_publish(&control_out_topic(&victim_id), &online_message())
        .await;
    let mut spy_client = RawClient::connect(&address, &Connect::new(&spy_id)).await;
    for filter in [
        data_in_topic(&victim_id),
        control_out_topic(&victim_id),
        "redhat/insights/+/data/in".into(),
        "#".into(),
    ] {
        spy_client.subscribe(&filter).await;
    }
    spy_client.subscribe(&data_in_topic(&spy_id)).await;
    spy_client
        .must_publish(&control_out_topic(&spy_id), &online_message())
        .await;
    process.wait_until_connected(&victim_id).await;
    process.wait_until_connected(&spy_id).await;
    let (status, secret) = process
        .send_message(&victim_id, json!({"directive": "secret"}))
        .await;
    assert_eq!(status, 201);
    assert_eq!(
        victim_client.next_message().await.1["message_id"],
        secret["id"]
    );
    // The spy receives the message to the spy first. Therefore the spy has not received the message
    // to the victim.
    let (status, own) = process
        .send_message(&spy_id, json!({"directive": "own"}))
        .await;
    assert_eq!(status, 201);
    let (topic, message) = spy_client.next_message().await;
    assert_eq!(topic, data_in_topic(&spy_id));
    assert_eq!(message["message_id"], own["id"]);
}

#[tokio::test]
async fn a_client_can_use_only_the_topics_of_the_common_name_of_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let (client_id, other_id) = (unique_id("certified"), unique_id("other"));
    certs.issue_client_certificate(&client_id).await;
    let (mosquitto, ports) = Service::start_mosquitto_with_tls(&certs.file_path("")).await;
    let cluster = Cluster::with_services(mosquitto, None, None).await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{}", ports.clients);
    // The client connects with a client id that differs from the common name of its certificate.
    // The client may use only the topics of the common name.
    let config = certs.client_tls_config(Some(&client_id));
    let mut attacker_client = RawClient::connect_tls(&address, config.clone())
        .await
        .unwrap();
    assert_eq!(
        attacker_client.send_connect(&Connect::new(&other_id)).await,
        0
    );
    // Mosquitto drops the message and may close the TLS connection.
    let _ = attacker_client
        .publish(
            &control_out_topic(&other_id),
            online_message().to_string().as_bytes(),
        )
        .await;
    let mut client = RawClient::connect_tls(&address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&other_id)).await, 0);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    process.wait_until_connected(&client_id).await;
    assert_eq!(process.list_client_ids().await.unwrap(), [client_id]);
    // A client without a certificate is rejected.
    if let Ok(mut client) = RawClient::connect_tls(&address, certs.client_tls_config(None)).await {
        assert_eq!(
            client.send_connect(&Connect::new(&other_id)).await,
            CLOSED_WITHOUT_REASON
        );
    }
}
