//! Answers of clients to tracked messages.

use serde_json::{Value, json};

use super::{Receiver, get_message, wait_for_state};
use crate::events::EventReader;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic};
use test_support::{Deployment, each_deployment, eventually, unique_id};

each_deployment!(
    first_answer_is_stored_and_later_answers_are_counted,
    pong_is_an_answer,
    large_answer_is_truncated,
    other_client_cannot_answer,
    message_error_rejects_a_message_of_the_handshake_dialect,
    answer_that_is_redelivered_after_a_restart_changes_nothing_else,
);

pub fn data_message(response_to: &str, content: &Value) -> Value {
    json!({
        "type": "data", "message_id": uuid::Uuid::new_v4(), "response_to": response_to, "version": 1,
        "sent": jiff::Timestamp::now().to_string(), "directive": "echo", "metadata": {},
        "content": content,
    })
}

async fn first_answer_is_stored_and_later_answers_are_counted(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let query = format!("?client_id={}&type=message.answered", receiver.client_id);
    let mut events = EventReader::open(&deployment, &query).await;
    let id = receiver.send_tracked(&deployment).await;
    let topic = data_out_topic(&receiver.client_id);
    let content = json!({"exit": 0, "lines": ["a", "\u{0}", null]});
    let answer = data_message(&id, &content);
    receiver.client.must_publish(&topic, &answer).await;
    let message = wait_for_state(&deployment, &id, "answered").await;
    assert_eq!(message["answer"], content);
    assert_eq!(message["answer_truncated"], false);
    assert_eq!(message["answer_count"], 1);
    assert!(message["answered_at"].is_string(), "{message}");
    assert!(message["acknowledged_at"].is_string(), "{message}");
    let later_answer = data_message(&id, &json!("later"));
    receiver.client.must_publish(&topic, &later_answer).await;
    let message = eventually("the second answer", || async {
        let (_, message) = get_message(&deployment, &id).await;
        (message["answer_count"] == 2).then_some(message)
    })
    .await;
    assert_eq!(message["answer"], content);
    let event = events.next_event().await;
    assert_eq!(event.data["message_id"], id);
    // Lists have no answers.
    let list = deployment.request("GET", "/v2/messages?state=answered");
    let list: Value = list.send().await.unwrap().json().await.unwrap();
    assert_eq!(list["data"][0]["id"], id);
    assert_eq!(list["data"][0].get("answer"), None);
    assert_eq!(list["data"][0]["answer_count"], 2);
}

async fn pong_is_an_answer(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    let pong = json!({"type": "event", "message_id": "p", "response_to": id, "content": "pong"});
    let topic = control_out_topic(&receiver.client_id);
    receiver.client.must_publish(&topic, &pong).await;
    let message = wait_for_state(&deployment, &id, "answered").await;
    assert_eq!(message["answer"], "pong");
}

async fn large_answer_is_truncated(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    let topic = data_out_topic(&receiver.client_id);
    let answer = data_message(&id, &json!({"text": "x".repeat(200_000)}));
    receiver.client.must_publish(&topic, &answer).await;
    let message = wait_for_state(&deployment, &id, "answered").await;
    assert_eq!(message["answer_truncated"], true);
    let text = message["answer"].as_str().unwrap();
    assert_eq!(text.len(), 65_536);
    assert!(text.starts_with(r#"{"text":"xxx"#), "{}", &text[..20]);
}

async fn other_client_cannot_answer(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let mut other = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    let topic = data_out_topic(&other.client_id);
    let answer = data_message(&id, &json!("stolen"));
    other.client.must_publish(&topic, &answer).await;
    deployment
        .wait_until_processed(&other.client_id, &mut other.client)
        .await;
    let (_, message) = get_message(&deployment, &id).await;
    assert_eq!(message["state"], "acknowledged");
    assert_eq!(message["answer_count"], 0);
}

async fn message_error_rejects_a_message_of_the_handshake_dialect(deployment: Deployment) {
    let client_id = unique_id("tracked");
    let address = deployment.mqtt_address();
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    let outbound_topic = format!("redhat/insights/out/{client_id}");
    assert_eq!(client.subscribe(&outbound_topic).await, 1);
    let inbound_topic = format!("redhat/insights/in/{client_id}");
    let handshake = json!({
        "type": "host-handshake", "message_id": "h", "version": 1,
        "sent": jiff::Timestamp::now().to_string(),
        "payload": {"canonical_facts": {"fqdn": "a.example"}},
    });
    let handshake = handshake.to_string();
    client
        .publish_retained(&inbound_topic, handshake.as_bytes())
        .await;
    deployment.wait_until_connected(&client_id).await;
    let receiver = Receiver { client_id, client };
    let id = receiver.send_tracked(&deployment).await;
    let mut client = receiver.client;
    let error = json!({
        "type": "message-error", "message_id": "e", "in_response_to": id,
        "payload": {"details": "unknown directive"},
    });
    client.must_publish(&inbound_topic, &error).await;
    let message = wait_for_state(&deployment, &id, "rejected").await;
    assert_eq!(message["answer"], json!({"details": "unknown directive"}));
    // A later answer does not replace the rejection.
    let answer = json!({"type": "message", "in_response_to": id, "payload": 1});
    client.must_publish(&inbound_topic, &answer).await;
    eventually("the second answer", || async {
        let (_, message) = get_message(&deployment, &id).await;
        (message["answer_count"] == 2).then(|| assert_eq!(message["state"], "rejected"))
    })
    .await;
}

async fn answer_that_is_redelivered_after_a_restart_changes_nothing_else(
    mut deployment: Deployment,
) {
    let mut receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    let topic = data_out_topic(&receiver.client_id);
    let answer = data_message(&id, &json!("first"));
    receiver.client.must_publish(&topic, &answer).await;
    let answered = wait_for_state(&deployment, &id, "answered").await;
    deployment.restart().await;
    let (status, message) = eventually("the API after the restart", || async {
        let response = get_message(&deployment, &id).await;
        (response.0 != 503).then_some(response)
    })
    .await;
    assert_eq!(status, 200);
    for field in ["state", "answer", "answered_at", "acknowledged_at"] {
        assert_eq!(message[field], answered[field], "{field}");
    }
}
