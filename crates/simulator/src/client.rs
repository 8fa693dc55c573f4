//! One simulated client: connects, handles received messages, disconnects and reconnects.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::args::Misbehavior;
use super::dialect::{Dialect, Reaction};
use super::fleet::Fleet;
use super::session::Session;
use domain::{ClientId, ClientInfo, Clock as _, SystemClock};
use mqtt::{Backoff, ConnectOptions, EventLoop, MqttEvent};

/// Delay after a failed connect during a storm. It replaces the exponential back-off. Without a
/// delay, the retries would use all CPU time.
const STORM_RETRY_DELAY: Duration = Duration::from_millis(50);
/// During a storm, the simulator drops each connection within this time. The time is short, so that
/// some connections are dropped while a publish is in flight.
const MAX_STORM_DROP_DELAY_MILLIS: u64 = 100;

pub(super) struct Client {
    pub id: ClientId,
    pub dialect: Dialect,
    pub info: ClientInfo,
    pub fleet: Arc<Fleet>,
    /// Whether the broker has acknowledged an online message of this client.
    pub is_online_message_acknowledged: AtomicBool,
    /// Sequence number of the next online message.
    next_sequence_number: AtomicU64,
    /// The session that publishes updates. `None` until the client is online on the current
    /// connection.
    pub session: Mutex<Option<Arc<Session>>>,
    /// Position of the client in the fleet, starting at 0.
    index: u32,
    options: ConnectOptions,
}

/// Why a connection ended.
enum ConnectionEnd {
    /// The connection could not be established.
    ConnectFailed,
    /// The broker or the network closed the connection.
    Lost,
    DroppedByStorm,
    /// The service requested a disconnect. If `reconnect_after` is `None`, the client must not
    /// reconnect.
    DisconnectRequested {
        reconnect_after: Option<Duration>,
    },
    /// The simulation ends.
    Shutdown,
}

impl Client {
    pub fn new(
        id: ClientId,
        index: u32,
        dialect: Dialect,
        options: ConnectOptions,
        info: ClientInfo,
        fleet: Arc<Fleet>,
    ) -> Self {
        Self {
            id,
            dialect,
            info,
            fleet,
            is_online_message_acknowledged: AtomicBool::new(false),
            next_sequence_number: AtomicU64::new(0),
            session: Mutex::new(None),
            index,
            options,
        }
    }

    /// Connects, and reconnects after each disconnect. Returns when the simulation ends, or when
    /// the service requests a disconnect without reconnect.
    pub async fn run(self: Arc<Self>) {
        let tasks = &self.fleet.tasks;
        let mut backoff = Backoff::default();
        for attempt in 0.. {
            if tasks.is_cancelled() {
                return;
            }
            let end = self.run_connection(attempt).await;
            if !matches!(end, ConnectionEnd::ConnectFailed) {
                backoff.reset();
            }
            let Some(delay) = self.reconnect_delay(&end, &mut backoff) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = tasks.cancelled() => return,
            }
        }
    }

    /// Returns the time until the next connect attempt, or `None` if the client must not reconnect.
    fn reconnect_delay(&self, end: &ConnectionEnd, backoff: &mut Backoff) -> Option<Duration> {
        match end {
            ConnectionEnd::Shutdown => None,
            ConnectionEnd::DisconnectRequested { reconnect_after } => {
                let ignores_delay = self.fleet.misbehaviors.has(Misbehavior::IgnoreDelay);
                reconnect_after.map(|delay| if ignores_delay { Duration::ZERO } else { delay })
            }
            ConnectionEnd::DroppedByStorm => Some(Duration::ZERO),
            ConnectionEnd::Lost | ConnectionEnd::ConnectFailed if self.fleet.is_storm_active() => {
                Some(STORM_RETRY_DELAY)
            }
            ConnectionEnd::Lost | ConnectionEnd::ConnectFailed => Some(backoff.next_delay()),
        }
    }

    async fn run_connection(self: &Arc<Self>, attempt: u64) -> ConnectionEnd {
        let (fleet, started_at) = (&self.fleet, Instant::now());
        let (mqtt, mut event_loop) = match mqtt::connect(&self.options) {
            Ok(connection) => connection,
            Err(error) => return self.report_connect_failure(&error.to_string()),
        };
        tokio::select! {
            event = event_loop.next() => match event {
                MqttEvent::Connected { .. } => {}
                MqttEvent::Disconnected(error) => return self.report_connect_failure(&error),
                _ => {
                    let error = "the broker sent another packet before CONNACK";
                    return self.report_connect_failure(error);
                }
            },
            () = fleet.tasks.cancelled() => return ConnectionEnd::Shutdown,
        }
        fleet.counters.record_connect(started_at.elapsed());
        let session = Arc::new(Session::new(self.clone(), mqtt));
        fleet
            .tasks
            .spawn_item("go_online", session.clone().go_online());
        let end = self.handle_events(&session, &mut event_loop, attempt).await;
        *self.session.lock() = None;
        fleet.counters.record_connection_closed();
        end
    }

    fn report_connect_failure(&self, error: &str) -> ConnectionEnd {
        self.fleet.counters.record_connect_failure(error);
        self.fleet
            .print_event(&self.id, &format!("connect failed: {error}"));
        ConnectionEnd::ConnectFailed
    }

    /// Handles the events of a connection until the connection ends.
    async fn handle_events(
        &self,
        session: &Arc<Session>,
        event_loop: &mut EventLoop,
        attempt: u64,
    ) -> ConnectionEnd {
        let fleet = &self.fleet;
        let mut storm_drop = pin!(fleet.wait_for_storm_drop(self.storm_drop_delay(attempt)));
        // Why the client disconnects. `None` until the client starts to disconnect. The connection
        // stays open until the broker has acknowledged the offline messages.
        let mut pending_end = None;
        loop {
            let event = tokio::select! {
                event = event_loop.next() => event,
                () = fleet.tasks.cancelled(), if pending_end.is_none() => {
                    pending_end = Some(ConnectionEnd::Shutdown);
                    fleet.tasks.spawn_item("go_offline", session.clone().go_offline());
                    continue;
                }
                () = &mut storm_drop, if pending_end.is_none() => {
                    fleet.counters.record_storm_drop();
                    return ConnectionEnd::DroppedByStorm;
                }
            };
            match event {
                MqttEvent::Disconnected(error) => {
                    return pending_end.unwrap_or_else(|| self.report_connection_loss(&error));
                }
                MqttEvent::Connected { .. } | MqttEvent::SubAck { is_granted: true } => {}
                MqttEvent::SubAck { is_granted: false } => {
                    fleet.counters.record_rejected_subscription();
                    fleet.print_event(&self.id, "the broker rejected a subscription");
                }
                MqttEvent::Message { topic, payload, .. } => {
                    let end = self.handle_message(session, &topic, &payload);
                    if let Some(end) = end.filter(|_| pending_end.is_none()) {
                        pending_end = Some(end);
                        fleet
                            .tasks
                            .spawn_item("disconnect", session.clone().disconnect_on_request());
                    }
                }
            }
        }
    }

    /// Returns the time for which this connection stays open during a storm. The time differs
    /// between clients and attempts. The time is not random, so every run uses the same times.
    fn storm_drop_delay(&self, attempt: u64) -> Duration {
        let spread = u64::from(self.index) * 37 + attempt * 61;
        Duration::from_millis(spread % MAX_STORM_DROP_DELAY_MILLIS)
    }

    fn report_connection_loss(&self, error: &str) -> ConnectionEnd {
        self.fleet.counters.record_connection_lost(error);
        self.fleet
            .print_event(&self.id, &format!("connection lost: {error}"));
        ConnectionEnd::Lost
    }

    /// Reacts to a received message. Returns `Some` if the message requires a disconnect.
    fn handle_message(
        &self,
        session: &Arc<Session>,
        topic: &str,
        payload: &[u8],
    ) -> Option<ConnectionEnd> {
        let fleet = &self.fleet;
        fleet.counters.record_received_message();
        if fleet.prints_events {
            let text = String::from_utf8_lossy(payload);
            fleet.print_event(&self.id, &format!("received on {topic}: {text}"));
        }
        match self.dialect.reaction(payload, SystemClock.now()) {
            Reaction::Respond(response) => {
                fleet
                    .tasks
                    .spawn_item("respond", session.clone().respond(response));
                None
            }
            Reaction::Disconnect { reconnect_after } => {
                fleet.print_event(&self.id, &disconnect_event_text(reconnect_after));
                Some(ConnectionEnd::DisconnectRequested { reconnect_after })
            }
            Reaction::RetryHandshake { retry_after } => {
                fleet.counters.record_rejected_handshake();
                fleet.print_event(&self.id, "the service rejected the handshake");
                // With `--misbehave garbage`, the service is expected to reject handshakes. The
                // client stays connected, because it publishes a valid handshake next.
                let is_expected = fleet.misbehaviors.has(Misbehavior::Garbage);
                (!is_expected).then_some(ConnectionEnd::DisconnectRequested {
                    reconnect_after: Some(retry_after),
                })
            }
            Reaction::Ignore => None,
        }
    }

    /// Returns the sequence number for an online message: 0 for the first online message of this
    /// client, 1 for the second, and so on.
    pub fn take_sequence_number(&self) -> u64 {
        self.next_sequence_number.fetch_add(1, Ordering::Relaxed)
    }
}

fn disconnect_event_text(reconnect_after: Option<Duration>) -> String {
    match reconnect_after {
        Some(delay) => format!(
            "the service requested a reconnect after {} s",
            delay.as_secs()
        ),
        None => "the service requested a disconnect".to_owned(),
    }
}
