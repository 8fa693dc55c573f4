//! Start and end of connections to the embedded broker: silent peers, takeovers, last wills, rate
//! and connection limits, and certificate reload.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::connector::DEFAULT_ORG_ID;
use crate::support::mqtt::{CLOSED_WITHOUT_REASON, Connect, control_out, data_in, offline, online};
use crate::support::{Certs, Connector, RawClient, eventually, unique_id};

/// MQTT 5 reason code in CONNACK.
const CONNECTION_RATE_EXCEEDED: u8 = 0x9f;

#[tokio::test]
async fn silent_connections_do_not_delay_other_clients() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let tls_address = connector.mqtts_address.clone().unwrap();
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(RawClient::connect_tcp(&tls_address).await);
        silent.push(RawClient::connect_tcp(&connector.mqtt_address).await);
    }
    // A client that sends only the first bytes of a CONNECT.
    let mut incomplete = RawClient::connect_tcp(&connector.mqtt_address).await;
    incomplete.write(&[0x10, 60, 0, 4]).await;

    let client_id = unique_id("prompt");
    certs.issue(&client_id).await;
    let started = std::time::Instant::now();
    let config = certs.client_config(Some(&client_id));
    let mut client = RawClient::connect_tls(&tls_address, config).await.unwrap();
    assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    let plain_id = unique_id("plain");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&plain_id)).await;
    client
        .must_publish(&control_out(&plain_id), &online())
        .await;
    // The broker closes silent connections after ten seconds. A client that had to wait for that
    // would exceed five seconds.
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn takeover_keeps_the_client_connected() {
    let connector = Connector::start().await;
    for round in 0..20 {
        let client_id = unique_id("takeover");
        let connect = if round % 2 == 0 {
            Connect::new(&client_id).offline_will()
        } else {
            Connect::new(&client_id).v5().offline_will()
        };
        let mut old = RawClient::connect(&connector.mqtt_address, &connect).await;
        old.must_publish(&control_out(&client_id), &online()).await;
        let mut new = RawClient::connect(&connector.mqtt_address, &connect).await;
        // The broker closes the old connection only after it has processed the last will.
        old.wait_for_close().await;
        // When this message is acknowledged, all messages of the old session are recorded.
        let other_id = unique_id("after");
        let mut other = RawClient::connect(&connector.mqtt_address, &Connect::new(&other_id)).await;
        other.must_publish(&control_out(&other_id), &online()).await;
        // The new session has published nothing. The client is listed only if the takeover kept its
        // row.
        assert!(
            connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id),
            "round {round}: not listed after the takeover"
        );
        assert_eq!(new.subscribe(&data_in(&client_id)).await, 1);
        let (status, _) = connector
            .send_message(&client_id, json!({"directive": "x"}))
            .await;
        assert_eq!(status, 201);
        let (topic, _) = new.next_message().await;
        assert_eq!(topic, data_in(&client_id));
        // The end of the new session still ends the connection.
        drop(new);
        connector.wait_until_disconnected(&client_id).await;
    }
}

#[tokio::test]
async fn mqtt_disconnect_without_offline_message_ends_the_connection() {
    let connector = Connector::start().await;
    let client_id = unique_id("no-offline");
    let mut client = RawClient::connect(
        &connector.mqtt_address,
        &Connect::new(&client_id).offline_will(),
    )
    .await;
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    client.disconnect().await;
    connector.wait_until_disconnected(&client_id).await;
}

#[tokio::test]
async fn lost_connection_without_last_will_ends_the_connection() {
    let connector = Connector::start().await;
    let client_id = unique_id("no-will");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out(&client_id), &online())
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
    let mut codes = Vec::new();
    for _ in 0..10 {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        codes.push(client.send_connect(&Connect::new(&limited_id).v5()).await);
    }
    assert_eq!(codes[..5], [0; 5]);
    assert_eq!(codes[5..], [CONNECTION_RATE_EXCEEDED; 5]);
    let other_id = unique_id("other");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&other_id)).await;
    client
        .must_publish(&control_out(&other_id), &online())
        .await;
}

#[tokio::test]
async fn max_connections_is_enforced() {
    let connector = Connector::builder()
        .set("broker.max_connections", 3)
        .start()
        .await;
    let mut clients = Vec::new();
    for n in 0..3 {
        let connect = Connect::new(&unique_id(&format!("client-{n}")));
        clients.push(RawClient::connect(&connector.mqtt_address, &connect).await);
    }
    let excess = Connect::new(&unique_id("excess"));
    let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
    assert_eq!(client.send_connect(&excess).await, CLOSED_WITHOUT_REASON);
    clients.pop();
    eventually("a free connection slot", || async {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        (client.send_connect(&excess).await == 0).then_some(())
    })
    .await;
}

/// Whether the broker accepts the client with this TLS configuration.
async fn can_connect(address: &str, config: &Arc<rustls::ClientConfig>, client_id: &str) -> bool {
    match RawClient::connect_tls(address, config.clone()).await {
        Ok(mut client) => client.send_connect(&Connect::new(client_id)).await == 0,
        Err(_) => false,
    }
}

#[tokio::test]
async fn sighup_reloads_certificates_and_ignores_invalid_ones() {
    let (certs, builder) = Certs::connector_builder().await;
    let other_dir = tempfile::tempdir().unwrap();
    let new_certs = Certs::init(other_dir.path()).await;
    let trusted_ca = certs.file("trusted.pem");
    std::fs::copy(certs.file("ca.pem"), &trusted_ca).unwrap();
    let builder = builder.set("broker.tls.client_ca", trusted_ca.display());
    let connector = builder.start().await;
    let address = connector.mqtts_address.clone().unwrap();
    let (old, new) = (unique_id("old"), unique_id("new"));
    certs.issue(&old).await;
    new_certs.issue(&new).await;
    for extension in ["pem", "key"] {
        let file = format!("{new}.{extension}");
        std::fs::copy(new_certs.file(&file), certs.file(&file)).unwrap();
    }
    let old_config = certs.client_config(Some(&old));
    let new_config = certs.client_config(Some(&new));
    assert!(can_connect(&address, &old_config, &old).await);
    assert!(!can_connect(&address, &new_config, &new).await);

    // The new CA replaces the old one.
    std::fs::copy(new_certs.file("ca.pem"), &trusted_ca).unwrap();
    connector.signal("HUP");
    eventually("the new client to be accepted", || async {
        can_connect(&address, &new_config, &new).await.then_some(())
    })
    .await;
    assert!(!can_connect(&address, &old_config, &old).await);

    // An invalid file does not replace the CA in use.
    std::fs::write(&trusted_ca, "invalid").unwrap();
    connector.signal("HUP");
    let reloads = "cloud_connector_tls_certificate_reloads_total";
    eventually("a failed reload", || async {
        (connector.metric(reloads, "failed").await > 0.0).then_some(())
    })
    .await;
    assert!(can_connect(&address, &new_config, &new).await);
}

#[tokio::test]
async fn a_revoked_certificate_is_rejected() {
    let (certs, builder) = Certs::connector_builder().await;
    let (valid, revoked) = (unique_id("valid"), unique_id("revoked"));
    certs.issue(&valid).await;
    certs.issue(&revoked).await;
    let crl = certs.revoke(&revoked);
    let connector = builder.set("broker.tls.crl", crl.display()).start().await;
    let address = connector.mqtts_address.clone().unwrap();
    assert!(can_connect(&address, &certs.client_config(Some(&valid)), &valid).await);
    assert!(!can_connect(&address, &certs.client_config(Some(&revoked)), &revoked).await);
}

#[tokio::test]
async fn will_delay_does_not_delay_the_end_of_a_connection() {
    let connector = Connector::start().await;
    for last_packet in [
        // The client closes the TCP connection without DISCONNECT.
        &[][..],
        // DISCONNECT with reason code 4, which requests publication of the last will.
        &[0xe0, 0x02, 0x04, 0x00],
        // The same, with a session expiry interval of zero.
        &[0xe0, 0x07, 0x04, 0x05, 0x11, 0, 0, 0, 0],
    ] {
        let client_id = unique_id("delayed");
        let mut connect = Connect::new(&client_id).v5().offline_will();
        connect.session_expiry = 7200;
        connect.will_delay = 3600;
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        client
            .must_publish(&control_out(&client_id), &online())
            .await;
        client.write(last_packet).await;
        drop(client);
        connector.wait_until_disconnected(&client_id).await;
        // The client can connect again.
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        client
            .must_publish(&control_out(&client_id), &online())
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
async fn retained_and_qos_2_publishes_are_recorded() {
    let connector = Connector::start().await;
    for version in [4, 5] {
        let client_id = unique_id("qos2");
        let mut connect = Connect::new(&client_id);
        connect.version = version;
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        let payload = online().to_string();
        client
            .publish_qos2(&control_out(&client_id), payload.as_bytes(), true)
            .await;
        assert!(
            connector
                .list_client_ids(DEFAULT_ORG_ID)
                .await
                .contains(&client_id)
        );
        client
            .publish_qos2(
                &control_out(&client_id),
                offline().to_string().as_bytes(),
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
