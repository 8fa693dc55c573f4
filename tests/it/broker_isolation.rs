//! A client reaches its own topics and nothing else, and cannot be another client.

use serde_json::json;

use crate::support::mqtt::{Connect, control_out, data_in, offline, online};
use crate::support::{Certs, Connector, RawClient, unique};

const NOT_AUTHORIZED_V5: u8 = 0x87;
const NOT_AUTHORIZED_V311: u8 = 5;
const SUBSCRIBE_FAILURE_V311: u8 = 0x80;

#[tokio::test]
async fn a_client_cannot_publish_outside_its_topics() {
    let connector = Connector::start().await;
    let (victim, attacker) = (unique("victim"), unique("attacker"));
    let address = &connector.mqtt;
    let mut there = RawClient::connect(address, &Connect::new(&victim).offline_will()).await;
    there.must_publish(&control_out(&victim), &online()).await;
    assert_eq!(there.subscribe(&data_in(&victim)).await, 1);

    let offline = offline().to_string();
    for version in [4, 5] {
        let mut connect = Connect::new(&attacker);
        connect.version = version;
        let mut client = RawClient::connect(address, &connect).await;
        for topic in [
            control_out(&victim),
            data_in(&victim),
            data_in(&attacker),
            "redhat/insights".to_owned(),
            "$SYS/x".to_owned(),
            "other/topic".to_owned(),
        ] {
            let answer = client.publish(&topic, offline.as_bytes()).await;
            let answer = answer.expect("the connection stays");
            if version == 5 {
                assert_eq!(answer.body[2], NOT_AUTHORIZED_V5, "{topic}");
            } else {
                // A 3.1.1 client must be able to read it: two bytes, no reason code.
                assert_eq!(answer.body.len(), 2, "{topic}");
            }
        }
        // Retained, too, and whatever the quality of service.
        client
            .publish_only(&data_in(&victim), offline.as_bytes(), true)
            .await;
        assert!(client.read().await.is_some());
        // It can still do what it may.
        client
            .must_publish(&control_out(&attacker), &online())
            .await;
        client.disconnect().await;
    }
    assert!(connector.listed("10000").await.contains(&victim));
    // The first thing that the victim hears is ours.
    let (status, sent) = connector.send(&victim, json!({"directive": "x"})).await;
    assert_eq!(status, 201);
    let (_, message) = there.message().await;
    assert_eq!(message["message_id"], sent["id"]);
    assert!(
        connector
            .metric("cloud_connector_broker_rejections_total", "publish_topic")
            .await
            >= 12.0
    );
}

#[tokio::test]
async fn a_client_cannot_subscribe_outside_its_topics() {
    let connector = Connector::start().await;
    let me = unique("listener");
    for (version, refused) in [(4, SUBSCRIBE_FAILURE_V311), (5, NOT_AUTHORIZED_V5)] {
        let mut connect = Connect::new(&me);
        connect.version = version;
        let mut client = RawClient::connect(&connector.mqtt, &connect).await;
        for filter in [
            data_in("another"),
            control_out("another"),
            control_out(&me),
            "redhat/insights/+/data/in".to_owned(),
            format!("redhat/insights/{me}/#"),
            format!("redhat/insights/{me}/+/in"),
            "#".to_owned(),
            "$SYS/#".to_owned(),
        ] {
            let code = client.subscribe(&filter).await;
            assert!(
                code == refused || (version == 5 && code >= 0x80),
                "{filter}: {code:#x}"
            );
        }
        assert_eq!(client.subscribe(&data_in(&me)).await, 1);
        client.disconnect().await;
    }
}

#[tokio::test]
async fn a_client_cannot_set_a_will_outside_its_topics() {
    let connector = Connector::start().await;
    let (victim, attacker) = (unique("victim"), unique("attacker"));
    let mut there = RawClient::connect(&connector.mqtt, &Connect::new(&victim)).await;
    there.must_publish(&control_out(&victim), &online()).await;
    for (connect, refused) in [
        (Connect::new(&attacker), NOT_AUTHORIZED_V311),
        (Connect::new(&attacker).v5(), NOT_AUTHORIZED_V5),
    ] {
        for topic in [control_out(&victim), data_in(&victim), data_in(&attacker)] {
            let connect = connect
                .clone()
                .will(&topic, offline().to_string().as_bytes());
            let mut client = RawClient::dial(&connector.mqtt).await;
            assert_eq!(client.handshake(&connect).await, refused, "{topic}");
            client.closed().await;
        }
    }
    assert!(connector.listed("10000").await.contains(&victim));
}

#[tokio::test]
async fn a_client_cannot_connect_under_anothers_id() {
    let (certs, setup) = Certs::setup().await;
    let connector = setup.start().await;
    let address = connector.mqtts.clone().unwrap();
    let (me, other) = (unique("me"), unique("other"));
    certs.issue(&me).await;
    for (name, v5, refused) in [
        (&other, false, NOT_AUTHORIZED_V311),
        (&other, true, NOT_AUTHORIZED_V5),
        (&me.to_uppercase(), true, NOT_AUTHORIZED_V5),
    ] {
        let connect = Connect::new(name);
        let connect = if v5 { connect.v5() } else { connect };
        let config = certs.client_config(Some(&me));
        let mut client = RawClient::dial_tls(&address, config).await.unwrap();
        assert_eq!(client.handshake(&connect).await, refused, "{name}");
    }
    let config = certs.client_config(Some(&me));
    let mut client = RawClient::dial_tls(&address, config).await.unwrap();
    assert_eq!(client.handshake(&Connect::new(&me)).await, 0);
    client.must_publish(&control_out(&me), &online()).await;
    assert_eq!(connector.listed("10000").await, [me]);
}

#[tokio::test]
async fn who_shows_no_certificate_or_one_of_another_authority_stays_outside() {
    let (certs, setup) = Certs::setup().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let connector = setup.start().await;
    let address = connector.mqtts.clone().unwrap();
    let me = unique("me");
    let strangers = Certs::init(elsewhere.path()).await;
    strangers.issue(&me).await;
    // The stranger trusts our broker and shows a certificate that its own authority signed.
    for name in ["pem", "key"] {
        let file = format!("{me}.{name}");
        std::fs::copy(strangers.file(&file), certs.file(&file)).unwrap();
    }
    for config in [certs.client_config(None), certs.client_config(Some(&me))] {
        // In TLS 1.3 the client hears of the refusal only when it reads.
        if let Ok(mut client) = RawClient::dial_tls(&address, config).await {
            assert_eq!(client.handshake(&Connect::new(&me)).await, 255);
        }
    }
    let refused = connector
        .metric("cloud_connector_broker_rejections_total", "tls_handshake")
        .await;
    assert!(refused >= 2.0, "{refused}");
}

#[tokio::test]
async fn odd_client_ids_are_refused() {
    let connector = Connector::start().await;
    for name in ["a/b", "+", "#", "a+b", &"x".repeat(256)] {
        let mut client = RawClient::dial(&connector.mqtt).await;
        let code = client.handshake(&Connect::new(name).v5()).await;
        assert_eq!(code, 0x85, "{name:?}");
    }
}
