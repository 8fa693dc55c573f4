//! Compares the Kafka topic of events with the events that callers receive.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::deployment::ChaosDeployment;
use test_support::services::{TopicMessage, read_topic_messages};

/// Checks that the topic contains each event at least once, and that the first messages of the events of
/// each client have the order of the events. Returns the number of messages.
///
/// A client's events are in one partition. After a failure, a message can be there twice.
pub async fn check(
    deployment: &ChaosDeployment,
    events: &BTreeMap<u64, Value>,
    newest_position: u64,
) -> Result<usize, String> {
    let cluster = deployment
        .cluster()
        .expect("only the distributed mode has Kafka");
    let sql = "SELECT position FROM event_positions WHERE name = 'forwarder'";
    let forwarded: i64 = sqlx::query_scalar(sql)
        .fetch_one(&mut cluster.connect_to_database().await)
        .await
        .map_err(|error| error.to_string())?;
    if u64::try_from(forwarded).unwrap_or(0) < newest_position {
        return Err(format!(
            "events are forwarded up to position {forwarded}, the newest is {newest_position}"
        ));
    }
    let brokers = cluster.setting("kafka.brokers").to_owned();
    let topic = cluster.setting("events.kafka_topic").to_owned();
    let messages = tokio::task::spawn_blocking(move || read_topic_messages(&brokers, &topic));
    let messages = messages.await.map_err(|error| error.to_string())?;
    check_messages(&messages, events, newest_position)?;
    Ok(messages.len())
}

fn check_messages(
    messages: &[TopicMessage],
    events: &BTreeMap<u64, Value>,
    newest_position: u64,
) -> Result<(), String> {
    let mut forwarded = BTreeSet::new();
    let mut latest_of_client: BTreeMap<&str, u64> = BTreeMap::new();
    for message in messages {
        let position = message.header("ce_sequence").parse::<u64>();
        let position = position.map_err(|error| format!("ce_sequence: {error}"))?;
        let payload: Value =
            serde_json::from_slice(&message.payload).map_err(|error| error.to_string())?;
        let client_id = message.key.as_str();
        let id = position.to_string();
        let is_consistent = payload["client_id"] == client_id
            && payload["id"] == id
            && message.header("ce_id") == id
            && message.header("ce_subject") == client_id;
        // An event after `newest_position` is of a client that measures the recovery.
        let is_equal = position > newest_position || events.get(&position) == Some(&payload);
        if !is_consistent || !is_equal {
            return Err(format!(
                "the message {message:?} differs from the event {:?}",
                events.get(&position)
            ));
        }
        if !forwarded.insert(position) {
            continue;
        }
        let latest = latest_of_client.insert(client_id, position);
        if latest > Some(position) {
            return Err(format!(
                "the topic has event {position} of {client_id} for the first time after event {latest:?}"
            ));
        }
    }
    let missing = (1..=newest_position).find(|position| !forwarded.contains(position));
    match missing {
        Some(position) => Err(format!("the topic does not contain event {position}")),
        None => Ok(()),
    }
}
