//! Tests of the events in Kafka.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{EventReader, check_events_of_client, run_client, wait_for_topic_messages};
use test_support::{Deployment, unique_id};

#[tokio::test]
async fn distributed_events_are_forwarded_to_kafka_as_cloud_events() {
    let mut deployment = Deployment::distributed(&[]).await;
    let client_id = unique_id("forward");
    let mut reader = EventReader::open(&deployment, "").await;
    run_client(&deployment, &client_id).await;
    let events = reader.next_events(3).await;
    check_events_of_client(&events, &client_id);
    let messages = wait_for_topic_messages(&deployment, 3).await;
    for (message, event) in messages.iter().zip(&events) {
        assert_eq!(message.key, client_id);
        let payload: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(payload, event.data);
        let id = event.id.to_string();
        let event_type = format!("com.redhat.cloud-connector.{}", event.event_type);
        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", &id),
            ("ce_source", "urn:redhat:cloud-connector"),
            ("ce_type", &event_type),
            ("ce_subject", &client_id),
            ("ce_time", event.data["time"].as_str().unwrap()),
            ("ce_sequence", &id),
            ("content-type", "application/json"),
        ];
        for (name, value) in expected {
            assert_eq!(message.header(name), value, "{name}");
        }
    }
    // The position is stored, so a restarted process does not forward the events again.
    deployment.restart().await;
    let later_client_id = unique_id("forward");
    run_client(&deployment, &later_client_id).await;
    let messages = wait_for_topic_messages(&deployment, 6).await;
    let ids: BTreeSet<&str> = messages.iter().map(|it| it.header("ce_id")).collect();
    assert_eq!((messages.len(), ids.len()), (6, 6));
    assert_eq!(
        json!(
            deployment
                .read_metric("cloud_connector_events_forwarded_total", "delivered")
                .await
        ),
        json!(3.0)
    );
}
