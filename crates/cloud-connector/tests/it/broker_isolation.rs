//! Tests that the embedded broker restricts a client to its own topics and to the client id of its
//! certificate.

use serde_json::json;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{
    CLOSED_WITHOUT_REASON, Connect, control_out_topic, data_in_topic, offline_message,
    online_message,
};
use test_support::{Certs, Connector, RawClient, eventually, unique_id};

// Codes in the response of the broker if it rejects a packet. `V5` is MQTT 5, and `V311` is MQTT
// 3.1.1.
const CLIENT_ID_INVALID_V5: u8 = 0x85;
const NOT_AUTHORIZED_V5: u8 = 0x87;
const NOT_AUTHORIZED_V311: u8 = 5;
const SUBSCRIBE_FAILURE_V311: u8 = 0x80;

#[tokio::test]
async fn a_client_cannot_publish_outside_its_own_topics() {
    let connector = Connector::start().await;
    let (victim_id, attacker_id) = (unique_id("victim"), unique_id("attacker"));
    let address = &connector.mqtt_address;
    let mut victim_client =
        RawClient::connect(address, &Connect::new(&victim_id).offline_will()).await;
    victim_client
        .must_publish(&control_out_topic(&victim_id), &online_message())
        .await;
    assert_eq!(victim_client.subscribe(&data_in_topic(&victim_id)).await, 1);

    let offline = offline_message().to_string();
    for version in [4, 5] {
        let mut connect = Connect::new(&attacker_id);
        connect.protocol_level = version;
        let mut client = RawClient::connect(address, &connect).await;
        for topic in [
            control_out_topic(&victim_id),
            data_in_topic(&victim_id),
            data_in_topic(&attacker_id),
            "redhat/insights".to_owned(),
            "$SYS/x".to_owned(),
            "other/topic".to_owned(),
        ] {
            let response = client.publish(&topic, offline.as_bytes()).await;
            let response = response.expect("the broker closed the connection");
            if version == 5 {
                assert_eq!(response.body[2], NOT_AUTHORIZED_V5, "{topic}");
            } else {
                // In MQTT 3.1.1, a PUBACK has no reason code. Its body is a packet id of two bytes.
                assert_eq!(response.body.len(), 2, "{topic}");
            }
        }
        // The broker also rejects a retained publish.
        client
            .send_publish(&data_in_topic(&victim_id), offline.as_bytes(), true)
            .await;
        assert!(client.read_packet().await.is_some());
        // The attacker can still publish to its own topics.
        client
            .must_publish(&control_out_topic(&attacker_id), &online_message())
            .await;
        client.disconnect().await;
    }
    assert!(
        connector
            .list_client_ids(DEFAULT_ORG_ID)
            .await
            .contains(&victim_id)
    );
    // The first message that the victim receives is from the connector, not from the attacker.
    let (status, sent) = connector
        .send_message(&victim_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 201);
    let (_, message) = victim_client.next_message().await;
    assert_eq!(message["message_id"], sent["id"]);
    assert!(
        connector
            .read_metric(
                "cloud_connector_broker_rejections_total",
                "forbidden_publish_topic"
            )
            .await
            >= 12.0
    );
}

#[tokio::test]
async fn a_client_cannot_subscribe_outside_its_own_topics() {
    let connector = Connector::start().await;
    let client_id = unique_id("subscriber");
    for (version, rejection_code) in [(4, SUBSCRIBE_FAILURE_V311), (5, NOT_AUTHORIZED_V5)] {
        let mut connect = Connect::new(&client_id);
        connect.protocol_level = version;
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        for filter in [
            data_in_topic("another"),
            control_out_topic("another"),
            control_out_topic(&client_id),
            "redhat/insights/+/data/in".to_owned(),
            format!("redhat/insights/{client_id}/#"),
            format!("redhat/insights/{client_id}/+/in"),
            "#".to_owned(),
            "$SYS/#".to_owned(),
        ] {
            let code = client.subscribe(&filter).await;
            assert!(
                code == rejection_code || (version == 5 && code >= 0x80),
                "{filter}: {code:#x}"
            );
        }
        assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
        client.disconnect().await;
    }
}

#[tokio::test]
async fn a_client_cannot_set_a_last_will_outside_its_own_topics() {
    let connector = Connector::start().await;
    let (victim_id, attacker_id) = (unique_id("victim"), unique_id("attacker"));
    let mut victim_client =
        RawClient::connect(&connector.mqtt_address, &Connect::new(&victim_id)).await;
    victim_client
        .must_publish(&control_out_topic(&victim_id), &online_message())
        .await;
    for (connect, rejection_code) in [
        (Connect::new(&attacker_id), NOT_AUTHORIZED_V311),
        (Connect::new(&attacker_id).with_mqtt_5(), NOT_AUTHORIZED_V5),
    ] {
        for topic in [
            control_out_topic(&victim_id),
            data_in_topic(&victim_id),
            data_in_topic(&attacker_id),
        ] {
            let connect = connect
                .clone()
                .will(&topic, offline_message().to_string().as_bytes());
            let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
            assert_eq!(
                client.send_connect(&connect).await,
                rejection_code,
                "{topic}"
            );
            client.wait_for_close().await;
        }
    }
    assert!(
        connector
            .list_client_ids(DEFAULT_ORG_ID)
            .await
            .contains(&victim_id)
    );
}

#[tokio::test]
async fn client_id_must_match_the_common_name_of_the_certificate() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    let (client_id, other_id) = (unique_id("certified"), unique_id("other"));
    certs.issue_client_certificate(&client_id).await;
    for (claimed_id, is_v5, rejection_code) in [
        (&other_id, false, NOT_AUTHORIZED_V311),
        (&other_id, true, NOT_AUTHORIZED_V5),
        (&client_id.to_uppercase(), true, NOT_AUTHORIZED_V5),
    ] {
        let connect = Connect::new(claimed_id);
        let connect = if is_v5 {
            connect.with_mqtt_5()
        } else {
            connect
        };
        let config = certs.client_tls_config(Some(&client_id));
        let mut client = RawClient::connect_tls(&address, config).await.unwrap();
        assert_eq!(
            client.send_connect(&connect).await,
            rejection_code,
            "{claimed_id}"
        );
    }
    let config = certs.client_tls_config(Some(&client_id));
    let mut client = RawClient::connect_tls(&address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await, [client_id]);
}

#[tokio::test]
async fn client_certificates_that_are_missing_or_from_another_ca_are_rejected() {
    let (certs, builder) = Certs::connector_builder().await;
    let other_dir = tempfile::tempdir().unwrap();
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    let client_id = unique_id("foreign");
    let other_certs = Certs::init(other_dir.path()).await;
    other_certs.issue_client_certificate(&client_id).await;
    // The client trusts the CA of the broker, but another CA issued the client's certificate.
    for extension in ["pem", "key"] {
        let file = format!("{client_id}.{extension}");
        std::fs::copy(other_certs.file_path(&file), certs.file_path(&file)).unwrap();
    }
    for config in [
        certs.client_tls_config(None),
        certs.client_tls_config(Some(&client_id)),
    ] {
        // In TLS 1.3, the client can finish the handshake before the broker rejects the
        // certificate. The client detects the rejection only when it reads.
        if let Ok(mut client) = RawClient::connect_tls(&address, config).await {
            assert_eq!(
                client.send_connect(&Connect::new(&client_id)).await,
                CLOSED_WITHOUT_REASON
            );
        }
    }
    // The broker counts a rejection after it has closed the connection.
    eventually("two rejections", || async {
        let metric = "cloud_connector_broker_rejections_total";
        let rejections = connector.read_metric(metric, "tls_handshake_failed").await;
        (rejections >= 2.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn invalid_client_ids_are_rejected() {
    let connector = Connector::start().await;
    for client_id in ["a/b", "+", "#", "a+b", &"x".repeat(256)] {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        let code = client
            .send_connect(&Connect::new(client_id).with_mqtt_5())
            .await;
        assert_eq!(code, CLIENT_ID_INVALID_V5, "{client_id:?}");
    }
}
