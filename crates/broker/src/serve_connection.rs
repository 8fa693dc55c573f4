//! Serves one connection: performs the TLS and WebSocket handshakes, checks the CONNECT packet, and runs
//! `mqtt5` until the connection ends.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::transport::BrokerTransport;
use mqtt5::packet::connect::ConnectPacket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::BrokerState;
use super::abortable_stream::AbortableStream;
use super::client_stream::ClientStream;
use super::connack::encode_rejection;
use super::connect_packet::{ConnectError, MqttVersion, ReceivedConnect, read_connect_packet};
use super::network_stream::NetworkStream;
use super::packet_reader::{ConnectedClient, PacketReader};
use super::pending_connections::PendingSlot;
use super::rejected_certificate::with_rejected_name;
use super::rejection::{RejectedPeer, RejectionReason, Rejections};
use super::session::ClientSession;
use super::stream_handle::StreamHandle;
use super::tls::common_name;
use super::websocket::{self, HandshakeError, HandshakeRules};
use domain::ClientId;
use network::tls_server::ServerTls;

/// Maximum time from the end of the TLS handshake to the end of the CONNECT packet. Includes the
/// WebSocket handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time in which a rejected client must read the CONNACK packet.
const MAX_LINGER_TIME: Duration = Duration::from_secs(1);
/// First byte of an HTTP request with the method GET. No CONNECT packet begins with this byte.
const FIRST_BYTE_HTTP_GET: u8 = b'G';

/// A connection before its CONNECT packet is accepted.
struct NewConnection {
    state: Arc<BrokerState>,
    peer: SocketAddr,
    /// The common name of the client certificate. `None` without TLS, and until the TLS handshake has
    /// accepted the certificate or rejected a certificate of a client CA.
    certificate_name: Option<ClientId>,
}

/// A connection whose CONNECT packet is accepted.
struct AcceptedConnection {
    client_id: ClientId,
    stream: AbortableStream,
    session: Arc<ClientSession>,
}

pub(super) async fn serve_connection(
    state: Arc<BrokerState>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    pending_slot: PendingSlot,
) {
    // Disables Nagle's algorithm, which would delay small packets.
    let _ = stream.set_nodelay(true);
    let connection = NewConnection {
        state: state.clone(),
        peer,
        certificate_name: None,
    };
    // The future is boxed, because an open connection would keep its memory.
    let accepted = Box::pin(connection.accept(stream, tls)).await;
    let Some(AcceptedConnection {
        client_id,
        stream,
        session,
    }) = accepted
    else {
        return;
    };
    if !pending_slot.complete() {
        // A new connection has just replaced this one. The caller closes it. If the client got a CONNACK
        // before, it would lose a connection that it considers open.
        return std::future::pending().await;
    }
    let mut config = state.connection_config.clone();
    config.event_handler = Some(session.clone());
    let shard = state.router_shards.shard_of(&client_id);
    let handler = ClientHandler::new(
        BrokerTransport::WebSocket(Box::new(stream)),
        peer,
        Arc::new(config),
        shard.router.clone(),
        session.clone(),
        Some(shard.storage.clone()),
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

impl NewConnection {
    /// Performs the handshakes and checks the CONNECT packet. Returns `None` if the connection was
    /// rejected or closed.
    async fn accept(
        mut self,
        stream: TcpStream,
        tls: Option<Arc<ServerTls>>,
    ) -> Option<AcceptedConnection> {
        let stream = match &tls {
            None => NetworkStream::plain(stream),
            Some(tls) => self.perform_tls_handshake(stream, tls).await?,
        };
        let is_loopback_listener = tls.is_none();
        let receive = self.receive_connect(stream, is_loopback_listener);
        let Ok(received) = tokio::time::timeout(CONNECT_TIMEOUT, receive).await else {
            self.report(RejectionReason::ConnectTimeout, None, None);
            return None;
        };
        let (mut stream, received) = received?;
        let handle = StreamHandle::default();
        let session = ClientSession::new(
            self.state.clone(),
            self.peer,
            self.certificate_name.clone(),
            handle.clone(),
        );
        let client_id = match session.check_connect(&received.connect) {
            Ok(client_id) => client_id,
            Err(reason) => {
                let connect = Some(&received.connect);
                self.reject(&mut stream, reason, Some(received.version), connect)
                    .await;
                return None;
            }
        };
        let peer = self.peer;
        let packet_reader = self.packet_reader(client_id.clone(), received, handle.clone());
        Some(AcceptedConnection {
            client_id,
            stream: AbortableStream::new(stream, peer, handle, packet_reader),
            session: Arc::new(session),
        })
    }

    fn packet_reader(
        self,
        client_id: ClientId,
        received: ReceivedConnect,
        handle: StreamHandle,
    ) -> PacketReader {
        if let Some(reservation) = received.reservation {
            handle.set_connect_reservation(reservation);
        }
        let client = ConnectedClient {
            id: client_id,
            peer: self.peer,
            certificate_name: self.certificate_name,
            uses_mqtt_v5: received.version == MqttVersion::V5,
        };
        let limits = self.state.packet_limits.clone();
        PacketReader::new(
            limits,
            client,
            handle,
            received.packet,
            received.following_bytes,
        )
    }

    /// Performs the TLS handshake, and reads the common name of the client certificate. Returns
    /// `None` if the connection was rejected.
    async fn perform_tls_handshake(
        &mut self,
        stream: TcpStream,
        tls: &ServerTls,
    ) -> Option<NetworkStream> {
        let timeout = self.state.settings.handshake_timeout.get();
        let handshake = with_rejected_name(tls.acceptor().accept(stream));
        let stream = match tokio::time::timeout(timeout, handshake).await {
            Ok((Ok(stream), _)) => stream,
            Ok((Err(error), _)) if error.kind() == ErrorKind::UnexpectedEof => {
                // Not logged: health checks of load balancers close the connection at once.
                Rejections::count(RejectionReason::TlsHandshakeFailed);
                return None;
            }
            Ok((Err(error), rejected_name)) => {
                let detail = error.to_string();
                self.certificate_name = rejected_name;
                self.report(RejectionReason::TlsHandshakeFailed, None, Some(&detail));
                return None;
            }
            Err(_) => {
                self.report(RejectionReason::TlsHandshakeTimeout, None, None);
                return None;
            }
        };
        let client_certificates = stream.get_ref().1.peer_certificates();
        let common_name = client_certificates.and_then(|chain| common_name(chain.first()?));
        if common_name.is_none() {
            self.report(RejectionReason::NoCommonName, None, None);
            return None;
        }
        self.certificate_name = common_name;
        Some(NetworkStream::tls(stream))
    }

    /// Receives the CONNECT packet, directly or in WebSocket frames. Returns `None` if the connection
    /// was rejected or closed.
    async fn receive_connect(
        &self,
        mut stream: NetworkStream,
        is_loopback_listener: bool,
    ) -> Option<(ClientStream, ReceivedConnect)> {
        let first_byte = stream.read_u8().await.ok()?;
        stream.unread(&[first_byte]);
        let mut stream = if first_byte == FIRST_BYTE_HTTP_GET {
            let rules = HandshakeRules {
                path: self.state.settings.websocket.path.as_deref(),
                is_loopback_listener,
            };
            let stream = match websocket::accept(stream, rules).await {
                Ok(stream) => stream,
                Err(HandshakeError::Closed) => return None,
                Err(HandshakeError::Rejected(problem)) => {
                    let reason = RejectionReason::WebSocketHandshakeFailed;
                    self.report(reason, None, Some(&problem));
                    return None;
                }
            };
            ClientStream::WebSocket(Box::new(stream))
        } else {
            ClientStream::Direct(stream)
        };
        match read_connect_packet(&mut stream, &self.state.connect_budget).await {
            Ok(received) => Some((stream, received)),
            Err(ConnectError::Closed) => None,
            Err(ConnectError::Rejected { reason, version }) => {
                self.reject(&mut stream, reason, version, None).await;
                None
            }
        }
    }

    /// Reports the rejection of a CONNECT packet, and sends the reason to the client if its MQTT version
    /// allows that.
    async fn reject(
        &self,
        stream: &mut ClientStream,
        reason: RejectionReason,
        version: Option<MqttVersion>,
        connect: Option<&ConnectPacket>,
    ) {
        self.report(reason, connect, None);
        let Some(connack) = encode_rejection(reason, version, connect) else {
            return;
        };
        let send = async {
            stream.write_all(&connack).await?;
            stream.shutdown().await?;
            // If the connection were closed while there are unread bytes, the operating system would
            // discard the CONNACK packet. So the broker reads until the client closes the connection.
            let mut discarded = [0; 1024];
            while stream.read(&mut discarded).await? > 0 {}
            std::io::Result::Ok(())
        };
        // An error does not matter, because the connection ends anyway.
        let _ = tokio::time::timeout(MAX_LINGER_TIME, send).await;
    }

    fn report(
        &self,
        reason: RejectionReason,
        connect: Option<&ConnectPacket>,
        detail: Option<&str>,
    ) {
        let peer = RejectedPeer {
            address: self.peer,
            certificate_name: self.certificate_name.as_ref(),
            client_id: connect.map(|connect| connect.client_id.as_str()),
        };
        self.state
            .rejections
            .report_with_detail(reason, peer, detail);
    }
}
