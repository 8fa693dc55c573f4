//! Tests of section 1 of the protocol specification: the status dialect.

use serde_json::{Value, json};

use super::{
    connect_client, online_message_with, publish_online_and_wait, recorded_message_label,
    time_from_now,
};
use test_support::each_deployment;
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_in_topic, data_out_topic, offline_message,
    online_message,
};
use test_support::{Deployment, unique_id};

each_deployment!(
    an_online_message_registers_the_client_and_a_later_online_message_replaces_all_fields,
    envelope_fields_may_be_absent_null_or_empty,
    a_disconnect_event_ends_the_connection,
    a_last_will_with_an_old_sent_time_ends_the_connection,
    a_heartbeat_after_a_reconnect_restores_the_connection_without_an_online_message,
    an_empty_payload_never_registers_or_removes_a_client,
    every_response_of_a_client_counts_as_a_heartbeat,
    unusual_facts_and_dispatchers_of_real_clients_are_accepted,
    client_ids_may_be_lower_case_upper_case_or_64_characters_long,
    messages_to_clients_are_not_retained,
    messages_to_clients_have_all_fields_and_metadata_values_must_be_strings,
    clients_receive_messages_under_the_topic_prefix_that_they_use
        with &[("mqtt.prefixes", r#"["redhat/insights", "qa/insights"]"#)],
);

async fn an_online_message_registers_the_client_and_a_later_online_message_replaces_all_fields(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "all-fields").await;
    let mut online = online_message();
    online["sent"] = json!("2021-01-12T14:58:13.123456789+01:00");
    client
        .must_publish(&control_out_topic(&client_id), &online)
        .await;
    let status = deployment.wait_until_connected(&client_id).await;
    assert_eq!(status["org_id"], "10000");
    assert_eq!(status["canonical_facts"], json!({"fqdn": "raw.example"}));
    let mut later = online_message_with("m2", &time_from_now(0), "later");
    later["content"]["canonical_facts"] = json!({"fqdn": "new.example", "extra": [1, 2]});
    later["content"]["dispatchers"] = json!({"rhc-worker-playbook": {"v": "1.2.3"}, "echo": {}});
    client
        .must_publish(&control_out_topic(&client_id), &later)
        .await;
    let status = deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "later"
        })
        .await;
    assert_eq!(
        status["canonical_facts"],
        json!({"fqdn": "new.example", "extra": [1, 2]})
    );
    assert_eq!(status["dispatchers"]["rhc-worker-playbook"]["v"], "1.2.3");
}

async fn envelope_fields_may_be_absent_null_or_empty(deployment: Deployment) {
    for (n, online) in [
        json!({"type": "connection-status", "content": {"state": "online"}}),
        json!({"type": "connection-status", "message_id": null, "response_to": null,
            "version": null, "sent": null, "content": {"state": "online"}}),
        json!({"type": "connection-status", "message_id": "", "response_to": "", "sent": "",
            "content": {"state": "online", "canonical_facts": "", "client_name": null}}),
    ]
    .into_iter()
    .enumerate()
    {
        let (client_id, mut client) = connect_client(&deployment, &format!("minimal{n}")).await;
        client
            .must_publish(&control_out_topic(&client_id), &online)
            .await;
        let status = deployment.wait_until_connected(&client_id).await;
        assert_eq!(status["canonical_facts"], json!({}));
    }
    assert!(deployment.dead_letters().await.is_empty());
}

async fn a_disconnect_event_ends_the_connection(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "event").await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    deployment.wait_until_connected(&client_id).await;
    let event = json!({"type": "event", "message_id": "e", "content": "disconnect"});
    client
        .must_publish(&control_out_topic(&client_id), &event)
        .await;
    deployment.wait_until_disconnected(&client_id).await;
}

async fn a_last_will_with_an_old_sent_time_ends_the_connection(deployment: Deployment) {
    let client_id = unique_id("will");
    for content in [
        json!({"state": "offline", "dispatchers": null, "canonical_facts": null}),
        json!({"state": "offline", "dispatchers": null, "canonical_facts": {"insights_id": ""}}),
    ] {
        // Clients create their last will only once, when they start. Therefore the last will has
        // the same message id and the same `sent` time after every reconnect.
        let mut will = offline_message();
        will["content"] = content;
        for n in 0..2 {
            let connect = Connect::new(&client_id)
                .will(&control_out_topic(&client_id), will.to_string().as_bytes());
            let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
            let online = online_message_with(&format!("o{n}"), &time_from_now(0), "up");
            client
                .must_publish(&control_out_topic(&client_id), &online)
                .await;
            deployment.wait_until_connected(&client_id).await;
            drop(client);
            deployment.wait_until_disconnected(&client_id).await;
        }
    }
}

async fn a_heartbeat_after_a_reconnect_restores_the_connection_without_an_online_message(
    deployment: Deployment,
) {
    let client_id = unique_id("heartbeat-only");
    let connect = Connect::new(&client_id).offline_will();
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    client.publish_heartbeat(&data_out_topic(&client_id)).await;
    let online = online_message_with("once", &time_from_now(0), "before disconnect");
    client
        .must_publish(&control_out_topic(&client_id), &online)
        .await;
    deployment.wait_until_connected(&client_id).await;
    for _ in 0..3 {
        drop(client);
        deployment.wait_until_disconnected(&client_id).await;
        client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
        client.publish_heartbeat(&data_out_topic(&client_id)).await;
        let status = deployment.wait_until_connected(&client_id).await;
        assert_eq!(recorded_message_label(&status), "before disconnect");
        assert_eq!(status["org_id"], "10000");
    }
    // The API can send messages to the client again.
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    let (status, _) = deployment
        .send_message(&client_id, json!({"directive": "echo"}))
        .await;
    assert_eq!(status, 201);
}

async fn an_empty_payload_never_registers_or_removes_a_client(deployment: Deployment) {
    let (unknown_id, mut unknown) = connect_client(&deployment, "unknown").await;
    let (known_id, mut known) = connect_client(&deployment, "known").await;
    publish_online_and_wait(&deployment, &known_id, &mut known, "first").await;
    for topic in [
        control_out_topic(&unknown_id),
        data_out_topic(&unknown_id),
        format!("redhat/insights/in/{unknown_id}"),
    ] {
        unknown.publish_retained(&topic, b"").await;
        unknown.publish(&topic, b"").await.unwrap();
    }
    for topic in [
        control_out_topic(&known_id),
        data_out_topic(&known_id),
        format!("redhat/insights/in/{known_id}"),
    ] {
        known.publish_retained(&topic, b"").await;
        known.publish(&topic, b"").await.unwrap();
    }
    publish_online_and_wait(&deployment, &known_id, &mut known, "last").await;
    deployment
        .wait_until_processed(&unknown_id, &mut unknown)
        .await;
    assert_eq!(
        deployment.client_status(&unknown_id).await["status"],
        "disconnected"
    );
    // An empty payload on the control topic clears a retained message. The connector does not treat
    // that payload as a heartbeat, so the client stays disconnected.
    known
        .must_publish(&control_out_topic(&known_id), &offline_message())
        .await;
    known
        .publish_retained(&control_out_topic(&known_id), b"")
        .await;
    deployment.wait_until_processed(&known_id, &mut known).await;
    assert_eq!(
        deployment.client_status(&known_id).await["status"],
        "disconnected"
    );
    // Each call of `wait_until_processed` creates two dead letters. There are no others.
    assert_eq!(deployment.dead_letters().await.len(), 2 * 2);
}

async fn every_response_of_a_client_counts_as_a_heartbeat(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "answers").await;
    publish_online_and_wait(&deployment, &client_id, &mut client, "here").await;
    let responses = [
        (
            data_out_topic(&client_id),
            json!({"type": "data", "message_id": "a", "response_to": "m", "content": {}}),
        ),
        (
            format!("redhat/insights/in/{client_id}"),
            json!({"type": "message-error", "in_response_to": "m", "payload": {"details": "no"}}),
        ),
    ];
    for (topic, response) in responses {
        client
            .must_publish(&control_out_topic(&client_id), &offline_message())
            .await;
        deployment.wait_until_disconnected(&client_id).await;
        client.must_publish(&topic, &response).await;
        deployment.wait_until_connected(&client_id).await;
    }
}

async fn unusual_facts_and_dispatchers_of_real_clients_are_accepted(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "unusual").await;
    let cases = [
        (json!(null), json!({})),
        (json!(""), json!({})),
        (
            json!({"insights_id": "not a uuid", "machine_id": "",
                "mac_addresses": ["00:00:00:00:00:00"]}),
            json!({"machine_id": "", "mac_addresses": ["00:00:00:00:00:00"]}),
        ),
        (
            json!({"insights_id": "CABB61B6E61D4D70B47501F5C009E93C", "bios_uuid": null,
                "new": {"a": 1}}),
            json!({"insights_id": "CABB61B6E61D4D70B47501F5C009E93C", "bios_uuid": null,
                "new": {"a": 1}}),
        ),
    ];
    for (n, (facts, stored_facts)) in cases.into_iter().enumerate() {
        let message_label = format!("m{n}");
        let mut online = online_message_with("", &time_from_now(0), &message_label);
        online["content"]["canonical_facts"] = facts;
        online["content"]["dispatchers"] = json!({"worker": null, "a-b": {}, "a_b": {"x": "1"}});
        client
            .must_publish(&control_out_topic(&client_id), &online)
            .await;
        let status = deployment
            .wait_for_status(&client_id, |status| {
                status["tags"]["message_label"] == message_label
            })
            .await;
        assert_eq!(status["canonical_facts"], stored_facts);
        assert_eq!(
            status["dispatchers"],
            json!({"worker": null, "a-b": {}, "a_b": {"x": "1"}})
        );
    }
    let mut online = online_message_with("", &time_from_now(0), "none");
    online["content"]["dispatchers"] = Value::Null;
    client
        .must_publish(&control_out_topic(&client_id), &online)
        .await;
    let status = deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "none"
        })
        .await;
    assert_eq!(status.get("dispatchers"), None);
}

async fn client_ids_may_be_lower_case_upper_case_or_64_characters_long(deployment: Deployment) {
    let lower = uuid::Uuid::new_v4().to_string();
    let upper = lower.to_uppercase();
    let long = format!("{0}{0}", uuid::Uuid::new_v4().simple());
    assert_eq!(long.len(), 64);
    for client_id in [&lower, &upper, &long] {
        let mut client =
            RawClient::connect(&deployment.mqtt_address(), &Connect::new(client_id)).await;
        client
            .must_publish(&control_out_topic(client_id), &online_message())
            .await;
        let status = deployment.wait_until_connected(client_id).await;
        assert_eq!(status["client_id"], **client_id);
        client
            .must_publish(&control_out_topic(client_id), &offline_message())
            .await;
        deployment.wait_until_disconnected(client_id).await;
        drop(client);
    }
}

async fn messages_to_clients_are_not_retained(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "fresh").await;
    client.subscribe(&data_in_topic(&client_id)).await;
    publish_online_and_wait(&deployment, &client_id, &mut client, "here").await;
    let (status, _) = deployment
        .send_message(&client_id, json!({"directive": "first"}))
        .await;
    assert_eq!(status, 201);
    assert_eq!(client.next_message().await.1["directive"], "first");
    // A new subscription receives only the messages that the API sends after the subscription.
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    client.subscribe(&data_in_topic(&client_id)).await;
    publish_online_and_wait(&deployment, &client_id, &mut client, "again").await;
    let (status, _) = deployment
        .send_message(&client_id, json!({"directive": "second"}))
        .await;
    assert_eq!(status, 201);
    assert_eq!(client.next_message().await.1["directive"], "second");
}

async fn messages_to_clients_have_all_fields_and_metadata_values_must_be_strings(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "fields").await;
    client.subscribe(&data_in_topic(&client_id)).await;
    publish_online_and_wait(&deployment, &client_id, &mut client, "here").await;
    for metadata in [
        json!({"a": 1}),
        json!(["a"]),
        json!("a"),
        json!({"a": null}),
    ] {
        let body = json!({"directive": "x", "metadata": metadata});
        let (status, error) = deployment.send_message(&client_id, body).await;
        assert_eq!(status, 400, "{metadata}");
        assert!(error["detail"].as_str().unwrap().contains("metadata"));
    }
    let body = json!({"directive": "rhc:work", "metadata": {"k": "v"}, "payload": "<&>"});
    let (status, sent) = deployment.send_message(&client_id, body).await;
    assert_eq!(status, 201);
    let (_, message) = client.next_message().await;
    assert_eq!(message["message_id"], sent["id"]);
    let field_names: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(field_names.len(), 8, "{field_names:?}");
    assert_eq!(message["response_to"], "");
    assert_eq!(message["version"], 1);
    assert_eq!(message["content"], "<&>");
    let sent: jiff::Timestamp = message["sent"].as_str().unwrap().parse().unwrap();
    assert!(sent.duration_since(jiff::Timestamp::now()).abs() < jiff::SignedDuration::from_mins(2));
}

async fn clients_receive_messages_under_the_topic_prefix_that_they_use(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "qa").await;
    let topic = |rest: &str| format!("qa/insights/{client_id}/{rest}");
    assert_eq!(client.subscribe(&topic("data/in")).await, 1);
    client
        .must_publish(&topic("control/out"), &online_message())
        .await;
    deployment.wait_until_connected(&client_id).await;
    let (status, _) = deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 201);
    assert_eq!(client.next_message().await.0, topic("data/in"));
}
