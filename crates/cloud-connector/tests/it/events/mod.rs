//! Tests of events: the stream of the API in both deployment modes, and the Kafka topic.

mod forwarding;
mod stream;

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::time::timeout;

use test_support::mqtt::{Connect, RawClient, control_out_topic, offline_message, online_message};
use test_support::services::{TopicMessage, read_topic_messages};
use test_support::{CONDITION_TIMEOUT, Deployment, eventually};

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: u64,
    pub event_type: String,
    pub data: Value,
}

/// The caller of a stream.
pub struct EventReader {
    response: reqwest::Response,
    unread: Vec<u8>,
    blocks: VecDeque<String>,
}

impl EventReader {
    /// Opens a stream. `query` is empty or starts with `?`.
    pub async fn open(deployment: &Deployment, query: &str) -> Self {
        Self::from_request(deployment.request("GET", &format!("/v2/events{query}"))).await
    }

    /// Opens a stream after the event with this id.
    pub async fn resume(deployment: &Deployment, last_event_id: &str) -> Self {
        let request = deployment.request("GET", "/v2/events");
        Self::from_request(request.header("Last-Event-ID", last_event_id)).await
    }

    /// Sends the request, and checks the start of the response.
    pub async fn from_request(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            unread: Vec::new(),
            blocks: VecDeque::new(),
        }
    }

    /// Returns the next block of lines. Returns `None` at the end of the stream.
    pub async fn next_block(&mut self) -> Option<String> {
        loop {
            if let Some(block) = self.blocks.pop_front() {
                return Some(block);
            }
            let chunk = timeout(CONDITION_TIMEOUT, self.response.chunk()).await;
            let chunk = chunk.expect("the stream sends nothing").unwrap()?;
            self.unread.extend_from_slice(&chunk);
            while let Some(end) = self.unread.windows(2).position(|it| it == b"\n\n") {
                let block = self.unread.drain(..end + 2).collect();
                let block = String::from_utf8(block).unwrap();
                self.blocks.push_back(block.trim_end().to_owned());
            }
        }
    }

    /// Returns the next event, and ignores blocks without an event.
    pub async fn next_event(&mut self) -> Event {
        loop {
            let block = self.next_block().await.expect("the stream ended");
            let field = |name: &str| {
                let mut lines = block.lines();
                lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
            };
            if let Some(event_type) = field("event: ") {
                let data: Value = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                let id = field("id: ").unwrap();
                assert_eq!(
                    (&data["id"], &data["type"]),
                    (&json!(id), &json!(event_type))
                );
                return Event {
                    id: id.parse().unwrap(),
                    event_type,
                    data,
                };
            }
        }
    }

    /// Returns the next events.
    pub async fn next_events(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::with_capacity(count);
        for _ in 0..count {
            events.push(self.next_event().await);
        }
        events
    }
}

/// Connects a client, changes its dispatchers, and disconnects it.
pub async fn run_client(deployment: &Deployment, client_id: &str) {
    let address = deployment.mqtt_address();
    let mut client = RawClient::connect(&address, &Connect::new(client_id)).await;
    let topic = control_out_topic(client_id);
    client.must_publish(&topic, &online_message()).await;
    deployment.wait_until_connected(client_id).await;
    let mut changed = online_message();
    changed["content"]["dispatchers"] = json!({"rhc_worker_new": {"version": "1"}});
    client.must_publish(&topic, &changed).await;
    let has_changed = |status: &Value| status["dispatchers"]["rhc_worker_new"].is_object();
    eventually("the new dispatchers", || async {
        let status = deployment.client_status(client_id).await;
        has_changed(&status).then_some(())
    })
    .await;
    client.must_publish(&topic, &offline_message()).await;
    deployment.wait_until_disconnected(client_id).await;
    client.disconnect().await;
}

/// Waits until the topic of events has at least this number of messages.
pub async fn wait_for_topic_messages(deployment: &Deployment, count: usize) -> Vec<TopicMessage> {
    let Deployment::Distributed(distributed) = deployment else {
        panic!("only distributed mode has Kafka");
    };
    let setting = |key| distributed.cluster.setting(key).to_owned();
    let (brokers, topic) = (setting("kafka.brokers"), setting("events.kafka_topic"));
    eventually("the events in Kafka", || {
        let (brokers, topic) = (brokers.clone(), topic.clone());
        async move {
            let read = tokio::task::spawn_blocking(move || read_topic_messages(&brokers, &topic));
            let messages = read.await.unwrap();
            (messages.len() >= count).then_some(messages)
        }
    })
    .await
}

/// Checks the three events of [`run_client`].
pub fn check_events_of_client(events: &[Event], client_id: &str) {
    let types: Vec<&str> = events.iter().map(|it| it.event_type.as_str()).collect();
    let expected = [
        "connection.online",
        "connection.updated",
        "connection.offline",
    ];
    assert_eq!(types, expected, "{events:?}");
    assert!(events.windows(2).all(|pair| pair[0].id < pair[1].id));
    for event in events {
        assert_eq!(event.data["client_id"], client_id);
        let time: jiff::Timestamp = event.data["time"].as_str().unwrap().parse().unwrap();
        assert!(time > jiff::Timestamp::UNIX_EPOCH);
    }
    let [online, updated, offline] = events else {
        panic!("{events:?}");
    };
    assert_eq!(online.data["cause"], "connected");
    assert_eq!(online.data["dispatchers"], json!({"echo": {}}));
    assert_eq!(online.data["canonical_facts"]["fqdn"], "raw.example");
    assert_eq!(updated.data["changed"], json!(["dispatchers"]));
    let new_dispatchers = json!({"rhc_worker_new": {"version": "1"}});
    assert_eq!(updated.data["dispatchers"], new_dispatchers);
    assert_eq!(offline.data["dispatchers"], new_dispatchers);
    let reason = offline.data["reason"].as_str().unwrap();
    assert!(["client", "will"].contains(&reason), "{reason}");
    assert!(offline.data["connected_for"].is_u64());
}
