//! States of messages, their events, and the records that are written.

use serde_json::{Value, json};

use super::{Receiver, get_message, other_organization, wait_for_state};
use crate::events::EventReader;
use test_support::{Deployment, each_deployment, eventually, unique_id};

each_deployment!(
    tracked_message_is_acknowledged_and_has_events,
    untracked_message_writes_nothing,
    all_messages_are_tracked_with_the_setting with &[("api.track_all", "true")],
    message_to_a_client_without_a_connection_is_not_stored,
    message_of_a_process_that_was_killed_fails,
    expired_records_are_deleted with &[("messages.retention", "1s"), ("updaters.interval", "1s")],
    records_above_the_limit_are_deleted with &[("messages.max_per_organization", "2")],
    cancelled_messages_are_not_returned_to_other_organizations,
);

async fn tracked_message_is_acknowledged_and_has_events(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let query = format!(
        "?client_id={}&type=message.sent,message.acknowledged,message.failed",
        receiver.client_id
    );
    let mut events = EventReader::open(&deployment, &query).await;
    let mut foreign_events = EventReader::from_request(
        deployment
            .request("GET", &format!("/v2/events{query}"))
            .headers(other_organization()),
    )
    .await;
    let id = receiver.send_tracked(&deployment).await;
    let (topic, delivered) = receiver.client.next_message().await;
    assert_eq!(
        topic,
        test_support::mqtt::data_in_topic(&receiver.client_id)
    );
    assert_eq!(
        (&delivered["message_id"], &delivered["content"]),
        (&json!(id), &json!("hello"))
    );
    // The state is stored before the response is sent.
    let (status, message) = get_message(&deployment, &id).await;
    assert_eq!(status, 200, "{message}");
    assert_eq!(message["id"], id);
    assert_eq!(message["client_id"], receiver.client_id);
    assert_eq!(message["directive"], "echo");
    assert_eq!(message["state"], "acknowledged");
    assert_eq!(message["attempts"], 1);
    assert_eq!(message["may_be_duplicate"], false);
    assert_eq!(message["answer_count"], 0);
    assert!(!message["caller"].as_str().unwrap().is_empty(), "{message}");
    for absent in [
        "reason",
        "answer",
        "answered_at",
        "ended_at",
        "expires_at",
        "bulk_id",
    ] {
        assert!(message.get(absent).is_none(), "{absent}: {message}");
    }
    let time = |name: &str| -> jiff::Timestamp { message[name].as_str().unwrap().parse().unwrap() };
    assert!(time("created_at") <= time("sent_at"));
    assert!(time("sent_at") <= time("acknowledged_at"));
    for (event_type, state) in [
        ("message.sent", "sending"),
        ("message.acknowledged", "acknowledged"),
    ] {
        let event = events.next_event().await;
        assert_eq!(event.event_type, event_type);
        assert_eq!(event.data["message_id"], id);
        assert_eq!(event.data["client_id"], receiver.client_id);
        assert_eq!(event.data["state"], state);
        assert_eq!(event.data["reason"], Value::Null);
    }
    // The other organization gets only the start of the stream and a position without an event.
    for _ in 0..2 {
        let block = foreign_events.next_block().await.unwrap();
        assert!(!block.contains("event:"), "{block}");
    }
    let label = "state=\"acknowledged\"";
    let count = deployment
        .read_metric("cloud_connector_tracked_messages_total", label)
        .await;
    assert!((count - 1.0).abs() < f64::EPSILON, "{count}");
}

async fn untracked_message_writes_nothing(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    for message in [
        json!({"directive": "echo"}),
        json!({"directive": "echo", "track": false}),
        json!({"directive": "echo", "track": null, "unknown": 1}),
    ] {
        let (status, body) = deployment.send_message(&receiver.client_id, message).await;
        assert_eq!(status, 201, "{body}");
        let (_, delivered) = receiver.client.next_message().await;
        let id = delivered["message_id"].as_str().unwrap();
        assert_eq!(body, json!({"id": id}));
        assert_eq!(get_message(&deployment, id).await.0, 404);
    }
    let count = deployment.count_rows("SELECT count(*) FROM messages").await;
    assert_eq!(count, 0);
    let count = deployment
        .count_rows("SELECT count(*) FROM message_counters")
        .await;
    assert_eq!(count, 0);
}

async fn all_messages_are_tracked_with_the_setting(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let message = json!({"directive": "echo"});
    let (status, body) = deployment.send_message(&receiver.client_id, message).await;
    assert_eq!(status, 201, "{body}");
    let id = body["id"].as_str().unwrap();
    wait_for_state(&deployment, id, "acknowledged").await;
}

async fn message_to_a_client_without_a_connection_is_not_stored(deployment: Deployment) {
    let client_id = unique_id("unknown");
    let untracked = deployment
        .send_message(&client_id, json!({"directive": "echo"}))
        .await;
    let message = json!({"directive": "echo", "track": true});
    let tracked = deployment.send_message(&client_id, message).await;
    assert_eq!(tracked.0, 404);
    assert_eq!(tracked, untracked);
    let count = deployment.count_rows("SELECT count(*) FROM messages").await;
    assert_eq!(count, 0);
}

async fn message_of_a_process_that_was_killed_fails(mut deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    // The state that a process leaves behind that is killed between the commit and the PUBACK.
    deployment
        .execute(
            "UPDATE messages SET state = 'sending', acknowledged_at = NULL, final_at = NULL,
                    lease_until = created_at",
        )
        .await;
    deployment.restart().await;
    let message = wait_for_state(&deployment, &id, "failed").await;
    assert_eq!(message["reason"], "broker-timeout");
    assert_eq!(message["may_be_duplicate"], true);
    let event_count = "SELECT count(*) FROM events WHERE type = 'message.failed'";
    eventually("the event", || async {
        (deployment.count_rows(event_count).await == 1).then_some(())
    })
    .await;
}

async fn expired_records_are_deleted(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    eventually("the deletion of the record", || async {
        let (status, _) = get_message(&deployment, &id).await;
        (status == 404).then_some(())
    })
    .await;
}

async fn records_above_the_limit_are_deleted(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(receiver.send_tracked(&deployment).await);
    }
    eventually("the deletion of the oldest records", || async {
        let (status, _) = get_message(&deployment, &ids[1]).await;
        (status == 404).then_some(())
    })
    .await;
    for id in &ids[2..] {
        assert_eq!(get_message(&deployment, id).await.0, 200);
    }
}

async fn cancelled_messages_are_not_returned_to_other_organizations(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    // A queued message, without the queue.
    deployment
        .execute("UPDATE messages SET state = 'queued', final_at = NULL")
        .await;
    let path = format!("/v2/messages/{id}");
    let foreign = deployment
        .request("DELETE", &path)
        .headers(other_organization());
    assert_eq!(foreign.send().await.unwrap().status(), 404);
    let response = deployment.request("DELETE", &path).send().await.unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(response.text().await.unwrap(), "");
    let message = wait_for_state(&deployment, &id, "cancelled").await;
    assert!(message["ended_at"].is_string(), "{message}");
    let response = deployment.request("DELETE", &path).send().await.unwrap();
    assert_eq!(response.status(), 409);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["state"], "cancelled");
}
