//! Reads client messages from an external MQTT broker and forwards them to the next stage.
//!
//! The broker stores the session while this process is down. A message is acknowledged only after
//! the next stage has stored it, so a crash loses no QoS 1 message.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesOrdered;
use futures::{Stream, StreamExt as _};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::NextStage;
use super::in_flight::{InFlight, InFlightGuard, Qos0Budget, Qos0Guard};
use crate::domain::{Clock, Timestamp};
use crate::mqtt::{
    self, Ack, Backoff, ConnectOptions, ConnectOptionsError, EventLoop, MqttEvent, MqttHandle,
};
use crate::protocol::{InboundMessage, TopicScheme};
use crate::shutdown::TaskGroup;
use crate::telemetry::health::HealthResult;
use crate::telemetry::metrics;

/// Capacity of the channel from polling to forwarding. It exceeds the limit of unacknowledged
/// messages, so polling does not wait for forwarding.
const CHANNEL_CAPACITY: usize = 70_000;
/// How long a shutdown waits for forwarded messages. The broker redelivers messages that are not
/// acknowledged by then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Dependencies of the ingest task.
pub struct IngestDeps {
    /// Options of the broker connection.
    pub options: ConnectOptions,
    /// The MQTT topics of this deployment.
    pub topics: TopicScheme,
    /// Name of the shared subscription, if several processes share the messages.
    pub shared_subscription_group: Option<String>,
    /// Where to forward messages.
    pub next_stage: NextStage,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Receive time of the last message.
    pub last_received_at: Mutex<Timestamp>,
}

/// Handle of the running ingest task. Clones refer to the same task.
#[derive(Clone)]
pub struct ExternalIngest {
    health: Arc<RwLock<HealthResult>>,
}

/// A received message on its way to the next stage.
struct ReceivedMessage {
    message: InboundMessage,
    packet_id: u16,
    /// Set for QoS 1 only.
    ack: Option<(Ack, InFlightGuard)>,
    /// Set for QoS 0 only.
    qos0_guard: Option<Qos0Guard>,
}

impl ExternalIngest {
    /// Starts the ingest task, which runs until `tasks` is cancelled.
    ///
    /// # Errors
    /// When the connection options are invalid.
    pub fn start(deps: IngestDeps, tasks: &TaskGroup) -> Result<Self, ConnectOptionsError> {
        // Validates the options at startup, for example that certificate files are readable.
        drop(mqtt::connect(&deps.options)?);
        let health = Arc::new(RwLock::new(Err("not connected yet".to_owned())));
        tasks.spawn(keep_connected(
            Arc::new(deps),
            health.clone(),
            tasks.clone(),
        ));
        Ok(Self { health })
    }

    /// Health for the readiness endpoint.
    ///
    /// # Errors
    /// When the task is not subscribed to the broker, with the reason.
    pub fn health(&self) -> HealthResult {
        self.health.read().clone()
    }
}

async fn keep_connected(
    deps: Arc<IngestDeps>,
    health: Arc<RwLock<HealthResult>>,
    tasks: TaskGroup,
) {
    let mut backoff = Backoff::default();
    // The stored session may be from an earlier process with other topic prefixes. So the first
    // connection subscribes even if the broker has a session.
    let mut has_subscribed = false;
    loop {
        let reason =
            run_connection(&deps, &health, &mut has_subscribed, &mut backoff, &tasks).await;
        if tasks.is_cancelled() {
            *health.write() = Err("shutting down".to_owned());
            return;
        }
        tracing::warn!(reason, "MQTT connection lost; reconnecting");
        *health.write() = Err(reason);
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = tasks.cancelled() => return,
        }
    }
}

/// Runs one connection and returns the reason for its end. Messages in flight stay unacknowledged:
/// the broker redelivers them, and recording a message twice does no harm.
async fn run_connection(
    deps: &Arc<IngestDeps>,
    health: &Arc<RwLock<HealthResult>>,
    has_subscribed: &mut bool,
    backoff: &mut Backoff,
    tasks: &TaskGroup,
) -> String {
    let (handle, mut event_loop) = match mqtt::connect(&deps.options) {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    let first_event = tokio::select! {
        event = event_loop.next() => event,
        () = tasks.cancelled() => return "shutting down".to_owned(),
    };
    let pending_subacks = match first_event {
        MqttEvent::Connected { session_present } if session_present && *has_subscribed => 0,
        MqttEvent::Connected { .. } => match subscribe(deps, &handle).await {
            Ok(subscriptions) => subscriptions,
            Err(error) => return error.to_string(),
        },
        MqttEvent::Disconnected(reason) => return reason,
        _ => return "the broker sent a packet before CONNACK".to_owned(),
    };
    backoff.reset();
    let (sender, messages) = mpsc::channel(CHANNEL_CAPACITY);
    let (all_granted, subscribed) = oneshot::channel();
    let polling = poll(
        event_loop,
        deps.clone(),
        sender,
        pending_subacks,
        all_granted,
    );
    let polling = AbortOnDropHandle::new(tokio::spawn(polling));
    let set_healthy = async {
        if subscribed.await.is_ok() {
            *has_subscribed = true;
            *health.write() = Ok(());
            tracing::info!("subscribed to broker");
        }
        std::future::pending::<String>().await
    };
    tokio::select! {
        reason = polling => reason.unwrap_or_else(|error| error.to_string()),
        reason = forward_all(deps, &handle, messages, tasks) => reason,
        reason = set_healthy => reason,
    }
}

/// Sends a SUBSCRIBE for each topic filter and returns their number. Does not wait for the SUBACKs,
/// because the broker may send the stored messages of the session before them.
async fn subscribe(
    deps: &IngestDeps,
    handle: &MqttHandle,
) -> Result<usize, mqtt::ConnectionClosed> {
    let filters = deps.topics.subscription_filters();
    let subscriptions = filters.len();
    for filter in filters {
        let filter = match &deps.shared_subscription_group {
            Some(group) => format!("$share/{group}/{filter}"),
            None => filter,
        };
        handle.subscribe(filter).await?;
    }
    Ok(subscriptions)
}

/// Polls the connection, sends each message to `sender`, and completes `all_granted` after the last
/// pending SUBACK. Returns the reason for the end of the connection.
async fn poll(
    mut event_loop: EventLoop,
    deps: Arc<IngestDeps>,
    sender: mpsc::Sender<ReceivedMessage>,
    mut pending_subacks: usize,
    all_granted: oneshot::Sender<()>,
) -> String {
    let mut all_granted = Some(all_granted);
    let (in_flight, qos0_budget) = (InFlight::default(), Qos0Budget::default());
    loop {
        if pending_subacks == 0
            && let Some(all_granted) = all_granted.take()
        {
            // The send fails only if the connection is being closed.
            let _ = all_granted.send(());
        }
        // While the loop waits for capacity, it sends no PINGREQ. If the next stage is down for
        // longer than the keep-alive timeout, the broker closes the connection and redelivers the
        // messages after the reconnect.
        in_flight.wait_for_capacity().await;
        match event_loop.next().await {
            MqttEvent::Message {
                topic,
                payload,
                retain,
                packet_id,
                ack,
            } => {
                let ack = ack.map(|ack| (ack, in_flight.add(payload.len())));
                let qos0_guard = if ack.is_none() {
                    let guard = qos0_budget.try_reserve(payload.len());
                    if guard.is_none() {
                        metrics::qos0_message_dropped();
                        continue;
                    }
                    guard
                } else {
                    None
                };
                let received = ReceivedMessage {
                    message: InboundMessage {
                        topic,
                        payload,
                        retained: retain,
                        operator_replay: false,
                        received_at: deps.next_receive_time(),
                        truncated: None,
                    },
                    packet_id,
                    ack,
                    qos0_guard,
                };
                if sender.send(received).await.is_err() {
                    return "shutting down".to_owned();
                }
            }
            MqttEvent::SubAck { granted: true } => {
                pending_subacks = pending_subacks.saturating_sub(1);
            }
            MqttEvent::SubAck { granted: false } => {
                return "the broker rejected a subscription; check its access rules".to_owned();
            }
            MqttEvent::Disconnected(reason) => return reason,
            MqttEvent::Connected { .. } => {}
        }
    }
}

impl IngestDeps {
    /// Returns the current time, or one microsecond after the previous receive time if that is
    /// later. Receive times decide the order of messages, so they must strictly increase even if
    /// the clock is set back.
    fn next_receive_time(&self) -> Timestamp {
        let mut last = self.last_received_at.lock();
        let now = self.clock.now();
        let next = last.saturating_add(Duration::from_micros(1));
        *last = next.map_or(now, |next| next.max(now));
        *last
    }
}

/// Forwards messages concurrently and acknowledges them in the order of their receipt, until the
/// connection ends or `tasks` is cancelled. Returns the reason for the end.
async fn forward_all(
    deps: &IngestDeps,
    handle: &MqttHandle,
    mut messages: mpsc::Receiver<ReceivedMessage>,
    tasks: &TaskGroup,
) -> String {
    let mut forwarded = FuturesOrdered::new();
    let connection_closed = || "connection closed".to_owned();
    let token = tasks.token();
    let mut cancelled = pin!(token.cancelled());
    loop {
        tokio::select! {
            () = &mut cancelled => {
                let draining = drain_and_disconnect(handle, messages, forwarded);
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, draining).await;
                return "shutting down".to_owned();
            }
            received = messages.recv() => {
                let Some(received) = received else { return connection_closed() };
                let forwarding = deps
                    .next_stage
                    .forward(&deps.topics, received.message, received.packet_id);
                let pending_write = tokio::select! {
                    pending_write = forwarding => pending_write,
                    () = &mut cancelled => continue,
                };
                forwarded.push_back(async move {
                    let is_durable = pending_write.durable().await;
                    drop(received.qos0_guard);
                    (is_durable, received.ack)
                });
            }
            Some((is_durable, ack)) = forwarded.next(), if !forwarded.is_empty() => {
                if !is_durable {
                    return "failed to forward a message".to_owned();
                }
                if acknowledge(handle, ack).await.is_err() {
                    return connection_closed();
                }
            }
        }
    }
}

async fn acknowledge(
    handle: &MqttHandle,
    ack: Option<(Ack, InFlightGuard)>,
) -> Result<(), mqtt::ConnectionClosed> {
    match ack {
        Some((ack, _in_flight_guard)) => handle.acknowledge(ack).await,
        None => Ok(()),
    }
}

/// Acknowledges the forwarded messages, then sends DISCONNECT and waits for the end of the
/// connection. Further messages are discarded without acknowledgement: the broker redelivers them.
async fn drain_and_disconnect(
    handle: &MqttHandle,
    mut messages: mpsc::Receiver<ReceivedMessage>,
    mut forwarded: impl Stream<Item = (bool, Option<(Ack, InFlightGuard)>)> + Unpin,
) {
    loop {
        tokio::select! {
            outcome = forwarded.next() => match outcome {
                Some((true, ack)) => if acknowledge(handle, ack).await.is_err() { return },
                Some((false, _)) => return,
                None => break,
            },
            message = messages.recv() => if message.is_none() { return },
        }
    }
    if handle.disconnect().await.is_ok() {
        while messages.recv().await.is_some() {}
    }
}
