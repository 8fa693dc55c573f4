//! The embedded MQTT broker. Only this module uses the `mqtt5` crate.
//!
//! `mqtt5` implements the MQTT protocol, sessions and routing. This module adds an accept loop,
//! authentication by client certificate and topic authorization. It also tracks the current
//! connections of each client.
//!
//! Each connection has its own `ClientSession`. `mqtt5` calls the `ClientSession` to authorize
//! requests and to report events. Therefore each call belongs to one known connection, including
//! calls for last wills. See `docs/decisions/002-per-connection-auth-handler.md`.

mod abortable_stream;
mod accept;
mod budget_reports;
mod client_stream;
mod connack;
mod connect_packet;
#[cfg(test)]
mod connection_tests;
mod error;
mod large_packets;
mod live_connections;
mod message_sink;
pub mod metrics;
mod network_stream;
mod packet_format;
mod packet_reader;
mod pending_connections;
mod publish;
mod recent_rejections;
mod rejected_certificate;
mod rejection;
mod router_shards;
mod serve_connection;
mod session;
mod settings;
mod stream_handle;
mod takeovers;
mod tls;
mod websocket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqtt5::broker::config::BrokerConfig;
use mqtt5::broker::resource_monitor::{ResourceLimits, ResourceMonitor};
use mqtt5::broker::sys_topics::BrokerStats;
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use domain::{BrokerRejection, ClientId, Clock, OfflineReason};
use network::tls_server::ServerTls;
use protocol::TopicScheme;
use service::rate_limit::RateLimiter;
use service::{ByteBudget, ClientBudgetSettings, ClientBudgets, TaskGroup};

pub use accept::bind;
pub use error::BindError;
pub use message_sink::{MessageSink, PendingWrite, PreparedMessage};
pub use publish::PublishError;
pub use settings::{BrokerSettings, BrokerTlsSettings, BrokerWebSocketSettings, ConnectLimit};
pub use tls::read_tls;

use accept::ConnectionLimits;
use budget_reports::BudgetReports;
use large_packets::LargePackets;
use live_connections::LiveConnections;
use packet_reader::PacketLimits;
use pending_connections::PendingConnections;
use recent_rejections::RecentRejections;
use rejection::Rejections;
use router_shards::RouterShards;
use takeovers::TakeoverDetector;

/// Time for which `mqtt5` stores the session of a disconnected client in memory.
const SESSION_EXPIRY: Duration = Duration::from_mins(5);
/// Maximum number of buffered messages to one connected client. When the buffer is full, the
/// publisher of the next message waits.
const MAX_BUFFERED_MESSAGES_PER_CLIENT: usize = 64;
/// MQTT receive maximum: maximum number of unacknowledged QoS 1 messages from one client.
const RECEIVE_MAXIMUM: u16 = 64;
/// Maximum memory of the CONNECT packets of more than 4 KiB, for all connections together.
const LARGE_CONNECT_PACKETS_BUDGET: usize = 32 * 1024 * 1024;
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_mins(1);
/// Number of file descriptors that are reserved for the database, the REST API and log files. MQTT
/// connections may use the other file descriptors of the process.
const RESERVED_FILE_DESCRIPTORS: u64 = 200;

/// Bound sockets of the broker. Startup binds the sockets before it changes files. Therefore an
/// error such as "port in use" does not leave changed files.
///
/// All listeners accept MQTT with and without WebSocket. The WebSocket listeners have another port.
pub struct Listeners {
    /// Listener without TLS, on a loopback address.
    pub plain: Option<TcpListener>,
    /// WebSocket listener without TLS, on a loopback address.
    pub websocket: Option<TcpListener>,
    /// Listeners with mutual TLS.
    pub tls: Option<TlsListeners>,
}

/// Bound sockets of the broker for connections with mutual TLS.
pub struct TlsListeners {
    /// Listener for MQTT.
    pub mqtt: Option<TcpListener>,
    /// Listener for MQTT over WebSocket.
    pub websocket: Option<TcpListener>,
    /// Certificates of both listeners.
    pub certificates: Arc<ServerTls>,
}

/// The broker. It serves clients while [`Broker::accept_connections`] and
/// [`Broker::run_housekeeping`] run. To shut the broker down, call
/// [`Broker::stop_accepting_messages`], then [`Broker::disconnect_all`], then stop its tasks. All
/// clones refer to the same broker.
#[derive(Clone)]
pub struct Broker {
    state: Arc<BrokerState>,
}

/// State that all connections share.
struct BrokerState {
    settings: BrokerSettings,
    /// Configuration for `mqtt5`. Each connection clones the configuration and adds its own event
    /// handler.
    connection_config: BrokerConfig,
    router_shards: RouterShards,
    stats: Arc<BrokerStats>,
    resource_monitor: Arc<ResourceMonitor>,
    /// Sends the signal on which `mqtt5` disconnects all clients.
    disconnect_all_signal: broadcast::Sender<()>,
    topics: TopicScheme,
    sink: Arc<dyn MessageSink>,
    clock: Arc<dyn Clock>,
    live_connections: LiveConnections,
    connect_rate_limiter: RateLimiter<ClientId>,
    connection_limits: ConnectionLimits,
    pending_connections: Arc<PendingConnections>,
    /// Budget for the CONNECT packets that are not small.
    connect_budget: ByteBudget,
    packet_limits: Arc<PacketLimits>,
    rejections: Arc<Rejections>,
    recent_rejections: Arc<RecentRejections>,
    takeovers: TakeoverDetector,
    /// True after shutdown has begun. The broker then accepts no messages and discards last wills.
    /// Otherwise shutdown, which closes all connections, would mark all clients as disconnected.
    is_shutting_down: AtomicBool,
    /// True after [`Broker::disconnect_all`] was called. The broker then publishes no messages.
    is_disconnecting_all: AtomicBool,
}

impl Broker {
    /// Creates a broker that forwards the messages of its clients to `sink`. The broker reserves
    /// memory for large messages in `message_budget`, until it has passed them to `sink`.
    #[must_use]
    pub fn new(
        settings: BrokerSettings,
        client_budget: ClientBudgetSettings,
        topics: TopicScheme,
        sink: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
        message_budget: ByteBudget,
    ) -> Self {
        let state = BrokerState::new(settings, client_budget, topics, sink, clock, message_budget);
        Self {
            state: Arc::new(state),
        }
    }

    /// Accepts clients on `listener` until `tasks` is cancelled. With `tls`, the connections use
    /// mutual TLS. Each connection has its own task in `tasks`.
    pub async fn accept_connections(
        self,
        listener: TcpListener,
        tls: Option<Arc<ServerTls>>,
        tasks: TaskGroup,
    ) {
        accept::accept_connections(self.state, listener, tls, tasks).await;
    }

    /// Periodically removes expired MQTT sessions, old takeovers, and the token buckets that are full
    /// again. A full bucket has the same effect as a new bucket. Returns when `tasks` is cancelled.
    pub async fn run_housekeeping(self, tasks: TaskGroup) {
        let state = self.state;
        loop {
            tokio::select! {
                () = state.router_shards.sweep(HOUSEKEEPING_INTERVAL) => {}
                () = tasks.cancelled() => return,
            }
            state.resource_monitor.cleanup_expired_windows().await;
            state.connect_rate_limiter.remove_full_buckets();
            state.packet_limits.client_budgets.remove_full_budgets();
            state.takeovers.remove_old();
        }
    }

    /// Stops accepting messages and connections. From then on, the broker acknowledges no new
    /// messages, discards last wills and rejects new connections. The broker still publishes
    /// messages to connected clients.
    pub fn stop_accepting_messages(&self) {
        self.state.is_shutting_down.store(true, Ordering::Release);
    }

    /// Sends DISCONNECT to all clients. Returns without waiting for the connections to close. From
    /// then on, the broker publishes no messages.
    pub fn disconnect_all(&self) {
        self.stop_accepting_messages();
        self.state
            .is_disconnecting_all
            .store(true, Ordering::Release);
        // `send` fails only if no client is connected. That is not an error.
        let _ = self.state.disconnect_all_signal.send(());
    }

    /// Returns whether the client is connected.
    #[must_use]
    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.state.live_connections.is_connected(client)
    }

    /// Reports a disconnect with this reason to the message sink if the client has no connection.
    /// Returns `None` if the client is connected.
    #[must_use]
    pub fn report_if_disconnected(
        &self,
        client: &ClientId,
        reason: OfflineReason,
    ) -> Option<PendingWrite> {
        let sink = &self.state.sink;
        self.state
            .live_connections
            .run_if_not_connected(client, || {
                sink.on_client_disconnected(client.clone(), reason)
            })
    }

    /// Returns the latest rejections of peers that have claimed this client id, in the CONNECT packet or
    /// as the common name of their certificate. The newest is first. Includes repeated takeovers, with
    /// the peer whose connection was replaced.
    #[must_use]
    pub fn recent_rejections(&self, client_id: &str) -> Vec<BrokerRejection> {
        self.state.recent_rejections.of_client(client_id)
    }

    /// Checks that the broker accepts clients.
    ///
    /// # Errors
    /// When the broker is shutting down.
    pub fn health(&self) -> Result<(), String> {
        if self.state.is_shutting_down() {
            Err("shutting down".to_owned())
        } else {
            Ok(())
        }
    }
}

impl BrokerState {
    fn new(
        settings: BrokerSettings,
        client_budget: ClientBudgetSettings,
        topics: TopicScheme,
        sink: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
        message_budget: ByteBudget,
    ) -> Self {
        let recent_rejections = Arc::new(RecentRejections::new(clock.clone()));
        let rejections = Arc::new(Rejections::new(recent_rejections.clone()));
        let (disconnect_all_signal, _) = broadcast::channel(1);
        Self {
            connection_config: connection_config(&settings),
            router_shards: RouterShards::new(),
            stats: Arc::new(BrokerStats::new()),
            resource_monitor: Arc::new(ResourceMonitor::new(unlimited_resources())),
            disconnect_all_signal,
            topics,
            sink,
            clock,
            live_connections: LiveConnections::default(),
            connect_rate_limiter: RateLimiter::new(
                settings.connect_limit.burst,
                settings.connect_limit.per_second,
            ),
            connection_limits: ConnectionLimits::new(
                cap_to_fd_limit(settings.max_connections),
                settings.max_connections_per_address,
            ),
            pending_connections: Arc::new(PendingConnections::new(
                settings.max_pending_connections,
            )),
            connect_budget: ByteBudget::new(LARGE_CONNECT_PACKETS_BUDGET),
            packet_limits: Arc::new(PacketLimits {
                max_packet_size: settings.max_packet_size,
                packet_timeout: settings.packet_timeout.get(),
                large_packets: Arc::new(LargePackets::new(message_budget)),
                client_budgets: Arc::new(ClientBudgets::new(client_budget)),
                budget_reports: Arc::new(BudgetReports::new()),
                rejections: rejections.clone(),
            }),
            rejections,
            takeovers: TakeoverDetector::new(recent_rejections.clone()),
            recent_rejections,
            settings,
            is_shutting_down: AtomicBool::new(false),
            is_disconnecting_all: AtomicBool::new(false),
        }
    }

    fn is_shutting_down(&self) -> bool {
        self.is_shutting_down.load(Ordering::Acquire)
    }
}

fn connection_config(settings: &BrokerSettings) -> BrokerConfig {
    let mut config = BrokerConfig::default()
        .with_bind_addresses(Vec::<SocketAddr>::new())
        .with_max_packet_size(settings.max_packet_size)
        .with_session_expiry(SESSION_EXPIRY);
    config.client_channel_capacity = MAX_BUFFERED_MESSAGES_PER_CLIENT;
    config.server_receive_maximum = Some(RECEIVE_MAXIMUM);
    // 0 means no limit. A limit is not needed, because a client may subscribe only to its own few
    // topics, without wildcards. With a limit, `mqtt5` would count the subscriptions of all clients
    // at each SUBSCRIBE.
    config.max_subscriptions_per_client = 0;
    config.wildcard_subscription_available = false;
    config.shared_subscription_available = false;
    // The packet reader may drop a QoS 0 packet before `mqtt5` gets it. If the packet defined a topic
    // alias, later packets with this alias would be invalid.
    config.topic_alias_maximum = 0;
    config.sys_topics_enabled = false;
    config
}

/// Returns `max_connections`, or the number of connections that the open-file limit of the process
/// allows, whichever is smaller.
fn cap_to_fd_limit(max_connections: usize) -> usize {
    let allowed_by_fd_limit = rlimit::Resource::NOFILE
        .get_soft()
        .map_or(u64::MAX, |soft_limit| {
            soft_limit
                .saturating_sub(RESERVED_FILE_DESCRIPTORS)
                .max(soft_limit / 2)
        });
    let allowed_by_fd_limit = usize::try_from(allowed_by_fd_limit).unwrap_or(usize::MAX);
    if allowed_by_fd_limit < max_connections {
        tracing::warn!(
            max_connections,
            allowed = allowed_by_fd_limit,
            "broker.max_connections exceeds the open-file limit; raise the limit (ulimit -n)"
        );
    }
    max_connections.min(allowed_by_fd_limit)
}

/// Returns settings that disable the resource limits of `mqtt5`. `mqtt5` applies these limits only
/// after the CONNECT packet. The broker uses [`ConnectionLimits`] instead, which apply before the
/// TLS handshake.
fn unlimited_resources() -> ResourceLimits {
    ResourceLimits {
        max_connections: usize::MAX,
        max_connections_per_ip: usize::MAX,
        max_message_rate_per_client: 0,
        max_bandwidth_per_client: 0,
        max_connection_rate: u32::MAX,
        rate_limit_window: Duration::from_secs(1),
    }
}
