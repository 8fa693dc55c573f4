//! Clients that the broker rejects. Only the embedded broker tells the connector; in distributed mode, the
//! diagnosis refers to the log of the broker.

use super::{CONNECTED, ORG, Scenario};
use test_support::mqtt::Connect;
use test_support::{Certs, DeploymentMode, RawClient, eventually, unique_id};

const NOT_AUTHORIZED: u8 = 5;
const SERVER_UNAVAILABLE: u8 = 3;

#[tokio::test]
async fn embedded_client_with_the_certificate_of_another_client_was_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let settings = certs.broker_settings();
    let settings = settings
        .each_ref()
        .map(|(key, value)| (*key, value.as_str()));
    let scenario = Scenario::start(DeploymentMode::Embedded, &settings).await;
    let test_support::Deployment::Embedded(connector) = &scenario.deployment else {
        panic!("the deployment is embedded");
    };
    let address = connector.mqtts_address.clone().unwrap();
    let (own_id, claimed_id) = (unique_id("own"), unique_id("claimed"));
    certs.issue_client_certificate(&own_id).await;
    let config = certs.client_tls_config(Some(&own_id));
    let mut client = RawClient::connect_tls(&address, config).await.unwrap();
    let code = client.send_connect(&Connect::new(&claimed_id)).await;
    assert_eq!(code, NOT_AUTHORIZED);
    // Support may ask about the claimed id or about the name on the certificate.
    for client_id in [&claimed_id, &own_id] {
        let summary = "The client has never been connected: the broker rejected it at TIME with the \
             reason cn_mismatch.";
        let suggestion = "The client id and the common name of the certificate of PEER differ: configure \
             this machine to use its own certificate, and the common name of the certificate as its \
             client id.";
        let diagnosis = scenario
            .check_why(client_id, "unknown", summary, suggestion)
            .await;
        assert_eq!(diagnosis["broker_rejections"][0]["reason"], "cn_mismatch");
    }
}

#[tokio::test]
async fn embedded_client_that_connects_too_often_was_rate_limited() {
    let settings = [
        ("broker.connect_limit.burst", "2"),
        ("broker.connect_limit.per_second", "0.001"),
    ];
    let mut scenario = Scenario::start(DeploymentMode::Embedded, &settings).await;
    let client_id = unique_id("limited");
    let client = scenario.connect(&client_id).await;
    client.disconnect().await;
    let left = ("offline", "client");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, left])
        .await;
    let connect = async || {
        let address = scenario.deployment.mqtt_address();
        let mut client = RawClient::connect_tcp(&address).await;
        client.send_connect(&Connect::new(&client_id)).await
    };
    eventually("a rejected connection", || async {
        (connect().await == SERVER_UNAVAILABLE).then_some(())
    })
    .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: the client closed its \
         connection, and the broker rejected it at TIME with the reason rate_limited.";
    let suggestion = "The client connects more often than broker.connect_limit allows, latest from PEER: \
         find out why it reconnects, for example because two machines use the same client id. The broker \
         accepts it again as soon as it connects less often.";
    scenario
        .check_why(&client_id, "disconnected", summary, suggestion)
        .await;
}

#[tokio::test]
async fn distributed_diagnosis_refers_to_the_log_of_the_broker() {
    let scenario = Scenario::start(DeploymentMode::Distributed, &[]).await;
    let client_id = unique_id("rejected");
    let mut connect = Connect::new(&client_id);
    connect.protocol_level = 9;
    let mut client = RawClient::connect_tcp(&scenario.deployment.mqtt_address()).await;
    assert_ne!(client.send_connect(&connect).await, 0);
    let diagnosis = scenario.diagnosis(&client_id).await;
    assert_eq!(diagnosis["state"], "unknown");
    assert_eq!(diagnosis["broker_rejections"], serde_json::Value::Null);
    let why = scenario.why(&client_id).await;
    assert_eq!(why.code, Some(1));
    let suggestion = why.suggestion.unwrap();
    assert!(
        suggestion.ends_with(super::EXTERNAL_BROKER_HINT),
        "{suggestion}"
    );
}
