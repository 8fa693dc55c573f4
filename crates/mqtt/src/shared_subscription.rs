//! Checks how a broker distributes the messages of a shared subscription.
//!
//! With several subscribers, the messages of one client stay in order only if the broker delivers all of
//! them to the same subscriber. MQTT does not specify this: EMQX does it if it is configured, and
//! Mosquitto and HiveMQ alternate between the subscribers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{EventLoop, MqttEvent, MqttHandle, connect};
use crate::options::ConnectOptions;
use crate::reconnecting::ProbeError;

const SUBSCRIBER_COUNT: usize = 2;
const PUBLISHER_COUNT: usize = 8;
/// Number of messages of each publisher. The publishers alternate between the topics.
const MESSAGES_PER_PUBLISHER: usize = 10;
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a broker distributes the messages of a shared subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// All messages of a client went to the same subscriber.
    ByClient,
    /// Messages of one client went to different subscribers.
    Mixed,
}

/// A message that a subscriber received.
struct Received {
    subscriber: usize,
    publisher: usize,
}

/// Publishes on `topics` as several clients, and receives the messages with two members of a shared
/// subscription. Used by `doctor`.
///
/// # Errors
/// When a connection cannot be opened, or when the broker does not deliver all messages.
pub async fn probe_shared_subscription(
    options: &ConnectOptions,
    group: &str,
    topics: &[String],
) -> Result<Distribution, ProbeError> {
    let probe = run_probe(options, group, topics);
    tokio::time::timeout(PROBE_TIMEOUT, probe)
        .await
        .unwrap_or_else(|_| {
            Err(ProbeError::Deliver(format!(
                "the broker did not deliver all messages within {PROBE_TIMEOUT:?}"
            )))
        })
}

async fn run_probe(
    options: &ConnectOptions,
    group: &str,
    topics: &[String],
) -> Result<Distribution, ProbeError> {
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut connections = Vec::new();
    for subscriber in 0..SUBSCRIBER_COUNT {
        let (handle, event_loop) = open(options, &format!("subscriber-{subscriber}")).await?;
        let polling = poll(event_loop, subscriber, sender.clone());
        let polling = AbortOnDropHandle::new(tokio::spawn(polling));
        for topic in topics {
            let filter = format!("$share/{group}/{topic}");
            if !matches!(handle.subscribe_qos0_and_wait(filter).await, Ok(true)) {
                let reason = "the broker rejected the shared subscription";
                return Err(ProbeError::Deliver(reason.to_owned()));
            }
        }
        connections.push((handle, polling));
    }
    for publisher in 0..PUBLISHER_COUNT {
        let (handle, event_loop) = open(options, &format!("publisher-{publisher}")).await?;
        let polling = poll(event_loop, SUBSCRIBER_COUNT, sender.clone());
        let polling = AbortOnDropHandle::new(tokio::spawn(polling));
        for topic in topics.iter().cycle().take(MESSAGES_PER_PUBLISHER) {
            let payload = publisher.to_string().into_bytes();
            let published = handle.publish(topic.clone(), payload).await;
            published.map_err(|error| ProbeError::Deliver(error.to_string()))?;
        }
        connections.push((handle, polling));
    }
    let mut subscribers_by_publisher: HashMap<usize, HashSet<usize>> = HashMap::new();
    for _ in 0..PUBLISHER_COUNT * MESSAGES_PER_PUBLISHER {
        // The channel is open, because this function has a sender.
        if let Some(received) = messages.recv().await {
            let subscribers = subscribers_by_publisher
                .entry(received.publisher)
                .or_default();
            subscribers.insert(received.subscriber);
        }
    }
    let is_by_client = subscribers_by_publisher.values().all(|set| set.len() == 1);
    Ok(if is_by_client {
        Distribution::ByClient
    } else {
        Distribution::Mixed
    })
}

/// Opens a connection with a client id of its own.
async fn open(
    options: &ConnectOptions,
    suffix: &str,
) -> Result<(MqttHandle, EventLoop), ProbeError> {
    let options = ConnectOptions {
        client_id: format!("{}-{suffix}", options.client_id),
        ..options.clone()
    };
    let (handle, mut event_loop) =
        connect(&options).map_err(|error| ProbeError::Connect(error.to_string()))?;
    match event_loop.next().await {
        MqttEvent::Connected { .. } => Ok((handle, event_loop)),
        MqttEvent::Disconnected(reason) => Err(ProbeError::Connect(reason)),
        _ => {
            let reason = "the broker sent a packet before CONNACK";
            Err(ProbeError::Connect(reason.to_owned()))
        }
    }
}

/// Polls a connection until it is closed, and passes on the received messages.
async fn poll(
    mut event_loop: EventLoop,
    subscriber: usize,
    sender: mpsc::UnboundedSender<Received>,
) {
    loop {
        match event_loop.next().await {
            MqttEvent::Message { payload, .. } => {
                let publisher = std::str::from_utf8(&payload).ok();
                if let Some(publisher) = publisher.and_then(|text| text.parse().ok()) {
                    let received = Received {
                        subscriber,
                        publisher,
                    };
                    // `send` fails only if the probe has ended.
                    let _ = sender.send(received);
                }
            }
            MqttEvent::Disconnected(_) => return,
            _ => {}
        }
    }
}
