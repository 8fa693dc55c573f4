//! Section 2: the handshake dialect.

use serde_json::{Value, json};

use super::{client, settle};
use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, data_in, online};
use crate::support::{Deployment, eventually, unique};

const WITH_STATUS: crate::support::deployment::Settings<'static> =
    &[("mqtt.handshake_topics.status", "status")];
const OTHER_WORDS: crate::support::deployment::Settings<'static> = &[
    ("mqtt.handshake_topics.in", "status"),
    ("mqtt.handshake_topics.out", "in"),
];

each_deployment!(
    a_host_handshake_registers_and_nothing_is_sent_on_success,
    a_proxy_handshake_registers_a_proxy,
    an_abnormal_disconnect_is_a_retained_offline,
    a_clean_disconnect_is_an_offline_and_the_removal_of_the_handshake,
    a_clean_disconnect_is_a_retained_offline,
    a_replay_of_a_handshake_that_is_recorded_changes_nothing,
    a_replay_of_the_handshake_that_an_offline_ended_does_not_register_again,
    a_handshake_without_an_id_or_with_wrong_facts_is_refused,
    what_does_not_parse_is_a_dead_letter_only,
    a_message_has_metadata_only_where_the_caller_gave_some,
    a_message_error_is_taken_and_changes_nothing,
    a_connection_is_spoken_to_in_the_dialect_that_its_client_spoke_last,
    state_may_have_a_topic_of_its_own with WITH_STATUS,
    the_words_are_settings with OTHER_WORDS,
    an_unknown_tenant_is_not_a_refusal with &[("tenant.default_org_id", "")],
);

fn to_service(me: &str) -> String {
    format!("redhat/insights/in/{me}")
}

fn to_client(me: &str) -> String {
    format!("redhat/insights/out/{me}")
}

fn host(id: &str) -> Value {
    json!({"type": "host-handshake", "message_id": id, "version": 1, "sent": super::from_now(0),
        "payload": {"canonical_facts": {"fqdn": id}}})
}

fn offline() -> Vec<u8> {
    br#"{"type":"offline","version":1}"#.to_vec()
}

async fn register(subject: &Deployment, me: &str, client: &mut RawClient, id: &str) {
    let handshake = host(id).to_string();
    client
        .publish_retained(&to_service(me), handshake.as_bytes())
        .await;
    subject
        .wait_until(me, |status| status["canonical_facts"]["fqdn"] == id)
        .await;
}

/// Something that another client said after all of this was recorded: whatever was to change has.
async fn later(subject: &Deployment) {
    let (marker, mut client) = client(subject, "marker").await;
    settle(subject, &marker, &mut client, "x").await;
}

async fn a_host_handshake_registers_and_nothing_is_sent_on_success(subject: Deployment) {
    let (me, mut client) = client(&subject, "host").await;
    assert_eq!(client.subscribe(&to_client(&me)).await, 1);
    register(&subject, &me, &mut client, "h1").await;
    let status = subject.status(&me).await;
    assert_eq!(status["org_id"], "10000");
    assert_eq!(status.get("dispatchers"), None);
    // The first thing that the client hears is what it is sent now.
    let (code, sent) = subject
        .send(&me, json!({"directive": "catalog:ping"}))
        .await;
    assert_eq!(code, 201, "{sent}");
    let (topic, message) = client.message().await;
    assert_eq!(topic, to_client(&me));
    assert_eq!(message["type"], "message");
    assert_eq!(message["message_id"], sent["id"]);
}

async fn a_proxy_handshake_registers_a_proxy(subject: Deployment) {
    let (me, mut client) = client(&subject, "proxy").await;
    let handshake = json!({"type": "proxy-handshake", "message_id": "p1", "payload":
        {"catalog_service_facts": {"source_type": "tower", "application_type": "catalog"}}});
    client
        .publish_retained(&to_service(&me), handshake.to_string().as_bytes())
        .await;
    let status = subject.wait_for(&me, true).await;
    assert_eq!(status["canonical_facts"], json!({}));
}

async fn an_abnormal_disconnect_is_a_retained_offline(subject: Deployment) {
    let me = unique("abnormal");
    let connect = Connect::new(&me).retained_will(&to_service(&me), &offline());
    for n in 0..2 {
        let mut client = RawClient::connect(&subject.mqtt(), &connect).await;
        register(&subject, &me, &mut client, &format!("h{n}")).await;
        drop(client);
        subject.wait_for(&me, false).await;
    }
}

async fn a_clean_disconnect_is_an_offline_and_the_removal_of_the_handshake(
    mut subject: Deployment,
) {
    // In either order.
    for offline_first in [true, false] {
        let (me, mut client) = client(&subject, "clean").await;
        register(&subject, &me, &mut client, "h1").await;
        let topic = to_service(&me);
        if offline_first {
            client.publish(&topic, &offline()).await.unwrap();
            client.publish_retained(&topic, b"").await;
        } else {
            client.publish_retained(&topic, b"").await;
            client.publish(&topic, &offline()).await.unwrap();
        }
        subject.wait_for(&me, false).await;
        client.disconnect().await;
        subject.restart().await;
        later(&subject).await;
        assert_eq!(subject.status(&me).await["status"], "disconnected");
    }
}

async fn a_clean_disconnect_is_a_retained_offline(mut subject: Deployment) {
    let (me, mut client) = client(&subject, "retained").await;
    register(&subject, &me, &mut client, "h1").await;
    client.publish_retained(&to_service(&me), &offline()).await;
    subject.wait_for(&me, false).await;
    client.disconnect().await;
    // The retained offline is replayed, and changes nothing.
    subject.restart().await;
    later(&subject).await;
    assert_eq!(subject.status(&me).await["status"], "disconnected");
}

async fn a_replay_of_a_handshake_that_is_recorded_changes_nothing(mut subject: Deployment) {
    let (me, mut client) = client(&subject, "replay").await;
    register(&subject, &me, &mut client, "h1").await;
    if !subject.has_outside_broker() {
        // The embedded broker keeps nothing; whoever comes back says so again.
        client
            .publish_retained(&to_service(&me), host("h1").to_string().as_bytes())
            .await;
        assert!(duplicates(&subject).await > 0.5);
        return;
    }
    subject.restart().await;
    eventually("the replay", || async {
        (duplicates(&subject).await > 0.5).then_some(())
    })
    .await;
    assert_eq!(subject.status(&me).await["canonical_facts"]["fqdn"], "h1");
}

async fn duplicates(subject: &Deployment) -> f64 {
    let name = "cloud_connector_messages_ignored_total";
    subject.metric(name, "duplicate").await
}

async fn a_replay_of_the_handshake_that_an_offline_ended_does_not_register_again(
    mut subject: Deployment,
) {
    let (me, mut client) = client(&subject, "ended").await;
    register(&subject, &me, &mut client, "h1").await;
    // It died before it could remove its handshake.
    client.publish(&to_service(&me), &offline()).await.unwrap();
    subject.wait_for(&me, false).await;
    if subject.has_outside_broker() {
        subject.restart().await;
        eventually("the replay", || async {
            let name = "cloud_connector_messages_ignored_total";
            let seen = subject.metric(name, "ended_replay").await;
            (seen > 0.5).then_some(())
        })
        .await;
        assert_eq!(subject.status(&me).await["status"], "disconnected");
        client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    }
    // ClientMessage anew, it registers.
    register(&subject, &me, &mut client, "h1").await;
}

async fn a_handshake_without_an_id_or_with_wrong_facts_is_refused(mut subject: Deployment) {
    let (me, mut client) = client(&subject, "refused").await;
    client.subscribe(&to_client(&me)).await;
    let cases = [
        (
            json!({"type": "host-handshake", "payload": {"canonical_facts": {}}}),
            json!(null),
        ),
        (
            json!({"type": "host-handshake", "message_id": "h1", "payload": {"canonical_facts": []}}),
            json!("h1"),
        ),
        (
            json!({"type": "proxy-handshake", "message_id": "h2", "payload": {}}),
            json!("h2"),
        ),
    ];
    for (handshake, id) in &cases {
        // Twice: it is one dead letter, and the client is told each time.
        for _ in 0..2 {
            client
                .publish_retained(&to_service(&me), handshake.to_string().as_bytes())
                .await;
            let (topic, error) = client.message().await;
            assert_eq!(topic, to_client(&me));
            assert_eq!(error["type"], "handshake-error");
            assert_eq!(error["in_response_to"], *id, "{error}");
            assert!(error["payload"]["details"].as_str().unwrap().len() > 5);
        }
    }
    let letters = subject.wait_for_letters(&me, cases.len()).await;
    for letter in &letters {
        assert_eq!(letter["times"], 2, "{letter}");
    }
    assert_eq!(subject.status(&me).await["status"], "disconnected");
    // The last one is retained: replayed, it is no new dead letter.
    if subject.has_outside_broker() {
        subject.restart().await;
        eventually("the replay", || async {
            let letters = subject.dead_letters().await;
            let times = |letter: &Value| letter["times"].as_u64().unwrap();
            // More, if it was killed before Kafka had heard of what was dealt with.
            (letters.iter().map(times).sum::<u64>() >= 7).then_some(())
        })
        .await;
        assert_eq!(subject.dead_letters().await.len(), cases.len());
    }
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    register(&subject, &me, &mut client, "mended").await;
}

async fn what_does_not_parse_is_a_dead_letter_only(subject: Deployment) {
    let (me, mut client) = client(&subject, "garbage").await;
    client.subscribe(&to_client(&me)).await;
    for garbage in [&b"{"[..], b"[]", br#"{"type":{}}"#] {
        client.publish(&to_service(&me), garbage).await.unwrap();
    }
    subject.wait_for_letters(&me, 3).await;
    register(&subject, &me, &mut client, "good").await;
    let (code, _) = subject.send(&me, json!({"directive": "first"})).await;
    assert_eq!(code, 201);
    assert_eq!(client.message().await.1["directive"], "first");
}

async fn a_message_has_metadata_only_where_the_caller_gave_some(subject: Deployment) {
    let (me, mut client) = client(&subject, "metadata").await;
    client.subscribe(&to_client(&me)).await;
    register(&subject, &me, &mut client, "h1").await;
    subject.send(&me, json!({"directive": "a"})).await;
    let (_, message) = client.message().await;
    assert_eq!(message.get("metadata"), None);
    assert_eq!(message["payload"], Value::Null);
    let body = json!({"directive": "b", "metadata": {"k": "v"}, "payload": {"x": 1}});
    subject.send(&me, body).await;
    let (_, message) = client.message().await;
    assert_eq!(message["metadata"], json!({"k": "v"}));
    assert_eq!(message["payload"], json!({"x": 1}));
    assert_eq!(message["version"], 1);
}

async fn a_message_error_is_taken_and_changes_nothing(subject: Deployment) {
    let (me, mut client) = client(&subject, "complains").await;
    register(&subject, &me, &mut client, "h1").await;
    let complaint = json!({"type": "message-error", "message_id": "e1", "in_response_to": "m1",
        "version": 1, "payload": {"details": "cannot dispatch"}});
    client.must_publish(&to_service(&me), &complaint).await;
    register(&subject, &me, &mut client, "h2").await;
    assert!(subject.dead_letters().await.is_empty());
}

async fn a_connection_is_spoken_to_in_the_dialect_that_its_client_spoke_last(subject: Deployment) {
    let (me, mut client) = client(&subject, "both").await;
    client.subscribe(&to_client(&me)).await;
    client.subscribe(&data_in(&me)).await;
    register(&subject, &me, &mut client, "h1").await;
    subject.send(&me, json!({"directive": "x"})).await;
    assert_eq!(client.message().await.0, to_client(&me));
    client.must_publish(&control_out(&me), &online()).await;
    subject
        .wait_until(&me, |status| status["tags"]["make"] == "raw")
        .await;
    subject.send(&me, json!({"directive": "x"})).await;
    assert_eq!(client.message().await.0, data_in(&me));
    register(&subject, &me, &mut client, "h3").await;
    subject.send(&me, json!({"directive": "x"})).await;
    assert_eq!(client.message().await.0, to_client(&me));
}

async fn state_may_have_a_topic_of_its_own(subject: Deployment) {
    let (me, mut client) = client(&subject, "state").await;
    client.subscribe(&to_client(&me)).await;
    let state = format!("redhat/insights/status/{me}");
    let handshake = host("h1").to_string();
    client.publish_retained(&state, handshake.as_bytes()).await;
    subject.wait_for(&me, true).await;
    // Traffic goes on by `in` and `out`.
    subject.send(&me, json!({"directive": "x"})).await;
    let (topic, message) = client.message().await;
    assert_eq!(topic, to_client(&me));
    let answer = json!({"type": "message", "in_response_to": message["message_id"], "directive": "x",
        "payload": {}});
    client.must_publish(&to_service(&me), &answer).await;
    client.publish_retained(&state, &offline()).await;
    subject.wait_for(&me, false).await;
}

/// HandshakeSegments that the rules of our Mosquitto let a client publish on; by these it may listen on none.
async fn the_words_are_settings(subject: Deployment) {
    let (me, mut client) = client(&subject, "words").await;
    let topic = format!("redhat/insights/status/{me}");
    let handshake = host("h1").to_string();
    client.publish_retained(&topic, handshake.as_bytes()).await;
    subject.wait_for(&me, true).await;
    if !subject.has_outside_broker() {
        // Here the rules follow the words.
        let heard_on = to_service(&me);
        assert_eq!(client.subscribe(&heard_on).await, 1);
        subject.send(&me, json!({"directive": "x"})).await;
        assert_eq!(client.message().await.0, heard_on);
    }
}

async fn an_unknown_tenant_is_not_a_refusal(subject: Deployment) {
    let (me, mut client) = client(&subject, "nobodys").await;
    client.subscribe(&to_client(&me)).await;
    let handshake = host("h1").to_string();
    client
        .publish_retained(&to_service(&me), handshake.as_bytes())
        .await;
    eventually("it is recorded", || async {
        let recorded = "cloud_connector_messages_applied_total";
        (subject.metric(recorded, "online").await > 0.5).then_some(())
    })
    .await;
    assert_eq!(subject.status(&me).await["status"], "disconnected");
    assert!(subject.dead_letters().await.is_empty());
    // Nothing was sent to it: what it hears first is the answer to a real mistake.
    client
        .publish(
            &to_service(&me),
            br#"{"type":"host-handshake","message_id":"bad"}"#,
        )
        .await
        .unwrap();
    assert_eq!(client.message().await.1["in_response_to"], "bad");
}
