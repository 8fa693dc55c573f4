//! Reads client messages from an external MQTT broker and forwards them to Kafka or the recorder.
//!
//! The broker stores the session while this process is down. A message is acknowledged only after
//! Kafka or the recorder has stored the message. After a crash, the broker redelivers all QoS 1
//! messages that were not stored.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::FuturesOrdered;
use futures::{Stream, StreamExt as _};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::epoch::{ConnectionEpoch, EpochSource};
use super::in_flight::{InFlightCounter, InFlightGuard, Qos0Budget, Qos0Guard};
use super::session_lease::SessionLease;
use super::{ForwardDestination, metrics};
use domain::{Clock, Timestamp};
use mqtt::{
    self, Ack, Backoff, ConnectOptions, ConnectOptionsError, EventLoop, MqttEvent, MqttHandle,
};
use protocol::{InboundMessage, TopicScheme};
use service::health::HealthResult;
use service::{ByteBudget, TaskGroup};

/// Capacity of the channel between `poll_connection` and `forward_messages`. The capacity exceeds
/// the limit of unacknowledged messages, so `poll_connection` does not wait for `forward_messages`.
/// The message budget limits the size of the messages in the channel.
const MESSAGE_CHANNEL_CAPACITY: usize = 70_000;
/// Maximum time that a shutdown waits until forwarded messages are stored. The broker redelivers
/// messages that are not acknowledged within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Dependencies of the ingest task.
pub struct IngestDeps {
    /// Options of the broker connection.
    pub connect_options: ConnectOptions,
    /// The MQTT topics of this deployment.
    pub topics: TopicScheme,
    /// Name of the shared subscription if several processes share the messages, otherwise `None`.
    pub shared_subscription_group: Option<String>,
    /// The destination of the messages: Kafka or the recorder.
    pub forward_destination: ForwardDestination,
    /// Issues an epoch for each connection. `None` if messages need no stamps: without Kafka, their
    /// order is known, and with a shared subscription, several sessions are active.
    pub epoch_source: Option<EpochSource>,
    /// Lets one of several processes connect. `None` if the process always connects: without Kafka,
    /// there is one process, and with a shared subscription, all processes are active.
    pub session_lease: Option<SessionLease>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Receive time of the last received message.
    pub last_received_at: Mutex<Timestamp>,
    /// Limits the memory of all queued messages of the process.
    pub message_budget: ByteBudget,
}

/// Ingest from an external broker. Clones share the same state.
#[derive(Clone)]
pub struct ExternalIngest {
    deps: Arc<IngestDeps>,
    health: Arc<RwLock<HealthResult>>,
    is_standby: Arc<AtomicBool>,
}

/// A received message that is not forwarded yet.
struct ReceivedMessage {
    message: InboundMessage,
    packet_id: u16,
    /// The acknowledgement to send after the message is stored. `None` for QoS 0.
    ack: Option<(Ack, InFlightGuard)>,
    /// Reserves memory for a QoS 0 message. `None` for QoS 1.
    qos0_guard: Option<Qos0Guard>,
}

impl ExternalIngest {
    /// Creates the ingest. It connects when [`ExternalIngest::run`] is called.
    ///
    /// # Errors
    /// When the connection options are invalid.
    pub fn new(deps: IngestDeps) -> Result<Self, ConnectOptionsError> {
        // This connection is not used. `connect` is called here only to report invalid options at
        // startup, for example certificate files that cannot be read.
        drop(mqtt::connect(&deps.connect_options)?);
        Ok(Self {
            deps: Arc::new(deps),
            health: Arc::new(RwLock::new(Err("not connected yet".to_owned()))),
            is_standby: Arc::default(),
        })
    }

    /// Receives and forwards messages until `tasks` is cancelled. Opens a new connection when the
    /// connection is lost. Call this method only once per ingest.
    pub async fn run(self, tasks: TaskGroup) {
        let Self { deps, health, .. } = &self;
        let mut backoff = Backoff::default();
        // The first connection subscribes even if the broker has a stored session. The session may
        // be from an earlier process that was configured with other topic prefixes.
        let mut has_subscribed = false;
        loop {
            tokio::select! {
                () = self.acquire_lease() => {}
                () = tasks.cancelled() => break,
            }
            let reason = tokio::select! {
                reason = run_connection(deps, health, &mut has_subscribed, &mut backoff, &tasks) => reason,
                reason = lease_lost(deps.session_lease.as_ref()) => reason,
            };
            if tasks.is_cancelled() {
                break;
            }
            tracing::warn!(reason, "MQTT connection lost; reconnecting");
            *health.write() = Err(reason);
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = tasks.cancelled() => break,
            }
        }
        *health.write() = Err("shutting down".to_owned());
        if let Some(lease) = &deps.session_lease {
            lease.release().await;
        }
    }

    /// Waits until this process may connect. Meanwhile, a process on standby is healthy.
    async fn acquire_lease(&self) {
        let Some(lease) = &self.deps.session_lease else {
            return;
        };
        let on_standby = || {
            self.is_standby.store(true, Ordering::Relaxed);
            *self.health.write() = Ok(());
        };
        lease.acquire(on_standby).await;
        if self.is_standby.swap(false, Ordering::Relaxed) {
            *self.health.write() = Err("not connected yet".to_owned());
        }
    }

    /// Returns whether another process has the session, so that this process does not connect.
    #[must_use]
    pub fn is_standby(&self) -> bool {
        self.is_standby.load(Ordering::Relaxed)
    }

    /// Returns the health of the ingest for the readiness endpoint.
    ///
    /// # Errors
    /// When the ingest is neither subscribed to the broker nor on standby. The error contains the reason.
    pub fn health(&self) -> HealthResult {
        self.health.read().clone()
    }
}

/// Waits until another process has acquired the lease, and returns the reason. Waits without end if
/// there is no lease.
async fn lease_lost(lease: Option<&SessionLease>) -> String {
    match lease {
        Some(lease) => lease.renew_until_lost().await,
        None => std::future::pending().await,
    }
}

/// Runs one connection and returns the reason for its end. Messages in flight are then not
/// acknowledged, so the broker redelivers these messages. Recording a message twice is harmless.
async fn run_connection(
    deps: &Arc<IngestDeps>,
    health: &Arc<RwLock<HealthResult>>,
    has_subscribed: &mut bool,
    backoff: &mut Backoff,
    tasks: &TaskGroup,
) -> String {
    let (handle, mut event_loop) = match mqtt::connect(&deps.connect_options) {
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
    let epoch = ConnectionEpoch::acquire(deps.epoch_source.as_ref());
    let (sender, messages) = mpsc::channel(MESSAGE_CHANNEL_CAPACITY);
    let (subscribed_sender, subscribed) = oneshot::channel();
    let polling = poll_connection(
        event_loop,
        deps.clone(),
        sender,
        pending_subacks,
        subscribed_sender,
    );
    // Polling has its own task, so that it runs in parallel with forwarding. Its end and its panic
    // are handled below.
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
        reason = polling => match reason {
            Ok(reason) => reason,
            Err(error) => match error.try_into_panic() {
                // The panic must end this task, too, so that the supervisor detects it.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => error.to_string(),
            },
        },
        reason = forward_messages(deps, &handle, epoch, messages, tasks) => reason,
        reason = set_healthy => reason,
    }
}

/// Sends a SUBSCRIBE for each topic filter and returns the number of topic filters. Does not wait
/// for the SUBACKs, because the broker may send the stored messages of the session before the
/// SUBACKs.
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

/// Polls the connection, sends each message to `sender`, and completes `subscribed_sender` after
/// the last pending SUBACK. Returns the reason for the end of the connection.
async fn poll_connection(
    mut event_loop: EventLoop,
    deps: Arc<IngestDeps>,
    sender: mpsc::Sender<ReceivedMessage>,
    mut pending_subacks: usize,
    subscribed_sender: oneshot::Sender<()>,
) -> String {
    let mut subscribed_sender = Some(subscribed_sender);
    let in_flight = InFlightCounter::new(deps.message_budget.clone());
    let qos0_budget = Qos0Budget::new(deps.message_budget.clone());
    loop {
        if pending_subacks == 0
            && let Some(subscribed_sender) = subscribed_sender.take()
        {
            // `send` fails only if the connection is being closed. That is not an error.
            let _ = subscribed_sender.send(());
        }
        // While the loop waits for capacity, it sends no PINGREQ. If Kafka or the database is down
        // for longer than the keep-alive timeout, the broker closes the connection. After the
        // reconnect, the broker redelivers the messages.
        in_flight.wait_for_capacity().await;
        match event_loop.next().await {
            MqttEvent::Message {
                topic,
                payload,
                retain,
                packet_id,
                ack,
            } => {
                let ack = ack.map(|ack| (ack, in_flight.add_message(payload.len())));
                let qos0_guard = if ack.is_none() {
                    let guard = qos0_budget.try_reserve(payload.len());
                    if guard.is_none() {
                        metrics::count_dropped_qos0_message();
                        continue;
                    }
                    guard
                } else {
                    None
                };
                let received_message = ReceivedMessage {
                    message: InboundMessage {
                        topic,
                        payload,
                        retained: retain,
                        is_operator_replay: false,
                        received_at: deps.next_receive_time(),
                        ingest_stamp: None,
                        truncated_from: None,
                    },
                    packet_id,
                    ack,
                    qos0_guard,
                };
                if sender.send(received_message).await.is_err() {
                    return "shutting down".to_owned();
                }
            }
            MqttEvent::SubAck { is_granted: true } => {
                pending_subacks = pending_subacks.saturating_sub(1);
            }
            MqttEvent::SubAck { is_granted: false } => {
                return "the broker rejected a subscription; check its access rules".to_owned();
            }
            MqttEvent::Disconnected(reason) => return reason,
            MqttEvent::Connected { .. } => {}
        }
    }
}

impl IngestDeps {
    /// Returns the current time. If the current time is not after the previous receive time,
    /// returns the previous receive time plus one microsecond.
    ///
    /// Receive times determine the order of messages. So receive times must strictly increase, even
    /// if the clock is set back.
    fn next_receive_time(&self) -> Timestamp {
        let mut last_received_at = self.last_received_at.lock();
        let now = self.clock.now();
        let next_time = last_received_at.saturating_add(Duration::from_micros(1));
        *last_received_at = next_time.map_or(now, |next_time| next_time.max(now));
        *last_received_at
    }
}

/// Forwards messages concurrently and acknowledges them in the order in which they were received.
/// Runs until the connection ends or `tasks` is cancelled, and returns the reason for the end.
async fn forward_messages(
    deps: &IngestDeps,
    handle: &MqttHandle,
    mut epoch: ConnectionEpoch,
    mut messages: mpsc::Receiver<ReceivedMessage>,
    tasks: &TaskGroup,
) -> String {
    let mut forwarded_messages = FuturesOrdered::new();
    let token = tasks.cancellation_token();
    let mut cancelled = pin!(token.cancelled());
    // Meanwhile, `poll_connection` continues. If another host takes over the session, this function
    // ends, and no message gets an epoch that is higher than the epoch of that host.
    tokio::select! {
        () = epoch.wait() => {}
        () = &mut cancelled => {}
    }
    loop {
        tokio::select! {
            () = &mut cancelled => {
                let draining = drain_and_disconnect(handle, messages, forwarded_messages);
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, draining).await;
                return "shutting down".to_owned();
            }
            received_message = messages.recv() => {
                let Some(mut received_message) = received_message else {
                    // `poll_connection` has ended. `run_connection` returns its reason.
                    std::future::pending().await
                };
                received_message.message.ingest_stamp = epoch.next_stamp();
                let forwarding = deps
                    .forward_destination
                    .forward(&deps.topics, received_message.message, received_message.packet_id);
                let pending_write = tokio::select! {
                    pending_write = forwarding => pending_write,
                    () = &mut cancelled => continue,
                };
                // The recorder has its own reservation.
                if deps.forward_destination.reserves_memory() {
                    release_reservations(&mut received_message.ack, &mut received_message.qos0_guard);
                }
                forwarded_messages.push_back(async move {
                    let is_durable = pending_write.wait_until_durable().await;
                    drop(received_message.qos0_guard);
                    (is_durable, received_message.ack)
                });
            }
            Some((is_durable, ack)) = forwarded_messages.next(),
                if !forwarded_messages.is_empty() =>
            {
                if !is_durable {
                    return "failed to forward a message".to_owned();
                }
                if acknowledge(handle, ack).await.is_err() {
                    return "connection closed".to_owned();
                }
            }
        }
    }
}

/// Ends the reservations of a message in the message budget.
fn release_reservations(
    ack: &mut Option<(Ack, InFlightGuard)>,
    qos0_guard: &mut Option<Qos0Guard>,
) {
    if let Some((_, guard)) = ack {
        guard.release_reservation();
    }
    if let Some(guard) = qos0_guard {
        guard.release_reservation();
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
/// connection. Received messages that were not forwarded are discarded without acknowledgement,
/// so the broker redelivers these messages.
async fn drain_and_disconnect(
    handle: &MqttHandle,
    mut messages: mpsc::Receiver<ReceivedMessage>,
    mut forwarded_messages: impl Stream<Item = (bool, Option<(Ack, InFlightGuard)>)> + Unpin,
) {
    loop {
        tokio::select! {
            outcome = forwarded_messages.next() => match outcome {
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
