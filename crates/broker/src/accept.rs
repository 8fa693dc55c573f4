//! Accepts connections. Each connection has its own task, which also performs the TLS handshake.
//! Therefore a peer that sends nothing does not delay other peers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::transport::BrokerTransport;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::abortable_stream::{AbortableStream, ClientStream};
use super::packet_reader::PacketReader;
use super::pending_connections::PendingSlot;
use super::rejection::RejectionReason;
use super::session::ClientSession;
use super::stream_handle::StreamHandle;
use super::tls::common_name;
use super::{BindError, BrokerState, metrics};
use domain::ClientId;
use network::tls_server::ServerTls;
use service::LogThrottle;
use service::TaskGroup;

/// Delay before the next accept after an accept failed. The usual cause of the failure is a lack of
/// file descriptors. Connections that close during the delay release file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of connections that wait until they are accepted. The default of 1,024 is too low
/// for many clients that reconnect at once: a client whose connection does not fit waits for a
/// second or longer before it tries again.
const ACCEPT_QUEUE_LEN: u32 = 4096;

/// Binds a listener to `address`, which is the value of the setting `setting_name`.
///
/// # Errors
/// When the address cannot be bound. The error contains the setting name.
pub fn bind(setting_name: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    listen(address).map_err(|source| BindError {
        setting_name,
        address,
        source,
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_LEN)
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
                let reject = |reason: RejectionReason| {
                    metrics::count_broker_rejection(reason.as_str(), &peer);
                };
                let Some(slot) = ConnectionSlot::acquire(&state, peer.ip()) else {
                    reject(RejectionReason::TooManyConnections);
                    continue;
                };
                let Some((pending_slot, replaced)) = state.pending_connections.add(peer.ip())
                else {
                    reject(RejectionReason::TooManyPendingConnections);
                    continue;
                };
                let connection =
                    serve_connection(state.clone(), stream, peer, tls.clone(), pending_slot);
                tasks.spawn_item("mqtt_connection", async move {
                    tokio::select! {
                        () = connection => {}
                        Ok(()) = replaced => {
                            let reason = RejectionReason::PendingConnectionReplaced;
                            metrics::count_broker_rejection(reason.as_str(), &peer);
                        }
                    }
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
    pending_slot: PendingSlot,
) {
    // Disables Nagle's algorithm, which would delay small packets.
    let _ = stream.set_nodelay(true);
    let (stream, certificate_name) = match tls {
        None => (ClientStream::Plain(stream), None),
        // The future of the handshake is boxed, because an open connection would keep its memory.
        Some(tls) => match Box::pin(perform_tls_handshake(&state, stream, peer, &tls)).await {
            Some((stream, common_name)) => (stream, Some(common_name)),
            None => return,
        },
    };
    let handle = StreamHandle::default();
    let limits = state.packet_limits.clone();
    let packet_reader = PacketReader::new(limits, peer, handle.clone(), pending_slot);
    let stream = AbortableStream::new(stream, peer, handle.clone(), packet_reader);
    let session = Arc::new(ClientSession::new(
        state.clone(),
        peer,
        certificate_name,
        handle,
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
        state.disconnect_all_signal.subscribe(),
    );
    // Without the box, the handler would use memory twice: as a variable, and in its future.
    if let Err(error) = Box::pin(handler.run()).await {
        tracing::debug!(%peer, %error, "MQTT connection closed");
    }
    session.close();
}

/// Performs the TLS handshake. Returns the encrypted stream and the common name of the client
/// certificate. Returns `None` if the connection was rejected.
async fn perform_tls_handshake(
    state: &BrokerState,
    stream: TcpStream,
    peer: SocketAddr,
    tls: &ServerTls,
) -> Option<(ClientStream, ClientId)> {
    let reject = |reason: RejectionReason| metrics::count_broker_rejection(reason.as_str(), &peer);
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
    let client_certificates = stream.get_ref().1.peer_certificates();
    let Some(common_name) = client_certificates.and_then(|chain| common_name(chain.first()?))
    else {
        reject(RejectionReason::NoCommonName);
        return None;
    };
    Some((ClientStream::Tls(Box::new(stream)), common_name))
}

/// Limits the number of open connections, in total and per IP address.
pub(super) struct ConnectionLimits {
    max_connections: usize,
    max_connections_per_address: usize,
    open_connections: Mutex<OpenConnectionCounts>,
}

#[derive(Default)]
struct OpenConnectionCounts {
    total_count: usize,
    counts_by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimits {
    pub fn new(max_connections: usize, max_connections_per_address: usize) -> Self {
        Self {
            max_connections,
            max_connections_per_address,
            open_connections: Mutex::default(),
        }
    }
}

/// Counts one connection in [`ConnectionLimits`] until the slot is dropped.
struct ConnectionSlot {
    state: Arc<BrokerState>,
    address: IpAddr,
}

impl ConnectionSlot {
    /// Acquires a slot for a connection from `address`. Returns `None` if the maximum number of
    /// connections, in total or from this address, is reached.
    fn acquire(state: &Arc<BrokerState>, address: IpAddr) -> Option<Self> {
        let limits = &state.connection_limits;
        let mut counts = limits.open_connections.lock();
        if counts.total_count >= limits.max_connections {
            return None;
        }
        let connections_from_address = counts.counts_by_address.entry(address).or_default();
        if *connections_from_address >= limits.max_connections_per_address {
            return None;
        }
        *connections_from_address += 1;
        counts.total_count += 1;
        Some(Self {
            state: state.clone(),
            address,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.state.connection_limits.open_connections.lock();
        counts.total_count -= 1;
        if let Some(connections_from_address) = counts.counts_by_address.get_mut(&self.address) {
            *connections_from_address -= 1;
            if *connections_from_address == 0 {
                counts.counts_by_address.remove(&self.address);
            }
        }
    }
}
