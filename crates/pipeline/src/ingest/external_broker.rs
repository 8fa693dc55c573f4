//! Reads client messages from an external MQTT broker and forwards them to Kafka or the recorder.
//!
//! The broker stores the session while this process is down. A message is acknowledged only after
//! Kafka or the recorder has stored the message. After a crash, the broker redelivers all QoS 1
//! messages that were not stored.

mod deferred_heartbeats;
mod forwarding;
mod message_selection;
mod qos0_filter;
mod receive;
mod slow_clients;
mod slow_forwarder;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use self::forwarding::Forwarder;
use self::receive::{ReceivedMessage, Receiver};
use self::slow_forwarder::SlowForwarder;
pub use self::slow_forwarder::SlowTopic;
use super::ForwardDestination;
use super::epoch::{ConnectionEpoch, EpochSource};
use super::session_lease::SessionLease;
use domain::{Clock, Timestamp};
use mqtt::{
    self, Backoff, ConnectOptions, ConnectOptionsError, IngestMessages, MqttEvent, MqttHandle,
};
use protocol::TopicScheme;
use service::health::HealthResult;
use service::{ByteBudget, ClientBudgets, TaskGroup};

/// Capacity of the channel between [`Receiver`] and [`Forwarder`]. The capacity exceeds the limit of
/// unacknowledged messages, so the receiver does not wait for the forwarder.
/// The message budget limits the size of the messages in the channel.
const MESSAGE_CHANNEL_CAPACITY: usize = 70_000;
const BUDGET_REMOVAL_INTERVAL: Duration = Duration::from_mins(1);

/// Dependencies of the ingest task.
pub struct IngestDeps {
    /// Options of the broker connection.
    pub connect_options: ConnectOptions,
    /// The MQTT topics of this deployment.
    pub topics: TopicScheme,
    /// The messages that this process forwards. Another process forwards the others.
    pub messages: IngestMessages,
    /// Name of the shared subscription if several processes share the messages, otherwise `None`.
    pub shared_subscription_group: Option<String>,
    /// The destination of the messages: Kafka or the recorder.
    pub forward_destination: ForwardDestination,
    /// The topic for the messages of clients that are over their budget. `None` if these messages are
    /// forwarded like all others: without Kafka, and with a shared subscription, because then the
    /// process does not know all slow clients.
    pub slow_topic: Option<SlowTopic>,
    /// The budgets of the clients.
    pub client_budgets: ClientBudgets,
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
    /// When the ingest neither forwards messages of the broker nor is on standby. The error contains the reason.
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
    let session_present = match first_event {
        MqttEvent::Connected { session_present } => session_present,
        MqttEvent::Disconnected(reason) => return reason,
        _ => return "the broker sent a packet before CONNACK".to_owned(),
    };
    let pending_subacks = if session_present && *has_subscribed {
        0
    } else {
        match subscribe(deps, &handle).await {
            Ok(subscriptions) => subscriptions,
            Err(error) => return error.to_string(),
        }
    };
    backoff.reset();
    let epoch = ConnectionEpoch::acquire(deps.epoch_source.as_ref(), session_present);
    let (sender, messages) = mpsc::channel(MESSAGE_CHANNEL_CAPACITY);
    let (subscribed_sender, subscribed) = oneshot::channel();
    let polling = Receiver::new(deps.clone(), sender).poll_connection(
        event_loop,
        pending_subacks,
        subscribed_sender,
    );
    // Polling has its own task, so that it runs in parallel with forwarding. Its end and its panic
    // are handled below.
    let polling = AbortOnDropHandle::new(tokio::spawn(polling));
    let (started_sender, started) = oneshot::channel();
    let forwarding = forward_messages(
        deps,
        health,
        &handle,
        epoch,
        messages,
        started_sender,
        tasks,
    );
    let set_healthy = async {
        if subscribed.await.is_ok() {
            *has_subscribed = true;
            tracing::info!("subscribed to broker");
            if started.await.is_ok() {
                *health.write() = Ok(());
            }
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
        reason = forwarding => reason,
        reason = set_healthy => reason,
        reason = remove_full_budgets(deps) => reason,
    }
}

/// Frees the memory of budgets that are full. Never returns.
async fn remove_full_budgets(deps: &IngestDeps) -> String {
    loop {
        tokio::time::sleep(BUDGET_REMOVAL_INTERVAL).await;
        deps.client_budgets.remove_full_budgets();
    }
}

/// Forwards the messages of a connection. Completes `started_sender` when the first message can be
/// forwarded. Returns the reason for the end of the connection.
async fn forward_messages(
    deps: &IngestDeps,
    health: &RwLock<HealthResult>,
    handle: &MqttHandle,
    mut epoch: ConnectionEpoch,
    messages: mpsc::Receiver<ReceivedMessage>,
    started_sender: oneshot::Sender<()>,
    tasks: &TaskGroup,
) -> String {
    let load_slow_forwarder = async {
        let slow_topic = deps.slow_topic.clone()?;
        let on_error = |error| *health.write() = Err(error);
        Some(SlowForwarder::load(slow_topic, on_error).await)
    };
    // Meanwhile, the connection is polled. If another host takes over the session, this function
    // ends, and no message gets an epoch that is higher than the epoch of that host.
    let slow_forwarder = tokio::select! {
        (slow_forwarder, ()) = async { tokio::join!(load_slow_forwarder, epoch.wait()) } => slow_forwarder,
        () = tasks.cancelled() => return "shutting down".to_owned(),
    };
    // `send` fails only if the connection is being closed. That is not an error.
    let _ = started_sender.send(());
    let forwarder = Forwarder::new(deps, handle, epoch, slow_forwarder);
    forwarder.run(messages, tasks).await
}

/// Sends a SUBSCRIBE for each topic filter and returns the number of topic filters. Does not wait
/// for the SUBACKs, because the broker may send the stored messages of the session before the
/// SUBACKs.
async fn subscribe(
    deps: &IngestDeps,
    handle: &MqttHandle,
) -> Result<usize, mqtt::ConnectionClosed> {
    let mut subscriptions = 0;
    for (channel, filter) in deps.topics.subscription_filters() {
        let Some(qos) = message_selection::subscription_qos(deps.messages, channel) else {
            continue;
        };
        subscriptions += 1;
        let filter = match &deps.shared_subscription_group {
            Some(group) => format!("$share/{group}/{filter}"),
            None => filter,
        };
        handle.subscribe(filter, qos).await?;
    }
    Ok(subscriptions)
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
