//! Accepts connections, within the limits per process and per address. Each connection has its own
//! task, which also performs the handshakes. Therefore a peer that sends nothing does not delay other
//! peers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};

use super::rejection::{RejectedPeer, RejectionReason};
use super::serve_connection::serve_connection;
use super::{BindError, BrokerState};
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
                let rejected_peer = RejectedPeer {
                    address: peer,
                    certificate_name: None,
                    client_id: None,
                };
                let reject = |reason| state.rejections.report(reason, rejected_peer);
                let Some(slot) = ConnectionSlot::acquire(&state, peer.ip()) else {
                    reject(RejectionReason::TooManyConnections);
                    continue;
                };
                let Some((pending_slot, replaced)) = state.pending_connections.add(peer.ip())
                else {
                    reject(RejectionReason::TooManyPendingConnections);
                    continue;
                };
                // Boxed, because `select!` would need the memory of the future twice.
                let connection = Box::pin(serve_connection(
                    state.clone(),
                    stream,
                    peer,
                    tls.clone(),
                    pending_slot,
                ));
                let rejections = state.rejections.clone();
                tasks.spawn_item("mqtt_connection", async move {
                    tokio::select! {
                        () = connection => {}
                        Ok(()) = replaced => {
                            let reason = RejectionReason::PendingConnectionReplaced;
                            rejections.report(reason, rejected_peer);
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
