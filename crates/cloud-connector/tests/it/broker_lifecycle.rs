//! Tests of the start and the end of connections to the embedded broker: connections that send
//! nothing, takeovers, last wills, rate and connection limits, and certificate reload.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{
    CLOSED_WITHOUT_REASON, Connect, control_out_topic, data_in_topic, offline_message,
    online_message,
};
use test_support::{Certs, Connector, RawClient, eventually, unique_id};

/// MQTT 5 reason code of a CONNACK that rejects a client because of the rate limit.
const CONNECTION_RATE_EXCEEDED: u8 = 0x9f;

#[tokio::test]
async fn silent_connections_do_not_delay_other_clients() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let tls_address = connector.mqtts_address.clone().unwrap();
    let mut silent_connections = Vec::new();
    for _ in 0..50 {
        silent_connections.push(RawClient::connect_tcp(&tls_address).await);
        silent_connections.push(RawClient::connect_tcp(&connector.mqtt_address).await);
    }
    // This client sends only the first bytes of a CONNECT.
    let mut incomplete_client = RawClient::connect_tcp(&connector.mqtt_address).await;
    incomplete_client.write(&[0x10, 60, 0, 4]).await;

    let client_id = unique_id("prompt");
    certs.issue_client_certificate(&client_id).await;
    let started_at = std::time::Instant::now();
    let config = certs.client_tls_config(Some(&client_id));
    let mut client = RawClient::connect_tls(&tls_address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let plain_id = unique_id("plain");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&plain_id)).await;
    client
        .must_publish(&control_out_topic(&plain_id), &online_message())
        .await;
    // The broker closes silent connections after ten seconds. If the two clients had to wait for
    // the close, they would need more than five seconds.
    assert!(
        started_at.elapsed() < Duration::from_secs(5),
        "{:?}",
        started_at.elapsed()
    );
}

#[tokio::test]
async fn client_is_still_connected_after_a_session_takeover() {
    let connector = Connector::start().await;
    for round in 0..20 {
        let client_id = unique_id("takeover");
        let connect = if round % 2 == 0 {
            Connect::new(&client_id).offline_will()
        } else {
            Connect::new(&client_id).with_mqtt_5().offline_will()
        };
        let mut old_client = RawClient::connect(&connector.mqtt_address, &connect).await;
        old_client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        let mut new_client = RawClient::connect(&connector.mqtt_address, &connect).await;
        // The broker closes the old connection only after it has processed the last will.
        old_client.wait_for_close().await;
        // Another client publishes a message. When the broker acknowledges this message, all
        // messages of the old session are recorded.
        let other_id = unique_id("after");
        let mut other_client =
            RawClient::connect(&connector.mqtt_address, &Connect::new(&other_id)).await;
        other_client
            .must_publish(&control_out_topic(&other_id), &online_message())
            .await;
        // The new session has published nothing. The client is listed only if the takeover did not
        // delete its row.
        assert!(
            connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id),
            "round {round}: not listed after the takeover"
        );
        assert_eq!(new_client.subscribe(&data_in_topic(&client_id)).await, 1);
        let (status, _) = connector
            .send_message(&client_id, json!({"directive": "x"}))
            .await;
        assert_eq!(status, 201);
        let (topic, _) = new_client.next_message().await;
        assert_eq!(topic, data_in_topic(&client_id));
        // When the new session ends, the client is no longer listed.
        drop(new_client);
        connector.wait_until_disconnected(&client_id).await;
    }
}

#[tokio::test]
async fn client_is_no_longer_listed_after_mqtt_disconnect_without_offline_message() {
    let connector = Connector::start().await;
    let client_id = unique_id("no-offline");
    let mut client = RawClient::connect(
        &connector.mqtt_address,
        &Connect::new(&client_id).offline_will(),
    )
    .await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    client.disconnect().await;
    connector.wait_until_disconnected(&client_id).await;
}

#[tokio::test]
async fn client_without_last_will_is_no_longer_listed_after_its_connection_closes() {
    let connector = Connector::start().await;
    let client_id = unique_id("no-will");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    drop(client);
    connector.wait_until_disconnected(&client_id).await;
}

#[tokio::test]
async fn connect_rate_limit_applies_per_client() {
    let connector = Connector::builder()
        .set("broker.connect_limit.burst", 5)
        .set("broker.connect_limit.per_second", 0.01)
        .start()
        .await;
    let limited_id = unique_id("limited");
    let mut connack_codes = Vec::new();
    for _ in 0..10 {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        connack_codes.push(
            client
                .send_connect(&Connect::new(&limited_id).with_mqtt_5())
                .await,
        );
    }
    assert_eq!(connack_codes[..5], [0; 5]);
    assert_eq!(connack_codes[5..], [CONNECTION_RATE_EXCEEDED; 5]);
    let other_id = unique_id("other");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&other_id)).await;
    client
        .must_publish(&control_out_topic(&other_id), &online_message())
        .await;
}

#[tokio::test]
async fn connections_above_max_connections_are_rejected() {
    let connector = Connector::builder()
        .set("broker.max_connections", 3)
        .start()
        .await;
    let mut clients = Vec::new();
    for n in 0..3 {
        let connect = Connect::new(&unique_id(&format!("client-{n}")));
        clients.push(RawClient::connect(&connector.mqtt_address, &connect).await);
    }
    let excess_connect = Connect::new(&unique_id("excess"));
    let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
    assert_eq!(
        client.send_connect(&excess_connect).await,
        CLOSED_WITHOUT_REASON
    );
    clients.pop();
    eventually("a free connection slot", || async {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        (client.send_connect(&excess_connect).await == 0).then_some(())
    })
    .await;
}

/// Returns whether the broker accepts the client with this TLS configuration.
async fn can_connect(address: &str, config: &Arc<rustls::ClientConfig>, client_id: &str) -> bool {
    match RawClient::connect_tls(address, config.clone()).await {
        Ok(mut client) => client.send_connect(&Connect::new(client_id)).await == 0,
        Err(_) => false,
    }
}

#[tokio::test]
async fn sighup_reloads_the_client_ca_and_ignores_an_invalid_file() {
    let (certs, builder) = Certs::connector_builder().await;
    let other_dir = tempfile::tempdir().unwrap();
    let new_certs = Certs::init(other_dir.path()).await;
    let trusted_ca = certs.file_path("trusted.pem");
    std::fs::copy(certs.file_path("ca.pem"), &trusted_ca).unwrap();
    let builder = builder.set("broker.tls.client_ca", trusted_ca.display());
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    let (old_client_id, new_client_id) = (unique_id("old"), unique_id("new"));
    certs.issue_client_certificate(&old_client_id).await;
    new_certs.issue_client_certificate(&new_client_id).await;
    for extension in ["pem", "key"] {
        let file = format!("{new_client_id}.{extension}");
        std::fs::copy(new_certs.file_path(&file), certs.file_path(&file)).unwrap();
    }
    let old_config = certs.client_tls_config(Some(&old_client_id));
    let new_config = certs.client_tls_config(Some(&new_client_id));
    assert!(can_connect(&address, &old_config, &old_client_id).await);
    assert!(!can_connect(&address, &new_config, &new_client_id).await);

    // Replace the old CA with the new CA.
    std::fs::copy(new_certs.file_path("ca.pem"), &trusted_ca).unwrap();
    connector.send_signal("HUP");
    eventually("the new client to be accepted", || async {
        can_connect(&address, &new_config, &new_client_id)
            .await
            .then_some(())
    })
    .await;
    assert!(!can_connect(&address, &old_config, &old_client_id).await);

    // An invalid file does not replace the CA in use.
    std::fs::write(&trusted_ca, "invalid").unwrap();
    connector.send_signal("HUP");
    let reloads_metric = "cloud_connector_tls_certificate_reloads_total";
    eventually("a failed reload", || async {
        (connector.read_metric(reloads_metric, "failed").await > 0.0).then_some(())
    })
    .await;
    assert!(can_connect(&address, &new_config, &new_client_id).await);
}

#[tokio::test]
async fn a_revoked_certificate_is_rejected() {
    let (certs, builder) = Certs::connector_builder().await;
    let (valid_id, revoked_id) = (unique_id("valid"), unique_id("revoked"));
    certs.issue_client_certificate(&valid_id).await;
    certs.issue_client_certificate(&revoked_id).await;
    let crl = certs.revoke_client_certificate(&revoked_id);
    let connector = builder.set("broker.tls.crl", crl.display()).start().await;
    let address = connector.mqtts_address.clone().unwrap();
    assert!(
        can_connect(
            &address,
            &certs.client_tls_config(Some(&valid_id)),
            &valid_id
        )
        .await
    );
    assert!(
        !can_connect(
            &address,
            &certs.client_tls_config(Some(&revoked_id)),
            &revoked_id
        )
        .await
    );
}

#[tokio::test]
async fn client_with_a_will_delay_is_removed_from_the_list_without_delay() {
    let connector = Connector::start().await;
    for last_packet in [
        // The client closes the TCP connection without DISCONNECT.
        &[][..],
        // DISCONNECT with reason code 4, which requests publication of the last will.
        &[0xe0, 0x02, 0x04, 0x00],
        // DISCONNECT with reason code 4 and with a session expiry interval of zero.
        &[0xe0, 0x07, 0x04, 0x05, 0x11, 0, 0, 0, 0],
    ] {
        let client_id = unique_id("delayed");
        let mut connect = Connect::new(&client_id).with_mqtt_5().offline_will();
        connect.session_expiry_seconds = 7200;
        connect.will_delay_seconds = 3600;
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        client.write(last_packet).await;
        drop(client);
        connector.wait_until_disconnected(&client_id).await;
        // The client can connect again.
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        assert!(
            connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id)
        );
    }
}

#[tokio::test]
async fn retained_and_qos_2_presence_messages_are_recorded() {
    let connector = Connector::start().await;
    for version in [4, 5] {
        let client_id = unique_id("qos2");
        let mut connect = Connect::new(&client_id);
        connect.protocol_level = version;
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        let payload = online_message().to_string();
        client
            .publish_qos2(&control_out_topic(&client_id), payload.as_bytes(), true)
            .await;
        assert!(
            connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id)
        );
        client
            .publish_qos2(
                &control_out_topic(&client_id),
                offline_message().to_string().as_bytes(),
                false,
            )
            .await;
        assert!(
            !connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id)
        );
    }
}
