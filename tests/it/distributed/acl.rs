//! Mosquitto with the configuration that we ship: a client is confined to its own topics. It does
//! not refuse, it drops: so what counts is what arrives.

use serde_json::json;

use crate::support::fleet::Fleet;
use crate::support::mqtt::{Connect, RawClient, control_out, data_in, offline, online};
use crate::support::services::Service;
use crate::support::{Certs, unique};

#[tokio::test]
async fn a_client_cannot_publish_as_another() {
    let fleet = Fleet::new().await;
    let process = fleet.start(&[]).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let (victim, attacker, later) = (unique("victim"), unique("attacker"), unique("later"));
    let mut there = RawClient::connect(&address, &Connect::new(&victim)).await;
    there.must_publish(&control_out(&victim), &online()).await;
    process.wait_for(&victim, true).await;
    let will = offline().to_string();
    let evil = Connect::new(&attacker).will(&control_out(&victim), will.as_bytes());
    let mut forger = RawClient::connect(&address, &evil).await;
    let _ = forger.publish(&control_out(&victim), will.as_bytes()).await;
    let _ = forger
        .publish(
            &control_out(&unique("ghost")),
            online().to_string().as_bytes(),
        )
        .await;
    drop(forger);
    // What came after it was recorded: the forged ones would have been before.
    let mut client = RawClient::connect(&address, &Connect::new(&later)).await;
    client.must_publish(&control_out(&later), &online()).await;
    process.wait_for(&later, true).await;
    let mut listed = process.listed().await.unwrap();
    listed.sort();
    let mut expected = [victim, later];
    expected.sort();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_client_cannot_read_anothers_topics() {
    let fleet = Fleet::new().await;
    let process = fleet.start(&[]).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let (victim, spy) = (unique("victim"), unique("spy"));
    let mut there = RawClient::connect(&address, &Connect::new(&victim)).await;
    there.subscribe(&data_in(&victim)).await;
    there.must_publish(&control_out(&victim), &online()).await;
    let mut listening = RawClient::connect(&address, &Connect::new(&spy)).await;
    for filter in [
        data_in(&victim),
        control_out(&victim),
        "redhat/insights/+/data/in".into(),
        "#".into(),
    ] {
        listening.subscribe(&filter).await;
    }
    listening.subscribe(&data_in(&spy)).await;
    listening.must_publish(&control_out(&spy), &online()).await;
    process.wait_for(&victim, true).await;
    process.wait_for(&spy, true).await;
    let (status, secret) = process.send(&victim, json!({"directive": "secret"})).await;
    assert_eq!(status, 201);
    assert_eq!(there.message().await.1["message_id"], secret["id"]);
    // The first thing that the spy hears is what was sent to it.
    let (status, own) = process.send(&spy, json!({"directive": "own"})).await;
    assert_eq!(status, 201);
    let (topic, message) = listening.message().await;
    assert_eq!(topic, data_in(&spy));
    assert_eq!(message["message_id"], own["id"]);
}

#[tokio::test]
async fn with_certificates_the_name_in_it_decides() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let (me, other) = (unique("me"), unique("other"));
    certs.issue(&me).await;
    let (mosquitto, clients, _) = Service::mosquitto_with_tls(&certs.file("")).await;
    let fleet = Fleet::with(mosquitto, None, None).await;
    let process = fleet.start(&[]).await;
    let address = format!("127.0.0.1:{clients}");
    // Whatever id it claims, its topics are those of its certificate.
    let config = certs.client_config(Some(&me));
    let mut forger = RawClient::dial_tls(&address, config.clone()).await.unwrap();
    assert_eq!(forger.handshake(&Connect::new(&other)).await, 0);
    // Mosquitto drops it, and over TLS hangs up on whoever tried.
    let _ = forger
        .publish(&control_out(&other), online().to_string().as_bytes())
        .await;
    let mut client = RawClient::dial_tls(&address, config).await.unwrap();
    assert_eq!(client.handshake(&Connect::new(&other)).await, 0);
    client.must_publish(&control_out(&me), &online()).await;
    process.wait_for(&me, true).await;
    assert_eq!(process.listed().await.unwrap(), [me]);
    // Without a certificate nobody gets in.
    if let Ok(mut client) = RawClient::dial_tls(&address, certs.client_config(None)).await {
        assert_eq!(client.handshake(&Connect::new(&other)).await, 255);
    }
}
