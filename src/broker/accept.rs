//! Accepting connections. Each is handled in a task of its own from its first byte, so a peer that
//! stays silent delays nobody.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::transport::BrokerTransport;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::abortable_stream::{KillSwitch, Socket, Stream};
use super::session::ClientSession;
use super::tls::common_name;
use super::{BrokerState, StartError};
use crate::domain::ClientId;
use crate::shutdown::TaskGroup;
use crate::telemetry::metrics::{self, LogThrottle};
use crate::tls_server::ServerTls;

/// After a failed accept (out of file descriptors, most likely): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Binds one listener, so that a port in use is found at start.
///
/// # Errors
/// When the address cannot be had; names the setting.
pub async fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Bind {
            key,
            address,
            source,
        })
}

pub(super) async fn accept(
    shared: Arc<BrokerState>,
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    stopper: TaskGroup,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopper.asked() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = ConnectionSlot::take(&shared, peer.ip()) else {
                    metrics::refused("too_many_connections", &peer);
                    continue;
                };
                let serving = serve(shared.clone(), stream, peer, tls.clone());
                stopper.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                static SAID: LogThrottle = LogThrottle::new();
                if SAID.now() {
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve(
    shared: Arc<BrokerState>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
) {
    // Small packets, each awaited by the other side: waiting to fill a segment only delays.
    let _ = stream.set_nodelay(true);
    let (stream, certified) = match tls {
        None => (Stream::Plain(stream), None),
        Some(tls) => match handshake(&shared, stream, peer, &tls).await {
            Some((stream, name)) => (stream, Some(name)),
            None => return,
        },
    };
    let cut = KillSwitch::default();
    let socket = Socket::new(stream, peer, cut.clone());
    let link = Arc::new(ClientSession::new(shared.clone(), peer, certified, cut));
    let mut config = shared.template.clone();
    config.event_handler = Some(link.clone());
    let handler = ClientHandler::new(
        BrokerTransport::WebSocket(Box::new(socket)),
        peer,
        Arc::new(config),
        shared.router.clone(),
        link.clone(),
        Some(shared.storage.clone()),
        shared.stats.clone(),
        shared.monitor.clone(),
        shared.end_all.subscribe(),
    );
    if let Err(error) = handler.run().await {
        tracing::debug!(%peer, %error, "connection ended");
    }
    link.ended();
}

async fn handshake(
    shared: &BrokerState,
    stream: TcpStream,
    peer: SocketAddr,
    tls: &ServerTls,
) -> Option<(Stream, ClientId)> {
    let within = shared.settings.handshake_timeout.get();
    let stream = match timeout(within, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            metrics::refused("tls_handshake", &peer);
            return None;
        }
        Err(_) => {
            metrics::refused("tls_silent", &peer);
            return None;
        }
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let Some(name) = certificates.and_then(|chain| common_name(chain.first()?)) else {
        metrics::refused("no_common_name", &peer);
        return None;
    };
    Some((Stream::Tls(Box::new(stream)), name))
}

/// How many sockets may be open, in all and from one address.
pub(super) struct AcceptLimits {
    most: usize,
    most_per_address: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl AcceptLimits {
    pub fn new(most: usize, most_per_address: usize) -> Self {
        Self {
            most,
            most_per_address,
            open: Mutex::default(),
        }
    }
}

/// A socket's place within the limits; given back when dropped.
struct ConnectionSlot {
    shared: Arc<BrokerState>,
    address: IpAddr,
}

impl ConnectionSlot {
    fn take(shared: &Arc<BrokerState>, address: IpAddr) -> Option<Self> {
        let limits = &shared.limits;
        let mut open = limits.open.lock();
        if open.all >= limits.most {
            return None;
        }
        let here = open.by_address.entry(address).or_default();
        if *here >= limits.most_per_address {
            return None;
        }
        *here += 1;
        open.all += 1;
        Some(Self {
            shared: shared.clone(),
            address,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.shared.limits.open.lock();
        open.all -= 1;
        if let Some(here) = open.by_address.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}
