//! A simulated `ingest` process: forwards the messages of the broker session to the simulated Kafka
//! cluster. It has the same promises as the real one: messages are forwarded in order, stamped with
//! the epoch of the connection, and acknowledged in order after Kafka has stored them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::kafka_cluster::{KafkaCluster, Record};
use crate::messages::{Content, Received, channel, topic_scheme};
use crate::mqtt_broker::{ConnectionId, Delivery, MqttBroker};
use crate::process::Process;
use crate::store_faults::{ProcessStore, StoreContext};
use domain::{IngestStamp, Timestamp};
use kafka::header;
use protocol::TopicScheme;
use service::TaskGroup;
use store::{IngestEpoch, IngestEpochRepository as _, QueueTopic};

const SESSION_NAME: &str = "ingest at the simulated broker";
/// Time after which another process takes over the session.
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// As in `pipeline::ingest::epoch`.
const MAX_WAIT_FOR_EPOCH: Duration = Duration::from_secs(15);
const EPOCH_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// What is common to all `ingest` processes.
pub struct IngestContext {
    pub broker: Arc<MqttBroker>,
    pub cluster: Arc<KafkaCluster>,
    pub store: Arc<StoreContext>,
    /// The process with the lease of the session, and the end of the lease.
    pub lease: Mutex<Option<(String, Instant)>>,
    /// Whether messages are forwarded without a stamp if the database does not respond.
    pub forwards_without_epoch: bool,
    /// The processes that are isolated from other hosts, by name.
    pub isolations: Mutex<BTreeMap<String, Isolation>>,
}

/// The process first cannot reach Kafka, then also not the broker and the database.
#[derive(Debug, Clone, Copy)]
pub struct Isolation {
    pub from_broker_since: Instant,
    pub end: Instant,
}

/// A message for Kafka.
struct ForwardedMessage {
    received: Received,
    stored: oneshot::Sender<()>,
}

/// Starts the task of an `ingest` process.
pub fn start(
    context: &Arc<IngestContext>,
    process: &Arc<Process>,
    group: &TaskGroup,
    tasks: &mut JoinSet<()>,
) {
    let (producer, messages) = mpsc::unbounded_channel();
    let (context, process, group) = (context.clone(), process.clone(), group.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = produce(&context, &process, messages) => {}
            () = run_connections(&context, &process, producer) => {}
            () = group.cancelled() => {}
        }
    });
}

/// Writes messages to Kafka, in order. Also writes the messages of earlier connections, which a new
/// connection cannot recall.
async fn produce(
    context: &IngestContext,
    process: &Process,
    mut messages: mpsc::UnboundedReceiver<ForwardedMessage>,
) {
    let topics = topic_scheme();
    while let Some(ForwardedMessage { received, stored }) = messages.recv().await {
        sleep(process.world.network_delay()).await;
        if let Some(end) = context.cluster.stalled_until() {
            sleep_until(end).await;
        }
        if let Some(isolation) = context.isolation(process) {
            sleep_until(isolation.end).await;
        }
        process.fault_point().await;
        let topic = queue_topic(&topics, &received);
        context.cluster.append(topic, Record::new(received));
        sleep(process.world.network_delay()).await;
        let _ = stored.send(());
    }
    std::future::pending::<()>().await;
}

/// Returns the topic to which `pipeline::ingest::forward` writes the message.
pub fn queue_topic(topics: &TopicScheme, received: &Received) -> QueueTopic {
    let publication = &received.publication;
    let is_response_or_heartbeat = channel(topics, &publication.topic)
        .is_some_and(|channel| protocol::is_response_or_heartbeat(channel, &publication.payload));
    if is_response_or_heartbeat {
        QueueTopic::Answers
    } else {
        QueueTopic::Ingress
    }
}

/// Returns the headers that `pipeline::ingest::forward` writes.
pub fn kafka_headers(received: &Received) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        (header::TOPIC, received.publication.topic.clone()),
        (header::RECEIVED_AT, format!("{:.9}", received.received_at)),
        (header::RETAIN, received.is_retained_replay.to_string()),
    ];
    if let Some(stamp) = &received.stamp {
        headers.push((header::INGEST_STAMP, stamp.to_string()));
    }
    if received.is_operator_replay {
        headers.push((header::OPERATOR_REPLAY, true.to_string()));
    }
    headers
}

/// Connects to the broker again and again.
async fn run_connections(
    context: &Arc<IngestContext>,
    process: &Arc<Process>,
    producer: mpsc::UnboundedSender<ForwardedMessage>,
) {
    let mut has_subscribed = false;
    let mut last_received_at = Timestamp::UNIX_EPOCH;
    loop {
        process.fault_point().await;
        if let Some(isolation) = context.isolation(process) {
            sleep_until(isolation.end).await;
        }
        let holder = process_name(process);
        if !context.acquire_lease(holder) {
            sleep(Duration::from_millis(500)).await;
            continue;
        }
        let connection = context.broker.connect();
        process
            .world
            .trace(None, format!("{} connects to the broker", process.name));
        if !has_subscribed {
            context.broker.subscribe(connection);
            has_subscribed = true;
        }
        let mut running = Connection {
            context,
            process,
            connection,
            producer: &producer,
            last_received_at: &mut last_received_at,
            epoch: None,
            sequence: 0,
        };
        tokio::select! {
            () = running.run() => {}
            () = context.renew_lease(process, holder) => {}
            () = context.wait_until_isolated_from_broker(process) => {
                context.broker.disconnect(connection);
            }
        }
        sleep(process.world.millis(50..=1000)).await;
    }
}

/// Returns the name of the process without the number of its run. A restarted process keeps its
/// lease.
fn process_name(process: &Process) -> &str {
    process.name.split('#').next().unwrap_or_default()
}

impl IngestContext {
    fn isolation(&self, process: &Process) -> Option<Isolation> {
        let isolation = self.isolations.lock().get(process_name(process)).copied();
        isolation
            .filter(|isolation| Instant::now() < isolation.end && !self.store.world.is_healed())
    }

    async fn wait_until_isolated_from_broker(&self, process: &Process) {
        loop {
            let mut changes = self.store.world.changes();
            match self.isolation(process) {
                Some(isolation) => return sleep_until(isolation.from_broker_since).await,
                None => {
                    let _ = changes.changed().await;
                }
            }
        }
    }

    fn acquire_lease(&self, holder: &str) -> bool {
        let mut lease = self.lease.lock();
        let now = Instant::now();
        let is_free = lease
            .as_ref()
            .is_none_or(|(other, end)| other == holder || *end < now);
        if is_free {
            *lease = Some((holder.to_owned(), now + LEASE_DURATION));
        }
        is_free
    }

    /// Renews the lease until another process has it.
    async fn renew_lease(&self, process: &Process, holder: &str) {
        loop {
            sleep(RENEW_INTERVAL).await;
            process.fault_point().await;
            if !self.acquire_lease(holder) {
                return;
            }
        }
    }
}

/// One connection to the broker.
struct Connection<'a> {
    context: &'a Arc<IngestContext>,
    process: &'a Arc<Process>,
    connection: ConnectionId,
    producer: &'a mpsc::UnboundedSender<ForwardedMessage>,
    last_received_at: &'a mut Timestamp,
    epoch: Option<IngestEpoch>,
    sequence: i64,
}

impl Connection<'_> {
    /// Forwards messages until the connection ends.
    async fn run(&mut self) {
        self.wait_for_epoch().await;
        let mut unacknowledged = FuturesOrdered::new();
        loop {
            self.process.fault_point().await;
            let mut changes = self.process.world.changes();
            if !self.context.broker.is_connected(self.connection) {
                return;
            }
            if let Some(delivery) = self.context.broker.next(self.connection) {
                let is_reliable = delivery.publication.is_reliable;
                let stored = self.forward(delivery);
                unacknowledged.push_back(async move { (stored.await.is_ok(), is_reliable) });
                continue;
            }
            tokio::select! {
                Some((is_stored, is_reliable)) = unacknowledged.next(),
                    if !unacknowledged.is_empty() =>
                {
                    if is_stored && is_reliable {
                        self.process.fault_point().await;
                        self.context.broker.acknowledge(self.connection);
                    }
                }
                _ = changes.changed() => {}
            }
        }
    }

    async fn wait_for_epoch(&mut self) {
        let store = ProcessStore {
            context: self.context.store.clone(),
            process: self.process.clone(),
        };
        let acquisition = async {
            loop {
                match store.next_ingest_epoch(SESSION_NAME, true).await {
                    Ok(epoch) => return epoch,
                    Err(_) => sleep(EPOCH_RETRY_INTERVAL).await,
                }
            }
        };
        self.epoch = if self.context.forwards_without_epoch {
            timeout(MAX_WAIT_FOR_EPOCH, acquisition).await.ok()
        } else {
            Some(acquisition.await)
        };
    }

    fn next_stamp(&mut self) -> Option<IngestStamp> {
        self.sequence += 1;
        let IngestEpoch { session, epoch } = self.epoch?;
        Some(IngestStamp {
            session,
            epoch,
            sequence: self.sequence,
        })
    }

    /// Passes a message to the producer. Returns a receiver that completes when Kafka has stored the
    /// message.
    fn forward(&mut self, delivery: Delivery) -> oneshot::Receiver<()> {
        let (sender, stored) = oneshot::channel();
        let next_microsecond = *self.last_received_at + Duration::from_micros(1);
        *self.last_received_at = self.process.clock.now().max(next_microsecond);
        let stamp = self.next_stamp();
        if delivery.publication.content == Content::ClearsRetained {
            // The message is acknowledged without forwarding it.
            let _ = sender.send(());
            return stored;
        }
        let received = Received {
            publication_number: delivery.number,
            publication: delivery.publication,
            is_retained_replay: delivery.is_retained_replay,
            is_operator_replay: false,
            received_at: *self.last_received_at,
            stamp,
        };
        let _ = self.producer.send(ForwardedMessage {
            received,
            stored: sender,
        });
        stored
    }
}
