//! Mosquitto with the shipped configuration restricts a client to its own topics. Mosquitto drops
//! forbidden messages without an error, so these tests check which messages arrive.

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::mqtt::{
    CLOSED_WITHOUT_REASON, Connect, RawClient, control_out, data_in, offline, online,
};
use crate::support::services::Service;
use crate::support::{Certs, unique_id};

#[tokio::test]
async fn a_client_cannot_publish_as_another() {
    let cluster = Cluster::new().await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (victim, attacker, later) = (
        unique_id("victim"),
        unique_id("attacker"),
        unique_id("later"),
    );
    let mut victim_client = RawClient::connect(&address, &Connect::new(&victim)).await;
    victim_client
        .must_publish(&control_out(&victim), &online())
        .await;
    process.wait_until_connected(&victim).await;
    let offline_message = offline().to_string();
    let forged_will =
        Connect::new(&attacker).will(&control_out(&victim), offline_message.as_bytes());
    let mut attacker_client = RawClient::connect(&address, &forged_will).await;
    let _ = attacker_client
        .publish(&control_out(&victim), offline_message.as_bytes())
        .await;
    let _ = attacker_client
        .publish(
            &control_out(&unique_id("forged")),
            online().to_string().as_bytes(),
        )
        .await;
    drop(attacker_client);
    // This message is published after the forged ones. When it is recorded, a forged message that
    // Mosquitto accepted would be recorded, too.
    let mut client = RawClient::connect(&address, &Connect::new(&later)).await;
    client.must_publish(&control_out(&later), &online()).await;
    process.wait_until_connected(&later).await;
    let mut listed = process.list_client_ids().await.unwrap();
    listed.sort();
    let mut expected = [victim, later];
    expected.sort();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_client_cannot_receive_messages_of_another() {
    let cluster = Cluster::new().await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (victim, spy) = (unique_id("victim"), unique_id("spy"));
    let mut victim_client = RawClient::connect(&address, &Connect::new(&victim)).await;
    victim_client.subscribe(&data_in(&victim)).await;
    victim_client
        .must_publish(&control_out(&victim), &online())
        .await;
    let mut spy_client = RawClient::connect(&address, &Connect::new(&spy)).await;
    for filter in [
        data_in(&victim),
        control_out(&victim),
        "redhat/insights/+/data/in".into(),
        "#".into(),
    ] {
        spy_client.subscribe(&filter).await;
    }
    spy_client.subscribe(&data_in(&spy)).await;
    spy_client.must_publish(&control_out(&spy), &online()).await;
    process.wait_until_connected(&victim).await;
    process.wait_until_connected(&spy).await;
    let (status, secret) = process
        .send_message(&victim, json!({"directive": "secret"}))
        .await;
    assert_eq!(status, 201);
    assert_eq!(
        victim_client.next_message().await.1["message_id"],
        secret["id"]
    );
    // The first message that the spy receives is its own.
    let (status, own) = process
        .send_message(&spy, json!({"directive": "own"}))
        .await;
    assert_eq!(status, 201);
    let (topic, message) = spy_client.next_message().await;
    assert_eq!(topic, data_in(&spy));
    assert_eq!(message["message_id"], own["id"]);
}

#[tokio::test]
async fn topics_are_limited_to_the_common_name_of_the_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let (client_id, other) = (unique_id("certified"), unique_id("other"));
    certs.issue(&client_id).await;
    let (mosquitto, client_port, _) = Service::mosquitto_with_tls(&certs.file("")).await;
    let cluster = Cluster::with_services(mosquitto, None, None).await;
    let process = cluster.start(&[]).await;
    let address = format!("127.0.0.1:{client_port}");
    // The client connects with another client id, but may use only the topics of its certificate.
    let config = certs.client_config(Some(&client_id));
    let mut attacker_client = RawClient::connect_tls(&address, config.clone())
        .await
        .unwrap();
    assert_eq!(attacker_client.send_connect(&Connect::new(&other)).await, 0);
    // Mosquitto drops the message and may close the TLS connection.
    let _ = attacker_client
        .publish(&control_out(&other), online().to_string().as_bytes())
        .await;
    let mut client = RawClient::connect_tls(&address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&other)).await, 0);
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    process.wait_until_connected(&client_id).await;
    assert_eq!(process.list_client_ids().await.unwrap(), [client_id]);
    // A client without a certificate is rejected.
    if let Ok(mut client) = RawClient::connect_tls(&address, certs.client_config(None)).await {
        assert_eq!(
            client.send_connect(&Connect::new(&other)).await,
            CLOSED_WITHOUT_REASON
        );
    }
}
