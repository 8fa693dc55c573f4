//! Forwards the messages of slow clients to the slow topic.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::slow_clients::{
    MessageCounts, Route, ScannedClients, SlowClients, SlowKey, SlowKeyHasher,
};
use crate::ingest::forward::{Delivery, OwnHeaders, message_key, produce};
use crate::ingest::metrics;
use kafka::{GroupProgress, PartitionProgress, Producer};
use protocol::{ClientTopic, InboundMessage};
use service::LogThrottle;

/// Maximum time for reading the unrecorded part of the slow topic at the start of a connection.
const SCAN_TIME_LIMIT: Duration = Duration::from_secs(30);
/// Interval at which the progress in the slow topic is read while there are slow clients.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The Kafka topic for the messages of clients that are over their budget.
#[derive(Clone)]
pub struct SlowTopic {
    /// Writes messages to Kafka.
    pub producer: Producer,
    /// Name of the topic.
    pub name: Arc<str>,
    /// The progress of the consumer group that reads the topic.
    pub progress: GroupProgress,
}

type CheckResult = Result<BTreeMap<i32, PartitionProgress>, String>;

/// Forwards the messages of the slow clients of one connection.
pub(super) struct SlowForwarder {
    topic: SlowTopic,
    hasher: SlowKeyHasher,
    clients: SlowClients,
    /// The held messages of all clients, in the order in which they were received.
    held_messages: VecDeque<HeldMessage>,
    /// The running check of the progress. `None` if no check runs.
    check: Option<BoxFuture<'static, CheckResult>>,
    next_check_at: Instant,
}

/// A message that is not produced yet.
struct HeldMessage {
    client: SlowKey,
    durable_before: u64,
    message: SlowMessage,
    delivery_sender: oneshot::Sender<Delivery>,
}

struct SlowMessage {
    key: String,
    message: InboundMessage,
    own_headers: OwnHeaders,
}

/// A message for the slow topic.
pub(super) enum PendingSlowMessage {
    Produced(Delivery),
    Held(oneshot::Receiver<Delivery>),
}

/// What to do with a message.
pub(super) enum Routed {
    /// The message goes to the normal topics.
    Normal(InboundMessage),
    /// The message goes to the slow topic.
    Slow(SlowKey, PendingSlowMessage),
}

impl SlowForwarder {
    /// Reads which clients have unrecorded messages in the slow topic. Retries until it succeeds. Calls
    /// `on_error` after each failure.
    pub async fn load(topic: SlowTopic, mut on_error: impl FnMut(String)) -> Self {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        // A message of an earlier connection that reaches Kafka later would be out of order.
        topic.producer.wait_until_idle().await;
        let hasher = SlowKeyHasher::default();
        let scan = loop {
            let scan_hasher = hasher.clone();
            let scan = topic.progress.scan_unprocessed(
                SCAN_TIME_LIMIT,
                move |clients: &mut ScannedClients, key, position| {
                    clients.add(scan_hasher.key(key), position);
                },
            );
            match scan.await {
                Ok(scan) => break scan,
                Err(error) => {
                    if LOG_THROTTLE.should_log() {
                        tracing::warn!(error, "failed to read the slow topic; retrying");
                    }
                    on_error(format!("cannot read the slow topic: {error}"));
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
        if scan.is_incomplete {
            tracing::warn!(
                "the slow topic has too many unrecorded messages; until they are recorded, the \
                 messages of all clients go through the slow topic"
            );
        }
        let clients = SlowClients::from_scan(scan);
        if !clients.is_empty() {
            let count = clients.len();
            tracing::info!(count, "clients with unrecorded messages in the slow topic");
        }
        metrics::set_slow_clients(clients.len());
        Self {
            topic,
            hasher,
            clients,
            held_messages: VecDeque::new(),
            check: None,
            next_check_at: Instant::now() + CHECK_INTERVAL,
        }
    }

    /// Selects the route of a message, and produces or holds a message for the slow topic.
    pub async fn route(
        &mut self,
        topic: Option<&ClientTopic>,
        message: InboundMessage,
        packet_id: u16,
        is_over_budget: bool,
        counts: MessageCounts,
    ) -> Routed {
        let key = message_key(topic, &message);
        let client = self.hasher.key(key.as_bytes());
        let (route, became_slow) = self.clients.select_route(client, is_over_budget, counts);
        if became_slow {
            metrics::set_slow_clients(self.clients.len());
            metrics::log_slow_client(key);
        }
        let (after_ingress, durable_before) = match route {
            Route::Normal => return Routed::Normal(message),
            Route::Slow { after_ingress } => (after_ingress, None),
            Route::Held {
                after_ingress,
                durable_before,
            } => (after_ingress, Some(durable_before)),
        };
        let message = SlowMessage {
            key: key.to_owned(),
            own_headers: OwnHeaders {
                packet_id,
                after_ingress,
            },
            message,
        };
        let pending = match durable_before {
            None => PendingSlowMessage::Produced(self.topic.produce(message).await),
            Some(durable_before) => {
                let (delivery_sender, delivery) = oneshot::channel();
                self.held_messages.push_back(HeldMessage {
                    client,
                    durable_before,
                    message,
                    delivery_sender,
                });
                PendingSlowMessage::Held(delivery)
            }
        };
        Routed::Slow(client, pending)
    }

    /// Notes that a message is in the slow topic.
    pub fn on_delivered(&mut self, client: SlowKey, position: kafka::DeliveredAt) {
        self.clients.on_delivered(client, position);
    }

    /// Produces the held messages whose earlier messages are in Kafka.
    pub async fn release_held_messages(&mut self, durable_count: u64) {
        let may_release = |held: &mut HeldMessage| held.durable_before <= durable_count;
        while let Some(held) = self.held_messages.pop_front_if(may_release) {
            self.clients.on_released(held.client);
            let delivery = self.topic.produce(held.message).await;
            // `send` fails only if the connection is being closed. That is not an error.
            let _ = held.delivery_sender.send(delivery);
        }
    }

    /// Discards the held messages. They are not acknowledged.
    pub fn discard_held_messages(&mut self) {
        self.held_messages.clear();
    }

    /// While there are slow clients, waits until their progress is read. Otherwise waits forever.
    pub async fn next_check(&mut self) -> CheckResult {
        if let Some(check) = &mut self.check {
            return check.await;
        }
        if self.clients.is_empty() {
            return std::future::pending().await;
        }
        sleep_until(self.next_check_at).await;
        self.clients.on_check_started();
        let progress = self.topic.progress.clone();
        let check = self
            .check
            .insert(async move { progress.read().await }.boxed());
        check.await
    }

    /// Lets the clients return whose messages are recorded.
    pub fn on_checked(&mut self, result: CheckResult) {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        self.check = None;
        self.next_check_at = Instant::now() + CHECK_INTERVAL;
        match result {
            Ok(progress) => self.clients.remove_recorded(&progress),
            Err(error) if LOG_THROTTLE.should_log() => {
                tracing::warn!(error, "failed to read the progress in the slow topic");
            }
            Err(_) => {}
        }
        metrics::set_slow_clients(self.clients.len());
    }
}

impl SlowTopic {
    async fn produce(&self, message: SlowMessage) -> Delivery {
        let SlowMessage {
            key,
            message,
            own_headers,
        } = message;
        metrics::count_slow_message();
        produce(&self.producer, &self.name, &key, message, own_headers).await
    }
}

impl PendingSlowMessage {
    /// Waits until the message is in the slow topic, and returns its position. Returns `None` if the
    /// message was not stored.
    pub async fn wait(self) -> Option<kafka::DeliveredAt> {
        match self {
            Self::Produced(delivery) => delivery.await,
            Self::Held(delivery) => delivery.await.ok()?.await,
        }
    }
}
