//! Accepting connections. Each connection has its own task from the start, including the TLS
//! handshake, so a peer that sends nothing does not delay the others.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::transport::BrokerTransport;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use super::abortable_stream::{AbortableStream, ClientStream, KillSwitch};
use super::rejection::RejectionReason;
use super::session::ClientSession;
use super::tls::common_name;
use super::{BindError, BrokerState};
use crate::domain::ClientId;
use crate::shutdown::TaskGroup;
use crate::telemetry::{LogThrottle, metrics};
use crate::tls_server::ServerTls;

/// Delay after a failed accept. The usual cause is a lack of file descriptors, which other
/// connections release when they close.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Binds a listener.
///
/// # Errors
/// When the address cannot be bound. The error names the configuration key.
pub async fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError {
            key,
            address,
            source,
        })
}

/// Accepts connections until `tasks` is cancelled.
pub(super) async fn accept_connections(
    state: Arc<BrokerState>,
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    tasks: TaskGroup,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(slot) = ConnectionSlot::acquire(&state, peer.ip()) else {
                    let reason = RejectionReason::TooManyConnections;
                    metrics::broker_rejection(reason.as_str(), &peer);
                    continue;
                };
                let connection = serve_connection(state.clone(), stream, peer, tls.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Err(error) => {
                static LOG_THROTTLE: LogThrottle = LogThrottle::new();
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(%error, "failed to accept an MQTT connection");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn serve_connection(
    state: Arc<BrokerState>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
) {
    // The peer waits for each small packet, so Nagle's algorithm would only add latency.
    let _ = stream.set_nodelay(true);
    let (stream, certificate_name) = match tls {
        None => (ClientStream::Plain(stream), None),
        Some(tls) => match tls_handshake(&state, stream, peer, &tls).await {
            Some((stream, name)) => (stream, Some(name)),
            None => return,
        },
    };
    let kill_switch = KillSwitch::default();
    let stream = AbortableStream::new(stream, peer, kill_switch.clone());
    let session = Arc::new(ClientSession::new(
        state.clone(),
        peer,
        certificate_name,
        kill_switch,
    ));
    let mut config = state.connection_config.clone();
    config.event_handler = Some(session.clone());
    let handler = ClientHandler::new(
        BrokerTransport::WebSocket(Box::new(stream)),
        peer,
        Arc::new(config),
        state.router.clone(),
        session.clone(),
        Some(state.storage.clone()),
        state.stats.clone(),
        state.resource_monitor.clone(),
        state.disconnect_all.subscribe(),
    );
    if let Err(error) = handler.run().await {
        tracing::debug!(%peer, %error, "MQTT connection closed");
    }
    session.close();
}

/// Performs the TLS handshake. Returns the stream and the common name of the client certificate.
async fn tls_handshake(
    state: &BrokerState,
    stream: TcpStream,
    peer: SocketAddr,
    tls: &ServerTls,
) -> Option<(ClientStream, ClientId)> {
    let reject = |reason: RejectionReason| metrics::broker_rejection(reason.as_str(), &peer);
    let timeout = state.settings.handshake_timeout.get();
    let stream = match tokio::time::timeout(timeout, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            reject(RejectionReason::TlsHandshakeFailed);
            return None;
        }
        Err(_) => {
            reject(RejectionReason::TlsHandshakeTimeout);
            return None;
        }
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let Some(name) = certificates.and_then(|chain| common_name(chain.first()?)) else {
        reject(RejectionReason::NoCommonName);
        return None;
    };
    Some((ClientStream::Tls(Box::new(stream)), name))
}

/// Limits the number of open connections, in total and per IP address.
pub(super) struct ConnectionLimits {
    max_total: usize,
    max_per_address: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimits {
    pub fn new(max_total: usize, max_per_address: usize) -> Self {
        Self {
            max_total,
            max_per_address,
            open: Mutex::default(),
        }
    }
}

/// One connection's share of [`ConnectionLimits`]. Dropping it frees the share.
struct ConnectionSlot {
    state: Arc<BrokerState>,
    address: IpAddr,
}

impl ConnectionSlot {
    /// Returns `None` if a limit is reached.
    fn acquire(state: &Arc<BrokerState>, address: IpAddr) -> Option<Self> {
        let limits = &state.connection_limits;
        let mut open = limits.open.lock();
        if open.total >= limits.max_total {
            return None;
        }
        let from_address = open.by_address.entry(address).or_default();
        if *from_address >= limits.max_per_address {
            return None;
        }
        *from_address += 1;
        open.total += 1;
        Some(Self {
            state: state.clone(),
            address,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.state.connection_limits.open.lock();
        open.total -= 1;
        if let Some(from_address) = open.by_address.get_mut(&self.address) {
            *from_address -= 1;
            if *from_address == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}
