//! The embedded MQTT broker: the only user of its crate.
//!
//! The crate does sessions, routing and the protocol. What it lacks is done here: an accept loop
//! that no silent peer can hold up, the certificate's name as the identity, topics confined to
//! their client, and an exact account of which connection of a client is the present one.
//!
//! Each connection has a `ClientSession` of its own, which is the crate's authoriser and its event
//! handler at once. So whatever the crate tells or asks, it is known of which connection: no map by
//! peer address, no guess whose will it is. See `docs/decisions/002-a-link-per-connection.md`.

mod abortable_stream;
mod accept;
mod error;
mod intake;
mod live_connections;
mod publish;
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
pub use error::StartError;
pub use intake::{MessageSink, Receipt};
pub use publish::PublishError;
pub use tls::read_tls;

use accept::AcceptLimits;
use live_connections::LiveConnections;

/// Sessions outlive their connection for at most this long, in memory.
const SESSION_EXPIRY: Duration = Duration::from_mins(5);
/// What a session that is away may have queued.
const QUEUE_LIMITS: QueueLimits = QueueLimits {
    max_messages: 1000,
    max_bytes: 8 * 1024 * 1024,
};
/// Messages on their way to one client at once; beyond that its queue fills, and then callers wait.
const CLIENT_LANE: usize = 64;
/// Unacknowledged messages of one client to us.
const RECEIVE_MAXIMUM: u16 = 64;
/// Long enough to write a farewell to whoever reads.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const HOUSEKEEPING: Duration = Duration::from_mins(1);

/// Sockets that are bound already, so that a port in use is found before anything is written.
pub struct Listeners {
    /// Without TLS, on loopback.
    pub plain: Option<TcpListener>,
    /// With mutual TLS.
    pub tls: Option<(TcpListener, Arc<ServerTls>)>,
}

/// The broker. It stops in two steps: [`Broker::stop_accepting_messages`], then [`Broker::stop`].
pub struct Broker {
    shared: Arc<BrokerState>,
    stopper: TaskGroup,
}

/// What every connection works with.
struct BrokerState {
    settings: config::Broker,
    /// What each connection's own configuration is made from.
    template: BrokerConfig,
    router: Arc<MessageRouter>,
    storage: Arc<DynamicStorage>,
    stats: Arc<BrokerStats>,
    monitor: Arc<ResourceMonitor>,
    /// Tells every connection's handler to end.
    end_all: broadcast::Sender<()>,
    topics: TopicScheme,
    intake: Arc<dyn MessageSink>,
    clock: Arc<dyn Clock>,
    presence: LiveConnections,
    /// How often a client may try to connect.
    attempts: RateLimiter<ClientId>,
    limits: AcceptLimits,
    /// From here on nothing is taken in and wills are discarded: the process is stopping, the
    /// clients are not gone.
    closed: AtomicBool,
}

impl Broker {
    /// Starts to accept clients.
    #[must_use]
    pub fn start(
        settings: config::Broker,
        topics: TopicScheme,
        listeners: Listeners,
        intake: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let stopper = TaskGroup::new();
        let shared = Arc::new(BrokerState::new(settings, topics, intake, clock));
        if let Some(listener) = listeners.plain {
            stopper.spawn(accept::accept(
                shared.clone(),
                listener,
                None,
                stopper.clone(),
            ));
        }
        if let Some((listener, tls)) = listeners.tls {
            let reload = shared.settings.tls.reload_interval.get();
            stopper.spawn(tls_server::keep_current(
                tls.clone(),
                reload,
                stopper.clone(),
            ));
            stopper.spawn(accept::accept(
                shared.clone(),
                listener,
                Some(tls),
                stopper.clone(),
            ));
        }
        stopper.spawn(housekeeping(shared.clone(), stopper.clone()));
        Self { shared, stopper }
    }

    /// From now on nothing is taken in: messages go unacknowledged, wills are discarded, nobody
    /// new is let in. Publishing to clients still works.
    pub fn stop_accepting_messages(&self) {
        self.shared.closed.store(true, Ordering::Release);
    }

    /// Says good-bye to every client. Who does not hear it within a moment is cut off: nothing of
    /// theirs can be lost any more.
    pub async fn stop(&self) {
        self.stop_accepting_messages();
        // Nobody listens when no client is connected.
        let _ = self.shared.end_all.send(());
        self.stopper.stop(DISCONNECT_TIMEOUT).await;
    }

    /// Whether the client holds a connection now.
    #[must_use]
    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.shared.presence.is_connected(client)
    }

    /// If the client holds no connection, tells the intake that it has ended.
    #[must_use]
    pub fn end_if_not_connected(&self, client: &ClientId) -> Option<Receipt> {
        let intake = &self.shared.intake;
        self.shared
            .presence
            .if_not_connected(client, || intake.ended(client.clone()))
    }

    /// Whether it accepts clients.
    ///
    /// # Errors
    /// When it does not, with why.
    pub fn standing(&self) -> Result<(), String> {
        if self.shared.is_closed() || self.stopper.is_asked() {
            Err("stopping".to_owned())
        } else {
            Ok(())
        }
    }
}

impl BrokerState {
    fn new(
        settings: config::Broker,
        topics: TopicScheme,
        intake: Arc<dyn MessageSink>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let storage = Arc::new(DynamicStorage::Memory(MemoryBackend::with_queue_limits(
            QUEUE_LIMITS,
        )));
        let router =
            MessageRouter::with_storage(storage.clone()).with_fallback_queue_limits(QUEUE_LIMITS);
        let (end_all, _) = broadcast::channel(1);
        Self {
            template: template(&settings),
            router: Arc::new(router),
            storage,
            stats: Arc::new(BrokerStats::new()),
            monitor: Arc::new(ResourceMonitor::new(no_limits())),
            end_all,
            topics,
            intake,
            clock,
            presence: LiveConnections::default(),
            attempts: RateLimiter::new(
                settings.connect_limit.burst,
                settings.connect_limit.per_second,
            ),
            limits: AcceptLimits::new(
                cap_to_fd_limit(settings.max_connections),
                settings.max_connections_per_address,
            ),
            settings,
            closed: AtomicBool::new(false),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

fn template(settings: &config::Broker) -> BrokerConfig {
    let mut template = BrokerConfig::default()
        .with_bind_addresses(Vec::<SocketAddr>::new())
        .with_max_packet_size(settings.max_packet_size)
        .with_session_expiry(SESSION_EXPIRY);
    template.client_channel_capacity = CLIENT_LANE;
    template.server_receive_maximum = Some(RECEIVE_MAXIMUM);
    // No limit needed: clients may listen on their own few topics, each by its full name. With one,
    // the crate would count everybody's subscriptions at each.
    template.max_subscriptions_per_client = 0;
    template.wildcard_subscription_available = false;
    template.shared_subscription_available = false;
    template.topic_alias_maximum = 16;
    template.sys_topics_enabled = false;
    template
}

/// No more sockets than files may be open, with some kept for the database and for callers.
fn cap_to_fd_limit(wanted: usize) -> usize {
    const KEPT: u64 = 200;
    let allowed = rlimit::Resource::NOFILE
        .get_soft()
        .map_or(u64::MAX, |soft| soft.saturating_sub(KEPT).max(soft / 2));
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            "broker.max_connections is more than the open-file limit allows; raise it (ulimit -n)"
        );
    }
    wanted.min(allowed)
}

/// Our accept loop has limits of its own; the crate's count after the MQTT handshake.
fn no_limits() -> ResourceLimits {
    ResourceLimits {
        max_connections: usize::MAX,
        max_connections_per_ip: usize::MAX,
        max_message_rate_per_client: 0,
        max_bandwidth_per_client: 0,
        max_connection_rate: u32::MAX,
        rate_limit_window: Duration::from_secs(1),
    }
}

/// Forgets sessions that expired and counters that no longer matter.
async fn housekeeping(shared: Arc<BrokerState>, stopper: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(HOUSEKEEPING) => {}
            () = stopper.asked() => return,
        }
        if let Err(error) = shared.storage.cleanup_expired().await {
            tracing::warn!(%error, "cannot forget expired sessions");
        }
        shared.router.sweep_sessions().await;
        shared.monitor.cleanup_expired_windows().await;
        shared.attempts.remove_idle();
    }
}
