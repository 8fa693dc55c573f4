//! Tests of section 2 of the protocol specification: the handshake dialect.

use serde_json::{Value, json};

use super::connect_client;
use test_support::each_deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_in_topic, online_message};
use test_support::{Deployment, eventually, unique_id};

const STATUS_TOPIC_SETTINGS: test_support::deployment::Settings<'static> =
    &[("mqtt.handshake_topics.status", "status")];
/// Settings with topic levels that are not the default levels. The ACL of the test Mosquitto allows
/// clients to publish to topics with the inbound level `status`.
const CUSTOM_TOPIC_LEVEL_SETTINGS: test_support::deployment::Settings<'static> = &[
    ("mqtt.handshake_topics.in", "status"),
    ("mqtt.handshake_topics.out", "in"),
];

each_deployment!(
    a_host_handshake_registers_the_client_and_gets_no_response,
    a_proxy_handshake_registers_a_proxy,
    a_retained_offline_message_as_last_will_ends_the_connection,
    an_offline_message_and_a_cleared_handshake_end_the_connection_in_either_order,
    a_retained_offline_message_ends_the_connection,
    a_replayed_handshake_is_ignored_if_it_is_already_recorded,
    a_handshake_replayed_after_an_offline_message_does_not_register_the_client,
    a_handshake_without_message_id_or_valid_facts_gets_a_handshake_error,
    an_undecodable_message_becomes_a_dead_letter_without_a_handshake_error,
    a_message_to_a_client_has_metadata_only_if_the_api_caller_sets_metadata,
    a_message_error_of_a_client_is_accepted_and_changes_nothing,
    messages_to_a_client_use_the_dialect_of_its_latest_online_message,
    handshakes_and_offline_messages_may_use_a_separate_status_topic with STATUS_TOPIC_SETTINGS,
    handshake_topic_levels_are_configurable with CUSTOM_TOPIC_LEVEL_SETTINGS,
    a_tenantless_client_gets_no_handshake_error with &[("tenant.default_org_id", "")],
);

/// Returns the topic to which a client of the handshake dialect publishes.
fn inbound_topic(client_id: &str) -> String {
    format!("redhat/insights/in/{client_id}")
}

/// Returns the topic to which a client of the handshake dialect subscribes.
fn outbound_topic(client_id: &str) -> String {
    format!("redhat/insights/out/{client_id}")
}

/// Returns a host handshake. The fact `fqdn` is the message id, so the client's status shows which
/// handshake was recorded.
fn host_handshake(message_id: &str) -> Value {
    json!({"type": "host-handshake", "message_id": message_id, "version": 1,
        "sent": super::time_from_now(0), "payload": {"canonical_facts": {"fqdn": message_id}}})
}

fn offline_payload() -> Vec<u8> {
    br#"{"type":"offline","version":1}"#.to_vec()
}

/// Publishes a retained host handshake, and waits until the handshake is recorded.
async fn register_host(
    deployment: &Deployment,
    client_id: &str,
    client: &mut RawClient,
    message_id: &str,
) {
    let handshake = host_handshake(message_id).to_string();
    client
        .publish_retained(&inbound_topic(client_id), handshake.as_bytes())
        .await;
    deployment
        .wait_for_status(client_id, |status| {
            status["canonical_facts"]["fqdn"] == message_id
        })
        .await;
}

async fn a_host_handshake_registers_the_client_and_gets_no_response(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "host").await;
    assert_eq!(client.subscribe(&outbound_topic(&client_id)).await, 1);
    register_host(&deployment, &client_id, &mut client, "h1").await;
    let status = deployment.client_status(&client_id).await;
    assert_eq!(status["org_id"], "10000");
    assert_eq!(status.get("dispatchers"), None);
    // The connector does not respond to the handshake. Therefore the first message that the client
    // receives is the message that the API sends now.
    let (code, sent) = deployment
        .send_message(&client_id, json!({"directive": "catalog:ping"}))
        .await;
    assert_eq!(code, 201, "{sent}");
    let (topic, message) = client.next_message().await;
    assert_eq!(topic, outbound_topic(&client_id));
    assert_eq!(message["type"], "message");
    assert_eq!(message["message_id"], sent["id"]);
}

async fn a_proxy_handshake_registers_a_proxy(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "proxy").await;
    let handshake = json!({"type": "proxy-handshake", "message_id": "p1", "payload":
        {"catalog_service_facts": {"source_type": "tower", "application_type": "catalog"}}});
    client
        .publish_retained(&inbound_topic(&client_id), handshake.to_string().as_bytes())
        .await;
    let status = deployment.wait_until_connected(&client_id).await;
    assert_eq!(status["canonical_facts"], json!({}));
}

async fn a_retained_offline_message_as_last_will_ends_the_connection(deployment: Deployment) {
    let client_id = unique_id("abnormal");
    let connect_options =
        Connect::new(&client_id).retained_will(&inbound_topic(&client_id), &offline_payload());
    for n in 0..2 {
        let mut client = RawClient::connect(&deployment.mqtt_address(), &connect_options).await;
        register_host(&deployment, &client_id, &mut client, &format!("h{n}")).await;
        drop(client);
        deployment.wait_until_disconnected(&client_id).await;
    }
}

async fn an_offline_message_and_a_cleared_handshake_end_the_connection_in_either_order(
    mut deployment: Deployment,
) {
    // The client may send the offline message before or after the message that clears its
    // handshake.
    for offline_first in [true, false] {
        let (client_id, mut client) = connect_client(&deployment, "clean").await;
        register_host(&deployment, &client_id, &mut client, "h1").await;
        let topic = inbound_topic(&client_id);
        if offline_first {
            client.publish(&topic, &offline_payload()).await.unwrap();
            client.publish_retained(&topic, b"").await;
        } else {
            client.publish_retained(&topic, b"").await;
            client.publish(&topic, &offline_payload()).await.unwrap();
        }
        deployment.wait_until_disconnected(&client_id).await;
        client.disconnect().await;
        deployment.restart().await;
        wait_until_replay_is_processed(&deployment, &client_id).await;
        assert_eq!(
            deployment.client_status(&client_id).await["status"],
            "disconnected"
        );
    }
}

async fn a_retained_offline_message_ends_the_connection(mut deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "retained").await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    client
        .publish_retained(&inbound_topic(&client_id), &offline_payload())
        .await;
    deployment.wait_until_disconnected(&client_id).await;
    client.disconnect().await;
    // After the restart, an external broker replays the retained offline message. The replayed
    // message changes nothing.
    deployment.restart().await;
    wait_until_replay_is_processed(&deployment, &client_id).await;
    assert_eq!(
        deployment.client_status(&client_id).await["status"],
        "disconnected"
    );
}

/// Waits until the restarted connector has processed the retained messages of the client that an
/// external broker replays. The broker sends these messages before all messages that are published
/// after the restart.
async fn wait_until_replay_is_processed(deployment: &Deployment, client_id: &str) {
    let mut client = RawClient::connect(&deployment.mqtt_address(), &Connect::new(client_id)).await;
    deployment
        .wait_until_processed(client_id, &mut client)
        .await;
}

async fn a_replayed_handshake_is_ignored_if_it_is_already_recorded(mut deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "replay").await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    if !deployment.has_external_broker() {
        // The embedded broker stores no retained messages, so there is no replay. The client
        // publishes the same handshake again instead.
        client
            .publish_retained(
                &inbound_topic(&client_id),
                host_handshake("h1").to_string().as_bytes(),
            )
            .await;
        assert!(count_ignored_duplicates(&deployment).await > 0.5);
        return;
    }
    deployment.restart().await;
    eventually("the replay of the handshake", || async {
        (count_ignored_duplicates(&deployment).await > 0.5).then_some(())
    })
    .await;
    assert_eq!(
        deployment.client_status(&client_id).await["canonical_facts"]["fqdn"],
        "h1"
    );
}

async fn count_ignored_duplicates(deployment: &Deployment) -> f64 {
    let metric_name = "cloud_connector_messages_ignored_total";
    deployment.read_metric(metric_name, "duplicate").await
}

async fn a_handshake_replayed_after_an_offline_message_does_not_register_the_client(
    mut deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "ended").await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    // The client does not clear its retained handshake.
    client
        .publish(&inbound_topic(&client_id), &offline_payload())
        .await
        .unwrap();
    deployment.wait_until_disconnected(&client_id).await;
    if deployment.has_external_broker() {
        deployment.restart().await;
        eventually("the replay of the handshake", || async {
            let metric_name = "cloud_connector_messages_ignored_total";
            let ignored = deployment
                .read_metric(metric_name, "replay_of_ended_handshake")
                .await;
            (ignored > 0.5).then_some(())
        })
        .await;
        assert_eq!(
            deployment.client_status(&client_id).await["status"],
            "disconnected"
        );
        client = RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    }
    // If the client itself publishes the handshake again, the handshake registers the client.
    register_host(&deployment, &client_id, &mut client, "h1").await;
}

async fn a_handshake_without_message_id_or_valid_facts_gets_a_handshake_error(
    mut deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "invalid").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    let cases = [
        (
            json!({"type": "host-handshake", "payload": {"canonical_facts": {}}}),
            json!(null),
        ),
        (
            json!({"type": "host-handshake", "message_id": "h1",
                "payload": {"canonical_facts": []}}),
            json!("h1"),
        ),
        (
            json!({"type": "proxy-handshake", "message_id": "h2", "payload": {}}),
            json!("h2"),
        ),
    ];
    for (handshake, message_id) in &cases {
        // The second handshake increments `occurrences` of the existing dead letter. The connector
        // sends a handshake error for each of the two handshakes.
        for _ in 0..2 {
            client
                .publish_retained(&inbound_topic(&client_id), handshake.to_string().as_bytes())
                .await;
            let (topic, error) = client.next_message().await;
            assert_eq!(topic, outbound_topic(&client_id));
            assert_eq!(error["type"], "handshake-error");
            assert_eq!(error["in_response_to"], *message_id, "{error}");
            assert!(error["payload"]["details"].as_str().unwrap().len() > 5);
        }
    }
    let dead_letters = deployment
        .wait_for_dead_letters(&client_id, cases.len())
        .await;
    for dead_letter in &dead_letters {
        assert_eq!(dead_letter["occurrences"], 2, "{dead_letter}");
    }
    assert_eq!(
        deployment.client_status(&client_id).await["status"],
        "disconnected"
    );
    // The last handshake is retained. After the restart, an external broker replays this handshake.
    // The replay creates no new dead letter.
    if deployment.has_external_broker() {
        deployment.restart().await;
        eventually("the replay of the handshake", || async {
            let dead_letters = deployment.dead_letters().await;
            let occurrences = |dead_letter: &Value| dead_letter["occurrences"].as_u64().unwrap();
            // The sum is greater than 7 if the connector was killed before it committed its Kafka
            // offsets, because Kafka then redelivers messages.
            (dead_letters.iter().map(occurrences).sum::<u64>() >= 7).then_some(())
        })
        .await;
        assert_eq!(deployment.dead_letters().await.len(), cases.len());
    }
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    register_host(&deployment, &client_id, &mut client, "corrected").await;
}

async fn an_undecodable_message_becomes_a_dead_letter_without_a_handshake_error(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "garbage").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    for garbage in [&b"{"[..], b"[]", br#"{"type":{}}"#] {
        client
            .publish(&inbound_topic(&client_id), garbage)
            .await
            .unwrap();
    }
    deployment.wait_for_dead_letters(&client_id, 3).await;
    register_host(&deployment, &client_id, &mut client, "good").await;
    let (code, _) = deployment
        .send_message(&client_id, json!({"directive": "first"}))
        .await;
    assert_eq!(code, 201);
    assert_eq!(client.next_message().await.1["directive"], "first");
}

async fn a_message_to_a_client_has_metadata_only_if_the_api_caller_sets_metadata(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "metadata").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    deployment
        .send_message(&client_id, json!({"directive": "a"}))
        .await;
    let (_, message) = client.next_message().await;
    assert_eq!(message.get("metadata"), None);
    assert_eq!(message["payload"], Value::Null);
    let body = json!({"directive": "b", "metadata": {"k": "v"}, "payload": {"x": 1}});
    deployment.send_message(&client_id, body).await;
    let (_, message) = client.next_message().await;
    assert_eq!(message["metadata"], json!({"k": "v"}));
    assert_eq!(message["payload"], json!({"x": 1}));
    assert_eq!(message["version"], 1);
}

async fn a_message_error_of_a_client_is_accepted_and_changes_nothing(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "message-error").await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    let message_error = json!({"type": "message-error", "message_id": "e1", "in_response_to": "m1",
        "version": 1, "payload": {"details": "cannot dispatch"}});
    client
        .must_publish(&inbound_topic(&client_id), &message_error)
        .await;
    register_host(&deployment, &client_id, &mut client, "h2").await;
    assert!(deployment.dead_letters().await.is_empty());
}

async fn messages_to_a_client_use_the_dialect_of_its_latest_online_message(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "both").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    client.subscribe(&data_in_topic(&client_id)).await;
    register_host(&deployment, &client_id, &mut client, "h1").await;
    deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(client.next_message().await.0, outbound_topic(&client_id));
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    deployment
        .wait_for_status(&client_id, |status| status["tags"]["make"] == "raw")
        .await;
    deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(client.next_message().await.0, data_in_topic(&client_id));
    register_host(&deployment, &client_id, &mut client, "h3").await;
    deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(client.next_message().await.0, outbound_topic(&client_id));
}

async fn handshakes_and_offline_messages_may_use_a_separate_status_topic(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "status-topic").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    let status_topic = format!("redhat/insights/status/{client_id}");
    let handshake = host_handshake("h1").to_string();
    client
        .publish_retained(&status_topic, handshake.as_bytes())
        .await;
    deployment.wait_until_connected(&client_id).await;
    // Only handshakes and offline messages use the status topic. Messages to the client and
    // responses still use the topics `in` and `out`.
    deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    let (topic, message) = client.next_message().await;
    assert_eq!(topic, outbound_topic(&client_id));
    let response = json!({"type": "message", "in_response_to": message["message_id"],
        "directive": "x", "payload": {}});
    client
        .must_publish(&inbound_topic(&client_id), &response)
        .await;
    client
        .publish_retained(&status_topic, &offline_payload())
        .await;
    deployment.wait_until_disconnected(&client_id).await;
}

async fn handshake_topic_levels_are_configurable(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "topic-levels").await;
    let topic = format!("redhat/insights/status/{client_id}");
    let handshake = host_handshake("h1").to_string();
    client.publish_retained(&topic, handshake.as_bytes()).await;
    deployment.wait_until_connected(&client_id).await;
    if !deployment.has_external_broker() {
        // The ACL of the embedded broker follows the settings. The ACL of the test Mosquitto is
        // fixed and does not allow this subscription.
        let configured_topic = format!("redhat/insights/in/{client_id}");
        assert_eq!(client.subscribe(&configured_topic).await, 1);
        deployment
            .send_message(&client_id, json!({"directive": "x"}))
            .await;
        assert_eq!(client.next_message().await.0, configured_topic);
    }
}

async fn a_tenantless_client_gets_no_handshake_error(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "tenantless").await;
    client.subscribe(&outbound_topic(&client_id)).await;
    let handshake = host_handshake("h1").to_string();
    client
        .publish_retained(&inbound_topic(&client_id), handshake.as_bytes())
        .await;
    eventually("the handshake to be recorded", || async {
        let metric_name = "cloud_connector_messages_applied_total";
        (deployment.read_metric(metric_name, "online").await > 0.5).then_some(())
    })
    .await;
    assert_eq!(
        deployment.client_status(&client_id).await["status"],
        "disconnected"
    );
    assert!(deployment.dead_letters().await.is_empty());
    // The connector sent no error for the valid handshake. Therefore the first message that the
    // client receives is the error for the invalid handshake.
    client
        .publish(
            &inbound_topic(&client_id),
            br#"{"type":"host-handshake","message_id":"bad"}"#,
        )
        .await
        .unwrap();
    assert_eq!(client.next_message().await.1["in_response_to"], "bad");
}
