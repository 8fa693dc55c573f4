//! Connections come and go: takeovers, silent peers, storms, ends without a word.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::mqtt::{Connect, control_out, data_in, offline, online};
use crate::support::{Certs, Connector, RawClient, eventually, unique};

#[tokio::test]
async fn a_silent_peer_delays_nobody() {
    let (certs, setup) = Certs::setup().await;
    let connector = setup.start().await;
    let tls = connector.mqtts.clone().unwrap();
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(RawClient::dial(&tls).await);
        silent.push(RawClient::dial(&connector.mqtt).await);
    }
    // Half a CONNECT is as good as silence.
    let mut half = RawClient::dial(&connector.mqtt).await;
    half.write(&[0x10, 60, 0, 4]).await;

    let me = unique("prompt");
    certs.issue(&me).await;
    let started = std::time::Instant::now();
    let config = certs.client_config(Some(&me));
    let mut client = RawClient::dial_tls(&tls, config).await.unwrap();
    assert_eq!(client.handshake(&Connect::new(&me)).await, 0);
    client.must_publish(&control_out(&me), &online()).await;
    let other = unique("plain");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&other)).await;
    client.must_publish(&control_out(&other), &online()).await;
    // The silent ones have ten seconds; whoever waited for one of them would need as long.
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_takeover_does_not_lose_the_new_sessions_connection() {
    let connector = Connector::start().await;
    for round in 0..20 {
        let me = unique("twice");
        let connect = if round % 2 == 0 {
            Connect::new(&me).offline_will()
        } else {
            Connect::new(&me).v5().offline_will()
        };
        let mut old = RawClient::connect(&connector.mqtt, &connect).await;
        old.must_publish(&control_out(&me), &online()).await;
        let mut new = RawClient::connect(&connector.mqtt, &connect).await;
        // The broker hangs up on the old one only after its will was dealt with.
        old.closed().await;
        // Whatever the old one's end had to say was recorded before this.
        let other = unique("after");
        let mut after = RawClient::connect(&connector.mqtt, &Connect::new(&other)).await;
        after.must_publish(&control_out(&other), &online()).await;
        // The new session says nothing: the row must have outlived the takeover.
        assert!(
            connector.listed("10000").await.contains(&me),
            "round {round}: lost"
        );
        assert_eq!(new.subscribe(&data_in(&me)).await, 1);
        let (status, _) = connector.send(&me, json!({"directive": "x"})).await;
        assert_eq!(status, 201);
        let (topic, _) = new.message().await;
        assert_eq!(topic, data_in(&me));
        // And the new session's own end still counts.
        drop(new);
        connector.wait_for(&me, false).await;
    }
}

#[tokio::test]
async fn a_clean_mqtt_disconnect_without_a_word_ends_the_connection() {
    let connector = Connector::start().await;
    let me = unique("wordless");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me).offline_will()).await;
    client.must_publish(&control_out(&me), &online()).await;
    client.disconnect().await;
    connector.wait_for(&me, false).await;
}

#[tokio::test]
async fn a_lost_connection_without_a_will_ends_too() {
    let connector = Connector::start().await;
    let me = unique("no-will");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &online()).await;
    drop(client);
    connector.wait_for(&me, false).await;
}

#[tokio::test]
async fn a_client_that_ignores_back_off_is_held_back_and_starves_nobody() {
    let connector = Connector::setup()
        .set("broker.connect_limit.burst", 5)
        .set("broker.connect_limit.per_second", 0.01)
        .start()
        .await;
    let storming = unique("storm");
    let mut codes = Vec::new();
    for _ in 0..10 {
        let mut client = RawClient::dial(&connector.mqtt).await;
        codes.push(client.handshake(&Connect::new(&storming).v5()).await);
    }
    assert_eq!(codes[..5], [0; 5]);
    // 0x9f: connection rate exceeded.
    assert_eq!(codes[5..], [0x9f; 5]);
    let calm = unique("calm");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&calm)).await;
    client.must_publish(&control_out(&calm), &online()).await;
}

#[tokio::test]
async fn connections_are_bounded() {
    let connector = Connector::setup()
        .set("broker.max_connections", 3)
        .start()
        .await;
    let mut held = Vec::new();
    for n in 0..3 {
        let connect = Connect::new(&unique(&format!("held-{n}")));
        held.push(RawClient::connect(&connector.mqtt, &connect).await);
    }
    let late = Connect::new(&unique("late"));
    let mut client = RawClient::dial(&connector.mqtt).await;
    assert_eq!(client.handshake(&late).await, 255);
    held.pop();
    eventually("a free place", || async {
        let mut client = RawClient::dial(&connector.mqtt).await;
        (client.handshake(&late).await == 0).then_some(())
    })
    .await;
}

/// Whether the broker lets this client in with this certificate.
async fn is_let_in(address: &str, config: &Arc<rustls::ClientConfig>, me: &str) -> bool {
    match RawClient::dial_tls(address, config.clone()).await {
        Ok(mut client) => client.handshake(&Connect::new(me)).await == 0,
        Err(_) => false,
    }
}

#[tokio::test]
async fn certificates_are_read_again_on_sighup_and_bad_ones_change_nothing() {
    let (certs, setup) = Certs::setup().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certs::init(elsewhere.path()).await;
    let trusted = certs.file("trusted.pem");
    std::fs::copy(certs.file("ca.pem"), &trusted).unwrap();
    let setup = setup.set("broker.tls.client_ca", trusted.display());
    let connector = setup.start().await;
    let address = connector.mqtts.clone().unwrap();
    let (old, new) = (unique("old"), unique("new"));
    certs.issue(&old).await;
    others.issue(&new).await;
    for name in ["pem", "key"] {
        let file = format!("{new}.{name}");
        std::fs::copy(others.file(&file), certs.file(&file)).unwrap();
    }
    let old_config = certs.client_config(Some(&old));
    let new_config = certs.client_config(Some(&new));
    assert!(is_let_in(&address, &old_config, &old).await);
    assert!(!is_let_in(&address, &new_config, &new).await);

    // Another authority is trusted now, and the old one no longer.
    std::fs::copy(others.file("ca.pem"), &trusted).unwrap();
    connector.signal("HUP");
    eventually("the new authority", || async {
        is_let_in(&address, &new_config, &new).await.then_some(())
    })
    .await;
    assert!(!is_let_in(&address, &old_config, &old).await);

    // A file that cannot be used leaves what is in force alone.
    std::fs::write(&trusted, "nonsense").unwrap();
    connector.signal("HUP");
    let reloads = "cloud_connector_tls_certificate_reloads_total";
    eventually("a reload that failed", || async {
        (connector.metric(reloads, "kept_old").await > 0.0).then_some(())
    })
    .await;
    assert!(is_let_in(&address, &new_config, &new).await);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused() {
    let (certs, setup) = Certs::setup().await;
    let (good, revoked) = (unique("good"), unique("revoked"));
    certs.issue(&good).await;
    certs.issue(&revoked).await;
    let list = certs.revoke(&revoked);
    let connector = setup.set("broker.tls.crl", list.display()).start().await;
    let address = connector.mqtts.clone().unwrap();
    assert!(is_let_in(&address, &certs.client_config(Some(&good)), &good).await);
    assert!(!is_let_in(&address, &certs.client_config(Some(&revoked)), &revoked).await);
}

#[tokio::test]
async fn a_connection_ends_with_its_link_whatever_its_will_waits_for() {
    let connector = Connector::start().await;
    // MQTT 5: a will that would wait for an hour, a session that outlives the connection.
    for farewell in [
        &[][..],
        &[0xe0, 0x02, 0x04, 0x00],
        &[0xe0, 0x07, 0x04, 0x05, 0x11, 0, 0, 0, 0],
    ] {
        let me = unique("delayed");
        let mut connect = Connect::new(&me).v5().offline_will();
        connect.session_expiry = 7200;
        connect.will_delay = 3600;
        let mut client = RawClient::connect(&connector.mqtt, &connect).await;
        client.must_publish(&control_out(&me), &online()).await;
        client.write(farewell).await;
        drop(client);
        connector.wait_for(&me, false).await;
        // And it can come back.
        let mut client = RawClient::connect(&connector.mqtt, &connect).await;
        client.must_publish(&control_out(&me), &online()).await;
        assert!(connector.listed("10000").await.contains(&me));
    }
}

#[tokio::test]
async fn retained_and_qos_2_publishes_count_like_any_other() {
    let connector = Connector::start().await;
    for version in [4, 5] {
        let me = unique("thorough");
        let mut connect = Connect::new(&me);
        connect.version = version;
        let mut client = RawClient::connect(&connector.mqtt, &connect).await;
        let payload = online().to_string();
        client
            .publish_twice_assured(&control_out(&me), payload.as_bytes(), true)
            .await;
        assert!(connector.listed("10000").await.contains(&me));
        client
            .publish_twice_assured(&control_out(&me), offline().to_string().as_bytes(), false)
            .await;
        assert!(!connector.listed("10000").await.contains(&me));
    }
}
