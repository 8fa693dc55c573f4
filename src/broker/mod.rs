//! The embedded MQTT broker. Only this module uses the `mqtt5` crate.
//!
//! `mqtt5` implements the MQTT protocol, sessions and routing. This module adds an accept loop,
//! authentication by client certificate, topic authorization, and tracking of each client's current
//! connection.
//!
//! Each connection has its own `ClientSession`, which is both the authorizer and the event handler
//! that `mqtt5` calls. Therefore every call can be attributed to one connection, including calls
//! for last wills. See `docs/decisions/002-per-connection-auth-handler.md`.

mod abortable_stream;
mod accept;
mod error;
mod live_connections;
mod message_sink;
mod publish;
mod rejection;
mod session;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqtt5::broker::config::BrokerConfig;
use mqtt5::broker::resource_monitor::{ResourceLimits, ResourceMonitor};
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::storage::{MemoryBackend, QueueLimits};
use mqtt5::broker::sys_topics::BrokerStats;
use mqtt5::broker::{DynamicStorage, StorageBackend as _};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use crate::config;
use crate::domain::{ClientId, Clock};
use crate::protocol::TopicScheme;
use crate::rate_limit::RateLimiter;
use crate::shutdown::TaskGroup;
use crate::tls_server::{self, ServerTls};

pub use accept::bind;
pub use error::BindError;
pub use message_sink::{MessageSink, PendingWrite};
pub use publish::PublishError;
pub use tls::read_tls;

use accept::ConnectionLimits;
use live_connections::LiveConnections;

/// How long `mqtt5` keeps the session of a disconnected client, in memory.
const SESSION_EXPIRY: Duration = Duration::from_mins(5);
/// Limits of a session queue, which holds the messages for one disconnected client.
const QUEUE_LIMITS: QueueLimits = QueueLimits {
    max_messages: 1000,
    max_bytes: 8 * 1024 * 1024,
};
/// Messages buffered for one connected client. When the buffer is full, publishing waits.
const CLIENT_BUFFER_MESSAGES: usize = 64;
/// MQTT receive maximum: how many QoS 1 messages of one client may be unacknowledged.
const RECEIVE_MAXIMUM: u16 = 64;
/// How long shutdown waits for `mqtt5` to send DISCONNECT to all clients.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_mins(1);
/// File descriptors that the connection limit leaves for the database, the REST API and log files.
const RESERVED_FILE_DESCRIPTORS: u64 = 200;

/// Bound sockets. The caller binds them first, so a port in use is reported before startup changes
/// anything on disk.
pub struct Listeners {
    /// Listener without TLS, on loopback.
    pub plain: Option<TcpListener>,
    /// Listener with mutual TLS.
    pub tls: Option<(TcpListener, Arc<ServerTls>)>,
}

/// The running broker. To shut down, call [`Broker::stop_accepting_messages`], then
/// [`Broker::stop`].
pub struct Broker {
    state: Arc<BrokerState>,
    tasks: TaskGroup,
}

/// State that all connections share.
struct BrokerState {
    settings: config::Broker,
    /// Each connection clones this and adds its own event handler.
    connection_config: BrokerConfig,
    router: Arc<MessageRouter>,
    storage: Arc<DynamicStorage>,
    stats: Arc<BrokerStats>,
    resource_monitor: Arc<ResourceMonitor>,
    /// Makes `mqtt5` disconnect every client.
    disconnect_all: broadcast::Sender<()>,
    topics: TopicScheme,
    sink: Arc<dyn MessageSink>,
    clock: Arc<dyn Clock>,
    live_connections: LiveConnections,
    connect_limiter: RateLimiter<ClientId>,
    connection_limits: ConnectionLimits,
    /// Set at shutdown. The broker then accepts no messages and discards last wills, because a
    /// client that loses its connection at shutdown must stay recorded as connected.
    shutting_down: AtomicBool,
}

impl Broker {
    /// Starts to accept clients.
    #[must_use]
    pub fn start(
        settings: config::Broker,
        topics: TopicScheme,
        listeners: Listeners,
        sink: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let tasks = TaskGroup::new();
        let state = Arc::new(BrokerState::new(settings, topics, sink, clock));
        if let Some(listener) = listeners.plain {
            tasks.spawn(accept::accept_connections(
                state.clone(),
                listener,
                None,
                tasks.clone(),
            ));
        }
        if let Some((listener, tls)) = listeners.tls {
            let reload_interval = state.settings.tls.reload_interval.get();
            tasks.spawn(tls_server::reload_on_change(
                tls.clone(),
                reload_interval,
                tasks.clone(),
            ));
            tasks.spawn(accept::accept_connections(
                state.clone(),
                listener,
                Some(tls),
                tasks.clone(),
            ));
        }
        tasks.spawn(housekeeping(state.clone(), tasks.clone()));
        Self { state, tasks }
    }

    /// Stops accepting messages and connections: from now on the broker acknowledges no messages,
    /// discards last wills and rejects new connections. Publishing to clients still works.
    pub fn stop_accepting_messages(&self) {
        self.state.shutting_down.store(true, Ordering::Release);
    }

    /// Disconnects all clients. Connections that are still open after one second are dropped.
    pub async fn stop(&self) {
        self.stop_accepting_messages();
        // Fails only if no client is connected.
        let _ = self.state.disconnect_all.send(());
        self.tasks.stop(DISCONNECT_TIMEOUT).await;
    }

    /// Returns whether the client is connected.
    #[must_use]
    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.state.live_connections.is_connected(client)
    }

    /// Reports a disconnect to the message sink if the client has no connection.
    #[must_use]
    pub fn end_if_not_connected(&self, client: &ClientId) -> Option<PendingWrite> {
        let sink = &self.state.sink;
        self.state
            .live_connections
            .if_not_connected(client, || sink.connection_closed(client.clone()))
    }

    /// Returns whether the broker accepts clients.
    ///
    /// # Errors
    /// When the broker is shutting down.
    pub fn health(&self) -> Result<(), String> {
        if self.state.is_shutting_down() || self.tasks.is_cancelled() {
            Err("shutting down".to_owned())
        } else {
            Ok(())
        }
    }
}

impl BrokerState {
    fn new(
        settings: config::Broker,
        topics: TopicScheme,
        sink: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let storage = Arc::new(DynamicStorage::Memory(MemoryBackend::with_queue_limits(
            QUEUE_LIMITS,
        )));
        let router =
            MessageRouter::with_storage(storage.clone()).with_fallback_queue_limits(QUEUE_LIMITS);
        let (disconnect_all, _) = broadcast::channel(1);
        Self {
            connection_config: connection_config(&settings),
            router: Arc::new(router),
            storage,
            stats: Arc::new(BrokerStats::new()),
            resource_monitor: Arc::new(ResourceMonitor::new(unlimited())),
            disconnect_all,
            topics,
            sink,
            clock,
            live_connections: LiveConnections::default(),
            connect_limiter: RateLimiter::new(
                settings.connect_limit.burst,
                settings.connect_limit.per_second,
            ),
            connection_limits: ConnectionLimits::new(
                cap_to_fd_limit(settings.max_connections),
                settings.max_connections_per_address,
            ),
            settings,
            shutting_down: AtomicBool::new(false),
        }
    }

    fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Acquire)
    }
}

fn connection_config(settings: &config::Broker) -> BrokerConfig {
    let mut config = BrokerConfig::default()
        .with_bind_addresses(Vec::<SocketAddr>::new())
        .with_max_packet_size(settings.max_packet_size)
        .with_session_expiry(SESSION_EXPIRY);
    config.client_channel_capacity = CLIENT_BUFFER_MESSAGES;
    config.server_receive_maximum = Some(RECEIVE_MAXIMUM);
    // 0 means no limit. A client may subscribe only to its own few topics, without wildcards. With
    // a limit, `mqtt5` would count the subscriptions of all clients at each SUBSCRIBE.
    config.max_subscriptions_per_client = 0;
    config.wildcard_subscription_available = false;
    config.shared_subscription_available = false;
    config.topic_alias_maximum = 16;
    config.sys_topics_enabled = false;
    config
}

/// Reduces `max_connections` to the open-file limit, minus a reserve for other files and sockets.
fn cap_to_fd_limit(max_connections: usize) -> usize {
    let allowed = rlimit::Resource::NOFILE
        .get_soft()
        .map_or(u64::MAX, |soft_limit| {
            soft_limit
                .saturating_sub(RESERVED_FILE_DESCRIPTORS)
                .max(soft_limit / 2)
        });
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    if allowed < max_connections {
        tracing::warn!(
            max_connections,
            allowed,
            "broker.max_connections exceeds the open-file limit; raise the limit (ulimit -n)"
        );
    }
    max_connections.min(allowed)
}

/// Disables the limits of `mqtt5`, which apply only after the CONNECT packet. [`ConnectionLimits`]
/// applies before the TLS handshake.
fn unlimited() -> ResourceLimits {
    ResourceLimits {
        max_connections: usize::MAX,
        max_connections_per_ip: usize::MAX,
        max_message_rate_per_client: 0,
        max_bandwidth_per_client: 0,
        max_connection_rate: u32::MAX,
        rate_limit_window: Duration::from_secs(1),
    }
}

/// Periodically removes expired sessions and idle rate-limit entries.
async fn housekeeping(state: Arc<BrokerState>, tasks: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(HOUSEKEEPING_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        if let Err(error) = state.storage.cleanup_expired().await {
            tracing::warn!(%error, "failed to remove expired MQTT sessions");
        }
        state.router.sweep_sessions().await;
        state.resource_monitor.cleanup_expired_windows().await;
        state.connect_limiter.remove_idle();
    }
}
