//! Section 1: the status dialect.

use serde_json::{Value, json};

use super::{client, from_now, mark, said, settle};
use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, data_in, data_out, offline, online};
use crate::support::{Deployment, unique};

each_deployment!(
    an_online_registers_with_all_it_says_and_a_later_one_updates_all_of_it,
    envelope_fields_may_be_absent_null_or_empty,
    an_event_disconnect_acts_as_offline,
    a_will_from_before_every_online_ends_the_connection,
    an_empty_payload_at_connect_brings_back_who_says_nothing_else,
    an_empty_payload_never_registers_or_removes_anything,
    any_answer_is_a_sign_of_life,
    odd_facts_and_dispatchers_are_taken_as_the_fleet_sends_them,
    client_ids_are_taken_in_either_case_and_as_sixty_four_letters,
    nothing_that_the_service_sends_is_retained,
    a_message_has_every_field_and_metadata_that_clients_would_drop_is_refused,
    clients_of_every_prefix_are_heard_and_spoken_to_under_theirs
        with &[("mqtt.prefixes", r#"["redhat/insights", "qa/insights"]"#)],
);

async fn an_online_registers_with_all_it_says_and_a_later_one_updates_all_of_it(
    subject: Deployment,
) {
    let (me, mut client) = client(&subject, "whole").await;
    let mut online = online();
    online["sent"] = json!("2021-01-12T14:58:13.123456789+01:00");
    client.must_publish(&control_out(&me), &online).await;
    let status = subject.wait_for(&me, true).await;
    assert_eq!(status["org_id"], "10000");
    assert_eq!(status["canonical_facts"], json!({"fqdn": "raw.example"}));
    let mut later = super::said("m2", &from_now(0), "later");
    later["content"]["canonical_facts"] = json!({"fqdn": "new.example", "extra": [1, 2]});
    later["content"]["dispatchers"] = json!({"rhc-worker-playbook": {"v": "1.2.3"}, "echo": {}});
    client.must_publish(&control_out(&me), &later).await;
    let status = subject
        .wait_until(&me, |status| mark(status) == "later")
        .await;
    assert_eq!(
        status["canonical_facts"],
        json!({"fqdn": "new.example", "extra": [1, 2]})
    );
    assert_eq!(status["dispatchers"]["rhc-worker-playbook"]["v"], "1.2.3");
}

async fn envelope_fields_may_be_absent_null_or_empty(subject: Deployment) {
    for (n, bare) in [
        json!({"type": "connection-status", "content": {"state": "online"}}),
        json!({"type": "connection-status", "message_id": null, "response_to": null,
            "version": null, "sent": null, "content": {"state": "online"}}),
        json!({"type": "connection-status", "message_id": "", "response_to": "", "sent": "",
            "content": {"state": "online", "canonical_facts": "", "client_name": null}}),
    ]
    .into_iter()
    .enumerate()
    {
        let (me, mut client) = client(&subject, &format!("bare{n}")).await;
        client.must_publish(&control_out(&me), &bare).await;
        let status = subject.wait_for(&me, true).await;
        assert_eq!(status["canonical_facts"], json!({}));
    }
    assert!(subject.dead_letters().await.is_empty());
}

async fn an_event_disconnect_acts_as_offline(subject: Deployment) {
    let (me, mut client) = client(&subject, "event").await;
    client.must_publish(&control_out(&me), &online()).await;
    subject.wait_for(&me, true).await;
    let event = json!({"type": "event", "message_id": "e", "content": "disconnect"});
    client.must_publish(&control_out(&me), &event).await;
    subject.wait_for(&me, false).await;
}

async fn a_will_from_before_every_online_ends_the_connection(subject: Deployment) {
    let me = unique("will");
    for content in [
        json!({"state": "offline", "dispatchers": null, "canonical_facts": null}),
        json!({"state": "offline", "dispatchers": null, "canonical_facts": {"insights_id": ""}}),
    ] {
        // Built once, at the client's start: the same id and an early clock at every reconnect.
        let mut will = offline();
        will["content"] = content;
        for n in 0..2 {
            let connect = Connect::new(&me).will(&control_out(&me), will.to_string().as_bytes());
            let mut client = RawClient::connect(&subject.mqtt(), &connect).await;
            let online = said(&format!("o{n}"), &from_now(0), "up");
            client.must_publish(&control_out(&me), &online).await;
            subject.wait_for(&me, true).await;
            drop(client);
            subject.wait_for(&me, false).await;
        }
    }
}

async fn an_empty_payload_at_connect_brings_back_who_says_nothing_else(subject: Deployment) {
    let me = unique("newer");
    let connect = Connect::new(&me).offline_will();
    let mut client = RawClient::connect(&subject.mqtt(), &connect).await;
    client.show_life(&data_out(&me)).await;
    let online = said("once", &from_now(0), "as it was");
    client.must_publish(&control_out(&me), &online).await;
    subject.wait_for(&me, true).await;
    for _ in 0..3 {
        drop(client);
        subject.wait_for(&me, false).await;
        client = RawClient::connect(&subject.mqtt(), &connect).await;
        client.show_life(&data_out(&me)).await;
        let status = subject.wait_for(&me, true).await;
        assert_eq!(mark(&status), "as it was");
        assert_eq!(status["org_id"], "10000");
    }
    // It can be spoken to again.
    assert_eq!(client.subscribe(&data_in(&me)).await, 1);
    let (status, _) = subject.send(&me, json!({"directive": "echo"})).await;
    assert_eq!(status, 201);
}

async fn an_empty_payload_never_registers_or_removes_anything(subject: Deployment) {
    let (stranger, mut unknown) = client(&subject, "stranger").await;
    let (me, mut known) = client(&subject, "known").await;
    settle(&subject, &me, &mut known, "first").await;
    for topic in [
        control_out(&stranger),
        data_out(&stranger),
        format!("redhat/insights/in/{stranger}"),
    ] {
        unknown.publish_retained(&topic, b"").await;
        unknown.publish(&topic, b"").await.unwrap();
    }
    for topic in [
        control_out(&me),
        data_out(&me),
        format!("redhat/insights/in/{me}"),
    ] {
        known.publish_retained(&topic, b"").await;
        known.publish(&topic, b"").await.unwrap();
    }
    settle(&subject, &me, &mut known, "last").await;
    assert_eq!(subject.status(&stranger).await["status"], "disconnected");
    // A farewell, and then what removing a retained message looks like: gone it stays.
    known.must_publish(&control_out(&me), &offline()).await;
    known.publish_retained(&control_out(&me), b"").await;
    subject.wait_for(&me, false).await;
    let (other, mut client) = client(&subject, "marker").await;
    settle(&subject, &other, &mut client, "x").await;
    assert_eq!(subject.status(&me).await["status"], "disconnected");
    assert!(subject.dead_letters().await.is_empty());
}

async fn any_answer_is_a_sign_of_life(subject: Deployment) {
    let (me, mut client) = client(&subject, "answers").await;
    settle(&subject, &me, &mut client, "here").await;
    let answers = [
        (
            data_out(&me),
            json!({"type": "data", "message_id": "a", "response_to": "m", "content": {}}),
        ),
        (
            format!("redhat/insights/in/{me}"),
            json!({"type": "message-error", "in_response_to": "m", "payload": {"details": "no"}}),
        ),
    ];
    for (topic, answer) in answers {
        client.must_publish(&control_out(&me), &offline()).await;
        subject.wait_for(&me, false).await;
        client.must_publish(&topic, &answer).await;
        subject.wait_for(&me, true).await;
    }
}

async fn odd_facts_and_dispatchers_are_taken_as_the_fleet_sends_them(subject: Deployment) {
    let (me, mut client) = client(&subject, "odd").await;
    let cases = [
        (json!(null), json!({})),
        (json!(""), json!({})),
        (
            json!({"insights_id": "not a uuid", "machine_id": "", "mac_addresses": ["00:00:00:00:00:00"]}),
            json!({"machine_id": "", "mac_addresses": ["00:00:00:00:00:00"]}),
        ),
        (
            json!({"insights_id": "CABB61B6E61D4D70B47501F5C009E93C", "bios_uuid": null, "new": {"a": 1}}),
            json!({"insights_id": "CABB61B6E61D4D70B47501F5C009E93C", "bios_uuid": null, "new": {"a": 1}}),
        ),
    ];
    for (n, (facts, stored)) in cases.into_iter().enumerate() {
        let mark = format!("m{n}");
        let mut online = said("", &from_now(0), &mark);
        online["content"]["canonical_facts"] = facts;
        online["content"]["dispatchers"] = json!({"worker": null, "a-b": {}, "a_b": {"x": "1"}});
        client.must_publish(&control_out(&me), &online).await;
        let status = subject
            .wait_until(&me, |status| status["tags"]["mark"] == mark)
            .await;
        assert_eq!(status["canonical_facts"], stored);
        assert_eq!(
            status["dispatchers"],
            json!({"worker": null, "a-b": {}, "a_b": {"x": "1"}})
        );
    }
    let mut online = said("", &from_now(0), "none");
    online["content"]["dispatchers"] = Value::Null;
    client.must_publish(&control_out(&me), &online).await;
    let status = subject
        .wait_until(&me, |status| mark(status) == "none")
        .await;
    assert_eq!(status.get("dispatchers"), None);
}

async fn client_ids_are_taken_in_either_case_and_as_sixty_four_letters(subject: Deployment) {
    let lower = uuid::Uuid::new_v4().to_string();
    let upper = lower.to_uppercase();
    let letters = format!("{0}{0}", uuid::Uuid::new_v4().simple());
    assert_eq!(letters.len(), 64);
    for id in [&lower, &upper, &letters] {
        let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(id)).await;
        client.must_publish(&control_out(id), &online()).await;
        let status = subject.wait_for(id, true).await;
        assert_eq!(status["client_id"], **id);
        client.must_publish(&control_out(id), &offline()).await;
        subject.wait_for(id, false).await;
        drop(client);
    }
}

async fn nothing_that_the_service_sends_is_retained(subject: Deployment) {
    let (me, mut client) = client(&subject, "fresh").await;
    client.subscribe(&data_in(&me)).await;
    settle(&subject, &me, &mut client, "here").await;
    let (status, _) = subject.send(&me, json!({"directive": "first"})).await;
    assert_eq!(status, 201);
    assert_eq!(client.message().await.1["directive"], "first");
    // A new subscription brings nothing but what is sent after it.
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    client.subscribe(&data_in(&me)).await;
    settle(&subject, &me, &mut client, "again").await;
    let (status, _) = subject.send(&me, json!({"directive": "second"})).await;
    assert_eq!(status, 201);
    assert_eq!(client.message().await.1["directive"], "second");
}

async fn a_message_has_every_field_and_metadata_that_clients_would_drop_is_refused(
    subject: Deployment,
) {
    let (me, mut client) = client(&subject, "fields").await;
    client.subscribe(&data_in(&me)).await;
    settle(&subject, &me, &mut client, "here").await;
    for metadata in [
        json!({"a": 1}),
        json!(["a"]),
        json!("a"),
        json!({"a": null}),
    ] {
        let body = json!({"directive": "x", "metadata": metadata});
        let (status, error) = subject.send(&me, body).await;
        assert_eq!(status, 400, "{metadata}");
        assert!(error["detail"].as_str().unwrap().contains("metadata"));
    }
    let body = json!({"directive": "rhc:work", "metadata": {"k": "v"}, "payload": "<&>"});
    let (status, sent) = subject.send(&me, body).await;
    assert_eq!(status, 201);
    let (_, message) = client.message().await;
    assert_eq!(message["message_id"], sent["id"]);
    let keys: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 8, "{keys:?}");
    assert_eq!(message["response_to"], "");
    assert_eq!(message["version"], 1);
    assert_eq!(message["content"], "<&>");
    let sent: jiff::Timestamp = message["sent"].as_str().unwrap().parse().unwrap();
    assert!(sent.duration_since(jiff::Timestamp::now()).abs() < jiff::SignedDuration::from_mins(2));
}

async fn clients_of_every_prefix_are_heard_and_spoken_to_under_theirs(subject: Deployment) {
    let (me, mut client) = client(&subject, "qa").await;
    let topic = |rest: &str| format!("qa/insights/{me}/{rest}");
    assert_eq!(client.subscribe(&topic("data/in")).await, 1);
    client.must_publish(&topic("control/out"), &online()).await;
    subject.wait_for(&me, true).await;
    let (status, _) = subject.send(&me, json!({"directive": "x"})).await;
    assert_eq!(status, 201);
    assert_eq!(client.message().await.0, topic("data/in"));
}
